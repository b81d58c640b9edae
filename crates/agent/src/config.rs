//! The configuration of an agent.

use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{BoxFuture, Clock as _, EventSink, SystemClock, ToolError, Values};
use toolpost_llm::{ContextEdit, Model, ModelId, Request};
use toolpost_toolbox::Toolbox;

use crate::answer_schema::AnswerSchema;
use crate::dynamic::Offering;
use crate::{Compaction, Guardrail, Pricing, RunLimits, UsageSink};

/// Returns the system prompt of a run, from the injected values of the run.
pub type SystemPrompt = Arc<dyn Fn(Values) -> BoxFuture<'static, Result<String, ToolError>> + Send + Sync>;

/// Checks an answer with the injected values of the run. Returns the answer, changed or not, or why it is invalid.
pub type AnswerValidator =
    Arc<dyn Fn(Value, Values) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct AgentConfig {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) toolbox: Toolbox,
    pub(crate) limits: RunLimits,
    /// The system prompt, settings and options of every request.
    pub(crate) request: Request,
    /// Replaces the system prompt of each run.
    pub(crate) system: Option<SystemPrompt>,
    pub(crate) events: Option<EventSink>,
    pub(crate) on_usage: Option<UsageSink>,
    pub(crate) pricing: Option<Pricing>,
    pub(crate) answer: Option<AnswerSchema>,
    pub(crate) validator: Option<AnswerValidator>,
    pub(crate) guardrails: Vec<Arc<dyn Guardrail>>,
    pub(crate) pauses: bool,
    pub(crate) strict: bool,
    pub(crate) offering: Offering,
    pub(crate) compaction: Option<Compaction>,
}

impl AgentConfig {
    pub(crate) fn new(model: Arc<dyn Model>, toolbox: Toolbox) -> Self {
        Self {
            model,
            toolbox,
            limits: RunLimits::default(),
            request: Request::default(),
            system: None,
            events: None,
            on_usage: None,
            pricing: None,
            answer: None,
            validator: None,
            guardrails: Vec::new(),
            pauses: false,
            strict: false,
            offering: Offering::default(),
            compaction: None,
        }
    }

    /// The context edits that the provider applies to long conversations.
    pub(crate) fn context_edits(&self) -> Vec<ContextEdit> {
        let compaction = self.compaction.as_ref();
        compaction.map(|compaction| compaction.edits_for(&*self.model)).unwrap_or_default()
    }

    /// The first model with an unknown price among all that a run may ask.
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

    /// Whether the price of a model is known.
    fn has_price(&self, model: &dyn Model) -> bool {
        let nothing = toolpost_llm::TokenUsage::default();
        match &self.pricing {
            Some(pricing) => pricing(model.id(), &nothing).is_some(),
            None => {
                model.info().and_then(|info| info.cost(&nothing, SystemClock.timestamp(), None)).is_some()
            }
        }
    }
}
