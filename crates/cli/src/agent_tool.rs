//! Agent files as tools.

use std::sync::{Arc, OnceLock};

use toolpost_agent::{Agent, CallingModel, Conversations, Runs};
use toolpost_core::{Args, BoxFuture, Ctx, EventSink, Output, Tool, ToolError, ToolSpec, Values};
use toolpost_llm::Model;
use toolpost_toolbox::Toolbox;

use crate::agent_settings::AgentSettings;
use crate::args::AgentArgs;
use crate::config::Config;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::model::{Tape, model};

/// The models of a run's agents, injected into their calls.
enum Models {
    /// Each agent's own model, recorded on the run's tape.
    On(Tape),
    /// One model for all agents, which replays a recording.
    Only(Arc<dyn Model>),
}

/// The injected values of a run.
pub(crate) fn values(tape: &Tape) -> Values {
    inject(Models::On(tape.clone()))
}

/// The injected values of a replayed run.
pub(crate) fn replayed(model: Arc<dyn Model>) -> Values {
    inject(Models::Only(model))
}

fn inject(models: Models) -> Values {
    let mut values = Values::default();
    values.provide(models);
    values
}

/// An agent of a file as a tool. The first call opens its model.
pub(crate) struct AgentFileTool {
    spec: Arc<ToolSpec>,
    config: Config,
    names_model: bool,
    toolbox: Toolbox,
    events: EventSink,
    tuned: AgentSettings,
    /// Stores calls outside of runs.
    runs: Option<Runs>,
    /// Stores the conversations of steps.
    conversations: Conversations,
    opened: OnceLock<Arc<dyn Model>>,
}

impl AgentFileTool {
    /// Creates the agent with its tools.
    pub(crate) fn new(
        spec: Arc<ToolSpec>,
        config: Config,
        names_model: bool,
        toolbox: Toolbox,
        events: EventSink,
    ) -> Result<Self, Failure> {
        // Only settings apply, no options.
        let args = AgentArgs::default();
        let tuned = AgentSettings::read(&args, &config)?;
        let Memory { runs, conversations, .. } = Memory::open(&args, &config)?;
        let opened = OnceLock::new();
        Ok(Self { spec, config, names_model, toolbox, events, tuned, runs, conversations, opened })
    }

    fn agent(&self, ctx: &Ctx) -> Result<Agent, Failure> {
        let models = ctx.inject::<Models>().ok();
        let model = self.model(ctx, models.as_deref())?;
        let mut builder = self.tuned.builder(model, self.toolbox.clone(), Arc::clone(&self.events));
        if matches!(models.as_deref(), Some(Models::Only(_))) {
            // A replay costs nothing.
            builder = builder.limits(self.tuned.without_cost_limit());
        }
        if let Some(schema) = &self.spec.output_schema {
            builder = builder.answer_schema(schema.as_value().clone());
        }
        Ok(builder.build())
    }

    /// The model of the file, else the caller's, else the setting's.
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
            Some(Models::On(tape)) => tape.record(Arc::clone(opened)),
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
            let agent = self.agent(ctx).map_err(Failure::into_tool_error)?;
            let mut tool = agent.as_tool(ToolSpec::clone(&self.spec));
            if let Some(runs) = &self.runs {
                tool = tool.persist_to(runs).conversations(&self.conversations);
            }
            tool.call(args, ctx).await
        })
    }
}
