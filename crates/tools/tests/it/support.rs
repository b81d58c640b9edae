//! A toolbox with all built-in tools over a directory of its own.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_core::{Call, Output, Reply, ToolError};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};
use toolpost_tools::builtin;

/// Reports that the running test is skipped.
pub(crate) fn skip(reason: impl std::fmt::Display) {
    println!("SKIP {}: {reason}", std::thread::current().name().unwrap_or_default());
}

/// Whether a process of the host sleeps for so many seconds.
pub(crate) fn is_sleeping(seconds: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line == format!("sleep\0{seconds}\0").as_bytes()
    })
}

/// A toolbox and the working directory of its calls.
pub(crate) struct Bench {
    pub(crate) toolbox: Toolbox,
    pub(crate) directory: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(change: impl FnOnce(ToolboxBuilder) -> ToolboxBuilder) -> Self {
        let builder = builtin().into_iter().fold(Toolbox::builder(), ToolboxBuilder::tool);
        Self { toolbox: change(builder).build().unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn call(&self, tool: &str, arguments: Value) -> Call {
        let mut call = Call::new(tool, arguments);
        call.options.working_dir = Some(self.directory.path().to_owned());
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

    /// The names in the working directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        names_in(self.directory.path())
    }
}

pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
