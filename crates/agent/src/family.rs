//! What a run has in common with the runs that its tools make.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use toolpost_core::{EventSink, RunId, RunRecord, ToolError, Values};

use crate::run::Spent;
use crate::{Limits, Runs, StopReason, UsageSink};

/// How many records of runs that tools have made are kept in one record.
const MOST_CHILDREN: usize = 1_000;

/// A run, as the agents see it that are its tools: they get it injected. What they spend counts for it, and for those that
/// it was made from in turn, while they spend it.
pub(crate) struct Family {
    tool_calls: Option<u32>,
    tokens: Option<u64>,
    cost_usd: Option<f64>,
    outer: Option<Arc<Family>>,
    /// The run itself; a team is none.
    pub(crate) run: Option<RunId>,
    /// Who is told of what happens in the run, and in those that are made from it.
    pub(crate) listeners: Arc<Listeners>,
    /// What every event of usage carries.
    pub(crate) usage_metadata: Map<String, Value>,
    /// The agents that the conversation may move to.
    team: Arc<[String]>,
    /// What was injected into the run itself.
    pub(crate) values: Values,
    /// Where the run is kept.
    pub(crate) runs: Option<Runs>,
    state: Mutex<State>,
}

/// Who is told of what happens in a run, each once: its own agent's, and those of the runs that it was made from.
#[derive(Clone, Default)]
pub(crate) struct Listeners {
    pub(crate) events: Vec<EventSink>,
    pub(crate) usage: Vec<UsageSink>,
}

impl Listeners {
    /// The same, with an agent's own.
    pub(crate) fn and(&self, events: Option<&EventSink>, usage: Option<&UsageSink>) -> Self {
        let mut all = self.clone();
        all.events
            .extend(events.filter(|sink| !self.events.iter().any(|known| Arc::ptr_eq(known, sink))).cloned());
        all.usage
            .extend(usage.filter(|sink| !self.usage.iter().any(|known| Arc::ptr_eq(known, sink))).cloned());
        all
    }
}

#[derive(Default)]
struct State {
    spent: Spent,
    tool_calls: u32,
    children: Vec<Arc<RunRecord>>,
    handoff: Option<usize>,
}

impl Family {
    pub(crate) fn new(limits: &Limits, outer: Option<Arc<Self>>) -> Self {
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

    /// What the agents that are tools of the run may take over from it.
    pub(crate) fn with(mut self, values: Values, runs: Option<Runs>, team: Arc<[String]>) -> Self {
        self.values = values;
        self.runs = runs;
        self.team = team;
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done behind it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what a model has consumed, here and for all that this run was made from.
    pub(crate) fn spend(&self, spent: &Spent) {
        self.state().spent.add(spent);
        if let Some(outer) = &self.outer {
            outer.spend(spent);
        }
    }

    /// Goes on with what was consumed and called before.
    pub(crate) fn restore(&self, spent: &Spent, tool_calls: u32) {
        let mut state = self.state();
        state.spent = Spent::default();
        state.spent.add(spent);
        state.tool_calls = tool_calls;
    }

    /// How many of so many calls of tools may be made now, here and for all that this run was made from.
    pub(crate) fn allowed_calls(&self, wanted: u32) -> u32 {
        let own =
            self.tool_calls.map_or(wanted, |limit| limit.saturating_sub(self.state().tool_calls).min(wanted));
        self.outer.as_ref().map_or(own, |outer| outer.allowed_calls(own))
    }

    /// Counts calls that are about to be made, as many as may be, here and for all that this run was made from; how many
    /// those are.
    pub(crate) fn take_calls(&self, wanted: u32) -> u32 {
        // The inner one first, always: so nobody waits for somebody who waits.
        let mut state = self.state();
        let own = self.tool_calls.map_or(wanted, |limit| limit.saturating_sub(state.tool_calls).min(wanted));
        let taken = self.outer.as_ref().map_or(own, |outer| outer.take_calls(own));
        state.tool_calls = state.tool_calls.saturating_add(taken);
        taken
    }

    /// How many calls of tools were made, in the run and those that were made from it.
    pub(crate) fn tool_calls(&self) -> u32 {
        self.state().tool_calls
    }

    /// Whether money is limited, here or for one of those that this run was made from.
    pub(crate) fn limits_cost(&self) -> bool {
        self.cost_usd.is_some() || self.outer.as_ref().is_some_and(|outer| outer.limits_cost())
    }

    /// What the run and those that were made from it have consumed.
    pub(crate) fn spent(&self) -> Spent {
        self.state().spent.clone()
    }

    /// Which limit of tokens or money is reached, the run's own or one of those that it was made from.
    pub(crate) fn used_up(&self) -> Option<StopReason> {
        let own = {
            let spent = &self.state().spent;
            if self.tokens.is_some_and(|limit| spent.usage.total_tokens() >= limit) {
                return Some(StopReason::MaxTokens);
            }
            match (self.cost_usd, spent.cost_usd) {
                (Some(limit), Some(spent)) if spent >= limit => Some(StopReason::MaxCost),
                // What nobody has counted could be anything.
                (Some(_), None) => Some(StopReason::UnknownCost),
                _ => None,
            }
        };
        own.or_else(|| self.outer.as_ref()?.used_up())
    }

    /// Whether tokens or money are limited, here or for one of those that this run was made from.
    pub(crate) fn limits_spending(&self) -> bool {
        self.tokens.is_some()
            || self.cost_usd.is_some()
            || self.outer.as_ref().is_some_and(|outer| outer.limits_spending())
    }

    /// Whether one of the runs that this one was made from is at a limit.
    pub(crate) fn is_outer_used_up(&self) -> bool {
        self.outer.as_ref().is_some_and(|outer| outer.used_up().is_some())
    }

    /// Takes the record of a run that was made from this one.
    pub(crate) fn adopt(&self, record: Arc<RunRecord>) {
        let mut state = self.state();
        if state.children.len() < MOST_CHILDREN {
            state.children.push(record);
        }
    }

    pub(crate) fn children(&self) -> Vec<Arc<RunRecord>> {
        self.state().children.clone()
    }

    pub(crate) fn take_children(&self) -> Vec<Arc<RunRecord>> {
        std::mem::take(&mut self.state().children)
    }

    /// Moves the conversation to another agent when the tools of the answer are done.
    pub(crate) fn hand_over(&self, name: &str) -> Result<(), ToolError> {
        let Some(member) = self.team.iter().position(|member| member == name) else {
            return Err(ToolError::precondition(format!(
                "the conversation cannot go on with `{name}`: it is no agent of this team, or there were too many moves"
            ))
            .suggest("Answer yourself."));
        };
        let mut state = self.state();
        if state.handoff.is_some() {
            return Err(ToolError::conflict("the conversation already goes on with another agent"));
        }
        state.handoff = Some(member);
        Ok(())
    }

    /// The agent that the conversation moves to.
    pub(crate) fn handoff(&self) -> Option<usize> {
        self.state().handoff
    }
}
