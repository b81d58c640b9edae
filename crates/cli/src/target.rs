//! The grammar of targets: where tools come from.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_core::{Secret, StartCheck, Tool, ToolGroup as _, ToolSource, ToolSpec, did_you_mean};
use toolpost_exec::client::{Diagnostic, Executables};
use toolpost_exec::command::{CommandTools, SHIPPED};
use toolpost_sandbox::{Grants, Launcher, Level};
use toolpost_toolbox::sources::Gateway;
use toolpost_toolbox::{Toolbox, ToolboxBuilder};

use crate::agent_file::{self, AgentFile};
use crate::config::closure::{self, Reference};
use crate::config::trust::{Pins, Standing, start_check};
use crate::config::{Config, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::{self, Distinct};
use crate::grants;
use crate::launcher;
use crate::mcp::{self, Server};
use crate::style::label;

/// The largest description that is read, in bytes.
const MAX_DESCRIPTION: u64 = 1 << 20;
/// How many files of a directory are compared with a name that is missing.
const MAX_NEIGHBORS: usize = 1_000;
/// How many descriptions lead from one to the next at most.
const MAX_TRAIL: usize = 8;

/// The tool that runs code in this host's sandbox, as providers do in theirs.
pub(crate) const CODE_EXECUTION: &str = "code_execution";

/// What targets name.
#[derive(Default)]
pub(crate) struct Opened {
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    /// The agents of files: they become tools where it is known what theirs may do.
    pub(crate) agents: Vec<AgentFile>,
    /// The programs, the servers of the Model Context Protocol, and the gateways.
    sources: Vec<Arc<dyn ToolSource>>,
    /// What the sources have.
    listed: Vec<Arc<ToolSpec>>,
    /// What is wrong with some of them.
    pub(crate) warnings: Vec<String>,
}

impl Opened {
    /// What has resources and prompts of its own.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources.clone()
    }

    /// What is known of the tools, in the order of the targets; agents, and then those of programs, servers and gateways
    /// come last.
    pub(crate) fn specs(&self) -> Vec<Arc<ToolSpec>> {
        let agents = self.agents.iter().map(|agent| Arc::clone(&agent.spec));
        self.tools.iter().map(|tool| tool.spec()).chain(agents).chain(self.listed.iter().cloned()).collect()
    }

    /// All names of the tools.
    pub(crate) fn names(&self) -> Vec<String> {
        let specs = self.specs();
        let names = |spec: &Arc<ToolSpec>| {
            let aliases = spec.aliases.iter().map(|alias| alias.name.clone());
            std::iter::once(spec.name.clone()).chain(aliases).collect::<Vec<_>>()
        };
        specs.iter().flat_map(names).collect()
    }

    /// The same, with those of the tools that agents of files have.
    pub(crate) fn all_names(&self) -> Vec<String> {
        let inner = self.agents.iter().flat_map(|agent| agent.opened.all_names());
        self.names().into_iter().chain(inner).collect()
    }

    /// A toolbox of them.
    pub(crate) async fn into_toolbox(self, mut builder: ToolboxBuilder) -> Result<Toolbox, Failure> {
        for tool in self.tools {
            builder = builder.tool(tool);
        }
        let toolbox = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
        for source in self.sources {
            toolbox.add_source(source).await?;
        }
        Ok(toolbox)
    }

    /// The source, if there is one and nothing else.
    pub(crate) fn only_source(&self) -> Option<Arc<dyn ToolSource>> {
        let [only] = self.sources.as_slice() else { return None };
        (self.tools.is_empty() && self.agents.is_empty()).then(|| Arc::clone(only))
    }

    /// Adds a source. A tool of it whose name is taken stands under the namespace of this name.
    async fn add_source(&mut self, source: Arc<dyn ToolSource>, name: &str) -> Result<(), Failure> {
        let taken = self.names().into_iter().collect();
        let distinct = Distinct::of(source, name, &taken).await?;
        self.listed.extend(distinct.listed);
        self.warnings.extend(distinct.warnings);
        self.sources.push(distinct.source);
        Ok(())
    }

    /// Adds a gateway, and says which of its upstreams are away.
    pub(crate) async fn join(&mut self, gateway: Arc<Gateway>) -> Result<(), Failure> {
        let source = gateway.source();
        let name = source.name().to_owned();
        self.add_source(source, &name).await?;
        self.warnings.extend(gateway.status().iter().filter_map(gateway::warning));
        Ok(())
    }

    /// Adds an agent of a file, each file once.
    fn add_agent(&mut self, agent: AgentFile) {
        if !self.agents.iter().any(|known| known.path == agent.path) {
            self.warnings.extend(agent.opened.warnings.iter().cloned());
            self.agents.push(agent);
        }
    }

    fn add(&mut self, tool: Arc<dyn Tool>) {
        let name = &tool.spec().name;
        if !self.tools.iter().any(|known| known.spec().name == *name) {
            self.tools.push(tool);
        }
    }
}

