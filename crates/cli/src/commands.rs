//! What each command does.

mod agent;
mod agent_tool;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod held;
mod hosted;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod login;
mod memory;
pub(crate) mod model;
pub(crate) mod models;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod tools;
pub(crate) mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Approval, Caller, DocStore, EventSink, Secret};
use toolpost_exec::command::CommandSettings;
use toolpost_sandbox::{Cancel, Level, Profile};
use toolpost_toolbox::{MemoryStore, Toolbox, ToolboxBuilder};
use toolpost_tools::{CodePool, CodeSettings, FileRoot, HttpSettings, SearchEngine, SearchSettings};

use self::agent_tool::AgentFileTool;
use crate::args::{DirectoryArgs, Permission};
use crate::config::{Config, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::store::LazyStore;
use crate::target::Opened;
use crate::{egress, env, interrupt, launcher, packages};

/// The toolbox of a command: its tools, whom they may touch, and what is allowed without asking.
async fn toolbox(
    opened: Opened,
    folder: &Path,
    permission: &Permission,
    config: &Config,
    pool: Option<CodePool>,
    events: EventSink,
) -> Result<Toolbox, Failure> {
    toolbox_in(opened, FileRoot::new(folder), permission, config, pool, events).await
}

/// The same in a folder whose room it shares with other toolboxes.
async fn toolbox_in(
    mut opened: Opened,
    root: FileRoot,
    permission: &Permission,
    config: &Config,
    pool: Option<CodePool>,
    events: EventSink,
) -> Result<Toolbox, Failure> {
    let names = opened.names();
    let known = opened.all_names();
    for file in std::mem::take(&mut opened.agents) {
        // What an agent's own tools may do without asking is said of them by name, like that of all others.
        let own = file.opened.all_names();
        let allow = permission.allow.iter().filter(|name| own.contains(name)).cloned().collect();
        let permission = Permission { allow, ..permission.clone() };
        let (pool, sink) = (pool.clone(), Arc::clone(&events));
        let tools = toolbox_in(file.opened, root.clone(), &permission, &file.config, pool, sink);
        let tools = Box::pin(tools).await?;
        let agent = AgentFileTool::new(file.spec, file.config, file.names_model, tools, Arc::clone(&events))?;
        opened.tools.push(Arc::new(agent));
    }
    // In a private copy the copies of protected files are protected.
    let in_copy = |path: PathBuf| match path.strip_prefix(root.original()) {
        Ok(below) => root.path().join(below),
        Err(_) => path,
    };
    let protected: Vec<PathBuf> = config.protected(Some(root.original()))?.into_iter().map(in_copy).collect();
    let mut settings = CodeSettings::default();
    // Without a layer only what trust pins is held.
    settings.protected = if permission.directory.live { config.protected(None)? } else { protected.clone() };
    settings.live = permission.directory.live;
    settings.allow_protected.clone_from(&permission.directory.allow_protected);
    settings.layers = places::layers();
    settings.level = permission.level.or_else(|| config.choice("level"));
    if let Some(path) = config.path("egress_policy") {
        settings.egress = Some(egress::open(&egress::read(&path, config)?, config.flag("no_network"))?);
    }
    settings.search_path = launcher::search_path();
    let mut commands = CommandSettings::default();
    commands.level = settings.level;
    commands.search_path.clone_from(&settings.search_path);
    commands.protected.clone_from(&protected);
    commands.layers.clone_from(&settings.layers);
    if names.iter().any(|name| ["run_code", "code_execution"].contains(&name.as_str())) {
        // Without a place everything is built each time, which is no reason to fail.
        settings.build_cache = packages::build_cache().unwrap_or_default();
        settings.pool = pool;
        if let Some(name) = config.text("code.profile") {
            settings.search_path = packages::search_path(settings.search_path, &name)?;
        }
    }
    let mut builder: ToolboxBuilder = Toolbox::builder()
        .provide(root.protect(protected).allow_protected(permission.directory.allow_protected.clone()))
        .provide(settings)
        .provide(commands)
        .provide(http(config))
        .provide(search(config))
        .on_event(move |event| events(event));
    if permission.ask || config.flag("ask") {
        builder = builder.default_approval(Approval::Ask);
    }
    for name in &permission.allow {
        if !known.contains(name) {
            let failure = Failure::usage(format!("`--allow {name}`: there is no such tool here"));
            let hint = toolpost_core::did_you_mean(name, known.iter().map(String::as_str));
            return Err(failure.hint(hint.unwrap_or_else(|| format!("There are: {}.", known.join(", ")))));
        }
        if names.contains(name) {
            builder = builder.approval(name, Approval::Allow);
        }
    }
    // Settings are for many commands: a name that this one does not have is no mistake.
    for name in config.texts("allow") {
        if names.contains(&name) {
            builder = builder.approval(&name, Approval::Allow);
        }
    }
    let store: Arc<dyn DocStore> = match crate::store::path(config) {
        Ok(path) => Arc::new(LazyStore::new(path)),
        // Without a home nothing is kept, and what tools keep lasts as long as the command.
        Err(_) => Arc::new(MemoryStore::new()),
    };
    opened.into_toolbox(builder.store(store)).await
}

/// The tools of an upstream of a gateway. Whoever is in front has seen to approvals.
pub(crate) async fn upstream(
    opened: Opened,
    folder: &Path,
    config: &Config,
    level: Option<Level>,
) -> Result<Toolbox, Failure> {
    let permission = Permission {
        allow: Vec::new(),
        ask: false,
        yes: false,
        no_input: true,
        level,
        directory: DirectoryArgs::default(),
    };
    toolbox(opened, folder, &permission, config, None, Arc::new(|_| {})).await
}

/// The Pythons that a command with many calls keeps ready, unless the settings say that there are none.
fn code_pool(config: &Config) -> Result<Option<CodePool>, Failure> {
    let Some(children) = config.spares("code.pool", CodePool::DEFAULT_CHILDREN) else { return Ok(None) };
    let pool = CodePool::new().children(children).preload(preload(config));
    pool.check()?;
    Ok(Some(pool))
}

/// The modules that are loaded ahead; a profile stands for its own.
fn preload(config: &Config) -> Vec<String> {
    let modules = |name: String| match Profile::named(&name) {
        Ok(profile) => profile.modules().map(str::to_owned).collect(),
        Err(_) => vec![name],
    };
    config.texts("code.preload").into_iter().flat_map(modules).collect()
}

/// Where requests of tools may go.
fn http(config: &Config) -> HttpSettings {
    let mut settings = HttpSettings::default();
    settings.no_network = config.flag("no_network");
    settings.allowed_hosts = config.texts("http.allow_hosts");
    settings
}

/// The engines that are configured, the chosen one first.
fn search(config: &Config) -> SearchSettings {
    let searxng = config.text("search.searxng").map(SearchEngine::searxng);
    let brave = env::get("BRAVE_API_KEY").map(|key| {
        let engine = SearchEngine::brave(Secret::new(key));
        match config.text("search.brave") {
            Some(address) => engine.at(address),
            None => engine,
        }
    });
    let mut engines: Vec<SearchEngine> = searxng.into_iter().chain(brave).collect();
    if let Some(first) = config.text("search.engine") {
        engines.sort_by_key(|engine| engine.name() != first);
    }
    SearchSettings::new(engines)
}

/// Whom calls are made for.
fn caller() -> Caller {
    let caller = Caller::new("cli");
    match env::get("USER") {
        Some(user) => caller.with_identity(user),
        None => caller,
    }
}

/// The runtime that a command's asynchronous part runs on.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| Failure::of_machine("the threads of the command", &error))
}

