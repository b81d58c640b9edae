//! Tools, calls and limits that another tool framework described in JSON.
//!
//! The framework calls its tools `EnhancedToolSchema` and `ParameterSchema`, its calls `ToolExecutionContext`, and its
//! rules `SecurityLevel`, `ResourceLimits` and `ProcessSandboxConfig`. Every field acts here, is stored in `meta` or
//! `metadata` where it is only a fact, or is rejected by name. An unknown field is rejected with the nearest known one.
//! `null` means that a field is missing.
//!
//! ```
//! use serde_json::json;
//! use toolpost_compat::{ImportedTool, call_of_context};
//! use toolpost_core::{Output, Tool as _};
//!
//! let imported = ImportedTool::from_json(&json!({
//!     "name": "calculator",
//!     "description": "Perform basic arithmetic operations",
//!     "parameters": [
//!         { "name": "a", "type": "number", "description": "First number" },
//!         { "name": "b", "type": "number", "description": "Second number", "default": 1 },
//!     ],
//! }))?;
//! let tool = imported.into_tool(async |args, _ctx| {
//!     Ok(Output::json(json!(args.decode::<f64>("a")? + args.decode::<f64>("b")?)))
//! });
//! assert_eq!(tool.spec().name, "calculator");
//!
//! let call = call_of_context("calculator", json!({ "a": 1 }), &json!({ "timeout": 5, "security_level": "strict" }))?;
//! assert_eq!(call.options.level.as_deref(), Some("strict"));
//! # Ok::<(), toolpost_core::ToolError>(())
//! ```
//!
//! # Invariants
//!
//! - Imported limits tighten a call and never loosen it. A description grants no network, no directory and no code.
//! - Nothing is ignored: a field without a meaning here is an error with its JSON pointer.
//! - Only the vocabulary is known here, no sandbox and no toolbox.
#![forbid(unsafe_code)]

mod context;
mod fields;
mod limits;
mod parameter;
mod sandbox;
mod schema;

pub use self::context::call_of_context;
pub use self::limits::{ResourceLimits, SecurityLevel};
pub use self::sandbox::SandboxConfig;
pub use self::schema::ImportedTool;
