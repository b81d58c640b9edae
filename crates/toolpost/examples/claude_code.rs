//! The real Claude Code with tools of this program: one that keeps state, one that computes in a process of its own, and
//! one that fails. Each argument after the executor and the program is a turn of one conversation with a warm process.
//!
//! ```text
//! ANTHROPIC_API_KEY=… claude_code sandbox /path/to/claude "Count 3 apples." "And 4 more. How many primes are below 10,000?"
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of its own: it has a terminal and an environment"
)]

use std::process::ExitCode;
use std::sync::Arc;

use toolpost::call::Secret;
use toolpost::claude_code::{ClaudeCode, ClaudeCodeError, Credential, Executor};
use toolpost::toolbox::ToolboxBuilder;
use toolpost::{ToolError, Toolbox, json, tool, worker_entry, workers};

/// Count things.
#[tool]
fn count(#[state(id = "things", path = "/{what}")] have: &mut i64, what: String, by: i64) -> i64 {
    let _ = what;
    *have += by;
    *have
}

/// Count the primes below a number, in a process of its own.
#[tool(cpu_bound)]
fn primes(below: u64) -> serde_json::Value {
    let is_prime = |n: &u64| (2..=n.isqrt()).all(|d| !n.is_multiple_of(d));
    json!({ "primes": (2..below).filter(is_prime).count(), "process": std::process::id() })
}

/// Order more things.
#[tool]
async fn order() -> Result<String, ToolError> {
    Err(ToolError::precondition("the shop is closed").suggest("Order on Monday."))
}

fn build() -> ToolboxBuilder {
    Toolbox::builder().tool(count).tool(primes).tool(order).runner(workers())
}

async fn converse(executor: Executor, turns: &[String], toolbox: Toolbox) -> Result<bool, ClaudeCodeError> {
    let variable = |name: &str| std::env::var(name).ok();
    let mut claude = ClaudeCode::builder().executor(executor);
    if let Some(token) = variable("CLAUDE_CODE_OAUTH_TOKEN") {
        claude = claude.credential(Credential::OauthToken(Secret::new(token)));
    } else if let Some(key) = variable("ANTHROPIC_API_KEY") {
        claude = claude.credential(Credential::ApiKey(Secret::new(key)));
    }
    if let Some(url) = variable("ANTHROPIC_BASE_URL") {
        claude = claude.base_url(url);
    }
    let mut claude = claude.model("haiku").build()?;
    claude.connect("shop", Arc::new(toolbox))?;
    let mut session = claude.start().await?;
    let mut all_well = true;
    for turn in turns {
        let outcome = session.turn(turn).await;
        all_well &= outcome.record.success;
        println!("{}", json!(outcome.record));
    }
    session.end().await;
    Ok(all_well)
}

fn main() -> ExitCode {
    // First of all: in a worker process it does not return.
    worker_entry(build);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (executor, turns) = match words.as_slice() {
        [place, program, turns @ ..] if place == "process" => (Executor::process(program), turns),
        [place, program, turns @ ..] if place == "sandbox" => (Executor::sandbox(program), turns),
        _ => {
            eprintln!("claude_code process|sandbox PROGRAM TURN…");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Runtime::new();
    let (Ok(runtime), Ok(toolbox)) = (runtime, build().build()) else { return ExitCode::from(2) };
    match runtime.block_on(converse(executor, turns, toolbox)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
