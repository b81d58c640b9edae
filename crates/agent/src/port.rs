//! What an agent can do for a tool that it has called.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost_core::{
    Answer, Artifact, BoxFuture, CallId, Delivery, LogLine, Port, Progress, Question, QuestionKind, Sample,
    SampleRequest, ToolError,
};
use toolpost_llm::{Model, ModelId, PromptCaching, Request, Settings};

use crate::meter::Meter;
use crate::results::usage_of;
use crate::run_context::RunContext;
use crate::spend::Spent;
use crate::{Pricing, RunLimits};

/// The model of the run that makes a call, injected into the tools of the run.
#[derive(Clone, Debug)]
pub struct CallingModel(pub Arc<dyn Model>);

/// Passes everything on to another port, but for completions: those a model makes, as many for a call and as long as
/// [`RunLimits::completions`] and [`RunLimits::completion_tokens`] say, and none once the run is at its limit of tokens or money.
pub struct ModelPort {
    outer: Arc<dyn Port>,
    model: Arc<dyn Model>,
    pricing: Option<Pricing>,
    limits: RunLimits,
    /// The run whose tools ask.
    context: Arc<RunContext>,
    asked: Mutex<HashMap<CallId, Asked>>,
    /// Where tokens or money are limited one completion is made after the other, so that a run goes beyond by one at most.
    turn: tokio::sync::Mutex<()>,
    /// Calls that somebody has approved before they were made.
    approved: Mutex<HashSet<CallId>>,
}

/// The completions that were made for a call.
#[derive(Default)]
struct Asked {
    completions: u32,
    spent: Option<Spent>,
}

impl ModelPort {
    /// A port in front of another, with the default limits.
    pub fn new(outer: Arc<dyn Port>, model: Arc<dyn Model>) -> Self {
        let limits = RunLimits::default();
        let context = Arc::new(RunContext::new(&limits, None));
        Self {
            outer,
            model,
            pricing: None,
            limits,
            context,
            asked: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            approved: Mutex::default(),
        }
    }

    /// Says what completions cost.
    pub(crate) fn with_pricing(mut self, pricing: Option<Pricing>) -> Self {
        self.pricing = pricing;
        self
    }

    /// Makes completions a part of a run: its limits are theirs, and what they consume counts there.
    pub(crate) fn within(mut self, context: &Arc<RunContext>, limits: &RunLimits) -> Self {
        self.context = Arc::clone(context);
        self.limits = limits.clone();
        self
    }

    /// Says that a call was approved before it is made: it is asked about no more.
    pub(crate) fn approve(&self, call: CallId) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
    }

    /// The model that completes.
    pub(crate) fn model(&self) -> &ModelId {
        self.model.id()
    }

    /// What completions have consumed since the last time that belongs to no call any more, if there were any.
    pub(crate) fn take_spent(&self) -> Option<Spent> {
        let all = std::mem::take(&mut *self.asked());
        let mut sum = None;
        for spent in all.into_values().filter_map(|asked| asked.spent) {
            sum.get_or_insert_with(Spent::default).add(&spent);
        }
        sum
    }

    /// What the completions for a call consumed, without those for calls made from it, if there were any. It is counted
    /// already.
    pub(crate) fn take_spent_of(&self, call: CallId) -> Option<Spent> {
        self.asked().remove(&call)?.spent
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<CallId, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call ask once more, if the limits do.
    fn admit(&self, call: CallId) -> Result<(), ToolError> {
        if let Some(stop) = self.context.used_up() {
            return Err(ToolError::limit(format!(
                "the model was not asked: the run has reached its limit ({stop})"
            )));
        }
        let most = self.limits.completions;
        let mut all = self.asked();
        let asked = all.entry(call).or_default();
        if asked.completions >= most {
            return Err(ToolError::limit(format!(
                "the model was not asked: one call of a tool gets {most} completions at most"
            ))
            .suggest("Ask for less in one call; the agent's owner can raise `RunLimits::completions`."));
        }
        asked.completions += 1;
        Ok(())
    }
}

/// A completion that is made for a call. When it is over, or nobody waits for it any more, the call has its part.
struct Completion<'a> {
    port: &'a ModelPort,
    call: CallId,
    meter: Meter,
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        if let Some(spent) = self.meter.finish() {
            let mut all = self.port.asked();
            let asked = all.entry(self.call).or_default();
            asked.spent.get_or_insert_with(Spent::default).add(&spent);
        }
    }
}

impl std::fmt::Debug for ModelPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelPort").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Port for ModelPort {
    fn progress(&self, call: CallId, progress: Progress) -> Delivery {
        self.outer.progress(call, progress)
    }

    fn log(&self, call: CallId, line: LogLine) -> Delivery {
        self.outer.log(call, line)
    }

    fn takes_artifacts(&self) -> bool {
        self.outer.takes_artifacts()
    }

    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        self.outer.artifact(call, artifact)
    }

    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        let is_approval = matches!(question.kind, QuestionKind::Approval { .. });
        if is_approval && self.approved.lock().unwrap_or_else(PoisonError::into_inner).remove(&call) {
            return Box::pin(async { Ok(Answer::Given { value: true.into() }) });
        }
        self.outer.ask(call, question)
    }

    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            let _turn = if self.context.limits_spending() { Some(self.turn.lock().await) } else { None };
            self.admit(call)?;
            let mut asked = Request::new(request.prompt.clone());
            asked.system.clone_from(&request.system);
            asked.settings = Settings {
                max_output_tokens: Some(request.max_tokens.min(self.limits.completion_tokens)),
                temperature: request.temperature,
                stop: request.stop_sequences.clone(),
                // Nothing else begins like it.
                prompt_caching: PromptCaching::Off,
                ..Settings::default()
            };
            let meter = Meter::new(&self.context, &self.model, self.pricing.as_ref());
            let mut completion = Completion { port: self, call, meter };
            let response = completion.meter.respond(&asked).await.map_err(|error| {
                ToolError::dependency(format!("the model could not complete the prompt: {error}"))
            })?;
            Ok(Sample { content: response.text(), usage: Some(usage_of(&response.usage)) })
        })
    }
}
