//! `analyze_data`: statistics of numbers and table columns.

mod column;
mod summary;

use serde_json::Value;
use toolpost::{Ctx, ToolError, data, tool};

use self::column::{Column, Table};
use self::summary::{Sample, correlation};
use crate::files::{self, shown};

/// Maximum size of a table, in bytes.
const MAX_TABLE: u64 = 64 << 20;
/// Default quantiles and number of bins of `descriptive`.
const QUANTILES: [f64; 7] = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95];
const BINS: usize = 10;

/// A value that is not a number.
#[data]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotANumber {
    /// Position among the values, from 1.
    pub position: u64,
    /// The value.
    pub value: String,
}

/// A quantile.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Quantile {
    /// Probability, from 0 to 1.
    pub probability: f64,
    /// Value, interpolated between two numbers.
    pub value: f64,
}

/// A bin of a histogram.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramBin {
    /// Lower limit, inclusive.
    pub from: f64,
    /// Upper limit, exclusive except in the last bin.
    pub to: f64,
    /// Number of values.
    pub count: u64,
}

/// The correlation of two columns.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Correlation {
    /// The other column.
    pub with: String,
    /// Number of positions with a number on both sides.
    pub pairs: u64,
    /// Pearson's coefficient, from -1 to 1; `null` if a side is constant or there are fewer than two pairs.
    pub pearson: Option<f64>,
}

/// Statistics of numbers. A statistic that is undefined or exceeds a 64-bit number is `null`.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct DataAnalysis {
    /// Column name, or `data`.
    pub column: String,
    /// Number of numeric values.
    pub count: u64,
    /// Number of missing values: `null`, an empty field, or a mark such as `NA`.
    pub missing: u64,
    /// Number of other values, which are ignored.
    pub non_numeric: u64,
    /// The first few of those.
    pub non_numeric_examples: Vec<NotANumber>,
    /// Sum.
    pub sum: Option<f64>,
    /// Minimum.
    pub min: Option<f64>,
    /// Maximum.
    pub max: Option<f64>,
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Median; for an even count, the mean of the middle two.
    pub median: Option<f64>,
    /// Sample variance, divided by the count less 1.
    pub variance: Option<f64>,
    /// Square root of `variance`.
    pub standard_deviation: Option<f64>,
    /// Population variance, divided by the count. Only in `descriptive`.
    pub population_variance: Option<f64>,
    /// Square root of `population_variance`. Only in `descriptive`.
    pub population_standard_deviation: Option<f64>,
    /// Quantiles, in the requested order.
    pub quantiles: Vec<Quantile>,
    /// Histogram with bins of equal width.
    pub histogram: Vec<HistogramBin>,
    /// Correlation with the other values, if given.
    pub correlation: Option<Correlation>,
}

