//! `toolpost flow`

#[cfg(feature = "restate")]
mod cluster;
mod estimate;
mod live;
mod record;
mod show;

use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    CallError, Clock as _, Code, Event, Masks, RunId, Scope, SystemClock, ToolError, ToolSpec, Truncation,
    WideJson,
};
use toolpost_flow::{
    Durability, FlowOutcome, FlowProgress, FlowRun, Flows, Plan, PlanProblem, RunStatus, StepStatus, StepWait,
};
use toolpost_toolbox::Toolbox;

use self::live::Live;
use self::record::Calls;
use crate::args::{FlowCommand, FlowDriveArgs, FlowPlanArgs, FlowResumeArgs, FlowRunArgs, FlowTools, Format};
use crate::arguments::arguments;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::outcome::{check_whole, count};
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::store::{self, LazyStore};
use crate::style::{BAD, FAINT, GOOD, HINT, WARN, harmless, one_line, paint, paragraph};
use crate::target::{self, OpenOptions};
use crate::workspace::Store;
use crate::{env, interrupt, logs, process_identity};

pub(crate) fn run(command: &FlowCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let runtime = crate::runtime::start()?;
    let done = runtime.block_on(Box::pin(obey(command, config, printer)));
    crate::runtime::end(runtime);
    done
}

async fn obey(command: &FlowCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    #[cfg(feature = "restate")]
    if let Some(done) = cluster::obey(command, config, printer).await {
        return done;
    }
    match command {
        FlowCommand::Plan(args) => plan(args, config, printer).await,
        FlowCommand::Run(args) => start(args, config, printer).await,
        FlowCommand::Resume(args) => resume(args, config, printer).await,
        FlowCommand::Ls(args) => {
            let path = existing_store(config)?;
            let flows = flows_of(LazyStore::for_reading(path))?;
            show::list(&flows.list(show::filter(args), args.limit).await?, printer)
        }
        FlowCommand::Show { id, .. } => {
            let flows = flows_of(LazyStore::for_reading(existing_store(config)?))?;
            show::show(&flows, id, printer).await
        }
        FlowCommand::Signal { id, name, value, .. } => {
            let value = signal_value(value.as_deref());
            send(id, config, printer, async |flows, id| {
                flows.signal(id, name, value).await.map_err(signal_failure)?;
                Ok(format!("the signal `{name}`"))
            })
            .await
        }
        FlowCommand::Approve { id, step, deny, comment, .. } => {
            if !deny {
                check_approver(id, config).await?;
            }
            let answer = answer(*deny, comment.as_deref());
            let what = if *deny { "denial" } else { "approval" };
            send(id, config, printer, async |flows, id| {
                let step = flows.answer(id, step.as_deref(), answer).await?;
                Ok(format!("the {what} of `{step}`"))
            })
            .await
        }
        FlowCommand::Cancel { id, reason, .. } => {
            send(id, config, printer, async |flows, id| {
                flows.cancel(id, reason).await?;
                Ok("the request to end".to_owned())
            })
            .await
        }
        FlowCommand::Rm { ids } => remove(ids, config, printer).await,
        #[cfg(feature = "restate")]
        FlowCommand::Worker(args) => cluster::worker(args, config, printer).await,
    }
}

/// The value of a signal: JSON, or else a text.
fn signal_value(text: Option<&str>) -> Value {
    let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    text.map_or(Value::Null, read)
}

/// The failure of a signal. A name that is not a signal of any run is a wrong command.
fn signal_failure(error: CallError) -> Failure {
    let is_usage = error.code() == Code::InvalidInput;
    let failure = Failure::from(error);
    if is_usage { Failure { exit: Exit::Usage, ..failure } } else { failure }
}

/// Rejects an approval for the process of another user. A denial needs no right.
async fn check_approver(start: &str, config: &Config) -> Result<(), Failure> {
    let flows = stored(config)?;
    let owner = flows.summary(flows.find(start).await?).await?.owner;
    match owner.as_deref().and_then(process_identity::other_user) {
        None => Ok(()),
        Some(user) => {
            let what =
                format!("the process of the run belongs to the user {user}, who alone approves its steps");
            Err(Failure::new(Exit::Denied, "PERMISSION", what)
                .hint("Approve as this user; `--deny` is allowed."))
        }
    }
}

