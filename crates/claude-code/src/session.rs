//! A session: one process of Claude Code for many turns.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep_until, timeout_at};
use toolpost_core::{Answer, CallId, Cancellation, Question, QuestionKind, RunId, Scope, Secret};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind, redact};
use super::event::{ControlRequest, Ended, Event, Response, ServerStatus, System};
use super::executor::{CREDENTIAL_DESCRIPTOR, SERVERS_PATH, Start};
use super::output::{ClaudeCodeOutput, OutputBuilder, error_kind, rejected_credential};
use super::process::{Line, Process};
use super::settings::{Credential, Settings, check_allowed};
use super::tool_server::{Owner, ToolServer};

/// Time between two checks of the tool servers that the program connects to.
const CONNECT_INTERVAL: Duration = Duration::from_millis(25);
/// Lines without an event before the program counts as broken.
const MAX_BAD_LINES: u32 = 64;
/// Bytes of a prompt.
const MAX_PROMPT: usize = 16 << 20;
/// Bytes of a credential.
const MAX_CREDENTIAL: usize = 16 << 10;

/// A prompt with the id and the cancellation of its turn.
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing until it is run"]
pub struct ClaudeCodeTurn {
    pub(super) prompt: String,
    pub(super) id: RunId,
    pub(super) cancellation: Cancellation,
    pub(super) notices: Vec<String>,
}

impl ClaudeCodeTurn {
    /// A turn with a prompt.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            id: RunId::new(),
            cancellation: Cancellation::never(),
            notices: Vec::new(),
        }
    }

    /// Sets the id of the run. Defaults to a new one.
    pub fn with_id(mut self, id: RunId) -> Self {
        self.id = id;
        self
    }

    /// Sets the cancellation, which also ends the session. Defaults to none.
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Adds a notice to the record.
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.push(notice.into());
        self
    }
}

/// The error of a cancelled turn.
pub(super) fn cancelled() -> ClaudeCodeError {
    Kind::Cancelled.error("the caller cancelled the turn")
}

/// A running Claude Code that waits for turns.
///
/// Dropping it kills the process with all its children; [`ClaudeCodeSession::end`] lets it end by itself.
pub struct ClaudeCodeSession {
    settings: Settings,
    process: Process,
    servers: Vec<ToolServer>,
    /// The allowed tools.
    tools: Vec<String>,
    /// The credential and the tokens of the tool servers.
    secrets: Vec<Secret>,
    id: Option<String>,
    cost: f64,
    requests: u64,
    is_over: bool,
    /// The home directory, which is deleted with the session.
    _home: Option<TempDir>,
}

impl std::fmt::Debug for ClaudeCodeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("settings", &self.settings)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl ClaudeCodeSession {
    /// Starts the tool servers and the program, and waits until they are connected.
    pub(super) async fn start(settings: &Settings) -> Result<Self, ClaudeCodeError> {
        // A missing credential must start nothing.
        let credential = check_credential(settings.credential.as_ref())?;
        let executor = settings.executor.resolve()?;
        let home = if executor.confines() { None } else { Some(private_directory()?) };
        let deadline = Instant::now() + settings.limits.start;
        let mut scope = Scope::new(settings.caller.identity.as_deref().unwrap_or("claude-code"));
        if let Some(directory) = &settings.directory {
            scope = scope.with_working_dir(directory);
        }
        let owner = Owner { caller: settings.caller.clone(), scope, port: settings.port.clone() };
        let mut servers = Vec::with_capacity(settings.sources.len());
        for (name, source) in &settings.sources {
            servers.push(ToolServer::start(name, source, &owner).await?);
        }
        let (arguments, tools) = arguments(settings, &servers)?;
        // A copy of the directory is useless without own tools.
        let needs_directory = !executor.copies_directory() || !settings.own_tools.is_empty();
        let (sandbox, program) = executor.prepare(Start {
            arguments,
            variables: variables(settings, credential),
            directory: settings.directory.as_deref().filter(|_| needs_directory),
            home: home.as_ref().map(TempDir::path),
            base_url: settings.base_url.as_deref(),
            no_network: settings.no_network,
            servers: servers.iter().map(ToolServer::address).collect::<Result<_, _>>()?,
            limits: &settings.limits,
        })?;
        let sandbox = sandbox.protect(settings.protected.iter().cloned());
        let sandbox = settings.layers.iter().fold(sandbox, toolpost_sandbox::Sandbox::layers);
        let sandbox = settings.changes.iter().cloned().fold(sandbox, toolpost_sandbox::Sandbox::run_changes);
        let mut secrets = settings.secrets();
        secrets.extend(servers.iter().map(|server| server.token.clone()));
        let entries: Map<String, Value> =
            servers.iter().map(|server| (server.name.clone(), server.entry())).collect();
        let first = format!("{}\n{}\n", credential.secret().expose(), json!({ "mcpServers": entries }));
        let process = Process::start(sandbox, program, first.into_bytes(), secrets.clone()).await?;
        let mut session = Self {
            settings: settings.clone(),
            process,
            servers,
            tools,
            secrets,
            id: None,
            cost: 0.0,
            requests: 0,
            is_over: false,
            _home: home,
        };
        let ready = timeout_at(deadline, session.connect()).await.unwrap_or_else(|_| {
            let limit = toolpost_core::format_duration(settings.limits.start);
            Err(Kind::Program.error(format!("Claude Code was not ready within {limit}")))
        });
        match ready {
            Ok(()) => Ok(session),
            Err(error) => {
                session.process.kill().await;
                session.stop_servers().await;
                Err(error)
            }
        }
    }

