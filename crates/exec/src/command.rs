//! CLI programs as tools: a TOML file with `kind = "command"` describes how to call one.
//!
//! ```toml
//! kind = "command"
//! v = 1
//! program = "wc"
//!
//! [[tool]]
//! name = "count_text"
//! description = "Count the lines, words and bytes of files."
//! read_only = true
//! args = ["-lwc", "--", "{paths}"]
//!
//! [tool.parameters.paths]
//! type = "array"
//! items = { type = "file" }
//! minItems = 1
//! description = "The files, relative to the working directory."
//!
//! [tool.output]
//! format = "captures"
//! pattern = '^\s*(?<lines>\d+)\s+(?<words>\d+)\s+(?<bytes>\d+) (?<path>.*)$'
//! types = { lines = "integer", words = "integer", bytes = "integer" }
//! ```
//!
//! # Arguments
//!
//! There is no shell. Each entry of `args` becomes exactly one argument. An entry with an absent parameter is omitted,
//! and an entry with a list parameter repeats per item. `{ when = "recursive", args = ["-r"] }` applies if the parameter
//! is present and neither `false` nor empty; `is = …` compares, and `otherwise` is the alternative.
//!
//! A value cannot become an option: one that starts with `-` is rejected, unless the entry follows `--`, an option
//! precedes the value (`--name={value}`), or the parameter sets `allow_leading_dash = true`.
//!
//! # Paths
//!
//! A value of type `file` (or format `file`) stays beneath the working directory of the call. An absolute path outside, a
//! part `..` and a symbolic link that leads out are rejected with `INVALID_PATH` before anything starts. A path of any
//! other kind is a `string`.
//!
//! # Sandbox
//!
//! A tool runs in the sandbox at level `standard` or higher, without network, with a clean environment, in the working
//! directory of the call. A tool with `read_only` gets that directory read-only. The table `grants`
//! ([`toolpost_sandbox::Grants`]) adds paths, variables and hosts. `command.schema.json` ([`COMMAND_SCHEMA`]) lists every
//! key.

mod description;
mod exit;
mod output;
mod parameter;
mod paths;
mod place;
mod reader;
mod run;
mod settings;
mod shipped;
mod table;
mod template;

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use toolpost_core::{Args, StartCheck, Tool, ToolError, ToolGroup, ToolSpec, did_you_mean, hex};
use toolpost_sandbox::{Granted, Grants};

pub use self::description::VERSION as FORMAT;
pub use self::place::DescriptionError;
pub use self::settings::CommandSettings;
pub use self::shipped::{COMMAND_SCHEMA, SHIPPED};

use self::description::Command;

/// The tools of one description. `Toolbox::builder().tools(…)` takes it.
#[derive(Clone)]
pub struct CommandTools {
    origin: String,
    digest: String,
    commands: Vec<Arc<Command>>,
}

impl CommandTools {
    /// Parses a description. Nothing is started. `origin` names the text in errors, such as its path.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn from_toml(text: &str, origin: impl Into<String>) -> Result<Self, DescriptionError> {
        Self::read(text, origin.into(), None)
    }

    /// Like [`CommandTools::from_toml`], with a check that runs directly before each start of the program.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn from_toml_checked(
        text: &str,
        origin: impl Into<String>,
        check: StartCheck,
    ) -> Result<Self, DescriptionError> {
        Self::read(text, origin.into(), Some(check))
    }

    fn read(text: &str, origin: String, check: Option<StartCheck>) -> Result<Self, DescriptionError> {
        let commands = description::read(text, &origin, check)?.into_iter().map(Arc::new).collect();
        let digest = hex(Sha256::digest(text.as_bytes()));
        Ok(Self { origin, digest, commands })
    }

    /// A description that is included, by the name of its program: see [`SHIPPED`].
    ///
    /// # Errors
    /// `NOT_FOUND` with the available names.
    pub fn shipped(program: &str) -> Result<Self, ToolError> {
        let names = SHIPPED.map(|(name, _)| name);
        let Some((name, text)) = SHIPPED.into_iter().find(|(name, _)| *name == program) else {
            return Err(ToolError::not_found(format!(
                "there is no included description of `{program}`; expected one of {}",
                names.join(", ")
            ))
            .suggest_maybe(did_you_mean(program, names)));
        };
        Ok(Self::from_toml(text, format!("{name}.toml"))?)
    }

    /// The grants that the description asks for.
    pub fn grants(&self) -> Grants {
        self.commands.first().map(|command| command.program.grants.clone()).unwrap_or_default()
    }

    /// Replaces the description's grants. A granted level and working directory override those of a call. Granted variables
    /// are masked in the output.
    #[must_use]
    pub fn granted(mut self, granted: Granted) -> Self {
        let granted = Arc::new(granted);
        for command in &mut self.commands {
            *command = Arc::new(Command { granted: Some(Arc::clone(&granted)), ..Command::clone(command) });
        }
        self
    }

    /// The origin, as passed to the constructor.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// SHA-256 of the description's text in hexadecimal digits, which trust is pinned to. Even a changed comment changes it.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The definitions of its tools, in the order of the file.
    pub fn specs(&self) -> Vec<Arc<ToolSpec>> {
        self.commands.iter().map(|command| command.spec()).collect()
    }

    /// The command line of a call. Nothing is started.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown tool, and errors of the arguments.
    pub fn command_line(&self, tool: &str, args: &Args) -> Result<Vec<String>, ToolError> {
        let Some(command) = self.commands.iter().find(|command| command.spec.name == tool) else {
            let names = self.commands.iter().map(|command| command.spec.name.as_str());
            return Err(ToolError::not_found(format!("`{}` has no tool `{tool}`", self.origin))
                .suggest_maybe(did_you_mean(tool, names)));
        };
        command.command_line(args)
    }
}

impl ToolGroup for CommandTools {
    fn into_tools(self) -> Vec<Arc<dyn Tool>> {
        self.commands.into_iter().map(|command| command as Arc<dyn Tool>).collect()
    }
}

impl fmt::Debug for CommandTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.commands.iter().map(|command| command.spec.name.as_str()).collect();
        f.debug_struct("CommandTools")
            .field("origin", &self.origin)
            .field("tools", &names)
            .finish_non_exhaustive()
    }
}
