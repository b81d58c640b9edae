//! An agent as a tool of another one.

use std::pin::pin;
use std::sync::Arc;

use toolpost_core::{
    Answer, Args, Artifact, BoxFuture, CallId, Cancellation, Ctx, Delivery, Evidence, LogLine, Output,
    ParameterType, Port, Progress, Question, Sample, SampleRequest, Timeout, Tool, ToolError, ToolSpec,
};

use crate::run_context::RunContext;
use crate::{Agent, RunOutput, RunStopReason, Runs};

/// An agent as a tool: a prompt in, its answer out. Made by [`Agent::as_tool`].
///
/// Its runs belong to the run that called it: what they spend and the tools that they call count towards that one's limits
/// while they do so, its deadline and its cancellation are theirs, who listens to it hears them too, their records are
/// among the children of its record, what was injected into it is injected into them, and where it is kept they are. Agents in agents are as deep as the toolbox lets calls nest.
///
/// A call that no run makes is a run of its own; [`AgentTool::persist_to`] says where it is kept. The record of such a call
/// has what the run consumed and cost.
pub struct AgentTool {
    agent: Agent,
    spec: Arc<ToolSpec>,
    runs: Option<Runs>,
}

impl Agent {
    /// This agent as a tool. A spec without parameters gets one, `prompt`; of one with parameters the agent is told
    /// `prompt`, if that is a text, else all arguments as JSON. Its time is not limited unless the spec limits it. If its
    /// answers must fit a schema, the tool answers with the value.
    #[must_use]
    pub fn as_tool(&self, spec: ToolSpec) -> AgentTool {
        AgentTool { agent: self.clone(), spec: Arc::new(AgentTool::spec_for(spec)), runs: None }
    }
}

impl AgentTool {
    /// What [`Agent::as_tool`] makes of a spec, for those who list the tool before there is an agent.
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

    /// Keeps the runs of calls that no run makes; those of others are kept where their caller is. An error names such a
    /// run as `run` in its context. Default: nowhere.
    #[must_use]
    pub fn persist_to(mut self, runs: &Runs) -> Self {
        self.runs = Some(runs.clone());
        self
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
            let mut run = self
                .agent
                .run(prompt)
                .with_caller(ctx.caller().clone())
                .with_port(Arc::new(CallPort(ctx.clone())))
                .with_cancellation(cancellation.clone())
                .with_deadline(ctx.deadline())
                .with_parent(ctx.id(), ctx.depth());
            if let Some(scope) = ctx.scope() {
                run = run.with_scope(scope.clone());
            }
            let context = ctx.inject::<Arc<RunContext>>().ok().map(|context| Arc::clone(&*context));
            let mut kept = None;
            if let Some(context) = &context {
                run = run.within(context);
            } else if let Some(runs) = &self.runs {
                run = run.persist_to(runs);
                kept = Some(run.id());
            }
            let mut running = pin!(run.finish());
            let output = tokio::select! {
                output = &mut running => output,
                () = ctx.cancelled() => {
                    cancellation.cancel();
                    // It ends at once, with a record.
                    running.await
                }
            };
            let answer = answer(&output);
            let Some(context) = context else {
                let record = &output.record;
                let evidence = Evidence {
                    usage: Some(record.usage.clone()),
                    cost_usd: record.cost_usd,
                    ..Evidence::default()
                };
                return match (answer, kept) {
                    (Ok(mut output), _) => {
                        output.evidence = Some(Box::new(evidence));
                        Ok(output)
                    }
                    (Err(error), Some(id)) => Err(error.with("run", id.to_string())),
                    (Err(error), None) => Err(error),
                };
            };
            context.adopt(Arc::clone(&output.record));
            answer
        })
    }
}

/// What the caller is told.
fn answer(output: &RunOutput) -> Result<Output, ToolError> {
    let (stop, text) = (&output.stop, output.text());
    if stop.is_answer() {
        return Ok(output.value.clone().map_or_else(|| Output::text(text), Output::json));
    }
    let message = match (&output.error, text.is_empty()) {
        (Some(error), _) => format!("the agent could not go on: {error}"),
        (None, true) => format!("the agent stopped ({stop}) without an answer"),
        (None, false) => format!("the agent stopped ({stop}) before it was done; it said: {text}"),
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

/// The call that an agent is made from, as the port of its run.
struct CallPort(Ctx);

impl Port for CallPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        self.0.progress(progress.message, progress.percent);
        Delivery::Delivered
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        self.0.log(line.level, line.message);
        Delivery::Delivered
    }

    fn takes_artifacts(&self) -> bool {
        true
    }

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(self.0.artifact(artifact))
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(self.0.ask(question.clone()))
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(self.0.sample(request.clone()))
    }
}
