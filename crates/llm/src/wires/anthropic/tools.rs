//! Tools that the provider itself runs: which version of each, what it is told, which beta header it asks for.

use serde::Deserialize;

use super::features::{self, Versioned};
use crate::catalog::ModelInfo;
use crate::json::JsonWriter;
use crate::{ContextEdit, ErrorKind, HostedTool, ModelError, Part, Request, Turn};

/// The version of one of the request's tools, as the wire says it: `code_execution_20260521`.
pub(super) fn tool_type(
    info: &ModelInfo,
    tool: &HostedTool,
    request: &Request,
) -> Result<Option<String>, ModelError> {
    let refused = |kind: ErrorKind, message: String| Err(ModelError::new(kind, message).with_model(&info.id));
    let (versioned, asked) = match tool {
        HostedTool::CodeExecution { version, .. } => (Versioned::CodeExecution, version.as_deref()),
        HostedTool::WebSearch { allowed_domains, blocked_domains, .. }
        | HostedTool::WebFetch { allowed_domains, blocked_domains, .. } => {
            if !allowed_domains.is_empty() && !blocked_domains.is_empty() {
                let message = format!(
                    "`{}`: the Anthropic wire takes `allowed_domains` or `blocked_domains`, not both",
                    tool.name()
                );
                return refused(ErrorKind::InvalidRequest, message);
            }
            let is_search = matches!(tool, HostedTool::WebSearch { .. });
            (if is_search { Versioned::WebSearch } else { Versioned::WebFetch }, None)
        }
        HostedTool::FileSearch { .. } => {
            let message = "the hosted tool `file_search`: Anthropic has none. Give the files as documents, or put them \
                           into the container of `code_execution`; OpenAI, Gemini and xAI have file search";
            return refused(ErrorKind::Unsupported, message.to_owned());
        }
        HostedTool::ToolSearch { version } => {
            let version = version.as_deref().unwrap_or(features::TOOL_SEARCH);
            if !version.starts_with(features::TOOL_SEARCHES) {
                let message = format!(
                    "the version of `tool_search`: expected one such as `{}`, found `{version}`",
                    features::TOOL_SEARCH
                );
                return refused(ErrorKind::InvalidRequest, message);
            }
            return Ok(Some(version.to_owned()));
        }
        HostedTool::XSearch { .. } => {
            let message = "the hosted tool `x_search`: only xAI searches X; `web_search` searches the web";
            return refused(ErrorKind::Unsupported, message.to_owned());
        }
        HostedTool::Raw(_) => return Ok(None),
    };
    let name = versioned.name();
    let Some(asked) = asked else {
        let filtering = versioned == Versioned::CodeExecution || !has_old_code_execution(request);
        return match features::newest(info, versioned, filtering) {
            Some(version) => Ok(Some(version.to_owned())),
            None => {
                let others = features::models_with(info, versioned, None).join(", ");
                let message = format!("the model takes no hosted tool `{name}`. Models that do: {others}");
                refused(ErrorKind::Unsupported, message)
            }
        };
    };
    let is_one = asked.strip_prefix(name).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'));
    if !is_one {
        let example = versioned.first_filtering();
        let message = format!("the version of `{name}`: expected one such as `{example}`, found `{asked}`");
        return refused(ErrorKind::InvalidRequest, message);
    }
    if !features::takes(info, versioned, asked) {
        let instead = match features::newest(info, versioned, true) {
            Some(newest) => format!("It takes `{newest}`"),
            None => "It takes none".to_owned(),
        };
        let others = features::models_with(info, versioned, Some(asked)).join(", ");
        let message = format!(
            "the model does not take the hosted tool `{asked}`. {instead}; models that take `{asked}`: {others}"
        );
        return refused(ErrorKind::Unsupported, message);
    }
    Ok(Some(asked.to_owned()))
}

/// Whether the request asks for a version of code execution in which the newer web tools cannot filter.
fn has_old_code_execution(request: &Request) -> bool {
    request.hosted_tools.iter().any(|tool| match tool {
        HostedTool::CodeExecution { version: Some(version), .. } => {
            version.as_str() < Versioned::CodeExecution.first_filtering()
        }
        _ => false,
    })
}

