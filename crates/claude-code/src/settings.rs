//! The settings of Claude Code.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Caller, EventSink, Port, Secret, ToolSource, did_you_mean};
use toolpost_llm::Effort;
use toolpost_sandbox::{ProtectedPath, RunChanges};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind, printable};
use super::tool_server::check_server_name;
use super::{ClaudeCode, Executor};

/// Model aliases of the program.
const MODEL_ALIASES: [&str; 3] = ["opus", "sonnet", "haiku"];
/// Bytes of a text argument of the program.
const MAX_ARGUMENT: usize = 100 << 10;

/// An API key or a token. The process reads it from a private descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// An API key, as in `ANTHROPIC_API_KEY`.
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

/// The actions that Claude Code may take without approval. Its own tools are off in every mode unless named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PermissionMode {
    /// Allowed tools run, others ask the port for approval; without a port they are denied.
    #[default]
    Manual,
    /// Claude Code may also edit files in the working directory.
    AcceptEdits,
    /// Claude Code reads and plans, but changes nothing.
    Plan,
    /// Tools that are not allowed are denied without asking.
    DontAsk,
    /// Everything is allowed. Requires a sandbox or a container.
    Bypass,
}

impl PermissionMode {
    /// The names that [`FromStr`](std::str::FromStr) takes.
    pub const NAMES: [&'static str; 5] = ["manual", "accept-edits", "plan", "dont-ask", "bypass"];

    /// The value that every supported version accepts: 2.1.197 rejects `manual`.
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
            _ => Err(format!("unknown permission mode `{text}`; expected {}", Self::NAMES.join(", "))),
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
            cpus: None,
        }
    }
}

/// All settings of a run.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) executor: Executor,
    pub(super) credential: Option<Credential>,
    pub(super) base_url: Option<String>,
    pub(super) no_network: bool,
    pub(super) model: Option<String>,
    pub(super) effort: Option<Effort>,
    pub(super) system: Option<String>,
    pub(super) sources: Vec<(String, Arc<dyn ToolSource>)>,
    pub(super) allowed: Option<Vec<String>>,
    pub(super) own_tools: Vec<String>,
    pub(super) mode: PermissionMode,
    pub(super) limits: Limits,
    pub(super) directory: Option<PathBuf>,
    pub(super) protected: Vec<ProtectedPath>,
    pub(super) layers: Option<PathBuf>,
    pub(super) changes: Option<RunChanges>,
    pub(super) verbose: bool,
    pub(super) port: Option<Arc<dyn Port>>,
    pub(super) events: Option<EventSink>,
    pub(super) caller: Caller,
}

