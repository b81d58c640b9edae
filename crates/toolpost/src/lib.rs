//! The toolkit for the tools of LLM agents: define a tool once, call it from anywhere, every call checked, limited
//! and recorded.
//!
//! ```
//! use toolpost::{Toolbox, ToolError, json, tool};
//!
//! /// Forecast the weather for a city.
//! #[tool]
//! async fn forecast(
//!     /// City name, for example "Oslo".
//!     city: String,
//!     /// Days ahead.
//!     #[arg(default = 1, min = 1, max = 14)]
//!     days: u8,
//! ) -> String {
//!     format!("{city}: sun for {days} days")
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ToolError> {
//!     let toolbox = Toolbox::builder().tool(forecast).build()?;
//!     let output = toolbox.run("forecast", json!({ "city": "Oslo" })).await?;
//!     assert_eq!(output.model_text(), "Oslo: sun for 1 days");
//!
//!     let error = toolbox.run("forecast", json!({ "city": "Oslo", "days": 30 })).await.unwrap_err();
//!     assert_eq!(error.message(), "/days: expected at most 14, found 30");
//!     Ok(())
//! }
//! ```
//!
//! # Where things are
//!
//! - [`tool`], [`tools`] and [`data`] make tools of functions, of methods, and parameters of types.
//! - [`Toolbox`] holds tools and is the one way to call them; [`Call`] is a call with all its options.
//! - [`Output`] and [`ToolError`] are what comes back, [`CallRecord`] is what is kept.
//! - [`Ctx`] is what a tool sees of its call: progress, questions, nested calls, injected values.
//! - [`main`] makes an executable of a toolbox, which any program can call; [`Program`] says more of it.
//! - `worker_entry` lets tools run in processes of their own (feature `workers`).
//! - [`sources`] puts many sources of tools together: namespaces, filters, pins, sources that come back.
//! - Behind features: `sandbox` runs processes under confinement, `tools` has the built-in tools, `llm` the models,
//!   `agent` the loop, `mcp` the Model Context Protocol; `full` is all of them.
//!
//! # Invariants
//!
//! - Only re-exports, but for the entry of tool programs and `Model::from_env`: everything is documented where it is
//!   made.
//! - The default features bring no C code, no TLS and few packages; a test holds the number.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub use toolpost_core::__private;
pub use toolpost_core::*;

pub use serde_json::{Value, json};

#[cfg(any(feature = "exec", feature = "llm"))]
mod environment;

#[cfg(feature = "exec")]
mod program;
#[cfg(feature = "exec")]
pub use self::program::{IntoToolbox, Program, main};

#[cfg(feature = "workers")]
mod worker;
#[cfg(feature = "workers")]
pub use self::worker::{worker_entry, workers, workers_with};

/// The protocol of executables.
#[cfg(feature = "exec")]
pub use toolpost_exec as exec;

#[cfg(feature = "toolbox")]
pub use toolpost_toolbox::{
    Builder, Catalog, Discovery, DynamicSession, DynamicTools, Matching, MemoryStore, Search, Settings,
    ToolSession, ToolSummary, ToolUsage, Toolbox,
};

/// Combinators over sources of tools: a gateway.
#[cfg(feature = "toolbox")]
pub use toolpost_toolbox::sources;

#[cfg(feature = "state")]
pub use toolpost_store::Store;

/// Processes under confinement.
#[cfg(feature = "sandbox")]
pub use toolpost_sandbox as sandbox;

/// The built-in tools.
#[cfg(feature = "tools")]
pub use toolpost_tools as builtin;

/// Models.
#[cfg(feature = "llm")]
pub use toolpost_llm as llm;

#[cfg(feature = "llm")]
mod model;
#[cfg(feature = "llm")]
pub use self::model::Model;

/// The agentic loop.
#[cfg(feature = "agent")]
pub use toolpost_agent as agent;

/// The Model Context Protocol, both halves.
#[cfg(feature = "mcp")]
pub use toolpost_mcp as mcp;
