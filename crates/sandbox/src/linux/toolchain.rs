//! From code to an executable program: interpreters read it, compilers build it in a separate sandbox.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::admission::Admission;
use super::build_cache::Lookup;
use super::child_steps::CODE;
use super::interpreter::{self, Found, Reach};
use super::java;
use super::prepare;
use super::run::Output;
use crate::language::{CODE_PATH, HEAP, Product, Runner, Way};
use crate::level::shorten;
use crate::ready::Payload;
use crate::{
    Argv, Build, Cancel, Error, FoundLanguage, Language, Limits, Need, Origin, Outcome, Program, Ready,
    SYSTEM_SEARCH_PATH, Sandbox, Source, Verdict, Workspace,
};

/// The maximum size of a version answer.
const VERSION_BYTES: usize = 4096;
/// The maximum number of cached versions.
const MAX_VERSIONS: usize = 256;
/// The maximum size of compiler messages in a note.
const WARNING_BYTES: usize = 2048;

/// The path of code that is passed as a descriptor.
fn code_path() -> String {
    format!("/proc/self/fd/{CODE}")
}

fn find(language: Language, sandbox: &Sandbox, reach: &Reach) -> Result<(Found, &'static Runner), Error> {
    interpreter::interpreter(language, sandbox.search_path.as_deref(), reach, &|found, runner| {
        let line = version(found, runner, sandbox).unwrap_or_default();
        runner.since.is_none_or(|since| numbers(&line).is_some_and(|found| found >= since))
    })
}

/// Resolves a program with everything that it needs to start.
pub(super) fn ready(sandbox: &Sandbox, program: &Program, reach: &Reach) -> Result<Ready, Error> {
    match program {
        Program::Argv(arguments) => {
            let name = arguments.first().map_or(OsStr::new(""), OsString::as_os_str);
            let search = sandbox.search_path.as_deref();
            let found = match in_workspace(sandbox, Path::new(name)) {
                Some(path) => by_name(
                    interpreter::program(path.as_os_str(), search, reach, Origin::Derived)?,
                    &path,
                    Path::new(name),
                ),
                None => {
                    let origin = origin_of(sandbox, arguments, reach)?;
                    interpreter::program(name, search, reach, origin)?
                }
            };
            let arguments = arguments.iter().skip(1).cloned().collect();
            Ok(with_arguments(found, arguments, None))
        }
        Program::Code { language, source } => {
            let (found, runner) = find(*language, sandbox, reach)?;
            let Way::Interpret { arguments } = runner.way else {
                let reason = "it must be built first, by `Sandbox::build` or `Sandbox::run`".into();
                return Err(Error::Build { language: *language, reason });
            };
            let arguments =
                arguments.iter().map(|argument| argument.replace(CODE_PATH, &code_path()).into()).collect();
            let mut ready = with_arguments(found, arguments, Some(*language));
            let content = language.text(source).into_owned().into();
            ready.payload = Some(Payload { content, is_executable: false });
            let modules = || sandbox.modules.iter().filter(|modules| modules.serves(*language));
            ready.needs.extend(modules().map(|modules| Need::new(modules.directory(), Origin::Operator)));
            let directories = modules().map(|modules| modules.search().as_os_str().to_owned());
            ready.arguments.extend(language.tail(runner.program, directories, &sandbox.arguments));
            Ok(ready)
        }
        Program::Ready(ready) => Ok(ready.clone()),
    }
}

/// Who named the program of an argument list.
///
/// # Errors
/// An argument of a model names an absolute path that the run does not show.
fn origin_of(sandbox: &Sandbox, arguments: &Argv, reach: &Reach) -> Result<Origin, Error> {
    let name = Path::new(arguments.first().map_or(OsStr::new(""), OsString::as_os_str));
    let is_known = !name.is_absolute() || name.starts_with(super::plan::WORKSPACE);
    if is_known || !reach.is_confined || arguments.origin() == Origin::Operator {
        return Ok(arguments.origin());
    }
    // A directory of the operator's search path, by which the bare name would find the same program.
    let search = sandbox.search_path.as_deref().unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    let is_searched = |directory: &Path| std::env::split_paths(search).any(|searched| searched == directory);
    if name.parent().is_some_and(|directory| is_searched(directory) && !reach.workspaces.reach(directory)) {
        return Ok(Origin::Operator);
    }
    let admission = Admission::new(sandbox, reach.workspaces.clone());
    if reach.workspaces.contain(name) || name.canonicalize().is_ok_and(|real| admission.admits(&real)) {
        return Ok(Origin::Derived);
    }
    Err(Error::ProgramNotFound {
        program: shorten(&name.to_string_lossy()),
        reason:
            "an absolute path must lie in the workspace, a system directory, a toolchain root or a granted \
                 path"
                .into(),
    })
}

