//! The operator's settings for described programs.

use std::ffi::OsString;
use std::path::PathBuf;

use toolpost_sandbox::{Level, Limits, ProtectedPath, RunChanges};

/// The operator's settings for described programs, injected by type:
/// `Toolbox::builder().provide(CommandSettings::default())`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CommandSettings {
    /// Minimum sandbox level. Default: the description's, which is at least `standard`. The strictest of this, the
    /// description's and the call's applies.
    pub level: Option<Level>,
    /// Whether to accept a lower level than requested. Default: no, the call fails with `PERMISSION`.
    pub allow_degraded: bool,
    /// Limits of a run. Default: [`Limits::default`]. The wall time is unused: a call has its tool's timeout. A description
    /// may set another memory limit.
    pub limits: Limits,
    /// Search path for programs, like `PATH`. Default: [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub search_path: Option<OsString>,
    /// Home directory whose toolchains programs may use ([`toolpost_sandbox::Sandbox::home`]). Default: none.
    pub home: Option<PathBuf>,
    /// Files and directories of the host that programs may read, in addition to the description's. Default: none.
    pub readable: Vec<PathBuf>,
    /// Files and directories of the host that no run changes ([`toolpost_sandbox::Sandbox::protect`]). Default: none.
    pub protected: Vec<ProtectedPath>,
    /// Whether programs write to the working directory without a private layer. Default: no.
    pub live: bool,
    /// Directory for private layers of working directories ([`toolpost_sandbox::Sandbox::layers`]). Default: one for
    /// temporary files.
    pub layers: Option<PathBuf>,
    /// The run whose changes are listed and undone together ([`toolpost_sandbox::Sandbox::run_changes`]). Default: none.
    pub changes: Option<RunChanges>,
}
