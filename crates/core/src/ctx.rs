//! The context of a call, as a tool sees it.

use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::inject::{find, not_provided};
use crate::port::CtxPort;
use crate::state::resolve_id;
use crate::{
    Answer, Artifact, BoxFuture, Call, CallId, Caller, Cancelled, DocStore, Inject, LogLevel, LogLine,
    Output, OutputFiles, Port, Progress, Question, Reply, Root, Sample, SampleRequest, Scope, Sleep,
    StateDoc, StateView, ToolError, Values,
};

/// The call path behind a [`Ctx`]. Only a toolbox or a worker implements it.
pub trait CallPath: Send + Sync {
    /// The tightened call.
    fn call(&self) -> &Call;
    /// Number of the attempt, from 1.
    fn attempt(&self) -> u32;
    /// Deadline of the attempt.
    fn deadline(&self) -> Option<Instant>;
    /// Values injected for all calls.
    fn values(&self) -> &Values;
    /// Waits for the cancellation.
    fn cancelled(&self) -> Cancelled;
    /// Whether the call is cancelled.
    fn is_cancelled(&self) -> bool;
    /// Forwards progress. Must not block.
    fn progress(&self, progress: Progress);
    /// Forwards a log line. Must not block.
    fn log(&self, line: LogLine);
    /// Forwards a file.
    fn artifact(&self, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>>;
    /// Asks the user behind the caller.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ToolError>>;
    /// Requests a completion from the caller's model.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample, ToolError>>;
    /// Directories that the caller works in. Default: `PRECONDITION`.
    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        Box::pin(async { Err(ToolError::precondition("this host does not know the caller's directories")) })
    }
    /// Runs a nested call.
    fn nested(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply>;

    /// The document view of the `#[state]` parameter with this index.
    ///
    /// # Errors
    /// `PRECONDITION` if this host has no document store.
    fn state(&self, index: usize) -> Result<StateView, ToolError> {
        let _ = index;
        Err(no_document_store())
    }

    /// Sets the new value of a `#[state]` parameter, committed when the attempt succeeds.
    ///
    /// # Errors
    /// `PRECONDITION` as [`state`](Self::state), `CANCELLED` if the caller abandoned the attempt.
    fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        let _ = (index, value);
        Err(no_document_store())
    }

    /// The document store of this call, and a timer for waits on it.
    ///
    /// # Errors
    /// `PRECONDITION` if this host has no document store.
    fn documents(self: Arc<Self>) -> Result<(Arc<dyn DocStore>, Sleep), ToolError> {
        Err(no_document_store())
    }
}

fn no_document_store() -> ToolError {
    ToolError::precondition("this host has no document store").suggest("Run the tool through a toolbox.")
}

/// The context of a call. Cheap to clone; a tool declares a `Ctx` or `&Ctx` parameter to get it.
#[derive(Clone)]
pub struct Ctx(Arc<dyn CallPath>);

impl Ctx {
    /// Wraps a [`CallPath`].
    pub fn from_host(host: Arc<dyn CallPath>) -> Self {
        Self(host)
    }

    /// The call's id.
    pub fn id(&self) -> CallId {
        self.0.call().id
    }

    /// Nesting depth of the call.
    pub fn depth(&self) -> u8 {
        self.0.call().depth
    }

    /// The caller.
    pub fn caller(&self) -> &Caller {
        &self.0.call().caller
    }

