//! Recorded traffic by wire: every answer decodes, round-trips unchanged, and decodes the same for every split of its
//! bytes and with unknown content. `docs/fidelity.md` has the counts.
//!
//! The recordings are in a directory next to the checkout, or in the one of `TOOLPOST_RECORDINGS`. A wire is one
//! [`Dialect`]. `tests/data/fidelity.json` lists the allowed differences of requests with their reasons; [`faults`]
//! plants faults that every check must detect.

mod chat;
mod faults;
mod gemini;
mod history;
mod messages;
mod report;
mod requests;
mod responses;
mod round_trip;
mod variants;

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use toolpost_llm::{ErrorKind, ItemView, ModelError, ModelEvent, ModelId, RawJson, Request, Response, Wire};
use toolpost_testkit::recordings::{self, Answer, Interaction, RecordedRequest, Recording};

/// The test's knowledge of a wire, independent of the library.
pub(crate) trait Dialect: Sync {
    /// The wire.
    fn wire(&self) -> Wire;

    /// The provider's name in model ids.
    fn provider(&self) -> &'static str;

    /// Whether a recorded request went to this wire of this provider. `path` is the path of the file.
    fn has_request(&self, path: &str, request: &RecordedRequest) -> bool;

    /// Whether an answer without a request belongs to this wire of this provider.
    fn has_answer(&self, path: &str, answer: &Answer) -> bool;

    /// Whether a stream contains the wire's end marker.
    fn is_whole(&self, stream: &str) -> bool;

    /// The reference for a stream: its terminal event, or a simple fold over plain JSON. Compared with the
    /// [`Dialect::essence`] of the decoded body.
    fn oracle(&self, stream: &str) -> Value;

    /// The part of a body that [`Dialect::oracle`] returns.
    fn essence(&self, body: &Value) -> Value;

    /// The model's items in such a part.
    fn items(&self, essence: &Value) -> Vec<Value>;

    /// The items that the next request must contain. `changes` gets the reason of each intended change.
    fn expected(&self, essence: &Value, changes: &mut Vec<String>) -> Vec<Value>;

    /// The model's items in a request's body, unchanged.
    fn sent(&self, body: &Value) -> Vec<Value>;

    /// Normalizes equivalent forms of an item.
    fn piece(&self, item: &Value) -> Value {
        item.clone()
    }

    /// A request's body with these items of the model between two texts of the user.
    fn request_with(&self, items: Vec<Value>) -> Value;

    /// Whether the deltas concatenate to the texts of the items. Some fixtures are truncated.
    fn adds_up(&self, stream: &str) -> bool {
        let _ = stream;
        true
    }

    /// Unknown events.
    fn noise(&self) -> Vec<String>;

    /// The conversation in a request's body; `None` if it is incomplete.
    fn units(&self, body: &Value) -> Option<Vec<Unit>>;

    /// Rebuilds a recorded body with Toolpost's types; `None` for another kind of request.
    fn request(&self, body: &Value) -> Option<Request>;

    /// Normalizes equivalent forms of a body.
    fn normal(&self, body: &Value) -> Value;

    /// Copies the settings that affect the items from the recorded request.
    fn prepare(&self, request: &mut Request, body: &Value) {
        let _ = (request, body);
    }
}

/// An element of a conversation in a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unit {
    /// Whether the model wrote it.
    pub(crate) is_models: bool,
    /// The JSON of the element.
    pub(crate) value: Value,
}

/// Every dialect, in the order of the report.
pub(crate) const DIALECTS: &[&dyn Dialect] = &[
    &messages::Messages,
    &gemini::GenerateContent,
    &responses::Responses { is_xai: false },
    &responses::Responses { is_xai: true },
    &chat::Chat,
];

/// Every file with traffic of a wire contains one of these texts.
const ADDRESSES: &[&str] =
    &["/messages", "/responses", ":generateContent", ":streamGenerateContent", "/chat/completions"];

