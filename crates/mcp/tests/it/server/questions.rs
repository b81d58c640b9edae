//! Questions of tools: input rounds in 2026-07-28, requests to the client in older versions.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Secret;
use toolpost_testkit::eventually;

use super::support::{
    Conversation, LEGACY, builder, error_code, initialize, initialized, modern, post, post_with, serve, text,
};

fn capabilities() -> Value {
    json!({ "elicitation": { "form": {} }, "sampling": {} })
}

fn greet() -> Value {
    json!({ "name": "greet", "arguments": {} })
}

fn name(name: &str) -> Value {
    json!({ "user_name": { "action": "accept", "content": { "name": name } } })
}

/// The call again, with answers.
fn answered(state: &Value, answers: &Value) -> Value {
    json!({ "name": "greet", "arguments": {}, "requestState": state, "inputResponses": answers })
}

#[tokio::test]
async fn answers_complete_the_call_and_a_state_is_valid_once() {
    let running = serve(|builder| builder).await;
    let call =
        async |params: Value| post(running.address(), "tools/call", params, capabilities()).await.message();
    let asked = call(greet()).await;
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let question = &result["inputRequests"]["user_name"];
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "What is your name?");
    assert_eq!(question["params"]["requestedSchema"]["required"], json!(["name"]));
    let state = &result["requestState"];
    assert_eq!(text(&call(answered(state, &name("Ada"))).await), "Hello, Ada");
    assert_eq!(call(answered(state, &name("Eve"))).await["error"]["code"], -32602);
    // An answer that arrives with the call needs no round.
    assert_eq!(text(&call(answered(&Value::Null, &name("Ada"))).await), "Hello, Ada");
}

#[tokio::test]
async fn a_malformed_answer_is_rejected_and_a_missing_one_is_requested_again() {
    let running = serve(|builder| builder).await;
    let call =
        async |params: Value| post(running.address(), "tools/call", params, capabilities()).await.message();
    let asked = call(greet()).await;
    let state = &asked["result"]["requestState"];
    for malformed in [json!({ "user_name": 12345 }), json!({ "user_name": { "action": "maybe" } })] {
        let rejected = call(answered(state, &malformed)).await;
        assert_eq!(rejected["error"]["code"], -32602, "{rejected}");
    }
    let other = json!({ "other": { "action": "accept", "content": {} } });
    let again = call(answered(state, &other)).await;
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_ne!(&again["result"]["requestState"], state);
    let declined = json!({ "user_name": { "action": "decline" } });
    let done = call(answered(&again["result"]["requestState"], &declined)).await;
    assert_eq!(text(&done), "Hello, stranger", "{done}");
}

#[tokio::test]
async fn a_state_belongs_to_its_client_and_call_and_cannot_be_modified() {
    let running = serve(|builder| builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))).await;
    let call = async |client: &str, params: Value| {
        let authorization = format!("Bearer {client}");
        let message = modern(1, "tools/call", params, capabilities());
        post_with(running.address(), &message, &[("Authorization", &authorization)]).await.message()
    };
    let asked = call("ada", greet()).await;
    let state = asked["result"]["requestState"].as_str().unwrap().to_owned();
    let mut other_tool = answered(&json!(state), &json!({}));
    other_tool["name"] = "summarize".into();
    let mut rejected = vec![("eve", answered(&json!(state), &name("Eve"))), ("ada", other_tool)];
    for place in [0, state.len() / 2, state.len() - 1] {
        let mut bytes = state.clone().into_bytes();
        bytes[place] = if bytes[place] == b'0' { b'1' } else { b'0' };
        rejected.push(("ada", answered(&json!(String::from_utf8(bytes).unwrap()), &name("Eve"))));
    }
    for (client, params) in rejected {
        let error = call(client, params.clone()).await;
        assert_eq!(error["error"]["code"], -32602, "{client} {params}: {error}");
    }
    assert_eq!(text(&call("ada", answered(&json!(state), &name("Ada"))).await), "Hello, Ada");
}

#[tokio::test]
async fn parked_calls_are_bounded_in_number_and_time() {
    let running = serve(|builder| {
        builder.limits(|limits| (limits.parked, limits.parked_time) = (1, Duration::from_millis(300)))
    })
    .await;
    let call =
        async |params: Value| post(running.address(), "tools/call", params, capabilities()).await.message();
    let first = call(greet()).await;
    assert_eq!(first["result"]["resultType"], "input_required");
    let second = call(greet()).await;
    assert_eq!(error_code(&second), "OVERLOADED", "{second}");
    eventually("there is room for another call", async || {
        call(greet()).await["result"]["resultType"] == "input_required"
    })
    .await;
    let late = call(answered(&first["result"]["requestState"], &name("Ada"))).await;
    assert_eq!(late["error"]["code"], -32602);
}

#[tokio::test]
async fn a_missing_client_capability_is_named() {
    let running = serve(|builder| builder).await;
    for (tool, capability) in [("greet", "elicitation"), ("summarize", "sampling")] {
        let params = json!({ "name": tool, "arguments": {} });
        let rejected = post(running.address(), "tools/call", params, json!({})).await.message();
        assert_eq!(rejected["error"]["code"], -32021, "{rejected}");
        assert_eq!(rejected["error"]["data"]["requiredCapabilities"], json!({ capability: {} }));
    }
}

#[tokio::test]
async fn a_legacy_client_is_asked_during_its_request() {
    let mut client = Conversation::open(&builder().build().unwrap());
    client.send(initialize(LEGACY, &json!({ "elicitation": {}, "sampling": {} }))).await;
    assert_eq!(client.next().await["id"], 0);
    client.send(initialized()).await;
    for (tool, method, answer, expected) in [
        (
            "greet",
            "elicitation/create",
            json!({ "action": "accept", "content": { "name": "Ada" } }),
            "Hello, Ada",
        ),
        (
            "summarize",
            "sampling/createMessage",
            json!({ "role": "assistant", "content": { "type": "text", "text": "Short." }, "model": "m" }),
            "Short.",
        ),
    ] {
        client
            .send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool } }))
            .await;
        let asked = client.next().await;
        assert_eq!(asked["method"], method);
        client.send(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
        assert_eq!(text(&client.next().await), expected);
    }
    client.close().await;
}
