//! The public store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use toolpost_core::{
    BoxFuture, CallError, Change, Commit, Committed, DocStore, Document, Patch, RetryAdvice, ToolError,
    check_document_id,
};

use crate::options::Options;
use crate::readers::Readers;
use crate::writer::{Job, Row, Writer};
use crate::{fault, forget, schema};

/// The size of one queue permit, in bytes of JSON.
const PERMIT_BYTES: usize = 1 << 10;

/// Versioned documents in a SQLite file. Clones share the store; dropping the last one waits until the queue
/// is written.
///
/// A commit answered with `Done` is on the disk. Several stores, in one or in several processes, may share a
/// file on a local disk.
///
/// Errors besides those of [`DocStore`], each with the path and the fix: `DEPENDENCY` if another process
/// holds the lock too long or the file is damaged; `PERMISSION` if it is not writable; `LIMIT` if the disk is
/// full, or a document is too large or nested too deeply; `OVERLOADED` if the queue stays full;
/// `INVALID_INPUT` for an invalid id.
///
/// ```
/// # use std::sync::Arc;
/// # use toolpost_core::{Commit, Committed, DocStore, Write};
/// # use toolpost_store::Store;
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_core::ToolError> {
/// # let directory = tempfile::tempdir()?;
/// let store = Store::open(directory.path().join("state.db"))?;
/// let patch = json!([{"op": "replace", "path": "", "value": {"n": 1}}]);
/// let write = Write { id: "counters/ada".into(), base: 0, patch, value: Arc::new(json!({"n": 1})) };
/// let done = store.commit(Commit { writes: vec![write], ..Commit::default() }).await?;
/// assert_eq!(done, Committed::Done(vec![1]));
/// assert_eq!(store.load("counters/ada").await?.value["n"], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    readers: Arc<Readers>,
    permits: Arc<Semaphore>,
    max_permits: usize,
    document_bytes: usize,
    queue_wait: Duration,
    busy_timeout: Duration,
    /// Taken on drop, which ends the thread. `None` for a store that only reads.
    writer: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Store {
    /// The newest format of the file.
    pub const FORMAT: u32 = schema::DOCUMENTS.number();

    /// Opens a store with the default [`Options`].
    ///
    /// Creates a missing file with its directories, readable by this user only. Migrates an older format.
    /// Blocks: it reads the file and may wait for another process.
    ///
    /// # Errors
    /// `INVALID_PATH` if the path is a directory, a foreign database or not a database; `PRECONDITION` if a
    /// newer program wrote the file; `PERMISSION` if it is not writable; `DEPENDENCY` if it is damaged or
    /// locked. The file stays unchanged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CallError> {
        Self::options().open(path)
    }

    /// The default options.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn open_with(path: &Path, options: &Options) -> Result<Self, ToolError> {
        // Independent of the working directory; makes `:memory:` an ordinary name.
        let path = std::path::absolute(path).map_err(|error| fault::file(error, path))?;
        let max_permits = (options.queue_bytes / PERMIT_BYTES).clamp(1, u32::MAX as usize >> 3);
        let permits = Arc::new(Semaphore::new(max_permits));
        let writer =
            if options.is_read_only { None } else { Some(Self::start_writer(&path, options, &permits)?) };
        let readers = Readers::new(path, options.busy_timeout, options.is_read_only);
        if options.is_read_only {
            readers.check(&schema::DOCUMENTS)?;
        }
        Ok(Self(Arc::new(Inner {
            readers: Arc::new(readers),
            permits,
            max_permits,
            document_bytes: options.document_bytes,
            queue_wait: options.queue_wait,
            busy_timeout: options.busy_timeout,
            writer,
        })))
    }

    /// Prepares the file, and starts the thread that writes.
    fn start_writer(
        path: &Path,
        options: &Options,
        permits: &Arc<Semaphore>,
    ) -> Result<(Sender<Job>, JoinHandle<()>), ToolError> {
        schema::create_file(path)?;
        let mut connection =
            schema::connect(path, options.busy_timeout).map_err(|error| fault::database(error, path))?;
        schema::prepare(&mut connection, &schema::DOCUMENTS, path, options.busy_timeout)?;
        // From here on the writer waits for the lock.
        connection.busy_timeout(Duration::ZERO).map_err(|error| fault::database(error, path))?;
        let (queue, jobs) = channel();
        let writer = Writer::new(
            connection,
            path.to_owned(),
            options.busy_timeout,
            Arc::clone(&options.clock),
            Arc::clone(permits),
        );
        let thread = std::thread::Builder::new()
            .name("toolpost-store".into())
            .spawn(move || writer.run(&jobs))
            .map_err(|error| fault::file(error, path))?;
        Ok((queue, thread))
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        self.0.readers.path()
    }
}