/// The descriptions that led to a target, each of them named by the one before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail(Vec<(PathBuf, String)>);

impl Trail {
    /// Whether no description led to the target.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory of the last one.
    fn folder(&self) -> Option<&Path> {
        self.0.last()?.0.parent()
    }

    /// The same with one more.
    ///
    /// # Errors
    /// It is among them already, or there are as many as may be.
    pub(crate) fn and(&self, path: &Path) -> Result<Self, Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let shown = path.display().to_string();
        let first = self.0.iter().position(|(known, _)| *known == absolute);
        let way = self.0.iter().skip(first.unwrap_or_default()).map(|(_, shown)| shown.as_str());
        let way = way.chain([shown.as_str()]).collect::<Vec<_>>().join(" → ");
        if first.is_some() {
            return Err(Failure::usage(format!("the description `{shown}` leads back to itself: {way}"))
                .hint("Leave one of them out of the tools of another."));
        }
        if self.0.len() >= MAX_TRAIL {
            return Err(Failure::usage(format!(
                "the description `{shown}` is one too many: at most {MAX_TRAIL} lead from one to the next: {way}"
            )));
        }
        Ok(Self(self.0.iter().cloned().chain([(absolute, shown)]).collect()))
    }
}

/// Opens targets, each tool once. Programs are asked what they have, in the sandbox. `sampling` says whether there is a
/// model that completes prompts for them; `granted` is for the one program or server among them.
pub(crate) async fn open(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    granted: &Grants,
) -> Result<Opened, Failure> {
    open_with(targets, config, level, sampling, None, granted).await
}

/// Opens the targets that a description names.
pub(crate) async fn open_from(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    granted: &Grants,
    trail: &Trail,
) -> Result<Opened, Failure> {
    open_all(targets, config, level, sampling, None, granted, trail).await
}

/// The same, with a token for the one server among them that has an address.
pub(crate) async fn open_with(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    token: Option<Secret>,
    granted: &Grants,
) -> Result<Opened, Failure> {
    open_all(targets, config, level, sampling, token, granted, &Trail::default()).await
}

async fn open_all(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    token: Option<Secret>,
    granted: &Grants,
    trail: &Trail,
) -> Result<Opened, Failure> {
    let builtin = toolpost_tools::builtin();
    let mut opened = Opened::default();
    // Programs with the same grants are one source.
    let mut paths: Vec<(Vec<PathBuf>, Grants)> = Vec::new();
    let mut servers: Vec<Server> = Vec::new();
    let mut gateways: Vec<Arc<Gateway>> = Vec::new();
    let targets: Vec<&str> = targets.iter().flat_map(|targets| split(targets)).collect();
    let own = |target| config.target_grants(target).cloned().unwrap_or_default();
    let targets: Vec<(&str, Grants)> =
        targets.into_iter().map(|target| (config.target(target).unwrap_or(target), own(target))).collect();
    check_takers(targets.iter().map(|(target, _)| *target), granted)?;
    let addresses = targets.iter().filter(|(target, _)| mcp::takes_token(target)).count();
    if token.is_some() && addresses != 1 {
        return Err(Failure::usage(format!("the token is for one server, and {addresses} have an address"))
            .hint("Give the others their headers in `.mcp.json`; see `toolpost help targets`."));
    }
    let server_level = level.or_else(|| config.choice("level")).unwrap_or(Level::Standard);
    for (target, own) in targets {
        let takes = takes_grants(target);
        if !own.is_empty() && !takes {
            return Err(no_taker(target));
        }
        let grants = if takes { own.merge(granted.clone()) } else { own };
        if target == "builtin" {
            for tool in &builtin {
                opened.add(Arc::clone(tool));
            }
        } else if let Some(tool) = builtin_tool(&builtin, target.strip_prefix("builtin:").unwrap_or(target)) {
            opened.add(tool);
        } else if let Some(name) = target.strip_prefix("command:") {
            let tools = granted_tools(CommandTools::shipped(name)?, &grants, target, config)?;
            tools.into_tools().into_iter().for_each(|tool| opened.add(tool));
        } else if mcp::is_address(target) {
            let token = token.as_ref().filter(|_| mcp::takes_token(target));
            let mut server = mcp::of_address(target, token, server_level)?;
            let folder = mcp::folder(trail.folder());
            server.check = check_of(mcp::references(target, folder.as_deref(), &grants), config, trail)?;
            server.grants = grants;
            if server.image.is_none() && server.grants.workdir.is_none() {
                server.grants.workdir = folder;
            }
            servers.push(server);
        } else if is_description(target) {
            let path = Path::new(target);
            let text = trusted(path)?;
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            match agent_file::kind(path, &text).as_deref() {
                Some("agent") => {
                    opened.add_agent(agent_file::open(path, &text, config, level, trail).await?);
                }
                Some("gateway") if is_toml => {
                    gateways.push(gateway::followed(path, &text, config, level, trail).await?);
                }
                Some("command") | None if is_toml => {
                    let tools = granted_tools(described(path, &text)?, &grants, target, config)?;
                    tools.into_tools().into_iter().for_each(|tool| opened.add(tool));
                }
                kind => return Err(unknown_kind(path, kind)),
            }
        } else if target.contains('/') {
            let path = Path::new(target);
            let path = path.canonicalize().map_err(|error| missing("the program", path, &error))?;
            match paths.iter_mut().find(|(_, others)| *others == grants) {
                Some((alike, _)) => alike.push(path),
                None => paths.push((vec![path], grants)),
            }
        } else if let Some(mut server) = mcp::files::named(target, server_level)? {
            server.grants = server.grants.merge(grants);
            servers.push(server);
        } else {
            return Err(unknown(target, &builtin, config));
        }
    }
    for (paths, grants) in paths {
        programs(&mut opened, paths, &grants, config, level, sampling, trail).await?;
    }
    for server in servers {
        let client = mcp::connect(server, config).await?;
        let name = client.name();
        opened.warnings.extend(client.problems().into_iter().map(|problem| format!("{name}: {problem}")));
        let name = name.to_owned();
        opened.add_source(client, &name).await?;
    }
    for gateway in gateways {
        opened.join(gateway).await?;
    }
    Ok(opened)
}

