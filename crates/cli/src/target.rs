//! Opens targets.

pub(crate) mod opened;
pub(crate) mod trail;
pub(crate) mod trusted;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_core::{BoxFuture, Secret, StartCheck, ToolGroup as _, ToolSource, did_you_mean};
use toolpost_exec::client::{Diagnostic, Executables};
use toolpost_exec::command::{CommandTools, SHIPPED};
use toolpost_flow::{FlowTool, Plan, PlanProblem};
use toolpost_gateway::Gateway;
use toolpost_sandbox::{Granted, Grants, Level};

use self::opened::{FileWork, Opened, ToolFile};
use self::trail::Trail;
use self::trusted::{MAX_DESCRIPTION, trusted_as};
use crate::agent_file::{AgentFile, below};
use crate::args::{GrantArgs, ProgramAccess};
use crate::config::closure;
use crate::config::reference::{Reference, is_granted, of_server, working_directory};
use crate::config::trust::{Pins, start_check};
use crate::config::{Config, paths};
use crate::description::kind;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::{self, Several};
use crate::launcher;
use crate::mcp::{self, Server};
use crate::style::label;
use crate::target_grammar::{BUILT_IN, CODE_EXECUTION, Target, built_in_tool, named, split};
use crate::toml_text::toml_value;
use crate::{granted, grants};

/// The maximum number of file names to compare with a missing one.
const MAX_NEIGHBORS: usize = 1_000;

/// The time that opening waits for the upstreams of gateways, and what a missing one means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait<'a> {
    /// Waits for all. A missing required upstream is a failure, another one a warning.
    #[default]
    Required,
    /// Waits for all. Missing ones are in [`Opened::missing`].
    All,
    /// Waits for the upstream of one tool. If none has it, missing ones are in [`Opened::missing`].
    Tool(&'a str),
    /// Does not wait: the gateways are in [`Opened::starting`].
    Nothing,
}

/// The options of a command for its targets.
#[derive(Default)]
pub(crate) struct OpenOptions<'a> {
    pub(crate) access: ProgramAccess,
    /// Whether a model answers the sampling requests of programs.
    pub(crate) sampling: bool,
    /// The token for the only server with a URL.
    pub(crate) token: Option<Secret>,
    /// The grants of the only program or server.
    pub(crate) granted: Grants,
    pub(crate) wait: Wait<'a>,
}

impl OpenOptions<'_> {
    /// The options of a command with grants for one target.
    pub(crate) fn new(access: impl Into<ProgramAccess>, grants: &GrantArgs) -> Result<Self, Failure> {
        Ok(Self { access: access.into(), granted: grants::of_args(grants)?, ..Self::default() })
    }
}

/// A target to open, with its configured grants and the descriptions that name it.
#[derive(Clone, Debug)]
pub(crate) struct NamedTarget {
    pub(crate) target: Target,
    grants: Grants,
    trail: Trail,
}

/// Parses lists of targets that a command or a description names.
pub(crate) fn parse(words: &[String], config: &Config, trail: &Trail) -> Vec<NamedTarget> {
    let parsed = |word: &str| NamedTarget {
        target: Target::parse(config.target(word).unwrap_or(word)),
        grants: config.target_grants(word).cloned().unwrap_or_default(),
        trail: trail.clone(),
    };
    // A name before a list is for the whole list.
    let parts = |word| if named(word).is_some() { vec![word] } else { split(word) };
    words.iter().flat_map(|word| parts(word)).map(parsed).collect()
}

/// Separates the targets with a name of their own from the others.
fn with_names(targets: Vec<NamedTarget>, config: &Config) -> Result<(Several, Vec<NamedTarget>), Failure> {
    let (with_name, bare): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|named| matches!(named.target, Target::Named(_)));
    let words: Vec<String> = with_name.iter().map(|named| named.target.to_string()).collect();
    Ok((Several::new(&words, config, false)?, bare))
}

/// Opens targets of the command line, each tool once. Programs are discovered in the sandbox.
pub(crate) async fn open(
    words: &[String],
    config: &Config,
    options: OpenOptions<'_>,
) -> Result<Opened, Failure> {
    open_named(parse(words, config, &Trail::default()), config, options).await
}

