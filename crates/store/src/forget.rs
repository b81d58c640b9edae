//! Deletes a document with its history.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension as _, TransactionBehavior};
use toolpost_core::ToolError;

use crate::{fault, schema};

/// Removes a document and its changes over its own connection. The writer detects the change and clears its
/// cache.
pub(crate) fn forget(path: &Path, busy_timeout: Duration, id: &str) -> Result<bool, ToolError> {
    let work = || -> rusqlite::Result<bool> {
        let mut connection = schema::connect(path, busy_timeout)?;
        // Removed bytes are overwritten on the disk when this returns.
        connection.execute_batch("PRAGMA secure_delete = ON; PRAGMA synchronous = FULL;")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: Option<(i64, i64)> = transaction
            .query_row("SELECT key, head FROM documents WHERE id = ?1", [id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((key, head)) = found else { return Ok(false) };
        {
            // Each change names its predecessor, so no other document's changes are read.
            let mut previous = transaction
                .prepare("DELETE FROM changes WHERE seq = ?1 AND document = ?2 RETURNING previous")?;
            let mut next = Some(head);
            while let Some(seq) = next.filter(|seq| *seq != 0) {
                next = previous.query_row((seq, key), |row| row.get(0)).optional()?;
            }
            transaction.execute("DELETE FROM documents WHERE key = ?1", [key])?;
        }
        transaction.commit()?;
        // The log still has the removed bytes; an open read transaction may delay its truncation.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(true)
    };
    schema::retry_busy(busy_timeout, work).map_err(|error| fault::database(error, path))
}
