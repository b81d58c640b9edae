//! The port of a run for its tools: completions by the model.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost_core::{
    Answer, Artifact, BoxFuture, CallId, Delivery, LogLine, Port, Progress, Question, QuestionKind, Sample,
    SampleRequest, ToolError,
};
use toolpost_llm::{Model, ModelId, ModelSettings, PromptCaching, Request};

use crate::meter::Meter;
use crate::results::usage_of;
use crate::run_context::RunContext;
use crate::spend::Spent;
use crate::{Pricing, RunLimits};

/// The model of the run that makes a call, injected into the tools of the run.
#[derive(Clone, Debug)]
pub struct CallingModel(pub Arc<dyn Model>);

/// Adds completions by a model to another port.
///
/// [`RunLimits::completions`] and [`RunLimits::completion_tokens`] limit the completions of a call. A run at its limit of
/// tokens or cost makes none.
pub struct ModelPort {
    outer: Arc<dyn Port>,
    model: Arc<dyn Model>,
    pricing: Option<Pricing>,
    limits: RunLimits,
    /// The run of the tools.
    context: Arc<RunContext>,
    completions: Mutex<HashMap<CallId, Completions>>,
    /// Serializes completions under a limit of tokens or cost, so that a run exceeds it by at most one.
    turn: tokio::sync::Mutex<()>,
    /// Calls that were approved before they started.
    approved: Mutex<HashSet<CallId>>,
}

/// The completions of a call.
#[derive(Default)]
struct Completions {
    count: u32,
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
            completions: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            approved: Mutex::default(),
        }
    }

    /// Counts completions for a run, under its limits.
    pub(crate) fn within(
        mut self,
        context: &Arc<RunContext>,
        limits: &RunLimits,
        pricing: Option<Pricing>,
    ) -> Self {
        self.pricing = pricing;
        self.context = Arc::clone(context);
        self.limits = limits.clone();
        self
    }

    /// Marks a call as approved before it starts.
    pub(crate) fn approve(&self, call: CallId) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
    }

    /// The model of completions.
    pub(crate) fn model(&self) -> &ModelId {
        self.model.id()
    }

    /// Takes the spending of completions whose calls have ended.
    pub(crate) fn take_spent(&self) -> Option<Spent> {
        let all = std::mem::take(&mut *self.completions());
        all.into_values().filter_map(|completions| completions.spent).reduce(|mut sum, spent| {
            sum.add(&spent);
            sum
        })
    }

    /// Takes the spending of the completions of a call, without those of nested calls. It is counted already.
    pub(crate) fn take_spent_of(&self, call: CallId) -> Option<Spent> {
        self.completions().remove(&call)?.spent
    }

    fn completions(&self) -> MutexGuard<'_, HashMap<CallId, Completions>> {
        self.completions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the limits allow another completion of a call, and counts it.
    fn admit(&self, call: CallId) -> Result<(), ToolError> {
        if let Some(stop) = self.context.used_up() {
            return Err(ToolError::limit(format!("no completion: the run has reached its limit ({stop})")));
        }
        let max = self.limits.completions;
        let mut all = self.completions();
        let completions = all.entry(call).or_default();
        if completions.count >= max {
            return Err(ToolError::limit(format!(
                "no completion: a tool call has at most {max} completions"
            ))
            .suggest("Request fewer per call."));
        }
        completions.count += 1;
        Ok(())
    }
}

/// A completion in progress. When it ends or is dropped, its spending counts for the call.
struct Completion<'a> {
    port: &'a ModelPort,
    call: CallId,
    meter: Meter,
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        if let Some(spent) = self.meter.finish() {
            let mut all = self.port.completions();
            all.entry(self.call).or_default().spent.get_or_insert_default().add(&spent);
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
            let mut completion_request = Request::new(request.prompt.clone());
            completion_request.system.clone_from(&request.system);
            completion_request.settings = ModelSettings {
                max_output_tokens: Some(request.max_tokens.min(self.limits.completion_tokens)),
                temperature: request.temperature,
                stop: request.stop_sequences.clone(),
                // No other request has this prefix.
                prompt_caching: PromptCaching::Off,
                ..ModelSettings::default()
            };
            let meter = Meter::new(&self.context, &self.model, self.pricing.as_ref());
            let mut completion = Completion { port: self, call, meter };
            let response = completion
                .meter
                .respond(&completion_request)
                .await
                .map_err(|error| ToolError::dependency(format!("the completion failed: {error}")))?;
            Ok(Sample { content: response.text(), usage: Some(usage_of(&response.usage)) })
        })
    }
}
