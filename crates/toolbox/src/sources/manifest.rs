//! What a source had when it was last read.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join3;
use serde::{Deserialize, Serialize};
use toolpost_core::{PromptSpec, ResourceSpec, ToolError, ToolSource, ToolSpec};

use super::listing::{in_time, tools_of};

/// The version of the stored form.
const VERSION: u8 = 1;

/// What a source had when it was last read: enough to list it without starting it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The version of this format.
    pub v: u8,
    /// Its tools.
    pub tools: Vec<Arc<ToolSpec>>,
    /// What could be read from it by address.
    #[serde(default)]
    pub resources: Vec<Arc<ResourceSpec>>,
    /// Its prompts.
    #[serde(default)]
    pub prompts: Vec<Arc<PromptSpec>>,
}

impl Manifest {
    /// Reads everything that a source lists. Each list may take this long.
    ///
    /// # Errors
    /// The list of tools could not be read in time. Resources and prompts that cannot be read count as none.
    pub async fn read(source: &dyn ToolSource, within: Duration) -> Result<Self, ToolError> {
        let (tools, resources, prompts) = join3(
            tools_of(source, within),
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

    /// Whether this format is known.
    pub fn is_current(&self) -> bool {
        self.v == VERSION
    }

    /// Whether both list the same.
    pub(super) fn lists_the_same(&self, other: &Self) -> bool {
        serde_json::to_value(self).ok() == serde_json::to_value(other).ok()
    }
}

/// Where manifests are kept, by the digest of what the source was started with. What cannot be read counts as not
/// there, and what cannot be written costs a start the next time.
pub trait ManifestStore: Send + Sync {
    /// The manifest of this digest, if there is one.
    fn load(&self, digest: &str) -> Option<Manifest>;

    /// Keeps a manifest.
    fn save(&self, digest: &str, manifest: &Manifest);
}

/// Manifests in memory, for as long as the process lives.
#[derive(Default)]
pub struct MemoryManifests(Mutex<HashMap<String, Manifest>>);

impl ManifestStore for MemoryManifests {
    fn load(&self, digest: &str) -> Option<Manifest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    fn save(&self, digest: &str, manifest: &Manifest) {
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
