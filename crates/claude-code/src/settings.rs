//! What a Claude Code is made of.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Caller, EventSink, Port, Secret, ToolSource, did_you_mean};
use toolpost_llm::Effort;

use super::connection::{Connection, check_server_name};
use super::error::{ClaudeCodeError, ClaudeCodeErrorKind};
use super::{ClaudeCode, Executor, Hooks};

/// The short names of models that the program knows itself.
pub(super) const MODEL_ALIASES: [&str; 3] = ["opus", "sonnet", "haiku"];
/// The longest text that goes to the program as one argument, in bytes.
const MAX_ARGUMENT: usize = 100 << 10;

/// Who pays: a key or a token. It goes to the process through a descriptor that nobody else reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// A key of the provider's API, as in `ANTHROPIC_API_KEY`.
    ApiKey(Secret),
    /// A long-lived token of a subscription, as in `CLAUDE_CODE_OAUTH_TOKEN`.
    OauthToken(Secret),
}

impl Credential {
    pub(super) fn secret(&self) -> &Secret {
        match self {
            Self::ApiKey(secret) | Self::OauthToken(secret) => secret,
        }
    }
}

/// What Claude Code may do without being asked. Whatever the mode, its own tools are off unless they are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PermissionMode {
    /// Allowed tools are used, others are asked for; with nobody to ask they are denied.
    #[default]
    Manual,
    /// Files in the working folder may be changed as well.
    AcceptEdits,
    /// Nothing is changed: Claude Code reads and makes a plan.
    Plan,
    /// What is not allowed is denied, and nobody is asked.
    DontAsk,
    /// Everything is allowed. Only with an executor that confines, and never by default.
    Bypass,
}

impl PermissionMode {
    /// The names that [`FromStr`](std::str::FromStr) takes.
    pub const NAMES: [&'static str; 5] = ["manual", "accept-edits", "plan", "dont-ask", "bypass"];

    /// The word that every supported version of the program accepts: 2.1.197 rejects `manual`.
    pub(super) const fn argument(self) -> &'static str {
        match self {
            Self::Manual => "default",
            Self::AcceptEdits => "acceptEdits",
            Self::Plan => "plan",
            Self::DontAsk => "dontAsk",
            Self::Bypass => "bypassPermissions",
        }
    }
}

impl std::str::FromStr for PermissionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "manual" => Ok(Self::Manual),
            "accept-edits" => Ok(Self::AcceptEdits),
            "plan" => Ok(Self::Plan),
            "dont-ask" => Ok(Self::DontAsk),
            "bypass" => Ok(Self::Bypass),
            _ => Err(format!("`{text}` is no permission mode: expected {}", Self::NAMES.join(", "))),
        }
    }
}

/// Limits of Claude Code; the setters of the builder describe them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limits {
    pub(super) iterations: Option<u32>,
    pub(super) cost_usd: Option<f64>,
    pub(super) time: Option<Duration>,
    pub(super) start: Duration,
    pub(super) memory: u64,
    pub(super) processes: u32,
    pub(super) cpus: Option<f32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            iterations: None,
            cost_usd: None,
            time: None,
            start: Duration::from_mins(1),
            memory: 4 << 30,
            processes: 1024,
            cpus: None,
        }
    }
}

/// Everything that a run needs to know; cheap enough to clone.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) executor: Executor,
    pub(super) credential: Option<Credential>,
    pub(super) base_url: Option<String>,
    pub(super) no_network: bool,
    pub(super) model: Option<String>,
    pub(super) effort: Option<Effort>,
    pub(super) system: Option<String>,
    pub(super) append_system: Option<String>,
    pub(super) connections: Vec<(String, Connection)>,
    pub(super) allowed: Option<Vec<String>>,
    pub(super) own_tools: Vec<String>,
    pub(super) mode: PermissionMode,
    pub(super) limits: Limits,
    pub(super) folder: Option<PathBuf>,
    pub(super) protected: Vec<PathBuf>,
    pub(super) verbose: bool,
    pub(super) hooks: Option<Arc<dyn Hooks>>,
    pub(super) port: Option<Arc<dyn Port>>,
    pub(super) events: Option<EventSink>,
    pub(super) caller: Caller,
}

