//! Shared helpers.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Document, Patch, ToolError, Write};
use toolpost_store::Store;

/// The variable with the role of a child process.
const ROLE: &str = "TOOLPOST_STORE_TEST_PART";

/// The change of a document to a value.
pub(crate) fn write(from: &Document, value: Value) -> Write {
    let patch = Patch::diff(&from.value, &value).to_value();
    Write { id: from.id.clone(), base: from.version, patch, value: Arc::new(value) }
}

/// Commits one document.
pub(crate) async fn put(store: &Store, from: &Document, value: Value) -> Result<Committed, ToolError> {
    store.commit(Commit { writes: vec![write(from, value)], ..Commit::default() }).await
}

/// Commits a value on top of the newest version.
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

/// Increments `n` in a document, with retries. Returns the new version.
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

/// Runs one test of this program in a child process, with a role.
pub(crate) fn child(wrapper: &[&str], test: &str, role: &str, file: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let first = wrapper.first().map_or(program.as_os_str(), std::ffi::OsStr::new);
    #[expect(clippy::disallowed_methods, reason = "the tests need several processes")]
    let mut command = Command::new(first);
    if let Some((_, arguments)) = wrapper.split_first() {
        command.args(arguments).arg(&program);
    }
    command.args([test, "--exact", "--nocapture"]).env(ROLE, role).env(FILE, file);
    command
}

const FILE: &str = "TOOLPOST_STORE_TEST_FILE";

/// The role and the file of this process, if it is a [`child`].
#[expect(clippy::disallowed_methods, reason = "the parent passes them in the environment")]
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(FILE)?.into()))
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Holds the write lock of a file until it is dropped.
pub(crate) struct Lock(rusqlite::Connection);

impl Lock {
    pub(crate) fn new(store: &Store) -> Self {
        let connection = rusqlite::Connection::open(store.path()).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(connection)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("COMMIT").unwrap();
    }
}
