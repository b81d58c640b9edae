//! The command line.

mod agent;
mod files;
mod grants;
mod lazy;
mod login;
mod models;
mod runs;
mod serving;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use toolpost_core::{Priority, parse_duration};
use toolpost_llm::Effort;
use toolpost_sandbox::{ApplyMode, Language, Level};

pub(crate) use self::agent::{
    AgentArgs, AgentKind, ChatArgs, CompactionKind, ExecutorKind, LoopArgs, RunArgs,
};
pub(crate) use self::files::{AccountArgs, FilesCommand};
pub(crate) use self::grants::GrantArgs;
pub(crate) use self::lazy::{Lazy, parse};
pub(crate) use self::login::{LoginArgs, LogoutArgs};
pub(crate) use self::models::{
    CACHING, ModelsCommand, ModelsListArgs, TuningArgs, prompt_caching, thinking, tool_choice,
};
pub(crate) use self::runs::{ReplayArgs, RunsCommand};
use self::serving::{OauthArgs, TaskArgs};

use crate::{help, style};

/// Toolpost is a tool runtime for LLM agents.
#[derive(Debug, Parser)]
#[command(
    name = "toolpost",
    version,
    styles = style::HELP,
    after_help = help::ROOT,
    help_template = help::ROOT_TEMPLATE,
    disable_help_subcommand = true,
    max_term_width = 110,
    propagate_version = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an agent: a model works with tools until it answers.
    #[command(after_long_help = help::RUN)]
    Run(Lazy<RunArgs>),
    /// Chat with an agent.
    #[command(after_long_help = help::CHAT)]
    Chat(Lazy<ChatArgs>),
    /// Call one tool.
    #[command(after_long_help = help::CALL)]
    Call(Lazy<CallArgs>),
    /// List tools, or show one tool.
    #[command(after_long_help = help::TOOLS)]
    Tools(Lazy<ToolsArgs>),
    /// Serve tools to MCP clients such as Claude Code.
    #[command(after_long_help = help::SERVE)]
    Serve(Lazy<ServeArgs>),
    /// Run code or a command in the sandbox.
    #[command(after_long_help = help::EXEC, override_usage = help::EXEC_USAGE)]
    Exec(Lazy<ExecArgs>),
    /// Check this host: sandbox levels, languages, providers.
    #[command(after_long_help = help::DOCTOR)]
    Doctor,
    /// Build, list and remove package environments and Docker images.
    #[command(subcommand, after_long_help = help::IMAGE)]
    Image(Lazy<ImageCommand>),
    /// Print the JSON Schema of an output or a file format.
    #[command(after_long_help = help::SCHEMA)]
    Schema(Lazy<SchemaArgs>),
    /// Print shell completions.
    #[command(after_long_help = help::COMPLETIONS)]
    Completions(Lazy<CompletionsArgs>),
    /// Hold a session: what `exec --session` starts.
    #[command(name = crate::session::COMMAND, hide = true)]
    HoldSession,
    /// Create a tool program, an agent, a command or a gateway.
    #[command(subcommand, after_long_help = help::INIT)]
    Init(Lazy<InitCommand>),
    /// Show documents that tools store, and their history.
    #[command(subcommand, after_long_help = help::STATE)]
    State(Lazy<StateCommand>),
    /// List, show, replay, export and remove stored runs.
    #[command(subcommand, after_long_help = help::RUNS)]
    Runs(Lazy<RunsCommand>),
    /// Show models: features, limits, prices.
    #[command(subcommand, after_long_help = help::models())]
    Models(Lazy<ModelsCommand>),
    /// Upload, download, list and remove a provider's files.
    #[command(subcommand, after_long_help = help::FILES)]
    Files(Lazy<FilesCommand>),
    /// Show and edit settings and their origins.
    #[command(subcommand, after_long_help = help::CONFIG)]
    Config(Lazy<ConfigCommand>),
    /// Trust files of a directory: settings, variables, descriptions.
    #[command(after_long_help = help::TRUST)]
    Trust(Lazy<TrustArgs>),
    /// Apply the held changes of a run; without an ID, list them.
    #[command(after_long_help = help::APPLY)]
    Apply(Lazy<HeldArgs>),
    /// Discard the held changes of a run.
    #[command(after_long_help = help::DISCARD)]
    Discard(Lazy<HeldRunArgs>),
    /// Undo the last changes that a run made to a directory.
    #[command(after_long_help = help::UNDO)]
    Undo(Lazy<UndoArgs>),
    /// Log in to an MCP server with a browser.
    #[command(after_long_help = help::LOGIN)]
    Login(Lazy<LoginArgs>),
    /// Log out of an MCP server, and revoke its tokens.
    #[command(after_long_help = help::LOGOUT)]
    Logout(Lazy<LogoutArgs>),
    /// Explain a command or a topic.
    #[command(after_long_help = help::HELP)]
    Help(Lazy<HelpArgs>),
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON value.
    Json,
    /// One JSON value a line, while it happens.
    Jsonl,
}

