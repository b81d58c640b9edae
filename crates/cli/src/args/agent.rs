//! What the commands with an agent take.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use toolpost_claude_code::PermissionMode;
use toolpost_llm::{CodeExecutionMode, Effort, ToolChoice};

use super::{
    ChangesArgs, GrantArgs, Permission, Pull, ServerArgs, TuningArgs, duration, effort, size, tool_choice,
};

/// Who works on a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentKind {
    /// The loop of this program, with any model.
    #[default]
    Loop,
    /// The real Claude Code, with these tools.
    ClaudeCode,
}

/// Where Claude Code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorKind {
    /// A process with the rights of this one.
    Process,
    /// The sandbox, with a way to the provider alone.
    #[default]
    Sandbox,
    /// A container of the Docker daemon, with the same way out and nothing of this machine.
    Docker,
}

/// What only Claude Code takes.
#[derive(Args, Debug)]
pub(crate) struct ClaudeCodeArgs {
    /// Who works on the task: `loop`, or `claude-code`, the real Claude Code with these tools.
    #[arg(
        long,
        value_name = "AGENT",
        help_heading = "Claude Code",
        default_value = "loop",
        hide_default_value = true
    )]
    pub(crate) agent: AgentKind,
    /// Where Claude Code runs: `sandbox`, which is the default, `docker` or `process`.
    #[arg(long, hide = true, value_name = "EXECUTOR", help_heading = "Claude Code")]
    pub(crate) executor: Option<ExecutorKind>,
    /// The image of its container; without it, the one that `toolpost image build claude-code` makes.
    #[arg(long, hide = true, value_name = "IMAGE", help_heading = "Claude Code")]
    pub(crate) image: Option<String>,
    /// Whether that image is fetched: never, which is the default, missing or always.
    #[arg(long, hide = true, value_name = "WHEN", help_heading = "Claude Code")]
    pub(crate) pull: Option<Pull>,
    /// The program of Claude Code; without it, `claude` of the search path, or that of the image.
    #[arg(long = "claude", hide = true, value_name = "FILE", help_heading = "Claude Code")]
    pub(crate) program: Option<PathBuf>,
    /// Claude Code's own tools that it gets, such as `Read,Grep`; without it, none.
    #[arg(long, hide = true, value_name = "TOOLS", help_heading = "Claude Code")]
    pub(crate) own_tools: Vec<String>,
    /// A tool that Claude Code may use without being asked for, such as `mcp__toolpost__calculate` or `Bash(git *)`. May
    /// be repeated; without it, all but its own.
    #[arg(long, hide = true, value_name = "TOOL", help_heading = "Claude Code")]
    pub(crate) allow_tool: Vec<String>,
    /// What Claude Code may do without being asked for: manual, accept-edits, plan, dont-ask or bypass.
    #[arg(long, hide = true, value_name = "MODE", help_heading = "Claude Code")]
    pub(crate) permission_mode: Option<PermissionMode>,
    /// Memory of Claude Code with everything that it starts, such as `2G`. Default 4G.
    #[arg(long, hide = true, value_name = "SIZE", help_heading = "Claude Code", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Processors that it may keep busy at once, such as `0.5`. Without it, all.
    #[arg(long, hide = true, value_name = "X", help_heading = "Claude Code")]
    pub(crate) cpu: Option<f32>,
    /// Its processes and threads at one time. Default 1024.
    #[arg(long, hide = true, value_name = "N", help_heading = "Claude Code", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Option<u32>,
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
    /// Talk: go on after the answer, as `toolpost chat` does.
    #[arg(short, long, hide = true, help_heading = "Input")]
    pub(crate) interactive: bool,
    /// Write the answer to a new file, in one piece; one that is there stays.
    #[arg(short, long, value_name = "FILE", help_heading = "Output", conflicts_with = "interactive")]
    pub(crate) output: Option<PathBuf>,
    /// A file with a JSON Schema that the answer must fit. A model whose answer does not fit is told what is wrong; if
    /// none fits, the status is 7.
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "interactive")]
    pub(crate) output_schema: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) work: AgentArgs,
    #[command(flatten)]
    pub(crate) claude: ClaudeCodeArgs,
}

