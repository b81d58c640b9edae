//! Finding the tool of a call.

use std::sync::Arc;

use toolpost_core::{Call, ToolError, did_you_mean, unlisted_tool};

use super::clock::sleep_until;

use crate::registry::Entry;
use crate::shared::Shared;
use crate::view::closed;

/// The call with the tool's own name instead of an alias, and the rewritten arguments.
pub(super) fn by_own_name(entry: &Entry, call: Arc<Call>) -> Result<Arc<Call>, ToolError> {
    if *entry.name == *call.tool {
        return Ok(call);
    }
    let alias = entry.spec.aliases.iter().find(|alias| alias.name == call.tool);
    let arguments = alias.map(|alias| alias.rewrite(&call.arguments)).transpose()?;
    let mut own = Call::clone(&call);
    own.tool = entry.name.to_string();
    if let Some(arguments) = arguments {
        own.arguments = Arc::new(arguments);
    }
    Ok(Arc::new(own))
}

pub(super) async fn find(toolbox: &Shared, call: &Call) -> Result<Arc<Entry>, ToolError> {
    let name = call.tool.as_str();
    let (entry, stale) = {
        let registry = toolbox.registry();
        let entry = registry.get(name);
        // A local tool does not depend on lists of sources.
        let stale =
            entry.as_ref().is_none_or(|entry| !entry.is_local()) && !registry.stale_sources().is_empty();
        (entry, stale)
    };
    match entry {
        Some(entry) if !stale => return Ok(entry),
        _ if !stale => {}
        entry => {
            // In a box, as a rare path, to keep the future of every call small.
            let refresh = Box::pin(toolbox.refresh());
            let read = tokio::select! {
                read = refresh => read,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = Box::pin(sleep_until(call.deadline)) => {
                    Err(ToolError::timeout("the deadline passed while a source listed its tools"))
                }
            };
            match (read, entry) {
                // A failed list must not remove known tools.
                (Err(_), Some(entry)) => return Ok(entry),
                (Err(error), None) if toolbox.registry().get(name).is_none() => return Err(error),
                _ => {}
            }
        }
    }
    if let Some(entry) = toolbox.registry().get(name) {
        return Ok(entry);
    }
    let status = toolbox.sources().into_iter().flat_map(|source| source.status());
    if let Some(error) = unlisted_tool(name, status) {
        return Err(error);
    }
    // The suggestion must not reveal tools that are closed to the caller.
    let closed = Box::pin(closed(toolbox, &call.caller)).await;
    let registry = toolbox.registry();
    let open = || registry.names().filter(|name| !closed.contains(*name));
    let hint = did_you_mean(name, open()).unwrap_or_else(|| {
        let names: Vec<&str> = open().take(20).collect();
        if names.is_empty() {
            "The toolbox has no tools.".into()
        } else {
            format!("Available tools: {}.", names.join(", "))
        }
    });
    let shown: String = name.chars().take(80).collect();
    Err(ToolError::not_found(format!("unknown tool `{shown}`")).suggest(hint))
}
