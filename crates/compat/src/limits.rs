//! `SecurityLevel` and `ResourceLimits`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{Call, ToolError};

use crate::fields::Fields;

/// The levels, the loosest first.
pub(super) const LEVELS: [&str; 4] = ["minimal", "standard", "strict", "maximum"];

const MEBIBYTE: u64 = 1 << 20;

/// How much a call may use. Given to a call by type ([`apply`](Self::apply)), it tightens what the built-in tools take
/// from their own settings: code gets the smaller limits, and requests are counted for the call and all that it makes.
///
/// `None` is no limit beyond those that hold anyway. Clones count together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// Memory in bytes. Default: 512 MiB.
    pub memory: Option<u64>,
    /// Processors that may be busy at once. Default: 0.5.
    pub cpu: Option<f32>,
    /// How long a call may take, and what it starts. Default: 30 s.
    pub time: Option<Duration>,
    /// Bytes in one file. Default: 100 MiB.
    pub file_size: Option<u64>,
    /// How many requests may be made over the network. Default: 10.
    pub network_requests: Option<u32>,
    /// How many processes code may have at one time beside its first. Default: 1.
    pub subprocesses: Option<u32>,
    requests_made: Arc<AtomicU32>,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            memory: Some(512 * MEBIBYTE),
            cpu: Some(0.5),
            time: Some(Duration::from_secs(30)),
            file_size: Some(100 * MEBIBYTE),
            network_requests: Some(10),
            subprocesses: Some(1),
            requests_made: Arc::default(),
        }
    }
}

/// The smaller of two limits.
fn tighter<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other < one { other } else { one }),
        (one, other) => one.or(other),
    }
}

impl ResourceLimits {
    /// Reads `ResourceLimits`. A missing field has its default; `null` is no limit.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the JSON pointer of the field.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        Self::read(value, "", Self::default())
    }

    pub(super) fn read(value: &Value, place: &str, default: Self) -> Result<Self, ToolError> {
        let mut fields = Fields::of(value, place)?;
        let given = |name: &str| value.get(name).is_some();
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let size = |number: u64| number.saturating_mul(MEBIBYTE);
        let memory = fields.whole("max_memory_mb")?.map(size);
        let cpu = fields.positive("max_cpu_percent")?.map(|percent| (percent / 100.0) as f32);
        let time = match fields.positive("max_execution_time_seconds")? {
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|error| fields.wrong("max_execution_time_seconds", error))?,
            ),
            None => None,
        };
        let file_size = fields.whole("max_file_size_mb")?.map(size);
        let network_requests = fields.whole("max_network_requests")?.map(count);
        let subprocesses = fields.whole("max_subprocess_count")?.map(count);
        fields.finish()?;
        if memory == Some(0) {
            return Err(Fields::of(value, place)?.wrong("max_memory_mb", "nothing runs without memory"));
        }
        Ok(Self {
            memory: if given("max_memory_mb") { memory } else { default.memory },
            cpu: if given("max_cpu_percent") { cpu } else { default.cpu },
            time: if given("max_execution_time_seconds") { time } else { default.time },
            file_size: if given("max_file_size_mb") { file_size } else { default.file_size },
            network_requests: if given("max_network_requests") {
                network_requests
            } else {
                default.network_requests
            },
            subprocesses: if given("max_subprocess_count") { subprocesses } else { default.subprocesses },
            requests_made: default.requests_made,
        })
    }

    /// No limits beyond those that hold anyway.
    pub fn none() -> Self {
        Self {
            memory: None,
            cpu: None,
            time: None,
            file_size: None,
            network_requests: None,
            subprocesses: None,
            requests_made: Arc::default(),
        }
    }

    /// The smaller limits of both.
    #[must_use]
    pub fn tightened(self, other: &Self) -> Self {
        Self {
            memory: tighter(self.memory, other.memory),
            cpu: tighter(self.cpu, other.cpu),
            time: tighter(self.time, other.time),
            file_size: tighter(self.file_size, other.file_size),
            network_requests: tighter(self.network_requests, other.network_requests),
            subprocesses: tighter(self.subprocesses, other.subprocesses),
            requests_made: self.requests_made,
        }
    }

    /// Gives a call these limits, or the smaller ones of these and those that it has.
    #[must_use]
    pub fn apply(&self, mut call: Call) -> Call {
        let limits = match call.values.get::<Self>() {
            Some(known) => Self::clone(&known).tightened(self),
            None => self.clone(),
        };
        call.options.timeout = tighter(call.options.timeout, limits.time);
        call.provide(limits)
    }

    /// Counts a request over the network.
    ///
    /// # Errors
    /// `LIMIT` when as many were made as may be.
    pub fn count_request(&self) -> Result<(), ToolError> {
        let Some(limit) = self.network_requests else { return Ok(()) };
        let before = self.requests_made.fetch_add(1, Ordering::Relaxed);
        if before < limit {
            return Ok(());
        }
        self.requests_made.fetch_sub(1, Ordering::Relaxed);
        Err(ToolError::limit(format!("{limit} requests over the network may be made, and all are made"))
            .with("limit", "max_network_requests")
            .suggest("Answer with what there is, or raise `max_network_requests`."))
    }
}

