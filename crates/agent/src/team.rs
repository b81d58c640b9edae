//! Teams: agents that hand a conversation over to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolpost_core::{Args, BoxFuture, Ctx, Output, RunRecord, Tool, ToolError, ToolSpec};
use toolpost_llm::{CodeExecutionMeter, Turn};

use crate::run_context::RunContext;
use crate::{Agent, Run, RunError, RunLimits, RunOutput, RunStopReason};

/// Handoffs of one run by default.
const DEFAULT_MAX_HANDOFFS: u32 = 8;

/// A tool that hands the conversation over to another agent of a [`Team`]. Outside a team it fails.
///
/// The other agent reads the whole conversation and answers instead of the caller.
#[derive(Debug)]
pub struct Handoff {
    to: String,
    spec: Arc<ToolSpec>,
}

impl Handoff {
    /// The tool `transfer_to_NAME`. The description tells the model when to hand over.
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
            let context = ctx.inject::<Arc<RunContext>>().map_err(|_| {
                ToolError::precondition("the conversation cannot be handed over outside a team")
            })?;
            context.hand_over(&self.to)?;
            Ok(Output::text(format!("Handed over to `{}`.", self.to)))
        })
    }
}

/// Agents that hand a conversation over to each other with [`Handoff`] tools. The first member begins.
#[derive(Clone, Debug)]
pub struct Team {
    first: (String, Agent),
    others: Vec<(String, Agent)>,
    max_handoffs: u32,
    limits: RunLimits,
}

impl Team {
    /// A team whose first member answers first.
    #[must_use]
    pub fn new(name: impl Into<String>, agent: &Agent) -> Self {
        Self {
            first: (name.into(), agent.clone()),
            others: Vec::new(),
            max_handoffs: DEFAULT_MAX_HANDOFFS,
            limits: RunLimits::default(),
        }
    }

    /// Adds a member. Of two members with one name, the first counts.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>, agent: &Agent) -> Self {
        self.others.push((name.into(), agent.clone()));
        self
    }

    /// Sets the number of handoffs; then the handoff tools fail, and the current member has to answer. Defaults to 8.
    #[must_use]
    pub fn max_handoffs(mut self, handoffs: u32) -> Self {
        self.max_handoffs = handoffs;
        self
    }

    /// Limits the tool calls of all members together. Defaults to unlimited.
    #[must_use]
    pub fn max_tool_calls(mut self, calls: u32) -> Self {
        self.limits.tool_calls = Some(calls);
        self
    }

    /// Limits the tokens of all members together. Defaults to unlimited.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u64) -> Self {
        self.limits.tokens = Some(tokens);
        self
    }

    /// Limits the cost of all members together, in US dollars. Defaults to unlimited.
    #[must_use]
    pub fn max_cost_usd(mut self, dollars: f64) -> Self {
        self.limits.cost_usd = Some(dollars);
        self
    }

    fn member(&self, index: usize) -> &(String, Agent) {
        index.checked_sub(1).and_then(|index| self.others.get(index)).unwrap_or(&self.first)
    }

    /// Runs with a prompt; see [`run_with`](Self::run_with).
    ///
    /// # Errors
    /// As [`RunOutput::into_result`].
    pub async fn run(&self, prompt: impl Into<String>) -> Result<RunOutput, RunError> {
        self.run_with(vec![Turn::user(prompt)], |run| run).await
    }

    /// Continues a conversation. `prepare` sets the port, scope or cancellation of each member's run.
    ///
    /// The output is that of the last member, with the usage and cost of all. Its record has the runs of the other members
    /// as children, and a notice for each handoff.
    ///
    /// # Errors
    /// As [`RunOutput::into_result`].
    pub async fn run_with(
        &self,
        turns: Vec<Turn>,
        prepare: impl Fn(Run) -> Run,
    ) -> Result<RunOutput, RunError> {
        let context = Arc::new(RunContext::new(&self.limits, None));
        let (mut turns, mut state, mut member, mut handoffs) = (turns, BTreeMap::new(), 0, 0);
        let mut code_meter = CodeExecutionMeter::new();
        let mut earlier: Vec<Arc<RunRecord>> = Vec::new();
        let mut notices = Vec::new();
        loop {
            // After the last handoff no member can hand over.
            let names: Arc<[String]> = if handoffs < self.max_handoffs {
                std::iter::once(&self.first).chain(&self.others).map(|(name, _)| name.clone()).collect()
            } else {
                Arc::default()
            };
            let (name, agent) = self.member(member);
            let run = prepare(agent.run_turns(turns).with_provider_state(state)).within(&context);
            let mut output = run.in_team(names).after(earlier.clone(), code_meter).finish().await;
            let next = output.handoff.filter(|_| output.stop == RunStopReason::Handoff);
            let Some(next) = next else {
                if handoffs > 0 {
                    let record = Arc::make_mut(&mut output.record);
                    let spent = context.spent();
                    record.usage = spent.usage;
                    record.cost_usd = spent.cost_usd;
                    notices.append(&mut record.notices);
                    record.notices = notices;
                }
                return output.into_result();
            };
            let (to, _) = self.member(next);
            notices.push(format!("the conversation moved from `{name}` to `{to}`"));
            // The record lists earlier members as children; in the result all members are siblings.
            let mut record = output.record;
            let children = &mut Arc::make_mut(&mut record).children;
            children.drain(..earlier.len().min(children.len()));
            earlier.push(record);
            (turns, state, code_meter) = (output.turns, output.provider_state, output.code_meter);
            member = next;
            handoffs += 1;
        }
    }
}
