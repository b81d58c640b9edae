//! The tools that an answer asks for are called.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use toolpost_core::{Call, CallId, CallRecord, Port, Reply, ToolError};
use toolpost_llm::schema::without_nulls;
use toolpost_llm::{ToolResult, Turn};

use super::repetition::Seen;
use super::{CallPayload, Running, Until};
use crate::RunStopReason;
use crate::port::ModelPort;
use crate::results::{Wanted, failure, result, shorten};
use crate::spend::Spent;

/// What came of the calls of one answer.
#[derive(Default)]
pub(super) struct Made {
    /// One for each call, in the order of the calls.
    pub(super) results: Vec<ToolResult>,
    /// Why the run ends here, if it does.
    pub(super) stop: Option<RunStopReason>,
}

/// A call of an answer, and what becomes of it.
pub(super) struct Planned {
    pub(super) id: CallId,
    pub(super) wanted: Wanted,
    pub(super) fate: Fate,
}

/// What becomes of a call.
pub(super) enum Fate {
    /// It is made.
    Make,
    /// It is made, and somebody has approved it already.
    Approved,
    /// It was made before the run waited.
    Done(ToolResult),
    /// It is not made, and the model is told why.
    Refused(ToolError),
    /// It is not made, because as many were made as may be.
    OverLimit,
    /// It waits for somebody, and the run with it.
    Waits,
    /// It is not made, nor any other of the answer, and the run ends.
    Ends(RunStopReason),
}

/// Calls that are not made, because the run ends.
pub(super) fn refuse(wanted: &[Wanted], stop: RunStopReason) -> Made {
    let reason = if stop.is_limit() && stop != RunStopReason::OutputTokens {
        at_limit(&stop)
    } else {
        format!("the answer that asked for it was not whole ({stop})")
    };
    Made { results: refuse_all(wanted, &reason), stop: Some(stop) }
}

/// Why a call is not made when the run is at a limit.
fn at_limit(stop: &RunStopReason) -> String {
    format!("the run has reached its limit ({stop})")
}

fn not_made(reason: &str) -> ToolError {
    ToolError::limit(format!("the call was not made: {reason}"))
}

/// Results for calls that are not made, so that the conversation stays whole.
pub(super) fn refuse_all(wanted: &[Wanted], reason: &str) -> Vec<ToolResult> {
    let error = not_made(reason);
    wanted.iter().map(|wanted| failure(wanted, &error, CallId::new())).collect()
}

