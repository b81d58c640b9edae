//! Requests to the model.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{CallId, Clock as _, Event, SystemClock, UsageEvent};
use toolpost_llm::{
    AssistantTurn, ErrorKind, HostedTool, Item, ModelError, ModelEvent, ModelId, Request, Response,
    StopReason as ModelStop, ToolDefinition, Turn,
};

use super::hosted_tools::HostedEvents;
use super::notices::truncate;
use super::{Interrupted, Running, sleep_until};
use crate::RunStopReason;
use crate::meter::Meter;
use crate::results::{RequestedCall, requested_calls};
use crate::spend::Spent;

/// Time for all sources to list their tools. The toolbox has a shorter limit for each source.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);

impl Running<'_> {
    /// Lists the tools and checks the request before the first answer.
    pub(super) async fn prepare(&mut self) -> Result<(), Interrupted> {
        let listed = self.list_tools().await;
        self.emit(|running| Event::RunStarted {
            run: running.record.id,
            parent: running.record.parent,
            model: running.record.model.clone(),
            tools: running.request.tools.iter().map(|tool| tool.name.clone()).collect(),
        });
        listed?;
        if self.run.resumed.is_none() {
            self.guard_input().await?;
        }
        self.check_choice()?;
        self.write_system_prompt().await?;
        self.request_schema()?;
        self.check_price()
    }

    /// Sets the system prompt that a function of the application writes.
    async fn write_system_prompt(&mut self) -> Result<(), Interrupted> {
        let Some(system) = &self.config.system else { return Ok(()) };
        let text = self.unless_over(system(self.run.values.clone())).await?.map_err(|error| {
            ModelError::new(ErrorKind::Configuration, format!("the system prompt failed: {error}"))
        })?;
        self.request.system = Some(text);
        Ok(())
    }

    /// Checks that all prices are known if the run limits cost.
    fn check_price(&self) -> Result<(), Interrupted> {
        if !self.budget.context.limits_cost() {
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

    /// Lists the tools. If a source fails, the run offers its last known tools.
    async fn list_tools(&mut self) -> Result<(), Interrupted> {
        let listed = self.unless_over(tokio::time::timeout(LIST_TIMEOUT, self.offer.list())).await?;
        let listed = match listed {
            Ok(listed) => listed.map_err(|error| error.public(CallId::new()).to_string()),
            Err(_) => Err("listing tools timed out after 15 s".to_owned()),
        };
        let listed =
            listed.inspect_err(|reason| self.note(&format!("the list of tools may be outdated: {reason}")));
        let (tools, notices) = self.offer.begin(listed.ok(), self.run.tool_session.take());
        self.offer_tools(tools);
        for notice in notices {
            self.note(&notice);
        }
        Ok(())
    }

    /// Offers the tools of the run to the model.
    pub(super) fn offer_tools(&mut self, tools: Arc<[ToolDefinition]>) {
        let is_offered = |tool: &ToolDefinition| self.has_tool(&tool.name);
        let is_whole = !self.config.strict && tools.iter().all(is_offered);
        self.request.tools = if is_whole {
            tools
        } else {
            let strict = self.config.strict;
            let tools = tools.iter().filter(|tool| is_offered(tool)).cloned();
            tools.map(|tool| ToolDefinition { strict, ..tool }).collect()
        };
        let is_search = |tool: &HostedTool| matches!(tool, HostedTool::ToolSearch { .. });
        if self.request.tools.iter().any(|tool| tool.deferred)
            && !self.request.hosted_tools.iter().any(is_search)
        {
            self.request.hosted_tools.push(HostedTool::ToolSearch { version: None });
        }
    }

    /// Whether the run has a tool.
    pub(super) fn has_tool(&self, tool: &str) -> bool {
        self.run.tools.as_ref().is_none_or(|names| names.contains(tool))
    }

    /// Requests an answer, and emits its events.
    pub(super) async fn request_answer(&mut self) -> Result<Response, Interrupted> {
        self.record.iterations = self.budget.begin_iteration();
        self.emit(|running| Event::TurnStarted {
            run: running.record.id,
            iteration: running.record.iterations,
        });
        let request = std::mem::take(&mut self.request);
        let began = SystemClock.timestamp();
        let answer = self.answer_to(&request).await;
        let code_spending = match &answer {
            Ok((response, _)) => self.meter(&request, response, began),
            Err(_) => Spent::default(),
        };
        self.request = request;
        let text = std::mem::take(&mut self.partial_text);
        // The user has read the beginning of a cancelled answer and may refer to it.
        if self.run.cancellation.is_cancelled() && answer.is_err() && !text.trim().is_empty() {
            let origin = self.config.model.id().clone();
            let turn =
                AssistantTurn::new(ModelId::new("interrupted", origin.name), vec![Item::from_text(text)]);
            self.request.turns.push(Turn::Assistant(turn));
        }
        let (response, mut spent) = answer?;
        self.budget.context.spend(&code_spending);
        spent.add(&code_spending);
        self.emit_answer(&response, &spent, response.tool_calls().count());
        Ok(response)
    }

    /// The answer to a request and its spending. Spending of a failed request counts too.
    pub(super) async fn answer_to(&mut self, request: &Request) -> Result<(Response, Spent), Interrupted> {
        let mut meter = Meter::new(&self.budget.context, &self.model, self.config.pricing.as_ref());
        let answer = self.receive(request, &mut meter).await;
        let spent = meter.finish();
        match answer {
            Ok(response) => Ok((response, spent.unwrap_or_default())),
            Err(interrupted) => {
                if let Some(spent) = spent {
                    self.emit_usage(self.config.model.id().to_string(), &spent, 0);
                }
                Err(interrupted)
            }
        }
    }

    /// Receives an answer, and emits its events.
    async fn receive(&mut self, request: &Request, meter: &mut Meter) -> Result<Response, Interrupted> {
        let withholds = self.withholds_text();
        self.partial_text.clear();
        let mut hosted = HostedEvents::default();
        let mut stream = self.model.stream(request);
        let mut cancelled = self.run.cancellation.cancelled();
        let mut late = pin!(sleep_until(self.budget.deadline()));
        loop {
            // A stream that is always ready must not block the timer.
            tokio::task::consume_budget().await;
            let event = tokio::select! {
                biased;
                () = &mut cancelled => return Err(RunStopReason::Cancelled.into()),
                () = &mut late => return Err(RunStopReason::MaxTime.into()),
                event = meter.next(&mut stream) => event,
            };
            let run = self.record.id;
            match event {
                Some(Ok(ModelEvent::Done(response))) => return Ok(*response),
                Some(Ok(ModelEvent::TextDelta { .. })) if withholds => {}
                Some(Ok(ModelEvent::TextDelta { text, .. })) => {
                    self.partial_text.push_str(&text);
                    self.emit(|_| Event::TextDelta { run, text });
                }
                Some(Ok(ModelEvent::ThinkingDelta { text, .. })) => {
                    self.emit(|_| Event::ThinkingDelta { run, text });
                }
                Some(Ok(ModelEvent::Hosted(item))) => {
                    hosted.early(run, &item).into_iter().for_each(|event| self.emit(|_| event));
                }
                Some(Ok(ModelEvent::Item(item))) => {
                    hosted.in_order(run, &item).into_iter().for_each(|event| self.emit(|_| event));
                }
                // Every request of a run has the same notices.
                Some(Ok(ModelEvent::Notice(message))) => {
                    self.note_once(&message);
                }
                Some(Ok(ModelEvent::Retrying { attempt, after, reason })) => self.note(&format!(
                    "attempt {attempt} to reach the model failed ({reason}); the next is in {}",
                    toolpost_core::format_duration(after)
                )),
                Some(Ok(ModelEvent::Restarted)) => {
                    self.partial_text.clear();
                    hosted = HostedEvents::default();
                    self.note("the provider restarted its answer; discard the earlier text");
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

    /// Adds an answer to the conversation and its guarded text to the record. Returns its calls.
    pub(super) fn add_answer(&mut self, response: &Response, text: &str) -> Vec<RequestedCall> {
        let calls = requested_calls(response);
        self.detector.observe_text(text);
        // Only text can be continued: text before an empty pause belongs to an earlier answer.
        self.has_text = self.continues_answer || !text.is_empty();
        if self.continues_answer {
            self.record.response.push_str(text);
        } else if !text.is_empty() {
            text.clone_into(&mut self.record.response);
        }
        self.continues_answer = self.has_text && calls.is_empty() && response.stop == ModelStop::Pause;
        for notice in &response.notices {
            // The stream has reported most of them.
            self.note_once(notice);
        }
        self.request.push_response(response);
        if response.stop != ModelStop::Pause {
            self.release_choice();
        }
        if !response.provider_state.is_empty() {
            self.run
                .provider_state
                .entry(response.origin.provider.clone())
                .or_default()
                .extend(response.provider_state.clone());
        }
        calls
    }

    fn note_once(&mut self, message: &str) {
        if !self.run.notices.has(&truncate(message)) {
            self.note(message);
        }
    }

    /// Emits the end of an answer and its usage.
    pub(super) fn emit_answer(&self, response: &Response, spent: &Spent, tool_calls: usize) {
        self.emit(|running| Event::TurnFinished {
            run: running.record.id,
            iteration: running.record.iterations,
            stop_reason: response.stop.as_str().to_owned(),
            usage: spent.usage.clone(),
        });
        self.emit_usage(response.origin.to_string(), spent, tool_calls);
    }

    /// Emits the usage of a model.
    pub(super) fn emit_usage(&self, model: String, spent: &Spent, tool_calls: usize) {
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
            metadata: self.run.usage_metadata.clone(),
        };
        listeners.usage.iter().for_each(|sink| sink(&event));
        self.emit(|_| Event::Usage(event));
    }
}
