//! Errors of the database and the file system, with the file and the fix.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Error, ErrorCode};
use toolpost_core::{Code, RetryAdvice, ToolError, newer_format};

/// Whether another connection holds the lock; a retry may succeed.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn about(code: Code, path: &Path, what: &str, next: &str) -> ToolError {
    ToolError::new(code, format!("the store `{}` {what}", path.display()))
        .suggest(next)
        .with("path", path.display().to_string())
}

/// An error of the database.
pub(crate) fn database(error: Error, path: &Path) -> ToolError {
    let answer = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => about(
            Code::Dependency,
            path,
            "is locked by another process; nothing was written",
            "Stop the other process, retry, or raise `busy_timeout`.",
        )
        .retry(RetryAdvice::After(Duration::from_millis(250))),
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => read_only(path),
        Some(ErrorCode::DiskFull) => full(path),
        Some(ErrorCode::NotADatabase) => not_ours(path, "is not a database"),
        Some(ErrorCode::DatabaseCorrupt) => corrupt(path, "the database is truncated or overwritten"),
        Some(ErrorCode::CannotOpen) => about(
            Code::InvalidPath,
            path,
            "cannot be opened",
            "Check that the path is a file, and that this user may write to it and its directory.",
        ),
        _ => about(
            Code::Dependency,
            path,
            "failed unexpectedly",
            "Check the disk and the system log; earlier commits are unaffected.",
        ),
    };
    answer.caused_by(error)
}

/// An error of the file system while creating the file or its directory.
pub(crate) fn file(error: io::Error, path: &Path) -> ToolError {
    let answer = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => about(
            Code::Permission,
            path,
            "cannot be created or opened for writing",
            "Make the file and its directory writable for this user, or use another file.",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => full(path),
        _ => about(
            Code::InvalidPath,
            path,
            &format!("cannot be opened ({error})"),
            "Check that the path is a file in a directory that exists or can be created.",
        ),
    };
    answer.caused_by(error)
}

/// This user may not write the file.
pub(crate) fn read_only(path: &Path) -> ToolError {
    about(
        Code::Permission,
        path,
        "cannot be written; nothing was written",
        "Make the file and its directory writable for this user, or use another file.",
    )
}

fn full(path: &Path) -> ToolError {
    about(
        Code::Limit,
        path,
        "cannot grow: the disk is full; the commit was not stored",
        "Free disk space and retry; earlier commits are unaffected.",
    )
}

/// The file is not a Toolpost store; it stays unchanged.
pub(crate) fn not_ours(path: &Path, what: &str) -> ToolError {
    about(
        Code::InvalidPath,
        path,
        &format!("{what}; the file is unchanged"),
        "Use a Toolpost store, or a new file.",
    )
}

/// The file was written by a later version of this program.
pub(crate) fn newer(path: &Path, found: i64, known: u32) -> ToolError {
    newer_format(format_args!("the store `{}`", path.display()), found.unsigned_abs(), known.into())
        .suggest("Use the newer program, or another file.")
        .with("path", path.display().to_string())
}

/// The file system does not support shared memory between processes.
pub(crate) fn no_shared_memory(path: &Path) -> ToolError {
    about(
        Code::Precondition,
        path,
        "is on a file system without shared memory between processes",
        "Move it to a local disk.",
    )
}

/// The file contradicts itself.
pub(crate) fn corrupt(path: &Path, what: &str) -> ToolError {
    about(
        Code::Dependency,
        path,
        &format!("is damaged: {what}"),
        "Restore a backup, or recover rows with `sqlite3 FILE .recover`.",
    )
    .retry(RetryAdvice::Never)
}
