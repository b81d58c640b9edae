//! How a document goes, with all that it ever was.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension as _, TransactionBehavior};
use toolpost_core::ToolError;

use crate::{fault, schema};

/// Removes a document and its changes. It works on a connection of its own: the writer then finds that somebody else has
/// written, and forgets what it remembers.
pub(crate) fn forget(path: &Path, busy_timeout: Duration, id: &str) -> Result<bool, ToolError> {
    let work = || -> rusqlite::Result<bool> {
        let mut connection = schema::connect(path, busy_timeout)?;
        // What is removed is overwritten, and is on the disk when this returns.
        connection.execute_batch("PRAGMA secure_delete = ON; PRAGMA synchronous = FULL;")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: Option<(i64, i64)> = transaction
            .query_row("SELECT key, head FROM documents WHERE id = ?1", [id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((key, head)) = found else { return Ok(false) };
        {
            // Each change names the one before it: no look at those of other documents.
            let mut previous = transaction
                .prepare("DELETE FROM changes WHERE seq = ?1 AND document = ?2 RETURNING previous")?;
            let mut next = Some(head);
            while let Some(seq) = next.filter(|seq| *seq != 0) {
                next = previous.query_row((seq, key), |row| row.get(0)).optional()?;
            }
            transaction.execute("DELETE FROM documents WHERE key = ?1", [key])?;
        }
        transaction.commit()?;
        // The log still has what was written once; somebody who reads now keeps it a little longer.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(true)
    };
    schema::patiently(busy_timeout, work).map_err(|error| fault::database(error, path))
}
