//! A source that is started when it is first needed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, Code, Output, PromptSpec, Reply, ResourceSpec, RetryAdvice, SourceState,
    SourceStatus, ToolError, ToolSource, ToolSpec,
};

use super::listing::{LIST_TIMEOUT, tools_of};
use super::{Connect, Manifest, ManifestStore, refused};

/// How long a start may take, unless it is said otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a source that could not be started is left alone.
const BACK_OFF: Duration = Duration::from_secs(1);

/// A source that starts on its first use: a call, a resource that is read, a prompt that is rendered, or a list when
/// there is no [`Manifest`] of it yet. Until then it is listed from what it had the last time.
///
/// Needs a tokio runtime when it starts. Dropping it, or dropping whoever waits, does not break a start off; a start
/// ends after its timeout at the latest.
pub struct Lazy(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    digest: String,
    manifests: Arc<dyn ManifestStore>,
    connect: Arc<dyn Connect>,
    start_timeout: Duration,
    state: watch::Sender<State>,
    manifest: RwLock<Option<Arc<Manifest>>>,
    generation: AtomicU64,
    /// Held while a start begins, so that there is one.
    starting: Mutex<()>,
}

#[derive(Clone)]
enum State {
    Idle,
    Starting,
    Up(Arc<dyn ToolSource>),
    Failed { error: ToolError, until: Instant },
}

impl Lazy {
    /// A source that starts on its first use. Its manifest is kept under the digest of what it is started with, so that
    /// a changed start has no manifest.
    pub fn new(
        name: impl Into<Arc<str>>,
        digest: impl Into<String>,
        manifests: Arc<dyn ManifestStore>,
        connect: impl Connect + 'static,
    ) -> Self {
        let digest = digest.into();
        let manifest = manifests.load(&digest).filter(Manifest::is_current).map(Arc::new);
        Self(Arc::new(Shared {
            name: name.into(),
            digest,
            manifests,
            connect: Arc::new(connect),
            start_timeout: START_TIMEOUT,
            state: watch::Sender::new(State::Idle),
            manifest: RwLock::new(manifest),
            generation: AtomicU64::new(0),
            starting: Mutex::new(()),
        }))
    }

    /// Changes how long a start may take. Default: 30 s. To be called before the first use.
    #[must_use]
    pub fn start_timeout(self, timeout: Duration) -> Self {
        let old = &self.0;
        Self(Arc::new(Shared {
            name: Arc::clone(&old.name),
            digest: old.digest.clone(),
            manifests: Arc::clone(&old.manifests),
            connect: Arc::clone(&old.connect),
            start_timeout: timeout,
            state: watch::Sender::new(State::Idle),
            manifest: RwLock::new(old.manifest()),
            generation: AtomicU64::new(0),
            starting: Mutex::new(()),
        }))
    }

    /// Whether it has been started.
    pub fn is_started(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Up(_))
    }
}

impl Shared {
    fn manifest(&self) -> Option<Arc<Manifest>> {
        self.manifest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what the source lists, and tells that it has changed if it has.
    fn learn(&self, manifest: Manifest) {
        let changed = self.manifest().is_none_or(|known| !known.lists_the_same(&manifest));
        if changed {
            self.manifests.save(&self.digest, &manifest);
            *self.manifest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(manifest));
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn up(&self) -> Option<Arc<dyn ToolSource>> {
        match &*self.state.borrow() {
            State::Up(source) => Some(Arc::clone(source)),
            _ => None,
        }
    }

    /// The source, started if it must be.
    async fn started(self: &Arc<Self>) -> Result<Arc<dyn ToolSource>, ToolError> {
        if let Some(source) = self.up() {
            return Ok(source);
        }
        let mut states = self.state.subscribe();
        self.begin();
        let ended = states
            .wait_for(|state| matches!(state, State::Up(_) | State::Failed { .. }))
            .await
            .map(|state| State::clone(&state));
        match ended {
            Ok(State::Up(source)) => Ok(source),
            Ok(State::Failed { error, .. }) => Err(error),
            _ => Err(ToolError::internal("a start ended without an end")),
        }
    }

    /// Begins a start, unless there is one or the last one failed just now.
    fn begin(self: &Arc<Self>) {
        let _one_at_a_time = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let may = match &*self.state.borrow() {
            State::Idle => true,
            State::Failed { until, .. } => *until <= Instant::now(),
            State::Starting | State::Up(_) => false,
        };
        if !may {
            return;
        }
        self.state.send_replace(State::Starting);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let mut failing = Failing(Some(Arc::clone(&shared)));
            let next = match shared.start().await {
                Ok(source) => State::Up(source),
                Err(error) => shared.failed(&error),
            };
            failing.0 = None;
            shared.state.send_replace(next);
        });
    }

