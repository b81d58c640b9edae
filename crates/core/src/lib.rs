//! The contracts of Toolpost: what a tool is, what a call is, what comes back, and how it is recorded.
//!
//! Whoever understands [`Tool`], [`Call`], [`Ctx`], [`Output`] and [`CallRecord`] understands the system. A value
//! travels forward: a *front* (a shell, an agent loop, another machine) makes a [`Call`]; the toolbox checks it and
//! makes a [`Ctx`]; the [`Tool`] answers with an [`Output`] or a [`ToolError`]; the toolbox writes a [`CallRecord`]
//! and hands the front a [`Reply`].
//!
//! # Invariants
//!
//! - No I/O, no async runtime, no environment, no `unsafe`. Time comes through a [`Clock`].
//! - Knows no provider, no protocol and no process: their names do not occur here.
//! - Only a call path makes a [`Ctx`] (by implementing [`Host`]); a tool only receives one.
//! - A [`ToolError`] is not a [`std::error::Error`], so that `?` in a tool takes any error; its cause chain is for
//!   the record and the log, never for a model.
//! - Everything that is stored or framed carries a version `v`.
#![forbid(unsafe_code)]

// The attribute macros emit paths that begin with `::toolpost`; inside this crate that is this crate.
extern crate self as toolpost;

mod alias;
mod args;
mod call;
mod cancel;
mod clock;
mod ctx;
mod duration;
mod envelope;
mod error;
mod event;
mod hex;
mod id;
pub mod import;
mod inject;
mod narrowed;
mod output;
mod parameter;
mod policy;
mod port;
mod random;
mod record;
mod resource;
mod runner;
mod schema;
mod scope;
mod secret;
mod spec;
mod start_check;
mod state;
mod status;
mod suggest;
mod task;
mod tool;
mod values;

#[doc(hidden)]
pub mod __private;

pub use self::alias::{Alias, with_aliases};
pub use self::args::Args;
pub use self::call::{Call, CallOptions, Caller, Priority};
pub use self::cancel::{Cancellation, Cancelled};
pub use self::clock::{Clock, SystemClock, Timestamp};
pub use self::ctx::{Ctx, Host};
pub use self::duration::{format_duration, parse_duration};
pub use self::envelope::{Envelope, Status};
pub use self::error::{Code, RetryAdvice, ToolError};
pub use self::event::{Event, EventSink, UsageEvent};
pub use self::hex::hex;
pub use self::id::{CallId, RunId, ScopeId};
pub use self::inject::{Inject, Values};
pub use self::narrowed::{exclude_parameters, with_mock};
pub use self::output::{Artifact, ArtifactData, Content, Evidence, IntoOutput, Output, Partial, Payload};
pub use self::parameter::{ParameterType, object_schema};
pub use self::policy::{Approval, Placement, Policy, Rate, Retry, Timeout};
pub use self::port::{
    Answer, Delivery, LogLevel, LogLine, NoPort, Port, Progress, Question, QuestionKind, Root, Sample,
    SampleRequest,
};
pub use self::random::random_hex;
pub use self::record::{CallRecord, RunRecord, StateVersions, Usage};
pub use self::resource::{Prompt, PromptArgument, PromptSpec, Resource, ResourceSpec, UriPattern};
pub use self::runner::Runner;
pub use self::schema::{Problem, Schema};
pub use self::scope::Scope;
pub use self::secret::{Masks, Secret};
pub use self::spec::{Annotations, Example, Mode, SpecError, ToolSpec, check_tool_name};
pub use self::start_check::StartCheck;
pub use self::state::{
    Change, Commit, Committed, DocStore, Document, OnConflict, Patch, Sleep, StateAddress, StateConflict,
    StateDoc, StateSpec, StateValue, StateView, Write, check_document_id, check_pointer, escape_pointer,
    pointers_overlap, state_conflict, to_json,
};
pub use self::status::{SourceState, SourceStatus, Withheld};
pub use self::suggest::{did_you_mean, suggestions};
pub use self::task::{KeptTask, TaskStore, TaskUse};
pub use self::tool::{
    IntoTool, IntoTools, Reply, Tool, ToolGroup, ToolSource, marker, tool_fn, typed_tool_fn,
};
pub use self::values::has_more_values_than;
pub use schemars::JsonSchema;

/// A boxed future that can move between threads: what object-safe async traits answer with.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub use toolpost_macros::{data, prompt, resource, tool, tools};
