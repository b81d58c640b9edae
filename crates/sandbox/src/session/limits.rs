//! The limits of a session and of each of its cells.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, Limits};

/// The limits of one cell. None may be zero.
///
/// The defaults are those of the [`Limits`] with the same names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CellLimits {
    /// Wall-clock time. Default 30 s.
    pub wall: Duration,
    /// Processor time of the whole sandbox while the cell runs. Default none; wall time bounds it.
    pub cpu: Option<Duration>,
    /// Time without output and processor use. Default none.
    pub idle: Option<Duration>,
    /// Time between the interrupt at a limit and the kill. Default 1 s.
    pub grace: Duration,
    /// Captured bytes of standard output: the first and last half. Default 1 MiB.
    pub stdout: usize,
    /// Captured bytes of standard error: the first and last half. Default 1 MiB.
    pub stderr: usize,
    /// Total output bytes before the cell is stopped. Default 1 GiB.
    pub output_total: u64,
    /// Bytes of the cell's value. Default 1 MiB.
    pub value_bytes: usize,
    /// Number of artifacts. Default 64.
    pub artifacts: usize,
    /// Total bytes of artifacts. Default 64 MiB.
    pub artifact_bytes: u64,
}

impl Default for CellLimits {
    fn default() -> Self {
        Self::from(&Limits::default())
    }
}

impl From<&Limits> for CellLimits {
    /// Copies the limits that runs and cells share.
    fn from(limits: &Limits) -> Self {
        Self {
            wall: limits.wall,
            cpu: limits.cpu,
            idle: limits.idle,
            grace: Duration::from_secs(1),
            stdout: limits.stdout,
            stderr: limits.stderr,
            output_total: limits.output_total,
            value_bytes: limits.value_bytes,
            artifacts: limits.artifacts,
            artifact_bytes: limits.artifact_bytes,
        }
    }
}

/// Defines one setter per limit, documented by its field.
macro_rules! setters {
    ($owner:ident: $($setter:ident $field:ident : $kind:ty;)*) => {
        $(
            #[doc = concat!("Sets [`", stringify!($owner), "::", stringify!($field), "`].")]
            #[must_use]
            pub fn $setter(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

impl CellLimits {
    setters! { CellLimits:
        with_wall wall: Duration;
        with_cpu cpu: Option<Duration>;
        with_idle idle: Option<Duration>;
        with_grace grace: Duration;
        with_stdout stdout: usize;
        with_stderr stderr: usize;
        with_output_total output_total: u64;
        with_value_bytes value_bytes: usize;
        with_artifacts artifacts: usize;
        with_artifact_bytes artifact_bytes: u64;
    }

    /// Rejects invalid limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let limits = Limits {
            wall: self.wall,
            cpu: self.cpu,
            idle: self.idle,
            stdout: self.stdout,
            stderr: self.stderr,
            output_total: self.output_total,
            value_bytes: self.value_bytes,
            artifacts: self.artifacts,
            artifact_bytes: self.artifact_bytes,
            ..Limits::default()
        };
        limits.check()?;
        at_least("grace", self.grace)
    }
}

/// The limits of a session and its forks.
///
/// [`Limits`] of the sandbox hold for all of them together: memory and processes. Each has its own workspace
/// limit. From level `strict` upward, when the kernel kills one of their processes for memory, the session
/// and its forks end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SessionLimits {
    /// Idle time before the session ends. Default 30 min; none disables it.
    pub idle: Option<Duration>,
    /// Lifetime of the session and its forks. Default 24 h; none disables it.
    pub total: Option<Duration>,
    /// Idle time before the session freezes. Default 1 min; none disables it.
    pub freeze_after: Option<Duration>,
    /// Number of cells. Default 10,000.
    pub cells: u32,
    /// Number of live forks, including forks of forks. Default 8.
    ///
    /// 0 drops the interpreter's right to fork and enables all layers. Each fork costs one host descriptor
    /// and 0.1 ms at the start.
    pub forks: u32,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_mins(30)),
            total: Some(Duration::from_hours(24)),
            freeze_after: Some(Duration::from_mins(1)),
            cells: 10_000,
            forks: 8,
        }
    }
}

/// More forks need more descriptors than processes usually have.
const MAX_FORKS: u32 = 64;

impl SessionLimits {
    setters! { SessionLimits:
        with_idle idle: Option<Duration>;
        with_total total: Option<Duration>;
        with_freeze_after freeze_after: Option<Duration>;
        with_cells cells: u32;
        with_forks forks: u32;
    }

    /// Rejects invalid limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, time) in [("idle", self.idle), ("total", self.total), ("freeze_after", self.freeze_after)]
        {
            time.map_or(Ok(()), |time| at_least(name, time))?;
        }
        let number = |name: &'static str, value: u32, expected: &str| {
            Err(Error::InvalidLimit { name, value: value.to_string(), expected: expected.into() })
        };
        if self.cells == 0 {
            return number("cells", self.cells, "at least 1 cell");
        }
        if self.forks > MAX_FORKS {
            return number("forks", self.forks, "at most 64 forks");
        }
        Ok(())
    }
}

fn at_least(name: &'static str, time: Duration) -> Result<(), Error> {
    if time >= Duration::from_millis(1) {
        return Ok(());
    }
    let value = format!("{} ns", time.as_nanos());
    Err(Error::InvalidLimit { name, value, expected: "at least 1 ms".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_mean_nothing_are_refused_by_name() {
        let zero = Duration::ZERO;
        let cells = [
            (CellLimits::default().with_wall(zero), "wall"),
            (CellLimits::default().with_cpu(Some(zero)), "cpu"),
            (CellLimits::default().with_idle(Some(zero)), "idle"),
            (CellLimits::default().with_grace(zero), "grace"),
            (CellLimits::default().with_stdout(0), "stdout"),
            (CellLimits::default().with_artifacts(0), "artifacts"),
        ];
        for (limits, name) in cells {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        let sessions = [
            (SessionLimits::default().with_idle(Some(zero)), "idle"),
            (SessionLimits::default().with_total(Some(zero)), "total"),
            (SessionLimits::default().with_freeze_after(Some(zero)), "freeze_after"),
            (SessionLimits::default().with_cells(0), "cells"),
            (SessionLimits::default().with_forks(65), "forks"),
        ];
        for (limits, name) in sessions {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        CellLimits::default().check().unwrap();
        SessionLimits::default().check().unwrap();
    }
}
