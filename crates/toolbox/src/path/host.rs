//! What a running tool can ask of the call path: the other side of its `Ctx`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use serde_json::Value;
use tokio::time::timeout;
use toolpost_core::{
    Answer, Artifact, BoxFuture, Call, CallRecord, Cancellation, Cancelled, Delivery, Event, Host, LogLine,
    Output, Placement, Progress, Question, QuestionKind, Reply, Sample, SampleRequest, Schema, ToolError,
    Values, format_duration,
};

use super::queue::{Held, Permits};
use super::retry::plan;
use super::run::{now, sleep_until};
use crate::registry::Entry;
use crate::toolbox::Shared;

/// How many records of nested calls a record keeps.
const MAX_CHILDREN: usize = 1024;

/// What a nested call takes over from the one that it is made from.
pub(crate) struct Nesting {
    /// The root's place among all calls.
    pub(crate) global: Arc<Held>,
    /// The tools with limited concurrency that are running above it.
    chain: Vec<Arc<Entry>>,
}

impl Nesting {
    pub(super) fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.chain.iter().any(|running| Arc::ptr_eq(running, entry))
    }
}

/// The time of one attempt, which stands still while somebody is asked.
#[derive(Default)]
struct AttemptClock {
    end: Option<Instant>,
    /// How many questions are open, and since when.
    paused: Option<(u32, Instant)>,
    /// Who watches the end.
    watcher: Option<Waker>,
}

/// Something that the outside world answered; an attempt that is run again gets the same answers again.
enum Answered {
    Ask(Question, Answer),
    Sample(SampleRequest, Sample),
    Nested { tool: String, arguments: Arc<Value>, reply: Box<Reply> },
}

#[derive(Default)]
struct Replay {
    answers: Vec<Answered>,
    position: usize,
}

impl Replay {
    /// The answer at this position, if it is one to the same question; from the first other question on, all is new.
    fn recall<T>(&mut self, same: impl FnOnce(&Answered) -> Option<T>) -> Option<T> {
        let answer = self.answers.get(self.position).and_then(same);
        match answer {
            Some(_) => self.position += 1,
            None => self.answers.truncate(self.position),
        }
        answer
    }

    fn remember(&mut self, answer: Answered) {
        self.answers.push(answer);
        self.position = self.answers.len();
    }
}

/// Files that a call handed over.
#[derive(Default)]
struct Files {
    /// Those that wait until the attempt has succeeded.
    staged: Vec<Artifact>,
    /// Those that the caller has.
    published: Vec<Artifact>,
}

