//! The agentic loop: a model calls tools through a toolbox, until it answers or reaches a limit.
//!
//! An [`Agent`] is immutable and can run many times at once. A [`Run`] owns its conversation, its limits and its record.
//! Read the module `run` first: it is the whole loop, top to bottom.
//!
//! # Invariants
//!
//! - The loop ends, with a [`RunStopReason`]. Requests to the model default to at most 25, and a detected loop is warned
//!   of and then ended; other limits are off by default.
//! - A run exceeds a limit by at most the answer that reached it and one last answer. Completions for tools are answers
//!   too.
//! - A failed request counts towards the limits. An unknown usage or cost is unknown, never zero.
//! - A run makes, intends or resumes no call that its limits or a guardrail reject.
//! - Tool calls of a truncated or refused answer never run.
//! - The crate knows no HTTP and no provider JSON. Tools run through the toolbox alone, each call with its record.
//! - A conversation only grows at its end, which keeps the provider's prompt cache valid, and every tool call has a
//!   result. Only a [`Compaction`] changes earlier turns.
//! - A stored conversation is persisted before the next request to the model; a failure to persist ends no run.
//! - Spending and calls of a nested agent count for the run that called it, at once.
//! - Tools that are loaded during a conversation are appended to the list; core and meta-tools never move.
//! - A payload of a tool never reaches a model.
//!
//! Deliberately absent: prices (the model catalog has them), and who may resume a run (the application decides).
#![forbid(unsafe_code)]

mod agent;
mod answer_schema;
mod compaction;
mod config;
mod conversation_compaction;
mod delegate;
mod dynamic;
mod guardrail;
mod history;
mod limits;
mod listeners;
mod memory;
mod meter;
mod port;
mod results;
mod run;
mod run_context;
mod spend;
mod stop;
mod team;

pub use self::agent::{Agent, AgentBuilder};
pub use self::compaction::{Compaction, CompactionBy};
pub use self::config::{AnswerValidator, SystemPrompt};
pub use self::conversation_compaction::Compacted;
pub use self::delegate::AgentTool;
pub use self::dynamic::Dynamic;
pub use self::guardrail::{CallVerdict, Guardrail, TextVerdict};
pub use self::history::merge_turns;
pub use self::limits::RunLimits;
pub use self::listeners::UsageSink;
pub use self::memory::{
    Conversation, ConversationSummary, Conversations, Exchange, Forked, RunStats, RunSummary, Runs,
    StoredRun, StoredText,
};
pub use self::port::{CallingModel, ModelPort};
pub use self::run::{
    CallPayload, Decision, PendingCall, ResumeError, Run, RunError, RunOutput, RunState, RunStream,
    ToolIntent, TypedOutput,
};
pub use self::spend::Pricing;
pub use self::stop::RunStopReason;
pub use self::team::{Handoff, Team};
