//! `toolpost run`

mod claude_code;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_agent::{Agent, Limits, Outcome, Run};
use toolpost_core::{Artifact, ArtifactData, Event, RunId, RunRecord, Scope, format_duration};
use toolpost_llm::{HttpOptions, Model, ModelSpec, ProviderAccess, Recorder, Router, Secret, Settings};

use crate::args::{AgentKind, Format, RunArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, harmless, paint};
use crate::workspace::{Store, Workspace};
use crate::{env, interrupt, progress, target};

/// The model when nobody names one and its provider's key is there.
pub(crate) const DEFAULT_MODEL: &str = "anthropic/claude-sonnet-5-5";
/// The tools when nobody names any.
const DEFAULT_TOOLS: &str = "read_file,list_directory,calculate,write_file,run_code";
/// The longest task, in bytes.
const MAX_PROMPT: u64 = 16 << 20;

pub(crate) fn run(args: &RunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    if args.claude.agent == AgentKind::ClaudeCode {
        return claude_code::run(args, config, printer);
    }
    claude_code::check_loop(args)?;
    let prompt = prompt(args)?;
    let key = env::get("ANTHROPIC_API_KEY").map(Secret::new);
    let (model, spec) = model(args, config, key.as_ref())?;
    let settings = settings(args, config)?;
    let limits = limits(args, config)?;
    let targets = targets(args, config);
    let id = RunId::new();
    let workspace = Workspace::open(args.workdir.as_deref(), &args.attach)?;
    let store = store(args, config, &workspace, id);
    let events = progress::sink(printer);
    let runtime = super::runtime()?;
    let toolbox = runtime.block_on(async {
        let token = crate::mcp::token(&args.server)?;
        let opened = target::open_with(&targets, config, args.permission.level, true, token).await?;
        opened.warnings.iter().for_each(|warning| printer.warn(warning));
        let pool = super::code_pool(config)?;
        super::toolbox(opened, workspace.path(), &args.permission, config, pool, Arc::clone(&events)).await
    })?;
    // The first thing that is written: from here on only the run itself can fail.
    let model = recorded(args, model, key)?;
    let mut builder =
        Agent::builder(model, toolbox).settings(settings).on_event(events).limits(|all| *all = limits);
    builder = match &args.dynamic {
        None => builder,
        Some(model) if model.is_empty() => builder.dynamic(true),
        Some(model) => builder.dynamic(open_model(model, config)?),
    };
    builder = builder.core_tools(args.core_tool.iter().cloned()).compact_tools(args.compact_tools);
    if let Some(system) = args.system_prompt.clone().or_else(|| config.text("system_prompt")) {
        builder = builder.system(system);
    }
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let mut run = Run::new(&builder.build(), prompt)
        .with_id(id)
        .with_caller(super::caller())
        .with_scope(Scope::new(owner).with_working_dir(workspace.path()))
        .with_port(Arc::new(TerminalPort::new(printer, &args.permission, store.clone())));
    if matches!(spec, ModelSpec::Script(_)) {
        let notice = "the model's words are scripted; the tools, the sandbox and the numbers are real";
        printer.note(&format!("{} {notice}", paint(HINT, "script:")));
        run = run.with_notice(notice);
    }
    let outcome = runtime
        .block_on(async { Ok::<_, Failure>(run.with_cancellation(interrupt::watch()?).finish().await) })?;
    super::end(runtime);
    let mut record = RunRecord::clone(&outcome.record);
    let put = match &store {
        Some(store) => put_away(&workspace, store, &mut record),
        None => Ok(()),
    };
    let ended = finish(&outcome, record, printer);
    match put {
        // What could not be put away stays where it is.
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.keep().display())))
        }
        Ok(()) => ended,
    }
}

/// What the tools are from.
fn targets(args: &RunArgs, config: &Config) -> Vec<String> {
    let mut targets = match (args.tools.as_slice(), config.texts("tools")) {
        ([], configured) if configured.is_empty() => vec![DEFAULT_TOOLS.to_owned()],
        ([], configured) => configured,
        (named, _) => named.to_vec(),
    };
    targets.extend(args.mcp_server.iter().cloned());
    targets
}

