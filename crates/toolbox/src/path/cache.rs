//! Answers that are kept, for the same caller and the same arguments.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use serde_json::Value;
use toolpost_core::{Call, Output};

use super::check::json_size;
use super::run::now;
use crate::registry::Entry;
use crate::toolbox::Shared;

struct Kept {
    output: Output,
    bytes: usize,
    until: Instant,
}

/// Bounded in entries and bytes; the oldest go first.
pub(crate) struct Cache {
    entries: HashMap<Arc<str>, Kept>,
    order: VecDeque<Arc<str>>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Cache {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), bytes: 0, max_entries, max_bytes }
    }

    fn get(&mut self, key: &str, now: Instant) -> Option<Output> {
        let kept = self.entries.get(key)?;
        if kept.until > now {
            return Some(kept.output.clone());
        }
        self.forget(key);
        None
    }

    fn forget(&mut self, key: &str) {
        if let Some(kept) = self.entries.remove(key) {
            self.bytes -= kept.bytes;
            self.order.retain(|known| **known != *key);
        }
    }

    fn put(&mut self, key: Arc<str>, kept: Kept) {
        if kept.bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        self.forget(&key);
        while self.entries.len() >= self.max_entries || self.bytes + kept.bytes > self.max_bytes {
            let Some(oldest) = self.order.front().cloned() else { break };
            self.forget(&oldest);
        }
        self.bytes += kept.bytes;
        self.order.push_back(Arc::clone(&key));
        self.entries.insert(key, kept);
    }
}

/// What the answer depends on; `None` if it is not to be kept.
///
/// A call with injected values of its own is never kept: nobody can tell what the answer has of them.
pub(super) fn key(entry: &Entry, call: &Call) -> Option<String> {
    entry.spec.policy.cache?;
    if !entry.spec.annotations.idempotent
        || call.options.no_cache
        || call.options.mock
        || !call.values.is_empty()
    {
        return None;
    }
    let owner = call.scope.as_ref().map(toolpost_core::Scope::owner);
    let mut key = format!("{}\0{:?}\0{:?}\0{:?}\0", entry.name, call.caller, owner, call.options.working_dir);
    write_canonical(&call.arguments, &mut key);
    Some(key)
}

/// JSON with the keys in order, so that equal arguments have equal keys.
fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in entries {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

pub(super) fn get(toolbox: &Shared, key: Option<&str>) -> Option<Output> {
    toolbox.cache.lock().unwrap_or_else(PoisonError::into_inner).get(key?, now())
}

pub(super) fn put(toolbox: &Shared, key: Option<String>, entry: &Entry, output: &Output) {
    let (Some(key), Some(time)) = (key, entry.spec.policy.cache) else { return };
    // A payload belongs to one caller, a partial result may be better next time.
    if output.payload.is_some() || output.partial.is_some() || !output.artifacts.is_empty() {
        return;
    }
    let Some(until) = now().checked_add(time) else { return };
    let Some(bytes) = json_size(&(&output.content, &output.structured), toolbox.settings().cache_bytes)
    else {
        return;
    };
    let kept = Kept { output: output.clone(), bytes: bytes + key.len(), until };
    toolbox.cache.lock().unwrap_or_else(PoisonError::into_inner).put(key.into(), kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_cache_is_bounded_in_entries_and_bytes() {
        let start = Instant::now();
        let mut cache = Cache::new(3, 100);
        let kept = |bytes| Kept { output: Output::text("x"), bytes, until: start + Duration::from_secs(1) };
        for key in ["a", "b", "c", "d"] {
            cache.put(key.into(), kept(10));
        }
        assert!(cache.get("a", start).is_none() && cache.get("b", start).is_some());
        cache.put("e".into(), kept(90));
        assert_eq!((cache.entries.len(), cache.bytes), (2, 100));
        cache.put("f".into(), kept(101));
        assert!(cache.get("f", start).is_none());
        assert!(cache.get("e", start + Duration::from_secs(2)).is_none());
        assert_eq!((cache.entries.len(), cache.order.len(), cache.bytes), (1, 1, 10));
    }
}
