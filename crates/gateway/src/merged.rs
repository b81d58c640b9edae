//! Several sources as one.

mod table;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, HiddenDefinition, Output, PromptSpec, Reply, ResourceSpec, RetryAdvice,
    SourceState, SourceStatus, ToolError, ToolSource, ToolSpec,
};

use self::table::{Route, Table};
use crate::definition::Definition;
use crate::listing::{in_time, listed, sleep_until};
use crate::{Namespace, Namespaced, Specs, nearest, refused, shown};

/// The policy for a tool whose name an earlier member has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collisions {
    /// [`Merged::open`] and [`Merged::replace`] fail with `CONFLICT`. A collision that appears later omits
    /// the tool, and [`ToolSource::status`] reports it. So a member can never take a name from another.
    #[default]
    Refuse,
    /// It gets the namespace of its member: `maths__add`. The earlier member keeps the plain name.
    Namespace,
}

/// The delay before a call reads a failed list again.
const BACK_OFF: Duration = Duration::from_secs(2);

/// The settings of [`Merged`] sources.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MergeSettings {
    /// The policy for name collisions. Default: an error.
    pub collisions: Collisions,
    /// The time that the list waits for a member; then its previous list counts. Default: 3 s.
    pub member_timeout: Duration,
    /// The timeout of a member's list in the background. Default: 30 s.
    pub list_timeout: Duration,
}

impl Default for MergeSettings {
    fn default() -> Self {
        Self {
            collisions: Collisions::default(),
            member_timeout: Duration::from_secs(3),
            list_timeout: Duration::from_secs(30),
        }
    }
}

/// A named source among others.
#[derive(Clone)]
pub struct Member {
    name: Arc<str>,
    namespace: Arc<Namespace>,
    source: Arc<dyn ToolSource>,
}

impl Member {
    /// Creates a member. Its name is its namespace on collisions.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name is not a valid namespace.
    pub fn new(name: &str, source: Arc<dyn ToolSource>) -> Result<Self, ToolError> {
        Ok(Self { name: name.into(), namespace: Arc::new(Namespace::new(name)?), source })
    }