/// What runs code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// Processes of this host.
    Process,
    /// A container.
    Docker,
}

/// Whether the image of a container is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pull {
    /// Never.
    #[default]
    Never,
    /// If the daemon does not have it.
    Missing,
    /// Before the run.
    Always,
}

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// How the result is printed: text unless the settings say otherwise. In the other forms an error is one line of
    /// JSON on standard error.
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// The same as `--format json`.
    #[arg(long, global = true, conflicts_with = "format")]
    json: bool,
    /// Tell more of what is done; twice for debugging, three times for everything.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Tell nothing but the result and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// What is logged, such as `debug` or `toolpost::call=debug,warn`.
    #[arg(long, global = true, hide = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How log lines are written; text unless the settings say otherwise.
    #[arg(long, global = true, hide = true, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Where the log goes, instead of standard error.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Whether output is coloured; auto unless the settings say otherwise.
    #[arg(long, global = true, hide = true, value_enum, value_name = "WHEN")]
    pub(crate) color: Option<Color>,
    /// A setting for this command; see `toolpost help settings`. May be repeated.
    #[arg(long, global = true, hide = true, value_name = "KEY=VALUE")]
    pub(crate) config: Vec<String>,
    /// The file that keeps the state of tools.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// A file with variables for what the environment leaves unset. May be repeated.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Print help with every option.
    #[arg(long, global = true, action = ArgAction::HelpLong)]
    help_all: Option<bool>,
}

/// What the words of a command line that cannot be understood still say of how it is answered.
pub(crate) fn glance(words: impl IntoIterator<Item = OsString>) -> (Format, Color) {
    let (mut format, mut color) = (Format::default(), Color::default());
    let mut words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = words.next().filter(|word| word != "--") {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None if word == "--format" || word == "--color" => (word.as_str(), words.next()),
            None => (word.as_str(), None),
        };
        let value = value.as_deref().unwrap_or_default();
        match option {
            "--json" => format = Format::Json,
            "--format" => format = Format::from_str(value, true).unwrap_or(format),
            "--color" => color = Color::from_str(value, true).unwrap_or(color),
            _ => {}
        }
    }
    (format, color)
}

/// The words before `--`, if `--help-all` is one of them.
pub(crate) fn asks_for_all(words: impl IntoIterator<Item = OsString>) -> Option<Vec<String>> {
    let words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.take_while(|word| word != "--").collect();
    words.iter().any(|word| word == "--help-all").then_some(words)
}

impl Global {
    /// What the command line says, if it does.
    pub(crate) fn format(&self) -> Option<Format> {
        if self.json { Some(Format::Json) } else { self.format }
    }
}

/// Which calls need approval.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Permission")]
pub(crate) struct Permission {
    /// Approve every call of a tool. May be repeated.
    #[arg(long, visible_alias = "approve", value_name = "TOOL")]
    pub(crate) allow: Vec<String>,
    /// Show an approval prompt before each tool call.
    #[arg(long)]
    pub(crate) ask: bool,
    /// Approve every tool call without a prompt.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Show no approval prompt: decline the call.
    #[arg(long)]
    pub(crate) no_input: bool,
    /// The sandbox level of tools that run code; without it, the best that this host can give.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Option<Level>,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// How code works in an existing directory.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DirectoryArgs {
    /// Let programs write to the working directory without a private layer.
    #[arg(long, help_heading = "Permission")]
    pub(crate) live: bool,
    /// Let a protected path of the working directory change. May be repeated.
    #[arg(long, value_name = "PATH", help_heading = "Permission", conflicts_with = "live")]
    pub(crate) allow_protected: Vec<PathBuf>,
}

