//! A program that stays, and its turns.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use toolpost_core::{Answer, CallId, Cancellation, Question, QuestionKind, RunId, Scope, Secret};

use super::connection::{Front, Served};
use super::error::{ClaudeCodeError, ClaudeCodeErrorKind, foreign};
use super::event::{Event, Request, ServerStatus};
use super::executor::{CREDENTIAL_DESCRIPTOR, SERVERS_PATH, Start};
use super::fold::{ClaudeCodeOutput, Fold, kind_of, refused};
use super::hooks::{HookDecision, ToolUse};
use super::process::{Line, Process};
use super::settings::{Credential, Settings, check_allowed, check_model};

/// How long between two looks at tool servers that are being connected.
const CONNECT_PAUSE: Duration = Duration::from_millis(25);
/// How long a hook may take.
const HOOK_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the program may take to answer what it can answer by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most lines that are no events before the program counts as one that does not speak.
const MAX_BAD_LINES: u32 = 64;
/// The longest prompt, in bytes.
const MAX_PROMPT: usize = 16 << 20;
/// The hooks that are registered.
const BEFORE: &str = "before";
const AFTER: &str = "after";

/// A prompt, and how its turn is known and stopped.
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing until it is run"]
pub struct ClaudeCodeTurn {
    prompt: String,
    id: RunId,
    cancellation: Cancellation,
    notices: Vec<String>,
}

impl ClaudeCodeTurn {
    /// A prompt.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            id: RunId::new(),
            cancellation: Cancellation::never(),
            notices: Vec::new(),
        }
    }

    /// Gives it the name that somebody has reserved for it already.
    pub fn with_id(mut self, id: RunId) -> Self {
        self.id = id;
        self
    }

    /// Says how it is stopped. What stops a turn ends the session.
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Adds something that its record shall say.
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.push(notice.into());
        self
    }

    pub(super) fn id(&self) -> RunId {
        self.id
    }

    pub(super) fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    pub(super) fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// The caller asked to stop.
pub(super) fn cancelled() -> ClaudeCodeError {
    ClaudeCodeError::new(ClaudeCodeErrorKind::Cancelled, "the caller asked to stop")
}

/// A Claude Code that runs and waits for the next turn. Dropped, it is killed with everything that it started;
/// [`ClaudeCodeSession::end`] lets it end by itself.
pub struct ClaudeCodeSession {
    settings: Settings,
    process: Process,
    servers: Vec<Served>,
    tools: Vec<String>,
    /// What must not be seen, tokens of tool servers too.
    secrets: Vec<Secret>,
    id: Option<String>,
    cost: f64,
    asked: u64,
    is_over: bool,
    /// Where the program keeps what it keeps; goes with the session.
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

/// What waiting for the next event can come to.
enum Next {
    Event(Event),
    /// Nothing more comes.
    Over,
}

impl ClaudeCodeSession {
    /// Checks everything, starts everything, and waits until everything is connected.
    pub(super) async fn start(settings: &Settings) -> Result<Self, ClaudeCodeError> {
        // Before anything else: a missing credential starts nothing.
        let credential = check_credential(settings.credential.as_ref())?;
        let executor = settings.executor.found()?;
        let home = if executor.confines() { None } else { Some(private_folder()?) };
        let deadline = Instant::now() + settings.limits.start;
        let late = || {
            let limit = toolpost_core::format_duration(settings.limits.start);
            ClaudeCodeError::new(
                ClaudeCodeErrorKind::Program,
                format!("Claude Code was not ready within {limit}"),
            )
        };
        let owner = settings.caller.identity.as_deref().unwrap_or("claude-code");
        let mut scope = Scope::new(owner);
        if let Some(folder) = &settings.folder {
            scope = scope.with_working_dir(folder);
        }
        let front = Front { caller: settings.caller.clone(), scope, port: settings.port.clone() };
        let mut servers = Vec::with_capacity(settings.connections.len());
        for (name, connection) in &settings.connections {
            servers.push(Served::start(name, connection, &front).await?);
        }
        let (arguments, tools) = arguments(settings, &servers)?;
        let addresses = servers.iter().filter_map(|server| server.address().transpose());
        let (sandbox, program) = executor.prepare(Start {
            arguments,
            variables: variables(settings, credential),
            // Without tools of its own it has no use for a copy.
            folder: settings
                .folder
                .as_deref()
                .filter(|_| !executor.copies_folder() || !settings.own_tools.is_empty()),
            home: home.as_ref().map(TempDir::path),
            base_url: settings.base_url.as_deref(),
            no_network: settings.no_network,
            servers: addresses.collect::<Result<_, ClaudeCodeError>>()?,
            limits: &settings.limits,
        })?;
        let sandbox = sandbox.protect(settings.protected.iter().cloned());
        let secrets: Vec<Secret> = settings
            .secrets()
            .into_iter()
            .chain(servers.iter().filter_map(|server| server.token().cloned()))
            .collect();
        let entries: serde_json::Map<String, Value> =
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
            asked: 0,
            is_over: false,
            _home: home,
        };
        let ready = timeout_at(deadline, session.get_ready()).await;
        match ready.unwrap_or_else(|_| Err(late())) {
            Ok(()) => Ok(session),
            Err(error) => {
                session.process.kill().await;
                session.stop_servers().await;
                Err(error)
            }
        }
    }

