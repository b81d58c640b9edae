//! The loaded tools of a conversation.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// The share of the token budget from which definitions are compacted automatically.
const WARNING: f64 = 0.75;
/// The share of the token budget from which it counts as exceeded.
const EXCEEDED: f64 = 0.90;
/// The default maximum number of loaded tools.
const DEFAULT_MAX_TOOLS: usize = 50;

/// The loaded tools of a conversation, in load order, with a token budget and analytics.
///
/// It outlives the runs of the conversation: pass the same session to the next run, or store it with serde. Cheap to
/// clone; all clones share their state.
///
/// Its JSON has the keys `active_tools`, `max_tools`, `session_id`, `metadata`, `token_budget`, `_token_counts`,
/// `auto_compact`, `_analytics_loads`, `_analytics_unloads` and `_analytics_calls`; all are optional on input.
#[derive(Clone, Default)]
pub struct ToolSession(Arc<Mutex<SessionTools>>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
struct SessionTools {
    active_tools: Vec<String>,
    max_tools: usize,
    session_id: Option<String>,
    metadata: Map<String, Value>,
    token_budget: Option<u64>,
    #[serde(rename = "_token_counts")]
    token_counts: BTreeMap<String, u64>,
    auto_compact: bool,
    #[serde(rename = "_analytics_loads")]
    loads: BTreeMap<String, u64>,
    #[serde(rename = "_analytics_unloads")]
    unloads: BTreeMap<String, u64>,
    #[serde(rename = "_analytics_calls")]
    calls: BTreeMap<String, u64>,
    /// The set of `active_tools`.
    #[serde(skip)]
    active: HashSet<String>,
    /// The tools that cannot be unloaded.
    #[serde(skip)]
    protected: HashSet<String>,
    /// Grows with every change of the loaded tools.
    #[serde(skip)]
    revision: u64,
}

impl Default for SessionTools {
    fn default() -> Self {
        Self {
            active_tools: Vec::new(),
            max_tools: DEFAULT_MAX_TOOLS,
            session_id: None,
            metadata: Map::new(),
            token_budget: None,
            token_counts: BTreeMap::new(),
            auto_compact: true,
            loads: BTreeMap::new(),
            unloads: BTreeMap::new(),
            calls: BTreeMap::new(),
            active: HashSet::new(),
            protected: HashSet::new(),
            revision: 0,
        }
    }
}

/// The tokens of the loaded definitions, and their share of the budget. Full definitions count, even while they are
/// compact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// The tokens of all loaded definitions.
    pub tokens_used: u64,
    /// The budget, if any.
    pub token_budget: Option<u64>,
    /// The remaining tokens of the budget.
    pub tokens_remaining: Option<u64>,
    /// The used share of the budget, rounded to four places; 0 without a budget.
    pub utilisation: f64,
    /// Whether at least three quarters are used.
    pub warning: bool,
    /// Whether at least nine tenths are used.
    pub budget_exceeded: bool,
    /// The number of loaded tools.
    pub active_tool_count: usize,
}

/// Counts of the loads and calls of a session's tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Analytics {
    /// The number of loads, by tool.
    pub loads: BTreeMap<String, u64>,
    /// The number of unloads, by tool.
    pub unloads: BTreeMap<String, u64>,
    /// The number of calls, by tool.
    pub calls: BTreeMap<String, u64>,
    /// The loaded tools by number of loads, ties by name.
    pub most_loaded: Vec<(String, u64)>,
    /// The called tools by number of calls, ties by name.
    pub most_called: Vec<(String, u64)>,
    /// The tools that were loaded and never called.
    pub never_called: Vec<String>,
}

/// The result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadOutcome {
    pub(super) loaded: Vec<String>,
    pub(super) already_active: Vec<String>,
    pub(super) failed_limit: Vec<String>,
}

/// The result of an unload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unloaded {
    /// The unloaded tools.
    pub unloaded: Vec<String>,
    /// The tools that were not loaded.
    pub not_active: Vec<String>,
    /// The core and meta-tools, which stay loaded.
    pub refused_protected: Vec<String>,
}

