//! The tool calls of an answer.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use toolpost_core::{Call, CallId, CallRecord, Code, Port, Reply, ToolError};
use toolpost_llm::schema::without_nulls;
use toolpost_llm::{ToolResult, Turn};

use super::repetition::ObservedCall;
use super::{CallPayload, Running, Until};
use crate::RunStopReason;
use crate::port::ModelPort;
use crate::results::{RequestedCall, error_result, reply_result, shorten};
use crate::spend::Spent;

/// The results of the calls of one answer.
#[derive(Default)]
pub(super) struct CallResults {
    /// One for each call, in the order of the calls.
    pub(super) results: Vec<ToolResult>,
    /// The stop reason, if the run ends here.
    pub(super) stop: Option<RunStopReason>,
}

/// A call of an answer and the decision about it.
pub(super) struct PlannedCall {
    pub(super) id: CallId,
    pub(super) request: RequestedCall,
    pub(super) plan: Plan,
}

/// The decision about a call.
pub(super) enum Plan {
    /// It runs.
    Run,
    /// It runs, and is already approved.
    RunApproved,
    /// It ran before the run paused.
    Done(ToolResult),
    /// It does not run, and the model reads the error.
    Reject(ToolError),
    /// It does not run, because it exceeds the limit of tool calls.
    OverLimit,
    /// It awaits a decision, and the run with it.
    Pending,
    /// No call of the answer runs, and the run ends.
    Stop(RunStopReason),
}

impl Plan {
    fn runs(&self) -> bool {
        matches!(self, Self::Run | Self::RunApproved)
    }
}

/// Rejects all calls of an answer at the end of a run.
pub(super) fn reject(calls: &[RequestedCall], stop: RunStopReason) -> CallResults {
    let reason = if stop.is_limit() && stop != RunStopReason::OutputTokens {
        at_limit(&stop)
    } else {
        format!("the answer with the call is incomplete ({stop})")
    };
    let error = not_run(&reason);
    let results = calls.iter().map(|call| error_result(call, &error, CallId::new())).collect();
    CallResults { results, stop: Some(stop) }
}

fn at_limit(stop: &RunStopReason) -> String {
    format!("the run has reached its limit ({stop})")
}

fn not_run(reason: &str) -> ToolError {
    ToolError::limit(format!("the call did not run: {reason}"))
}

/// Whether a call ran out of time: the tool, its code or command, or an agent that is the tool (`LIMIT`).
fn ran_out_of_time(call: &CallRecord) -> bool {
    let is_limit = |error: &ToolError| matches!(error.code(), Code::Timeout | Code::Limit);
    call.error.as_ref().is_some_and(is_limit) || call.verdict() == Some("timeout")
}