/// Whether a target is a program or a server that is started here, which can have grants.
pub(crate) fn takes_grants(target: &str) -> bool {
    if mcp::is_address(target) {
        return !mcp::takes_token(target);
    }
    if target.starts_with("command:") {
        return true;
    }
    if is_description(target) {
        let path = Path::new(target);
        let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).unwrap_or_default();
        return !matches!(agent_file::kind(path, &text).as_deref(), Some("agent" | "gateway"));
    }
    !is_built_in(target)
}

/// Rejects the grants of a command line that are not for exactly one of its targets.
pub(crate) fn check_takers<'a>(
    targets: impl Iterator<Item = &'a str>,
    granted: &Grants,
) -> Result<(), Failure> {
    if granted.is_empty() {
        return Ok(());
    }
    let targets: Vec<&str> = targets.collect();
    match (targets.iter().filter(|target| takes_grants(target)).count(), targets.as_slice()) {
        (1, _) => Ok(()),
        (0, [only]) => Err(no_taker(only)),
        (takers, _) => {
            Err(Failure::usage(format!("grants are for one program or server, and here are {takers}"))
                .hint("Grant each its own in a file; see `toolpost help grants`."))
        }
    }
}

fn no_taker(target: &str) -> Failure {
    Failure::usage(format!("`{target}` takes no grants: only programs and servers that are started here do"))
        .hint("`toolpost help grants` lists them.")
}

/// The packages that a target installs before it starts, if its command is that of a launcher.
pub(crate) fn installs(target: &str) -> Option<String> {
    let command: Vec<_> = mcp::words_of(target)?.into_iter().map(Into::into).collect();
    let launcher = Launcher::parse(&command).ok()??;
    Some(launcher.requirements().packages().join(", "))
}

/// Described programs with their own grants and those of the target.
fn granted_tools(
    tools: CommandTools,
    grants: &Grants,
    target: &str,
    config: &Config,
) -> Result<CommandTools, Failure> {
    let all = tools.grants().merge(grants.clone());
    if all.is_empty() {
        return Ok(tools);
    }
    let granted = grants::resolve(&all, target, config)?;
    Ok(tools.granted(granted))
}

/// The targets of a word: several, separated by commas, unless it is an address or a command.
pub(crate) fn split(word: &str) -> Vec<&str> {
    if mcp::is_address(word.trim()) { vec![word.trim()] } else { word.split(',').map(str::trim).collect() }
}

/// A target that a file names, as it is called from where the command runs: a path is relative to the directory of the
/// file.
pub(crate) fn below(folder: &Path, target: &str) -> String {
    let is_path = target.contains('/') || is_description(target);
    if mcp::is_address(target) || !is_path {
        return target.to_owned();
    }
    folder.join(target.trim_start_matches("./")).display().to_string()
}

