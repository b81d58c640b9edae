//! The server half of the protocol: a tool program, over given streams.
//!
//! [`serve`] parses the command line of a program and answers it. It leaves the process alone, except that `working_dir`
//! changes its directory if [`Program::owns_process`] is set.

mod descriptor;
mod flags;
mod grammar;
mod help;
mod http;
mod inlet;
mod input;
mod oneshot;
mod outlet;

mod port;
mod reserved;
mod resident;
mod status;
mod terminal;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{CallId, Code, Envelope, Output, ToolError, ToolSource, ToolSpec};

pub use self::descriptor::{own_input, own_output};
pub use self::flags::typed_argument;
use self::grammar::Command;
pub(crate) use self::inlet::Inlet;
pub(crate) use self::outlet::Outlet;
#[cfg(feature = "worker")]
pub(crate) use self::resident::new_call;
use crate::protocol::dialect::{Discovery, PROTOCOL, PromptEntry, ResourceEntry, ToolEntry};

/// A tool program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// Name, for `--discover` and `--help`.
    pub name: String,
    /// Version, for `--discover` and `--version`.
    pub version: String,
    /// Description, for `--help`. Default: none.
    pub about: Option<String>,
    /// Whether the process belongs to this program, so that `working_dir` changes its directory. Default: no, only
    /// `Ctx::working_dir` reports it.
    pub owns_process: bool,
    /// Whether connections to other machines are errors (`TOOLPOST_NO_NETWORK`). Default: no.
    pub offline: bool,
    /// Whether standard output is a terminal, so that a call prints its result as text. Default: no.
    pub for_terminal: bool,
    /// Whether the process handles `--mcp` and `--mcp-http` itself, so that `--help` lists them. Default: no.
    pub mcp: bool,
}

impl Program {
    /// Creates a program with a name and a version.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            about: None,
            owns_process: false,
            offline: false,
            for_terminal: false,
            mcp: false,
        }
    }
}

/// The streams of a program, each used by its own thread.
pub struct Streams {
    /// Standard input, read on demand.
    pub input: Box<dyn Read + Send>,
    /// Standard output, for the protocol only.
    pub output: Box<dyn Write + Send>,
    /// Stderr, for notifications.
    pub errors: Box<dyn Write + Send>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// The state of a running command.
pub(crate) struct Server {
    pub(crate) source: Arc<dyn ToolSource>,
    pub(crate) program: Program,
    pub(crate) output: Outlet,
    pub(crate) errors: Outlet,
    pub(crate) input: Arc<Inlet>,
}

/// Answers one command line and returns the exit code: 0 for success, else as in `--help`.
///
/// `arguments` exclude the program's name. The last line is written when the future completes.
pub async fn serve(
    source: Arc<dyn ToolSource>,
    program: Program,
    arguments: Vec<OsString>,
    streams: Streams,
) -> u8 {
    let server = Server {
        source,
        program,
        output: Outlet::new(streams.output),
        errors: Outlet::new(streams.errors),
        input: Arc::new(Inlet::new(streams.input)),
    };
    let status = server.answer(arguments).await;
    server.errors.flush().await;
    // Success means that the answer was written.
    let written = server.output.flush().await;
    if status == status::OK && !written { status::FAILED } else { status }
}

impl Server {
    async fn answer(&self, arguments: Vec<OsString>) -> u8 {
        let specs = match self.source.list().await {
            Ok(specs) => specs,
            Err(error) => return self.reject(&error, status::for_error(&error)).await,
        };
        let words = match grammar::texts(arguments) {
            Ok(words) => words,
            Err(error) => return self.reject(&error, status::USAGE).await,
        };
        let command = grammar::parse(&words, &specs);
        let command = match command {
            Ok(command) => command,
            Err(error) => {
                let error = if self.lacks_mcp(&words) { without_mcp() } else { error };
                return self.reject(&error, status::USAGE).await;
            }
        };
        match command {
            Command::Help => self.text(help::program(&self.program, &specs)).await,
            Command::Version => self.text(format!("{} {}\n", self.program.name, self.program.version)).await,
            Command::Discover => match self.discovery(&specs).await {
                Ok(discovery) => self.text(format!("{}\n", pretty(&json!(discovery)))).await,
                Err(error) => self.reject(&error, status::for_error(&error)).await,
            },
            Command::Tools => {
                let names = specs.iter().map(|spec| json!({"name": spec.name, "summary": spec.summary()}));
                let tools = json!({ "tools": names.collect::<Vec<_>>() });
                self.text(format!("{}\n", pretty(&tools))).await
            }
            Command::Resources | Command::Prompts => {
                let key = if command == Command::Resources { "resources" } else { "prompts" };
                match self.discovery(&[]).await {
                    Ok(discovery) => {
                        let list = json!({ key: json!(discovery)[key] });
                        self.text(format!("{}\n", pretty(&list))).await
                    }
                    Err(error) => self.reject(&error, status::for_error(&error)).await,
                }
            }
            Command::Resource(uri) => self.value(self.source.read_resource(&uri).await).await,
            Command::Prompt { name, arguments } => {
                let arguments = match input::object(&arguments) {
                    Ok(arguments) => arguments,
                    Err(error) => return self.reject(&error, status::USAGE).await,
                };
                let arguments = arguments.as_object().cloned().unwrap_or_default();
                self.value(self.source.render_prompt(&name, &arguments).await).await
            }
            Command::Resident => resident::serve(self).await,
            Command::ToolHelp(spec) => self.text(help::tool(&self.program, &spec, specs.len() == 1)).await,
            Command::Manifest(spec) => {
                let manifest = crate::protocol::dialect::Manifest::from_spec(&spec);
                self.text(format!("{}\n", pretty(&json!(manifest)))).await
            }
            Command::Run(run) => oneshot::run(self, run).await,
        }
    }

