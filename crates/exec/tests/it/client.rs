//! Executables as a source of tools: small programs in shell and Python, written by the tests.

mod calls;
mod discovery;
mod hostile;
mod original;
mod places;
mod resident;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_core::{Call, Code, Output, Reply, ToolError, ToolSource as _};
use toolpost_exec::client::{Executables, ExecutablesBuilder};

/// A directory with programs.
pub(super) struct Programs(TempDir);

impl Programs {
    pub(super) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("programs-").tempdir().unwrap();
        Self(directory)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes an executable file.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path().join(name);
        // A new file under the old name, as an installer does it.
        let new = self.path().join(format!(".{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    /// A shell program whose only tool `t` takes anything and does `body`; `$2` is the JSON text of its arguments.
    pub(super) fn tool(&self, name: &str, facts: &Value, body: &str) -> PathBuf {
        let mut entry = json!({
            "name": "t", "summary": "A tool.", "streaming": false, "session_mode": false,
            "schema": {"type": "object"},
        });
        for (key, value) in facts.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        self.write(
            name,
            &shell(
                &json!({"name": name, "version": "1", "tools": [entry], "resources": [], "prompts": []}),
                body,
            ),
        )
    }
}

/// A shell program with this answer to `--discover`, and `body` for other arguments.
pub(super) fn shell(discovery: &Value, body: &str) -> String {
    format!(
        "#!/bin/sh\nif [ \"$1\" = --discover ]; then\ncat <<'END'\n{discovery:#}\nEND\nexit 0\nfi\n{body}\n"
    )
}

pub(super) fn source() -> ExecutablesBuilder {
    Executables::builder().timeout(Duration::from_secs(10))
}

/// The one tool `t` of a shell program.
pub(super) async fn only(body: &str) -> (Programs, Executables) {
    with(&json!({}), body).await
}

pub(super) async fn with(facts: &Value, body: &str) -> (Programs, Executables) {
    let programs = Programs::new();
    let tools = source().path(programs.tool("program", facts, body)).discover().await;
    assert_eq!(tools.diagnostics().iter().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
    (programs, tools)
}

pub(super) fn value(reply: &Reply) -> Value {
    match &reply.result {
        Ok(output) => output.result_value(),
        Err(error) => panic!("{error:?}"),
    }
}

pub(super) fn error(reply: &Reply) -> &ToolError {
    reply.result.as_ref().err().unwrap_or_else(|| panic!("{:?}", reply.result))
}

/// The value of a call, or its code and its message.
pub(super) fn outcome(result: &Result<Output, ToolError>) -> Result<Value, (Code, String)> {
    match result {
        Ok(output) => Ok(output.result_value()),
        Err(error) => Err((error.code(), error.message().to_owned())),
    }
}

pub(super) async fn call(tools: &Executables, tool: &str, arguments: Value) -> Reply {
    tools.call(Call::new(tool, arguments)).await
}

pub(super) async fn names(tools: &Executables) -> Vec<String> {
    tools.list().await.unwrap().iter().map(|spec| spec.name.clone()).collect()
}

pub(super) fn shown(tools: &Executables) -> Vec<String> {
    tools.diagnostics().iter().map(ToString::to_string).collect()
}

pub(super) fn port() -> Arc<toolpost_testkit::MemoryPort> {
    toolpost_testkit::MemoryPort::new(100, 10)
}
