//! Pins of approved definitions, and their store.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::ToolError;

use crate::definition::Definition;

/// The maximum size of a stored definition, in bytes of JSON.
const MAX_DEFINITION: usize = 64 << 10;

/// An approved definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The SHA-256 of the canonical definition, such as
    /// [`ToolSpec::digest`](toolpost_core::ToolSpec::digest). Empty for the mark that a list was read once.
    pub sha256: String,
    /// The definition, to show changes; omitted above 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

impl Pin {
    /// The pin of a definition.
    pub(crate) fn from_definition<D: Definition>(definition: &D) -> Self {
        let value = serde_json::to_value(definition).ok();
        Self {
            sha256: definition.digest(),
            definition: value.filter(|value| value.to_string().len() <= MAX_DEFINITION),
        }
    }

    /// The mark that a list was read once.
    pub(crate) fn of_first_list() -> Self {
        Self { sha256: String::new(), definition: None }
    }
}

/// A store of pins, by source and key.
///
/// The key of the tool `add` is `add`, of a prompt `prompt:greet`, and of a resource `resource:notes://{id}`.
/// The keys `tool:`, `prompt:` and `resource:` mark that these lists were read once. Every list and every
/// call reads the store, so it must answer from memory or a small file.
pub trait PinStore: Send + Sync {
    /// The pins of a source, by key.
    ///
    /// # Errors
    /// The pins cannot be read. The source then shows and runs nothing.
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError>;

    /// Adds or replaces pins of a source; all others stay.
    ///
    /// # Errors
    /// The pins cannot be stored.
    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError>;

    /// A number that changes with the pins of any source, even if another process changes them.
    fn generation(&self) -> u64;
}

/// A store of pins in memory.
#[derive(Debug, Default)]
pub struct MemoryPins {
    pins: Mutex<HashMap<String, BTreeMap<String, Pin>>>,
    generation: AtomicU64,
}

impl PinStore for MemoryPins {
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(pins.get(source).cloned().unwrap_or_default())
    }

    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError> {
        let mut known = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(source.to_owned()).or_default().extend(pins.clone());
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}
