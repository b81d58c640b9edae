//! Limits, spending and listeners that a run shares with the runs nested in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use toolpost_core::{RunId, RunRecord, ToolError, Values};

use crate::listeners::Listeners;
use crate::memory::Runs;
use crate::spend::Spent;
use crate::{RunLimits, RunStopReason};

/// Records of nested runs in one record.
const MAX_CHILDREN: usize = 1_000;

/// A run as its nested agents see it: the run injects it into its tools. Spending of a nested run counts at once for all
/// runs above it.
pub(crate) struct RunContext {
    tool_calls: Option<u32>,
    tokens: Option<u64>,
    cost_usd: Option<f64>,
    outer: Option<Arc<RunContext>>,
    /// The id of the run; a team has none.
    pub(crate) run: Option<RunId>,
    /// The sinks for events of the run and of nested runs.
    pub(crate) listeners: Arc<Listeners>,
    /// The metadata of usage events.
    pub(crate) usage_metadata: Map<String, Value>,
    /// The team members that may take over the conversation.
    pub(crate) team: Arc<[String]>,
    /// The values injected into the run.
    pub(crate) values: Values,
    /// Where the run is persisted.
    pub(crate) runs: Option<Runs>,
    state: Mutex<RunTotals>,
}

#[derive(Default)]
struct RunTotals {
    spent: Spent,
    tool_calls: u32,
    children: Vec<Arc<RunRecord>>,
    handoff: Option<usize>,
}

impl RunContext {
    pub(crate) fn new(limits: &RunLimits, outer: Option<Arc<Self>>) -> Self {
        Self {
            tool_calls: limits.tool_calls,
            tokens: limits.tokens,
            cost_usd: limits.cost_usd,
            listeners: outer.as_ref().map(|outer| Arc::clone(&outer.listeners)).unwrap_or_default(),
            outer,
            run: None,
            usage_metadata: Map::new(),
            team: Arc::default(),
            values: Values::default(),
            runs: None,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RunTotals> {
        // No panic leaves a partial change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the usage of a model for this run and all runs above it.
    pub(crate) fn spend(&self, spent: &Spent) {
        self.state().spent.add(spent);
        if let Some(outer) = &self.outer {
            outer.spend(spent);
        }
    }

    /// Restores the spending and the number of tool calls of a resumed run.
    pub(crate) fn restore(&self, spent: &Spent, tool_calls: u32) {
        let mut state = self.state();
        state.spent = Spent::default();
        state.spent.add(spent);
        state.tool_calls = tool_calls;
    }

    /// The number of requested tool calls that the limits of this run and of all runs above it allow.
    pub(crate) fn allowed_calls(&self, requested: usize) -> usize {
        let own = self.own_allowed_calls(&self.state(), requested);
        self.outer.as_ref().map_or(own, |outer| outer.allowed_calls(own))
    }

    /// Reserves as many of the requested tool calls as the limits allow, here and in all runs above. Returns their number.
    pub(crate) fn take_calls(&self, requested: usize) -> usize {
        // The lock order is always from the inner to the outer run, so there is no deadlock.
        let mut state = self.state();
        let own = self.own_allowed_calls(&state, requested);
        let taken = self.outer.as_ref().map_or(own, |outer| outer.take_calls(own));
        state.tool_calls = state.tool_calls.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
        taken
    }

    fn own_allowed_calls(&self, state: &RunTotals, requested: usize) -> usize {
        self.tool_calls
            .map_or(requested, |limit| requested.min(limit.saturating_sub(state.tool_calls) as usize))
    }

    /// The number of tool calls of this run and of nested runs.
    pub(crate) fn tool_calls(&self) -> u32 {
        self.state().tool_calls
    }

    /// Whether this run or a run above it limits cost.
    pub(crate) fn limits_cost(&self) -> bool {
        self.cost_usd.is_some() || self.outer.as_ref().is_some_and(|outer| outer.limits_cost())
    }

    /// The spending of this run and of nested runs.
    pub(crate) fn spent(&self) -> Spent {
        self.state().spent.clone()
    }

    /// The limit of tokens or cost that this run or a run above it has reached.
    pub(crate) fn used_up(&self) -> Option<RunStopReason> {
        let own = {
            let spent = &self.state().spent;
            if self.tokens.is_some_and(|limit| spent.usage.total_tokens() >= limit) {
                return Some(RunStopReason::MaxTokens);
            }
            match (self.cost_usd, spent.cost_usd) {
                (Some(limit), Some(spent)) if spent >= limit => Some(RunStopReason::MaxCost),
                // An unknown cost may exceed any limit.
                (Some(_), None) => Some(RunStopReason::UnknownCost),
                _ => None,
            }
        };
        own.or_else(|| self.outer.as_ref()?.used_up())
    }

    /// Whether this run or a run above it limits tokens or cost.
    pub(crate) fn limits_spending(&self) -> bool {
        self.tokens.is_some()
            || self.cost_usd.is_some()
            || self.outer.as_ref().is_some_and(|outer| outer.limits_spending())
    }

    /// Whether a run above this one has reached a limit.
    pub(crate) fn is_outer_used_up(&self) -> bool {
        self.outer.as_ref().is_some_and(|outer| outer.used_up().is_some())
    }

    /// Adds the record of a nested run.
    pub(crate) fn adopt(&self, record: Arc<RunRecord>) {
        let mut state = self.state();
        if state.children.len() < MAX_CHILDREN {
            state.children.push(record);
        }
    }

    pub(crate) fn children(&self) -> Vec<Arc<RunRecord>> {
        self.state().children.clone()
    }

    pub(crate) fn take_children(&self) -> Vec<Arc<RunRecord>> {
        std::mem::take(&mut self.state().children)
    }

    /// Hands the conversation over to a team member after the tool calls of this answer.
    pub(crate) fn hand_over(&self, name: &str) -> Result<(), ToolError> {
        let Some(member) = self.team.iter().position(|member| member == name) else {
            return Err(ToolError::precondition(format!(
                "cannot hand over to `{name}`: unknown team member, or too many handoffs"
            ))
            .suggest("Answer yourself."));
        };
        let mut state = self.state();
        if state.handoff.is_some() {
            return Err(ToolError::conflict("the conversation was already handed over"));
        }
        state.handoff = Some(member);
        Ok(())
    }

    /// The team member that takes over the conversation.
    pub(crate) fn handoff(&self) -> Option<usize> {
        self.state().handoff
    }
}