    /// Creates a member with all tools under its namespace.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name is not a valid namespace.
    pub fn namespaced(name: &str, source: Arc<dyn ToolSource>) -> Result<Self, ToolError> {
        Self::new(name, Arc::new(Namespaced::new(source, name)?))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn source(&self) -> &Arc<dyn ToolSource> {
        &self.source
    }

    /// Whether a tool has this name or alias, also under the namespace of a collision.
    pub(crate) fn has(&self, spec: &ToolSpec, name: &str) -> bool {
        let aliases = spec.aliases.iter().map(|alias| alias.name.as_str());
        std::iter::once(spec.name.as_str()).chain(aliases).any(|own| own == name)
            || self.namespace.name_of(&spec.name) == name
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Several sources as one, in order. They can be replaced while calls run: a call keeps its source until it
/// ends. A slow member delays the others up to a timeout, and a member that cannot be read keeps its last
/// known tools.
///
/// Cheap to clone; all clones share their state. Listing needs a tokio runtime.
#[derive(Clone)]
pub struct Merged {
    shared: Arc<Shared>,
    /// The caller that this is a view of; `None` for all callers.
    viewer: Option<Caller>,
}

struct Shared {
    name: Arc<str>,
    settings: MergeSettings,
    set: RwLock<Arc<Set>>,
    /// Held while the members are replaced.
    replacing: tokio::sync::Mutex<()>,
    /// Added to the generations of the members, so that the sum changes with the set.
    offset: AtomicU64,
}

/// The current members.
#[derive(Default)]
struct Set {
    members: Vec<Arc<Seat>>,
    /// The routes, and the versions of their lists.
    table: RwLock<Option<Arc<Table>>>,
}

/// A member and its last list.
struct Seat {
    member: Member,
    /// The last list; its version grows with each read.
    listed: watch::Sender<Listed>,
    /// Grows when a late list has changed.
    late: AtomicU64,
    /// Held while a read begins.
    reading: Mutex<()>,
}

#[derive(Clone, Default)]
struct Listed {
    /// The generation of the source, and its tools.
    read: Option<(u64, Arc<[Arc<ToolSpec>]>)>,
    /// When the running read began.
    since: Option<Instant>,
    /// The error of the last read.
    error: Option<FailedRead>,
    version: u64,
}

#[derive(Clone)]
struct FailedRead {
    error: ToolError,
    /// The generation of the source.
    generation: u64,
    /// Until this time, only a change of the source starts another read.
    until: Instant,
}

impl Seat {
    fn new(member: Member) -> Arc<Self> {
        Arc::new(Self {
            member,
            listed: watch::Sender::new(Listed::default()),
            late: AtomicU64::new(0),
            reading: Mutex::new(()),
        })
    }

    fn generation(&self) -> u64 {
        self.member.source.generation().wrapping_add(self.late.load(Ordering::Relaxed))
    }

    /// Whether a call must read the list first. A list that has just failed is not read.
    fn is_stale(&self) -> bool {
        let generation = self.member.source.generation();
        !self.backs_off() && self.listed.borrow().read.as_ref().is_none_or(|(seen, _)| *seen != generation)
    }

    /// Whether the list has just failed, and the source has not changed since.
    fn backs_off(&self) -> bool {
        let generation = self.member.source.generation();
        self.listed
            .borrow()
            .error
            .as_ref()
            .is_some_and(|failed| failed.generation == generation && Instant::now() < failed.until)
    }

    /// Starts a read of the list in a task, unless one is running.
    fn begin(self: &Arc<Self>, settings: &MergeSettings) {
        let _guard = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.listed.borrow().since.is_some() {
            return;
        }
        self.listed.send_modify(|listed| listed.since = Some(Instant::now()));
        let (seat, limit, late_after) = (Arc::clone(self), settings.list_timeout, settings.member_timeout);
        tokio::spawn(async move {
            let generation = seat.member.source.generation();
            let mut ended = Ended { seat: Arc::clone(&seat), generation, late_after, read: None };
            ended.read = Some(listed(&*seat.member.source, limit).await);
        });
    }

    /// Waits for the running read, up to a timeout since it began.
    async fn wait(&self, member_timeout: Duration) {
        let mut states = self.listed.subscribe();
        let Some(since) = states.borrow().since else { return };
        // Later calls do not wait for a slow member again.
        let _ = tokio::time::timeout_at(
            since + member_timeout,
            states.wait_for(|listed| listed.since != Some(since)),
        )
        .await;
    }
}

/// Records the result of a read, even after a panic.
struct Ended {
    seat: Arc<Seat>,
    generation: u64,
    /// A list after this time is a change, because no reader waits for it any more.
    late_after: Duration,
    read: Option<Result<Vec<Arc<ToolSpec>>, ToolError>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let (generation, read) = (self.generation, self.read.take());
        self.seat.listed.send_modify(|listed| {
            let since = listed.since.take();
            match read.unwrap_or_else(|| Err(ToolError::internal("the list panicked"))) {
                Ok(specs) => {
                    let is_late = since.is_some_and(|since| since.elapsed() >= self.late_after);
                    self.seat.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
                    listed.read = Some((generation, specs.into()));
                    listed.error = None;
                    listed.version += 1;
                }
                Err(error) => {
                    listed.error = Some(FailedRead { error, generation, until: Instant::now() + BACK_OFF });
                }
            }
        });
    }
}

impl Set {
    fn generations(&self) -> u64 {
        self.members.iter().map(|seat| seat.generation()).fold(0, u64::wrapping_add)
    }

    /// Reads the lists of the changed members, or of all.
    async fn refresh(&self, settings: &MergeSettings, all: bool) {
        let is_read = |seat: &&Arc<Seat>| if all { !seat.backs_off() } else { seat.is_stale() };
        let stale: Vec<&Arc<Seat>> = self.members.iter().filter(is_read).collect();
        for seat in &stale {
            seat.begin(settings);
        }
        join_all(stale.iter().map(|seat| seat.wait(settings.member_timeout))).await;
        for seat in stale.iter().filter(|seat| seat.listed.borrow().since.is_some()) {
            tracing::warn!(source = &*seat.member.name, "the list is slow; other members do not wait for it");
        }
    }

    fn table(&self, collisions: Collisions) -> Arc<Table> {
        let versions: Vec<u64> = self.members.iter().map(|seat| seat.listed.borrow().version).collect();
        let known = self.table.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(table) = known
            && table.versions == versions
        {
            return table;
        }
        let table = Arc::new(Table::new(&self.members, versions, collisions));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&table));
        table
    }
}

