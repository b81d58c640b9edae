//! Starts a process and confines it: namespaces, Landlock, seccomp, cgroups, limits, files in and out.
//!
//! ```no_run
//! use toolpost_sandbox::{Cancel, Language, Program, Sandbox};
//!
//! let outcome = Sandbox::new().run(
//!     &Program::code(Language::Python, "6 * 7"),
//!     &Cancel::new(),
//!     &mut |_event| {},
//! )?;
//! assert_eq!(outcome.value, Some(42.into()));
//! # Ok::<(), toolpost_sandbox::Error>(())
//! ```

mod cancel;
mod error;
mod host;
mod level;
mod limits;
mod outcome;
mod program;
mod sandbox;
mod verdict;

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
#[path = "linux/mod.rs"]
mod platform;
#[cfg(not(all(target_os = "linux", not(toolpost_simulate_other_host))))]
#[path = "other.rs"]
mod platform;

pub use cancel::Cancel;
pub use error::Error;
pub use host::{Capability, Host, LevelAvailability};
pub use level::{Language, Level};
pub use limits::Limits;
pub use outcome::{Artifact, Captured, Changes, Event, Outcome};
pub use program::{Program, Source, Stdin, Workspace};
pub use sandbox::{PROTECTED_PATHS, SYSTEM_SEARCH_PATH, Sandbox};
pub use verdict::{Layer, MissingLayer, Reached, Report, Usage, Verdict};
