//! What a run has in common with the runs that its tools make.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost_core::{RunRecord, ToolError, Values};

use crate::run::Spent;
use crate::{Limits, Runs, StopReason};

/// How many records of runs that tools have made are kept in one record.
const MOST_CHILDREN: usize = 1_000;

/// A run, as the agents see it that are its tools: they get it injected. What they spend counts for it, and for those that
/// it was made from in turn, while they spend it.
pub(crate) struct Family {
    tokens: Option<u64>,
    cost_usd: Option<f64>,
    outer: Option<Arc<Family>>,
    /// The agents that the conversation may move to.
    team: Arc<[String]>,
    /// What was injected into the run itself.
    pub(crate) values: Values,
    /// Where the run is kept.
    pub(crate) runs: Option<Runs>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spent: Spent,
    children: Vec<Arc<RunRecord>>,
    handoff: Option<usize>,
}

impl Family {
    pub(crate) fn new(limits: &Limits, outer: Option<Arc<Self>>) -> Self {
        Self {
            tokens: limits.tokens,
            cost_usd: limits.cost_usd,
            outer,
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

    /// Goes on with what was consumed before.
    pub(crate) fn restore(&self, spent: &Spent) {
        self.state().spent = spent.clone();
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
