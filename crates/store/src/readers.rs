//! Read connections, each used by one thread at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use toolpost_core::ToolError;

use crate::history::History;
use crate::schema::Format;
use crate::{fault, schema};

/// The most concurrent reads; further ones wait.
const MAX_READERS: usize = 4;

pub(crate) struct Readers {
    path: PathBuf,
    busy_timeout: Duration,
    is_read_only: bool,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, busy_timeout: Duration, is_read_only: bool) -> Self {
        let permits = Semaphore::new(MAX_READERS);
        Self { path, busy_timeout, is_read_only, idle: Mutex::default(), permits }
    }

    /// Rejects a missing or foreign file and a newer format.
    pub(crate) fn check(&self, format: &Format) -> Result<(), ToolError> {
        let connection = self.connect().map_err(|error| fault::database(error, &self.path))?;
        schema::check(&connection, format, &self.path)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let connection = if self.is_read_only {
            schema::connect_read_only(&self.path, self.busy_timeout)
        } else {
            schema::connect(&self.path, self.busy_timeout)
        }?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads on a blocking thread, or on this thread without a runtime.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(History<'_>) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let readers = Arc::clone(self);
        let _permit = self.permits.acquire().await?;
        match Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(move || readers.read_here(work)).await?,
            Err(_) => readers.read_here(work),
        }
    }

    fn read_here<T>(&self, work: impl FnOnce(History<'_>) -> Result<T, ToolError>) -> Result<T, ToolError> {
        let failed = |error| fault::database(error, &self.path);
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().map_err(failed)?,
        };
        // All statements see one state of the file. A failed connection is dropped.
        let transaction = connection.unchecked_transaction().map_err(failed)?;
        let answer = work(History { connection: &transaction, path: &self.path })?;
        drop(transaction);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }
}
