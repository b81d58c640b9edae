//! An agent and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toolpost_core::EventSink;
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{HostedTool, Model, ModelSettings, ToolChoice};
use toolpost_toolbox::Toolbox;

use crate::answer_schema::AnswerSchema;
use crate::config::AgentConfig;
use crate::{AnswerValidator, Compaction, Dynamic, Guardrail, Pricing, RunLimits, SystemPrompt, UsageSink};

/// A model with tools. Immutable and cheap to clone; it can run many times at once.
///
/// ```
/// # use std::sync::Arc;
/// # use toolpost_agent::Agent;
/// # use toolpost_llm::ScriptModel;
/// # use toolpost_toolbox::Toolbox;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let model = Arc::new(ScriptModel::parse("example", "turns: [{ text: Hello. }]")?);
/// # let toolbox = Toolbox::builder().build()?;
/// let agent = Agent::builder(model, toolbox).system("Answer in one word.").max_iterations(10).build();
/// let output = agent.run("Greet me.").await?;
/// println!("{}", output.text());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Agent(pub(crate) Arc<AgentConfig>);

impl Agent {
    /// Starts an agent of a model and the tools of a toolbox.
    pub fn builder(model: Arc<dyn Model>, toolbox: Toolbox) -> AgentBuilder {
        AgentBuilder(AgentConfig::new(model, toolbox))
    }

    /// This agent with another model. [`Run::with_model`](crate::Run::with_model) does it for one run.
    #[must_use]
    pub fn with_model(&self, model: Arc<dyn Model>) -> Self {
        let mut config = AgentConfig { model, ..AgentConfig::clone(&self.0) };
        config.offering.build(&config.toolbox, &*config.model);
        Self(Arc::new(config))
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("model", self.0.model.id())
            .field("toolbox", &self.0.toolbox)
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}

/// Builds an [`Agent`].
#[must_use = "a builder does nothing until `build`"]
pub struct AgentBuilder(AgentConfig);

impl AgentBuilder {
    /// Sets the system prompt.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.0.request.system = Some(text.into());
        self
    }

    /// Sets a function that returns the system prompt at the start of each run. It replaces [`system`](Self::system).
    pub fn dynamic_system(mut self, system: SystemPrompt) -> Self {
        self.0.system = Some(system);
        self
    }

