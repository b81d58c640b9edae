//! Hosted tools of the Responses API.

use std::collections::HashSet;

use super::Dialect;
use crate::json::JsonWriter;
use crate::wires::codec::Notices;
use crate::{HostedTool, Part, Request, Turn};

/// Maximum number of accounts in a filter of X search.
const MAX_HANDLES: usize = 10;

/// The wire's type of a hosted tool.
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

/// The reason why the dialect does not support a hosted tool, if it does not.
pub(super) fn obstacle(dialect: Dialect, tool: &HostedTool) -> Option<String> {
    Some(match (tool, dialect) {
        (HostedTool::WebFetch { .. }, _) => {
            "the Responses wire has no hosted tool `web_fetch`: use `web_search`, which opens pages too"
                .to_owned()
        }
        (HostedTool::WebSearch { blocked_domains, .. }, Dialect::OpenAi) if !blocked_domains.is_empty() => {
            "OpenAI's `web_search` has no `blocked_domains`: use `allowed_domains`".to_owned()
        }
        (HostedTool::CodeExecution { file_ids, .. }, Dialect::Xai) if !file_ids.is_empty() => {
            "xAI's `code_execution` has no `file_ids`: attach the files to the user turn".to_owned()
        }
        (HostedTool::ToolSearch { .. }, Dialect::Xai) => {
            "xAI has no hosted tool `tool_search`: use Anthropic or OpenAI".to_owned()
        }
        (HostedTool::XSearch { .. }, Dialect::OpenAi) => {
            "only xAI has the hosted tool `x_search`: use `web_search`".to_owned()
        }
        (HostedTool::XSearch { allowed_handles, blocked_handles, from_date, to_date, .. }, Dialect::Xai) => {
            if !allowed_handles.is_empty() && !blocked_handles.is_empty() {
                return Some(
                    "`x_search` accepts `allowed_handles` or `blocked_handles`, not both".to_owned(),
                );
            }
            let count = allowed_handles.len().max(blocked_handles.len());
            if count > MAX_HANDLES {
                return Some(format!("`x_search` accepts at most {MAX_HANDLES} handles, found {count}"));
            }
            match (from_date, to_date) {
                (Some(from), Some(to)) if from > to => {
                    format!("invalid dates of `x_search`: `from_date` {from} is after `to_date` {to}")
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Writes a hosted tool into the list of tools.
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
                notices
                    .add("`max_uses` of `web_search` was not sent: use the provider option `max_tool_calls`");
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
            for (name, is_enabled) in
                [("enable_image_understanding", images), ("enable_video_understanding", videos)]
            {
                if *is_enabled {
                    out.json(name, "true");
                }
            }
        }
        HostedTool::FileSearch { stores, max_results } => {
            out.put("vector_store_ids", stores)?;
            if let Some(max) = max_results {
                out.put("max_num_results", max)?;
            }
        }
        HostedTool::CodeExecution { version, file_ids } => {
            if version.is_some() {
                notices.add("`version` of `code_execution` was not sent: the Responses wire has no versions");
            }
            if dialect == Dialect::OpenAi {
                // The provider reuses the container of earlier calls, if it has not expired.
                out.json("container", r#"{"type":"auto""#);
                put_list(out, "file_ids", &files(request, file_ids))?;
                out.piece("}");
            }
        }
        HostedTool::ToolSearch { version } => {
            if version.is_some() {
                notices.add("`version` of `tool_search` was not sent: the Responses wire has no versions");
            }
        }
        HostedTool::WebFetch { .. } | HostedTool::Raw(_) => {}
    }
    out.piece("}");
    Ok(())
}

/// The distinct files for the container, of the tool and of the conversation.
fn files<'a>(request: &'a Request, tool_files: &'a [String]) -> Vec<&'a String> {
    let turn_files = request.turns.iter().flat_map(|turn| match turn {
        Turn::User(parts) => parts.as_slice(),
        _ => &[],
    });
    let turn_files = turn_files.filter_map(|part| match part {
        Part::ContainerFile { file_id } => Some(file_id),
        _ => None,
    });
    let mut seen = HashSet::new();
    tool_files.iter().chain(turn_files).filter(|id| seen.insert(id.as_str())).collect()
}

/// Writes a list member, unless it is empty.
fn put_list(
    out: &mut JsonWriter,
    name: &'static str,
    list: &[impl serde::Serialize],
) -> Result<(), serde_json::Error> {
    if list.is_empty() { Ok(()) } else { out.put(name, list) }
}
