//! Tools that the provider itself runs, as the wire has them.

use std::collections::HashSet;

use super::Dialect;
use crate::json::JsonWriter;
use crate::wires::codec::Notices;
use crate::{HostedTool, Part, Request, Turn};

/// The most accounts that a search of X can be limited to or kept from.
const MOST_HANDLES: usize = 10;

/// The provider's name for a hosted tool.
pub(super) fn kind(tool: &HostedTool) -> Option<&'static str> {
    Some(match tool {
        HostedTool::WebSearch { .. } => "web_search",
        HostedTool::XSearch { .. } => "x_search",
        HostedTool::FileSearch { .. } => "file_search",
        HostedTool::CodeExecution { .. } => "code_interpreter",
        HostedTool::ToolSearch { .. } => "tool_search",
        HostedTool::WebFetch { .. } | HostedTool::Raw(_) => return None,
    })
}

/// What the dialect cannot say of a tool.
pub(super) fn obstacle(dialect: Dialect, tool: &HostedTool) -> Option<String> {
    Some(match (tool, dialect) {
        (HostedTool::WebFetch { .. }, _) => {
            "the hosted tool `web_fetch`: the Responses wire has none; `web_search` opens pages too".to_owned()
        }
        (HostedTool::WebSearch { blocked_domains, .. }, Dialect::OpenAi) if !blocked_domains.is_empty() => {
            "`blocked_domains` of the hosted tool `web_search`: this provider takes `allowed_domains` alone".to_owned()
        }
        (HostedTool::CodeExecution { file_ids, .. }, Dialect::Xai) if !file_ids.is_empty() => {
            "`file_ids` of the hosted tool `code_execution`: this provider takes files as parts of a user's turn"
                .to_owned()
        }
        (HostedTool::ToolSearch { .. }, Dialect::Xai) => {
            "the hosted tool `tool_search`: xAI has none; Anthropic and OpenAI have it".to_owned()
        }
        (HostedTool::XSearch { .. }, Dialect::OpenAi) => {
            "the hosted tool `x_search`: only xAI searches X; `web_search` searches the web".to_owned()
        }
        (HostedTool::XSearch { allowed_handles, blocked_handles, from_date, to_date, .. }, Dialect::Xai) => {
            if !allowed_handles.is_empty() && !blocked_handles.is_empty() {
                return Some(
                    "the hosted tool `x_search`: expected `allowed_handles` or `blocked_handles`, found both".to_owned(),
                );
            }
            let most = allowed_handles.len().max(blocked_handles.len());
            if most > MOST_HANDLES {
                return Some(format!(
                    "the hosted tool `x_search`: expected at most {MOST_HANDLES} handles, found {most}"
                ));
            }
            match (from_date, to_date) {
                (Some(from), Some(to)) if from > to => {
                    format!("the hosted tool `x_search`: `from_date` {from} is after `to_date` {to}")
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Writes one hosted tool as a member of the list of tools.
pub(super) fn write(
    out: &mut JsonWriter,
    dialect: Dialect,
    tool: &HostedTool,
    request: &Request,
    notices: &mut Notices,
) -> Result<(), serde_json::Error> {
    out.comma();
    if let HostedTool::Raw(raw) = tool {
        out.piece(raw.get());
        return Ok(());
    }
    out.piece("{");
    out.text("type", kind(tool).unwrap_or_default());
    match tool {
        HostedTool::WebSearch { max_uses, allowed_domains, blocked_domains } => {
            if !allowed_domains.is_empty() || !blocked_domains.is_empty() {
                out.json("filters", "{");
                put_list(out, "allowed_domains", allowed_domains)?;
                put_list(out, "excluded_domains", blocked_domains)?;
                out.piece("}");
            }
            if max_uses.is_some() {
                notices.add(
                    "`max_uses` of `web_search` was not sent: the Responses wire counts the calls of all hosted tools \
                     together, as `max_tool_calls` of the provider's options",
                );
            }
        }
        HostedTool::XSearch { allowed_handles, blocked_handles, from_date, to_date, images, videos } => {
            put_list(out, "allowed_x_handles", allowed_handles)?;
            put_list(out, "excluded_x_handles", blocked_handles)?;
            for (name, date) in [("from_date", from_date), ("to_date", to_date)] {
                if let Some(date) = date {
                    out.put(name, date)?;
                }
            }
            for (name, wanted) in
                [("enable_image_understanding", images), ("enable_video_understanding", videos)]
            {
                if *wanted {
                    out.json(name, "true");
                }
            }
        }
        HostedTool::FileSearch { stores, max_results } => {
            out.put("vector_store_ids", stores)?;
            if let Some(most) = max_results {
                out.put("max_num_results", most)?;
            }
        }
        HostedTool::CodeExecution { version, file_ids } => {
            if version.is_some() {
                notices.add(
                    "`version` of `code_execution` was not sent: the Responses wire has one version alone",
                );
            }
            if dialect == Dialect::OpenAi {
                // The provider goes on in the container of the conversation's earlier calls, if it still lives.
                out.json("container", r#"{"type":"auto""#);
                put_list(out, "file_ids", &files(request, file_ids))?;
                out.piece("}");
            }
        }
        HostedTool::ToolSearch { version } => {
            if version.is_some() {
                notices
                    .add("`version` of `tool_search` was not sent: the Responses wire has one version alone");
            }
        }
        HostedTool::WebFetch { .. } | HostedTool::Raw(_) => {}
    }
    out.piece("}");
    Ok(())
}

/// The files for a container, of the tool and of the conversation, each once.
fn files<'a>(request: &'a Request, of_tool: &'a [String]) -> Vec<&'a String> {
    let of_turns = request.turns.iter().flat_map(|turn| match turn {
        Turn::User(parts) => parts.as_slice(),
        _ => &[],
    });
    let of_turns = of_turns.filter_map(|part| match part {
        Part::ContainerFile { file_id } => Some(file_id),
        _ => None,
    });
    let mut seen = HashSet::new();
    of_tool.iter().chain(of_turns).filter(|id| seen.insert(id.as_str())).collect()
}

/// A member that is a list, unless it is empty.
fn put_list(
    out: &mut JsonWriter,
    name: &'static str,
    list: &[impl serde::Serialize],
) -> Result<(), serde_json::Error> {
    if list.is_empty() { Ok(()) } else { out.put(name, list) }
}
