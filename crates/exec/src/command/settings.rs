//! What the operator allows described programs to do.

use std::ffi::OsString;
use std::path::PathBuf;

use toolpost_sandbox::{Level, Limits};

/// What the operator allows described programs to do, given by type:
/// `Toolbox::builder().provide(CommandSettings::default())`. Without it the defaults hold.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CommandSettings {
    /// The least level of the sandbox. Default none: what the description says, which is `standard` unless it says
    /// more. A call that names a level gets the strictest of the three.
    pub level: Option<Level>,
    /// Whether a lower level is taken when the host cannot give the one that was named. Default no: then the call
    /// fails with `PERMISSION`.
    pub allow_degraded: bool,
    /// The limits of one run. Defaults: [`Limits::default`]; its wall time is not used, because that of a call is its
    /// tool's timeout, and a description may name other memory.
    pub limits: Limits,
    /// Where programs are looked up, in the form of `PATH`. Default [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub search_path: Option<OsString>,
    /// Files and folders of the host that programs may read at their own paths, besides those that the description
    /// names. Default none.
    pub readable: Vec<PathBuf>,
    /// Files and directories of the host that no run changes, each with everything beneath
    /// ([`toolpost_sandbox::Sandbox::protect`]). Default none.
    pub protected: Vec<PathBuf>,
    /// The directory that holds private layers of working directories ([`toolpost_sandbox::Sandbox::layers`]). Default
    /// one for temporary files.
    pub layers: Option<PathBuf>,
}
