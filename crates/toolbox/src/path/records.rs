//! The latest records of a toolbox.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use toolpost_core::CallRecord;

/// The latest records, up to a limit.
pub(crate) struct Records {
    records: Mutex<VecDeque<Arc<CallRecord>>>,
    limit: usize,
}

impl Records {
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Mutex::default(), limit }
    }

    pub(super) fn push(&self, record: Arc<CallRecord>) {
        if self.limit == 0 {
            return;
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= self.limit {
            records.pop_front();
        }
        records.push_back(record);
    }

    pub(crate) fn to_vec(&self) -> Vec<Arc<CallRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
