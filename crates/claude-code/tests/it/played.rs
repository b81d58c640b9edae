//! The output of a turn for the events of a scripted program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_agent::RunStopReason;
use toolpost_claude_code::{
    ClaudeCode, ClaudeCodeErrorKind as Kind, ClaudeCodeOutput, ClaudeCodeTurn, Credential, ErrorClass,
    Executor,
};
use toolpost_core::{Cancellation, Event, Secret};

use crate::{KEY, claude};

/// A program that is a shell script.
struct Played {
    directory: TempDir,
}

impl Played {
    /// A program with this script.
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("claude");
        std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    /// A program that connects, reads one prompt, and then runs this script.
    fn ready(script: &str) -> Self {
        let greeting = answer(1, &json!({}));
        let servers = answer(2, &json!({ "mcpServers": [] }));
        Self::new(&format!(
            "read -r line\n{}read -r line\n{}read -r prompt\n{script}",
            say(&greeting),
            say(&servers)
        ))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("claude")
    }

    fn agent(&self) -> ClaudeCode {
        claude(Executor::process(self.path())).build().unwrap()
    }

    async fn run(&self) -> ClaudeCodeOutput {
        self.agent().run("do it").await
    }
}

fn say(line: &Value) -> String {
    format!("cat <<'END'\n{line}\nEND\n")
}

fn answer(number: u32, response: &Value) -> Value {
    json!({ "type": "control_response", "response": {
        "subtype": "success", "request_id": format!("toolpost-{number}"), "response": response,
    } })
}

fn ended(more: &Value) -> Value {
    let mut value = json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "done",
        "stop_reason": "end_turn", "total_cost_usd": 0.5, "permission_denials": [],
        "usage": { "input_tokens": 7, "output_tokens": 3 },
    });
    for (key, more) in more.as_object().into_iter().flatten() {
        value[key] = more.clone();
    }
    value
}

fn kind(outcome: &ClaudeCodeOutput) -> Kind {
    outcome.error.as_ref().unwrap_or_else(|| panic!("no error: {outcome:?}")).kind()
}

