//! The verdict, resource usage and active layers of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Level;
use crate::level::shorten;

/// The end of a run.
///
/// A verdict names a limit only if the kernel or the host's clock proves that the run reached it. A program
/// that exits with status 124 or 137, or kills itself, gets the verdict for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// The program exited with status 0.
    Ok,
    /// The program exited with another status.
    Exit {
        /// The status, 1 to 255.
        code: i32,
    },
    /// The program was ended by a signal that the sandbox did not send.
    Signal {
        /// The number of the signal.
        signal: i32,
    },
    /// The run reached the wall-clock limit; everything was killed.
    Timeout {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The run had neither output nor processor use for this time; everything was killed.
    Idle {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The run reached the processor-time limit; everything was killed.
    Cpu {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The run reached the memory limit.
    ///
    /// Either the kernel killed a process, as the cgroup's counter proves, or the host measured too much
    /// memory ([`Layer::MemoryWatch`]) and killed everything.
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// The program failed after it reached the process limit, as the cgroup's counter proves.
    Processes {
        /// The limit.
        limit: u32,
    },
    /// The program failed with a full workspace, or with more bytes in it than the limit.
    Disk {
        /// The limit in bytes.
        limit: u64,
    },
    /// The program failed with no free inode in its workspace, or with more files in it than the limit.
    Inodes {
        /// The limit in files and directories.
        limit: u64,
    },
    /// The kernel ended the program because a file reached the size limit; a file of that size exists.
    FileSize {
        /// The limit in bytes.
        limit: u64,
    },
    /// The output exceeded the total limit; everything was killed.
    Output {
        /// The limit in bytes.
        limit: u64,
    },
    /// The system call policy ended the program.
    Denied {
        /// The blocked call and the reason, for example "the system call `mount` (changes what paths mean)".
        rule: String,
    },
    /// The caller cancelled the run; everything was killed.
    Cancelled,
    /// A session cell was interrupted; the session stays alive.
    ///
    /// A cell that does not stop is killed with its session, and the verdict names the limit.
    Interrupted {
        /// The interruption.
        by: Interruption,
    },
}

/// The cause of a cell's interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Interruption {
    /// The caller, with [`crate::Session::interrupt`].
    Caller,
    /// The limit of wall-clock time.
    Wall,
    /// The limit of processor time.
    Cpu,
    /// The limit of time with neither output nor processor time.
    Idle,
    /// The limit of output.
    Output,
}

impl Verdict {
    /// Whether the program exited with status 0.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// Serializes a duration as milliseconds with microsecond decimals.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_micros() as f64 / 1000.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)? / 1000.0;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// Resource usage of a run, as the kernel counted it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceUsage {
    /// Wall-clock time from the start of set-up to the end of the last process. JSON: `wall_ms`.
    #[serde(rename = "wall_ms", with = "milliseconds")]
    pub wall: Duration,
    /// Processor time of all processes in user mode. JSON: `user_ms`.
    #[serde(rename = "user_ms", with = "milliseconds")]
    pub user: Duration,
    /// Processor time of all processes in kernel mode, set-up included. JSON: `system_ms`.
    #[serde(rename = "system_ms", with = "milliseconds")]
    pub system: Duration,
    /// The largest resident set of a single process, in bytes.
    pub largest_process: u64,
    /// The peak memory of all processes together, in bytes. Needs a cgroup.
    pub peak_memory: Option<u64>,
}

/// One protection or limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layer {
    /// A user namespace: inside, only one unprivileged user of the host exists.
    UserNamespace,
    /// A mount namespace.
    MountNamespace,
    /// A process namespace: host processes are invisible, and all inside die with its first process.
    PidNamespace,
    /// A namespace for System V IPC and POSIX message queues.
    IpcNamespace,
    /// A namespace for the host name.
    UtsNamespace,
    /// A cgroup namespace.
    CgroupNamespace,
    /// A network namespace without any interface that is up.
    NetworkNamespace,
    /// A private root with only chosen directories.
    PrivateRoot,
    /// The program runs as a user without permissions on the host.
    UnprivilegedUser,
    /// All capability sets are empty.
    NoCapabilities,
    /// No program can gain privileges.
    NoNewPrivileges,
    /// Landlock restricts reading and writing of files.
    LandlockFiles,
    /// Landlock blocks TCP.
    LandlockTcp,
    /// Landlock blocks abstract Unix sockets of outside processes.
    LandlockAbstractSockets,
    /// Landlock blocks signals to outside processes.
    LandlockSignals,
    /// The seccomp policy.
    Seccomp,
    /// The seccomp policy is an allowlist; any other call ends the program.
    SeccompAllowlist,
    /// Per-process limits: processor time, descriptors, file size, locked memory, core files.
    ResourceLimits,
    /// A limit on the memory of all processes together.
    MemoryLimit,
    /// The host polls the memory of all processes and ends the run above the limit.
    ///
    /// Between two polls more may be in use. Only where no cgroup can provide [`Layer::MemoryLimit`].
    MemoryWatch,
    /// No memory of the run is swapped out.
    NoSwap,
    /// A limit on the number of processes of this run alone.
    ProcessLimit,
    /// A limit on processor use.
    CpuQuota,
    /// A kernel limit on the size of the fresh workspace.
    WorkspaceQuota,
    /// Protected paths do not change: apply denies them, and in a live directory existing ones are read-only.
    ProtectedPaths,
    /// The program never writes to the host directory: a private layer takes its changes, and apply checks
    /// them.
    PrivateLayer,
    /// The program never writes to the host directory: a private copy takes its changes, and apply checks them.
    ///
    /// Where no private layer is possible.
    PrivateCopy,
    /// Everything that the program started dies with it, also when the host program is killed.
    TreeKill,
    /// Network access only through the run's own proxy, which enforces the allowlist.
    Egress,
    /// At level `minimal`: cgroups and kernel settings are read-only.
    ///
    /// For root, only devices that every user may use can be opened. Higher levels show none of these.
    KernelFiles,
}

