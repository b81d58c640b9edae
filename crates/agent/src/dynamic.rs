//! The tools that a model is offered: all of a toolbox, or the loaded ones.

use std::sync::Arc;

use toolpost_core::{Call, Port, Reply, ToolError, ToolSource, ToolSpec};
use toolpost_gateway::catalog::{DiscoveryMode, DynamicSession, DynamicTools, OfferedTool, ToolSession};
use toolpost_llm::{Feature, Model, ToolDefinition};
use toolpost_toolbox::Toolbox;

use crate::port::ModelPort;

/// The search for tools that are loaded on demand.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Dynamic {
    /// All tools are offered.
    #[default]
    Off,
    /// The provider searches if the model is known to support it, else as [`Dynamic::Browse`].
    Auto,
    /// The provider searches: each request has all tools, and the model sees those that it found.
    ///
    /// A model without a search ends a run before its first request; the error lists the models with one.
    Native,
    /// The model searches by keywords with `browse_toolkit`.
    Browse,
    /// The model states an intent with `find_tools`, and this model, for example a cheaper one, picks tools.
    Find(Arc<dyn Model>),
}

impl From<bool> for Dynamic {
    fn from(loads: bool) -> Self {
        if loads { Self::Auto } else { Self::Off }
    }
}

impl From<Arc<dyn Model>> for Dynamic {
    fn from(model: Arc<dyn Model>) -> Self {
        Self::Find(model)
    }
}

impl<M: Model + 'static> From<Arc<M>> for Dynamic {
    fn from(model: Arc<M>) -> Self {
        Self::Find(model)
    }
}

/// The settings of an agent for its tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offering {
    pub(crate) dynamic: Dynamic,
    pub(crate) core: Vec<String>,
    pub(crate) compact: bool,
    pub(crate) session: Option<ToolSession>,
    /// Built with the agent, so that all runs share its index.
    tools: Option<DynamicTools>,
}

impl Offering {
    /// The model that picks tools.
    pub(crate) fn finder(&self) -> Option<&Arc<dyn Model>> {
        match &self.dynamic {
            Dynamic::Find(model) => Some(model),
            _ => None,
        }
    }

    pub(crate) fn build(&mut self, toolbox: &Toolbox, model: &dyn Model) {
        let searches = || model.info().and_then(|info| info.has(Feature::ToolSearch)) == Some(true);
        let discovery = match self.dynamic {
            Dynamic::Off => return,
            Dynamic::Native => DiscoveryMode::Native,
            Dynamic::Auto if searches() => DiscoveryMode::Native,
            Dynamic::Auto | Dynamic::Browse => DiscoveryMode::Browse,
            Dynamic::Find(_) => DiscoveryMode::Find,
        };
        self.tools = Some(DynamicTools::new(toolbox, discovery, self.core.clone(), self.compact));
    }
}

/// The tools that one run offers.
pub(crate) struct Offer<'a> {
    toolbox: &'a Toolbox,
    offering: &'a Offering,
    /// The loaded tools, if tools are loaded on demand.
    dynamic: Option<DynamicSession>,
    /// The port of `find_tools`, whose completions pick tools.
    finder: Option<Arc<ModelPort>>,
    /// The revision of the latest offer.
    seen: Option<(u64, u64)>,
}

impl<'a> Offer<'a> {
    /// The offer of a run before its tools are listed. The finder is the port of [`Offering::finder`].
    pub(crate) fn new(toolbox: &'a Toolbox, offering: &'a Offering, finder: Option<Arc<ModelPort>>) -> Self {
        Self { toolbox, offering, dynamic: None, finder, seen: None }
    }

    /// Lists the tools.
    pub(crate) async fn list(&self) -> Result<Vec<Arc<ToolSpec>>, ToolError> {
        match &self.offering.tools {
            Some(tools) => tools.catalog().refresh().await.map(|()| Vec::new()),
            None => ToolSource::list(self.toolbox).await,
        }
    }

    /// The definitions at the start of a run, and notices. `listed` has the tools if they could be listed.
    pub(crate) fn begin(
        &mut self,
        listed: Option<Vec<Arc<ToolSpec>>>,
        session: Option<ToolSession>,
    ) -> (Arc<[ToolDefinition]>, Vec<String>) {
        let Some(tools) = &self.offering.tools else {
            let specs = listed.unwrap_or_else(|| self.toolbox.specs());
            let offered = specs.into_iter().map(|spec| {
                let compact = self.offering.compact && !self.offering.core.contains(&spec.name);
                OfferedTool { spec, compact, deferred: false }
            });
            return (definitions(offered), Vec::new());
        };
        let session = session.or_else(|| self.offering.session.clone()).unwrap_or_default();
        let (dynamic, notices) = tools.open(session);
        self.dynamic = Some(dynamic);
        (self.changed().unwrap_or_default(), notices)
    }

    /// The definitions, if they changed since the last offer.
    pub(crate) fn changed(&mut self) -> Option<Arc<[ToolDefinition]>> {
        let dynamic = self.dynamic.as_ref()?;
        // The revision comes first, so that a later change shows in the next offer.
        let revision = dynamic.revision();
        if self.seen.replace(revision) == Some(revision) {
            return None;
        }
        Some(definitions(dynamic.offered()))
    }

    /// Runs a call.
    pub(crate) async fn call(&self, mut call: Call) -> Reply {
        match &self.dynamic {
            Some(dynamic) => {
                let finds = dynamic.discovery_tool() == Some(call.tool.as_str());
                if let Some(finder) = self.finder.as_ref().filter(|_| finds) {
                    call.port = Arc::clone(finder) as Arc<dyn Port>;
                }
                dynamic.call(call).await
            }
            None => self.toolbox.call(call).await,
        }
    }

    /// The tool of this name, meta-tools included.
    pub(crate) fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.dynamic.as_ref().map_or_else(|| self.toolbox.spec(name), |dynamic| dynamic.spec(name))
    }

    /// Whether a tool of this name exists.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.spec(name).is_some()
    }

    /// The port of `find_tools`.
    pub(crate) fn finder(&self) -> Option<&ModelPort> {
        self.finder.as_deref()
    }

    /// The loaded tools.
    pub(crate) fn session(&self) -> Option<&ToolSession> {
        self.dynamic.as_ref().map(DynamicSession::session)
    }
}

fn definitions(offered: impl IntoIterator<Item = OfferedTool>) -> Arc<[ToolDefinition]> {
    let definition = |tool: OfferedTool| {
        let schema = tool.input_schema();
        let definition = ToolDefinition::new(&tool.spec.name, &tool.spec.description, &schema);
        ToolDefinition { deferred: tool.deferred, sensitive: tool.spec.sensitive.clone(), ..definition }
    };
    offered.into_iter().map(definition).collect()
}
