//! `toolpost exec`

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toolpost_sandbox::{
    Cancel, Event, Language, Level, Limits, Outcome, Program, Sandbox, Source, Stdin, Workspace,
};

use crate::args::{ExecArgs, Format};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{self, FAINT, GOOD, HINT, WARN, harmless, paint};
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
    let (outcome, unread) = supervised(&sandbox, &program, printer)?;
    if unread {
        return Ok(Exit::Ok);
    }
    let (files, trouble) = match args.artifacts.as_deref().map(|folder| outcome.export(folder)) {
        None => (Vec::new(), None),
        Some(Ok(files)) => (files, None),
        Some(Err(error)) => (Vec::new(), Some(error)),
    };
    tell(&outcome, &files, printer)?;
    match trouble.map(Failure::from).or_else(|| verdict::failure(&outcome.verdict)) {
        Some(failure) => Err(failure),
        None => Ok(Exit::Ok),
    }
}

/// Runs the program on this thread, while Ctrl-C is watched for on another. Also says whether it was ended because
/// nobody reads its output any more.
fn supervised(sandbox: &Sandbox, program: &Program, printer: &Printer) -> Result<(Outcome, bool), Failure> {
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
    let live = printer.is_text();
    let (mut out, mut err) = (Foreign::default(), Foreign::default());
    let outcome = sandbox.run(program, &cancel, &mut |event| match event {
        // A reader that has gone away has what it wanted: the program need not go on.
        Event::Stdout(bytes) if live && !out.pass_on(bytes, io::stdout().lock()) => {
            out.closed = true;
            cancel.cancel();
        }
        Event::Stderr(bytes) if live => {
            err.pass_on(bytes, io::stderr().lock());
        }
        _ => {}
    });
    runtime.shutdown_background();
    Ok((outcome?, out.closed))
}

/// One output of the program on its way to ours.
#[derive(Default)]
struct Foreign {
    /// The first bytes of a character whose others have not come yet.
    begun: Vec<u8>,
    /// Nobody reads it any more.
    closed: bool,
}

impl Foreign {
    /// Writes a piece of the output; harmless if that is a terminal. Returns false if its reader has gone away.
    fn pass_on(&mut self, bytes: &[u8], mut target: impl io::Write + io::IsTerminal) -> bool {
        let written = if target.is_terminal() {
            target.write_all(harmless(&self.text(bytes)).as_bytes())
        } else {
            target.write_all(bytes)
        };
        !written.and_then(|()| target.flush()).is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The piece as text. A character that a piece ends in the midst of is kept for the next one.
    fn text(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let whole = match self.begun.utf8_chunks().last() {
            Some(last) if is_begun(last.invalid()) => self.begun.len() - last.invalid().len(),
            _ => self.begun.len(),
        };
        let rest = self.begun.split_off(whole);
        String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)).into_owned()
    }
}

/// Whether further bytes can make these a character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
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
        .hint("Name it with `--lang python`, `bash` or `javascript`.")
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

fn tell(outcome: &Outcome, files: &[PathBuf], printer: &Printer) -> Result<(), Failure> {
    match printer.format {
        Format::Json | Format::Jsonl => printer.json(outcome)?,
        Format::Text => {
            if let Some(value) = &outcome.value {
                printer.note(&format!(
                    "{} {}",
                    paint(GOOD, "value:"),
                    style::one_line(&value.to_string(), 500)
                ));
            }
            for (index, artifact) in outcome.artifacts.iter().enumerate() {
                let place =
                    files.get(index).map_or_else(|| artifact.path.clone(), |path| path.display().to_string());
                printer.note(&format!(
                    "{} {} ({} bytes)",
                    paint(GOOD, "made"),
                    paint(HINT, harmless(&place)),
                    artifact.size
                ));
            }
            printer.note(&summary(outcome));
        }
    }
    Ok(())
}

/// One line: how it ended, and what really confined it.
fn summary(outcome: &Outcome) -> String {
    let report = &outcome.report;
    let ended = if outcome.verdict.is_ok() { paint(GOOD, "ok") } else { paint(WARN, "failed") };
    let mut facts = vec![
        format!("level {}{}", report.effective, if report.degraded { " (degraded)" } else { "" }),
        format!("{} layers", report.layers.len()),
        toolpost_core::format_duration(outcome.usage.wall),
    ];
    facts.extend(report.missing.iter().map(|missing| {
        format!(
            "without {}",
            serde_json::to_value(missing.layer)
                .ok()
                .and_then(|v| v.as_str().map(str::to_owned))
                .unwrap_or_default()
        )
    }));
    format!("{ended} {}", paint(FAINT, facts.join(" · ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_may_come_in_pieces() {
        let mut foreign = Foreign::default();
        let pieces = [&b"a\xe2\x82"[..], b"\xac", b"\xff\xc3", b"x\xf0"];
        assert_eq!(pieces.map(|piece| foreign.text(piece)), ["a", "€", "\u{fffd}", "\u{fffd}x"]);
    }
}
