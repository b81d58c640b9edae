//! `SecurityLevel` and `ResourceLimits`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{Call, ToolError};

use crate::fields::Fields;

/// The levels from loose to strict.
pub(super) const LEVELS: [&str; 4] = ["minimal", "standard", "strict", "maximum"];

const MEBIBYTE: u64 = 1 << 20;

/// Limits of a call's resources.
///
/// [`apply`](Self::apply) injects them into a call by type. Built-in tools then use the smaller of these limits and their
/// own settings. Network requests of the call and of its nested calls count together, as do those of clones. `None` adds
/// no limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// Memory in bytes. Default: 512 MiB.
    pub memory: Option<u64>,
    /// Maximum number of busy processors. Default: 0.5.
    pub cpu: Option<f32>,
    /// Timeout of the call. Default: 30 s.
    pub time: Option<Duration>,
    /// Maximum size of a file in bytes. Default: 100 MiB.
    pub file_size: Option<u64>,
    /// Maximum number of network requests. Default: 10.
    pub network_requests: Option<u32>,
    /// Maximum number of subprocesses at one time. Default: 1.
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

/// A limit from JSON, or its default if the field is missing.
fn given_or<T>(value: &Value, name: &str, given: Option<T>, default: Option<T>) -> Option<T> {
    if value.get(name).is_some() { given } else { default }
}

impl ResourceLimits {
    /// Reads `ResourceLimits`. A missing field has its default; `null` is not a limit.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the JSON pointer of the field.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        Self::read(value, "", Self::default())
    }

    pub(super) fn read(value: &Value, place: &str, default: Self) -> Result<Self, ToolError> {
        let mut fields = Fields::new(value, place)?;
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
            return Err(Fields::new(value, place)?.wrong("max_memory_mb", "expected at least 1"));
        }
        Ok(Self {
            memory: given_or(value, "max_memory_mb", memory, default.memory),
            cpu: given_or(value, "max_cpu_percent", cpu, default.cpu),
            time: given_or(value, "max_execution_time_seconds", time, default.time),
            file_size: given_or(value, "max_file_size_mb", file_size, default.file_size),
            network_requests: given_or(
                value,
                "max_network_requests",
                network_requests,
                default.network_requests,
            ),
            subprocesses: given_or(value, "max_subprocess_count", subprocesses, default.subprocesses),
            requests_made: default.requests_made,
        })
    }

    /// Adds no limits.
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

    /// Sets these limits on a call; of two limits the smaller one applies.
    #[must_use]
    pub fn apply(&self, mut call: Call) -> Call {
        let limits = match call.values.get::<Self>() {
            Some(known) => Self::clone(&known).tightened(self),
            None => self.clone(),
        };
        call.options.timeout = tighter(call.options.timeout, limits.time);
        call.provide(limits)
    }

    /// Counts a network request.
    ///
    /// # Errors
    /// `LIMIT` when the maximum is reached.
    pub fn count_request(&self) -> Result<(), ToolError> {
        let Some(limit) = self.network_requests else { return Ok(()) };
        let before = self.requests_made.fetch_add(1, Ordering::Relaxed);
        if before < limit {
            return Ok(());
        }
        self.requests_made.fetch_sub(1, Ordering::Relaxed);
        Err(ToolError::limit(format!("the limit of {limit} network requests is reached"))
            .with("limit", "max_network_requests")
            .suggest("Continue without further requests, or raise `max_network_requests`."))
    }
}

/// The confinement of code in the vocabulary of another framework.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SecurityLevel {
    /// Name of the sandbox level; `None` requests no sandbox. The settings of the tools apply in any case.
    pub level: Option<String>,
    /// Its limits.
    pub limits: ResourceLimits,
}

impl SecurityLevel {
    /// Reads a `SecurityLevel`.
    ///
    /// `level` applies if `sandbox_required` or `process_isolation` is true, which both default to.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the JSON pointer of the field. `network_access` and `file_system_access` are
    /// rejected: a description grants no permission.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        Self::read(value, "")
    }

    pub(super) fn read(value: &Value, place: &str) -> Result<Self, ToolError> {
        let mut fields = Fields::new(value, place)?;
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
                .wrong("process_isolation", "a sandbox always isolates its processes")
                .suggest("Omit `process_isolation`, or set `sandbox_required` to false as well."));
        }
        if fields.flag("network_access", false)? {
            return Err(fields.wrong("network_access", "a description cannot grant network access").suggest(
                "Omit it; the operator allows hosts by name, as `HttpSettings::allowed_hosts` does for requests.",
            ));
        }
        if fields.flag("file_system_access", false)? {
            return Err(fields
                .wrong("file_system_access", "a description cannot grant a directory")
                .suggest("Omit it, and set the working directory of the call (`options.working_dir`)."));
        }
        let limits = match fields.object("resource_limits")? {
            Some(_) => {
                let limits = value.get("resource_limits").unwrap_or(&Value::Null);
                ResourceLimits::read(limits, &fields.place("resource_limits"), ResourceLimits::none())?
            }
            None => ResourceLimits::none(),
        };
        fields.finish()?;
        let requested = sandbox_required || process_isolation;
        Ok(Self { level: requested.then(|| level.to_owned()), limits })
    }

    /// Sets this level and these limits on a call; a stricter level of the call stays.
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
