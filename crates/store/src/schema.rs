//! The file format, and migrations from older formats.
//!
//! `documents` has one row per document with its newest change. `changes` is append-only, in commit order, so
//! a batch of commits to many documents touches few pages; an index over all changes would cost a page per
//! document. Each change names its predecessor. The index contains every 64th version, so any version is at
//! most 63 steps away.

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
    /// The application id of the file.
    pub(crate) application: i64,
    /// The migrations, forward only. The format of a file is the number of applied ones.
    pub(crate) steps: &'static [&'static str],
    /// Whether only one connection may open the file.
    pub(crate) is_exclusive: bool,
}

impl Format {
    /// The number of the newest format.
    pub(crate) const fn number(&self) -> u32 {
        self.steps.len() as u32
    }
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

/// The index contains one of this many versions; the index definition repeats the number.
pub(crate) const MILESTONE: u64 = 64;

/// The longest pause between two attempts to get the lock.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// Retries while another connection holds the lock.
///
/// SQLite's own busy handler doubles its pauses up to 100 ms, which starves a process beside busy ones.
pub(crate) fn retry_busy<T>(
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

/// Serializes file creation: the new file is closed before this process opens it as a database.
static CREATING: Mutex<()> = Mutex::new(());

/// Creates the file for this user only, with missing directories.
///
/// An existing file is not opened, not even to check permissions: closing any descriptor of a file releases
/// all POSIX locks of the process on it. An open store of this process would lose its locks, and another
/// process would remove its log.
pub(crate) fn create_file(path: &Path) -> Result<(), ToolError> {
    let _guard = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
    let create = || -> io::Result<()> {
        if let Some(directory) = path.parent() {
            let mut builder = DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(directory)?;
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
    create().map_err(|error| fault::file(error, path))
}

/// Opens a connection to an existing file.
pub(crate) fn connect(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    // Without the URI flag, a path is never parsed as a URI.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    configure(connection, busy_timeout)
}

/// Opens a connection that only reads, and creates no files beside the database.
///
/// Without a log, no other process writes, and SQLite reads the file as one that does not change.
pub(crate) fn connect_read_only(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let connection = if Path::new(&log).exists() {
        Connection::open_with_flags(path, flags)?
    } else {
        let escape = |text: &str| text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let uri = format!("file:{}?immutable=1", escape(&path.to_string_lossy()));
        Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?
    };
    configure(connection, busy_timeout)
}

fn configure(connection: Connection, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    connection.busy_timeout(busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Prepares a writer's connection: checks and migrates the file, and makes commits durable.
pub(crate) fn prepare(
    connection: &mut Connection,
    format: &Format,
    path: &Path,
    busy_timeout: Duration,
) -> Result<(), ToolError> {
    let failed = |error| fault::database(error, path);
    // SQLite opens a read-only file as well, and fails later.
    if connection.is_readonly("main").map_err(failed)? {
        return Err(fault::read_only(path));
    }
    if format.is_exclusive {
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
    }
    check(connection, format, path)?;
    let mode = retry_busy(busy_timeout, || {
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))
    })
    .map_err(failed)?;
    if mode != "wal" {
        return Err(fault::no_shared_memory(path));
    }
    // A commit returns when it is on the disk. The log shrinks after a large burst.
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864; PRAGMA secure_delete = ON;",
        )
        .map_err(failed)?;
    retry_busy(busy_timeout, || migrate(connection, format)).map_err(failed)?;
    // Another process may have migrated the file meanwhile.
    check(connection, format, path)
}

/// Rejects a foreign file and a newer format.
pub(crate) fn check(connection: &Connection, expected: &Format, path: &Path) -> Result<(), ToolError> {
    let number = |pragma: &str| {
        connection
            .query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0))
            .map_err(|error| fault::database(error, path))
    };
    let format = number("user_version")?;
    // Reading the schema fails if the file is not a database.
    let objects = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
        .map_err(|error| fault::database(error, path))?;
    if number("application_id")? != expected.application && (objects > 0 || format > 0) {
        return Err(fault::not_ours(path, "is a database of another program"));
    }
    let known = expected.number();
    if format > i64::from(known) {
        return Err(fault::newer(path, format, known));
    }
    Ok(())
}

/// Applies the missing migrations.
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
    transaction.pragma_update(None, "user_version", expected.number())?;
    transaction.commit()
}