    async fn start(&self) -> Result<Arc<dyn ToolSource>, ToolError> {
        let limit = self.start_timeout;
        let source = tokio::time::timeout(limit, self.connect.connect()).await.unwrap_or_else(|_| {
            Err(ToolError::timeout(format!("`{}` was not ready within {limit:?}", self.name)))
        })?;
        // Its list is read before the first call, so that nobody calls what is no longer there.
        self.learn(Manifest::read(&*source, LIST_TIMEOUT).await?);
        Ok(source)
    }

    /// The calls that waited certainly did not start.
    fn failed(&self, error: &ToolError) -> State {
        let code = match error.code() {
            Code::Timeout => Code::Timeout,
            Code::Permission => Code::Permission,
            _ => Code::Dependency,
        };
        let told = ToolError::new(code, format!("`{}` cannot be started: {}", self.name, error.message()))
            .suggest_maybe(error.suggestion().map(ToOwned::to_owned))
            .retry(RetryAdvice::NotStarted(BACK_OFF));
        State::Failed { error: told, until: Instant::now() + BACK_OFF }
    }
}

/// Whoever waits is told even if the start panics.
struct Failing(Option<Arc<Shared>>);

impl Drop for Failing {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            let state = shared.failed(&ToolError::internal("the start broke off"));
            shared.state.send_replace(state);
        }
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy")
            .field("name", &self.0.name)
            .field("started", &self.is_started())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Lazy {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            if let Some(source) = self.0.up() {
                return tools_of(&*source, LIST_TIMEOUT).await;
            }
            if let Some(manifest) = self.0.manifest() {
                return Ok(manifest.tools.clone());
            }
            tools_of(&*self.0.started().await?, LIST_TIMEOUT).await
        })
    }

    fn generation(&self) -> u64 {
        let own = self.0.generation.load(Ordering::Relaxed);
        self.0.up().map_or(own, |source| own.wrapping_add(source.generation()))
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let started = tokio::select! {
                started = self.0.started() => started,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop")),
                () = crate::path::sleep_until(call.deadline) => {
                    Err(ToolError::timeout(format!("the deadline passed while `{}` started", self.0.name)))
                }
            };
            match started {
                Ok(source) => source.call(call).await,
                Err(error) => refused(&call, &self.0.name, error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async {
            match (self.0.up(), self.0.manifest()) {
                (None, Some(manifest)) => Ok(manifest.resources.clone()),
                (Some(source), _) => source.resources().await,
                (None, None) => self.0.started().await?.resources().await,
            }
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async {
            match (self.0.up(), self.0.manifest()) {
                (None, Some(manifest)) => Ok(manifest.prompts.clone()),
                (Some(source), _) => source.prompts().await,
                (None, None) => self.0.started().await?.prompts().await,
            }
        })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.0.started().await?.read(call).await })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.0.started().await?.render(call).await })
    }

    /// Until it is started, everybody sees the manifest.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        self.0.up()?.seen_by(caller)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async {
            match self.0.up() {
                Some(source) => source.health().await,
                None => Ok(()),
            }
        })
    }

    fn status(&self) -> Vec<SourceStatus> {
        let (state, reason) = match &*self.0.state.borrow() {
            State::Up(source) => {
                let inner = source.status();
                if !inner.is_empty() {
                    return inner;
                }
                (SourceState::Ready, None)
            }
            State::Idle => (SourceState::NotStarted, None),
            State::Starting => (SourceState::Starting, None),
            State::Failed { error, .. } => (SourceState::Failed, Some(error.message().to_owned())),
        };
        let mut status = SourceStatus::new(&*self.0.name, state);
        status.reason = reason;
        status.tools = self.0.manifest().map_or(0, |manifest| manifest.tools.len());
        vec![status]
    }
}