/// Opens parsed targets.
pub(crate) async fn open_named(
    targets: Vec<NamedTarget>,
    config: &Config,
    options: OpenOptions<'_>,
) -> Result<Opened, Failure> {
    let OpenOptions { access, sampling, token, granted, wait } = options;
    let (several, targets) = with_names(targets, config)?;
    let upstreams = several.targets(config);
    check_takers(targets.iter().map(|named| &named.target).chain(&upstreams), &granted)?;
    let addresses = targets.iter().filter(|named| matches!(named.target, Target::Url(_))).count();
    if token.is_some() && addresses != 1 {
        return Err(Failure::usage(format!("the token is for one server, but {addresses} have a URL"))
            .hint("Give the others their headers in `.mcp.json`; see `toolpost help targets`."));
    }
    let mut opener = Opener {
        config,
        access,
        sampling,
        token,
        tool: if let Wait::Tool(tool) = wait { Some(tool) } else { None },
        opened: Opened::default(),
        programs: Vec::new(),
        servers: Vec::new(),
        gateways: several.open(config, access.level, &granted).await?.into_iter().collect(),
    };
    if is_granted(&granted) {
        let reached =
            upstreams.iter().flat_map(|target| closure::of_targets(&target.to_string(), None, &granted));
        opener.opened.granted.extend(reached);
    }
    if targets.iter().any(|named| named.target.runs_code()) {
        opener.opened.readable.clone_from(&granted.readable);
    }
    for NamedTarget { target, grants, trail } in targets {
        let takes = target.takes_grants();
        if !grants.is_empty() && !takes {
            return Err(no_taker(&target));
        }
        let grants = if takes { grants.merge(granted.clone()) } else { grants };
        if is_granted(&grants) {
            opener.opened.granted.extend(closure::of_targets(&target.to_string(), None, &grants));
        }
        opener.add(target, grants, trail).await?;
    }
    opener.finish(wait).await
}

/// Opens targets one by one. Programs with the same grants and origin are one source.
struct Opener<'a> {
    config: &'a Config,
    access: ProgramAccess,
    sampling: bool,
    token: Option<Secret>,
    /// The only tool that the command needs.
    tool: Option<&'a str>,
    opened: Opened,
    programs: Vec<(Vec<PathBuf>, Grants, Trail)>,
    servers: Vec<(Server, Trail)>,
    gateways: Vec<Arc<Gateway>>,
}

impl Opener<'_> {
    async fn add(&mut self, target: Target, grants: Grants, trail: Trail) -> Result<(), Failure> {
        let config = self.config;
        match &target {
            Target::BuiltIn => BUILT_IN.iter().for_each(|tool| self.opened.add(Arc::clone(tool))),
            Target::BuiltInTool(name) => {
                if let Some(tool) = built_in_tool(name) {
                    self.opened.add(tool);
                }
            }
            Target::Command(name) => self.add_tools(CommandTools::shipped(name)?, &grants, &target)?,
            Target::Url(text) | Target::LocalServer(text) => {
                let token = self.token.as_ref().filter(|_| matches!(target, Target::Url(_)));
                let mut server = mcp::of_address(text, token, self.server_level())?;
                let directory = working_directory(trail.directory());
                server.check = check_of(of_server(text, directory.as_deref(), &grants), config, &trail)?;
                server.grants = grants;
                if server.image.is_none() && server.grants.workdir.is_none() {
                    server.grants.workdir = directory;
                }
                self.servers.push((server, trail));
            }
            Target::Description(path) => self.add_description(path, &target, &grants, &trail).await?,
            Target::Program(path) => {
                let path = path.canonicalize().map_err(|error| missing("the program", path, &error))?;
                let is_same = |(_, others, origin): &&mut (Vec<PathBuf>, Grants, Trail)| {
                    *others == grants && *origin == trail
                };
                match self.programs.iter_mut().find(is_same) {
                    Some((alike, ..)) => alike.push(path),
                    None => self.programs.push((vec![path], grants, trail)),
                }
            }
            // `open_named` opens them as upstreams of a gateway.
            Target::Named(word) => return Err(unknown(word, config)),
            Target::Name(name) => {
                let Some(mut server) = mcp::files::named(name, self.server_level())? else {
                    return Err(unknown(name, config));
                };
                server.grants = server.grants.merge(grants);
                self.servers.push((server, trail));
            }
        }
        Ok(())
    }

    async fn add_description(
        &mut self,
        path: &Path,
        target: &Target,
        grants: &Grants,
        trail: &Trail,
    ) -> Result<(), Failure> {
        let (config, access) = (self.config, self.access);
        let text = trusted(path)?;
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        match kind(path, &text).as_deref() {
            Some("agent") => self.opened.add_file(open_agent(path, &text, config, access, trail).await?),
            Some("flow") => self.opened.add_file(open_flow(path, config, access, trail).await?),
            Some("gateway") if is_toml => {
                let gateway = gateway::followed(path, &text, config, access.level, trail, self.tool).await?;
                self.gateways.push(gateway);
            }
            Some("command") | None if is_toml => self.add_tools(described(path, &text)?, grants, target)?,
            kind => return Err(unknown_kind(path, kind)),
        }
        Ok(())
    }

    /// Adds wrapped programs with their own grants and those of the target.
    fn add_tools(&mut self, tools: CommandTools, grants: &Grants, target: &Target) -> Result<(), Failure> {
        let all = tools.grants().merge(grants.clone());
        let tools = if all.is_empty() {
            tools
        } else {
            tools.granted(granted::resolve(&all, &target.to_string(), self.config)?)
        };
        tools.into_tools().into_iter().for_each(|tool| self.opened.add(tool));
        Ok(())
    }

    fn server_level(&self) -> Level {
        self.access.level.or(self.config.settings.level).unwrap_or(Level::Standard)
    }

    /// Starts programs and servers, and waits for gateways.
    async fn finish(self, wait: Wait<'_>) -> Result<Opened, Failure> {
        let Self { config, access, sampling, mut opened, programs, servers, gateways, .. } = self;
        for (paths, grants, trail) in programs {
            start_programs(&mut opened, paths, &grants, config, access, sampling, &trail).await?;
        }
        let is_only = servers.len() == 1 && opened.is_empty();
        for (mut server, trail) in servers {
            let upstream = trail.upstream();
            if let Some(upstream) = upstream {
                let own = &upstream.name;
                server.name = if is_only { own.to_string() } else { format!("{own}/{}", server.name) };
            }
            let client =
                mcp::connect(server, config, upstream.map(|upstream| upstream.start_timeout)).await?;
            let name = client.name();
            opened.warnings.extend(client.problems().into_iter().map(|problem| format!("{name}: {problem}")));
            let name = name.to_owned();
            opened.add_source(client, &name).await?;
        }
        opened.join(gateways, wait).await?;
        Ok(opened)
    }
}

