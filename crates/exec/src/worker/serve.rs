//! The worker side: one process, one attempt at a time.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use toolpost_core::{
    Answer, Args, Artifact, BoxFuture, Call, CallPath, CallRecord, Cancelled, Ctx, DocStore, LogLine,
    Progress, Question, Reply, Sample, SampleRequest, Sleep, StateView, Tool, ToolError, Values,
};

use super::frame::{Order, OrderFrame, Report, ReportFrame, StatePart};
use crate::protocol::dialect::PROTOCOL;
use crate::protocol::documents::{FrameStore, StateLink};
use crate::protocol::frame::{CallerMessage, StateRequest, ToolMessage};
use crate::protocol::line::{Line, MAX_LINE};
use crate::protocol::outcome::{Answered, ArtifactFrame, OutputFrame};
use crate::server::{Inlet, Outlet, new_call};

/// Finds a tool by name.
pub type FindTool = Box<dyn Fn(&str) -> Option<Arc<dyn Tool>> + Send + Sync>;

/// The tools and values of a worker process.
pub struct WorkerTools {
    /// Finds a tool by name.
    pub tool: FindTool,
    /// Values injected into all calls.
    pub values: Values,
}

impl std::fmt::Debug for WorkerTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerTools").field("values", &self.values).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection of one attempt to the parent process.
struct Link {
    output: Outlet,
    id: u64,
    questions: Mutex<HashMap<u64, oneshot::Sender<Answered<Value>>>>,
    next: AtomicU64,
}

fn gone() -> ToolError {
    ToolError::cancelled("the parent process of this worker is gone")
}

impl Link {
    fn offer(&self, report: Report) {
        if let Ok(line) = ReportFrame::new(self.id, report).to_line() {
            // Notices may be dropped: the parent counts what it gets.
            let _ = self.output.offer(line);
        }
    }

    async fn send(&self, report: Report) -> Result<(), ToolError> {
        let line = ReportFrame::new(self.id, report).to_line()?;
        if line.len() > MAX_LINE {
            return Err(ToolError::limit(format!(
                "the frame has {} bytes; the maximum between processes is 32 MiB",
                line.len()
            ))
            .suggest("Write large data to a file and pass its path."));
        }
        if self.output.send(line).await { Ok(()) } else { Err(gone()) }
    }

    /// Sends a request to the parent and waits for the answer.
    async fn request<T: DeserializeOwned>(
        &self,
        message: impl FnOnce(u64) -> ToolMessage,
    ) -> Result<T, ToolError> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.questions).insert(request, sender);
        let sent = self.send(Report::Tool(Box::new(message(request)))).await;
        if let Err(error) = sent {
            lock(&self.questions).remove(&request);
            return Err(error);
        }
        let answer = answer.await.map_err(|_| gone())?.into_result()?;
        T::deserialize(answer)
            .map_err(|error| ToolError::dependency(format!("an answer to the worker is invalid: {error}")))
    }
}

/// The host of an attempt.
struct WorkerHost {
    call: Call,
    attempt: u32,
    values: Arc<Values>,
    state: Vec<StateView>,
    /// New values of `#[state]` parameters.
    changes: Mutex<Vec<(usize, Value)>>,
    link: Arc<Link>,
}

impl CallPath for WorkerHost {
    fn call(&self) -> &Call {
        &self.call
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }

    fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    fn values(&self) -> &Values {
        &self.values
    }

    fn cancelled(&self) -> Cancelled {
        self.call.cancellation.cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.call.cancellation.is_cancelled()
    }

    fn progress(&self, progress: Progress) {
        self.link.offer(Report::Tool(Box::new(ToolMessage::Progress(progress))));
    }

    fn log(&self, line: LogLine) {
        self.link.offer(Report::Tool(Box::new(ToolMessage::Log(line))));
    }

