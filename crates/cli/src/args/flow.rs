//! The arguments of `flow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use toolpost_flow::Durability;

use super::grants::GrantArgs;
use super::permission::Permission;
use crate::parse::duration;

/// The subcommands of `flow`.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowCommand {
    /// Check a plan against its tools, and print its steps.
    Plan(Box<FlowPlanArgs>),
    /// Run a plan.
    Run(Box<FlowRunArgs>),
    /// List the runs, newest first.
    Ls(FlowLsArgs),
    /// Show one run: steps, errors, waits, output.
    Show {
        /// A run: `last` in any directory, or a prefix of its ID.
        id: String,
        #[command(flatten)]
        cluster: ClusterArg,
    },
    /// Continue a run whose process has ended.
    Resume(Box<FlowResumeArgs>),
    /// Send a value to the step that waits for a signal.
    Signal {
        /// The run, as in `show`.
        id: String,
        /// The name of the signal.
        name: String,
        /// The value as JSON, or else a text; defaults to null.
        value: Option<String>,
        #[command(flatten)]
        cluster: ClusterArg,
    },
    /// Approve a step that waits, or deny it.
    Approve {
        /// The run, as in `show`.
        id: String,
        /// The step; defaults to the only one that waits.
        step: Option<String>,
        /// Deny the step.
        #[arg(long)]
        deny: bool,
        /// A comment for the plan and the record.
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
        #[command(flatten)]
        cluster: ClusterArg,
    },
    /// End a run: stop its calls, and undo what it did.
    Cancel {
        /// The run, as in `show`.
        id: String,
        /// The reason, for the record.
        #[arg(long, value_name = "TEXT", default_value = "cancelled by hand")]
        reason: String,
        #[command(flatten)]
        cluster: ClusterArg,
    },
    /// Remove runs for good.
    Rm {
        /// The runs, as in `show`.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Make the calls of a cluster's workflows.
    #[cfg(feature = "restate")]
    Worker(Box<FlowWorkerArgs>),
}

/// The states of `flow ls --status`.
const STATES: [&str; 7] =
    ["running", "waiting", "interrupted", "unknown", "succeeded", "failed", "cancelled"];

/// The arguments of `flow ls`.
#[derive(Args, Debug)]
pub(crate) struct FlowLsArgs {
    /// Maximum number of runs.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
    /// List only runs with this status.
    #[arg(long, value_name = "STATUS", value_parser = STATES)]
    pub(crate) status: Option<String>,
    /// List only runs of plans with this name.
    #[arg(long, value_name = "PLAN")]
    pub(crate) name: Option<String>,
    /// List only runs of this period, such as `90m` or `168h`.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArg,
}

/// The cluster of a run.
#[derive(Args, Debug)]
pub(crate) struct ClusterArg {
    /// The ingress of a Restate cluster, such as `http://127.0.0.1:8080`.
    #[cfg(feature = "restate")]
    #[arg(id = "cluster", long = "cluster", value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// The tools of a plan.
#[derive(Args, Debug)]
pub(crate) struct FlowTools {
    /// More tools: targets; without any, those of the plan or `builtin`.
    #[arg(long, value_name = "TOOLS")]
    pub(crate) tools: Vec<String>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
}

/// The arguments of `flow plan`.
#[derive(Args, Debug)]
pub(crate) struct FlowPlanArgs {
    /// The plan: YAML, JSON or TOML.
    pub(crate) file: PathBuf,
    /// Print a Mermaid flowchart.
    #[arg(long)]
    pub(crate) mermaid: bool,
    /// Print a drawing as SVG.
    #[arg(long, conflicts_with = "mermaid")]
    pub(crate) svg: bool,
    #[command(flatten)]
    pub(crate) tools: FlowTools,
}

/// The driver of a run.
#[derive(Args, Debug)]
pub(crate) struct FlowDriveArgs {
    /// Maximum number of calls at once; defaults to 64.
    #[arg(long, value_name = "N")]
    pub(crate) max_parallel: Option<usize>,
    /// The working directory of the tools.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    #[command(flatten)]
    pub(crate) tools: FlowTools,
}

/// The arguments of `flow run`.
#[derive(Args, Debug)]
pub(crate) struct FlowRunArgs {
    /// The plan: YAML, JSON or TOML.
    pub(crate) file: PathBuf,
    /// The inputs: `key=value` pairs, a JSON object, `@FILE` or `-`.
    #[arg(value_name = "INPUTS")]
    pub(crate) input: Vec<String>,
    /// Check the plan and its inputs without running it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The durability in a crash: full (no loss), normal or none (loss of all).
    #[arg(long, value_name = "DURABILITY", default_value = "full")]
    pub(crate) durability: Durability,
    #[command(flatten)]
    pub(crate) cluster: ClusterArg,
    #[command(flatten)]
    pub(crate) drive: FlowDriveArgs,
}

/// The arguments of `flow worker`.
#[cfg(feature = "restate")]
#[derive(Args, Debug)]
pub(crate) struct FlowWorkerArgs {
    /// A pool that it serves; defaults to `default`. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Vec<String>,
    /// The address to listen on; beyond loopback it needs `--identity-key`.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9080")]
    pub(crate) listen: std::net::SocketAddr,
    /// Register with the admin API of a Restate server, such as `http://127.0.0.1:9070`.
    #[arg(long, value_name = "ADMIN_URL")]
    pub(crate) register: Option<String>,
    /// The address for `--register`; defaults to the one it listens on.
    #[arg(long, value_name = "URL", requires = "register")]
    pub(crate) url: Option<String>,
    /// Accept signed requests of this Restate cluster only. May be repeated.
    #[arg(long, value_name = "PUBLIC_KEY")]
    pub(crate) identity_key: Vec<String>,
    #[command(flatten)]
    pub(crate) state: ClusterArg,
    /// Maximum number of calls at once; defaults to 64.
    #[arg(long, value_name = "N")]
    pub(crate) max_parallel: Option<usize>,
    /// The working directory of the tools.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    #[command(flatten)]
    pub(crate) tools: FlowTools,
}

/// The arguments of `flow resume`.
#[derive(Args, Debug)]
pub(crate) struct FlowResumeArgs {
    /// The run, as in `show`.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArg,
    #[command(flatten)]
    pub(crate) drive: FlowDriveArgs,
}