impl Settings {
    /// What must not be seen in any sentence.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        let headers = self.connections.iter().flat_map(|(_, connection)| connection.secrets());
        self.credential.iter().map(Credential::secret).chain(headers).cloned().collect()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.connections.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ClaudeCode")
            .field("executor", &self.executor)
            .field("model", &self.model)
            .field("servers", &servers)
            .field("mode", &self.mode)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Puts a [`ClaudeCode`] together.
#[must_use = "a builder does nothing until `build`"]
#[derive(Clone, Debug)]
pub struct ClaudeCodeBuilder(Settings);

impl ClaudeCodeBuilder {
    pub(super) fn new() -> Self {
        Self(Settings {
            executor: Executor::process("claude"),
            credential: None,
            base_url: None,
            no_network: false,
            model: None,
            effort: None,
            system: None,
            append_system: None,
            connections: Vec::new(),
            allowed: None,
            own_tools: Vec::new(),
            mode: PermissionMode::default(),
            limits: Limits::default(),
            folder: None,
            protected: Vec::new(),
            verbose: false,
            hooks: None,
            port: None,
            events: None,
            caller: Caller::new("claude-code"),
        })
    }

    /// Where the program runs. Default: a process of this host, `claude` in the system's search path.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.0.executor = executor;
        self
    }

    /// Who pays. Without one nothing is started.
    pub fn credential(mut self, credential: Credential) -> Self {
        self.0.credential = Some(credential);
        self
    }

    /// Where the provider is. Default: the program's own, `https://api.anthropic.com`.
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.0.base_url = Some(url.into());
        self
    }

    /// Whether no connection may leave this machine: then nothing is started unless the provider is on it. Default: no.
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.0.no_network = no_network;
        self
    }

    /// The model: `opus`, `sonnet`, `haiku`, or a full name. Default: the program's own choice.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.0.model = Some(model.into());
        self
    }

    /// How hard the model thinks; [`Effort::Minimal`] is nothing that Claude Code knows. Default: the program's own choice.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.0.effort = Some(effort);
        self
    }

    /// Instructions in place of Claude Code's own. Default: its own.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.0.system = Some(text.into());
        self
    }

    /// Instructions after Claude Code's own, or after those of [`ClaudeCodeBuilder::system`]. Default: none.
    pub fn append_system(mut self, text: impl Into<String>) -> Self {
        self.0.append_system = Some(text.into());
        self
    }

    /// Connects the tools of a source, such as a toolbox, under a name: Claude Code knows them as `mcp__NAME__TOOL`. They
    /// stay in this process; state, workers, policies and records are the source's own.
    pub fn connect(mut self, name: impl Into<String>, source: Arc<dyn ToolSource>) -> Self {
        self.0.connections.push((name.into(), Connection::source(source)));
        self
    }

    /// Connects anything that has tools.
    pub fn connect_to(mut self, name: impl Into<String>, connection: Connection) -> Self {
        self.0.connections.push((name.into(), connection));
        self
    }

    /// The tools that may be used without being asked for, such as `mcp__calc__add`, `mcp__calc` for all of a server, or
    /// `Read` and `Bash(git *)` of Claude Code's own. Default: all tools that are connected.
    pub fn allow(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.allowed.get_or_insert_default().extend(tools.into_iter().map(Into::into));
        self
    }

    /// Which of its own tools Claude Code has, such as `Read` and `Bash`; `default` is all of them. Default: none. Beyond
    /// that, they need to be allowed.
    pub fn own_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.own_tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// What may be done without being asked for. Default: [`PermissionMode::Manual`].
    pub fn permission_mode(mut self, mode: PermissionMode) -> Self {
        self.0.mode = mode;
        self
    }

    /// Limits the requests to the model in one turn of the conversation. Defaults to unlimited.
    pub fn max_iterations(mut self, iterations: u32) -> Self {
        self.0.limits.iterations = Some(iterations);
        self
    }

    /// Limits the cost of the process in US dollars, by Claude Code's own count. Defaults to unlimited.
    pub fn max_cost_usd(mut self, dollars: f64) -> Self {
        self.0.limits.cost_usd = Some(dollars);
        self
    }

    /// Limits the time of one turn. Defaults to unlimited.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.0.limits.time = Some(time);
        self
    }

    /// Limits the time until the process is ready and connected to every tool server. Defaults to 60 s.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.0.limits.start = timeout;
        self
    }

    /// Limits the memory of the process and its children, in bytes. Defaults to 4 GiB.
    pub fn max_memory_bytes(mut self, bytes: u64) -> Self {
        self.0.limits.memory = bytes;
        self
    }

    /// Limits the number of processes and threads. Defaults to 1,024.
    pub fn max_processes(mut self, processes: u32) -> Self {
        self.0.limits.processes = processes;
        self
    }

    /// Limits the processors in use. Defaults to all.
    pub fn max_cpus(mut self, cpus: f32) -> Self {
        self.0.limits.cpus = Some(cpus);
        self
    }

    /// The folder that it works in, and that connected tools work in. Default: a fresh one, which goes away with the
    /// session.
    pub fn working_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.folder = Some(folder.into());
        self
    }

    /// Protects files and directories of the host, each with everything beneath, from what Claude Code writes in its
    /// working directory ([`toolpost_sandbox::Sandbox::protect`]).
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.0.protected.extend(paths);
        self
    }

    /// Whether text is told piece by piece while it is written, reasoning with it, and every event is logged. Default:
    /// no, a text is told when it is whole.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.0.verbose = verbose;
        self
    }

    /// Who is told of every use of a tool, and may refuse it. Default: nobody.
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.0.hooks = Some(hooks);
        self
    }

    /// Who answers questions of tools, takes their files, and is asked whether a tool may be used that is not allowed.
    /// Default: nobody, and what is not allowed is denied.
    pub fn port(mut self, port: Arc<dyn Port>) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Is told of every event. It must return at once. Events of calls of connected toolboxes come from those.
    pub fn on_event(mut self, sink: EventSink) -> Self {
        self.0.events = Some(sink);
        self
    }

    /// For whom tools are called. Default: the front `claude-code`, for nobody in particular.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.0.caller = caller;
        self
    }

    /// The agent.
    ///
    /// # Errors
    /// A setting is wrong. That no credential is given is said when something is to be started.
    pub fn build(self) -> Result<ClaudeCode, ClaudeCodeError> {
        let settings = self.0;
        settings.model.as_deref().map_or(Ok(()), check_model)?;
        if settings.effort == Some(Effort::Minimal) {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Setting,
                "Claude Code knows no effort `minimal`",
            )
            .hint("name one of low, medium, high, xhigh, max"));
        }
        for (index, (name, _)) in settings.connections.iter().enumerate() {
            check_server_name(name)?;
            if settings.connections.iter().take(index).any(|(other, _)| other == name) {
                return Err(taken(name));
            }
        }
        for (what, text) in
            [("the system prompt", &settings.system), ("the added prompt", &settings.append_system)]
        {
            if text.as_ref().is_some_and(|text| text.len() > MAX_ARGUMENT || text.contains('\0')) {
                let message = format!("{what} is larger than 100 KiB, or has a NUL character");
                return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, message)
                    .hint("put what is long into a file of the working folder, and name it"));
            }
        }
        let mut names = settings.allowed.iter().flatten().chain(&settings.own_tools);
        names.try_for_each(|name| check_tool_pattern(name))?;
        check_limits(&settings.limits)?;
        settings.executor.check(settings.mode)?;
        Ok(ClaudeCode(settings))
    }
}

