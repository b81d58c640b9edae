//! The provider wires: one request and response type, nothing lost.
//!
//! A [`Model`] takes a [`Request`] and gives a stream of [`ModelEvent`]s that ends in a [`Response`]. Every
//! [`Item`] of a response is a typed view plus the provider's own JSON, and the JSON is what goes back in the next
//! request: signatures, citations and blocks that this crate has never heard of survive unchanged.
//!
//! Models come from a [`Router`]: `anthropic/…` speaks the Messages API, `gemini/…` speaks `GenerateContent`,
//! `script:FILE` plays a file that anyone can write, `schema:` tries every tool, `replay:FILE` gives back what a
//! [`Recorder`] wrote.
//!
//! ```
//! use toolpost_llm::{Model, Request, ScriptModel};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), toolpost_llm::ModelError> {
//! let model = ScriptModel::parse("hello.yaml", "turns: [{ text: Hello. }]")?;
//! let response = model.respond(&Request::new("Say hello.")).await?;
//! assert_eq!(response.text(), "Hello.");
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - No other crate names provider JSON; this crate executes no tool.
//! - What a provider sent in an item is sent back value for value: numbers keep their digits, objects keep their
//!   order, unknown fields and blocks stay. Only white space between tokens may change, and text blocks without any
//!   text are left out because the provider refuses them.
//! - A stream and a body of the same answer fold to the same items. Unknown events are delivered, never an error.
//! - Every wait has a limit and every buffer a bound. Nothing is retried once an event has been delivered.
//! - Keys are [`Secret`]s: they are in no error, debug output or recording. This crate itself reads no environment.
//! - A price that is not known is `None`, never nothing. What the [`Catalog`] does not know of a model is allowed.
//!
//! Deliberately absent: counting tokens before the provider does, tool execution and the agentic loop (the agent
//! crate's), Chat Completions as an internal currency (it cannot carry signatures or hosted tools).
#![forbid(unsafe_code)]

mod catalog;
mod code_execution;
mod error;
mod event;
mod fallback;
mod fields;
mod files;
mod foreign;
mod hosted;
mod http;
mod item;
mod json;
mod limits;
pub mod messages;
mod model;
mod offline;
mod options;
mod provider;
mod raw;
mod regular_file;
mod request;
mod response;
mod router;
pub mod schema;
mod surrogates;
pub mod text;
mod wires;

pub use catalog::{
    Catalog, Cost, Date, Feature, ModelInfo, PricePeriod, Rates, ServicePeriod, SessionPrice, Setting, Tier,
};
pub use code_execution::{
    CodeExecutionMeter, CodePlace, CodeUse, CodeWanted, LocalReason, choose_code_place,
};
pub use error::{Attempt, ErrorDetails, ErrorKind, ModelError, NetworkStage, TimeoutStage};
pub use event::{ModelEvent, ResponseStream};
pub use fallback::FallbackModel;
pub use files::{
    CreateFile, FilePage, FileUpload, InlineFile, ProviderFiles, SavedFile, StoredFile, inline_files,
    output_files,
};
pub use hosted::HostedModel;
pub use http::client::{HttpClient, HttpOptions};
pub use http::retry::RetryPolicy;
pub use item::{Citation, FileRef, HostedOutput, Item, ItemView};
pub use limits::{LimitedModel, Limiter, ProviderLimits};
pub use model::{Model, ModelId};
pub use offline::function::FunctionModel;
pub use offline::replay::{ExchangeSink, Recorder, Recording, ReplayModel};
pub use offline::said::Said;
pub use offline::schema::{Detail, SchemaModel, example_of};
pub use offline::script::ScriptModel;
pub use offline::scrub::{ScrubbedText, Scrubber};
pub use provider::{PROVIDERS, Provider, ProviderAccess};
pub use raw::RawJson;
pub use request::{
    AssistantTurn, CacheLifetime, ContextEdit, Effort, HostedTool, Media, MediaSource, OutputFormat, Part,
    PromptCaching, Request, Settings, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn,
};
pub use response::{Response, StopReason, Usage};
pub use router::{ModelSpec, Router};
pub use toolpost_core::{BoxFuture, Secret};
pub use wires::{Wire, WireFold};
