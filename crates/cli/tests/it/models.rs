//! The model catalog: `models ls`, `models show`, and the setting `models.file`.

use serde_json::{Value, json};

use crate::support::TestEnv;

fn ids(listed: &Value) -> Vec<String> {
    let models = listed["models"].as_array().unwrap();
    models.iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

fn list(words: &[&str]) -> Vec<String> {
    ids(&TestEnv::new().run(["models", "ls", "--json"].iter().chain(words)).ok().json())
}

#[test]
pub(crate) fn provider() {
    let all = list(&[]);
    assert!(all.iter().any(|id| id.starts_with("openai/")), "{all:?}");
    let some = list(&["--provider", "xai", "--provider", "anthropic"]);
    assert!(some.contains(&"anthropic/claude-opus-5-5".to_owned()) && some.len() < all.len());
    assert!(some.iter().all(|id| id.starts_with("xai/") || id.starts_with("anthropic/")), "{some:?}");
    let wrong = TestEnv::new().run(["models", "ls", "--provider", "antropic", "--json"]).exit(2).error();
    assert!(wrong["hints"][0].as_str().unwrap().contains("`anthropic`"), "{wrong}");
}

#[test]
pub(crate) fn can() {
    let some = list(&["--can", "code_execution", "--can", "tool_search"]);
    assert!(some.contains(&"anthropic/claude-opus-5-5".to_owned()), "{some:?}");
    assert!(!some.contains(&"anthropic/claude-haiku-4-5".to_owned()), "{some:?}");
    let wrong = TestEnv::new().run(["models", "ls", "--can", "tols", "--json"]).exit(2).error();
    assert!(wrong["hints"][0].as_str().unwrap().contains("`tools`"), "{wrong}");
}

#[test]
pub(crate) fn retired() {
    let old = "anthropic/claude-3-opus".to_owned();
    assert!(!list(&[]).contains(&old) && list(&["--retired"]).contains(&old));
}

#[test]
pub(crate) fn show() {
    let env = TestEnv::new();
    let shown = env.run(["models", "show", "claude-opus-5-5-latest", "--json"]).ok().json();
    assert_eq!(shown["catalog_id"], "anthropic/claude-opus-5-5");
    assert_eq!(shown["prices"][0]["input"], 4.0);
    let text = env.run(["models", "show", "claude-sonnet-4-5"]).ok().out;
    for part in [
        "200k",
        "2026-11-30",
        "code_execution_20260521",
        "3 USD in, 15 USD out",
        "0.05 USD an hour",
        "1550 free hours a month",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let wrong = env.run(["models", "show", "anthropic/claude-opus-5-6", "--json"]).exit(1).error();
    assert_eq!(wrong["code"], "NOT_FOUND");
    assert!(wrong["hints"][1].as_str().unwrap().contains("claude-opus-5-5"), "{wrong}");
    env.run(["models", "show", "script:x.yaml", "--json"]).exit(2);
}

#[test]
fn a_list_for_people_has_a_line_for_each() {
    let finished = TestEnv::new().run(["models", "ls", "--provider", "anthropic"]).ok();
    let opus = finished.out.lines().find(|line| line.starts_with("anthropic/claude-opus-5-5 ")).unwrap();
    assert!(opus.contains("1M") && opus.contains("4 USD in, 20 USD out"), "{opus}");
}

#[test]
pub(crate) fn file() {
    let env = TestEnv::new();
    let row = json!({"models": [{"id": "anthropic/mine", "prices": [{"input": 7, "output": 8}]}]});
    env.write("mine.json", row.to_string());
    let words = ["models", "show", "anthropic/mine", "--json", "--config", "models.file=mine.json"];
    assert_eq!(env.run(words).ok().json()["prices"], json!([{"input": 7.0, "output": 8.0}]));
    env.write("mine.json", "{");
    assert_eq!(env.run(words).exit(2).error()["code"], "CONFIGURATION");
}
