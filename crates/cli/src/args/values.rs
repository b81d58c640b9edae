//! Values of options that other modules use too.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON value.
    Json,
    /// JSON Lines, while the command runs.
    Jsonl,
}

/// The backend that runs code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// Processes of this host.
    Process,
    /// A container of the Docker daemon.
    Docker,
}

/// When to pull a container image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pull {
    /// Never.
    #[default]
    Never,
    /// If the daemon lacks it.
    Missing,
    /// Before the run.
    Always,
}

/// When to color output.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// JSON Lines.
    Json,
}