/// Recorded traffic, by wire.
pub(crate) struct OfDialects {
    /// The recordings of each dialect.
    pub(crate) dialects: Vec<(&'static dyn Dialect, Vec<Recording>)>,
    /// Exchanges of no wire, each with its address.
    pub(crate) unclaimed: Vec<String>,
    /// Files that do not parse, each with its path.
    pub(crate) unread: Vec<String>,
}

/// The recordings of each dialect; prints a skip line and returns `None` if there are none.
pub(crate) fn of_dialects(test: &str) -> Option<OfDialects> {
    let Some(directory) = recordings::directory() else {
        println!(
            "SKIP {test}: the recordings are not beside the checkout, and TOOLPOST_RECORDINGS names no directory"
        );
        return None;
    };
    let recordings::Found { recordings: all, unread, others: mut unclaimed } =
        recordings::all(&directory, ADDRESSES);
    // Another directory may contain files of other kinds.
    assert!(unread.is_empty() || !recordings::is_known(), "files that do not parse:\n{}", unread.join("\n"));
    assert!(!all.is_empty() || !recordings::is_known(), "{}: no recordings", directory.display());
    let claims = |dialect: &dyn Dialect, path: &str, interaction: &Interaction| match &interaction.request {
        Some(request) => dialect.has_request(path, request),
        None => dialect.has_answer(path, &interaction.answer),
    };
    for recording in &all {
        for (number, interaction) in recording.interactions.iter().enumerate() {
            if !DIALECTS.iter().any(|dialect| claims(*dialect, &recording.path, interaction)) {
                let address = interaction.request.as_ref().map(|request| request.address.as_str());
                let address = address.filter(|address| !address.is_empty()).unwrap_or("no address");
                unclaimed.push(format!("{}#{}: {address}", recording.path, number + 1));
            }
        }
    }
    let of = |dialect: &'static dyn Dialect| {
        let chosen = all.iter().filter_map(|recording| {
            let belongs = |interaction: &&Interaction| claims(dialect, &recording.path, interaction);
            let interactions: Vec<Interaction> =
                recording.interactions.iter().filter(belongs).cloned().collect();
            (!interactions.is_empty()).then(|| Recording { path: recording.path.clone(), interactions })
        });
        (dialect, chosen.collect())
    };
    Some(OfDialects { dialects: DIALECTS.iter().map(|dialect| of(*dialect)).collect(), unclaimed, unread })
}

/// A model of a dialect.
pub(crate) fn model(dialect: &dyn Dialect, name: &str) -> ModelId {
    ModelId::new(dialect.provider(), name)
}

/// The model that a recorded exchange was with.
pub(crate) fn model_of(dialect: &dyn Dialect, interaction: &Interaction) -> ModelId {
    let request = interaction.request.as_ref();
    let in_body = request.and_then(|request| request.body.as_ref()?["model"].as_str());
    // Gemini has the model in the address.
    let in_address = request.and_then(|request| {
        let (_, rest) = request.address.split_once("/models/").or(request.address.split_once("/model/"))?;
        rest.split([':', '/', '?']).next()
    });
    model(dialect, in_body.or(in_address).unwrap_or("model-x"))
}

/// Folds a stream that comes in these pieces.
pub(crate) fn fold<'a>(
    dialect: &dyn Dialect,
    model: &ModelId,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Response, Vec<ModelEvent>), ModelError> {
    let mut fold = dialect.wire().fold(model);
    let mut events = VecDeque::new();
    for piece in pieces {
        fold.feed(piece, &mut events)?;
    }
    let response = fold.finish(&mut events)?;
    Ok((response, events.into()))
}

