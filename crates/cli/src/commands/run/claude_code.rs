//! `toolpost run --agent claude-code`

use std::path::PathBuf;
use std::sync::Arc;

use toolpost_claude_code::{
    ClaudeCode, ClaudeCodeError, ClaudeCodeErrorKind, ClaudeCodeOutput, ClaudeCodeTurn, Credential, Executor,
};
use toolpost_core::{RunRecord, Secret};
use toolpost_runtimes::Languages;
use toolpost_sandbox::{Host, Language};

use super::prompt;
use crate::agent::targets;
use crate::agent_settings::effort;
use crate::args::{ExecutorKind, Permission, RunArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::outcome::print_record;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::progress::has_final_text;
use crate::run_files::RunFiles;
use crate::target::trail::Trail;
use crate::target::{self, OpenOptions};
use crate::{container, env, hints, interrupt, progress};

/// Claude Code's name for our tool server: `mcp__toolpost__NAME`.
const SERVER: &str = "toolpost";

pub(super) fn run(args: &RunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    check(args)?;
    let prompt = prompt(args, printer)?;
    // Checked before anything opens.
    let credential = credential()?;
    let executor = executor(args)?;
    let files = RunFiles::open(&args.work, config, printer)?;
    let workspace = &files.workspace;
    let events = progress::sink(printer);
    let runtime = crate::runtime::start()?;
    let targets = target::parse(&targets(&args.work, config), config, &Trail::default());
    let options = OpenOptions {
        token: crate::mcp::token(&args.work.server)?,
        ..OpenOptions::new(&args.work.permission, &args.work.grants)?
    };
    let (approved, approve) =
        args.work.permission.approve.iter().cloned().partition::<Vec<_>, _>(|name| is_own_tool(name));
    let permission = &Permission { approve, ..args.work.permission.clone() };
    let (root, sink) = (workspace.root(), Arc::clone(&events));
    let opened = crate::toolbox::open(targets, options, root, permission, config, sink, printer);
    let (toolbox, _) = runtime.block_on(opened)?;
    let own = &args.claude;
    let port = TerminalPort::new(printer, permission, files.store.clone());
    let mut builder = ClaudeCode::builder()
        .executor(executor)
        .credential(credential)
        .connect(SERVER, Arc::new(toolbox))
        .no_network(config.settings.no_network)
        .working_dir(workspace.path())
        .protect(config.protected(Some(workspace.path()))?)
        .permission_mode(own.permission_mode.unwrap_or_default())
        .verbose(printer.verbose > 0)
        .caller(crate::toolbox::caller())
        .port(Arc::new(port))
        .on_event(events);
    if let Some(layers) = crate::config::paths::layers() {
        builder = builder.layers(layers);
    }
    if let Some(changes) = crate::run_changes::current() {
        builder = builder.run_changes(changes);
    }
    let words = |given: &[String]| {
        given.iter().flat_map(|words| words.split(',')).map(|word| word.trim().to_owned()).collect::<Vec<_>>()
    };
    if !own.own_tools.is_empty() {
        builder = builder.own_tools(words(&own.own_tools));
    }
    if !approved.is_empty() {
        // The toolbox decides about its own tools.
        builder = builder.allow(approved.into_iter().chain([format!("mcp__{SERVER}")]));
    }
    if let Some(url) = env::get("ANTHROPIC_BASE_URL") {
        builder = builder.base_url(url);
    }
    // The setting `model` is for the loop, whose providers Claude Code lacks.
    if let Some(model) = &args.work.model {
        builder = builder.model(model.strip_prefix("anthropic/").unwrap_or(model));
    }
    if let Some(effort) = effort(&args.work, config) {
        builder = builder.effort(effort);
    }
    if let Some(system) = args.work.system_prompt.clone().or_else(|| config.settings.system_prompt.clone()) {
        builder = builder.system(system);
    }
    let iterations = args.work.max_iterations.or(config.settings.max_iterations);
    let time = args.work.max_time.or(config.settings.max_time);
    if let Some(iterations) = iterations {
        builder = builder.max_iterations(iterations);
    }
    if let Some(cost) = args.work.max_cost.or(config.settings.max_cost) {
        builder = builder.max_cost_usd(cost);
    }
    if let Some(time) = time {
        builder = builder.max_time(time);
    }
    if let Some(memory) = own.memory {
        builder = builder.max_memory_bytes(memory);
    }
    if let Some(cpus) = own.cpu {
        builder = builder.max_cpus(cpus);
    }
    let agent = builder.build()?;
    let memory = Memory::open(&args.work, config)?;
    let turn = ClaudeCodeTurn::new(prompt.clone()).with_id(files.id);
    let outcome = runtime.block_on(async {
        Ok::<_, Failure>(agent.run_turn(turn.with_cancellation(interrupt::watch()?)).await)
    })?;
    let stored = |record: &RunRecord| {
        let Some(runs) = &memory.runs else { return };
        if let Err(error) = runtime.block_on(runs.add(record, &prompt, None)) {
            printer.warn(&format!("the run was not stored: {error}"));
        }
    };
    let ended = finish(outcome, files, &stored, printer);
    crate::runtime::end(runtime);
    ended
}

/// Whether a name is that of a tool of Claude Code or of a server, such as `Bash(git *)`.
fn is_own_tool(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase()) || name.starts_with("mcp__")
}

