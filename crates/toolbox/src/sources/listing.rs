//! The list of a source, as it was last read.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use toolpost_core::{RetryAdvice, ToolError, ToolSource, ToolSpec};

use super::definition::Definition;

/// How long a source may take to list what it has.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The most tools that are taken from one source, and as many prompts and resources.
pub(super) const MAX_LISTED: usize = 10_000;
/// How long a source whose list could not be read is not asked again for the sake of a call.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Reads the tools of a source, in bounded time and number.
pub(super) async fn tools_of(
    source: &dyn ToolSource,
    within: Duration,
) -> Result<Vec<Arc<ToolSpec>>, ToolError> {
    listed(source, within).await
}

/// Reads the tools, the prompts or the resources of a source, in bounded time and number.
pub(super) async fn listed<D: Definition>(
    source: &dyn ToolSource,
    within: Duration,
) -> Result<Vec<Arc<D>>, ToolError> {
    let specs = in_time(source, within, D::of(source)).await?;
    if specs.len() > MAX_LISTED {
        return Err(ToolError::limit(format!(
            "`{}` lists {} {}s, and at most {MAX_LISTED} are taken from one source",
            source.name(),
            specs.len(),
            D::KIND.noun()
        )));
    }
    Ok(specs)
}

/// Waits for a list for a while.
pub(super) async fn in_time<T>(
    source: &dyn ToolSource,
    within: Duration,
    list: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::time::timeout(within, list).await.unwrap_or_else(|_| {
        Err(ToolError::timeout(format!("`{}` did not list what it has within {within:?}", source.name()))
            .retry(RetryAdvice::NotStarted(BACK_OFF)))
    })
}

/// Tools, and where each stands by its name and aliases.
#[derive(Default)]
pub(super) struct Index {
    pub(super) specs: Vec<Arc<ToolSpec>>,
    places: HashMap<String, usize>,
}

impl Index {
    pub(super) fn new(specs: Vec<Arc<ToolSpec>>) -> Self {
        let mut places = HashMap::with_capacity(specs.len());
        for (place, spec) in specs.iter().enumerate() {
            for alias in &spec.aliases {
                places.entry(alias.name.clone()).or_insert(place);
            }
        }
        // A name counts more than the alias of another.
        for (place, spec) in specs.iter().enumerate() {
            places.insert(spec.name.clone(), place);
        }
        Self { specs, places }
    }

    /// The tool that has this name or alias.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.specs.get(*self.places.get(name)?)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }
}

/// The list of a source, read again when the source says that it has changed.
pub(super) struct Listing {
    source: Arc<dyn ToolSource>,
    seen: RwLock<Seen>,
    /// Held while the list is read for a call, so that many calls read it once.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Seen {
    list: Option<(u64, Arc<Index>)>,
    left_alone: Option<(Instant, ToolError)>,
}

impl Listing {
    pub(super) fn new(source: Arc<dyn ToolSource>) -> Self {
        Self { source, seen: RwLock::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Asks the source.
    pub(super) async fn read(&self) -> Result<Arc<Index>, ToolError> {
        let generation = self.source.generation();
        let read = tools_of(&*self.source, LIST_TIMEOUT).await.map(|specs| Arc::new(Index::new(specs)));
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        match &read {
            Ok(index) => {
                *seen = Seen { list: Some((generation, Arc::clone(index))), left_alone: None };
            }
            Err(error) => seen.left_alone = Some((Instant::now() + BACK_OFF, error.clone())),
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
        let (until, error) = seen.left_alone.as_ref()?;
        (Instant::now() < *until).then(|| Err(error.clone()))
    }

    /// The list as it is now; the source is asked only if it says that it has changed.
    pub(super) async fn current(&self) -> Result<Arc<Index>, ToolError> {
        if let Some(known) = self.known() {
            return known;
        }
        let _one_at_a_time = self.reading.lock().await;
        match self.known() {
            Some(known) => known,
            None => self.read().await,
        }
    }

    /// The list as it was last read, however long ago.
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
