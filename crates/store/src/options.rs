//! What can be set when a store is opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Clock, SystemClock, ToolError};

use crate::Store;

/// How a store is opened and what it may hold. Made by [`Store::options`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) busy_timeout: Duration,
    pub(crate) document_bytes: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) queue_wait: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(10),
            document_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            queue_wait: Duration::from_secs(10),
            clock: Arc::new(SystemClock),
        }
    }
}

impl Options {
    /// How long a commit, and opening the file, wait for another process that holds the file's lock. Default: 10 s.
    /// After that the answer is `DEPENDENCY`.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// The largest document, in bytes of its JSON. Default: 1 MiB. The patch and the event of one change may have
    /// twice as much together. A larger one is `LIMIT`, as is one that is nested in more
    /// than 100 levels; what is already stored stays readable.
    #[must_use]
    pub fn document_limit(mut self, bytes: usize) -> Self {
        self.document_bytes = bytes;
        self
    }

    /// How much may wait to be written, in bytes of JSON, each commit counted as 1 KiB at least. Default: 64 MiB.
    /// A commit that finds the queue full waits for [`queue_wait`](Self::queue_wait).
    #[must_use]
    pub fn queue_limit(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// How long a commit waits for a place in a full queue. Default: 10 s. After that the answer is `OVERLOADED`.
    #[must_use]
    pub fn queue_wait(mut self, wait: Duration) -> Self {
        self.queue_wait = wait;
        self
    }

    /// Where the times of the history come from. Default: the machine's clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the file, and makes it, with its folders, where it is not there: as [`Store::open`] does.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store, ToolError> {
        Store::open_with(path.as_ref(), self)
    }
}
