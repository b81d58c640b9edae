//! An agent of a file, as a tool.

use std::sync::{Arc, OnceLock};

use toolpost_agent::{Agent, CallingModel, Runs};
use toolpost_core::{Args, BoxFuture, Ctx, EventSink, Output, Tool, ToolError, ToolSpec, Values};
use toolpost_llm::Model;
use toolpost_toolbox::Toolbox;

use super::agent::Tuned;
use super::memory::Memory;
use super::model::{Tape, model};
use crate::args::AgentArgs;
use crate::config::Config;
use crate::failure::Failure;

/// What a run says of the models of its agents; it is injected into them.
enum Models {
    /// They are recorded with the run's own.
    On(Tape),
    /// All of them are this one, which plays what was said.
    Only(Arc<dyn Model>),
}

/// For the agents of a run whose models are recorded, if they are.
pub(super) fn values(tape: &Tape) -> Values {
    of(Models::On(tape.clone()))
}

/// For the agents of a run that is played again.
pub(super) fn replayed(model: Arc<dyn Model>) -> Values {
    of(Models::Only(model))
}

fn of(models: Models) -> Values {
    let mut values = Values::default();
    values.provide(models);
    values
}

/// An agent of a file, as a tool. Its model is opened by the first call.
pub(super) struct AgentFileTool {
    spec: Arc<ToolSpec>,
    config: Config,
    names_model: bool,
    toolbox: Toolbox,
    events: EventSink,
    tuned: Tuned,
    /// Where calls are kept that no run makes.
    runs: Option<Runs>,
    opened: OnceLock<Arc<dyn Model>>,
}

impl AgentFileTool {
    /// The agent with its tools.
    pub(super) fn new(
        spec: Arc<ToolSpec>,
        config: Config,
        names_model: bool,
        toolbox: Toolbox,
        events: EventSink,
    ) -> Result<Self, Failure> {
        // Nothing but settings says what it is like.
        let args = AgentArgs::default();
        let tuned = Tuned::read(&args, &config)?;
        let runs = Memory::open(&args, &config)?.runs;
        Ok(Self { spec, config, names_model, toolbox, events, tuned, runs, opened: OnceLock::new() })
    }

    fn agent(&self, ctx: &Ctx) -> Result<Agent, Failure> {
        let models = ctx.inject::<Models>().ok();
        let model = self.model(ctx, models.as_deref())?;
        let mut builder = self.tuned.builder(model, self.toolbox.clone(), Arc::clone(&self.events));
        if matches!(models.as_deref(), Some(Models::Only(_))) {
            // What was paid then is not paid again, and nobody knows what it would be.
            builder = builder.limits(self.tuned.without_cost_limit());
        }
        if let Some(schema) = &self.spec.output_schema {
            builder = builder.answer_schema(schema.as_value().clone());
        }
        Ok(builder.build())
    }

    /// The model that the file names, else that of the caller, else that of the settings.
    fn model(&self, ctx: &Ctx, models: Option<&Models>) -> Result<Arc<dyn Model>, Failure> {
        if let Some(Models::Only(model)) = models {
            return Ok(Arc::clone(model));
        }
        if !self.names_model
            && let Ok(calling) = ctx.inject::<CallingModel>()
        {
            return Ok(Arc::clone(&calling.0));
        }
        let opened = match self.opened.get() {
            Some(opened) => opened,
            None => {
                let (opened, _) = model(&AgentArgs::default(), &self.config)?;
                self.opened.get_or_init(|| opened)
            }
        };
        Ok(match models {
            Some(Models::On(tape)) => tape.of(Arc::clone(opened)),
            _ => Arc::clone(opened),
        })
    }
}

impl Tool for AgentFileTool {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let agent = self.agent(ctx).map_err(Failure::told)?;
            let mut tool = agent.as_tool(ToolSpec::clone(&self.spec));
            if let Some(runs) = &self.runs {
                tool = tool.persist_to(runs);
            }
            tool.call(args, ctx).await
        })
    }
}