pub(super) fn taken(name: &str) -> ClaudeCodeError {
    ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, format!("two tool servers are called `{name}`"))
        .hint("give one another name")
}

fn check_limits(limits: &Limits) -> Result<(), ClaudeCodeError> {
    let refuse = |message: &str| Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, message));
    if limits.iterations == Some(0) {
        return refuse("the limit on iterations is 0; at least one is needed");
    }
    if limits.cost_usd.is_some_and(|cost| !cost.is_finite() || cost <= 0.0) {
        return refuse("the limit on cost must be a number of dollars above 0");
    }
    if limits.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0) {
        return refuse("the limit on processors must be a number above 0");
    }
    Ok(())
}

/// What a model may be called: nothing that could be taken for an option.
pub(super) fn check_model(name: &str) -> Result<(), ClaudeCodeError> {
    let valid = name.len() <= 200
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.:/@[]".contains(letter));
    if valid {
        return Ok(());
    }
    let shown: String = name.chars().filter(|letter| !letter.is_control()).take(60).collect();
    let error =
        ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, format!("`{shown}` is no name of a model"));
    Err(error
        .hint(format!("name one of {}, or a full name such as `claude-opus-5-5`", MODEL_ALIASES.join(", "))))
}

/// What a permission rule may look like: one rule, and nothing that could be taken for an option.
fn check_tool_pattern(name: &str) -> Result<(), ClaudeCodeError> {
    let head: &str = name.split('(').next().unwrap_or_default();
    let valid = name.len() <= 1000
        && head.starts_with(|first: char| first.is_ascii_alphabetic())
        && head.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-*".contains(letter))
        && (head.len() == name.len() || name.ends_with(')'))
        && !name.chars().any(|letter| letter.is_control() || letter == ',');
    if valid {
        return Ok(());
    }
    let shown: String = name.chars().filter(|letter| !letter.is_control()).take(60).collect();
    Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, format!("`{shown}` is no name of a tool"))
        .hint("write for example `mcp__calc__add`, `Read` or `Bash(git *)`"))
}

