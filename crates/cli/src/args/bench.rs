//! The arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    Sandbox,
    Loop,
    Mcp,
    Flow,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The parts to measure; defaults to everything.
    #[arg(value_enum, value_name = "SUITE")]
    pub(crate) suites: Vec<Suite>,
    /// The directory of the report.
    #[arg(long, value_name = "DIR", default_value = "toolpost-bench")]
    pub(crate) output: PathBuf,
    /// The Python that has the peers.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// Number of rounds; defaults to 10, or fewer that fit five minutes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: Option<u16>,
    /// Compare the figures with an earlier `results.json`.
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
}

/// The arguments of the internal command that runs one measured subject.
#[derive(Args, Debug)]
pub(crate) struct BenchSubjectArgs {
    /// `loop`, `server` or `flow`.
    pub(crate) name: String,
    /// The URL of the provider, the port of the server, or `stdio`.
    pub(crate) place: Option<String>,
}
