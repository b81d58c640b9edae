//! Tools, calls and limits that were described in another vocabulary.
//!
//! What is read is the JSON of the tool framework whose schemas are called `EnhancedToolSchema` and `ParameterSchema`,
//! whose calls carry a `ToolExecutionContext`, and whose rules are a `SecurityLevel` and `ResourceLimits`. Every field
//! acts here, is kept in `meta` or `metadata` where it is only a fact, or is refused by its name; a field that is not
//! known is refused with the nearest that is. `null` is the same as leaving a field out.
//!
//! ```
//! # use toolpost_core as toolpost;
//! use toolpost::import::{ImportedTool, call_of_context};
//! use toolpost::{Output, Tool as _};
//! use serde_json::json;
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
//! # Ok::<(), toolpost::ToolError>(())
//! ```

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
