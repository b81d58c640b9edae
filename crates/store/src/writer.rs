//! The writer thread: batches queued commits into one transaction and answers each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use toolpost_core::{Clock, Committed, Document, Timestamp, ToolError};

use crate::fault;
use crate::history::{Head, History};
use crate::schema::{MILESTONE, retry_busy};

/// The most commits of one transaction.
const MAX_BATCH: usize = 1_024;

/// The size of the cached newest values, in bytes of JSON. Conflicts are answered with them.
const MAX_CACHED_BYTES: usize = 16 << 20;

/// The most cached documents.
const MAX_CACHED: usize = 16_384;

/// One changed document, serialized.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) base: u64,
    pub(crate) patch: String,
    pub(crate) text: String,
    pub(crate) value: Arc<Value>,
}

/// A queued commit.
pub(crate) struct Job {
    pub(crate) rows: Vec<Row>,
    /// The documents that the commit only read, and their versions.
    pub(crate) reads: Vec<(String, u64)>,
    pub(crate) call: Option<String>,
    pub(crate) event: Option<String>,
    /// The queue permits that it holds.
    pub(crate) permits: usize,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// The answer of one commit; the others of its transaction may differ.
type Answer = Result<Committed, ToolError>;

/// The cached state of a document.
#[derive(Clone, Default)]
struct Known {
    head: Head,
    /// The newest value and its size, if this process wrote it.
    value: Option<(Arc<Value>, usize)>,
    /// Whether its row in `documents` is outdated.
    changed: bool,
}

/// The state of the thread.
pub(crate) struct Writer {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    pub(crate) busy_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) permits: Arc<Semaphore>,
    cache: Cache,
}

/// The cached documents, valid while no other connection writes.
#[derive(Default)]
struct Cache {
    documents: HashMap<String, Known>,
    /// The documents whose row in `documents` is outdated.
    changed: Vec<String>,
    bytes: usize,
    /// SQLite's counter of writes by other connections.
    data_version: i64,
}

impl Writer {
    pub(crate) fn new(
        connection: Connection,
        path: PathBuf,
        busy_timeout: Duration,
        clock: Arc<dyn Clock>,
        permits: Arc<Semaphore>,
    ) -> Self {
        Self { connection, path, busy_timeout, clock, permits, cache: Cache::default() }
    }

    /// Runs until all senders are dropped and all commits are answered.
    pub(crate) fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let mut jobs = vec![first];
            let begun = retry_busy(self.busy_timeout, || run(&self.connection, "BEGIN IMMEDIATE"));
            // Includes commits that arrived during the wait for the lock.
            jobs.extend(queue.try_iter().take(MAX_BATCH - 1));
            let answers =
                begun.map_err(|error| fault::database(error, &self.path)).and_then(|()| self.transact(&jobs));
            let permits = jobs.iter().map(|job| job.permits).sum();
            // A caller may have stopped waiting; its commit is stored anyway.
            match answers {
                Ok(answers) => {
                    for (job, answer) in jobs.into_iter().zip(answers) {
                        drop(job.answer.send(answer));
                    }
                }
                Err(error) => {
                    for job in jobs {
                        drop(job.answer.send(Err(error.clone())));
                    }
                }
            }
            self.permits.add_permits(permits);
        }
    }

    /// Writes and commits the open transaction, or rolls it back.
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Answer>, ToolError> {
        let answers = self.write(jobs).and_then(|answers| {
            run(&self.connection, "COMMIT").map_err(|error| fault::database(error, &self.path))?;
            Ok(answers)
        });
        if answers.is_err() {
            self.cache = Cache::default();
            // After some errors SQLite has rolled back already.
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, path = %self.path.display(), "the rollback of the store failed");
            }
        }
        answers
    }

    fn write(&mut self, jobs: &[Job]) -> Result<Vec<Answer>, ToolError> {
        let Self { connection, path, clock, cache, .. } = self;
        let history = History { connection, path };
        cache.refresh(&history)?;
        let at = clock.timestamp();
        let answers =
            jobs.iter().map(|job| cache.commit(&history, job, at)).collect::<Result<Vec<_>, _>>()?;
        cache.flush(&history)?;
        Ok(answers)
    }
}

/// Runs a cached statement.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

