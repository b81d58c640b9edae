//! Opened targets: tools, agents and sources.

use std::path::PathBuf;
use std::sync::Arc;

use toolpost_core::{Tool, ToolSource, ToolSpec};
use toolpost_flow::Plan;
use toolpost_gateway::{Gateway, MissingUpstream};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};

use crate::config::Config;
use crate::config::reference::Named;
use crate::failure::Failure;
use crate::gateway::missing;
use crate::gateway::renames::{Distinct, Starting};
use crate::target::Wait;

/// Opened targets.
#[derive(Default)]
pub(crate) struct Opened {
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    /// The agents and flows of files, which become tools when their permissions are known.
    pub(crate) files: Vec<ToolFile>,
    /// Programs, MCP servers and gateways.
    sources: Vec<Arc<dyn ToolSource>>,
    /// The tools of the sources.
    listed: Vec<Arc<ToolSpec>>,
    /// Warnings about the targets.
    pub(crate) warnings: Vec<String>,
    /// Maximum number of calls at once; by default that of a toolbox.
    pub(crate) max_parallel: Option<usize>,
    /// Host paths that the built-in code tools may read.
    pub(crate) readable: Vec<PathBuf>,
    /// Programs with grants, whose code no tool may change.
    pub(crate) granted: Vec<Named>,
    /// Whether gateways may lack tools other than the one of [`Wait::Tool`].
    pub(crate) is_partial: bool,
    /// Upstreams of gateways without tools; see [`Wait`].
    pub(crate) missing: Vec<MissingUpstream>,
    /// Gateways whose upstreams still start; see [`Wait::Nothing`].
    pub(crate) starting: Vec<Arc<Gateway>>,
    /// The gateways as one source.
    pub(crate) merged: Option<Starting>,
}

impl Opened {
    /// Whether nothing was opened yet.
    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.files.is_empty() && self.sources.is_empty()
    }

    /// Sources that may have resources and prompts.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources.clone()
    }

    /// The specifications of all tools in target order; agents and sources come last.
    pub(crate) fn specs(&self) -> Vec<Arc<ToolSpec>> {
        let files = self.files.iter().map(|file| Arc::clone(&file.spec));
        self.tools.iter().map(|tool| tool.spec()).chain(files).chain(self.listed.iter().cloned()).collect()
    }

    /// The names of all tools.
    pub(crate) fn names(&self) -> Vec<String> {
        let specs = self.specs();
        let names = |spec: &Arc<ToolSpec>| {
            let aliases = spec.aliases.iter().map(|alias| alias.name.clone());
            std::iter::once(spec.name.clone()).chain(aliases).collect::<Vec<_>>()
        };
        specs.iter().flat_map(names).collect()
    }

    /// The names of all tools, with those of agents' tools.
    pub(crate) fn all_names(&self) -> Vec<String> {
        let inner = self.files.iter().flat_map(|file| file.opened.all_names());
        self.names().into_iter().chain(inner).collect()
    }

    /// Builds a toolbox.
    pub(crate) async fn into_toolbox(self, mut builder: ToolboxBuilder) -> Result<Toolbox, Failure> {
        for tool in self.tools {
            builder = builder.tool(tool);
        }
        let toolbox = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
        for source in self.sources {
            toolbox.add_source(source).await?;
        }
        if let Some(Starting { source, .. }) = self.merged {
            toolbox.add_starting_source(source);
        }
        Ok(toolbox)
    }

    /// The source, if it is the only target.
    pub(crate) fn only_source(&self) -> Option<Arc<dyn ToolSource>> {
        let [only] = self.sources.as_slice() else { return None };
        (self.tools.is_empty() && self.files.is_empty()).then(|| Arc::clone(only))
    }

    /// Adds a source; a tool with a taken name gets the source's namespace.
    pub(crate) async fn add_source(
        &mut self,
        source: Arc<dyn ToolSource>,
        name: &str,
    ) -> Result<(), Failure> {
        let taken = self.names().into_iter().collect();
        let distinct = Distinct::new(source, name, &taken).await?;
        self.listed.extend(distinct.listed);
        self.warnings.extend(distinct.warnings);
        self.sources.push(distinct.source);
        Ok(())
    }

    /// Adds gateways, and waits for their upstreams.
    pub(super) async fn join(&mut self, gateways: Vec<Arc<Gateway>>, wait: Wait<'_>) -> Result<(), Failure> {
        if wait == Wait::Nothing {
            self.starting.extend(gateways);
            return Ok(());
        }
        for gateway in gateways {
            let missing = match wait {
                Wait::Tool(tool) => {
                    self.is_partial = true;
                    gateway.settled_for(tool).await?
                }
                _ => gateway.settled().await,
            };
            let source = gateway.source();
            let name = source.name().to_owned();
            self.add_source(source, &name).await?;
            self.missing.extend(missing);
        }
        if wait != Wait::Required {
            return Ok(());
        }
        let (required, optional): (Vec<_>, Vec<_>) = self.missing.drain(..).partition(|one| one.required);
        if !required.is_empty() {
            let option = "`required = false` in an upstream's entry starts agents without it.";
            return Err(missing::failure(&required).hint(option));
        }
        self.warnings.extend(optional.iter().map(missing::warning));
        Ok(())
    }

    /// Adds an agent or a flow of a file, each file once.
    pub(crate) fn add_file(&mut self, file: ToolFile) {
        if !self.files.iter().any(|known| known.path == file.path) {
            self.warnings.extend(file.opened.warnings.iter().cloned());
            self.files.push(file);
        }
    }

    pub(crate) fn add(&mut self, tool: Arc<dyn Tool>) {
        let name = &tool.spec().name;
        if !self.tools.iter().any(|known| known.spec().name == *name) {
            self.tools.push(tool);
        }
    }
}

/// An agent or a flow of a file, before it becomes a tool.
pub(crate) struct ToolFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// The specification of its tool.
    pub(crate) spec: Arc<ToolSpec>,
    /// Its settings.
    pub(crate) config: Config,
    pub(crate) work: FileWork,
    /// Its opened targets.
    pub(crate) opened: Opened,
}

/// The behavior of a file with tools of its own.
pub(crate) enum FileWork {
    Agent {
        /// Whether the file names the model; otherwise the caller's is used.
        names_model: bool,
    },
    Flow(Arc<Plan>),
}
