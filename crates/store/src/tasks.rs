//! Tasks of a server, in their own file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Row};
use tokio::runtime::Handle;
use toolpost_core::{BoxFuture, CallError, Code, RetryAdvice, TaskRecord, TaskStore, Timestamp, ToolError};

use crate::{fault, schema};

/// The time that opening waits for a server that exits.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Tasks, marked `TPTK`.
const TASKS: schema::Format = schema::Format {
    application: 0x5450_544B,
    is_exclusive: true,
    steps: &["
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    until INTEGER NOT NULL, -- microseconds since 1970-01-01 UTC
    body TEXT NOT NULL      -- JSON, the server's own
) STRICT, WITHOUT ROWID;
"],
};

/// The tasks of one server in a SQLite file. Answered writes are on the disk.
///
/// Only one process may open a file. Clones share the file.
///
/// ```
/// # use toolpost_core::{TaskRecord, TaskStore, Timestamp};
/// # use toolpost_store::TaskFile;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_core::ToolError> {
/// # let directory = tempfile::tempdir()?;
/// let tasks = TaskFile::open(directory.path().join("tasks.db"))?;
/// let task = TaskRecord { id: "one".into(), until: Timestamp::from_micros(1), body: "half".into() };
/// tasks.put(task.clone()).await?;
/// assert_eq!(tasks.load("one").await?, Some(task));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TaskFile(Arc<Inner>);

struct Inner {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl fmt::Debug for TaskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskFile").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl TaskFile {
    /// The newest format of the file.
    pub const FORMAT: u32 = TASKS.number();

    /// Opens a file, or creates it with its directories, readable by this user only. Blocks: it waits up to 5
    /// s for a server that exits.
    ///
    /// # Errors
    /// `DEPENDENCY` if another process has it open or it is damaged; `INVALID_PATH` if the path is a
    /// directory or a file of another kind; `PRECONDITION` if a newer program wrote it; `PERMISSION` if it is
    /// not writable. The file stays unchanged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CallError> {
        let path = std::path::absolute(path.as_ref()).map_err(|error| fault::file(error, path.as_ref()))?;
        schema::create_file(&path)?;
        let open = || {
            let mut connection =
                schema::connect(&path, OPEN_TIMEOUT).map_err(|error| fault::database(error, &path))?;
            schema::prepare(&mut connection, &TASKS, &path, OPEN_TIMEOUT)?;
            Ok(connection)
        };
        let connection = open().map_err(|error: ToolError| match error.retry_advice() {
            // Only a lock has this advice.
            Some(RetryAdvice::After(_)) => ToolError::new(
                Code::Dependency,
                format!("the task file `{}` is in use by another server", path.display()),
            )
            .suggest("Stop that server, or use another file.")
            .caused_by(error.to_string()),
            _ => error,
        })?;
        Ok(Self(Arc::new(Inner { path, connection: Mutex::new(connection) })))
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Uses the connection on a blocking thread, or on this thread without a runtime.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ToolError> {
        let inner = Arc::clone(&self.0);
        let work = move || {
            // A panic ends the statement or transaction.
            let connection = inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&connection).map_err(|error| fault::database(error, &inner.path))
        };
        match Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(work).await?,
            Err(_) => work(),
        }
    }

    fn read(&self, (id, until, body): (String, i64, String)) -> Result<TaskRecord, ToolError> {
        let body = serde_json::from_str(&body)
            .map_err(|error| fault::corrupt(&self.0.path, &format!("the task `{id}`: {error}")))?;
        Ok(TaskRecord { id, until: Timestamp::from_micros(until.cast_unsigned()), body })
    }
}

fn columns(row: &Row<'_>) -> rusqlite::Result<(String, i64, String)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

impl TaskStore for TaskFile {
    fn put(&self, task: TaskRecord) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let TaskRecord { id, until, body } = task;
            let body = serde_json::to_string(&body)?;
            self.with(move |connection| {
                let mut statement = connection
                    .prepare_cached("INSERT OR REPLACE INTO tasks (id, until, body) VALUES (?1, ?2, ?3)")?;
                statement.execute((id, until.as_micros().cast_signed(), body)).map(drop)
            })
            .await
        })
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<TaskRecord>, ToolError>> {
        Box::pin(async move {
            let id = id.to_owned();
            let found = self.with(move |connection| {
                let mut statement =
                    connection.prepare_cached("SELECT id, until, body FROM tasks WHERE id = ?1")?;
                statement.query_row([id], columns).optional()
            });
            found.await?.map(|row| self.read(row)).transpose()
        })
    }

    fn forget<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async move {
            let ids = ids.to_vec();
            self.with(move |connection| {
                let transaction = connection.unchecked_transaction()?;
                {
                    let mut statement = transaction.prepare_cached("DELETE FROM tasks WHERE id = ?1")?;
                    for id in ids {
                        statement.execute([id])?;
                    }
                }
                transaction.commit()
            })
            .await
        })
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<TaskRecord>, ToolError>> {
        Box::pin(async move {
            let rows = self.with(|connection| {
                let mut statement = connection.prepare("SELECT id, until, body FROM tasks ORDER BY id")?;
                statement.query_map([], columns)?.collect::<rusqlite::Result<Vec<_>>>()
            });
            rows.await?.into_iter().map(|row| self.read(row)).collect()
        })
    }
}