/// The answer to an approval.
fn answer(deny: bool, comment: Option<&str>) -> Value {
    let mut answer = json!({ "approved": !deny });
    if let Some(comment) = comment {
        answer["comment"] = comment.into();
    }
    if let Some(user) = env::get("USER") {
        answer["by"] = user.into();
    }
    answer
}

/// The path of the store, which must exist.
fn existing_store(config: &Config) -> Result<PathBuf, Failure> {
    let path = store::path(config)?;
    if !path.exists() {
        let what = format!("`{}` has no runs", path.display());
        return Err(Failure::new(Exit::Failed, "NOT_FOUND", what)
            .hint("`toolpost flow run` stores runs there; `--store FILE` names another file."));
    }
    Ok(path)
}

/// The runs of a store, without tools.
fn flows_of(store: LazyStore) -> Result<Flows, Failure> {
    let toolbox = Toolbox::builder().build().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Flows::new(toolbox).store(Arc::new(store)))
}

fn stored(config: &Config) -> Result<Flows, Failure> {
    flows_of(LazyStore::new(existing_store(config)?))
}

/// A toolbox with the tools of a plan, whose targets are relative to a directory, and the plan's problems with them.
async fn prepare(
    plan: &Plan,
    directory: &Path,
    workdir: &Path,
    tools: &FlowTools,
    max_parallel: Option<usize>,
    config: &Config,
    printer: &Printer,
) -> Result<(Toolbox, Vec<PlanProblem>), Failure> {
    let targets = target::of_plan(plan, directory, &tools.tools, config);
    let options = OpenOptions::new(&tools.permission, &tools.grants)?;
    let mut opened = target::open(&targets, config, options).await?;
    opened.max_parallel = max_parallel;
    opened.warnings.iter().for_each(|warning| printer.warn(warning));
    let problems = plan.check(&opened.specs());
    let events = Arc::new(|event: &Event| logs::event(event));
    let toolbox = crate::toolbox::build(opened, workdir, &tools.permission, config, None, events).await?;
    Ok((toolbox, problems))
}

fn working_directory(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::file("the directory", path, &error))
}

async fn plan(args: &FlowPlanArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let file = &args.file;
    let plan = target::plan(file)?;
    let directory = file.parent().unwrap_or(Path::new("."));
    let here = working_directory(Path::new("."))?;
    let (_, problems) = prepare(&plan, directory, &here, &args.tools, None, config, printer).await?;
    let (warnings, errors): (Vec<_>, Vec<_>) = problems.into_iter().partition(|problem| problem.is_warning);
    if !errors.is_empty() {
        return Err(target::plan_defects(file, &errors));
    }
    for warning in &warnings {
        printer.warn(&format!("{}:{warning}", file.display()));
    }
    if args.mermaid {
        printer.result(&harmless(&plan.to_mermaid()))?;
    } else if args.svg {
        printer.result(&harmless(&plan.to_svg()?))?;
    } else if printer.is_text() {
        let past = estimate::from_runs(&plan, config, printer).await;
        let title = format!("{}, {}", one_line(plan.name(), 60), count(plan.step_count(), "step"));
        printer.result(&estimate::page(&title, &plan, past.as_ref()))?;
    } else {
        let past = estimate::from_runs(&plan, config, printer).await;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        printer.json(&json!({
            "name": plan.name(), "hash": plan.hash(), "steps": plan.step_count(),
            "input": plan.input().as_value(), "warnings": warnings, "plan": plan.source(),
            "evaluated": plan.evaluated_steps().iter().map(|(step, _)| step).collect::<Vec<_>>(),
            "estimate": past.as_ref().map(estimate::to_json),
        }))?;
    }
    Ok(Exit::Ok)
}

