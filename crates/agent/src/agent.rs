//! What an agent is made of.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toolpost_core::{Clock as _, EventSink, SystemClock, UsageEvent};
use toolpost_llm::{ContextEdit, HostedTool, Model, ModelId, Settings, ToolChoice};
use toolpost_toolbox::{ToolSession, Toolbox};

use crate::dynamic::Offering;
use crate::run::AnswerForm;
use crate::{Compaction, Dynamic, Guardrail, Outcome, Run, WrapUp};

/// What a model's answer costs in US dollars; `None` where it is not known.
pub type Pricing = Arc<dyn Fn(&ModelId, &toolpost_llm::Usage) -> Option<f64> + Send + Sync>;

/// Who is told what models have consumed. It must return at once.
pub type UsageSink = Arc<dyn Fn(&UsageEvent) + Send + Sync>;

/// How far a run may go.
///
/// A run that comes to one of the first five, or repeats itself, sums up in a last answer without tools
/// ([`Limits::wrap_up`]). So it goes beyond a limit by at most the answer during which it was reached and that last one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// How often the model is asked. Default: 25.
    pub iterations: u32,
    /// How many tools are called in all, by agents that are tools too. Default: unlimited.
    pub tool_calls: Option<u32>,
    /// How many tokens are read and written in all. Looked at after each answer. Default: unlimited.
    pub tokens: Option<u64>,
    /// How many US dollars are spent in all. Looked at after each answer. A model whose price nobody knows is then not
    /// asked at all: a run ends before anything is sent if that is its model, one that may answer in its place, one that
    /// writes summaries or one that picks tools, and so does that of an agent that is a tool. Default: unlimited.
    pub cost_usd: Option<f64>,
    /// How often one call of a tool may have the model complete a prompt. Default: 32.
    pub completions: u32,
    /// How long each of those completions may be, in tokens of output; a tool that asks for more gets so many. Default:
    /// 4,096.
    pub completion_tokens: u32,
    /// How long the run takes. Default: unlimited.
    pub time: Option<Duration>,
    /// How many tools run at once. Default: 8.
    pub parallel_tools: usize,
    /// How long one call of a tool may take, where the tool's own policy does not say less. What ends with it depends on
    /// the tool's placement: an async function at its next await, a worker or a sandbox with everything that it
    /// started, a blocking function not at all, and the model is told. Default: the tool's own, 60 s.
    pub tool_timeout: Option<Duration>,
    /// How many characters of text of one call the model reads; head and tail stay, and the gap is named. The
    /// application gets all. Default: what the toolbox lets through, 64 KiB.
    pub tool_output_chars: Option<usize>,
    /// How patient a run is with repetition, as a number of times; 0 for endlessly. A call that fails in the same way is
    /// warned of at this number and ends the run at twice it; so do tools that do not exist or always take too long,
    /// cycles of a few calls, and text that is the same or only grows. The same successful call, and calls that bring
    /// nothing new, are warned of at twice and end the run at three times. A call that tells something else each time
    /// counts half. Default: 3.
    pub repetition: u32,
    /// How often a model is told that its answer does not fit the schema that it must fit. Default: 2.
    pub repairs: u32,
    /// The last answer of a run that came to a limit; `None` for none. Default: 1,024 tokens in 30 s.
    pub wrap_up: Option<WrapUp>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            iterations: 25,
            tool_calls: None,
            tokens: None,
            cost_usd: None,
            completions: 32,
            completion_tokens: 4096,
            time: None,
            parallel_tools: 8,
            tool_timeout: None,
            tool_output_chars: None,
            repetition: 3,
            repairs: 2,
            wrap_up: Some(WrapUp::default()),
        }
    }
}

/// A model with tools. Immutable and cheap to clone; it can run many times at once.
#[derive(Clone)]
pub struct Agent(pub(crate) Arc<Parts>);

