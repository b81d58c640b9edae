//! What an agent can do for a tool that it has called.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use toolpost_core::{
    Answer, Artifact, BoxFuture, CallId, CallRecord, Delivery, LogLine, Port, Progress, Question,
    QuestionKind, Sample, SampleRequest, ToolError, Usage,
};
use toolpost_llm::{Model, ModelId, PromptCaching, Request, Settings};

use crate::Pricing;
use crate::results::spent_by;
use crate::run::Spent;

/// Passes everything on to another port, but for completions: those a model makes.
pub struct ModelPort {
    outer: Arc<dyn Port>,
    model: Arc<dyn Model>,
    pricing: Option<Pricing>,
    spent: Mutex<HashMap<CallId, Spent>>,
    /// Calls that somebody has approved before they were made.
    approved: Mutex<HashSet<CallId>>,
}

impl ModelPort {
    /// A port in front of another.
    pub fn new(outer: Arc<dyn Port>, model: Arc<dyn Model>) -> Self {
        Self { outer, model, pricing: None, spent: Mutex::default(), approved: Mutex::default() }
    }

    /// Says what completions cost.
    pub(crate) fn with_pricing(mut self, pricing: Option<Pricing>) -> Self {
        self.pricing = pricing;
        self
    }

    /// What the completions since the last time consumed.
    pub fn take_usage(&self) -> Usage {
        self.take_spent().usage
    }

    /// Says that a call was approved before it is made: it is asked about no more.
    pub(crate) fn approve(&self, call: CallId) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
    }

    /// The model that completes.
    pub(crate) fn model(&self) -> &ModelId {
        self.model.id()
    }

    /// The same as [`take_usage`](Self::take_usage), with what it cost.
    pub(crate) fn take_spent(&self) -> Spent {
        let all = std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner));
        let mut sum = Spent::default();
        for spent in all.values() {
            sum.add(spent);
        }
        sum
    }

    /// What the completions for a call and those made from it consumed, if there were any.
    pub(crate) fn take_spent_of(&self, call: &CallRecord) -> Option<Spent> {
        let mut all = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = None;
        let mut calls = vec![call];
        while let Some(call) = calls.pop() {
            // Nearly always nobody has asked.
            if all.is_empty() {
                break;
            }
            if let Some(spent) = all.remove(&call.id) {
                sum.get_or_insert_with(Spent::default).add(&spent);
            }
            calls.extend(call.children.iter().map(|child| &**child));
        }
        sum
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
            let mut asked = Request::new(request.prompt.clone());
            asked.system.clone_from(&request.system);
            asked.settings = Settings {
                max_output_tokens: Some(request.max_tokens),
                temperature: request.temperature,
                stop: request.stop_sequences.clone(),
                // Nothing else begins like it.
                prompt_caching: PromptCaching::Off,
                ..Settings::default()
            };
            let response = self.model.respond(&asked).await.map_err(|error| {
                ToolError::dependency(format!("the model could not complete the prompt: {error}"))
            })?;
            let spent = spent_by(&response, &*self.model, self.pricing.as_ref());
            let mut all = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(call).or_default().add(&spent);
            drop(all);
            Ok(Sample { content: response.text(), usage: Some(spent.usage) })
        })
    }
}
