//! A program with tools of every kind, and the real Claude Code that uses them.
#![expect(clippy::disallowed_methods, reason = "a test of a program has to start it")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use toolpost_testkit::messages;
use toolpost_testkit::provider::LoopbackProvider;

use crate::program::example;

/// Two turns before a model that does what they say, and their records.
fn converse(executor: &str, program: &PathBuf, turns: [&str; 2]) -> Vec<Value> {
    let model = LoopbackProvider::start_with(messages::answer).unwrap();
    let output = Command::new(example("claude_code"))
        .arg(executor)
        .arg(program)
        .args(turns)
        .env("ANTHROPIC_API_KEY", "sk-ant-canary-55aa")
        .env_remove("CLAUDE_CODE_OAUTH_TOKEN")
        .env("ANTHROPIC_BASE_URL", model.base_url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}\n{text}");
    assert!(!text.contains("canary") && !errors.contains("canary"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn state_workers_and_failures_reach_claude_code_unchanged() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join(".dev/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude");
    if !program.exists() {
        println!("SKIP state_workers_and_failures_reach_claude_code_unchanged: Claude Code is not installed");
        return;
    }
    for executor in ["process", "sandbox"] {
        let first = "call mcp__shop__count {\"what\": \"apples\", \"by\": 3}\n\
                     call mcp__shop__primes {\"below\": 10000}\n\
                     call mcp__shop__order {}";
        let second = "call mcp__shop__count {\"what\": \"apples\", \"by\": 4}";
        let [first, second] = <[Value; 2]>::try_from(converse(executor, &program, [first, second])).unwrap();
        let calls = first["tool_calls"].as_array().unwrap();
        let status: Vec<(&str, &str)> = calls
            .iter()
            .map(|call| (call["tool"].as_str().unwrap(), call["status"].as_str().unwrap()))
            .collect();
        assert_eq!(status, [("count", "success"), ("primes", "success"), ("order", "error")], "{executor}");
        assert_eq!(calls[0]["state"][0]["after"], 1);
        assert_eq!(calls[2]["error"]["code"], "PRECONDITION");
        // What the model was told: the failure, and what the worker found, which was another process.
        let told = first["response"].as_str().unwrap();
        assert!(told.contains("the shop is closed") && told.contains("1229"), "{told}");
        assert_eq!(second["tool_calls"][0]["state"][0]["after"], 2);
        assert!(second["response"].as_str().unwrap().contains('7'), "both increments: {second}");
    }
}
