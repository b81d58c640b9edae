//! A source that reconnects when the connection is lost.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, Code, Output, PromptSpec, Reply, ResourceSpec, RetryAdvice, SourceState,
    SourceStatus, ToolError, ToolSource, ToolSpec,
};

use super::definition::Definition;
use super::listing::{listed, tools_of};
use super::{Connect, Manifest, Specs, refused};

/// The settings of a [`Reconnecting`] source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReconnectSettings {
    /// The timeout of a connection attempt. Default: 30 s.
    pub connect_timeout: Duration,
    /// The timeout of its lists. Default: 10 s.
    pub list_timeout: Duration,
    /// How long a call waits for a disconnected source. Default: 10 s; then a retryable `DEPENDENCY`.
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
            list_timeout: Duration::from_secs(10),
            wait_timeout: Duration::from_secs(10),
            initial_wait: Duration::from_millis(200),
            max_wait: Duration::from_secs(30),
            health_interval: Duration::from_secs(15),
            health_timeout: Duration::from_secs(5),
        }
    }
}

/// A source that reconnects when the connection is lost, with growing delays.
///
/// While it is disconnected, it lists its last known tools. A call waits for it up to a timeout, and fails
/// with `DEPENDENCY` and [`RetryAdvice::NotStarted`]. A lost call is repeated once, and only if it did not
/// start or its tool is idempotent or read-only.
///
/// Dropping it ends the reconnects; running calls keep their connection.
pub struct Reconnecting {
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    name: Arc<str>,
    connect: Box<dyn Connect>,
    settings: ReconnectSettings,
    link: watch::Sender<Link>,
    book: Mutex<Book>,
    /// Requests a health check.
    suspect: Notify,
}

/// The connection.
#[derive(Clone)]
enum Link {
    Up(Arc<dyn ToolSource>),
    /// The time of the next attempt; `None` during an attempt.
    Away(Option<Instant>),
}

/// The state that outlives a connection.
struct Book {
    manifest: Option<Arc<Manifest>>,
    /// Added to the generation of the connected source, so that the sum grows only with changes.
    offset: u64,
    /// The sum at the time of the disconnect.
    frozen: u64,
    connections: u64,
    failures: u32,
    last_error: Option<String>,
}

