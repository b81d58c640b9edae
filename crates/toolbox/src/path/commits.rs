//! The documents of a call: its transaction, its document versions, and its running commits.

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

/// The maximum number of documents in a record.
const MAX_VERSIONS: usize = 1024;

/// The time that the end of a call waits for its running commits.
const MAX_COMMIT: Duration = Duration::from_secs(5);

/// The document state of a call. Most calls have none.
#[derive(Default)]
pub(super) struct CallDocuments {
    transaction: OnceLock<Arc<Transaction>>,
    versions: Mutex<Vec<StateVersions>>,
    commits: Mutex<Commits>,
    /// The number of attempts before this round.
    attempts_before: AtomicU32,
}

/// The running commits.
#[derive(Default)]
struct Commits {
    open: usize,
    /// Runs after the last commit, if the call has ended before.
    afterwards: Option<Box<dyn FnOnce() + Send>>,
}

/// A running commit; its drop ends it.
struct RunningCommit(Arc<CallHost>);

impl Drop for RunningCommit {
    fn drop(&mut self) {
        let mut commits = lock(&self.0.call_documents().commits);
        commits.open -= 1;
        let afterwards = if commits.open == 0 { commits.afterwards.take() } else { None };
        drop(commits);
        if let Some(afterwards) = afterwards {
            afterwards();
        }
    }
}

impl CallHost {
    /// Sets the transaction of the call.
    pub(crate) fn begin_transaction(&self, transaction: &Arc<Transaction>) {
        self.mark_uncacheable();
        let _ = self.call_documents().transaction.set(Arc::clone(transaction));
    }

    pub(super) fn transaction(&self) -> Option<&Arc<Transaction>> {
        self.existing_documents()?.transaction.get()
    }

    /// Starts a new round of attempts. Earlier attempts do not count against its retries.
    pub(crate) fn begin_round(&self) {
        self.call_documents().attempts_before.store(self.attempts(), Ordering::Relaxed);
    }

    /// The number of attempts in this round.
    pub(super) fn attempts_in_round(&self) -> u32 {
        let before = self
            .existing_documents()
            .map_or(0, |documents| documents.attempts_before.load(Ordering::Relaxed));
        self.attempts() - before
    }

    /// Releases the documents of the call to other calls.
    pub(super) fn release_documents(&self) {
        if let Some(transaction) = self.transaction() {
            transaction.release_documents();
        }
    }

    /// Checks that the call does not change this document itself.
    ///
    /// # Errors
    /// `PRECONDITION` if it does: a direct commit would conflict with its own.
    pub(crate) fn check_not_in_transaction(&self, document: &str) -> Result<(), ToolError> {
        if !self.transaction().is_some_and(|transaction| transaction.changes(document)) {
            return Ok(());
        }
        Err(ToolError::precondition(format!(
            "the document `{document}` is a `#[state]` parameter of this tool; a direct change is not possible"
        ))
        .suggest("Change the parameter."))
    }

    /// Records the versions of a document before and after the call.
    pub(crate) fn note_versions(&self, document: String, before: u64, after: u64) {
        let mut versions = lock(&self.call_documents().versions);
        if let Some(known) = versions.iter_mut().find(|known| known.document == document) {
            known.after = after;
        } else if versions.len() < MAX_VERSIONS {
            versions.push(StateVersions { document, before, after });
        }
    }

    pub(super) fn take_versions(&self) -> Vec<StateVersions> {
        self.existing_documents()
            .map(|documents| std::mem::take(&mut *lock(&documents.versions)))
            .unwrap_or_default()
    }

    /// Runs work to its end, even if the call is dropped. The record is written after it.
    ///
    /// # Errors
    /// `CANCELLED` if the call has ended, and those of the work.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        self: &Arc<Self>,
        work: BoxFuture<'static, Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        {
            let mut commits = lock(&self.call_documents().commits);
            // Pairs with the fence in `close_commits`: either this sees the end of the call, or that sees
            // this commit.
            fence(Ordering::SeqCst);
            self.check_open()?;
            commits.open += 1;
        }
        let running = RunningCommit(Arc::clone(self));
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        // A memory store answers at once; then there is nothing to cancel.
        let answer = match std::future::poll_fn(|context| Poll::Ready(work.poll_unpin(context))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let task = tokio::spawn(async move {
                    let answer = work.await;
                    drop(running);
                    answer
                });
                task.await.map_err(|_| ToolError::internal("the runtime was shut down during a commit"))?
            }
        };
        answer.unwrap_or_else(|_| Err(ToolError::internal("the store of documents panicked during a commit")))
    }

    /// Ends the call between two commits: none starts afterwards, and earlier ones are counted.
    pub(super) fn close_commits(&self, shut: impl FnOnce()) {
        match self.existing_documents() {
            Some(documents) => {
                let _commits = lock(&documents.commits);
                shut();
            }
            None => {
                shut();
                fence(Ordering::SeqCst);
                // A thread of the tool may just have begun its first commit.
                drop(self.existing_documents().map(|documents| lock(&documents.commits)));
            }
        }
    }

    /// Waits for the running commits, up to a timeout.
    pub(super) async fn commits_ended(&self) {
        let (sender, receiver) = oneshot::channel();
        self.after_commits(move || {
            // The receiver may be gone after the timeout.
            let _ = sender.send(());
        });
        if timeout(MAX_COMMIT, receiver).await.is_err() {
            tracing::warn!(call = %self.call.id, tool = %self.entry.name, "a commit continues after its call");
        }
    }

    /// Runs work after the running commits; at once without any.
    pub(super) fn after_commits(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(documents) = self.existing_documents() {
            let mut commits = lock(&documents.commits);
            if commits.open > 0 {
                commits.afterwards = Some(Box::new(work));
                return;
            }
        }
        work();
    }

    pub(super) fn is_committing(&self) -> bool {
        self.existing_documents().is_some_and(|documents| lock(&documents.commits).open > 0)
    }
}
