//! Reads a document back from its changes.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::Value;
use toolpost_core::{Change, Document, Patch, Timestamp, ToolError};

use crate::fault;
use crate::schema::MILESTONE;

/// The newest version of a document and its position in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    /// The row of the document.
    pub(crate) key: i64,
    /// The newest version; 0 if the document is missing.
    pub(crate) version: u64,
    /// The row of the newest change.
    pub(crate) seq: i64,
    /// The bytes of the patches since the last change with a whole document.
    pub(crate) tail: u64,
}

/// A connection, and its file for errors.
#[derive(Clone, Copy)]
pub(crate) struct History<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) path: &'a Path,
}

impl History<'_> {
    fn one<T>(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, ToolError> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row(parameters, read).optional())
            .map_err(|error| fault::database(error, self.path))
    }

    /// The current head of a document.
    pub(crate) fn head(&self, id: &str) -> Result<Option<Head>, ToolError> {
        self.one("SELECT key, version, head, tail FROM documents WHERE id = ?1", [id], |row| {
            Ok(Head {
                key: row.get(0)?,
                version: row.get::<_, i64>(1)?.cast_unsigned(),
                seq: row.get(2)?,
                tail: row.get::<_, i64>(3)?.cast_unsigned(),
            })
        })
    }

    /// The newest version of a document.
    pub(crate) fn load(&self, id: &str) -> Result<Document, ToolError> {
        self.newest(id, self.head(id)?.unwrap_or_default())
    }

    /// The newest version of a document with a known head.
    pub(crate) fn newest(&self, id: &str, head: Head) -> Result<Document, ToolError> {
        self.fold(id, head, head.version, head.seq)
    }

    /// A document at a version.
    pub(crate) fn at(&self, id: &str, version: u64) -> Result<Document, ToolError> {
        let head = self.head(id)?.unwrap_or_default();
        if version > head.version {
            return Err(ToolError::not_found(format!(
                "`{id}` has no version {version}: the newest is {}",
                head.version
            ))
            .suggest(format!("Use a version from 0 to {}.", head.version))
            .with("id", id)
            .with("newest", head.version));
        }
        let seq = if version == 0 { 0 } else { self.find(id, head, version)? };
        self.fold(id, head, version, seq)
    }

    /// The changes after a version, oldest first.
    pub(crate) fn log(&self, id: &str, after: u64, limit: usize) -> Result<Vec<Change>, ToolError> {
        let head = self.head(id)?.unwrap_or_default();
        let last = after.saturating_add(limit as u64).min(head.version);
        if last <= after {
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        let mut seq = self.find(id, head, last)?;
        for version in (after + 1..=last).rev() {
            let (change, previous) = self
                .one(
                    "SELECT at, call, patch, event, previous FROM changes
                     WHERE seq = ?1 AND document = ?2 AND version = ?3",
                    (seq, head.key, version.cast_signed()),
                    |row| Ok((read_change(row, version), row.get(4)?)),
                )?
                .ok_or_else(|| self.lost(id, version))?;
            changes.push(change.map_err(|what| self.damaged(id, version, &what))?);
            seq = previous;
        }
        changes.reverse();
        Ok(changes)
    }

    /// The documents whose id has a prefix.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, ToolError> {
        let read = || -> rusqlite::Result<Vec<(String, u64)>> {
            let mut statement = self.connection.prepare_cached(
                "SELECT id, version FROM documents WHERE id >= ?1 AND id > ?2 ORDER BY id LIMIT ?3",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut rows = statement.query((prefix, after.unwrap_or_default(), limit))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let id: String = row.get(0)?;
                if !id.starts_with(prefix) {
                    break;
                }
                found.push((id, row.get::<_, i64>(1)?.cast_unsigned()));
            }
            Ok(found)
        };
        read().map_err(|error| fault::database(error, self.path))
    }

    /// The row of the change of an existing version.
    fn find(&self, id: &str, head: Head, version: u64) -> Result<i64, ToolError> {
        let (mut seq, mut at) = (head.seq, head.version);
        if head.version - version >= MILESTONE {
            (seq, at) = self
                .one(
                    "SELECT seq, version FROM changes
                     WHERE document = ?1 AND version >= ?2 AND version % 64 = 0 ORDER BY version LIMIT 1",
                    (head.key, version.cast_signed()),
                    |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())),
                )?
                .ok_or_else(|| self.lost(id, version))?;
        }
        while at > version {
            seq = self
                .one(
                    "SELECT previous FROM changes WHERE seq = ?1 AND document = ?2 AND version = ?3",
                    (seq, head.key, at.cast_signed()),
                    |row| row.get(0),
                )?
                .ok_or_else(|| self.lost(id, at))?;
            at -= 1;
        }
        Ok(seq)
    }

    /// A version, rebuilt from the last whole document and the patches since.
    fn fold(&self, id: &str, head: Head, version: u64, seq: i64) -> Result<Document, ToolError> {
        if version == 0 {
            return Ok(Document { id: id.to_owned(), version, value: Arc::new(Value::Null) });
        }
        let mut patches = Vec::new();
        let (mut seq, mut at) = (seq, version);
        let whole = loop {
            let (value, patch, previous): (Option<String>, Option<String>, i64) = self
                .one(
                    "SELECT value, iif(value IS NULL, patch, NULL), previous FROM changes
                     WHERE seq = ?1 AND document = ?2 AND version = ?3",
                    (seq, head.key, at.cast_signed()),
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )?
                .ok_or_else(|| self.lost(id, at))?;
            if let Some(value) = value {
                break value;
            }
            patches.push((at, patch.unwrap_or_default()));
            seq = previous;
            at -= 1;
        };
        let json = |at, text: &str| {
            serde_json::from_str::<Value>(text).map_err(|error| self.damaged(id, at, &error.to_string()))
        };
        let whole = json(at, &whole)?;
        let patches: Vec<Value> =
            patches.iter().rev().map(|(at, patch)| json(*at, patch)).collect::<Result<_, _>>()?;
        let value =
            Patch::replay(&whole, &patches).map_err(|error| self.damaged(id, version, error.message()))?;
        Ok(Document { id: id.to_owned(), version, value: Arc::new(value) })
    }

    fn lost(&self, id: &str, version: u64) -> ToolError {
        self.damaged(id, version, "the change is missing")
    }

    fn damaged(&self, id: &str, version: u64, what: &str) -> ToolError {
        fault::corrupt(self.path, &format!("version {version} of `{id}`: {what}")).with("id", id)
    }
}

/// Parses a row of `at, call, patch, event`. The error names the invalid column.
fn read_change(row: &Row<'_>, version: u64) -> Result<Change, String> {
    let text = |column| row.get::<_, Option<String>>(column).map_err(|error| error.to_string());
    let json = |text: String| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string());
    Ok(Change {
        version,
        at: Timestamp::from_micros(row.get::<_, i64>(0).map_err(|error| error.to_string())?.cast_unsigned()),
        call: text(1)?.map(|id| id.parse()).transpose()?,
        patch: json(text(2)?.unwrap_or_default())?,
        event: text(3)?.map(json).transpose()?,
    })
}
