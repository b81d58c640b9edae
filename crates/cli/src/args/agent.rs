//! The arguments of `run` and `chat`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use toolpost_claude_code::PermissionMode;
use toolpost_llm::{CodeExecutionMode, Effort};

use super::grants::GrantArgs;
use super::permission::{ChangesArgs, Permission, ServerArgs};
use super::values::Pull;
use crate::parse::{dollars, duration, effort, size, temperature};

/// The agent that works on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentKind {
    /// Toolpost's agent loop, with any model.
    Loop,
    /// The real Claude Code, with Toolpost's tools.
    ClaudeCode,
    /// The agent of a file, in Toolpost's agent loop.
    File(PathBuf),
}

impl FromStr for AgentKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loop" => Ok(Self::Loop),
            "claude-code" => Ok(Self::ClaudeCode),
            file if file.contains('/') || Path::new(file).extension().is_some_and(|end| end == "toml") => {
                Ok(Self::File(file.into()))
            }
            _ => Err("expected `loop`, `claude-code` or an agent file, such as `./reviewer.toml`".to_owned()),
        }
    }
}

/// The executor of Claude Code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorKind {
    /// A process with the rights of this one.
    Process,
    /// The sandbox; egress reaches the provider alone.
    #[default]
    Sandbox,
    /// A Docker container with the same egress, without host files.
    Docker,
}

/// Options of Claude Code.
#[derive(Args, Debug)]
pub(crate) struct ClaudeCodeArgs {
    /// Run Claude Code in `sandbox` (the default), `docker` or `process`.
    #[arg(long, hide = true, value_name = "EXECUTOR", help_heading = "Claude Code")]
    pub(crate) executor: Option<ExecutorKind>,
    /// The container image; defaults to that of `image build claude-code`.
    #[arg(long, hide = true, value_name = "IMAGE", help_heading = "Claude Code")]
    pub(crate) image: Option<String>,
    /// When to pull `--image`: never (the default), missing or always.
    #[arg(long, hide = true, value_name = "WHEN", help_heading = "Claude Code")]
    pub(crate) pull: Option<Pull>,
    /// The Claude Code executable; defaults to `claude` of the search path.
    #[arg(long = "claude", hide = true, value_name = "FILE", help_heading = "Claude Code")]
    pub(crate) program: Option<PathBuf>,
    /// Claude Code's own tools to enable, such as `Read,Grep`.
    #[arg(long, hide = true, value_name = "TOOLS", help_heading = "Claude Code")]
    pub(crate) own_tools: Vec<String>,
    /// Permission mode: manual, accept-edits, plan, dont-ask or bypass.
    #[arg(long, hide = true, value_name = "MODE", help_heading = "Claude Code")]
    pub(crate) permission_mode: Option<PermissionMode>,
    /// Memory limit of Claude Code, such as `2G`; defaults to 4G.
    #[arg(long, hide = true, value_name = "SIZE", help_heading = "Claude Code", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// CPU quota of Claude Code in processors, such as `0.5`.
    #[arg(long, hide = true, value_name = "X", help_heading = "Claude Code")]
    pub(crate) cpu: Option<f32>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("task").args(["text", "prompt", "file"]))]
#[command(group = clap::ArgGroup::new("begin").required(true).multiple(true).args(["text", "prompt", "file", "interactive"]))]
pub(crate) struct RunArgs {
    /// The task. Piped standard input follows it.
    #[arg(value_name = "PROMPT")]
    text: Option<String>,
    /// The task, as an option.
    #[arg(short, long, value_name = "TEXT", help_heading = "Input")]
    prompt: Option<String>,
    /// A file with the task; `-` is standard input.
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub(crate) file: Option<PathBuf>,
    /// Chat after the first answer.
    #[arg(short, long, hide = true, help_heading = "Input")]
    pub(crate) interactive: bool,
    /// Write the answer to a new file.
    #[arg(short, long, value_name = "FILE", help_heading = "Output", conflicts_with = "interactive")]
    pub(crate) output: Option<PathBuf>,
    /// A file with the JSON Schema of the answer.
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "interactive")]
    pub(crate) output_schema: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) work: AgentArgs,
    #[command(flatten)]
    pub(crate) claude: ClaudeCodeArgs,
}

impl RunArgs {
    /// The task of the command line.
    pub(crate) fn prompt(&self) -> Option<&str> {
        self.text.as_deref().or(self.prompt.as_deref())
    }
}

#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// The first message.
    #[arg(value_name = "PROMPT")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) work: AgentArgs,
}

