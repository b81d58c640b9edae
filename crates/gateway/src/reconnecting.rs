//! A source that connects at once or on first use, and reconnects.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, Code, Output, PromptSpec, Reply, ResourceSpec, RetryAdvice, SourceState,
    SourceStatus, ToolError, ToolSource, ToolSpec,
};

use crate::definition::Definition;
use crate::listing::{listed, sleep_until};
use crate::{Connect, ManifestStore, SourceManifest, Specs, refused};

/// The settings of a [`Reconnecting`] source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReconnectSettings {
    /// The timeout of a connection attempt. Default: 30 s.
    pub connect_timeout: Duration,
    /// Extra time of an attempt, for connectors that install packages. Default: none.
    pub install_timeout: Duration,
    /// The timeout of its lists. Default: 10 s.
    pub list_timeout: Duration,
    /// The time that a call waits for a disconnected source, and a list for the first connection since its start.
    /// Default: 10 s; then a retryable `DEPENDENCY`.
    pub wait_timeout: Duration,
    /// The delay before the first reconnect; it doubles each time. Default: 200 ms.
    pub initial_wait: Duration,
    /// The maximum delay. Default: 30 s.
    pub max_wait: Duration,
    /// The interval of health checks. Default: 15 s.
    pub health_interval: Duration,
    /// The timeout of a health check. Default: 5 s; then the connection counts as lost.
    pub health_timeout: Duration,
}

impl Default for ReconnectSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            install_timeout: Duration::ZERO,
            list_timeout: Duration::from_secs(10),
            wait_timeout: Duration::from_secs(10),
            initial_wait: Duration::from_millis(200),
            max_wait: Duration::from_secs(30),
            health_interval: Duration::from_secs(15),
            health_timeout: Duration::from_secs(5),
        }
    }
}

impl ReconnectSettings {
    fn attempt_timeout(&self) -> Duration {
        self.connect_timeout.saturating_add(self.install_timeout)
    }
}

