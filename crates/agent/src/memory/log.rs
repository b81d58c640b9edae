//! Documents with a head and a history: each change sets the head and may append an entry, as its event.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{
    Code, Commit, Committed, DocStore, Document, Patch, RunId, Timestamp, ToolError, Write, newer_format,
    state_conflict, to_json,
};
use toolpost_llm::{Scrubber, Secret};

/// The version of the format of heads and events.
pub(super) const VERSION: u8 = 1;
/// Bytes of an entry in one event. As JSON within JSON they may double, and an event has at most 2 MiB by default.
const PIECE: usize = 512 * 1024;
/// Changes that are read at once.
const PAGE: usize = 16;
/// Documents that a list reads, the latest first.
pub(super) const MAX_LISTED: usize = 5_000;
/// Attempts to write a change while unfinished entries of other writers interfere.
const MAX_ATTEMPTS: usize = 8;
/// Secrets in tool calls that one document masks.
const MAX_CALL_SECRETS: usize = 1_000;
/// The member of a document that identifies its last complete change.
const CHANGE: &str = "change";

/// A store of such documents. A scrubber masks secrets in all that it writes.
#[derive(Clone)]
pub(super) struct LogStore {
    store: Arc<dyn DocStore>,
    scrubber: Scrubber,
}

/// One event: an entry, or a piece of a long one. The text is JSON within JSON, so that numbers keep their digits.
#[derive(Serialize, Deserialize)]
struct Piece {
    v: u8,
    /// The number of the piece, from 0. A 0 after an unfinished entry replaces it.
    #[serde(default)]
    part: u32,
    /// Whether more pieces follow.
    #[serde(default)]
    more: bool,
    text: String,
}

impl LogStore {
    pub(super) fn new(store: Arc<dyn DocStore>) -> Self {
        Self { store, scrubber: Scrubber::default() }
    }

    pub(super) fn with_secrets(self, secrets: impl Into<Scrubber>) -> Self {
        Self { scrubber: secrets.into(), ..self }
    }

    pub(super) fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// A document, if it has a head: not before its first entry is complete.
    pub(super) async fn load(&self, id: &str) -> Result<Option<Document>, ToolError> {
        let document = self.store.load(id).await?;
        Ok((document.version > 0 && !document.value.is_null()).then_some(document))
    }

    /// The latest documents with a prefix whose head matches, at most `limit`. Skips invalid documents.
    pub(super) async fn heads<H: DeserializeOwned>(
        &self,
        prefix: &str,
        matches: impl Fn(&H) -> bool,
        limit: usize,
    ) -> Result<Vec<H>, ToolError> {
        let mut found = Vec::new();
        for name in self.names(prefix, MAX_LISTED).await? {
            if found.len() >= limit {
                break;
            }
            let Some(document) = self.load(&name).await? else { continue };
            found.extend(parse_head(&document).ok().filter(|head| matches(head)));
        }
        Ok(found)
    }

    /// The stored text of an entry or a head.
    pub(super) fn text(&self, entry: &impl Serialize) -> Result<String, ToolError> {
        Ok(self.scrubber.scrub_json(&serde_json::to_string(entry)?))
    }

    /// Sets the head and appends an entry, if any, at once. Returns the new document.
    ///
    /// # Errors
    /// `CONFLICT` if another writer was faster, and errors of the store.
    pub(super) async fn write(
        &self,
        mut document: Document,
        head: &impl Serialize,
        change: &str,
        text: Option<&str>,
    ) -> Result<Document, ToolError> {
        let mut head: Value = serde_json::from_str(&self.text(head)?)?;
        if let Value::Object(members) = &mut head {
            members.insert(CHANGE.to_owned(), change.into());
        }
        let Some(text) = text else { return self.commit(document, head, None).await };
        for piece in pieces(text) {
            // The last piece completes the entry.
            let value = if piece.more { Value::clone(&document.value) } else { std::mem::take(&mut head) };
            document = self.commit(document, value, Some(to_json(&piece)?)).await?;
        }
        Ok(document)
    }

