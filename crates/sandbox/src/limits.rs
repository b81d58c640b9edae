//! What a run may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The limits of one run. Each has a default, and none may be zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Wall-clock time from the start to the end of the program. Default 30 s.
    pub wall: Duration,
    /// Processor time of all processes together. Default none: the wall time bounds it.
    pub cpu: Option<Duration>,
    /// Processors that may be busy at once, for example `0.5`. Default none. Needs a cgroup.
    pub cpu_quota: Option<f32>,
    /// Memory in bytes, of all processes together, files in temporary file systems included. Default 512 MiB.
    pub memory: u64,
    /// Processes and threads at one time. Default 64.
    pub processes: u32,
    /// Open descriptors per process. Default 256.
    pub descriptors: u32,
    /// Bytes in one file. Default 100 MiB.
    pub file_size: u64,
    /// Bytes in a fresh workspace. Default 256 MiB.
    pub workspace_bytes: u64,
    /// Files and folders in a fresh workspace. Default 16,384.
    pub workspace_inodes: u64,
    /// Bytes of standard output that are kept: the first and the last half. Default 1 MiB.
    pub stdout: usize,
    /// Bytes of standard error that are kept: the first and the last half. Default 1 MiB.
    pub stderr: usize,
    /// Bytes of standard output and error together after which the program is ended. Default 1 GiB.
    pub output_total: u64,
    /// Bytes of the value that code hands back. Default 1 MiB.
    pub value_bytes: usize,
    /// Files that are handed back. Default 64.
    pub artifacts: usize,
    /// Bytes of all files that are handed back. Default 64 MiB.
    pub artifact_bytes: u64,
}

const MEBIBYTE: u64 = 1 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(30),
            cpu: None,
            cpu_quota: None,
            memory: 512 * MEBIBYTE,
            processes: 64,
            descriptors: 256,
            file_size: 100 * MEBIBYTE,
            workspace_bytes: 256 * MEBIBYTE,
            workspace_inodes: 16_384,
            stdout: MEBIBYTE as usize,
            stderr: MEBIBYTE as usize,
            output_total: 1024 * MEBIBYTE,
            value_bytes: MEBIBYTE as usize,
            artifacts: 64,
            artifact_bytes: 64 * MEBIBYTE,
        }
    }
}

/// Writes one setter per limit; its documentation is the field's.
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
        with_cpu cpu: Duration => Some(cpu);
        with_cpu_quota cpu_quota: f32 => Some(cpu_quota);
        with_memory memory: u64 => memory;
        with_processes processes: u32 => processes;
        with_descriptors descriptors: u32 => descriptors;
        with_file_size file_size: u64 => file_size;
        with_workspace_bytes workspace_bytes: u64 => workspace_bytes;
        with_workspace_inodes workspace_inodes: u64 => workspace_inodes;
        with_stdout stdout: usize => stdout;
        with_stderr stderr: usize => stderr;
        with_output_total output_total: u64 => output_total;
        with_value_bytes value_bytes: usize => value_bytes;
        with_artifacts artifacts: usize => artifacts;
        with_artifact_bytes artifact_bytes: u64 => artifact_bytes;
    }

    /// Refuses limits that mean nothing, or under which no program can start.
    pub(crate) fn check(&self) -> Result<(), Error> {
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
        at_least("wall", u64::try_from(self.wall.as_millis()).unwrap_or(u64::MAX), 1, "ms")?;
        if let Some(cpu) = self.cpu {
            at_least("cpu", u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX), 1, "ms")?;
        }
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
        at_least("stdout", self.stdout as u64, 1, "byte")?;
        at_least("stderr", self.stderr as u64, 1, "byte")?;
        at_least("output_total", self.output_total, 1, "byte")?;
        at_least("value_bytes", self.value_bytes as u64, 1, "byte")?;
        at_least("artifacts", self.artifacts as u64, 1, "file")?;
        at_least("artifact_bytes", self.artifact_bytes, 1, "byte")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_limits_are_refused_by_name() {
        let cases: [(Limits, &str); 8] = [
            (Limits::default().with_wall(Duration::ZERO), "wall"),
            (Limits::default().with_cpu(Duration::ZERO), "cpu"),
            (Limits::default().with_cpu_quota(f32::NAN), "cpu_quota"),
            (Limits::default().with_memory(0), "memory"),
            (Limits::default().with_processes(0), "processes"),
            (Limits::default().with_stdout(0), "stdout"),
            (Limits::default().with_artifacts(0), "artifacts"),
            (Limits::default().with_workspace_inodes(0), "workspace_inodes"),
        ];
        for (limits, name) in cases {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("at least") | error.contains("0.01"), "{error}");
        }
        Limits::default().check().unwrap();
    }
}
