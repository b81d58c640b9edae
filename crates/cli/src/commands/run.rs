//! `toolpost run`

mod claude_code;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_agent::{RunOutput, RunStopReason};
use toolpost_core::{Artifact, Event, RunId, RunRecord, Schema, Scope, Usage, format_duration};
use toolpost_llm::{ModelError, ModelSpec, Part, Turn};

use super::agent::{NotPutAway, Parts, artifacts, put_away, stayed, store, tags, workspace};
use super::memory::Memory;
use super::model::{Tape, model};
use super::{agent_tool, held, hosted};
use crate::args::{AgentKind, Format, RunArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::progress::has_last_words;
use crate::style::{FAINT, GOOD, HINT, harmless, label, paint};
use crate::terminal::Screen;
use crate::{env, interrupt, progress};

/// The longest task, in bytes.
const MAX_PROMPT: u64 = 16 << 20;

pub(crate) fn run(args: &RunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    if args.claude.agent == AgentKind::ClaudeCode {
        return claude_code::run(args, config, printer);
    }
    claude_code::check_loop(args)?;
    if args.interactive {
        let first =
            (args.prompt().is_some() || args.file.is_some()).then(|| prompt(args, printer)).transpose()?;
        return super::chat::talk(&args.work, first, config, printer);
    }
    check_output(args)?;
    let schema = args.output_schema.as_deref().map(answer_schema).transpose()?;
    let prompt = prompt(args, printer)?;
    let work = &args.work;
    let runtime = super::runtime()?;
    let memory = Memory::open(work, config)?;
    memory.warm(&runtime);
    let (model, spec) = model(work, config)?;
    let tags = tags(work, config)?;
    let id = RunId::new();
    let mut workspace = workspace(work, config, printer)?;
    let store = store(work, config, &workspace, id);
    let screen = Screen::new(printer, work.plain);
    let events = progress::sink_of(printer, screen.clone());
    let parts = runtime.block_on(Parts::open(work, config, &workspace, events, printer))?;
    // The first thing that is written: from here on only the run itself can fail.
    let tape = Tape::open(work)?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let conversation = runtime.block_on(memory.begin(work))?;
    let scope = Scope::new(owner).with_id(conversation.id()).with_working_dir(workspace.path());
    let place = parts.code_place(&*model)?;
    let agent = parts.agent(Arc::clone(&model), &tape)?;
    let given = runtime.block_on(hosted::give(work, place.as_ref(), &*model, &workspace, config, printer))?;
    let had = hosted::made(&conversation.turns());
    let mut run = conversation
        .run_turn(&agent, Turn::User(std::iter::once(Part::text(prompt)).chain(given.parts).collect()))
        .with_id(id)
        .with_caller(super::caller())
        .with_values(agent_tool::values(&tape))
        .with_usage_metadata(tags)
        .with_scope(scope)
        .with_port(Arc::new(
            TerminalPort::new(printer, &work.permission, store.clone()).on_screen(screen.clone()),
        ));
    if let Some(schema) = schema {
        run = run.with_answer_schema(schema);
    }
    if let Some(place) = &place {
        printer.note(&format!("{} {}", paint(HINT, "code:"), place.told));
        run = run.with_notice(place.told.as_str());
    }
    if let Some(notice) = workspace.left_out() {
        printer.warn(&notice);
        run = run.with_notice(notice);
    }
    for notice in given.notices {
        if !work.enable_file_support {
            printer.warn(&notice);
        }
        run = run.with_notice(notice);
    }
    if matches!(spec, ModelSpec::Script(_)) {
        let notice = "the model's words are scripted; the tools, the sandbox and the numbers are real";
        printer.note(&format!("{} {notice}", paint(HINT, "script:")));
        run = run.with_notice(notice);
    }
    if let Some(runs) = &memory.runs {
        run = run.persist_to(runs);
    }
    if let Some(screen) = &screen {
        screen.begin();
        runtime.spawn(super::chat::draw(Arc::clone(screen)));
    }
    let (outcome, fetched) = runtime.block_on(async {
        let stop = interrupt::watch()?;
        let outcome = run.with_cancellation(stop.clone()).finish().await;
        let folder = artifacts(work, config, id);
        let fetched = hosted::fetch(&outcome.turns, &had, &folder, config, &stop).await;
        Ok::<_, Failure>((outcome, fetched))
    })?;
    let shown = screen.map(|screen| screen.settle());
    super::end(runtime);
    // Nothing works in the directory any more.
    drop((agent, parts));
    let changes = workspace.end();
    let mut record = RunRecord::clone(&outcome.record);
    let put = match &store {
        Some(store) => put_away(&workspace, store, &mut record.artifacts),
        None => Ok(NotPutAway::default()),
    };
    let none = NotPutAway::default();
    let files = put.as_ref().unwrap_or(&none);
    record.artifacts.extend(fetched.artifacts);
    let told: Vec<String> = fetched.notices.into_iter().chain(stayed(&record.tool_calls, files)).collect();
    for notice in &told {
        printer.warn(notice);
    }
    record.notices.extend(told);
    record.notices.extend(changes.as_ref().ok().and_then(|changes| held::notice(changes.as_ref()?)));
    if record.artifacts != outcome.record.artifacts || record.notices != outcome.record.notices {
        let runtime = super::runtime()?;
        if let Some(notice) = runtime.block_on(memory.amend(&record)) {
            printer.warn(&notice);
        }
        super::end(runtime);
    }
    show_files(&record.artifacts, printer);
    let rejected = files.check(&record.artifacts);
    let written = match &args.output {
        Some(path) if outcome.stop.is_answer() => {
            write_answer(path, &env::scrubber().scrub(record.response.clone()), printer)
        }
        _ => Ok(()),
    };
    // Where a schema was asked for, nothing is a result that may not fit it.
    let is_result = outcome.stop.is_answer() || args.output_schema.is_none() && has_last_words(&record);
    let ended = show(record, is_result, shown.as_deref(), None, printer)
        .and_then(|()| ended(&outcome))
        .map_err(|failure| match &memory.runs {
            Some(_) => failure.hint(format!("`toolpost runs show {id}` shows what it did.")),
            None => failure,
        })
        .and_then(|exit| written.map(|()| exit));
    let is_interrupted = ended.as_ref().is_err_and(|failure| failure.exit == Exit::Interrupted);
    let allowed = &work.permission.directory.allow_protected;
    let settled = changes.and_then(|changes| held::settle(changes, allowed, is_interrupted, printer));
    if let (Err(_), Err(failure)) = (&ended, &settled) {
        printer.warn(&failure.message);
    }
    crate::workspace::clear_stale();
    match put {
        // What could not be put away stays where it is.
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.keep().display())))
        }
        Ok(_) => ended.and_then(|exit| rejected.and(settled).map(|()| exit)),
    }
}

