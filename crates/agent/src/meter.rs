//! The spending of one exchange with a model, also of a failed one.

use std::sync::Arc;

use futures_util::StreamExt as _;
use toolpost_core::Usage;
use toolpost_llm::{ErrorKind, Model, ModelError, ModelEvent, Request, Response, ResponseStream};

use crate::Pricing;
use crate::results::{spent_by, usage_of};
use crate::run_context::RunContext;
use crate::spend::Spent;

/// Counts one exchange for a run and all runs above it, as soon as the exchange ends: complete, failed or dropped.
///
/// An incomplete answer counts the usage that the provider reported so far, at an unknown cost.
pub(crate) struct Meter {
    context: Arc<RunContext>,
    model: Arc<dyn Model>,
    pricing: Option<Pricing>,
    /// The usage that the provider reported so far.
    reported: Usage,
    /// Whether the request may have been sent and is not counted yet.
    is_open: bool,
    /// Whether an answer has begun.
    has_begun: bool,
    /// Whether an earlier attempt may have a cost.
    has_lost: bool,
    spent: Option<Spent>,
}

impl Meter {
    pub(crate) fn new(context: &Arc<RunContext>, model: &Arc<dyn Model>, pricing: Option<&Pricing>) -> Self {
        Self {
            context: Arc::clone(context),
            model: Arc::clone(model),
            pricing: pricing.cloned(),
            reported: Usage::default(),
            is_open: false,
            has_begun: false,
            has_lost: false,
            spent: None,
        }
    }

    /// The model.
    pub(crate) fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// Requests a complete answer.
    pub(crate) async fn respond(&mut self, request: &Request) -> Result<Response, ModelError> {
        // A stream reports usage before the end.
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
        // The first poll may send the request.
        self.is_open = true;
        let event = events.next().await;
        match &event {
            Some(Ok(ModelEvent::Done(response))) => {
                self.count(spent_by(response, &*self.model, self.pricing.as_ref()));
            }
            Some(Ok(ModelEvent::Usage(usage))) => {
                self.reported = usage_of(usage);
                self.has_begun = true;
            }
            Some(Ok(ModelEvent::Lost)) => self.has_lost = true,
            Some(Ok(ModelEvent::Notice(_) | ModelEvent::Retrying { .. })) => {}
            Some(Ok(_)) => self.has_begun = true,
            // A request that is rejected before an answer begins costs nothing.
            Some(Err(error)) if !(self.has_begun || self.has_lost || error.kind.may_be_billed()) => {
                self.is_open = false;
            }
            Some(Err(_)) | None => self.end_early(),
        }
        event
    }

    /// Ends the exchange. Returns its spending if a request was sent.
    pub(crate) fn finish(&mut self) -> Option<Spent> {
        self.end_early();
        self.spent.take()
    }

    fn end_early(&mut self) {
        if self.is_open {
            let usage = std::mem::take(&mut self.reported);
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
        self.end_early();
    }
}
