//! Targets as sources of tools.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use toolpost_core::{CallError, Secret, ToolError, ToolSource, did_you_mean};
use toolpost_exec::client::Executables;
use toolpost_exec::command::{CommandSettings, CommandTools};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_sandbox::{Level, split_command};
use toolpost_toolbox::Toolbox;

use crate::environment;

/// Opens a target as a source of tools.
///
/// | target | source |
/// |---|---|
/// | `builtin`, `builtin:read_file` | the built-in tools, or one of them |
/// | `command:git` | an included description of a program |
/// | `https://host/mcp`, `wss://host/ws` | an MCP server |
/// | `stdio:COMMAND ARGS` | an MCP server, started in the sandbox without a shell |
/// | `tools/weather`, `tools/git.toml` | an executable, or the description of a command |
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let toolbox = toolpost::Toolbox::builder().build()?;
/// toolbox.add_source(toolpost::connect("https://example.com/mcp").await?).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `NOT_FOUND` for an unknown tool or a missing file, `INVALID_INPUT` for an invalid description, `DEPENDENCY` for a
/// program or server that does not answer, and the errors of [`Client`].
pub async fn connect(target: &str) -> Result<Arc<dyn ToolSource>, CallError> {
    Connection::new(target).open().await
}

/// A target with its credentials and its sandbox level.
#[derive(Clone, Debug)]
#[must_use = "a connection does nothing until `open`"]
pub struct Connection {
    target: String,
    token: Option<Secret>,
    env: Vec<(String, OsString)>,
    level: Level,
    calls: Vec<String>,
}

impl Connection {
    /// A target without credentials, at [`Level::Standard`].
    pub fn new(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            token: None,
            env: Vec::new(),
            level: Level::Standard,
            calls: Vec::new(),
        }
    }

    /// Sets the bearer token for a server with a URL.
    pub fn token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets a variable in the otherwise empty environment of a program.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the sandbox level of a program.
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Sets the tools of the toolbox that an executable may call. Default: none.
    ///
    /// Its calls are checked, limited and recorded as nested calls of a function.
    pub fn calls<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.calls = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Opens the target, as [`connect`] does.
    ///
    /// # Errors
    /// Errors of [`connect`].
    pub async fn open(self) -> Result<Arc<dyn ToolSource>, CallError> {
        Ok(self.source().await?)
    }

    async fn source(self) -> Result<Arc<dyn ToolSource>, ToolError> {
        let target = self.target.clone();
        let target = target.as_str();
        let is_server =
            ["http://", "https://", "ws://", "wss://"].iter().any(|scheme| target.starts_with(scheme));
        if self.token.is_some() && !is_server {
            return Err(ToolError::invalid_input(format!("`{target}` takes no token"))
                .suggest("Pass a secret of a program in its environment."));
        }
        let path = Path::new(target);
        let is_description = path.extension().is_some_and(|extension| extension == "toml");
        if !self.calls.is_empty() && (is_description || !path.exists()) {
            return Err(ToolError::invalid_input(format!(
                "`{target}` takes no `calls`: it is not an executable"
            )));
        }
        if target == "builtin" || target.starts_with("builtin:") {
            return builtin(target.strip_prefix("builtin:"));
        }
        if let Some(name) = target.strip_prefix("command:") {
            return command(CommandTools::shipped(name)?);
        }
        if is_server {
            return self.server().await;
        }
        if let Some(line) = target.strip_prefix("stdio:") {
            let words = split_command(line)
                .map_err(|quote| ToolError::invalid_input(format!("`{target}` has an unclosed {quote}")))?;
            let argv: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            if argv.is_empty() {
                return Err(ToolError::invalid_input("the target `stdio:` names no command"));
            }
            let endpoint = Endpoint::Program { argv, env: self.env, dir: None, level: self.level };
            return client(endpoint, "stdio").await;
        }
        if !path.exists() {
            return Err(ToolError::not_found(format!("the target `{target}` is neither a file nor a URL"))
                .suggest("Use a path, a URL, `stdio:COMMAND`, `command:NAME` or `builtin`."));
        }
        if is_description {
            return command(CommandTools::from_toml(&std::fs::read_to_string(path)?, target)?);
        }
        self.executable(path).await
    }

    async fn server(self) -> Result<Arc<dyn ToolSource>, ToolError> {
        let header =
            |token: Secret| ("Authorization".to_owned(), Secret::new(format!("Bearer {}", token.expose())));
        let headers = self.token.map(header).into_iter().collect();
        let (url, name) = (self.target.clone(), self.target);
        let is_socket = url.starts_with("ws");
        let endpoint =
            if is_socket { Endpoint::WebSocket { url, headers } } else { Endpoint::Http { url, headers } };
        client(endpoint, &name).await
    }

    async fn executable(self, path: &Path) -> Result<Arc<dyn ToolSource>, ToolError> {
        let mut builder =
            Executables::builder().path(path).level(self.level).resident(true).calls(self.calls);
        if let Some(search_path) = environment::search_path() {
            builder = builder.search_path(search_path);
        }
        if let Some(home) = environment::home() {
            builder = builder.home(home);
        }
        for (name, value) in self.env {
            builder = builder.env(name, value);
        }
        let executables = builder.discover().await;
        // A problem of one tool leaves the others usable.
        match executables.diagnostics().iter().find(|diagnostic| diagnostic.tool.is_none()) {
            Some(diagnostic) => Err(ToolError::dependency(diagnostic.to_string())),
            None => Ok(Arc::new(executables)),
        }
    }
}

