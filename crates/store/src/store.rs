//! The store as others see it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use toolpost_core::{
    BoxFuture, Change, Commit, Committed, DocStore, Document, Patch, RetryAdvice, ToolError,
    check_document_id,
};

use crate::options::Options;
use crate::readers::Readers;
use crate::writer::{Job, Row, Writer};
use crate::{fault, forget, schema};

/// What one place of the queue stands for, in bytes of JSON.
const PLACE_BYTES: usize = 1 << 10;

/// Versioned documents in a SQLite file. A clone is the same store; the last one that goes waits until all that was
/// handed over is written.
///
/// A commit that was answered with `Done` is on the disk. Several stores, of one or of several processes, may share
/// a file on a local disk.
///
/// Errors beyond those of [`DocStore`], each with the path and what to do next: `DEPENDENCY` if another process holds
/// the file's lock for too long, or if the file is damaged; `PERMISSION` if it cannot be written; `LIMIT` if the disk
/// is full or a document too large or nested too deeply; `OVERLOADED` if the queue stays full; `INVALID_INPUT` if an id is no id.
///
/// ```
/// # use std::sync::Arc;
/// # use toolpost_core::{Commit, Committed, DocStore, Write};
/// # use toolpost_store::Store;
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_core::ToolError> {
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open(folder.path().join("state.db"))?;
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
    places: Arc<Semaphore>,
    all_places: usize,
    document_bytes: usize,
    queue_wait: Duration,
    busy_timeout: Duration,
    /// Emptied when the store goes, which ends the thread.
    writer: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a store with the default [`Options`].
    ///
    /// A file that is not there is made, with its folders, readable by this user alone. An older format is taken to
    /// the newest. This blocks: it reads the file and may wait for another process.
    ///
    /// # Errors
    /// `INVALID_PATH` if the path names a folder, a database of another program or no database, `PRECONDITION` if a
    /// newer program wrote the file, `PERMISSION` if it may not be written, `DEPENDENCY` if it is damaged or locked.
    /// The file is then left as it was.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ToolError> {
        Self::options().open(path)
    }

    /// What can be set, with the defaults.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn open_with(path: &Path, options: &Options) -> Result<Self, ToolError> {
        // Whatever the working folder is later, and so that `:memory:` is a name like any other.
        let path = std::path::absolute(path).map_err(|error| fault::file(error, path))?;
        schema::make_file(&path)?;
        let mut connection =
            schema::connect(&path, options.busy_timeout).map_err(|error| fault::database(error, &path))?;
        schema::prepare(&mut connection, &schema::DOCUMENTS, &path, options.busy_timeout)?;
        // From here on the writer itself waits for the lock.
        connection.busy_timeout(Duration::ZERO).map_err(|error| fault::database(error, &path))?;
        let all_places = (options.queue_bytes / PLACE_BYTES).clamp(1, u32::MAX as usize >> 3);
        let places = Arc::new(Semaphore::new(all_places));
        let (queue, jobs) = channel();
        let writer = Writer::new(
            connection,
            path.clone(),
            options.busy_timeout,
            Arc::clone(&options.clock),
            Arc::clone(&places),
        );
        let thread = std::thread::Builder::new()
            .name("toolpost-store".into())
            .spawn(move || writer.run(&jobs))
            .map_err(|error| fault::file(error, &path))?;
        Ok(Self(Arc::new(Inner {
            readers: Arc::new(Readers::new(path, options.busy_timeout)),
            places,
            all_places,
            document_bytes: options.document_bytes,
            queue_wait: options.queue_wait,
            busy_timeout: options.busy_timeout,
            writer: Some((queue, thread)),
        })))
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        self.0.readers.path()
    }
}

impl Inner {
    /// A commit as text, checked, and how many bytes that is.
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
                    .suggest("Make one change of the two."));
            }
            // A change that cannot be read would make the document unreadable later.
            Patch::parse(&write.patch)?;
            let text = serde_json::to_string(&write.value)?;
            let patch = serde_json::to_string(&write.patch)?;
            check_size(id, "the document", text.len(), self.document_bytes)?;
            let most = self.document_bytes.saturating_mul(2);
            check_size(id, "its change and the event", patch.len() + event_bytes, most)?;
            bytes += text.len() + patch.len();
            rows.push(Row { id: id.clone(), base: write.base, patch, text, value: Arc::clone(&write.value) });
        }
        Ok((rows, event, bytes))
    }

    /// Takes places in the queue, waiting for them as long as that is allowed.
    async fn reserve(&self, places: u32) -> Result<(), ToolError> {
        if let Ok(permit) = self.places.try_acquire_many(places) {
            permit.forget();
            return Ok(());
        }
        // Without a runtime there is no clock to wait by.
        let waited = match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::time::timeout(self.queue_wait, self.places.acquire_many(places)).await.ok(),
            Err(_) => None,
        };
        match waited {
            Some(permit) => {
                permit?.forget();
                Ok(())
            }
            None => Err(ToolError::overloaded(format!(
                "the store `{}` has too much to write: no place in its queue within {}",
                self.readers.path().display(),
                toolpost_core::format_duration(self.queue_wait)
            ))
            .suggest("Commit less at once, or raise the store's `queue_limit` or `queue_wait`.")
            .retry(RetryAdvice::After(Duration::from_millis(250)))),
        }
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, ToolError> {
        if commit.writes.is_empty() {
            return Ok(Committed::Done(Vec::new()));
        }
        // What is nested more deeply could be written, but never be read again.
        commit.check_depth()?;
        let (rows, event, bytes) = self.rows(&commit)?;
        // One that is larger than the queue gets all of it.
        let places = bytes.div_ceil(PLACE_BYTES).clamp(1, self.all_places);
        self.reserve(places as u32).await?;
        let (answer, answered) = oneshot::channel();
        let call = commit.call.map(|id| id.to_string());
        let gone = || ToolError::internal("the store's writer ended before its time");
        let (queue, _) = self.writer.as_ref().ok_or_else(gone)?;
        queue.send(Job { rows, reads: commit.reads, call, event, places, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn check_size(id: &str, what: &str, found: usize, most: usize) -> Result<(), ToolError> {
    if found <= most {
        return Ok(());
    }
    Err(ToolError::limit(format!("`{id}`: {what} has {found} bytes of JSON, at most {most} are stored"))
        .suggest("Split it into several documents, or raise the store's `document_limit`.")
        .with("id", id)
        .with("bytes", found)
        .with("limit", most))
}

impl Drop for Inner {
    /// Waits until the writer has written what it was handed.
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
            let (id, inner) = (id.to_owned(), Arc::clone(&self.0));
            let work = move || forget::forget(inner.readers.path(), inner.busy_timeout, &id);
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => runtime.spawn_blocking(work).await?,
                Err(_) => work(),
            }
        })
    }
}