    /// Greets the program, and waits until it is connected to every tool server.
    async fn get_ready(&mut self) -> Result<(), ClaudeCodeError> {
        let mut greeting = json!({ "subtype": "initialize" });
        if self.settings.hooks.is_some() {
            let hook = |name: &str| json!([{ "matcher": null, "hookCallbackIds": [name], "timeout": 120 }]);
            greeting["hooks"] = json!({ "PreToolUse": hook(BEFORE), "PostToolUse": hook(AFTER) });
        }
        self.ask(greeting).await?;
        loop {
            let answer = self.ask(json!({ "subtype": "mcp_status" })).await?;
            let statuses = ServerStatus::all(answer.get("mcpServers"));
            self.check_servers(&statuses)?;
            if self.servers.iter().all(|server| {
                statuses.iter().any(|status| status.name == server.name && status.status == "connected")
            }) {
                return Ok(());
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    /// Whether the program could connect to every tool server, as far as it has tried.
    fn check_servers(&self, statuses: &[ServerStatus]) -> Result<(), ClaudeCodeError> {
        for status in statuses {
            if matches!(status.status.as_str(), "connected" | "pending") {
                continue;
            }
            let why = status.error.as_deref().unwrap_or(&status.status);
            let message = format!(
                "Claude Code cannot use the tool server `{}`: {}",
                foreign(&status.name, &[]),
                foreign(why, &self.secrets)
            );
            return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::ToolServer, message));
        }
        Ok(())
    }

    /// Asks the program something that it answers by itself.
    async fn ask(&mut self, request: Value) -> Result<Value, ClaudeCodeError> {
        self.asked += 1;
        let id = format!("toolpost-{}", self.asked);
        self.write(&json!({ "type": "control_request", "request_id": id, "request": request })).await?;
        loop {
            match self.next().await? {
                Next::Over => {
                    let error = self.process.end().await;
                    self.is_over = true;
                    // It never was at work: what is wrong is the program, or how it was started.
                    let kind = if error.kind() == ClaudeCodeErrorKind::Killed {
                        ClaudeCodeErrorKind::Program
                    } else {
                        error.kind()
                    };
                    return Err(ClaudeCodeError::new(
                        kind,
                        error.message().replace(" in the middle of its work", ", and was not ready"),
                    ));
                }
                Next::Event(Event::Answer { id: answered, result }) if answered == id => {
                    return result.map_err(|why| {
                        ClaudeCodeError::new(
                            ClaudeCodeErrorKind::Program,
                            format!("Claude Code refuses: {}", foreign(&why, &self.secrets)),
                        )
                    });
                }
                Next::Event(Event::Request { id, request }) => self.answer(&id, request).await?,
                Next::Event(_) => {}
            }
        }
    }

    /// The model of the turns from now on.
    ///
    /// # Errors
    /// The name cannot be one of a model, the program refuses it, or the session has ended.
    pub async fn set_model(&mut self, model: &str) -> Result<(), ClaudeCodeError> {
        check_model(model)?;
        self.check_alive()?;
        let asked =
            timeout(ANSWER_TIMEOUT, self.ask(json!({ "subtype": "set_model", "model": model }))).await;
        asked.unwrap_or_else(|_| {
            Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Program, "Claude Code did not answer within 10 s"))
        })?;
        self.settings.model = Some(model.to_owned());
        Ok(())
    }

    /// Gives the program a prompt and waits until it has answered.
    pub async fn turn(&mut self, prompt: impl Into<String>) -> ClaudeCodeOutput {
        self.run(ClaudeCodeTurn::new(prompt)).await
    }

    /// The same with more to say about the turn than the prompt.
    pub async fn run(&mut self, turn: ClaudeCodeTurn) -> ClaudeCodeOutput {
        let settings = self.settings.clone();
        let mut fold = Fold::new(&turn, &settings, self.id.clone());
        fold.in_container(self.process.container());
        if let Err(error) = self.check_alive().and_then(|()| check_prompt(&turn.prompt)) {
            return fold.failed(error, &[]);
        }
        fold.begin(&self.tools);
        let deadline = settings.limits.time.and_then(|time| Instant::now().checked_add(time));
        let ended = tokio::select! {
            biased;
            () = turn.cancellation.cancelled() => Err(cancelled()),
            () = until(deadline) => {
                let limit = toolpost_core::format_duration(settings.limits.time.unwrap_or_default());
                Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Limit, format!("the turn took longer than {limit}")))
            }
            ended = self.work(&turn.prompt, &mut fold) => ended,
        };
        match ended {
            Ok(ended) => {
                let outcome = fold.ended(&ended, self.cost, &self.servers);
                self.cost = ended.total_cost.unwrap_or(self.cost);
                self.id.clone_from(&outcome.session);
                outcome
            }
            Err(error) => {
                // Nobody knows what it would say next.
                self.is_over = true;
                self.process.kill().await;
                fold.failed(error, &self.servers)
            }
        }
    }

    fn check_alive(&self) -> Result<(), ClaudeCodeError> {
        if self.is_over {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Ended,
                "this session of Claude Code has ended",
            )
            .hint("start another one"));
        }
        Ok(())
    }

    /// Sends the prompt and takes in what comes until the turn is over.
    async fn work(
        &mut self,
        prompt: &str,
        fold: &mut Fold<'_>,
    ) -> Result<super::event::Ended, ClaudeCodeError> {
        let message = json!({
            "type": "user",
            "message": { "role": "user", "content": prompt },
            "parent_tool_use_id": null,
            "session_id": self.id.as_deref().unwrap_or_default(),
        });
        self.write(&message).await?;
        loop {
            match self.next().await? {
                Next::Over => return Err(self.process.end().await),
                Next::Event(Event::Ended(ended)) => return Ok(*ended),
                Next::Event(Event::Request { id, request }) => self.answer(&id, request).await?,
                Next::Event(Event::Init { servers, session, model }) => {
                    self.check_servers(&servers)?;
                    fold.take(Event::Init { servers, session, model });
                }
                // The program would try for minutes.
                Next::Event(Event::Retry { error, status, .. })
                    if kind_of(Some(&error), status, "") == ClaudeCodeErrorKind::CredentialRefused =>
                {
                    return Err(refused(&foreign(&error, &self.secrets)));
                }
                Next::Event(event) => fold.take(event),
            }
        }
    }

    /// The next event. Lines that are none are passed over, but not for ever.
    async fn next(&mut self) -> Result<Next, ClaudeCodeError> {
        for _ in 0..MAX_BAD_LINES {
            match self.process.line().await {
                None => return Ok(Next::Over),
                Some(Line::TooLong) => {
                    tracing::warn!("Claude Code wrote a line of more than 8 MiB, which is lost");
                }
                Some(Line::Whole(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
                Some(Line::Whole(line)) => match Event::read(&line) {
                    Ok(event) => {
                        if self.settings.verbose {
                            let text = String::from_utf8_lossy(&line);
                            tracing::debug!(event = foreign(&text, &self.secrets), "Claude Code");
                        }
                        return Ok(Next::Event(event));
                    }
                    Err(why) => {
                        let text = foreign(&String::from_utf8_lossy(&line), &self.secrets);
                        tracing::warn!(why, line = text, "Claude Code wrote a line that is no event");
                    }
                },
            }
        }
        Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Program, "Claude Code writes lines that are no events")
            .hint("this version speaks with Claude Code 2.1; install that one"))
    }

    /// Answers what the program asks.
    async fn answer(&self, id: &str, request: Request) -> Result<(), ClaudeCodeError> {
        let answer = match request {
            Request::Permission { tool, input } => Ok(self.permission(tool, input).await),
            Request::Hook { callback, input } => Ok(self.hook(&callback, &input).await),
            Request::Other(what) => Err(format!("this host does not know `{}`", foreign(&what, &[]))),
        };
        let response = match answer {
            Ok(value) => json!({ "subtype": "success", "request_id": id, "response": value }),
            Err(why) => json!({ "subtype": "error", "request_id": id, "error": why }),
        };
        self.write(&json!({ "type": "control_response", "response": response })).await
    }

    /// Asks the owner whether a tool may be used that is not allowed.
    async fn permission(&self, tool: String, input: Value) -> Value {
        let deny = |why: &str| json!({ "behavior": "deny", "message": why });
        let Some(port) = &self.settings.port else { return deny("this session has no approval port") };
        let question = Question {
            message: format!("Claude Code wants to use `{}`.", foreign(&tool, &self.secrets)),
            kind: QuestionKind::Approval { tool, arguments: input.clone() },
            name: None,
        };
        match port.ask(CallId::new(), &question).await {
            Ok(Answer::Given { value }) if value == true => {
                json!({ "behavior": "allow", "updatedInput": input })
            }
            Ok(_) => deny("the owner says no"),
            Err(error) => deny(error.public(CallId::new()).message()),
        }
    }

    async fn hook(&self, callback: &str, input: &Value) -> Value {
        let Some(hooks) = &self.settings.hooks else { return json!({}) };
        let used = ToolUse::of(input);
        if callback == AFTER {
            let result = input.get("tool_response").cloned().unwrap_or_default();
            // A hook that is late has nothing to say any more.
            let _ = timeout(HOOK_TIMEOUT, hooks.after_tool(&used, &result)).await;
            return json!({});
        }
        let decided = timeout(HOOK_TIMEOUT, hooks.before_tool(&used)).await;
        let (decision, reason) = match decided {
            Ok(HookDecision::Continue) => return json!({}),
            Ok(HookDecision::Allow) => ("allow", "the application allows it".to_owned()),
            Ok(HookDecision::Deny(why)) => ("deny", why),
            Err(_) => ("deny", "the application did not decide within a minute".to_owned()),
        };
        json!({ "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": reason,
        } })
    }

    async fn write(&self, message: &Value) -> Result<(), ClaudeCodeError> {
        self.process.send(format!("{message}\n").into_bytes()).await
    }

    async fn stop_servers(&mut self) {
        for server in self.servers.drain(..) {
            server.stop().await;
        }
    }

    /// Lets the program end, within a few seconds, and stops the tool servers.
    pub async fn end(mut self) {
        if !self.is_over {
            // Why it ended does not matter any more.
            let _ = self.process.end().await;
        }
        self.stop_servers().await;
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn check_prompt(prompt: &str) -> Result<(), ClaudeCodeError> {
    if prompt.trim().is_empty() {
        return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, "the prompt is empty"));
    }
    if prompt.len() > MAX_PROMPT {
        return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, "the prompt is larger than 16 MiB")
            .hint("put what is long into a file of the working folder, and name it"));
    }
    Ok(())
}

