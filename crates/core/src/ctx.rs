//! What a tool sees of its call.

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
use crate::state::resolve_id;
use crate::{
    Answer, Artifact, BoxFuture, Call, CallId, Caller, Cancelled, DocStore, Inject, LogLevel, LogLine,
    Output, Progress, Question, Reply, Root, Sample, SampleRequest, Scope, Sleep, StateDoc, StateView,
    ToolError, Values,
};

/// What stands behind a [`Ctx`]: implemented by whoever runs calls, and by nobody else.
pub trait Host: Send + Sync {
    /// The call, as it was tightened.
    fn call(&self) -> &Call;
    /// Which attempt this is, from 1.
    fn attempt(&self) -> u32;
    /// When the attempt ends, if it does.
    fn deadline(&self) -> Option<Instant>;
    /// Values injected for all calls.
    fn values(&self) -> &Values;
    /// Waits until the tool shall stop.
    fn cancelled(&self) -> Cancelled;
    /// Whether the tool shall stop.
    fn is_cancelled(&self) -> bool;
    /// Passes progress on. Must not block.
    fn progress(&self, progress: Progress);
    /// Passes a log line on. Must not block.
    fn log(&self, line: LogLine);
    /// Passes a file on.
    fn artifact(&self, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>>;
    /// Asks whoever is behind the caller.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ToolError>>;
    /// Asks the caller's model.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample, ToolError>>;
    /// The places that the caller works in. Default: `PRECONDITION`.
    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        Box::pin(async {
            Err(ToolError::precondition("whoever runs this call does not know where its caller works"))
        })
    }
    /// Makes a nested call.
    fn nested(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply>;

    /// What the `#[state]` parameter of this place among them sees, from 0.
    ///
    /// # Errors
    /// `PRECONDITION` if there is none: whoever runs the call keeps no documents.
    fn state(&self, index: usize) -> Result<StateView, ToolError> {
        let _ = index;
        Err(no_documents())
    }

    /// Notes what the `#[state]` parameter of this place shall become when the attempt has succeeded.
    ///
    /// # Errors
    /// `PRECONDITION` as [`state`](Self::state), `CANCELLED` if nobody waits for the attempt any more.
    fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        let _ = (index, value);
        Err(no_documents())
    }

    /// Where documents are kept, as this call may use it, and how to wait there.
    ///
    /// # Errors
    /// `PRECONDITION` if whoever runs the call keeps no documents.
    fn documents(self: Arc<Self>) -> Result<(Arc<dyn DocStore>, Sleep), ToolError> {
        Err(no_documents())
    }
}

fn no_documents() -> ToolError {
    ToolError::precondition("whoever runs this call keeps no documents")
        .suggest("Run the tool through a toolbox.")
}

/// What a tool sees of its call. Cheap to clone; a tool that wants it takes a `Ctx` or `&Ctx` parameter.
#[derive(Clone)]
pub struct Ctx(Arc<dyn Host>);

impl Ctx {
    /// For whoever runs calls: see [`Host`].
    pub fn from_host(host: Arc<dyn Host>) -> Self {
        Self(host)
    }

    /// The call's name.
    pub fn id(&self) -> CallId {
        self.0.call().id
    }

    /// How many calls it is nested in.
    pub fn depth(&self) -> u8 {
        self.0.call().depth
    }

    /// Who calls.
    pub fn caller(&self) -> &Caller {
        &self.0.call().caller
    }

    /// The run or conversation that the call belongs to.
    pub fn scope(&self) -> Option<&Scope> {
        self.0.call().scope.as_ref()
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// When the tool must be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// How much time is left; `None` if there is no end.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the tool shall stop. Blocking code looks here now and then.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the tool shall stop.
    pub fn cancelled(&self) -> Cancelled {
        self.0.cancelled()
    }

    /// Two calls with the same key are one to the outside world.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.0.call().idempotency_key.as_deref()
    }

    /// Whether the caller wants to know more of what is done.
    pub fn is_verbose(&self) -> bool {
        self.0.call().options.verbose
    }

