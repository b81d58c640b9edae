//! Faults of a provider in a run, and the requests of the run.

use serde_json::{Value, json};
use toolpost_testkit::provider::Reply;

use crate::support::{Anthropic, TestEnv, begins, calls, fits, says};

fn refusal(status: u16, kind: &str, message: &str) -> Reply {
    let body = json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"});
    Reply::json(status, body.to_string())
}

/// Runs `run -p hi` as JSON; returns the complete record and the error.
#[track_caller]
fn failing(model: &Anthropic, exit: i32) -> (Value, Value) {
    let finished = model.env.run(["run", "-p", "hi", "--json"]).exit(exit);
    let record = finished.json();
    fits("run-record", &record);
    assert_eq!(record["success"], false);
    assert!(!finished.err.contains(Anthropic::KEY) && !finished.out.contains(Anthropic::KEY), "{finished}");
    (record, finished.error())
}

#[test]
fn an_answer_with_tools_goes_back_and_forth() {
    let model = Anthropic::start(vec![calls("calculate", &json!({"expression": "6*7"})), says("It is 42.")]);
    let finished = model.env.run(["run", "-p", "How much is 6*7?"]).ok();
    assert_eq!(finished.out, "It is 42.\n");
    let bodies = model.bodies();
    let [_, second] = &bodies[..] else { panic!("{} requests", bodies.len()) };
    assert_eq!(second["messages"][0]["content"][0]["text"], "How much is 6*7?");
    assert_eq!(second["messages"][1]["content"][0]["input"]["expression"], "6*7");
    let result = &second["messages"][2]["content"][0];
    assert_eq!(result["tool_use_id"], "toolu_1");
    assert!(result["content"].to_string().contains("42"), "{result}");
}

#[test]
fn an_unreachable_provider_exits_4() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let env = TestEnv::new()
        .with("ANTHROPIC_API_KEY", "key")
        .with("ANTHROPIC_BASE_URL", format!("http://{address}"));
    let finished = env.run(["run", "-p", "hi", "--json"]).exit(4);
    assert_eq!(finished.json()["stop_reason"], "model_error");
    let error = finished.error();
    assert_eq!(error["code"], "NETWORK");
    assert!(error["message"].as_str().unwrap().contains("connecting failed"), "{error}");
    assert!(error["hints"][0].as_str().unwrap().contains("base URL"), "{error}");
    // An unreachable address is tried once.
    assert_eq!(error["causes"].as_array().unwrap().len(), 0, "{error}");
}

#[test]
fn a_refused_key() {
    let model = Anthropic::start(vec![refusal(401, "authentication_error", "invalid x-api-key")]);
    let (record, error) = failing(&model, 3);
    assert_eq!(record["error"]["kind"], "auth");
    assert_eq!(error["code"], "AUTH");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("HTTP 401") && message.contains("invalid x-api-key"), "{error}");
    assert!(error["hints"][0].as_str().unwrap().contains("key"), "{error}");
    assert_eq!(model.bodies().len(), 1);
}

#[test]
fn too_many_requests_and_then_an_answer() {
    let busy = refusal(429, "rate_limit_error", "slow down").header("retry-after", "0.2");
    let model = Anthropic::start(vec![busy, says("here I am")]);
    let finished = model.env.run(["run", "-p", "hi"]).ok();
    assert_eq!(finished.out, "here I am\n");
    assert!(finished.err.contains("note:") && finished.err.contains("200 ms"), "{finished}");
    let bodies = model.bodies();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1]);
}

#[test]
fn too_many_requests_for_good() {
    let busy = || refusal(429, "rate_limit_error", "slow down").header("retry-after", "0");
    let model = Anthropic::start(vec![busy(), busy(), busy(), busy()]);
    let (_, error) = failing(&model, 4);
    assert_eq!(error["code"], "RATE_LIMITED");
    assert!(error["message"].as_str().unwrap().contains("4 attempts"), "{error}");
    assert_eq!(error["causes"], serde_json::json!(["4 attempts failed with the same error"]));
    assert!(error["hints"][0].as_str().unwrap().contains("Wait"), "{error}");
    // A retry does not wait for too long.
    let model =
        Anthropic::start(vec![refusal(429, "rate_limit_error", "slow down").header("retry-after", "3600")]);
    assert_eq!(failing(&model, 4).1["code"], "RATE_LIMITED");
    assert_eq!(model.bodies().len(), 1);
}

#[test]
fn a_stream_that_breaks_off() {
    let model = Anthropic::start(vec![begins("a long answer that never ends"); 4]);
    let (_, error) = failing(&model, 4);
    assert!(["PROTOCOL", "NETWORK"].contains(&error["code"].as_str().unwrap()), "{error}");
    assert!(!error["hints"].as_array().unwrap().is_empty(), "{error}");
}

#[test]
fn text_before_a_broken_stream_is_printed() {
    let model = Anthropic::start(vec![begins("half of an answer"); 4]);
    let finished = model.env.run(["run", "-p", "hi"]).exit(4);
    assert_eq!(finished.out, "");
    assert!(finished.err.contains("half of an answer"), "{finished}");
}

#[test]
fn an_invalid_answer() {
    let page = Reply::new(200, "text/html", "<html>Sign in to the wireless network</html>");
    let (_, error) = failing(&Anthropic::start(vec![page; 4]), 4);
    assert_eq!(error["code"], "PROTOCOL");
    assert!(error["hints"][0].as_str().unwrap().contains("base URL"), "{error}");
}

#[test]
fn an_account_without_credit_and_a_model_that_is_gone() {
    let (_, error) = failing(&Anthropic::start(vec![refusal(402, "billing_error", "no credit")]), 3);
    assert_eq!(error["code"], "BILLING");
    let (_, error) = failing(&Anthropic::start(vec![refusal(404, "not_found_error", "model: claude-x")]), 2);
    assert_eq!(error["code"], "NOT_FOUND");
    let (_, error) = failing(
        &Anthropic::start(vec![refusal(400, "invalid_request_error", "prompt is too long: 9 tokens")]),
        6,
    );
    assert_eq!(error["code"], "CONTEXT_TOO_LONG");
}

#[test]
fn a_call_of_an_unknown_tool_is_answered_with_an_error() {
    let model = Anthropic::start(vec![
        calls("calculat", &json!({"expression": "1"})),
        calls("calculate", &json!({"expresion": "1"})),
        says("I give up."),
    ]);
    let finished = model.env.run(["run", "-p", "hi", "--json"]).ok();
    let record = finished.json();
    fits("run-record", &record);
    assert_eq!(record["tool_calls"][0]["error"]["code"], "NOT_FOUND");
    assert_eq!(record["tool_calls"][1]["error"]["code"], "MISSING_PARAM");
    let bodies = model.bodies();
    for (body, place, word) in [(&bodies[1], 2, "`calculate`"), (&bodies[2], 4, "`expression`")] {
        let result = &body["messages"][place]["content"][0];
        assert_eq!(result["is_error"], true);
        assert!(result["content"].to_string().contains(word), "{result}");
    }
}

#[test]
fn a_url_with_a_password_is_rejected_without_printing_it() {
    let env = TestEnv::new()
        .with("ANTHROPIC_API_KEY", "key")
        .with("ANTHROPIC_BASE_URL", "https://user:hunter2@provider.example");
    let finished = env.run(["run", "-p", "hi", "--json"]).exit(2);
    assert_eq!(finished.error()["code"], "CONFIGURATION");
    assert!(!finished.err.contains("hunter2"), "{finished}");
}
