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
//!
//! # Levels
//!
//! | | `minimal` | `standard` | `strict` |
//! |---|---|---|---|
//! | what it promises | limits, and an end that takes everything along; no boundary | no file of a user, no other process, no network | the same, and nothing of the host exists inside but what is named here |
//! | namespaces (user, mount, pid, ipc, uts, cgroup, net) | those that hold the run together | where the host gives them | required |
//! | what exists | the host's files, for the host's user | `/usr`, `/bin`, `/lib*`, what programs read of `/etc`, the program's own package in `/opt`, the workspace, what the caller shows | the same with a generated `/etc`, without packages of `/opt` |
//! | where a host workspace is | at its own path | at its own path | at `/workspace` |
//! | what writes to it | the program | apply, from a private layer | the same |
//! | Landlock | none for files | required where namespaces are missing | where the kernel has it |
//! | network | the host's | none, but for [`Sandbox::egress`] where namespaces are given | none, but for [`Sandbox::egress`] |
//! | seccomp | a short list of refusals | the reviewed refusals | the same |
//! | no capabilities, no new privileges, limits, clean environment | always | always | always |
//!
//! `maximum` is `strict` with a list of the system calls that are allowed, where any other ends the run, and with tiny
//! limits. In processes of this host it has the host's kernel, and the report says so; a second one comes with the Docker
//! backend and a runtime such as `runsc`. `minimal` has to be named; it is never what a lower level falls back to. The
//! limits of each level are a table of their own: [`Limits::for_level`].
//!
//! What programs read of `/etc` is the linker's cache, certificates, time zone, locales, fonts, terminals, media types, and
//! the settings of Java, Perl and Python. Accounts, hosts and resolver are generated files. Accounts' passwords, private
//! keys and settings of services do not exist inside. [`Sandbox::read_only`] shows more of `/etc` and `/opt`.
//!
//! Without namespaces `standard` runs in the host's root: Landlock leaves the system folders and the workspace, sockets
//! are refused altogether, and a subreaper with Landlock's signal scope holds the processes together. What it cannot
//! hide there is that a path exists: the size and times of files outside can be asked for, their content not. The host's
//! own `/etc/passwd`, `group`, `hosts`, `nsswitch.conf` and `resolv.conf` are readable there. What is
//! missing is in [`Report::missing`].
//!
//! # Running as root
//!
//! Code never runs as the host's root. It gets a user that nobody else has; a workspace of the host and what
//! [`Sandbox::read_only`] shows are mounted with mapped identities, so that the program works with the operator's files
//! as their owner and what it writes belongs to the operator. A thread of this crate makes network namespaces ahead of
//! the runs, because they are the dearest part of a start, and the root that all runs of level `strict` show is made once
//! and copied by each, as long as the host's mounts stay as they are. Its file system is read-only as such.
//!
//! # The way out
//!
//! [`Sandbox::egress`] gives a program an allowlist of hosts, held by a proxy of the run's own on the host's side. The
//! program's network namespace has its own loopback interface and nothing else; the child makes a listening socket
//! there before it loses the right to, and hands it to the host, which accepts on it. No helper runs inside. System call
//! policy and Landlock leave TCP to that one port; UDP, raw, packet, netlink and vsock sockets stay refused, and no name
//! can be resolved inside. What went through is in [`Report::egress`].
//!
//! # Programs to talk to
//!
//! [`Sandbox::start`] gives the same program with live streams. A process of the operator's own, such as a worker that
//! is trusted and must only die completely, is started by [`Sandbox::unconfined`].
//!
//! # Sessions
//!
//! A [`Session`] is an interpreter that stays: cells build on each other, can be interrupted, and the live interpreter can
//! be forked with its files. It lives in a sandbox of its own, under the same levels.
//!
//! # Other backends
//!
//! [`Sandbox::backend`] hands a run to something else than processes of this host: what implements [`Backend`]. With the
//! feature `docker` there is `docker::Docker`, whose containers wait ready, and have live streams and a way out as
//! processes have; `docker-tls` adds daemons behind TLS.
//!
//! # Invariants
//!
//! - A level that was named is given or refused, never silently lowered. A layer is in [`Report::layers`] only if the
//!   kernel accepted it for this very run: a step of the set-up that fails ends the run with [`Error::Setup`].
//! - When [`Sandbox::run`] returns, everything that the program started is dead, and nothing of the run is left on the
//!   host but the outcome; its workspace goes with the outcome. Nothing outlives the host program either.
//! - [`Verdict`] names a limit only on the kernel's or the host's own evidence, never because of an exit status.
//! - What a program hands back (output, value, file names, files) is data of bounded size and never control.
//! - This is the only crate of the workspace with `unsafe` code, and the only one that starts processes.
//! - The host's program is never inside a sandbox: the first process is a static program of a few kilobytes without any
//!   library. Proven on Linux x86-64; the aarch64 source is unproven.
//! - Between clone and exec the child only carries out steps that were computed before: no allocation, no lock.
//!
//! Deliberately absent: network access but through [`Sandbox::egress`], terminals, tools, models, schemas, async runtimes
//! (a run blocks its thread), reading the environment of the host (except the folder for temporary files), and a name for
//! [`Level::Unconfined`]: only code can ask for it.