    async fn commit(
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

    /// Reads the entries of a document, oldest first, until `each` returns false.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        document: &Document,
        mut each: impl FnMut(Timestamp, T) -> bool,
    ) -> Result<(), ToolError> {
        let (id, version) = (&document.id, document.version);
        let damaged = |at: u64, problem: String| invalid(id, &format!("version {at}: {problem}"));
        let (mut text, mut next, mut after) = (String::new(), 0, 0);
        while after < version {
            let changes = self.store.log(id, after, PAGE.min((version - after) as usize)).await?;
            if changes.first().is_none_or(|change| change.version != after + 1) {
                return Err(damaged(after + 1, "the store has deleted it".into()));
            }
            for change in changes {
                after = change.version;
                let Some(event) = change.event else { continue };
                let piece: Piece =
                    serde_json::from_value(event).map_err(|error| damaged(after, error.to_string()))?;
                if piece.v > VERSION {
                    return Err(newer(id, piece.v.into()));
                }
                if piece.v != VERSION {
                    return Err(damaged(after, format!("v: expected {VERSION}, found {}", piece.v)));
                }
                if piece.part == 0 {
                    text.clear();
                } else if piece.part != next {
                    return Err(damaged(after, format!("part: expected {next}, found {}", piece.part)));
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

    /// The names with a prefix, the latest first, at most `max`. Names sort by creation time.
    pub(super) async fn names(&self, prefix: &str, max: usize) -> Result<Vec<String>, ToolError> {
        let mut names: VecDeque<String> = VecDeque::new();
        loop {
            let page = self.store.list(prefix, names.back().map(String::as_str), 1_000).await?;
            if page.is_empty() {
                return Ok(names.into_iter().rev().collect());
            }
            names.extend(page.into_iter().map(|(name, _)| name));
            names.drain(..names.len().saturating_sub(max));
        }
    }

    /// The id of the only document with a prefix whose id begins with `start`.
    pub(super) async fn find(&self, prefix: &str, start: &str, kind: &str) -> Result<String, ToolError> {
        let start = start.trim().to_ascii_lowercase();
        let is_id = !start.is_empty() && start.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let found =
            if is_id { self.store.list(&format!("{prefix}{start}"), None, 2).await? } else { Vec::new() };
        match found.as_slice() {
            [(name, _)] => Ok(name.strip_prefix(prefix).unwrap_or(name).to_owned()),
            [] => Err(ToolError::not_found(format!("unknown {kind} `{start}`"))
                .suggest(format!("List the stored {kind}s; an id or its beginning is enough."))),
            _ => Err(ToolError::invalid_input(format!("several {kind}s begin with `{start}`"))
                .suggest("Give more characters of the id.")),
        }
    }

    pub(super) async fn delete(&self, id: &str) -> Result<bool, ToolError> {
        self.store.forget(id).await
    }
}

/// The secrets in the tool calls of one run or conversation, which its later entries mask too.
#[derive(Default)]
pub(super) struct CallSecrets(Vec<Secret>);

impl CallSecrets {
    /// Adds secrets; at most 1,000 in all.
    pub(super) fn add(&mut self, secrets: Vec<Secret>) {
        for secret in secrets {
            if self.0.len() < MAX_CALL_SECRETS && !self.0.contains(&secret) {
                self.0.push(secret);
            }
        }
    }

    /// The scrubber of the store with these secrets.
    pub(super) fn scrubber(&self, store: &LogStore) -> Scrubber {
        store.scrubber.with_secrets(self.0.iter().cloned())
    }

    /// The stored text of an entry.
    pub(super) fn text(&self, store: &LogStore, entry: &impl Serialize) -> Result<String, ToolError> {
        Ok(self.scrubber(store).scrub_json(&serde_json::to_string(entry)?))
    }
}

/// Parses the head of a document.
pub(super) fn parse_head<H: DeserializeOwned>(document: &Document) -> Result<H, ToolError> {
    let version = document.value.get("v").unwrap_or(&Value::Null);
    if let Some(found) = version.as_u64().filter(|found| *found > u64::from(VERSION)) {
        return Err(newer(&document.id, found));
    }
    let head = if *version == VERSION {
        H::deserialize(&*document.value).map_err(|error| error.to_string())
    } else {
        Err(format!("v: expected {VERSION}, found {version}"))
    };
    head.map_err(|problem| invalid(&document.id, &problem))
}

fn newer(id: &str, found: u64) -> ToolError {
    newer_format(format_args!("the stored document `{id}`"), found, VERSION.into())
}

fn invalid(id: &str, problem: &str) -> ToolError {
    ToolError::new(Code::Dependency, format!("the stored document `{id}` is invalid: {problem}"))
        .suggest("Delete it, or restore a backup of the store.")
}

/// The identity of the last complete change of a document.
fn last_change(document: &Document) -> Option<&Value> {
    document.value.get(CHANGE)
}

/// The identity of a new change.
pub(super) fn new_change() -> String {
    RunId::new().to_string()
}

/// Splits a text into pieces; an empty text is one piece.
fn pieces(text: &str) -> impl Iterator<Item = Piece> {
    let mut rest = Some(text);
    (0..).map_while(move |part| {
        let text = rest.take()?;
        let (piece, after) = text.split_at(text.floor_char_boundary(PIECE));
        rest = Some(after).filter(|after| !after.is_empty());
        Some(Piece { v: VERSION, part, more: rest.is_some(), text: piece.to_owned() })
    })
}

/// A document and its pending changes, oldest first.
///
/// A change that the store rejected, or whose future was dropped, stays pending until the next flush. The stored part is
/// always a prefix of the changes.
pub(super) struct Log<H> {
    store: LogStore,
    state: Mutex<LogCursor<H>>,
    /// Locked during writes.
    writing: tokio::sync::Mutex<()>,
}

struct LogCursor<H> {
    /// The document as stored.
    document: Document,
    /// The head after all pending changes.
    head: H,
    pending: VecDeque<Pending<H>>,
}

#[derive(Clone)]
struct Pending<H> {
    id: String,
    /// The entry; `None` if only the head changes.
    text: Option<Arc<str>>,
    /// The head after the change.
    head: H,
    /// Whether the store may have the change.
    is_sent: bool,
}

impl<H: Clone> LogCursor<H> {
    fn push(&mut self, text: Option<Arc<str>>, change: impl FnOnce(&mut H)) {
        change(&mut self.head);
        let head = self.head.clone();
        self.pending.push_back(Pending { id: new_change(), text, head, is_sent: false });
    }
}

impl<H: Serialize + Clone> Log<H> {
    pub(super) fn new(store: LogStore, document: Document, head: H) -> Self {
        let state = LogCursor { document, head, pending: VecDeque::new() };
        Self { store, state: Mutex::new(state), writing: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, LogCursor<H>> {
        // No panic leaves a partial change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self) -> &LogStore {
        &self.store
    }

    /// The head after all pending changes.
    pub(super) fn head(&self) -> H {
        self.state().head.clone()
    }

    /// Continues from another version of the document.
    pub(super) fn restart(&self, document: Document, head: H) {
        *self.state() = LogCursor { document, head, pending: VecDeque::new() };
    }

    /// Appends an entry and changes the head.
    pub(super) fn append(&self, text: String, change: impl FnOnce(&mut H)) {
        self.state().push(Some(text.into()), change);
    }

    /// Changes the head, with the last pending change if that was not sent yet.
    pub(super) fn update(&self, change: impl FnOnce(&mut H)) {
        let state = &mut *self.state();
        match state.pending.back_mut().filter(|last| !last.is_sent) {
            Some(last) => {
                change(&mut state.head);
                last.head.clone_from(&state.head);
            }
            None => state.push(None, change),
        }
    }

    /// Writes the pending changes.
    ///
    /// # Errors
    /// `CONFLICT` if another writer changed the document, now and on every later flush. Errors of the store: the next flush
    /// continues there.
    pub(super) async fn flush(&self) -> Result<(), ToolError> {
        let _writing = self.writing.lock().await;
        while !self.state().pending.is_empty() {
            self.write_next().await?;
        }
        Ok(())
    }

    /// Checks that no other writer changed the document.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub(super) async fn check(&self) -> Result<(), ToolError> {
        let _writing = self.writing.lock().await;
        self.reload().await.map(drop)
    }

    async fn write_next(&self) -> Result<(), ToolError> {
        for _ in 0..MAX_ATTEMPTS {
            let (document, next) = {
                let mut state = self.state();
                let document = state.document.clone();
                let Some(next) = state.pending.front_mut() else { return Ok(()) };
                next.is_sent = true;
                (document, next.clone())
            };
            match self.store.write(document, &next.head, &next.id, next.text.as_deref()).await {
                Ok(document) => {
                    let mut state = self.state();
                    state.document = document;
                    state.pending.pop_front();
                    return Ok(());
                }
                // The conflict may be with an earlier attempt of this writer.
                Err(error) if error.code() == Code::Conflict => {
                    if self.reload().await? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let id = self.state().document.id.clone();
        Err(ToolError::dependency(format!("other writers keep changing `{id}`")))
    }

    /// Reloads the document. Returns whether it has the first pending change. Unfinished entries do not count.
    async fn reload(&self) -> Result<bool, ToolError> {
        let id = self.state().document.id.clone();
        let newest = self.store.store.load(&id).await?;
        let mut state = self.state();
        let last = last_change(&newest);
        let is_written = last.is_some_and(|last| state.pending.front().is_some_and(|next| *last == *next.id));
        if !is_written && last != last_change(&state.document) {
            return Err(state_conflict(&id, newest.version));
        }
        state.document = newest;
        if is_written {
            state.pending.pop_front();
        }
        Ok(is_written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_concatenate_to_the_text() {
        for text in [String::new(), "ü".repeat(PIECE), "x".repeat(PIECE), "ab".repeat(PIECE + 1)] {
            let parts: Vec<Piece> = pieces(&text).collect();
            assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), text);
            assert!(parts.iter().all(|part| part.text.len() <= PIECE));
            assert!((0..).zip(&parts).all(|(number, part)| part.part == number));
            let last = parts.len() - 1;
            assert!(parts.iter().enumerate().all(|(index, part)| part.more == (index < last)));
        }
    }
}
