//! A model in one line.
#![expect(clippy::disallowed_methods, reason = "an environment is that of a process, so a test starts one")]

use std::process::Command;

use toolpost::llm::{self, ErrorKind, Request};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

/// Set in the process that has the environment of a test.
const CHILD: &str = "TOOLPOST_TEST_OF_MODEL";

/// The test below in a process of its own, with these variables alone.
fn child(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "model::asks_with_its_environment", "--nocapture"]);
    let output = command.env_clear().env(CHILD, "1").envs(variables.iter().copied()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn asks_with_its_environment() {
    if std::env::var_os(CHILD).is_none() {
        println!("SKIP asks_with_its_environment: another test starts it with an environment");
        return;
    }
    match llm::from_env("anthropic/claude-x") {
        Err(error) => println!("NO MODEL: {error}"),
        Ok(model) => match model.respond(&Request::new("hi")).await {
            Ok(response) => println!("ANSWER: {}", response.text()),
            Err(error) => println!("NO ANSWER: {error}"),
        },
    }
}

#[test]
fn a_model_has_its_key_and_address_from_the_environment() {
    let body = r#"{"type":"message","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}"#;
    let server = LoopbackProvider::start(vec![Reply::json(200, body)]).unwrap();
    let base_url = server.base_url();
    let key = ("ANTHROPIC_API_KEY", "key-of-the-test");
    let said = child(&[key, ("ANTHROPIC_BASE_URL", &base_url), ("TOOLPOST_NO_NETWORK", "1")]);
    assert!(said.contains("ANSWER: hello"), "{said}");
    assert_eq!(server.requests()[0].header("x-api-key"), Some("key-of-the-test"));
    let said = child(&[key, ("ANTHROPIC_BASE_URL", "https://192.0.2.1"), ("TOOLPOST_NO_NETWORK", "1")]);
    assert!(said.contains("NO ANSWER") && said.contains("TOOLPOST_NO_NETWORK"), "{said}");
    let said = child(&[("ANTHROPIC_API_KEY", "")]);
    assert!(said.contains("NO MODEL") && said.contains("ANTHROPIC_API_KEY"), "{said}");
}

#[test]
fn a_wrong_name_says_what_was_expected() {
    let error = llm::from_env("antropic/claude-x").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration);
    assert!(error.message.contains("Did you mean `anthropic`?"), "{error}");
}