impl SessionTools {
    fn used(&self) -> u64 {
        let counts = self.active_tools.iter().filter_map(|name| self.token_counts.get(name));
        counts.fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }

    fn budget(&self) -> Budget {
        let used = self.used();
        let utilisation = match self.token_budget {
            Some(budget) if budget > 0 => (used as f64 / budget as f64 * 10_000.0).round() / 10_000.0,
            _ => 0.0,
        };
        Budget {
            tokens_used: used,
            token_budget: self.token_budget,
            tokens_remaining: self.token_budget.map(|budget| budget.saturating_sub(used)),
            utilisation,
            warning: utilisation >= WARNING,
            budget_exceeded: utilisation >= EXCEEDED,
            active_tool_count: self.active_tools.len(),
        }
    }

    fn activate(&mut self, name: &str, tokens: u64) {
        self.active.insert(name.to_owned());
        self.active_tools.push(name.to_owned());
        count(&mut self.loads, name);
        if tokens > 0 {
            self.token_counts.insert(name.to_owned(), tokens);
        }
    }

    fn deactivate(&mut self, name: &str) {
        self.active.remove(name);
        self.active_tools.retain(|active| active != name);
        self.token_counts.remove(name);
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}

impl ToolSession {
    /// Creates a session for at most 50 tools, without a token budget.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, SessionTools> {
        // The state is consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(self, change: impl FnOnce(&mut SessionTools)) -> Self {
        change(&mut self.state());
        self
    }

    /// Sets the maximum number of loaded tools, including core and meta-tools, which load beyond it too. Default: 50.
    #[must_use]
    pub fn with_max_tools(self, limit: usize) -> Self {
        self.changed(|state| state.max_tools = limit)
    }

    /// Sets the token budget of all loaded definitions, including core and meta-tools. Default: no limit.
    #[must_use]
    pub fn with_token_budget(self, tokens: u64) -> Self {
        self.changed(|state| state.token_budget = Some(tokens))
    }

    /// Sets whether definitions are compact while three quarters of the budget are used. Default: yes.
    #[must_use]
    pub fn with_auto_compact(self, auto_compact: bool) -> Self {
        self.changed(|state| state.auto_compact = auto_compact)
    }

    /// Sets an id, for the application.
    #[must_use]
    pub fn with_session_id(self, id: impl Into<String>) -> Self {
        self.changed(|state| state.session_id = Some(id.into()))
    }

    /// Adds metadata, for the application.
    #[must_use]
    pub fn with_metadata(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.changed(|state| {
            state.metadata.insert(key.into(), value.into());
        })
    }

    /// The id of the application.
    pub fn session_id(&self) -> Option<String> {
        self.state().session_id.clone()
    }

    /// The metadata of the application.
    pub fn metadata(&self) -> Map<String, Value> {
        self.state().metadata.clone()
    }

    /// The loaded tools, in load order.
    pub fn active_tools(&self) -> Vec<String> {
        self.state().active_tools.clone()
    }

    /// Whether a tool is loaded.
    pub fn is_active(&self, name: &str) -> bool {
        self.state().active.contains(name)
    }

