//! Claude Code: a scripted program, and the real one if installed.
#![cfg(target_os = "linux")]
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests that print what they skip, and their helpers"
)]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

#[path = "../../../docker/tests/it/daemon.rs"]
#[expect(dead_code, reason = "the tests of the sandbox need the rest")]
mod daemon;
mod docker;
mod played;
mod real;

use std::path::PathBuf;

use toolpost_claude_code::{ClaudeCode, ClaudeCodeBuilder, Credential, Executor};
use toolpost_core::Secret;

/// The credential, which must not leak.
const KEY: &str = "sk-ant-canary-0123456789";

/// A builder with a credential.
fn claude(executor: Executor) -> ClaudeCodeBuilder {
    ClaudeCode::builder().executor(executor).credential(Credential::ApiKey(Secret::new(KEY)))
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