impl Merged {
    /// Merges sources and reads their lists. A member that cannot be read is added once it can.
    ///
    /// # Errors
    /// `CONFLICT` if two members have the same name, or two tools do and collisions are errors.
    pub async fn open(
        name: impl Into<Arc<str>>,
        members: Vec<Member>,
        settings: MergeSettings,
    ) -> Result<Self, ToolError> {
        let merged = Self::new(name.into(), settings);
        merged.replace(members).await?;
        Ok(merged)
    }

    /// Merges sources that are still starting. The first list reads theirs.
    ///
    /// # Errors
    /// `CONFLICT` if two members have the same name.
    pub async fn of_starting(
        name: impl Into<Arc<str>>,
        members: Vec<Member>,
        settings: MergeSettings,
    ) -> Result<Self, ToolError> {
        let merged = Self::new(name.into(), settings);
        merged.swap(members, false).await?;
        Ok(merged)
    }

    fn new(name: Arc<str>, settings: MergeSettings) -> Self {
        let shared = Arc::new(Shared {
            name,
            settings,
            set: RwLock::default(),
            replacing: tokio::sync::Mutex::default(),
            offset: AtomicU64::new(0),
        });
        Self { shared, viewer: None }
    }

    /// Replaces the members. A remaining source keeps its list, and running calls continue.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open); then nothing changes.
    pub async fn replace(&self, members: Vec<Member>) -> Result<(), ToolError> {
        self.swap(members, true).await
    }

    /// Replaces the members. Without `reads`, the next list reads those of new members, and finds collisions.
    async fn swap(&self, members: Vec<Member>, reads: bool) -> Result<(), ToolError> {
        let mut names = HashSet::new();
        for member in &members {
            // URI schemes are case-insensitive, and they come from the name.
            if !names.insert(member.name.to_lowercase()) {
                return Err(ToolError::conflict(format!("two members have the name `{}`", member.name)));
            }
        }
        let _guard = self.shared.replacing.lock().await;
        let old = self.set();
        let next = Arc::new(Set {
            members: members
                .into_iter()
                .map(|member| {
                    let stays = |seat: &&Arc<Seat>| {
                        seat.member.name == member.name && Arc::ptr_eq(&seat.member.source, &member.source)
                    };
                    old.members.iter().find(stays).map_or_else(|| Seat::new(member.clone()), Arc::clone)
                })
                .collect(),
            table: RwLock::default(),
        });
        if reads {
            next.refresh(&self.shared.settings, false).await;
        }
        let table = next.table(self.shared.settings.collisions);
        if let Some(collision) = &table.collision {
            return Err(collision.clone());
        }
        let mut set = self.shared.set.write().unwrap_or_else(PoisonError::into_inner);
        let before = set.generations();
        let grown = before.wrapping_sub(next.generations()).wrapping_add(1);
        self.shared.offset.fetch_add(grown, Ordering::Relaxed);
        *set = next;
        Ok(())
    }