/// A layer that is not active, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// The reason.
    pub reason: String,
}

impl MissingLayer {
    /// Creates an entry for [`Report::missing`].
    pub fn new(layer: Layer, reason: impl Into<String>) -> Self {
        Self { layer, reason: reason.into() }
    }
}

/// A limit that a run reached without being ended by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reached {
    /// The kernel killed a process at the memory limit.
    Memory,
    /// The kernel denied a new process.
    Processes,
    /// The workspace was full at the end.
    Disk,
    /// The workspace had no free inode at the end.
    Inodes,
    /// A workspace file has the maximum size.
    FileSize,
    /// Standard output was truncated.
    Stdout,
    /// Standard error was truncated.
    Stderr,
    /// The value was truncated or dropped.
    Value,
    /// Some artifacts were dropped.
    Artifacts,
    /// The list of changes was truncated.
    Changes,
    /// The proxy rejected a connection at the limit.
    Connections,
    /// The proxy rejected a request at the limit.
    Requests,
    /// The proxy ended a connection at the byte limit.
    NetworkBytes,
}

/// A file of the program that is not an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnreturnedFile {
    /// Its path in the workspace, shortened and escaped.
    pub path: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for UnreturnedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` is not copied back: {}", self.path, self.reason)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The level and layers of a run.
///
/// A layer is listed as active only if the kernel accepted it for this run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The backend: `process`, or the name of another [`crate::Backend`].
    #[serde(default)]
    pub backend: String,
    /// The required level, if any.
    pub requested: Option<Level>,
    /// The level in force.
    pub effective: Level,
    /// Whether `effective` is lower than `requested`.
    pub degraded: bool,
    /// The layers that were active.
    pub layers: Vec<Layer>,
    /// The inactive layers with reasons.
    pub missing: Vec<MissingLayer>,
    /// The readable host files and directories, besides those of the system and the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<PathBuf>,
    /// The host paths that a file or a link of the program names and that are not shown, because no grant has them
    /// ([`crate::Sandbox::read_only`]). At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_shown: Vec<PathBuf>,
    /// The limits that the run reached.
    pub reached: Vec<Reached>,
    /// The files of the program that are not artifacts. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreturned: Vec<UnreturnedFile>,
    /// The number of further ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more_unreturned: usize,
    /// The reason why the run did not use the pool of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<String>,
    /// Notes for a person, those on unreturned files and a cold start included.
    pub notes: Vec<String>,
    /// The variables with secret values ([`crate::Sandbox::raw_variable`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw_variables: Vec<String>,
    /// The log of the egress proxy, if the run had one ([`crate::Sandbox::egress`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<crate::EgressLog>,
}

impl Report {
    /// Creates the report of a run at a given level, with empty fields for the backend to fill in.
    ///
    /// An empty `backend` is replaced by the backend's name.
    pub fn new(backend: impl Into<String>, requested: Option<Level>, effective: Level) -> Self {
        Self {
            backend: backend.into(),
            requested,
            effective,
            degraded: requested.is_some_and(|requested| effective < requested),
            layers: Vec::new(),
            missing: Vec::new(),
            shown: Vec::new(),
            not_shown: Vec::new(),
            reached: Vec::new(),
            unreturned: Vec::new(),
            more_unreturned: 0,
            cold_start: None,
            notes: Vec::new(),
            raw_variables: Vec::new(),
            egress: None,
        }
    }

    /// Whether a layer was active.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.contains(&layer)
    }

    /// Records a file that is not an artifact, and its note.
    pub fn add_unreturned(&mut self, path: &str, reason: &str) {
        /// The maximum number of named files.
        const MAX_UNRETURNED: usize = 20;
        if self.unreturned.len() == MAX_UNRETURNED {
            self.more_unreturned += 1;
            return;
        }
        let file = UnreturnedFile { path: shorten(path), reason: reason.to_owned() };
        self.notes.push(file.to_string());
        self.unreturned.push(file);
    }

    /// Adds the note on further files that are not artifacts.
    pub fn end_unreturned(&mut self) {
        if self.more_unreturned > 0 {
            self.notes.push(format!("{} more files are not copied back", self.more_unreturned));
        }
    }

    /// Records why the run did not use the pool, and its note.
    pub(crate) fn start_cold(&mut self, reason: &str) {
        let note = format!("the run started cold, outside the pool: {reason}");
        self.notes.push(note.clone());
        self.cold_start = Some(note);
    }

    /// Records the egress of a run: the layer, the reached limits, the notes and the log.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub fn record_egress(&mut self, log: crate::EgressLog) {
        self.layers.push(Layer::Egress);
        self.layers.sort_unstable();
        self.record_egress_log(log);
    }

    /// Records the traffic of a cell, whose session has the layer.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub(crate) fn record_egress_log(&mut self, log: crate::EgressLog) {
        let mut reached: Vec<Reached> = log
            .limits_reached
            .iter()
            .map(|name| match name.as_str() {
                "connections" => Reached::Connections,
                "requests" => Reached::Requests,
                _ => Reached::NetworkBytes,
            })
            .collect();
        reached.dedup();
        self.reached.extend(reached);
        self.notes.extend(log.notes());
        self.egress = Some(log);
    }
}
