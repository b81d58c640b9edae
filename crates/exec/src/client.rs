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
//! | what a program does | what comes of it |
//! |---|---|
//! | prints an envelope and exits | its result or its error |
//! | prints `progress`, `log`, `artifact` lines, or notifications on standard error | the caller's port gets them |
//! | prints `session_start`, `awaiting_input` | the caller is asked, `Port::ask` |
//! | prints `sample_request` | the caller's model is asked, `Port::sample` |
//! | prints a JSON object with another `status` | that object is the result |
//! | says success and exits with another status than 0 | `DEPENDENCY` |
//! | prints no envelope, ends in between, hangs, floods | `DEPENDENCY`, `TIMEOUT` or `LIMIT`, with `exit_code` or `signal` and the end of its `stderr` |
//!
//! # Sensitive arguments
//!
//! The arguments of a call stand on the program's command line, which other users of this machine may see. A program that
//! says `"protocol": "0.1+toolpost.1"` gets those of a tool with sensitive ones over standard input instead, as it does
//! large ones, and then cannot ask for completions. In dialect 0.1, in 0.2, and in sessions, whose standard input is the
//! session, there is no other way than the command line: such a tool should take the path of a file with the secret.
//!
//! # Limits
//!
//! A line of standard output has at most 4 MiB (32 MiB for a process that stays) and 500,000 values.
//!
//! Each call is one process in the sandbox. It works in the call's folder, else in an empty one that goes with it.

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
use toolpost_sandbox::Workspace;

use self::cache::Cache;
use self::call::Done;
use self::catalog::{Bound, Catalog};
use self::program::{Known, Program, Stamp};
use self::resident::{Residents, Stayed};
use self::settings::{Origin, Settings};

pub use self::catalog::Diagnostic;
pub use self::settings::{Collisions, ExecutablesBuilder};

/// The most programs of one folder.
const MAX_FOLDER: usize = 1_000;

/// Executables as a source of tools, resources and prompts.
///
/// What it knows of a program is pinned to the file: one that has changed is asked again before it is called, and a tool
/// that is not the same any more is refused with `CONFLICT`, so that nobody calls what he has not seen.
#[derive(Debug)]
pub struct Executables {
    settings: Arc<Settings>,
    catalog: RwLock<Arc<Catalog>>,
    generation: AtomicU64,
    /// Processes that wait for their next call.
    residents: Residents,
    /// Held by whoever asks programs.
    asking: tokio::sync::Mutex<()>,
}

/// A program that is to be asked, or what is already known of it.
struct Candidate {
    origin: Origin,
    path: PathBuf,
    stamp: Stamp,
}

impl Executables {
    /// Says which executables, and how they are run.
    pub fn builder() -> ExecutablesBuilder {
        ExecutablesBuilder::new()
    }

    async fn discovered(settings: Arc<Settings>) -> Self {
        let source = Self {
            settings,
            catalog: RwLock::default(),
            generation: AtomicU64::new(0),
            residents: Residents::default(),
            asking: tokio::sync::Mutex::default(),
        };
        source.refresh().await;
        source
    }

    fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is wrong with executables and their tools, since they were last asked.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.catalog().diagnostics.clone()
    }

    /// Looks at all programs again and asks those that are new or have changed.
    pub async fn refresh(&self) {
        let _asking = self.asking.lock().await;
        let settings = &self.settings;
        let before = self.catalog();
        let mut diagnostics = Vec::new();
        let candidates = candidates(settings, &mut diagnostics);
        let mut cache = settings.cache.as_deref().map(Cache::open);

        let mut known: Vec<Option<Known>> = Vec::with_capacity(candidates.len());
        let mut asked: JoinSet<(usize, Result<Known, ToolError>)> = JoinSet::new();
        let places = Arc::new(Semaphore::new(settings.parallel));
        let environment = settings.environment();
        for (index, candidate) in candidates.iter().enumerate() {
            let here = before.programs.iter().find(|program| program.path == candidate.path);
            let kept = cache.as_ref().and_then(|cache| cache.get(&candidate.path));
            let old = here.map(|program| &program.known).or(kept);
            let old = old.filter(|old| old.environment == environment).cloned();
            let (fresh, old) = match old {
                Some(old) if old.is_whole && old.stamp == candidate.stamp => (Some(old), None),
                old => (None, old),
            };
            if fresh.is_none() {
                let (settings, places) = (Arc::clone(settings), Arc::clone(&places));
                let (path, stamp) = (candidate.path.clone(), candidate.stamp.clone());
                asked.spawn(async move {
                    // The semaphore is never closed.
                    let _place = places.acquire().await;
                    (index, discover::ask(&settings, path, stamp, old).await)
                });
            }
            known.push(fresh);
        }
        while let Some(ended) = asked.join_next().await {
            let Ok((index, found)) = ended else { continue };
            let Some(candidate) = candidates.get(index) else { continue };
            match found {
                Ok(found) => {
                    if let (true, Some(cache)) = (found.is_whole, &mut cache) {
                        cache.put(&candidate.path, &found);
                    }
                    if let Some(slot) = known.get_mut(index) {
                        *slot = Some(found);
                    }
                }
                Err(error) => {
                    diagnostics.push(Diagnostic { path: candidate.origin.path.clone(), tool: None, error });
                }
            }
        }
        for (candidate, known) in candidates.iter().zip(&known) {
            for (tool, error) in known.iter().flat_map(|known| &known.problems) {
                let (path, error) = (candidate.origin.path.clone(), error.clone());
                diagnostics.push(Diagnostic { path, tool: tool.clone(), error });
            }
        }
        if let Some(mut cache) = cache
            && let Err(error) = cache.save()
        {
            let folder = settings.cache.clone().unwrap_or_default();
            let error = ToolError::dependency(format!("what programs told could not be kept: {error}"));
            diagnostics.push(Diagnostic { path: folder, tool: None, error });
        }
        let programs = candidates
            .into_iter()
            .zip(known)
            .filter_map(|(candidate, known)| {
                Some(Arc::new(Program { origin: candidate.origin, path: candidate.path, known: known? }))
            })
            .collect();
        self.replace(Catalog::new(settings, programs, diagnostics));
    }

    fn replace(&self, catalog: Catalog) {
        let mut place = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(catalog);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The tool of a name, of a program that is still the one that was asked.
    async fn bound(&self, name: &str) -> Result<Bound, ToolError> {
        let catalog = self.catalog();
        let Some(bound) = catalog.tool(name) else {
            let names = catalog.tools.iter().map(|bound| bound.spec.name.as_str());
            return Err(ToolError::not_found(format!("unknown tool `{name}`"))
                .suggest_maybe(did_you_mean(name, names)));
        };
        if Stamp::of(&bound.program.path)? == bound.program.known.stamp {
            return Ok(bound.clone());
        }
        // A program that may not start is not asked, and its tools stay known for when it may.
        let check = self.settings.start_check.clone();
        tokio::task::spawn_blocking(move || check.as_ref().map_or(Ok(()), StartCheck::check)).await??;
        self.refresh().await;
        let path = bound.program.origin.path.display();
        let catalog = self.catalog();
        match catalog.tool(name) {
            Some(now) if now.spec.digest() == bound.spec.digest() => Ok(now.clone()),
            _ => Err(ToolError::conflict(format!(
                "`{path}` has changed since its tools were listed, and with it `{name}`"
            ))
            .suggest("List the tools again before the next call.")),
        }
    }

    async fn run(&self, call: &Call) -> Done {
        let failed = |error| Done { result: Err(error), artifacts: Vec::new(), sandbox: None };
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
            let Stayed { result, artifacts } =
                self.residents.run(&self.settings, &bound, call, &arguments).await;
            let raw = self.settings.granted.raw_names();
            let sandbox = (!raw.is_empty()).then(|| json!({ "raw_variables": raw }));
            return Done { result, artifacts, sandbox };
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
                return Done { result: Ok(Output::json(would)), artifacts: Vec::new(), sandbox: None };
            }
            if let Some(fields) = arguments.as_object_mut() {
                fields.insert("dry_run".to_owned(), true.into());
            }
        }
        call::run(&self.settings, &bound, call, &arguments).await
    }
}

/// The programs that the operator named, each once, in their order.
fn candidates(settings: &Settings, diagnostics: &mut Vec<Diagnostic>) -> Vec<Candidate> {
    let mut origins = settings.origins.clone();
    for folder in &settings.folders {
        match of_folder(folder) {
            Ok(paths) => origins.extend(paths.into_iter().map(|path| Origin { path, prefix: None })),
            Err(error) => diagnostics.push(Diagnostic { path: folder.clone(), tool: None, error }),
        }
    }
    let mut found: Vec<Candidate> = Vec::new();
    for origin in origins {
        let looked = std::path::absolute(&origin.path)
            .and_then(|path| path.canonicalize())
            .map_err(|error| {
                ToolError::dependency(format!(
                    "the program `{}` cannot be found: {error}",
                    origin.path.display()
                ))
            })
            .and_then(|path| Ok((Stamp::of(&path)?, path)));
        match looked {
            Ok((_, path)) if found.iter().any(|candidate| candidate.path == path) => {
                let error = ToolError::conflict("the same program is named twice; it is taken once");
                diagnostics.push(Diagnostic { path: origin.path, tool: None, error });
            }
            Ok((stamp, path)) => found.push(Candidate { origin, path, stamp }),
            Err(error) => diagnostics.push(Diagnostic { path: origin.path, tool: None, error }),
        }
    }
    found
}

/// The programs that lie in a folder.
fn of_folder(folder: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        ToolError::invalid_path(format!("the folder `{}` cannot be read: {error}", folder.display()))
    })?;
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_program(path)).collect();
    if paths.len() > MAX_FOLDER {
        return Err(ToolError::limit(format!(
            "the folder `{}` has {} programs, at most {MAX_FOLDER} are taken",
            folder.display(),
            paths.len()
        )));
    }
    paths.sort();
    Ok(paths)
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
            let Done { result, artifacts, sandbox } = self.run(&call).await;
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
                return Err(ToolError::not_found(format!("no resource fits `{uri}`"))
                    .suggest_maybe(did_you_mean(uri, patterns)));
            };
            let program = &bound.program;
            let arguments = ["--resource", uri];
            let wall = self.settings.timeout;
            discover::answer(&self.settings, &program.path, &arguments, wall, Workspace::Fresh)
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
            discover::answer(&self.settings, &program.path, &words, wall, Workspace::Fresh)
                .await
                .map(value_output)
        })
    }
}

/// A text is for the model, anything else is a value.
fn value_output(value: Value) -> Output {
    match value {
        Value::String(text) => Output::text(text),
        value => Output::json(value),
    }
}
