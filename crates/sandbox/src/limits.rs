//! The limits of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, Level};

/// The limits of one run. None may be zero.
///
/// # Precedence
///
/// 1. The caller's limits ([`crate::Sandbox::limits`]) replace all others, at every level.
/// 2. Otherwise the column of the required level holds ([`Limits::for_level`]), also if a lower level
///    replaces it. Without a required level, the column of the level in force holds.
/// 3. [`crate::Report::missing`] or [`crate::Report::notes`] names each limit that the host cannot enforce.
///
/// To change one limit of a level, start from its column: `Limits::for_level(Level::Maximum).with_memory(1 << 29)`.
///
#[doc = include_str!("limits.md")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Wall-clock time from the start to the end of the program.
    pub wall: Duration,
    /// Time without output and processor use before the program is ended. Less than 1 ms between two checks
    /// counts as no use.
    pub idle: Option<Duration>,
    /// Processor time of all processes together. None: wall time bounds it.
    pub cpu: Option<Duration>,
    /// Maximum number of busy processors, for example `0.5`. Needs a cgroup.
    pub cpu_quota: Option<f32>,
    /// Memory of all processes together in bytes, including files in temporary file systems.
    ///
    /// It is not swapped out where the host can prevent that.
    pub memory: u64,
    /// Processes and threads at one time.
    pub processes: u32,
    /// Open descriptors per process.
    ///
    /// More fail with `EMFILE`. The kernel does not count the failures, so no verdict names this limit.
    pub descriptors: u32,
    /// Bytes in one file.
    pub file_size: u64,
    /// Bytes in a fresh workspace, and in each private `/tmp` and `/dev/shm`.
    pub workspace_bytes: u64,
    /// Files and directories in the same places.
    pub workspace_inodes: u64,
    /// Bytes written to the private layer of a host directory. The host measures them.
    pub layer_bytes: u64,
    /// Files and directories in the same layer.
    pub layer_inodes: u64,
    /// Captured bytes of standard output: the first and last half.
    pub stdout: usize,
    /// Captured bytes of standard error: the first and last half.
    pub stderr: usize,
    /// Total output bytes before the program is ended.
    pub output_total: u64,
    /// Bytes of the value of code.
    pub value_bytes: usize,
    /// Number of artifacts.
    pub artifacts: usize,
    /// Total bytes of artifacts.
    pub artifact_bytes: u64,
    /// Connections through the egress proxy.
    pub connections: Option<u32>,
    /// Requests through the egress proxy: plain HTTP requests and tunnels.
    pub requests: Option<u32>,
    /// Bytes through the egress proxy, both directions together.
    pub network_bytes: Option<u64>,
}

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

impl Default for Limits {
    /// The column of the levels `standard` and `strict`.
    fn default() -> Self {
        Self::for_level(Level::Strict)
    }
}

/// Defines one setter per limit, documented by its field.
macro_rules! setters {
    ($($setter:ident $field:ident : $kind:ty => $value:expr;)*) => {
        $(
            #[doc = concat!("Sets [`Limits::", stringify!($field), "`].")]
            #[must_use]
            pub fn $setter(mut self, $field: $kind) -> Self {
                self.$field = $value;
                self
            }
        )*
    };
}

impl Limits {
    setters! {
        with_wall wall: Duration => wall;
        with_idle idle: Duration => Some(idle);
        with_cpu cpu: Duration => Some(cpu);
        with_cpu_quota cpu_quota: f32 => Some(cpu_quota);
        with_memory memory: u64 => memory;
        with_processes processes: u32 => processes;
        with_descriptors descriptors: u32 => descriptors;
        with_file_size file_size: u64 => file_size;
        with_workspace_bytes workspace_bytes: u64 => workspace_bytes;
        with_workspace_inodes workspace_inodes: u64 => workspace_inodes;
        with_layer_bytes layer_bytes: u64 => layer_bytes;
        with_layer_inodes layer_inodes: u64 => layer_inodes;
        with_stdout stdout: usize => stdout;
        with_stderr stderr: usize => stderr;
        with_output_total output_total: u64 => output_total;
        with_value_bytes value_bytes: usize => value_bytes;
        with_artifacts artifacts: usize => artifacts;
        with_artifact_bytes artifact_bytes: u64 => artifact_bytes;
        with_connections connections: u32 => Some(connections);
        with_requests requests: u32 => Some(requests);
        with_network_bytes network_bytes: u64 => Some(network_bytes);
    }