async fn client(endpoint: Endpoint, name: &str) -> Result<Arc<dyn ToolSource>, ToolError> {
    let mut builder = Client::builder(endpoint).name(name).no_network(environment::is_offline());
    if let Some(search_path) = environment::search_path() {
        builder = builder.search_path(search_path);
    }
    if let Some(home) = environment::home() {
        builder = builder.home(home);
    }
    Ok(builder.connect().await?)
}

fn builtin(name: Option<&str>) -> Result<Arc<dyn ToolSource>, ToolError> {
    let mut tools = toolpost_tools::builtin();
    if let Some(name) = name {
        let names: Vec<String> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
        tools.retain(|tool| tool.spec().name == name);
        if tools.is_empty() {
            return Err(ToolError::not_found(format!("there is no built-in tool `{name}`"))
                .suggest_maybe(did_you_mean(name, names.iter().map(String::as_str))));
        }
    }
    let mut settings = toolpost_tools::CodeSettings::default();
    settings.home = environment::home().map(Into::into);
    let toolbox = Toolbox::builder().name("builtin").tools(tools).provide(settings);
    #[cfg(feature = "tools-http")]
    let toolbox = {
        let mut settings = toolpost_tools::HttpSettings::default();
        settings.no_network = environment::is_offline();
        toolbox.provide(settings)
    };
    Ok(Arc::new(toolbox.build()?))
}

fn command(tools: CommandTools) -> Result<Arc<dyn ToolSource>, ToolError> {
    let mut settings = CommandSettings::default();
    settings.search_path = environment::search_path();
    settings.home = environment::home().map(Into::into);
    let toolbox = Toolbox::builder().name(tools.origin().to_owned()).tools(tools).provide(settings);
    Ok(Arc::new(toolbox.build()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn targets_are_opened() {
        let toolbox = Toolbox::builder().build().unwrap();
        toolbox.add_source(connect("builtin:calculate").await.unwrap()).await.unwrap();
        let output = toolbox.run("calculate", json!({ "expression": "6 * 7" })).await.unwrap();
        assert!(output.to_text().contains("42"), "{output:?}");
        for (target, expected) in [
            ("builtin:calculat", "calculate"),
            ("command:gti", "git"),
            ("no/such/file", "neither a file nor a URL"),
            ("stdio:", "names no command"),
            ("http://127.0.0.1:1/mcp", "127.0.0.1:1"),
        ] {
            let Err(error) = connect(target).await else { panic!("{target} opened") };
            assert!(error.to_string().contains(expected), "{target}: {error}");
        }
        let with_token = Connection::new("builtin").token(Secret::new("s3cret")).open().await;
        assert!(with_token.is_err_and(|error| error.message().contains("takes no token")));
        let with_calls = Connection::new("command:git").calls(["calculate"]).open().await;
        assert!(with_calls.is_err_and(|error| error.message().contains("takes no `calls`")));
    }
}
