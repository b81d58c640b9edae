//! What is to be added to a document, until it is there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use toolpost_core::{Code, Document, ToolError};

use super::ledger::Ledger;

/// How often an entry is written while others change the head alone.
const MAX_ATTEMPTS: usize = 8;

/// A document of a ledger, and what is to be added to it, oldest first. What a store could not take, or what nobody has
/// waited for, stays here, and the next flush resumes it from the document's stored position: what is kept is
/// always a beginning of what was added.
pub(super) struct Backlog<H> {
    ledger: Ledger,
    read: fn(&Document) -> Result<H, ToolError>,
    state: Mutex<State<H>>,
    /// Held while something is written.
    writing: tokio::sync::Mutex<()>,
}

struct State<H> {
    /// The document and its head, as far as is known.
    document: Document,
    head: H,
    waiting: VecDeque<Arc<Waiting<H>>>,
}

struct Waiting<H> {
    /// The entry as it is kept; none if the head alone changes.
    text: Option<String>,
    /// What it changes of the head.
    change: Box<dyn Fn(&mut H) + Send + Sync>,
}

impl<H: Serialize + Clone> Backlog<H> {
    /// Nothing to add to a document with this head, which `read` reads again.
    pub(super) fn new(
        ledger: Ledger,
        document: Document,
        head: H,
        read: fn(&Document) -> Result<H, ToolError>,
    ) -> Self {
        let state = Mutex::new(State { document, head, waiting: VecDeque::new() });
        Self { ledger, read, state, writing: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        // Nothing is left half done behind it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The head as it will be when nothing waits any more.
    pub(super) fn head(&self) -> H {
        let state = self.state();
        let mut head = state.head.clone();
        state.waiting.iter().for_each(|waiting| (waiting.change)(&mut head));
        head
    }

    /// Whether nothing of the document is kept, nor waits to be.
    pub(super) fn is_new(&self) -> bool {
        let state = self.state();
        state.document.version == 0 && state.waiting.is_empty()
    }

    /// Changes the head of a document of which nothing is kept yet.
    pub(super) fn prepare(&self, change: impl FnOnce(&mut H)) {
        change(&mut self.state().head);
    }

    /// Goes on from another state of the document.
    pub(super) fn restart(&self, document: Document, head: H) {
        *self.state() = State { document, head, waiting: VecDeque::new() };
    }

    /// Adds an entry, as the ledger has its text, or a change of the head alone.
    pub(super) fn push(&self, text: Option<String>, change: impl Fn(&mut H) + Send + Sync + 'static) {
        self.state().waiting.push_back(Arc::new(Waiting { text, change: Box::new(change) }));
    }

    /// Writes what waits, each time with what `besides` says of the head now.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else has added to the document, which stays so; and those of the store: then the next flush
    /// goes on from there.
    pub(super) async fn flush(&self, besides: impl Fn(&mut H)) -> Result<(), ToolError> {
        let _alone = self.writing.lock().await;
        loop {
            let next = self.state().waiting.front().cloned();
            let Some(next) = next else { return Ok(()) };
            self.write(&next, &besides).await?;
        }
    }

    /// Makes sure that nobody else has added to the document.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub(super) async fn check(&self) -> Result<(), ToolError> {
        let _alone = self.writing.lock().await;
        let next = self.state().waiting.front().cloned();
        self.settle(next.as_deref()).await.map(drop)
    }

    async fn write(&self, next: &Waiting<H>, besides: &impl Fn(&mut H)) -> Result<(), ToolError> {
        for _ in 0..MAX_ATTEMPTS {
            let (document, mut head) = {
                let state = self.state();
                (state.document.clone(), state.head.clone())
            };
            (next.change)(&mut head);
            besides(&mut head);
            let known = document.version;
            let committed = match &next.text {
                Some(text) => self.ledger.append(document, &head, text).await,
                None => self.ledger.replace(document, &head).await,
            };
            match committed {
                Ok(document) => {
                    let mut state = self.state();
                    (state.document, state.head) = (document, head);
                    state.waiting.pop_front();
                    return Ok(());
                }
                // It may be our own, of a time when its end was not seen.
                Err(error) if error.code() == Code::Conflict => {
                    if self.settle(Some(next)).await? || self.is_there(next, known, &head)? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(ToolError::dependency(format!("`{}` is changed all the time", self.state().document.id)))
    }

    /// Whether a change of the head alone that was tried before is what became of the document as it was known. It is made
    /// once: a sum would count twice.
    fn is_there(&self, next: &Waiting<H>, known: u64, head: &H) -> Result<bool, ToolError> {
        if next.text.is_some() {
            return Ok(false);
        }
        let tried = self.ledger.scrubbed(head)?;
        let mut state = self.state();
        let is_there = state.document.version == known + 1 && *state.document.value == tried;
        if is_there {
            state.waiting.pop_front();
        }
        Ok(is_there)
    }

    /// Takes over where the document stands now; whether what waits first is in it.
    async fn settle(&self, next: Option<&Waiting<H>>) -> Result<bool, ToolError> {
        let known = self.state().document.clone();
        let text = next.and_then(|next| next.text.as_deref());
        let (document, is_there) = self.ledger.settle(&known, text).await?;
        // Of a document that has no more than the beginning of its first entry there is no head yet.
        let head = if document.value.is_null() { None } else { Some((self.read)(&document)?) };
        let mut state = self.state();
        state.document = document;
        if let Some(head) = head {
            state.head = head;
        }
        if is_there {
            state.waiting.pop_front();
        }
        Ok(is_there)
    }
}
