//! Builds toolboxes of commands and of gateway upstreams.

use std::path::Path;
use std::sync::Arc;

use toolpost_core::{Approval, Caller, DocStore, EventSink, Masks, Secret, Tool, ToolSource};
use toolpost_exec::command::CommandSettings;
use toolpost_flow::{FlowTool, Flows};
use toolpost_runtimes::Profile;
use toolpost_sandbox::{Level, ProtectedPath};
use toolpost_toolbox::{MemoryStore, Toolbox, ToolboxBuilder};
use toolpost_tools::{CodePool, CodeSettings, FileRoot, HttpSettings, SearchEngine, SearchSettings};

use crate::agent_tool::AgentFileTool;
use crate::args::{DirectoryArgs, Permission};
use crate::config::{Config, paths};
use crate::failure::Failure;
use crate::print::Printer;
use crate::store::LazyStore;
use crate::target::opened::{FileWork, Opened};
use crate::target::{self, NamedTarget, OpenOptions};
use crate::{egress, env, launcher, output_files, packages, run_changes};

/// Opens targets and builds the toolbox of a model, with prewarmed code tools. Returns the sources, too.
pub(crate) async fn open(
    targets: Vec<NamedTarget>,
    options: OpenOptions<'_>,
    root: FileRoot,
    permission: &Permission,
    config: &Config,
    events: EventSink,
    printer: &Printer,
) -> Result<(Toolbox, Vec<Arc<dyn ToolSource>>), Failure> {
    let opened = target::open_named(targets, config, options).await?;
    opened.warnings.iter().for_each(|warning| printer.warn(warning));
    let sources = opened.sources();
    let pool = code_pool(config)?;
    Ok((build_in(opened, root, permission, config, pool, events, None).await?, sources))
}

/// Builds the toolbox of a command: tools, their access, and approvals.
pub(crate) async fn build(
    opened: Opened,
    directory: &Path,
    permission: &Permission,
    config: &Config,
    pool: Option<CodePool>,
    events: EventSink,
) -> Result<Toolbox, Failure> {
    build_in(opened, FileRoot::new(directory), permission, config, pool, events, None).await
}

/// Builds a toolbox whose file tools share the quota of `root` with other toolboxes. Without `documents`, those are of
/// the store of this machine.
pub(crate) async fn build_in(
    mut opened: Opened,
    root: FileRoot,
    permission: &Permission,
    config: &Config,
    pool: Option<CodePool>,
    events: EventSink,
    documents: Option<Arc<dyn DocStore>>,
) -> Result<Toolbox, Failure> {
    let names = opened.names();
    let known = opened.all_names();
    // The tools of a starting gateway are not known yet.
    let is_starting = opened.merged.is_some();
    for file in std::mem::take(&mut opened.files) {
        // `--approve` names the tools of agents and flows like all others.
        let own = file.opened.all_names();
        let approve = permission.approve.iter().filter(|name| own.contains(name)).cloned().collect();
        let permission = Permission { approve, ..permission.clone() };
        let (pool, sink, documents) = (pool.clone(), Arc::clone(&events), documents.clone());
        let tools = build_in(file.opened, root.clone(), &permission, &file.config, pool, sink, documents);
        let tools = Box::pin(tools).await?;
        let tool: Arc<dyn Tool> = match file.work {
            FileWork::Agent { names_model } => {
                let events = Arc::clone(&events);
                Arc::new(AgentFileTool::new(file.spec, file.config, names_model, tools, events)?)
            }
            // The record of the call has the calls of its steps.
            FileWork::Flow(plan) => Arc::new(FlowTool::new(plan, Flows::new(tools))),
        };
        opened.tools.push(tool);
    }
    let root = match run_changes::current() {
        Some(changes) => root.run_changes(changes),
        None => root,
    };
    // In a private copy, the copies of protected files are protected.
    let in_copy = |protected: ProtectedPath| match protected.path().strip_prefix(root.original()) {
        Ok(below) => protected.at(root.path().join(below)),
        Err(_) => protected,
    };
    // A private copy lies in the state directory.
    let is_apart = |protected: &ProtectedPath| {
        root.path() == root.original() || !root.path().starts_with(protected.path())
    };
    let protected = config.protected_with(Some(root.original()), &opened.granted)?;
    let protected: Vec<ProtectedPath> = protected.into_iter().map(in_copy).filter(is_apart).collect();
    let mut settings = CodeSettings::default();
    // Without a layer only pinned files are protected.
    settings.protected = if permission.directory.live {
        config.protected_with(None, &opened.granted)?
    } else {
        protected.clone()
    };
    settings.live = permission.directory.live;
    settings.allow_protected.clone_from(&permission.directory.allow_protected);
    settings.layers = paths::layers();
    settings.changes = run_changes::current();
    settings.read_only = std::mem::take(&mut opened.readable);
    let output_files = output_files::current();
    settings.read_only.extend(output_files.iter().map(|files| files.directory().to_owned()));
    settings.level = permission.level.or(config.settings.level);
    if let Some(path) = &config.settings.egress_policy {
        settings.egress = Some(egress::open(&egress::read(path, config)?, config.settings.no_network)?);
        settings.masks = Masks::new(env::secrets());
    }
    settings.search_path = launcher::search_path();
    settings.home = paths::home();
    let mut commands = CommandSettings::default();
    commands.level = settings.level;
    commands.search_path.clone_from(&settings.search_path);
    commands.home.clone_from(&settings.home);
    commands.protected.clone_from(&settings.protected);
    commands.live = settings.live;
    commands.layers.clone_from(&settings.layers);
    commands.changes.clone_from(&settings.changes);
    if names.iter().any(|name| ["run_code", "code_execution"].contains(&name.as_str())) {
        // A missing cache directory is not an error.
        settings.build_cache = packages::build_cache().unwrap_or_default();
        settings.pool = pool;
        if let Some(name) = &config.settings.code_profile {
            settings.search_path = packages::search_path(settings.search_path, name)?;
        }
    }
    let mut builder: ToolboxBuilder = Toolbox::builder()
        .provide(root.protect(protected).allow_protected(permission.directory.allow_protected.clone()))
        .provide(settings)
        .provide(commands)
        .provide(http(config))
        .provide(search(config))
        .on_event(move |event| events(event));
    if let Some(files) = output_files {
        builder = builder.provide(files);
    }
    if let Some(calls) = opened.max_parallel {
        builder = builder.settings(|settings| settings.concurrency = calls.max(1));
    }
    if permission.ask || config.settings.ask {
        builder = builder.default_approval(Approval::Ask);
    }
    for name in &permission.approve {
        if !known.contains(name) && !is_starting {
            let failure = Failure::usage(format!("`--approve {name}`: unknown tool"));
            let hint = toolpost_core::did_you_mean(name, known.iter().map(String::as_str));
            return Err(failure.hint(hint.unwrap_or_else(|| format!("There are: {}.", known.join(", ")))));
        }
        if names.contains(name) || is_starting && !known.contains(name) {
            builder = builder.approval(name, Approval::Allow);
        }
    }
    // A setting applies to many commands, which may lack a tool.
    for name in &config.settings.approve {
        if names.contains(name) || is_starting {
            builder = builder.approval(name, Approval::Allow);
        }
    }
    let store: Arc<dyn DocStore> = match (documents, crate::store::path(config)) {
        (Some(documents), _) => documents,
        (None, Ok(path)) => Arc::new(LazyStore::new(path)),
        // Without a home directory, documents last as long as the command.
        (None, Err(_)) => Arc::new(MemoryStore::new()),
    };
    opened.into_toolbox(builder.store(store)).await
}