fn check_credential(credential: Option<&Credential>) -> Result<&Credential, ClaudeCodeError> {
    let how = "set CLAUDE_CODE_OAUTH_TOKEN (made by `claude setup-token`) or ANTHROPIC_API_KEY";
    let credential = credential.filter(|credential| !credential.secret().expose().is_empty());
    let credential = credential.ok_or_else(|| {
        ClaudeCodeError::new(
            ClaudeCodeErrorKind::CredentialMissing,
            "Claude Code needs a credential, and there is none",
        )
        .hint(how)
    })?;
    let text = credential.secret().expose();
    if text.len() > 16 << 10 || !text.chars().all(|letter| letter.is_ascii_graphic()) {
        let message = "the credential of Claude Code has characters that no key and no token has";
        return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::CredentialRefused, message).hint(how));
    }
    Ok(credential)
}

/// A folder that nobody else reads.
fn private_folder() -> Result<TempDir, ClaudeCodeError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("toolpost-claude-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir().map_err(|error| {
        ClaudeCodeError::new(
            ClaudeCodeErrorKind::Sandbox,
            format!("no folder for temporary files could be made: {error}"),
        )
    })
}

fn variables(settings: &Settings, credential: &Credential) -> Vec<(String, String)> {
    let descriptor = match credential {
        Credential::ApiKey(_) => "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
        Credential::OauthToken(_) => "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
    };
    let mut variables = vec![
        (descriptor, CREDENTIAL_DESCRIPTOR),
        // Else tools are not offered, only found.
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
        // The program's word for a place that confines it, without which root may not have its permissions bypassed.
        variables.push(("IS_SANDBOX", "1"));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The arguments of the program, and the names of the tools that it may use.
fn arguments(settings: &Settings, servers: &[Served]) -> Result<(Vec<String>, Vec<String>), ClaudeCodeError> {
    let known: Vec<String> = servers.iter().flat_map(|server| server.tools().iter().cloned()).collect();
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    let allowed = match &settings.allowed {
        Some(allowed) => {
            check_allowed(allowed, &names, &known)?;
            allowed.clone()
        }
        None => {
            let foreign = servers.iter().filter(|server| !server.is_own());
            known.iter().cloned().chain(foreign.map(|server| format!("mcp__{}", server.name))).collect()
        }
    };
    let mut arguments: Vec<String> = [
        "--print",
        "--input-format=stream-json",
        "--output-format=stream-json",
        "--verbose",
        "--strict-mcp-config",
        "--no-session-persistence",
        "--disable-slash-commands",
        // Nothing of the user's own Claude Code.
        "--setting-sources=",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("--mcp-config={SERVERS_PATH}"));
    arguments.push(format!("--tools={}", settings.own_tools.join(",")));
    arguments.push(format!("--permission-mode={}", settings.mode.argument()));
    if !allowed.is_empty() {
        arguments.push(format!("--allowedTools={}", allowed.join(",")));
    }
    if settings.port.is_some() {
        arguments.push("--permission-prompt-tool=stdio".to_owned());
    }
    if settings.verbose {
        arguments.push("--include-partial-messages".to_owned());
    }
    let options = [
        ("--model", settings.model.clone()),
        ("--effort", settings.effort.map(|effort| effort.as_str().to_owned())),
        ("--system-prompt", settings.system.clone()),
        ("--append-system-prompt", settings.append_system.clone()),
        ("--max-turns", settings.limits.iterations.map(|turns| turns.to_string())),
        ("--max-budget-usd", settings.limits.cost_usd.map(|cost| cost.to_string())),
    ];
    for (option, value) in options {
        if let Some(value) = value {
            arguments.push(format!("{option}={value}"));
        }
    }
    Ok((arguments, allowed))
}
