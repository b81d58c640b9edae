//! The tools that an answer asks for are called.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use toolpost_core::{Call, CallId, CallRecord, Port, Reply, ToolError};
use toolpost_llm::{ToolResult, Turn};

use super::repetition::Seen;
use super::{CallPayload, Running, Spent};
use crate::StopReason;
use crate::results::{Wanted, failure, result, shorten};

/// What came of the calls of one answer.
#[derive(Default)]
pub(super) struct Made {
    /// One for each call, in the order of the calls.
    pub(super) results: Vec<ToolResult>,
    /// Why the run ends here, if it does.
    pub(super) stop: Option<StopReason>,
}

/// Calls that are not made, because the run ends.
pub(super) fn refuse(wanted: &[Wanted], stop: StopReason) -> Made {
    let reason = if stop.is_limit() && stop != StopReason::OutputTokens {
        at_limit(&stop)
    } else {
        format!("the answer that asked for it was not whole ({stop})")
    };
    Made { results: refuse_all(wanted, &reason), stop: Some(stop) }
}

/// Why a call is not made when the run is at a limit.
fn at_limit(stop: &StopReason) -> String {
    format!("the run has reached its limit ({stop})")
}

/// Results for calls that are not made, so that the conversation stays whole.
pub(super) fn refuse_all(wanted: &[Wanted], reason: &str) -> Vec<ToolResult> {
    let error = ToolError::limit(format!("the call was not made: {reason}"));
    wanted.iter().map(|wanted| failure(wanted, &error, CallId::new())).collect()
}

impl Running<'_> {
    /// Calls the tools that the model asked for, some at a time; the results are in the order of the calls.
    pub(super) async fn call_tools(&mut self, wanted: Vec<Wanted>) -> Made {
        let (made_now, never) = wanted.split_at(self.budget.allowed_calls(wanted.len()));
        let replies = self.replies_to(made_now).await;
        self.budget.count_calls(made_now.len());
        let mut results = Vec::with_capacity(wanted.len());
        for (wanted, reply) in made_now.iter().zip(replies) {
            self.look_at(wanted, &reply);
            let mut result = result(wanted, &reply);
            if let Some(limit) = self.parts.limits.tool_output_chars {
                shorten(&mut result, limit);
            }
            results.push(result);
            self.record_call(reply);
        }
        results.extend(refuse_all(never, &at_limit(&StopReason::MaxToolCalls)));
        let stop = if self.cancellation.is_cancelled() {
            Some(StopReason::Cancelled)
        } else if self.budget.is_late() {
            Some(StopReason::MaxTime)
        } else if never.is_empty() {
            None
        } else {
            Some(StopReason::MaxToolCalls)
        };
        Made { results, stop }
    }

    /// Counts a call towards repetition.
    fn look_at(&mut self, wanted: &Wanted, reply: &Reply) {
        let threshold = self.parts.limits.repetition;
        if threshold == 0 {
            return;
        }
        let spec = self.parts.toolbox.spec(&reply.record.tool);
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
        self.budget.spend(&self.spent_by(&mut call));
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
    pub(super) fn tell(&mut self, made: Made) -> Option<StopReason> {
        if !made.results.is_empty() {
            self.request.turns.push(Turn::ToolResults(made.results));
        }
        made.stop
    }

    /// What models have consumed in a call, by what they were asked for here, else by what the tool says. The call's
    /// record then says so too.
    fn spent_by(&self, call: &mut Arc<CallRecord>) -> Spent {
        let here = [(self.port.take_spent_of(call), Some(self.port.model())), self.offer.take_spent_of(call)];
        let mut sum: Option<Spent> = None;
        for (spent, model) in here {
            let (Some(spent), Some(model)) = (spent, model) else { continue };
            self.tell_usage(model.to_string(), &spent, 0);
            sum.get_or_insert_with(Spent::default).add(&spent);
        }
        match (sum, &call.usage) {
            (Some(spent), _) => {
                let record = Arc::make_mut(call);
                record.usage = Some(spent.usage.clone());
                record.cost_usd = spent.cost_usd;
                spent
            }
            (None, Some(usage)) => Spent { usage: usage.clone(), cost_usd: call.cost_usd },
            (None, None) => Spent::default(),
        }
    }

    /// Takes over what calls have changed: the tools that are offered, and what models have consumed for calls that
    /// were given up.
    pub(super) fn settle(&mut self) {
        if let Some(tools) = self.offer.changed() {
            self.request.tools = tools;
        }
        self.budget.spend(&self.port.take_spent());
        self.budget.spend(&self.offer.take_spent());
    }

    /// Makes calls, some at a time. The replies are in the order of the calls.
    async fn replies_to(&self, calls: &[Wanted]) -> Vec<Reply> {
        let offer = &self.offer;
        // Nearly always there is one, and that needs no crowd.
        if let [only] = calls {
            return vec![offer.call(self.call_of(only)).await];
        }
        let calls: Vec<_> =
            (0_usize..).zip(calls).map(|(index, wanted)| (index, self.call_of(wanted))).collect();
        let calls = calls.into_iter().map(|(index, call)| async move { (index, offer.call(call).await) });
        let at_once = self.parts.limits.parallel_tools.max(1);
        // Unordered, so that a slow call holds no other back.
        let mut replies: Vec<_> = stream::iter(calls).buffer_unordered(at_once).collect().await;
        replies.sort_unstable_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn call_of(&self, wanted: &Wanted) -> Call {
        let mut call = Call::new(wanted.name.clone(), Arc::clone(&wanted.arguments))
            .with_caller(self.caller.clone())
            .with_scope(self.scope.clone())
            .with_port(Arc::clone(&self.port) as Arc<dyn Port>)
            .with_cancellation(self.cancellation.clone());
        call.deadline = self.budget.deadline();
        call.values = self.values.clone();
        call.options = self.options.clone();
        if let Some(limit) = self.parts.limits.tool_timeout {
            call.options.timeout = Some(call.options.timeout.map_or(limit, |own| own.min(limit)));
        }
        if let Some((parent, depth)) = self.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call
    }
}
