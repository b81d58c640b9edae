//! Bounded reads of lists, and the cached list of a source.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use toolpost_core::{RetryAdvice, ToolError, ToolSource, ToolSpec};

use crate::Specs;
use crate::definition::Definition;

/// The timeout for the list of a source.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of tools of one source; the same for prompts and resources.
pub(crate) const MAX_LISTED: usize = 10_000;
/// The delay before a call reads a failed list again.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Reads the definitions of one kind, with a timeout and a maximum number.
pub(crate) async fn listed<D: Definition>(source: &dyn ToolSource, within: Duration) -> Specs<D> {
    let specs = in_time(source, within, D::list(source)).await?;
    if specs.len() > MAX_LISTED {
        return Err(ToolError::limit(format!(
            "`{}` lists {} {}s; the maximum is {MAX_LISTED}",
            source.name(),
            specs.len(),
            D::KIND.noun()
        )));
    }
    Ok(specs)
}

/// Waits for a list, with a timeout.
pub(crate) async fn in_time<T>(
    source: &dyn ToolSource,
    within: Duration,
    list: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::time::timeout(within, list).await.unwrap_or_else(|_| {
        Err(ToolError::timeout(format!(
            "`{}` did not answer the list request within {within:?}",
            source.name()
        ))
        .retry(RetryAdvice::NotStarted(BACK_OFF)))
    })
}

/// Removes aliases from a tool.
pub(crate) fn retain_aliases(spec: &mut Arc<ToolSpec>, retain: impl Fn(&str) -> bool) {
    if !spec.aliases.iter().all(|alias| retain(&alias.name)) {
        Arc::make_mut(spec).aliases.retain(|alias| retain(&alias.name));
    }
}

/// Sleeps until the deadline; forever without one.
pub(crate) async fn sleep_until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Tools, indexed by name and alias.
#[derive(Default)]
pub(crate) struct Index {
    pub(crate) specs: Vec<Arc<ToolSpec>>,
    positions: HashMap<String, usize>,
}

impl Index {
    pub(crate) fn new(specs: Vec<Arc<ToolSpec>>) -> Self {
        let mut positions = HashMap::with_capacity(specs.len());
        for (position, spec) in specs.iter().enumerate() {
            for alias in &spec.aliases {
                positions.entry(alias.name.clone()).or_insert(position);
            }
        }
        // A name has precedence over an alias.
        for (position, spec) in specs.iter().enumerate() {
            positions.insert(spec.name.clone(), position);
        }
        Self { specs, positions }
    }

    /// The tool with this name or alias.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.specs.get(*self.positions.get(name)?)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }
}

/// The tools of a source, read again after each change.
pub(crate) struct CachedList {
    source: Arc<dyn ToolSource>,
    state: RwLock<ListingCache>,
    /// Held while a call reads the list, so that concurrent calls read it once.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ListingCache {
    list: Option<(u64, Arc<Index>)>,
    /// The generation of the source, and the time until which calls do not read it again.
    failed: Option<(u64, Instant, ToolError)>,
}

impl CachedList {
    pub(crate) fn new(source: Arc<dyn ToolSource>) -> Self {
        Self { source, state: RwLock::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Stores a list and the generation of the source before it was read.
    pub(crate) fn store(&self, generation: u64, specs: Vec<Arc<ToolSpec>>) -> Arc<Index> {
        let index = Arc::new(Index::new(specs));
        *self.state.write().unwrap_or_else(PoisonError::into_inner) =
            ListingCache { list: Some((generation, Arc::clone(&index))), failed: None };
        index
    }

    fn known(&self) -> Option<Result<Arc<Index>, ToolError>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let now = self.source.generation();
        if let Some((generation, index)) = &state.list
            && *generation == now
        {
            return Some(Ok(Arc::clone(index)));
        }
        let (generation, until, error) = state.failed.as_ref()?;
        (*generation == now && Instant::now() < *until).then(|| Err(error.clone()))
    }

    /// The current list, read from the source only after a change.
    pub(crate) async fn current(&self) -> Result<Arc<Index>, ToolError> {
        if let Some(known) = self.known() {
            return known;
        }
        let _guard = self.reading.lock().await;
        if let Some(known) = self.known() {
            return known;
        }
        let generation = self.source.generation();
        match listed(&*self.source, LIST_TIMEOUT).await {
            Ok(specs) => Ok(self.store(generation, specs)),
            Err(error) => {
                let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                state.failed = Some((generation, Instant::now() + BACK_OFF, error.clone()));
                Err(error)
            }
        }
    }

    /// The list that was read last, of any age.
    pub(crate) fn last(&self) -> Option<Arc<Index>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.list.as_ref().map(|(_, index)| Arc::clone(index))
    }
}
