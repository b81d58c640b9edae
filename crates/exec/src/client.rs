//! Executables as a source of tools: programs of dialect 0.1 and of its development line 0.2, in any language.
//!
//! ```no_run
//! # async fn doc() {
//! use std::time::Duration;
//! use toolpost_core::{Call, ToolSource as _};
//! use toolpost_exec::client::Executables;
//!
//! let tools = Executables::builder()
//!     .path("tools/weather")
//!     .path("tools/notes.py")
//!     .timeout(Duration::from_secs(20))
//!     .discover()
//!     .await;
//! for diagnostic in tools.diagnostics() {
//!     eprintln!("{diagnostic}");
//! }
//! let reply = tools.call(Call::new("forecast", serde_json::json!({ "city": "Oslo" }))).await;
//! # }
//! ```
//!
//! | a program | the caller gets |
//! |---|---|
//! | prints an envelope and exits | its result or its error |
//! | prints `progress`, `log` or `artifact` lines, or notifications on stderr | the notices, on its port |
//! | prints `session_start` or `awaiting_input` | a question, through `Port::ask` |
//! | prints `sample_request` | a sampling request, through `Port::sample` |
//! | prints a JSON object with another `status` | that object as the result |
//! | reports success and exits with a status other than 0 | `DEPENDENCY` |
//! | prints no envelope, dies, hangs or floods | `DEPENDENCY`, `TIMEOUT` or `LIMIT`, with `exit_code` or `signal` and the end of its `stderr` |
//!
//! # Sensitive arguments
//!
//! Arguments of a call are on the program's command line, which other users of the machine can read. A program with
//! `"protocol": "0.1+toolpost.1"` gets sensitive and large arguments over standard input instead; such a call cannot
//! sample. Dialects 0.1 and 0.2 and sessions only have the command line: pass the path of a file with the secret.
//!
//! # Limits
//!
//! A line of standard output has at most 4 MiB (32 MiB for a process that stays) and 500,000 values.
//!
//! Each call is one process in the sandbox. It works in the call's working directory, else in an empty temporary one.

mod cache;
mod call;
mod catalog;
mod discover;
mod notices;
mod process;
mod program;
mod resident;
mod settings;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use toolpost_core::{
    BoxFuture, Call, CallRecord, Clock as _, Output, PromptSpec, Reply, ResourceSpec, StartCheck, Status,
    SystemClock, ToolError, ToolSource, ToolSpec, did_you_mean,
};
use toolpost_sandbox::{RunEvidence, Workspace};

use self::cache::Cache;
use self::call::CallOutcome;
use self::catalog::{Bound, Catalog};
use self::program::{Known, Program, Stamp};
use self::resident::Residents;
use self::settings::Settings;

pub use self::catalog::Diagnostic;
pub use self::settings::ExecutablesBuilder;

/// Maximum number of programs in one directory.
const MAX_PROGRAMS: usize = 1_000;

/// Executables as a source of tools, resources and prompts.
///
/// A program's manifest is pinned to its file. A changed file is discovered again before the next call, and a tool whose
/// definition changed is rejected with `CONFLICT`.
#[derive(Debug)]
pub struct Executables {
    settings: Arc<Settings>,
    catalog: RwLock<Arc<Catalog>>,
    generation: AtomicU64,
    /// Processes that wait for their next call.
    residents: Residents,
    /// Serializes refreshes.
    refreshing: tokio::sync::Mutex<()>,
}

/// A program to discover.
struct Candidate {
    origin: PathBuf,
    path: PathBuf,
    stamp: Stamp,
}

impl Executables {
    /// Configures which executables to use and how to run them.
    pub fn builder() -> ExecutablesBuilder {
        ExecutablesBuilder::new()
    }

    async fn discovered(settings: Arc<Settings>) -> Self {
        let source = Self {
            settings,
            catalog: RwLock::default(),
            generation: AtomicU64::new(0),
            residents: Residents::default(),
            refreshing: tokio::sync::Mutex::default(),
        };
        source.refresh().await;
        source
    }

    fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Problems of executables and their tools, as of the last refresh.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.catalog().diagnostics.clone()
    }

    /// Checks all programs, and discovers the new and changed ones.
    pub async fn refresh(&self) {
        let _refreshing = self.refreshing.lock().await;
        let settings = &self.settings;
        let before = self.catalog();
        let mut diagnostics = Vec::new();
        let candidates = candidates(settings, &mut diagnostics);
        let mut cache = settings.cache.as_deref().map(Cache::open);

        let mut known: Vec<Option<Known>> = Vec::with_capacity(candidates.len());
        let mut asked: JoinSet<(usize, Result<Known, ToolError>)> = JoinSet::new();
        let permits = Arc::new(Semaphore::new(parallel_discoveries()));
        let environment = settings.environment();
        for (index, candidate) in candidates.iter().enumerate() {
            let here = before.programs.iter().find(|program| program.path == candidate.path);
            let cached = cache.as_ref().and_then(|cache| cache.get(&candidate.path));
            let old = here.map(|program| &program.known).or(cached);
            let old = old.filter(|old| old.environment == environment).cloned();
            let (fresh, old) = match old {
                Some(old) if old.is_complete && old.stamp == candidate.stamp => (Some(old), None),
                old => (None, old),
            };
            if fresh.is_none() {
                let (settings, permits) = (Arc::clone(settings), Arc::clone(&permits));
                let (path, stamp) = (candidate.path.clone(), candidate.stamp.clone());
                asked.spawn(async move {
                    // The semaphore is never closed.
                    let _permit = permits.acquire().await;
                    (index, discover::discover(&settings, path, stamp, old).await)
                });
            }
            known.push(fresh);
        }
        while let Some(ended) = asked.join_next().await {
            let Ok((index, found)) = ended else { continue };
            let Some(candidate) = candidates.get(index) else { continue };
            match found {
                Ok(found) => {
                    if let (true, Some(cache)) = (found.is_complete, &mut cache) {
                        cache.put(&candidate.path, &found);
                    }
                    if let Some(slot) = known.get_mut(index) {
                        *slot = Some(found);
                    }
                }
                Err(error) => {
                    diagnostics.push(Diagnostic { path: candidate.origin.clone(), tool: None, error });
                }
            }
        }
        for (candidate, known) in candidates.iter().zip(&known) {
            for (tool, error) in known.iter().flat_map(|known| &known.problems) {
                let (path, error) = (candidate.origin.clone(), error.clone());
                diagnostics.push(Diagnostic { path, tool: tool.clone(), error });
            }
        }
        if let Some(mut cache) = cache
            && let Err(error) = cache.save()
        {
            let directory = settings.cache.clone().unwrap_or_default();
            let error = ToolError::dependency(format!("cannot write the manifest cache: {error}"));
            diagnostics.push(Diagnostic { path: directory, tool: None, error });
        }
        let programs = candidates
            .into_iter()
            .zip(known)
            .filter_map(|(candidate, known)| {
                Some(Arc::new(Program { origin: candidate.origin, path: candidate.path, known: known? }))
            })
            .collect();
        self.replace(Catalog::new(programs, diagnostics));
    }

    fn replace(&self, catalog: Catalog) {
        let mut place = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(catalog);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The tool with a name, if its program is unchanged or still has the same definition.
    async fn bound(&self, name: &str) -> Result<Bound, ToolError> {
        let catalog = self.catalog();
        let Some(bound) = catalog.tool(name) else {
            let names = catalog.tools.iter().map(|bound| bound.spec.name.as_str());
            return Err(ToolError::not_found(format!("unknown tool `{name}`"))
                .suggest_maybe(did_you_mean(name, names)));
        };
        if Stamp::read(&bound.program.path)? == bound.program.known.stamp {
            return Ok(bound.clone());
        }
        // A program that may not start is not discovered, and its tools stay known.
        let check = self.settings.start_check.clone();
        tokio::task::spawn_blocking(move || check.as_ref().map_or(Ok(()), StartCheck::check)).await??;
        self.refresh().await;
        let path = bound.program.origin.display();
        let catalog = self.catalog();
        match catalog.tool(name) {
            Some(now) if now.spec.digest() == bound.spec.digest() => Ok(now.clone()),
            _ => Err(ToolError::conflict(format!(
                "`{path}` changed since its tools were listed, and so did `{name}`"
            ))
            .suggest("List the tools again before the next call.")),
        }
    }

    async fn run(&self, call: &Call) -> CallOutcome {
        let failed = |error| CallOutcome { result: Err(error), artifacts: Vec::new(), sandbox: None };
        let bound = match self.bound(&call.tool).await {
            Ok(bound) => bound,
            Err(error) => return failed(error),
        };
        let mut arguments = match &*call.arguments {
            Value::Null => json!({}),
            value => value.clone(),
        };
        let spec = &bound.spec;
        if let Err(error) = spec.input_schema.check_hiding(&arguments, &spec.sensitive) {
            return failed(error);
        }
        if self.settings.resident && bound.program.known.discovery.resident {
            let outcome = self.residents.run(&self.settings, &bound, call, &arguments).await;
            let raw = self.settings.granted.raw_names();
            let sandbox = (!raw.is_empty()).then(|| RunEvidence::of_raw_variables(raw).to_value());
            return CallOutcome { sandbox, ..outcome };
        }
        if call.options.dry_run {
            let declared = spec.input_schema.as_value().pointer("/properties/dry_run").is_some();
            if !declared {
                for name in &spec.sensitive {
                    if let Some(value) = arguments.get_mut(name) {
                        *value = "[secret]".into();
                    }
                }
                let would = json!({ "dry_run": true, "would_execute": arguments });
                return CallOutcome { result: Ok(Output::json(would)), artifacts: Vec::new(), sandbox: None };
            }
            if let Some(fields) = arguments.as_object_mut() {
                fields.insert("dry_run".to_owned(), true.into());
            }
        }
        call::run(&self.settings, &bound, call, &arguments).await
    }
}

