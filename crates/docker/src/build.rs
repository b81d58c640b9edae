//! Builds code of compiled languages in one container; it runs in another.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Docker, container};
use toolpost_sandbox::container::{CacheLookup, Compiler, program_names};
use toolpost_sandbox::{
    Backend as _, BackendRequest, Error, Language, Outcome, Program, Sandbox, Source, Verdict,
};

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
    request: &BackendRequest<'_>,
    language: Language,
    source: &str,
) -> Result<Compiled, Error> {
    for compiler in Compiler::all(language, source, &request.build_limits()) {
        let Some(built) = build(docker, request, language, source, &compiler)? else { continue };
        let (content, notes) = match built {
            Made::Content(content, notes) => (content, notes),
            Made::Failed(outcome) => return Ok(Compiled::Failed(outcome)),
        };
        let name = format!(".{}", container::name(container::PREFIX));
        let limits = request.limits(request.level().unwrap_or(toolpost_sandbox::Level::Strict));
        let arguments = compiler.start(&format!("/workspace/{name}"), &limits);
        return Ok(Compiled::Built(Built { name, content, arguments, notes }));
    }
    Err(missing(docker, language))
}

fn missing(docker: &Docker, language: Language) -> Error {
    Error::LanguageMissing {
        language,
        program: program_names(language),
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
    request: &BackendRequest<'_>,
    language: Language,
    source: &str,
    compiler: &Compiler,
) -> Result<Option<Made>, Error> {
    let limits = request.build_limits();
    let file = compiler.source_file.as_str();
    let script = format!("command -v \"$1\" >/dev/null 2>&1 || exit {NO_COMPILER}\n{}", compiler.script);
    let mut command = ["sh", "-c", &script, "sh", compiler.program].map(str::to_owned).to_vec();
    command.extend(compiler.arguments.iter().cloned());

    let mut notes = Vec::new();
    let mut slot = None;
    if let Some(cache) = request.build_cache() {
        let image = docker.prepared()?.id;
        let mut hash = Sha256::new();
        let fixed = ["docker", language.name(), &image, source, file, std::env::consts::ARCH];
        for part in fixed.into_iter().chain(command.iter().map(String::as_str)) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        match cache.lookup(&super::hex(&hash.finalize()), request.cancel(), limits.wall)? {
            Some(CacheLookup::Found(content)) => {
                return Ok(Some(Made::Content(content, vec!["build: from the cache".into()])));
            }
            Some(CacheLookup::Missing(free)) => slot = Some(free),
            None => notes.push("build: waiting for another build of the same code timed out".into()),
        }
    }

    let mut sandbox = Sandbox::new().limits(limits).file(file, Source::Bytes(source.into()));
    if let Some(level) = request.level() {
        sandbox = sandbox.level(level);
    }
    if let Some(search_path) = request.search_path() {
        sandbox = sandbox.search_path(search_path);
    }
    if let Some(main_class) = &compiler.main_class {
        sandbox = sandbox.env("MAIN_CLASS", main_class);
    }
    let program = Program::argv(command);
    let mut outcome =
        match docker.run(&BackendRequest::new(&sandbox, &program, request.cancel()), &mut |_| {}) {
            // An image without a shell.
            Err(Error::ProgramNotFound { .. }) => return Ok(None),
            other => other?,
        };
    if outcome.exit_code == Some(NO_COMPILER) && outcome.stderr.bytes().is_empty() {
        return Ok(None);
    }
    let content = match outcome.artifacts.iter().find(|artifact| artifact.path == compiler.result) {
        Some(artifact) if outcome.verdict.is_ok() => artifact.read()?,
        _ if outcome.verdict.is_ok() => {
            let reason = format!(
                "`{}` left no `{}`; {}",
                compiler.program,
                compiler.result,
                outcome.report.notes.join("; ")
            );
            return Err(Error::Build { language, reason });
        }
        _ => {
            let reason = match outcome.verdict {
                Verdict::Exit { .. } => "the compiler rejected the code",
                _ => "the compiler was ended",
            };
            outcome.report.notes.insert(0, format!("build: {reason}; the code did not run"));
            outcome.artifacts.clear();
            outcome.changes = toolpost_sandbox::Changes::default();
            outcome.value = None;
            return Ok(Some(Made::Failed(Box::new(outcome))));
        }
    };
    let took: Duration = outcome.usage.wall;
    notes.push(format!("build: {} ms by `{}` in a separate container", took.as_millis(), compiler.program));
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
