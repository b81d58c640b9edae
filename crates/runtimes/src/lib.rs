//! The needs of code besides a sandbox: packages, environments, launchers, and the languages of a host.
//!
//! ```no_run
//! use toolpost_runtimes::{Installer, Requirements};
//! use toolpost_sandbox::{Cancel, Language, Program, Sandbox};
//!
//! let installer = Installer::new(Sandbox::new());
//! let wanted = Requirements::python(["humanize==4.*"])?;
//! let installed = installer.install(&wanted, "packages".as_ref(), &Cancel::new())?;
//! let code = Program::code(Language::Python, "import humanize; humanize.intword(12_000_000)");
//! let outcome = Sandbox::new().modules(installed).run(&code, &Cancel::new(), &mut |_| {})?;
//! assert_eq!(outcome.value, Some("12.0 million".into()));
//! # Ok::<(), toolpost_sandbox::Error>(())
//! ```
//!
//! [`Installer`] installs checked [`Requirements`] in a sandbox of its own, whose egress reaches only the package index.
//! [`Environment`] is a virtual environment with the packages of a [`Profile`]. [`Launcher`] splits `npx` and `uvx` into
//! an install and a start. [`Languages`] lists what a host can run, [`Unmet`] what a program lacked.
//!
//! # Invariants
//!
//! - Requirements are names and versions: no path, address or option reaches `pip` or `npm`.
//! - An installer's code runs in a sandbox, and no script of a package runs unless [`Installer::allow_build`] says so.
//! - A directory without its record is unfinished and never used.
//! - This crate reads no environment and starts no process except through `toolpost-sandbox`.
#![forbid(unsafe_code)]

mod environment;
mod installer;
mod languages;
mod launcher;
mod requirements;
mod unmet;

pub use environment::{Environment, Profile, ProfilePackage};
pub use installer::{Installed, Installer};
pub use languages::{LanguageStatus, Languages};
pub use launcher::Launcher;
pub use requirements::Requirements;
pub use unmet::Unmet;