/// Whether allowed tools of connected servers exist. `known` has the names of all tools, as far as they are known.
pub(super) fn check_allowed(
    allowed: &[String],
    servers: &[&str],
    known: &[String],
) -> Result<(), ClaudeCodeError> {
    for name in allowed {
        let Some(rest) = name.strip_prefix("mcp__") else { continue };
        let (server, tool) =
            rest.split_once("__").map_or((rest, None), |(server, tool)| (server, Some(tool)));
        let unknown = |what: String, hint: Option<String>| {
            Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Setting,
                format!("`{name}` is allowed, and there is no such {what}"),
            )
            .hint_maybe(hint))
        };
        if !servers.contains(&server) {
            let hint = did_you_mean(server, servers.iter().copied());
            return unknown(format!("tool server as `{server}`"), hint);
        }
        let prefix = format!("mcp__{server}__");
        let has_list = known.iter().any(|tool| tool.starts_with(&prefix));
        if tool.is_some_and(|tool| tool != "*") && has_list && !known.contains(name) {
            return unknown("tool".to_owned(), did_you_mean(name, known.iter().map(String::as_str)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_options_or_lists_are_refused() {
        for model in ["opus", "claude-opus-5-5", "us.anthropic/x:1@2[1m]"] {
            check_model(model).unwrap();
        }
        for model in ["", "--dangerously-skip-permissions", "a b", "a\nb", "-p"] {
            assert_eq!(check_model(model).unwrap_err().kind(), ClaudeCodeErrorKind::Setting, "{model:?}");
        }
        for tool in ["mcp__calc__add", "mcp__calc", "Read", "Bash(git *)", "Edit(/src/**)", "mcp__a-b__*"] {
            check_tool_pattern(tool).unwrap();
        }
        for tool in ["", "--bare", "Bash,Edit", "Bash(git", "a b", "Bash(x)\n", "1"] {
            assert_eq!(
                check_tool_pattern(tool).unwrap_err().kind(),
                ClaudeCodeErrorKind::Setting,
                "{tool:?}"
            );
        }
    }

    #[test]
    fn an_allowed_tool_must_be_there() {
        let known = ["mcp__calc__add".to_owned(), "mcp__calc__sub".to_owned()];
        let check = |name: &str| check_allowed(&[name.to_owned()], &["calc", "far"], &known);
        for there in ["mcp__calc__add", "mcp__calc", "mcp__calc__*", "mcp__far__anything", "Read"] {
            check(there).unwrap();
        }
        let error = check("mcp__calc__ad").unwrap_err();
        assert!(error.suggestion().unwrap().contains("mcp__calc__add"), "{error}");
        assert!(check("mcp__cal__add").unwrap_err().suggestion().unwrap().contains("calc"));
    }

    #[test]
    fn a_builder_refuses_what_cannot_be() {
        let kind = |builder: ClaudeCodeBuilder| builder.build().unwrap_err().kind();
        assert_eq!(kind(ClaudeCodeBuilder::new().model("--bare")), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().allow(["a,b"])), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().effort(Effort::Minimal)), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().own_tools(["-x"])), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().max_cost_usd(0.0)), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().max_iterations(0)), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().max_cpus(f32::NAN)), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(ClaudeCodeBuilder::new().system("x".repeat(200_000))), ClaudeCodeErrorKind::Setting);
        assert_eq!(
            kind(ClaudeCodeBuilder::new().permission_mode(PermissionMode::Bypass)),
            ClaudeCodeErrorKind::Setting
        );
        let server = |name: &str| (name.to_owned(), Connection::http("http://127.0.0.1:1/mcp"));
        let with = |names: &[&str]| {
            names.iter().fold(ClaudeCodeBuilder::new(), |builder, name| {
                let (name, connection) = server(name);
                builder.connect_to(name, connection)
            })
        };
        assert_eq!(kind(with(&["calc", "calc"])), ClaudeCodeErrorKind::Setting);
        assert_eq!(kind(with(&["a__b"])), ClaudeCodeErrorKind::Setting);
        with(&["calc", "other"]).build().unwrap();
    }
}
