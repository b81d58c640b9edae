//! Tools that the provider runs, in the loop: pauses, containers, models that take none.

use serde_json::{Value, json};
use toolpost::{Approval, Output, ToolSpec, tool_fn};
use toolpost_agent::{Agent, AgentBuilder, Handoff, RunStopReason, Team};
use toolpost_llm::{ErrorKind, HostedTool, Turn};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::Toolbox;

use crate::support::{bodies, hosted, reread, resume};

fn message(content: &Value, stop: &str) -> Value {
    json!({"type": "message", "id": "m", "role": "assistant", "model": "claude-opus-5-5", "content": content,
        "stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1},
        "container": {"id": "c1", "expires_at": "2099-01-01T00:00:00Z"}})
}

fn agent_at(server: &LoopbackProvider, model: &str) -> Agent {
    builder_at(server, model, Toolbox::builder().build().unwrap()).build()
}

fn builder_at(server: &LoopbackProvider, model: &str, toolbox: Toolbox) -> AgentBuilder {
    let code = HostedTool::CodeExecution { version: None, file_ids: Vec::new() };
    Agent::builder(hosted(server, "anthropic", model), toolbox).hosted_tools([code])
}

#[tokio::test]
async fn a_paused_answer_and_a_saved_conversation_resume_in_their_container() {
    let call = json!({"type": "server_tool_use", "id": "s1", "name": "bash_code_execution", "input": {"command": "sleep 9"}});
    let result = json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content":
        {"type": "bash_code_execution_result", "stdout": "4\n", "stderr": "", "return_code": 0, "content": []}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let answers = [
        message(&json!([text("Let me see. "), call]), "pause_turn"),
        message(&json!([result, text("It is 4.")]), "end_turn"),
        message(&json!([text("Still 4.")]), "end_turn"),
    ];
    let server =
        LoopbackProvider::start(answers.iter().map(|answer| Reply::json(200, answer.to_string())).collect())
            .unwrap();
    let agent = agent_at(&server, "claude-opus-5-5");
    let outcome = agent.run("What is it?").finish().await;
    assert_eq!(outcome.stop, RunStopReason::EndTurn, "{:?}", outcome.error);
    assert_eq!(outcome.text(), "Let me see. It is 4.");
    assert_eq!(outcome.record.iterations, 2);
    let saved = serde_json::to_string(&outcome.turns).unwrap();
    let mut turns: Vec<Turn> = serde_json::from_str(&saved).unwrap();
    turns.push(Turn::user("And now?"));
    assert_eq!(agent.run_turns(turns).finish().await.text(), "Still 4.");
    let bodies = bodies(&server);
    assert_eq!(bodies[0]["tools"], json!([{"type": "code_execution_20260521", "name": "code_execution"}]));
    assert!(bodies[0].get("container").is_none());
    for body in &bodies[1..] {
        assert_eq!(body["container"], "c1");
    }
    assert_eq!(bodies[1]["messages"][1]["content"], json!([text("Let me see. "), call]));
    // The parts before and after the pause are one message.
    assert_eq!(
        bodies[2]["messages"][1]["content"],
        json!([text("Let me see. "), call, result, text("It is 4.")])
    );
}

#[tokio::test]
async fn a_model_without_hosted_tools_ends_the_run_before_its_first_request() {
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    let outcome = agent_at(&server, "claude-3-opus-20240229").run("What is it?").finish().await;
    assert_eq!(outcome.stop, RunStopReason::ModelError);
    let error = outcome.error.unwrap();
    assert!(error.kind == ErrorKind::Unsupported && error.message.contains("claude-opus-5-5"), "{error}");
    assert!(server.requests().is_empty());
}

/// Answers in which code ran, the first of which also calls this tool.
fn code_and_call(tool: &str) -> LoopbackProvider {
    let code = |id: &str| {
        let call = json!({"type": "server_tool_use", "id": id, "name": "bash_code_execution", "input": {"command": "true"}});
        let result = json!({"type": "bash_code_execution_tool_result", "tool_use_id": id, "content":
            {"type": "bash_code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []}});
        [call, result]
    };
    let ([one, two], [three, four]) = (code("s1"), code("s2"));
    let call = json!({"type": "tool_use", "id": "t1", "name": tool, "input": {}});
    let answers = [
        message(&json!([one, two, call]), "tool_use"),
        message(&json!([three, four, {"type": "text", "text": "Done."}]), "end_turn"),
    ];
    let replies = answers.iter().map(|answer| Reply::json(200, answer.to_string()));
    LoopbackProvider::start(replies.collect()).unwrap()
}

#[tokio::test]
async fn the_minimum_charge_of_a_container_counts_once() {
    let server = code_and_call("pay");
    let pay = tool_fn(ToolSpec::new("pay", "Pay."), |_, _| async { Ok(Output::text("paid")) });
    let toolbox = Toolbox::builder().tool(pay).approval("pay", Approval::Ask).build().unwrap();
    let agent = builder_at(&server, "claude-opus-5-5", toolbox).pause_for_approval(true).build();
    let first = agent.run("Pay.").finish().await;
    assert_eq!((&first.stop, first.record.usage.hosted_code_seconds), (&RunStopReason::ApprovalNeeded, 300));
    let second = resume(&agent, &reread(&first)).finish().await;
    assert_eq!((second.text(), second.record.usage.hosted_code_seconds), ("Done.", 300));

    let server = code_and_call("transfer_to_other");
    let toolbox = Toolbox::builder().tool(Handoff::to("other", "Knows more.")).build().unwrap();
    let first = builder_at(&server, "claude-opus-5-5", toolbox).build();
    let team = Team::new("first", &first).and("other", &agent_at(&server, "claude-opus-5-5"));
    let outcome = team.run("Go.").await.unwrap();
    assert_eq!((outcome.text(), outcome.record.usage.hosted_code_seconds), ("Done.", 300));
}
