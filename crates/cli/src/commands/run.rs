//! `toolpost run`

mod claude_code;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::Schema;

use crate::agent_options::AgentOptions;
use crate::agent_session::AgentSession;
use crate::args::{AgentKind, RunArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::outcome::{exit_of, print_record};
use crate::print::Printer;
use crate::progress::has_final_text;
use crate::regular_file::directory_of;
use crate::run_files::RunFiles;
use crate::style::{GOOD, HINT, label, paint};
use crate::terminal::Screen;
use crate::{env, hosted, interrupt, progress};

/// The maximum size of a task, in bytes.
const MAX_PROMPT: u64 = 16 << 20;

pub(crate) fn run(args: &RunArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    if args.work.agent == Some(AgentKind::ClaudeCode) {
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
    let runtime = crate::runtime::start()?;
    let options = runtime.block_on(AgentOptions::resolve(&args.work, config, printer))?;
    let files = RunFiles::open(&options.args, &options.config, printer)?;
    let id = files.id;
    let screen = Screen::new(printer, options.args.plain);
    let events = progress::sink_of(printer, screen.clone());
    let session = AgentSession::open(&options, &files, screen, events, config, printer);
    let mut session = runtime.block_on(session)?;
    let given = runtime.block_on(session.upload(&*session.model, session.place.as_ref()))?;
    session.announce(given);
    session.note_place();
    let has_schema =
        schema.is_some() || options.file.as_ref().is_some_and(|file| file.spec.output_schema.is_some());
    let had = hosted::hosted_files(&session.conversation.turns());
    let mut run = session.run(prompt, &session.given).with_id(id);
    if let Some(schema) = schema {
        run = run.with_answer_schema(schema);
    }
    if let Some(screen) = &session.screen {
        runtime.spawn(crate::terminal::draw(Arc::clone(screen)));
    }
    let (outcome, mut record) = runtime.block_on(async {
        let stop = interrupt::watch()?;
        let outcome = run.with_cancellation(stop.clone()).finish().await;
        let record = session.record(&outcome, &had, &stop).await;
        Ok::<_, Failure>((outcome, record))
    })?;
    let shown = session.screen.as_ref().map(|screen| screen.settle());
    crate::runtime::end(runtime);
    // All work in the directory has ended.
    drop(session);
    let collected = files.collect(&mut record, printer);
    let memory = &options.memory;
    let before = &outcome.record;
    if record.artifacts != before.artifacts || record.notices != before.notices || record.changes.is_some() {
        let runtime = crate::runtime::start()?;
        if let Some(notice) = runtime.block_on(memory.amend(&record)) {
            printer.warn(&notice);
        }
        crate::runtime::end(runtime);
    }
    let written = match &args.output {
        Some(path) if outcome.stop.is_answer() => {
            write_answer(path, &env::scrubber().scrub(record.response.clone()), printer)
        }
        _ => Ok(()),
    };
    // With a schema, only an answer that fits is a result.
    let is_result = outcome.stop.is_answer() || !has_schema && has_final_text(&record);
    let ended = print_record(record, is_result, shown.as_deref(), None, printer)
        .and_then(|()| exit_of(&outcome))
        .map_err(|failure| match &memory.runs {
            Some(_) => failure.hint(format!("`toolpost runs show {id}` shows the run.")),
            None => failure,
        })
        .map_err(|failure| match failure.exit {
            Exit::Interrupted if memory.runs.is_some() => {
                failure.hint(format!("`toolpost run --resume {id} -p TEXT` resumes the run."))
            }
            _ => failure,
        })
        .and_then(|exit| written.map(|()| exit));
    collected.settle(ended, printer)
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
