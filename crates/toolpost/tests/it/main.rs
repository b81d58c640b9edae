//! Tests of the façade.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod alone;
#[cfg(all(feature = "claude-code", feature = "workers", target_os = "linux"))]
mod claude_code;
mod features;
mod good_use;
mod misuse;
#[cfg(feature = "llm")]
mod model;
mod program;
#[cfg(feature = "workers")]
mod worker;