    /// The default limits of a level: one column of the table above.
    ///
    /// [`Level::Unconfined`] has the column of `strict`.
    pub fn for_level(level: Level) -> Self {
        let usual = Self {
            wall: Duration::from_secs(30),
            idle: None,
            cpu: None,
            cpu_quota: None,
            memory: 512 * MEBIBYTE,
            processes: 64,
            // npm opens more than 600 at once. 768 and the 253 in one message stay below 1,024, the usual\n            // per-user limit of descriptors in flight. More would block the user's other programs.
            descriptors: 768,
            file_size: 100 * MEBIBYTE,
            workspace_bytes: 256 * MEBIBYTE,
            workspace_inodes: 16_384,
            layer_bytes: 4 * GIBIBYTE,
            layer_inodes: 500_000,
            stdout: MEBIBYTE as usize,
            stderr: MEBIBYTE as usize,
            output_total: GIBIBYTE,
            value_bytes: MEBIBYTE as usize,
            artifacts: 64,
            artifact_bytes: 64 * MEBIBYTE,
            connections: Some(256),
            requests: Some(1024),
            network_bytes: Some(GIBIBYTE),
        };
        match level {
            Level::Minimal => Self {
                wall: Duration::from_mins(5),
                memory: 2 * GIBIBYTE,
                processes: 256,
                descriptors: 1024,
                file_size: GIBIBYTE,
                workspace_bytes: 2 * GIBIBYTE,
                workspace_inodes: 131_072,
                // The program uses the host's network, which is not counted.
                connections: None,
                requests: None,
                network_bytes: None,
                ..usual
            },
            Level::Maximum => Self {
                wall: Duration::from_secs(10),
                idle: Some(Duration::from_secs(5)),
                cpu: Some(Duration::from_secs(5)),
                cpu_quota: Some(0.5),
                memory: 256 * MEBIBYTE,
                processes: 32,
                descriptors: 64,
                file_size: 16 * MEBIBYTE,
                workspace_bytes: 32 * MEBIBYTE,
                workspace_inodes: 1024,
                layer_bytes: 256 * MEBIBYTE,
                layer_inodes: 16_384,
                stdout: 64 * KIBIBYTE as usize,
                stderr: 64 * KIBIBYTE as usize,
                output_total: 16 * MEBIBYTE,
                value_bytes: 64 * KIBIBYTE as usize,
                artifacts: 16,
                artifact_bytes: 8 * MEBIBYTE,
                connections: Some(16),
                requests: Some(64),
                network_bytes: Some(16 * MEBIBYTE),
            },
            Level::Unconfined | Level::Standard | Level::Strict => usual,
        }
    }

    /// The default limits of a build.
    ///
    /// 2 minutes, 2 GiB of memory, 256 processes, 1,024 descriptors, 1 GiB of files, a result of at most 512
    /// MiB; otherwise as level `strict`.
    pub fn for_builds() -> Self {
        Self {
            wall: Duration::from_mins(2),
            memory: 2048 * MEBIBYTE,
            processes: 256,
            descriptors: 1024,
            file_size: 512 * MEBIBYTE,
            workspace_bytes: 1024 * MEBIBYTE,
            workspace_inodes: 65_536,
            stdout: 64 << 10,
            stderr: 64 << 10,
            artifacts: 256,
            artifact_bytes: 512 * MEBIBYTE,
            ..Self::for_level(Level::Strict)
        }
    }

