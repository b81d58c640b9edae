//! An agent as a tool.

use std::pin::pin;
use std::sync::Arc;

use toolpost_core::{
    Args, BoxFuture, Cancellation, Ctx, Evidence, Output, ParameterType, ScopeId, Timeout, Tool, ToolError,
    ToolSpec,
};

use crate::run_context::RunContext;
use crate::{Agent, Conversations, Run, RunOutput, RunStopReason, Runs};

/// An agent as a tool: takes a prompt and returns the answer. See [`Agent::as_tool`].
///
/// Its runs are child runs of the calling run: their spending and tool calls count towards the caller's limits at once.
/// They share the caller's deadline, cancellation, injected values, event sinks and store, and their records are children
/// of the caller's record. The toolbox limits the nesting of calls, and so of agents.
///
/// A call outside of runs starts a run of its own; [`AgentTool::persist_to`] stores it, and the record of the call has its
/// usage and cost. With [`AgentTool::conversations`], a second call with the same idempotency key resumes the first one.
pub struct AgentTool {
    agent: Agent,
    spec: Arc<ToolSpec>,
    runs: Option<Runs>,
    conversations: Option<Conversations>,
}

impl Agent {
    /// This agent as a tool.
    ///
    /// A spec without parameters gets the parameter `prompt`. The prompt of the agent is that argument if it is text, else
    /// all arguments as JSON. The call has no timeout unless the spec sets one. With an answer schema, the tool returns the
    /// value.
    #[must_use]
    pub fn as_tool(&self, spec: ToolSpec) -> AgentTool {
        AgentTool {
            agent: self.clone(),
            spec: Arc::new(AgentTool::spec_for(spec)),
            runs: None,
            conversations: None,
        }
    }
}

impl AgentTool {
    /// The spec that [`Agent::as_tool`] makes, to list the tool before its agent exists.
    #[must_use]
    pub fn spec_for(mut spec: ToolSpec) -> ToolSpec {
        let properties = spec.input_schema.as_value().get("properties").and_then(|value| value.as_object());
        if properties.is_none_or(serde_json::Map::is_empty) {
            spec = spec.parameter(
                "prompt",
                ParameterType::String,
                "What the agent shall do, with all that it needs to know: it sees nothing of this conversation.",
            );
        }
        spec.policy.timeout.get_or_insert(Timeout::Never);
        spec
    }

    /// Stores the runs of calls outside of runs. Defaults to nowhere.
    ///
    /// Other runs are stored with their caller. An error has the id of a stored run as `run` in its context.
    #[must_use]
    pub fn persist_to(mut self, runs: &Runs) -> Self {
        self.runs = Some(runs.clone());
        self
    }
}

impl AgentTool {
    /// Stores the conversation of each call with an idempotency key. Defaults to nowhere.
    ///
    /// A step of a workflow has one. After a crash, its agent continues after the last exchange that was stored.
    #[must_use]
    pub fn conversations(mut self, conversations: &Conversations) -> Self {
        self.conversations = Some(conversations.clone());
        self
    }

    /// The run of a call.
    async fn run(&self, prompt: String, ctx: &Ctx) -> Result<Run, ToolError> {
        let run = match (&self.conversations, ctx.idempotency_key()) {
            (Some(conversations), Some(key)) => {
                let id = ScopeId::of_key(&format!("{}/{key}", self.spec.name));
                let scope = ctx.scope().cloned();
                let conversation = conversations.open_or_create(id).await?;
                let run = conversation.take_up(&self.agent, prompt);
                match scope {
                    Some(scope) => run.with_scope(scope.with_id(id)),
                    None => run,
                }
            }
            _ => {
                let run = self.agent.run(prompt);
                match ctx.scope() {
                    Some(scope) => run.with_scope(scope.clone()),
                    None => run,
                }
            }
        };
        Ok(run)
    }
}

impl Tool for AgentTool {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let prompt = match args.get("prompt").and_then(|prompt| prompt.as_str()) {
                Some(prompt) => prompt.to_owned(),
                None => args.as_value().to_string(),
            };
            let cancellation = Cancellation::new();
            let mut run = self.run(prompt, ctx).await?.with_cancellation(cancellation.clone()).nested_in(ctx);
            let is_in_run = ctx.inject::<Arc<RunContext>>().is_ok();
            let mut stored = None;
            if let (false, Some(runs)) = (is_in_run, &self.runs) {
                run = run.persist_to(runs);
                stored = Some(run.id());
            }
            let mut running = pin!(run.finish());
            let output = tokio::select! {
                output = &mut running => output,
                () = ctx.cancelled() => {
                    cancellation.cancel();
                    // The run ends at once, with a record.
                    running.await
                }
            };
            let answer = answer(&output);
            if !is_in_run {
                let record = &output.record;
                let evidence = Evidence {
                    usage: Some(record.usage.clone()),
                    cost_usd: record.cost_usd,
                    ..Evidence::default()
                };
                return match (answer, stored) {
                    (Ok(mut output), _) => {
                        output.evidence = Some(Box::new(evidence));
                        Ok(output)
                    }
                    (Err(error), Some(id)) => Err(error.with("run", id.to_string())),
                    (Err(error), None) => Err(error),
                };
            }
            answer
        })
    }
}

/// The result for the caller.
fn answer(output: &RunOutput) -> Result<Output, ToolError> {
    let (stop, text) = (&output.stop, output.text());
    if stop.is_answer() {
        return Ok(output.value.clone().map_or_else(|| Output::text(text), Output::json));
    }
    let message = match (&output.error, text.is_empty()) {
        (Some(error), _) => format!("the agent failed: {error}"),
        (None, true) => format!("the agent stopped ({stop}) without an answer"),
        (None, false) => format!("the agent stopped ({stop}) before its answer; its last text: {text}"),
    };
    Err(match stop {
        RunStopReason::Cancelled => ToolError::cancelled(message),
        stop if stop.is_limit() => ToolError::limit(message),
        _ => ToolError::dependency(message),
    })
}

impl std::fmt::Debug for AgentTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentTool")
            .field("name", &self.spec.name)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