    /// The run or conversation of the call.
    pub fn scope(&self) -> Option<&Scope> {
        self.0.call().scope.as_ref()
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Deadline of the attempt.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Time to the deadline; `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Time that a program of the call may run, without the reserve for its end; `None` without a deadline.
    ///
    /// So the caller gets the output of a program that runs too long, and not only a timeout.
    pub fn working_time(&self) -> Option<Duration> {
        self.remaining().map(|left| left.saturating_sub(Self::reserve(left)))
    }

    /// The part of a call's time that is reserved for the end of its program.
    pub fn reserve(time: Duration) -> Duration {
        const MAX_RESERVE: Duration = Duration::from_millis(500);
        (time / 10).min(MAX_RESERVE)
    }

    /// Whether the call is cancelled. Blocking code checks this periodically.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits for the cancellation.
    pub fn cancelled(&self) -> Cancelled {
        self.0.cancelled()
    }

    /// Calls with the same key have one external effect.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.0.call().idempotency_key.as_deref()
    }

    /// Whether the caller asks for detailed output.
    pub fn is_verbose(&self) -> bool {
        self.0.call().options.verbose
    }

    /// Whether this is a dry run: report the plan, change nothing. Only tools whose spec declares a dry run see it.
    pub fn is_dry_run(&self) -> bool {
        self.0.call().options.dry_run
    }

    /// Whether answers are mocked. Only [`Tool::mock`](crate::Tool::mock) sees it.
    pub fn is_mock(&self) -> bool {
        self.0.call().options.mock
    }

    /// The working directory.
    pub fn working_dir(&self) -> Option<&Path> {
        let call = self.0.call();
        call.options.working_dir.as_deref().or_else(|| call.scope.as_ref()?.working_dir())
    }

    /// The sandbox level that the caller requests.
    pub fn level(&self) -> Option<&str> {
        self.0.call().options.level.as_deref()
    }

    /// The files for outputs of which a model gets a part. None if no model reads the output, or the toolbox has none.
    pub fn output_files(&self) -> Option<Inject<OutputFiles>> {
        if self.0.call().options.whole_output { None } else { self.inject().ok() }
    }

    /// Facts that the caller attached.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.0.call().options.metadata
    }

    /// Reports progress, `percent` from 0 to 100. Returns immediately.
    pub fn progress(&self, message: impl Into<String>, percent: impl Into<Option<f64>>) {
        self.0.progress(Progress {
            message: message.into(),
            percent: percent.into(),
            attempt: self.attempt(),
        });
    }

    /// Writes a line to the caller's log. Returns immediately.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.0.log(LogLine { level, message: message.into() });
    }

    /// Delivers a file to the caller and waits for its acceptance.
    ///
    /// If the attempt can be retried, files are delivered after it succeeds.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller accepts no files, `LIMIT` if there are too many.
    pub async fn artifact(&self, artifact: Artifact) -> Result<(), ToolError> {
        self.0.artifact(artifact).await
    }

    /// Asks the user behind the caller, with a timeout of 10 minutes by default.
    ///
    /// Meanwhile the call holds no permit and its timeout is paused. A retry of the tool gets the recorded answer.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller cannot answer, `TIMEOUT` if the caller does not answer.
    pub async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        self.0.ask(question).await
    }

    /// Requests a completion from the caller's model. A retry of the tool gets the recorded completion.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller has no model.
    pub async fn sample(&self, request: SampleRequest) -> Result<Sample, ToolError> {
        self.0.sample(request).await
    }

    /// Directories that the caller works in, such as an open project.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller does not report them.
    pub async fn roots(&self) -> Result<Vec<Root>, ToolError> {
        self.0.roots().await
    }

    /// This call as the port of runs that the tool starts: their progress, questions and files are those of this call.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::new(CtxPort(self.clone()))
    }

    /// Calls another tool with this call's permit. Its record is a child of this call's record.
    ///
    /// A retry of this tool reuses nested calls that succeeded.
    ///
    /// # Errors
    /// Errors of the other tool; `LIMIT` beyond 8 levels; `PRECONDITION` if the call would wait for itself.
    pub async fn call(&self, tool: impl Into<String>, arguments: Value) -> Result<Output, ToolError> {
        let call = self.0.call().nested(tool, arguments);
        Arc::clone(&self.0).nested(call).await.result
    }

    /// Opens a document for manual reads and changes.
    ///
    /// The id may hold `{owner}` and `{scope}`, as in `#[state]`; other text cannot imitate them. A change is committed
    /// immediately, whatever the outcome of the call. For a change that commits with the call, use a `#[state]`
    /// parameter. A retry of the tool repeats the change: make it idempotent, or set `conflict_policy = "error"`
    /// and no retries.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the id is invalid, `PRECONDITION` if it needs a scope and the call has none.
    pub fn state(&self, id: &str) -> Result<StateDoc, ToolError> {
        let id = resolve_id(id, self.0.call())?;
        let (store, sleep) = Arc::clone(&self.0).documents()?;
        Ok(StateDoc::new(store, id)?.with_sleep(sleep))
    }

    /// Stores a value in a new document of the call's owner and returns its handle.
    ///
    /// The document is `KIND/{owner}/HANDLE`. A tool with `#[state(id = "KIND/{owner}/{handle}", existing)]` sees it
    /// through its argument `handle`. The handle has 128 random bits and works for its owner only. As with
    /// [`state`](Self::state), a retry of the tool creates another document, and the first one stays unused.
    ///
    /// # Errors
    /// `INVALID_INPUT` if `kind` cannot start a document id; those of the store.
    pub async fn mint(&self, kind: &str, value: &(impl Serialize + ?Sized)) -> Result<String, ToolError> {
        let handle = crate::random_hex(16)?;
        self.state(&format!("{kind}/{{owner}}/{handle}"))?.replace(value).await?;
        Ok(handle)
    }

    /// The view of a `#[state]` parameter, for the attribute macros.
    #[doc(hidden)]
    pub fn state_view(&self, index: usize) -> Result<StateView, ToolError> {
        self.0.state(index)
    }

    /// Sets the value of a `#[state]` parameter, for the attribute macros.
    #[doc(hidden)]
    pub fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        self.0.set_state(index, value)
    }