impl Cache {
    /// Clears the cache if another connection has written or it is full.
    fn refresh(&mut self, history: &History<'_>) -> Result<(), ToolError> {
        let data_version = history
            .connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(|error| fault::database(error, history.path))?;
        let is_full = self.documents.len() > MAX_CACHED || self.bytes > MAX_CACHED_BYTES;
        if data_version != self.data_version || is_full {
            *self = Self { data_version, ..Self::default() };
        }
        Ok(())
    }

    /// The cached state of a document, read from the file the first time.
    fn known(&mut self, history: &History<'_>, id: &str) -> Result<&mut Known, ToolError> {
        if !self.documents.contains_key(id) {
            let head = history.head(id)?.unwrap_or_default();
            self.documents.insert(id.to_owned(), Known { head, ..Known::default() });
        }
        Ok(self.documents.entry(id.to_owned()).or_default())
    }

    /// One commit: a compare-and-set of all documents that it wrote and read. `Err` fails the whole
    /// transaction; a damaged newer document fails only this commit.
    fn commit(&mut self, history: &History<'_>, job: &Job, at: Timestamp) -> Result<Answer, ToolError> {
        let mut newer = Vec::new();
        let written = job.rows.iter().map(|row| (&row.id, row.base));
        for (id, base) in written.chain(job.reads.iter().map(|(id, version)| (id, *version))) {
            let known = self.known(history, id)?;
            if known.head.version != base {
                newer.push(known.document(history, id));
            }
        }
        if !newer.is_empty() {
            return Ok(newer.into_iter().collect::<Result<_, _>>().map(Committed::Conflict));
        }
        let mut versions = Vec::with_capacity(job.rows.len());
        for row in &job.rows {
            versions.push(
                self.append(history, job, row, at).map_err(|error| fault::database(error, history.path))?,
            );
        }
        Ok(Ok(Committed::Done(versions)))
    }

    /// Appends a change.
    fn append(
        &mut self,
        history: &History<'_>,
        job: &Job,
        row: &Row,
        at: Timestamp,
    ) -> rusqlite::Result<u64> {
        let connection = history.connection;
        let Some(known) = self.documents.get_mut(&row.id) else { return Ok(row.base) };
        if known.head.key == 0 {
            connection
                .prepare_cached("INSERT INTO documents (id, version, head, tail) VALUES (?1, 0, 0, 0)")?
                .execute([&row.id])?;
            known.head.key = connection.last_insert_rowid();
        }
        let version = row.base + 1;
        let tail = known.head.tail + row.patch.len() as u64;
        let whole = version == 1 || version.is_multiple_of(MILESTONE) || row.text.len() as u64 <= tail;
        connection
            .prepare_cached(
                "INSERT INTO changes (document, version, previous, at, call, patch, event, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute((
                known.head.key,
                version.cast_signed(),
                known.head.seq,
                at.as_micros().cast_signed(),
                &job.call,
                &row.patch,
                &job.event,
                whole.then_some(&row.text),
            ))?;
        let tail = if whole { 0 } else { tail };
        known.head = Head { key: known.head.key, version, seq: connection.last_insert_rowid(), tail };
        if !known.changed {
            known.changed = true;
            self.changed.push(row.id.clone());
        }
        let (before, now) = (known.value.take().map_or(0, |(_, bytes)| bytes), row.text.len());
        known.value = Some((Arc::clone(&row.value), now));
        self.bytes = self.bytes - before + now;
        Ok(version)
    }

    /// Writes the outdated rows of `documents`, once per document.
    fn flush(&mut self, history: &History<'_>) -> Result<(), ToolError> {
        let mut write = || -> rusqlite::Result<()> {
            let mut statement = history
                .connection
                .prepare_cached("UPDATE documents SET version = ?2, head = ?3, tail = ?4 WHERE key = ?1")?;
            for id in self.changed.drain(..) {
                let Some(known) = self.documents.get_mut(&id) else { continue };
                let head = known.head;
                statement.execute((
                    head.key,
                    head.version.cast_signed(),
                    head.seq,
                    head.tail.cast_signed(),
                ))?;
                known.changed = false;
            }
            Ok(())
        };
        write().map_err(|error| fault::database(error, history.path))
    }
}

impl Known {
    /// The newest version, for the answer of a conflict.
    fn document(&self, history: &History<'_>, id: &str) -> Result<Document, ToolError> {
        match &self.value {
            Some((value, _)) => {
                Ok(Document { id: id.to_owned(), version: self.head.version, value: Arc::clone(value) })
            }
            None => history.newest(id, self.head),
        }
    }
}
