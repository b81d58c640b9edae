//! Models of any provider behind one lossless request and response type.
//!
//! A [`Model`] answers a [`Request`] with a stream of [`ModelEvent`]s that ends in a [`Response`]. Every [`Item`] of a
//! response is a typed view plus the provider's JSON. Later requests send the JSON unchanged, so signatures, citations and
//! unknown blocks survive.
//!
//! A [`Router`] opens models: `anthropic/…` uses the Messages API, `gemini/…` uses `GenerateContent`, `script:FILE` plays a
//! script, `schema:` calls every tool, and `replay:FILE` replays a [`Recording`].
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
//! - Only this crate knows provider JSON. It executes no tools.
//! - Later requests send items value for value: numbers keep their digits, objects keep their order, unknown fields and
//!   blocks stay. Only white space between tokens may change. Empty text blocks are dropped, because providers reject them.
//! - The stream and the body of one answer fold to the same items. Unknown events are delivered and never an error.
//! - Every wait and every buffer has a limit. Nothing is retried after a delivered event.
//! - API keys are [`Secret`]s: no error, debug output or recording contains them. This crate reads no environment.
//! - An unknown price is `None`, never zero. Anything that the [`ModelCatalog`] does not know is allowed.
//!
//! Out of scope: counting tokens before the provider does; tool execution and the agent loop, which the agent crate has;
//! Chat Completions as an internal format, which has no signatures and hosted tools.
#![forbid(unsafe_code)]

mod catalog;
mod code_meter;
mod code_target;
mod error;
mod event;
mod fallback;
mod fields;
mod files;
mod foreign_files;
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
    Cost, Date, Feature, ModelCatalog, ModelInfo, PricePeriod, PriceTier, Rates, ServicePeriod, SessionPrice,
    Setting,
};
pub use code_meter::CodeExecutionMeter;
pub use code_target::{CodeExecutionMode, CodeExecutionTarget, LocalReason, select_code_execution};
pub use error::{Attempt, ErrorDetails, ErrorKind, ModelError, ModelSetting, NetworkStage, TimeoutStage};
pub use event::{ModelEvent, ResponseStream};
pub use fallback::FallbackModel;
pub use files::{
    CreateFile, FileUpload, InlineFile, ProviderFiles, SavedFile, StoredFile, inline_files, output_files,
};
pub use hosted::HostedModel;
pub use http::client::{HttpClient, HttpOptions};
pub use http::retry::RetryPolicy;
pub use item::{Citation, FileRef, HostedOutput, Item, ItemView};
pub use limits::{ProviderLimits, RateLimitedModel, RateLimiter};
pub use model::{Model, ModelId};
pub use offline::function::FunctionModel;
pub use offline::replay::{ExchangeSink, Recorder, Recording, ReplayModel};
pub use offline::reply::ModelReply;
pub use offline::script::ScriptModel;
pub use offline::scrub::{Scrubber, StreamScrubber, call_secrets};
pub use provider::{PROVIDERS, Provider, ProviderAccess};
pub use raw::RawJson;
pub use request::{
    AssistantTurn, CacheLifetime, ContextEdit, Effort, HostedTool, Media, MediaSource, ModelSettings,
    OutputFormat, Part, PromptCaching, Request, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn,
};
pub use response::{Response, StopReason, TokenUsage};
pub use router::{ModelSpec, Router};
pub use toolpost_core::{BoxFuture, Secret};
pub use toolpost_schema::SchemaDetail;
pub use wires::{Wire, WireFold};
