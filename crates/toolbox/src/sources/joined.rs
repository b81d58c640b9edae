//! One source of many.

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
use super::{Namespaced, nearest, refused, shown};

/// What becomes of a tool whose name an earlier member has already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collisions {
    /// [`Joined::open`] and [`Joined::replace`] fail with `CONFLICT`. One that appears later is left out, so that a
    /// member can never take a name from another; [`ToolSource::status`] tells of it.
    #[default]
    Refuse,
    /// It is put under the namespace of its member: `maths__add`. The earlier member keeps the bare name.
    Namespace,
}

/// How long a member whose list could not be read is left alone.
const BACK_OFF: Duration = Duration::from_secs(2);

/// The bounds of [`Joined`] sources.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JoinedSettings {
    /// What becomes of names that are taken. Default: they are refused.
    pub collisions: Collisions,
    /// How long the list waits for a member. What it listed before stands in for it. Default: 3 s.
    pub patience: Duration,
    /// How long a member may take to list what it has, while nobody waits for it. Default: 30 s.
    pub list_timeout: Duration,
}

impl Default for JoinedSettings {
    fn default() -> Self {
        Self {
            collisions: Collisions::default(),
            patience: Duration::from_secs(3),
            list_timeout: Duration::from_secs(30),
        }
    }
}

/// A source among others, under a name of its own.
#[derive(Clone)]
pub struct Member {
    name: Arc<str>,
    source: Arc<dyn ToolSource>,
}

impl Member {
    /// A member; its name is its namespace when that is needed.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name cannot be a namespace.
    pub fn new(name: &str, source: Arc<dyn ToolSource>) -> Result<Self, ToolError> {
        Namespaced::new(Arc::clone(&source), name)?;
        Ok(Self { name: name.into(), source })
    }

    /// A member whose tools are all under its namespace.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name cannot be a namespace.
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

/// Many sources as one, in their order. The set can be swapped while calls run: a call keeps the source that it began
/// with until it is done. A member that lists slowly delays the others by a bound, and one that cannot be read keeps
/// the tools that it had.
///
/// Cheap to clone; all clones are the same. Needs a tokio runtime when it lists.
#[derive(Clone)]
pub struct Joined(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    settings: JoinedSettings,
    set: RwLock<Arc<Set>>,
    /// Held while the set is swapped.
    replacing: tokio::sync::Mutex<()>,
    /// What is added to the generations of the members, so that the sum changes when the set does.
    offset: AtomicU64,
}

/// The members at one time.
#[derive(Default)]
struct Set {
    members: Vec<Arc<Seat>>,
    /// The names, and the lists that they were made of.
    table: RwLock<Option<Arc<Table>>>,
}

/// A member and what is known of it.
struct Seat {
    member: Member,
    /// The list that was read last; the version grows with each.
    listed: watch::Sender<Listed>,
    /// Grows when a list that came late has changed.
    late: Arc<AtomicU64>,
    /// Held to begin to read.
    reading: Mutex<()>,
}

#[derive(Clone, Default)]
struct Listed {
    /// The generation of the source, and what it listed.
    read: Option<(u64, Arc<[Arc<ToolSpec>]>)>,
    /// When the reading that goes on began.
    since: Option<Instant>,
    /// Why it failed the last time, and until when it is not tried again for the sake of a call.
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

    /// Whether the list must be read before a call. One that failed just now is left alone.
    fn is_stale(&self) -> bool {
        let listed = self.listed.borrow();
        let left_alone = listed.error.as_ref().is_some_and(|(_, until)| Instant::now() < *until);
        !left_alone && listed.read.as_ref().is_none_or(|(seen, _)| *seen != self.member.source.generation())
    }