impl Target {
    /// Whether the target is a program or server of this host, which takes grants.
    pub(crate) fn takes_grants(&self) -> bool {
        match self {
            Self::Description(path) => {
                let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).unwrap_or_default();
                !matches!(kind(path, &text).as_deref(), Some("agent" | "flow" | "gateway"))
            }
            Self::Command(_) | Self::LocalServer(_) | Self::Program(_) | Self::Name(_) => true,
            Self::BuiltIn | Self::BuiltInTool(_) | Self::Url(_) | Self::Named(_) => false,
        }
    }
}

/// Rejects grants of options unless exactly one target takes them. Code takes readable paths besides.
pub(crate) fn check_takers<'a>(
    targets: impl Iterator<Item = &'a Target>,
    granted: &Grants,
) -> Result<(), Failure> {
    if granted.is_empty() {
        return Ok(());
    }
    let targets: Vec<&Target> = targets.collect();
    let mut for_code = Grants::default();
    for_code.readable.clone_from(&granted.readable);
    if *granted == for_code
        && targets.iter().any(|target| target.runs_code())
        && !targets.iter().any(|target| target.takes_grants())
    {
        return Ok(());
    }
    match (targets.iter().filter(|target| target.takes_grants()).count(), targets.as_slice()) {
        (1, _) => Ok(()),
        (0, [only]) => Err(no_taker(only)),
        (0, _) => Err(Failure::usage("grants are for one program or server, and no target takes them").hint(
            "For code, use `--config egress_policy=FILE` with `allow = [\"HOST\"]`; \
             for a program, name it with `--tools`.",
        )),
        (takers, _) => {
            Err(Failure::usage(format!("grants are for one program or server, but {takers} take them"))
                .hint("Grant each in a file; see `toolpost help grants`."))
        }
    }
}

fn no_taker(target: &Target) -> Failure {
    Failure::usage(format!("`{target}` takes no grants; only programs and servers of this host do"))
        .hint("`toolpost help grants` lists them.")
}

/// Reads a trusted description.
pub(crate) fn trusted(path: &Path) -> Result<String, Failure> {
    if let Err(error) = path.metadata() {
        return Err(missing("the description", path, &error));
    }
    trusted_as("the description", "It names programs to start, or models to ask.", path)
}

