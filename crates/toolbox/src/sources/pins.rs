//! What was approved, and where that is kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::ToolError;

use super::definition::Definition;

/// The largest definition that is kept beside its digest, in bytes of JSON.
const MAX_DEFINITION: usize = 64 << 10;

/// A definition that was approved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The SHA-256 of the canonical definition, such as [`ToolSpec::digest`](toolpost_core::ToolSpec::digest). Empty for
    /// the note that a list has been read once.
    pub sha256: String,
    /// The definition, so that a change can be shown; left out above 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

impl Pin {
    /// The pin of a definition.
    pub(super) fn of<D: Definition>(definition: &D) -> Self {
        let value = serde_json::to_value(definition).ok();
        Self {
            sha256: definition.digest(),
            definition: value.filter(|value| value.to_string().len() <= MAX_DEFINITION),
        }
    }

    /// Says that a list has been read once, whatever was in it.
    pub(super) fn of_first_list() -> Self {
        Self { sha256: String::new(), definition: None }
    }
}

/// Where pins are kept, by source and by what they are of: `add` is a tool, `prompt:greet` a prompt,
/// `resource:notes://{id}` a resource, and `tool:`, `prompt:` and `resource:` say that these have been listed once. Asked on every list and every call, so it must answer from memory or a small
/// file.
pub trait PinStore: Send + Sync {
    /// The pins of a source, by what they are of.
    ///
    /// # Errors
    /// They cannot be read: then nothing of the source is shown or run.
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError>;

    /// Adds pins of a source or takes their place; all others stay.
    ///
    /// # Errors
    /// They cannot be kept.
    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError>;

    /// Changes whenever the pins of any source may have changed, also by another process.
    fn generation(&self) -> u64;
}

/// Pins in memory, for as long as the process lives.
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