impl RunArgs {
    /// The task, if it stands on the command line.
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

/// What the commands with an agent have in common.
#[derive(Args, Debug, Default)]
pub(crate) struct AgentArgs {
    /// Put a file or a folder into the working folder. May be repeated.
    #[arg(long, value_name = "PATH", help_heading = "Input")]
    pub(crate) attach: Vec<PathBuf>,
    /// Upload what is attached to the provider, where its own sandbox runs the code. There it stays, until `toolpost files
    /// rm` removes it.
    #[arg(long, hide = true, help_heading = "Input")]
    pub(crate) enable_file_support: bool,
    /// Work in an existing folder instead of a fresh one.
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
    /// Instructions that stand before the task.
    #[arg(long, value_name = "TEXT", help_heading = "Input")]
    pub(crate) system_prompt: Option<String>,
    /// The model: `PROVIDER/NAME`, a name that begins like `claude-`, `gpt-`, `gemini-` or `grok-`, `script:FILE` or `replay:FILE`; of Claude Code `opus`, `sonnet`, `haiku` or a name.
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    pub(crate) model: Option<String>,
    /// How far the model's words may stray, from 0 to 2.
    #[arg(long, value_name = "X", help_heading = "Model", value_parser = temperature)]
    pub(crate) temperature: Option<f64>,
    /// How hard the model thinks.
    #[arg(long, value_name = "EFFORT", help_heading = "Model", value_parser = effort)]
    pub(crate) effort: Option<Effort>,
    /// The longest single answer of the model, in tokens.
    #[arg(long, hide = true, value_name = "N", help_heading = "Model", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_output_tokens: Option<u32>,
    #[command(flatten)]
    pub(crate) tuning: TuningArgs,
    /// Write the conversation with the model to a file, for `--model replay:FILE`.
    #[arg(long, hide = true, value_name = "FILE", help_heading = "Model")]
    pub(crate) record: Option<PathBuf>,
    /// The tools: targets or names, separated by commas; `hosted:web_search`, `hosted:web_fetch`, `hosted:x_search` and
    /// `hosted:file_search=STORE` are run by the provider. May be repeated.
    #[arg(long, value_name = "TOOLS", help_heading = "Tools")]
    pub(crate) tools: Vec<String>,
    /// Give the model the tool `code_execution`, and say where its code runs: with the provider (`hosted`), in the sandbox
    /// of this host (`local`), or with the provider where the model takes that, else here (`auto`). Among the usual tools
    /// it takes the place of `run_code`.
    #[arg(long, hide = true, value_name = "PLACE", help_heading = "Tools")]
    pub(crate) code: Option<CodeExecutionMode>,
    /// A server whose tools are added: `https://…`, `stdio:COMMAND`, or a name. May be repeated.
    #[arg(long, value_name = "TARGET", help_heading = "Tools")]
    pub(crate) mcp_server: Vec<String>,
    #[command(flatten, next_help_heading = "Tools")]
    pub(crate) server: ServerArgs,
    /// Let the model load the tools that it needs. Its provider searches them where the model has that (`native`), else
    /// the model itself (`browse`); either word asks for one of them, and with a model, that one finds tools for it.
    #[arg(long, value_name = "HOW", help_heading = "Tools", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) dynamic: Option<String>,
    /// A tool that is always offered, with `--dynamic` or `--compact-tools`. May be repeated.
    #[arg(long, hide = true, value_name = "TOOL", help_heading = "Tools")]
    pub(crate) core_tool: Vec<String>,
    /// What the model does about tools: `auto`; `any` or the name of one, which it must call first; `none`.
    #[arg(long, hide = true, value_name = "CHOICE", help_heading = "Tools", value_parser = tool_choice)]
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Have the provider keep the arguments of tools to their schemas, where it can.
    #[arg(long, hide = true, help_heading = "Tools")]
    pub(crate) strict_tools: bool,
    /// Offer tools without the descriptions of their parameters, which takes fewer tokens.
    #[arg(long, hide = true, help_heading = "Tools")]
    pub(crate) compact_tools: bool,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten)]
    pub(crate) permission: Permission,
    /// Go on with the conversation that was had last in this folder.
    #[arg(long = "continue", help_heading = "Conversation")]
    pub(crate) go_on: bool,
    /// Go on with the conversation of this id, or of the only id that begins so.
    #[arg(long, value_name = "ID", help_heading = "Conversation", conflicts_with = "go_on")]
    pub(crate) resume: Option<String>,
    /// Go on with a copy of the conversation of this id; the other one stays as it is.
    #[arg(long, hide = true, value_name = "ID", help_heading = "Conversation", conflicts_with_all = ["go_on", "resume"])]
    pub(crate) fork: Option<String>,
    /// Keep neither the conversation nor what its models were asked and answered.
    #[arg(long, hide = true, help_heading = "Conversation", conflicts_with_all = ["go_on", "resume", "fork"])]
    pub(crate) no_save: bool,
    /// Where files that were made are put; default `artifacts/RUN-ID`, for a fresh working folder.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Show answers as the model writes them, instead of as what their Markdown means. So it is anyway where no person
    /// reads on a terminal.
    #[arg(long, hide = true, help_heading = "Output")]
    pub(crate) plain: bool,
    /// How often the model is asked at most. Default 25.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_iterations: Option<u32>,
    /// How many tools are called at most.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits")]
    pub(crate) max_tool_calls: Option<u32>,
    /// How many tokens are read and written at most, in all.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// How long the run takes at most, such as `90s` or `5m`.
    #[arg(long, value_name = "D", help_heading = "Limits", value_parser = duration)]
    pub(crate) max_time: Option<Duration>,
    /// How much it costs at most, in US dollars. A model whose price nobody knows is then not asked.
    #[arg(long, value_name = "USD", help_heading = "Limits", value_parser = dollars)]
    pub(crate) max_cost: Option<f64>,
    /// End at a limit at once, without a last answer that sums up.
    #[arg(long, hide = true, help_heading = "Limits")]
    pub(crate) no_wrap_up: bool,
    #[command(flatten)]
    pub(crate) loop_limits: LoopArgs,
}

