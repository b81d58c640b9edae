//! What was done in a session, so that it can be done again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::CellLimits;
use crate::{Outcome, Verdict};

/// More than this is not kept: the session can then not be saved.
const MAXIMUM_BYTES: usize = 64 << 20;

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Deed {
    /// A cell ran.
    Cell {
        code: String,
        limits: Box<CellLimits>,
        verdict: Verdict,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<serde_json::Value>,
        stdout: String,
    },
    /// A file was uploaded. The content is beside the log when it is saved.
    Upload {
        name: String,
        #[serde(skip)]
        content: Arc<[u8]>,
    },
    /// The interpreter was replaced.
    Reset { fresh: bool },
}

impl Deed {
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

/// What was done, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    deeds: Vec<Arc<Deed>>,
    bytes: usize,
    is_incomplete: bool,
}

impl Log {
    pub(super) fn push(&mut self, deed: Deed) {
        let size = deed.size();
        if self.is_incomplete || self.bytes + size > MAXIMUM_BYTES {
            // What cannot be replayed whole is not kept in part.
            *self = Self { is_incomplete: true, ..Self::default() };
            return;
        }
        self.bytes += size;
        self.deeds.push(Arc::new(deed));
    }

    pub(super) fn cell(&mut self, code: &str, limits: &CellLimits, outcome: &Outcome) {
        self.push(Deed::Cell {
            code: code.to_owned(),
            limits: Box::new(limits.clone()),
            verdict: outcome.verdict.clone(),
            value: outcome.value.clone(),
            stdout: crate::outcome::sha256(&outcome.stdout.bytes()),
        });
    }

    /// Everything that was done; none if it was too much to keep.
    pub(super) fn deeds(&self) -> Option<&[Arc<Deed>]> {
        (!self.is_incomplete).then_some(&self.deeds)
    }

    /// Forgets all: nothing of it is left in the session.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_too_long_is_not_kept_in_part() {
        let mut log = Log::default();
        let upload = |size: usize| Deed::Upload { name: "a".into(), content: vec![0; size].into() };
        log.push(upload(MAXIMUM_BYTES / 2));
        log.push(Deed::Reset { fresh: false });
        assert_eq!(log.deeds().unwrap().len(), 2);
        log.push(upload(MAXIMUM_BYTES));
        assert!(log.deeds().is_none());
        log.push(Deed::Reset { fresh: false });
        assert!(log.deeds().is_none());
        log.clear();
        assert_eq!(log.deeds(), Some(&[][..]));
    }
}
