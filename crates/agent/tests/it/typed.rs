//! Answers that are values.

use serde_json::json;
use toolpost::data;
use toolpost_agent::{Run, StopReason};

use crate::agent;

/// A city.
#[data]
#[derive(Debug, PartialEq)]
struct City {
    name: String,
    people: u32,
    /// Where it is known.
    mayor: Option<String>,
}

fn oslo() -> City {
    City { name: "Oslo".into(), people: 700_000, mayor: None }
}

#[tokio::test]
async fn an_answer_is_a_value_of_the_type_that_was_asked_for() {
    for text in [
        r#"{"name": "Oslo", "people": 700000}"#,
        r#"{"name": "Oslo", "people": 700000, "mayor": null}"#,
        r#"Here: {"name": "Oslo", "people": 700000} as you asked."#,
    ] {
        let script =
            format!("turns:\n  - calls: [{{ tool: add, args: {{ a: 1, b: 2 }} }}]\n  - text: '{text}'\n");
        let answer = agent(&script).build().run_as::<City>("Which?").await.unwrap();
        assert_eq!((answer.value, answer.outcome.record.iterations), (oslo(), 2), "{text}");
        assert!(answer.outcome.record.success);
    }
}

#[tokio::test]
async fn what_does_not_fit_is_mended_and_the_model_is_told_what_is_wrong() {
    let script = r#"
turns:
  - text: Oslo
  - text: '{"name": "Oslo"}'
  - text: '{"name": "Oslo", "people": 700000}'
"#;
    let answer = agent(script).build().run_as::<City>("Which?").await.unwrap();
    assert_eq!((answer.value, answer.outcome.record.iterations), (oslo(), 3));
    let told = serde_json::to_string(&answer.outcome.turns).unwrap();
    assert!(told.contains("it is not JSON") && told.contains("`people` is missing"), "{told}");
}

#[tokio::test]
async fn an_answer_that_never_fits_ends_the_run() {
    let turns = (0..20).map(|n| format!("  - text: 'no {n}'\n")).collect::<Vec<_>>().concat();
    let script = format!("turns:\n{turns}");
    for (repairs, iterations) in [(2, 3), (0, 1), (5, 6)] {
        let agent = agent(&script).limits(|limits| limits.repairs = repairs).build();
        let failed = agent.run_as::<City>("Which?").await.unwrap_err();
        let outcome = &failed.outcome;
        assert_eq!((&outcome.stop, outcome.record.iterations), (&StopReason::AnswerSchema, iterations));
        assert!(!outcome.record.success && outcome.value.is_none());
        assert_eq!(outcome.record.stop_reason, "answer_schema");
        assert!(failed.to_string().contains("answer_schema"));
    }
}

#[tokio::test]
async fn a_schema_will_do_without_a_type() {
    let schema =
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 5}}});
    let script = "turns:\n  - text: '{\"n\": 4}'\n  - text: '{\"n\": 5}'\n";
    let outcome = agent(script).answer_schema(schema.clone()).build().run("Which?").await;
    assert_eq!((outcome.value, outcome.record.iterations), (Some(json!({"n": 5})), 2));
    let run = Run::new(&agent(script).build(), "Which?").with_answer_schema(schema);
    assert_eq!(run.finish().await.value, Some(json!({"n": 5})));
}