fn finish(
    outcome: ClaudeCodeOutput,
    files: RunFiles<'_>,
    save: &dyn Fn(&RunRecord),
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut record = RunRecord::clone(&outcome.record);
    if let Some(notice) = files.workspace.omissions() {
        printer.warn(&notice);
        record.notices.push(notice);
    }
    let collected = files.collect(&mut record, printer);
    save(&record);
    let is_result = outcome.stop.is_answer() || has_final_text(&record);
    let ended = print_record(record, is_result, None, None, printer).and_then(|()| match outcome.error {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Ok),
    });
    collected.settle(ended, printer)
}

/// The credential; the token overrides the key, as in Claude Code itself.
fn credential() -> Result<Credential, Failure> {
    if let Some(token) = env::get("CLAUDE_CODE_OAUTH_TOKEN") {
        return Ok(Credential::OauthToken(Secret::new(token)));
    }
    if let Some(key) = env::get("ANTHROPIC_API_KEY") {
        return Ok(Credential::ApiKey(Secret::new(key)));
    }
    let failure = Failure::new(Exit::Credentials, "AUTH", "Claude Code needs a credential, and none is set");
    Err(failure
        .hint("With a subscription: set CLAUDE_CODE_OAUTH_TOKEN to what `claude setup-token` prints.")
        .hint("With a key: set ANTHROPIC_API_KEY."))
}

/// The executor of Claude Code.
fn executor(args: &RunArgs) -> Result<Executor, Failure> {
    let own = &args.claude;
    let kind = own.executor.unwrap_or_default();
    let options = [("--image", own.image.is_some()), ("--pull", own.pull.is_some())];
    if kind != ExecutorKind::Docker {
        reject(&options, "needs a container", "Add `--executor docker`.")?;
    }
    Ok(match kind {
        ExecutorKind::Process => Executor::process(program(args)?),
        ExecutorKind::Sandbox => Executor::sandbox(program(args)?),
        ExecutorKind::Docker => {
            let image = container::image(own.image.as_deref(), container::CLAUDE_CODE, own.pull)?;
            let (backend, program) = container::claude_code(&image, own.pull.unwrap_or_default())?;
            Executor::container(own.program.clone().unwrap_or(program), backend)
        }
    })
}

/// The program of the option, else the first `claude` of the search path.
fn program(args: &RunArgs) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.claude.program {
        return path
            .canonicalize()
            .map_err(|error| Failure::file("the program of Claude Code", path, &error));
    }
    let search = env::get_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search)
        .filter(|directory| directory.is_absolute())
        .filter_map(|directory| directory.join("claude").canonicalize().ok())
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let node = Languages::of_host(Host::probe(), Some(search.as_os_str()));
        let node = node.iter().find(|status| status.language == Language::JavaScript);
        Failure::usage("there is no `claude` in the search path")
            .hint(install_hint(node.and_then(|status| status.version.as_deref())))
            .hint("`--claude FILE` names a program elsewhere.")
    })
}

/// The installation of Claude Code for a version of Node.js, such as `v20.20.2`.
fn install_hint(node: Option<&str>) -> String {
    let digits = |text: &str| text.trim_start_matches(|one: char| !one.is_ascii_digit()).to_owned();
    let major = node.map(digits).and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(22..) => "Install it: `npm install -g @anthropic-ai/claude-code`.".to_owned(),
        Some(major @ 18..) => format!(
            "Install it: `npm install -g @anthropic-ai/claude-code@2.1.197`, the last version for Node.js {major}."
        ),
        _ => "Install Node.js 22 or later; then `npm install -g @anthropic-ai/claude-code`.".to_owned(),
    }
}