mod apply;
mod backend;
mod cancel;
mod detached;
mod directory;
#[cfg(all(feature = "docker", target_os = "linux", not(toolpost_simulate_other_host)))]
pub mod docker;
mod environment;
mod error;
mod grants;
mod host;
mod installer;
mod language;
mod languages;
mod launcher;
mod level;
mod limits;
mod media;
mod outcome;
mod pool;
mod program;
mod protected;
mod ready;
mod requirements;
mod running;
mod sandbox;
mod session;
mod shebang;
mod unmet;
mod verdict;
mod writer;

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
#[path = "linux/mod.rs"]
mod platform;
#[cfg(not(all(target_os = "linux", not(toolpost_simulate_other_host))))]
#[path = "other.rs"]
mod platform;

pub use apply::{Applied, ApplyMode, ApplyState, DenialReason, Denied, HeldRun, Marked, StagedDirectory};
pub use backend::{Backend, Processes, Request};
pub use cancel::Cancel;
pub use detached::{Detached, start_detached};
pub use directory::program_directories;
pub use environment::{Environment, Profile, ProfilePackage};
pub use error::Error;
pub use grants::{Granted, Grants, VariableGrant};
pub use host::{Capability, Host, LevelAvailability};
pub use installer::{Installed, Installer};
pub use language::Language;
pub use languages::{LanguageStatus, Languages};
pub use launcher::Launcher;
pub use level::Level;
pub use limits::Limits;
pub use outcome::{Artifact, Captured, Changes, Event, Outcome};
pub use platform::BuildCache;
pub use pool::{Pool, PoolBuilder, PoolMetrics};
pub use program::{Program, Source, Stdin, Workspace};
pub use protected::{
    ChangedTree, EntryKind, Mark, Protection, SingleChange, mark, names_git_driver, protection,
};
pub use ready::{Build, Ready};
pub use requirements::Requirements;
pub use running::{HostDirectory, LiveStreams, Running};
pub use sandbox::{SYSTEM_SEARCH_PATH, Sandbox};
pub use session::{CellLimits, Difference, Reset, Session, SessionLimits};
pub use shebang::Shebang;
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub use toolpost_egress::EgressProxy;
pub use toolpost_egress::{
    AddressRule, Egress, EgressEvent, EgressKind, EgressLimits, EgressLog, EgressPolicy, EgressRefusal,
    Error as EgressError, HostPattern, Placeholder, Resolve, SecretPolicy, address_rule,
};
pub use unmet::Unmet;
pub use verdict::{Interruption, Layer, MissingLayer, Reached, Report, Usage, Verdict};
pub use writer::{Rejection, SafeDirectory, WriteError, adds_git_driver};
