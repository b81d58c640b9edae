//! `toolpost run`

mod claude_code;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use toolpost_core::{RunId, RunRecord, Schema, Scope};
use toolpost_llm::{ModelSpec, Part, Turn};

use crate::agent::{Parts, workspace};
use crate::args::{AgentKind, RunArgs};
use crate::artifacts::{UnstoredFiles, artifacts, store, store_files, unstored_notices};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::model::{Tape, model};
use crate::outcome::{exit_of, print_artifacts, print_record};
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::progress::has_final_text;
use crate::regular_file::directory_of;
use crate::style::{GOOD, HINT, label, paint};
use crate::terminal::Screen;
use crate::workspace::Workspace;
use crate::{agent_tool, held_changes, hosted};
use crate::{env, interrupt, progress};

/// The maximum size of a task, in bytes.
const MAX_PROMPT: u64 = 16 << 20;

pub(crate) fn run(args: &RunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    if args.claude.agent == AgentKind::ClaudeCode {
        return claude_code::run(args, config, printer);
    }
    claude_code::check_loop(args)?;
    if args.interactive {
        let first =
            (args.prompt().is_some() || args.file.is_some()).then(|| prompt(args, printer)).transpose()?;
        return crate::chat::start(&args.work, first, config, printer);
    }
    check_output(args)?;
    let schema = args.output_schema.as_deref().map(answer_schema).transpose()?;
    let prompt = prompt(args, printer)?;
    let work = &args.work;
    let runtime = crate::runtime::start()?;
    let memory = Memory::open(work, config)?;
    memory.warm(&runtime);
    let (model, spec) = model(work, config)?;
    let tags = config.object("tags");
    let id = RunId::new();
    let begun = SystemTime::now();
    let mut workspace = workspace(work, config, printer)?;
    let host_directory = workspace.host_directory();
    // A private copy has a note on held changes.
    if work.resume_last && !matches!(workspace, Workspace::Staged(_)) {
        held_changes::warn_of_held(host_directory.as_deref(), printer);
    }
    let store = store(work, config, &workspace, id);
    let screen = Screen::new(printer, work.plain);
    let events = progress::sink_of(printer, screen.clone());
    let parts = runtime.block_on(Parts::open(work, config, &workspace, events, printer))?;
    // The first write: only the run itself can fail after it.
    let tape = Tape::open(work)?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let conversation = runtime.block_on(memory.begin(work))?;
    let scope = Scope::new(owner).with_id(conversation.id()).with_working_dir(workspace.path());
    let place = parts.code_place(&*model)?;
    let agent = parts.agent(Arc::clone(&model), &tape)?;
    let given =
        runtime.block_on(hosted::upload(work, place.as_ref(), &*model, &workspace, config, printer))?;
    let had = hosted::hosted_files(&conversation.turns());
    let mut run = conversation
        .run_turn(&agent, Turn::User(std::iter::once(Part::text(prompt)).chain(given.parts).collect()))
        .with_id(id)
        .with_caller(crate::toolbox::caller())
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
        printer.note(&format!("{} {}", paint(HINT, "code:"), place.notice));
        run = run.with_notice(place.notice.as_str());
    }
    if let Some(notice) = workspace.omissions() {
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
        let notice = "the answers are scripted; the tools, the sandbox and the numbers are real";
        printer.note(&format!("{} {notice}", paint(HINT, "script:")));
        run = run.with_notice(notice);
    }
    if let Some(runs) = &memory.runs {
        run = run.persist_to(runs);
    }
    if let Some(screen) = &screen {
        screen.begin();
        runtime.spawn(crate::terminal::draw(Arc::clone(screen)));
    }
    let (outcome, fetched) = runtime.block_on(async {
        let stop = interrupt::watch()?;
        let outcome = run.with_cancellation(stop.clone()).finish().await;
        let directory = artifacts(work, config, id);
        let fetched = hosted::fetch(&outcome.turns, &had, &directory, config, &stop).await;
        Ok::<_, Failure>((outcome, fetched))
    })?;
    let shown = screen.map(|screen| screen.settle());
    crate::runtime::end(runtime);
    // All work in the directory has ended.
    drop((agent, parts));
    let changes = workspace.finish();
    let mut record = RunRecord::clone(&outcome.record);
    let put = match &store {
        Some(store) => store_files(&workspace, store, &mut record.artifacts),
        None => Ok(UnstoredFiles::default()),
    };
    let none = UnstoredFiles::default();
    let files = put.as_ref().unwrap_or(&none);
    record.artifacts.extend(fetched.artifacts);
    let notices: Vec<String> =
        fetched.notices.into_iter().chain(unstored_notices(&record.tool_calls, files)).collect();
    for notice in &notices {
        printer.warn(notice);
    }
    record.notices.extend(notices);
    record.notices.extend(changes.as_ref().ok().and_then(|changes| held_changes::notice(changes.as_ref()?)));
    record.changes = crate::run_changes::recorded();
    let is_amended = record.artifacts != outcome.record.artifacts
        || record.notices != outcome.record.notices
        || record.changes.is_some();
    if is_amended {
        let runtime = crate::runtime::start()?;
        if let Some(notice) = runtime.block_on(memory.amend(&record)) {
            printer.warn(&notice);
        }
        crate::runtime::end(runtime);
    }
    print_artifacts(&record.artifacts, printer);
    let rejected = files.check(&record.artifacts);
    let written = match &args.output {
        Some(path) if outcome.stop.is_answer() => {
            write_answer(path, &env::scrubber().scrub(record.response.clone()), printer)
        }
        _ => Ok(()),
    };
    // With a schema, only an answer that fits is a result.
    let is_result = outcome.stop.is_answer() || args.output_schema.is_none() && has_final_text(&record);
    let ended = print_record(record, is_result, shown.as_deref(), None, printer)
        .and_then(|()| exit_of(&outcome))
        .map_err(|failure| match &memory.runs {
            Some(_) => failure.hint(format!("`toolpost runs show {id}` shows the run.")),
            None => failure,
        })
        .and_then(|exit| written.map(|()| exit));
    let is_interrupted = ended.as_ref().is_err_and(|failure| failure.exit == Exit::Interrupted);
    let is_copy = changes.as_ref().is_ok_and(Option::is_some);
    let allowed = &work.permission.directory.allow_protected;
    let settled = changes.and_then(|changes| held_changes::settle(changes, allowed, is_interrupted, printer));
    if let (Err(_), Err(failure)) = (&ended, &settled) {
        printer.warn(&failure.message);
    }
    let ended = ended.map_err(|mut failure| {
        if is_interrupted {
            if memory.runs.is_some() {
                let command = format!("toolpost run --resume {id} -p TEXT");
                failure = failure.hint(format!("`{command}` resumes the run; repeat its other options."));
            }
            // The changes of a private copy are reported already.
            let directory = host_directory.filter(|_| !is_copy);
            failure.hints.extend(directory.into_iter().flat_map(|one| held_changes::held_hints(&one, begun)));
        }
        failure
    });
    crate::workspace::clear_stale();
    match put {
        // Files that could not be stored stay.
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.preserve().display())))
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

