//! A document that says where something stands, and, as the events of its changes, all that was added to it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{
    Code, Commit, Committed, DocStore, Document, Patch, Timestamp, ToolError, Write, state_conflict, to_json,
};
use toolpost_llm::Scrubber;

/// The version of the format of an event.
const VERSION: u8 = 1;
/// The longest piece of an entry in one event, in bytes. As JSON within JSON it may be twice as long, and the event of a
/// change may have twice the size of a document: 2 MiB unless set.
const PIECE: usize = 512 * 1024;
/// How many changes are read at once.
const PAGE: usize = 16;
/// How many documents are looked at for a list, the youngest first.
pub(super) const MAX_LISTED: usize = 5_000;

/// Where entries are kept, and what must not be seen in them.
#[derive(Clone)]
pub(super) struct Ledger {
    store: Arc<dyn DocStore>,
    scrubber: Arc<Scrubber>,
}

/// One event: an entry, or a piece of one. The text of the entry is JSON within JSON, so that its numbers keep their
/// digits.
#[derive(PartialEq, Serialize, Deserialize)]
struct Piece {
    v: u8,
    /// Which piece of its entry it is, from 0; an entry that ended too early is followed by another 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    part: u32,
    /// Whether there are more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    text: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Ledger {
    pub(super) fn new(store: Arc<dyn DocStore>, scrubber: Arc<Scrubber>) -> Self {
        Self { store, scrubber }
    }

    pub(super) fn with_scrubber(&self, scrubber: Arc<Scrubber>) -> Self {
        Self { store: Arc::clone(&self.store), scrubber }
    }

    pub(super) fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// The newest head, if there is one: not before the first entry is there as a whole.
    pub(super) async fn head(&self, id: &str) -> Result<Option<Document>, ToolError> {
        let document = self.store.load(id).await?;
        Ok((document.version > 0 && !document.value.is_null()).then_some(document))
    }

    /// What a document is now, and whether an entry is in it as a whole that somebody has begun to add when it was as
    /// `known`. The beginning of an entry does not count: it is written again. A change of the head alone adds nothing.
    ///
    /// # Errors
    /// `CONFLICT` if anything else was added since, and those of the store.
    pub(super) async fn settle(
        &self,
        known: &Document,
        text: Option<&str>,
    ) -> Result<(Document, bool), ToolError> {
        let newest = self.store.load(&known.id).await?;
        let conflict = || state_conflict(&known.id, newest.version);
        let (mut after, mut is_whole, mut expected) = (known.version, false, None);
        if newest.version < after {
            return Err(conflict());
        }
        while after < newest.version {
            let changes =
                self.store.log(&known.id, after, PAGE.min((newest.version - after) as usize)).await?;
            if changes.first().is_none_or(|change| change.version != after + 1) {
                return Err(conflict());
            }
            for change in changes {
                after = change.version;
                let Some(event) = change.event else { continue };
                let text = text.filter(|_| !is_whole).ok_or_else(conflict)?;
                let piece: Piece = serde_json::from_value(event).map_err(|_| conflict())?;
                if piece.part == 0 {
                    expected = Some(pieces(text));
                }
                if expected.as_mut().and_then(Iterator::next).as_ref() != Some(&piece) {
                    return Err(conflict());
                }
                is_whole = !piece.more;
            }
        }
        Ok((newest, is_whole))
    }

    /// The text of an entry as it will be kept.
    pub(super) fn text(&self, entry: &impl Serialize) -> Result<String, ToolError> {
        Ok(self.scrubber.scrub_json(&serde_json::to_string(entry)?))
    }

    /// Adds an entry and changes the head, both or none. Returns what the document is now.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else was faster, and those of the store.
    pub(super) async fn append(
        &self,
        mut document: Document,
        head: &impl Serialize,
        text: &str,
    ) -> Result<Document, ToolError> {
        let mut head = self.scrubbed(head)?;
        for piece in pieces(text) {
            // Only the last piece makes the entry count.
            let value = if piece.more { Value::clone(&document.value) } else { std::mem::take(&mut head) };
            document = self.commit(document, value, Some(to_json(&piece)?)).await?;
        }
        Ok(document)
    }