    /// Initializes the program, and waits until it is connected to every tool server.
    async fn connect(&mut self) -> Result<(), ClaudeCodeError> {
        self.request("initialize").await?;
        loop {
            let mut response = self.request("mcp_status").await?;
            let statuses: Vec<ServerStatus> =
                serde_json::from_value(response["mcpServers"].take()).unwrap_or_default();
            self.check_servers(&statuses)?;
            let is_connected = |server: &ToolServer| {
                statuses.iter().any(|status| status.name == server.name && status.status == "connected")
            };
            if self.servers.iter().all(is_connected) {
                return Ok(());
            }
            tokio::time::sleep(CONNECT_INTERVAL).await;
        }
    }

    /// Checks that no connection to a tool server failed.
    fn check_servers(&self, statuses: &[ServerStatus]) -> Result<(), ClaudeCodeError> {
        let failed =
            statuses.iter().find(|server| !matches!(server.status.as_str(), "connected" | "pending"));
        let Some(server) = failed else { return Ok(()) };
        let reason = redact(server.error.as_deref().unwrap_or(&server.status), &self.secrets);
        let name = redact(&server.name, &[]);
        Err(Kind::ToolServer.error(format!("Claude Code cannot use the tool server `{name}`: {reason}")))
    }

    /// Sends a request to the program and returns its response.
    async fn request(&mut self, subtype: &str) -> Result<Value, ClaudeCodeError> {
        self.requests += 1;
        let id = format!("toolpost-{}", self.requests);
        let request = json!({ "subtype": subtype });
        self.write(&json!({ "type": "control_request", "request_id": id, "request": request })).await?;
        loop {
            match self.next().await? {
                None => {
                    let error = self.process.end().await;
                    self.is_over = true;
                    // A program that ends before its first turn is broken, or was started in a wrong way.
                    let kind = if error.kind() == Kind::Killed { Kind::Program } else { error.kind() };
                    return Err(kind.error(format!("Claude Code failed to start: {}", error.message())));
                }
                Some(Event::ControlResponse { response: Response::Success { request_id, response } })
                    if request_id == id =>
                {
                    return Ok(response);
                }
                Some(Event::ControlResponse { response: Response::Error { request_id, error } })
                    if request_id == id =>
                {
                    let error = redact(&error, &self.secrets);
                    return Err(
                        Kind::Program.error(format!("Claude Code rejected the request `{subtype}`: {error}"))
                    );
                }
                Some(Event::ControlRequest { request_id, request }) => {
                    self.respond(request_id, request).await?;
                }
                Some(_) => {}
            }
        }
    }

    /// Runs a turn with a prompt.
    pub async fn turn(&mut self, prompt: impl Into<String>) -> ClaudeCodeOutput {
        self.run(ClaudeCodeTurn::new(prompt)).await
    }