/// A source that connects at once or on first use, and reconnects with growing delays.
///
/// While it is disconnected, it lists its last known tools. A call waits for it up to a timeout, and fails
/// with `DEPENDENCY` and [`RetryAdvice::NotStarted`]. A lost call is repeated once, and only if it did not
/// start or its tool is idempotent or read-only.
///
/// A [lazy](Self::lazy) source connects for the first call, read, prompt, or list without a [`SourceManifest`].
///
/// Dropping it ends the reconnects; running calls use their connection to the end.
pub struct Reconnecting(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    connect: Box<dyn Connect>,
    settings: ReconnectSettings,
    /// The store of a lazy source and the digest of its start parameters.
    manifests: Option<(String, Arc<dyn ManifestStore>)>,
    link: watch::Sender<Link>,
    history: Mutex<History>,
    /// Requests a health check.
    suspect: Notify,
    /// The task that connects and monitors.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The connection.
#[derive(Clone)]
enum Link {
    /// Not used yet.
    Idle,
    Connecting,
    Up(Arc<dyn ToolSource>),
    /// The last attempt failed; no attempt begins earlier.
    Failed(Instant),
}

/// The state that outlives a connection.
#[derive(Default)]
struct History {
    manifest: Option<Arc<SourceManifest>>,
    /// Added to the generation of the connected source, so that the sum grows only with changes.
    offset: u64,
    /// The sum at the time of the disconnect.
    frozen: u64,
    connections: u64,
    failures: u32,
    last_error: Option<ToolError>,
    /// When the task began to connect.
    begun: Option<Instant>,
}

impl Reconnecting {
    /// Starts connecting, in a task of the current tokio runtime.
    pub fn start(
        name: impl Into<Arc<str>>,
        connect: impl Connect + 'static,
        settings: ReconnectSettings,
    ) -> Self {
        let source = Self::new(name.into(), Box::new(connect), settings, None, None);
        source.0.begin();
        source
    }

    /// Connects on first use. Until then the list comes from the manifest in the store, by the digest of the
    /// start parameters. A failed first attempt fails the calls that wait for it; a later use connects again.
    pub fn lazy(
        name: impl Into<Arc<str>>,
        digest: impl Into<String>,
        manifests: Arc<dyn ManifestStore>,
        connect: impl Connect + 'static,
        settings: ReconnectSettings,
    ) -> Self {
        let digest = digest.into();
        let manifest = manifests.load(&digest).filter(SourceManifest::is_current).map(Arc::new);
        Self::new(name.into(), Box::new(connect), settings, manifest, Some((digest, manifests)))
    }

    fn new(
        name: Arc<str>,
        connect: Box<dyn Connect>,
        settings: ReconnectSettings,
        manifest: Option<Arc<SourceManifest>>,
        manifests: Option<(String, Arc<dyn ManifestStore>)>,
    ) -> Self {
        Self(Arc::new(Shared {
            name,
            connect,
            settings,
            manifests,
            link: watch::Sender::new(Link::Idle),
            history: Mutex::new(History { manifest, ..History::default() }),
            suspect: Notify::new(),
            task: Mutex::new(None),
        }))
    }

    /// Waits until its tools are known or its first attempt has failed. Starts an unstarted lazy source without
    /// a manifest. Bounded by [`ReconnectSettings::connect_timeout`] and [`ReconnectSettings::list_timeout`].
    ///
    /// # Errors
    /// The error of the last attempt.
    pub async fn settled(&self) -> Result<(), ToolError> {
        if self.0.manifest().is_some() {
            return Ok(());
        }
        let mut links = self.0.link.subscribe();
        if matches!(*links.borrow(), Link::Idle) {
            self.0.begin();
        }
        let settled = links.wait_for(|link| matches!(link, Link::Up(_) | Link::Failed(_))).await;
        if settled.is_ok_and(|link| matches!(*link, Link::Up(_))) {
            return Ok(());
        }
        let last = self.0.history().last_error.clone();
        Err(last.unwrap_or_else(|| self.0.unavailable()))
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// `DEPENDENCY`, with the reason of the last attempt, after this time.
    pub async fn ready(&self, within: Duration) -> Result<(), ToolError> {
        self.0.up_within(within, Use::Call).await.map(drop)
    }
}

/// A waiting request for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Call,
    /// A list does not wait for another attempt after a failed one, because the new list is a change.
    List,
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        if let Some(task) = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> Option<Arc<dyn ToolSource>> {
        match &*self.link.borrow() {
            Link::Up(source) => Some(Arc::clone(source)),
            _ => None,
        }
    }

    fn manifest(&self) -> Option<Arc<SourceManifest>> {
        self.history().manifest.clone()
    }

    /// Whether this lazy source was never connected.
    fn is_unstarted(&self) -> bool {
        self.manifests.is_some() && self.history().connections == 0
    }

    fn generation(&self) -> u64 {
        // The lock order: the history, then the link.
        let history = self.history();
        self.up().map_or(history.frozen, |source| history.offset.wrapping_add(source.generation()))
    }

    /// Starts the task, unless it runs or has just failed.
    fn begin(self: &Arc<Self>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let may_begin = match &*self.link.borrow() {
            Link::Idle => true,
            Link::Failed(until) => {
                *until <= Instant::now() && task.as_ref().is_none_or(JoinHandle::is_finished)
            }
            Link::Connecting | Link::Up(_) => false,
        };
        if may_begin {
            self.history().begun = Some(Instant::now());
            self.link.send_replace(Link::Connecting);
            *task = Some(tokio::spawn(maintain(Arc::clone(self))));
        }
    }

    /// Records a new connection.
    fn connected(&self, source: Arc<dyn ToolSource>, manifest: SourceManifest) {
        let mut history = self.history();
        let same = history.manifest.as_ref().is_some_and(|known| known.lists_the_same(&manifest));
        let total = history.frozen.wrapping_add(u64::from(!same));
        history.offset = total.wrapping_sub(source.generation());
        if !same {
            if let Some((digest, manifests)) = &self.manifests {
                manifests.save(digest, &manifest);
            }
            history.manifest = Some(Arc::new(manifest));
        }
        history.connections += 1;
        history.failures = 0;
        self.link.send_replace(Link::Up(source));
    }

    /// Records a lost connection, if it is still the current one.
    fn lost(&self, source: &Arc<dyn ToolSource>, error: &ToolError) {
        let mut history = self.history();
        let Some(current) = self.up().filter(|current| Arc::ptr_eq(current, source)) else { return };
        history.frozen = history.offset.wrapping_add(current.generation());
        history.last_error = Some(error.clone());
        self.link.send_replace(Link::Connecting);
        drop(history);
        tracing::warn!(source = &*self.name, "the connection is lost and will be restored: {error}");
        self.suspect.notify_one();
    }

    fn failed(&self, error: &ToolError, wait: Duration) {
        let mut history = self.history();
        history.failures = history.failures.saturating_add(1);
        history.last_error = Some(error.clone());
        self.link.send_replace(Link::Failed(Instant::now() + wait));
    }

    /// Waits for the connected source, up to a timeout. An unstarted source is started, and its first attempt
    /// decides.
    async fn up_within(
        self: &Arc<Self>,
        within: Duration,
        waits: Use,
    ) -> Result<Arc<dyn ToolSource>, ToolError> {
        let mut links = self.link.subscribe();
        let first = self.is_unstarted();
        self.begin();
        let within = match waits {
            Use::Call if first => self.settings.attempt_timeout().saturating_add(self.settings.list_timeout),
            Use::Call => within,
            // Lists wait once for a slow start.
            Use::List => {
                within.saturating_sub(self.history().begun.map_or(Duration::ZERO, |at| at.elapsed()))
            }
        };
        let is_over = |link: &Link| match link {
            Link::Up(_) => true,
            Link::Failed(_) => first || waits == Use::List,
            _ => false,
        };
        if let Ok(Ok(link)) = tokio::time::timeout(within, links.wait_for(is_over)).await
            && let Link::Up(source) = &*link
        {
            return Ok(Arc::clone(source));
        }
        Err(self.unavailable())
    }

    fn unavailable(&self) -> ToolError {
        let again = match &*self.link.borrow() {
            Link::Failed(until) => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        let last = self.history().last_error.clone();
        let reason = last.as_ref().map_or("no connection yet", ToolError::message);
        let error = if self.is_unstarted() {
            let code = match last.as_ref().map(ToolError::code) {
                Some(code @ (Code::Timeout | Code::Permission)) => code,
                _ => Code::Dependency,
            };
            ToolError::new(code, format!("`{}` cannot be started: {reason}", self.name))
                .suggest_maybe(last.as_ref().and_then(ToolError::whole_suggestion))
        } else {
            ToolError::dependency(format!("`{}` is not connected: {reason}", self.name))
                .suggest("It reconnects by itself; try again later.")
        };
        error.retry(RetryAdvice::NotStarted(again.max(self.settings.initial_wait)))
    }

    /// Checks the health of a source, with a timeout.
    async fn check(&self, source: &Arc<dyn ToolSource>) -> Result<(), ToolError> {
        let limit = self.settings.health_timeout;
        tokio::time::timeout(limit, source.health()).await.unwrap_or_else(|_| {
            Err(ToolError::timeout(format!(
                "`{}` did not answer the health check within {limit:?}",
                self.name
            )))
        })
    }

    /// The definitions of one kind. While the source is disconnected, or if it cannot list them, those of the
    /// manifest.
    async fn specs<D: Definition>(self: &Arc<Self>, within: Duration) -> Specs<D> {
        let known = || self.manifest().map(|manifest| D::from_manifest(SourceManifest::clone(&manifest)));
        let source = match (self.up(), known()) {
            (Some(source), _) => source,
            (None, Some(known)) => return Ok(known),
            // A source that was never listed may have some.
            (None, None) => self.up_within(within, Use::List).await?,
        };
        match listed(&*source, self.settings.list_timeout).await {
            Ok(specs) => Ok(specs),
            Err(error) => {
                self.suspect.notify_one();
                known().ok_or(error)
            }
        }
    }

    /// Starts a health check if the error suggests a lost connection.
    fn check_after(&self, result: Result<Output, ToolError>) -> Result<Output, ToolError> {
        if matches!(&result, Err(error) if error.code() == Code::Dependency) {
            self.suspect.notify_one();
        }
        result
    }

    /// Whether a lost call may be repeated.
    fn may_repeat(&self, tool: &str, error: &ToolError) -> bool {
        if matches!(error.retry_advice(), Some(RetryAdvice::NotStarted(_))) {
            return true;
        }
        let manifest = self.manifest();
        let known = manifest.iter().flat_map(|manifest| &manifest.tools).find(|spec| spec.name == tool);
        error.retry_advice() != Some(RetryAdvice::Never)
            && known.is_some_and(|spec| spec.annotations.idempotent || spec.annotations.read_only)
    }

    async fn call(self: &Arc<Self>, call: Call) -> Reply {
        let mut repeated = false;
        loop {
            let up = tokio::select! {
                up = self.up_within(self.settings.wait_timeout, Use::Call) => up,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = sleep_until(call.deadline) => {
                    Err(ToolError::timeout(format!("the deadline passed while `{}` was not connected", self.name))
                        .retry(RetryAdvice::NotStarted(self.settings.initial_wait)))
                }
            };
            let source = match up {
                Ok(source) => source,
                Err(error) => return refused(&call, &self.name, error),
            };
            let reply = source.call(call.clone()).await;
            let lost = match &reply.result {
                Err(error) if matches!(error.code(), Code::Dependency | Code::Timeout) => error,
                _ => return reply,
            };
            // The error may come from the tool itself, so check the source.
            let Err(unhealthy) = self.check(&source).await else { return reply };
            self.lost(&source, &unhealthy);
            if repeated || !self.may_repeat(&call.tool, lost) {
                return reply;
            }
            repeated = true;
        }
    }
}

/// Connects, monitors the connection, and reconnects. Ends if the first attempt of a lazy source fails.
async fn maintain(shared: Arc<Shared>) {
    let settings = &shared.settings;
    let mut wait = settings.initial_wait;
    let _report = PanicReport(Arc::clone(&shared));
    loop {
        let started = Instant::now();
        match connect(&shared).await {
            Ok(source) => {
                monitor(&shared, source).await;
                // A connection that fails soon does not reset the delay.
                if started.elapsed() >= settings.max_wait {
                    wait = settings.initial_wait;
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(source = &*shared.name, "the connection failed: {error}");
                if shared.is_unstarted() {
                    let failures = shared.history().failures;
                    let wait = settings.initial_wait.saturating_mul(1 << failures.min(16));
                    shared.failed(&error, wait.min(settings.max_wait));
                    return;
                }
                shared.failed(&error, wait);
            }
        }
        // Jitter between half the delay and all of it, so that clients do not reconnect at once.
        let jitter = RandomState::new().hash_one(started) % 512;
        tokio::time::sleep(wait / 2 + (wait / 1024).saturating_mul(jitter as u32)).await;
        wait = wait.saturating_mul(2).min(settings.max_wait);
    }
}

/// Reports a failure to the waiting calls if the task panics.
struct PanicReport(Arc<Shared>);

impl Drop for PanicReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let wait = self.0.settings.initial_wait;
            self.0.failed(&ToolError::internal("the connection panicked"), wait);
        }
    }
}