    /// Replaces all limits. The setters below change one limit each.
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.0.limits = limits;
        self
    }

    /// Sets [`RunLimits::iterations`]. Defaults to 25.
    pub fn max_iterations(mut self, iterations: u32) -> Self {
        self.0.limits.iterations = iterations;
        self
    }

    /// Sets [`RunLimits::tool_calls`]. Defaults to unlimited.
    pub fn max_tool_calls(mut self, calls: u32) -> Self {
        self.0.limits.tool_calls = Some(calls);
        self
    }

    /// Sets [`RunLimits::tokens`]. Defaults to unlimited.
    pub fn max_tokens(mut self, tokens: u64) -> Self {
        self.0.limits.tokens = Some(tokens);
        self
    }

    /// Sets [`RunLimits::cost_usd`]. Defaults to unlimited.
    pub fn max_cost_usd(mut self, dollars: f64) -> Self {
        self.0.limits.cost_usd = Some(dollars);
        self
    }

    /// Sets [`RunLimits::time`]. Defaults to unlimited.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.0.limits.time = Some(time);
        self
    }

    /// Sets [`RunLimits::parallel_tools`]. Defaults to 8.
    pub fn max_parallel_tools(mut self, tools: usize) -> Self {
        self.0.limits.parallel_tools = tools;
        self
    }

    /// Sets [`RunLimits::tool_timeout`]. Defaults to the tool's own, 60 s.
    pub fn tool_timeout(mut self, timeout: Duration) -> Self {
        self.0.limits.tool_timeout = Some(timeout);
        self
    }

    /// Sets [`RunLimits::tool_output_chars`]. Defaults to the limit of the toolbox, 64 KiB.
    pub fn max_tool_output_chars(mut self, chars: usize) -> Self {
        self.0.limits.tool_output_chars = Some(chars);
        self
    }

    /// Sets [`RunLimits::repetition`]. Defaults to 3; 0 turns detection off.
    pub fn repetition_threshold(mut self, threshold: u32) -> Self {
        self.0.limits.repetition = threshold;
        self
    }

    /// Sets [`RunLimits::wrap_up`]. Defaults to true.
    pub fn wrap_up(mut self, wrap_up: bool) -> Self {
        self.0.limits.wrap_up = wrap_up;
        self
    }

    /// Sets sampling temperature, output tokens, thinking and other settings of the model.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.0.request.settings = settings;
        self
    }

    /// Sets which tools the model may or must call. Defaults to the model's choice.
    ///
    /// A required call ([`ToolChoice::Any`], [`ToolChoice::Tool`]) is the first call of each run; later calls are the
    /// model's choice. With [`ToolChoice::None`] a run calls no tool, whatever its model requests. A tool that is not
    /// offered, or a model without required calls, ends a run before its first request.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.0.request.tool_choice = Some(choice);
        self
    }

    /// Adds fields to the requests of one provider, verbatim.
    pub fn provider_options(mut self, options: Map<String, Value>) -> Self {
        self.0.request.provider_options = options;
        self
    }

    /// Enables beta features of the provider by name. Defaults to those that a request needs.
    ///
    /// A provider without a header for beta features ends a run before its first request.
    pub fn betas(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.request.betas = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sends metadata with each request, such as a pseudonymous `user_id`. Defaults to none.
    ///
    /// Metadata that the provider does not accept ends a run before its first request.
    pub fn metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.0.request.metadata = metadata;
        self
    }

    /// Offers tools that the provider runs. Defaults to none.
    ///
    /// A tool that the model does not support ends a run before its first request.
    pub fn hosted_tools(mut self, tools: impl IntoIterator<Item = HostedTool>) -> Self {
        self.0.request.hosted_tools = tools.into_iter().collect();
        self
    }

    /// Sends the events of every run to a sink, which must return at once.
    ///
    /// The sink also receives the events of nested runs, which name their `parent`. Events of tool calls come from the
    /// sink of the toolbox; [`Run::stream`](crate::Run::stream) has both.
    pub fn on_event(mut self, sink: EventSink) -> Self {
        self.0.events = Some(sink);
        self
    }

    /// Sends the usage of each answer to a sink, those of nested agents included.
    pub fn on_usage(mut self, sink: UsageSink) -> Self {
        self.0.on_usage = Some(sink);
        self
    }

    /// Requires answers to match a JSON Schema; [`RunOutput::value`](crate::RunOutput::value) has the value. Defaults to
    /// text.
    pub fn answer_schema(mut self, schema: Value) -> Self {
        self.0.answer = Some(AnswerSchema::new(schema));
        self
    }

    /// As [`answer_schema`](Self::answer_schema), with a check of what the schema cannot express.
    ///
    /// The model reads the error of the check and corrects its answer.
    pub fn checked_answer_schema(
        mut self,
        schema: Value,
        check: impl Fn(&Value) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.0.answer = Some(AnswerSchema::with_check(schema, check));
        self
    }

    /// Sets a function that checks each answer that matches the schema; without a schema, the text as a JSON string.
    ///
    /// The model reads the error and corrects its answer, up to [`RunLimits::repairs`] times.
    pub fn validate_answer(mut self, validator: AnswerValidator) -> Self {
        self.0.validator = Some(validator);
        self
    }

    /// Sets how often the model may correct an answer. Defaults to 2.
    pub fn max_repairs(mut self, repairs: u32) -> Self {
        self.0.limits.repairs = repairs;
        self
    }

    /// Adds a guardrail, which checks input, output and tool calls. Defaults to none.
    pub fn guardrail(mut self, guardrail: impl Guardrail + 'static) -> Self {
        self.0.guardrails.push(Arc::new(guardrail));
        self
    }

    /// Pauses a run before calls that need approval, instead of asking during the run. Defaults to false.
    ///
    /// [`RunOutput::state`](crate::RunOutput::state) has the state to resume from. Covers calls of the model only: a
    /// nested call of a tool asks during the run, or is denied.
    pub fn pause_for_approval(mut self, pauses: bool) -> Self {
        self.0.pauses = pauses;
        self
    }

    /// Requests strict schemas for tool arguments where the provider supports them. Defaults to false.
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.0.strict = strict;
        self
    }

    /// Sets the prices of models. Defaults to those of the model catalog; see [`Model::cost`].
    pub fn pricing(mut self, pricing: Pricing) -> Self {
        self.0.pricing = Some(pricing);
        self
    }

    /// Compacts conversations that approach the context window of the model. Defaults to off.
    ///
    /// Without compaction, a run ends when its conversation exceeds the context window.
    pub fn compaction(mut self, compaction: Compaction) -> Self {
        self.0.compaction = Some(compaction);
        self
    }

    /// Loads tools on demand instead of offering all. Defaults to offering all.
    ///
    /// With `true` the provider searches the tools if it can ([`Dynamic::Auto`]), else the model uses `browse_toolkit`.
    /// With a model, the agent's model gets `find_tools`, and the given model picks tools for an intent.
    pub fn dynamic(mut self, dynamic: impl Into<Dynamic>) -> Self {
        self.0.offering.dynamic = dynamic.into();
        self
    }

    /// Names tools that are always offered first, with full descriptions. Defaults to none.
    pub fn core_tools(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.offering.core = names.into_iter().map(Into::into).collect();
        self
    }

    /// Offers all but the core tools without parameter descriptions and defaults, to save tokens. Defaults to false.
    ///
    /// A tool session with a token budget compacts its tools by itself when the budget is nearly used.
    pub fn compact_tools(mut self, compact: bool) -> Self {
        self.0.offering.compact = compact;
        self
    }

    /// Stores loaded tools in this session, for all runs without their own. Defaults to a new session per run.
    pub fn tool_session(mut self, session: ToolSession) -> Self {
        self.0.offering.session = Some(session);
        self
    }

    /// Builds the agent.
    pub fn build(mut self) -> Agent {
        self.0.offering.build(&self.0.toolbox, &*self.0.model);
        Agent(Arc::new(self.0))
    }
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("model", self.0.model.id())
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}
