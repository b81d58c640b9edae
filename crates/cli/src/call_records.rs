//! Stored records of calls outside of runs, for `toolpost runs show`.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use toolpost_agent::Runs;
use toolpost_core::{CallRecord, Code, Event, EventSink};

use crate::config::Config;
use crate::env;
use crate::store::{self, LazyStore};

/// The maximum number of concurrent writes. A record beyond it is only logged.
const MAX_WRITES: u32 = 16;
/// The time limit of the last writes.
const LAST: Duration = Duration::from_secs(5);

/// Opens the stored calls; none with the setting `no_save` or without a store.
pub(crate) fn open(config: &Config) -> Option<Runs> {
    let path = store::path(config).ok().filter(|_| !config.settings.no_save)?;
    Some(Runs::for_calls(Arc::new(LazyStore::new(path))).with_secrets(env::scrubber().clone()))
}

/// Stores the records of internal errors in the background.
pub(crate) struct Failures {
    calls: Option<Runs>,
    room: Arc<Semaphore>,
    runtime: Handle,
}

impl Failures {
    pub(crate) fn new(config: &Config, runtime: Handle) -> Self {
        Self { calls: open(config), room: Arc::new(Semaphore::new(MAX_WRITES as usize)), runtime }
    }

    /// Wraps a sink that also stores records.
    pub(crate) fn sink(&self, inner: EventSink) -> EventSink {
        let Some(calls) = self.calls.clone() else { return inner };
        let (room, runtime) = (Arc::clone(&self.room), self.runtime.clone());
        Arc::new(move |event: &Event| {
            inner(event);
            let Event::CallFinished { record } = event else { return };
            if record.error.as_ref().is_some_and(|error| error.code() == Code::Internal) {
                store(&calls, &room, &runtime, record);
            }
        })
    }

    /// Waits for the last writes.
    pub(crate) async fn settle(&self) {
        let _ = tokio::time::timeout(LAST, self.room.acquire_many(MAX_WRITES)).await;
    }
}

fn store(calls: &Runs, room: &Arc<Semaphore>, runtime: &Handle, record: &Arc<CallRecord>) {
    let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
        tracing::warn!(call = %record.id, "call record not stored: too many concurrent writes");
        return;
    };
    let (calls, record) = (calls.clone(), Arc::clone(record));
    runtime.spawn(async move {
        if let Err(error) = calls.add_call(&record).await {
            tracing::warn!(call = %record.id, "call record not stored: {error}");
        }
        drop(permit);
    });
}
