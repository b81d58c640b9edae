//! The contracts of Toolpost: tools, calls, results and records.
//!
//! A *front* (a shell, an agent loop, another machine) creates a [`Call`]. The toolbox validates the call and creates a
//! [`Ctx`]. The [`Tool`] returns an [`Output`] or a [`ToolError`]. The toolbox writes a [`CallRecord`] and returns a
//! [`Reply`] to the front.
//!
//! # Invariants
//!
//! - No I/O, no async runtime, no environment, no `unsafe`. Time comes from a [`Clock`].
//! - No provider, protocol or process is named here.
//! - Only a call path creates a [`Ctx`], by implementing [`CallPath`].
//! - A [`ToolError`] is not a [`std::error::Error`], so that `?` in a tool converts any error. Its cause chain is for
//!   records and logs, never for a model. Callers receive a [`CallError`], which is one.
//! - Every stored or framed value carries a version `v`.
#![forbid(unsafe_code)]

// The attribute macros emit paths that begin with `::toolpost`, which is this crate here.
extern crate self as toolpost;

mod alias;
mod args;
mod call;
mod cancel;
mod characters;
mod clock;
mod ctx;
mod duration;
mod envelope;
mod error;
mod evaluation;
mod event;
mod format;
mod hex;
mod hint;
mod id;
mod inject;
mod integers;
mod named_secrets;
mod output;
mod output_files;
mod output_log;
mod parameter;
mod policy;
mod port;
mod printable;
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
mod task;
mod tool;
mod truncation;
mod values;
mod wide_integers;
mod wrappers;

#[doc(hidden)]
pub mod __private;

pub use self::alias::{Alias, with_aliases};
pub use self::args::Args;
pub use self::call::{Call, CallLimit, CallOptions, Caller, Priority};
pub use self::cancel::{Cancellation, Cancelled};
pub use self::characters::without_begun_character;
pub use self::clock::{Clock, SystemClock, Timestamp};
pub use self::ctx::{CallPath, Ctx};
pub use self::duration::{exact_duration, format_duration, parse_duration};
pub use self::envelope::{Envelope, Status};
pub use self::error::{CallError, Code, RetryAdvice, ToolError};
pub use self::evaluation::Evaluation;
pub use self::event::{Event, EventSink, UsageEvent};
pub use self::format::newer_format;
pub use self::hex::hex;
pub use self::hint::{Hint, Suggestion};
pub use self::id::{CallId, RunId, ScopeId};
pub use self::inject::{Inject, Values};
pub use self::named_secrets::{is_secret_name, is_secret_parameter, mask_named, without_userinfo};
pub use self::output::{
    Artifact, ArtifactData, Content, Evidence, Forwarded, ForwardedBlock, IntoOutput, Output, Partial,
    Payload,
};
pub use self::output_files::{OutputFiles, OutputStore, WholeText};
pub use self::output_log::OutputLog;
pub use self::parameter::{ParameterType, object_schema};
pub use self::policy::{Approval, Placement, Policy, Rate, Retry, Timeout};
pub use self::port::{
    Answer, Delivery, LogLevel, LogLine, NoPort, Port, Progress, Question, QuestionKind, Root, Sample,
    SampleRequest,
};
pub use self::printable::{harmless, is_hidden, pictured};
pub use self::random::random_hex;
pub use self::record::{CallRecord, ChangedFiles, RunRecord, StateVersions, Usage};
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
pub use self::status::{HiddenDefinition, SourceState, SourceStatus, unlisted_tool};
pub use self::task::{TaskRecord, TaskStore, TaskUse};
pub use self::tool::{
    IntoTool, IntoTools, Reply, Tool, ToolGroup, ToolSource, marker, tool_fn, typed_tool_fn,
};
pub use self::truncation::{Truncation, TruncationUnit};
pub use self::values::has_more_values_than;
pub use self::wide_integers::{WideJson, wide_integer};
pub use self::wrappers::{exclude_parameters, with_mock};
pub use schemars::JsonSchema;
pub use toolpost_schema::{did_you_mean, suggestions};

/// A boxed future that can move between threads, the return type of object-safe async traits.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub use toolpost_macros::{data, prompt, resource, tool, tools};