#[tokio::test]
async fn a_turn_has_events_and_a_record() {
    let lines = [
        json!({ "type": "system", "subtype": "init", "session_id": "s-1", "model": "claude-x", "mcp_servers": [] }),
        json!({ "type": "assistant", "parent_tool_use_id": null, "message": { "content": [
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "t1", "name": "Read", "input": { "path": "a" } },
            { "type": "tool_use", "id": "t2", "name": "Read", "input": { "path": "b" } } ] } }),
        json!({ "type": "user", "message": { "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "1234" },
            { "type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": true } ] } }),
        json!({ "type": "tomorrow", "x": 1 }),
        ended(&json!({})),
    ];
    let played = Played::ready(&lines.iter().map(say).collect::<String>());
    let events: Arc<Mutex<Vec<Value>>> = Arc::default();
    let stored = Arc::clone(&events);
    let sink = move |event: &Event| stored.lock().unwrap().push(serde_json::to_value(event).unwrap());
    let agent = claude(Executor::process(played.path())).on_event(Arc::new(sink)).build().unwrap();
    let outcome = agent.run("do it").await;
    assert_eq!(outcome.error, None);
    assert_eq!(outcome.stop, RunStopReason::EndTurn);
    assert_eq!(outcome.session.as_deref(), Some("s-1"));
    assert_eq!(outcome.unknown, [json!({ "type": "tomorrow", "x": 1 })]);
    let record = serde_json::to_value(&*outcome.record).unwrap();
    for (field, value) in [
        ("success", json!(true)),
        ("response", json!("done")),
        ("model", json!("claude-code/claude-x")),
        ("stop_reason", json!("end_turn")),
        ("iterations", json!(1)),
        ("cost_usd", json!(0.5)),
        ("tools_used", json!(["Read"])),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    assert_eq!(record["usage"]["input_tokens"], 7);
    assert!(record["execution_time"].as_f64().unwrap() > 0.0);
    let calls = record["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!((&calls[0]["status"], &calls[0]["arguments"]), (&json!("success"), &json!({ "path": "a" })));
    assert_eq!(
        (&calls[1]["status"], &calls[1]["error"]["message"]),
        (&json!("error"), &json!("no such file"))
    );
    let events = events.lock().unwrap();
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(types, ["run.started", "text.delta", "call.finished", "call.finished", "run.finished"]);
}

#[tokio::test]
async fn a_failure_that_the_program_reports_as_success_is_an_error() {
    let denied = ended(&json!({ "permission_denials": [{ "tool_name": "Bash", "tool_use_id": "t" }] }));
    let error = |subtype: &str, more: Value| {
        let mut value = ended(&json!({ "subtype": subtype, "is_error": true, "result": null }));
        more.as_object().unwrap().iter().for_each(|(key, more)| value[key] = more.clone());
        value
    };
    let retry = json!({ "type": "system", "subtype": "api_retry", "attempt": 1, "error_status": 401,
                        "error": "authentication_failed" });
    let init = |status: &str| {
        json!({ "type": "system", "subtype": "init", "model": "m", "session_id": "s",
                "mcp_servers": [{ "name": "calc", "status": status }] })
    };
    let mut rows = tokio::task::JoinSet::new();
    let overloaded = json!({ "api_error_status": 529, "errors": ["Overloaded"] });
    let logged_out = json!({ "result": "Not logged in · Please run /login" });
    let truncated = ended(&json!({ "stop_reason": "max_tokens" }));
    for (line, expected, class, stop) in [
        (denied, Kind::Denied, ErrorClass::Execution, "permission_denied"),
        (error("error_max_turns", json!({})), Kind::Limit, ErrorClass::Execution, "max_iterations"),
        (error("error_max_budget_usd", json!({})), Kind::Limit, ErrorClass::Execution, "max_cost"),
        (error("error_during_execution", json!({})), Kind::Failed, ErrorClass::Execution, "model_error"),
        (error("success", overloaded), Kind::Provider, ErrorClass::Connection, "model_error"),
        (error("success", logged_out), Kind::CredentialRefused, ErrorClass::Configuration, "model_error"),
        (retry, Kind::CredentialRefused, ErrorClass::Configuration, "model_error"),
        (init("failed"), Kind::ToolServer, ErrorClass::Connection, "tool_server"),
        (init("needs-auth"), Kind::ToolServer, ErrorClass::Connection, "tool_server"),
        (truncated, Kind::Limit, ErrorClass::Execution, "output_tokens"),
    ] {
        rows.spawn(async move {
            // The program does not end by itself.
            let played = Played::ready(&format!("{}sleep 600", say(&line)));
            let outcome = played.run().await;
            assert_eq!(kind(&outcome), expected, "{line}");
            let failure = outcome.error.clone().unwrap();
            assert_eq!(failure.class(), class, "{line}");
            assert_eq!(outcome.stop.as_str(), stop, "{line}");
            assert!(!outcome.record.success, "{line}");
            assert_eq!(outcome.record.error.as_ref().unwrap()["class"], class.as_str());
        });
    }
    while let Some(row) = rows.join_next().await {
        row.unwrap();
    }
}

#[tokio::test]
async fn the_error_of_a_program_that_ends_has_the_reason() {
    let killed = Played::ready("echo 'it hurts' >&2; kill -9 $$").run().await;
    assert_eq!(kind(&killed), Kind::Killed);
    let text = killed.error.unwrap().to_string();
    assert!(text.contains("signal 9") && text.contains("it hurts"), "{text}");
    let exited = Played::ready("exit 3").run().await;
    assert_eq!(kind(&exited), Kind::Killed);
    assert!(exited.error.unwrap().to_string().contains("status 3"));
    let never = Played::new("echo 'no such option' >&2; exit 1").run().await;
    assert_eq!(
        (kind(&never), never.error.as_ref().unwrap().class()),
        (Kind::Program, ErrorClass::Configuration)
    );
    assert!(never.error.unwrap().to_string().contains("no such option"));
}

#[tokio::test]
async fn a_program_without_events_is_killed() {
    let babble = Played::new("yes Welcome").run().await;
    assert_eq!(kind(&babble), Kind::Program);
    let silent = Played::new("sleep 600");
    let agent =
        claude(Executor::process(silent.path())).start_timeout(Duration::from_millis(300)).build().unwrap();
    let error = agent.start().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Program);
    assert!(error.message().contains("300ms") || error.message().contains("300 ms"), "{error}");
    let huge =
        Played::ready(&format!("head -c 9000000 /dev/zero | tr '\\0' x; echo\n{}", say(&ended(&json!({})))));
    assert_eq!(huge.run().await.error, None, "a line that is too long is dropped");
}

#[tokio::test]
async fn a_cancelled_or_late_turn_ends_the_session() {
    let played = Played::ready("sleep 600");
    let agent =
        claude(Executor::process(played.path())).max_time(Duration::from_millis(200)).build().unwrap();
    let mut session = agent.start().await.unwrap();
    let outcome = session.turn("do it").await;
    assert_eq!((kind(&outcome), &outcome.stop), (Kind::Limit, &RunStopReason::MaxTime));
    let after = session.turn("again").await;
    assert_eq!(kind(&after), Kind::Ended);
    assert_eq!(after.error.unwrap().class(), ErrorClass::State);
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    let sink = move |event: &Event| {
        if matches!(event, Event::RunStarted { .. }) {
            stop.cancel();
        }
    };
    let agent = claude(Executor::process(played.path())).on_event(Arc::new(sink)).build().unwrap();
    let outcome = agent.run_turn(ClaudeCodeTurn::new("do it").with_cancellation(cancellation)).await;
    assert_eq!((kind(&outcome), outcome.stop), (Kind::Cancelled, RunStopReason::Cancelled));
}

