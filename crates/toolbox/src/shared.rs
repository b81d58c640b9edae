//! The shared state of a toolbox.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use toolpost_core::{Caller, DocStore, ToolError, ToolSource};

use crate::builder::{ToolboxBuilder, ToolboxSettings};
use crate::offers::Offers;
use crate::path::cache::Cache;
use crate::path::pace::Paces;
use crate::path::queue::Scheduler;
use crate::path::records::Records;
use crate::registry::Registry;
use crate::state::lanes::Lanes;

/// The timeout for the list of a source.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that all clones of a toolbox share.
pub(crate) struct Shared {
    pub(crate) config: ToolboxBuilder,
    pub(crate) registry: RwLock<Registry>,
    pub(crate) offers: RwLock<Offers>,
    pub(crate) generation: AtomicU64,
    pub(crate) scheduler: Scheduler,
    /// The rates that calls share.
    pub(crate) paces: Paces,
    /// Held during a refresh, so that concurrent calls read each list once.
    pub(crate) refreshing: tokio::sync::Mutex<()>,
    pub(crate) cache: Cache,
    pub(crate) records: Records,
    /// The store of documents, with the toolbox's size limit.
    pub(crate) documents: Arc<dyn DocStore>,
    /// Access to documents, one call at a time.
    pub(crate) lanes: Lanes,
}

impl Shared {
    // The data behind these locks is consistent after any panic.
    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn offers(&self) -> RwLockReadGuard<'_, Offers> {
        self.offers.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn offers_mut(&self) -> RwLockWriteGuard<'_, Offers> {
        self.offers.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.registry().sources()
    }

    /// The sources as a caller may see them.
    pub(crate) fn sources_for(&self, caller: Option<&Caller>) -> Vec<Arc<dyn ToolSource>> {
        let view = |source: &Arc<dyn ToolSource>| source.seen_by(caller?);
        self.sources().into_iter().map(|source| view(&source).unwrap_or(source)).collect()
    }

    pub(crate) fn settings(&self) -> &ToolboxSettings {
        &self.config.settings
    }

    /// Reads the lists of the sources that have changed. If one fails, its tools stay, and it is not read for some time.
    pub(crate) async fn refresh(&self) -> Result<(), ToolError> {
        let _refreshing = self.refreshing.lock().await;
        let stale = self.registry().stale_sources();
        let mut first_error = None;
        for source in stale {
            if let Err(error) = self.read_list(&source).await {
                self.registry().back_off(&source);
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(crate) async fn read_list(&self, source: &Arc<dyn ToolSource>) -> Result<(), ToolError> {
        let generation = source.generation();
        let specs = in_time(&**source, source.list()).await?;
        self.registry_mut().replace_list(source, generation, &specs, self.settings()).map_err(|error| {
            ToolError::precondition(error.to_string()).suggest("Rename or filter the tools of one source.")
        })?;
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Waits for a list of a source, with a timeout. Logs an error.
pub(crate) async fn in_time<T>(
    source: &dyn ToolSource,
    list: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    let listed = tokio::time::timeout(LIST_TIMEOUT, list).await.unwrap_or_else(|_| {
        Err(ToolError::timeout(format!(
            "`{}` did not answer the list request within {LIST_TIMEOUT:?}",
            source.name()
        )))
    });
    listed.inspect_err(|error| tracing::warn!(source = source.name(), "{error}"))
}