/// One call while it runs.
pub(super) struct CallHost {
    pub(super) toolbox: Arc<Shared>,
    pub(super) entry: Arc<Entry>,
    pub(super) call: Call,
    permits: Permits,
    /// Whether the place among all calls is this call's own and not its root's.
    is_root: bool,
    chain: Vec<Arc<Entry>>,
    /// Asked when the tool shall stop, for whatever reason.
    stop: Cancellation,
    /// Nobody waits for the tool any more.
    abandoned: AtomicBool,
    /// A thread is in the tool.
    running: AtomicBool,
    attempt: AtomicU32,
    clock: Mutex<AttemptClock>,
    replay: Mutex<Replay>,
    files: Mutex<Files>,
    children: Mutex<Vec<Arc<CallRecord>>>,
    dropped_notices: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each of these is whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CallHost {
    pub(super) fn new(
        toolbox: &Arc<Shared>,
        entry: &Arc<Entry>,
        call: Call,
        permits: Permits,
        nesting: Option<&Nesting>,
    ) -> Arc<Self> {
        // Only a thread needs to be told: an inline tool is simply not polled again.
        let stop = match entry.spec.policy.placement {
            Placement::Inline => call.cancellation.clone(),
            _ => call.cancellation.child(),
        };
        Arc::new(Self {
            toolbox: Arc::clone(toolbox),
            entry: Arc::clone(entry),
            call,
            permits,
            is_root: nesting.is_none(),
            chain: nesting.map(|nesting| nesting.chain.clone()).unwrap_or_default(),
            stop,
            abandoned: AtomicBool::new(false),
            running: AtomicBool::new(false),
            attempt: AtomicU32::new(0),
            clock: Mutex::default(),
            replay: Mutex::default(),
            files: Mutex::default(),
            children: Mutex::default(),
            dropped_notices: AtomicU64::new(0),
        })
    }

    /// Starts the clock of the next attempt.
    pub(super) fn begin_attempt(&self, end: Option<Instant>) {
        self.attempt.fetch_add(1, Ordering::Relaxed);
        let mut clock = lock(&self.clock);
        clock.end = end;
        clock.paused = None;
        drop(clock);
        lock(&self.replay).position = 0;
        lock(&self.files).staged.clear();
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempt.load(Ordering::Relaxed)
    }

    /// When the attempt ends; `None` while its clock stands still or if it has no end. The waker is woken when that
    /// changes.
    pub(super) fn watch_end(&self, watcher: &Waker) -> Option<Instant> {
        let mut clock = lock(&self.clock);
        match &mut clock.watcher {
            Some(known) => known.clone_from(watcher),
            empty => *empty = Some(watcher.clone()),
        }
        if clock.paused.is_some() { None } else { clock.end }
    }

    /// A thread goes into the tool.
    pub(super) fn thread_enters(&self) {
        self.running.store(true, Ordering::Release);
    }

    /// The thread has come out of it.
    pub(super) fn thread_leaves(&self) {
        self.running.store(false, Ordering::Release);
        if self.abandoned.load(Ordering::Acquire) {
            self.give_back();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Nobody waits for the tool any more: it is asked to stop, and what it still says is thrown away.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        if self.entry.spec.policy.placement != Placement::Inline {
            self.stop.cancel();
        }
        self.leave();
    }

    /// The call is over: its places go to others, unless a thread is still in the tool.
    pub(super) fn leave(&self) {
        if !self.is_running() {
            self.give_back();
        }
    }

    fn give_back(&self) {
        self.permits.tool.put_down();
        if self.is_root {
            self.permits.global.put_down();
        }
    }

    fn still_wanted(&self) -> Result<(), ToolError> {
        if self.abandoned.load(Ordering::Acquire) {
            return Err(ToolError::cancelled("nobody waits for this call any more"));
        }
        Ok(())
    }

    pub(super) fn add_child(&self, record: Arc<CallRecord>) {
        let mut children = lock(&self.children);
        if children.len() < MAX_CHILDREN {
            children.push(record);
        }
    }

    pub(super) fn take_children(&self) -> Vec<Arc<CallRecord>> {
        std::mem::take(&mut lock(&self.children))
    }

    pub(super) fn take_artifacts(&self) -> Vec<Artifact> {
        std::mem::take(&mut lock(&self.files).published)
    }

    pub(super) fn dropped_notices(&self) -> u64 {
        self.dropped_notices.load(Ordering::Relaxed)
    }

    fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(sink) = &self.toolbox.config.events {
            sink(&event());
        }
    }

    pub(super) fn emit_retry(&self, error: &ToolError, wait: std::time::Duration) {
        self.emit(|| Event::CallRetry {
            call: self.call.id,
            attempt: self.attempts(),
            error: error.public(self.call.id),
            wait_ms: wait.as_millis() as u64,
        });
    }

    /// Hands the files over that were kept back until the attempt had succeeded.
    pub(super) async fn publish(&self, output: &Output) -> Result<(), ToolError> {
        let staged = std::mem::take(&mut lock(&self.files).staged);
        for artifact in staged {
            self.hand_over(artifact).await?;
        }
        for artifact in &output.artifacts {
            self.emit(|| Event::CallArtifact { call: self.call.id, artifact: artifact.clone() });
        }
        Ok(())
    }

    async fn hand_over(&self, artifact: Artifact) -> Result<(), ToolError> {
        self.call.port.artifact(self.call.id, artifact.clone()).await?;
        self.emit(|| Event::CallArtifact { call: self.call.id, artifact: artifact.clone() });
        lock(&self.files).published.push(artifact);
        Ok(())
    }

    fn count_dropped(&self, delivery: Delivery) {
        if delivery == Delivery::Dropped {
            self.dropped_notices.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// While it lives, the attempt's clock stands still and its places are free for others.
struct Pause<'a> {
    host: &'a CallHost,
    had_tool: bool,
    had_global: bool,
    resumed: bool,
}

impl<'a> Pause<'a> {
    fn begin(host: &'a CallHost) -> Self {
        let mut clock = lock(&host.clock);
        let (open, since) = clock.paused.unwrap_or((0, now()));
        clock.paused = Some((open + 1, since));
        let watcher = clock.watcher.take();
        drop(clock);
        if let Some(watcher) = watcher {
            watcher.wake();
        }
        Self {
            host,
            had_tool: host.permits.tool.put_down(),
            had_global: host.permits.global.put_down(),
            resumed: false,
        }
    }

    /// Takes the places up again and lets the clock run on.
    async fn end(mut self) {
        let call = &self.host.call;
        if let (true, Some(gate)) = (self.had_tool, &self.host.entry.gate) {
            self.host.permits.tool.take_up(gate, call).await;
        }
        if self.had_global {
            self.host.permits.global.take_up(&self.host.toolbox.gate, call).await;
        }
        self.resumed = true;
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.resumed {
            // The question was dropped and there is no way to wait here: a place that is not free is done without.
            if let (true, Some(gate)) = (self.had_tool, &self.host.entry.gate) {
                self.host.permits.tool.put_back(gate.try_enter());
            }
            if self.had_global {
                self.host.permits.global.put_back(self.host.toolbox.gate.try_enter());
            }
        }
        let mut clock = lock(&self.host.clock);
        match clock.paused {
            Some((1, since)) => {
                let waited = now().saturating_duration_since(since);
                clock.end = clock.end.map(|end| end + waited);
                clock.paused = None;
            }
            Some((open, since)) => clock.paused = Some((open - 1, since)),
            None => {}
        }
        if let Some(watcher) = clock.watcher.take() {
            drop(clock);
            watcher.wake();
        }
    }
}

impl Host for CallHost {
    fn call(&self) -> &Call {
        &self.call
    }

    fn attempt(&self) -> u32 {
        self.attempts()
    }

    fn deadline(&self) -> Option<Instant> {
        lock(&self.clock).end
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
        if self.still_wanted().is_err() {
            return;
        }
        self.emit(|| Event::CallProgress { call: self.call.id, progress: progress.clone() });
        self.count_dropped(self.call.port.progress(self.call.id, progress));
    }

    fn log(&self, line: LogLine) {
        if self.still_wanted().is_err() {
            return;
        }
        self.emit(|| Event::CallLog { call: self.call.id, line: line.clone() });
        self.count_dropped(self.call.port.log(self.call.id, line));
    }

    fn artifact(&self, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            self.still_wanted()?;
            let limit = self.toolbox.settings().artifacts;
            let can_repeat = plan(self).attempts > 0;
            {
                let mut files = lock(&self.files);
                if files.staged.len() + files.published.len() >= limit {
                    return Err(ToolError::limit(format!("a call may hand over {limit} files"))
                        .suggest("Put them into one archive."));
                }
                if can_repeat {
                    files.staged.push(artifact);
                    return Ok(());
                }
            }
            self.hand_over(artifact).await
        })
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ToolError>> {
        Box::pin(async move {
            self.still_wanted()?;
            let known = lock(&self.replay).recall(|answered| match answered {
                Answered::Ask(asked, answer) if *asked == question => Some(answer.clone()),
                _ => None,
            });
            if let Some(answer) = known {
                return Ok(answer);
            }
            let limit = self.toolbox.settings().answer_timeout;
            let pause = Pause::begin(self);
            let answer = tokio::select! {
                answer = timeout(limit, self.call.port.ask(self.call.id, &question)) => answer.unwrap_or_else(|_| {
                    Err(ToolError::timeout(format!("nobody answered in {}", format_duration(limit))))
                }),
                () = self.stop.cancelled() => Err(ToolError::cancelled("the caller asked to stop")),
                () = sleep_until(self.call.deadline) => Err(ToolError::timeout("the deadline passed before anybody answered")),
            };
            pause.end().await;
            self.still_wanted()?;
            let answer = answer?;
            if let (Answer::Given { value }, QuestionKind::Input { schema: Some(schema) }) =
                (&answer, &question.kind)
            {
                Schema::new(schema.clone()).check(value).map_err(|error| {
                    ToolError::precondition(format!(
                        "the answer does not fit the question: {}",
                        error.message()
                    ))
                })?;
            }
            lock(&self.replay).remember(Answered::Ask(question, answer.clone()));
            Ok(answer)
        })
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample, ToolError>> {
        Box::pin(async move {
            self.still_wanted()?;
            let known = lock(&self.replay).recall(|answered| match answered {
                Answered::Sample(asked, sample) if *asked == request => Some(sample.clone()),
                _ => None,
            });
            if let Some(sample) = known {
                return Ok(sample);
            }
            let sample = self.call.port.sample(self.call.id, &request).await?;
            lock(&self.replay).remember(Answered::Sample(request, sample.clone()));
            Ok(sample)
        })
    }

    fn nested(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let known = lock(&self.replay).recall(|answered| match answered {
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
            let mut chain = self.chain.clone();
            if self.entry.gate.is_some() {
                chain.push(Arc::clone(&self.entry));
            }
            let nesting = Nesting { global: Arc::clone(&self.permits.global), chain };
            let (tool, arguments) = (call.tool.clone(), Arc::clone(&call.arguments));
            let reply = if let Err(error) = self.still_wanted() {
                super::record::refuse(&self.toolbox, &call, error)
            } else {
                super::call(&self.toolbox, call, Some(&nesting)).await
            };
            self.add_child(Arc::clone(&reply.record));
            if reply.result.is_ok() {
                let reply = Box::new(reply.clone());
                lock(&self.replay).remember(Answered::Nested { tool, arguments, reply });
            }
            reply
        })
    }
}
