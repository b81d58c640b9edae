//! Conversions between Toolpost types and MCP types: `outward` for clients, `inward` from servers.

#[expect(deprecated, reason = "older clients and servers use logging")]
use rmcp::model::LoggingLevel;
use toolpost_core::LogLevel;

#[cfg(feature = "client")]
pub(crate) mod inward;
#[cfg(feature = "server")]
pub(crate) mod outward;

/// The `_meta` key under which a Toolpost server sends the whole error of a call.
pub(crate) const ERROR: &str = "toolpost/error";
/// The `_meta` key under which a Toolpost server sends the status `partial`.
pub(crate) const STATUS: &str = "toolpost/status";

/// The key of a definition's meta for members that its type has no field for, as the server sent them. A gateway
/// forwards them.
pub(crate) const FORWARDED: &str = "mcp";

/// A number without a fraction.
#[cfg(feature = "client")]
pub(crate) fn whole(number: &serde_json::Number) -> Option<i64> {
    number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
        Some(float as i64)
    })
}

/// Converts a log level for the other side.
#[expect(deprecated, reason = "older clients and servers use logging")]
pub(crate) fn protocol_level(level: LogLevel) -> LoggingLevel {
    match level {
        LogLevel::Trace | LogLevel::Debug => LoggingLevel::Debug,
        LogLevel::Info => LoggingLevel::Info,
        LogLevel::Warn => LoggingLevel::Warning,
        LogLevel::Error => LoggingLevel::Error,
    }
}

/// Converts a log level of the other side.
#[expect(deprecated, reason = "older clients and servers use logging")]
pub(crate) fn log_level(level: LoggingLevel) -> LogLevel {
    match level {
        LoggingLevel::Debug => LogLevel::Debug,
        LoggingLevel::Info | LoggingLevel::Notice => LogLevel::Info,
        LoggingLevel::Warning => LogLevel::Warn,
        _ => LogLevel::Error,
    }
}