/// Compute statistics of numbers, or of a column of a CSV file.
///
/// Pass either `data` or `path`. "basic" computes count, sum, minimum, maximum, mean, median, sample variance and standard
/// deviation (divided by n - 1); "descriptive" adds population statistics, quantiles and a histogram. Missing and
/// non-numeric values are ignored and counted. With `other_data` or `other_column`, the correlation is computed.
#[tool(
    summary = "Analyze data",
    tags("statistics", "mean", "median", "histogram", "correlation", "csv", "data"),
    max_retries = 0,
    examples(
        r#"{"data": [1, 2, 3, 4, 5]}"#,
        r#"{"path": "sales.csv", "column": "amount", "analysis": "descriptive"}"#
    ),
    policy(category = "data_processing", group = "maths", read_only, idempotent)
)]
#[expect(clippy::too_many_arguments, reason = "each is a parameter of the tool")]
pub fn analyze_data(
    /// The numbers; null marks a missing one.
    data: Option<Vec<Value>>,
    /// Path of a CSV file, relative to the working directory, for example "data/sales.csv".
    path: Option<String>,
    /// The column by name, or by number from 1. Optional if the file has only one.
    column: Option<String>,
    /// The statistics to compute: "basic" or "descriptive".
    #[arg(default = "basic", enum("basic", "descriptive"))]
    analysis: String,
    /// Probabilities of quantiles, from 0 to 1, for example [0.25, 0.5, 0.75].
    #[arg(max_len = 100)]
    quantiles: Option<Vec<f64>>,
    /// Number of histogram bins of equal width.
    #[arg(min = 1, max = 1000)]
    bins: Option<usize>,
    /// Numbers to correlate with `data`, by position.
    other_data: Option<Vec<Value>>,
    /// Another column of the file to correlate with, by row.
    other_column: Option<String>,
    /// Whether the first row of the file has the column names.
    #[arg(default = true)]
    header: bool,
    /// The delimiter of the file. By default a comma, semicolon, tab or bar is detected.
    #[arg(min_len = 1, max_len = 1)]
    delimiter: Option<String>,
    ctx: &Ctx,
) -> Result<DataAnalysis, ToolError> {
    let (name, first, other) = match (data, path) {
        (Some(data), None) => {
            let stray = [("column", column.is_some()), ("other_column", other_column.is_some())];
            if let Some((name, _)) = stray.into_iter().find(|(_, given)| *given) {
                return Err(misplaced(name, "data", "path"));
            }
            let other = other_data.as_deref().map(Column::of_json).transpose()?;
            if let Some(other) = &other
                && other.values.len() != data.len()
            {
                let message = format!(
                    "`other_data` has {} values; expected as many as in `data`: {}",
                    other.values.len(),
                    data.len()
                );
                return Err(ToolError::invalid_input(message).with("pointer", "/other_data"));
            }
            ("data".to_owned(), Column::of_json(&data)?, other.map(|other| ("other_data".to_owned(), other)))
        }
        (None, Some(path)) => {
            if other_data.is_some() {
                return Err(misplaced("other_data", "path", "data"));
            }
            let read = files::read_text(ctx, &path, None, MAX_TABLE)?;
            let delimiter = delimiter.and_then(|text| text.chars().next());
            let table = Table { text: &read.text, delimiter, has_header: header };
            let mut requested = vec![("/column", column.as_deref())];
            requested.extend(other_column.as_deref().map(|other| ("/other_column", Some(other))));
            let mut columns = table.columns(&requested, &|| ctx.is_cancelled())?.into_iter();
            let (name, first) = columns.next().unwrap_or_default();
            (name, first, columns.next())
        }
        (Some(_), Some(_)) => {
            return Err(ToolError::invalid_input("both `data` and `path` are given; expected one of them")
                .with("pointer", "/path")
                .suggest("Omit one of them."));
        }
        (None, None) => {
            return Err(ToolError::missing_param("neither `data` nor `path` is given; expected one of them")
                .with("pointer", "/data")
                .suggest("Pass the numbers as `data`, or the `path` of a CSV file."));
        }
    };
    let descriptive = analysis == "descriptive";
    let quantiles = quantiles.unwrap_or_else(|| if descriptive { QUANTILES.to_vec() } else { Vec::new() });
    if let Some((index, wrong)) = quantiles.iter().enumerate().find(|(_, part)| !(0.0..=1.0).contains(*part))
    {
        let message = format!("a quantile's probability must be from 0 to 1, found {wrong}");
        return Err(ToolError::invalid_input(message).with("pointer", format!("/quantiles/{index}")));
    }
    let sample = Sample::new(first.numbers());
    let (variance, standard_deviation) = sample.spread(1);
    let (population_variance, population_standard_deviation) =
        if descriptive { sample.spread(0) } else { (None, None) };
    let quantiles = quantiles
        .into_iter()
        .filter_map(|probability| Some(Quantile { probability, value: sample.quantile(probability)? }))
        .collect();
    let histogram = bins.or(descriptive.then_some(BINS)).map(|bins| sample.histogram(bins));
    let correlation = other.map(|(with, other)| {
        let pairs: Vec<(f64, f64)> = first
            .values
            .iter()
            .copied()
            .zip(other.values)
            .filter(|(left, right)| !left.is_nan() && !right.is_nan())
            .collect();
        Correlation { with: shown(&with), pairs: pairs.len() as u64, pearson: correlation(&pairs) }
    });
    Ok(DataAnalysis {
        column: shown(&name),
        count: sample.count() as u64,
        missing: first.missing,
        non_numeric: first.non_numeric,
        sum: sample.sum(),
        min: sample.minimum(),
        max: sample.maximum(),
        mean: sample.mean(),
        median: sample.median(),
        variance,
        standard_deviation,
        population_variance,
        population_standard_deviation,
        quantiles,
        histogram: histogram
            .into_iter()
            .flatten()
            .map(|(from, to, count)| HistogramBin { from, to, count })
            .collect(),
        correlation,
        non_numeric_examples: first.examples,
    })
}

/// The error for an argument of the other source.
fn misplaced(name: &str, given: &str, needed: &str) -> ToolError {
    ToolError::invalid_input(format!("`{name}` needs `{needed}`, but `{given}` is given"))
        .with("pointer", format!("/{name}"))
        .suggest(format!("Omit `{name}`, or pass `{needed}` instead of `{given}`."))
}
