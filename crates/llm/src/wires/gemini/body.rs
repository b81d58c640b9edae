//! Decodes a complete answer of `GenerateContent`.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::error_in;
use super::fold::GenerateFold;
use super::view::{Views, cite};
use crate::fields::{Fields, Listed, Members};
use crate::wires::codec::Fold as _;
use crate::wires::counts::Counts;
use crate::wires::failure::{MAX_CODE, MAX_MESSAGE};
use crate::{ErrorKind, Item, ItemView, ModelError, ModelId, RawJson, Response, StopReason, TokenUsage};

/// Decodes a complete answer.
pub(super) fn read_body(origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let protocol = |text: String| ModelError::new(ErrorKind::Protocol, text).with_model(origin);
    if let Some(error) = error_in(None, body) {
        return Err(error.with_model(origin));
    }
    // A gateway may drop the request for events: the answer is then a list of pieces.
    if body.trim_start().starts_with('[') {
        return read_pieces(origin, body);
    }
    let answer: Fields = serde_json::from_str(body)
        .map_err(|error| protocol(format!("the body has invalid JSON: {error}")))?;
    if let Some(error) = blocked(answer.get("promptFeedback")) {
        return Err(error.with_model(origin));
    }
    let Listed(candidates) = answer.read::<Listed<Fields>>("candidates").unwrap_or_default();
    let Some(candidate) = candidates.into_iter().find(|candidate| index_of(candidate.get("index")) == 0)
    else {
        return Err(protocol("the body has no list of candidates".to_owned()));
    };
    let content = object("the content", candidate.get("content")).map_err(protocol)?;
    let mut views = Views::default();
    views.name_answer(
        answer.read("responseId"),
        answer.get("usageMetadata").and_then(|usage| prompt_tokens(usage.get())),
    );
    let Listed(parts) = read_parts(&content).map_err(protocol)?;
    let mut items: Vec<Item> = parts.into_iter().map(|part| views.item(part)).collect();
    cite(&mut items, &candidate);
    let raw = RawJson::parse(body).map_err(|error| protocol(error.to_string()))?;
    Ok(response_of(origin, &answer, &candidate, items, raw))
}

/// The members of an object, which may be absent or null.
pub(super) fn object<'a>(what: &str, raw: Option<&'a RawValue>) -> Result<Members<'a>, String> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(Members::default()),
        Some(json) => serde_json::from_str(json).map_err(|error| format!("{what}: {error}")),
    }
}

/// The parts of an answer's content, possibly none.
pub(super) fn read_parts<'a, T: Deserialize<'a>>(content: &Members<'a>) -> Result<Listed<T>, String> {
    match content.get("parts").map(RawValue::get) {
        None | Some("null") => Ok(Listed::default()),
        Some(parts) => {
            serde_json::from_str(parts).map_err(|error| format!("the parts of the content: {error}"))
        }
    }
}

fn read_pieces(origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let Listed(pieces) = serde_json::from_str::<Listed<&RawValue>>(body).map_err(|error| {
        let message = format!("the body has invalid JSON: {error}");
        ModelError::new(ErrorKind::Protocol, message).with_model(origin)
    })?;
    let mut fold = GenerateFold::new(origin.clone());
    let mut events = VecDeque::new();
    for piece in pieces {
        fold.take(piece.get(), &mut events)?;
        events.clear();
    }
    fold.end(&mut events)?;
    fold.finish()
}

/// The index of a candidate; 0 if it has none.
pub(super) fn index_of(raw: Option<&RawValue>) -> u64 {
    raw.and_then(|raw| raw.get().parse().ok()).unwrap_or_default()
}

/// The error of a blocked prompt.
pub(super) fn blocked(feedback: Option<&RawValue>) -> Option<ModelError> {
    let feedback: Members<'_> = serde_json::from_str(feedback?.get()).ok()?;
    let reason = feedback.read::<String>("blockReason").filter(|reason| !reason.is_empty())?;
    let message = feedback.read::<String>("blockReasonMessage");
    let message = message.unwrap_or_else(|| "the prompt was blocked".to_owned());
    let mut error =
        ModelError::new(ErrorKind::Refused, message.chars().take(MAX_MESSAGE).collect::<String>());
    error.details.provider_code = Some(reason.chars().take(MAX_CODE).collect());
    Some(error)
}

