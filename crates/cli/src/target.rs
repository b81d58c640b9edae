//! Opens targets.

pub(crate) mod grammar;
pub(crate) mod opened;
pub(crate) mod trail;
pub(crate) mod trusted;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_core::{BoxFuture, Secret, StartCheck, Tool, ToolGroup as _, ToolSource, did_you_mean};
use toolpost_exec::client::{Diagnostic, Executables};
use toolpost_exec::command::{CommandTools, SHIPPED};
use toolpost_flow::{FlowTool, Plan, PlanProblem};
use toolpost_gateway::Gateway;
use toolpost_sandbox::{Granted, Grants, Level};

use self::grammar::{is_address, is_description, split, takes_token};
use self::opened::{FileWork, Opened, ToolFile};
use self::trail::Trail;
use self::trusted::{MAX_DESCRIPTION, trusted_as};
use crate::agent_file::{Description, below, excluded};
use crate::args::ProgramAccess;
use crate::config::closure;
use crate::config::reference::{Reference, is_granted, of_server, working_directory};
use crate::config::trust::{Pins, start_check};
use crate::config::{Config, paths};
use crate::description::kind;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway;
use crate::grants;
use crate::launcher;
use crate::mcp::{self, Server};
use crate::style::label;

/// The maximum number of file names to compare with a missing one.
const MAX_NEIGHBORS: usize = 1_000;

/// The groups of built-in tools that use no files.
const WITHOUT_FILES: [&str; 3] = ["maths", "text", "web"];

/// The local tool with the name of providers' hosted code.
pub(crate) const CODE_EXECUTION: &str = "code_execution";

/// Opens targets, each tool once. Programs are discovered in the sandbox.
///
/// `sampling` tells programs that a model answers their sampling requests. `granted` is for the only program or
/// server among the targets.
pub(crate) async fn open(
    targets: &[String],
    config: &Config,
    access: impl Into<ProgramAccess>,
    sampling: bool,
    granted: &Grants,
) -> Result<Opened, Failure> {
    open_with(targets, config, access, sampling, None, granted).await
}

/// How long opening waits for the upstreams of gateways, and what a missing one means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait<'a> {
    /// Waits for all. A missing required upstream is a failure, another one a warning.
    Required,
    /// Waits for all. Missing ones are in [`Opened::missing`].
    All,
    /// Waits for the upstream of one tool. If none has it, missing ones are in [`Opened::missing`].
    Tool(&'a str),
    /// Does not wait: the gateways are in [`Opened::starting`].
    Nothing,
}

/// The options of the command for its targets.
struct Request<'a> {
    access: ProgramAccess,
    sampling: bool,
    token: Option<Secret>,
    granted: &'a Grants,
    trail: &'a Trail,
    wait: Wait<'a>,
}

/// Opens targets with a token, and waits for upstreams as requested.
pub(crate) async fn open_waiting(
    targets: &[String],
    config: &Config,
    access: impl Into<ProgramAccess>,
    sampling: bool,
    token: Option<Secret>,
    granted: &Grants,
    wait: Wait<'_>,
) -> Result<Opened, Failure> {
    let (trail, access) = (&Trail::default(), access.into());
    open_all(targets, config, Request { access, sampling, token, granted, trail, wait }).await
}

/// Opens the targets of a description.
pub(crate) async fn open_from(
    targets: &[String],
    config: &Config,
    access: impl Into<ProgramAccess>,
    sampling: bool,
    granted: &Grants,
    trail: &Trail,
) -> Result<Opened, Failure> {
    let access = access.into();
    open_all(targets, config, Request { access, sampling, token: None, granted, trail, wait: Wait::Required })
        .await
}

/// Opens targets with a token for the only server with a URL.
pub(crate) async fn open_with(
    targets: &[String],
    config: &Config,
    access: impl Into<ProgramAccess>,
    sampling: bool,
    token: Option<Secret>,
    granted: &Grants,
) -> Result<Opened, Failure> {
    let (trail, access) = (&Trail::default(), access.into());
    open_all(targets, config, Request { access, sampling, token, granted, trail, wait: Wait::Required }).await
}