    /// Runs a turn.
    pub async fn run(&mut self, turn: ClaudeCodeTurn) -> ClaudeCodeOutput {
        let settings = self.settings.clone();
        let mut output = OutputBuilder::new(&turn, &settings, self.id.clone());
        if let Err(error) = self.check_alive().and_then(|()| check_prompt(&turn.prompt)) {
            return output.fail(error, &[]);
        }
        output.begin(&self.tools, self.process.container());
        let time = settings.limits.time;
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        let ended = tokio::select! {
            biased;
            () = turn.cancellation.cancelled() => Err(cancelled()),
            () = reached(deadline) => {
                let limit = toolpost_core::format_duration(time.unwrap_or_default());
                Err(Kind::Limit.error(format!("the turn exceeded its time limit of {limit}")))
            }
            ended = self.work(&turn.prompt, &mut output) => ended,
        };
        match ended {
            Ok(ended) => {
                let output = output.finish(&ended, self.cost, &self.servers);
                self.cost = ended.total_cost_usd.unwrap_or(self.cost);
                self.id.clone_from(&output.session);
                output
            }
            Err(error) => {
                // The state of the program is unknown.
                self.is_over = true;
                self.process.kill().await;
                output.fail(error, &self.servers)
            }
        }
    }

    fn check_alive(&self) -> Result<(), ClaudeCodeError> {
        if self.is_over {
            return Err(Kind::Ended.error("this session of Claude Code has ended").hint("start another one"));
        }
        Ok(())
    }

    /// Sends the prompt and adds events to the output until the turn ends.
    async fn work(&mut self, prompt: &str, output: &mut OutputBuilder<'_>) -> Result<Ended, ClaudeCodeError> {
        let message = json!({
            "type": "user",
            "message": { "role": "user", "content": prompt },
            "parent_tool_use_id": null,
            "session_id": self.id.as_deref().unwrap_or_default(),
        });
        self.write(&message).await?;
        loop {
            let event = match self.next().await? {
                None => return Err(self.process.end().await),
                Some(Event::Result(ended)) => return Ok(*ended),
                Some(Event::ControlRequest { request_id, request }) => {
                    self.respond(request_id, request).await?;
                    continue;
                }
                Some(event) => event,
            };
            match &event {
                Event::System(System::Init { mcp_servers, .. }) => self.check_servers(mcp_servers)?,
                // The program would retry a rejected credential for minutes.
                Event::System(System::ApiRetry { error, error_status, .. })
                    if error_kind(Some(error), *error_status, "") == Kind::CredentialRefused =>
                {
                    return Err(rejected_credential(&redact(error, &self.secrets)));
                }
                _ => {}
            }
            output.add(event);
        }
    }