/// The counts and defects of one dialect.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) files: usize,
    pub(crate) bodies: usize,
    pub(crate) errors: usize,
    pub(crate) streams: usize,
    pub(crate) cut_streams: usize,
    pub(crate) injected: usize,
    pub(crate) events: usize,
    pub(crate) unknown_events: usize,
    /// Items by the provider's name for their kind.
    pub(crate) kinds: BTreeMap<String, usize>,
    pub(crate) back: round_trip::Counts,
    pub(crate) history: history::Counts,
    pub(crate) requests: requests::Counts,
    /// One line for each defect.
    pub(crate) wrong: Vec<String>,
}

/// Checks every exchange of a dialect.
pub(crate) fn check(dialect: &dyn Dialect, recordings: &[Recording]) -> Counts {
    let mut counts = Counts { files: recordings.len(), ..Counts::default() };
    let allowed = requests::allowed();
    for recording in recordings {
        for (number, interaction) in recording.interactions.iter().enumerate() {
            let place = format!("{}#{}", recording.path, number + 1);
            let found = unharmed(|| check_answer(dialect, interaction, &mut counts));
            counts.wrong.extend(found.err().map(|what| format!("{place}: {what}")));
            let found =
                unharmed(|| requests::check(dialect, &allowed, &place, interaction, &mut counts.requests));
            counts.wrong.extend(found.err().map(|what| format!("{place}: {what}")));
        }
        let found = unharmed(|| history::check(dialect, recording, &mut counts.history));
        counts.wrong.extend(found.err().map(|what| format!("{}: {what}", recording.path)));
    }
    counts
}

/// Runs a check; a panic is a defect too.
pub(crate) fn unharmed(look: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        Err(format!("the tests cannot read this: {text}"))
    })
}

/// The compared part of a body. A stream may be one list of its events.
fn essence_of(dialect: &dyn Dialect, body: &Value) -> Value {
    match body {
        Value::Array(events) => {
            let lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            dialect.oracle(&lines.concat())
        }
        body => dialect.essence(body),
    }
}

/// The reference for a recorded answer and the decoded answer; `None` if there is no answer.
pub(crate) fn answered(dialect: &dyn Dialect, interaction: &Interaction) -> Option<(Value, Response)> {
    let model = model_of(dialect, interaction);
    match &interaction.answer {
        _ if interaction.status >= 400 => None,
        Answer::Body(text) => {
            let response = dialect.wire().read_body(&model, interaction.status, text).ok()?;
            Some((essence_of(dialect, &serde_json::from_str(text).ok()?), response))
        }
        Answer::Stream(text) => {
            let lines = in_lines(text);
            let response = fold(dialect, &model, [text.as_bytes()]).ok()?.0;
            dialect.is_whole(&lines).then(|| (dialect.oracle(&lines), response))
        }
    }
}

/// A stream with one line of data per event, for the simple folds.
pub(crate) fn in_lines(stream: &str) -> String {
    let text = stream.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n");
    let joined = text.split("\n\n").map(|event| {
        let (data, others): (Vec<&str>, Vec<&str>) =
            event.lines().partition(|line| line.starts_with("data:"));
        let data: Vec<&str> = data.iter().map(|line| line["data:".len()..].trim()).collect();
        let data = if data.is_empty() { String::new() } else { format!("data: {}\n", data.join(" ")) };
        format!("{}{data}", others.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat())
    });
    joined.filter(|event| !event.trim().is_empty()).map(|event| event + "\n").collect::<Vec<_>>().concat()
}

