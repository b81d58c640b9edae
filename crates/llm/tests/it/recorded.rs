//! Every recorded answer of the Messages API decodes, for every split of its bytes.

use std::collections::{BTreeMap, HashSet, VecDeque};

use serde_json::{Value, json};
use toolpost_llm::{
    ErrorKind, ItemView, ModelError, ModelEvent, ModelId, RawJson, Response, StopReason, Wire,
};
use toolpost_testkit::recordings::{self, Answer, Recording};

/// The recordings, or `None` after having said that they are not there.
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

/// The streams that were recorded to their end.
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
fn every_recorded_answer_folds() {
    let Some(recordings) = recordings("every_recorded_answer_folds") else { return };
    let (mut bodies, mut errors, mut folded) = (0, 0, 0);
    let mut kinds = HashSet::new();
    for recording in &recordings {
        for interaction in &recording.interactions {
            let Answer::Body(text) = &interaction.answer else { continue };
            let result =
                Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), interaction.status, text);
            if interaction.status >= 400 {
                let error = result.expect_err("a refused request has no answer");
                // Others may have been refused for any reason, by a gateway too.
                let is_usual =
                    matches!(error.kind, ErrorKind::Auth | ErrorKind::NotFound | ErrorKind::InvalidRequest);
                assert!(is_usual || !recordings::is_known(), "{}: {error}", recording.path);
                let body: Value = serde_json::from_str(text).unwrap_or_default();
                if let Some(message) = body["error"]["message"].as_str() {
                    assert_eq!(message, error.message, "{}", recording.path);
                }
                errors += 1;
                continue;
            }
            let body: Value = serde_json::from_str(text).unwrap_or_default();
            // A body that was lost, or an error under a good status.
            if !recordings::is_known() && !body["content"].is_array() {
                assert!(result.is_err(), "{}: an answer of nothing", recording.path);
                continue;
            }
            let response = result.unwrap_or_else(|error| panic!("{}: {error}", recording.path));
            assert_eq!(values(&response), *body["content"].as_array().unwrap(), "{}", recording.path);
            assert_eq!(response.raw.to_value().unwrap(), body, "{}", recording.path);
            assert_eq!(response.id, body["id"].as_str().unwrap_or_default());
            check_facts(&recording.path, &response, &mut kinds);
            bodies += 1;
        }
    }
    for (path, text) in streams(&recordings) {
        let (response, events) = fold([text.as_bytes()]).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(Value::from(values(&response)), crate::fidelity::naive_messages(text), "{path}");
        check_facts(path, &response, &mut kinds);
        check_deltas(path, &response, &events);
        folded += 1;
    }
    println!(
        "bodies {bodies}/{bodies} (and {errors} errors), streams {folded}/{folded}, kinds of items {}",
        kinds.len()
    );
    assert!(
        !recordings::is_known() || bodies > 300 && folded > 140 && errors > 10,
        "{bodies} {folded} {errors}"
    );
}

/// What the answer says of itself is what its JSON says, and a whole body of that JSON reads as the same answer.
fn check_facts(path: &str, response: &Response, kinds: &mut HashSet<String>) {
    let raw = response.raw.to_value().unwrap();
    let count = |name: &str| raw["usage"][name].as_u64();
    let counts = [count("input_tokens"), count("output_tokens")];
    // Summaries that the provider has written are billed too, and stand in no sum.
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
    // Who leaves the reason out may have one made of what was said.
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
        kinds.insert(kind.to_owned());
        match item.view() {
            ItemView::Text { text, .. } => assert_eq!(*text, value["text"], "{path}"),
            ItemView::ToolCall { id, name, arguments } => {
                assert_eq!((&json!(id), &json!(name)), (&value["id"], &value["name"]), "{path}");
                // Arguments that are no object are not what the model wrote any more.
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
            // A kind that is not known keeps the provider's name.
            ItemView::Other { kind: other } => assert_eq!(other, kind, "{path}"),
            _ => {}
        }
    }
    let twin =
        Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, response.raw.get()).unwrap();
    assert_eq!(twin, *response, "{path}: the stream and its body differ");
    let saved: Response = serde_json::from_str(&serde_json::to_string(response).unwrap()).unwrap();
    assert_eq!(saved, *response, "{path}: saving changes the answer");
}

