//! Which tool is meant.

use std::sync::Arc;

use toolpost_core::{Call, ToolError, did_you_mean};

use super::run::sleep_until;

use crate::registry::Entry;
use crate::toolbox::Shared;
use crate::view::closed;

/// The call as one by the tool's own name, with the arguments that it then has.
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
        // A source has no say in the tools of this process.
        let stale =
            entry.as_ref().is_none_or(|entry| !entry.is_local()) && !registry.stale_sources().is_empty();
        (entry, stale)
    };
    match entry {
        Some(entry) if !stale => return Ok(entry),
        _ if !stale => {}
        entry => {
            // In a box, as everything that few calls do: the future of every call would have the room for it.
            let refresh = Box::pin(toolbox.refresh());
            let read = tokio::select! {
                read = refresh => read,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop")),
                () = Box::pin(sleep_until(call.deadline)) => {
                    Err(ToolError::timeout("the deadline passed while a source listed its tools"))
                }
            };
            match (read, entry) {
                // A list that cannot be read again must not take the tools away that are known.
                (Err(_), Some(entry)) => return Ok(entry),
                (Err(error), None) if toolbox.registry().get(name).is_none() => return Err(error),
                _ => {}
            }
        }
    }
    if let Some(entry) = toolbox.registry().get(name) {
        return Ok(entry);
    }
    // What is closed to the caller is not told of.
    let closed = Box::pin(closed(toolbox, &call.caller)).await;
    let registry = toolbox.registry();
    let open = || registry.names().filter(|name| !closed.contains(*name));
    let hint = did_you_mean(name, open()).unwrap_or_else(|| {
        let names: Vec<&str> = open().take(20).collect();
        if names.is_empty() {
            "There are no tools.".into()
        } else {
            format!("There are: {}.", names.join(", "))
        }
    });
    let shown: String = name.chars().take(80).collect();
    Err(ToolError::not_found(format!("there is no tool `{shown}`")).suggest(hint))
}
