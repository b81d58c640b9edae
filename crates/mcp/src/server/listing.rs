//! What a source has, as clients of each era read it; kept until the source changes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{JsonObject, Tool};
use serde_json::{Map, Value};
use toolpost_core::{ToolError, ToolSource, ToolSpec, did_you_mean};

use super::Hints;
use super::calls::shown;
use crate::convert::outward;

/// How long a source may take to list what it has.
pub(super) const LIST_TIME: Duration = Duration::from_secs(10);

/// One state of the list.
#[derive(Default)]
pub(super) struct Listing {
    generation: Option<u64>,
    modern: Vec<Tool>,
    legacy: Vec<Tool>,
    specs: Vec<Arc<ToolSpec>>,
    /// Names and aliases, with the place of the tool.
    places: HashMap<String, usize>,
}

impl Listing {
    /// The tools for an era, in the order of the source.
    pub(super) fn tools(&self, is_legacy: bool) -> &[Tool] {
        if is_legacy { &self.legacy } else { &self.modern }
    }

    /// The input schema of a tool.
    pub(super) fn schema(&self, name: &str) -> Option<Arc<JsonObject>> {
        Some(Arc::clone(&self.modern.get(*self.places.get(name)?)?.input_schema))
    }

    /// What is known of a tool.
    pub(super) fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.specs.get(*self.places.get(name)?)
    }

    /// Says that there is no such tool, and which of those that are open was perhaps meant.
    pub(super) fn unknown(&self, name: &str, open: Option<&HashSet<String>>) -> ErrorData {
        let mut message = format!("there is no tool `{}`", shown(name));
        let names = self.modern.iter().map(|tool| &*tool.name);
        let open = names.filter(|name| open.is_none_or(|open| open.contains(*name)));
        if let Some(hint) = did_you_mean(name, open) {
            message = format!("{message}; {hint}");
        }
        ErrorData::invalid_params(message, None)
    }
}

/// The latest list.
pub(super) struct Listings {
    latest: RwLock<Arc<Listing>>,
    refreshing: tokio::sync::Mutex<()>,
    hints: Hinting,
}

/// What is said of a tool as it comes.
type HintOfEach = Arc<dyn Fn(&ToolSpec) -> Hints + Send + Sync>;

/// What is said of tools to Claude Code: by name, or of each as it comes.
#[derive(Default)]
pub(super) struct Hinting {
    pub(super) by_name: HashMap<String, Map<String, Value>>,
    pub(super) of_each: Option<HintOfEach>,
}

impl Hinting {
    fn of(&self, spec: &ToolSpec) -> Map<String, Value> {
        let mut hints = self.of_each.as_ref().map(|hint| hint(spec).to_meta()).unwrap_or_default();
        hints.extend(self.by_name.get(&spec.name).cloned().unwrap_or_default());
        hints
    }
}

impl Listings {
    pub(super) fn new(hints: Hinting) -> Self {
        Self { latest: RwLock::default(), refreshing: tokio::sync::Mutex::default(), hints }
    }

    /// What was read last, however old it is.
    pub(super) fn latest(&self) -> Arc<Listing> {
        Arc::clone(&self.latest.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The list of now. A source that cannot be read keeps the list that it had.
    pub(super) async fn current(&self, source: &dyn ToolSource) -> Result<Arc<Listing>, ToolError> {
        let latest = self.latest();
        if latest.generation == Some(source.generation()) {
            return Ok(latest);
        }
        let _one_at_a_time = self.refreshing.lock().await;
        let latest = self.latest();
        if latest.generation == Some(source.generation()) {
            return Ok(latest);
        }
        let specs = match tokio::time::timeout(LIST_TIME, source.list()).await {
            Ok(Ok(specs)) => specs,
            Ok(Err(error)) if latest.generation.is_none() => return Err(error),
            Err(_) if latest.generation.is_none() => {
                return Err(ToolError::timeout(format!(
                    "`{}` did not list its tools in time",
                    source.name()
                )));
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(
                    source = source.name(),
                    "the list of tools cannot be read; the one before stays"
                );
                return Ok(latest);
            }
        };
        let tools = |is_legacy| -> Vec<Tool> {
            specs.iter().map(|spec| outward::tool(spec, &self.hints.of(spec), is_legacy)).collect()
        };
        let mut places = HashMap::new();
        for (place, spec) in specs.iter().enumerate() {
            places.insert(spec.name.clone(), place);
        }
        for (place, spec) in specs.iter().enumerate() {
            for alias in &spec.aliases {
                places.entry(alias.name.clone()).or_insert(place);
            }
        }
        // Listing may bring the source up to date, and that is a change of its own.
        let listing = Arc::new(Listing {
            generation: Some(source.generation()),
            modern: tools(false),
            legacy: tools(true),
            places,
            specs,
        });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&listing);
        Ok(listing)
    }
}
