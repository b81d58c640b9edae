//! Ending a run from another thread.

use std::sync::Arc;

use crate::platform::Flag;

/// Ends runs from another thread. Clones share one state; once cancelled it stays so, and a run that starts with it
/// ends at once with [`crate::Verdict::Cancelled`].
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    pub(crate) flag: Arc<Flag>,
}

impl Cancel {
    /// A handle that nobody has used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every run that uses this handle: everything that it started is killed. May be called from any thread.
    pub fn cancel(&self) {
        self.flag.set();
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.flag.is_set()
    }
}