/// The finish reason of an answer; empty if there is none. Some servers send its number.
pub(super) fn finish_reason(raw: Option<&RawValue>) -> String {
    const NUMBERED: [&str; 12] = [
        "",
        "STOP",
        "MAX_TOKENS",
        "SAFETY",
        "RECITATION",
        "OTHER",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MALFORMED_FUNCTION_CALL",
        "IMAGE_SAFETY",
    ];
    let Some(raw) = raw else { return String::new() };
    match serde_json::from_str::<usize>(raw.get()) {
        Ok(number) => NUMBERED.get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned()),
        Err(_) => serde_json::from_str(raw.get()).unwrap_or_default(),
    }
}

/// The length of the prompt, from an answer's usage.
pub(super) fn prompt_tokens(usage: &str) -> Option<u64> {
    serde_json::from_str::<Members<'_>>(usage).ok()?.read("promptTokenCount")
}

pub(super) fn response_of(
    origin: &ModelId,
    answer: &Fields,
    candidate: &Fields,
    items: Vec<Item>,
    raw: RawJson,
) -> Response {
    let word = finish_reason(candidate.get("finishReason"));
    let message = candidate.read::<String>("finishMessage").filter(|message| !message.is_empty());
    let has_calls = items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. }));
    let detail = |word: String| match &message {
        Some(message) => format!("{word}: {message}"),
        None => word,
    };
    let (stop, stop_detail) = match word.as_str() {
        "MAX_TOKENS" => (StopReason::MaxTokens, None),
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION"
        | "MODEL_ARMOR" => (StopReason::Refusal, Some(detail(word))),
        "STOP" | "" if has_calls => (StopReason::ToolUse, None),
        "STOP" => (StopReason::EndTurn, None),
        // Calls need results, whatever the finish reason.
        _ if has_calls => (StopReason::ToolUse, Some(detail(word))),
        _ => (StopReason::Other(word), message),
    };
    Response {
        id: answer.read("responseId").unwrap_or_default(),
        model: answer.read("modelVersion").unwrap_or_else(|| origin.name.clone()),
        origin: origin.clone(),
        items,
        stop,
        stop_detail,
        usage: usage_of(answer, candidate),
        provider_state: serde_json::Map::new(),
        notices: Vec::new(),
        raw,
    }
}

/// The usage of an answer.
///
/// The wire counts thinking separately from the answer, and cached input as part of the prompt. It omits zero counts, but
/// the prompt is never empty.
pub(super) fn usage_of(answer: &Fields, candidate: &Fields) -> TokenUsage {
    let usage: Members<'_> = answer.read("usageMetadata").unwrap_or_default();
    let mut counts = Counts::default();
    let cached = counts.optional(&usage, "cachedContentTokenCount").unwrap_or_default();
    let by_tools = counts.optional(&usage, "toolUsePromptTokenCount").unwrap_or_default();
    let prompt = counts.required(&usage, "promptTokenCount").saturating_add(by_tools);
    let reasoning = counts.optional(&usage, "thoughtsTokenCount");
    let answer_tokens = counts.optional(&usage, "candidatesTokenCount").unwrap_or_default();
    let grounding: Members<'_> = candidate.read("groundingMetadata").unwrap_or_default();
    let searches =
        grounding.read::<Vec<&RawValue>>("webSearchQueries").map_or(0, |queries| queries.len() as u64);
    let hosted = [("web_search_requests".to_owned(), searches)].into_iter().filter(|(_, count)| *count > 0);
    TokenUsage {
        input: prompt.saturating_sub(cached),
        output: answer_tokens.saturating_add(reasoning.unwrap_or_default()),
        cache_read: cached,
        reasoning,
        hosted: hosted.collect::<BTreeMap<_, _>>(),
        incomplete: counts.incomplete,
        raw: answer.get("usageMetadata").map(RawJson::from),
        ..TokenUsage::default()
    }
}