/// Does something that blocks, while Ctrl-C is watched for on another thread.
pub(crate) fn cancellable<T>(work: impl FnOnce(&Cancel) -> T) -> Result<T, Failure> {
    let cancel = Cancel::new();
    let watched = cancel.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
    let interrupted = {
        let _entered = runtime.enter();
        interrupt::watch()?
    };
    let watch = move || {
        runtime.block_on(async {
            interrupted.cancelled().await;
            watched.cancel();
            // A second signal ends the command.
            std::future::pending::<()>().await;
        });
    };
    let watch = std::thread::Builder::new().name("signals".to_owned()).spawn(watch);
    watch.map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
    Ok(work(&cancel))
}

/// The same for what installs packages: an installation that was asked to stop is no failure of a package.
pub(crate) fn installing<T>(
    work: impl FnOnce(&Cancel) -> Result<T, toolpost_sandbox::Error>,
    explained: impl FnOnce(toolpost_sandbox::Error) -> Failure,
) -> Result<T, Failure> {
    let (made, was_stopped) = cancellable(|cancel| (work(cancel), cancel.is_cancelled()))?;
    made.map_err(|error| {
        if was_stopped {
            return Failure::new(
                Exit::Interrupted,
                "CANCELLED",
                "the installation was stopped; nothing of it stays",
            );
        }
        explained(error)
    })
}

/// Ends the runtime. What is still at work was asked to stop: it gets a moment, so that no sandbox is left half taken
/// down.
fn end(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_timeout(Duration::from_secs(5));
}

/// A `key=value` of the command line.
pub(crate) fn pair<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str), Failure> {
    text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        Failure::usage(format!("`{option} {text}`: expected KEY=VALUE"))
            .hint(format!("Write for example `{option} NAME=value`."))
    })
}
