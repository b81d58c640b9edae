//! What the file looks like, and how an older one becomes a newer one.
//!
//! `documents` has one row for each document and says where its newest change is. `changes` only grows, in the order
//! of the commits, so that a batch of commits to many documents touches few pages: with an index over all changes, each
//! document of a batch would cost a page of its own. Each change names the one before it; the index knows every 64th,
//! from which the others are found by at most 63 steps.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use toolpost_core::ToolError;

use crate::fault;

/// A kind of file.
pub(crate) struct Format {
    /// Marks a file as ours.
    pub(crate) application: i64,
    /// One step for each format, forward only. The format of a file is the number of steps it has taken.
    pub(crate) steps: &'static [&'static str],
    /// Whether one connection alone has the file open.
    pub(crate) is_exclusive: bool,
}

/// Documents and their history, marked `TPST`.
pub(crate) const DOCUMENTS: Format = Format {
    application: 0x5450_5354,
    is_exclusive: false,
    steps: &["
CREATE TABLE documents (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL, -- the newest
    head INTEGER NOT NULL,    -- the change that made it
    tail INTEGER NOT NULL     -- bytes of the patches since the newest change with a value
) STRICT;
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY,
    document INTEGER NOT NULL,
    version INTEGER NOT NULL,
    previous INTEGER NOT NULL, -- the change that made the version before; 0 at version 1
    at INTEGER NOT NULL,       -- microseconds since 1970-01-01 UTC
    call TEXT,
    patch TEXT NOT NULL,       -- RFC 6902
    event TEXT,
    value TEXT                 -- the whole document; null where the patches since the last whole one make it
) STRICT;
CREATE INDEX milestones ON changes (document, version) WHERE version % 64 = 0;
"],
};

/// Every how many versions the index knows one; the same number stands in the index.
pub(crate) const MILESTONE: u64 = 64;

/// The longest pause between two tries to get a lock.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// Tries again while another connection holds the lock.
///
/// The database's own waiting doubles its pauses up to 100 ms, which starves a process beside busy ones.
pub(crate) fn patiently<T>(
    limit: Duration,
    mut work: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(50);
    loop {
        match work() {
            Err(error) if fault::is_busy(&error) && start.elapsed() < limit => {
                std::thread::sleep(pause.min(limit.saturating_sub(start.elapsed())));
                pause = (pause * 2).min(MAX_PAUSE);
            }
            result => return result,
        }
    }
}

/// One at a time makes a file: it is closed again before anybody else of this process opens it as a database.
static MAKING: Mutex<()> = Mutex::new(());

/// Makes the file, for this user alone, and its folders where they are missing.
///
/// A file that is there is not opened, not even to look whether it may be written: when a process closes any
/// descriptor of a file, the system takes back all locks that the process has on it. A store that is open here would
/// lose its locks, and another process would remove the log under its hands.
pub(crate) fn make_file(path: &Path) -> Result<(), ToolError> {
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || -> io::Result<()> {
        if let Some(folder) = path.parent() {
            let mut builder = DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(folder)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    make().map_err(|error| fault::file(error, path))
}

/// Opens a connection to a file that is there.
pub(crate) fn connect(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    // No URI: a path is a path, whatever is in it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Makes a connection a writer's: the file is ours, of the newest format, and a commit is on the disk when it returns.
pub(crate) fn prepare(
    connection: &mut Connection,
    format: &Format,
    path: &Path,
    busy_timeout: Duration,
) -> Result<(), ToolError> {
    let failed = |error| fault::database(error, path);
    // The database opens a file that it may not write too, and fails later.
    if connection.is_readonly("main").map_err(failed)? {
        return Err(fault::read_only(path));
    }
    if format.is_exclusive {
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
    }
    check(connection, format, path)?;
    let mode = patiently(busy_timeout, || {
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))
    })
    .map_err(failed)?;
    if mode != "wal" {
        return Err(fault::no_shared_memory(path));
    }
    // A commit returns when the disk has it. After a large burst the log gives its space back.
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864; PRAGMA secure_delete = ON;",
        )
        .map_err(failed)?;
    patiently(busy_timeout, || migrate(connection, format)).map_err(failed)?;
    // Another process may have taken the file further in the meantime.
    check(connection, format, path)
}

/// Refuses a file that is not ours or of a newer format.
fn check(connection: &Connection, expected: &Format, path: &Path) -> Result<(), ToolError> {
    let number = |pragma: &str| {
        connection
            .query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0))
            .map_err(|error| fault::database(error, path))
    };
    let format = number("user_version")?;
    // The first thing that is read is the schema, which tells whether this is a database at all.
    let objects = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
        .map_err(|error| fault::database(error, path))?;
    if number("application_id")? != expected.application && (objects > 0 || format > 0) {
        return Err(fault::not_ours(path, "is a database of another program"));
    }
    let known = expected.steps.len() as i64;
    if format > known {
        return Err(fault::newer(path, format, known));
    }
    Ok(())
}

/// Takes the steps that the file has not taken.
fn migrate(connection: &mut Connection, expected: &Format) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let format: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let taken = usize::try_from(format).unwrap_or(usize::MAX);
    if taken >= expected.steps.len() {
        return Ok(());
    }
    for step in &expected.steps[taken..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", expected.application)?;
    transaction.pragma_update(None, "user_version", expected.steps.len() as i64)?;
    transaction.commit()
}