    fn artifact(&self, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let artifact = ArtifactFrame::from(&artifact);
            self.link.request(|request| ToolMessage::Artifact { request, artifact }).await
        })
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ToolError>> {
        Box::pin(self.link.request(|request| ToolMessage::Ask { request, question }))
    }

    fn sample(&self, prompt: SampleRequest) -> BoxFuture<'_, Result<Sample, ToolError>> {
        Box::pin(self.link.request(|request| ToolMessage::Sample { request, prompt }))
    }

    fn nested(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            let (tool, arguments) = (call.tool.clone(), Value::clone(&call.arguments));
            let answer = self
                .link
                .request::<OutputFrame>(|request| ToolMessage::Nested { request, tool, arguments })
                .await;
            let result = answer.and_then(OutputFrame::into_output);
            // Unused: the parent writes the record of the nested call.
            let started = toolpost_core::Clock::timestamp(&toolpost_core::SystemClock);
            let record = CallRecord::begin(&call, call.tool.as_str().into(), "worker".into(), started);
            Reply { result, record: Arc::new(record) }
        })
    }

    fn state(&self, index: usize) -> Result<StateView, ToolError> {
        self.state
            .get(index)
            .cloned()
            .ok_or_else(|| ToolError::internal("the tool's spec does not declare this state"))
    }

    fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        self.state(index)?;
        lock(&self.changes).push((index, value));
        Ok(())
    }

    fn documents(self: Arc<Self>) -> Result<(Arc<dyn DocStore>, Sleep), ToolError> {
        let sleep: Sleep = |time| Box::pin(tokio::time::sleep(time));
        Ok((Arc::new(FrameStore(Arc::clone(&self.link))), sleep))
    }
}

impl StateLink for Arc<Link> {
    fn state<'a, T: DeserializeOwned + Send + 'a>(
        &'a self,
        state: StateRequest,
    ) -> BoxFuture<'a, Result<T, ToolError>> {
        Box::pin(self.request(|request| ToolMessage::State { request, state }))
    }
}

/// Runs attempts until the end of the input. The entry point of a worker process, which owns both streams.
pub async fn serve(work: WorkerTools, input: Box<dyn Read + Send>, output: Box<dyn Write + Send>) {
    let (input, output) = (Inlet::new(input), Outlet::new(output));
    let values = Arc::new(work.values);
    let hello = ToolMessage::Hello {
        name: "worker".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL.to_owned(),
    };
    if let Ok(line) = ReportFrame::new(0, Report::Tool(Box::new(hello))).to_line() {
        output.send(line).await;
    }
    let mut current: Option<Arc<Link>> = None;
    while let Some(Line::Whole(order)) = input.line().await {
        // The parent is the same program: an invalid frame ends the worker.
        let Ok(OrderFrame { id, message, .. }) = OrderFrame::read(&order) else { return };
        match message {
            Order::Attempt { tool, arguments, attempt, state, facts } => {
                let link = Arc::new(Link {
                    output: output.clone(),
                    id,
                    questions: Mutex::default(),
                    next: AtomicU64::new(1),
                });
                current = Some(Arc::clone(&link));
                let host = WorkerHost {
                    call: new_call(tool, arguments, *facts),
                    attempt,
                    values: Arc::clone(&values),
                    state: state.into_iter().map(StatePart::view).collect(),
                    changes: Mutex::default(),
                    link,
                };
                let tool = (work.tool)(&host.call.tool);
                let runtime = tokio::runtime::Handle::current();
                tokio::task::spawn_blocking(move || runtime.block_on(run_attempt(host, tool)));
            }
            Order::Caller(CallerMessage::Answer { request, answer }) => {
                let waiting = current.as_ref().and_then(|link| lock(&link.questions).remove(&request));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(answer);
                }
            }
            Order::Caller(_) => return,
        }
    }
}

async fn run_attempt(host: WorkerHost, tool: Option<Arc<dyn Tool>>) {
    let host = Arc::new(host);
    let link = Arc::clone(&host.link);
    let result = match tool {
        None => Err(ToolError::internal(format!(
            "the worker lacks the tool `{}`: its toolbox differs from its parent's",
            host.call.tool
        ))),
        Some(tool) => {
            let args = Args::new(Arc::clone(&host.call.arguments));
            let ctx = Ctx::from_host(Arc::clone(&host) as Arc<dyn CallPath>);
            let call = catch_unwind(AssertUnwindSafe(|| tool.call(&args, &ctx)));
            match call {
                Ok(call) => {
                    use futures_util::FutureExt as _;
                    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
                }
                Err(panic) => Err(panicked(&*panic)),
            }
        }
    };
    let answer = |outcome| Report::Tool(Box::new(ToolMessage::Result { outcome, record: None }));
    let changes = std::mem::take(&mut *lock(&host.changes));
    let send_all = async {
        for (index, value) in changes {
            link.send(Report::SetState { index, value }).await?;
        }
        let causes = result.as_ref().err().map(ToolError::causes).unwrap_or_default();
        if !causes.is_empty() {
            link.send(Report::Causes { causes }).await?;
        }
        link.send(answer(result.map(|output| OutputFrame::from(&output)).into())).await
    };
    if let Err(error) = send_all.await {
        // An answer that is too large is replaced by its error.
        let _ = link.send(answer(Answered::Error(error))).await;
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> ToolError {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    ToolError::internal(format!("the tool panicked: {message}"))
}