#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) toolbox: Toolbox,
    pub(crate) system: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) settings: Settings,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) provider_options: Map<String, Value>,
    pub(crate) betas: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) hosted_tools: Vec<HostedTool>,
    pub(crate) events: Option<EventSink>,
    pub(crate) on_usage: Option<UsageSink>,
    pub(crate) pricing: Option<Pricing>,
    pub(crate) answer: Option<AnswerForm>,
    pub(crate) guardrails: Vec<Arc<dyn Guardrail>>,
    pub(crate) pauses: bool,
    pub(crate) strict: bool,
    pub(crate) offering: Offering,
    pub(crate) compaction: Option<Compaction>,
}

impl Parts {
    /// What the provider is asked to do with long conversations.
    pub(crate) fn context_edits(&self) -> Vec<ContextEdit> {
        let compaction = self.compaction.as_ref();
        compaction.map(|compaction| compaction.edits_for(&*self.model)).unwrap_or_default()
    }

    /// The first of all models that may be asked whose price nobody knows.
    pub(crate) fn unpriced(&self) -> Option<&ModelId> {
        let writer = self.compaction.as_ref().and_then(|compaction| compaction.model.as_ref());
        let mut all: Vec<&Arc<dyn Model>> =
            [self.offering.finder(), writer, Some(&self.model)].into_iter().flatten().collect();
        while let Some(model) = all.pop() {
            if !self.has_price(&**model) {
                return Some(model.id());
            }
            all.extend(model.alternatives());
        }
        None
    }

    /// Whether somebody knows what answers of a model cost.
    fn has_price(&self, model: &dyn Model) -> bool {
        let nothing = toolpost_llm::Usage::default();
        match &self.pricing {
            Some(pricing) => pricing(model.id(), &nothing).is_some(),
            None => {
                model.info().and_then(|info| info.cost(&nothing, SystemClock.timestamp(), None)).is_some()
            }
        }
    }
}

impl Agent {
    /// An agent of a model and the tools of a toolbox.
    pub fn builder(model: Arc<dyn Model>, toolbox: Toolbox) -> Builder {
        Builder(Parts {
            model,
            toolbox,
            system: None,
            limits: Limits::default(),
            settings: Settings::default(),
            tool_choice: None,
            provider_options: Map::new(),
            betas: Vec::new(),
            metadata: Map::new(),
            hosted_tools: Vec::new(),
            events: None,
            on_usage: None,
            pricing: None,
            answer: None,
            guardrails: Vec::new(),
            pauses: false,
            strict: false,
            offering: Offering::default(),
            compaction: None,
        })
    }

    /// The real Claude Code as an agent; see [`claude_code`](crate::claude_code).
    #[cfg(feature = "claude-code")]
    pub fn claude_code() -> crate::claude_code::Builder {
        crate::claude_code::ClaudeCode::builder()
    }

    /// The same agent with another model. [`Run::with_model`] does it for one run.
    #[must_use]
    pub fn with_model(&self, model: Arc<dyn Model>) -> Self {
        let mut parts = Parts { model, ..Parts::clone(&self.0) };
        parts.offering.build(&parts.toolbox, &*parts.model);
        Self(Arc::new(parts))
    }

