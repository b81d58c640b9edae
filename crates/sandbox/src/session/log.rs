//! The log of a session: its cells, uploads and resets, for a replay.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::CellLimits;
use crate::{Outcome, Verdict};

/// The largest log in bytes. A longer log is discarded, and the session cannot be saved.
const MAX_BYTES: usize = 64 << 20;

/// One action in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Entry {
    /// A cell ran.
    Cell {
        code: String,
        limits: Box<CellLimits>,
        verdict: Verdict,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<serde_json::Value>,
        stdout: String,
    },
    /// A file was uploaded. Saving writes the content to its own file.
    Upload {
        name: String,
        #[serde(skip)]
        content: Arc<[u8]>,
    },
    /// The interpreter was replaced.
    Reset { fresh: bool },
}

impl Entry {
    fn size(&self) -> usize {
        match self {
            Self::Cell { code, value, .. } => {
                code.len() + value.as_ref().map_or(0, |value| value.to_string().len()) + 1000
            }
            Self::Upload { name, content } => name.len() + content.len(),
            Self::Reset { .. } => 1,
        }
    }
}

/// The actions of a session in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    entries: Vec<Arc<Entry>>,
    bytes: usize,
    is_incomplete: bool,
}

impl Log {
    pub(super) fn push(&mut self, deed: Entry) {
        let size = deed.size();
        if self.is_incomplete || self.bytes + size > MAX_BYTES {
            // A partial log is useless: discard it.
            *self = Self { is_incomplete: true, ..Self::default() };
            return;
        }
        self.bytes += size;
        self.entries.push(Arc::new(deed));
    }

    pub(super) fn cell(&mut self, code: &str, limits: &CellLimits, outcome: &Outcome) {
        self.push(Entry::Cell {
            code: code.to_owned(),
            limits: Box::new(limits.clone()),
            verdict: outcome.verdict.clone(),
            value: outcome.value.clone(),
            stdout: crate::outcome::sha256(&outcome.stdout.bytes()),
        });
    }

    /// All actions, or none if the log became too long.
    pub(super) fn entries(&self) -> Option<&[Arc<Entry>]> {
        (!self.is_incomplete).then_some(&self.entries)
    }

    /// Discards all actions after a full reset.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_too_long_is_discarded_whole() {
        let mut log = Log::default();
        let upload = |size: usize| Entry::Upload { name: "a".into(), content: vec![0; size].into() };
        log.push(upload(MAX_BYTES / 2));
        log.push(Entry::Reset { fresh: false });
        assert_eq!(log.entries().unwrap().len(), 2);
        log.push(upload(MAX_BYTES));
        assert!(log.entries().is_none());
        log.push(Entry::Reset { fresh: false });
        assert!(log.entries().is_none());
        log.clear();
        assert_eq!(log.entries(), Some(&[][..]));
    }
}