/// Builds the toolbox of a gateway's upstream; the gateway approves calls.
pub(crate) async fn upstream(
    opened: Opened,
    root: FileRoot,
    config: &Config,
    level: Option<Level>,
) -> Result<Toolbox, Failure> {
    let permission = Permission {
        approve: Vec::new(),
        ask: false,
        yes: false,
        no_input: true,
        level,
        directory: DirectoryArgs::default(),
    };
    build_in(opened, root, &permission, config, None, Arc::new(|_| {}), None).await
}

/// The pool of prewarmed Pythons, unless the settings turn it off.
pub(crate) fn code_pool(config: &Config) -> Result<Option<CodePool>, Failure> {
    let Some(children) = config.settings.code_pool else { return Ok(None) };
    let pool = CodePool::new().children(children).preload(preload(config));
    pool.check()?;
    Ok(Some(pool))
}

/// The modules to preload; a profile stands for its modules.
pub(crate) fn preload(config: &Config) -> Vec<String> {
    let modules = |name: &String| match Profile::named(name) {
        Ok(profile) => profile.modules().map(str::to_owned).collect(),
        Err(_) => vec![name.clone()],
    };
    config.settings.code_preload.iter().flat_map(modules).collect()
}

/// Egress of `http_request`.
fn http(config: &Config) -> HttpSettings {
    let mut settings = HttpSettings::default();
    settings.no_network = config.settings.no_network;
    settings.allowed_hosts.clone_from(&config.settings.http_allow_hosts);
    settings
}

/// The configured search engines, the default first.
fn search(config: &Config) -> SearchSettings {
    let searxng = config.settings.search_searxng.clone().map(SearchEngine::searxng);
    let brave = env::get("BRAVE_API_KEY").map(|key| {
        let engine = SearchEngine::brave(Secret::new(key));
        match &config.settings.search_brave {
            Some(address) => engine.at(address),
            None => engine,
        }
    });
    let mut engines: Vec<SearchEngine> = searxng.into_iter().chain(brave).collect();
    if let Some(first) = &config.settings.search_engine {
        engines.sort_by_key(|engine| engine.name() != first);
    }
    SearchSettings::new(engines)
}

/// The caller of this command.
pub(crate) fn caller() -> Caller {
    let caller = Caller::new("cli");
    match env::get("USER") {
        Some(user) => caller.with_identity(user),
        None => caller,
    }
}
