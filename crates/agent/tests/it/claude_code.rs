//! Claude Code: a program of ours that plays it, and the real one where it is installed.

mod docker;
mod played;
mod real;

use std::path::PathBuf;

use toolpost_agent::Agent;
use toolpost_agent::claude_code::{ClaudeCodeBuilder, Credential, Executor};
use toolpost_core::Secret;

/// What must be seen nowhere.
const KEY: &str = "sk-ant-canary-0123456789";

/// A builder with a credential.
fn claude(executor: Executor) -> ClaudeCodeBuilder {
    Agent::claude_code().executor(executor).credential(Credential::ApiKey(Secret::new(KEY)))
}

/// The real program, if it is installed.
fn program(test: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../.dev/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude");
    if path.exists() {
        return Some(path);
    }
    println!("SKIP {test}: Claude Code is not installed; `cargo xtask test` installs it below .dev");
    None
}
