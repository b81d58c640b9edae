//! Arguments that several commands share: approvals, host directories, credentials of servers.

use std::path::PathBuf;

use clap::Args;
use toolpost_sandbox::{ApplyMode, Level};

/// Approval of tool calls, and the sandbox level.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Permission")]
pub(crate) struct Permission {
    /// Approve every call of a tool. May be repeated.
    #[arg(long, value_name = "TOOL")]
    pub(crate) approve: Vec<String>,
    /// Show an approval prompt before each tool call.
    #[arg(long)]
    pub(crate) ask: bool,
    /// Approve every tool call without a prompt.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Show no approval prompt: decline the call.
    #[arg(long)]
    pub(crate) no_input: bool,
    /// Sandbox level of tools that run code; defaults to the host's best.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Option<Level>,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// The level of programs, and whether they write to the working directory themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramAccess {
    pub(crate) level: Option<Level>,
    pub(crate) live: bool,
}

impl From<&Permission> for ProgramAccess {
    fn from(permission: &Permission) -> Self {
        Self { level: permission.level, live: permission.directory.live }
    }
}

impl From<Option<Level>> for ProgramAccess {
    fn from(level: Option<Level>) -> Self {
        Self { level, live: false }
    }
}

/// Access of code to a host directory.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DirectoryArgs {
    /// Let programs write to the working directory without a private layer.
    #[arg(long, help_heading = "Permission")]
    pub(crate) live: bool,
    /// Let a protected path of the working directory change. May be repeated.
    #[arg(long, hide = true, value_name = "PATH", help_heading = "Permission", conflicts_with = "live")]
    pub(crate) allow_protected: Vec<PathBuf>,
}

/// The settlement of a working directory's changes at the end.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ChangesArgs {
    /// Review the changes of the working directory before they are applied.
    #[arg(long, help_heading = "Input", requires = "workdir", conflicts_with_all = ["discard", "live"])]
    pub(crate) review: bool,
    /// Discard the changes of the working directory.
    #[arg(long, help_heading = "Input", requires = "workdir", conflicts_with = "live")]
    pub(crate) discard: bool,
}

impl ChangesArgs {
    pub(crate) fn mode(self) -> ApplyMode {
        match (self.review, self.discard) {
            (true, _) => ApplyMode::Hold,
            (_, true) => ApplyMode::Discard,
            _ => ApplyMode::Now,
        }
    }
}

/// The credential for an MCP server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServerArgs {
    /// The variable with the bearer token for an HTTP server.
    #[arg(long, hide = true, value_name = "NAME", conflicts_with = "token_file")]
    pub(crate) token_env: Option<String>,
    /// The file with the bearer token.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