/// Options of `run` and `chat`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AgentArgs {
    /// Copy a file or directory into the working directory. May be repeated.
    #[arg(long, value_name = "PATH", help_heading = "Input")]
    pub(crate) attach: Vec<PathBuf>,
    /// Upload attachments to the provider, for hosted code.
    #[arg(long, hide = true, help_heading = "Input")]
    pub(crate) enable_file_support: bool,
    /// Work in a host directory instead of a fresh one.
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
    /// Instructions before the task.
    #[arg(long, value_name = "TEXT", help_heading = "Input")]
    pub(crate) system_prompt: Option<String>,
    /// The agent: `loop` (the default), `claude-code`, or an agent file.
    #[arg(long, value_name = "AGENT", help_heading = "Model")]
    pub(crate) agent: Option<AgentKind>,
    /// The model: `PROVIDER/NAME`, `claude-…`, `gpt-…`, `script:FILE`, `replay:FILE`.
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    pub(crate) model: Option<String>,
    /// A model for when the first is unavailable. May be repeated.
    #[arg(long, hide = true, value_name = "MODEL", help_heading = "Model")]
    pub(crate) fallback: Vec<String>,
    /// Sampling temperature, 0 to 2.
    #[arg(long, value_name = "X", help_heading = "Model", value_parser = temperature)]
    pub(crate) temperature: Option<f64>,
    /// Reasoning effort: minimal, low, medium, high, xhigh or max.
    #[arg(long, value_name = "EFFORT", help_heading = "Model", value_parser = effort)]
    pub(crate) effort: Option<Effort>,
    /// Record the exchanges to a new file, for `--model replay:FILE`.
    #[arg(long, hide = true, value_name = "FILE", help_heading = "Model")]
    pub(crate) record: Option<PathBuf>,
    /// Comma-separated tools: targets, names, `hosted:NAME`. May be repeated.
    #[arg(long, value_name = "TOOLS", help_heading = "Tools")]
    pub(crate) tools: Vec<String>,
    /// Where `code_execution` runs: `hosted`, `local` or `auto`.
    #[arg(long, hide = true, value_name = "PLACE", help_heading = "Tools")]
    pub(crate) code: Option<CodeExecutionMode>,
    /// Add a server's tools: `https://…`, `stdio:COMMAND`, a name. May be repeated.
    #[arg(long, value_name = "TARGET", help_heading = "Tools")]
    pub(crate) mcp_server: Vec<String>,
    #[command(flatten, next_help_heading = "Tools")]
    pub(crate) server: ServerArgs,
    /// Load tools on demand: `native`, `browse`, or a model that finds them.
    #[arg(long, value_name = "HOW", help_heading = "Tools", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) dynamic: Option<String>,
    /// A tool to offer whole with `--dynamic` or `--compact-tools`. May be repeated.
    #[arg(long, hide = true, value_name = "TOOL", help_heading = "Tools")]
    pub(crate) core_tool: Vec<String>,
    /// Offer tools without parameter descriptions, to save tokens.
    #[arg(long, hide = true, help_heading = "Tools")]
    pub(crate) compact_tools: bool,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
    /// Resume the last conversation of this directory.
    #[arg(long = "continue", help_heading = "Conversation")]
    pub(crate) resume_last: bool,
    /// Resume the conversation with this ID or unique prefix.
    #[arg(long, value_name = "ID", help_heading = "Conversation", conflicts_with = "resume_last")]
    pub(crate) resume: Option<String>,
    /// Resume a copy of a conversation.
    #[arg(long, hide = true, value_name = "ID", help_heading = "Conversation", conflicts_with_all = ["resume_last", "resume"])]
    pub(crate) fork: Option<String>,
    /// Store neither the conversation nor the run.
    #[arg(long, hide = true, help_heading = "Conversation", conflicts_with_all = ["resume_last", "resume", "fork"])]
    pub(crate) no_save: bool,
    /// Write new files to a directory; defaults to `artifacts/RUN-ID`.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Print answers as raw Markdown.
    #[arg(long, hide = true, help_heading = "Output")]
    pub(crate) plain: bool,
    /// Maximum requests to the model; defaults to 25.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_iterations: Option<u32>,
    /// Maximum tool calls.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits")]
    pub(crate) max_tool_calls: Option<u32>,
    /// Maximum tokens, input and output together.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Maximum duration, such as `90s` or `5m`.
    #[arg(long, value_name = "D", help_heading = "Limits", value_parser = duration)]
    pub(crate) max_time: Option<Duration>,
    /// Maximum cost in US dollars; needs a model with known prices.
    #[arg(long, value_name = "USD", help_heading = "Limits", value_parser = dollars)]
    pub(crate) max_cost: Option<f64>,
}