/// The operator's programs without duplicates, in order.
fn candidates(settings: &Settings, diagnostics: &mut Vec<Diagnostic>) -> Vec<Candidate> {
    let mut origins = settings.origins.clone();
    for directory in &settings.directories {
        match programs_in(directory) {
            Ok(paths) => origins.extend(paths),
            Err(error) => diagnostics.push(Diagnostic { path: directory.clone(), tool: None, error }),
        }
    }
    let mut found: Vec<Candidate> = Vec::new();
    for origin in origins {
        let looked = std::path::absolute(&origin)
            .and_then(|path| path.canonicalize())
            .map_err(|error| {
                ToolError::dependency(format!("cannot find the program `{}`: {error}", origin.display()))
            })
            .and_then(|path| Ok((Stamp::read(&path)?, path)));
        match looked {
            Ok((_, path)) if found.iter().any(|candidate| candidate.path == path) => {
                let error = ToolError::conflict("this program is named twice and used once");
                diagnostics.push(Diagnostic { path: origin, tool: None, error });
            }
            Ok((stamp, path)) => found.push(Candidate { origin, path, stamp }),
            Err(error) => diagnostics.push(Diagnostic { path: origin, tool: None, error }),
        }
    }
    found
}

/// The programs in a directory.
fn programs_in(directory: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let entries = std::fs::read_dir(directory).map_err(|error| {
        ToolError::invalid_path(format!("cannot read the directory `{}`: {error}", directory.display()))
    })?;
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_program(path)).collect();
    if paths.len() > MAX_PROGRAMS {
        return Err(ToolError::limit(format!(
            "the directory `{}` has {} programs; the maximum is {MAX_PROGRAMS}",
            directory.display(),
            paths.len()
        )));
    }
    paths.sort();
    Ok(paths)
}

