//! Several sources as one.

mod table;
mod view;

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
use self::view::View;
use super::listing::{in_time, tools_of};
use super::{Namespaced, Specs, nearest, refused, shown};

/// What happens to a tool whose name an earlier member has.
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
    /// What happens on name collisions. Default: an error.
    pub collisions: Collisions,
    /// How long the list waits for a member; then its previous list counts. Default: 3 s.
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
    source: Arc<dyn ToolSource>,
}

impl Member {
    /// Creates a member. Its name is its namespace on collisions.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name is no valid namespace.
    pub fn new(name: &str, source: Arc<dyn ToolSource>) -> Result<Self, ToolError> {
        Namespaced::new(Arc::clone(&source), name)?;
        Ok(Self { name: name.into(), source })
    }

    /// Creates a member with all tools under its namespace.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name is no valid namespace.
    pub fn namespaced(name: &str, source: Arc<dyn ToolSource>) -> Result<Self, ToolError> {
        Ok(Self { source: Arc::new(Namespaced::new(source, name)?), name: name.into() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source.
    pub fn source(&self) -> &Arc<dyn ToolSource> {
        &self.source
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
pub struct Merged(Arc<Shared>);

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
    late: Arc<AtomicU64>,
    /// Held while a read begins.
    reading: Mutex<()>,
}

#[derive(Clone, Default)]
struct Listed {
    /// The generation of the source, and its tools.
    read: Option<(u64, Arc<[Arc<ToolSpec>]>)>,
    /// When the running read began.
    since: Option<Instant>,
    /// The error of the last read, and the time until which calls do not repeat it.
    error: Option<(ToolError, Instant)>,
    version: u64,
}

impl Seat {
    fn new(member: Member) -> Arc<Self> {
        Arc::new(Self {
            member,
            listed: watch::Sender::new(Listed::default()),
            late: Arc::default(),
            reading: Mutex::new(()),
        })
    }

    fn generation(&self) -> u64 {
        self.member.source.generation().wrapping_add(self.late.load(Ordering::Relaxed))
    }

    /// Whether a call must read the list first. A list that has just failed is not read.
    fn is_stale(&self) -> bool {
        let listed = self.listed.borrow();
        let backs_off = listed.error.as_ref().is_some_and(|(_, until)| Instant::now() < *until);
        !backs_off && listed.read.as_ref().is_none_or(|(seen, _)| *seen != self.member.source.generation())
    }

    /// Starts a read of the list in a task, unless one is running.
    fn begin(self: &Arc<Self>, limit: Duration) {
        let _guard = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.listed.borrow().since.is_some() {
            return;
        }
        self.listed.send_modify(|listed| listed.since = Some(Instant::now()));
        let seat = Arc::clone(self);
        tokio::spawn(async move {
            let generation = seat.member.source.generation();
            let mut ended = Ended { seat: Arc::clone(&seat), generation, read: None };
            ended.read = Some(tools_of(&*seat.member.source, limit).await);
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

    /// Counts a list that comes after the timeout as a change.
    fn note_late_list(&self, since: Instant, before: u64) {
        let mut states = self.listed.subscribe();
        let late = Arc::clone(&self.late);
        tokio::spawn(async move {
            let ended = states.wait_for(|listed| listed.since != Some(since)).await;
            if ended.is_ok_and(|listed| listed.version > before) {
                late.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Records the result of a read, even after a panic.
struct Ended {
    seat: Arc<Seat>,
    generation: u64,
    read: Option<Result<Vec<Arc<ToolSpec>>, ToolError>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let (generation, read) = (self.generation, self.read.take());
        self.seat.listed.send_modify(|listed| {
            listed.since = None;
            match read {
                Some(Ok(specs)) => {
                    listed.read = Some((generation, specs.into()));
                    listed.error = None;
                    listed.version += 1;
                }
                Some(Err(error)) => listed.error = Some((error, Instant::now() + BACK_OFF)),
                None => {
                    let error = ToolError::internal("the list panicked");
                    listed.error = Some((error, Instant::now() + BACK_OFF));
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
        let stale: Vec<&Arc<Seat>> = self.members.iter().filter(|seat| all || seat.is_stale()).collect();
        for seat in &stale {
            seat.begin(settings.list_timeout);
        }
        let before: Vec<u64> = stale.iter().map(|seat| seat.listed.borrow().version).collect();
        join_all(stale.iter().map(|seat| seat.wait(settings.member_timeout))).await;
        for (seat, before) in stale.iter().zip(before) {
            let listed = seat.listed.borrow();
            if let Some(since) = listed.since {
                tracing::warn!(
                    source = &*seat.member.name,
                    "the list is slow; other members do not wait for it"
                );
                seat.note_late_list(since, before);
            }
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
        let merged = Self(Arc::new(Shared {
            name: name.into(),
            settings,
            set: RwLock::default(),
            replacing: tokio::sync::Mutex::default(),
            offset: AtomicU64::new(0),
        }));
        merged.replace(members).await?;
        Ok(merged)
    }

    /// Replaces the members. A remaining source keeps its list, and running calls continue.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); then nothing changes.
    pub async fn replace(&self, members: Vec<Member>) -> Result<(), ToolError> {
        let mut names = HashSet::new();
        for member in &members {
            // URI schemes are case-insensitive, and they come from the name.
            if !names.insert(member.name.to_lowercase()) {
                return Err(ToolError::conflict(format!("two members have the name `{}`", member.name)));
            }
        }
        let _guard = self.0.replacing.lock().await;
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
        next.refresh(&self.0.settings, false).await;
        let table = next.table(self.0.settings.collisions);
        if let Some(collision) = &table.collision {
            return Err(collision.clone());
        }
        let mut set = self.0.set.write().unwrap_or_else(PoisonError::into_inner);
        let before = set.generations();
        let grown = before.wrapping_sub(next.generations()).wrapping_add(1);
        self.0.offset.fetch_add(grown, Ordering::Relaxed);
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
        if let Some((error, _)) = &listed.error
            && status.state == SourceState::Ready
        {
            status.state = SourceState::Failed;
            status.reason = Some(error.message().to_owned());
        }
        let own = |(member, _): &&(Arc<str>, HiddenDefinition)| *member == seat.member.name;
        status.omitted = table.left_out.iter().filter(own).map(|(_, left_out)| left_out.clone()).collect();
        status.remarks = table.remarks(&seat.member.name);
        inner.push(status);
        inner
    }

    fn set(&self) -> Arc<Set> {
        Arc::clone(&self.0.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The member of a tool, and its name there.
    async fn route(&self, caller: &Caller, tool: &str) -> Result<Route, ToolError> {
        let set = self.set();
        let settings = &self.0.settings;
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
        set.refresh(&self.0.settings, true).await;
        let table = set.table(self.0.settings.collisions);
        Ok(table.specs.clone())
    }

    /// The definitions of one kind of all members, in order. Slow and failing members are omitted.
    async fn gather<T>(
        &self,
        sources: &[Arc<dyn ToolSource>],
        of: impl for<'a> Fn(&'a dyn ToolSource) -> BoxFuture<'a, Result<Vec<T>, ToolError>>,
    ) -> Vec<T> {
        let member_timeout = self.0.settings.member_timeout;
        let all = sources.iter().map(|source| in_time(&**source, member_timeout, of(&**source)));
        let mut gathered = Vec::new();
        for (source, read) in sources.iter().zip(join_all(all).await) {
            match read {
                Ok(items) => gathered.extend(items),
                Err(error) => tracing::warn!(source = source.name(), "{error}"),
            }
        }
        gathered
    }

    fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.set().members.iter().map(|seat| Arc::clone(&seat.member.source)).collect()
    }

    async fn resources_of(&self, sources: &[Arc<dyn ToolSource>]) -> Vec<Arc<ResourceSpec>> {
        let mut seen = HashSet::new();
        let mut specs = self.gather(sources, |source| source.resources()).await;
        specs.retain(|spec| seen.insert(spec.uri_pattern.as_str().to_owned()));
        specs
    }

    async fn prompts_of(&self, sources: &[Arc<dyn ToolSource>]) -> Vec<Arc<PromptSpec>> {
        let mut seen = HashSet::new();
        let mut specs = self.gather(sources, |source| source.prompts()).await;
        specs.retain(|spec| seen.insert(spec.name.clone()));
        specs
    }

    /// Reads from the first member with a matching resource.
    async fn read_from(&self, sources: Vec<Arc<dyn ToolSource>>, call: Call) -> Result<Output, ToolError> {
        let member_timeout = self.0.settings.member_timeout;
        let lists = sources.iter().map(|source| in_time(&**source, member_timeout, source.resources()));
        for (source, read) in sources.iter().zip(join_all(lists).await) {
            let specs = read.unwrap_or_default();
            if specs.iter().any(|spec| spec.uri_pattern.matches(&call.tool).is_some()) {
                return source.read(call).await;
            }
        }
        Err(ToolError::not_found(format!("no resource matches `{}`", shown(&call.tool))))
    }

    /// Renders with the first member that has the prompt.
    async fn render_from(&self, sources: Vec<Arc<dyn ToolSource>>, call: Call) -> Result<Output, ToolError> {
        let member_timeout = self.0.settings.member_timeout;
        let lists = sources.iter().map(|source| in_time(&**source, member_timeout, source.prompts()));
        for (source, read) in sources.iter().zip(join_all(lists).await) {
            if read.unwrap_or_default().iter().any(|spec| spec.name == call.tool) {
                return source.render(call).await;
            }
        }
        Err(ToolError::not_found(format!("unknown prompt `{}`", shown(&call.tool))))
    }
}

impl fmt::Debug for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged")
            .field("name", &self.0.name)
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Merged {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(Self::list(self))
    }

    fn generation(&self) -> u64 {
        let set = self.0.set.read().unwrap_or_else(PoisonError::into_inner);
        self.0.offset.load(Ordering::Relaxed).wrapping_add(set.generations())
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let route = tokio::select! {
                route = self.route(&call.caller, &call.tool) => route,
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call")),
                () = crate::listing::sleep_until(call.deadline) => {
                    Err(ToolError::timeout("the deadline passed while a source listed its tools"))
                }
            };
            match route {
                Ok(route) => {
                    call.tool = route.inner;
                    route.seat.member.source.call(call).await
                }
                Err(error) => refused(&call, &self.0.name, error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(async { Ok(self.resources_of(&self.sources()).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(async { Ok(self.prompts_of(&self.sources()).await) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.read_from(self.sources(), call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(self.render_from(self.sources(), call))
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let any = self.set().members.iter().any(|seat| seat.member.source.seen_by(caller).is_some());
        any.then(|| Arc::new(View { merged: self.clone(), caller: caller.clone() }) as Arc<dyn ToolSource>)
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
        let table = set.table(self.0.settings.collisions);
        set.members.iter().flat_map(|seat| Self::status_of(seat, &table)).collect()
    }
}
