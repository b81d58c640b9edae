//! A source that starts on first use.

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

use super::definition::Definition;
use super::listing::{LIST_TIMEOUT, listed};
use super::{Connect, Manifest, ManifestStore, Specs, refused};

/// The default timeout of a start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay before the next start after a failed one.
const BACK_OFF: Duration = Duration::from_secs(1);

/// A source that starts on first use: a call, a read, a prompt, or a list without a [`Manifest`]. Until then
/// its list comes from the manifest.
///
/// A start needs a tokio runtime. It continues if the waiting calls are dropped, and ends after its timeout
/// at the latest.
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
    /// Held while a start begins, so that only one runs.
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
    /// Creates a source that starts on first use. The store keeps its manifest under the digest of its start
    /// parameters.
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

    /// Sets the timeout of a start. Default: 30 s. Call it before the first use.
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

    /// Whether the source has started.
    pub fn is_started(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Up(_))
    }
}

impl Shared {
    fn manifest(&self) -> Option<Arc<Manifest>> {
        self.manifest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores a changed manifest.
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

    /// The source; starts it if necessary.
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
            _ => Err(ToolError::internal("a start ended without a result")),
        }
    }

    /// The definitions of the started source, or of its manifest. Without a manifest it is started.
    async fn specs<D: Definition>(self: &Arc<Self>) -> Specs<D> {
        let source = match (self.up(), self.manifest()) {
            (Some(source), _) => source,
            (None, Some(manifest)) => return Ok(D::in_manifest(&manifest).to_vec()),
            (None, None) => self.started().await?,
        };
        listed(&*source, LIST_TIMEOUT).await
    }

    /// Begins a start, unless one is running or has just failed.
    fn begin(self: &Arc<Self>) {
        let _guard = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
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
            Err(ToolError::timeout(format!("`{}` did not start within {limit:?}", self.name)))
        })?;
        // The list is read before the first call, so that no call uses an old definition.
        self.learn(Manifest::read(&*source, LIST_TIMEOUT).await?);
        Ok(source)
    }

    /// The waiting calls have not started, so they may be retried.
    fn failed(&self, error: &ToolError) -> State {
        let code = match error.code() {
            Code::Timeout => Code::Timeout,
            Code::Permission => Code::Permission,
            _ => Code::Dependency,
        };
        let error = ToolError::new(code, format!("`{}` cannot be started: {}", self.name, error.message()))
            .suggest_maybe(error.suggestion().map(ToOwned::to_owned))
            .retry(RetryAdvice::NotStarted(BACK_OFF));
        State::Failed { error, until: Instant::now() + BACK_OFF }
    }
}

/// Reports a failure to the waiting calls even if the start panics.
struct Failing(Option<Arc<Shared>>);

impl Drop for Failing {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            let state = shared.failed(&ToolError::internal("the start panicked"));
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

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(self.0.specs())
    }

    fn generation(&self) -> u64 {
        let own = self.0.generation.load(Ordering::Relaxed);
        self.0.up().map_or(own, |source| own.wrapping_add(source.generation()))
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let started = tokio::select! {
                started = self.0.started() => started,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = crate::listing::sleep_until(call.deadline) => {
                    Err(ToolError::timeout(format!("the deadline passed while `{}` started", self.0.name)))
                }
            };
            match started {
                Ok(source) => source.call(call).await,
                Err(error) => refused(&call, &self.0.name, error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.0.specs())
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.0.specs())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.0.started().await?.read(call).await })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.0.started().await?.render(call).await })
    }

    /// Before the start, all callers see the manifest.
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
