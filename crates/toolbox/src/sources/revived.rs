//! A source that is connected again when it is gone.

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

use super::listing::{in_time, tools_of};
use super::{Connect, Manifest, refused};

/// The bounds of a [`Revived`] source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RevivedSettings {
    /// How long a connection may take. Default: 30 s.
    pub connect_timeout: Duration,
    /// How long its lists may take. Default: 10 s.
    pub list_timeout: Duration,
    /// How long a call waits for a source that is away. Default: 10 s; then `DEPENDENCY`, which may be tried again.
    pub patience: Duration,
    /// The wait before it is connected again; it doubles each time. Default: 200 ms.
    pub initial_wait: Duration,
    /// The longest wait. Default: 30 s.
    pub longest_wait: Duration,
    /// How often it is asked whether it is well. Default: every 15 s.
    pub health_every: Duration,
    /// How long the answer may take. Default: 5 s; then it counts as gone.
    pub health_timeout: Duration,
}

impl Default for RevivedSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            list_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(10),
            initial_wait: Duration::from_millis(200),
            longest_wait: Duration::from_secs(30),
            health_every: Duration::from_secs(15),
            health_timeout: Duration::from_secs(5),
        }
    }
}

/// A source that is connected again when it is gone, with waits that grow to a bound.
///
/// While it is away its tools stay listed as they were. A call then waits for it for a bounded time, and fails with
/// `DEPENDENCY` and [`RetryAdvice::NotStarted`]. A call that was lost with it is made again by itself only if it
/// certainly did not start, or if its tool is idempotent or changes nothing.
///
/// Dropping it ends the attempts; calls that run keep their connection.
pub struct Revived {
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    name: Arc<str>,
    connect: Box<dyn Connect>,
    settings: RevivedSettings,
    link: watch::Sender<Link>,
    book: Mutex<Book>,
    /// Somebody has reason to believe that it is gone.
    suspect: Notify,
}

/// The connection.
#[derive(Clone)]
enum Link {
    Up(Arc<dyn ToolSource>),
    /// Until when it is not tried again; `None` while it is tried.
    Away(Option<Instant>),
}

/// What outlives a connection.
struct Book {
    manifest: Option<Arc<Manifest>>,
    /// What is added to the generation of the connected source, so that the sum grows with changes and nothing else.
    offset: u64,
    /// The sum when it went away.
    frozen: u64,
    connections: u64,
    failures: u32,
    last_error: Option<String>,
}

