//! `toolpost exec`

mod ended;
mod live;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::{Value, json};
use toolpost_sandbox::{Cancel, Language, Level, Limits, Program, Sandbox, Source, Stdin, Workspace};

use self::ended::Ended;
use self::live::Live;
use crate::args::ExecArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::{env, interrupt, verdict};

/// The largest code file that is read; the sandbox refuses even that with a better sentence.
const MAX_CODE: u64 = 128 << 20;

pub(crate) fn run(args: &ExecArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let program = program(args)?;
    let mut sandbox = Sandbox::new()
        .allow_degraded(args.allow_degraded)
        .limits(limits(args))
        .search_path(env::get_os("PATH").unwrap_or_default())
        .stdin(stdin(args)?);
    if let Some(level) = args.level.or_else(|| config.choice("level")) {
        sandbox = sandbox.level(level);
    }
    if let Some(folder) = &args.workdir {
        let folder = folder.canonicalize().map_err(|error| Failure::file("the folder", folder, &error))?;
        sandbox = sandbox.workspace(Workspace::Host(folder));
    }
    for pair in &args.env {
        let (name, value) = super::pair("--env", pair)?;
        sandbox = sandbox.env(name, value);
    }
    for path in &args.attach {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
            Failure::usage(format!("the attachment `{}` has no name that can be used", path.display()))
        })?;
        sandbox = sandbox.file(name, Source::Path(path.clone()));
    }
    let mut live = Live::new(printer);
    let outcome = supervised(&sandbox, &program, &mut live)?;
    if live.is_closed() {
        return Ok(Exit::Ok);
    }
    let (files, trouble) = match args.artifacts.as_deref().map(|folder| outcome.export(folder)) {
        None => (Vec::new(), None),
        Some(Ok(files)) => (files, None),
        Some(Err(error)) => (Vec::new(), Some(error)),
    };
    let ended = Ended::new(&outcome, &files)?;
    ended.tell(live, printer)?;
    match trouble.map(Failure::from).or_else(|| verdict::failure(&ended.verdict)) {
        Some(failure) => Err(failure),
        None => Ok(Exit::Ok),
    }
}

/// What begins, for `--format jsonl`.
fn started(program: &Program) -> Value {
    match program {
        Program::Code { language, .. } => json!({ "language": language.name() }),
        Program::Argv(words) => {
            json!({ "command": words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>() })
        }
        _ => json!({}),
    }
}

/// Runs the program on this thread, while Ctrl-C is watched for on another.
fn supervised(
    sandbox: &Sandbox,
    program: &Program,
    live: &mut Live,
) -> Result<toolpost_sandbox::Outcome, Failure> {
    let runtime = super::runtime()?;
    let cancel = Cancel::new();
    let asked = cancel.clone();
    let interrupted = {
        let _entered = runtime.enter();
        interrupt::watch()?
    };
    runtime.spawn(async move {
        interrupted.cancelled().await;
        asked.cancel();
    });
    live.start(started(program));
    let outcome = sandbox.run(program, &cancel, &mut |event| {
        live.event(event);
        // A reader that has gone away has what it wanted: the program need not go on.
        if live.is_closed() {
            cancel.cancel();
        }
    });
    runtime.shutdown_background();
    Ok(outcome?)
}

fn program(args: &ExecArgs) -> Result<Program, Failure> {
    let Some(path) = args.code.as_deref() else {
        return Ok(Program::argv(args.command.iter().map(OsString::as_os_str)));
    };
    let language = match (args.lang, path.extension().and_then(|extension| extension.to_str())) {
        (Some(language), _) => language,
        (None, Some(extension)) => {
            Language::from_extension(extension).ok_or_else(|| unknown_language(path))?
        }
        (None, None) => return Err(unknown_language(path)),
    };
    let source: Box<dyn io::Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(|error| Failure::file("the code", path, &error))?)
    };
    let mut code = Vec::new();
    source.take(MAX_CODE).read_to_end(&mut code).map_err(|error| Failure::file("the code", path, &error))?;
    let code = String::from_utf8(code).map_err(|error| {
        Failure::file("the code", path, &io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
    })?;
    Ok(Program::code(language, code))
}

fn unknown_language(path: &Path) -> Failure {
    Failure::usage(format!("the language of `{}` is not known", path.display()))
        .hint(format!(
            "Name it, for example with `--lang python`; there are {}.",
            Language::ALL.map(Language::name).join(", ")
        ))
        .hint("A command of the host stands behind two dashes: `toolpost exec -- COMMAND ARGUMENTS`.")
}

fn limits(args: &ExecArgs) -> Limits {
    let mut limits = Limits::for_level(args.level.unwrap_or(Level::Strict));
    limits.wall = args.timeout.unwrap_or(limits.wall);
    limits.memory = args.memory.unwrap_or(limits.memory);
    limits.cpu_quota = args.cpu.or(limits.cpu_quota);
    limits.processes = args.pids.unwrap_or(limits.processes);
    limits.file_size = args.max_file.unwrap_or(limits.file_size);
    if let Some(output) = args.max_output {
        limits.stdout = output as usize;
        limits.stderr = output as usize;
    }
    limits
}

fn stdin(args: &ExecArgs) -> Result<Stdin, Failure> {
    Ok(match &args.stdin {
        Some(path) if path == Path::new("-") => {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().take(MAX_CODE).read_to_end(&mut bytes);
            read.map_err(|error| Failure::file("standard input", path, &error))?;
            Stdin::Bytes(bytes)
        }
        Some(path) => Stdin::File(path.clone()),
        None => Stdin::Empty,
    })
}
