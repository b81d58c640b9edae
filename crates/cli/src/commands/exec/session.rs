//! `toolpost exec --session`: code in a live interpreter.

use std::time::Duration;

use serde_json::json;

use super::result::ExecResult;
use super::stream::Live;
use crate::args::{Backend, ExecArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupt;
use crate::print::{Printer, Stream};
use crate::sandbox_options::SandboxOptions;
use crate::session::{self, Answer, Connection, Frame, SessionRequest};
use crate::style::{FAINT, HINT, paint};
use toolpost_sandbox::Program;

pub(super) fn run(id: &str, args: &ExecArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let program = match &args.code {
        None if !args.command.is_empty() => {
            return Err(Failure::usage("a session runs code, not a command")
                .hint("Name a file with code before `--`: the words after it are its arguments."));
        }
        None => None,
        Some(path) => {
            // A live session knows its language.
            let is_known = args.lang.is_some() || super::of_name(path).is_some();
            let live = if is_known { None } else { session::find(id)? };
            let known = live.map(|session| session.describe()).transpose()?;
            Some(super::program(args, known.map(|session| session.language))?)
        }
    };
    let language = match &program {
        Some(Program::Code { language, .. }) => Some(*language),
        _ => args.lang,
    };
    let options = SandboxOptions::new(args, language, config)?;
    if options.backend == Some(Backend::Docker) {
        return Err(Failure::usage("`--backend docker` is not available with `--session`")
            .hint("Remove one of them."));
    }
    if args.end {
        live(id)?.demand(&SessionRequest::End)?;
        printer.note(&format!("session {} ended", paint(HINT, id)));
        return Ok(Exit::Ok);
    }
    if args.interrupt {
        live(id)?.demand(&SessionRequest::Interrupt)?;
        return Ok(Exit::Ok);
    }
    if let Some(fork) = &args.fork {
        live(id)?.demand(&SessionRequest::Fork { id: fork.clone() })?;
        printer.note(&format!("session {} forked into {}", paint(HINT, id), paint(HINT, fork)));
    }
    if args.reset {
        live(id)?.demand(&SessionRequest::Reset)?;
        printer.note(&format!("session {} restarted", paint(HINT, id)));
    }
    let Some(program @ Program::Code { language, source }) = &program else { return Ok(Exit::Ok) };
    let id = args.fork.as_deref().unwrap_or(id);
    let (connection, is_new) = session::begin(id, &options)?;
    if is_new {
        printer.note(&paint(FAINT, format!("session {id} begins")));
    }
    let attach = super::attachments(args)?
        .into_iter()
        .map(|(name, path)| {
            let path = path.canonicalize().map_err(|error| Failure::file("the attachment", &path, &error))?;
            Ok((name, path))
        })
        .collect::<Result<_, Failure>>()?;
    let arguments = arguments(args)?;
    let artifacts = match &args.artifacts {
        None => None,
        Some(directory) => {
            let whole = std::path::absolute(directory);
            Some(whole.map_err(|error| Failure::file("the directory", directory, &error))?)
        }
    };
    let mut live = Live::new(printer);
    live.start(json!({ "language": language.name(), "session": id }));
    let code = source.clone();
    let request = SessionRequest::Run {
        options: Box::new(options),
        code,
        arguments,
        timeout: args.timeout,
        attach,
        artifacts,
    };
    let answer = supervised(id, &connection, &request, &mut live)?;
    let Answer::Ended { outcome, files, trouble } = answer else {
        return Err(Failure::new(Exit::Failed, "INTERNAL", "the session's holder sent no outcome"));
    };
    if live.is_closed() {
        return live.closed();
    }
    ExecResult::read(outcome, files)?.advised(program, args).close(live, trouble.map(Failure::from), printer)
}

/// The arguments of the code as text.
fn arguments(args: &ExecArgs) -> Result<Vec<String>, Failure> {
    let text = |word: &std::ffi::OsString| {
        word.to_str().map(str::to_owned).ok_or_else(|| {
            Failure::usage(format!("the argument `{}` is not valid UTF-8", word.to_string_lossy()))
        })
    };
    args.command.iter().map(text).collect()
}

/// Lists the sessions.
pub(super) fn list(printer: &Printer) -> Result<Exit, Failure> {
    let all = session::list()?;
    if !printer.is_text() {
        printer.json(&all)?;
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        printer.note("no sessions: `toolpost exec --session ID a.py` starts one");
        return Ok(Exit::Ok);
    }
    let width = all.iter().map(|session| session.id.len()).max().unwrap_or_default();
    for session in &all {
        let time = |milliseconds| toolpost_core::format_duration(Duration::from_millis(milliseconds));
        let state = match session.ends_after_ms {
            None => "busy".to_owned(),
            Some(left) => format!("idle {} · ends after {}", time(session.idle_ms), time(left)),
        };
        let facts = format!("{} · level {} · {state}", session.language, session.level);
        printer.result(&format!("{:width$}  {}", paint(HINT, &session.id), paint(FAINT, facts)))?;
    }
    Ok(Exit::Ok)
}

/// The session of a name.
fn live(id: &str) -> Result<Connection, Failure> {
    session::find(id)?.ok_or_else(|| {
        Failure::new(Exit::Failed, "NOT_FOUND", format!("no session `{id}` is live"))
            .hint(format!("Start it with code: `toolpost exec --session {id} --lang python -`."))
    })
}

/// Runs the cell. Ctrl-C interrupts the cell, not the session.
fn supervised(
    id: &str,
    connection: &Connection,
    request: &SessionRequest,
    live: &mut Live,
) -> Result<Answer, Failure> {
    let runtime = crate::runtime::start()?;
    let interrupted = {
        let _entered = runtime.enter();
        interrupt::watch()?
    };
    let name = id.to_owned();
    runtime.spawn(async move {
        interrupted.cancelled().await;
        // A missing session needs no interrupt.
        if let Ok(Some(session)) = session::find(&name) {
            let _ = session.demand(&SessionRequest::Interrupt);
        }
    });
    connection.ask(request)?;
    let answer = connection.answer(&mut |frame| {
        match frame {
            Frame::Stdout(bytes) => live.take(Stream::Stdout, &bytes),
            Frame::Stderr(bytes) => live.take(Stream::Stderr, &bytes),
            Frame::Message(_) => {}
        }
        // A broken pipe interrupts the cell.
        if live.is_closed()
            && let Ok(Some(session)) = session::find(id)
        {
            let _ = session.demand(&SessionRequest::Interrupt);
        }
    });
    runtime.shutdown_background();
    answer
}
