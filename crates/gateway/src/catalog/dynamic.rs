//! Dynamic loading: conversations load the tools that they need.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use toolpost_core::{Call, Reply, ToolSpec, did_you_mean};

use super::definition::{compact_schema, definition_tokens};
use super::meta::{META_TOOL_NAMES, is_meta_tool, meta_tools};
use super::{Catalog, ToolSession};
use toolpost_toolbox::Toolbox;

/// The search for tools that are not loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// The model searches by words: `browse_toolkit`.
    #[default]
    Browse,
    /// The model states its intent, and another model picks tools: `find_tools`.
    Find,
    /// The provider searches, without meta-tools. All tools are offered; all but the core and loaded tools are deferred.
    Native,
}

impl DiscoveryMode {
    /// The meta-tool for discovery, and the meta-tools that are not offered.
    fn tools(self) -> (Option<&'static str>, &'static [&'static str]) {
        match self {
            Self::Browse => (Some("browse_toolkit"), &["find_tools"]),
            Self::Find => (Some("find_tools"), &["browse_toolkit"]),
            Self::Native => (None, &META_TOOL_NAMES),
        }
    }

    /// Whether a name is reserved for a meta-tool.
    fn is_meta_tool(self, name: &str) -> bool {
        self != Self::Native && is_meta_tool(name)
    }
}

/// A toolbox for dynamic loading. Immutable and cheap to clone; each conversation has its own [`DynamicSession`].
#[derive(Clone)]
pub struct DynamicTools(Arc<Setup>);

struct Setup {
    catalog: Catalog,
    /// The toolbox of the meta-tools, so that their calls take the call path and no other caller sees them.
    meta: Toolbox,
    discovery: DiscoveryMode,
    core: Vec<String>,
    compact: bool,
}

impl DynamicTools {
    /// Creates it for a toolbox. The `core` tools are always offered. With `compact`, all other definitions lack the
    /// descriptions and defaults of their parameters.
    pub fn new(toolbox: &Toolbox, discovery: DiscoveryMode, core: Vec<String>, compact: bool) -> Self {
        let meta = toolbox.sibling("meta");
        let (_, never) = discovery.tools();
        for tool in meta_tools().into_iter().filter(|tool| !never.contains(&tool.spec().name.as_str())) {
            if let Err(error) = meta.add(tool) {
                tracing::error!("{error}");
            }
        }
        let mut seen = HashSet::new();
        let is_own = |name: &String| seen.insert(name.clone()) && !discovery.is_meta_tool(name);
        let core = core.into_iter().filter(is_own).collect();
        Self(Arc::new(Setup { catalog: Catalog::new(toolbox), meta, discovery, core, compact }))
    }

    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// Opens a session. Core and meta-tools are loaded beyond all limits and cannot be unloaded. Also returns notices about
    /// the configuration, for the record of the run.
    pub fn open(&self, session: ToolSession) -> (DynamicSession, Vec<String>) {
        let setup = &*self.0;
        let mut notices = Vec::new();
        let mut own: Vec<(String, u64)> = Vec::new();
        for name in &setup.core {
            match setup.catalog.resolve(name) {
                // A name and an alias can name the same tool.
                Ok(spec) if own.iter().any(|(known, _)| *known == spec.name) => {}
                Ok(spec) => own.push((spec.name.clone(), definition_tokens(&spec, false))),
                Err(error) => {
                    let similar = setup.catalog.similar_names(name);
                    let hint = did_you_mean(name, similar.iter().map(String::as_str)).unwrap_or_default();
                    notices.push(
                        format!("the core tool `{name}` is not offered: {} {hint}", error.message())
                            .trim_end()
                            .to_owned(),
                    );
                }
            }
        }
        let (offered, never) = setup.discovery.tools();
        for name in META_TOOL_NAMES.into_iter().filter(|name| !never.contains(name)) {
            if let Some(spec) = setup.meta.spec(name) {
                own.push((name.to_owned(), definition_tokens(&spec, false)));
            }
            if setup.catalog.entry(name).is_some() {
                notices
                    .push(format!("the toolbox's tool `{name}` is not offered: a meta-tool has this name"));
            }
        }
        session.begin(&own, never, |name| {
            setup.catalog.entry(name).map(|entry| entry.estimated_tokens()).filter(|tokens| *tokens > 0)
        });
        let own = own.into_iter().map(|(name, _)| name).collect();
        let opened =
            Opened { tools: self.clone(), session, own, discovery: offered, deferred: Mutex::default() };
        (DynamicSession(Arc::new(opened)), notices)
    }
}

impl fmt::Debug for DynamicTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicTools")
            .field("catalog", &self.0.catalog)
            .field("discovery", &self.0.discovery)
            .field("core", &self.0.core)
            .field("compact", &self.0.compact)
            .finish_non_exhaustive()
    }
}

/// One conversation's view of [`DynamicTools`]. Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct DynamicSession(Arc<Opened>);