    /// Changes the head alone. Returns what the document is now.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub(super) async fn replace(
        &self,
        document: Document,
        head: &impl Serialize,
    ) -> Result<Document, ToolError> {
        let head = self.scrubbed(head)?;
        self.commit(document, head, None).await
    }

    /// A head as it is kept.
    pub(super) fn scrubbed(&self, head: &impl Serialize) -> Result<Value, ToolError> {
        Ok(serde_json::from_str(&self.text(head)?)?)
    }

    /// Commits a document; the error if somebody else was faster.
    pub(super) async fn commit(
        &self,
        document: Document,
        value: Value,
        event: Option<Value>,
    ) -> Result<Document, ToolError> {
        let patch = Patch::diff(&document.value, &value).to_value();
        let value = Arc::new(value);
        let write =
            Write { id: document.id.clone(), base: document.version, patch, value: Arc::clone(&value) };
        match self.store.commit(Commit { writes: vec![write], event, ..Commit::default() }).await? {
            Committed::Done(versions) => {
                let version = versions.first().copied().unwrap_or(document.version + 1);
                Ok(Document { id: document.id, version, value })
            }
            Committed::Conflict(newest) => {
                let version = newest.first().map_or(0, |newest| newest.version);
                Err(state_conflict(&document.id, version))
            }
        }
    }

    /// Gives all entries up to a version, oldest first, with when each was kept, until `each` says that it is enough.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        id: &str,
        version: u64,
        mut each: impl FnMut(Timestamp, T) -> bool,
    ) -> Result<(), ToolError> {
        let damaged = |version: u64, what: String| {
            ToolError::new(Code::Dependency, format!("`{id}`, version {version}, cannot be read: {what}"))
                .suggest("It is damaged, or a newer program wrote it: delete it, or use that program.")
        };
        let (mut text, mut next, mut after) = (String::new(), 0, 0);
        while after < version {
            let changes = self.store.log(id, after, PAGE.min((version - after) as usize)).await?;
            if changes.first().is_none_or(|change| change.version != after + 1) {
                return Err(damaged(after + 1, "the store does not keep it any more".into()));
            }
            for change in changes {
                after = change.version;
                let Some(event) = change.event else { continue };
                let piece: Piece =
                    serde_json::from_value(event).map_err(|error| damaged(after, error.to_string()))?;
                if piece.v != VERSION {
                    return Err(damaged(after, format!("v: expected {VERSION}, found {}", piece.v)));
                }
                if piece.part == 0 {
                    text.clear();
                } else if piece.part != next {
                    return Err(damaged(after, format!("piece {} comes after piece {next}", piece.part)));
                }
                next = piece.part + 1;
                text.push_str(&piece.text);
                if piece.more {
                    continue;
                }
                let entry = serde_json::from_str(&text).map_err(|error| damaged(after, error.to_string()))?;
                if !each(change.at, entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The names below a prefix, the youngest first, at most so many. Names sort by when they were made.
    pub(super) async fn names(&self, prefix: &str, most: usize) -> Result<Vec<String>, ToolError> {
        let mut names: std::collections::VecDeque<String> = std::collections::VecDeque::new();
        loop {
            let page = self.store.list(prefix, names.back().map(String::as_str), 1_000).await?;
            if page.is_empty() {
                break;
            }
            names.extend(page.into_iter().map(|(name, _)| name));
            let too_many = names.len().saturating_sub(most);
            names.drain(..too_many);
        }
        Ok(names.into_iter().rev().collect())
    }

    /// The one name below a prefix that begins so.
    pub(super) async fn find(&self, prefix: &str, start: &str, what: &str) -> Result<String, ToolError> {
        let start = start.trim().to_ascii_lowercase();
        let is_id = !start.is_empty() && start.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let found =
            if is_id { self.store.list(&format!("{prefix}{start}"), None, 2).await? } else { Vec::new() };
        match found.as_slice() {
            [(name, _)] => Ok(name.strip_prefix(prefix).unwrap_or(name).to_owned()),
            [] => Err(ToolError::not_found(format!("there is no {what} `{start}`"))
                .suggest(format!("List what is kept: the name of a {what}, or its beginning, is enough."))),
            _ => Err(ToolError::invalid_input(format!("several {what}s begin with `{start}`"))
                .suggest("Give more of its letters.")),
        }
    }

    pub(super) async fn forget(&self, id: &str) -> Result<bool, ToolError> {
        self.store.forget(id).await
    }
}

/// A text in pieces that one event can carry; one even if it is empty.
fn pieces(text: &str) -> impl Iterator<Item = Piece> {
    let mut rest = Some(text);
    (0..).map_while(move |part| {
        let text = rest.take()?;
        let (piece, after) = text.split_at(text.floor_char_boundary(PIECE));
        rest = Some(after).filter(|after| !after.is_empty());
        Some(Piece { v: VERSION, part, more: rest.is_some(), text: piece.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_text_and_none_is_too_long() {
        for text in [String::new(), "ü".repeat(PIECE), "x".repeat(PIECE), "ab".repeat(PIECE + 1)] {
            let parts: Vec<Piece> = pieces(&text).collect();
            assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), text);
            assert!(parts.iter().all(|part| part.text.len() <= PIECE));
            assert!((0..).zip(&parts).all(|(number, part)| part.part == number));
            assert_eq!(parts.iter().filter(|part| !part.more).count(), 1);
            assert!(!parts.last().unwrap().more);
        }
        assert_eq!(pieces("").count(), 1);
    }
}
