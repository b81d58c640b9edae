//! `toolpost exec`

mod advice;
mod result;
mod session;
mod stream;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Language, Program, Repeat, Sandbox, Source, Stdin};

use self::result::ExecResult;
use self::stream::Live;
use crate::args::{Backend, ExecArgs};
use crate::config::{Config, paths};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::held_changes;
use crate::launcher;
use crate::logs;
use crate::print::Printer;
use crate::sandbox_options::SandboxOptions;

/// The maximum size of a code file, in bytes.
const MAX_CODE: u64 = 128 << 20;

pub(crate) fn run(args: &ExecArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    check_combination(args)?;
    if args.sessions {
        return session::list(printer);
    }
    if let Some(id) = &args.session {
        return session::run(id, args, config, printer);
    }
    let program = program(args, None)?;
    let lang = match &program {
        Program::Code { language, .. } => Some(*language),
        _ => None,
    };
    let options = SandboxOptions::new(args, lang, config)?;
    let mut sandbox =
        options.sandbox(launcher::search_path().unwrap_or_default(), args.timeout)?.stdin(stdin(args)?);
    if options.backend != Some(Backend::Docker)
        && let Some(cache) = paths::cache()
    {
        sandbox = sandbox.host(Host::remembered(&cache));
    }
    if args.code.is_some() {
        sandbox = sandbox.arguments(&args.command);
    }
    for (name, path) in attachments(args)? {
        sandbox = sandbox.file(name, Source::Path(path));
    }
    sandbox = sandbox.apply(args.changes.mode()).repeat(Repeat::IfSilent);
    if let Some(directory) = options.workdir.as_deref().and_then(|path| path.canonicalize().ok()) {
        held_changes::warn_of_held(Some(&directory), printer);
    }
    let mut live = Live::new(printer);
    let mut outcome = supervised(&sandbox, &program, &mut live)?;
    logs::sandbox(&outcome);
    if live.is_closed() {
        return live.closed();
    }
    let (files, trouble) = match &args.artifacts {
        None => (Vec::new(), None),
        Some(directory) => crate::workspace::export(&mut outcome, directory),
    };
    if args.changes.review
        && let Some(held) = outcome.applied.take()
    {
        // The layer is unlocked before artifacts are stored.
        outcome.artifacts.clear();
        outcome.applied = Some(held_changes::review(held, &args.directory.allow_protected, printer)?);
    }
    ExecResult::new(&outcome, &files)?.advised(&program, args).close(live, trouble, printer)
}

/// Rejects options that have no effect without another one.
fn check_combination(args: &ExecArgs) -> Result<(), Failure> {
    let is_directory = args.workdir.is_some();
    let runs_code = args.code.is_some() || !args.command.is_empty();
    let options = [
        ("--live", args.directory.live && !is_directory, "`--workdir DIR`"),
        ("--allow-protected", !args.directory.allow_protected.is_empty() && !is_directory, "`--workdir DIR`"),
        ("--artifacts", args.artifacts.is_some() && !runs_code, "a file with code"),
        ("--attach", !args.attach.is_empty() && !runs_code, "a file with code"),
        ("--timeout", args.timeout.is_some() && !runs_code, "a file with code"),
        ("--keep", args.keep.is_some() && !runs_code, "a file with code"),
    ];
    match options.into_iter().find(|(_, is_idle, _)| *is_idle) {
        Some((option, _, needed)) => {
            Err(Failure::usage(format!("`{option}` has no effect without {needed}"))
                .hint(format!("Add {needed}, or remove `{option}`.")))
        }
        None => Ok(()),
    }
}

/// The attachments: names in the workspace and host paths.
fn attachments(args: &ExecArgs) -> Result<Vec<(String, PathBuf)>, Failure> {
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
            Failure::usage(format!("the attachment `{}` has no usable name", path.display()))
        })?;
        Ok((name.to_owned(), path.clone()))
    };
    args.attach.iter().map(named).collect()
}

/// The program of the start event of `--format jsonl`.
fn started(program: &Program) -> Value {
    match program {
        Program::Code { language, .. } => json!({ "language": language.name() }),
        Program::Argv(words) => {
            json!({ "command": words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>() })
        }
        _ => json!({}),
    }
}

/// Runs the program on this thread; Ctrl-C cancels it.
fn supervised(
    sandbox: &Sandbox,
    program: &Program,
    live: &mut Live,
) -> Result<toolpost_sandbox::Outcome, Failure> {
    live.start(started(program));
    let outcome = crate::runtime::cancellable(|cancel| {
        sandbox.run(program, cancel, &mut |event| {
            live.event(event);
            // A broken pipe cancels the program.
            if live.is_closed() {
                cancel.cancel();
            }
        })
    })?;
    Ok(outcome?)
}

/// The program. `known` is the default language of its code.
fn program(args: &ExecArgs, known: Option<Language>) -> Result<Program, Failure> {
    let Some(path) = args.code.as_deref() else {
        for (option, is_given) in
            [("--lang", args.lang.is_some()), ("--requirement", !args.requirement.is_empty())]
        {
            if is_given {
                return Err(Failure::usage(format!("`{option}` is for code, but `--` starts a command"))
                    .hint("Name a file with code before `--`, or `-` for standard input."));
            }
        }
        return command(args);
    };
    let language = args.lang.or_else(|| of_name(path)).or(known).ok_or_else(|| unknown_language(path))?;
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

/// A command of the host without its launcher. Without a working directory, or out of it, a relative path that is
/// not an attachment names a program of the host.
fn command(args: &ExecArgs) -> Result<Program, Failure> {
    let directory =
        std::env::current_dir().map_err(|error| Failure::of_machine("the current directory", &error))?;
    let project = directory.join(args.workdir.as_deref().unwrap_or(Path::new("")));
    let mut command = launcher::resolve(args.command.clone(), &project)?;
    if let Some(program) = command.first_mut() {
        let path = Path::new(&*program);
        let is_relative = path.is_relative() && program.as_encoded_bytes().contains(&b'/');
        // A path out of the working directory is the host's, too.
        let of_host = match &args.workdir {
            None => beside(&directory, path),
            Some(_) if path.starts_with("..") => beside(&project.canonicalize().unwrap_or(project), path),
            Some(_) => PathBuf::new(),
        };
        let is_attached = || args.attach.iter().any(|attached| attached.file_name() == path.file_name());
        if is_relative && of_host.is_file() && !is_attached() {
            *program = of_host.into_os_string();
        }
    }
    Ok(Program::operator_argv(command))
}

/// A path relative to a directory, without the `..` at its start: inside, the directory itself may be missing.
fn beside(directory: &Path, path: &Path) -> PathBuf {
    let mut parts = path.components().filter(|part| *part != Component::CurDir).peekable();
    let mut above = directory;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        above = above.parent().unwrap_or(above);
    }
    above.join(parts.collect::<PathBuf>())
}

/// The language of a file by its name.
fn of_name(path: &Path) -> Option<Language> {
    Language::from_extension(path.extension()?.to_str()?)
}

fn unknown_language(path: &Path) -> Failure {
    Failure::usage(format!("the language of `{}` is unknown", path.display()))
        .hint(format!(
            "Name it, such as `--lang python`; known are {}.",
            Language::ALL.map(Language::name).join(", ")
        ))
        .hint("A command of the host follows two dashes: `toolpost exec -- COMMAND ARGUMENTS`.")
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