struct Opened {
    tools: DynamicTools,
    session: ToolSession,
    /// The core and meta-tools, in the order of the offer.
    own: Vec<String>,
    discovery: Option<&'static str>,
    /// All tools that were ever deferred, in the order of registration.
    deferred: Mutex<Vec<String>>,
}

/// A tool to offer to a model.
#[derive(Clone, Debug)]
pub struct OfferedTool {
    /// The spec.
    pub spec: Arc<ToolSpec>,
    /// Whether its definition is compact.
    pub compact: bool,
    /// Whether the model finds it by the provider's search.
    pub deferred: bool,
}

impl OfferedTool {
    /// The JSON Schema of its arguments; compact without the descriptions and defaults of subschemas.
    pub fn input_schema(&self) -> Cow<'_, Value> {
        let schema = self.spec.input_schema.as_value();
        if self.compact { Cow::Owned(compact_schema(schema)) } else { Cow::Borrowed(schema) }
    }
}

impl DynamicSession {
    /// The session.
    pub fn session(&self) -> &ToolSession {
        &self.0.session
    }

    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        self.0.tools.catalog()
    }

    /// The meta-tool for discovery, `browse_toolkit` or `find_tools`; `None` if the provider searches.
    pub fn discovery_tool(&self) -> Option<&'static str> {
        self.0.discovery
    }

    /// Changes with the offer.
    pub fn revision(&self) -> (u64, u64) {
        let toolbox = self.catalog().toolbox();
        (self.0.session.revision(), toolpost_core::ToolSource::generation(toolbox))
    }

    /// The tools to offer now: core tools, meta-tools, then the loaded tools in load order. So a provider's prompt cache
    /// stays valid. Core and meta-tools are never compact.
    ///
    /// If the provider searches, all other tools follow, deferred, in the order of registration. Lazy tools are created;
    /// a tool that fails is omitted.
    pub fn offered(&self) -> Vec<OfferedTool> {
        let setup = &*self.0.tools.0;
        let toolbox = setup.catalog.toolbox();
        let compact = setup.compact || self.0.session.is_compact();
        let own = self.0.own.iter().filter_map(|name| {
            let is_meta = setup.discovery.is_meta_tool(name);
            let spec = if is_meta { setup.meta.spec(name) } else { toolbox.spec(name) };
            Some(OfferedTool { spec: spec?, compact: false, deferred: false })
        });
        let active = self.0.session.active_tools();
        let loaded = active.iter().filter(|name| !self.0.own.contains(name) && !is_meta_tool(name));
        // A lazy tool of a stored session is created now; a missing one is omitted until it returns.
        let tool = |name: &String, compact: bool, deferred: bool| {
            Some(OfferedTool { spec: setup.catalog.resolve(name).ok()?, compact, deferred })
        };
        let mut offered: Vec<_> = own.chain(loaded.filter_map(|name| tool(name, compact, false))).collect();
        if setup.discovery == DiscoveryMode::Native {
            let shown: HashSet<String> = offered.iter().map(|tool| tool.spec.name.clone()).collect();
            let deferred = self.deferred();
            let deferred = deferred.iter().filter(|name| !shown.contains(*name));
            offered.extend(deferred.filter_map(|name| tool(name, setup.compact, true)));
        }
        offered
    }

    /// The names of all tools. New tools are appended.
    fn deferred(&self) -> Vec<String> {
        let mut names = self.0.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let known: HashSet<String> = names.iter().cloned().collect();
        let entries = self.catalog().entries();
        names
            .extend(entries.iter().map(|entry| entry.name().to_owned()).filter(|name| !known.contains(name)));
        names.clone()
    }

    /// Runs a call: of a meta-tool for this session, or of a tool in the toolbox. Calls of known tools count in the
    /// analytics. Meta-tools run even if the call asks for mock results.
    pub async fn call(&self, mut call: Call) -> Reply {
        let setup = &*self.0.tools.0;
        let reply = if setup.discovery.is_meta_tool(&call.tool) {
            call.values.provide(self.clone());
            call.options.mock = false;
            setup.meta.call(call).await
        } else {
            setup.catalog.toolbox().call(call).await
        };
        // The record has the name of the tool, not an alias.
        if self.has_tool(&reply.record.tool) {
            self.0.session.record_call(&reply.record.tool);
        }
        reply
    }

    /// The spec of a tool, loaded or not.
    pub fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        if self.0.tools.0.discovery.is_meta_tool(name) {
            self.0.own.iter().any(|own| own == name).then(|| self.0.tools.0.meta.spec(name)).flatten()
        } else {
            self.catalog().toolbox().spec(name)
        }
    }

    /// Whether a tool of this name exists, loaded or not.
    pub fn has_tool(&self, name: &str) -> bool {
        self.spec(name).is_some()
    }
}

impl fmt::Debug for DynamicSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicSession")
            .field("tools", &self.0.tools)
            .field("session", &self.0.session)
            .finish_non_exhaustive()
    }
}
