//! The services of a running tool: the implementation behind its `Ctx`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::timeout;
use toolpost_core::{
    Answer, Artifact, BoxFuture, Call, CallId, CallPath, Cancelled, Delivery, DocStore, Event, LogLine,
    Output, Port, Progress, Question, QuestionKind, Reply, RetryAdvice, Root, Sample, SampleRequest, Schema,
    Sleep, StateView, ToolError, Values, format_duration,
};

use super::acquire;
use super::clock::sleep_until;
use super::host::{CallHost, lock};
use super::limit::check_artifact_name;
use super::pause::Pause;
use super::record::emit;
use super::replay::Answered;
use super::retry::plan;
use crate::state::OfCall;
use crate::state::transaction::Transaction;

impl CallHost {
    /// Whether the tool may run again. Then answers are stored for the next attempt, and files are held back.
    fn may_run_again(&self) -> bool {
        self.transaction().is_some() || plan(self).attempts > 0
    }

    pub(super) fn emit_retry(&self, error: &ToolError, wait: Duration) {
        emit(&self.toolbox, &self.call, || Event::CallRetry {
            call: self.call.id,
            attempt: self.attempts(),
            error: self.secrets.without(error.public(self.call.id)),
            wait_ms: wait.as_millis() as u64,
        });
    }

    /// Delivers the files that were held back until the attempt succeeded.
    pub(super) async fn publish(&self, output: &Output) -> Result<(), ToolError> {
        if self.has_trail() {
            let staged = std::mem::take(&mut self.trail().staged);
            for artifact in staged {
                Box::pin(self.hand_over(self.call.id, artifact)).await?;
            }
        }
        for artifact in &output.artifacts {
            emit(&self.toolbox, &self.call, || Event::CallArtifact {
                call: self.call.id,
                artifact: artifact.clone(),
            });
        }
        Ok(())
    }

    async fn hand_over(&self, call: CallId, artifact: Artifact) -> Result<(), ToolError> {
        self.mark_uncacheable();
        tokio::select! {
            taken = self.call.port.artifact(call, artifact.clone()) => taken?,
            () = self.stop.cancelled() => return Err(ToolError::cancelled("the caller cancelled the call")),
            () = sleep_until(self.call.deadline) => {
                return Err(ToolError::timeout("the deadline passed before the caller accepted a file"));
            }
        }
        emit(&self.toolbox, &self.call, || Event::CallArtifact { call, artifact: artifact.clone() });
        self.trail().published.push(artifact.without_data());
        Ok(())
    }

    async fn offer(&self, call: CallId, artifact: Artifact) -> Result<(), ToolError> {
        self.check_open()?;
        check_artifact_name(&artifact.name)?;
        if !self.call.port.takes_artifacts() {
            return Err(ToolError::precondition("this caller accepts no files during a call")
                .suggest("Return the file in the result, or use a client that accepts files."));
        }
        let limit = self.toolbox.settings().artifacts;
        {
            let mut trail = self.trail();
            if trail.staged.len() + trail.published.len() >= limit {
                return Err(ToolError::limit(format!("a call may deliver at most {limit} files"))
                    .suggest("Put them in one archive."));
            }
            if self.may_run_again() {
                trail.staged.push(artifact);
                return Ok(());
            }
        }
        self.hand_over(call, artifact).await
    }

    /// Asks a question. Meanwhile the clocks of the call and its ancestors stop, and other calls may use their permits.
    async fn put_question(&self, call: CallId, question: &Question) -> Result<Answer, ToolError> {
        self.check_open()?;
        self.mark_uncacheable();
        let limit = self.toolbox.settings().answer_timeout;
        let pause = Pause::begin(self);
        let answer = tokio::select! {
            answer = timeout(limit, self.call.port.ask(call, question)) => answer.unwrap_or_else(|_| {
                Err(ToolError::timeout(format!("no answer came within {}", format_duration(limit))))
            }),
            () = self.stop.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
            () = sleep_until(self.call.deadline) => Err(ToolError::timeout("the deadline passed before an answer")),
        };
        pause.end().await?;
        self.check_open()?;
        answer
    }