/// What becomes of the changes of a working directory at the end.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ChangesArgs {
    /// Show the changes of the working directory, and apply them after a yes.
    #[arg(long, help_heading = "Input", requires = "workdir", conflicts_with_all = ["discard", "live"])]
    pub(crate) review: bool,
    /// Discard the changes of the working directory.
    #[arg(long, help_heading = "Input", requires = "workdir", conflicts_with = "live")]
    pub(crate) discard: bool,
}

impl ChangesArgs {
    pub(crate) fn mode(self) -> ApplyMode {
        match (self.review, self.discard) {
            (true, _) => ApplyMode::Hold,
            (_, true) => ApplyMode::Discard,
            _ => ApplyMode::Now,
        }
    }
}

/// A run whose changes are held, if one is named.
#[derive(Args, Debug)]
pub(crate) struct HeldArgs {
    /// The run, or the beginning of its identifier.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// A protected path that may change. May be repeated.
    #[arg(long, value_name = "PATH", requires = "id")]
    pub(crate) allow_protected: Vec<PathBuf>,
}

/// A run whose changes were applied, if one is named.
#[derive(Args, Debug)]
pub(crate) struct UndoArgs {
    /// The run, or the beginning of its identifier; without it, the last in this directory.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// A run whose changes are held.
#[derive(Args, Debug)]
pub(crate) struct HeldRunArgs {
    /// The run, or the beginning of its identifier.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// How a server of the Model Context Protocol is told who asks.
#[derive(Args, Debug, Default)]
pub(crate) struct ServerArgs {
    /// The variable with the bearer token for the server at an `http` address.
    #[arg(long, value_name = "NAME", conflicts_with = "token_file")]
    pub(crate) token_env: Option<String>,
    /// The file with that token.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct CallArgs {
    /// A built-in tool, an executable such as `./weather`, a description such as `git.toml`, or a server such as
    /// `https://HOST/mcp`; see `toolpost help targets`.
    pub(crate) target: String,
    /// The tool, when the target has several; then `key=value` pairs, one JSON object, `@FILE`, or `-`.
    #[arg(value_name = "TOOL | ARGUMENTS")]
    pub(crate) rest: Vec<String>,
    /// The folder that the tool works in.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    /// How long one attempt may take, such as `10s`; never longer than the tool's own limit.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// How many further attempts are made; never more than the tool's own.
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u32>,
    /// How urgent it is: low, normal, high or critical.
    #[arg(long, value_name = "PRIORITY", default_value = "normal")]
    pub(crate) priority: Priority,
    /// A fact for the record. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) meta: Vec<String>,
    /// Neither take a result from the cache nor keep it there.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Check everything, run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Say whether the arguments fit, and do nothing else.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) validate: bool,
    /// Print what the tool tells while it works, and the result, as JSON lines of the executable protocol.
    #[arg(long, conflicts_with_all = ["validate", "format", "json"])]
    pub(crate) stream: bool,
    /// The model that completes prompts for the tool.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Print a resource of an executable or a server instead of calling a tool.
    #[arg(long, value_name = "URI", conflicts_with_all = ["prompt", "rest", "timeout", "retries", "priority", "meta", "no_cache", "dry_run", "validate", "stream", "model"])]
    pub(crate) resource: Option<String>,
    /// Print a prompt of an executable or a server, made with the arguments, instead of calling a tool.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["timeout", "retries", "priority", "meta", "no_cache", "dry_run", "validate", "stream", "model"])]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
}

#[derive(Args, Debug)]
pub(crate) struct ToolsArgs {
    /// Where the tools come from.
    #[arg(value_name = "TARGET", default_value = "builtin")]
    pub(crate) targets: Vec<String>,
    /// Show one tool whole: schemas, policy, examples, digest.
    #[arg(long, value_name = "NAME")]
    pub(crate) manifest: Option<String>,
    /// List only what these words find, the best first.
    #[arg(long, value_name = "WORDS", conflicts_with = "manifest")]
    pub(crate) search: Option<String>,
    /// The sandbox level of programs and servers. Default standard.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Option<Level>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// To whom the tools are shown that find others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SearchFor {
    /// To clients that cannot search by themselves.
    Auto,
    /// To all.
    Always,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("address").args(["http", "ws"]))]
pub(crate) struct ServeArgs {
    /// Where the tools come from. Several targets stand under a namespace each: `calc__add`. NAME=TARGET chooses it, =TARGET
    /// has none; built-in tools keep their names.
    #[arg(value_name = "TARGET", default_value = "builtin")]
    pub(crate) targets: Vec<String>,
    /// Start each target but the built-in tools on its first use, and list it from what it had before.
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Show three tools that find and call all others, to clients that cannot search; with `always`, to all clients.
    #[arg(long, value_name = "FOR", num_args = 0..=1, default_missing_value = "auto", require_equals = true)]
    pub(crate) search: Option<SearchFor>,
    /// Show this tool besides, and load it from the start in clients that search: a name, in which `*` stands for anything.
    /// May be repeated.
    #[arg(long, value_name = "TOOL", requires = "search")]
    pub(crate) core_tool: Vec<String>,
    /// The name that clients see.
    #[arg(long, value_name = "NAME", default_value = "toolpost")]
    pub(crate) name: String,
    /// Serve the program that starts this one, over standard input and output. This is what happens without an address.
    #[arg(long, help_heading = "Address", conflicts_with_all = ["http", "ws"])]
    pub(crate) stdio: bool,
    /// Serve over HTTP, such as on `127.0.0.1:8080`; port 0 is a free one. The address to connect to is printed.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Address", conflicts_with = "ws")]
    pub(crate) http: Option<std::net::SocketAddr>,
    /// The same, and print the address for clients of WebSocket.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Address")]
    pub(crate) ws: Option<std::net::SocketAddr>,
    /// A file with the certificate for TLS and those that vouch for it, as PEM.
    #[arg(long, value_name = "FILE", help_heading = "Address", requires_all = ["address", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A file with the key of the certificate, as PEM.
    #[arg(long, value_name = "FILE", help_heading = "Address", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen beyond this machine, which needs a token.
    #[arg(long, help_heading = "Address", requires = "address")]
    pub(crate) beyond_loopback: bool,
    /// Another name under which clients reach it, such as `tools.example:8080`. May be repeated.
    #[arg(long, value_name = "HOST", help_heading = "Address", requires = "address")]
    pub(crate) host: Vec<String>,
    /// A web page that may call it, such as `https://app.example`. May be repeated.
    #[arg(long, value_name = "ORIGIN", help_heading = "Address", requires = "address")]
    pub(crate) origin: Vec<String>,
    /// A file with the tokens of clients, one a line. Defaults to `TOOLPOST_SERVE_TOKEN`, then to a generated token.
    #[arg(long, value_name = "FILE", help_heading = "Permission", requires = "address")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve every user of this machine, without a token.
    #[arg(long, help_heading = "Permission", requires = "address", conflicts_with_all = ["token_file", "oauth_issuer"])]
    pub(crate) no_token: bool,
    /// Offer only these tools: names, in which `*` stands for anything. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) allow: Vec<String>,
    /// Do not offer these, even if `--allow` names them. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) deny: Vec<String>,
    /// Offer these to one client in the place of what `--allow` names, such as `token-2=read_*`. `token-2` is whoever brings
    /// the second token of the file. May be repeated.
    #[arg(long, value_name = "CLIENT=TOOL", help_heading = "Permission")]
    pub(crate) allow_for: Vec<String>,
    /// Do not offer these to one client. May be repeated.
    #[arg(long, value_name = "CLIENT=TOOL", help_heading = "Permission")]
    pub(crate) deny_for: Vec<String>,
    /// Approve every call of a tool. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) approve: Vec<String>,
    /// Show the client's user an approval prompt before each tool call.
    #[arg(long, help_heading = "Permission")]
    pub(crate) ask: bool,
    /// The sandbox level of tools that run code; without it, the best that this host can give.
    #[arg(long, value_name = "LEVEL", help_heading = "Permission")]
    pub(crate) level: Option<Level>,
    /// The folder that the tools work in.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten, next_help_heading = "Permission")]
    pub(crate) oauth: OauthArgs,
    #[command(flatten, next_help_heading = "Tasks")]
    pub(crate) tasks: TaskArgs,
}

impl ServeArgs {
    /// Where it listens, if it does.
    pub(crate) fn address(&self) -> Option<std::net::SocketAddr> {
        self.http.or(self.ws)
    }
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("program").required(true).multiple(true)
    .args(["code", "command", "fork", "reset", "interrupt", "end", "sessions"]))]