/// The program in a host directory that a relative path names.
fn in_workspace(sandbox: &Sandbox, name: &Path) -> Option<PathBuf> {
    let (Workspace::Host(directory) | Workspace::LiveHost(directory) | Workspace::ReadOnlyHost(directory)) =
        &sandbox.workspace
    else {
        return None;
    };
    let is_beneath = name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_beneath || !name.as_os_str().as_encoded_bytes().contains(&b'/') {
        return None;
    }
    let directory = directory.canonicalize().ok()?;
    let path = directory.join(sandbox.directory.as_deref().unwrap_or_default()).join(name);
    interpreter::is_executable(&path).then_some(path)
}

/// Starts a workspace program by its relative path: the workspace may have another path inside.
fn by_name(found: Found, path: &Path, name: &Path) -> Found {
    let Found { path: program, needs, mut first } = found;
    match first.last_mut() {
        Some(script) => name.as_os_str().clone_into(script),
        None if program == path => return Found { path: name.to_owned(), needs, first },
        None => {}
    }
    Found { path: program, needs, first }
}

fn with_arguments(found: Found, arguments: Vec<OsString>, language: Option<Language>) -> Ready {
    let Found { path, needs, mut first } = found;
    first.extend(arguments);
    Ready { path, needs, arguments: first, payload: None, language }
}