    fn own_transaction(&self) -> Result<&Arc<Transaction>, ToolError> {
        self.transaction().ok_or_else(|| ToolError::internal("the tool has no such state in its spec"))
    }

    fn count_dropped(&self, delivery: Delivery) -> Delivery {
        if delivery == Delivery::Dropped {
            self.dropped_notices.fetch_add(1, Ordering::Relaxed);
        }
        delivery
    }

    fn pass_progress(&self, call: CallId, mut progress: Progress) -> Delivery {
        if self.check_open().is_err() {
            return Delivery::Dropped;
        }
        progress.message = self.secrets.scrubbed(progress.message);
        emit(&self.toolbox, &self.call, || Event::CallProgress { call, progress: progress.clone() });
        self.count_dropped(self.call.port.progress(call, progress))
    }

    fn pass_log(&self, call: CallId, mut line: LogLine) -> Delivery {
        if self.check_open().is_err() {
            return Delivery::Dropped;
        }
        line.message = self.secrets.scrubbed(line.message);
        emit(&self.toolbox, &self.call, || Event::CallLog { call, line: line.clone() });
        self.count_dropped(self.call.port.log(call, line))
    }

    async fn complete(&self, call: CallId, request: &SampleRequest) -> Result<Sample, ToolError> {
        self.check_open()?;
        self.mark_uncacheable();
        self.call.port.sample(call, request).await
    }
}

impl CallPath for CallHost {
    fn call(&self) -> &Call {
        &self.call
    }

    fn attempt(&self) -> u32 {
        self.attempts()
    }

    fn deadline(&self) -> Option<Instant> {
        let end = lock(&self.clock).end;
        match (end, self.call.deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        }
    }

    fn values(&self) -> &Values {
        &self.toolbox.config.values
    }

    fn cancelled(&self) -> Cancelled {
        self.stop.cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.stop.is_cancelled()
    }

    fn progress(&self, progress: Progress) {
        self.pass_progress(self.call.id, progress);
    }

    fn log(&self, line: LogLine) {
        self.pass_log(self.call.id, line);
    }

    fn artifact(&self, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(self.offer(self.call.id, artifact))
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ToolError>> {
        Box::pin(async move {
            let (place, known) = self.trail().replay.next(|answered| match answered {
                Answered::Ask(asked, answer) if *asked == question => Some(answer.clone()),
                _ => None,
            });
            if let Some(answer) = known {
                return Ok(answer);
            }
            let answer = self.put_question(self.call.id, &question).await?;
            if let (Answer::Given { value }, QuestionKind::Input { schema: Some(schema) }) =
                (&answer, &question.kind)
            {
                Schema::new(schema.clone()).check(value).map_err(|error| {
                    ToolError::precondition(format!(
                        "the answer does not match the question: {}",
                        error.message()
                    ))
                })?;
            }
            if self.may_run_again() {
                self.trail().replay.remember(place, Answered::Ask(question, answer.clone()));
            }
            Ok(answer)
        })
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample, ToolError>> {
        Box::pin(async move {
            let (place, known) = self.trail().replay.next(|answered| match answered {
                Answered::Sample(asked, sample) if *asked == request => Some(sample.clone()),
                _ => None,
            });
            if let Some(sample) = known {
                return Ok(sample);
            }
            let sample = self.complete(self.call.id, &request).await?;
            if self.may_run_again() {
                self.trail().replay.remember(place, Answered::Sample(request, sample.clone()));
            }
            Ok(sample)
        })
    }

    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        Box::pin(async move {
            self.check_open()?;
            self.call.port.roots(self.call.id).await
        })
    }

    fn nested(self: Arc<Self>, mut call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            let (place, known) = self.trail().replay.next(|answered| match answered {
                Answered::Nested { tool, arguments, reply }
                    if *tool == call.tool && *arguments == call.arguments =>
                {
                    Some(Reply::clone(reply))
                }
                _ => None,
            });
            if let Some(reply) = known {
                return reply;
            }
            // The end of this call, also by its own timeout, cancels its nested calls.
            call.cancellation = self.stop.clone();
            // This call uses the output as data.
            call.options.whole_output = true;
            let call = Arc::new(call);
            let mut reply = match self.check_open() {
                Err(error) => super::record::refuse(&self.toolbox, &call, error),
                Ok(()) => super::call(&self.toolbox, Arc::clone(&call), Some(&self)).await,
            };
            self.add_child(Arc::clone(&reply.record));
            reply.result = reply.result.and_then(Output::whole);
            match &mut reply.result {
                Ok(_) if self.may_run_again() => {
                    let (tool, arguments) = (call.tool.clone(), Arc::clone(&call.arguments));
                    let reply = Box::new(reply.clone());
                    self.trail().replay.remember(place, Answered::Nested { tool, arguments, reply });
                }
                Ok(_) => {}
                // The nested call did not start, but this call did.
                Err(error) => *error = started(error.clone()),
            }
            reply
        })
    }

    fn state(&self, index: usize) -> Result<StateView, ToolError> {
        self.own_transaction()?.view(index)
    }

    fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        self.check_open()?;
        self.own_transaction()?.set(index, value)
    }

    fn documents(self: Arc<Self>) -> Result<(Arc<dyn DocStore>, Sleep), ToolError> {
        self.mark_uncacheable();
        Ok((Arc::new(OfCall::new(self)), crate::state::sleep))
    }
}