async fn start(args: &FlowRunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let plan = target::plan(&args.file)?;
    let directory = args.file.parent().unwrap_or(Path::new("."));
    let workdir = working_directory(&args.drive.workdir)?;
    let spec = ToolSpec::new(plan.name(), plan.description()).input(plan.input().as_value().clone());
    let input = arguments(&args.input, plan.name(), Some(&spec))?;
    let FlowDriveArgs { tools, max_parallel, .. } = &args.drive;
    let (toolbox, problems) =
        prepare(&plan, directory, &workdir, tools, *max_parallel, config, printer).await?;
    let errors: Vec<PlanProblem> = problems.into_iter().filter(|problem| !problem.is_warning).collect();
    if !errors.is_empty() {
        return Err(target::plan_defects(&args.file, &errors));
    }
    if args.dry_run {
        return valid(&plan, &input, printer);
    }
    let mut flows = flows(toolbox);
    let is_stored = args.durability != Durability::None && !config.settings.no_save;
    if is_stored {
        flows = flows.store(Arc::new(LazyStore::new(store::path(config)?)));
    }
    let name = is_stored.then(|| plan.name().to_owned());
    let live = Live::new(&plan, None, printer);
    let run = flows.run(plan, input).durability(args.durability);
    drive(run, name.as_deref(), live, &workdir, &args.drive, config, printer).await
}

/// The answer of `--dry-run`.
fn valid(plan: &Plan, input: &Value, printer: &Printer) -> Result<Exit, Failure> {
    plan.check_input(input)?;
    if printer.is_text() {
        printer.result("valid")?;
    } else {
        printer.json(&json!({ "valid": true, "hash": plan.hash() }))?;
    }
    Ok(Exit::Ok)
}

async fn resume(args: &FlowResumeArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let known = stored(config)?;
    let id = known.find(&args.id).await?;
    let run = known.load(id).await?;
    let owner = run.summary.owner.as_deref();
    if run.summary.status == RunStatus::Running && owner.and_then(process_identity::is_alive) == Some(true) {
        let what = format!("the run `{id}` is running in another process");
        return Err(Failure::new(Exit::Failed, "CONFLICT", what)
            .hint(format!("`toolpost flow show {id}` follows it; `toolpost flow cancel {id}` ends it.")));
    }
    let workdir = working_directory(&args.drive.workdir)?;
    let FlowDriveArgs { tools, max_parallel, .. } = &args.drive;
    let (toolbox, _) = prepare(&run.plan, &workdir, &workdir, tools, *max_parallel, config, printer).await?;
    let flows = flows(toolbox).store(Arc::new(LazyStore::new(store::path(config)?)));
    let live = Live::new(&run.plan, Some(&run), printer);
    drive(flows.resume(id), Some(run.plan.name()), live, &workdir, &args.drive, config, printer).await
}

fn flows(toolbox: Toolbox) -> Flows {
    let flows = Flows::new(toolbox).masks(Masks::new(env::secrets()));
    match process_identity::own() {
        Some(owner) => flows.owner(owner),
        None => flows,
    }
}

/// Runs to the end, with progress on standard error, and prints the output. The record is stored under the name.
async fn drive(
    run: FlowRun,
    name: Option<&str>,
    live: Option<Arc<Live>>,
    workdir: &Path,
    args: &FlowDriveArgs,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let artifacts = Store::new(workdir.join("artifacts"));
    let port = TerminalPort::new(printer, &args.tools.permission, Some(artifacts)).on_screen(live.clone());
    let (id, lines) = (run.id(), printer.clone());
    let (drawn, left) = (live.clone(), live.clone());
    let (is_stored, notes) = (name.is_some(), printer.clone());
    let calls = Calls::new(SystemClock.timestamp());
    let taken = calls.clone();
    let mut run = run
        .caller(crate::toolbox::caller())
        .scope(Scope::new(owner).with_working_dir(workdir))
        .port(Arc::new(port))
        .cancellation(interrupt::watch_with(is_stored, move |is_termination| {
            if let Some(live) = &left {
                live.end();
            }
            if is_termination {
                notes.note(&format!("the run is interrupted; `toolpost flow resume {id}` continues it"));
            }
        })?)
        .on_progress(move |progress| {
            taken.take(progress);
            print_progress(progress, id, "", drawn.as_deref(), &lines);
        });
    if let Some(calls) = args.max_parallel {
        run = run.max_parallel(calls);
    }
    let outcome = match &live {
        Some(live) => live.during(run.into_future()).await?,
        None => run.await?,
    };
    if let Some(name) = name {
        calls.store(name, &outcome, config, printer).await;
    }
    let hint = name.map(|_| format!("`toolpost flow show {id}` shows the run."));
    let FlowOutcome { status, output, error, truncated, succeeded, failed, duration, .. } = outcome;
    finish(EndedRun { id, status, output, error, truncated, succeeded, failed, duration, hint }, printer)
}

