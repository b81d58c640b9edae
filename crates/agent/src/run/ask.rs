//! The model is asked, and what it says is passed on and kept.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{CallId, Clock as _, Event, SystemClock, UsageEvent};
use toolpost_llm::{
    AssistantTurn, ErrorKind, HostedTool, Item, ModelError, ModelEvent, ModelId, Request, Response,
    StopReason as ModelStop, ToolDefinition, Turn,
};

use super::hosted_tools::Told;
use super::notices::shortened;
use super::{Interrupted, Running, sleep_until};
use crate::RunStopReason;
use crate::meter::Meter;
use crate::results::{Wanted, wanted};
use crate::spend::Spent;

/// How long all sources of tools may take to say what they have now; a toolbox gives up on a single one before.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);

impl Running<'_> {
    /// Everything before the first question: what tools there are, and whether the model can take the request.
    pub(super) async fn open(&mut self) -> Result<(), Interrupted> {
        let listed = self.list_tools().await;
        self.emit(|running| Event::RunStarted {
            run: running.record.id,
            parent: running.record.parent,
            model: running.record.model.clone(),
            tools: running.request.tools.iter().map(|tool| tool.name.clone()).collect(),
        });
        listed?;
        if self.resumed.is_none() {
            self.guard_input().await?;
        }
        self.check_choice()?;
        self.request_schema()?;
        self.check_price()
    }

    /// A limit of money needs a price, before anything is spent.
    fn check_price(&self) -> Result<(), Interrupted> {
        if !self.budget.context().limits_cost() {
            return Ok(());
        }
        let Some(model) = self.config.unpriced() else { return Ok(()) };
        let message = format!(
            "the run has a limit in US dollars, but the price of {model} is unknown; set its price, or limit tokens \
             instead"
        );
        let error = ModelError::new(ErrorKind::Configuration, message).with_model(model);
        Err(Interrupted { stop: RunStopReason::UnknownCost, error: Some(Box::new(error)) })
    }

    /// Asks what tools there are now. Sources that do not answer are no reason to stop: what was known is offered.
    async fn list_tools(&mut self) -> Result<(), Interrupted> {
        let listed = tokio::select! {
            biased;
            () = self.cancellation.cancelled() => return Err(RunStopReason::Cancelled.into()),
            () = sleep_until(self.budget.deadline()) => return Err(RunStopReason::MaxTime.into()),
            listed = tokio::time::timeout(LIST_TIMEOUT, self.offer.list()) => match listed {
                Ok(listed) => listed.map_err(|error| error.public(CallId::new()).to_string()),
                Err(_) => Err("the sources did not say in 15 s what they have".to_owned()),
            },
        };
        let listed =
            listed.inspect_err(|reason| self.note(&format!("the list of tools may be old: {reason}")));
        let (tools, notices) = self.offer.begin(listed.ok(), self.tool_session.take());
        self.offer_tools(tools);
        for notice in notices {
            self.note(&notice);
        }
        Ok(())
    }

    /// Offers tools to the model, as far as the run may use them.
    pub(super) fn offer_tools(&mut self, tools: Arc<[ToolDefinition]>) {
        let may_use = |tool: &ToolDefinition| self.may_use(&tool.name);
        let is_whole = !self.config.strict && tools.iter().all(may_use);
        self.request.tools = if is_whole {
            tools
        } else {
            let strict = self.config.strict;
            let tools = tools.iter().filter(|tool| may_use(tool)).cloned();
            tools.map(|tool| ToolDefinition { strict, ..tool }).collect()
        };
        let is_search = |tool: &HostedTool| matches!(tool, HostedTool::ToolSearch { .. });
        if self.request.tools.iter().any(|tool| tool.deferred)
            && !self.request.hosted_tools.iter().any(is_search)
        {
            self.request.hosted_tools.push(HostedTool::ToolSearch { version: None });
        }
    }

    /// Whether the run may use a tool.
    pub(super) fn may_use(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|names| names.contains(tool))
    }

    /// Asks the model, and passes on what it says while it says it.
    pub(super) async fn ask(&mut self) -> Result<Response, Interrupted> {
        self.record.iterations = self.budget.begin_iteration();
        self.emit(|running| Event::TurnStarted {
            run: running.record.id,
            iteration: running.record.iterations,
        });
        let request = std::mem::take(&mut self.request);
        let began = SystemClock.timestamp();
        let answer = self.answer_to(&request).await;
        let of_code = match &answer {
            Ok((response, _)) => self.meter(&request, response, began),
            Err(_) => Spent::default(),
        };
        self.request = request;
        let said = std::mem::take(&mut self.said);
        // Whoever stops an answer has read its beginning, and may speak of it.
        if self.cancellation.is_cancelled() && answer.is_err() && !said.trim().is_empty() {
            let origin = self.config.model.id().clone();
            let turn =
                AssistantTurn::new(ModelId::new("interrupted", origin.name), vec![Item::from_text(said)]);
            self.request.turns.push(Turn::Assistant(turn));
        }
        let (response, mut spent) = answer?;
        self.budget.spend(&of_code);
        spent.add(&of_code);
        self.tell_answer(&response, &spent, response.tool_calls().count());
        Ok(response)
    }

    /// One answer of the model to a request, and what it has consumed. That is counted, also when no answer comes.
    pub(super) async fn answer_to(&mut self, request: &Request) -> Result<(Response, Spent), Interrupted> {
        let mut meter = Meter::new(self.budget.context(), &self.model, self.config.pricing.as_ref());
        let answer = self.listen(request, &mut meter).await;
        let spent = meter.finish();
        match answer {
            Ok(response) => Ok((response, spent.unwrap_or_default())),
            Err(interrupted) => {
                if let Some(spent) = spent {
                    self.tell_usage(self.config.model.id().to_string(), &spent, 0);
                }
                Err(interrupted)
            }
        }
    }

    /// Passes an answer on while it comes.
    async fn listen(&mut self, request: &Request, meter: &mut Meter) -> Result<Response, Interrupted> {
        let withholds = self.withholds_text();
        self.said.clear();
        let mut hosted = Told::default();
        let mut stream = self.model.stream(request);
        let mut cancelled = self.cancellation.cancelled();
        let mut over = pin!(sleep_until(self.budget.deadline()));
        loop {
            // A stream that always has something must not keep the runtime from telling the time.
            tokio::task::consume_budget().await;
            let event = tokio::select! {
                biased;
                () = &mut cancelled => return Err(RunStopReason::Cancelled.into()),
                () = &mut over => return Err(RunStopReason::MaxTime.into()),
                event = meter.next(&mut stream) => event,
            };
            let run = self.record.id;
            match event {
                Some(Ok(ModelEvent::Done(response))) => return Ok(*response),
                Some(Ok(ModelEvent::TextDelta { .. })) if withholds => {}
                Some(Ok(ModelEvent::TextDelta { text, .. })) => {
                    self.said.push_str(&text);
                    self.emit(|_| Event::TextDelta { run, text });
                }
                Some(Ok(ModelEvent::ThinkingDelta { text, .. })) => {
                    self.emit(|_| Event::ThinkingDelta { run, text });
                }
                Some(Ok(ModelEvent::Hosted(item))) => {
                    hosted.early(run, &item).into_iter().for_each(|event| self.emit(|_| event));
                }
                Some(Ok(ModelEvent::Item(item))) => {
                    hosted.in_turn(run, &item).into_iter().for_each(|event| self.emit(|_| event));
                }
                // Every request of a run brings the same ones.
                Some(Ok(ModelEvent::Notice(message))) => {
                    if !self.notices.has(&shortened(&message)) {
                        self.note(&message);
                    }
                }
                Some(Ok(ModelEvent::Retrying { attempt, after, reason })) => self.note(&format!(
                    "attempt {attempt} to reach the model failed ({reason}); the next is in {}",
                    toolpost_core::format_duration(after)
                )),
                Some(Ok(ModelEvent::Restarted)) => {
                    self.said.clear();
                    hosted = Told::default();
                    self.note("the provider began its answer anew; what it said before is void");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => {
                    let error = ModelError::new(ErrorKind::Protocol, "the stream ended without an answer");
                    return Err(error.with_model(self.config.model.id()).into());
                }
            }
        }
    }

    /// Adds the answer to the conversation and, as it may be shown, to the record, and gives the calls that it asks for.
    pub(super) fn keep(&mut self, response: &Response, text: &str) -> Vec<Wanted> {
        let wanted = wanted(response);
        self.watch.answer(text);
        // Only text can be resumed: text before an empty pause belongs to an earlier answer.
        self.has_said = self.goes_on || !text.is_empty();
        if self.goes_on {
            self.record.response.push_str(text);
        } else if !text.is_empty() {
            text.clone_into(&mut self.record.response);
        }
        self.goes_on = self.has_said && wanted.is_empty() && response.stop == ModelStop::Pause;
        for notice in &response.notices {
            // Most were told of while the answer came.
            if !self.notices.has(&shortened(notice)) {
                self.note(notice);
            }
        }
        self.request.push_response(response);
        if response.stop != ModelStop::Pause {
            self.release_choice();
        }
        if !response.provider_state.is_empty() {
            self.carry
                .entry(response.origin.provider.clone())
                .or_default()
                .extend(response.provider_state.clone());
        }
        wanted
    }

    /// Says that an answer has come, and what it has consumed, with what code took that the provider has run for it.
    pub(super) fn tell_answer(&self, response: &Response, spent: &Spent, tool_calls: usize) {
        self.emit(|running| Event::TurnFinished {
            run: running.record.id,
            iteration: running.record.iterations,
            stop_reason: response.stop.as_str().to_owned(),
            usage: spent.usage.clone(),
        });
        self.tell_usage(response.origin.to_string(), spent, tool_calls);
    }

    /// Tells who wants to know what a model has consumed.
    pub(super) fn tell_usage(&self, model: String, spent: &Spent, tool_calls: usize) {
        let listeners = &*self.listeners;
        if listeners.events.is_empty() && listeners.usage.is_empty() {
            return;
        }
        let event = UsageEvent {
            run: self.record.id,
            iteration: self.record.iterations,
            model,
            usage: spent.usage.clone(),
            cost_usd: spent.cost_usd,
            tool_calls: u32::try_from(tool_calls).unwrap_or(u32::MAX),
            metadata: self.usage_metadata.clone(),
        };
        listeners.usage.iter().for_each(|sink| sink(&event));
        self.emit(|_| Event::Usage(event));
    }
}