impl Settings {
    /// The secrets that no message may have.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        self.credential.iter().map(Credential::secret).cloned().collect()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.sources.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ClaudeCode")
            .field("executor", &self.executor)
            .field("model", &self.model)
            .field("servers", &servers)
            .field("mode", &self.mode)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Builds a [`ClaudeCode`].
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
            sources: Vec::new(),
            allowed: None,
            own_tools: Vec::new(),
            mode: PermissionMode::default(),
            limits: Limits::default(),
            directory: None,
            protected: Vec::new(),
            layers: None,
            changes: None,
            verbose: false,
            port: None,
            events: None,
            caller: Caller::new("claude-code"),
        })
    }

    /// Sets where the program runs. Defaults to a process of this host, `claude` in the system search path.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.0.executor = executor;
        self
    }

    /// Sets the credential. Required to start.
    pub fn credential(mut self, credential: Credential) -> Self {
        self.0.credential = Some(credential);
        self
    }

    /// Sets the URL of the provider. Defaults to `https://api.anthropic.com`.
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.0.base_url = Some(url.into());
        self
    }

    /// Blocks connections that leave this machine; starts only with a provider on it. Defaults to false.
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.0.no_network = no_network;
        self
    }

    /// Sets the model: `opus`, `sonnet`, `haiku`, or a full name. Defaults to the program's choice.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.0.model = Some(model.into());
        self
    }

    /// Sets the effort, except [`Effort::Minimal`]. Defaults to the program's choice.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.0.effort = Some(effort);
        self
    }

    /// Replaces the system prompt of Claude Code. Defaults to its own.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.0.system = Some(text.into());
        self
    }

    /// Connects a source, such as a toolbox. Its tools are `mcp__NAME__TOOL` in Claude Code.
    ///
    /// The tools run in this process, with the state, workers, policies and records of the source.
    pub fn connect(mut self, name: impl Into<String>, source: Arc<dyn ToolSource>) -> Self {
        self.0.sources.push((name.into(), source));
        self
    }

    /// Allows tools without approval: `mcp__calc__add`, `mcp__calc` for a server, or `Read` and `Bash(git *)` of Claude Code.
    ///
    /// Defaults to all connected tools.
    pub fn allow(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.allowed.get_or_insert_default().extend(tools.into_iter().map(Into::into));
        self
    }

    /// Enables own tools of Claude Code, such as `Read` and `Bash`; `default` is all. Defaults to none.
    ///
    /// An enabled tool must also be allowed.
    pub fn own_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.own_tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Sets the permission mode. Defaults to [`PermissionMode::Manual`].
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

    /// Limits the processors in use. Defaults to all.
    pub fn max_cpus(mut self, cpus: f32) -> Self {
        self.0.limits.cpus = Some(cpus);
        self
    }

    /// Sets the working directory of Claude Code and of connected tools. Defaults to a new one for each session.
    pub fn working_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.directory = Some(directory.into());
        self
    }

    /// Protects files and directories of the host, each with everything beneath, from what Claude Code writes in its
    /// working directory ([`toolpost_sandbox::Sandbox::protect`]).
    pub fn protect(mut self, paths: impl IntoIterator<Item = impl Into<ProtectedPath>>) -> Self {
        self.0.protected.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Sets the directory for the private layer of the working directory ([`toolpost_sandbox::Sandbox::layers`]). Default:
    /// one for temporary files.
    pub fn layers(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.layers = Some(directory.into());
        self
    }

    /// Lists the changes of the working directory with those of a run, which are undone together
    /// ([`toolpost_sandbox::Sandbox::run_changes`]). Default: none.
    pub fn run_changes(mut self, changes: RunChanges) -> Self {
        self.0.changes = Some(changes);
        self
    }

    /// Emits text and reasoning while they are written, and logs every event. Defaults to false: text is emitted when
    /// complete.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.0.verbose = verbose;
        self
    }

    /// Sets the port that answers questions of tools, receives their files, and approves tools that are not allowed.
    ///
    /// Defaults to none: then tools that are not allowed are denied.
    pub fn port(mut self, port: Arc<dyn Port>) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Sends events to a sink, which must return at once. Connected toolboxes emit the events of their own calls.
    pub fn on_event(mut self, sink: EventSink) -> Self {
        self.0.events = Some(sink);
        self
    }

    /// Sets the caller of tools. Defaults to the front `claude-code` without an identity.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.0.caller = caller;
        self
    }

    /// Builds the agent.
    ///
    /// # Errors
    /// A setting is invalid. A missing credential is an error of the start.
    pub fn build(self) -> Result<ClaudeCode, ClaudeCodeError> {
        let settings = self.0;
        settings.model.as_deref().map_or(Ok(()), check_model)?;
        if settings.effort == Some(Effort::Minimal) {
            let error = Kind::Setting.error("Claude Code does not support the effort `minimal`");
            return Err(error.hint("use low, medium, high, xhigh or max"));
        }
        for (index, (name, _)) in settings.sources.iter().enumerate() {
            check_source_name(name, settings.sources.get(..index).unwrap_or_default())?;
        }
        if settings.system.as_ref().is_some_and(|text| text.len() > MAX_ARGUMENT || text.contains('\0')) {
            let error = Kind::Setting.error("the system prompt exceeds 100 KiB or has a NUL character");
            return Err(error.hint("put long text into a file of the working directory, and name the file"));
        }
        let mut names = settings.allowed.iter().flatten().chain(&settings.own_tools);
        names.try_for_each(|name| check_tool_pattern(name))?;
        check_limits(&settings.limits)?;
        settings.executor.check(settings.mode)?;
        Ok(ClaudeCode(settings))
    }
}

/// Checks a name for another source.
pub(super) fn check_source_name(
    name: &str,
    sources: &[(String, Arc<dyn ToolSource>)],
) -> Result<(), ClaudeCodeError> {
    check_server_name(name)?;
    if sources.iter().any(|(other, _)| other == name) {
        let error = Kind::Setting.error(format!("two tool servers have the name `{name}`"));
        return Err(error.hint("rename one of them"));
    }
    Ok(())
}

fn check_limits(limits: &Limits) -> Result<(), ClaudeCodeError> {
    let is_invalid = |value: Option<f64>| value.is_some_and(|value| !value.is_finite() || value <= 0.0);
    for (limit, is_invalid) in [
        ("iterations", limits.iterations == Some(0)),
        ("cost", is_invalid(limits.cost_usd)),
        ("processors", is_invalid(limits.cpus.map(f64::from))),
    ] {
        if is_invalid {
            return Err(Kind::Setting.error(format!("the limit of {limit} must be above 0")));
        }
    }
    Ok(())
}