async fn open_all(targets: &[String], config: &Config, request: Request<'_>) -> Result<Opened, Failure> {
    let Request { access, sampling, ref token, granted, trail, wait } = request;
    let tool = if let Wait::Tool(tool) = wait { Some(tool) } else { None };
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
    let addresses = targets.iter().filter(|(target, _)| takes_token(target)).count();
    if token.is_some() && addresses != 1 {
        return Err(Failure::usage(format!("the token is for one server, but {addresses} have a URL"))
            .hint("Give the others their headers in `.mcp.json`; see `toolpost help targets`."));
    }
    let server_level = access.level.or_else(|| config.choice("level")).unwrap_or(Level::Standard);
    if targets.iter().any(|(target, _)| runs_code(target)) {
        opened.readable.clone_from(&granted.readable);
    }
    for (target, own) in targets {
        let takes = takes_grants(target);
        if !own.is_empty() && !takes {
            return Err(no_taker(target));
        }
        let grants = if takes { own.merge(granted.clone()) } else { own };
        if is_granted(&grants) {
            opened.granted.extend(closure::of_targets(target, None, &grants));
        }
        if target == "builtin" {
            for tool in &builtin {
                opened.add(Arc::clone(tool));
            }
        } else if let Some(tool) = builtin_tool(&builtin, target.strip_prefix("builtin:").unwrap_or(target)) {
            opened.add(tool);
        } else if let Some(name) = target.strip_prefix("command:") {
            let tools = granted_tools(CommandTools::shipped(name)?, &grants, target, config)?;
            tools.into_tools().into_iter().for_each(|tool| opened.add(tool));
        } else if is_address(target) {
            let token = token.as_ref().filter(|_| takes_token(target));
            let mut server = mcp::of_address(target, token, server_level)?;
            let directory = working_directory(trail.directory());
            server.check = check_of(of_server(target, directory.as_deref(), &grants), config, trail)?;
            server.grants = grants;
            if server.image.is_none() && server.grants.workdir.is_none() {
                server.grants.workdir = directory;
            }
            servers.push(server);
        } else if is_description(target) {
            let path = Path::new(target);
            let text = trusted(path)?;
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            match kind(path, &text).as_deref() {
                Some("agent") => {
                    opened.add_file(open_agent(path, &text, config, access, trail).await?);
                }
                Some("flow") => opened.add_file(open_flow(path, config, access, trail).await?),
                Some("gateway") if is_toml => {
                    gateways.push(gateway::followed(path, &text, config, access.level, trail, tool).await?);
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
        programs(&mut opened, paths, &grants, config, access, sampling, trail).await?;
    }
    let upstream = trail.upstream();
    let is_only = servers.len() == 1 && opened.is_empty();
    for mut server in servers {
        if let Some(upstream) = upstream {
            let own = &upstream.name;
            server.name = if is_only { own.to_string() } else { format!("{own}/{}", server.name) };
        }
        let client = mcp::connect(server, config, upstream.map(|upstream| upstream.start_timeout)).await?;
        let name = client.name();
        opened.warnings.extend(client.problems().into_iter().map(|problem| format!("{name}: {problem}")));
        let name = name.to_owned();
        opened.add_source(client, &name).await?;
    }
    opened.join(gateways, wait).await?;
    Ok(opened)
}

/// Whether a target is a program or server of this host, which takes grants.
pub(crate) fn takes_grants(target: &str) -> bool {
    if is_address(target) {
        return !takes_token(target);
    }
    if target.starts_with("command:") {
        return true;
    }
    if is_description(target) {
        let path = Path::new(target);
        let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).unwrap_or_default();
        return !matches!(kind(path, &text).as_deref(), Some("agent" | "flow" | "gateway"));
    }
    !is_built_in(target)
}

/// Whether a target runs code, which takes readable paths.
pub(crate) fn runs_code(target: &str) -> bool {
    let name = target.strip_prefix("builtin:").unwrap_or(target);
    ["builtin", "run_code", "run_command", "code_execution"].contains(&name)
}

/// Whether tools of a target work in the directory of the command.
///
/// Programs and servers have a directory of their own or none, and some built-in tools use no files.
pub(crate) fn works_in_directory(target: &str) -> bool {
    let name = target.strip_prefix("builtin:").unwrap_or(target);
    match builtin_tool(&toolpost_tools::builtin(), name) {
        Some(tool) => tool.spec().group.as_deref().is_none_or(|group| !WITHOUT_FILES.contains(&group)),
        None => is_built_in(target) || is_description(target),
    }
}

/// Rejects grants of options unless exactly one target takes them. Code takes readable paths besides.
pub(crate) fn check_takers<'a>(
    targets: impl Iterator<Item = &'a str>,
    granted: &Grants,
) -> Result<(), Failure> {
    if granted.is_empty() {
        return Ok(());
    }
    let targets: Vec<&str> = targets.collect();
    let mut for_code = Grants::default();
    for_code.readable.clone_from(&granted.readable);
    if *granted == for_code
        && targets.iter().any(|target| runs_code(target))
        && !targets.iter().any(|target| takes_grants(target))
    {
        return Ok(());
    }
    match (targets.iter().filter(|target| takes_grants(target)).count(), targets.as_slice()) {
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

fn no_taker(target: &str) -> Failure {
    Failure::usage(format!("`{target}` takes no grants; only programs and servers of this host do"))
        .hint("`toolpost help grants` lists them.")
}

/// Wrapped programs with their own grants and those of the target.
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

/// Whether a target names built-in tools, whose names are reserved.
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
    // It replaces a hosted tool, so only its name selects it.
    let stand_in =
        || (name == CODE_EXECUTION).then(|| Arc::new(toolpost_tools::code_execution()) as Arc<dyn Tool>);
    builtin.iter().find(known).map(Arc::clone).or_else(stand_in)
}

/// Reads a trusted description.
pub(crate) fn trusted(path: &Path) -> Result<String, Failure> {
    if let Err(error) = path.metadata() {
        return Err(missing("the description", path, &error));
    }
    trusted_as("the description", "It names programs to start, or models to ask.", path)
}

/// Opens the tools of a description.
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

/// Parses a trusted agent file and opens its targets. Paths are relative to its directory.
fn open_agent<'a>(
    path: &'a Path,
    text: &'a str,
    config: &'a Config,
    access: ProgramAccess,
    trail: &'a Trail,
) -> BoxFuture<'a, Result<ToolFile, Failure>> {
    Box::pin(async move {
        let trail = trail.and(path)?;
        let Description { spec, settings, targets, names_model } = Description::read(path, text, config)?;
        let config = config.with_overrides(&excluded(names_model), settings);
        let opened = open_from(&targets, &config, access, true, &Grants::default(), &trail).await?;
        let path = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let work = FileWork::Agent { names_model };
        Ok(ToolFile { path, spec: Arc::new(spec), config, work, opened })
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
        let opened = open_from(&targets, config, access, true, &Grants::default(), &trail).await?;
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

async fn programs(
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
        if grants.is_empty() { Granted::default() } else { grants::resolve(grants, &name, config)? };
    let granted = granted.with_layers(paths::layers()).with_run_changes(crate::run_changes::current());
    builder = builder.granted(granted.live(access.live));
    for path in paths {
        builder = builder.path(path);
    }
    if let Some(level) = access.level.or_else(|| config.choice("level")) {
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
    let builtin = toolpost_tools::builtin();
    for target in split(word) {
        let target = config.target(target).unwrap_or(target);
        if is_built_in(target) || is_address(target) {
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

fn unknown(target: &str, builtin: &[Arc<dyn Tool>], config: &Config) -> Failure {
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
        None => failure.hint(
            "`toolpost help targets` lists the kinds of targets; `toolpost tools` lists the built-in tools.",
        ),
    }
}
