//! Adapts requests to models: unsupported settings are dropped with a notice, unsupported features are errors.

use std::borrow::Cow;

use toolpost_core::{Clock as _, SystemClock};

use super::{Feature, ModelCatalog, ModelInfo, Setting};
use crate::{
    ContextEdit, Effort, ErrorKind, HostedTool, ModelError, ModelSettings, OutputFormat, Part, PromptCaching,
    Request, Thinking, ToolChoice, Turn,
};

/// Maximum number of models that an error names.
const MAX_NAMED: usize = 8;

/// Checks that the model supports every feature that the request needs. The error names models that do.
///
/// The wire emulates the `emulated` features.
pub(crate) fn check(
    catalog: &ModelCatalog,
    info: &ModelInfo,
    request: &Request,
    emulated: &[Feature],
) -> Result<(), ModelError> {
    let lacks = |feature: Feature| info.has(feature) == Some(false) && !emulated.contains(&feature);
    for (feature, what) in needs(request) {
        if lacks(feature) {
            return Err(unsupported(catalog, info, feature, what));
        }
    }
    for tool in &request.hosted_tools {
        let HostedTool::CodeExecution { version: Some(version), .. } = tool else { continue };
        let Some(supported) = info.hosted_versions.get(tool.name()).filter(|list| !list.contains(version))
        else {
            continue;
        };
        let message = format!(
            "`{}` does not support `{version}` of the hosted tool `{}`: use one of {}",
            info.id.name,
            tool.name(),
            supported.join(", ")
        );
        return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&info.id));
    }
    Ok(())
}

/// The features that a request needs, each with the part that needs it.
fn needs(request: &Request) -> Vec<(Feature, &'static str)> {
    let mut needs = Vec::new();
    let mut need = |feature: Feature, what: &'static str| {
        if !needs.iter().any(|(known, _)| *known == feature) {
            needs.push((feature, what));
        }
    };
    if !request.tools.is_empty() {
        need(Feature::Tools, "tools");
    }
    if request.tools.iter().any(|tool| tool.deferred) {
        need(Feature::ToolSearch, "deferred tools");
    }
    if matches!(request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_))) {
        need(Feature::ForcedToolChoice, "a forced tool call");
    }
    for tool in &request.hosted_tools {
        match tool {
            HostedTool::WebSearch { .. } => need(Feature::WebSearch, "the hosted tool `web_search`"),
            HostedTool::WebFetch { .. } => need(Feature::WebFetch, "the hosted tool `web_fetch`"),
            HostedTool::FileSearch { .. } => need(Feature::FileSearch, "the hosted tool `file_search`"),
            HostedTool::CodeExecution { .. } => {
                need(Feature::CodeExecution, "the hosted tool `code_execution`");
            }
            HostedTool::ToolSearch { .. } => need(Feature::ToolSearch, "the hosted tool `tool_search`"),
            // The wires check these tools.
            HostedTool::XSearch { .. } | HostedTool::Raw(_) => {}
        }
    }
    for edit in &request.context_edits {
        match edit {
            ContextEdit::Compact { .. } => {
                need(Feature::Compaction, "compaction by the provider");
            }
            ContextEdit::ClearToolResults { .. } => {
                need(Feature::ToolResultClearing, "removal of old tool results");
            }
        }
    }
    if matches!(request.settings.output, Some(OutputFormat::Schema { .. })) {
        need(Feature::StructuredOutput, "an answer that matches a schema");
    }
    let mut need_part = |part: &Part| match part {
        Part::Image(_) => need(Feature::Images, "images"),
        Part::Document(media) if media.media_type == "application/pdf" => {
            need(Feature::Documents, "PDF documents");
        }
        Part::ContainerFile { .. } => need(Feature::CodeExecution, "container files"),
        _ => {}
    };
    for turn in &request.turns {
        match turn {
            Turn::User(parts) | Turn::System(parts) => parts.iter().for_each(&mut need_part),
            Turn::ToolResults(results) => {
                results.iter().flat_map(|result| &result.content).for_each(&mut need_part);
            }
            Turn::Assistant(_) => {}
        }
    }
    needs
}

/// The error of an unsupported feature, with models that support it.
pub(crate) fn unsupported(
    catalog: &ModelCatalog,
    info: &ModelInfo,
    feature: Feature,
    what: &str,
) -> ModelError {
    let now = SystemClock.timestamp();
    let can = |other: &ModelInfo| other.has(feature) == Some(true) && !other.is_retired(now);
    let (own, others): (Vec<ModelInfo>, Vec<ModelInfo>) =
        catalog.models().filter(can).partition(|other| other.id.provider == info.id.provider);
    // Later names are usually newer. Other providers' models are named only if this one has none.
    let names: Vec<String> = if own.is_empty() { &others } else { &own }
        .iter()
        .rev()
        .take(MAX_NAMED)
        .map(|model| model.id.to_string())
        .collect();
    let mut message = format!("`{}` does not support {what} (`{feature}`)", info.id.name);
    if !names.is_empty() {
        message.push_str(". Models that support it: ");
        message.push_str(&names.join(", "));
    }
    ModelError::new(ErrorKind::Unsupported, message).with_model(&info.id)
}