/// Prints progress. The `option` is that of commands for the run.
fn print_progress(progress: &FlowProgress, run: RunId, option: &str, live: Option<&Live>, printer: &Printer) {
    match printer.format {
        Format::Text => match (live, line(progress, run, option, printer.verbose > 0)) {
            (Some(live), text) => live.take(progress, text),
            (None, Some(text)) => printer.note(&text),
            (None, None) => {}
        },
        // The end of the step or of its attempt follows a call, and an item ends with its steps.
        Format::Jsonl if matches!(progress, FlowProgress::Called { .. } | FlowProgress::Items { .. }) => {}
        Format::Jsonl => {
            // The end of the command reports a broken pipe.
            let _ = printer.event(&event(progress, run));
        }
        Format::Json => {}
    }
}

/// The progress as a line of JSON.
fn event(progress: &FlowProgress, run: RunId) -> Value {
    match progress {
        FlowProgress::Started { step, tool, attempt } => json!({
            "event": "step_started", "run": run, "step": &**step, "tool": &**tool, "attempt": attempt,
        }),
        FlowProgress::AttemptFailed { step, error } => json!({
            "event": "attempt_failed", "run": run, "step": &**step, "code": error.code(), "message": error.message(),
        }),
        FlowProgress::Waiting { step, wait } => {
            let (signal, question) = match wait {
                StepWait::Approval(question) => (None, Some(question)),
                StepWait::Signal(name) => (Some(name), None),
                _ => (None, None),
            };
            json!({
                "event": "step_waiting", "run": run, "step": &**step, "signal": signal, "question": question,
            })
        }
        FlowProgress::Ended { step, status, .. } => json!({
            "event": "step_ended", "run": run, "step": &**step, "status": status.as_str(),
        }),
        _ => json!({ "event": "progress", "run": run }),
    }
}

/// Whether a step is one of many of the same kind: its path has an item or an iteration from the tenth on.
fn is_one_of_many(step: &str) -> bool {
    const FEW: usize = 10;
    let numbers = step.split('[').skip(1).filter_map(|rest| rest.split(']').next()?.parse::<usize>().ok());
    numbers.max().is_some_and(|number| number >= FEW)
}

/// The progress as a line of text.
fn line(progress: &FlowProgress, run: RunId, option: &str, is_verbose: bool) -> Option<String> {
    Some(match progress {
        FlowProgress::Ended { step, status: StepStatus::Succeeded, .. }
            if !is_verbose && is_one_of_many(step) =>
        {
            return None;
        }
        FlowProgress::Started { step, tool, attempt } if is_verbose || *attempt > 1 => {
            let attempt = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
            paint(FAINT, format!("· {step}: {tool}{attempt}"))
        }
        FlowProgress::AttemptFailed { step, error } => {
            format!("{} {step}: {}", paint(WARN, "!"), paragraph(error.message()))
        }
        FlowProgress::Waiting { step, wait } => {
            let (what, command) = match wait {
                StepWait::Approval(question) => {
                    (one_line(question, 200), format!("toolpost flow approve {run} {step}{option}"))
                }
                StepWait::Signal(signal) => {
                    let signal = one_line(signal, 60);
                    (format!("signal {signal}"), format!("toolpost flow signal {run} {signal} VALUE{option}"))
                }
                _ => return None,
            };
            format!("{} {step} waits: {what}  {}", paint(WARN, "…"), paint(HINT, &command))
        }
        FlowProgress::Ended { step, status, .. } => match status {
            StepStatus::Succeeded => format!("{} {step}", paint(GOOD, "✓")),
            StepStatus::Failed => format!("{} {step}", paint(BAD, "✗")),
            other if is_verbose => format!("{} {step} {}", paint(FAINT, "-"), other.as_str()),
            _ => return None,
        },
        _ => return None,
    })
}

