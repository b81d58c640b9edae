//! A tool runtime for LLM agents: define a tool once and call it from anywhere. Toolpost checks, limits and records
//! every call.
//!
//! ```
//! use toolpost::{CallError, Toolbox, json, tool};
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
//! async fn main() -> Result<(), CallError> {
//!     let toolbox = Toolbox::builder().tool(forecast).build()?;
//!     let output = toolbox.run("forecast", json!({ "city": "Oslo" })).await?;
//!     assert_eq!(output.to_text(), "Oslo: sun for 1 days");
//!
//!     let error = toolbox.run("forecast", json!({ "city": "Oslo", "days": 30 })).await.unwrap_err();
//!     assert_eq!(error.message(), "/days: expected at most 14, found 30");
//!     Ok(())
//! }
//! ```
//!
//! # Where things are
//!
//! - The root has what most programs need; [`prelude`] imports it in one line.
//! - [`tool`], [`macro@tools`] and [`data`] define tools and their types; [`resource`] and [`prompt`] define
//!   what servers offer beside tools.
//! - [`Toolbox`] registers and calls tools; [`Call`] is a call with its options, [`Ctx`] is what a tool sees of it.
//! - [`main`] turns a toolbox into an executable; `worker_entry` runs tools in worker processes (feature `workers`).
//! - A tool returns a [`ToolError`], into which `?` converts any error. A caller receives a [`CallError`], which `?`
//!   converts into `Box<dyn Error + Send + Sync>` and `anyhow::Error`. The feature `anyhow` also converts a `ToolError`.
//! - One module per topic: [`call`], [`error`], [`output`], [`policy`], [`port`], [`record`], [`resources`], [`schema`],
//!   [`spec`], [`state`], [`time`], [`toolbox`], [`gateway`]; [`extend`] has the traits for custom tools and sources.
//! - One module per feature, of the same name: `agent`, `claude_code`, `compat`, `docker`, `exec` with `client`, `command`
//!   and `scaffold`, `flow`, `llm`, `mcp`, `restate`, `sandbox`, `tools`, `workers`; `full` enables all but `restate`.
//!
//! # Invariants
//!
//! - Re-exports only, except the entry points of programs and workers and the models of the environment.
//! - The root has at most 26 names beside its modules, the prelude at most 16; no two public types share a name.
//! - The default features need no C code, no TLS and few packages; a test counts them.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub use toolpost_core::__private;
pub use toolpost_core::{
    Call, CallError, Caller, Ctx, Inject, Output, Tool, ToolError, ToolSpec, data, prompt, resource, tool,
    tool_fn, tools,
};

pub use serde_json::{Value, json};

#[cfg(any(feature = "exec", feature = "llm"))]
mod environment;

#[cfg(all(feature = "client", feature = "command", feature = "mcp", feature = "tools"))]
pub mod connection;
#[cfg(all(feature = "client", feature = "command", feature = "mcp", feature = "tools"))]
pub use self::connection::connect;

#[cfg(feature = "exec")]
mod program;
#[cfg(feature = "exec")]
pub use self::program::{ToolProgram, main};

#[cfg(feature = "workers")]
pub mod workers;
#[cfg(feature = "workers")]
pub use self::workers::{worker_entry, workers};

#[cfg(feature = "toolbox")]
pub use toolpost_toolbox::Toolbox;

#[cfg(feature = "state")]
pub use toolpost_store::Store;

#[cfg(feature = "sandbox")]
pub use toolpost_sandbox::Sandbox;

#[cfg(feature = "agent")]
pub use toolpost_agent::Agent;

/// The names that most programs need, in one import.
pub mod prelude {
    #[cfg(feature = "agent")]
    pub use crate::Agent;
    #[cfg(feature = "state")]
    pub use crate::Store;
    #[cfg(feature = "toolbox")]
    pub use crate::Toolbox;
    pub use crate::{
        Call, CallError, Ctx, Inject, Output, Tool, ToolError, data, json, prompt, resource, tool, tools,
    };
}

/// Options, identity and cancellation of a call.
pub mod call {
    pub use toolpost_core::{
        CallId, CallLimit, CallOptions, Cancellation, Cancelled, Masks, Priority, Reply, RunId, Scope,
        ScopeId, Secret, Values,
    };
}

/// Error codes, retry advice and suggestions.
pub mod error {
    pub use toolpost_core::{Code, Hint, RetryAdvice, Suggestion};
}

/// Content, artifacts and payloads of tool results.
pub mod output {
    pub use toolpost_core::{
        Artifact, ArtifactData, Content, Envelope, Evidence, IntoOutput, OutputFiles, OutputStore, Partial,
        Payload, Status, WholeText, WideJson, wide_integer,
    };
}