/// The deltas since the last restart add up to the answer.
fn check_deltas(path: &str, response: &Response, events: &[ModelEvent]) {
    let start = events.iter().rposition(|event| *event == ModelEvent::Restarted).map_or(0, |index| index + 1);
    let (mut text, mut thinking, mut items) = (String::new(), String::new(), Vec::new());
    let mut fragments: BTreeMap<u64, String> = BTreeMap::new();
    let mut usage = None;
    for event in &events[start..] {
        match event {
            ModelEvent::TextDelta { text: part, .. } => text.push_str(part),
            ModelEvent::ThinkingDelta { text: part, .. } => thinking.push_str(part),
            ModelEvent::ToolCallDelta { index, fragment, .. } => {
                fragments.entry(*index).or_default().push_str(fragment);
            }
            ModelEvent::Item(item) => items.push(item.clone()),
            ModelEvent::Hosted(item) => {
                assert!(response.items.contains(item) && !items.contains(item), "{path}: shown too late");
            }
            ModelEvent::Usage(later) => usage = Some(later),
            other => assert!(!recordings::is_known(), "{path}: an event of another kind: {other:?}"),
        }
    }
    assert!(usage.is_none_or(|usage| *usage == response.usage), "{path}: the last word on usage");
    assert_eq!(text, response.text(), "{path}");
    assert_eq!(items, response.items, "{path}");
    let thought: String = response
        .items
        .iter()
        .filter_map(|item| match item.view() {
            ItemView::Thinking { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(thinking, thought, "{path}");
    let arguments: String = response
        .tool_calls()
        .filter_map(|item| match item.view() {
            ItemView::ToolCall { arguments: Ok(raw), .. } if raw.get() != "{}" => Some(raw.get().to_owned()),
            _ => None,
        })
        .collect();
    let spaceless = |text: &str| text.split_whitespace().collect::<String>();
    let fragments: String = fragments.into_values().collect();
    let is_readable =
        |item: &toolpost_llm::Item| matches!(item.view(), ItemView::ToolCall { arguments: Ok(_), .. });
    if !fragments.contains("{}") && response.tool_calls().all(is_readable) {
        assert_eq!(spaceless(&fragments), spaceless(&arguments), "{path}");
    }
}

#[test]
fn a_spliced_answer_restarts() {
    let Some(recordings) = recordings("a_spliced_answer_restarts") else { return };
    if !recordings::is_known() {
        println!(
            "SKIP a_spliced_answer_restarts: it is about three files that may not be among other recordings"
        );
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

#[test]
fn unknown_events_are_delivered() {
    let Some(recordings) = recordings("unknown_events_are_delivered") else { return };
    let unknown = json!({"type": "brand_new_event", "index": 0, "payload": {"x": [1.0, null]}});
    let unknown_delta =
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "h": "x"}});
    let block = json!({"type": "hologram", "frames": [1.0, 123_456_789_012_345_u64], "nested": {"a": null}});
    let mut injected = 0;
    for (path, text) in streams(&recordings) {
        let text = text.replace("\r\n", "\n");
        let whole = fold([text.as_bytes()]).unwrap_or_else(|error| panic!("{path}: {error}")).0;
        let events: Vec<&str> = text.split_inclusive("\n\n").collect();
        // In the beginning, at the end, and in a dozen places between.
        for place in (1..=events.len()).step_by(events.len().div_ceil(12)).chain([events.len()]) {
            let mut altered = events.clone();
            let noise = format!(": comment\n\nevent: brand_new_event\ndata: {unknown}\n\n");
            altered.insert(place, &noise);
            let (response, seen) = fold([altered.concat().as_bytes()]).unwrap();
            assert_eq!(response, whole, "{path}: before event {place}");
            let delivered = seen.contains(&ModelEvent::Unknown(RawJson::from(&unknown)));
            let ended = events[..place].iter().any(|event| event.contains("\"message_stop\""));
            assert_ne!(delivered, ended, "{path}: before event {place}");
            injected += 1;
        }
        let grows = events
            .iter()
            .position(|event| event.contains("content_block_delta") && event.contains("\"index\":0"));
        if let Some(place) = grows {
            let mut altered = events.clone();
            let noise = format!("data: {unknown_delta}\n\n");
            altered.insert(place, &noise);
            assert_eq!(fold([altered.concat().as_bytes()]).unwrap().0, whole, "{path}");
        }
        // A block of an unknown kind, behind the last one that is known.
        let index = whole.items.len();
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        let stop = json!({"type": "content_block_stop", "index": index});
        let place = events.iter().position(|event| event.contains("\"message_stop\""));
        let mut altered = events.clone();
        let noise = format!("data: {start}\n\ndata: {stop}\n\n");
        altered.insert(place.expect("the stream is whole"), &noise);
        let (response, _) = fold([altered.concat().as_bytes()]).unwrap();
        let last = response.items.last().unwrap();
        assert_eq!(*last.view(), ItemView::Other { kind: "hologram".into() });
        assert_eq!(last.raw().get(), block.to_string(), "{path}");
    }
    println!("injected {injected} unknown events");
}

#[test]
fn a_stream_that_ends_early_is_an_error() {
    let Some(recordings) = recordings("a_stream_that_ends_early_is_an_error") else { return };
    for (path, text) in streams(&recordings) {
        let end = text.find("\"message_stop\"").expect("the stream is whole");
        let error = fold([&text.as_bytes()[..end]]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{path}: {error}");
    }
}