    /// Loads tools, each with the estimated tokens of its definition, or 0 if unknown. Returns the tools that would
    /// exceed the maximum number or the token budget.
    pub fn load<'a>(&self, tools: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<String> {
        self.try_load(tools).failed_limit
    }

    pub(super) fn try_load<'a>(&self, tools: impl IntoIterator<Item = (&'a str, u64)>) -> LoadOutcome {
        let mut state = self.state();
        let mut outcome = LoadOutcome::default();
        let mut used = state.used();
        for (name, tokens) in tools {
            let within = state.token_budget.is_none_or(|budget| {
                tokens == 0 || used.checked_add(tokens).is_some_and(|sum| sum <= budget)
            });
            if state.active.contains(name) {
                outcome.already_active.push(name.to_owned());
            } else if state.active_tools.len() < state.max_tools && within {
                state.activate(name, tokens);
                used = used.saturating_add(tokens);
                outcome.loaded.push(name.to_owned());
            } else {
                outcome.failed_limit.push(name.to_owned());
            }
        }
        state.revision += u64::from(!outcome.loaded.is_empty());
        outcome
    }

    /// Unloads tools. Core and meta-tools stay.
    pub fn unload<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Unloaded {
        let mut state = self.state();
        let mut outcome = Unloaded::default();
        for name in names {
            if state.protected.contains(name) {
                outcome.refused_protected.push(name.to_owned());
            } else if state.active.contains(name) {
                state.deactivate(name);
                count(&mut state.unloads, name);
                outcome.unloaded.push(name.to_owned());
            } else {
                outcome.not_active.push(name.to_owned());
            }
        }
        state.revision += u64::from(!outcome.unloaded.is_empty());
        outcome
    }

    /// Loads and protects the core and meta-tools of a conversation, beyond all limits. Unloads the tools in `never`, and
    /// counts the tokens of the loaded tools again.
    pub(super) fn begin(&self, own: &[(String, u64)], never: &[&str], tokens: impl Fn(&str) -> Option<u64>) {
        let mut state = self.state();
        let state = &mut *state;
        for name in never {
            state.deactivate(name);
        }
        for name in state.active_tools.clone() {
            if let Some(tokens) = tokens(&name) {
                state.token_counts.insert(name, tokens);
            }
        }
        for (name, tokens) in own {
            if state.active.contains(name) {
                state.token_counts.insert(name.clone(), *tokens);
            } else {
                state.activate(name, *tokens);
            }
        }
        state.protected = own.iter().map(|(name, _)| name.clone()).collect();
        state.revision += 1;
    }

    /// Counts a call.
    pub fn record_call(&self, name: &str) {
        count(&mut self.state().calls, name);
    }

    /// The analytics.
    pub fn analytics(&self) -> Analytics {
        let state = self.state();
        let most = |counts: &BTreeMap<String, u64>| {
            let mut most: Vec<(String, u64)> =
                counts.iter().map(|(name, count)| (name.clone(), *count)).collect();
            most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            most
        };
        Analytics {
            most_loaded: most(&state.loads),
            most_called: most(&state.calls),
            never_called: state
                .loads
                .keys()
                .filter(|name| !state.calls.contains_key(*name))
                .cloned()
                .collect(),
            loads: state.loads.clone(),
            unloads: state.unloads.clone(),
            calls: state.calls.clone(),
        }
    }

    /// Resets the analytics.
    pub fn reset_analytics(&self) {
        let mut state = self.state();
        state.loads.clear();
        state.unloads.clear();
        state.calls.clear();
    }

    /// The budget and its use.
    pub fn budget(&self) -> Budget {
        self.state().budget()
    }

    /// Whether definitions are compact now: auto-compact is on and three quarters of the budget are used.
    pub fn is_compact(&self) -> bool {
        let state = self.state();
        state.auto_compact && state.budget().warning
    }

    /// The budget, if any, and whether definitions are compact.
    pub(super) fn pressure(&self) -> Option<(Budget, bool)> {
        let state = self.state();
        state.token_budget?;
        let budget = state.budget();
        let compact = budget.warning && state.auto_compact;
        Some((budget, compact))
    }

    /// Grows with every change of the loaded tools.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }
}

impl Serialize for ToolSession {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.state().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolSession {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut state = SessionTools::deserialize(deserializer)?;
        let mut active = HashSet::new();
        state.active_tools.retain(|name| active.insert(name.clone()));
        state.token_counts.retain(|name, _| active.contains(name));
        state.active = active;
        Ok(Self(Arc::new(Mutex::new(state))))
    }
}

impl fmt::Debug for ToolSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("ToolSession")
            .field("session_id", &state.session_id)
            .field("active_tools", &state.active_tools)
            .field("budget", &state.budget())
            .finish_non_exhaustive()
    }
}