    /// Runs with a prompt until there is an answer or a limit.
    pub async fn run(&self, prompt: impl Into<String>) -> Outcome {
        Run::new(self, prompt).finish().await
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

/// Puts an [`Agent`] together.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder(Parts);

impl Builder {
    /// Instructions that stand before the conversation.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.0.system = Some(text.into());
        self
    }

    /// How far a run may go.
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.0.limits);
        self
    }

    /// How the model is to answer: temperature, output tokens, thinking and so on.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.0.settings = settings;
        self
    }

    /// Which tools the model may or must call. A call that it must make ([`ToolChoice::Any`], [`ToolChoice::Tool`]) is
    /// the first of each run; from then on the model decides, else no run would end. With [`ToolChoice::None`] a run
    /// makes no call at all, whatever its model says. A tool that is not offered, and a model that cannot be made to
    /// call one, end a run before anything is sent. Default: the model decides.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.0.tool_choice = Some(choice);
        self
    }

    /// Options of one provider, as they stand in its requests.
    pub fn provider_options(mut self, options: Map<String, Value>) -> Self {
        self.0.provider_options = options;
        self
    }

    /// Names of provider features that are not yet general, sent beside those that a request needs anyway. A provider that
    /// has no header for them ends a run before anything is sent. Default: none.
    pub fn betas(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.betas = names.into_iter().map(Into::into).collect();
        self
    }

    /// What the provider may know about each request, such as a pseudonymous `user_id`. What it does not take ends a run
    /// before anything is sent. Default: nothing.
    pub fn metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// Tools that the provider itself runs. What the model does not take ends a run before anything is sent. Default:
    /// none.
    pub fn hosted_tools(mut self, tools: impl IntoIterator<Item = HostedTool>) -> Self {
        self.0.hosted_tools = tools.into_iter().collect();
        self
    }

    /// Is told of every event of every run, and of the runs that agents among its tools make, which name theirs as
    /// `parent`. It must return at once. Events of calls come from the toolbox.
    pub fn on_event(mut self, sink: EventSink) -> Self {
        self.0.events = Some(sink);
        self
    }

    /// Is told what each answer of a model has consumed, also of those of agents among its tools.
    pub fn on_usage(mut self, sink: UsageSink) -> Self {
        self.0.on_usage = Some(sink);
        self
    }

    /// Says what answers must be, as a JSON Schema; the value is in [`Outcome::value`]. Default: text.
    pub fn answer_schema(mut self, schema: Value) -> Self {
        self.0.answer = Some(AnswerForm::new(schema));
        self
    }

    /// Adds somebody who looks at what goes in, what comes out and what is called. Default: nobody.
    pub fn guardrail(mut self, guardrail: impl Guardrail + 'static) -> Self {
        self.0.guardrails.push(Arc::new(guardrail));
        self
    }

    /// Stops runs before calls that need approval, instead of asking while they go on. See
    /// [`Run::pausing_for_approval`]. Default: no.
    pub fn pause_for_approval(mut self, pauses: bool) -> Self {
        self.0.pauses = pauses;
        self
    }

    /// Has the provider keep the arguments of tools to their schemas, where it can. Default: no.
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.0.strict = strict;
        self
    }

    /// Says what answers cost. Default: what the catalog of models says; see [`Model::cost`].
    pub fn pricing(mut self, pricing: Pricing) -> Self {
        self.0.pricing = Some(pricing);
        self
    }

    /// Lets conversations that come near to the model's window be made shorter, by a summary of ours or by the provider
    /// ([`Compaction::by`]). Default: they are not, and a run whose conversation has outgrown the model ends.
    pub fn compaction(mut self, change: impl FnOnce(&mut Compaction)) -> Self {
        change(self.0.compaction.get_or_insert_default());
        self
    }

    /// Lets conversations load the tools that they need, instead of offering all: with `true` the provider searches them
    /// where the model has that ([`Dynamic::Auto`]), else the model itself, by `browse_toolkit`; a model offers
    /// `find_tools`, and picks tools for what the first one wants to do. Default: all tools are offered.
    pub fn dynamic(mut self, dynamic: impl Into<Dynamic>) -> Self {
        self.0.offering.dynamic = dynamic.into();
        self
    }

    /// Names tools that are always offered, first and whole, when others are loaded or compact. Default: none.
    pub fn core_tools(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.offering.core = names.into_iter().map(Into::into).collect();
        self
    }

    /// Offers all but the core tools without descriptions and defaults of their parameters, which takes fewer tokens.
    /// Default: no; a tool session with a token budget does so by itself under pressure.
    pub fn compact_tools(mut self, compact: bool) -> Self {
        self.0.offering.compact = compact;
        self
    }

    /// Keeps what is loaded in this session, for all runs that have none of their own. Default: each run begins anew.
    pub fn tool_session(mut self, session: ToolSession) -> Self {
        self.0.offering.session = Some(session);
        self
    }

    /// The agent.
    pub fn build(mut self) -> Agent {
        self.0.offering.build(&self.0.toolbox, &*self.0.model);
        Agent(Arc::new(self.0))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("model", self.0.model.id())
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}
