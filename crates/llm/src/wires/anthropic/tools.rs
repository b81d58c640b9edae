//! Hosted tools of the Messages API: versions, parameters, beta headers.

use serde::Deserialize;

use super::features::{self, Versioned};
use crate::catalog::ModelInfo;
use crate::json::JsonWriter;
use crate::{ContextEdit, ErrorKind, HostedTool, ModelError, Part, Request, Turn};

/// The wire's type of a hosted tool: `code_execution_20260521`.
pub(super) fn tool_type(
    info: &ModelInfo,
    tool: &HostedTool,
    request: &Request,
) -> Result<Option<String>, ModelError> {
    let invalid = |kind: ErrorKind, message: String| Err(ModelError::new(kind, message).with_model(&info.id));
    let (versioned, requested) = match tool {
        HostedTool::CodeExecution { version, .. } => (Versioned::CodeExecution, version.as_deref()),
        HostedTool::WebSearch { allowed_domains, blocked_domains, .. }
        | HostedTool::WebFetch { allowed_domains, blocked_domains, .. } => {
            if !allowed_domains.is_empty() && !blocked_domains.is_empty() {
                let message =
                    format!("`{}` accepts `allowed_domains` or `blocked_domains`, not both", tool.name());
                return invalid(ErrorKind::InvalidRequest, message);
            }
            let is_search = matches!(tool, HostedTool::WebSearch { .. });
            (if is_search { Versioned::WebSearch } else { Versioned::WebFetch }, None)
        }
        HostedTool::FileSearch { .. } => {
            let message =
                "Anthropic has no hosted tool `file_search`: send documents, or use OpenAI, Gemini or xAI";
            return invalid(ErrorKind::Unsupported, message.to_owned());
        }
        HostedTool::ToolSearch { version } => {
            let version = version.as_deref().unwrap_or(features::TOOL_SEARCH);
            if !version.starts_with(features::TOOL_SEARCH_PREFIX) {
                let message = format!(
                    "invalid version of `tool_search`: expected one such as `{}`, found `{version}`",
                    features::TOOL_SEARCH
                );
                return invalid(ErrorKind::InvalidRequest, message);
            }
            return Ok(Some(version.to_owned()));
        }
        HostedTool::XSearch { .. } => {
            let message = "only xAI has the hosted tool `x_search`: use `web_search`";
            return invalid(ErrorKind::Unsupported, message.to_owned());
        }
        HostedTool::Raw(_) => return Ok(None),
    };
    let name = versioned.name();
    let Some(requested) = requested else {
        let filtering = versioned == Versioned::CodeExecution || !has_old_code_execution(request);
        return match features::newest(info, versioned, filtering) {
            Some(version) => Ok(Some(version.to_owned())),
            None => {
                let others = features::models_with(info, versioned, None).join(", ");
                let message =
                    format!("the model does not support the hosted tool `{name}`. Models that do: {others}");
                invalid(ErrorKind::Unsupported, message)
            }
        };
    };
    let is_valid = requested.strip_prefix(name).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'));
    if !is_valid {
        let example = versioned.first_filtering();
        let message =
            format!("invalid version of `{name}`: expected one such as `{example}`, found `{requested}`");
        return invalid(ErrorKind::InvalidRequest, message);
    }
    if !features::supports(info, versioned, requested) {
        let instead = match features::newest(info, versioned, true) {
            Some(newest) => format!("It supports `{newest}`"),
            None => "It supports none".to_owned(),
        };
        let others = features::models_with(info, versioned, Some(requested)).join(", ");
        let message = format!(
            "the model does not support the hosted tool `{requested}`. {instead}; models that do: {others}"
        );
        return invalid(ErrorKind::Unsupported, message);
    }
    Ok(Some(requested.to_owned()))
}

/// Whether the request has a code execution version without support for filtering web tools.
fn has_old_code_execution(request: &Request) -> bool {
    request.hosted_tools.iter().any(|tool| match tool {
        HostedTool::CodeExecution { version: Some(version), .. } => {
            version.as_str() < Versioned::CodeExecution.first_filtering()
        }
        _ => false,
    })
}

/// The wire's types of all hosted tools of a request.
pub(crate) fn hosted_types(info: &ModelInfo, request: &Request) -> Vec<String> {
    let of_options = request.provider_options.get("tools").and_then(|tools| tools.as_array());
    let of_options = of_options.into_iter().flatten().filter_map(|tool| tool["type"].as_str());
    let hosted = request.hosted_tools.iter().filter_map(|tool| match tool {
        HostedTool::Raw(raw) => raw.read::<Typed>().ok().map(|typed| typed.kind),
        // `check` rejects unsupported tools.
        tool => tool_type(info, tool, request).ok().flatten(),
    });
    hosted.chain(of_options.map(str::to_owned)).collect()
}

/// Writes a hosted tool into the list of tools.
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
        // Its name is the version without the date.
        HostedTool::ToolSearch { .. } => out.text("name", without_date(tool_type)),
        _ => out.text("name", tool.name()),
    }
    if let HostedTool::WebSearch { max_uses, allowed_domains, blocked_domains }
    | HostedTool::WebFetch { max_uses, allowed_domains, blocked_domains } = tool
    {
        if let Some(max) = max_uses {
            out.put("max_uses", max)?;
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

/// The files of the code execution tool that are not in the conversation yet.
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

/// Whether the request has hosted tools.
pub(super) fn has_hosted(request: &Request) -> bool {
    let own = request.provider_options.get("tools").and_then(|tools| tools.as_array());
    !request.hosted_tools.is_empty() || own.is_some_and(|tools| !tools.is_empty())
}

/// The type of a tool in the provider's JSON.
#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    kind: String,
}

/// The beta headers of the request's features. The caller's versions take precedence.
pub(super) fn betas(info: &ModelInfo, request: &Request) -> Vec<&'static str> {
    let mut betas: Vec<&'static str> = Vec::new();
    let types = hosted_types(info, request);
    let mut features: Vec<&str> =
        types.iter().chain(request.provider_options.keys()).map(String::as_str).collect();
    for edit in &request.context_edits {
        features.push(edit_type(edit));
    }
    features.extend(own_edits(request));
    for feature in features {
        if let Some(beta) = self::features::beta(feature)
            && !betas.contains(&beta)
            && !request.betas.iter().any(|own| stem(own) == stem(beta))
        {
            betas.push(beta);
        }
    }
    betas
}

/// The wire's type of a context edit.
pub(super) fn edit_type(edit: &ContextEdit) -> &'static str {
    match edit {
        ContextEdit::Compact { .. } => features::COMPACT,
        ContextEdit::ClearToolResults { .. } => features::CLEAR_TOOL_RESULTS,
    }
}

/// The types of context edits in the caller's provider options.
fn own_edits(request: &Request) -> impl Iterator<Item = &str> {
    let edits = request.provider_options.get("context_management").and_then(|own| own["edits"].as_array());
    edits.into_iter().flatten().filter_map(|edit| edit["type"].as_str())
}

/// A tool's type without its date.
fn without_date(version: &str) -> &str {
    match version.rsplit_once('_') {
        Some((name, date)) if date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => version,
    }
}

/// A beta feature without its date.
fn stem(beta: &str) -> &str {
    beta.len().checked_sub("-2026-01-31".len()).and_then(|end| beta.get(..end)).unwrap_or(beta)
}
