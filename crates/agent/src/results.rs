//! Tool calls and their results as a model sees them.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::Pricing;
use crate::spend::Spent;
use serde_json::Value;
use toolpost_core::{
    CallId, Clock as _, Code, Content, Output, Partial, Reply, Status, SystemClock, ToolError, Usage,
};
use toolpost_llm::{ItemView, Media, MediaSource, Model, Part, RawJson, Response, ToolResult};

/// Errors of a partial result that a model reads.
const MAX_ERRORS: usize = 16;
/// Characters of one error that a model reads.
const MAX_ERROR_CHARS: usize = 4096;

/// The usage of a model in the terms of records.
pub(crate) fn usage_of(usage: &toolpost_llm::TokenUsage) -> Usage {
    Usage {
        input_tokens: usage.total_input(),
        output_tokens: usage.output,
        cache_read_tokens: usage.cache_read,
        cache_write_tokens: usage.cache_write,
        reasoning_tokens: usage.reasoning,
        ..Usage::default()
    }
}

/// Usage and cost of an answer.
pub(crate) fn spent_by(response: &Response, model: &dyn Model, pricing: Option<&Pricing>) -> Spent {
    let cost_usd = match pricing {
        // An incomplete count has no price.
        _ if response.usage.incomplete => None,
        Some(pricing) => pricing(&response.origin, &response.usage),
        // A cost with unpriced parts is unknown.
        None => model
            .cost(response, SystemClock.timestamp())
            .filter(|cost| cost.unpriced.is_empty())
            .map(|cost| cost.usd),
    };
    Spent { usage: usage_of(&response.usage), cost_usd: cost_usd.filter(|cost| cost.is_finite()) }
}

/// A tool call as the model made it.
pub(crate) struct RequestedCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Arc<Value>,
    /// The parse error of the arguments.
    pub(crate) arguments_error: Option<String>,
}

/// The tool calls of a response, in order.
pub(crate) fn requested_calls(response: &Response) -> Vec<RequestedCall> {
    let calls = response.tool_calls().filter_map(|item| match item.view() {
        ItemView::ToolCall { id, name, arguments } => Some((id, name, arguments)),
        _ => None,
    });
    let requested = calls.map(|(id, name, arguments)| {
        let (arguments, arguments_error) = match arguments.as_ref().map(RawJson::to_value) {
            Ok(Ok(value)) => (value, None),
            // The toolbox rejects and records arguments that are not objects.
            Ok(Err(error)) => (Value::Null, Some(parse_error(&error))),
            Err(text) => {
                let error = serde_json::from_str::<serde::de::IgnoredAny>(text).err();
                (Value::String(text.clone()), Some(error.as_ref().map(parse_error).unwrap_or_default()))
            }
        };
        RequestedCall { id: id.clone(), name: name.clone(), arguments: Arc::new(arguments), arguments_error }
    });
    requested.collect()
}

/// The parse error of arguments, with a clear text for the recursion limit.
fn parse_error(error: &serde_json::Error) -> String {
    let error = error.to_string();
    match error.strip_prefix("recursion limit exceeded") {
        Some(place) => format!("objects and lists are nested deeper than 127 levels{place}"),
        None => error,
    }
}

/// The result of a call, without its payload.
pub(crate) fn reply_result(request: &RequestedCall, reply: &Reply) -> ToolResult {
    match &reply.result {
        Ok(output) => ToolResult {
            call_id: request.id.clone(),
            name: request.name.clone(),
            content: parts(output, reply.record.id),
            structured: output.structured.clone(),
            is_error: output.status() == Status::Error,
        },
        Err(error) => error_result(request, error, reply.record.id),
    }
}

/// Truncates the texts of a result to so many characters in all. Head and tail stay, with a marker between them.
pub(crate) fn shorten(result: &mut ToolResult, limit: usize) {
    let size = |part: &Part| if let Part::Text(text) = part { text.chars().count() } else { 0 };
    let total: usize = result.content.iter().map(size).sum();
    if total <= limit {
        return;
    }
    for part in &mut result.content {
        let own = size(part);
        if let Part::Text(text) = part {
            // Each text gets its share.
            let share = (own as u128 * limit as u128 / total as u128) as usize;
            *text = head_and_tail(text, own, share);
        }
    }
}

/// The head and tail of a text, with a marker between them.
fn head_and_tail(text: &str, size: usize, limit: usize) -> String {
    if size <= limit {
        return text.to_owned();
    }
    let note = |missing: usize| format!("\n[… {missing} of {size} characters omitted …]\n");
    let room = limit.saturating_sub(note(size).chars().count());
    let (head, tail) = (room * 2 / 3, room - room * 2 / 3);
    let at = |count: usize| text.char_indices().nth(count).map_or(text.len(), |(index, _)| index);
    let (start, end) =
        (text.get(..at(head)).unwrap_or_default(), text.get(at(size - tail)..).unwrap_or_default());
    let whole = format!("{start}{}{end}", note(size - head - tail));
    // Without room for the marker, only the head stays.
    if room == 0 { whole.chars().take(limit).collect() } else { whole }
}

/// The result of a call that failed or did not run.
pub(crate) fn error_result(request: &RequestedCall, error: &ToolError, call: CallId) -> ToolResult {
    let mut text = sentence(error, call);
    let unread = request.arguments_error.as_deref().filter(|why| !why.is_empty());
    if let Some(why) = unread.filter(|_| error.code() == Code::InvalidInput) {
        // Writing to a string cannot fail.
        let _ = write!(text, ". The arguments are invalid JSON: {why}");
    }
    ToolResult { is_error: true, ..ToolResult::text(&request.id, &request.name, text) }
}

/// The public text of an error, of bounded length.
fn sentence(error: &ToolError, call: CallId) -> String {
    let mut text = error.public(call).to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_ERROR_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn parts(output: &Output, call: CallId) -> Vec<Part> {
    let mut parts: Vec<Part> = if output.content.is_empty() {
        vec![Part::text(output.to_text())]
    } else {
        output.content.iter().map(part).collect()
    };
    if let Some(partial) = output.partial.as_ref().filter(|partial| !partial.errors.is_empty()) {
        // An empty text before the errors would be misleading.
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        parts.push(Part::text(failures(partial, call)));
    }
    parts
}

/// The errors of a partial result.
fn failures(partial: &Partial, call: CallId) -> String {
    let failed = partial.errors.len();
    let mut text = format!("{failed} of {} failed:", partial.succeeded.saturating_add(failed));
    for error in partial.errors.iter().take(MAX_ERRORS) {
        text.push_str("\n- ");
        text.push_str(&sentence(error, call));
    }
    if failed > MAX_ERRORS {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n- and {} more", failed - MAX_ERRORS);
    }
    text
}

fn part(content: &Content) -> Part {
    match content {
        Content::Text { text } | Content::Resource { text: Some(text), .. } => Part::text(text.clone()),
        Content::Json { value } => Part::text(value.to_string()),
        Content::Image { media_type, data } => Part::Image(Media {
            media_type: media_type.clone(),
            source: MediaSource::Base64(data.as_str().into()),
            title: None,
        }),
        Content::Resource { uri, media_type, .. } => Part::text(format!("[{media_type} at {uri}]")),
        // No wire supports audio in tool results, so the model reads its type and size.
        Content::Audio { media_type, data } => {
            Part::text(format!("[{media_type}, {} bytes in base64]", data.len()))
        }
        _ => Part::text("[content of an unknown kind]"),
    }
}
