//! Agents that a conversation moves between.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolpost_core::{Args, BoxFuture, Ctx, Output, RunRecord, Tool, ToolError, ToolSpec};
use toolpost_llm::{CodeExecutionMeter, Turn};

use crate::family::Family;
use crate::{Agent, Limits, Outcome, Run, StopReason};

/// How often a conversation moves unless set.
const MOST_HANDOFFS: u32 = 8;

/// A tool that moves the conversation to another agent of a [`Team`], which then answers in place of the one that called
/// it, and sees all that was said. Outside of a team it is an error.
#[derive(Debug)]
pub struct Handoff {
    to: String,
    spec: Arc<ToolSpec>,
}

impl Handoff {
    /// The tool `transfer_to_NAME`. The description says when to move there.
    #[must_use]
    pub fn to(name: impl Into<String>, description: impl Into<String>) -> Self {
        let to = name.into();
        let spec = ToolSpec::new(format!("transfer_to_{to}"), description);
        Self { to, spec: Arc::new(spec) }
    }
}

impl Tool for Handoff {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, _args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let family = ctx.inject::<Arc<Family>>().map_err(|_| {
                ToolError::precondition("the conversation cannot move: nobody runs it as one of a team")
            })?;
            family.hand_over(&self.to)?;
            Ok(Output::text(format!("The conversation goes on with `{}`.", self.to)))
        })
    }
}

/// Agents between which a conversation moves, by tools that are [`Handoff`]s. The first one begins.
#[derive(Clone, Debug)]
pub struct Team {
    first: (String, Agent),
    others: Vec<(String, Agent)>,
    most_handoffs: u32,
    limits: Limits,
}

impl Team {
    /// A team whose first member answers first.
    #[must_use]
    pub fn new(name: impl Into<String>, agent: &Agent) -> Self {
        Self {
            first: (name.into(), agent.clone()),
            others: Vec::new(),
            most_handoffs: MOST_HANDOFFS,
            limits: Limits::default(),
        }
    }

    /// One more member. Of two of a name the first counts.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>, agent: &Agent) -> Self {
        self.others.push((name.into(), agent.clone()));
        self
    }

    /// How often the conversation moves; then the tools for it fail, and whose turn it is has to answer. Default: 8.
    #[must_use]
    pub fn max_handoffs(mut self, handoffs: u32) -> Self {
        self.most_handoffs = handoffs;
        self
    }

    /// How many tools all members together may call, and how many tokens and US dollars they may spend; other limits are
    /// those of each member. Default: unlimited.
    #[must_use]
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// A member by its place.
    fn member(&self, place: usize) -> &(String, Agent) {
        place.checked_sub(1).and_then(|place| self.others.get(place)).unwrap_or(&self.first)
    }

    /// Answers a prompt; see [`run_with`](Self::run_with).
    pub async fn run(&self, prompt: impl Into<String>) -> Outcome {
        self.run_with(vec![Turn::user(prompt)], |run| run).await
    }

    /// Goes on from a conversation. Each member's run is made ready by the function: with a port, a scope, a cancellation.
    /// The outcome is that of the last member; its record has the runs of the others as children, and says who gave to
    /// whom. What it consumed and cost is what all of them did.
    pub async fn run_with(&self, turns: Vec<Turn>, ready: impl Fn(Run) -> Run) -> Outcome {
        let family = Arc::new(Family::new(&self.limits, None));
        let (mut turns, mut carry, mut member, mut moves) = (turns, BTreeMap::new(), 0, 0);
        let mut code_meter = CodeExecutionMeter::new();
        let mut earlier: Vec<Arc<RunRecord>> = Vec::new();
        let mut notices = Vec::new();
        loop {
            // The last one may not move it any further.
            let names: Arc<[String]> = if moves < self.most_handoffs {
                std::iter::once(&self.first).chain(&self.others).map(|(name, _)| name.clone()).collect()
            } else {
                Arc::default()
            };
            let (name, agent) = self.member(member);
            let run = ready(Run::from_turns(agent, turns).with_carry(carry)).within(&family).in_team(names);
            let mut outcome = run.after(earlier.clone(), code_meter).finish().await;
            let next = outcome.handoff.filter(|_| outcome.stop == StopReason::Handoff);
            let Some(next) = next else {
                if moves > 0 {
                    let record = Arc::make_mut(&mut outcome.record);
                    let spent = family.spent();
                    record.usage = spent.usage;
                    record.cost_usd = spent.cost_usd;
                    notices.append(&mut record.notices);
                    record.notices = notices;
                }
                return outcome;
            };
            let (to, _) = self.member(next);
            notices.push(format!("the conversation moved from `{name}` to `{to}`"));
            // Its record names those before it too; here they stand side by side.
            let mut record = outcome.record;
            let children = &mut Arc::make_mut(&mut record).children;
            children.drain(..earlier.len().min(children.len()));
            earlier.push(record);
            (turns, carry, code_meter) = (outcome.turns, outcome.carry, outcome.code_meter);
            member = next;
            moves += 1;
        }
    }
}
