//! The command line.

mod agent;
#[cfg(unix)]
mod bench;
mod exec;
mod files;
mod flow;
pub(crate) mod former;
mod grants;
mod lazy;
mod login;
mod models;
mod permission;
mod runs;
mod serve;
pub(crate) mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use toolpost_core::Priority;
use toolpost_sandbox::Level;

pub(crate) use self::agent::{AgentArgs, AgentKind, ChatArgs, ExecutorKind, RunArgs};
#[cfg(unix)]
pub(crate) use self::bench::{BenchArgs, BenchSubjectArgs, Suite};
pub(crate) use self::exec::ExecArgs;
pub(crate) use self::files::{AccountArgs, FilesCommand};
#[cfg(feature = "restate")]
pub(crate) use self::flow::FlowWorkerArgs;
pub(crate) use self::flow::{
    FlowCommand, FlowDriveArgs, FlowLsArgs, FlowPlanArgs, FlowResumeArgs, FlowRunArgs, FlowTools,
};
pub(crate) use self::grants::GrantArgs;
pub(crate) use self::lazy::{Lazy, parse};
pub(crate) use self::login::{LoginArgs, LogoutArgs};
pub(crate) use self::models::{ModelsCommand, ModelsListArgs};
pub(crate) use self::permission::{DirectoryArgs, Permission, ProgramAccess, ServerArgs};
pub(crate) use self::runs::{ReplayArgs, RunsCommand};
pub(crate) use self::serve::{SearchFor, ServeArgs};
pub(crate) use self::values::{Backend, Color, Format, Pull};

use crate::parse::duration;
use crate::{pages, style};

/// The internal command that holds a session.
pub(crate) const HOLD_SESSION: &str = "hold-session";
/// The internal command that runs a subject of `bench`.
#[cfg(unix)]
pub(crate) const BENCH_SUBJECT: &str = "bench-subject";

/// The internal command that writes the man pages of a package.
pub(crate) const MAN_PAGES: &str = "man-pages";

/// Toolpost is a tool runtime for LLM agents.
#[derive(Debug, Parser)]
#[command(
    name = "toolpost",
    version,
    styles = style::HELP,
    after_help = pages::ROOT,
    help_template = pages::ROOT_TEMPLATE,
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
    #[command(after_long_help = pages::RUN)]
    Run(Lazy<RunArgs>),
    /// Chat with an agent.
    #[command(after_long_help = pages::CHAT)]
    Chat(Lazy<ChatArgs>),
    /// Call one tool.
    #[command(after_long_help = pages::CALL)]
    Call(Lazy<CallArgs>),
    /// List tools, or show one tool.
    #[command(after_long_help = pages::TOOLS)]
    Tools(Lazy<ToolsArgs>),
    /// Serve tools to MCP clients such as Claude Code.
    #[command(after_long_help = pages::SERVE)]
    Serve(Lazy<ServeArgs>),
    /// Run code or a command in the sandbox.
    #[command(after_long_help = pages::EXEC, override_usage = pages::EXEC_USAGE)]
    Exec(Lazy<ExecArgs>),
    /// Check this host: sandbox levels, languages, providers.
    #[command(after_long_help = pages::DOCTOR)]
    Doctor,
    /// Measure Toolpost and its peers on this machine.
    #[cfg(unix)]
    #[command(after_long_help = pages::BENCH)]
    Bench(Lazy<BenchArgs>),
    /// Build, list and remove package environments and Docker images.
    #[command(subcommand, after_long_help = pages::IMAGE)]
    Image(Lazy<ImageCommand>),
    /// Print the JSON Schema of an output or a file format.
    #[command(after_long_help = pages::SCHEMA)]
    Schema(Lazy<SchemaArgs>),
    /// Print shell completions.
    #[command(after_long_help = pages::COMPLETIONS)]
    Completions(Lazy<CompletionsArgs>),
    /// Hold a session of `exec --session`.
    #[command(name = HOLD_SESSION, hide = true)]
    HoldSession,
    /// Write the man pages into a directory.
    #[command(name = MAN_PAGES, hide = true)]
    ManPages {
        /// An existing directory.
        directory: PathBuf,
    },
    /// Run a subject of `bench`.
    #[cfg(unix)]
    #[command(name = BENCH_SUBJECT, hide = true)]
    BenchSubject(Lazy<BenchSubjectArgs>),
    /// Create a tool program, an agent, a command or a gateway.
    #[command(subcommand, after_long_help = pages::INIT)]
    Init(Lazy<InitCommand>),
    /// Show documents that tools store, and their history.
    #[command(subcommand, after_long_help = pages::STATE)]
    State(Lazy<StateCommand>),
    /// Check, run, resume and watch workflows.
    #[command(subcommand, after_long_help = pages::FLOW)]
    Flow(Lazy<FlowCommand>),
    /// List, show, replay, export and remove stored runs.
    #[command(subcommand, after_long_help = pages::RUNS)]
    Runs(Lazy<RunsCommand>),
    /// Show models: features, limits, prices.
    #[command(subcommand, after_long_help = pages::models())]
    Models(Lazy<ModelsCommand>),
    /// Upload, download, list and remove a provider's files.
    #[command(subcommand, after_long_help = pages::FILES)]
    Files(Lazy<FilesCommand>),
    /// Show and edit settings and their origins.
    #[command(subcommand, after_long_help = pages::CONFIG)]
    Config(Lazy<ConfigCommand>),
    /// Trust files of a directory: settings, variables, descriptions.
    #[command(after_long_help = pages::TRUST)]
    Trust(Lazy<TrustArgs>),
    /// Apply the held changes of a run; without an ID, list them.
    #[command(after_long_help = pages::APPLY)]
    Apply(Lazy<HeldArgs>),
    /// Discard the held changes of a run.
    #[command(after_long_help = pages::DISCARD)]
    Discard(Lazy<HeldRunArgs>),
    /// Undo a reviewed run, or the last code or command of a run.
    #[command(after_long_help = pages::UNDO)]
    Undo(Lazy<UndoArgs>),
    /// Log in to an MCP server with a browser.
    #[command(after_long_help = pages::LOGIN)]
    Login(Lazy<LoginArgs>),
    /// Log out of an MCP server, and revoke its tokens.
    #[command(after_long_help = pages::LOGOUT)]
    Logout(Lazy<LogoutArgs>),
    /// Explain a command or a topic, or print a guide.
    #[command(after_long_help = pages::HELP)]
    Help(Lazy<HelpArgs>),
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Output format; defaults to text. `json` and `jsonl` errors are JSON too.
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// An alias of `--format json`.
    #[arg(long, global = true, conflicts_with = "format")]
    json: bool,
    /// Log more; twice for debugging, three times for everything.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only the result and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log filter, such as `debug` or `toolpost::call=debug,warn`.
    #[arg(long, global = true, hide = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Append the log to a file, instead of standard error.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// When to color output; defaults to auto.
    #[arg(long, global = true, hide = true, value_enum, value_name = "WHEN")]
    pub(crate) color: Option<Color>,
    /// Set a setting; see `toolpost help settings`. May be repeated.
    #[arg(long, global = true, hide = true, value_name = "KEY=VALUE")]
    pub(crate) config: Vec<String>,
    /// The database of documents, runs and conversations.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// A file with variables that the environment lacks. May be repeated.
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Print help with every option.
    #[arg(long, global = true, action = ArgAction::HelpLong)]
    help_all: Option<bool>,
}

