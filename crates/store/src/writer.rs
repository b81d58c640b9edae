//! The one thread that writes: it takes all that waits, makes one transaction of it, and answers everybody.

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
use crate::schema::{MILESTONE, patiently};

/// The most commits of one transaction.
const BATCH: usize = 1_024;

/// How much of the newest values is remembered, in bytes of JSON: who loses a race is told what won.
const REMEMBERED_BYTES: usize = 16 << 20;

/// How many documents are remembered.
const REMEMBERED: usize = 16_384;

/// One changed document, as text.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) base: u64,
    pub(crate) patch: String,
    pub(crate) text: String,
    pub(crate) value: Arc<Value>,
}

/// A commit that waits.
pub(crate) struct Job {
    pub(crate) rows: Vec<Row>,
    /// Documents that were only read, and their versions.
    pub(crate) reads: Vec<(String, u64)>,
    pub(crate) call: Option<String>,
    pub(crate) event: Option<String>,
    /// How many places of the queue it holds.
    pub(crate) places: usize,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What one commit is told, also if the others of its transaction are stored.
type Answer = Result<Committed, ToolError>;

/// What is known of a document without asking the file.
#[derive(Clone, Default)]
struct Known {
    head: Head,
    /// The newest value and its size, where this process wrote it.
    value: Option<(Arc<Value>, usize)>,
    /// Whether its row in `documents` has to be written.
    changed: bool,
}

/// The thread's state.
pub(crate) struct Writer {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    pub(crate) busy_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) places: Arc<Semaphore>,
    memory: Memory,
}

/// The documents that this connection has seen, as they are while nobody else writes.
#[derive(Default)]
struct Memory {
    documents: HashMap<String, Known>,
    /// Those whose row in `documents` has to be written.
    changed: Vec<String>,
    bytes: usize,
    /// Changes whenever another connection has written.
    data_version: i64,
}

impl Writer {
    pub(crate) fn new(
        connection: Connection,
        path: PathBuf,
        busy_timeout: Duration,
        clock: Arc<dyn Clock>,
        places: Arc<Semaphore>,
    ) -> Self {
        Self { connection, path, busy_timeout, clock, places, memory: Memory::default() }
    }

    /// Works until nobody can send any more and everything is answered.
    pub(crate) fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let mut jobs = vec![first];
            let begun = patiently(self.busy_timeout, || run(&self.connection, "BEGIN IMMEDIATE"));
            // Only now: what came in while the lock was waited for goes along, or fails with the first.
            jobs.extend(queue.try_iter().take(BATCH - 1));
            let answers =
                begun.map_err(|error| fault::database(error, &self.path)).and_then(|()| self.transact(&jobs));
            let places = jobs.iter().map(|job| job.places).sum();
            // Whoever no longer waits does not hear it; what is stored is stored.
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
            self.places.add_permits(places);
        }
    }

    /// Everything in one transaction, which is begun, or nothing.
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Answer>, ToolError> {
        let answers = self.write(jobs).and_then(|answers| {
            run(&self.connection, "COMMIT").map_err(|error| fault::database(error, &self.path))?;
            Ok(answers)
        });
        if answers.is_err() {
            self.memory = Memory::default();
            // After some errors the database has rolled back by itself.
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, path = %self.path.display(), "the store could not roll back");
            }
        }
        answers
    }

    fn write(&mut self, jobs: &[Job]) -> Result<Vec<Answer>, ToolError> {
        let Self { connection, path, clock, memory, .. } = self;
        let history = History { connection, path };
        memory.refresh(&history)?;
        let at = clock.timestamp();
        let answers =
            jobs.iter().map(|job| memory.commit(&history, job, at)).collect::<Result<Vec<_>, _>>()?;
        memory.flush(&history)?;
        Ok(answers)
    }
}

/// Runs a statement that is compiled once.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

impl Memory {
    /// Forgets everything if somebody else has written since.
    fn refresh(&mut self, history: &History<'_>) -> Result<(), ToolError> {
        let data_version = history
            .connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(|error| fault::database(error, history.path))?;
        let too_much = self.documents.len() > REMEMBERED || self.bytes > REMEMBERED_BYTES;
        if data_version != self.data_version || too_much {
            *self = Self { data_version, ..Self::default() };
        }
        Ok(())
    }

    /// What is known of a document, asking the file the first time.
    fn known(&mut self, history: &History<'_>, id: &str) -> Result<&mut Known, ToolError> {
        if !self.documents.contains_key(id) {
            let head = history.head(id)?.unwrap_or_default();
            self.documents.insert(id.to_owned(), Known { head, ..Known::default() });
        }
        Ok(self.documents.entry(id.to_owned()).or_default())
    }

    /// One commit: a compare-and-set of all its documents, and of those that it was made from. An error is one of the whole transaction; that what won
    /// cannot be read, because it is damaged, concerns only who lost.
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

    /// Writes where each changed document stands: once, however often it was changed.
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
    /// The newest version, as who lost the race needs it.
    fn document(&self, history: &History<'_>, id: &str) -> Result<Document, ToolError> {
        match &self.value {
            Some((value, _)) => {
                Ok(Document { id: id.to_owned(), version: self.head.version, value: Arc::clone(value) })
            }
            None => history.newest(id, self.head),
        }
    }
}