/// The error without the advice that the call did not start.
pub(super) fn started(error: ToolError) -> ToolError {
    match error.retry_advice() {
        Some(RetryAdvice::NotStarted(wait)) => error.retry(RetryAdvice::After(wait)),
        _ => error,
    }
}

impl CallHost {
    /// The store of this call's documents: the caller's, otherwise the toolbox's.
    pub(crate) fn documents(&self) -> Arc<dyn DocStore> {
        match self.call.port.documents() {
            Some(store) => {
                Arc::new(crate::state::Limited { store, limit: self.toolbox.settings().document_limit })
            }
            None => Arc::clone(&self.toolbox.documents),
        }
    }
}

/// The port of a call to a source. A question of the source stops the clocks of this toolbox.
pub(super) struct SourcePort(pub(super) Arc<CallHost>);

impl Port for SourcePort {
    fn progress(&self, call: CallId, progress: Progress) -> Delivery {
        self.0.pass_progress(call, progress)
    }

    fn log(&self, call: CallId, line: LogLine) -> Delivery {
        self.0.pass_log(call, line)
    }

    fn takes_artifacts(&self) -> bool {
        self.0.call.port.takes_artifacts()
    }

    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            self.0.check_open()?;
            self.0.hand_over(call, artifact).await
        })
    }

    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(self.0.put_question(call, question))
    }

    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(self.0.complete(call, request))
    }

    fn roots(&self, call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        self.0.call.port.roots(call)
    }

    fn takes_calls(&self) -> bool {
        true
    }

    fn call<'a>(
        &'a self,
        _call: CallId,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        // A nested call of the source counts as a nested call of this call.
        let call = self.0.call.nested(tool, arguments.clone());
        let host: Arc<dyn CallPath> = Arc::clone(&self.0) as _;
        Box::pin(async move { host.nested(call).await.result })
    }
}

/// Acquires the permits of this call again, after a wait without permits.
pub(super) async fn reacquire(host: &CallHost) -> Result<(), ToolError> {
    let tools = host.tool_permit().into_iter().collect();
    let global = host.parent.is_none();
    let permits = acquire::reacquire(&host.toolbox, &host.call, tools, global).await?;
    let mut permits = permits.into_iter();
    lock(&host.holding).permits = [permits.next(), permits.next()];
    Ok(())
}
