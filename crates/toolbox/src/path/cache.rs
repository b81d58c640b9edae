//! The cache of results, by tool, caller, arguments and options.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use toolpost_core::{Call, Output};

use super::clock::now;
use super::size::json_size;
use crate::registry::Entry;

/// The size that each entry counts for its key.
const KEY_BYTES: usize = 64;

struct CachedOutput {
    output: Output,
    bytes: usize,
    expires: Instant,
}

/// The cache of a toolbox. It removes the oldest entries first.
pub(crate) struct Cache {
    entries: Mutex<Outputs>,
    max_bytes: usize,
    /// Random, so that no caller can construct two calls with one key.
    hashers: (RandomState, RandomState),
}

/// The entries, limited in number and in bytes.
struct Outputs {
    by_key: HashMap<u128, CachedOutput>,
    order: VecDeque<u128>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Outputs {
    fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { by_key: HashMap::new(), order: VecDeque::new(), bytes: 0, max_entries, max_bytes }
    }

    fn get(&mut self, key: u128, now: Instant) -> Option<Output> {
        let cached = self.by_key.get(&key)?;
        if cached.expires > now {
            return Some(cached.output.clone());
        }
        self.remove(key);
        None
    }

    fn remove(&mut self, key: u128) {
        if let Some(cached) = self.by_key.remove(&key) {
            self.bytes -= cached.bytes;
            self.order.retain(|known| *known != key);
        }
    }

    fn insert(&mut self, key: u128, cached: CachedOutput) {
        if cached.bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        self.remove(key);
        while self.by_key.len() >= self.max_entries || self.bytes + cached.bytes > self.max_bytes {
            let Some(oldest) = self.order.front().copied() else { break };
            self.remove(oldest);
        }
        self.bytes += cached.bytes;
        self.order.push_back(key);
        self.by_key.insert(key, cached);
    }
}

impl Cache {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        let entries = Mutex::new(Outputs::new(max_entries, max_bytes));
        Self { entries, max_bytes, hashers: (RandomState::new(), RandomState::new()) }
    }

    fn entries(&self) -> MutexGuard<'_, Outputs> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a call, or `None` if its result must not be cached. The key is a digest, because the arguments may
    /// contain secrets.
    ///
    /// A call with its own injected values has no key: the result may depend on them.
    pub(super) fn key(&self, entry: &Entry, call: &Call) -> Option<u128> {
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
        let directory = options.working_dir.as_deref().or_else(|| call.scope.as_ref()?.working_dir());
        let scope = call.scope.as_ref().map(toolpost_core::Scope::id);
        let mut text = format!(
            "{}\0{:?}\0{scope:?}\0{directory:?}\0{:?}\0{}{}\0",
            entry.id, call.caller, options.level, options.verbose, options.whole_output
        );
        for (name, value) in &options.metadata {
            text.push_str(name);
            write_canonical(value, &mut text);
        }
        write_canonical(&call.arguments, &mut text);
        let (one, other) = &self.hashers;
        Some((u128::from(one.hash_one(&text)) << 64) | u128::from(other.hash_one(&text)))
    }

    pub(super) fn get(&self, key: u128) -> Option<Output> {
        self.entries().get(key, now())
    }

    pub(super) fn put(&self, key: u128, entry: &Entry, output: &Output) {
        let Some(expires) = entry.spec.policy.cache.and_then(|time| now().checked_add(time)) else { return };
        // A payload is for one caller, and a partial result may be complete next time.
        if output.payload.is_some() || output.partial.is_some() || !output.artifacts.is_empty() {
            return;
        }
        let size = json_size(&(&output.content, &output.structured), self.max_bytes);
        let Some(bytes) = size else { return };
        // A cached result costs nothing.
        let mut output = output.clone();
        output.evidence = None;
        self.entries().insert(key, CachedOutput { output, bytes: bytes + KEY_BYTES, expires });
    }
}

/// Writes JSON with sorted keys, so that equal arguments give equal text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_cache_is_bounded_in_entries_and_bytes() {
        let start = Instant::now();
        let mut entries = Outputs::new(3, 100);
        let cached = |bytes| CachedOutput {
            output: Output::text("x"),
            bytes,
            expires: start + Duration::from_secs(1),
        };
        for key in 1..=4 {
            entries.insert(key, cached(10));
        }
        assert!(entries.get(1, start).is_none() && entries.get(2, start).is_some());
        entries.insert(5, cached(90));
        assert_eq!((entries.by_key.len(), entries.bytes), (2, 100));
        entries.insert(6, cached(101));
        assert!(entries.get(6, start).is_none());
        assert!(entries.get(5, start + Duration::from_secs(2)).is_none());
        assert_eq!((entries.by_key.len(), entries.order.len(), entries.bytes), (1, 1, 10));
    }
}