/// Rejects options of the loop.
fn check(args: &RunArgs) -> Result<(), Failure> {
    let options = [
        ("--fallback", !args.work.fallback.is_empty()),
        ("--temperature", args.work.temperature.is_some()),
        ("--interactive", args.interactive),
        ("--output", args.output.is_some()),
        ("--output-schema", args.output_schema.is_some()),
        ("--continue", args.work.resume_last),
        ("--resume", args.work.resume.is_some()),
        ("--fork", args.work.fork.is_some()),
        ("--review", args.work.changes.review),
        ("--discard", args.work.changes.discard),
        ("--live", args.work.permission.directory.live),
        ("--allow-protected", !args.work.permission.directory.allow_protected.is_empty()),
        ("--plain", args.work.plain),
        ("--record", args.work.record.is_some()),
        ("--code", args.work.code.is_some()),
        ("--enable-file-support", args.work.enable_file_support),
        ("--dynamic", args.work.dynamic.is_some()),
        ("--core-tool", !args.work.core_tool.is_empty()),
        ("--compact-tools", args.work.compact_tools),
        ("--max-tool-calls", args.work.max_tool_calls.is_some()),
        ("--max-tokens", args.work.max_tokens.is_some()),
    ];
    reject(&options, "is not for `--agent claude-code`", "Remove it, or use the agent `loop`.")
}

/// Rejects options of Claude Code.
pub(super) fn check_loop(args: &RunArgs) -> Result<(), Failure> {
    let own = &args.claude;
    let options = [
        ("--executor", own.executor.is_some()),
        ("--image", own.image.is_some()),
        ("--pull", own.pull.is_some()),
        ("--claude", own.program.is_some()),
        ("--own-tools", !own.own_tools.is_empty()),
        ("--permission-mode", own.permission_mode.is_some()),
        ("--memory", own.memory.is_some()),
        ("--cpu", own.cpu.is_some()),
    ];
    reject(&options, "needs Claude Code", "Add `--agent claude-code`.")
}

fn reject(options: &[(&str, bool)], what: &str, hint: &str) -> Result<(), Failure> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::usage(format!("`{option}` {what}")).hint(hint)),
        None => Ok(()),
    }
}

impl From<ClaudeCodeError> for Failure {
    fn from(error: ClaudeCodeError) -> Self {
        let exit = match error.kind() {
            ClaudeCodeErrorKind::CredentialMissing | ClaudeCodeErrorKind::CredentialRefused => {
                Exit::Credentials
            }
            ClaudeCodeErrorKind::Setting | ClaudeCodeErrorKind::Program => Exit::Usage,
            ClaudeCodeErrorKind::Sandbox | ClaudeCodeErrorKind::Denied => Exit::Denied,
            ClaudeCodeErrorKind::ToolServer | ClaudeCodeErrorKind::Provider | ClaudeCodeErrorKind::Daemon => {
                Exit::Unreachable
            }
            ClaudeCodeErrorKind::Limit => Exit::Limit,
            ClaudeCodeErrorKind::Cancelled => Exit::Interrupted,
            _ => Exit::Failed,
        };
        let mut failure = Self::new(exit, &error.kind().as_str().to_uppercase(), error.message());
        let option = match error.kind() {
            ClaudeCodeErrorKind::Denied => {
                Some("`--approve` approves a tool; on a terminal there is a prompt.")
            }
            ClaudeCodeErrorKind::Sandbox => {
                Some("`--executor process` runs Claude Code with your own rights, unconfined.")
            }
            _ => None,
        };
        failure.hints.extend(error.whole_suggestion().map(hints::of_suggestion));
        failure.hints.extend(option.map(str::to_owned));
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_install_hint_fits_the_node_version() {
        for (node, command) in [
            (Some("v22.13.0"), "`npm install -g @anthropic-ai/claude-code`"),
            (Some("v20.20.2"), "@2.1.197`, the last version for Node.js 20"),
            (Some("Node 18.1.0"), "@2.1.197`, the last version for Node.js 18"),
            (Some("v16.0.0"), "Install Node.js 22"),
            (None, "Install Node.js 22"),
        ] {
            let hint = install_hint(node);
            assert!(hint.contains(command), "{node:?}: {hint}");
        }
    }
}
