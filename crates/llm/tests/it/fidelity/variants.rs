//! Recorded traffic in the formats of other recorders: the counts must stay the same.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use toolpost_testkit::packed::gzip;
use toolpost_testkit::recordings::{self, Answer, Interaction, Recording};

use super::{Counts, Dialect, check, of_dialects};

/// Tests one of this many files.
const STEP: usize = 12;

/// Maximum length of a tested text, in bytes.
const LONGEST: usize = 60_000;

fn text_of(answer: &Answer) -> &str {
    match answer {
        Answer::Body(text) | Answer::Stream(text) => text,
    }
}

/// A file of one form. JSON is YAML too.
type Form = fn(&[Interaction]) -> String;

fn kept(interactions: &[Interaction], one: impl Fn(&Interaction) -> Value) -> String {
    json!({"interactions": interactions.iter().map(one).collect::<Vec<_>>()}).to_string()
}

fn content_type(answer: &Answer) -> &'static str {
    match answer {
        Answer::Body(_) => "application/json; charset=utf-8",
        Answer::Stream(_) => "text/event-stream; charset=utf-8",
    }
}

/// Compressed bodies.
fn compressed(interactions: &[Interaction]) -> String {
    kept(interactions, |one| {
        let request = one.request.as_ref().unwrap();
        let packed = |text: &str| STANDARD.encode(gzip(text.as_bytes()));
        json!({
            "request": {"uri": request.address, "body": request.body.as_ref().map(|body| packed(&body.to_string()))},
            "response": {"headers": {"content-type": [content_type(&one.answer)], "content-encoding": ["gzip"]},
                         "status": {"code": one.status}, "body": {"string": packed(text_of(&one.answer))}},
        })
    })
}

/// Upper-case headers with one value, bodies in base64.
fn packed(interactions: &[Interaction]) -> String {
    kept(interactions, |one| {
        let request = one.request.as_ref().unwrap();
        let body = request.body.as_ref().map(|body| STANDARD.encode(body.to_string()));
        json!({
            "response": {"headers": {"Content-Type": content_type(&one.answer)}, "status": {"code": one.status},
                         "body": {"base64_string": STANDARD.encode(text_of(&one.answer))}},
            "request": {"body": body, "uri": format!("https://gateway.example{}", path_of(&request.address))},
        })
    })
}

/// No content types, and CRLF line ends.
fn untyped(interactions: &[Interaction]) -> String {
    kept(interactions, |one| {
        let request = one.request.as_ref().unwrap();
        let text = match &one.answer {
            Answer::Body(text) => text.clone(),
            Answer::Stream(text) => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        };
        json!({
            "request": {"uri": request.address, "parsed_body": request.body},
            "response": {"status": {"code": one.status}, "body": {"string": text}},
        })
    })
}

/// Data and answers over several lines.
fn spread(interactions: &[Interaction]) -> String {
    kept(interactions, |one| {
        let request = one.request.as_ref().unwrap();
        let pretty = |text: &str| {
            let value: Value = serde_json::from_str(text).ok()?;
            serde_json::to_string_pretty(&value).ok()
        };
        let text = match &one.answer {
            Answer::Body(text) => pretty(text).unwrap_or_else(|| text.clone()),
            Answer::Stream(text) => {
                let lines = text.lines().map(|line| {
                    let spread = line.strip_prefix("data:").and_then(pretty);
                    spread.map_or_else(
                        || line.to_owned(),
                        |data| format!("data: {}", data.replace('\n', "\ndata: ")),
                    )
                });
                lines.map(|line| line + "\n").collect::<Vec<_>>().concat() + "\n"
            }
        };
        json!({
            "request": {"uri": request.address, "body": request.body.as_ref().map(Value::to_string)},
            "response": {"status": {"code": one.status}, "headers": {"content-type": [content_type(&one.answer)]},
                         "body": text},
        })
    })
}

fn path_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.find('/').map_or(rest, |slash| &rest[slash..])
}

/// The counts that must not depend on the format.
fn essence(counts: &Counts) -> Value {
    json!({
        "wrong": counts.wrong,
        "bodies": counts.bodies,
        "errors": counts.errors,
        "streams": counts.streams,
        "cut": counts.cut_streams,
        "events": counts.events,
        "kinds": counts.kinds,
        "answers back": counts.back.answers,
        "items back": counts.back.items,
        "in histories": counts.history.items,
        "requests": counts.requests.built,
    })
}

fn check_form(dialect: &dyn Dialect, chosen: &[Recording], form: Form, directory: &Path) -> Counts {
    for (number, recording) in chosen.iter().enumerate() {
        std::fs::write(directory.join(format!("{number:04}.yml")), form(&recording.interactions)).unwrap();
    }
    let found = recordings::all(directory, &[""]);
    assert!(found.unread.is_empty(), "{:?}", found.unread);
    let mut back: Vec<Recording> = found.recordings;
    // Exceptions apply by file name.
    for (recording, original) in back.iter_mut().zip(chosen) {
        recording.path.clone_from(&original.path);
    }
    check(dialect, &back)
}

#[test]
fn other_forms_of_recordings_count_the_same() {
    let Some(found) = of_dialects("other_forms_of_recordings_count_the_same") else { return };
    let mut tried = 0;
    for (dialect, recordings) in found.dialects {
        let is_small = |one: &Interaction| one.request.is_some() && text_of(&one.answer).len() < LONGEST;
        let chosen: Vec<Recording> = recordings
            .into_iter()
            .filter(|recording| recording.interactions.iter().all(is_small))
            .step_by(STEP)
            .collect();
        let expected = essence(&check(dialect, &chosen));
        for (name, form) in
            [("packed", packed as Form), ("compressed", compressed), ("untyped", untyped), ("spread", spread)]
        {
            let directory = tempfile::tempdir().unwrap();
            let found = essence(&check_form(dialect, &chosen, form, directory.path()));
            assert_eq!(found, expected, "{} {name}", dialect.provider());
        }
        tried += chosen.len();
    }
    println!("{tried} files in four other forms");
    assert!(tried > 20 || !recordings::is_known(), "{tried}");
}

#[test]
fn no_file_vanishes() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("cut.json", r#"{"object": "response", "output": ["#);
    write("other.yaml", "interactions:\n- request:\n    uri: https://h/v1/embeddings\n");
    write("cut.yaml", "when:\n  path: /v1/messages\nthen: [\n");
    write("whole.json", "{}");
    let found = recordings::all(directory.path(), &["/messages"]);
    let names: Vec<&str> = found.recordings.iter().map(|recording| recording.path.as_str()).collect();
    assert_eq!(names, ["whole.json"]);
    assert_eq!(found.others, ["other.yaml: https://h/v1/embeddings"]);
    let places: Vec<&str> = found.unread.iter().map(|line| line.split(" (").next().unwrap()).collect();
    assert_eq!(places, ["cut.yaml: /v1/messages", "cut.json: no address"]);
}
