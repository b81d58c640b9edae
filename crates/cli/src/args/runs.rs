//! What is asked of the runs that were kept.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{GrantArgs, Permission};

/// What can be asked about runs.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List the runs, the youngest first.
    Ls {
        /// How many at most.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// Also runs that another run made, and calls that no run made.
        #[arg(long)]
        all: bool,
    },
    /// Show one run: its prompt, calls, causes of errors, timings and answer.
    Show {
        /// The run: `last`, its id, or the beginning of its id; or the id of a call.
        id: String,
    },
    /// Remove runs for good.
    Rm {
        /// The runs, as in `show`.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Add up what runs have used and cost, for all and for each model.
    Stats {
        /// Only runs that began within this time, such as `90m` or `168h`.
        #[arg(long, value_name = "D", value_parser = super::duration)]
        since: Option<Duration>,
    },
    /// Run a run again without a provider: its model says what it said, and its tools really run. Says whether the model
    /// was asked the same; if not, what differs first, with status 1.
    Replay(Box<ReplayArgs>),
    /// Write a run as a recording, which `--model replay:FILE` plays again: a test without a provider.
    Export {
        /// The run, as in `show`.
        id: String,
        /// A new file.
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// The run, as in `show`.
    pub(crate) id: String,
    /// Where its tools are from, as in `run`; without it they are built in, under the names that the run had, or, if it
    /// loaded its tools, what `run` has.
    #[arg(long, value_name = "TOOLS")]
    pub(crate) tools: Vec<String>,
    /// Put a file or a folder into the working folder, as in `run`. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) attach: Vec<PathBuf>,
    /// Work in an existing folder instead of a fresh one.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
}