/// Reads a description without a check of its trust.
pub(crate) fn text(path: &Path) -> Result<String, Failure> {
    crate::regular_file::read_text(path, MAX_DESCRIPTION).map_err(|error| missing("the file", path, &error))
}

/// Opens the tools of a description.
pub(crate) fn described(path: &Path, text: &str) -> Result<CommandTools, Failure> {
    let origin = path.display().to_string();
    let former = toml_value(text).ok().and_then(|file| grants::former_key(file.get(grants::KEY)?));
    mcp::start::warn(&origin, former.as_slice());
    let tools = match start_check(closure::references(path, text.as_bytes())) {
        Some(check) => CommandTools::from_toml_checked(text, origin, check),
        None => CommandTools::from_toml(text, origin),
    };
    tools.map_err(|error| Failure::usage(error.to_string()))
}

fn unknown_kind(path: &Path, kind: Option<&str>) -> Failure {
    let path = path.display();
    let failure = match kind {
        Some(kind @ ("command" | "gateway")) => {
            Failure::usage(format!("the description `{path}` has the kind `{kind}`, which needs TOML"))
        }
        Some(kind) => Failure::usage(format!("the description `{path}` has the unknown kind `{kind}`")),
        None => Failure::usage(format!("the description `{path}` has no `kind`")),
    };
    failure.hint("The kinds are \"command\", \"agent\" and \"gateway\"; see `toolpost help targets`.")
}

/// The check of files that trusted files name. Targets of the command line and of user settings need none.
fn check_of(
    references: Vec<Reference>,
    config: &Config,
    trail: &Trail,
) -> Result<Option<StartCheck>, Failure> {
    let pins = if trail.is_empty() { Pins::default() } else { Pins::load()? };
    let is_pinned = |path: &Path| config.pins(path) || pins.paths().any(|pinned| pinned == path);
    Ok(start_check(references.into_iter().filter(|reference| is_pinned(&reference.path())).collect()))
}

/// Opens the targets of an agent file.
fn open_agent<'a>(
    path: &'a Path,
    text: &'a str,
    config: &'a Config,
    access: ProgramAccess,
    trail: &'a Trail,
) -> BoxFuture<'a, Result<ToolFile, Failure>> {
    Box::pin(async move {
        let file = AgentFile::parse(path, text, config, trail)?;
        let config = file.settings(config)?;
        let options = OpenOptions { access, sampling: true, ..OpenOptions::default() };
        let opened = open_named(file.targets(&config), &config, options).await?;
        let path = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let work = FileWork::Agent { names_model: file.names_model };
        Ok(ToolFile { path, spec: Arc::new(file.spec), config, work, opened })
    })
}

fn open_flow<'a>(
    path: &'a Path,
    config: &'a Config,
    access: ProgramAccess,
    trail: &'a Trail,
) -> BoxFuture<'a, Result<ToolFile, Failure>> {
    Box::pin(async move {
        let trail = trail.and(path)?;
        let plan = plan(path)?;
        let directory = path.parent().unwrap_or(Path::new("."));
        let targets = of_plan(&plan, directory, &[], config);
        let options = OpenOptions { access, sampling: true, ..OpenOptions::default() };
        let opened = open_named(parse(&targets, config, &trail), config, options).await?;
        let problems: Vec<PlanProblem> =
            plan.check(&opened.specs()).into_iter().filter(|problem| !problem.is_warning).collect();
        if !problems.is_empty() {
            return Err(plan_defects(path, &problems));
        }
        let path = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let spec = Arc::new(FlowTool::spec_of(&plan));
        spec.check().map_err(|error| Failure::usage(error.to_string()))?;
        Ok(ToolFile { path, spec, config: config.clone(), work: FileWork::Flow(Arc::new(plan)), opened })
    })
}

/// The targets of a plan, relative to its directory, and more; `builtin` without any.
pub(crate) fn of_plan(plan: &Plan, directory: &Path, more: &[String], config: &Config) -> Vec<String> {
    let named = plan.tools().iter().map(|target| below(directory, target, config));
    let targets: Vec<String> = named.chain(more.iter().cloned()).collect();
    if targets.is_empty() { vec!["builtin".to_owned()] } else { targets }
}