fn check_answer(dialect: &dyn Dialect, interaction: &Interaction, counts: &mut Counts) -> Result<(), String> {
    let model = model_of(dialect, interaction);
    match &interaction.answer {
        Answer::Body(text) | Answer::Stream(text) if interaction.status >= 400 => {
            let error = dialect.wire().read_body(&model, interaction.status, text);
            let error = error.err().ok_or("a refused request has an answer")?;
            if error.message.is_empty() || error.details.status != Some(interaction.status) {
                return Err(format!("the error says too little: {error:?}"));
            }
            counts.errors += 1;
        }
        Answer::Body(text) => {
            // Some recordings have no body, or an error with a success status.
            let Ok(body) = serde_json::from_str::<Value>(text) else {
                return dialect.wire().read_body(&model, 200, text).err().map_or(
                    Err("a body that is not JSON has an answer".into()),
                    |_| {
                        counts.errors += 1;
                        Ok(())
                    },
                );
            };
            match dialect.wire().read_body(&model, interaction.status, text) {
                Ok(response) => {
                    counts.bodies += 1;
                    check_response(dialect, &response, counts)?;
                    let (essence, raw) = (essence_of(dialect, &body), value(&response.raw));
                    if body.is_object() {
                        same("the raw body", &body, &raw)?;
                    }
                    same("the body", &essence, &dialect.essence(&raw))?;
                    round_trip::check(dialect, &model, &essence, &response, &mut counts.back)?;
                }
                Err(_) if body.get("error").is_some_and(|error| !error.is_null()) => counts.errors += 1,
                Err(error) if error.kind == ErrorKind::Refused => counts.errors += 1,
                Err(_) if body["choices"] == Value::Array(Vec::new()) => counts.errors += 1,
                Err(error) => return Err(error.to_string()),
            }
        }
        Answer::Stream(text) => check_stream(dialect, &model, text, counts)?,
    }
    Ok(())
}

fn check_stream(
    dialect: &dyn Dialect,
    model: &ModelId,
    text: &str,
    counts: &mut Counts,
) -> Result<(), String> {
    let folded = fold(dialect, model, [text.as_bytes()]);
    let lines = in_lines(text);
    if !dialect.is_whole(&lines) {
        counts.cut_streams += 1;
        return folded.err().map_or(Err("a stream that has no end has an answer".into()), |_| Ok(()));
    }
    let (response, events) = folded.map_err(|error| error.to_string())?;
    counts.streams += 1;
    counts.events += lines.lines().filter(|line| line.starts_with("data:")).count();
    counts.unknown_events += events.iter().filter(|event| matches!(event, ModelEvent::Unknown(_))).count();
    check_response(dialect, &response, counts)?;
    judge(dialect, model, &lines, &response, &events)?;
    round_trip::check(dialect, model, &dialect.oracle(&lines), &response, &mut counts.back)?;
    check_noise(dialect, model, text, &response, counts)
}

/// Whether an answer and its events match a stream.
pub(crate) fn judge(
    dialect: &dyn Dialect,
    model: &ModelId,
    lines: &str,
    response: &Response,
    events: &[ModelEvent],
) -> Result<(), String> {
    let body = response.raw.to_value().map_err(|error| error.to_string())?;
    same("the folded body", &dialect.oracle(lines), &dialect.essence(&body))?;
    let twin = dialect.wire().read_body(model, 200, response.raw.get()).map_err(|error| error.to_string())?;
    if twin != *response {
        return Err(format!("the body of the stream reads as another answer: {twin:?}\n{response:?}"));
    }
    check_deltas(response, events, dialect.adds_up(lines))
}

/// An answer survives serialization, and each of its items is in the body.
fn check_response(dialect: &dyn Dialect, response: &Response, counts: &mut Counts) -> Result<(), String> {
    for item in &response.items {
        let raw = item.raw().to_value().map_err(|error| error.to_string())?;
        *counts.kinds.entry(kind_of(&raw)).or_default() += 1;
        if let ItemView::ToolCall { id, name, .. } = item.view()
            && (id.is_empty() || name.is_empty())
        {
            return Err(format!("a call without id or name: {raw}"));
        }
    }
    if response.origin.provider != dialect.provider() {
        return Err(format!("the origin is {}", response.origin));
    }
    let saved = serde_json::to_string(response).map_err(|error| error.to_string())?;
    let saved: Response = serde_json::from_str(&saved).map_err(|error| error.to_string())?;
    if saved == *response { Ok(()) } else { Err("saving changes the answer".into()) }
}

