//! Figures with error bars, and their comparison.

use serde::{Deserialize, Serialize};

/// The number of resampled data sets of an error bar.
const RESAMPLES: usize = 2_000;

/// A median with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figure {
    /// The median of rounds, with a bootstrapped interval. None without rounds.
    pub(super) fn from_rounds(rounds: &[f64]) -> Option<Self> {
        if rounds.is_empty() {
            return None;
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let resample: Vec<f64> = rounds
                    .iter()
                    .map(|_| {
                        // Xorshift with a fixed seed: equal rounds have equal error bars.
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        rounds[(state >> 33) as usize % rounds.len()]
                    })
                    .collect();
                median(&resample)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Some(Self {
            value: median(rounds),
            low: medians[RESAMPLES / 40],
            high: medians[RESAMPLES - 1 - RESAMPLES / 40],
        })
    }

    /// Whether the intervals of two figures overlap.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// The median; NaN without samples.
pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (_, None) => f64::NAN,
        (0, Some(upper)) => sorted[middle - 1].midpoint(*upper),
        (_, Some(value)) => *value,
    }
}

/// The results of a benchmark.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) v: u32,
    pub(super) version: String,
    pub(super) started: String,
    pub(super) seconds: u64,
    pub(super) rounds: usize,
    pub(super) machine: Machine,
    pub(super) versions: Vec<Version>,
    pub(super) comparisons: Vec<Comparison>,
}

/// The machine of a benchmark.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) system: String,
    pub(super) level: Option<String>,
    pub(super) layers: Vec<String>,
}

/// The version of a subject.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) version: String,
}

/// One measurement of all subjects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Comparison {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) about: String,
    pub(super) unit: String,
    pub(super) higher_is_better: bool,
    pub(super) rows: Vec<Row>,
}

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Measured,
    Failed,
    Skipped,
}

/// One subject of a comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// Whether the subject is Toolpost.
    pub(super) toolpost: bool,
    pub(super) status: Status,
    pub(super) rounds: usize,
    pub(super) figure: Option<Figure>,
    /// The ratio of the first row of Toolpost to this one.
    pub(super) ratio: Option<Figure>,
    pub(super) reason: Option<String>,
    /// The installation of the subject.
    pub(super) fix: Option<String>,
}

impl Comparison {
    /// The measured rows with their figures.
    pub(super) fn measured(&self) -> impl Iterator<Item = (&Row, Figure)> {
        self.rows.iter().filter_map(|row| Some((row, row.figure?)))
    }
}

/// A figure of two runs.
pub(super) struct Pair<'a> {
    pub(super) comparison: &'a Comparison,
    pub(super) name: &'a str,
    pub(super) old: Figure,
    pub(super) new: Figure,
}

impl Results {
    /// The figures that this run shares with another one.
    pub(super) fn pairs<'a>(&'a self, old: &'a Self) -> Vec<Pair<'a>> {
        let of_old = |id: &str, name: &str| {
            let comparison = old.comparisons.iter().find(|comparison| comparison.id == id)?;
            comparison.measured().find(|(row, _)| row.name == name).map(|(_, figure)| figure)
        };
        let pairs = self.comparisons.iter().flat_map(|comparison| {
            comparison.measured().filter_map(move |(row, new)| {
                let old = of_old(&comparison.id, &row.name)?;
                Some(Pair { comparison, name: &row.name, old, new })
            })
        });
        pairs.collect()
    }
}
