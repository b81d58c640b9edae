//! The loop from outside, with scripted models and a loopback provider.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod caching;
mod compaction;
mod ends;
mod family;
mod guards;
mod hosted;
mod hostile;
mod keeping;
mod loading;
mod loop_detection;
mod memory;
mod money;
mod options;
mod resuming;
mod seed_defects;
mod spending;

mod turns;
mod typed;
mod waiting;
mod wires;

use std::sync::Arc;

use toolpost::tool;
use toolpost_agent::{Agent, AgentBuilder, RunLimits};
use toolpost_llm::ScriptModel;
use toolpost_toolbox::Toolbox;

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
    let toolbox = Toolbox::builder().tool(add).tool(wait).tool(broken).build().unwrap();
    Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox)
}

/// The default limits with a change.
fn limits(change: impl FnOnce(&mut RunLimits)) -> RunLimits {
    let mut limits = RunLimits::default();
    change(&mut limits);
    limits
}