fn prompt(args: &RunArgs, printer: &Printer) -> Result<String, Failure> {
    let text = match (args.prompt(), &args.file) {
        (Some(prompt), _) => with_piped(prompt, args.interactive, printer)?,
        (None, Some(path)) if path == Path::new("-") => read_text(path, io::stdin().lock())?,
        (None, Some(path)) => {
            read_text(path, File::open(path).map_err(|error| Failure::file("the task", path, &error))?)?
        }
        (None, None) => String::new(),
    };
    if text.trim().is_empty() {
        return Err(Failure::usage("the task is empty")
            .hint("Give a task: `toolpost run TEXT`, `-p TEXT` or `-f FILE`."));
    }
    Ok(text)
}

/// The task, and what is piped into standard input. Whatever else standard input is, such as a terminal or a socket
/// that nobody writes to, is not waited for.
fn with_piped(prompt: &str, is_interactive: bool, printer: &Printer) -> Result<String, Failure> {
    if is_interactive || !is_piped() {
        return Ok(prompt.to_owned());
    }
    if !is_ready() {
        printer.note("standard input is read to its end; `< /dev/null` passes it over");
    }
    let piped = read_text(Path::new("-"), io::stdin().lock())?;
    if piped.trim().is_empty() {
        return Ok(prompt.to_owned());
    }
    Ok(format!("{prompt}\n\n<stdin>\n{}\n</stdin>", piped.trim_end()))
}

/// Whether standard input is a pipe or a file.
#[cfg(unix)]
fn is_piped() -> bool {
    use rustix::fs::FileType;
    let status = rustix::fs::fstat(rustix::stdio::stdin());
    let kind = status.map(|status| FileType::from_raw_mode(status.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::RegularFile))
}

/// Whether standard input has something to say, or its end, within a second.
#[cfg(unix)]
fn is_ready() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = rustix::stdio::stdin();
    let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&patience)) != Ok(0)
}

#[cfg(not(unix))]
fn is_ready() -> bool {
    true
}

#[cfg(not(unix))]
fn is_piped() -> bool {
    use std::io::IsTerminal as _;
    !io::stdin().is_terminal()
}