/// Checks the name of a model, which must not look like an option.
pub(super) fn check_model(name: &str) -> Result<(), ClaudeCodeError> {
    let valid = name.len() <= 200
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.:/@[]".contains(letter));
    if valid {
        return Ok(());
    }
    let error = Kind::Setting.error(format!("invalid model name `{}`", printable(name)));
    Err(error.hint(format!("use {}, or a full name such as `claude-opus-5-5`", MODEL_ALIASES.join(", "))))
}

/// Checks a permission rule, which must be one rule and not look like an option.
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
    let error = Kind::Setting.error(format!("invalid tool name `{}`", printable(name)));
    Err(error.hint("write for example `mcp__calc__add`, `Read` or `Bash(git *)`"))
}

/// Checks that allowed tools of connected servers exist. `known` has the names of all connected tools.
pub(super) fn check_allowed(
    allowed: &[String],
    servers: &[&str],
    known: &[String],
) -> Result<(), ClaudeCodeError> {
    for name in allowed {
        let Some(rest) = name.strip_prefix("mcp__") else { continue };
        let (server, tool) = rest.split_once("__").unwrap_or((rest, "*"));
        let (unknown, hint) = if !servers.contains(&server) {
            (format!("tool server `{server}`"), did_you_mean(server, servers.iter().copied()))
        } else if tool != "*" && !known.contains(name) {
            (format!("tool `{name}`"), did_you_mean(name, known.iter().map(String::as_str)))
        } else {
            continue;
        };
        let error = Kind::Setting.error(format!("unknown {unknown} in the list of allowed tools"));
        return Err(match hint {
            Some(hint) => error.hint(hint),
            None => error,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_not_be_options_or_lists() {
        type Check = fn(&str) -> Result<(), ClaudeCodeError>;
        let models: (Check, &[&str], &[&str]) = (
            check_model,
            &["opus", "claude-opus-5-5", "us.anthropic/x:1@2[1m]"],
            &["", "--dangerously-skip-permissions", "a b", "a\nb", "-p"],
        );
        let tools: (Check, &[&str], &[&str]) = (
            check_tool_pattern,
            &["mcp__calc__add", "mcp__calc", "Read", "Bash(git *)", "Edit(/src/**)", "mcp__a-b__*"],
            &["", "--bare", "Bash,Edit", "Bash(git", "a b", "Bash(x)\n", "1"],
        );
        let servers: (Check, &[&str], &[&str]) =
            (check_server_name, &["calc", "a-b_c"], &["", "a__b", "a_", "1", "a b"]);
        for (check, valid, invalid) in [models, tools, servers] {
            for name in valid {
                check(name).unwrap();
            }
            for name in invalid {
                assert_eq!(check(name).unwrap_err().kind(), Kind::Setting, "{name:?}");
            }
        }
    }

    #[test]
    fn an_allowed_tool_must_exist() {
        let known = ["mcp__calc__add".to_owned(), "mcp__calc__sub".to_owned()];
        let check = |name: &str| check_allowed(&[name.to_owned()], &["calc"], &known);
        for name in ["mcp__calc__add", "mcp__calc", "mcp__calc__*", "Read"] {
            check(name).unwrap();
        }
        let error = check("mcp__calc__ad").unwrap_err();
        assert!(error.suggestion().unwrap().contains("mcp__calc__add"), "{error}");
        assert!(check("mcp__cal__add").unwrap_err().suggestion().unwrap().contains("calc"));
    }

    #[test]
    fn a_builder_rejects_invalid_settings() {
        type Change = fn(ClaudeCodeBuilder) -> ClaudeCodeBuilder;
        let changes: [Change; 9] = [
            |builder| builder.model("--bare"),
            |builder| builder.allow(["a,b"]),
            |builder| builder.effort(Effort::Minimal),
            |builder| builder.own_tools(["-x"]),
            |builder| builder.max_cost_usd(0.0),
            |builder| builder.max_iterations(0),
            |builder| builder.max_cpus(f32::NAN),
            |builder| builder.system("x".repeat(200_000)),
            |builder| builder.permission_mode(PermissionMode::Bypass),
        ];
        for (index, change) in changes.iter().enumerate() {
            let error = change(ClaudeCodeBuilder::new()).build().unwrap_err();
            assert_eq!(error.kind(), Kind::Setting, "{index}");
        }
    }
}
