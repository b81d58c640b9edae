//! `ToolExecutionContext`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{Call, Caller, ToolError};

use crate::fields::Fields;
use crate::limits::LEVELS;

/// Default of `max_retries`.
const DEFAULT_MAX_RETRIES: u64 = 3;

/// A call with the options of a `ToolExecutionContext`.
///
/// | field | here |
/// |---|---|
/// | `timeout` | timeout of one attempt, in seconds |
/// | `max_retries` (3) less `retry_count` (0) | maximum number of retries |
/// | `cache_enabled` (true) | false: the call neither reads nor writes the cache |
/// | `sandbox_mode` (true), `security_level` (`standard`) | the minimum sandbox level; none without `sandbox_mode` |
/// | `user_id` | identity of the caller |
/// | `execution_id`, `agent_id`, `session_id`, `timestamp`, `metadata` | facts that the record stores |
///
/// # Errors
/// `INVALID_INPUT` with the JSON pointer of the field.
pub fn call_of_context(
    tool: impl Into<String>,
    arguments: impl Into<Arc<Value>>,
    context: &Value,
) -> Result<Call, ToolError> {
    let mut fields = Fields::new(context, "")?;
    let mut call = Call::new(tool, arguments);
    let options = &mut call.options;
    if let Some(seconds) = fields.positive("timeout")? {
        let timeout = Duration::try_from_secs_f64(seconds).map_err(|error| fields.wrong("timeout", error))?;
        options.timeout = Some(timeout);
    }
    let attempts = fields.whole("retry_count")?.unwrap_or(0);
    let max = fields.whole("max_retries")?.unwrap_or(DEFAULT_MAX_RETRIES);
    options.retries = Some(u32::try_from(max.saturating_sub(attempts)).unwrap_or(u32::MAX));
    options.no_cache = !fields.flag("cache_enabled", true)?;
    let level = fields.choice("security_level", &LEVELS, "standard")?;
    options.level = fields.flag("sandbox_mode", true)?.then(|| level.to_owned());
    if let Some(metadata) = fields.object("metadata")? {
        options.metadata.clone_from(metadata);
    }
    for name in ["execution_id", "agent_id", "session_id", "timestamp"] {
        let Some(text) = fields.text(name)? else { continue };
        if options.metadata.insert(name.to_owned(), text.into()).is_some() {
            return Err(fields.wrong(&format!("metadata/{name}"), "the context has a field with this name"));
        }
    }
    if let Some(user) = fields.text("user_id")? {
        call.caller = Caller::new("library").with_identity(user);
    }
    fields.finish()?;
    Ok(call)
}