/// The number of programs that are discovered in parallel.
fn parallel_discoveries() -> usize {
    std::thread::available_parallelism().map_or(4, std::num::NonZero::get).max(4)
}

fn is_program(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let Ok(metadata) = path.metadata() else { return false };
    !hidden && metadata.is_file() && (program::is_python(path) || is_executable(&metadata))
}

#[cfg(unix)]
fn is_executable(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_metadata: &std::fs::Metadata) -> bool {
    true
}

impl ToolSource for Executables {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        let catalog = self.catalog();
        Box::pin(async move { Ok(catalog.tools.iter().map(|bound| Arc::clone(&bound.spec)).collect()) })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let begun = Instant::now();
            let started = SystemClock.timestamp();
            let tool: Arc<str> = call.tool.as_str().into();
            let mut record = CallRecord::begin(&call, tool, self.settings.name.as_str().into(), started);
            let CallOutcome { result, artifacts, sandbox } = self.run(&call).await;
            record.attempts = 1;
            record.duration = begun.elapsed();
            record.artifacts = artifacts;
            record.sandbox = sandbox;
            match &result {
                Ok(output) => {
                    record.status = output.status();
                    record.content_bytes = output.to_text().len();
                }
                Err(error) => {
                    record.status = Status::Error;
                    record.causes = error.causes();
                    record.error = Some(error.clone());
                }
            }
            Reply { result, record: Arc::new(record) }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        let catalog = self.catalog();
        Box::pin(async move { Ok(catalog.resources.iter().map(|bound| Arc::clone(&bound.spec)).collect()) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        let catalog = self.catalog();
        Box::pin(async move { Ok(catalog.prompts.iter().map(|bound| Arc::clone(&bound.spec)).collect()) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let uri = call.tool.as_str();
            let catalog = self.catalog();
            let fits = catalog.resources.iter().find(|bound| bound.spec.uri_pattern.matches(uri).is_some());
            let Some(bound) = fits else {
                let patterns = catalog.resources.iter().map(|bound| bound.spec.uri_pattern.as_str());
                return Err(ToolError::not_found(format!("no resource matches `{uri}`"))
                    .suggest_maybe(did_you_mean(uri, patterns)));
            };
            let program = &bound.program;
            let arguments = ["--resource", uri];
            let wall = self.settings.timeout;
            discover::query(&self.settings, &program.path, &arguments, wall, Workspace::Fresh)
                .await
                .map(value_output)
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let name = call.tool.as_str();
            let none = Map::new();
            let arguments = call.arguments.as_object().unwrap_or(&none);
            let catalog = self.catalog();
            let Some(bound) = catalog.prompts.iter().find(|bound| bound.spec.name == name) else {
                let names = catalog.prompts.iter().map(|bound| bound.spec.name.as_str());
                return Err(ToolError::not_found(format!("unknown prompt `{name}`"))
                    .suggest_maybe(did_you_mean(name, names)));
            };
            let known: HashMap<&str, ()> =
                bound.spec.arguments.iter().map(|argument| (argument.name.as_str(), ())).collect();
            if let Some(unknown) = arguments.keys().find(|key| !known.contains_key(key.as_str())) {
                return Err(ToolError::invalid_input(format!(
                    "the prompt `{name}` has no argument `{unknown}`"
                ))
                .suggest_maybe(did_you_mean(unknown, known.keys().copied())));
            }
            let program = &bound.program;
            let text = Value::Object(arguments.clone()).to_string();
            let words = ["--prompt", bound.original.as_str(), &text];
            let wall = self.settings.timeout;
            discover::query(&self.settings, &program.path, &words, wall, Workspace::Fresh)
                .await
                .map(value_output)
        })
    }
}

/// A string becomes text for the model, any other value a structured result.
fn value_output(value: Value) -> Output {
    match value {
        Value::String(text) => Output::text(text),
        value => Output::json(value),
    }
}