/// The end of a run, and the command that shows more of it.
struct EndedRun {
    id: RunId,
    status: RunStatus,
    output: Value,
    error: Option<ToolError>,
    truncated: Vec<Truncation>,
    succeeded: u64,
    failed: u64,
    duration: Duration,
    hint: Option<String>,
}

fn finish(outcome: EndedRun, printer: &Printer) -> Result<Exit, Failure> {
    let error = outcome
        .error
        .as_ref()
        .map(|error| json!({ "code": error.code(), "message": error.message(), "context": error.context() }));
    let record = json!({
        "event": "run_finished", "id": outcome.id, "status": outcome.status.as_str(), "output": outcome.output,
        "error": error, "succeeded": outcome.succeeded, "failed": outcome.failed,
        "duration_ms": outcome.duration.as_secs_f64() * 1e3,
    });
    match (printer.format, &outcome.output) {
        (Format::Jsonl, _) => printer.event(&WideJson(&record))?,
        (Format::Json, _) => printer.foreign_json(&WideJson(&record))?,
        (Format::Text, Value::Null) => {}
        (Format::Text, Value::String(text)) => printer.foreign_result(text)?,
        (Format::Text, value) => printer.json(&WideJson(value))?,
    }
    let Some(error) = outcome.error else {
        return check_whole(&outcome.truncated, !printer.is_text(), printer);
    };
    let step = error.context().get("step").and_then(Value::as_str).map(str::to_owned);
    let mut failure = Failure::from(error);
    if let Some(step) = step {
        failure.message = format!("the step `{step}` failed: {}", failure.message);
    }
    if outcome.status == RunStatus::Cancelled {
        failure.exit = Exit::Interrupted;
    }
    Err(match outcome.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// Sends a message to a run, and says who takes it from there.
async fn send(
    start: &str,
    config: &Config,
    printer: &Printer,
    message: impl AsyncFnOnce(&Flows, RunId) -> Result<String, Failure>,
) -> Result<Exit, Failure> {
    let flows = stored(config)?;
    let id = flows.find(start).await?;
    let what = message(&flows, id).await?;
    let owner = flows.summary(id).await?.owner;
    let is_alive = owner.as_deref().and_then(process_identity::is_alive);
    if !printer.is_text() {
        printer.json(&json!({ "id": id, "sent": true, "running": is_alive }))?;
        return Ok(Exit::Ok);
    }
    printer.note(&format!("{} {what} is sent", paint(GOOD, "✓")));
    if is_alive == Some(false) {
        printer.note(&format!("No process runs it: `toolpost flow resume {id}` continues it."));
    }
    Ok(Exit::Ok)
}

async fn remove(ids: &[String], config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let flows = stored(config)?;
    let mut removed = Vec::new();
    for id in ids {
        let id = flows.find(id).await?;
        if matches!(show::state(&flows.summary(id).await?), "running" | "waiting") {
            return Err(Failure::new(Exit::Failed, "CONFLICT", format!("the run `{id}` is running"))
                .hint(format!("End it first: `toolpost flow cancel {id}`.")));
        }
        flows.delete(id).await?;
        printer.note(&format!("{} {id}", paint(GOOD, "removed")));
        removed.push(id);
    }
    if !printer.is_text() {
        printer.json(&json!({ "removed": removed }))?;
    }
    Ok(Exit::Ok)
}
