//! The options of a store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{CallError, Clock, SystemClock};

use crate::Store;

/// The timeouts and limits of a store. [`Store::options`] creates it.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) busy_timeout: Duration,
    pub(crate) document_bytes: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) queue_wait: Duration,
    pub(crate) is_read_only: bool,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(10),
            document_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            queue_wait: Duration::from_secs(10),
            is_read_only: false,
            clock: Arc::new(SystemClock),
        }
    }
}

impl Options {
    /// Sets how long commits and opening wait for another process that holds the lock. Default: 10 s. Then
    /// they fail with `DEPENDENCY`.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets the largest document, in bytes of JSON. Default: 1 MiB. The patch and the event of one change
    /// together may have twice as much. A larger document, and one nested more than 100 deep, fails with
    /// `LIMIT`. Stored documents stay readable.
    #[must_use]
    pub fn document_limit(mut self, bytes: usize) -> Self {
        self.document_bytes = bytes;
        self
    }

    /// Sets the size of the queue of commits, in bytes of JSON. Default: 64 MiB. Each commit counts as at
    /// least 1 KiB. A commit waits [`queue_wait`](Self::queue_wait) for space in a full queue.
    #[must_use]
    pub fn queue_limit(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets how long a commit waits for space in a full queue. Default: 10 s. Then it fails with
    /// `OVERLOADED`.
    #[must_use]
    pub fn queue_wait(mut self, wait: Duration) -> Self {
        self.queue_wait = wait;
        self
    }

    /// Opens an existing file for reading only, also where this user cannot write. Writes fail with `PERMISSION`.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Sets the clock of the history. Default: the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens a store like [`Store::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store, CallError> {
        Ok(Store::open_with(path.as_ref(), self)?)
    }
}