/// Reads a plan and its sub-flows, each of which must be trusted.
pub(crate) fn plan(path: &Path) -> Result<Plan, Failure> {
    // The file itself gives the better error.
    trusted(path)?;
    let text = |path: &Path| trusted(path).map_err(|failure| failure.message);
    Plan::read_with(path, &text).map_err(|error| plan_defects(path, &error.0))
}

/// The failure of a plan with defects.
pub(crate) fn plan_defects(path: &Path, problems: &[PlanProblem]) -> Failure {
    let at = |problem: &PlanProblem| format!("{}:{problem}", path.display());
    let [first, more @ ..] = problems else { return Failure::usage("the plan is invalid") };
    let mut failure = Failure::usage(format!("the plan is invalid: {}", at(first)));
    failure.causes.extend(more.iter().map(at));
    failure
}

async fn start_programs(
    opened: &mut Opened,
    paths: Vec<PathBuf>,
    grants: &Grants,
    config: &Config,
    access: ProgramAccess,
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
    let granted =
        if grants.is_empty() { Granted::default() } else { granted::resolve(grants, &name, config)? };
    let granted = granted.with_layers(paths::layers()).with_run_changes(crate::run_changes::current());
    builder = builder.granted(granted.live(access.live));
    for path in paths {
        builder = builder.path(path);
    }
    if let Some(level) = access.level.or(config.settings.level) {
        builder = builder.level(level);
    }
    if let Some(path) = launcher::search_path() {
        builder = builder.search_path(path);
    }
    if let Some(home) = paths::home() {
        builder = builder.home(home);
    }
    if let Some(directory) = paths::cache() {
        builder = builder.cache(directory);
    }
    if let Some(upstream) = trail.upstream() {
        builder = builder.discovery_timeout(upstream.start_timeout);
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

/// The failure of a program without tools.
fn no_tools(program: &str, diagnostics: Vec<Diagnostic>) -> Failure {
    let message = format!("the program `{program}` has no tools");
    let command = serde_json::json!([program]);
    let hint = format!(
        "A tool program answers `--discover`. Call another program with `toolpost call run_command argv='{command}'`, or wrap it: `toolpost init command NAME`."
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

/// The problem of a program, and the end of its stderr.
fn explained(diagnostic: &Diagnostic) -> String {
    let failure = Failure::from(diagnostic.error.clone());
    failure.causes.iter().fold(diagnostic.to_string(), |text, cause| format!("{text}\n{cause}"))
}

/// Rejects an unknown name or a missing file without starting anything.
pub(crate) fn check(word: &str, config: &Config) -> Result<(), Failure> {
    for word in split(word) {
        let target = Target::parse(config.target(word).unwrap_or(word));
        match &target {
            Target::Description(path) | Target::Program(path) => {
                path.metadata().map_err(|error| missing("the target", path, &error))?;
            }
            Target::Name(name) if matches!(mcp::files::named(name, Level::Standard), Ok(None)) => {
                return Err(unknown(name, config));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The failure for an unusable file, with the nearest name of its directory.
fn missing(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::file(what, path, error);
    if error.kind() != io::ErrorKind::NotFound {
        return failure;
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    let directory = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let entries = std::fs::read_dir(directory).into_iter().flatten().take(MAX_NEIGHBORS).flatten();
    let names = entries.map(|entry| label(&parent.join(entry.file_name()).display().to_string()));
    let names: Vec<String> = names.collect();
    match did_you_mean(&path.display().to_string(), names.iter().map(String::as_str)) {
        Some(hint) => Failure { hints: vec![hint], ..failure },
        None => failure,
    }
}

fn unknown(target: &str, config: &Config) -> Failure {
    let failure = Failure::usage(format!("unknown target `{target}`"));
    if let Some(file) = config.untrusted_target(target) {
        let file = file.display();
        return failure
            .hint(format!("`{file}` has it but is not trusted: read it, then `toolpost trust {file}`."));
    }
    if Path::new(target).is_file() {
        return failure.hint(format!("For the file of that name, write `./{target}`."));
    }
    if ["always", "auto"].contains(&target) {
        return failure.hint(format!("The value of `--search` follows `=`: `--search={target}`."));
    }
    if target.starts_with("hosted:") {
        return failure.hint("Hosted tools are for the models of `toolpost run` and `toolpost chat`.");
    }
    let names: Vec<String> = BUILT_IN.iter().map(|tool| tool.spec().name.clone()).collect();
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
        None => failure.hint(
            "`toolpost help targets` lists the kinds of targets; `toolpost tools` lists the built-in tools.",
        ),
    }
}
