//! Runs a program under confinement: namespaces, Landlock, seccomp, cgroups, limits, files in and out.
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
//!
//! # Levels
//!
//! | | `minimal` | `standard` | `strict` |
//! |---|---|---|---|
//! | guarantee | limits, and everything dies with the run; no boundary | no user files, no other processes, no network | the same, and only the host paths below exist |
//! | namespaces (user, mount, pid, ipc, uts, cgroup, net) | those that hold the run together | where the host supports them | required |
//! | visible files | the host's files, for the host's user | `/usr`, `/bin`, `/lib*`, parts of `/etc`, the program's own package in `/opt`, the workspace, shown paths | the same with a generated `/etc`, without packages in `/opt` |
//! | path of a host workspace | its own path | its own path | `/workspace` |
//! | writes to a host workspace | directly | by apply, from a private layer or copy | the same |
//! | Landlock | not for files | required without namespaces | where the kernel supports it |
//! | network | the host's | none, or [`Sandbox::egress`] with namespaces | none, or [`Sandbox::egress`] |
//! | seccomp | a short denylist | the reviewed denylist | the same |
//! | no capabilities, no new privileges, limits, clean environment | always | always | always |
//!
//! `maximum` is `strict` with tiny limits and a seccomp allowlist that ends the run on any other call. In processes of
//! this host it shares the host's kernel, as the report notes. The Docker backend with a runtime such as `runsc` adds a
//! second kernel. `minimal` must be named; no level falls back to it. [`Limits::for_level`] lists the limits of each
//! level.
//!
//! From `/etc` programs see the linker cache, certificates, time zone, locales, fonts, terminals, media types, and the
//! settings of Java, Perl and Python. Accounts, hosts and resolver are generated files. Password hashes, private keys and
//! settings of services do not exist inside. [`Sandbox::read_only`] shows more of `/etc` and `/opt`.
//!
//! Without namespaces, `standard` runs in the host's root. A private copy of a host workspace takes its place, and
//! `TOOLPOST_WORKDIR` names the copy. Landlock allows the system directories and the workspace,
//! seccomp blocks all sockets, and a subreaper with Landlock's signal scope contains the processes. Programs can then
//! see that a path exists, with its size and times, but not its content. They can read the host's `/etc/passwd`,
//! `group`, `hosts`, `nsswitch.conf` and `resolv.conf`. [`Report::missing`] lists the inactive layers.
//!
//! # Running as root
//!
//! Code never runs as the host's root. Each run gets its own user id. Host workspaces and [`Sandbox::read_only`] paths
//! are mounted with mapped ids: the program owns the operator's files inside, and its new files belong to the operator.
//! Network namespaces take most of a start, so a thread prepares them ahead. The root file system of level `strict` is
//! built once, copied by each run until the host's mounts change, and mounted read-only.
//!
//! # Egress
//!
//! [`Sandbox::egress`] gives a program an allowlist of hosts, enforced by a proxy on the host for this run alone. The
//! program's network namespace has only a loopback interface. Before the child drops its privileges, it opens a
//! listening socket there and passes it to the host, which accepts connections on it. No helper runs inside. Seccomp and
//! Landlock allow TCP only to that port; UDP, raw, packet, netlink and vsock sockets stay blocked, and names do not
//! resolve inside. [`Report::egress`] logs the traffic.
//!
//! # Live programs
//!
//! [`Sandbox::start`] starts a program with live streams. [`Sandbox::unconfined`] starts a program that the operator
//! trusts, such as a worker, and makes sure that all of it dies.
//!
//! # Sessions
//!
//! A [`Session`] is a persistent interpreter. Cells share its state, can be interrupted, and the live interpreter can be
//! forked with its files. It has its own sandbox with the same levels.
//!
//! # Other backends
//!
//! [`Sandbox::backend`] sends runs to another [`Backend`] than processes of this host, for example `Docker` of the crate
//! `toolpost-docker`. The module `container` has the parts that a container backend shares.
//!
//! # Invariants
//!
//! - A required level is provided or the run fails; it is never silently lowered. [`Report::layers`] lists a layer only
//!   if the kernel accepted it for this run. A failed set-up step ends the run with [`Error::Setup`].
//! - When [`Sandbox::run`] returns, everything that the program started is dead. Only the outcome remains on the host,
//!   and its workspace is removed with it. Nothing outlives the host program either.
//! - A [`Verdict`] names a limit only on the kernel's or the host's own evidence, never because of an exit status.
//! - Output, value, file names and files of a program are data of bounded size, never control.
//! - Only this crate of the workspace has `unsafe` code, and only this crate starts processes.
//! - The host's program never runs inside a sandbox: the first process is a static program of a few kilobytes without
//!   libraries. Tested on Linux x86-64; the aarch64 source is untested.
//! - Between clone and exec the child performs only precomputed steps: no allocation, no lock.
//!
//! Deliberately absent: network access except [`Sandbox::egress`], terminals, tools, models, schemas, async runtimes (a
//! run blocks its thread), reading the host's environment (except the directory for temporary files, and `PATH` to
//! judge changes), and a name for [`Level::Unconfined`], which only code can request.

