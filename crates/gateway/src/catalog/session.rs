//! Which tools a conversation has loaded.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// From which part of the token budget on a session is warned, and compacted by itself.
const WARNING: f64 = 0.75;
/// From which part of the token budget on it counts as exceeded.
const EXCEEDED: f64 = 0.90;
/// How many tools a session may have unless it says otherwise.
const MAX_TOOLS: usize = 50;

/// Which tools a conversation has loaded, in the order of their loading, with its token budget and what was done with
/// them. It outlives the runs of the conversation: give the same session to the next one, or save it with serde and
/// read it again. Cheap to clone; clones are the same session, and may be used at once.
///
/// As JSON it has the keys `active_tools`, `max_tools`, `session_id`, `metadata`, `token_budget`, `_token_counts`,
/// `auto_compact`, `_analytics_loads`, `_analytics_unloads` and `_analytics_calls`; all may be left out when it is read.
#[derive(Clone, Default)]
pub struct ToolSession(Arc<Mutex<State>>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
struct State {
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
    /// The same as `active_tools`, to be looked up.
    #[serde(skip)]
    active: HashSet<String>,
    /// What cannot be unloaded.
    #[serde(skip)]
    protected: HashSet<String>,
    /// Grows with every change of what is loaded.
    #[serde(skip)]
    revision: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            active_tools: Vec::new(),
            max_tools: MAX_TOOLS,
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

/// What definitions cost, and how much of the budget that is. Counts are of full definitions, so that they do not
/// change when definitions are made compact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// Tokens of all loaded definitions.
    pub tokens_used: u64,
    /// The budget, if there is one.
    pub token_budget: Option<u64>,
    /// What is left of it.
    pub tokens_remaining: Option<u64>,
    /// The used part of it, from 0, to four places; 0 without a budget.
    pub utilisation: f64,
    /// Whether three quarters are used.
    pub warning: bool,
    /// Whether nine tenths are used.
    pub budget_exceeded: bool,
    /// How many tools are loaded.
    pub active_tool_count: usize,
}

/// What was done with the tools of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Analytics {
    /// How often each was loaded.
    pub loads: BTreeMap<String, u64>,
    /// How often each was unloaded.
    pub unloads: BTreeMap<String, u64>,
    /// How often each was called.
    pub calls: BTreeMap<String, u64>,
    /// The loaded ones, the most often loaded first, equal ones by name.
    pub most_loaded: Vec<(String, u64)>,
    /// The called ones, the most often called first, equal ones by name.
    pub most_called: Vec<(String, u64)>,
    /// Those that were loaded and never called.
    pub never_called: Vec<String>,
}

/// What became of tools that were to be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadOutcome {
    pub(super) loaded: Vec<String>,
    pub(super) already_active: Vec<String>,
    pub(super) failed_limit: Vec<String>,
}

/// What became of tools that were to be unloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unloaded {
    /// They are not offered any more.
    pub unloaded: Vec<String>,
    /// They were not loaded.
    pub not_active: Vec<String>,
    /// They belong to the conversation and stay.
    pub refused_protected: Vec<String>,
}

impl State {
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
    /// A session without tools and without a token budget, for at most 50 tools.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done behind this lock, so that a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(self, change: impl FnOnce(&mut State)) -> Self {
        change(&mut self.state());
        self
    }

    /// How many tools may be loaded, core and meta-tools included; those are offered beyond it too. Default: 50.
    #[must_use]
    pub fn with_max_tools(self, limit: usize) -> Self {
        self.changed(|state| state.max_tools = limit)
    }

    /// How many tokens the loaded definitions may have, core and meta-tools included. Default: no limit.
    #[must_use]
    pub fn with_token_budget(self, tokens: u64) -> Self {
        self.changed(|state| state.token_budget = Some(tokens))
    }

    /// Whether definitions are made compact while three quarters of the token budget are used. Default: yes.
    #[must_use]
    pub fn with_auto_compact(self, auto_compact: bool) -> Self {
        self.changed(|state| state.auto_compact = auto_compact)
    }

    /// Names it, for the application.
    #[must_use]
    pub fn with_session_id(self, id: impl Into<String>) -> Self {
        self.changed(|state| state.session_id = Some(id.into()))
    }

    /// Keeps a fact with it, for the application.
    #[must_use]
    pub fn with_metadata(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.changed(|state| {
            state.metadata.insert(key.into(), value.into());
        })
    }

    /// Its name.
    pub fn session_id(&self) -> Option<String> {
        self.state().session_id.clone()
    }

    /// What the application keeps with it.
    pub fn metadata(&self) -> Map<String, Value> {
        self.state().metadata.clone()
    }

    /// The loaded tools, in the order of their loading.
    pub fn active_tools(&self) -> Vec<String> {
        self.state().active_tools.clone()
    }

    /// Whether a tool is loaded.
    pub fn is_active(&self, name: &str) -> bool {
        self.state().active.contains(name)
    }

    /// Loads tools, each with about how many tokens its definition has; 0 where that is not known. New ones come at the
    /// end. Returns those that found no room: there are `max_tools`, or the token budget would be exceeded.
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

    /// Unloads tools. What belongs to the conversation stays: its core and meta-tools.
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

    /// Loads the tools that belong to a conversation, beyond all limits, and protects them; forgets those in `never`,
    /// and counts the tokens of what is loaded again.
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

    /// What was done with its tools.
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

    /// Forgets what was done with its tools.
    pub fn reset_analytics(&self) {
        let mut state = self.state();
        state.loads.clear();
        state.unloads.clear();
        state.calls.clear();
    }

    /// What the loaded definitions cost.
    pub fn budget(&self) -> Budget {
        self.state().budget()
    }

    /// Whether definitions are to be made compact now: three quarters of the budget are used, and it may do so.
    pub fn is_compact(&self) -> bool {
        let state = self.state();
        state.auto_compact && state.budget().warning
    }

    /// Budget and whether it makes definitions compact, if there is a budget.
    pub(super) fn pressure(&self) -> Option<(Budget, bool)> {
        let state = self.state();
        state.token_budget?;
        let budget = state.budget();
        let compact = budget.warning && state.auto_compact;
        Some((budget, compact))
    }

    /// Grows with every change of what is loaded.
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
        let mut state = State::deserialize(deserializer)?;
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
