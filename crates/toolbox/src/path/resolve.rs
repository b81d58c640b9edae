//! Which tool is meant.

use std::sync::Arc;

use toolpost_core::{ToolError, did_you_mean};

use crate::registry::Entry;
use crate::toolbox::Shared;

pub(super) async fn find(toolbox: &Shared, name: &str) -> Result<Arc<Entry>, ToolError> {
    let (entry, stale) = {
        let registry = toolbox.registry();
        (registry.get(name), !registry.stale_sources().is_empty())
    };
    match entry {
        Some(entry) if !stale => return Ok(entry),
        // A list that cannot be read again must not take the tools away that are known.
        known if stale => match (toolbox.refresh().await, known) {
            (Err(_), Some(entry)) => return Ok(entry),
            (Err(error), None) => return Err(error),
            (Ok(()), _) => {}
        },
        _ => {}
    }
    let registry = toolbox.registry();
    registry.get(name).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        let hint = did_you_mean(name, registry.names()).unwrap_or_else(|| {
            let names: Vec<&str> = registry.names().take(20).collect();
            if names.is_empty() {
                "There are no tools.".into()
            } else {
                format!("There are: {}.", names.join(", "))
            }
        });
        ToolError::not_found(format!("there is no tool `{shown}`")).suggest(hint)
    })
}
