//! Reserved arguments, which control how a tool runs. They apply if the tool declares them, and reach it as well.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{CallOptions, ToolError, ToolSpec};

/// The range of `timeout`, in seconds.
const TIMEOUT: std::ops::RangeInclusive<f64> = 1.0..=600.0;

/// The reserved arguments of a call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reserved {
    pub(super) working_dir: Option<PathBuf>,
    timeout: Option<Duration>,
    pub(super) dry_run: bool,
    pub(super) verbose: bool,
}

impl Reserved {
    /// Reads them from the arguments or the schema's defaults.
    ///
    /// # Errors
    /// `INVALID_PATH` if the directory does not exist; `INVALID_INPUT` if the timeout is out of range.
    pub(super) fn new(spec: &ToolSpec, arguments: &Value) -> Result<Self, ToolError> {
        let properties = spec.input_schema.as_value().get("properties");
        let given = |name: &str| {
            let declared = properties?.get(name)?;
            arguments.get(name).or_else(|| declared.get("default")).filter(|value| !value.is_null())
        };
        let is_on = |name: &str| given(name).and_then(Value::as_bool).unwrap_or(false);
        let working_dir = given("working_dir").and_then(Value::as_str).map(working_dir).transpose()?;
        let timeout = given("timeout").map(timeout).transpose()?;
        Ok(Self { working_dir, timeout, dry_run: is_on("dry_run"), verbose: is_on("verbose") })
    }

    /// Tightens the options of a call.
    pub(super) fn apply(&self, options: &mut CallOptions) {
        if self.working_dir.is_some() {
            options.working_dir.clone_from(&self.working_dir);
        }
        options.timeout = match (options.timeout, self.timeout) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        options.dry_run |= self.dry_run;
        options.verbose |= self.verbose;
    }
}

fn working_dir(text: &str) -> Result<PathBuf, ToolError> {
    let invalid = |reason: String| {
        ToolError::invalid_path(format!("/working_dir: `{text}` {reason}"))
            .with("pointer", "/working_dir")
            .suggest("Name an existing directory.")
    };
    let path = std::path::absolute(text).map_err(|error| invalid(format!("is not a path: {error}")))?;
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(invalid("is not a directory".to_owned())),
        Err(error) => Err(invalid(format!("cannot be opened: {error}"))),
    }
}

fn timeout(value: &Value) -> Result<Duration, ToolError> {
    match value.as_f64() {
        Some(seconds) if TIMEOUT.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            Err(ToolError::invalid_input(format!("/timeout: expected seconds from 1 to 600, found {value}"))
                .with("pointer", "/timeout"))
        }
    }
}