/// The types of all tools that the provider runs for a request, in its words.
pub(crate) fn hosted_types(info: &ModelInfo, request: &Request) -> Vec<String> {
    let of_options = request.provider_options.get("tools").and_then(|tools| tools.as_array());
    let of_options = of_options.into_iter().flatten().filter_map(|tool| tool["type"].as_str());
    let hosted = request.hosted_tools.iter().filter_map(|tool| match tool {
        HostedTool::Raw(raw) => raw.read::<Typed>().ok().map(|typed| typed.kind),
        // What cannot be sent is refused by the check.
        tool => tool_type(info, tool, request).ok().flatten(),
    });
    hosted.chain(of_options.map(str::to_owned)).collect()
}

/// Writes one hosted tool as a member of the list of tools.
pub(super) fn write(
    out: &mut JsonWriter,
    tool: &HostedTool,
    tool_type: Option<&str>,
) -> Result<(), serde_json::Error> {
    out.comma();
    if let HostedTool::Raw(raw) = tool {
        out.piece(raw.get());
        return Ok(());
    }
    let tool_type = tool_type.unwrap_or_default();
    out.piece("{");
    out.text("type", tool_type);
    match tool {
        // It is called as its version is, without the date.
        HostedTool::ToolSearch { .. } => out.text("name", without_date(tool_type)),
        _ => out.text("name", tool.name()),
    }
    if let HostedTool::WebSearch { max_uses, allowed_domains, blocked_domains }
    | HostedTool::WebFetch { max_uses, allowed_domains, blocked_domains } = tool
    {
        if let Some(most) = max_uses {
            out.put("max_uses", most)?;
        }
        if !allowed_domains.is_empty() {
            out.put("allowed_domains", allowed_domains)?;
        }
        if !blocked_domains.is_empty() {
            out.put("blocked_domains", blocked_domains)?;
        }
    }
    out.piece("}");
    Ok(())
}

/// The files that the code execution tool brings along and that no part of the conversation names yet.
pub(super) fn files(request: &Request) -> Vec<&str> {
    let mut files: Vec<&str> = Vec::new();
    for tool in &request.hosted_tools {
        let HostedTool::CodeExecution { file_ids, .. } = tool else { continue };
        for id in file_ids {
            if !files.contains(&id.as_str()) && !is_named(request, id) {
                files.push(id);
            }
        }
    }
    files
}

fn is_named(request: &Request, id: &str) -> bool {
    request.turns.iter().any(|turn| match turn {
        Turn::User(parts) => {
            parts.iter().any(|part| matches!(part, Part::ContainerFile { file_id } if file_id == id))
        }
        _ => false,
    })
}

/// Whether the provider runs any tool for the request.
pub(super) fn has_hosted(request: &Request) -> bool {
    let own = request.provider_options.get("tools").and_then(|tools| tools.as_array());
    !request.hosted_tools.is_empty() || own.is_some_and(|tools| !tools.is_empty())
}

/// A tool in the provider's own JSON, as far as its type goes.
#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    kind: String,
}

/// The words of the beta header that the request's features ask for. What the caller asks for in another version
/// stands instead.
pub(super) fn betas(info: &ModelInfo, request: &Request) -> Vec<&'static str> {
    let mut betas: Vec<&'static str> = Vec::new();
    let types = hosted_types(info, request);
    let mut asked: Vec<&str> =
        types.iter().chain(request.provider_options.keys()).map(String::as_str).collect();
    for edit in &request.context_edits {
        asked.push(edit_type(edit));
    }
    asked.extend(own_edits(request));
    for feature in asked {
        if let Some(beta) = features::beta(feature)
            && !betas.contains(&beta)
            && !request.betas.iter().any(|own| stem(own) == stem(beta))
        {
            betas.push(beta);
        }
    }
    betas
}

/// The provider's word for a change of long conversations.
pub(super) fn edit_type(edit: &ContextEdit) -> &'static str {
    match edit {
        ContextEdit::Compact { .. } => features::COMPACT,
        ContextEdit::ClearToolResults { .. } => features::CLEAR_TOOL_RESULTS,
    }
}

/// The changes of long conversations that the caller asks for in the provider's own words.
fn own_edits(request: &Request) -> impl Iterator<Item = &str> {
    let edits = request.provider_options.get("context_management").and_then(|own| own["edits"].as_array());
    edits.into_iter().flatten().filter_map(|edit| edit["type"].as_str())
}

/// A version of a tool without its date.
fn without_date(version: &str) -> &str {
    match version.rsplit_once('_') {
        Some((name, date)) if date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => version,
    }
}

/// A beta's name without its date.
fn stem(beta: &str) -> &str {
    beta.len().checked_sub("-2026-01-31".len()).and_then(|end| beta.get(..end)).unwrap_or(beta)
}