mod apply;
mod backend;
mod cancel;
mod command_line;
mod command_paths;
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub mod container;
mod denial;
mod detached;
mod directory;
mod directory_rules;
mod error;
mod git_config;
mod git_settings;
mod governing;
mod grants;
mod hint;
mod host;
mod host_file;
mod language;
mod level;
mod limits;
mod loader;
mod media;
mod mercurial;
mod modules;
mod needed_path;
mod obeyed;
mod outcome;
mod pool;
mod program;
mod protected;
mod protected_path;
mod ready;
mod repeat;
mod review;
mod run_changes;
mod running;
mod sandbox;
mod session;
mod shebang;
mod verdict;
mod writer;

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
mod linux;
#[cfg(not(all(target_os = "linux", not(toolpost_simulate_other_host))))]
mod other;

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
use linux as platform;
#[cfg(not(all(target_os = "linux", not(toolpost_simulate_other_host))))]
use other as platform;

/// The entry points of the fuzz targets.
#[cfg(all(fuzzing, target_os = "linux"))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::platform::fuzzing::*;
}

pub use apply::{Applied, ApplyMode, ApplyState, HeldRun, Marked, StagedDirectory};
pub use backend::{Backend, BackendRequest, Processes};
pub use cancel::Cancel;
pub use command_line::split_command;
pub use denial::{DenialReason, Denied, HostError};
pub use detached::{Detached, start_detached};
pub use directory::program_directories;
pub use directory_rules::DirectoryRules;
pub use error::Error;
pub use grants::{Granted, Grants, VariableGrant};
pub use hint::SandboxHint;
pub use host::{Capability, Host, LevelAvailability};
pub use language::{FoundLanguage, Language};
pub use level::Level;
pub use limits::Limits;
pub use loader::Loader;
pub use modules::Modules;
pub use needed_path::{Need, Origin};
pub use outcome::{Captured, Changes, Outcome, RunEvidence, SandboxArtifact, SandboxEvent};
pub use platform::{BuildCache, OwnDirectory, private_directory, program_user};
pub use pool::{Pool, PoolBuilder, PoolMetrics};
pub use program::{Argv, Program, Source, Stdin, Workspace};
pub use protected::{
    ChangedTree, Mark, ProtectedEntryKind, Protection, ProtectionRule, SingleChange, mark, protection,
};
pub use protected_path::ProtectedPath;
pub use ready::{Build, Ready};
pub use repeat::Repeat;
pub use review::{ChangeKind, Review, ReviewDecision, ReviewedChange, ReviewedEntry};
pub use run_changes::{ChangeSummary, RunChanges, WritingFile};
pub use running::{HostDirectory, LiveStreams, Running};
pub use sandbox::{SYSTEM_SEARCH_PATH, Sandbox};
pub use session::{CellLimits, Difference, Reset, Session, SessionLimits};
pub use shebang::Shebang;
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub use toolpost_egress::EgressProxy;
pub use toolpost_egress::{
    AddressRule, Egress, EgressEvent, EgressHint, EgressKind, EgressLimits, EgressLog, EgressPolicy,
    EgressRefusal, Error as EgressError, HostPattern, Placeholder, Resolve, SecretPolicy, address_rule,
};
pub use verdict::{
    Interruption, Layer, MissingLayer, Reached, Report, ResourceUsage, UnreturnedFile, Verdict,
};
pub use writer::{Rejection, SafeDirectory, WriteError, adds_git_driver};