    /// The program's manifest. Without specs the list of tools is empty.
    pub(crate) async fn discovery(&self, specs: &[Arc<ToolSpec>]) -> Result<Discovery, ToolError> {
        let resources = self.source.resources().await?;
        let prompts = self.source.prompts().await?;
        Ok(Discovery {
            name: self.program.name.clone(),
            version: self.program.version.clone(),
            protocol: Some(PROTOCOL.to_owned()),
            resident: true,
            tools: specs.iter().map(|spec| ToolEntry::from_spec(spec)).collect(),
            resources: resources.iter().map(|spec| ResourceEntry::from_spec(spec)).collect(),
            prompts: prompts.iter().map(|spec| PromptEntry::from_spec(spec)).collect(),
        })
    }

    async fn text(&self, text: String) -> u8 {
        self.output.send(text.into_bytes()).await;
        status::OK
    }

    /// Writes one line of JSON.
    pub(crate) async fn line(&self, value: &Value) {
        self.output.send(format!("{value}\n").into_bytes()).await;
    }

    /// Whether a command line requests MCP, which this program was built without.
    fn lacks_mcp(&self, words: &[String]) -> bool {
        let requests =
            |word: &String| ["--mcp", "--mcp-http"].contains(&word.split('=').next().unwrap_or(word));
        !self.program.mcp && words.first().is_some_and(requests)
    }

    /// Writes an error: an envelope, or a message on stderr for a terminal.
    pub(crate) async fn reject(&self, error: &ToolError, status: u8) -> u8 {
        if self.program.for_terminal {
            self.errors.send(terminal::failure(error).into_bytes()).await;
            return status;
        }
        let id = CallId::new();
        if error.code() == Code::Internal {
            self.errors.send(oneshot::explained(id, error, &error.causes())).await;
        }
        let outcome: Result<Output, ToolError> = Err(error.clone());
        self.line(Envelope::new(id, &outcome).as_value()).await;
        status
    }

    /// Writes the value of a resource or a prompt without an envelope.
    async fn value(&self, result: Result<Output, ToolError>) -> u8 {
        match result {
            Ok(output) => {
                self.line(&output.result_value()).await;
                status::OK
            }
            Err(error) => self.reject(&error, status::for_error(&error)).await,
        }
    }
}

fn without_mcp() -> ToolError {
    ToolError::precondition("this program was built without the feature `mcp`")
        .suggest("Enable the feature `mcp` of the crate `toolpost`.")
}

/// JSON on several lines, indented by two spaces.
fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
