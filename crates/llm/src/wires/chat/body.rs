//! Decodes a complete answer of Chat Completions.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::error::error_in;
use super::message::items_of;
use crate::fields::{Fields, Listed, Members};
use crate::wires::counts::Counts;
use crate::{ErrorKind, Item, ItemView, ModelError, ModelId, RawJson, Response, StopReason, TokenUsage};

/// Decodes a complete answer.
pub(super) fn read_completion(origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let protocol = |text: String| ModelError::new(ErrorKind::Protocol, text).with_model(origin);
    let completion: Fields = serde_json::from_str(body)
        .map_err(|error| protocol(format!("the body has invalid JSON: {error}")))?;
    let choices = completion.read::<Listed<&RawValue>>("choices").map(|list| list.0);
    // Some gateways answer 200 with an error in the body.
    if choices.as_ref().is_none_or(Vec::is_empty)
        && let Some(error) = error_in(body)
    {
        return Err(error.with_model(origin));
    }
    let Some(choices) = choices else {
        return Err(protocol("the body's `choices`: expected a list".to_owned()));
    };
    // Of several choices, the one with index 0 is the answer.
    let choices = choices.iter().map(|choice| serde_json::from_str::<Fields>(choice.get()));
    let choices = choices
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| protocol(format!("a choice of the body: {error}")))?;
    let is_first = |choice: &&Fields| choice.read::<u64>("index").unwrap_or_default() == 0;
    let Some(choice) = choices.iter().find(is_first).or(choices.first()) else {
        return Err(protocol("the body's `choices`: expected at least one, found none".to_owned()));
    };
    // Azure omits the message of a filtered answer.
    let is_filtered = choice.read::<String>("finish_reason").is_some_and(|reason| reason == "content_filter");
    let message: Option<Fields> = choice.read("message").or_else(|| is_filtered.then(Fields::default));
    let Some(message) = message else {
        return Err(protocol("the first choice's `message`: expected an object".to_owned()));
    };
    let raw = RawJson::parse(body).map_err(|error| protocol(error.to_string()))?;
    response_of(origin, &completion, choice, &message, raw).map_err(|error| protocol(error.to_string()))
}

/// The response of a completion, its first choice and its message.
pub(super) fn response_of(
    origin: &ModelId,
    completion: &Fields,
    choice: &Fields,
    message: &Fields,
    raw: RawJson,
) -> Result<Response, serde_json::Error> {
    let id: String = completion.read("id").unwrap_or_default();
    let items = items_of(message, &id)?;
    let refusal = message.read::<String>("refusal").filter(|text| !text.is_empty());
    let stop = stop_of(choice, &items, refusal.is_some());
    Ok(Response {
        model: completion.read("model").unwrap_or_else(|| origin.name.clone()),
        id,
        origin: origin.clone(),
        items,
        stop,
        stop_detail: refusal,
        usage: usage_of(completion),
        provider_state: serde_json::Map::new(),
        notices: Vec::new(),
        raw,
    })
}

fn stop_of(choice: &Fields, items: &[Item], is_refused: bool) -> StopReason {
    let has_calls = items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. }));
    match choice.read::<String>("finish_reason").as_deref() {
        Some("length" | "max_tokens") => StopReason::MaxTokens,
        Some("content_filter") => StopReason::Refusal,
        _ if is_refused => StopReason::Refusal,
        // Many servers report `stop` or nothing for pending calls, and `tool_calls` for the answer tool.
        Some("stop" | "tool_calls" | "function_call" | "eos" | "end_turn") | None if has_calls => {
            StopReason::ToolUse
        }
        Some("stop" | "tool_calls" | "eos" | "end_turn") => StopReason::EndTurn,
        Some(word) => StopReason::from(word),
        None => StopReason::Other(String::new()),
    }
}

/// The usage of a completion, in the variants of several servers.
pub(super) fn usage_of(completion: &Fields) -> TokenUsage {
    let own = completion.get("usage").filter(|usage| usage.get() != "null");
    let hidden = completion.read::<Members<'_>>("x_groq").and_then(|record| record.get("usage"));
    let Some(raw) = own.or(hidden) else { return TokenUsage { incomplete: true, ..TokenUsage::default() } };
    let usage: Members<'_> = serde_json::from_str(raw.get()).unwrap_or_default();
    let mut counts = Counts::default();
    let of_input = counts.part(&usage, "prompt_tokens_details");
    let of_output = counts.part(&usage, "completion_tokens_details");
    let cache_read = counts
        .optional(&of_input, "cached_tokens")
        .or_else(|| counts.optional(&usage, "prompt_cache_hit_tokens"))
        .or_else(|| counts.optional(&usage, "cached_tokens"))
        .unwrap_or_default();
    let cache_write = counts.optional(&of_input, "cache_write_tokens").unwrap_or_default();
    TokenUsage {
        // The wire counts cached tokens as input.
        input: counts
            .required(&usage, "prompt_tokens")
            .saturating_sub(cache_read)
            .saturating_sub(cache_write),
        output: counts.required(&usage, "completion_tokens"),
        cache_read,
        cache_write,
        cache_write_1h: 0,
        reasoning: counts
            .optional(&of_output, "reasoning_tokens")
            .or_else(|| counts.optional(&usage, "reasoning_tokens")),
        hosted: BTreeMap::new(),
        incomplete: counts.incomplete,
        raw: Some(RawJson::from(raw)),
    }
}