    /// Returns the smaller of each two limits.
    #[must_use]
    pub fn tightened(&self, other: &Self) -> Self {
        fn smaller<T: PartialOrd + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(if other < one { other } else { one }),
                (one, other) => one.or(other),
            }
        }
        Self {
            wall: self.wall.min(other.wall),
            idle: smaller(self.idle, other.idle),
            cpu: smaller(self.cpu, other.cpu),
            cpu_quota: smaller(self.cpu_quota, other.cpu_quota),
            memory: self.memory.min(other.memory),
            processes: self.processes.min(other.processes),
            descriptors: self.descriptors.min(other.descriptors),
            file_size: self.file_size.min(other.file_size),
            workspace_bytes: self.workspace_bytes.min(other.workspace_bytes),
            workspace_inodes: self.workspace_inodes.min(other.workspace_inodes),
            layer_bytes: self.layer_bytes.min(other.layer_bytes),
            layer_inodes: self.layer_inodes.min(other.layer_inodes),
            stdout: self.stdout.min(other.stdout),
            stderr: self.stderr.min(other.stderr),
            output_total: self.output_total.min(other.output_total),
            value_bytes: self.value_bytes.min(other.value_bytes),
            artifacts: self.artifacts.min(other.artifacts),
            artifact_bytes: self.artifact_bytes.min(other.artifact_bytes),
            connections: smaller(self.connections, other.connections),
            requests: smaller(self.requests, other.requests),
            network_bytes: smaller(self.network_bytes, other.network_bytes),
        }
    }

    /// Checks for limits that are invalid, contradict each other, or are too small to start any program.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] with the limit's name and the expected value.
    pub fn check(&self) -> Result<(), Error> {
        self.check_each()?;
        self.check_together()
    }

    fn check_each(&self) -> Result<(), Error> {
        let at_least = |name: &'static str, value: u64, minimum: u64, unit: &'static str| {
            if value >= minimum {
                return Ok(());
            }
            Err(Error::InvalidLimit {
                name,
                value: value.to_string(),
                expected: format!("at least {minimum} {unit}"),
            })
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        at_least("wall", millis(self.wall), 1, "ms")?;
        at_least("idle", self.idle.map_or(u64::MAX, millis), 50, "ms")?;
        at_least("cpu", self.cpu.map_or(u64::MAX, millis), 1, "ms")?;
        if let Some(quota) = self.cpu_quota
            && !(quota.is_finite() && (0.01..=4096.0).contains(&quota))
        {
            return Err(Error::InvalidLimit {
                name: "cpu_quota",
                value: quota.to_string(),
                expected: "0.01 to 4096 processors".into(),
            });
        }
        at_least("memory", self.memory, 2 * MEBIBYTE, "bytes")?;
        at_least("processes", u64::from(self.processes), 1, "process")?;
        at_least("descriptors", u64::from(self.descriptors), 16, "descriptors")?;
        at_least("file_size", self.file_size, 1, "byte")?;
        at_least("workspace_bytes", self.workspace_bytes, 4096, "bytes")?;
        at_least("workspace_inodes", self.workspace_inodes, 16, "inodes")?;
        at_least("layer_inodes", self.layer_inodes, 16, "inodes")?;
        at_least("stdout", self.stdout as u64, 1, "byte")?;
        at_least("stderr", self.stderr as u64, 1, "byte")?;
        at_least("output_total", self.output_total, 1, "byte")?;
        at_least("value_bytes", self.value_bytes as u64, 1, "byte")?;
        at_least("artifacts", self.artifacts as u64, 1, "file")?;
        at_least("artifact_bytes", self.artifact_bytes, 1, "byte")?;
        at_least("connections", self.connections.map_or(u64::MAX, u64::from), 1, "connection")?;
        at_least("requests", self.requests.map_or(u64::MAX, u64::from), 1, "request")?;
        at_least("network_bytes", self.network_bytes.unwrap_or(u64::MAX), 1, "byte")
    }

    /// Rejects a limit that a smaller one makes unreachable. A level's own value was not chosen and
    /// contradicts nothing.
    fn check_together(&self) -> Result<(), Error> {
        let columns = Level::ALL.map(Self::for_level);
        let chosen = |is_same: fn(&Self, &Self) -> bool| !columns.iter().any(|column| is_same(self, column));
        let above =
            |name, value: String, expected: String| Err(Error::InvalidLimit { name, value, expected });
        if let Some(cpu) = self.cpu
            && chosen(|one, other| one.cpu == other.cpu)
            && let Some(quota) = self.cpu_quota
            && cpu.as_secs_f64() > self.wall.as_secs_f64() * f64::from(quota) * 1.001
        {
            let most = self.wall.as_secs_f64() * f64::from(quota);
            return above(
                "cpu",
                format!("{cpu:?}"),
                format!(
                    "at most {most:.3} s, which is `wall` ({:?}) times `cpu_quota` ({quota}), the most that can be used",
                    self.wall
                ),
            );
        }
        if let Some(idle) = self.idle
            && chosen(|one, other| one.idle == other.idle)
            && idle > self.wall
        {
            return above("idle", format!("{idle:?}"), format!("at most `wall`, which is {:?}", self.wall));
        }
        for (name, value, is_chosen, bound, most) in [
            (
                "file_size",
                self.file_size,
                chosen(|one, other| one.file_size == other.file_size),
                "workspace_bytes",
                self.workspace_bytes,
            ),
            (
                "artifact_bytes",
                self.artifact_bytes,
                chosen(|one, other| one.artifact_bytes == other.artifact_bytes),
                "workspace_bytes",
                self.workspace_bytes,
            ),
            (
                "stdout",
                self.stdout as u64,
                chosen(|one, other| one.stdout == other.stdout),
                "output_total",
                self.output_total,
            ),
            (
                "stderr",
                self.stderr as u64,
                chosen(|one, other| one.stderr == other.stderr),
                "output_total",
                self.output_total,
            ),
        ] {
            let is_bound_chosen = match bound {
                "workspace_bytes" => chosen(|one, other| one.workspace_bytes == other.workspace_bytes),
                _ => chosen(|one, other| one.output_total == other.output_total),
            };
            if is_chosen && is_bound_chosen && value > most {
                return above(
                    name,
                    value.to_string(),
                    format!("at most `{bound}`, which is {most}, the most that can be reached"),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_limits_are_rejected_by_name() {
        let limits = Limits::default;
        let cases: [(Limits, &str); 21] = [
            (limits().with_wall(Duration::ZERO), "wall"),
            (limits().with_idle(Duration::ZERO), "idle"),
            (limits().with_cpu(Duration::ZERO), "cpu"),
            (limits().with_cpu_quota(0.0), "cpu_quota"),
            (limits().with_cpu_quota(f32::NAN), "cpu_quota"),
            (limits().with_memory(0), "memory"),
            (limits().with_processes(0), "processes"),
            (limits().with_descriptors(0), "descriptors"),
            (limits().with_file_size(0), "file_size"),
            (limits().with_workspace_bytes(0), "workspace_bytes"),
            (limits().with_workspace_inodes(0), "workspace_inodes"),
            (limits().with_layer_inodes(0), "layer_inodes"),
            (limits().with_stdout(0), "stdout"),
            (limits().with_stderr(0), "stderr"),
            (limits().with_output_total(0), "output_total"),
            (limits().with_value_bytes(0), "value_bytes"),
            (limits().with_artifacts(0), "artifacts"),
            (limits().with_artifact_bytes(0), "artifact_bytes"),
            (limits().with_connections(0), "connections"),
            (limits().with_requests(0), "requests"),
            (limits().with_network_bytes(0), "network_bytes"),
        ];
        for (limits, name) in cases {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(&format!("limit `{name}`")), "{name}: {error}");
            assert!(error.contains("at least") || error.contains("0.01"), "{name}: {error}");
        }
        for level in Level::ALL {
            Limits::for_level(level).check().unwrap();
        }
    }

    #[test]
    fn contradicting_limits_are_rejected_with_both_names() {
        let limits = Limits::default;
        let second = Duration::from_secs;
        for (limits, name, other) in [
            (limits().with_wall(second(4)).with_cpu(second(3)).with_cpu_quota(0.5), "cpu", "cpu_quota"),
            (limits().with_wall(second(2)).with_idle(second(3)), "idle", "wall"),
            (limits().with_workspace_bytes(1 << 20).with_file_size(2 << 20), "file_size", "workspace_bytes"),
            (
                limits().with_workspace_bytes(1 << 20).with_artifact_bytes(2 << 20),
                "artifact_bytes",
                "workspace_bytes",
            ),
            (limits().with_output_total(1000).with_stdout(2000), "stdout", "output_total"),
            (limits().with_output_total(1000).with_stderr(2000), "stderr", "output_total"),
        ] {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(&format!("limit `{name}`")) && error.contains(other), "{error}");
        }
    }

    #[test]
    fn a_default_limit_contradicts_nothing() {
        let second = Duration::from_secs;
        for level in Level::ALL {
            for limits in [
                Limits::for_level(level).with_wall(second(1)),
                Limits::for_level(level).with_workspace_bytes(8192),
                Limits::for_level(level).with_output_total(10),
                Limits::for_level(level).with_cpu_quota(0.1),
            ] {
                limits.check().unwrap();
            }
        }
        Limits::default().with_wall(second(4)).with_cpu(second(2)).with_cpu_quota(0.5).check().unwrap();
    }

    #[test]
    fn the_smaller_of_two_limits_is_taken_for_each() {
        let (usual, most) = (Limits::for_level(Level::Strict), Limits::for_level(Level::Maximum));
        assert_eq!(usual.tightened(&most), most);
        assert_eq!(most.tightened(&usual), most);
        assert_eq!(most.tightened(&Limits::for_level(Level::Minimal)), most);
        let mixed = usual.clone().with_memory(1 << 22).tightened(&most);
        assert_eq!((mixed.memory, mixed.processes), (1 << 22, most.processes));
    }

    /// Formats a number of bytes as the table does.
    fn size(bytes: u64) -> String {
        match bytes {
            _ if bytes.is_multiple_of(GIBIBYTE) => format!("{} GiB", bytes / GIBIBYTE),
            _ if bytes.is_multiple_of(MEBIBYTE) => format!("{} MiB", bytes / MEBIBYTE),
            _ => format!("{} KiB", bytes / KIBIBYTE),
        }
    }

    fn grouped(number: u64) -> String {
        if number < 10_000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
    }

    #[test]
    fn the_documented_table_matches_the_code() {
        use std::fmt::Write as _;
        type Cell = (&'static str, fn(&Limits) -> String);
        fn time(time: Option<Duration>) -> String {
            time.map_or("–".into(), |time| match time.as_secs() {
                seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
                seconds => format!("{seconds} s"),
            })
        }
        fn count(number: Option<u32>) -> String {
            number.map_or("–".into(), |number| grouped(number.into()))
        }
        let rows: [Cell; 21] = [
            ("wall", |limits| time(Some(limits.wall))),
            ("idle", |limits| time(limits.idle)),
            ("cpu", |limits| time(limits.cpu)),
            ("cpu_quota", |limits| limits.cpu_quota.map_or("–".into(), |quota| quota.to_string())),
            ("memory", |limits| size(limits.memory)),
            ("processes", |limits| limits.processes.to_string()),
            ("descriptors", |limits| limits.descriptors.to_string()),
            ("file_size", |limits| size(limits.file_size)),
            ("workspace_bytes", |limits| size(limits.workspace_bytes)),
            ("workspace_inodes", |limits| grouped(limits.workspace_inodes)),
            ("layer_bytes", |limits| size(limits.layer_bytes)),
            ("layer_inodes", |limits| grouped(limits.layer_inodes)),
            ("stdout", |limits| size(limits.stdout as u64)),
            ("stderr", |limits| size(limits.stderr as u64)),
            ("output_total", |limits| size(limits.output_total)),
            ("value_bytes", |limits| size(limits.value_bytes as u64)),
            ("artifacts", |limits| limits.artifacts.to_string()),
            ("artifact_bytes", |limits| size(limits.artifact_bytes)),
            ("connections", |limits| count(limits.connections)),
            ("requests", |limits| count(limits.requests)),
            ("network_bytes", |limits| limits.network_bytes.map_or("–".into(), size)),
        ];
        let fields = serde_json::to_value(Limits::default()).unwrap();
        assert_eq!(rows.len(), fields.as_object().unwrap().len(), "a row for each limit");
        let mut table = format!("| limit | {} |\n|---|---|---|---|---|\n", Level::NAMES.join(" | "));
        for (name, cell) in rows {
            assert!(fields.get(name).is_some(), "{name}");
            let cells = Level::ALL.map(|level| cell(&Limits::for_level(level)));
            let _ = writeln!(table, "| `{name}` | {} |", cells.join(" | "));
        }
        assert!(include_str!("limits.md").contains(&table), "limits.md should have\n{table}");
    }
}