/// The first two numbers of a version in a line.
fn numbers(line: &str) -> Option<(u32, u32)> {
    let text = number(line)?;
    let mut parts = text.split('.').map(str::parse::<u32>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// The version in a line: the first word with digits and a dot.
fn number(line: &str) -> Option<&str> {
    line.split(|letter: char| !(letter.is_ascii_digit() || letter == '.'))
        .map(|part| part.trim_matches('.'))
        .find(|part| part.contains('.') && part.len() <= 40)
}

/// Queries a program's version: one bounded line without control characters. Runs in a sandbox; cached until
/// the file changes.
fn version(found: &Found, runner: &'static Runner, sandbox: &Sandbox) -> Result<String, String> {
    type Key = (PathBuf, Vec<OsString>, i64, i64, u64);
    static KNOWN: Mutex<Option<HashMap<Key, Result<String, String>>>> = Mutex::new(None);
    let key = identity(found).map_err(|error| error.to_string())?;
    let key = (found.path.clone(), found.first.clone(), key.0, key.1, key.2);
    let known =
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|all| all.get(&key).cloned());
    if let Some(known) = known {
        return known;
    }
    let arguments = runner.version.iter().map(OsString::from).collect();
    let program = Program::Ready(with_arguments(found.clone(), arguments, None));
    let limits = Limits::default()
        .with_wall(Duration::from_secs(20))
        .with_stdout(VERSION_BYTES)
        .with_stderr(VERSION_BYTES)
        .with_output_total(1 << 20);
    let asked = Sandbox { limits: Some(limits), ..sandbox.same_host() };
    let outcome = super::run::run(&asked, &program, &Cancel::new(), Output::Captured(&mut |_| {}));
    let answer = match outcome {
        Ok(outcome) => {
            let lines = [&outcome.stdout, &outcome.stderr].map(|stream| {
                stream.text().lines().find(|line| !line.trim().is_empty()).map(|line| shorten(line.trim()))
            });
            let line = lines.into_iter().flatten().next();
            match line {
                Some(line) if outcome.verdict.is_ok() => Ok(line),
                None if outcome.verdict.is_ok() => Err("it prints no version".into()),
                line => Err(format!("it does not run: {:?} {}", outcome.verdict, line.unwrap_or_default())),
            }
        }
        // A failure of this sandbox says nothing about the program.
        Err(error) => return Err(error.to_string()),
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if known.len() >= MAX_VERSIONS {
        known.clear();
    }
    known.insert(key, answer.clone());
    answer
}

/// The modification time and size of a program's file.
fn identity(found: &Found) -> std::io::Result<(i64, i64, u64)> {
    let file = found.first.first().map_or(found.path.as_path(), Path::new);
    let metadata = file.metadata()?;
    Ok((metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
}

/// The package installer of a language, without arguments, with a key of its path and version: Python itself,
/// or `npm`.
pub(crate) fn find_installer(language: Language, sandbox: &Sandbox) -> Result<(Ready, String), Error> {
    let reach = prepare::reach(sandbox)?;
    let (found, runner) = find(language, sandbox, &reach)?;
    let line = version(&found, runner, sandbox)
        .map_err(|reason| Error::ProgramNotFound { program: found.path.display().to_string(), reason })?;
    let (seconds, nanoseconds, size) = identity(&found).map_err(|source| Error::File {
        action: "read interpreter",
        path: found.path.clone(),
        source,
    })?;
    let identity = format!("{} {line} {seconds} {nanoseconds} {size}", found.path.display());
    let found = match language {
        Language::JavaScript => interpreter::package_manager(sandbox.search_path.as_deref(), &reach)?,
        _ => found,
    };
    Ok((with_arguments(found, Vec::new(), None), identity))
}

pub(crate) fn find_language(language: Language, sandbox: &Sandbox) -> Result<FoundLanguage, Error> {
    let (found, runner) = find(language, sandbox, &prepare::reach(sandbox)?)?;
    let path = found.first.first().map_or_else(|| found.path.clone(), PathBuf::from);
    let line = version(&found, runner, sandbox)
        .map_err(|reason| Error::ProgramNotFound { program: path.display().to_string(), reason })?;
    let version = number(&line).map_or_else(|| line.clone(), str::to_owned);
    Ok(FoundLanguage { path, version, is_compiler: matches!(runner.way, Way::Build { .. }) })
}

/// Builds code of a compiled language. None if nothing needs a build.
pub(crate) fn build(sandbox: &Sandbox, program: &Program, cancel: &Cancel) -> Result<Option<Build>, Error> {
    let Program::Code { language, source } = program else { return Ok(None) };
    if !language.runners().iter().any(|runner| matches!(runner.way, Way::Build { .. })) {
        return Ok(None);
    }
    let reach = prepare::reach(sandbox)?;
    let (found, runner) = find(*language, sandbox, &reach)?;
    let Way::Build { product, .. } = runner.way else { return Ok(None) };
    let names = (product == Product::Archive).then(|| java::names(source));
    let compiled = compile(sandbox, *language, source, &found, runner, names.as_ref(), cancel)?;
    let (content, notes) = match compiled {
        Compiled::Made(content, notes) => (content, notes),
        Compiled::Failed(outcome) => return Ok(Some(Build::Failed(outcome))),
    };
    let program = match product {
        Product::Program => Program::Ready(Ready {
            path: code_path().into(),
            needs: Vec::new(),
            arguments: sandbox.arguments.clone(),
            payload: Some(Payload { content, is_executable: true }),
            language: Some(*language),
        }),
        Product::Archive => {
            let machine = Found { path: beside(&found, "java"), ..found };
            let mut arguments: Vec<OsString> =
                ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
                    .map(OsString::from)
                    .into();
            arguments.extend([format!("-Xmx{HEAP}m").into(), "-cp".into(), code_path().into()]);
            arguments.push(names.map_or_else(|| "Main".into(), |names| names.main).into());
            arguments.extend(sandbox.arguments.iter().cloned());
            let mut ready = with_arguments(machine, arguments, Some(*language));
            ready.payload = Some(Payload { content, is_executable: false });
            Program::Ready(ready)
        }
        Product::JavaScript => {
            let text = String::from_utf8_lossy(&content).into_owned();
            let mut ready = ready(sandbox, &Program::code(Language::JavaScript, text), &reach)?;
            ready.language = Some(*language);
            Program::Ready(ready)
        }
    };
    Ok(Some(Build::Ready { program, notes }))
}

/// A program of the same installation.
fn beside(found: &Found, name: &str) -> PathBuf {
    let real = found.path.canonicalize().unwrap_or_else(|_| found.path.clone());
    let candidate = real.with_file_name(name);
    if candidate.is_file() { candidate } else { found.path.with_file_name(name) }
}

enum Compiled {
    Made(Arc<[u8]>, Vec<String>),
    Failed(Box<Outcome>),
}

/// Gets the product from the cache, or builds it in a separate sandbox.
fn compile(
    sandbox: &Sandbox,
    language: Language,
    source: &str,
    found: &Found,
    runner: &'static Runner,
    names: Option<&java::Names>,
    cancel: &Cancel,
) -> Result<Compiled, Error> {
    let Way::Build { source: file, arguments, script, result, .. } = runner.way else {
        return Err(Error::Build { language, reason: "its program is an interpreter".into() });
    };
    let limits = &sandbox.build_limits.clone().unwrap_or_else(Limits::for_builds);
    let version = version(found, runner, sandbox)
        .map_err(|reason| Error::Build { language, reason: format!("{}: {reason}", found.path.display()) })?;
    let file = names.map_or(file, |names| names.file.as_str());
    let heap = heap(limits);
    let mut command: Vec<OsString> = vec!["-c".into(), script.into(), "sh".into()];
    let compiler = if names.is_some() { beside(found, runner.program) } else { found.path.clone() };
    command.push(compiler.clone().into());
    command.extend(found.first.iter().cloned());
    command.extend(arguments.iter().map(|argument| argument.replace(HEAP, &heap).into()));
    if names.is_some() {
        command.push(file.into());
    }

    let mut notes = Vec::new();
    let mut slot = None;
    if let Some(cache) = &sandbox.build_cache {
        let key = key(sandbox, language, source, found, &version, &command, file)?;
        match cache.lookup(&key, cancel, limits.wall)? {
            Some(Lookup::Found(content)) => {
                return Ok(Compiled::Made(content, vec![format!("build: from the cache, {version}")]));
            }
            Some(Lookup::Missing(free)) => {
                if free.was_damaged {
                    notes.push("build: replacing an invalid cache entry".into());
                }
                slot = Some(free);
            }
            None => notes.push("build: waiting for another build of the same code timed out".into()),
        }
    }

    let mut build = sandbox.same_host();
    build.limits = Some(limits.clone());
    build.files = vec![(file.to_owned(), Source::Bytes(source.into()))];
    if let Some(names) = names {
        build.environment.push(("MAIN_CLASS".into(), names.main.clone().into()));
    }
    let shell = interpreter::program(OsStr::new("sh"), None, &prepare::reach(sandbox)?, Origin::Operator)?;
    let shell = Found { needs: found.needs.clone(), ..shell };
    let program = Program::Ready(with_arguments(shell, command, None));
    let mut outcome = super::run::run(&build, &program, cancel, Output::Captured(&mut |_| {}))?;
    let content = match outcome.artifacts.iter().find(|artifact| artifact.path == result) {
        Some(artifact) if outcome.verdict.is_ok() => artifact.read()?,
        _ => {
            if outcome.verdict.is_ok() {
                let notes = outcome.report.notes.join("; ");
                let reason = format!("{version} left no `{result}`; {notes}");
                return Err(Error::Build { language, reason });
            }
            let reason = match outcome.verdict {
                Verdict::Exit { .. } => "the compiler rejected the code",
                _ => "the compiler was ended",
            };
            outcome.report.notes.insert(0, format!("build: {reason}; the code did not run, {version}"));
            outcome.report.notes.splice(1..1, notes);
            outcome.artifacts.clear();
            outcome.changes = crate::Changes::default();
            outcome.value = None;
            return Ok(Compiled::Failed(Box::new(outcome)));
        }
    };
    notes.push(format!("build: {} ms, {version}", outcome.usage.wall.as_millis()));
    let warnings = outcome.stderr.text();
    if !warnings.trim().is_empty() {
        let short: String = warnings.chars().take(WARNING_BYTES).collect();
        notes.push(format!("build: compiler messages: {short}"));
    }
    if let Some(slot) = slot {
        slot.keep(&content)?;
    }
    Ok(Compiled::Made(content.into(), notes))
}

/// Half of the memory limit in MiB, as the heap of a Java VM, which needs more memory besides.
pub(crate) fn heap(limits: &Limits) -> String {
    (limits.memory / 2 / (1 << 20)).clamp(8, 1 << 20).to_string()
}

/// Hashes everything that determines the product. Each part has its length, so that no two requests collide.
fn key(
    sandbox: &Sandbox,
    language: Language,
    source: &str,
    found: &Found,
    version: &str,
    command: &[OsString],
    file: &str,
) -> Result<String, Error> {
    let path = found.path.canonicalize().unwrap_or_else(|_| found.path.clone());
    let (seconds, nanoseconds, size) = identity(found).map_err(|source| Error::File {
        action: "read compiler",
        path: path.clone(),
        source,
    })?;
    let level = prepare::level(sandbox)?;
    let identity = format!("{seconds} {nanoseconds} {size} {level} {}", std::env::consts::ARCH);
    let mut hash = Sha256::new();
    let fixed = [language.name(), source, version, file, &identity].map(str::as_bytes);
    let path = path.as_os_str().as_encoded_bytes();
    let parts = fixed.into_iter().chain([path]).chain(command.iter().map(|part| part.as_encoded_bytes()));
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Ok(crate::outcome::hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let cases = [
            ("Python 3.11.7", Some("3.11.7")),
            ("v20.20.2", Some("20.20.2")),
            ("go version go1.19.8 linux/amd64", Some("1.19.8")),
            ("gcc (Debian 12.2.0-14) 12.2.0", Some("12.2.0")),
            ("ruby 3.1.2p20 (2022-04-12)", Some("3.1.2")),
            ("POSIX", None),
            ("...", None),
        ];
        for (line, expected) in cases {
            assert_eq!(number(line), expected, "{line}");
        }
        assert_eq!(numbers("v22.13.1"), Some((22, 13)));
        assert!(numbers("v9.9").unwrap() < (22, 13));
        assert_eq!(numbers("99999999999.1"), None);
    }
}
