//! Cached lists of sources.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use toolpost_core::{RetryAdvice, ToolError, ToolSource, ToolSpec};

use super::Specs;
use super::definition::Definition;

/// The timeout for the list of a source.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of tools of one source; the same for prompts and resources.
pub(super) const MAX_LISTED: usize = 10_000;
/// The delay before a call reads a failed list again.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Reads the tools of a source, with a timeout and a maximum number.
pub(super) async fn tools_of(source: &dyn ToolSource, within: Duration) -> Specs<ToolSpec> {
    listed(source, within).await
}

/// Reads the definitions of one kind, with a timeout and a maximum number.
pub(super) async fn listed<D: Definition>(source: &dyn ToolSource, within: Duration) -> Specs<D> {
    let specs = in_time(source, within, D::of(source)).await?;
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
pub(super) async fn in_time<T>(
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

/// Sleeps until the deadline; forever without one.
pub(super) async fn sleep_until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Tools, indexed by name and alias.
#[derive(Default)]
pub(super) struct Index {
    pub(super) specs: Vec<Arc<ToolSpec>>,
    positions: HashMap<String, usize>,
}

impl Index {
    pub(super) fn new(specs: Vec<Arc<ToolSpec>>) -> Self {
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
    pub(super) fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.specs.get(*self.positions.get(name)?)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }
}

/// The list of a source, read again after each change.
pub(super) struct Listing {
    source: Arc<dyn ToolSource>,
    seen: RwLock<Seen>,
    /// Held while a call reads the list, so that concurrent calls read it once.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Seen {
    list: Option<(u64, Arc<Index>)>,
    failed: Option<(Instant, ToolError)>,
}

impl Listing {
    pub(super) fn new(source: Arc<dyn ToolSource>) -> Self {
        Self { source, seen: RwLock::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Reads the list from the source.
    pub(super) async fn read(&self) -> Result<Arc<Index>, ToolError> {
        let generation = self.source.generation();
        let read = tools_of(&*self.source, LIST_TIMEOUT).await.map(|specs| Arc::new(Index::new(specs)));
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        match &read {
            Ok(index) => {
                *seen = Seen { list: Some((generation, Arc::clone(index))), failed: None };
            }
            Err(error) => seen.failed = Some((Instant::now() + BACK_OFF, error.clone())),
        }
        read
    }

    fn known(&self) -> Option<Result<Arc<Index>, ToolError>> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((generation, index)) = &seen.list
            && *generation == self.source.generation()
        {
            return Some(Ok(Arc::clone(index)));
        }
        let (until, error) = seen.failed.as_ref()?;
        (Instant::now() < *until).then(|| Err(error.clone()))
    }

    /// The current list, read from the source only after a change.
    pub(super) async fn current(&self) -> Result<Arc<Index>, ToolError> {
        if let Some(known) = self.known() {
            return known;
        }
        let _guard = self.reading.lock().await;
        match self.known() {
            Some(known) => known,
            None => self.read().await,
        }
    }

    /// The list that was read last, of any age.
    pub(super) fn last(&self) -> Option<Arc<Index>> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        seen.list.as_ref().map(|(_, index)| Arc::clone(index))
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("source", &self.source.name()).finish_non_exhaustive()
    }
}
