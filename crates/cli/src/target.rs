//! The grammar of targets: where tools come from.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml_edit::Document;
use toolpost_core::{Secret, Tool, ToolGroup as _, ToolSource, ToolSpec, did_you_mean};
use toolpost_exec::client::Executables;
use toolpost_exec::command::{CommandTools, SHIPPED};
use toolpost_mcp::client::Client;
use toolpost_sandbox::Level;
use toolpost_toolbox::sources::Gateway;
use toolpost_toolbox::{Builder, Toolbox};

use crate::config::trust::{Pins, Standing};
use crate::config::{Config, places};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway;
use crate::mcp::{self, Server};

/// The largest description that is read, in bytes.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// The tool that runs code in this host's sandbox, as providers do in theirs.
pub(crate) const CODE_EXECUTION: &str = "code_execution";

/// What targets name.
#[derive(Default)]
pub(crate) struct Opened {
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    /// The programs, if there are some.
    pub(crate) programs: Option<Arc<Executables>>,
    /// The servers of the Model Context Protocol.
    pub(crate) servers: Vec<Arc<Client>>,
    /// The gateways, each with many targets behind it.
    gateways: Vec<Arc<Gateway>>,
    /// What programs, servers and gateways have.
    listed: Vec<Arc<ToolSpec>>,
    /// What is wrong with some of them.
    pub(crate) warnings: Vec<String>,
}

impl Opened {
    /// What has resources and prompts of its own.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        let programs = self.programs.iter().map(|programs| Arc::clone(programs) as Arc<dyn ToolSource>);
        let servers = self.servers.iter().map(|server| Arc::clone(server) as Arc<dyn ToolSource>);
        programs.chain(servers).chain(self.gateways.iter().map(|gateway| gateway.source())).collect()
    }

    /// What is known of the tools, in the order of the targets; those of programs, servers and gateways come last.
    pub(crate) fn specs(&self) -> Vec<Arc<ToolSpec>> {
        self.tools.iter().map(|tool| tool.spec()).chain(self.listed.iter().cloned()).collect()
    }

    /// A toolbox of them.
    pub(crate) async fn into_toolbox(self, mut builder: Builder) -> Result<Toolbox, Failure> {
        let sources = self.sources();
        for tool in self.tools {
            builder = builder.tool(tool);
        }
        let toolbox = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
        for source in sources {
            toolbox.add_source(source).await?;
        }
        Ok(toolbox)
    }

    /// The source, if there is one and nothing else.
    pub(crate) fn only_source(&self) -> Option<Arc<dyn ToolSource>> {
        let mut sources = self.sources();
        let only = sources.pop()?;
        (self.tools.is_empty() && sources.is_empty()).then_some(only)
    }

    /// Adds a gateway, and says which of its upstreams are away.
    pub(crate) async fn join(&mut self, gateway: Arc<Gateway>) -> Result<(), Failure> {
        self.listed.extend(gateway.source().list().await?);
        self.warnings.extend(gateway.status().iter().filter_map(gateway::warning));
        self.gateways.push(gateway);
        Ok(())
    }

    fn add(&mut self, tool: Arc<dyn Tool>) {
        let name = &tool.spec().name;
        if !self.tools.iter().any(|known| known.spec().name == *name) {
            self.tools.push(tool);
        }
    }
}

/// Opens targets, each tool once. Programs are asked what they have, in the sandbox. `sampling` says whether there is a
/// model that completes prompts for them.
pub(crate) async fn open(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
) -> Result<Opened, Failure> {
    open_with(targets, config, level, sampling, None).await
}

/// The same, with a token for the one server among them that has an address.
pub(crate) async fn open_with(
    targets: &[String],
    config: &Config,
    level: Option<Level>,
    sampling: bool,
    token: Option<Secret>,
) -> Result<Opened, Failure> {
    let builtin = toolpost_tools::builtin();
    let mut opened = Opened::default();
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut servers: Vec<Server> = Vec::new();
    let targets: Vec<&str> = targets.iter().flat_map(|targets| split(targets)).collect();
    let targets: Vec<&str> =
        targets.into_iter().map(|target| config.target(target).unwrap_or(target)).collect();
    let addresses = targets.iter().filter(|target| mcp::takes_token(target)).count();
    if token.is_some() && addresses != 1 {
        return Err(Failure::usage(format!("the token is for one server, and {addresses} have an address"))
            .hint("Give the others their headers in `.mcp.json`; see `toolpost help targets`."));
    }
    let server_level = level.or_else(|| config.choice("level")).unwrap_or(Level::Standard);
    for target in targets {
        if target == "builtin" {
            for tool in &builtin {
                opened.add(Arc::clone(tool));
            }
        } else if let Some(tool) = builtin_tool(&builtin, target.strip_prefix("builtin:").unwrap_or(target)) {
            opened.add(tool);
        } else if let Some(name) = target.strip_prefix("command:") {
            CommandTools::shipped(name)?.into_tools().into_iter().for_each(|tool| opened.add(tool));
        } else if mcp::is_address(target) {
            let token = token.as_ref().filter(|_| mcp::takes_token(target));
            servers.push(mcp::of_address(target, token, server_level)?);
        } else if Path::new(target).extension().is_some_and(|extension| extension == "toml") {
            let path = Path::new(target);
            let text = trusted(path)?;
            if gateway::is_gateway(&text) {
                opened.join(gateway::followed(path, &text, config, level).await?).await?;
            } else {
                described(path, &text)?.into_iter().for_each(|tool| opened.add(tool));
            }
        } else if target.contains('/') {
            let path = Path::new(target);
            paths.push(path.canonicalize().map_err(|error| Failure::file("the program", path, &error))?);
        } else if let Some(server) = mcp::files::named(target, server_level)? {
            servers.push(server);
        } else {
            return Err(unknown(target, &builtin, config));
        }
    }
    if !paths.is_empty() {
        programs(&mut opened, paths, config, level, sampling).await?;
    }
    for server in servers {
        let client = mcp::connect(server, config).await?;
        let name = client.name();
        opened.warnings.extend(client.problems().into_iter().map(|problem| format!("{name}: {problem}")));
        opened.listed.extend(client.list().await?);
        opened.servers.push(client);
    }
    Ok(opened)
}

