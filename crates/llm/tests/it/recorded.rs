//! The typed values of every recorded Messages answer match its JSON.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use toolpost_llm::{ItemView, ModelError, ModelEvent, ModelId, Response, StopReason, Wire};
use toolpost_testkit::recordings::{self, Answer, Recording};

/// The recordings of Anthropic; prints a skip line and returns `None` if there are none.
pub(crate) fn recordings(test: &str) -> Option<Vec<Recording>> {
    let of_dialects = crate::fidelity::of_dialects(test)?;
    let found = of_dialects.dialects.into_iter().find(|(dialect, _)| dialect.provider() == "anthropic");
    let recordings = found.expect("the dialect is there").1;
    for set in ["rig", "pydantic-ai", "vercel-ai"].iter().filter(|_| recordings::is_known()) {
        let there = recordings.iter().any(|recording| recording.path.starts_with(set));
        assert!(there, "no recordings of `{set}`");
    }
    Some(recordings)
}

/// Folds a stream that comes in these pieces.
pub(crate) fn fold<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Response, Vec<ModelEvent>), ModelError> {
    let mut fold = Wire::Messages.fold(&ModelId::new("anthropic", "claude-x"));
    let mut events = VecDeque::new();
    for piece in pieces {
        fold.feed(piece, &mut events)?;
    }
    let response = fold.finish(&mut events)?;
    Ok((response, events.into()))
}

/// The complete recorded streams.
fn streams(recordings: &[Recording]) -> impl Iterator<Item = (&str, &str)> {
    recordings.iter().flat_map(|recording| {
        let answered = recording.interactions.iter().filter(|interaction| interaction.status < 400);
        answered.filter_map(|interaction| match &interaction.answer {
            Answer::Stream(text) if crate::fidelity::is_whole_message(text) => {
                Some((recording.path.as_str(), text.as_str()))
            }
            Answer::Stream(_) | Answer::Body(_) => None,
        })
    })
}

fn values(response: &Response) -> Vec<Value> {
    response.items.iter().map(|item| item.raw().to_value().expect("an item is JSON")).collect()
}

#[test]
fn typed_values_match_the_recorded_json() {
    let Some(recordings) = recordings("typed_values_match_the_recorded_json") else { return };
    let (mut bodies, mut folded) = (0, 0);
    for recording in &recordings {
        for interaction in recording.interactions.iter().filter(|interaction| interaction.status < 400) {
            let Answer::Body(text) = &interaction.answer else { continue };
            let model = ModelId::new("anthropic", "claude-x");
            // `fidelity` reports bodies that do not decode.
            let Ok(response) = Wire::Messages.read_body(&model, interaction.status, text) else { continue };
            check_values(&recording.path, &response);
            bodies += 1;
        }
    }
    for (path, text) in streams(&recordings) {
        let (response, events) = fold([text.as_bytes()]).unwrap_or_else(|error| panic!("{path}: {error}"));
        check_values(path, &response);
        check_arguments(path, &response, &events);
        folded += 1;
    }
    println!("{bodies} bodies, {folded} streams");
    assert!(!recordings::is_known() || bodies > 300 && folded > 140, "{bodies} {folded}");
}