/// The provider's name for an item's kind: its type or its characteristic member.
pub(crate) fn kind_of(raw: &Value) -> String {
    if let Some(kind) = raw.get("type").and_then(Value::as_str) {
        return kind.to_owned();
    }
    let names = raw.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let first = names.filter(|name| !["thought", "thoughtSignature", "role"].contains(name)).min();
    let first = first.unwrap_or("nothing");
    if raw.get("thought") == Some(&Value::Bool(true)) {
        format!("{first} (thought)")
    } else {
        first.to_owned()
    }
}

/// The deltas since the last restart concatenate to the answer, item by item.
fn check_deltas(response: &Response, events: &[ModelEvent], adds_up: bool) -> Result<(), String> {
    let start = events.iter().rposition(|event| *event == ModelEvent::Restarted).map_or(0, |index| index + 1);
    let (mut text, mut thinking, mut items) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for event in &events[start..] {
        match event {
            ModelEvent::TextDelta { index, text: part } => {
                text.entry(*index).or_insert_with(String::new).push_str(part);
            }
            ModelEvent::ThinkingDelta { index, text: part } => {
                thinking.entry(*index).or_insert_with(String::new).push_str(part);
            }
            ModelEvent::Item(item) => items.push(item.clone()),
            _ => {}
        }
    }
    let joined = |texts: BTreeMap<u64, String>| Value::from(texts.into_values().collect::<String>());
    let thought = response.items.iter().filter_map(|item| match item.view() {
        ItemView::Thinking { text, .. } => Some(text.as_str()),
        _ => None,
    });
    if adds_up {
        same("the deltas of the text", &response.text().into(), &joined(text))?;
        same("the deltas of the thinking", &thought.collect::<String>().into(), &joined(thinking))?;
    }
    if items == response.items { Ok(()) } else { Err("the items that were delivered are others".into()) }
}

/// Unknown events are delivered and change nothing at any position.
fn check_noise(
    dialect: &dyn Dialect,
    model: &ModelId,
    text: &str,
    whole: &Response,
    counts: &mut Counts,
) -> Result<(), String> {
    let events: Vec<&str> = text.split_inclusive("\n\n").collect();
    for noise in dialect.noise() {
        let mut has_unknown = false;
        // At the beginning, at the end, and in a few places between.
        for place in (0..=events.len()).step_by(events.len().div_ceil(6).max(1)).chain([events.len()]) {
            let mut altered = events.clone();
            let noise = format!(": comment\n\nevent: brand_new\ndata: {noise}\n\n");
            altered.insert(place, &noise);
            let (response, events) = fold(dialect, model, [altered.concat().as_bytes()])
                .map_err(|error| format!("an unknown event before event {place}: {error}"))?;
            if response.items != whole.items || response.stop != whole.stop || response.usage != whole.usage {
                return Err(format!("an unknown event before event {place} changes the answer"));
            }
            counts.injected += 1;
            has_unknown |= events.iter().any(|event| matches!(event, ModelEvent::Unknown(_)));
        }
        // Other noise, such as the progress of a hosted tool, has no event of its own.
        if !has_unknown && noise.contains("brand_new") {
            return Err(format!("the unknown event {noise} was never delivered"));
        }
    }
    Ok(())
}

/// Describes where two values differ.
fn same(what: &str, expected: &Value, found: &Value) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    let mut lines = Vec::new();
    differences(expected, found, "", &mut lines);
    lines.truncate(5);
    Err(format!("{what}:{}", lines.join(";")))
}

/// One line for each place where two values differ.
pub(crate) fn differences(expected: &Value, found: &Value, at: &str, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            let absent = Value::from("(absent)");
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                let pair = (a.get(name).unwrap_or(&absent), b.get(name).unwrap_or(&absent));
                differences(pair.0, pair.1, &format!("{at}/{name}"), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{at}/{index}"), lines);
            }
        }
        _ if expected == found => {}
        _ => {
            let short = |value: &Value| value.to_string().chars().take(150).collect::<String>();
            lines.push(format!("  {at}: recorded {}, ours {}", short(expected), short(found)));
        }
    }
}

