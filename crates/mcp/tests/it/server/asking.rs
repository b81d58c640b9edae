//! Questions of tools: several rounds of the stateless era, requests to the client in the older one.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Secret;

use super::support::{builder, modern, post, post_with, serve};

fn greet() -> Value {
    json!({ "name": "greet", "arguments": {} })
}

fn asking() -> Value {
    json!({ "elicitation": { "form": {} }, "sampling": {} })
}

fn name(name: &str) -> Value {
    json!({ "user_name": { "action": "accept", "content": { "name": name } } })
}

fn with_state(state: &Value, answers: Value) -> Value {
    let mut params = greet();
    params["requestState"] = state.clone();
    params["inputResponses"] = answers;
    params
}

#[tokio::test]
async fn a_question_is_a_round_and_its_answer_ends_the_call() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    let asked = post(address, "tools/call", greet(), asking()).await.message();
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let request = &result["inputRequests"]["user_name"];
    assert_eq!(request["method"], "elicitation/create");
    assert_eq!(request["params"]["message"], "What is your name?");
    assert_eq!(request["params"]["requestedSchema"]["required"], json!(["name"]));
    let state = &result["requestState"];
    let done = post(address, "tools/call", with_state(state, name("Ada")), asking()).await.message();
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Ada", "{done}");
    // What was used is worth nothing any more.
    let again = post(address, "tools/call", with_state(state, name("Eve")), asking()).await.message();
    assert_eq!(again["error"]["code"], -32602, "{again}");
}

#[tokio::test]
async fn an_answer_that_is_missing_is_asked_for_again_and_a_wrong_one_refused() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    let asked = post(address, "tools/call", greet(), asking()).await.message();
    let state = &asked["result"]["requestState"];
    for bad in [json!({ "user_name": 12345 }), json!({ "user_name": { "action": "maybe" } })] {
        let refused = post(address, "tools/call", with_state(state, bad), asking()).await.message();
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let other = json!({ "other": { "action": "accept", "content": {} } });
    let again = post(address, "tools/call", with_state(state, other), asking()).await.message();
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_ne!(&again["result"]["requestState"], state);
    let declined = json!({ "user_name": { "action": "decline" } });
    let state = &again["result"]["requestState"];
    let done = post(address, "tools/call", with_state(state, declined), asking()).await.message();
    assert_eq!(done["result"]["content"][0]["text"], "Hello, stranger", "{done}");
}

#[tokio::test]
async fn an_answer_that_comes_first_needs_no_round() {
    let running = serve(|builder| builder).await;
    let mut params = greet();
    params["inputResponses"] = name("Ada");
    let done = post(running.address(), "tools/call", params, asking()).await.message();
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Ada", "{done}");
}

#[tokio::test]
async fn a_state_is_worth_nothing_to_others_or_when_it_was_changed() {
    let running = serve(|builder| builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))).await;
    let address = running.address();
    let call = async |who: &str, params: Value| {
        let authorization = format!("Bearer {who}");
        let message = modern(1, "tools/call", params, asking());
        post_with(address, &message, &[("Authorization", &authorization)]).await.message()
    };
    let asked = call("ada", greet()).await;
    let state = asked["result"]["requestState"].as_str().unwrap().to_owned();
    let stolen = call("eve", with_state(&json!(state), name("Eve"))).await;
    assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
    let mut for_another_tool = with_state(&json!(state), json!({}));
    for_another_tool["name"] = "summarise".into();
    assert_eq!(call("ada", for_another_tool).await["error"]["code"], -32602);
    for place in [0, state.len() / 2, state.len() - 1] {
        let mut bytes = state.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let tampered = String::from_utf8(bytes).unwrap();
        let refused = call("ada", with_state(&json!(tampered), name("Eve"))).await;
        assert_eq!(refused["error"]["code"], -32602, "{place} {refused}");
    }
    let done = call("ada", with_state(&json!(state), name("Ada"))).await;
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Ada", "{done}");
}

#[tokio::test]
async fn calls_that_wait_are_few_and_do_not_wait_for_ever() {
    let running = serve(|builder| {
        builder.limits(|limits| {
            limits.parked = 1;
            limits.parked_time = Duration::from_millis(300);
        })
    })
    .await;
    let address = running.address();
    let first = post(address, "tools/call", greet(), asking()).await.message();
    assert_eq!(first["result"]["resultType"], "input_required");
    let second = post(address, "tools/call", greet(), asking()).await.message();
    assert_eq!(second["result"]["_meta"]["toolpost/error"]["code"], "OVERLOADED", "{second}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let late =
        post(address, "tools/call", with_state(&first["result"]["requestState"], name("Ada")), asking())
            .await;
    assert_eq!(late.message()["error"]["code"], -32602);
    let third = post(address, "tools/call", greet(), asking()).await.message();
    assert_eq!(third["result"]["resultType"], "input_required", "{third}");
}

#[tokio::test]
async fn a_client_that_cannot_answer_is_told_what_it_lacks() {
    let running = serve(|builder| builder).await;
    for (tool, capability) in [("greet", "elicitation"), ("summarise", "sampling")] {
        let params = json!({ "name": tool, "arguments": {} });
        let refused = post(running.address(), "tools/call", params, json!({})).await.message();
        assert_eq!(refused["error"]["code"], -32021, "{refused}");
        assert_eq!(refused["error"]["data"]["requiredCapabilities"], json!({ capability: {} }));
    }
}

#[tokio::test]
async fn the_older_era_is_asked_while_its_request_is_open() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let server = builder().build().unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    let serving = tokio::spawn(async move { server.serve_streams(input, output).await });
    let (read, mut write) = tokio::io::split(ours);
    let mut lines = BufReader::new(read).lines();
    let mut send = async |message: Value| write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "elicitation": {}, "sampling": {} },
        "clientInfo": { "name": "test", "version": "1" },
    });
    send(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })).await;
    let mut next =
        async || -> Value { serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap() };
    assert_eq!(next().await["id"], 0);
    send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": greet() })).await;
    let asked = next().await;
    assert_eq!(asked["method"], "elicitation/create");
    let answer = json!({ "action": "accept", "content": { "name": "Ada" } });
    send(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
    assert_eq!(next().await["result"]["content"][0]["text"], "Hello, Ada");
    send(json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "summarise" } }))
        .await;
    let asked = next().await;
    assert_eq!(asked["method"], "sampling/createMessage");
    assert_eq!(asked["params"]["messages"][0]["content"]["text"], "Summarise.");
    let answer =
        json!({ "role": "assistant", "content": { "type": "text", "text": "Short." }, "model": "m" });
    send(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
    assert_eq!(next().await["result"]["content"][0]["text"], "Short.");
    drop(write);
    drop(lines);
    serving.await.unwrap().unwrap();
}