impl Running<'_> {
    /// Calls the tools that the model asked for, some at a time; the results are in the order of the calls.
    pub(super) async fn call_tools(&mut self, wanted: Vec<Wanted>) -> Made {
        let mut planned = Vec::with_capacity(wanted.len());
        let allowed = self.budget.allowed_calls(wanted.len());
        for (index, mut wanted) in wanted.into_iter().enumerate() {
            let fate = if index >= allowed {
                Fate::OverLimit
            } else if let Some(refused) = self.refuse_by_choice() {
                Fate::Refused(refused)
            } else {
                let waits = self.until == Until::Intent || self.must_wait(&wanted);
                self.fate_of(&mut wanted, if waits { Fate::Waits } else { Fate::Make }).await
            };
            planned.push(Planned { id: CallId::new(), wanted, fate });
        }
        self.carry_out(planned).await
    }

    /// This fate for a call, unless the run may not make it or a guardrail says no. Its arguments may be replaced.
    pub(super) async fn fate_of(&mut self, wanted: &mut Wanted, fate: Fate) -> Fate {
        if !self.may_use(&wanted.name) {
            let name = &wanted.name;
            return Fate::Refused(ToolError::not_found(format!("there is no tool `{name}` in this run")));
        }
        match self.guard_call(wanted).await {
            Ok(Some(refused)) => Fate::Refused(refused),
            Ok(None) => fate,
            Err(stop) => Fate::Ends(stop),
        }
    }

    /// Makes the calls that are to be made.
    pub(super) async fn carry_out(&mut self, mut planned: Vec<Planned>) -> Made {
        // What ends the run ends it before anything is done.
        let ends = planned
            .iter()
            .find_map(|call| if let Fate::Ends(stop) = &call.fate { Some(stop.clone()) } else { None });
        if let Some(stop) = ends {
            let error = not_made("something else in the same answer was not allowed");
            let results = planned.into_iter().map(|call| match call.fate {
                // What was made before the run waited was made.
                Fate::Done(result) => result,
                _ => failure(&call.wanted, &error, call.id),
            });
            return Made { results: results.collect(), stop: Some(stop) };
        }
        // Agents that run beside this one may have made the rest of the calls in the meantime.
        let is_to_be_made = |call: &&mut Planned| matches!(call.fate, Fate::Make | Fate::Approved);
        let wanted = planned.iter_mut().filter(is_to_be_made).count();
        let taken = self.budget.take_calls(wanted);
        planned.iter_mut().filter(is_to_be_made).skip(taken).for_each(|call| call.fate = Fate::OverLimit);
        let over_limit = planned.iter().any(|call| matches!(call.fate, Fate::OverLimit));
        let waits = planned.iter().any(|call| match call.fate {
            Fate::Waits => self.until != Until::Calls,
            // An intent goes no further than to one answer, also if nothing of it may be done.
            Fate::Refused(_) => self.until == Until::Intent,
            _ => false,
        });
        let made: Vec<_> =
            planned.iter().filter(|call| matches!(call.fate, Fate::Make | Fate::Approved)).collect();
        let mut replies = self.replies_to(&made).await.into_iter();
        let mut results = Vec::with_capacity(planned.len());
        for call in &mut planned {
            let wanted = &call.wanted;
            let refused = |error: &ToolError| Some(failure(wanted, error, call.id));
            let mut result = match std::mem::replace(&mut call.fate, Fate::Waits) {
                Fate::Make | Fate::Approved => replies.next().map(|reply| {
                    self.look_at(wanted, &reply);
                    let result = result(wanted, &reply);
                    self.record_call(reply);
                    result
                }),
                Fate::Done(result) => Some(result),
                Fate::Refused(error) => refused(&error),
                Fate::OverLimit => refused(&not_made(&at_limit(&RunStopReason::MaxToolCalls))),
                Fate::Waits if waits => None,
                Fate::Waits | Fate::Ends(_) => refused(&not_made("it was not approved")),
            };
            if let (Some(result), Some(limit)) = (&mut result, self.config.limits.tool_output_chars) {
                shorten(result, limit);
            }
            results.push(result);
        }
        let stop = if self.cancellation.is_cancelled() {
            Some(RunStopReason::Cancelled)
        } else if self.budget.is_late() {
            Some(RunStopReason::MaxTime)
        } else if waits {
            return self.wait_for(planned.into_iter().zip(results).collect());
        } else if over_limit {
            Some(RunStopReason::MaxToolCalls)
        } else if self.until == Until::Calls {
            Some(RunStopReason::ToolsCalled)
        } else {
            None
        };
        let not_made = not_made("the run was ended");
        let results = results.into_iter().zip(&planned);
        let results =
            results.map(|(result, call)| result.unwrap_or_else(|| failure(&call.wanted, &not_made, call.id)));
        Made { results: results.collect(), stop }
    }

    /// Counts a call towards repetition.
    fn look_at(&mut self, wanted: &Wanted, reply: &Reply) {
        let threshold = self.config.limits.repetition;
        if threshold == 0 {
            return;
        }
        let spec = self.config.toolbox.spec(&reply.record.tool);
        let seen = Seen {
            tool: &wanted.name,
            arguments: &wanted.arguments,
            result: reply.result.as_ref(),
            exists: spec.is_some() || self.offer.has_tool(&reply.record.tool) || reply.record.attempts > 0,
            is_read_only: spec.is_some_and(|spec| spec.annotations.read_only),
        };
        self.watch.call(&seen, threshold);
    }

    /// Keeps what is to be kept of a call.
    fn record_call(&mut self, reply: Reply) {
        let Reply { record: mut call, result } = reply;
        self.account_for(&mut call);
        if let Some(payload) = result.ok().and_then(|output| output.payload) {
            self.payloads.push(CallPayload { call: call.id, tool: Arc::clone(&call.tool), payload });
        }
        let record = &mut self.record;
        // What a model makes up is no tool, and its name may be of any length.
        let exists = call.attempts > 0 || self.offer.has_tool(&call.tool);
        if exists && !record.tools_used.iter().any(|known| **known == *call.tool) {
            record.tools_used.push(call.tool.to_string());
        }
        record.artifacts.extend(call.artifacts.iter().cloned());
        record.tool_calls.push(call);
    }

    /// Adds the results to the conversation, and says whether the run ends here.
    pub(super) fn tell(&mut self, made: Made) -> Option<RunStopReason> {
        if !made.results.is_empty() {
            self.request.turns.push(Turn::ToolResults(made.results));
        }
        self.settle();
        made.stop
    }

    /// Enters into the record of a call what models have consumed for it and for the calls made from it, by what they were
    /// asked for here, which is counted already; and counts what the others of these calls say themselves.
    fn account_for(&self, call: &mut Arc<CallRecord>) {
        let mut sum: Option<Spent> = None;
        let mut calls = vec![&**call];
        while let Some(one) = calls.pop() {
            calls.extend(one.children.iter().map(|child| &**child));
            let mut was_asked = false;
            for port in self.ports() {
                let Some(spent) = port.take_spent_of(one.id) else { continue };
                was_asked = true;
                self.tell_usage(port.model().to_string(), &spent, 0);
                sum.get_or_insert_with(Spent::default).add(&spent);
            }
            if let Some(usage) = one.usage.as_ref().filter(|_| !was_asked) {
                let spent = Spent { usage: usage.clone(), cost_usd: one.cost_usd };
                self.budget.spend(&spent);
                self.tell_usage(one.tool.to_string(), &spent, 0);
            }
        }
        if let Some(spent) = sum {
            let record = Arc::make_mut(call);
            record.usage = Some(spent.usage);
            record.cost_usd = spent.cost_usd;
        }
    }

    /// What makes completions for tools.
    fn ports(&self) -> impl Iterator<Item = &ModelPort> {
        std::iter::once(&*self.port).chain(self.offer.finder())
    }

    /// Takes over what calls have changed: the tools that are offered, and tells what models have consumed for calls that
    /// were given up.
    fn settle(&mut self) {
        if let Some(tools) = self.offer.changed() {
            self.offer_tools(tools);
        }
        for port in self.ports() {
            if let Some(spent) = port.take_spent() {
                self.tell_usage(port.model().to_string(), &spent, 0);
            }
        }
    }

    /// Makes calls, some at a time. The replies are in the order of the calls.
    async fn replies_to(&self, calls: &[&Planned]) -> Vec<Reply> {
        let offer = &self.offer;
        // Nearly always there is one, and that needs no crowd.
        if let [only] = calls {
            return vec![offer.call(self.call_of(only)).await];
        }
        let calls: Vec<_> =
            (0_usize..).zip(calls).map(|(index, planned)| (index, self.call_of(planned))).collect();
        let calls = calls.into_iter().map(|(index, call)| async move { (index, offer.call(call).await) });
        let at_once = self.config.limits.parallel_tools.max(1);
        // Unordered, so that a slow call holds no other back.
        let mut replies: Vec<_> = stream::iter(calls).buffer_unordered(at_once).collect().await;
        replies.sort_unstable_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// The arguments as the tool takes them: a provider that keeps to a schema writes `null` for what is not there.
    fn arguments_of(&self, wanted: &Wanted) -> Arc<Value> {
        match self.offer.spec(&wanted.name).filter(|_| self.config.strict) {
            Some(spec) => {
                Arc::new(without_nulls(Value::clone(&wanted.arguments), spec.input_schema.as_value()))
            }
            None => Arc::clone(&wanted.arguments),
        }
    }

    fn call_of(&self, planned: &Planned) -> Call {
        let wanted = &planned.wanted;
        let mut call = Call::new(wanted.name.clone(), self.arguments_of(wanted))
            .with_caller(self.caller.clone())
            .with_scope(self.scope.clone())
            .with_port(Arc::clone(&self.port) as Arc<dyn Port>)
            .with_cancellation(self.cancellation.clone());
        call.id = planned.id;
        if matches!(planned.fate, Fate::Approved) {
            self.port.approve(planned.id);
            call.idempotency_key = Some(planned.id.to_string());
        }
        call.deadline = self.budget.deadline();
        call.values = self.values.clone();
        call.events.clone_from(&self.listeners.calls);
        call.options = self.options.clone();
        if let Some(limit) = self.config.limits.tool_timeout {
            call.options.timeout = Some(call.options.timeout.map_or(limit, |own| own.min(limit)));
        }
        if let Some((parent, depth)) = self.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call
    }
}
