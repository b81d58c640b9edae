//! A toolbox with all built-in tools over a folder of its own.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_core::{Call, Output, Reply, ToolError};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};
use toolpost_tools::builtin;

/// A toolbox and the working folder of its calls.
pub(crate) struct Bench {
    pub(crate) toolbox: Toolbox,
    pub(crate) folder: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(change: impl FnOnce(ToolboxBuilder) -> ToolboxBuilder) -> Self {
        let builder = builtin().into_iter().fold(Toolbox::builder(), ToolboxBuilder::tool);
        Self { toolbox: change(builder).build().unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn call(&self, tool: &str, arguments: Value) -> Call {
        let mut call = Call::new(tool, arguments);
        call.options.working_dir = Some(self.folder.path().to_owned());
        call
    }

    pub(crate) async fn reply(&self, tool: &str, arguments: Value) -> Reply {
        self.toolbox.call(self.call(tool, arguments)).await
    }

    pub(crate) async fn run(&self, tool: &str, arguments: Value) -> Result<Output, ToolError> {
        self.reply(tool, arguments).await.result
    }

    /// The structured result of a call that must succeed.
    pub(crate) async fn value(&self, tool: &str, arguments: Value) -> Value {
        let output = self.run(tool, arguments.clone()).await;
        output.unwrap_or_else(|error| panic!("{tool} {arguments}: {error}")).structured.unwrap()
    }

    /// The error of a call that must fail.
    pub(crate) async fn error(&self, tool: &str, arguments: Value) -> ToolError {
        match self.run(tool, arguments.clone()).await {
            Err(error) => error,
            Ok(output) => panic!("{tool} {arguments} gave {output:?}"),
        }
    }

    /// The text of a file as `read_file` gives it.
    pub(crate) async fn read(&self, path: &str) -> String {
        self.value("read_file", json!({ "path": path })).await["content"].as_str().unwrap().to_owned()
    }

    /// The names in the working folder, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        names_in(self.folder.path())
    }
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