    /// Calls several tools, at most `concurrency` at once (at least one). Returns the results in the order of the calls.
    ///
    /// A failure stops no other call. Each call is a [`call`](Self::call). They start in order, so that a retry of
    /// the tool reuses the answers of those that succeeded.
    pub async fn call_all<T: Into<String>>(
        &self,
        calls: impl IntoIterator<Item = (T, Value)>,
        concurrency: usize,
    ) -> Vec<Result<Output, ToolError>> {
        let mut results = self.start_calls(calls, concurrency).collect::<Vec<_>>().await;
        results.sort_unstable_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Like [`call_all`](Self::call_all), but the first failure cancels the other calls.
    ///
    /// # Errors
    /// That of the call that fails first.
    pub async fn try_call_all<T: Into<String>>(
        &self,
        calls: impl IntoIterator<Item = (T, Value)>,
        concurrency: usize,
    ) -> Result<Vec<Output>, ToolError> {
        let mut outputs = self
            .start_calls(calls, concurrency)
            .map(|(index, result)| result.map(|output| (index, output)))
            .try_collect::<Vec<_>>()
            .await?;
        outputs.sort_unstable_by_key(|(index, _)| *index);
        Ok(outputs.into_iter().map(|(_, output)| output).collect())
    }

    /// The results of calls with their indices, in order of completion.
    fn start_calls<T: Into<String>>(
        &self,
        calls: impl IntoIterator<Item = (T, Value)>,
        concurrency: usize,
    ) -> impl Stream<Item = (usize, Result<Output, ToolError>)> + Send {
        let calls: Vec<(usize, Call)> = calls
            .into_iter()
            .map(|(tool, arguments)| self.0.call().nested(tool, arguments))
            .enumerate()
            .collect();
        let host = Arc::clone(&self.0);
        let start = move |(index, call)| {
            let reply = Arc::clone(&host).nested(call);
            async move { (index, reply.await.result) }
        };
        stream::iter(calls).map(start).buffer_unordered(concurrency.max(1))
    }

    /// The injected value of a type, from the call or the toolbox.
    ///
    /// # Errors
    /// `PRECONDITION` if neither provides it.
    pub fn inject<T: Send + Sync + 'static>(&self) -> Result<Inject<T>, ToolError> {
        find([&self.0.call().values, self.0.values()])
    }

    /// The injected value with a name, from the call or the toolbox.
    ///
    /// # Errors
    /// `PRECONDITION` if neither provides it; `INTERNAL` if it does not fit the type.
    pub fn inject_named<T: DeserializeOwned>(&self, name: &str) -> Result<T, ToolError> {
        let value = self.0.call().values.get_named(name).or_else(|| self.0.values().get_named(name));
        let value = value.unwrap_or(&Value::Null);
        T::deserialize(value).map_err(|error| match value {
            Value::Null => not_provided(&format!("the value `{name}`"), "provide_named(name, value)"),
            _ => ToolError::internal(format!("the injected value `{name}` has the wrong type: {error}")),
        })
    }

    /// Blocks the thread until a future completes, such as `ctx.wait(ctx.ask(question))`. Only for tools with the
    /// placement `blocking`.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ctx").field(self.0.call()).finish()
    }
}
