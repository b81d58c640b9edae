//! Manifests: the last known definitions of a source.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join3;
use serde::{Deserialize, Serialize};
use toolpost_core::{PromptSpec, ResourceSpec, ToolError, ToolSource, ToolSpec};

use crate::listing::{in_time, listed};

/// The version of the stored form.
const VERSION: u8 = 1;

/// The definitions of a source. A stored one lists the source without a start.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SourceManifest {
    /// The version of this format.
    pub v: u8,
    /// The tools.
    pub tools: Vec<Arc<ToolSpec>>,
    /// The resources.
    #[serde(default)]
    pub resources: Vec<Arc<ResourceSpec>>,
    /// The prompts.
    #[serde(default)]
    pub prompts: Vec<Arc<PromptSpec>>,
}

impl Default for SourceManifest {
    fn default() -> Self {
        Self { v: VERSION, tools: Vec::new(), resources: Vec::new(), prompts: Vec::new() }
    }
}

impl SourceManifest {
    /// Reads all lists of a source, each with this timeout.
    ///
    /// # Errors
    /// The tools cannot be read in time. Unreadable resources and prompts count as none.
    pub async fn read(source: &dyn ToolSource, within: Duration) -> Result<Self, ToolError> {
        let (tools, resources, prompts) = join3(
            listed(source, within),
            in_time(source, within, source.resources()),
            in_time(source, within, source.prompts()),
        )
        .await;
        Ok(Self {
            v: VERSION,
            tools: tools?,
            resources: resources.unwrap_or_default(),
            prompts: prompts.unwrap_or_default(),
        })
    }

    /// Whether the format version is current.
    pub fn is_current(&self) -> bool {
        self.v == VERSION
    }

    /// Whether both have the same definitions.
    pub(crate) fn lists_the_same(&self, other: &Self) -> bool {
        serde_json::to_value(self).ok() == serde_json::to_value(other).ok()
    }
}

/// A store of manifests, by the digest of the source's start parameters. An unreadable manifest counts as
/// absent, and a failed write costs only a start.
pub trait ManifestStore: Send + Sync {
    /// The manifest of this digest, if any.
    fn load(&self, digest: &str) -> Option<SourceManifest>;

    /// Stores a manifest.
    fn save(&self, digest: &str, manifest: &SourceManifest);
}

/// A store of manifests in memory.
#[derive(Default)]
pub struct MemoryManifests(Mutex<HashMap<String, SourceManifest>>);

impl ManifestStore for MemoryManifests {
    fn load(&self, digest: &str) -> Option<SourceManifest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    fn save(&self, digest: &str, manifest: &SourceManifest) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(digest.to_owned(), manifest.clone());
    }
}

impl fmt::Debug for MemoryManifests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("MemoryManifests").field("manifests", &count).finish()
    }
}