/// Adapts the settings of a request to a model. Returns a notice for each change.
pub(crate) fn adapt<'a>(info: &ModelInfo, request: &'a Request) -> (Cow<'a, Request>, Vec<String>) {
    let mut settings = Cow::Borrowed(&request.settings);
    let mut notices = Vec::new();
    adapt_settings(info, &mut settings, &mut notices);
    match settings {
        Cow::Borrowed(_) => (Cow::Borrowed(request), notices),
        Cow::Owned(settings) => {
            let mut changed = request.clone();
            changed.settings = settings;
            (Cow::Owned(changed), notices)
        }
    }
}

fn adapt_settings(info: &ModelInfo, settings: &mut Cow<'_, ModelSettings>, notices: &mut Vec<String>) {
    let model = &info.id.name;
    if let Some(requested) = settings.effort
        && let Some(levels) = &info.efforts
        && !levels.contains(&requested)
    {
        let level = nearest(levels, requested);
        settings.to_mut().effort = level;
        notices.push(match level {
            Some(level) => format!(
                "effort `{}` was sent as `{}`, the nearest level that {model} supports",
                requested.as_str(),
                level.as_str()
            ),
            None => format!("`effort` was not sent: {model} does not support it"),
        });
    }
    let thinking = match settings.thinking {
        Some(Thinking::Off) => Some(Setting::ThinkingOff),
        Some(Thinking::Adaptive) => Some(Setting::AdaptiveThinking),
        Some(Thinking::Budget(_)) => Some(Setting::ThinkingBudget),
        None => None,
    };
    if let Some(unsupported) = thinking.filter(|setting| info.unsupported_settings.contains(setting)) {
        let adaptive = unsupported == Setting::ThinkingBudget
            && !info.unsupported_settings.contains(&Setting::AdaptiveThinking);
        settings.to_mut().thinking = adaptive.then_some(Thinking::Adaptive);
        notices.push(if adaptive {
            format!("the thinking budget was not sent: {model} supports adaptive thinking only")
        } else {
            format!("{unsupported} was not sent: {model} does not support it")
        });
    }
    let thinks = match (&settings.thinking, settings.effort) {
        (Some(Thinking::Off), _) => false,
        (Some(_), _) | (None, Some(_)) => true,
        (None, None) => info.thinks_by_default.unwrap_or(true),
    };
    let is_unsupported = |setting: Setting| {
        info.unsupported_settings.contains(&setting)
            || (thinks && info.unsupported_while_thinking.contains(&setting))
    };
    let mut dropped = Vec::new();
    if settings.temperature.is_some() && is_unsupported(Setting::Temperature) {
        settings.to_mut().temperature = None;
        dropped.push(Setting::Temperature);
    }
    if settings.top_p.is_some() && is_unsupported(Setting::TopP) {
        settings.to_mut().top_p = None;
        dropped.push(Setting::TopP);
    }
    if settings.top_k.is_some() && is_unsupported(Setting::TopK) {
        settings.to_mut().top_k = None;
        dropped.push(Setting::TopK);
    }
    if settings.seed.is_some() && is_unsupported(Setting::Seed) {
        settings.to_mut().seed = None;
        dropped.push(Setting::Seed);
    }
    if !settings.stop.is_empty() && is_unsupported(Setting::Stop) {
        settings.to_mut().stop.clear();
        dropped.push(Setting::Stop);
    }
    for setting in dropped {
        let when = if info.unsupported_settings.contains(&setting) { "" } else { " while it thinks" };
        notices.push(format!("`{setting}` was not sent: {model} does not support it{when}"));
    }
    if settings.parallel_tool_calls == Some(true) && info.has(Feature::ParallelTools) == Some(false) {
        settings.to_mut().parallel_tool_calls = None;
        notices.push(format!("`parallel_tool_calls` was not sent: {model} calls one tool at a time"));
    }
    if info.has(Feature::PromptCaching) == Some(false) && settings.prompt_caching != PromptCaching::Off {
        if settings.prompt_caching != PromptCaching::Automatic {
            notices.push(format!("`prompt_caching` was not sent: {model} has no prompt cache"));
        }
        settings.to_mut().prompt_caching = PromptCaching::Off;
    }
    if let (Some(requested), Some(max)) = (settings.max_output_tokens, info.max_output_tokens)
        && u64::from(requested) > max
    {
        settings.to_mut().max_output_tokens = u32::try_from(max).ok();
        notices.push(format!(
            "`max_output_tokens` was sent as {max} instead of {requested}, the maximum of {model}"
        ));
    }
}

/// The highest level up to the requested one, else the lowest.
fn nearest(levels: &[Effort], requested: Effort) -> Option<Effort> {
    let rank = |effort: &Effort| Effort::ALL.iter().position(|known| known == effort);
    let below = levels.iter().filter(|level| rank(level) <= rank(&requested)).max_by_key(|level| rank(level));
    below.or_else(|| levels.iter().min_by_key(|level| rank(level))).copied()
}
