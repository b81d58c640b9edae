//! A model with fallbacks.

use std::sync::Arc;

use futures_util::StreamExt as _;
use toolpost_core::Timestamp;

use crate::{
    Attempt, BoxFuture, Cost, ErrorKind, HostedTool, Model, ModelError, ModelEvent, ModelId, ModelInfo,
    Request, Response, ResponseStream, ToolDefinition,
};

/// Requests one model, and falls back to others in order.
///
/// It falls back at [`ErrorKind::Overloaded`], [`ErrorKind::RateLimited`], [`ErrorKind::Timeout`],
/// [`ErrorKind::Network`] and [`ErrorKind::NotFound`], after the retries of the model. It returns other errors.
///
/// A fallback that does not support the request is skipped, unless it does without tool search and context edits. After the
/// first delta, an error ends the stream. A fallback emits a [`ModelEvent::Notice`], also in [`Response::notices`], and
/// [`Response::origin`] names the model that answered. Options, betas and raw hosted tools of the first model's provider
/// are not sent to another provider. The final error has the attempts of all models.
#[derive(Debug)]
pub struct FallbackModel {
    first: Arc<dyn Model>,
    others: Vec<Arc<dyn Model>>,
}

impl FallbackModel {
    /// A model and its fallbacks, in order.
    pub fn new(first: Arc<dyn Model>, others: Vec<Arc<dyn Model>>) -> Self {
        Self { first, others }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Model>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// Whether to fall back after an error.
fn falls_back(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Overloaded
            | ErrorKind::RateLimited { .. }
            | ErrorKind::Timeout(_)
            | ErrorKind::Network(_)
            | ErrorKind::NotFound
    )
}

/// The remaining fallbacks, and the results of the previous models.
struct Fallbacks {
    /// The model that the request was built for.
    first: ModelId,
    request: Request,
    models: std::vec::IntoIter<Arc<dyn Model>>,
    notices: Vec<String>,
    attempts: Vec<Attempt>,
}

impl Fallbacks {
    fn new(model: &FallbackModel, request: &Request) -> Self {
        Self {
            first: model.first.id().clone(),
            request: request.clone(),
            models: model.others.clone().into_iter(),
            notices: Vec::new(),
            attempts: Vec::new(),
        }
    }

    /// The next model after `failed`, with notices. The error, with the attempts of all models, if there is none.
    fn next(
        &mut self,
        failed: &ModelId,
        mut error: ModelError,
    ) -> Result<(Arc<dyn Model>, Vec<String>), ModelError> {
        self.attempts.extend(
            error
                .details
                .attempts
                .drain(..)
                .map(|attempt| Attempt { reason: format!("{failed}: {}", attempt.reason), ..attempt }),
        );
        let mut notices = Vec::new();
        if falls_back(&error.kind) {
            for model in self.models.by_ref() {
                let mut request = request_for(&self.first, model.id(), &self.request, &mut notices);
                if let Err(unsupported) = model.check(&request) {
                    let removed = remove_optional_features(&mut request);
                    if removed.is_empty() || model.check(&request).is_err() {
                        notices.push(format!("{} was skipped: {}", model.id(), unsupported.message));
                        continue;
                    }
                    notices.push(format!("{} is used without {}", model.id(), removed.join(" and ")));
                }
                self.request = request;
                notices.insert(
                    0,
                    format!("{failed} failed ({}): falling back to {}", error.kind.as_str(), model.id()),
                );
                self.notices.extend(notices.iter().cloned());
                return Ok((model, notices));
            }
        }
        for (number, attempt) in (1..).zip(&mut self.attempts) {
            attempt.number = number;
        }
        error.details.attempts = std::mem::take(&mut self.attempts);
        Err(error)
    }
}

/// The request without the parts for the first model's provider only.
fn request_for(first: &ModelId, model: &ModelId, request: &Request, notices: &mut Vec<String>) -> Request {
    let mut request = request.clone();
    if model.provider == first.provider {
        return request;
    }
    if !request.provider_options.is_empty() || !request.betas.is_empty() {
        request.provider_options.clear();
        request.betas.clear();
        notices.push(format!("the options for {} were not sent to {}", first.provider, model.provider));
    }
    let before = request.hosted_tools.len();
    request.hosted_tools.retain(|tool| !matches!(tool, HostedTool::Raw(_)));
    if request.hosted_tools.len() < before {
        notices.push(format!("raw hosted tools of {} were not sent to {}", first.provider, model.provider));
    }
    request
}

/// Removes tool search and context edits from a request, and returns their names.
fn remove_optional_features(request: &mut Request) -> Vec<&'static str> {
    let mut removed = Vec::new();
    if request.tools.iter().any(|tool| tool.deferred) {
        request.hosted_tools.retain(|tool| !matches!(tool, HostedTool::ToolSearch { .. }));
        request.tools =
            request.tools.iter().map(|tool| ToolDefinition { deferred: false, ..tool.clone() }).collect();
        removed.push("tool search (the model sees all tools)");
    }
    if !request.context_edits.is_empty() {
        request.context_edits.clear();
        removed.push("context edits");
    }
    removed
}

