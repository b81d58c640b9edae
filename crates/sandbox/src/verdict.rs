//! How a run ended, what it used and what confined it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Level;

/// How a run ended. A limit is named only when the kernel or the host's own clock proves that it was reached: a
/// program that exits with status 124 or 137, or kills itself, is reported as what it did.
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
    /// A signal that the sandbox did not send ended the program.
    Signal {
        /// The number of the signal.
        signal: i32,
    },
    /// The wall-clock limit was reached; everything was killed.
    Timeout {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// For so long there was neither output nor processor time; everything was killed.
    Idle {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The limit of processor time was reached; everything was killed.
    Cpu {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The kernel killed a process because the memory limit was reached, proved by the cgroup's own counter; or the host
    /// found more memory in use ([`Layer::MemoryWatch`]) and killed everything.
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// The program failed after the kernel refused it a process: proved by the cgroup's own counter.
    Processes {
        /// The limit.
        limit: u32,
    },
    /// The program failed and its workspace was full, or had more in it than the limit.
    Disk {
        /// The limit in bytes.
        limit: u64,
    },
    /// The program failed and its workspace had no room for another file, or had more files than the limit.
    Inodes {
        /// The limit in files and folders.
        limit: u64,
    },
    /// The kernel ended the program because a file would have grown beyond the limit, and a file of that size is there.
    FileSize {
        /// The limit in bytes.
        limit: u64,
    },
    /// More output than the total limit; everything was killed.
    Output {
        /// The limit in bytes.
        limit: u64,
    },
    /// The system call policy ended the program.
    Denied {
        /// What was called, and why that is not allowed: for example "the system call `mount` (changes what paths mean)".
        rule: String,
    },
    /// The caller cancelled the run; everything was killed.
    Cancelled,
    /// The cell of a session was interrupted, and the session lives on. A cell that does not obey is killed with its
    /// session, and the verdict then names the limit.
    Interrupted {
        /// What interrupted it.
        by: Interruption,
    },
}

/// What interrupted the cell of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Interruption {
    /// [`crate::Session::interrupt`].
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
    /// Whether the program ended well.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// A duration in JSON: milliseconds with microsecond decimals.
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

/// What a run used, as the kernel counted it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// Wall-clock time from the start of the set-up to the end of the last process. As JSON `wall_ms`.
    #[serde(rename = "wall_ms", with = "milliseconds")]
    pub wall: Duration,
    /// Processor time in user mode, all processes. As JSON `user_ms`.
    #[serde(rename = "user_ms", with = "milliseconds")]
    pub user: Duration,
    /// Processor time in kernel mode, all processes, the set-up of the sandbox included. As JSON `system_ms`.
    #[serde(rename = "system_ms", with = "milliseconds")]
    pub system: Duration,
    /// The largest resident set of a single process, in bytes.
    pub largest_process: u64,
    /// The most memory that all processes had together, in bytes. Only a cgroup can tell.
    pub peak_memory: Option<u64>,
}

/// One protection or limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layer {
    /// A user namespace: no identity of the host beyond one unprivileged user exists inside.
    UserNamespace,
    /// A mount namespace.
    MountNamespace,
    /// A process namespace: no process of the host is visible, and all inside die with its first process.
    PidNamespace,
    /// A namespace for System V and POSIX message queues, semaphores and shared memory.
    IpcNamespace,
    /// A namespace for the host name.
    UtsNamespace,
    /// A cgroup namespace.
    CgroupNamespace,
    /// A network namespace of its own without any interface that is up.
    NetworkNamespace,
    /// A root of its own, in which only chosen folders exist.
    PrivateRoot,
    /// The program runs as a user without rights on the host.
    UnprivilegedUser,
    /// All capability sets are empty.
    NoCapabilities,
    /// No program can raise its rights.
    NoNewPrivileges,
    /// Landlock limits which files can be read and written.
    LandlockFiles,
    /// Landlock refuses TCP.
    LandlockTcp,
    /// Landlock refuses abstract unix sockets of processes outside.
    LandlockAbstractSockets,
    /// Landlock refuses signals to processes outside.
    LandlockSignals,
    /// The system call policy.
    Seccomp,
    /// Of the system call policy only what is listed is allowed; any other call ends the program.
    SeccompAllowlist,
    /// Resource limits per process: processor time, descriptors, file size, locked memory, core files.
    ResourceLimits,
    /// A limit on the memory of all processes together.
    MemoryLimit,
    /// The host adds up the memory of all processes again and again, and ends the run above the limit; between two looks
    /// more may be in use. Only where no cgroup can hold [`Layer::MemoryLimit`].
    MemoryWatch,
    /// No memory of the run is written to swap space.
    NoSwap,
    /// A limit on the number of processes of this run alone.
    ProcessLimit,
    /// A limit on the share of the processors.
    CpuQuota,
    /// A limit on the size of the fresh workspace that the kernel holds.
    WorkspaceQuota,
    /// Paths that other programs of the host would execute or obey do not change: apply leaves them out, and in a live
    /// directory those that exist are read-only.
    ProtectedPaths,
    /// The program never writes to the host directory: a private layer takes its changes, and apply checks them.
    PrivateLayer,
    /// Everything that the program started dies with it, also when the host program is killed.
    TreeKill,
    /// The only way out of the network namespace is the run's own proxy, which holds the allowlist.
    Egress,
    /// At level `minimal`, which shows the host's files: control groups and settings of the kernel cannot be written, and
    /// for root only devices that every user may use can be opened. Higher levels show none of these.
    KernelFiles,
}

