//! Cache breakpoints, limited to the provider's maximum.

use memchr::memmem;
use serde_json::Value;

use crate::{ErrorKind, ModelError, ModelId, PromptCaching};

/// Maximum number of breakpoints of a request, including the automatic one.
pub(super) const MAX_BREAKPOINTS: usize = 4;

/// The number of our breakpoints that fit besides the request's own; `None` if all fit.
///
/// It is an error if the request's own breakpoints exceed the maximum.
pub(super) fn remaining(
    body: &[u8],
    caching: &PromptCaching,
    model: &ModelId,
) -> Result<Option<usize>, ModelError> {
    // Quotes within strings are escaped. Property names of schemas are excluded below.
    if memmem::find_iter(body, b"\"cache_control\"").count() <= MAX_BREAKPOINTS {
        return Ok(None);
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return Ok(None) };
    let all = count(&body);
    if all <= MAX_BREAKPOINTS {
        return Ok(None);
    }
    let ours = match caching {
        PromptCaching::Off => 0,
        PromptCaching::Automatic | PromptCaching::AutomaticFor(_) => 1,
        // After the tools, the instructions and the last turn, if present.
        PromptCaching::Breakpoints(_) => {
            let can_have_breakpoint =
                |tool: &Value| tool.get("input_schema").is_some() && tool.get("defer_loading").is_none();
            let has_tool = body["tools"].as_array().into_iter().flatten().any(can_have_breakpoint);
            1 + usize::from(body["system"].is_array()) + usize::from(has_tool)
        }
    };
    match all.saturating_sub(ours) {
        theirs @ 0..=MAX_BREAKPOINTS => Ok(Some(MAX_BREAKPOINTS - theirs)),
        theirs => {
            let message = format!(
                "the request has {theirs} `cache_control` breakpoints, more than {MAX_BREAKPOINTS}: \
                 remove some, or use `prompt_caching`"
            );
            Err(ModelError::new(ErrorKind::InvalidRequest, message).with_model(model))
        }
    }
}

/// Counts the breakpoints of a body.
fn count(body: &Value) -> usize {
    let on = |object: &Value| {
        usize::from(object.get("cache_control").is_some_and(|breakpoint| !breakpoint.is_null()))
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut count = on(body);
    count += list(&body["system"]).iter().chain(&list(&body["tools"])).map(on).sum::<usize>();
    for message in list(&body["messages"]) {
        for block in list(&message["content"]) {
            count += on(&block);
            count += list(&block["content"]).iter().map(on).sum::<usize>();
            count += list(&block["source"]["content"]).iter().map(on).sum::<usize>();
        }
    }
    count
}
