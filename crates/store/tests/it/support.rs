//! What the tests share.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Document, Patch, ToolError, Write};
use toolpost_store::Store;

/// The variable that tells this program, started again, which part to play.
pub(crate) const PART: &str = "TOOLPOST_STORE_TEST_PART";

/// The change of a document to a value.
pub(crate) fn write(from: &Document, value: Value) -> Write {
    let patch = Patch::diff(&from.value, &value).to_value();
    Write { id: from.id.clone(), base: from.version, patch, value: Arc::new(value) }
}

/// Commits one document.
pub(crate) async fn put(store: &Store, from: &Document, value: Value) -> Result<Committed, ToolError> {
    store.commit(Commit { writes: vec![write(from, value)], ..Commit::default() }).await
}

/// Commits the newest version and more: whatever it is now becomes the value.
pub(crate) async fn set(store: &Store, id: &str, value: Value) -> Document {
    let mut document = store.load(id).await.unwrap();
    loop {
        match put(store, &document, value.clone()).await.unwrap() {
            Committed::Done(versions) => {
                return Document { id: id.into(), version: versions[0], value: Arc::new(value) };
            }
            Committed::Conflict(newer) => document = newer[0].clone(),
        }
    }
}

/// Adds one to `n` in a document, as often as it takes. The answer is the version that it made.
pub(crate) async fn increment(store: &Store, document: &mut Document) -> Result<u64, ToolError> {
    loop {
        let value = json!({ "n": document.value["n"].as_u64().unwrap_or(0) + 1 });
        match put(store, document, value.clone()).await? {
            Committed::Done(versions) => {
                document.version = versions[0];
                document.value = Arc::new(value);
                return Ok(versions[0]);
            }
            Committed::Conflict(newer) => *document = newer.into_iter().next().unwrap(),
        }
    }
}

/// This program once more, playing a part: the test of that name is run, and nothing else.
pub(crate) fn again(wrapper: &[&str], test: &str, part: &str, file: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let first = wrapper.first().map_or(program.as_os_str(), std::ffi::OsStr::new);
    #[expect(clippy::disallowed_methods, reason = "several processes are what is tested")]
    let mut command = Command::new(first);
    if let Some((_, arguments)) = wrapper.split_first() {
        command.args(arguments).arg(&program);
    }
    command.args([test, "--exact", "--nocapture"]).env(PART, part).env(FILE, file);
    command
}

const FILE: &str = "TOOLPOST_STORE_TEST_FILE";

/// The part that this process plays and the file, if it was started [`again`].
#[expect(clippy::disallowed_methods, reason = "how this program was started")]
pub(crate) fn part() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(PART).ok()?, std::env::var_os(FILE)?.into()))
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
