//! The marks that tell the provider what to keep in its cache: never more than it takes.

use memchr::memmem;
use serde_json::Value;

use crate::{ErrorKind, ModelError, ModelId, PromptCaching};

/// The most marks that the provider takes in one request, the automatic one included.
pub(super) const MOST: usize = 4;

/// `None` if a body has no more marks than the provider takes; else how many of ours there is room for beside the
/// request's own. An error if those alone are too many.
pub(super) fn room_for_ours(
    body: &[u8],
    caching: &PromptCaching,
    model: &ModelId,
) -> Result<Option<usize>, ModelError> {
    // In a string the quotes would be escaped. Names of a schema's properties are told apart below.
    if memmem::find_iter(body, b"\"cache_control\"").count() <= MOST {
        return Ok(None);
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return Ok(None) };
    let all = count(&body);
    if all <= MOST {
        return Ok(None);
    }
    let ours = match caching {
        PromptCaching::Off => 0,
        PromptCaching::Automatic | PromptCaching::AutomaticFor(_) => 1,
        // After the tools, the instructions and the last turn, as far as there are such.
        PromptCaching::Breakpoints(_) => {
            let takes_mark =
                |tool: &Value| tool.get("input_schema").is_some() && tool.get("defer_loading").is_none();
            let has_tool = body["tools"].as_array().into_iter().flatten().any(takes_mark);
            1 + usize::from(body["system"].is_array()) + usize::from(has_tool)
        }
    };
    match all.saturating_sub(ours) {
        theirs @ 0..=MOST => Ok(Some(MOST - theirs)),
        theirs => {
            let message = format!(
                "the request's own parts and options have {theirs} marks `cache_control`: expected at most {MOST}. Take \
                 some away, or leave the marks to `prompt_caching`"
            );
            Err(ModelError::new(ErrorKind::InvalidRequest, message).with_model(model))
        }
    }
}

/// The marks of a body, where the provider looks for them.
fn count(body: &Value) -> usize {
    let on = |object: &Value| usize::from(object.get("cache_control").is_some_and(|mark| !mark.is_null()));
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut marks = on(body);
    marks += list(&body["system"]).iter().chain(&list(&body["tools"])).map(on).sum::<usize>();
    for message in list(&body["messages"]) {
        for block in list(&message["content"]) {
            marks += on(&block);
            marks += list(&block["content"]).iter().map(on).sum::<usize>();
            marks += list(&block["source"]["content"]).iter().map(on).sum::<usize>();
        }
    }
    marks
}
