//! The agentic loop: a model asks for tools, the toolbox runs them, until there is an answer or a limit.
//!
//! An [`Agent`] is immutable and can run many times at once; a [`Run`] is a value: it owns its conversation, its
//! limits and its record. Read the module `run` first: it is the whole loop, top to bottom.
//!
//! With the feature `claude-code` there is another agent: the module `claude_code` starts the real Claude Code with our
//! tools, and gives the same record.
//!
//! # Invariants
//!
//! - The loop ends: every way out has a [`StopReason`]. How often the model is asked has a limit of 25 unless set, and a
//!   run that repeats itself is told so and then ended; the other limits are off unless set.
//! - A run goes beyond a limit by at most the answer during which it was reached, and one that sums up. Completions for
//!   tools are answers too.
//! - What a model was asked for counts also when no answer comes of it; what is not known of it is unknown, never nothing.
//! - No call is made, intended or resumed, that the run may not make or that a guardrail refuses.
//! - Tools of an answer that was cut off or declined are not run.
//! - No HTTP and no provider JSON here; tools run through the toolbox alone, each call with its record.
//! - The conversation only grows at its end, so that a provider's prompt cache keeps its worth, and every tool call of
//!   the model has its result, also when a limit came between. Only a [`Compaction`] that was asked for changes what was said.
//! - What is kept of a conversation is kept before the next question to the model; what cannot be kept ends no run.
//! - What an agent spends and calls that is a tool counts for the run that called it, while it does so.
//! - Tools that are loaded while a conversation goes on come at the end of the list; core and meta-tools never move.
//! - What a tool has for the application only (its payload) is never sent to a model.
//!
//! Deliberately absent: prices (the catalog of models has them), and who may go on with a run that waits (its keeper
//! decides).
#![forbid(unsafe_code)]

mod agent;
#[cfg(feature = "claude-code")]
pub mod claude_code;
mod compact;
mod delegate;
mod dynamic;
mod family;
mod guardrail;
mod history;
mod memory;
mod meter;
mod port;
mod results;
mod run;
mod stop;
mod team;

pub use self::agent::{Agent, Builder, Limits, Pricing, UsageSink};
pub use self::compact::{Compaction, CompactionBy};
pub use self::delegate::{AgentTool, CallingModel};
pub use self::dynamic::Dynamic;
pub use self::guardrail::{CallVerdict, Guardrail, TextVerdict};
pub use self::history::merge_turns;
pub use self::memory::{
    Compacted, Conversation, ConversationSummary, Conversations, Exchange, Forked, NewConversation, RunStats,
    RunSummary, Runs, StoredRun,
};
pub use self::port::ModelPort;
pub use self::run::{
    Answer, CallPayload, Decision, NoAnswer, Outcome, ResumeError, Run, RunState, ToolIntent, WaitingCall,
    WrapUp,
};
pub use self::stop::StopReason;
pub use self::team::{Handoff, Team};