#[tokio::test]
async fn nothing_starts_without_a_credential_a_provider_or_a_program() {
    let marker = tempfile::tempdir().unwrap();
    let started = marker.path().join("started");
    let played = Played::new(&format!("touch {}", started.display()));
    let without = ClaudeCode::builder().executor(Executor::process(played.path())).build().unwrap();
    let outcome = without.run("do it").await;
    assert_eq!(kind(&outcome), Kind::CredentialMissing);
    assert_eq!(outcome.error.unwrap().class(), ErrorClass::Configuration);
    let empty =
        claude(Executor::process(played.path())).credential(Credential::OauthToken(Secret::new(" \n")));
    assert_eq!(empty.build().unwrap().start().await.unwrap_err().kind(), Kind::CredentialMissing);
    let broken = claude(Executor::process(played.path())).credential(Credential::ApiKey(Secret::new("a\nb")));
    assert_eq!(broken.build().unwrap().start().await.unwrap_err().kind(), Kind::CredentialRefused);
    for executor in [Executor::process(played.path()), Executor::sandbox(played.path())] {
        let forbidden =
            claude(executor).no_network(true).base_url("https://provider.example").build().unwrap();
        assert_eq!(forbidden.start().await.unwrap_err().kind(), Kind::Sandbox);
    }
    let gone = claude(Executor::process("/nowhere/claude")).build().unwrap();
    assert_eq!(gone.start().await.unwrap_err().kind(), Kind::Program);
    assert!(!started.exists(), "the program was started");
}

#[tokio::test]
async fn the_key_is_in_its_descriptor_only() {
    // Prints what a program can read, and the key from its descriptor.
    let played = Played::ready(
        r#"words="$* $(env) $(cat /proc/$$/cmdline | tr '\0' ' ') $(cat /proc/$PPID/cmdline 2>/dev/null | tr '\0' ' ')"
case "$words" in *canary*) found=yes;; *) found=no;; esac
files=$(grep -rl canary "$HOME" 2>/dev/null | wc -l)
key=$(cat /dev/fd/3); servers=$(cat /dev/fd/4)
again=$(cat /dev/fd/3)
echo "the key is $key" >&2
printf '{"type":"mystery","found":"%s","files":%s,"key":"%s","length":%s,"again":"%s","servers":%s}\n' \
    "$found" "$files" "$key" "${#key}" "$again" "$servers"
printf '{"type":"system","subtype":"permission_denied","tool_name":"x","message":"%s"}\n' "$key"
exit 1"#,
    );
    let outcome = played.run().await;
    let seen = &outcome.unknown[0];
    assert_eq!(seen["found"], "no");
    assert_eq!(seen["files"], 0);
    assert_eq!(seen["key"], "[secret]");
    assert_eq!(seen["length"], KEY.len());
    assert_eq!(seen["again"], "", "a descriptor is read once");
    assert_eq!(seen["servers"], json!({ "mcpServers": {} }));
    // Text of the program is redacted.
    let text = format!("{:?} {:?}", outcome.error, outcome.record);
    assert!(text.contains("[secret]") && !text.contains("canary"), "{text}");
}

#[tokio::test]
async fn options_reach_the_program() {
    let played = Played::ready(
        r#"printf '{"type":"words","words":"%s","directory":"%s","home":"%s"}\n' "$(printf '%s|' "$@")" "$PWD" "$HOME"
exit 1"#,
    );
    let words = async |agent: ClaudeCode| {
        let outcome = agent.run("do it").await;
        let seen = outcome.unknown[0].clone();
        (seen["words"].as_str().unwrap().to_owned(), seen["directory"].as_str().unwrap().to_owned())
    };
    let (plain, _) = words(played.agent()).await;
    for word in
        ["--print|", "--tools=|", "--strict-mcp-config|", "--setting-sources=|", "--permission-mode=default|"]
    {
        assert!(plain.contains(word), "{plain}");
    }
    for word in [
        "--model",
        "--system-prompt",
        "bypass",
        "--max-",
        "--allowedTools",
        "--include-partial",
        "prompt-tool",
    ] {
        assert!(!plain.contains(word), "{plain}");
    }
    let directory = tempfile::tempdir().unwrap();
    let agent = claude(Executor::process(played.path()))
        .model("haiku")
        .system("be brief")
        .own_tools(["Read", "Grep"])
        .allow(["Read"])
        .permission_mode(toolpost_claude_code::PermissionMode::Plan)
        .max_iterations(3)
        .max_cost_usd(1.5)
        .port(Arc::new(toolpost_core::NoPort))
        .working_dir(directory.path())
        .verbose(true)
        .build()
        .unwrap();
    let (all, working_dir) = words(agent.clone()).await;
    for word in [
        "--model=haiku|",
        "--system-prompt=be brief|",
        "--tools=Read,Grep|",
        "--allowedTools=Read|",
        "--permission-mode=plan|",
        "--max-turns=3|",
        "--max-budget-usd=1.5|",
        "--include-partial-messages|",
        "--permission-prompt-tool=stdio|",
    ] {
        assert!(all.contains(word), "{word} in {all}");
    }
    assert_eq!(PathBuf::from(working_dir), directory.path().canonicalize().unwrap());
    let (other, _) = words(agent.with_model("opus").unwrap().with_verbose(false)).await;
    assert!(other.contains("--model=opus|") && !other.contains("--include-partial"), "{other}");
}