/// Timeouts, retries, rates, placement and approval of tools.
pub mod policy {
    pub use toolpost_core::{Approval, Placement, Policy, Rate, Retry, Timeout};
}

/// The services of a front end for a running tool: progress, logs, questions, samples.
pub mod port {
    pub use toolpost_core::{
        Answer, Delivery, LogLevel, LogLine, NoPort, Port, Progress, Question, QuestionKind, Root, Sample,
        SampleRequest,
    };
}

/// Records of calls and runs, and their events.
pub mod record {
    pub use toolpost_core::{
        CallRecord, ChangedFiles, Event, EventSink, RunRecord, StateVersions, Usage, UsageEvent,
    };
}

/// Resources and prompts.
pub mod resources {
    pub use toolpost_core::{Prompt, PromptArgument, PromptSpec, Resource, ResourceSpec, UriPattern};
}

/// JSON Schemas of parameters and results.
pub mod schema {
    pub use toolpost_core::{JsonSchema, ParameterType, Problem, Schema, object_schema};
}

/// Descriptions of tools: annotations, examples, aliases.
pub mod spec {
    pub use toolpost_core::{
        Alias, Annotations, Example, Mode, SpecError, TaskUse, check_tool_name, exclude_parameters,
        with_aliases, with_mock,
    };
}

/// Versioned documents: changes, commits, conflicts, stores.
pub mod state {
    pub use toolpost_core::{
        Change, Commit, Committed, DocStore, Document, OnConflict, Patch, Sleep, StateAddress, StateConflict,
        StateDoc, StateSpec, StateValue, StateView, TaskRecord, TaskStore, Write, check_document_id,
        check_pointer, escape_pointer, pointers_overlap, state_conflict, to_json,
    };
    #[cfg(feature = "toolbox")]
    pub use toolpost_toolbox::MemoryStore;
}

/// Clocks, timestamps and durations.
pub mod time {
    pub use toolpost_core::{Clock, SystemClock, Timestamp, format_duration, parse_duration};
}

/// Traits and types for custom tools, sources of tools, hosts and runners.
pub mod extend {
    pub use toolpost_core::{
        Args, BoxFuture, CallPath, HiddenDefinition, IntoTool, IntoTools, OutputLog, Runner, SourceState,
        SourceStatus, StartCheck, ToolGroup, ToolSource, marker, typed_tool_fn,
    };
}

/// Imports tools, calls and limits from another tool framework's JSON.
#[cfg(feature = "compat")]
pub use toolpost_compat as compat;

/// The builder, settings and usage of a toolbox.
#[cfg(feature = "toolbox")]
pub mod toolbox {
    pub use toolpost_toolbox::{ToolUsage, ToolboxBuilder, ToolboxSettings};
}

/// Sources of tools as one gateway: namespaces, filters, renames, pins, search, dynamic loading.
#[cfg(feature = "toolbox")]
pub use toolpost_gateway as gateway;

/// Executables as tools: the protocol, clients, described programs.
#[cfg(feature = "exec")]
pub mod exec {
    pub use crate::program::IntoToolbox;
    #[cfg(feature = "client")]
    pub use toolpost_exec::client;
    #[cfg(feature = "command")]
    pub use toolpost_exec::command;
    pub use toolpost_exec::protocol;
    #[cfg(feature = "scaffold")]
    pub use toolpost_exec::scaffold;
    pub use toolpost_exec::server::{own_input, own_output};
}

/// Processes under confinement.
#[cfg(feature = "sandbox")]
pub use toolpost_sandbox as sandbox;

/// Packages, environments and launchers for code in a sandbox.
#[cfg(feature = "sandbox")]
pub use toolpost_runtimes as runtimes;

/// Docker containers as a backend of the sandbox, on Linux.
#[cfg(feature = "docker")]
pub use toolpost_docker as docker;

/// The built-in tools.
#[cfg(feature = "tools")]
pub use toolpost_tools as tools;

#[cfg(feature = "llm")]
pub mod llm;

/// The agentic loop.
#[cfg(feature = "agent")]
pub use toolpost_agent as agent;

/// Workflows: plans and their runs.
#[cfg(feature = "flow")]
pub use toolpost_flow as flow;
/// Workflows on a Restate cluster.
#[cfg(feature = "restate")]
pub use toolpost_flow_restate as restate;

/// The real Claude Code as an agent.
#[cfg(feature = "claude-code")]
pub use toolpost_claude_code as claude_code;

/// The Model Context Protocol: servers and clients.
#[cfg(feature = "mcp")]
pub use toolpost_mcp as mcp;