/// Compares usage, stop reason, container and item views with the JSON.
fn check_values(path: &str, response: &Response) {
    let raw = response.raw.to_value().unwrap();
    let count = |name: &str| raw["usage"][name].as_u64();
    let counts = [count("input_tokens"), count("output_tokens")];
    // Compactions are billed too, and the totals do not include them.
    let iterations = raw["usage"]["iterations"].as_array().into_iter().flatten();
    let summaries: Vec<&Value> = iterations.filter(|one| one["type"] == "compaction").collect();
    let with_summaries = |name: &str| {
        let of = |one: &&Value| one[name].as_u64().unwrap_or_default();
        count(name).unwrap_or_default() + summaries.iter().map(of).sum::<u64>()
    };
    assert_eq!(
        [response.usage.input, response.usage.output],
        [with_summaries("input_tokens"), with_summaries("output_tokens")],
        "{path}"
    );
    assert!(response.usage.incomplete || !counts.contains(&None), "{path}");
    assert!(!response.usage.incomplete || !recordings::is_known(), "{path}: every count is there");
    let known = match response.stop.as_str() {
        "pause" => "pause_turn",
        "context_window" => "model_context_window_exceeded",
        other => other,
    };
    // Without a recorded stop reason, the items determine it.
    if let Some(word) = raw["stop_reason"].as_str() {
        assert_eq!(known, word, "{path}");
    }
    if let Some(id) = raw["container"]["id"].as_str() {
        assert_eq!(response.provider_state["container"]["id"], id, "{path}");
        assert_eq!(
            response.provider_state["container"]["expires_at"], raw["container"]["expires_at"],
            "{path}"
        );
    }
    for (item, value) in response.items.iter().zip(values(response)) {
        let kind = value["type"].as_str().unwrap_or_default();
        match item.view() {
            ItemView::Text { text, .. } => assert_eq!(*text, value["text"], "{path}"),
            ItemView::ToolCall { id, name, arguments } => {
                assert_eq!((&json!(id), &json!(name)), (&value["id"], &value["name"]), "{path}");
                // Invalid arguments stay a text.
                match arguments {
                    Ok(arguments) => assert_eq!(arguments.to_value().unwrap(), value["input"], "{path}"),
                    Err(text) => assert!(!recordings::is_known(), "{path}: {text}"),
                }
            }
            ItemView::Thinking { has_signature, .. } => {
                let signed = value["signature"].as_str().is_some_and(|signature| !signature.is_empty());
                assert_eq!(*has_signature, signed || kind == "redacted_thinking", "{path}");
            }
            ItemView::ServerToolCall { id, .. } => assert_eq!(*id, value["id"], "{path}"),
            ItemView::ServerToolResult { call_id, .. } => {
                assert_eq!(*call_id, value["tool_use_id"], "{path}");
            }
            // An unknown kind keeps the provider's name.
            ItemView::Other { kind: other } => assert_eq!(other, kind, "{path}"),
            _ => {}
        }
    }
}

/// The argument fragments since the last restart concatenate to the arguments, and hosted items come early.
fn check_arguments(path: &str, response: &Response, events: &[ModelEvent]) {
    let start = events.iter().rposition(|event| *event == ModelEvent::Restarted).map_or(0, |index| index + 1);
    let mut items = Vec::new();
    let mut fragments: BTreeMap<u64, String> = BTreeMap::new();
    for event in &events[start..] {
        match event {
            ModelEvent::ToolCallDelta { index, fragment, .. } => {
                fragments.entry(*index).or_default().push_str(fragment);
            }
            ModelEvent::Item(item) => items.push(item),
            ModelEvent::Hosted(item) => {
                assert!(response.items.contains(item) && !items.contains(&item), "{path}: shown too late");
            }
            ModelEvent::Usage(_) | ModelEvent::TextDelta { .. } | ModelEvent::ThinkingDelta { .. } => {}
            other => assert!(!recordings::is_known(), "{path}: an event of another kind: {other:?}"),
        }
    }
    let last_usage = events.iter().rev().find_map(|event| match event {
        ModelEvent::Usage(usage) => Some(usage),
        _ => None,
    });
    assert!(last_usage.is_none_or(|usage| *usage == response.usage), "{path}: the last usage");
    let arguments: Option<Vec<&str>> = response
        .tool_calls()
        .map(|item| match item.view() {
            ItemView::ToolCall { arguments: Ok(raw), .. } => Some(raw.get()),
            _ => None,
        })
        .collect();
    let spaceless = |text: String| text.split_whitespace().collect::<String>();
    let fragments: String = fragments.into_values().collect();
    if let Some(arguments) = arguments.filter(|_| !fragments.contains("{}")) {
        let arguments = arguments.into_iter().filter(|text| *text != "{}").collect();
        assert_eq!(spaceless(fragments), spaceless(arguments), "{path}");
    }
}

#[test]
fn a_spliced_answer_restarts() {
    let Some(recordings) = recordings("a_spliced_answer_restarts") else { return };
    if !recordings::is_known() {
        println!("SKIP a_spliced_answer_restarts: it needs three files of the project's recordings");
        return;
    }
    let of = |name: &str| {
        streams(&recordings).find(|(path, _)| path.contains(name)).expect("the fixture is there").1
    };
    let (response, events) = fold([of("spliced-message-start").as_bytes()]).unwrap();
    assert_eq!(response.id, "msg_second");
    assert_eq!(response.stop, StopReason::ToolUse);
    assert_eq!(values(&response)[1]["input"], json!({"value": "Sparkle Day"}));
    assert_eq!(events.iter().filter(|event| **event == ModelEvent::Restarted).count(), 1);
    let (response, events) = fold([of("duplicate-message-start").as_bytes()]).unwrap();
    assert_eq!(response.text(), "Hello, World!");
    assert!(!events.contains(&ModelEvent::Restarted));
    let (response, _) = fold([of("message-delta-input-tokens").as_bytes()]).unwrap();
    assert_eq!((response.usage.input, response.usage.output), (61, 2));
}