pub(crate) struct ExecArgs {
    /// A file with code, or `-` for standard input.
    #[arg(value_name = "CODE-FILE")]
    pub(crate) code: Option<PathBuf>,
    /// A program of the host and its arguments; after a code file, the code's arguments.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
    /// The language of the code; otherwise the file's name tells.
    #[arg(long, value_name = "LANGUAGE", help_heading = "Input")]
    pub(crate) lang: Option<Language>,
    /// A variable of the program's environment. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Input")]
    pub(crate) env: Vec<String>,
    /// What the program reads from standard input; `-` is this command's own, and without it there is none.
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub(crate) stdin: Option<PathBuf>,
    /// Put a file into the workspace. May be repeated.
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub(crate) attach: Vec<PathBuf>,
    /// Work in an existing directory; checked changes are applied at the end.
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    /// The sandbox level: minimal, standard, strict or maximum; without it, the best that this host can give.
    #[arg(long, value_name = "LEVEL", help_heading = "Sandbox")]
    pub(crate) level: Option<Level>,
    /// Take a lower level when this host cannot give the one that was asked for.
    #[arg(long, help_heading = "Sandbox", requires = "level")]
    pub(crate) allow_degraded: bool,
    /// Wall-clock time, such as `10s`. Default 30s.
    #[arg(long, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Memory of all processes together, such as `512M`. Default 512M.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Processors that may be busy at once, such as `0.5`.
    #[arg(long, value_name = "X", help_heading = "Sandbox")]
    pub(crate) cpu: Option<f32>,
    /// Processor time of all processes together, such as `5s`. Without it, only the wall-clock time counts.
    #[arg(long, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) cpu_time: Option<Duration>,
    /// How long the program may do nothing at all, such as `10s`. Without it, as long as it runs.
    #[arg(long, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) idle: Option<Duration>,
    /// Processes and threads at one time. Default 64.
    #[arg(long, value_name = "N", help_heading = "Sandbox")]
    pub(crate) pids: Option<u32>,
    /// How much of each output is kept, head and tail. Default 1M.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_output: Option<u64>,
    /// How much is printed in all before the program is stopped.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_total_output: Option<u64>,
    /// The largest file. Default 100M.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_file: Option<u64>,
    /// A host that the program may reach, such as `pypi.org` or `*.example.org:443`; without it there is no network. May
    /// be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    pub(crate) allow_host: Vec<String>,
    /// An address that the program may reach although it is not public, such as `127.0.0.1:8080`. May be repeated.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Sandbox")]
    pub(crate) allow_address: Vec<std::net::SocketAddr>,
    /// A file that says which hosts the program may reach, how much, and with which secrets: TOML or JSON. Other options
    /// add to it.
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) egress_policy: Option<PathBuf>,
    /// What runs it: processes of this host, or a container of the Docker daemon that `DOCKER_HOST` names. Default process.
    #[arg(long, value_enum, value_name = "BACKEND", help_heading = "Sandbox")]
    pub(crate) backend: Option<Backend>,
    /// The runtime of the container, such as `runsc`; without it, the daemon's own.
    #[arg(long, value_name = "RUNTIME", help_heading = "Sandbox", requires = "backend")]
    pub(crate) runtime: Option<String>,
    /// The image of the container. Default `toolpost/PROFILE`, and without a profile `toolpost/python`.
    #[arg(
        long,
        value_name = "IMAGE",
        help_heading = "Sandbox",
        requires = "backend",
        conflicts_with = "profile"
    )]
    pub(crate) image: Option<String>,
    /// Whether the image is fetched from its registry: never, missing or always. Default never.
    #[arg(long, value_name = "POLICY", help_heading = "Sandbox", requires = "backend")]
    pub(crate) pull: Option<Pull>,
    /// Use the Python packages of a profile, such as `data`, that `toolpost image build` has made.
    #[arg(long, value_name = "PROFILE", help_heading = "Sandbox")]
    pub(crate) profile: Option<String>,
    /// A package that the code uses, such as `requests==2.*`: for Python by `pip`, for JavaScript and TypeScript by `npm`; it
    /// is installed once and kept. May be repeated.
    #[arg(long, value_name = "PACKAGE", help_heading = "Sandbox")]
    pub(crate) requirement: Vec<String>,
    /// Run the code in a live interpreter of this name, which stays for the next command; begun if there is none.
    #[arg(long, value_name = "ID", help_heading = "Session", conflicts_with_all = ["stdin", "review", "discard"])]
    pub(crate) session: Option<String>,
    /// Fork the session, with its memory and files, into a new one of this name, and run the code there.
    #[arg(long, value_name = "ID", help_heading = "Session", requires = "session", conflicts_with_all = ["reset", "interrupt", "end"])]
    pub(crate) fork: Option<String>,
    /// Put a fresh interpreter into the session, before the code if there is some. Files stay.
    #[arg(long, help_heading = "Session", requires = "session")]
    pub(crate) reset: bool,
    /// Stop the code that runs in the session, as Ctrl-C does where it was started.
    #[arg(long, help_heading = "Session", requires = "session", conflicts_with_all = ["code", "reset", "end"])]
    pub(crate) interrupt: bool,
    /// End the session.
    #[arg(long, help_heading = "Session", requires = "session", conflicts_with_all = ["code", "reset"])]
    pub(crate) end: bool,
    /// List the live sessions.
    #[arg(long, help_heading = "Session", conflicts_with_all = ["code", "command", "session"])]
    pub(crate) sessions: bool,
    /// How long a new session stays when nobody uses it. Default 30m.
    #[arg(long, value_name = "D", help_heading = "Session", requires = "session", value_parser = duration)]
    pub(crate) keep: Option<Duration>,
    /// Where files that the program made are put. Without it they are only listed.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) artifacts: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make one: an environment of this host with the packages of a profile, or an image of the Docker daemon.
    #[command(after_long_help = help::IMAGE_BUILD)]
    Build(ImageBuildArgs),
    /// List those that were made.
    Ls,
    /// Remove one: an environment of this host, or an image of the Docker daemon.
    Rm(ImageRmArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ImageBuildArgs {
    /// Which one: `data`; of an image also `python`, `busybox` and `claude-code`.
    #[arg(value_name = "NAME", required_unless_present = "profile_file")]
    pub(crate) name: Option<String>,
    /// Make an environment of this host: the default; with `--docker`, both.
    #[arg(long)]
    pub(crate) local: bool,
    /// Make an image of the Docker daemon, `toolpost/NAME`.
    #[arg(long)]
    pub(crate) docker: bool,
    /// A file with packages of your own, one a line: the requirement, and the module that it brings if that has another
    /// name. The environment has the name of the file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "docker"])]
    pub(crate) profile_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ImageRmArgs {
    /// Its name.
    pub(crate) name: String,
    /// Remove an image of the Docker daemon: `toolpost/NAME`, or the one of a whole name.
    #[arg(long)]
    pub(crate) docker: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SchemaArgs {
    /// Which one; without it, the list.
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// List the settings that have a value.
    List {
        /// Say where each is from.
        #[arg(long)]
        show_origin: bool,
    },
    /// Print one setting.
    Get {
        /// Its name.
        key: String,
    },
    /// Write one setting into a file: the user's, unless another is named.
    Set {
        /// Its name.
        key: String,
        /// Its value; lists are separated by commas.
        value: String,
        /// Write into the `toolpost.toml` of this folder.
        #[arg(long)]
        project: bool,
    },
    /// Remove one setting from a file: the user's, unless another is named.
    Unset {
        /// Its name.
        key: String,
        /// Remove from the `toolpost.toml` of this directory.
        #[arg(long)]
        project: bool,
    },
    /// Print the files that are read.
    Path,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InitCommand {
    /// A tool program: an executable that any language can be, or a project in Rust.
    Tool(InitToolArgs),
    /// An agent in a TOML file.
    Agent(InitFileArgs),
    /// A TOML description that makes a tool of a program.
    Command(InitFileArgs),
    /// A gateway to several targets in a TOML file.
    Gateway(InitFileArgs),
}

#[derive(Args, Debug)]
pub(crate) struct InitFileArgs {
    /// The name; letters, digits, `_` and `-`.
    pub(crate) name: String,
    /// The new file. Defaults to `NAME.toml`.
    pub(crate) file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("kind").required(true).args(["exec", "rust"]))]
pub(crate) struct InitToolArgs {
    /// Make an executable of this name, in Python and without any dependency.
    #[arg(long, value_name = "NAME")]
    pub(crate) exec: Option<String>,
    /// Make a Cargo project of this name.
    #[arg(long, value_name = "NAME")]
    pub(crate) rust: Option<String>,
    /// A folder with the library `toolpost`, instead of the registry's.
    #[arg(long, value_name = "DIR", conflicts_with = "exec")]
    pub(crate) toolpost: Option<PathBuf>,
    /// The folder that is made; its default is the name.
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Print a document; without a name, list the documents.
    Show {
        /// Its name.
        id: Option<String>,
        /// List only documents whose name begins so.
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "",
            hide_default_value = true,
            conflicts_with = "id"
        )]
        prefix: String,
    },
    /// Print the changes of a document, oldest first.
    Log {
        /// Its name.
        id: String,
        /// Only changes after this version.
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        after: u64,
        /// How many changes at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Print a document as it was at a version.
    At {
        /// Its name.
        id: String,
        /// The version.
        #[arg(id = "at", value_name = "VERSION")]
        version: u64,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TrustArgs {
    /// Files to trust with the content that they have now; for a folder, its `toolpost.toml` and `.env`. Without any,
    /// what is trusted is listed.
    pub(crate) paths: Vec<PathBuf>,
    /// Trust them no more.
    #[arg(long, requires = "paths")]
    pub(crate) remove: bool,
    /// Trust every change of the files until Ctrl-C. For development.
    #[arg(long, requires = "paths", conflicts_with_all = ["remove", "tool"])]
    pub(crate) watch: bool,
    /// Approve the definition that a tool behind a gateway has now; `?` shows how all of them stand. The path is that of
    /// the gateway. May be repeated.
    #[arg(long, value_name = "UPSTREAM/TOOL", requires = "paths", conflicts_with = "remove")]
    pub(crate) tool: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HelpArgs {
    /// A command or a topic.
    pub(crate) topic: Option<String>,
}

/// Reads a time that something may take: no time at all would only forbid it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` is no time at all: expected a duration above 0, such as 250ms, 10s or 1m30s"
        )),
        time => Ok(time),
    }
}

/// Reads `512M`, `1G`, `4096`; K, M and G are powers of 1,024.
fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size: expected bytes, or a number with K, M or G, such as 512M");
    let letters = text.trim_end_matches("iB").trim_end_matches('B');
    let (number, factor) = match letters.char_indices().last() {
        Some((at, 'k' | 'K')) => (letters.get(..at), 1 << 10),
        Some((at, 'm' | 'M')) => (letters.get(..at), 1 << 20),
        Some((at, 'g' | 'G')) => (letters.get(..at), 1 << 30),
        _ => (Some(letters), 1),
    };
    let number: u64 = number.unwrap_or_default().trim().parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

pub(crate) fn effort(text: &str) -> Result<Effort, String> {
    let all = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Xhigh, Effort::Max];
    all.into_iter().find(|effort| effort.as_str() == text).ok_or_else(|| {
        let names = all.map(Effort::as_str);
        let hint =
            toolpost_core::did_you_mean(text, names).map(|hint| format!(". {hint}")).unwrap_or_default();
        format!("expected one of {}{hint}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_form_of_an_answer_is_seen_in_a_line_that_cannot_be_read() {
        let seen = |line: &str| glance(line.split(' ').map(OsString::from)).0;
        assert_eq!(seen("toolpost run --json --nonsense"), Format::Json);
        assert_eq!(seen("toolpost --format jsonl run --nonsense"), Format::Jsonl);
        assert_eq!(seen("toolpost run --format=json"), Format::Json);
        assert_eq!(seen("toolpost run --format nonsense"), Format::Text);
        assert_eq!(seen("toolpost exec -- ls --json"), Format::Text);
    }

    #[test]
    fn sizes_as_people_write_them() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        for text in ["", "M", "-1", "1.5G", "99999999999G", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