/// What takes the files that are made; none where they stay in the operator's folder.
fn store(args: &RunArgs, config: &Config, workspace: &Workspace, id: RunId) -> Option<Store> {
    let artifacts = args.artifacts.clone().or_else(|| Some(config.path("artifacts")?.join(id.to_string())));
    match (&artifacts, workspace) {
        (Some(folder), _) => Some(Store::new(folder)),
        (None, Workspace::Fresh { .. }) => Some(Store::new(Path::new("artifacts").join(id.to_string()))),
        (None, Workspace::Existing(_)) => None,
    }
}

fn prompt(args: &RunArgs) -> Result<String, Failure> {
    let text = match (&args.prompt, &args.file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(path)) if path == Path::new("-") => read_text(path, io::stdin().lock())?,
        (None, Some(path)) => {
            read_text(path, File::open(path).map_err(|error| Failure::file("the task", path, &error))?)?
        }
        (None, None) => String::new(),
    };
    if text.trim().is_empty() {
        return Err(Failure::usage("the task is empty").hint("Say what to do with `-p TEXT` or `-f FILE`."));
    }
    Ok(text)
}

fn read_text(path: &Path, source: impl io::Read) -> Result<String, Failure> {
    let mut text = String::new();
    let read = source.take(MAX_PROMPT + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::file("the task", path, &error))?;
    if text.len() as u64 > MAX_PROMPT {
        return Err(Failure::usage(format!("the task `{}` is larger than 16 MiB", path.display()))
            .hint("Attach it with `--attach`, and say in the task what to do with it."));
    }
    Ok(text)
}

fn model(
    args: &RunArgs,
    config: &Config,
    key: Option<&Secret>,
) -> Result<(Arc<dyn Model>, ModelSpec), Failure> {
    let name = args.model.clone().or_else(|| config.text("model"));
    let name = match name {
        Some(name) => name,
        None if key.is_some() => DEFAULT_MODEL.to_owned(),
        None => return Err(no_model()),
    };
    let spec = ModelSpec::parse(&name)?;
    Ok((router(config).open(&spec)?, spec))
}

/// The model of a name.
pub(crate) fn open_model(name: &str, config: &Config) -> Result<Arc<dyn Model>, Failure> {
    Ok(router(config).open(&ModelSpec::parse(name)?)?)
}

fn router(config: &Config) -> Router {
    let http = HttpOptions {
        no_network: config.flag("no_network"),
        proxy: env::get("HTTPS_PROXY").map(Secret::new),
        ..HttpOptions::default()
    };
    let access = ProviderAccess {
        key: env::get("ANTHROPIC_API_KEY").map(Secret::new),
        base_url: env::get("ANTHROPIC_BASE_URL"),
        ..ProviderAccess::default()
    };
    Router::new(http, BTreeMap::from([("anthropic".to_owned(), access)]))
}

/// The model as it is, or with a recording of what is said.
fn recorded(args: &RunArgs, model: Arc<dyn Model>, key: Option<Secret>) -> Result<Arc<dyn Model>, Failure> {
    let Some(path) = &args.record else { return Ok(model) };
    let file = File::options().write(true).create_new(true).open(path);
    let file = file.map_err(|error| Failure::file("the recording", path, &error))?;
    Ok(Arc::new(Recorder::new(model, file, key.into_iter().collect())))
}

fn no_model() -> Failure {
    Failure::new(Exit::Credentials, "AUTH", "no model is named, and no key is set")
        .hint(format!("With a key: set ANTHROPIC_API_KEY; the model is then {DEFAULT_MODEL}, or what `--model` names."))
        .hint("Without one, offline: `--model script:FILE`, where a file says what the model says; see `toolpost help scripts`.")
        .hint("Local servers (Ollama, llama.cpp, vLLM) speak a wire that this version does not have yet.")
}

fn settings(args: &RunArgs, config: &Config) -> Result<Settings, Failure> {
    Ok(Settings {
        temperature: args.temperature.or_else(|| config.fraction("temperature")),
        effort: match args.effort {
            Some(effort) => Some(effort),
            None => config.text("effort").and_then(|text| crate::args::effort(&text).ok()),
        },
        max_output_tokens: match args.max_output_tokens {
            Some(tokens) => Some(tokens),
            None => config.number("max_output_tokens")?,
        },
        ..Settings::default()
    })
}