    /// Begins to read the list in a task, unless somebody does.
    fn begin(self: &Arc<Self>, limit: Duration) {
        let _one_at_a_time = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Waits until the list is read, for as long as the bound says since the reading began.
    async fn wait(&self, patience: Duration) {
        let mut states = self.listed.subscribe();
        let Some(since) = states.borrow().since else { return };
        // Whoever comes late to a slow member does not wait for it again.
        let _ =
            tokio::time::timeout_at(since + patience, states.wait_for(|listed| listed.since != Some(since)))
                .await;
    }

    /// A list that comes after nobody waited for it any more is a change.
    fn tell_when_late(&self, since: Instant, before: u64) {
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

/// Writes down how a reading ended, also if it panicked.
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
                    let error = ToolError::internal("the list broke off");
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

    /// Reads the lists of those members that say that theirs has changed, or all.
    async fn refresh(&self, settings: &JoinedSettings, all: bool) {
        let stale: Vec<&Arc<Seat>> = self.members.iter().filter(|seat| all || seat.is_stale()).collect();
        for seat in &stale {
            seat.begin(settings.list_timeout);
        }
        let before: Vec<u64> = stale.iter().map(|seat| seat.listed.borrow().version).collect();
        join_all(stale.iter().map(|seat| seat.wait(settings.patience))).await;
        for (seat, before) in stale.iter().zip(before) {
            let listed = seat.listed.borrow();
            if let Some(since) = listed.since {
                tracing::warn!(source = &*seat.member.name, "lists slowly: the others do not wait for it");
                seat.tell_when_late(since, before);
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

impl Joined {
    /// Joins sources and reads their lists. A member that cannot be read yet is taken in when it can.
    ///
    /// # Errors
    /// `CONFLICT` if two members have one name, or two tools do and collisions are refused.
    pub async fn open(
        name: impl Into<Arc<str>>,
        members: Vec<Member>,
        settings: JoinedSettings,
    ) -> Result<Self, ToolError> {
        let joined = Self(Arc::new(Shared {
            name: name.into(),
            settings,
            set: RwLock::default(),
            replacing: tokio::sync::Mutex::default(),
            offset: AtomicU64::new(0),
        }));
        joined.replace(members).await?;
        Ok(joined)
    }

    /// Swaps the members. A source that stays keeps what was read of it; calls that run go on where they began.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); then everything is as it was.
    pub async fn replace(&self, members: Vec<Member>) -> Result<(), ToolError> {
        let mut names = HashSet::new();
        for member in &members {
            // The first part of an address has no case, and it comes from the name.
            if !names.insert(member.name.to_lowercase()) {
                return Err(ToolError::conflict(format!("two members are called `{}`", member.name)));
            }
        }
        let _one_at_a_time = self.0.replacing.lock().await;
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

    /// The members, in their order.
    pub fn members(&self) -> Vec<Member> {
        self.set().members.iter().map(|seat| seat.member.clone()).collect()
    }

    /// How a member is, and what of it is not listed here.
    fn status_of(seat: &Seat, table: &Table) -> Vec<SourceStatus> {
        let mut inner = seat.member.source.status();
        let only = inner.pop().filter(|_| inner.is_empty());
        // One that consists of several says it of each; what is joined here is said of the whole.
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

    /// Where a tool is, and its own name there and here.
    async fn route(&self, caller: &Caller, tool: &str) -> Result<Route, ToolError> {
        let set = self.set();
        let settings = &self.0.settings;
        // Nobody waits for the list of another member.
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
            // It may be there: nobody knows yet.
            Some(unread) => ToolError::dependency(format!(
                "there is no tool `{}` as far as is known, and `{}` could not be listed yet",
                shown(tool),
                unread.member.name
            ))
            .retry(RetryAdvice::NotStarted(settings.patience)),
            None => ToolError::not_found(format!("there is no tool `{}`", shown(tool))),
        };
        Err(error
            .suggest_maybe(nearest(self, caller, tool, table.specs.iter().map(|spec| &*spec.name)).await))
    }

    async fn list(&self) -> Result<Vec<Arc<ToolSpec>>, ToolError> {
        let set = self.set();
        set.refresh(&self.0.settings, true).await;
        let table = set.table(self.0.settings.collisions);
        Ok(table.specs.clone())
    }

    /// What all members have of a kind, in their order. One that is slow or fails is left out.
    async fn gather<T>(
        &self,
        sources: &[Arc<dyn ToolSource>],
        of: impl for<'a> Fn(&'a dyn ToolSource) -> BoxFuture<'a, Result<Vec<T>, ToolError>>,
    ) -> Vec<T> {
        let patience = self.0.settings.patience;
        let all = sources.iter().map(|source| in_time(&**source, patience, of(&**source)));
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

    /// The first member with a resource that the address fits reads it.
    async fn read_from(&self, sources: Vec<Arc<dyn ToolSource>>, call: Call) -> Result<Output, ToolError> {
        let patience = self.0.settings.patience;
        let lists = sources.iter().map(|source| in_time(&**source, patience, source.resources()));
        for (source, read) in sources.iter().zip(join_all(lists).await) {
            let specs = read.unwrap_or_default();
            if specs.iter().any(|spec| spec.uri_pattern.matches(&call.tool).is_some()) {
                return source.read(call).await;
            }
        }
        Err(ToolError::not_found(format!("no resource fits `{}`", shown(&call.tool))))
    }

    /// The first member that has the prompt renders it.
    async fn render_from(&self, sources: Vec<Arc<dyn ToolSource>>, call: Call) -> Result<Output, ToolError> {
        let patience = self.0.settings.patience;
        let lists = sources.iter().map(|source| in_time(&**source, patience, source.prompts()));
        for (source, read) in sources.iter().zip(join_all(lists).await) {
            if read.unwrap_or_default().iter().any(|spec| spec.name == call.tool) {
                return source.render(call).await;
            }
        }
        Err(ToolError::not_found(format!("there is no prompt `{}`", shown(&call.tool))))
    }
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("name", &self.0.name)
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

impl ToolSource for Joined {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
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
                () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop")),
                () = crate::path::sleep_until(call.deadline) => {
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

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(self.resources_of(&self.sources()).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
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
        any.then(|| Arc::new(View { joined: self.clone(), caller: caller.clone() }) as Arc<dyn ToolSource>)
    }

    /// It is well while one of its members is.
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
