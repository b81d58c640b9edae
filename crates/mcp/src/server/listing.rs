//! The tool list of the source in MCP form, cached until the source changes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{JsonObject, Tool};
use toolpost_core::{ToolError, ToolSource, ToolSpec, did_you_mean};

use super::Hints;
use super::calls::shown;
use crate::convert::outward;

/// The timeout of listing a source.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds a list request of a source by [`LIST_TIMEOUT`].
pub(super) async fn in_time<T>(listing: impl Future<Output = Result<T, ToolError>>) -> Result<T, ToolError> {
    let timed_out = || ToolError::timeout("listing the source timed out");
    tokio::time::timeout(LIST_TIMEOUT, listing).await.unwrap_or_else(|_| Err(timed_out()))
}

/// One version of the list.
#[derive(Default)]
pub(super) struct Listing {
    generation: Option<u64>,
    modern: Vec<Tool>,
    legacy: Vec<Tool>,
    specs: Vec<Arc<ToolSpec>>,
    /// The index of a tool by name and alias.
    positions: HashMap<String, usize>,
}

impl Listing {
    /// The tools in MCP form, in the order of the source.
    pub(super) fn tools(&self, is_legacy: bool) -> &[Tool] {
        if is_legacy { &self.legacy } else { &self.modern }
    }

    /// The input schema of a tool.
    pub(super) fn schema(&self, name: &str) -> Option<Arc<JsonObject>> {
        Some(Arc::clone(&self.modern.get(*self.positions.get(name)?)?.input_schema))
    }

    /// The spec of a tool.
    pub(super) fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.specs.get(*self.positions.get(name)?)
    }

    /// The error for an unknown tool, with a suggestion among the visible tools.
    pub(super) fn unknown(&self, name: &str, open: Option<&HashSet<String>>) -> ErrorData {
        let mut message = format!("unknown tool `{}`", shown(name));
        let names = self.modern.iter().map(|tool| &*tool.name);
        let visible = names.filter(|name| open.is_none_or(|open| open.contains(*name)));
        if let Some(hint) = did_you_mean(name, visible) {
            message = format!("{message}; {hint}");
        }
        ErrorData::invalid_params(message, None)
    }
}

/// The cache of the list.
pub(super) struct Listings {
    latest: RwLock<Arc<Listing>>,
    refreshing: tokio::sync::Mutex<()>,
    hints: Option<HintForEach>,
}

/// Computes the hints of a tool.
pub(super) type HintForEach = Arc<dyn Fn(&ToolSpec) -> Hints + Send + Sync>;

impl Listings {
    pub(super) fn new(hints: Option<HintForEach>) -> Self {
        Self { latest: RwLock::default(), refreshing: tokio::sync::Mutex::default(), hints }
    }

    /// The cached list, even if it is outdated.
    pub(super) fn latest(&self) -> Arc<Listing> {
        Arc::clone(&self.latest.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The current list. If listing fails, the previous list stays.
    pub(super) async fn current(&self, source: &dyn ToolSource) -> Result<Arc<Listing>, ToolError> {
        let latest = self.latest();
        if latest.generation == Some(source.generation()) {
            return Ok(latest);
        }
        let _guard = self.refreshing.lock().await;
        let latest = self.latest();
        if latest.generation == Some(source.generation()) {
            return Ok(latest);
        }
        let specs = match in_time(source.list()).await {
            Ok(specs) => specs,
            Err(error) if latest.generation.is_none() => return Err(error),
            Err(_) => {
                tracing::warn!(source = source.name(), "listing tools failed; using the previous list");
                return Ok(latest);
            }
        };
        let hints = |spec| self.hints.as_ref().map(|hints| hints(spec).to_meta()).unwrap_or_default();
        let tools = |is_legacy| -> Vec<Tool> {
            specs.iter().map(|spec| outward::tool(spec, hints(spec), is_legacy)).collect()
        };
        let mut positions: HashMap<_, _> =
            specs.iter().enumerate().map(|(position, spec)| (spec.name.clone(), position)).collect();
        for (position, spec) in specs.iter().enumerate() {
            for alias in &spec.aliases {
                positions.entry(alias.name.clone()).or_insert(position);
            }
        }
        // Listing may itself update the generation of the source.
        let listing = Arc::new(Listing {
            generation: Some(source.generation()),
            modern: tools(false),
            legacy: tools(true),
            positions,
            specs,
        });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&listing);
        Ok(listing)
    }
}