/// Appends piped standard input to the task. Other kinds of input, such as sockets, might never end and are not
/// read.
fn with_piped(prompt: &str, is_interactive: bool, printer: &Printer) -> Result<String, Failure> {
    if is_interactive || !is_piped() {
        return Ok(prompt.to_owned());
    }
    if !is_ready() {
        printer.note("reading standard input to its end; `< /dev/null` skips it");
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

/// Whether standard input has data or its end within a second.
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

/// Writes the answer to a new file, completely or not at all.
fn write_answer(path: &Path, answer: &str, printer: &Printer) -> Result<(), Failure> {
    let wrong = |error: &io::Error| Failure::file("the answer's file", path, error);
    let mut file = tempfile::NamedTempFile::new_in(directory_of(path)).map_err(|error| wrong(&error))?;
    let end = if answer.ends_with('\n') { "" } else { "\n" };
    file.write_all(answer.as_bytes())
        .and_then(|()| file.write_all(end.as_bytes()))
        .map_err(|error| wrong(&error))?;
    file.persist_noclobber(path).map_err(|error| wrong(&error.error))?;
    printer.note(&format!("{} {}", paint(GOOD, "written"), paint(HINT, label(&path.display().to_string()))));
    Ok(())
}

/// Reads and checks the JSON Schema of the answer, before any request.
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

/// Rejects an existing output file before any request.
fn check_output(args: &RunArgs) -> Result<(), Failure> {
    match &args.output {
        Some(path) if path.symlink_metadata().is_ok() => {
            Err(Failure::usage(format!("the file `{}` already exists", label(&path.display().to_string())))
                .hint("Name a new file with `-o`, or remove that one."))
        }
        Some(path) if !directory_of(path).is_dir() => {
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
            .hint("Attach it with `--attach`, and refer to it in the task."));
    }
    Ok(text)
}