impl Inner {
    /// Checks and serializes a commit, and returns its size in bytes.
    fn rows(&self, commit: &Commit) -> Result<(Vec<Row>, Option<String>, usize), ToolError> {
        let event = commit.event.as_ref().map(serde_json::to_string).transpose()?;
        let event_bytes = event.as_ref().map_or(0, String::len);
        let mut rows: Vec<Row> = Vec::with_capacity(commit.writes.len());
        let mut bytes = event_bytes;
        for (id, _) in &commit.reads {
            check_document_id(id)?;
            bytes += id.len();
        }
        for write in &commit.writes {
            let id = &write.id;
            check_document_id(id)?;
            if rows.iter().any(|row| row.id == *id) {
                return Err(ToolError::invalid_input(format!("a commit changes `{id}` twice"))
                    .suggest("Combine the changes."));
            }
            // An invalid patch would make the document unreadable later.
            Patch::parse(&write.patch)?;
            let text = serde_json::to_string(&write.value)?;
            let patch = serde_json::to_string(&write.patch)?;
            check_size(id, "the document", text.len(), self.document_bytes)?;
            let max = self.document_bytes.saturating_mul(2);
            check_size(id, "its change and the event", patch.len() + event_bytes, max)?;
            bytes += text.len() + patch.len();
            rows.push(Row { id: id.clone(), base: write.base, patch, text, value: Arc::clone(&write.value) });
        }
        Ok((rows, event, bytes))
    }

    /// Acquires queue permits, and waits for them within the limit.
    async fn reserve(&self, permits: u32) -> Result<(), ToolError> {
        if let Ok(permit) = self.permits.try_acquire_many(permits) {
            permit.forget();
            return Ok(());
        }
        // Without a runtime there is no timer.
        let waited = match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::time::timeout(self.queue_wait, self.permits.acquire_many(permits)).await.ok(),
            Err(_) => None,
        };
        match waited {
            Some(permit) => {
                permit?.forget();
                Ok(())
            }
            None => Err(ToolError::overloaded(format!(
                "the queue of the store `{}` stayed full for {}",
                self.readers.path().display(),
                toolpost_core::format_duration(self.queue_wait)
            ))
            .suggest("Commit less at once, or raise `queue_limit` or `queue_wait`.")
            .retry(RetryAdvice::After(Duration::from_millis(250)))),
        }
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, ToolError> {
        if commit.writes.is_empty() {
            return Ok(Committed::Done(Vec::new()));
        }
        // A document nested more deeply could be written but not read.
        commit.check_depth()?;
        let Some((queue, _)) = &self.writer else { return Err(fault::read_only(self.readers.path())) };
        let (rows, event, bytes) = self.rows(&commit)?;
        // A commit larger than the queue takes all of it.
        let permits = bytes.div_ceil(PERMIT_BYTES).clamp(1, self.max_permits);
        self.reserve(permits as u32).await?;
        let (answer, answered) = oneshot::channel();
        let call = commit.call.map(|id| id.to_string());
        let gone = || ToolError::internal("the store's writer has ended");
        queue.send(Job { rows, reads: commit.reads, call, event, permits, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn check_size(id: &str, what: &str, found: usize, max: usize) -> Result<(), ToolError> {
    if found <= max {
        return Ok(());
    }
    Err(ToolError::limit(format!("`{id}`: {what} has {found} bytes of JSON, more than the limit of {max}"))
        .suggest("Split it into several documents, or raise `document_limit`.")
        .with("id", id)
        .with("bytes", found)
        .with("limit", max))
}

impl Drop for Inner {
    /// Waits until the writer has written its queue.
    fn drop(&mut self) {
        if let Some((queue, thread)) = self.writer.take() {
            drop(queue);
            if thread.join().is_err() {
                tracing::error!(path = %self.readers.path().display(), "the store's writer panicked");
            }
        }
    }
}

impl DocStore for Store {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            check_document_id(id)?;
            let id = id.to_owned();
            self.0.readers.read(move |history| history.load(&id)).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(self.0.commit(commit))
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            check_document_id(id)?;
            let id = id.to_owned();
            self.0.readers.read(move |history| history.at(&id, version)).await
        })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        Box::pin(async move {
            check_document_id(id)?;
            let id = id.to_owned();
            self.0.readers.read(move |history| history.log(&id, after, limit)).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        Box::pin(async move {
            let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
            self.0.readers.read(move |history| history.list(&prefix, after.as_deref(), limit)).await
        })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        Box::pin(async move {
            check_document_id(id)?;
            if self.0.writer.is_none() {
                return Err(fault::read_only(self.path()));
            }
            let (id, inner) = (id.to_owned(), Arc::clone(&self.0));
            let work = move || forget::forget(inner.readers.path(), inner.busy_timeout, &id);
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => runtime.spawn_blocking(work).await?,
                Err(_) => work(),
            }
        })
    }
}