async fn connect(shared: &Shared) -> Result<Arc<dyn ToolSource>, ToolError> {
    let limit = shared.settings.attempt_timeout();
    let source = tokio::time::timeout(limit, shared.connect.connect())
        .await
        .unwrap_or_else(|_| Err(ToolError::timeout(format!("no connection within {limit:?}"))))?;
    // The list is read before the first call, so that no call uses an old definition.
    let manifest = SourceManifest::read(&*source, shared.settings.list_timeout).await?;
    shared.connected(Arc::clone(&source), manifest);
    Ok(source)
}

/// Returns when the connection is lost. Reads changed lists again.
async fn monitor(shared: &Shared, source: Arc<dyn ToolSource>) {
    let mut links = shared.link.subscribe();
    let mut generation = source.generation();
    loop {
        tokio::select! {
            () = tokio::time::sleep(shared.settings.health_interval) => {}
            () = shared.suspect.notified() => {}
            _ = links.wait_for(|link| !matches!(link, Link::Up(current) if Arc::ptr_eq(current, &source))) => return,
        }
        if let Err(error) = shared.check(&source).await {
            shared.lost(&source, &error);
        }
        if shared.up().is_none_or(|current| !Arc::ptr_eq(&current, &source)) {
            return;
        }
        let now = source.generation();
        if now != generation
            && let Ok(manifest) = SourceManifest::read(&*source, shared.settings.list_timeout).await
        {
            generation = now;
            shared.history().manifest = Some(Arc::new(manifest));
        }
    }
}

