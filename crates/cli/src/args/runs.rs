//! The arguments of `runs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::grants::GrantArgs;
use super::permission::Permission;
use crate::parse::duration;

/// The subcommands of `runs`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List the runs, newest first.
    Ls {
        /// Maximum number of runs.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// List only runs of this period, such as `90m` or `168h`.
        #[arg(long, value_name = "D", value_parser = duration)]
        since: Option<Duration>,
        /// Include nested runs and single calls.
        #[arg(long)]
        all: bool,
    },
    /// Show one run: prompt, calls, error causes, timings, answer.
    Show {
        /// A run (`last` in any directory, or a prefix of its ID) or a call.
        id: String,
    },
    /// Remove runs for good.
    Rm {
        /// The runs, as in `show`.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Sum usage and cost, in total and per model.
    Stats {
        /// Count only runs of this period, such as `90m` or `168h`.
        #[arg(long, value_name = "D", value_parser = duration)]
        since: Option<Duration>,
    },
    /// Replay a run with recorded answers and real tools.
    Replay(Box<ReplayArgs>),
    /// Export a run as a recording for `--model replay:FILE`.
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
    /// The tools, as in `run`; defaults to built-in tools.
    #[arg(long, value_name = "TOOLS")]
    pub(crate) tools: Vec<String>,
    /// Copy a file or directory into the working directory. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) attach: Vec<PathBuf>,
    /// Work in a host directory instead of a fresh one.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
}
