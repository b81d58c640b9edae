//! The arguments that grant a target more than its sandbox level.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use toolpost_sandbox::{HostPattern, Level};

/// Grants of a target beyond its sandbox level.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GrantArgs {
    /// Give the target a placeholder for a variable. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Grants")]
    pub(crate) secret: Vec<String>,
    /// Give the target the value of a variable itself. May be repeated.
    #[arg(long, hide = true, value_name = "NAME", help_heading = "Grants")]
    pub(crate) secret_raw: Vec<String>,
    /// A host that the target may reach. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Grants")]
    pub(crate) allow_host: Vec<HostPattern>,
    /// A private address that the target may reach. May be repeated.
    #[arg(long, hide = true, value_name = "ADDRESS:PORT", help_heading = "Grants")]
    pub(crate) allow_address: Vec<SocketAddr>,
    /// A path that the target may read. May be repeated.
    #[arg(long, hide = true, value_name = "PATH", help_heading = "Grants")]
    pub(crate) readable: Vec<PathBuf>,
    /// A directory that the target may write. May be repeated.
    #[arg(long, hide = true, value_name = "DIR", help_heading = "Grants")]
    pub(crate) writable: Vec<PathBuf>,
    /// The sandbox level of the target.
    #[arg(long, hide = true, value_name = "LEVEL", help_heading = "Grants")]
    pub(crate) target_level: Option<Level>,
    /// The working directory of the target.
    #[arg(long, hide = true, value_name = "DIR", help_heading = "Grants")]
    pub(crate) target_workdir: Option<PathBuf>,
    /// Run install scripts of `npx` and `uvx` packages.
    #[arg(long, hide = true, help_heading = "Grants")]
    pub(crate) install_scripts: bool,
}