/// The format and color options of a command line with errors.
pub(crate) fn scan_output_options(words: impl IntoIterator<Item = OsString>) -> (Format, Color) {
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

/// The words before `--`.
pub(crate) fn words_before_values(words: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    words.take_while(|word| word != "--").collect()
}

impl Global {
    /// The format of the command line.
    pub(crate) fn format(&self) -> Option<Format> {
        if self.json { Some(Format::Json) } else { self.format }
    }
}

/// The arguments of `apply`.
#[derive(Args, Debug)]
pub(crate) struct HeldArgs {
    /// The ID of the changes or its beginning; `last` is the last such run here.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Let a protected path change. May be repeated.
    #[arg(long, value_name = "PATH", requires = "id")]
    pub(crate) allow_protected: Vec<PathBuf>,
    /// Show the changes first, and ask if standard input is a terminal.
    #[arg(long, requires = "id")]
    pub(crate) review: bool,
}

/// The arguments of `undo`.
#[derive(Args, Debug)]
pub(crate) struct UndoArgs {
    /// The ID of the changes or its beginning; defaults to the last such run here.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// The arguments of `discard`.
#[derive(Args, Debug)]
pub(crate) struct HeldRunArgs {
    /// The ID of the changes or its beginning; `last` is the last such run here.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Args, Debug)]
pub(crate) struct CallArgs {
    /// A tool, executable, description or server; see `toolpost help targets`.
    pub(crate) target: String,
    /// The tool, then `key=value` pairs, a JSON object, `@FILE` or `-`.
    #[arg(value_name = "TOOL | ARGUMENTS")]
    pub(crate) rest: Vec<String>,
    /// The tool's working directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    /// Time limit of one attempt, such as `10s`.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Maximum retries, up to the tool's own.
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u32>,
    /// Priority in the queue: low, normal, high or critical.
    #[arg(long, value_name = "PRIORITY", default_value = "normal")]
    pub(crate) priority: Priority,
    /// Add metadata to the call record. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) meta: Vec<String>,
    /// Bypass the result cache.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Check the call without running the tool.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Check only the arguments.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) validate: bool,
    /// Print progress and result as JSON Lines of the executable protocol.
    #[arg(long, conflicts_with_all = ["validate", "format", "json"])]
    pub(crate) stream: bool,
    /// The model that answers the tool's sampling requests.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Print a resource instead of calling a tool.
    #[arg(long, value_name = "URI", conflicts_with_all = ["prompt", "rest", "timeout", "retries", "priority", "meta", "no_cache", "dry_run", "validate", "stream", "model"])]
    pub(crate) resource: Option<String>,
    /// Print a rendered prompt instead of calling a tool.
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
    /// The tools: targets.
    #[arg(value_name = "TARGET", default_value = "builtin")]
    pub(crate) targets: Vec<String>,
    /// Show one tool: schemas, policy, examples, digest.
    #[arg(long, value_name = "NAME")]
    pub(crate) manifest: Option<String>,
    /// Search the tools, best match first.
    #[arg(long, value_name = "WORDS", conflicts_with = "manifest")]
    pub(crate) search: Option<String>,
    /// Sandbox level of programs and servers; defaults to standard.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Option<Level>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build a package environment, or a Docker image.
    #[command(after_long_help = pages::IMAGE_BUILD)]
    Build(ImageBuildArgs),
    /// List environments and images.
    Ls,
    /// Remove an environment or an image.
    Rm(ImageRmArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ImageBuildArgs {
    /// `data`, or an image: `python`, `busybox` or `claude-code`.
    #[arg(value_name = "NAME", required_unless_present = "profile_file")]
    pub(crate) name: Option<String>,
    /// Build a Docker image, `toolpost/NAME`.
    #[arg(long)]
    pub(crate) docker: bool,
    /// A file with one package a line; the environment has its name.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "docker"])]
    pub(crate) profile_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ImageRmArgs {
    /// The name.
    pub(crate) name: String,
    /// Remove a Docker image: `toolpost/NAME` or a full name.
    #[arg(long)]
    pub(crate) docker: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SchemaArgs {
    /// The schema; defaults to a list.
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
    /// List settings with values.
    List {
        /// Show each setting's origin.
        #[arg(long)]
        show_origin: bool,
    },
    /// Print one setting.
    Get {
        /// The setting.
        key: String,
    },
    /// Write one setting to the user's file.
    Set {
        /// The setting.
        key: String,
        /// The value; commas separate list items.
        value: String,
        /// Write to `toolpost.toml` of this directory.
        #[arg(long)]
        project: bool,
    },
    /// Remove one setting from the user's file.
    Unset {
        /// The setting.
        key: String,
        /// Remove from `toolpost.toml` of this directory.
        #[arg(long)]
        project: bool,
    },
    /// Print the paths of settings files.
    Path,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InitCommand {
    /// Create a tool program in Python or Rust.
    Tool(InitToolArgs),
    /// Create an agent in a TOML file.
    Agent(InitFileArgs),
    /// Create a TOML description that wraps a program as a tool.
    Command(InitFileArgs),
    /// Create a gateway to several targets in a TOML file.
    Gateway(InitFileArgs),
}

#[derive(Args, Debug)]
pub(crate) struct InitFileArgs {
    /// The name: letters, digits, `_` and `-`.
    pub(crate) name: String,
    /// The new file; defaults to `NAME.toml`.
    pub(crate) file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("kind").required(true).args(["exec", "rust"]))]
pub(crate) struct InitToolArgs {
    /// Create a Python executable without dependencies.
    #[arg(long, value_name = "NAME")]
    pub(crate) exec: Option<String>,
    /// Create a Cargo project.
    #[arg(long, value_name = "NAME")]
    pub(crate) rust: Option<String>,
    /// A directory with the library `toolpost`; defaults to the registry.
    #[arg(long, value_name = "DIR", conflicts_with = "exec")]
    pub(crate) toolpost: Option<PathBuf>,
    /// The new directory; defaults to the name.
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Print a document; without a name, list the documents.
    Show {
        /// The document.
        id: Option<String>,
        /// List documents whose name has this prefix.
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
        /// The document.
        id: String,
        /// Print changes after this version.
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        after: u64,
        /// Maximum number of changes.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Print a version of a document.
    At {
        /// The document.
        id: String,
        /// The version.
        #[arg(id = "at", value_name = "VERSION")]
        version: u64,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TrustArgs {
    /// Files to trust as they are; directories stand for their settings.
    pub(crate) paths: Vec<PathBuf>,
    /// Revoke the trust.
    #[arg(long, requires = "paths")]
    pub(crate) remove: bool,
    /// Trust every change until Ctrl-C, for development.
    #[arg(long, requires = "paths", conflicts_with_all = ["remove", "tool"])]
    pub(crate) watch: bool,
    /// Approve a definition behind a gateway; `?` lists all. May be repeated.
    #[arg(long, value_name = "UPSTREAM/TOOL", requires = "paths", conflicts_with = "remove")]
    pub(crate) tool: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HelpArgs {
    /// A command or a topic.
    pub(crate) topic: Option<String>,
    /// Print a guide of the documentation; without NAME, list the guides.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with = "topic")]
    pub(crate) guide: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_format_is_found_in_an_invalid_command_line() {
        let seen = |line: &str| scan_output_options(line.split(' ').map(OsString::from)).0;
        assert_eq!(seen("toolpost run --json --nonsense"), Format::Json);
        assert_eq!(seen("toolpost --format jsonl run --nonsense"), Format::Jsonl);
        assert_eq!(seen("toolpost run --format=json"), Format::Json);
        assert_eq!(seen("toolpost run --format nonsense"), Format::Text);
        assert_eq!(seen("toolpost exec -- ls --json"), Format::Text);
    }
}
