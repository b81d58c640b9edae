//! What a call keeps: its transaction, the versions that it has seen and made, and the commits that are under way.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio::time::timeout;
use toolpost_core::{BoxFuture, StateVersions, ToolError};

use super::host::{CallHost, lock};
use crate::state::transaction::Transaction;

/// How many documents a record names.
const MAX_VERSIONS: usize = 1024;

/// How long a commit that a tool has begun by hand is waited for when the tool itself is done or given up.
const LONGEST_COMMIT: Duration = Duration::from_secs(5);

/// What a call has to do with documents; most have nothing.
#[derive(Default)]
pub(super) struct Keeping {
    transaction: OnceLock<Arc<Transaction>>,
    versions: Mutex<Vec<StateVersions>>,
    commits: Mutex<Commits>,
    /// How many attempts were made before this round of them.
    made_before: AtomicU32,
}

/// Commits that have begun and not ended.
#[derive(Default)]
struct Commits {
    open: usize,
    /// What is left to do when they have ended, because nobody waits for the call any more.
    afterwards: Option<Box<dyn FnOnce() + Send>>,
}

/// A commit that has begun; dropped when it has ended.
struct UnderWay(Arc<CallHost>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut commits = lock(&self.0.keeping().commits);
        commits.open -= 1;
        let afterwards = if commits.open == 0 { commits.afterwards.take() } else { None };
        drop(commits);
        if let Some(afterwards) = afterwards {
            afterwards();
        }
    }
}

impl CallHost {
    /// From now on the call works on documents.
    pub(crate) fn begin_transaction(&self, transaction: &Arc<Transaction>) {
        self.note_speech();
        let _ = self.keeping().transaction.set(Arc::clone(transaction));
    }

    pub(super) fn transaction(&self) -> Option<&Arc<Transaction>> {
        self.kept()?.transaction.get()
    }

    /// The next attempt is the first of a round: those before do not count against the retries of a failed one.
    pub(crate) fn begin_round(&self) {
        self.keeping().made_before.store(self.attempts(), Ordering::Relaxed);
    }

    /// How many attempts were made in this round.
    pub(super) fn attempts_in_round(&self) -> u32 {
        let before = self.kept().map_or(0, |keeping| keeping.made_before.load(Ordering::Relaxed));
        self.attempts() - before
    }

    /// Others may work on the same documents while this call does not.
    pub(super) fn let_others_in(&self) {
        if let Some(transaction) = self.transaction() {
            transaction.let_others_in();
        }
    }

    /// Whether the call itself changes this document.
    ///
    /// # Errors
    /// `PRECONDITION` if it does: a change by hand would stand in its own way.
    pub(crate) fn not_its_own(&self, document: &str) -> Result<(), ToolError> {
        if !self.transaction().is_some_and(|transaction| transaction.changes(document)) {
            return Ok(());
        }
        Err(ToolError::precondition(format!(
            "the document `{document}` is a `#[state]` parameter of this tool, and cannot be changed by hand too"
        ))
        .suggest("Change the parameter."))
    }

    /// Notes for the record which version of a document the call has seen, and which it has made.
    pub(crate) fn note_versions(&self, document: String, before: u64, after: u64) {
        let mut versions = lock(&self.keeping().versions);
        if let Some(known) = versions.iter_mut().find(|known| known.document == document) {
            known.after = after;
        } else if versions.len() < MAX_VERSIONS {
            versions.push(StateVersions { document, before, after });
        }
    }

    pub(super) fn take_versions(&self) -> Vec<StateVersions> {
        self.kept().map(|keeping| std::mem::take(&mut *lock(&keeping.versions))).unwrap_or_default()
    }

    /// Does work that cannot be cancelled once it has begun: if nobody waits for the call any more, the work goes on,
    /// and the record is written after it.
    ///
    /// # Errors
    /// `CANCELLED` if the call is over, and those of the work.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        self: &Arc<Self>,
        work: BoxFuture<'static, Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        {
            let mut commits = lock(&self.keeping().commits);
            // With the other fence: who does not see here that the call is over was seen by who ended it.
            fence(Ordering::SeqCst);
            self.still_wanted()?;
            commits.open += 1;
        }
        let under_way = UnderWay(Arc::clone(self));
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        // A store in memory answers at once, and then there is nothing to cancel.
        let answer = match std::future::poll_fn(|context| Poll::Ready(work.poll_unpin(context))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let task = tokio::spawn(async move {
                    let answer = work.await;
                    drop(under_way);
                    answer
                });
                task.await.map_err(|_| ToolError::internal("the runtime was shut down during a commit"))?
            }
        };
        answer.unwrap_or_else(|_| Err(ToolError::internal("the store of documents panicked during a commit")))
    }

    /// Says that the call is over, between two commits: none begins afterwards, and those before are known to be open.
    pub(super) fn shut_commits(&self, shut: impl FnOnce()) {
        match self.kept() {
            Some(keeping) => {
                let _commits = lock(&keeping.commits);
                shut();
            }
            None => {
                shut();
                fence(Ordering::SeqCst);
                // A thread of the tool may have begun its first one just now: it has the lock for a moment only.
                drop(self.kept().map(|keeping| lock(&keeping.commits)));
            }
        }
    }

    /// Waits until no commit is under way any more, but not for ever: a store that hangs holds nobody up for longer.
    pub(super) async fn commits_ended(&self) {
        let (tell, told) = oneshot::channel();
        self.after_commits(move || {
            // Whoever waited no longer does not hear it.
            let _ = tell.send(());
        });
        if timeout(LONGEST_COMMIT, told).await.is_err() {
            tracing::warn!(call = %self.call.id, tool = %self.entry.name, "a commit by hand goes on after its call");
        }
    }

    /// Does something when no commit is under way any more; at once if none is.
    pub(super) fn after_commits(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(keeping) = self.kept() {
            let mut commits = lock(&keeping.commits);
            if commits.open > 0 {
                commits.afterwards = Some(Box::new(work));
                return;
            }
        }
        work();
    }

    pub(super) fn is_committing(&self) -> bool {
        self.kept().is_some_and(|keeping| lock(&keeping.commits).open > 0)
    }
}
