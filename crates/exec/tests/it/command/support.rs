//! Descriptions for tests, and calls of their tools through a real toolbox.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{Args, Call, Output, Reply, ToolError, ToolSpec};
use toolpost_exec::command::{CommandSettings, CommandTools};
use toolpost_toolbox::Toolbox;

use crate::host::skip;

/// A description of one tool `t` of a program, with lines for the file and lines for the tool.
pub(crate) fn description(program: &str, file: &str, tool: &str) -> String {
    format!(
        "kind = \"command\"\nv = 1\nprogram = \"{program}\"\n{file}\n[[tool]]\nname = \"t\"\ndescription = \"Test.\"\n{tool}\n"
    )
}

pub(crate) fn read(text: &str) -> CommandTools {
    CommandTools::from_toml(text, "test.toml").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The known facts about the tool.
pub(crate) fn spec(text: &str) -> Arc<ToolSpec> {
    read(text).specs().remove(0)
}

/// The arguments of the one tool, without the program.
pub(crate) fn line(text: &str, args: Value) -> Result<Vec<String>, ToolError> {
    let mut line = read(text).command_line("t", &Args::from(args))?;
    line.remove(0);
    Ok(line)
}

/// A call of the tool `t` of a description.
pub(crate) struct Run {
    pub(crate) tools: CommandTools,
    pub(crate) call: Call,
    settings: CommandSettings,
}

impl Run {
    pub(crate) fn new(text: &str, args: Value) -> Self {
        Self::of(read(text), "t", args)
    }

    pub(crate) fn of(tools: CommandTools, tool: &str, args: Value) -> Self {
        let mut call = Call::new(tool, args);
        call.approved = true;
        Self { tools, call, settings: CommandSettings::default() }
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.call.options.working_dir = Some(directory.to_owned());
        self
    }

    pub(crate) fn settings(mut self, change: impl FnOnce(&mut CommandSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    pub(crate) async fn reply(self) -> Reply {
        let toolbox = Toolbox::builder().tools(self.tools).provide(self.settings).build().unwrap();
        toolbox.call(self.call).await
    }

    pub(crate) async fn output(self) -> Output {
        self.reply().await.result.unwrap_or_else(|error| panic!("{error:?}"))
    }

    pub(crate) async fn text(self) -> String {
        self.output().await.to_text().into_owned()
    }

    /// The structured result.
    pub(crate) async fn value(self) -> Value {
        self.output().await.structured.unwrap_or_default()
    }

    pub(crate) async fn error(self) -> ToolError {
        match self.reply().await.result {
            Err(error) => error,
            Ok(output) => panic!("expected an error, found {}", output.to_text()),
        }
    }
}

/// Whether a program is installed; if not, the test is skipped.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = own_search_path();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(format!("`{program}` is not installed"));
    }
    found
}

/// The search path of this machine.
pub(crate) fn own_search_path() -> std::ffi::OsString {
    #[expect(clippy::disallowed_methods, reason = "tests run the programs that are installed")]
    std::env::var_os("PATH").unwrap_or_default()
}