/// The same for a word that names one target or several.
pub(crate) fn all_below(folder: &Path, word: &str) -> String {
    split(word).into_iter().map(|target| below(folder, target)).collect::<Vec<_>>().join(",")
}

/// Whether a target names tools that come with this program: nobody else can have their names.
pub(crate) fn is_built_in(target: &str) -> bool {
    target == "builtin"
        || target.starts_with("command:")
        || builtin_tool(&toolpost_tools::builtin(), target.strip_prefix("builtin:").unwrap_or(target))
            .is_some()
}

fn builtin_tool(builtin: &[Arc<dyn Tool>], name: &str) -> Option<Arc<dyn Tool>> {
    let known = |tool: &&Arc<dyn Tool>| {
        let spec = tool.spec();
        spec.name == name || spec.aliases.iter().any(|alias| alias.name == name)
    };
    // It stands in for a tool that providers host: nobody gets it without naming it.
    let stand_in =
        || (name == CODE_EXECUTION).then(|| Arc::new(toolpost_tools::code_execution()) as Arc<dyn Tool>);
    builtin.iter().find(known).map(Arc::clone).or_else(stand_in)
}

/// Whether a target is a file that describes tools.
pub(crate) fn is_description(target: &str) -> bool {
    let extension = Path::new(target).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["toml", "yaml", "yml", "json"].contains(&extension))
}

/// The content of a description that the operator trusts.
pub(crate) fn trusted(path: &Path) -> Result<String, Failure> {
    if let Err(error) = path.metadata() {
        return Err(missing("the description", path, &error));
    }
    trusted_as("the description", "It names programs to start, or models to ask.", path)
}

/// The content of a file that the operator trusts: what it is, and why that matters.
pub(crate) fn trusted_as(what: &str, reason: &str, path: &Path) -> Result<String, Failure> {
    let wrong = |error: &io::Error| Failure::file(what, path, error);
    // Read once: what is trusted is what is used.
    let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).map_err(|error| wrong(&error))?;
    match Pins::load()?.standing_of(path, text.as_bytes()) {
        Standing::Trusted => Ok(text),
        standing => {
            let why = standing.reason(path);
            Err(Failure::new(Exit::Denied, "PERMISSION", format!("{what} `{}` {why}", path.display()))
                .hint(format!("{reason} Read it; then `toolpost trust {}`.", path.display())))
        }
    }
}

/// The tools of a description.
fn described(path: &Path, text: &str) -> Result<CommandTools, Failure> {
    let origin = path.display().to_string();
    let tools = match start_check(closure::references(path, text.as_bytes())) {
        Some(check) => CommandTools::from_toml_checked(text, origin, check),
        None => CommandTools::from_toml(text, origin),
    };
    tools.map_err(|error| Failure::usage(error.to_string()))
}

fn unknown_kind(path: &Path, kind: Option<&str>) -> Failure {
    let path = path.display();
    let failure = match kind {
        Some(kind @ ("command" | "gateway")) => Failure::usage(format!(
            "the description `{path}` is of the kind `{kind}`, which is written in TOML"
        )),
        Some(kind) => Failure::usage(format!("the description `{path}` is of the kind `{kind}`")),
        None => Failure::usage(format!("the description `{path}` does not say of which `kind` it is")),
    };
    failure.hint(
        "This version knows kind = \"command\", \"agent\" and \"gateway\"; see `toolpost help targets`.",
    )
}

/// The check of what trusted files name. What the operator names, on the command line or in settings of the user, is the
/// operator's own word.
fn check_of(
    references: Vec<Reference>,
    config: &Config,
    trail: &Trail,
) -> Result<Option<StartCheck>, Failure> {
    let pins = if trail.is_empty() { Pins::default() } else { Pins::load()? };
    let is_pinned = |path: &Path| config.pins(path) || pins.paths().any(|pinned| pinned == path);
    Ok(start_check(references.into_iter().filter(|reference| is_pinned(&reference.path())).collect()))
}

