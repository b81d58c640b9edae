//! Builds code of compiled languages in one container; it runs in another.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Docker, container};
use crate::backend::Backend as _;
use crate::language::{HEAP, Product, Runner, Way};
use crate::platform::{JavaNames, Lookup, heap, java_names};
use crate::{Error, Language, Limits, Outcome, Program, Request, Sandbox, Source, Verdict};

/// The exit status for a missing compiler.
const NO_COMPILER: i32 = 121;
/// The maximum size of compiler warnings in a note.
const MAX_WARNINGS: usize = 2000;

/// A built program and how it starts.
#[derive(Debug)]
pub(super) struct Built {
    /// Its unique name in the workspace.
    pub(super) name: String,
    pub(super) content: Arc<[u8]>,
    pub(super) arguments: Vec<OsString>,
    pub(super) notes: Vec<String>,
}

pub(super) enum Compiled {
    Built(Built),
    /// The outcome of a failed build; the code did not run.
    Failed(Box<Outcome>),
}

/// Builds code with the first compiler in the image.
pub(super) fn compile(
    docker: &Docker,
    request: &Request<'_>,
    language: Language,
    source: &str,
) -> Result<Compiled, Error> {
    for runner in language.runners() {
        let Way::Build { product, .. } = runner.way else { continue };
        let names = (product == Product::Archive).then(|| java_names(source));
        let Some(built) = build(docker, request, language, source, runner, names.as_ref())? else { continue };
        let (content, notes) = match built {
            Made::Content(content, notes) => (content, notes),
            Made::Failed(outcome) => return Ok(Compiled::Failed(outcome)),
        };
        let name = format!(".{}", container::name(container::PREFIX));
        let path = format!("/workspace/{name}");
        let arguments: Vec<OsString> = match names {
            Some(names) => {
                let heap = heap(&request.limits(request.level().unwrap_or(crate::Level::Strict)));
                let machine = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];
                let rest = [format!("-Xmx{heap}m"), "-cp".into(), path, names.main];
                machine.map(str::to_owned).into_iter().chain(rest).map(OsString::from).collect()
            }
            None => vec![path.into()],
        };
        return Ok(Compiled::Built(Built { name, content, arguments, notes }));
    }
    Err(missing(docker, language))
}

fn missing(docker: &Docker, language: Language) -> Error {
    Error::LanguageMissing {
        language,
        program: language.program_names(),
        searched: format!("the image `{}`", docker.image_name()),
        hint: "use an image that has its compiler and `sh`, or the backend `process`",
    }
}

enum Made {
    Content(Arc<[u8]>, Vec<String>),
    Failed(Box<Outcome>),
}

/// Builds with one compiler; none if the image lacks it.
fn build(
    docker: &Docker,
    request: &Request<'_>,
    language: Language,
    source: &str,
    runner: &'static Runner,
    names: Option<&JavaNames>,
) -> Result<Option<Made>, Error> {
    let Way::Build { source: file, arguments, script, result, .. } = runner.way else { return Ok(None) };
    let asked = request.sandbox;
    let limits = asked.build_limits.clone().unwrap_or_else(Limits::for_builds);
    let file = names.map_or(file, |names| names.file.as_str());
    let script = format!("command -v \"$1\" >/dev/null 2>&1 || exit {NO_COMPILER}\n{script}");
    let mut command = ["sh", "-c", &script, "sh", runner.program].map(str::to_owned).to_vec();
    let heap = heap(&limits);
    command.extend(arguments.iter().map(|argument| argument.replace(HEAP, &heap)));
    command.extend(names.map(|_| file.to_owned()));

    let mut notes = Vec::new();
    let mut slot = None;
    if let Some(cache) = &asked.build_cache {
        let image = docker.prepared()?.id;
        let mut hash = Sha256::new();
        let fixed = ["docker", language.name(), &image, source, file, std::env::consts::ARCH];
        for part in fixed.into_iter().chain(command.iter().map(String::as_str)) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        match cache.lookup(&crate::outcome::hex(&hash.finalize()), request.cancel(), limits.wall)? {
            Some(Lookup::Found(content)) => {
                return Ok(Some(Made::Content(content, vec!["build: from the cache".into()])));
            }
            Some(Lookup::Missing(free)) => slot = Some(free),
            None => notes.push("build: waiting for another build of the same code timed out".into()),
        }
    }

    let mut sandbox = Sandbox::new().limits(limits).file(file, Source::Bytes(source.into()));
    sandbox.level = asked.level;
    sandbox.search_path.clone_from(&asked.search_path);
    if let Some(names) = names {
        sandbox = sandbox.env("MAIN_CLASS", &names.main);
    }
    let program = Program::argv(command);
    let mut outcome = match docker.run(&Request::new(&sandbox, &program, request.cancel()), &mut |_| {}) {
        // An image without a shell.
        Err(Error::ProgramNotFound { .. }) => return Ok(None),
        other => other?,
    };
    if outcome.exit_code == Some(NO_COMPILER) && outcome.stderr.bytes().is_empty() {
        return Ok(None);
    }
    let content = match outcome.artifacts.iter().find(|artifact| artifact.path == result) {
        Some(artifact) if outcome.verdict.is_ok() => artifact.read()?,
        _ if outcome.verdict.is_ok() => {
            let reason =
                format!("`{}` left no `{result}`; {}", runner.program, outcome.report.notes.join("; "));
            return Err(Error::Build { language, reason });
        }
        _ => {
            let reason = match outcome.verdict {
                Verdict::Exit { .. } => "the compiler rejected the code",
                _ => "the compiler was ended",
            };
            outcome.report.notes.insert(0, format!("build: {reason}; the code did not run"));
            outcome.artifacts.clear();
            outcome.changes = crate::Changes::default();
            outcome.value = None;
            return Ok(Some(Made::Failed(Box::new(outcome))));
        }
    };
    let took: Duration = outcome.usage.wall;
    notes.push(format!("build: {} ms by `{}` in a separate container", took.as_millis(), runner.program));
    let warnings = outcome.stderr.text();
    if !warnings.trim().is_empty() {
        let short: String = warnings.chars().take(MAX_WARNINGS).collect();
        notes.push(format!("build: compiler messages: {short}"));
    }
    if let Some(slot) = slot {
        slot.keep(&content)?;
    }
    Ok(Some(Made::Content(content.into(), notes)))
}