/// Streams up to this size are split at every byte, longer ones at a sample.
const SHORT: usize = 16 * 1024;

/// Every stream decodes the same for every split of its bytes.
fn check_cuts(dialect: &dyn Dialect, recordings: &[Recording]) -> (usize, usize) {
    let (mut streams, mut cuts, mut seed) = (0, 0, 7_u64);
    for recording in recordings {
        for interaction in &recording.interactions {
            let Answer::Stream(text) = &interaction.answer else { continue };
            if interaction.status >= 400 || !dialect.is_whole(text) {
                continue;
            }
            let text = &in_lines(text);
            let (path, bytes, model) = (&recording.path, text.as_bytes(), model_of(dialect, interaction));
            let whole = fold(dialect, &model, [bytes]).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(fold(dialect, &model, bytes.chunks(1)).unwrap() == whole, "{path}: byte by byte");
            let returns = text.replace("\r\n", "\n").replace('\n', "\r\n");
            let returned = fold(dialect, &model, returns.as_bytes().chunks(3)).unwrap();
            assert!(returned == whole, "{path}: with carriage returns");
            // A split affects its own event only: the fold must end in the same state with the same events.
            let mut before = dialect.wire().fold(&model);
            for event in text.split_inclusive("\n\n").map(str::as_bytes) {
                let (mut after, mut events) = (before.clone(), VecDeque::new());
                after.feed(event, &mut events).unwrap();
                for place in 0..=event.len() {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if bytes.len() > SHORT && !(seed >> 33).is_multiple_of(256) {
                        continue;
                    }
                    let (mut cut, mut delivered) = (before.clone(), VecDeque::new());
                    cut.feed(&event[..place], &mut delivered).unwrap();
                    cut.feed(&event[place..], &mut delivered).unwrap();
                    assert!(cut == after && delivered == events, "{path}: cut at {place} of {event:?}");
                    cuts += 1;
                }
                before = after;
            }
            streams += 1;
        }
    }
    (streams, cuts)
}

/// Splits all streams of a provider.
fn cut_all(test: &str, provider: &str) {
    let Some(found) = of_dialects(test) else { return };
    let (dialect, recordings) =
        found.dialects.into_iter().find(|(dialect, _)| dialect.provider() == provider).expect("a dialect");
    let (streams, cuts) = check_cuts(dialect, &recordings);
    println!("{provider}: {streams} streams, {cuts} cuts");
    assert!(!recordings::is_known() || cuts > 1_000, "{cuts}");
}

#[test]
fn every_anthropic_stream_decodes_the_same_for_every_split() {
    cut_all("every_anthropic_stream_decodes_the_same_for_every_split", "anthropic");
}

#[test]
fn every_gemini_stream_decodes_the_same_for_every_split() {
    cut_all("every_gemini_stream_decodes_the_same_for_every_split", "gemini");
}

#[test]
fn every_openai_stream_decodes_the_same_for_every_split() {
    cut_all("every_openai_stream_decodes_the_same_for_every_split", "openai");
}

#[test]
fn every_xai_stream_decodes_the_same_for_every_split() {
    cut_all("every_xai_stream_decodes_the_same_for_every_split", "xai");
}

#[test]
fn every_chat_stream_decodes_the_same_for_every_split() {
    cut_all("every_chat_stream_decodes_the_same_for_every_split", "openai-compatible");
}

/// Whether a Messages stream is complete.
pub(crate) fn is_whole_message(stream: &str) -> bool {
    messages::Messages.is_whole(stream)
}

/// An item's JSON as a value.
pub(crate) fn value(raw: &RawJson) -> Value {
    raw.to_value().expect("raw JSON is JSON")
}