/// How the loop treats tools and answers that take too much.
#[derive(Args, Debug, Default)]
pub(crate) struct LoopArgs {
    /// How many tools run at once at most. Default 8.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallel_tools: Option<u32>,
    /// How long one call of a tool takes at most, such as `90s`; where the tool's own policy says less, that holds.
    #[arg(long, hide = true, value_name = "D", help_heading = "Limits", value_parser = duration)]
    pub(crate) tool_timeout: Option<Duration>,
    /// How many characters of text of one call the model reads at most; the beginning and the end stay. Default 64 KiB.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tool_output_chars: Option<u32>,
    /// How often the model may repeat itself before it is told, and twice that before the run ends; 0 for endlessly.
    /// Default 3.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits")]
    pub(crate) repetition: Option<u32>,
    /// How often a model is told that its answer does not fit `--output-schema`. Default 2.
    #[arg(long, hide = true, value_name = "N", help_heading = "Limits")]
    pub(crate) repairs: Option<u32>,
    /// Who makes a conversation shorter that comes near to what the model takes: this program, with a `summary` of its
    /// middle, which is the default; the model's `provider`; `auto`, the provider where it does that, else a summary; or
    /// nobody (`off`).
    #[arg(long, hide = true, value_name = "HOW", help_heading = "Limits")]
    pub(crate) compaction: Option<CompactionKind>,
    /// Let a conversation that outgrows the model end the run: the same as `--compaction off`.
    #[arg(long, hide = true, help_heading = "Limits", conflicts_with = "compaction")]
    pub(crate) no_compaction: bool,
}

/// Who makes long conversations shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompactionKind {
    /// A summary of ours.
    Summary,
    /// The provider.
    Provider,
    /// The provider where it can, else a summary of ours.
    Auto,
    /// Nobody.
    Off,
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 2".to_owned())
}

fn dollars(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0, such as 0.50".to_owned())
}