/// A stream over the models.
struct Relay {
    fallbacks: Fallbacks,
    model: Arc<dyn Model>,
    events: ResponseStream,
    /// The undelivered notices, in reverse order.
    notices: Vec<String>,
    has_delivered: bool,
    has_ended: bool,
}

impl Relay {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(notice) = self.notices.pop() {
                return Some(Ok(ModelEvent::Notice(notice)));
            }
            if self.has_ended {
                return None;
            }
            match self.events.next().await? {
                Ok(ModelEvent::Done(mut response)) => {
                    response.notices.splice(0..0, self.fallbacks.notices.drain(..));
                    return Some(Ok(ModelEvent::Done(response)));
                }
                Ok(event) => {
                    self.has_delivered |= !matches!(
                        event,
                        ModelEvent::Notice(_) | ModelEvent::Retrying { .. } | ModelEvent::Lost
                    );
                    return Some(Ok(event));
                }
                Err(error) if self.has_delivered => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
                Err(error) => {
                    let is_lost = error.kind.may_be_billed();
                    match self.fallbacks.next(self.model.id(), error) {
                        Ok((model, mut notices)) => {
                            notices.reverse();
                            self.notices = notices;
                            self.events = model.stream(&self.fallbacks.request);
                            self.model = model;
                            if is_lost {
                                return Some(Ok(ModelEvent::Lost));
                            }
                        }
                        Err(error) => {
                            self.has_ended = true;
                            return Some(Err(error));
                        }
                    }
                }
            }
        }
    }
}

impl Model for FallbackModel {
    fn id(&self) -> &ModelId {
        self.first.id()
    }

    fn info(&self) -> Option<&ModelInfo> {
        self.first.info()
    }

    fn alternatives(&self) -> &[Arc<dyn Model>] {
        &self.others
    }

    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        self.all().find(|model| *model.id() == response.origin)?.cost(response, at)
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.first.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let relay = Box::new(Relay {
            fallbacks: Fallbacks::new(self, request),
            events: self.first.stream(request),
            model: Arc::clone(&self.first),
            notices: Vec::new(),
            has_delivered: false,
            has_ended: false,
        });
        futures_util::stream::unfold(relay, |mut relay| async move {
            let event = relay.next().await?;
            Some((event, relay))
        })
        .boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let mut error = match self.first.respond(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let mut fallbacks = Fallbacks::new(self, request);
            let mut failed = self.first.id().clone();
            loop {
                let (model, _) = fallbacks.next(&failed, error)?;
                match model.respond(&fallbacks.request).await {
                    Ok(mut response) => {
                        response.notices.splice(0..0, fallbacks.notices.drain(..));
                        return Ok(response);
                    }
                    Err(next) => error = next,
                }
                failed = model.id().clone();
            }
        })
    }
}