/// The targets of a word: several, separated by commas, unless it is an address or a command.
pub(crate) fn split(word: &str) -> Vec<&str> {
    if mcp::is_address(word.trim()) { vec![word.trim()] } else { word.split(',').map(str::trim).collect() }
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

/// The content of a description that the operator trusts.
pub(crate) fn trusted(path: &Path) -> Result<String, Failure> {
    let wrong = |error: &io::Error| Failure::file("the description", path, error);
    // Read once: what is trusted is what is used.
    let text = crate::regular_file::read_text(path, MAX_DESCRIPTION).map_err(|error| wrong(&error))?;
    match Pins::load()?.standing_of(path, text.as_bytes()) {
        Standing::Trusted => Ok(text),
        standing => {
            let why = if standing == Standing::Changed {
                "has changed since it was trusted"
            } else {
                "is not trusted"
            };
            Err(Failure::new(
                Exit::Denied,
                "PERMISSION",
                format!("the description `{}` {why}", path.display()),
            )
            .hint(format!("It names programs to start. Read it; then `toolpost trust {}`.", path.display())))
        }
    }
}

/// The tools of a description.
fn described(path: &Path, text: &str) -> Result<Vec<Arc<dyn Tool>>, Failure> {
    let document = Document::parse(text).ok();
    match document.as_ref().and_then(|document| document.get("kind")?.as_str()) {
        Some("command") | None => {
            let tools = CommandTools::from_toml(text, path.display().to_string())
                .map_err(|error| Failure::usage(error.to_string()))?;
            Ok(tools.into_tools())
        }
        Some(other) => {
            Err(Failure::usage(format!("the description `{}` is of the kind `{other}`", path.display()))
                .hint("This version knows kind = \"command\" and \"gateway\"."))
        }
    }
}

async fn programs(
    opened: &mut Opened,
    paths: Vec<PathBuf>,
    config: &Config,
    level: Option<Level>,
    sampling: bool,
) -> Result<(), Failure> {
    let mut builder = Executables::builder().sampling(sampling);
    let only = paths.len() == 1 && opened.tools.is_empty();
    for path in paths {
        builder = builder.path(path);
    }
    if let Some(level) = level.or_else(|| config.choice("level")) {
        builder = builder.level(level);
    }
    if let Some(path) = env::get_os("PATH") {
        builder = builder.search_path(path);
    }
    if let Some(folder) = places::cache() {
        builder = builder.cache(folder);
    }
    let programs = Arc::new(builder.discover().await);
    opened.listed = programs.list().await?;
    opened.warnings = programs.diagnostics().iter().map(ToString::to_string).collect();
    if opened.listed.is_empty() && only {
        let failure = Failure::new(Exit::Unreachable, "DEPENDENCY", "the program gave no tools");
        return Err(opened.warnings.iter().fold(failure, Failure::cause)
            .hint("A tool program answers `--discover`; for any other program write a description, see `toolpost help targets`."));
    }
    opened.programs = Some(programs);
    Ok(())
}

fn unknown(target: &str, builtin: &[Arc<dyn Tool>], config: &Config) -> Failure {
    let failure = Failure::usage(format!("there is no target `{target}`"));
    if Path::new(target).is_file() {
        return failure.hint(format!("There is a file of that name: write `./{target}`."));
    }
    if target.starts_with("hosted:") {
        return failure.hint("Tools of a provider are for the models of `toolpost run` and `toolpost chat`.");
    }
    let name = target.strip_prefix("builtin:").unwrap_or(target);
    let names: Vec<String> = builtin.iter().map(|tool| tool.spec().name.clone()).collect();
    let shipped = SHIPPED.map(|(name, _)| format!("command:{name}"));
    let servers = mcp::files::names();
    let known =
        names.iter().chain(&shipped).chain(&servers).map(String::as_str).chain(["builtin", CODE_EXECUTION]);
    match did_you_mean(name, known.chain(config.targets().map(|(name, ..)| name))) {
        Some(hint) => failure.hint(hint),
        None => failure
            .hint("`toolpost help targets` says what can be named; `toolpost tools` lists what is built in."),
    }
}