/// How code is confined, as another framework says it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SecurityLevel {
    /// The name of the sandbox level; `None` if no sandbox is asked for. The tools' own settings hold in any case.
    pub level: Option<String>,
    /// Its limits, where it has some.
    pub limits: ResourceLimits,
}

impl SecurityLevel {
    /// Reads a `SecurityLevel`.
    ///
    /// `level` is asked for if `sandbox_required` or `process_isolation` is true, as both are by default.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the JSON pointer of the field. What would widen what code may do (`network_access`,
    /// `file_system_access`) is refused by its name: a description is no permission.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        Self::read(value, "")
    }

    pub(super) fn read(value: &Value, place: &str) -> Result<Self, ToolError> {
        let mut fields = Fields::of(value, place)?;
        if fields.text("level")?.is_none() {
            return Err(ToolError::missing_param(format!("{} is missing", fields.place("level")))
                .with("pointer", fields.place("level"))
                .suggest(format!("Expected one of {}.", LEVELS.join(", "))));
        }
        let level = fields.choice("level", &LEVELS, "standard")?;
        let sandbox_required = fields.flag("sandbox_required", true)?;
        let process_isolation = fields.flag("process_isolation", true)?;
        if sandbox_required && !process_isolation {
            return Err(fields
                .wrong("process_isolation", "every sandbox isolates its processes")
                .suggest("Leave `process_isolation` out, or set `sandbox_required` to false as well."));
        }
        if fields.flag("network_access", false)? {
            return Err(fields.wrong("network_access", "a description cannot give code a network").suggest(
                "Leave it out; the operator allows hosts by name, as `HttpSettings::allowed_hosts` does for requests.",
            ));
        }
        if fields.flag("file_system_access", false)? {
            return Err(fields
                .wrong("file_system_access", "a description cannot give code a folder")
                .suggest("Leave it out, and give the call a working folder (`options.working_dir`)."));
        }
        let limits = match fields.object("resource_limits")? {
            Some(_) => {
                let limits = value.get("resource_limits").unwrap_or(&Value::Null);
                ResourceLimits::read(limits, &fields.place("resource_limits"), ResourceLimits::none())?
            }
            None => ResourceLimits::none(),
        };
        fields.finish()?;
        let asked = sandbox_required || process_isolation;
        Ok(Self { level: asked.then(|| level.to_owned()), limits })
    }

    /// Gives a call this level, or keeps a stricter one that it has, and the limits.
    #[must_use]
    pub fn apply(&self, mut call: Call) -> Call {
        let rank = |level: &Option<String>| {
            level.as_ref().and_then(|level| LEVELS.iter().position(|known| known == level))
        };
        if rank(&self.level) > rank(&call.options.level) {
            call.options.level.clone_from(&self.level);
        }
        self.limits.apply(call)
    }
}
