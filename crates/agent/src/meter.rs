//! What one exchange with a model consumes, also when it comes to nothing.

use std::sync::Arc;

use futures_util::StreamExt as _;
use toolpost_core::Usage;
use toolpost_llm::{ErrorKind, Model, ModelError, ModelEvent, Request, Response, ResponseStream};

use crate::Pricing;
use crate::results::{spent_by, usage_of};
use crate::run_context::RunContext;
use crate::spend::Spent;

/// Counts one exchange for a run and for those that it was made from, as soon as it is over: whole, failed or given up. Of
/// an answer that was not heard to its end counts what the provider has told, at a cost that nobody knows.
pub(crate) struct Meter {
    context: Arc<RunContext>,
    model: Arc<dyn Model>,
    pricing: Option<Pricing>,
    /// What the provider has told so far.
    told: Usage,
    /// Whether the request may be on its way, and nothing was counted yet.
    is_open: bool,
    /// Whether something of an answer has come.
    has_begun: bool,
    /// Whether an earlier attempt may have consumed something.
    has_lost: bool,
    spent: Option<Spent>,
}

impl Meter {
    pub(crate) fn new(context: &Arc<RunContext>, model: &Arc<dyn Model>, pricing: Option<&Pricing>) -> Self {
        Self {
            context: Arc::clone(context),
            model: Arc::clone(model),
            pricing: pricing.cloned(),
            told: Usage::default(),
            is_open: false,
            has_begun: false,
            has_lost: false,
            spent: None,
        }
    }

    /// The model that is asked.
    pub(crate) fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// Asks for an answer as a whole.
    pub(crate) async fn respond(&mut self, request: &Request) -> Result<Response, ModelError> {
        // As a stream, which tells on its way what is consumed.
        let mut events = self.model.stream(request);
        loop {
            tokio::task::consume_budget().await;
            match self.next(&mut events).await {
                Some(Ok(ModelEvent::Done(response))) => return Ok(*response),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => {
                    let error = ModelError::new(ErrorKind::Protocol, "the stream ended without an answer");
                    return Err(error.with_model(self.model.id()));
                }
            }
        }
    }

    /// The next event of the answer.
    pub(crate) async fn next(
        &mut self,
        events: &mut ResponseStream,
    ) -> Option<Result<ModelEvent, ModelError>> {
        // Nothing is sent before the stream is polled, and anything may be from then on.
        self.is_open = true;
        let event = events.next().await;
        match &event {
            Some(Ok(ModelEvent::Done(response))) => {
                self.count(spent_by(response, &*self.model, self.pricing.as_ref()));
            }
            Some(Ok(ModelEvent::Usage(usage))) => {
                self.told = usage_of(usage);
                self.has_begun = true;
            }
            Some(Ok(ModelEvent::Lost)) => self.has_lost = true,
            Some(Ok(ModelEvent::Notice(_) | ModelEvent::Retrying { .. })) => {}
            Some(Ok(_)) => self.has_begun = true,
            // What was refused before an answer began consumes nothing.
            Some(Err(error)) if !(self.has_begun || self.has_lost || error.kind.may_be_billed()) => {
                self.is_open = false;
            }
            Some(Err(_)) | None => self.give_up(),
        }
        event
    }

    /// Ends the exchange, and gives what it has consumed, if anything was asked.
    pub(crate) fn finish(&mut self) -> Option<Spent> {
        self.give_up();
        self.spent.take()
    }

    fn give_up(&mut self) {
        if self.is_open {
            let usage = std::mem::take(&mut self.told);
            self.count(Spent { usage, cost_usd: None });
        }
    }

    fn count(&mut self, mut spent: Spent) {
        if self.has_lost {
            spent.cost_usd = None;
        }
        self.is_open = false;
        self.context.spend(&spent);
        self.spent = Some(spent);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.give_up();
    }
}