    /// Whether only to tell what would be done. A tool is called for a dry run when its spec says that it has one.
    pub fn is_dry_run(&self) -> bool {
        self.0.call().options.dry_run
    }

    /// Whether answers are made up: a tool sees it only in its [`mock`](crate::Tool::mock).
    pub fn is_mock(&self) -> bool {
        self.0.call().options.mock
    }

    /// The folder to work in.
    pub fn working_dir(&self) -> Option<&Path> {
        let call = self.0.call();
        call.options.working_dir.as_deref().or_else(|| call.scope.as_ref()?.working_dir())
    }

    /// The sandbox level that the caller asked for, by name.
    pub fn level(&self) -> Option<&str> {
        self.0.call().options.level.as_deref()
    }

    /// Facts that the caller gave along.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.0.call().options.metadata
    }

    /// Tells how far it has come, `percent` from 0 to 100. Returns at once.
    pub fn progress(&self, message: impl Into<String>, percent: impl Into<Option<f64>>) {
        self.0.progress(Progress {
            message: message.into(),
            percent: percent.into(),
            attempt: self.attempt(),
        });
    }

    /// Writes a line to the caller's log. Returns at once.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.0.log(LogLine { level, message: message.into() });
    }

    /// Hands over a file and waits until it is taken.
    ///
    /// When the attempt can be repeated, files are kept back and handed over when it has succeeded.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller takes no files, `LIMIT` if there are too many.
    pub async fn artifact(&self, artifact: Artifact) -> Result<(), ToolError> {
        self.0.artifact(artifact).await
    }

    /// Asks whoever is behind the caller and waits for the answer, at most 10 minutes by default.
    ///
    /// While it waits, the call holds no permit and its time does not run. If the tool is run again, it gets the same
    /// answer again without anybody being asked.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller cannot answer, `TIMEOUT` if it does not.
    pub async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        self.0.ask(question).await
    }

    /// Asks the caller's model for a completion. If the tool is run again, it gets the same completion again.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller has no model.
    pub async fn sample(&self, request: SampleRequest) -> Result<Sample, ToolError> {
        self.0.sample(request).await
    }

    /// The places that the caller works in, such as an open project.
    ///
    /// # Errors
    /// `PRECONDITION` if the caller does not say.
    pub async fn roots(&self) -> Result<Vec<Root>, ToolError> {
        self.0.roots().await
    }

    /// Calls another tool. It runs on this call's permit; its record becomes a child of this call's. If the tool is
    /// run again, a nested call that succeeded is not made again.
    ///
    /// # Errors
    /// Those of the other tool; `LIMIT` beyond 8 levels; `PRECONDITION` if it would wait for itself.
    pub async fn call(&self, tool: impl Into<String>, arguments: Value) -> Result<Output, ToolError> {
        let call = self.0.call().nested(tool, arguments);
        Arc::clone(&self.0).nested(call).await.result
    }

    /// A document, to read it and change it by hand.
    ///
    /// The name may hold `{owner}` and `{scope}`, as in `#[state]`; no other text can make such a part. A change is
    /// committed at once, whatever becomes of the call; what is to stand or fall with the call is a `#[state]`
    /// parameter. When the tool runs again, after a failed attempt or because somebody else has changed its `#[state]`,
    /// the change is made again: make one that may be made twice, or set `conflict_policy = "error"` and no retries.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the text names no document, `PRECONDITION` if it needs a scope and there is none.
    pub fn state(&self, id: &str) -> Result<StateDoc, ToolError> {
        let id = resolve_id(id, self.0.call())?;
        let (store, sleep) = Arc::clone(&self.0).documents()?;
        Ok(StateDoc::new(store, id)?.with_sleep(sleep))
    }

    /// Keeps a value in a new document of the call's owner, and returns the handle that names it.
    ///
    /// The document is `KIND/{owner}/HANDLE`: a tool with `#[state(id = "KIND/{owner}/{handle}", existing)]` sees it when
    /// its argument `handle` is the handle. The handle has 128 random bits, and is worth nothing to anybody else: for
    /// them there is no such document. As with [`state`](Self::state), a tool that runs again makes another one; the
    /// document of the attempt before stays, with a handle that nobody knows.
    ///
    /// # Errors
    /// `INVALID_INPUT` if `kind` cannot begin the name of a document; those of the store.
    pub async fn mint(&self, kind: &str, value: &(impl Serialize + ?Sized)) -> Result<String, ToolError> {
        let handle = crate::random_hex(16)?;
        self.state(&format!("{kind}/{{owner}}/{handle}"))?.replace(value).await?;
        Ok(handle)
    }

    /// The `#[state]` parameter of this place, for the attribute macros.
    #[doc(hidden)]
    pub fn state_view(&self, index: usize) -> Result<StateView, ToolError> {
        self.0.state(index)
    }

    /// What the `#[state]` parameter of this place shall become, for the attribute macros.
    #[doc(hidden)]
    pub fn set_state(&self, index: usize, value: Value) -> Result<(), ToolError> {
        self.0.set_state(index, value)
    }

    /// Calls several tools, at most `concurrency` of them at once (at least one). The results are in the order of the
    /// calls, and one that fails stops no other.
    ///
    /// Each is a [`call`](Self::call): they are begun in their order, so that a tool that is run again finds the
    /// answers of those that succeeded.
    pub async fn call_all<T: Into<String>>(
        &self,
        calls: impl IntoIterator<Item = (T, Value)>,
        concurrency: usize,
    ) -> Vec<Result<Output, ToolError>> {
        let mut results = self.begun(calls, concurrency).collect::<Vec<_>>().await;
        results.sort_unstable_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// As [`call_all`](Self::call_all), but the first failure ends it: calls that still run are stopped, and those that
    /// wait are not begun.
    ///
    /// # Errors
    /// That of the call that failed first.
    pub async fn try_call_all<T: Into<String>>(
        &self,
        calls: impl IntoIterator<Item = (T, Value)>,
        concurrency: usize,
    ) -> Result<Vec<Output>, ToolError> {
        let mut outputs = self
            .begun(calls, concurrency)
            .map(|(index, result)| result.map(|output| (index, output)))
            .try_collect::<Vec<_>>()
            .await?;
        outputs.sort_unstable_by_key(|(index, _)| *index);
        Ok(outputs.into_iter().map(|(_, output)| output).collect())
    }

    /// The results of calls with their places, as they come.
    fn begun<T: Into<String>>(
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
        let begin = move |(index, call)| {
            let reply = Arc::clone(&host).nested(call);
            async move { (index, reply.await.result) }
        };
        stream::iter(calls).map(begin).buffer_unordered(concurrency.max(1))
    }

    /// The injected value of a type: the call's own, or the toolbox's.
    ///
    /// # Errors
    /// `PRECONDITION` if nobody provided it.
    pub fn inject<T: Send + Sync + 'static>(&self) -> Result<Inject<T>, ToolError> {
        find([&self.0.call().values, self.0.values()])
    }

    /// The injected value of a name: the call's own, or the toolbox's.
    ///
    /// # Errors
    /// `PRECONDITION` if nobody provided it; `INTERNAL` if it does not fit.
    pub fn inject_named<T: DeserializeOwned>(&self, name: &str) -> Result<T, ToolError> {
        let value = self.0.call().values.get_named(name).or_else(|| self.0.values().get_named(name));
        let value = value.unwrap_or(&Value::Null);
        T::deserialize(value).map_err(|error| match value {
            Value::Null => not_provided(&format!("the value `{name}`"), "provide_named(name, value)"),
            _ => ToolError::internal(format!("the injected value `{name}` does not fit: {error}")),
        })
    }

    /// Waits for a future from blocking code, such as `ctx.wait(ctx.ask(question))`. It blocks the thread: only for
    /// tools that are placed `blocking`.
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