/// A layer that is not active, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// Why it is not active.
    pub reason: String,
}

/// Limits that were reached without ending the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reached {
    /// The kernel killed a process for the memory limit.
    Memory,
    /// The kernel refused a process.
    Processes,
    /// The workspace was full at the end.
    Disk,
    /// The workspace had no room for another file at the end.
    Inodes,
    /// A file of the workspace has the largest size that is allowed.
    FileSize,
    /// Standard output was longer than what is kept.
    Stdout,
    /// Standard error was longer than what is kept.
    Stderr,
    /// The value was longer than what is taken.
    Value,
    /// There were more or larger files than what is handed back.
    Artifacts,
    /// There were more changes in the workspace than what is listed.
    Changes,
    /// The proxy refused a connection because there had been as many as are allowed.
    Connections,
    /// The proxy refused a request because there had been as many as are allowed.
    Requests,
    /// The proxy ended a connection because as many bytes had passed as are allowed.
    NetworkBytes,
}

/// What confined a run. A layer is listed as active only if the kernel accepted it for this very run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Who ran the program: `process`, or the name of another [`crate::Backend`].
    #[serde(default)]
    pub backend: String,
    /// The level that was asked for, if one was named.
    pub requested: Option<Level>,
    /// The level that was given.
    pub effective: Level,
    /// Whether `effective` is lower than `requested`.
    pub degraded: bool,
    /// The layers that were active.
    pub layers: Vec<Layer>,
    /// The layers that were not, with the reason.
    pub missing: Vec<MissingLayer>,
    /// The files and directories of the host that the program could read besides those of the system and the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<PathBuf>,
    /// Limits that were reached.
    pub reached: Vec<Reached>,
    /// Remarks for a person, for example why a file was not handed back.
    pub notes: Vec<String>,
    /// The variables whose values are secrets that the program got itself ([`crate::Sandbox::raw_variable`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw_variables: Vec<String>,
    /// What went through the proxy, if the run had one ([`crate::Sandbox::egress`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<crate::EgressLog>,
}

impl Report {
    /// The report of a run at a level that was given as asked for, with nothing active, missing or reached yet: its
    /// fields are then filled in. Without a name in `backend` that of the backend is taken.
    pub fn new(backend: impl Into<String>, requested: Option<Level>, effective: Level) -> Self {
        Self {
            backend: backend.into(),
            requested,
            effective,
            degraded: requested.is_some_and(|requested| effective < requested),
            layers: Vec::new(),
            missing: Vec::new(),
            shown: Vec::new(),
            reached: Vec::new(),
            notes: Vec::new(),
            raw_variables: Vec::new(),
            egress: None,
        }
    }

    /// Whether a layer was active.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.contains(&layer)
    }
}
/// The limits of the network that a run reached.
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub(crate) fn reached_network(log: &crate::EgressLog) -> Vec<Reached> {
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
    reached
}
