//! A model with others behind it.

use std::sync::Arc;

use futures_util::StreamExt as _;
use toolpost_core::Timestamp;

use crate::{
    Attempt, BoxFuture, Cost, ErrorKind, HostedTool, Model, ModelError, ModelEvent, ModelId, ModelInfo,
    Request, Response, ResponseStream, ToolDefinition,
};

/// Asks one model, and another when the first cannot be had: at [`ErrorKind::Overloaded`], [`ErrorKind::RateLimited`],
/// [`ErrorKind::Timeout`], [`ErrorKind::Network`] and [`ErrorKind::NotFound`], after the retries of each. Any other
/// error is the answer of the model that gave it.
///
/// A model that lacks what the request needs is passed over; of a search for tools and of
/// changes to a long conversation the request is relieved first. Once something of an answer was delivered, its error ends
/// the stream. The change of models is a [`ModelEvent::Notice`] and stands in [`Response::notices`];
/// [`Response::origin`] says who answered. Options, betas and raw hosted tools that were written for the first model's
/// provider are not sent to another one. An error in the end has the attempts of all.
#[derive(Debug)]
pub struct FallbackModel {
    first: Arc<dyn Model>,
    others: Vec<Arc<dyn Model>>,
}

impl FallbackModel {
    /// A model, and those that are asked after it, in order.
    pub fn new(first: Arc<dyn Model>, others: Vec<Arc<dyn Model>>) -> Self {
        Self { first, others }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Model>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// Whether another model may do better.
fn moves_on(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Overloaded
            | ErrorKind::RateLimited { .. }
            | ErrorKind::Timeout(_)
            | ErrorKind::Network(_)
            | ErrorKind::NotFound
    )
}

/// The models that are left, and what those before came to.
struct Rest {
    /// The model that the request was written for.
    first: ModelId,
    request: Request,
    models: std::vec::IntoIter<Arc<dyn Model>>,
    notices: Vec<String>,
    attempts: Vec<Attempt>,
}

impl Rest {
    fn new(model: &FallbackModel, request: &Request) -> Self {
        Self {
            first: model.first.id().clone(),
            request: request.clone(),
            models: model.others.clone().into_iter(),
            notices: Vec::new(),
            attempts: Vec::new(),
        }
    }

    /// The next model that takes the request after `failed` has failed with this error, and what to say; the error,
    /// with the attempts of all, if there is none.
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
        let mut said = Vec::new();
        if moves_on(&error.kind) {
            for model in self.models.by_ref() {
                let mut request = request_for(&self.first, model.id(), &self.request, &mut said);
                if let Err(lacks) = model.check(&request) {
                    let without = take_away_comforts(&mut request);
                    if without.is_empty() || model.check(&request).is_err() {
                        said.push(format!("{} was passed over: {}", model.id(), lacks.message));
                        continue;
                    }
                    said.push(format!("{} is asked without {}", model.id(), without.join(" and ")));
                }
                self.request = request;
                said.insert(
                    0,
                    format!(
                        "{failed} could not be had ({}): {} is asked instead",
                        error.kind.as_str(),
                        model.id()
                    ),
                );
                self.notices.extend(said.iter().cloned());
                return Ok((model, said));
            }
        }
        for (number, attempt) in (1..).zip(&mut self.attempts) {
            attempt.number = number;
        }
        error.details.attempts = std::mem::take(&mut self.attempts);
        Err(error)
    }
}

/// The request without what only the first model's provider understands.
fn request_for(first: &ModelId, model: &ModelId, request: &Request, said: &mut Vec<String>) -> Request {
    let mut request = request.clone();
    if model.provider == first.provider {
        return request;
    }
    if !request.provider_options.is_empty() || !request.betas.is_empty() {
        request.provider_options.clear();
        request.betas.clear();
        said.push(format!("the options for {} were not sent to {}", first.provider, model.provider));
    }
    let before = request.hosted_tools.len();
    request.hosted_tools.retain(|tool| !matches!(tool, HostedTool::Raw(_)));
    if request.hosted_tools.len() < before {
        said.push(format!(
            "hosted tools in the JSON of {} were not sent to {}",
            first.provider, model.provider
        ));
    }
    request
}

/// Takes away what a request can do without, and says what that was: the search for tools, so that a model sees all of
/// them, and what a provider does with long conversations.
fn take_away_comforts(request: &mut Request) -> Vec<&'static str> {
    let mut without = Vec::new();
    if request.tools.iter().any(|tool| tool.deferred) {
        request.hosted_tools.retain(|tool| !matches!(tool, HostedTool::ToolSearch { .. }));
        request.tools =
            request.tools.iter().map(|tool| ToolDefinition { deferred: false, ..tool.clone() }).collect();
        without.push("a search for tools (it sees all of them)");
    }
    if !request.context_edits.is_empty() {
        request.context_edits.clear();
        without.push("changes to a long conversation");
    }
    without
}

/// A stream on its way through the models.
struct Relay {
    rest: Rest,
    model: Arc<dyn Model>,
    events: ResponseStream,
    /// What was said and not yet delivered, the first last.
    said: Vec<String>,
    delivered: bool,
    ended: bool,
}

impl Relay {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(notice) = self.said.pop() {
                return Some(Ok(ModelEvent::Notice(notice)));
            }
            if self.ended {
                return None;
            }
            match self.events.next().await? {
                Ok(ModelEvent::Done(mut response)) => {
                    response.notices.splice(0..0, self.rest.notices.drain(..));
                    return Some(Ok(ModelEvent::Done(response)));
                }
                Ok(event) => {
                    self.delivered |= !matches!(
                        event,
                        ModelEvent::Notice(_) | ModelEvent::Retrying { .. } | ModelEvent::Lost
                    );
                    return Some(Ok(event));
                }
                Err(error) if self.delivered => {
                    self.ended = true;
                    return Some(Err(error));
                }
                Err(error) => {
                    let is_lost = error.kind.may_be_billed();
                    match self.rest.next(self.model.id(), error) {
                        Ok((model, mut said)) => {
                            said.reverse();
                            self.said = said;
                            self.events = model.stream(&self.rest.request);
                            self.model = model;
                            if is_lost {
                                return Some(Ok(ModelEvent::Lost));
                            }
                        }
                        Err(error) => {
                            self.ended = true;
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
            rest: Rest::new(self, request),
            events: self.first.stream(request),
            model: Arc::clone(&self.first),
            said: Vec::new(),
            delivered: false,
            ended: false,
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
            let mut rest = Rest::new(self, request);
            let mut failed = self.first.id().clone();
            loop {
                let (model, _) = rest.next(&failed, error)?;
                match model.respond(&rest.request).await {
                    Ok(mut response) => {
                        response.notices.splice(0..0, rest.notices.drain(..));
                        return Ok(response);
                    }
                    Err(next) => error = next,
                }
                failed = model.id().clone();
            }
        })
    }
}