    /// The members, in order.
    pub fn members(&self) -> Vec<Member> {
        self.set().members.iter().map(|seat| seat.member.clone()).collect()
    }

    /// The status of a member, and its tools that are not listed.
    fn status_of(seat: &Seat, table: &Table) -> Vec<SourceStatus> {
        let mut inner = seat.member.source.status();
        let only = inner.pop().filter(|_| inner.is_empty());
        // A member of several sources reports each; the merge reports the whole.
        let mut status = only.unwrap_or_else(|| SourceStatus::new(&*seat.member.name, SourceState::Ready));
        status.name = seat.member.name.to_string();
        let listed = seat.listed.borrow();
        if let Some((_, specs)) = &listed.read {
            status.tools = specs.len();
        } else if listed.since.is_some() && status.state == SourceState::Ready {
            status.state = SourceState::Starting;
        }
        if let Some(failed) = &listed.error
            && status.state == SourceState::Ready
        {
            status.state = SourceState::Failed;
            status.reason = Some(failed.error.message().to_owned());
        }
        let own = |(member, _): &&(Arc<str>, HiddenDefinition)| *member == seat.member.name;
        status.omitted = table.omitted.iter().filter(own).map(|(_, omitted)| omitted.clone()).collect();
        status.remarks = table.remarks(&seat.member.name);
        inner.push(status);
        inner
    }

    fn set(&self) -> Arc<Set> {
        Arc::clone(&self.shared.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The member of a tool, and its name there.
    async fn route(&self, caller: &Caller, tool: &str) -> Result<Route, ToolError> {
        let set = self.set();
        let settings = &self.shared.settings;
        // A known route does not wait for the lists of other members.
        if let Some(route) = set.table(settings.collisions).routes.get(tool)
            && !route.seat.is_stale()
        {
            return Ok(route.clone());
        }
        set.refresh(settings, false).await;
        let table = set.table(settings.collisions);
        if let Some(route) = table.routes.get(tool) {
            return Ok(route.clone());
        }
        let unread = set.members.iter().find(|seat| seat.listed.borrow().read.is_none());
        let error = match unread {
            // The unread member may have the tool.
            Some(unread) => ToolError::dependency(format!(
                "unknown tool `{}`; `{}` could not be listed yet",
                shown(tool),
                unread.member.name
            ))
            .retry(RetryAdvice::NotStarted(settings.member_timeout)),
            None => ToolError::not_found(format!("unknown tool `{}`", shown(tool))),
        };
        Err(error
            .suggest_maybe(nearest(self, caller, tool, table.specs.iter().map(|spec| &*spec.name)).await))
    }

    async fn list(&self) -> Specs<ToolSpec> {
        let set = self.set();
        let settings = &self.shared.settings;
        set.refresh(settings, self.viewer.is_none()).await;
        let table = set.table(settings.collisions);
        let Some(caller) = &self.viewer else { return Ok(table.specs.clone()) };
        // A member that cannot list its tools for the caller shows none.
        let open = set.members.iter().map(async |seat| {
            let view = seat.member.source.seen_by(caller)?;
            let specs = in_time(&*view, settings.member_timeout, view.list()).await.unwrap_or_default();
            Some(specs.into_iter().map(|spec| spec.name.clone()).collect::<HashSet<_>>())
        });
        let open = join_all(open).await;
        let is_open = |spec: &&Arc<ToolSpec>| {
            let Some(route) = table.routes.get(&spec.name) else { return false };
            let index = set.members.iter().position(|seat| Arc::ptr_eq(seat, &route.seat));
            match index.and_then(|index| open.get(index)) {
                Some(Some(names)) => names.contains(&route.inner),
                Some(None) => true,
                None => false,
            }
        };
        Ok(table.specs.iter().filter(is_open).cloned().collect())
    }

    /// The members, or their views of the caller.
    fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        let view = |source: &Arc<dyn ToolSource>| source.seen_by(self.viewer.as_ref()?);
        let seats = &self.set().members;
        let sources = seats.iter().map(|seat| &seat.member.source);
        sources.map(|source| view(source).unwrap_or_else(|| Arc::clone(source))).collect()
    }

    /// The definitions of one kind, by member. Slow and failing members list none.
    async fn lists<D: Definition>(&self) -> Vec<(Arc<dyn ToolSource>, Vec<Arc<D>>)> {
        let timeout = self.shared.settings.member_timeout;
        let lists = self.sources().into_iter().map(async |source| {
            let specs = listed::<D>(&*source, timeout).await.unwrap_or_else(|error| {
                tracing::warn!(source = source.name(), "{error}");
                Vec::new()
            });
            (source, specs)
        });
        join_all(lists).await
    }

    /// The definitions of one kind, in order. The first member with a name has it.
    async fn gather<D: Definition>(&self) -> Vec<Arc<D>> {
        let mut names = HashSet::new();
        let mut specs: Vec<Arc<D>> = self.lists().await.into_iter().flat_map(|(_, specs)| specs).collect();
        specs.retain(|spec| names.insert(spec.name().to_owned()));
        specs
    }

    /// The first member with a definition that a name or URI fits.
    async fn owner<D: Definition>(&self, name: &str) -> Result<Arc<dyn ToolSource>, ToolError> {
        let fits = |spec: &Arc<D>| match spec.pattern() {
            Some(pattern) => pattern.matches(name).is_some(),
            None => spec.name() == name,
        };
        let lists = self.lists::<D>().await;
        let owner = lists.into_iter().find(|(_, specs)| specs.iter().any(fits));
        owner
            .map(|(source, _)| source)
            .ok_or_else(|| ToolError::not_found(format!("unknown {} `{}`", D::KIND.noun(), shown(name))))
    }
}

impl fmt::Debug for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged")
            .field("name", &self.shared.name)
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Merged {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(Self::list(self))
    }

