//! `analyze_data`: statistics of numbers, and of the columns of a table.

mod column;
mod summary;

use serde_json::Value;
use toolpost::{Ctx, ToolError, data, tool};

use self::column::{Column, Table};
use self::summary::{Sample, correlation};
use crate::files::{self, shown};

/// The largest table that is read, in bytes.
const MAX_TABLE: u64 = 64 << 20;
/// The quantiles and the number of stretches of a histogram that `descriptive` gives without being told.
const QUANTILES: [f64; 7] = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95];
const BINS: usize = 10;

/// A value that is no number.
#[data]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotANumber {
    /// Where it stands among the values, from 1.
    pub position: u64,
    /// The value.
    pub value: String,
}

/// The value below which a part of the numbers lies.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Quantile {
    /// The part, from 0 to 1.
    pub probability: f64,
    /// The value; interpolated where it lies between two numbers.
    pub value: f64,
}

/// One stretch of a histogram.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramBin {
    /// Its lower limit, which belongs to it.
    pub from: f64,
    /// Its upper limit, which belongs to the next one; that of the last one belongs to it.
    pub to: f64,
    /// How many numbers fall into it.
    pub count: u64,
}

/// How two columns go together.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Correlation {
    /// What the numbers were compared with.
    pub with: String,
    /// How many places had a number on both sides.
    pub pairs: u64,
    /// Pearson's coefficient, from -1 to 1; `null` when one side does not vary or there are fewer than two pairs.
    pub pearson: Option<f64>,
}

/// Statistics of numbers. What has no value, or none that a 64-bit number can hold, is `null`.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct DataAnalysis {
    /// The name of the column, or `data`.
    pub column: String,
    /// How many numbers there are.
    pub count: u64,
    /// How many values are missing: `null`, an empty field, or one such as `NA`.
    pub missing: u64,
    /// How many values are something else than a number; they are left out.
    pub non_numeric: u64,
    /// The first few of those.
    pub non_numeric_examples: Vec<NotANumber>,
    /// The sum.
    pub sum: Option<f64>,
    /// The smallest number.
    pub min: Option<f64>,
    /// The largest number.
    pub max: Option<f64>,
    /// The arithmetic mean.
    pub mean: Option<f64>,
    /// The median; of an even count, the mean of the two in the middle.
    pub median: Option<f64>,
    /// The sample variance: divided by the count less 1.
    pub variance: Option<f64>,
    /// The square root of `variance`.
    pub standard_deviation: Option<f64>,
    /// The variance of a whole population: divided by the count. Only in `descriptive`.
    pub population_variance: Option<f64>,
    /// The square root of `population_variance`. Only in `descriptive`.
    pub population_standard_deviation: Option<f64>,
    /// Quantiles, in the order asked for.
    pub quantiles: Vec<Quantile>,
    /// A histogram over stretches of equal width.
    pub histogram: Vec<HistogramBin>,
    /// The correlation with the other values, when some were given.
    pub correlation: Option<Correlation>,
}

/// Compute statistics of numbers, or of a column of a CSV file.
///
/// Give either `data` or `path`. "basic" gives count, sum, minimum, maximum, mean, median, sample variance and standard
/// deviation (divided by n - 1); "descriptive" adds those of a population, quantiles and a histogram. Values that are
/// missing or not numeric are left out and counted. With `other_data` or `other_column`, the correlation is computed.
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
    /// The numbers. null stands for a missing one.
    data: Option<Vec<Value>>,
    /// Path of a CSV file, relative to the working folder, for example "data/sales.csv".
    path: Option<String>,
    /// The column of the file: its name, or its number from 1. May be left out if there is only one.
    column: Option<String>,
    /// What to compute: "basic" or "descriptive".
    #[arg(default = "basic", enum("basic", "descriptive"))]
    analysis: String,
    /// Probabilities from 0 to 1 to compute quantiles for, for example [0.25, 0.5, 0.75].
    #[arg(max_len = 100)]
    quantiles: Option<Vec<f64>>,
    /// Into how many stretches of equal width a histogram divides the numbers.
    #[arg(min = 1, max = 1000)]
    bins: Option<usize>,
    /// Numbers to correlate `data` with, place by place.
    other_data: Option<Vec<Value>>,
    /// Another column of the file to correlate the first with, row by row.
    other_column: Option<String>,
    /// Whether the first row of the file holds the names of the columns.
    #[arg(default = true)]
    header: bool,
    /// The character between the fields of the file. It is detected when left out: a comma, semicolon, tab or bar.
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
                    "`other_data` has {} values, expected as many as `data` has: {}",
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
            let mut wanted = vec![("/column", column.as_deref())];
            wanted.extend(other_column.as_deref().map(|other| ("/other_column", Some(other))));
            let mut columns = table.columns(&wanted, &|| ctx.is_cancelled())?.into_iter();
            let (name, first) = columns.next().unwrap_or_default();
            (name, first, columns.next())
        }
        (Some(_), Some(_)) => {
            return Err(ToolError::invalid_input("`data` and `path` are both given: expected one of them")
                .with("pointer", "/path")
                .suggest("Leave one of them out."));
        }
        (None, None) => {
            return Err(ToolError::missing_param("neither `data` nor `path` is given: expected one of them")
                .with("pointer", "/data")
                .suggest("Give the numbers as `data`, or the `path` of a CSV file."));
        }
    };
    let descriptive = analysis == "descriptive";
    let quantiles = quantiles.unwrap_or_else(|| if descriptive { QUANTILES.to_vec() } else { Vec::new() });
    if let Some((index, wrong)) = quantiles.iter().enumerate().find(|(_, part)| !(0.0..=1.0).contains(*part))
    {
        let message = format!("a quantile's probability lies between 0 and 1, found {wrong}");
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

/// An argument that belongs to the other way of giving numbers.
fn misplaced(name: &str, given: &str, needed: &str) -> ToolError {
    ToolError::invalid_input(format!("`{name}` goes with `{needed}`, and `{given}` is given"))
        .with("pointer", format!("/{name}"))
        .suggest(format!("Leave `{name}` out, or give `{needed}` instead of `{given}`."))
}