async fn programs(
    opened: &mut Opened,
    paths: Vec<PathBuf>,
    grants: &Grants,
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    trail: &Trail,
) -> Result<(), Failure> {
    let mut builder = Executables::builder().sampling(sampling).protect(config.protected(None)?);
    let only = paths.len() == 1 && opened.tools.is_empty();
    if let Some(check) = check_of(paths.iter().cloned().map(Reference::File).collect(), config, trail)? {
        builder = builder.start_check(check);
    }
    let name = match paths.as_slice() {
        [path] => path.display().to_string(),
        _ => "programs".to_owned(),
    };
    if !grants.is_empty() {
        builder = builder.granted(grants::resolve(grants, &name, config)?);
    }
    for path in paths {
        builder = builder.path(path);
    }
    if let Some(level) = level.or_else(|| config.choice("level")) {
        builder = builder.level(level);
    }
    if let Some(path) = launcher::search_path() {
        builder = builder.search_path(path);
    }
    if let Some(folder) = places::cache() {
        builder = builder.cache(folder);
    }
    let programs = Arc::new(builder.discover().await);
    let is_empty = programs.list().await?.is_empty();
    let diagnostics = programs.diagnostics();
    if is_empty && only {
        return Err(no_tools(&name, diagnostics));
    }
    opened.warnings.extend(diagnostics.iter().map(explained));
    opened.add_source(programs, &name).await
}

/// The failure of a program that gave no tools.
fn no_tools(program: &str, diagnostics: Vec<Diagnostic>) -> Failure {
    let message = format!("the program `{program}` gave no tools");
    let command = serde_json::json!([program]);
    let hint = format!(
        "A tool program answers `--discover`. Call any other program with `toolpost call run_command argv='{command}'`, \
         or describe it in a file: `toolpost init command NAME`."
    );
    let failure = match diagnostics.into_iter().next() {
        Some(Diagnostic { error, .. }) => {
            let failure = Failure::from(error);
            let causes = [vec![failure.message], failure.causes].concat();
            Failure { message, causes, ..failure }
        }
        None => Failure::new(Exit::Failed, "NOT_FOUND", message),
    };
    failure.hint(hint)
}

/// What is wrong with a program, and what the program wrote last.
fn explained(diagnostic: &Diagnostic) -> String {
    let failure = Failure::from(diagnostic.error.clone());
    failure.causes.iter().fold(diagnostic.to_string(), |text, cause| format!("{text}\n{cause}"))
}

/// Rejects a target that can name nothing: an unknown name, or a file that is missing. Nothing is started.
pub(crate) fn check(word: &str, config: &Config) -> Result<(), Failure> {
    let builtin = toolpost_tools::builtin();
    for target in split(word) {
        let target = config.target(target).unwrap_or(target);
        if is_built_in(target) || mcp::is_address(target) {
            continue;
        }
        if target.contains('/') || is_description(target) {
            let path = Path::new(target);
            path.metadata().map_err(|error| missing("the target", path, &error))?;
        } else if matches!(mcp::files::named(target, Level::Standard), Ok(None)) {
            return Err(unknown(target, &builtin, config));
        }
    }
    Ok(())
}

/// A file that cannot be used, with the nearest name of its directory.
fn missing(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::file(what, path, error);
    if error.kind() != io::ErrorKind::NotFound {
        return failure;
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_NEIGHBORS).flatten();
    let names = entries.map(|entry| label(&parent.join(entry.file_name()).display().to_string()));
    let names: Vec<String> = names.collect();
    match did_you_mean(&path.display().to_string(), names.iter().map(String::as_str)) {
        Some(hint) => Failure { hints: vec![hint], ..failure },
        None => failure,
    }
}

fn unknown(target: &str, builtin: &[Arc<dyn Tool>], config: &Config) -> Failure {
    let failure = Failure::usage(format!("there is no target `{target}`"));
    if Path::new(target).is_file() {
        return failure.hint(format!("There is a file of that name: write `./{target}`."));
    }
    if ["always", "auto"].contains(&target) {
        return failure.hint(format!("The value of `--search` follows `=`: `--search={target}`."));
    }
    if target.starts_with("hosted:") {
        return failure.hint("Tools of a provider are for the models of `toolpost run` and `toolpost chat`.");
    }
    let names: Vec<String> = builtin.iter().map(|tool| tool.spec().name.clone()).collect();
    if let Some(name) = target.strip_prefix("builtin:") {
        return match toolpost_core::suggestions(name, names.iter().map(String::as_str)).first() {
            Some(near) => failure.hint(format!("Did you mean `builtin:{near}`?")),
            None => failure.hint("`toolpost tools` lists the built-in tools."),
        };
    }
    let shipped = SHIPPED.map(|(name, _)| format!("command:{name}"));
    let servers = mcp::files::names();
    let known =
        names.iter().chain(&shipped).chain(&servers).map(String::as_str).chain(["builtin", CODE_EXECUTION]);
    match did_you_mean(target, known.chain(config.targets().map(|(name, ..)| name))) {
        Some(hint) => failure.hint(hint),
        None => failure
            .hint("`toolpost help targets` says what can be named; `toolpost tools` lists what is built in."),
    }
}
