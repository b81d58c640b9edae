//! The loop from outside, with scripted models and a loopback provider.
#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod call_secrets;
mod compaction;
mod defects;
mod dynamic_tools;
mod guardrails;
mod hosted;
mod hostile;
mod loop_detection;
mod money;
mod nested_agents;
mod options;
mod persistence;
mod prompt_caching;
mod resume;
mod seed_defects;
mod spending;
mod stop_reasons;
mod stored_runs;
mod support;
mod turns;
mod typed;
mod wires;

use toolpost::tool;
use toolpost_agent::{AgentBuilder, RunLimits};

/// Add two numbers.
#[tool]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Wait.
#[tool]
async fn wait(milliseconds: u64) -> u64 {
    tokio::time::sleep(std::time::Duration::from_millis(milliseconds)).await;
    milliseconds
}

/// Fail inside.
#[tool]
async fn broken() -> Result<String, toolpost::ToolError> {
    Err(toolpost::ToolError::internal("the password is hunter2"))
}

/// An agent that plays a script.
fn agent(script: &str) -> AgentBuilder {
    support::scripted(script, support::toolbox())
}

/// The default limits with a change.
fn limits(change: impl FnOnce(&mut RunLimits)) -> RunLimits {
    let mut limits = RunLimits::default();
    change(&mut limits);
    limits
}
