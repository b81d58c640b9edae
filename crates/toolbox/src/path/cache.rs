//! Answers that are kept, for the same caller and the same arguments.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::PoisonError;
use std::time::Instant;

use serde_json::Value;
use toolpost_core::{Call, Output};

use super::check::json_size;
use super::run::now;
use crate::registry::Entry;
use crate::toolbox::Shared;

/// What a key and its place cost.
const KEY_BYTES: usize = 64;

struct Kept {
    output: Output,
    bytes: usize,
    until: Instant,
}

/// Bounded in entries and bytes; the oldest go first.
pub(crate) struct Cache {
    entries: HashMap<u128, Kept>,
    order: VecDeque<u128>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Cache {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), bytes: 0, max_entries, max_bytes }
    }

    fn get(&mut self, key: u128, now: Instant) -> Option<Output> {
        let kept = self.entries.get(&key)?;
        if kept.until > now {
            return Some(kept.output.clone());
        }
        self.forget(key);
        None
    }

    fn forget(&mut self, key: u128) {
        if let Some(kept) = self.entries.remove(&key) {
            self.bytes -= kept.bytes;
            self.order.retain(|known| *known != key);
        }
    }

    fn put(&mut self, key: u128, kept: Kept) {
        if kept.bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        self.forget(key);
        while self.entries.len() >= self.max_entries || self.bytes + kept.bytes > self.max_bytes {
            let Some(oldest) = self.order.front().copied() else { break };
            self.forget(oldest);
        }
        self.bytes += kept.bytes;
        self.order.push_back(key);
        self.entries.insert(key, kept);
    }
}

/// A digest of what the answer depends on; `None` if it is not to be kept. The text itself, which may hold secrets, is
/// not kept; the digest's keys are random, so that nobody can make two calls meet.
///
/// A call with injected values of its own is never kept: nobody can tell what the answer has of them.
pub(super) fn key(toolbox: &Shared, entry: &Entry, call: &Call) -> Option<u128> {
    entry.spec.policy.cache?;
    let options = &call.options;
    if !entry.spec.annotations.idempotent
        || options.no_cache
        || options.mock
        || options.dry_run
        || !call.values.is_empty()
    {
        return None;
    }
    let folder = options.working_dir.as_deref().or_else(|| call.scope.as_ref()?.working_dir());
    let scope = call.scope.as_ref().map(toolpost_core::Scope::id);
    let mut text = format!(
        "{}\0{:?}\0{scope:?}\0{folder:?}\0{:?}\0{}\0",
        entry.id, call.caller, options.level, options.verbose
    );
    for (name, value) in &options.metadata {
        text.push_str(name);
        write_canonical(value, &mut text);
    }
    write_canonical(&call.arguments, &mut text);
    let (one, other) = &toolbox.cache_keys;
    Some((u128::from(one.hash_one(&text)) << 64) | u128::from(other.hash_one(&text)))
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

pub(super) fn get(toolbox: &Shared, key: Option<u128>) -> Option<Output> {
    let key = key?;
    toolbox.cache.lock().unwrap_or_else(PoisonError::into_inner).get(key, now())
}

pub(super) fn put(toolbox: &Shared, key: Option<u128>, entry: &Entry, output: &Output) {
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
    // What it cost was paid once.
    let mut output = output.clone();
    output.evidence = None;
    let kept = Kept { output, bytes: bytes + KEY_BYTES, until };
    toolbox.cache.lock().unwrap_or_else(PoisonError::into_inner).put(key, kept);
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
        for key in 1..=4 {
            cache.put(key, kept(10));
        }
        assert!(cache.get(1, start).is_none() && cache.get(2, start).is_some());
        cache.put(5, kept(90));
        assert_eq!((cache.entries.len(), cache.bytes), (2, 100));
        cache.put(6, kept(101));
        assert!(cache.get(6, start).is_none());
        assert!(cache.get(5, start + Duration::from_secs(2)).is_none());
        assert_eq!((cache.entries.len(), cache.order.len(), cache.bytes), (1, 1, 10));
    }
}