impl fmt::Debug for Reconnecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting")
            .field("name", &self.0.name)
            .field("up", &self.0.up().is_some())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Reconnecting {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let specs = self.0.specs::<ToolSpec>(self.0.settings.wait_timeout).await?;
            let mut history = self.0.history();
            if let Some(manifest) = &mut history.manifest {
                Arc::make_mut(manifest).tools.clone_from(&specs);
            }
            drop(history);
            Ok(specs)
        })
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(self.0.call(call))
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.0.specs(Duration::ZERO))
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.0.specs(Duration::ZERO))
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.0.up_within(self.0.settings.wait_timeout, Use::Call).await?;
            self.0.check_after(source.read(call).await)
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.0.up_within(self.0.settings.wait_timeout, Use::Call).await?;
            self.0.check_after(source.render(call).await)
        })
    }

    /// While it is disconnected, all callers see the manifest.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        self.0.up()?.seen_by(caller)
    }

    /// Healthy if it is connected or unstarted.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async {
            match self.0.up() {
                Some(source) => self.0.check(&source).await,
                None if self.0.is_unstarted() => Ok(()),
                None => Err(self.0.unavailable()),
            }
        })
    }

    fn status(&self) -> Vec<SourceStatus> {
        let history = self.0.history();
        let link = self.0.link.borrow().clone();
        let is_up = matches!(link, Link::Up(_));
        let state = match (link, history.connections, history.failures) {
            (Link::Up(_), ..) => SourceState::Ready,
            (Link::Idle, ..) => SourceState::NotStarted,
            (_, 0, 0) => SourceState::Starting,
            (_, 0, _) => SourceState::Failed,
            _ => SourceState::Reconnecting,
        };
        let mut status = SourceStatus::new(&*self.0.name, state);
        status.reason =
            history.last_error.as_ref().filter(|_| !is_up).map(|error| error.message().to_owned());
        status.connections = history.connections;
        status.failures = history.failures;
        status.tools = history.manifest.as_ref().map_or(0, |manifest| manifest.tools.len());
        vec![status]
    }
}