    /// The next event; `None` at the end. Skips a limited number of lines without an event.
    async fn next(&mut self) -> Result<Option<Event>, ClaudeCodeError> {
        for _ in 0..MAX_BAD_LINES {
            let line = match self.process.line().await {
                None => return Ok(None),
                Some(Line::TooLong) => {
                    tracing::warn!("dropped a line of Claude Code of more than 8 MiB");
                    continue;
                }
                Some(Line::Whole(line)) => line,
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = || redact(&String::from_utf8_lossy(&line), &self.secrets);
            match Event::parse(&line) {
                Ok(event) => {
                    if self.settings.verbose {
                        tracing::debug!(event = text(), "Claude Code");
                    }
                    return Ok(Some(event));
                }
                Err(error) => tracing::warn!(error, line = text(), "invalid event of Claude Code"),
            }
        }
        let error = Kind::Program.error("Claude Code writes lines that are not events");
        Err(error.hint("this version supports Claude Code 2.1; install it"))
    }

    /// Responds to a request of the program.
    async fn respond(&self, request_id: String, request: ControlRequest) -> Result<(), ClaudeCodeError> {
        let response = match request {
            ControlRequest::CanUseTool { tool_name, input } => {
                Response::Success { request_id, response: self.approve(tool_name, input).await }
            }
            ControlRequest::Unknown => {
                Response::Error { request_id, error: "this host does not support the request".to_owned() }
            }
        };
        self.write(&json!({ "type": "control_response", "response": response })).await
    }

    /// Asks the port to approve a tool that is not allowed.
    async fn approve(&self, tool: String, input: Value) -> Value {
        let deny = |reason: &str| json!({ "behavior": "deny", "message": reason });
        let Some(port) = &self.settings.port else { return deny("this session has no approval port") };
        let question = Question {
            message: format!("Allow Claude Code to use `{}`?", redact(&tool, &self.secrets)),
            kind: QuestionKind::Approval { tool, arguments: input.clone() },
            name: None,
        };
        match port.ask(CallId::new(), &question).await {
            Ok(Answer::Given { value }) if value == true => {
                json!({ "behavior": "allow", "updatedInput": input })
            }
            Ok(_) => deny("the owner denied the tool"),
            Err(error) => deny(error.public(CallId::new()).message()),
        }
    }

    async fn write(&self, message: &Value) -> Result<(), ClaudeCodeError> {
        self.process.send(format!("{message}\n").into_bytes()).await
    }

    async fn stop_servers(&mut self) {
        for server in self.servers.drain(..) {
            server.stop().await;
        }
    }

    /// Ends the program within a few seconds, and stops the tool servers.
    pub async fn end(mut self) {
        if !self.is_over {
            // The reason of the end does not matter.
            let _ = self.process.end().await;
        }
        self.stop_servers().await;
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn check_prompt(prompt: &str) -> Result<(), ClaudeCodeError> {
    if prompt.trim().is_empty() {
        return Err(Kind::Setting.error("the prompt is empty"));
    }
    if prompt.len() > MAX_PROMPT {
        let error = Kind::Setting.error("the prompt exceeds 16 MiB");
        return Err(error.hint("put long text into a file of the working directory, and name the file"));
    }
    Ok(())
}

fn check_credential(credential: Option<&Credential>) -> Result<&Credential, ClaudeCodeError> {
    let credential = credential.filter(|credential| !credential.secret().expose().is_empty());
    let is_valid =
        |text: &str| text.len() <= MAX_CREDENTIAL && text.chars().all(|letter| letter.is_ascii_graphic());
    let error = match credential {
        Some(credential) if is_valid(credential.secret().expose()) => return Ok(credential),
        Some(_) => Kind::CredentialRefused.error("the credential of Claude Code has invalid characters"),
        None => Kind::CredentialMissing.error("Claude Code needs a credential"),
    };
    Err(error.hint("set CLAUDE_CODE_OAUTH_TOKEN (created by `claude setup-token`) or ANTHROPIC_API_KEY"))
}

/// A directory that only this user can read.
fn private_directory() -> Result<TempDir, ClaudeCodeError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("toolpost-claude-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder
        .tempdir()
        .map_err(|error| Kind::Sandbox.error(format!("creating a temporary directory failed: {error}")))
}

fn variables(settings: &Settings, credential: &Credential) -> Vec<(String, String)> {
    let descriptor = match credential {
        Credential::ApiKey(_) => "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
        Credential::OauthToken(_) => "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
    };
    let mut variables = vec![
        (descriptor, CREDENTIAL_DESCRIPTOR),
        // With a search, the model does not see the tools.
        ("ENABLE_TOOL_SEARCH", "false"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("DISABLE_TELEMETRY", "1"),
        ("DISABLE_ERROR_REPORTING", "1"),
    ];
    if let Some(url) = &settings.base_url {
        variables.push(("ANTHROPIC_BASE_URL", url));
    }
    if settings.executor.confines() {
        // Without it, root cannot bypass permissions.
        variables.push(("IS_SANDBOX", "1"));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The arguments of the program, and the allowed tools.
fn arguments(
    settings: &Settings,
    servers: &[ToolServer],
) -> Result<(Vec<String>, Vec<String>), ClaudeCodeError> {
    let known: Vec<String> = servers.iter().flat_map(|server| server.tools.iter().cloned()).collect();
    let allowed = settings.allowed.clone().unwrap_or_else(|| known.clone());
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    check_allowed(&allowed, &names, &known)?;
    let mut arguments: Vec<String> = [
        "--print",
        "--input-format=stream-json",
        "--output-format=stream-json",
        "--verbose",
        "--strict-mcp-config",
        "--no-session-persistence",
        "--disable-slash-commands",
        // No settings of the user.
        "--setting-sources=",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("--mcp-config={SERVERS_PATH}"));
    arguments.push(format!("--tools={}", settings.own_tools.join(",")));
    arguments.push(format!("--permission-mode={}", settings.mode.argument()));
    if settings.port.is_some() {
        arguments.push("--permission-prompt-tool=stdio".to_owned());
    }
    if settings.verbose {
        arguments.push("--include-partial-messages".to_owned());
    }
    let options = [
        ("--allowedTools", Some(allowed.join(",")).filter(|tools| !tools.is_empty())),
        ("--model", settings.model.clone()),
        ("--effort", settings.effort.map(|effort| effort.as_str().to_owned())),
        ("--system-prompt", settings.system.clone()),
        ("--max-turns", settings.limits.iterations.map(|turns| turns.to_string())),
        ("--max-budget-usd", settings.limits.cost_usd.map(|cost| cost.to_string())),
    ];
    let set = options.into_iter().filter_map(|(option, value)| Some(format!("{option}={}", value?)));
    arguments.extend(set);
    Ok((arguments, allowed))
}