impl Running<'_> {
    /// Runs the calls of an answer, some in parallel. The results have the order of the calls.
    pub(super) async fn call_tools(&mut self, calls: Vec<RequestedCall>) -> CallResults {
        let mut planned = Vec::with_capacity(calls.len());
        let allowed = self.budget.context.allowed_calls(calls.len());
        for (index, mut request) in calls.into_iter().enumerate() {
            let plan = if index >= allowed {
                Plan::OverLimit
            } else if let Some(error) = self.reject_by_choice() {
                Plan::Reject(error)
            } else {
                let is_pending = self.run.until == Until::Intent || self.needs_approval(&request);
                self.check_call(&mut request, if is_pending { Plan::Pending } else { Plan::Run }).await
            };
            planned.push(PlannedCall { id: CallId::new(), request, plan });
        }
        self.run_calls(planned).await
    }

    /// This plan, unless the run does not have the tool or a guardrail rejects the call. A guardrail may change arguments.
    pub(super) async fn check_call(&mut self, request: &mut RequestedCall, plan: Plan) -> Plan {
        if !self.has_tool(&request.name) {
            let name = &request.name;
            return Plan::Reject(ToolError::not_found(format!("this run has no tool `{name}`")));
        }
        match self.guard_call(request).await {
            Ok(Some(error)) => Plan::Reject(error),
            Ok(None) => plan,
            Err(stop) => Plan::Stop(stop),
        }
    }

    /// Runs the planned calls.
    pub(super) async fn run_calls(&mut self, mut planned: Vec<PlannedCall>) -> CallResults {
        let stop = planned
            .iter()
            .find_map(|call| if let Plan::Stop(stop) = &call.plan { Some(stop.clone()) } else { None });
        if let Some(stop) = stop {
            let error = not_run("another call of the answer was blocked");
            let results = planned.into_iter().map(|call| match call.plan {
                Plan::Done(result) => result,
                _ => error_result(&call.request, &error, call.id),
            });
            return CallResults { results: results.collect(), stop: Some(stop) };
        }
        // Parallel agents may have used up the limit in the meantime.
        let count = planned.iter().filter(|call| call.plan.runs()).count();
        let taken = self.budget.context.take_calls(count);
        let runs = planned.iter_mut().filter(|call| call.plan.runs());
        runs.skip(taken).for_each(|call| call.plan = Plan::OverLimit);
        let over_limit = planned.iter().any(|call| matches!(call.plan, Plan::OverLimit));
        let pauses = planned.iter().any(|call| match call.plan {
            Plan::Pending => self.run.until != Until::Calls,
            // An intent ends at its first answer, even if all its calls are rejected.
            Plan::Reject(_) => self.run.until == Until::Intent,
            _ => false,
        });
        let running: Vec<_> = planned.iter().filter(|call| call.plan.runs()).collect();
        let replies = self.replies_to(&running).await;
        // Such a call ends before the deadline of the run, so that the output is not lost.
        let was_ended =
            self.budget.ends_programs() && replies.iter().any(|reply| ran_out_of_time(&reply.record));
        let mut replies = replies.into_iter();
        let mut results = Vec::with_capacity(planned.len());
        for call in &mut planned {
            let request = &call.request;
            let failed = |error: &ToolError| Some(error_result(request, error, call.id));
            let mut result = match std::mem::replace(&mut call.plan, Plan::Pending) {
                Plan::Run | Plan::RunApproved => replies.next().map(|reply| {
                    self.observe(request, &reply);
                    let result = reply_result(request, &reply);
                    self.record_call(reply);
                    result
                }),
                Plan::Done(result) => Some(result),
                Plan::Reject(error) => failed(&error),
                Plan::OverLimit => failed(&not_run(&at_limit(&RunStopReason::MaxToolCalls))),
                Plan::Pending if pauses => None,
                Plan::Pending | Plan::Stop(_) => failed(&not_run("it was not approved")),
            };
            if let (Some(result), Some(limit)) = (&mut result, self.config.limits.tool_output_chars) {
                shorten(result, limit);
            }
            results.push(result);
        }
        let stop = if self.run.cancellation.is_cancelled() {
            Some(RunStopReason::Cancelled)
        } else if was_ended || self.budget.is_late() {
            Some(RunStopReason::MaxTime)
        } else if pauses {
            return self.pause(planned.into_iter().zip(results).collect());
        } else if over_limit {
            Some(RunStopReason::MaxToolCalls)
        } else if self.run.until == Until::Calls {
            Some(RunStopReason::ToolsCalled)
        } else {
            None
        };
        let error = not_run("the run ended");
        let results = results.into_iter().zip(&planned);
        let results = results
            .map(|(result, call)| result.unwrap_or_else(|| error_result(&call.request, &error, call.id)));
        CallResults { results: results.collect(), stop }
    }

    /// Observes a call for the detection of loops.
    fn observe(&mut self, request: &RequestedCall, reply: &Reply) {
        let threshold = self.config.limits.repetition;
        if threshold == 0 {
            return;
        }
        let spec = self.config.toolbox.spec(&reply.record.tool);
        let call = ObservedCall {
            tool: &request.name,
            arguments: &request.arguments,
            result: reply.result.as_ref(),
            exists: spec.is_some() || self.offer.has_tool(&reply.record.tool) || reply.record.attempts > 0,
            is_read_only: spec.is_some_and(|spec| spec.annotations.read_only),
        };
        self.detector.observe_call(&call, threshold);
    }

    /// Adds a call to the record, and its payload to the output.
    fn record_call(&mut self, reply: Reply) {
        let Reply { record: mut call, result } = reply;
        self.count_spending(&mut call);
        if let Err(defect) = &result
            && defect.code() == Code::Internal
        {
            // The model gets no details, and may answer as if nothing had failed.
            self.note(&format!("the tool `{}` failed with INTERNAL: {}", call.tool, defect.message()));
        }
        if let Some(payload) = result.ok().and_then(|output| output.payload) {
            self.payloads.push(CallPayload { call: call.id, tool: Arc::clone(&call.tool), payload });
        }
        let record = &mut self.record;
        // The model may invent names, of any length.
        let exists = call.attempts > 0 || self.offer.has_tool(&call.tool);
        if exists && !record.tools_used.iter().any(|known| **known == *call.tool) {
            record.tools_used.push(call.tool.to_string());
        }
        record.artifacts.extend(call.artifacts.iter().cloned());
        record.tool_calls.push(call);
    }

    /// Adds the results to the conversation. Returns the stop reason, if the run ends here.
    pub(super) fn add_results(&mut self, results: CallResults) -> Option<RunStopReason> {
        if !results.results.is_empty() {
            self.request.turns.push(Turn::ToolResults(results.results));
        }
        if let Some(tools) = self.offer.changed() {
            self.offer_tools(tools);
        }
        // Completions for calls that ended before their answer.
        for port in self.ports() {
            if let Some(spent) = port.take_spent() {
                self.emit_usage(port.model().to_string(), &spent, 0);
            }
        }
        results.stop
    }

    /// Sets the spending of a call and of the calls below it.
    ///
    /// Completions of this run are counted already. Other usage that the calls report is counted here.
    fn count_spending(&self, call: &mut Arc<CallRecord>) {
        let mut sum: Option<Spent> = None;
        let mut calls = vec![&**call];
        while let Some(one) = calls.pop() {
            calls.extend(one.children.iter().map(|child| &**child));
            let mut has_completions = false;
            for port in self.ports() {
                let Some(spent) = port.take_spent_of(one.id) else { continue };
                has_completions = true;
                self.emit_usage(port.model().to_string(), &spent, 0);
                sum.get_or_insert_default().add(&spent);
            }
            if let Some(usage) = one.usage.as_ref().filter(|_| !has_completions) {
                let spent = Spent { usage: usage.clone(), cost_usd: one.cost_usd };
                self.budget.context.spend(&spent);
                self.emit_usage(one.tool.to_string(), &spent, 0);
            }
        }
        if let Some(spent) = sum {
            let record = Arc::make_mut(call);
            record.usage = Some(spent.usage);
            record.cost_usd = spent.cost_usd;
        }
    }

    /// The ports that make completions for tools.
    fn ports(&self) -> impl Iterator<Item = &ModelPort> {
        std::iter::once(&*self.port).chain(self.offer.finder())
    }

    /// Runs calls in parallel, up to the limit. The replies have the order of the calls.
    async fn replies_to(&self, calls: &[&PlannedCall]) -> Vec<Reply> {
        let offer = &self.offer;
        // One call is the usual case and needs no stream.
        if let [only] = calls {
            return vec![offer.call(self.call_of(only)).await];
        }
        let calls: Vec<_> =
            (0_usize..).zip(calls).map(|(index, planned)| (index, self.call_of(planned))).collect();
        let calls = calls.into_iter().map(|(index, call)| async move { (index, offer.call(call).await) });
        let parallel = self.config.limits.parallel_tools.max(1);
        // Unordered, so that a slow call delays no other.
        let mut replies: Vec<_> = stream::iter(calls).buffer_unordered(parallel).collect().await;
        replies.sort_unstable_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// The arguments for the tool: a provider with strict schemas writes `null` for absent members.
    fn arguments_of(&self, request: &RequestedCall) -> Arc<Value> {
        match self.offer.spec(&request.name).filter(|_| self.config.strict) {
            Some(spec) => {
                Arc::new(without_nulls(Value::clone(&request.arguments), spec.input_schema.as_value()))
            }
            None => Arc::clone(&request.arguments),
        }
    }

    fn call_of(&self, planned: &PlannedCall) -> Call {
        let (run, request) = (&self.run, &planned.request);
        let mut call = Call::new(request.name.clone(), self.arguments_of(request))
            .with_caller(run.caller.clone())
            .with_scope(run.scope.clone())
            .with_port(Arc::clone(&self.port) as Arc<dyn Port>)
            .with_cancellation(run.cancellation.clone());
        call.id = planned.id;
        if matches!(planned.plan, Plan::RunApproved) {
            self.port.approve(planned.id);
            call.idempotency_key = Some(planned.id.to_string());
        }
        call.deadline = self.budget.deadline();
        call.values = run.values.clone();
        call.events.clone_from(&self.listeners.calls);
        call.options = run.options.clone();
        if let Some(limit) = self.config.limits.tool_timeout {
            call.options.timeout = Some(call.options.timeout.map_or(limit, |own| own.min(limit)));
        }
        if let Some((parent, depth)) = run.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call
    }
}