/// Writes the answer to a file that is new, all of it or nothing.
fn write_answer(path: &Path, answer: &str, printer: &Printer) -> Result<(), Failure> {
    let wrong = |error: &io::Error| Failure::file("the answer's file", path, error);
    let mut file = tempfile::NamedTempFile::new_in(folder_of(path)).map_err(|error| wrong(&error))?;
    let end = if answer.ends_with('\n') { "" } else { "\n" };
    file.write_all(answer.as_bytes())
        .and_then(|()| file.write_all(end.as_bytes()))
        .map_err(|error| wrong(&error))?;
    file.persist_noclobber(path).map_err(|error| wrong(&error.error))?;
    printer.note(&format!("{} {}", paint(GOOD, "written"), paint(HINT, label(&path.display().to_string()))));
    Ok(())
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads what the answer must be. A file that is no JSON Schema is found before anybody is asked.
fn answer_schema(path: &Path) -> Result<Value, Failure> {
    let file = crate::regular_file::open(path).map_err(|error| Failure::file("the schema", path, &error))?;
    let wrong = |what: String| {
        Failure::usage(format!("the schema `{}`: {what}", path.display()))
            .hint("`--output-schema` takes a file with a JSON Schema, such as {\"type\": \"object\"}.")
    };
    let text = read_text(path, file)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if !value.is_object() {
        return Err(wrong("expected a JSON object".to_owned()));
    }
    let schema = Schema::new(value);
    match schema.defect() {
        Some(defect) => Err(wrong(defect.to_owned())),
        None => Ok(schema.as_value().clone()),
    }
}

/// A file that is there is not written over; that is found before anybody is asked.
fn check_output(args: &RunArgs) -> Result<(), Failure> {
    match &args.output {
        Some(path) if path.symlink_metadata().is_ok() => {
            Err(Failure::usage(format!("the file `{}` is there already", label(&path.display().to_string())))
                .hint("Name a new file with `-o`, or remove that one."))
        }
        Some(path) if !folder_of(path).is_dir() => {
            Err(Failure::file("the answer's file", path, &io::ErrorKind::NotFound.into()))
        }
        _ => Ok(()),
    }
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

/// What the command ends with.
pub(super) fn ended(outcome: &RunOutput) -> Result<Exit, Failure> {
    let exit = match &outcome.error {
        Some(error) => Failure::from(error.clone()).exit,
        None => (&outcome.stop).into(),
    };
    if exit == Exit::Ok {
        return Ok(Exit::Ok);
    }
    Err(match &outcome.error {
        Some(error) if outcome.stop == RunStopReason::UnknownCost => unpriced(error),
        Some(error) => error.clone().into(),
        None => stopped(outcome, exit),
    })
}

/// That a model has no price, and where one can be given.
fn unpriced(error: &ModelError) -> Failure {
    let model = error.details.model.as_ref().map_or_else(|| "PROVIDER/NAME".to_owned(), ToString::to_string);
    let row = json!({"models": [{"id": model, "prices": [{"input": 3.0, "output": 15.0}]}]});
    let mut failure = Failure::from(error.clone());
    failure.hints = vec![
        format!(
            "The setting `models.file` names a file with prices, in US dollars per million tokens, such as {row}; \
             `toolpost models show {model}` shows what is then known."
        ),
        "`--max-tokens` limits a run without prices.".to_owned(),
    ];
    failure
}

/// Tells of the files that were made.
pub(super) fn show_files(files: &[Artifact], printer: &Printer) {
    for file in files {
        let name = paint(HINT, label(&file.name));
        printer.note(&format!("{} {name} ({} bytes)", paint(GOOD, "made"), file.size));
    }
}

/// Shows what a run came to; of its answer, or of its last words at a limit, what was not shown while it was written: as
/// the result, or beside it.
pub(super) fn show(
    record: RunRecord,
    is_result: bool,
    shown: Option<&str>,
    window: Option<String>,
    printer: &Printer,
) -> Result<(), Failure> {
    match printer.format {
        Format::Json => printer.json(&record)?,
        Format::Jsonl => printer.event(&Event::RunFinished { record: Arc::new(record) })?,
        Format::Text => {
            let said = env::scrubber().scrub(record.response.clone());
            let was_shown = shown.is_some_and(|shown| shown.contains(said.trim()));
            if !was_shown && is_result {
                printer.foreign_result(&said)?;
            } else if !was_shown && has_last_words(&record) {
                printer.note(&harmless(said.trim()));
            }
            printer.note(&paint(FAINT, summary(&record, window)));
        }
    }
    Ok(())
}

fn stopped(outcome: &RunOutput, exit: Exit) -> Failure {
    let stop = &outcome.stop;
    let option = match stop.as_str() {
        "max_iterations" => Some("--max-iterations"),
        "max_tool_calls" => Some("--max-tool-calls"),
        "max_tokens" => Some("--max-tokens"),
        "max_time" => Some("--max-time"),
        "max_cost" => Some("--max-cost"),
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

fn summary(record: &RunRecord, window: Option<String>) -> String {
    let mut facts = vec![
        record.model.clone(),
        count(record.iterations as usize, "turn"),
        count(record.tool_calls.len(), "tool call"),
    ];
    if record.usage.total_tokens() > 0 {
        let usage = &record.usage;
        let cached = match usage.cache_read_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        facts.push(format!("{} tokens in{cached}, {} out", usage.input_tokens, usage.output_tokens));
    }
    facts.extend(hosted_code(&record.usage));
    facts.extend(record.cost_usd.filter(|cost| *cost > 0.0 || record.success).map(usd));
    facts.push(format_duration(std::time::Duration::from_secs_f64(record.execution_time)));
    facts.extend(window);
    crate::style::one_line(&facts.join(" · "), 200)
}

/// How long providers' containers are billed for, if they are.
pub(super) fn hosted_code(usage: &Usage) -> Option<String> {
    let time = std::time::Duration::from_secs(usage.hosted_code_seconds);
    (!time.is_zero()).then(|| format!("{} of hosted code", format_duration(time)))
}

/// An amount in US dollars.
pub(super) fn usd(amount: f64) -> String {
    if amount > 0.0 && amount < 0.0001 { "<0.0001 USD".to_owned() } else { format!("{amount:.4} USD") }
}

pub(super) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