impl Revived {
    /// Begins to connect, in a task of the current tokio runtime.
    pub fn start(
        name: impl Into<Arc<str>>,
        connect: impl Connect + 'static,
        settings: RevivedSettings,
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
        let task = tokio::spawn(keep_up(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// `DEPENDENCY` with the reason of the last attempt if it is not within this time.
    pub async fn ready(&self, within: Duration) -> Result<(), ToolError> {
        self.shared.up_within(within).await.map(|_| ())
    }

    /// Waits until it is connected, or the first attempt has failed.
    ///
    /// # Errors
    /// `DEPENDENCY` with the reason if it is not.
    pub(super) async fn attempted(&self, within: Duration) -> Result<(), ToolError> {
        let mut links = self.shared.link.subscribe();
        let ended = links.wait_for(|link| !matches!(link, Link::Away(None)));
        let _ = tokio::time::timeout(within, ended).await;
        self.ready(Duration::ZERO).await
    }
}

impl Drop for Revived {
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
        // In this order everywhere: the book, then the link.
        let book = self.book();
        self.up().map_or(book.frozen, |source| book.offset.wrapping_add(source.generation()))
    }

    /// Takes a connected source in.
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

    /// Lets go of a source that is gone, if it is still the one that is used.
    fn gone(&self, source: &Arc<dyn ToolSource>, error: &ToolError) {
        let mut book = self.book();
        let Some(current) = self.up().filter(|current| Arc::ptr_eq(current, source)) else { return };
        book.frozen = book.offset.wrapping_add(current.generation());
        book.last_error = Some(error.message().to_owned());
        self.link.send_replace(Link::Away(None));
        drop(book);
        tracing::warn!(source = &*self.name, "the source is gone and will be connected again: {error}");
        self.suspect.notify_one();
    }

    fn failed(&self, error: &ToolError, wait: Duration) {
        let mut book = self.book();
        book.failures = book.failures.saturating_add(1);
        book.last_error = Some(error.message().to_owned());
        self.link.send_replace(Link::Away(Some(Instant::now() + wait)));
    }

    /// The source, as soon as it is there, within a time.
    async fn up_within(&self, within: Duration) -> Result<Arc<dyn ToolSource>, ToolError> {
        let mut links = self.link.subscribe();
        let up = tokio::time::timeout(within, links.wait_for(|link| matches!(link, Link::Up(_)))).await;
        if let Ok(Ok(link)) = up
            && let Link::Up(source) = &*link
        {
            return Ok(Arc::clone(source));
        }
        let reason = self.book().last_error.clone();
        let reason = reason.unwrap_or_else(|| "it is not connected yet".to_owned());
        let again = match &*self.link.borrow() {
            Link::Away(Some(until)) => until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        Err(ToolError::dependency(format!("`{}` is away: {reason}", self.name))
            .suggest("It is connected again by itself; try again in a while.")
            .retry(RetryAdvice::NotStarted(again.max(self.settings.initial_wait))))
    }

    /// Whether it is well, in bounded time.
    async fn check(&self, source: &Arc<dyn ToolSource>) -> Result<(), ToolError> {
        let limit = self.settings.health_timeout;
        tokio::time::timeout(limit, source.health()).await.unwrap_or_else(|_| {
            Err(ToolError::timeout(format!("`{}` did not say within {limit:?} that it is well", self.name)))
        })
    }

    /// Whether a lost call may be made once more.
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
                up = self.up_within(self.settings.patience) => up,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop")),
                () = crate::path::sleep_until(call.deadline) => {
                    Err(ToolError::timeout(format!("the deadline passed while `{}` was away", self.name))
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
            // A tool may have failed for reasons of its own: only a source that is not well is given up.
            let Err(ill) = self.check(&source).await else { return reply };
            self.gone(&source, &ill);
            if repeated || !self.may_repeat(&call.tool, lost) {
                return reply;
            }
            repeated = true;
        }
    }
}

/// Connects, watches, and connects again.
async fn keep_up(shared: Arc<Shared>) {
    let settings = &shared.settings;
    let mut wait = settings.initial_wait;
    loop {
        let begun = Instant::now();
        match connect(&shared).await {
            Ok(source) => {
                watch_over(&shared, source).await;
                // One that goes as soon as it has come is not worth more effort than one that does not come.
                if begun.elapsed() >= settings.longest_wait {
                    wait = settings.initial_wait;
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(source = &*shared.name, "the source cannot be connected: {error}");
                shared.failed(&error, wait);
            }
        }
        // Half to all of it, so that many do not come back at once.
        let jitter = RandomState::new().hash_one(begun) % 512;
        tokio::time::sleep(wait / 2 + (wait / 1024).saturating_mul(jitter as u32)).await;
        wait = wait.saturating_mul(2).min(settings.longest_wait);
    }
}

async fn connect(shared: &Shared) -> Result<Arc<dyn ToolSource>, ToolError> {
    let limit = shared.settings.connect_timeout;
    let source = tokio::time::timeout(limit, shared.connect.connect())
        .await
        .unwrap_or_else(|_| Err(ToolError::timeout(format!("it was not there within {limit:?}"))))?;
    let manifest = Manifest::read(&*source, shared.settings.list_timeout).await?;
    shared.connected(Arc::clone(&source), manifest);
    Ok(source)
}

/// Returns when the source is gone. Its lists are read again when they change.
async fn watch_over(shared: &Shared, source: Arc<dyn ToolSource>) {
    let mut links = shared.link.subscribe();
    let mut generation = source.generation();
    loop {
        tokio::select! {
            () = tokio::time::sleep(shared.settings.health_every) => {}
            () = shared.suspect.notified() => {}
            _ = links.wait_for(|link| !matches!(link, Link::Up(current) if Arc::ptr_eq(current, &source))) => return,
        }
        if let Err(error) = shared.check(&source).await {
            shared.gone(&source, &error);
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

impl fmt::Debug for Revived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revived")
            .field("name", &self.shared.name)
            .field("up", &self.shared.up().is_some())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Revived {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let shared = &self.shared;
            let source = match (shared.up(), shared.manifest()) {
                (Some(source), _) => source,
                (None, Some(manifest)) => return Ok(manifest.tools.clone()),
                (None, None) => shared.up_within(shared.settings.patience).await?,
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
                // Names stay; whether it is gone is found out.
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

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async {
            let known = || self.shared.manifest().map(|manifest| manifest.resources.clone());
            let source = match (self.shared.up(), known()) {
                (Some(source), _) => source,
                (None, Some(known)) => return Ok(known),
                // What nobody has listed yet is not known to be empty.
                (None, None) => self.shared.up_within(Duration::ZERO).await?,
            };
            match in_time(&*source, self.shared.settings.list_timeout, source.resources()).await {
                Ok(specs) => Ok(specs),
                Err(error) => known().ok_or(error),
            }
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async {
            let known = || self.shared.manifest().map(|manifest| manifest.prompts.clone());
            let source = match (self.shared.up(), known()) {
                (Some(source), _) => source,
                (None, Some(known)) => return Ok(known),
                // What nobody has listed yet is not known to be empty.
                (None, None) => self.shared.up_within(Duration::ZERO).await?,
            };
            match in_time(&*source, self.shared.settings.list_timeout, source.prompts()).await {
                Ok(specs) => Ok(specs),
                Err(error) => known().ok_or(error),
            }
        })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.shared.up_within(self.shared.settings.patience).await?;
            let read = source.read(call).await;
            if matches!(&read, Err(error) if error.code() == Code::Dependency) {
                self.shared.suspect.notify_one();
            }
            read
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let source = self.shared.up_within(self.shared.settings.patience).await?;
            let rendered = source.render(call).await;
            if matches!(&rendered, Err(error) if error.code() == Code::Dependency) {
                self.shared.suspect.notify_one();
            }
            rendered
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
