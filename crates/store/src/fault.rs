//! What the database and the file system say, as errors that name the file and what to do next.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Error, ErrorCode};
use toolpost_core::{Code, RetryAdvice, ToolError};

/// Whether another connection holds a lock that a little patience may get.
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
            "is locked by another process, and nothing was written",
            "End the program that holds it, or try again; `busy_timeout` is how long a commit waits.",
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
            "Check that the path names a file, and that this user may open it and write to its folder.",
        ),
        _ => about(
            Code::Dependency,
            path,
            "did not answer as it should",
            "Check the disk and the system's log; what was committed before is not touched.",
        ),
    };
    answer.caused_by(error)
}

/// An error of the file system, when the file or its folder is made.
pub(crate) fn file(error: io::Error, path: &Path) -> ToolError {
    let answer = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => about(
            Code::Permission,
            path,
            "cannot be made or opened for writing",
            "Make the file and its folder writable for this user, or name another file.",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => full(path),
        _ => about(
            Code::InvalidPath,
            path,
            &format!("cannot be opened ({error})"),
            "Check that the path names a file in a folder that exists or can be made.",
        ),
    };
    answer.caused_by(error)
}

/// This user may not write the file.
pub(crate) fn read_only(path: &Path) -> ToolError {
    about(
        Code::Permission,
        path,
        "cannot be written, and nothing was",
        "Make the file and its folder writable for this user, or name another file.",
    )
}

fn full(path: &Path) -> ToolError {
    about(
        Code::Limit,
        path,
        "has no room to grow: the disk is full, and the commit was not stored",
        "Free space on that disk and try again; what was committed before is not touched.",
    )
}

/// The file is no store of ours, and is left alone.
pub(crate) fn not_ours(path: &Path, what: &str) -> ToolError {
    about(
        Code::InvalidPath,
        path,
        &format!("{what}, and was left as it is"),
        "Name a file that Toolpost made, or a new one.",
    )
}

/// The file was written by a later version of this program.
pub(crate) fn newer(path: &Path, found: i64, known: i64) -> ToolError {
    about(
        Code::Precondition,
        path,
        &format!("has format {found}, but this program knows formats up to {known}; it was left as it is"),
        "Use the newer program that wrote it, or name another file.",
    )
    .with("found", found)
    .with("known", known)
}

/// The file system cannot share a file between processes as the store needs it.
pub(crate) fn no_shared_memory(path: &Path) -> ToolError {
    about(
        Code::Precondition,
        path,
        "lies on a file system without shared memory between processes",
        "Keep it on a local disk, not on a network file system.",
    )
}

/// What stands in the file contradicts itself.
pub(crate) fn corrupt(path: &Path, what: &str) -> ToolError {
    about(
        Code::Dependency,
        path,
        &format!("is damaged: {what}"),
        "It was left as it is. Restore a copy, or save what can be read with `sqlite3 FILE .recover`.",
    )
    .retry(RetryAdvice::Never)
}