    fn generation(&self) -> u64 {
        let set = self.shared.set.read().unwrap_or_else(PoisonError::into_inner);
        self.shared.offset.load(Ordering::Relaxed).wrapping_add(set.generations())
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let route = tokio::select! {
                route = self.route(&call.caller, &call.tool) => route,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = sleep_until(call.deadline) => {
                    Err(ToolError::timeout("the deadline passed while a source listed its tools"))
                }
            };
            match route {
                Ok(route) => {
                    call.tool = route.inner;
                    route.seat.member.source.call(call).await
                }
                Err(error) => refused(&call, &self.shared.name, error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(async { Ok(self.gather().await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(async { Ok(self.gather().await) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.owner::<ResourceSpec>(&call.tool).await?.read(call).await })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.owner::<PromptSpec>(&call.tool).await?.render(call).await })
    }

    fn viewer(&self) -> Option<&Caller> {
        self.viewer.as_ref()
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let any = self.set().members.iter().any(|seat| seat.member.source.seen_by(caller).is_some());
        any.then(|| {
            let view = Self { shared: Arc::clone(&self.shared), viewer: Some(caller.clone()) };
            Arc::new(view) as Arc<dyn ToolSource>
        })
    }

    /// Healthy while one of its members is.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async {
            let sources = self.sources();
            let mut first = None;
            for health in join_all(sources.iter().map(|source| source.health())).await {
                match health {
                    Ok(()) => return Ok(()),
                    Err(error) => first = first.or(Some(error)),
                }
            }
            first.map_or(Ok(()), Err)
        })
    }

    fn status(&self) -> Vec<SourceStatus> {
        let set = self.set();
        let table = set.table(self.shared.settings.collisions);
        let status = set.members.iter().flat_map(|seat| Self::status_of(seat, &table));
        if self.viewer.is_none() {
            return status.collect();
        }
        status.map(SourceStatus::brief).collect()
    }
}