impl Reconnecting {
    /// Starts connecting, in a task of the current tokio runtime.
    pub fn start(
        name: impl Into<Arc<str>>,
        connect: impl Connect + 'static,
        settings: ReconnectSettings,
    ) -> Self {
        let shared = Arc::new(Shared {
            name: name.into(),
            connect: Box::new(connect),
            settings,
            link: watch::Sender::new(Link::Away(None)),
            book: Mutex::new(Book {
                manifest: None,
                offset: 0,
                frozen: 0,
                connections: 0,
                failures: 0,
                last_error: None,
            }),
            suspect: Notify::new(),
        });
        let task = tokio::spawn(maintain(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// `DEPENDENCY`, with the reason of the last attempt, after this time.
    pub async fn ready(&self, within: Duration) -> Result<(), ToolError> {
        self.shared.up_within(within).await.map(|_| ())
    }

    /// Waits until it is connected, or the first attempt has failed.
    ///
    /// # Errors
    /// `DEPENDENCY`, with the reason, if it is not connected.
    pub(super) async fn attempted(&self, within: Duration) -> Result<(), ToolError> {
        let mut links = self.shared.link.subscribe();
        let ended = links.wait_for(|link| !matches!(link, Link::Away(None)));
        let _ = tokio::time::timeout(within, ended).await;
        self.ready(Duration::ZERO).await
    }
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> Option<Arc<dyn ToolSource>> {
        match &*self.link.borrow() {
            Link::Up(source) => Some(Arc::clone(source)),
            Link::Away(_) => None,
        }
    }

    fn manifest(&self) -> Option<Arc<Manifest>> {
        self.book().manifest.clone()
    }

    fn generation(&self) -> u64 {
        // The lock order: the book, then the link.
        let book = self.book();
        self.up().map_or(book.frozen, |source| book.offset.wrapping_add(source.generation()))
    }

    /// Records a new connection.
    fn connected(&self, source: Arc<dyn ToolSource>, manifest: Manifest) {
        let mut book = self.book();
        let same = book.manifest.as_ref().is_some_and(|known| known.lists_the_same(&manifest));
        let total = book.frozen.wrapping_add(u64::from(!same));
        book.offset = total.wrapping_sub(source.generation());
        if !same {
            book.manifest = Some(Arc::new(manifest));
        }
        book.connections += 1;
        book.failures = 0;
        self.link.send_replace(Link::Up(source));
    }

    /// Records a lost connection, if it is still the current one.
    fn lost(&self, source: &Arc<dyn ToolSource>, error: &ToolError) {
        let mut book = self.book();
        let Some(current) = self.up().filter(|current| Arc::ptr_eq(current, source)) else { return };
        book.frozen = book.offset.wrapping_add(current.generation());
        book.last_error = Some(error.message().to_owned());
        self.link.send_replace(Link::Away(None));
        drop(book);
        tracing::warn!(source = &*self.name, "the connection is lost and will be restored: {error}");
        self.suspect.notify_one();
    }

    fn failed(&self, error: &ToolError, wait: Duration) {
        let mut book = self.book();
        book.failures = book.failures.saturating_add(1);
        book.last_error = Some(error.message().to_owned());
        self.link.send_replace(Link::Away(Some(Instant::now() + wait)));
    }

    /// Waits for the connected source, up to a timeout.
    async fn up_within(&self, within: Duration) -> Result<Arc<dyn ToolSource>, ToolError> {
        let mut links = self.link.subscribe();
        let up = tokio::time::timeout(within, links.wait_for(|link| matches!(link, Link::Up(_)))).await;
        if let Ok(Ok(link)) = up
            && let Link::Up(source) = &*link
        {
            return Ok(Arc::clone(source));
        }
        let reason = self.book().last_error.clone();
        let reason = reason.unwrap_or_else(|| "no connection yet".to_owned());
        let again = match &*self.link.borrow() {
            Link::Away(Some(until)) => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        Err(ToolError::dependency(format!("`{}` is not connected: {reason}", self.name))
            .suggest("It reconnects by itself; try again later.")
            .retry(RetryAdvice::NotStarted(again.max(self.settings.initial_wait))))
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

    /// The resources or prompts. While the source is away, or if it cannot list them, those of the manifest.
    async fn specs<D: Definition>(&self) -> Specs<D> {
        let known = || self.manifest().map(|manifest| D::in_manifest(&manifest).to_vec());
        let source = match (self.up(), known()) {
            (Some(source), _) => source,
            (None, Some(known)) => return Ok(known),
            // A source that was never listed may have some.
            (None, None) => self.up_within(Duration::ZERO).await?,
        };
        match listed(&*source, self.settings.list_timeout).await {
            Ok(specs) => Ok(specs),
            Err(error) => known().ok_or(error),
        }
    }

    /// Starts a health check if this result says that the source may be gone.
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

    async fn call(&self, call: Call) -> Reply {
        let mut repeated = false;
        loop {
            let up = tokio::select! {
                up = self.up_within(self.settings.wait_timeout) => up,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = crate::listing::sleep_until(call.deadline) => {
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

/// Connects, monitors the connection, and reconnects.
async fn maintain(shared: Arc<Shared>) {
    let settings = &shared.settings;
    let mut wait = settings.initial_wait;
    loop {
        let started = Instant::now();
        match connect(&shared).await {
            Ok(source) => {
                monitor(&shared, source).await;
                // A connection that fails soon keeps the growing delay.
                if started.elapsed() >= settings.max_wait {
                    wait = settings.initial_wait;
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(source = &*shared.name, "the connection failed: {error}");
                shared.failed(&error, wait);
            }
        }
        // Jitter between half the delay and all of it, so that clients do not reconnect at once.
        let jitter = RandomState::new().hash_one(started) % 512;
        tokio::time::sleep(wait / 2 + (wait / 1024).saturating_mul(jitter as u32)).await;
        wait = wait.saturating_mul(2).min(settings.max_wait);
    }
}

async fn connect(shared: &Shared) -> Result<Arc<dyn ToolSource>, ToolError> {
    let limit = shared.settings.connect_timeout;
    let source = tokio::time::timeout(limit, shared.connect.connect())
        .await
        .unwrap_or_else(|_| Err(ToolError::timeout(format!("no connection within {limit:?}"))))?;
    let manifest = Manifest::read(&*source, shared.settings.list_timeout).await?;
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
            && let Ok(manifest) = Manifest::read(&*source, shared.settings.list_timeout).await
        {
            generation = now;
            shared.book().manifest = Some(Arc::new(manifest));
        }
    }
}

impl fmt::Debug for Reconnecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting")
            .field("name", &self.shared.name)
            .field("up", &self.shared.up().is_some())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Reconnecting {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let shared = &self.shared;
            let source = match (shared.up(), shared.manifest()) {
                (Some(source), _) => source,
                (None, Some(manifest)) => return Ok(manifest.tools.clone()),
                (None, None) => shared.up_within(shared.settings.wait_timeout).await?,
            };
            match tools_of(&*source, shared.settings.list_timeout).await {
                Ok(specs) => {
                    let mut book = shared.book();
                    if let Some(manifest) = &mut book.manifest {
                        let mut read = Manifest::clone(manifest);
                        read.tools.clone_from(&specs);
                        *manifest = Arc::new(read);
                    }
                    Ok(specs)
                }
                // The last known tools stay, and a health check starts.
                Err(error) => {
                    shared.suspect.notify_one();
                    shared.manifest().map(|manifest| manifest.tools.clone()).ok_or(error)
                }
            }
        })
    }

    fn generation(&self) -> u64 {
        self.shared.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(self.shared.call(call))
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.shared.specs())
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.shared.specs())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.shared.up_within(self.shared.settings.wait_timeout).await?;
            self.shared.check_after(source.read(call).await)
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.shared.up_within(self.shared.settings.wait_timeout).await?;
            self.shared.check_after(source.render(call).await)
        })
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        self.shared.up()?.seen_by(caller)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async {
            match self.shared.up() {
                Some(source) => self.shared.check(&source).await,
                None => self.shared.up_within(Duration::ZERO).await.map(|_| ()),
            }
        })
    }

    fn status(&self) -> Vec<SourceStatus> {
        let is_up = self.shared.up().is_some();
        let book = self.shared.book();
        let state = match (is_up, book.connections, book.failures) {
            (true, ..) => SourceState::Ready,
            (false, 0, 0) => SourceState::Starting,
            (false, 0, _) => SourceState::Failed,
            (false, ..) => SourceState::Reconnecting,
        };
        let mut status = SourceStatus::new(&*self.shared.name, state);
        status.reason = book.last_error.clone().filter(|_| !is_up);
        status.connections = book.connections;
        status.failures = book.failures;
        status.tools = book.manifest.as_ref().map_or(0, |manifest| manifest.tools.len());
        vec![status]
    }
}