fn limits(args: &RunArgs, config: &Config) -> Result<Limits, Failure> {
    let mut limits = Limits::default();
    if let Some(iterations) =
        args.max_iterations.map_or_else(|| config.number("max_iterations"), |n| Ok(Some(n)))?
    {
        limits.iterations = iterations;
    }
    limits.tool_calls =
        args.max_tool_calls.map_or_else(|| config.number("max_tool_calls"), |n| Ok(Some(n)))?;
    limits.tokens = args.max_tokens.map_or_else(|| config.number("max_tokens"), |n| Ok(Some(n)))?;
    limits.time = args.max_time.or_else(|| config.duration("max_time"));
    Ok(limits)
}

/// Puts the files that were made in a fresh folder away, before it goes, and says so in the record.
fn put_away(workspace: &Workspace, store: &Store, record: &mut RunRecord) -> Result<(), Failure> {
    let names = workspace.made()?;
    // A call says what it made by a name in the folder; that is where the file is no more.
    record.artifacts.retain(|artifact| !names.iter().any(|name| name.as_os_str() == artifact.name.as_str()));
    for name in names {
        let text = name.to_string_lossy().into_owned();
        let path: PathBuf = store.put_file(&text, &workspace.path().join(&name))?;
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        record.artifacts.push(Artifact {
            name: path.display().to_string(),
            media_type: media_type(&name).to_owned(),
            size,
            sha256: None,
            data: ArtifactData::Path(path),
        });
    }
    Ok(())
}

/// The media types of files that runs usually make, by extension.
fn media_type(name: &Path) -> &'static str {
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => "text/csv",
        Some("html") => "text/html",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("json") => "application/json",
        Some("md") => "text/markdown",
        Some("pdf") => "application/pdf",
        Some("png") => "image/png",
        Some("svg") => "image/svg+xml",
        Some("txt" | "log") => "text/plain",
        _ => "application/octet-stream",
    }
}

fn finish(outcome: &Outcome, record: RunRecord, printer: &Printer) -> Result<Exit, Failure> {
    show(record, outcome.stop.is_answer(), printer)?;
    let exit = match &outcome.error {
        Some(error) => Failure::from(error.clone()).exit,
        None => (&outcome.stop).into(),
    };
    if exit == Exit::Ok {
        return Ok(Exit::Ok);
    }
    Err(match &outcome.error {
        Some(error) => error.clone().into(),
        None => stopped(outcome, exit),
    })
}

/// Shows what a run came to.
fn show(record: RunRecord, is_answer: bool, printer: &Printer) -> Result<(), Failure> {
    for artifact in &record.artifacts {
        printer.note(&format!(
            "{} {} ({} bytes)",
            paint(GOOD, "made"),
            paint(HINT, harmless(&artifact.name)),
            artifact.size
        ));
    }
    match printer.format {
        Format::Json => printer.json(&record)?,
        Format::Jsonl => printer.json(&Event::RunFinished { record: Arc::new(record) })?,
        Format::Text => {
            if is_answer {
                printer.foreign_result(&record.response)?;
            }
            printer.note(&paint(FAINT, summary(&record)));
        }
    }
    Ok(())
}

fn stopped(outcome: &Outcome, exit: Exit) -> Failure {
    let stop = &outcome.stop;
    let option = match stop.as_str() {
        "max_iterations" => Some("--max-iterations"),
        "max_tool_calls" => Some("--max-tool-calls"),
        "max_tokens" => Some("--max-tokens"),
        "max_time" => Some("--max-time"),
        "output_tokens" => Some("--max-output-tokens"),
        _ => None,
    };
    let failure =
        Failure::new(exit, &stop.as_str().to_uppercase(), format!("the run ended without an answer: {stop}"));
    match option {
        Some(option) => failure.hint(format!("Give it more with `{option}`, or ask for less at once.")),
        None => failure,
    }
}

fn summary(record: &RunRecord) -> String {
    let mut facts = vec![
        record.model.clone(),
        count(record.iterations as usize, "turn"),
        count(record.tool_calls.len(), "tool call"),
    ];
    if record.usage.total_tokens() > 0 {
        facts.push(format!("{} tokens in, {} out", record.usage.input_tokens, record.usage.output_tokens));
    }
    if let Some(cost) = record.cost_usd {
        facts.push(format!("{cost:.4} USD"));
    }
    facts.push(format_duration(std::time::Duration::from_secs_f64(record.execution_time)));
    crate::style::one_line(&facts.join(" · "), 200)
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
