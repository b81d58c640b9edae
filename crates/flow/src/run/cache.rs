//! Outputs that stand for the same call later: documents of the store, by a hash of the call and of its files.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use toolpost_core::{Call, Clock, Commit, DocStore, Document, Masks, Patch, ToolError, Write, hex};

use super::Flows;
use crate::machine::Caching;

/// The prefix of the documents.
const PREFIX: &str = "flow-cache/";
/// The version of their format.
const VERSION: u8 = 1;
/// The maximum size of the files of a call together, in bytes.
const MAX_FILES: u64 = 1 << 30;
/// The maximum size of an output, in bytes.
const MAX_OUTPUT: usize = 1 << 19;
/// The documents that are examined for their age when one is written.
const EXAMINED: usize = 4;

/// The cache of one call.
pub(super) struct StepCache {
    store: Arc<dyn DocStore>,
    clock: Arc<dyn Clock>,
    masks: Masks,
    caching: Caching,
    /// The tool with its definition, the arguments, and the directory.
    call: Value,
    directory: Option<PathBuf>,
}

impl StepCache {
    /// The cache of a call; none for runs that are not stored.
    pub(super) fn new(flows: &Flows, call: &Call, caching: Caching) -> Option<Self> {
        let directory = call.scope.as_ref().and_then(|scope| scope.working_dir()).map(PathBuf::from);
        let version = flows.toolbox.spec(&call.tool).and_then(|spec| serde_json::to_value(&*spec).ok());
        Some(Self {
            store: flows.store.clone()?,
            clock: Arc::clone(&flows.clock),
            masks: flows.masks.clone(),
            caching,
            call: json!([&call.tool, version, &*call.arguments, &directory]),
            directory,
        })
    }

    /// The key of the call.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a file cannot be read.
    pub(super) async fn key(&self) -> Result<String, ToolError> {
        let files: Vec<PathBuf> = self
            .caching
            .files
            .iter()
            .map(|file| self.directory.as_ref().map_or_else(|| file.into(), |directory| directory.join(file)))
            .collect();
        let hashes = tokio::task::spawn_blocking(move || hashes(&files))
            .await
            .map_err(|_| ToolError::internal("the runtime shut down before the files were read"))??;
        let call = json!([&self.call, &self.caching.files, hashes]);
        Ok(crate::plan::types::hash(&call))
    }

    /// An earlier output that is young enough.
    pub(super) async fn get(&self, key: &str) -> Option<Value> {
        let document = self.store.load(&format!("{PREFIX}{key}")).await.ok()?;
        if document.value.get("v")? != VERSION || self.is_expired(&document) {
            return None;
        }
        Value::clone(&document.value).get_mut("output").map(Value::take)
    }

    fn is_expired(&self, document: &Document) -> bool {
        let until = document.value.get("until").and_then(Value::as_u64).unwrap_or_default();
        until <= self.clock.timestamp().as_micros() / 1_000
    }

    /// Keeps an output. One with a secret is not kept, nor is a large one; a run does not fail without its cache.
    pub(super) async fn put(&self, key: &str, output: &Value) {
        let text = output.to_string();
        if text.len() > MAX_OUTPUT || self.masks.text(&text) != text {
            return;
        }
        let ttl = u64::try_from(self.caching.ttl.as_millis()).unwrap_or(u64::MAX);
        let until = (self.clock.timestamp().as_micros() / 1_000).saturating_add(ttl);
        let value = json!({ "v": VERSION, "until": until, "output": output });
        if let Err(error) = self.write(format!("{PREFIX}{key}"), value).await {
            tracing::debug!("an output was not kept: {}", error.message());
        }
        self.forget_old(key).await;
    }

    async fn write(&self, id: String, value: Value) -> Result<(), ToolError> {
        let old = self.store.load(&id).await?;
        let patch = Patch::diff(&old.value, &value).to_value();
        let write = Write { id, base: old.version, patch, value: Arc::new(value) };
        // Of two runs with one call either output is right.
        self.store.commit(Commit { writes: vec![write], ..Commit::default() }).await.map(drop)
    }

    /// Removes some outputs that are too old, after a random place.
    async fn forget_old(&self, key: &str) {
        let after = format!("{PREFIX}{key}");
        let Ok(page) = self.store.list(PREFIX, Some(&after), EXAMINED).await else { return };
        for (id, _) in page {
            if let Ok(document) = self.store.load(&id).await
                && self.is_expired(&document)
            {
                let _ = self.store.forget(&id).await;
            }
        }
    }
}

/// The hashes of files.
fn hashes(files: &[PathBuf]) -> Result<Vec<String>, ToolError> {
    let mut rest = MAX_FILES;
    files.iter().map(|file| hash(file, &mut rest)).collect()
}

fn hash(file: &PathBuf, rest: &mut u64) -> Result<String, ToolError> {
    let unreadable = |reason: String| {
        ToolError::invalid_input(format!(
            "`{}`, a file of the `cache`, cannot be read: {reason}",
            file.display()
        ))
    };
    // Opening a pipe would wait.
    let data = std::fs::metadata(file).map_err(|error| unreadable(error.to_string()))?;
    if !data.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    let mut open = std::fs::File::open(file).map_err(|error| unreadable(error.to_string()))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = open.read(&mut buffer).map_err(|error| unreadable(error.to_string()))?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(hex(digest.finalize()));
        };
        *rest = rest
            .checked_sub(count as u64)
            .ok_or_else(|| unreadable("the files have more than 1 GiB".to_owned()))?;
        digest.update(bytes);
    }
}
