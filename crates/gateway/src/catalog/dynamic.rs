//! Tools that are loaded while a conversation goes on.

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

/// How a model finds tools that are not loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// It searches by words: `browse_toolkit`.
    #[default]
    Browse,
    /// It says what it wants to do, and another model picks: `find_tools`.
    Find,
    /// Its provider searches: there are no meta-tools, and all tools are offered, deferred but for the core ones and those
    /// that the session has loaded before.
    Native,
}

impl Discovery {
    /// The meta-tool by which tools are found, and those that are not offered.
    fn tools(self) -> (Option<&'static str>, &'static [&'static str]) {
        match self {
            Self::Browse => (Some("browse_toolkit"), &["find_tools"]),
            Self::Find => (Some("find_tools"), &["browse_toolkit"]),
            Self::Native => (None, &META_TOOL_NAMES),
        }
    }

    /// Whether a name is that of a meta-tool here, offered or not.
    fn is_meta_tool(self, name: &str) -> bool {
        self != Self::Native && is_meta_tool(name)
    }
}

/// A toolbox of which conversations load what they need. Immutable and cheap to clone; many conversations can use it
/// at once, each with its own [`DynamicSession`].
#[derive(Clone)]
pub struct DynamicTools(Arc<Setup>);

struct Setup {
    catalog: Catalog,
    /// Holds the meta-tools, so that their calls take the one path and leave records as all others do, and nobody else
    /// is offered them.
    meta: Toolbox,
    discovery: Discovery,
    core: Vec<String>,
    compact: bool,
}

impl DynamicTools {
    /// The tools of a toolbox, found in one of three ways; the `core` ones are always offered. With `compact`, all other
    /// definitions are always without descriptions and defaults of their parameters.
    pub fn new(toolbox: &Toolbox, discovery: Discovery, core: Vec<String>, compact: bool) -> Self {
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

    /// Where the tools are found.
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// Takes a session up: its core and meta-tools are loaded, beyond all limits, and can not be unloaded. Returns what
    /// is wrong with the set-up as sentences, for the record of the run.
    pub fn open(&self, session: ToolSession) -> (DynamicSession, Vec<String>) {
        let setup = &*self.0;
        let mut notices = Vec::new();
        let mut own: Vec<(String, u64)> = Vec::new();
        for name in &setup.core {
            match setup.catalog.resolve(name) {
                // Whoever names it twice, by a name and by an alias, gets it once.
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
                notices.push(format!(
                    "the toolbox's own tool `{name}` is not offered: a meta-tool has its name"
                ));
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

/// One conversation's view of [`DynamicTools`]. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct DynamicSession(Arc<Opened>);

struct Opened {
    tools: DynamicTools,
    session: ToolSession,
    /// The core and meta-tools, in the order in which they are offered.
    own: Vec<String>,
    discovery: Option<&'static str>,
    /// The tools that were ever deferred, in the order of their coming.
    deferred: Mutex<Vec<String>>,
}

/// A tool as a model is to be told of it.
#[derive(Clone, Debug)]
pub struct OfferedTool {
    /// All that is known of it.
    pub spec: Arc<ToolSpec>,
    /// Whether its definition is to be compact.
    pub compact: bool,
    /// Whether the model is to find it by its provider's own search.
    pub deferred: bool,
}

impl OfferedTool {
    /// The JSON Schema of its arguments, without descriptions and defaults of its parts if it is to be compact.
    pub fn input_schema(&self) -> Cow<'_, Value> {
        let schema = self.spec.input_schema.as_value();
        if self.compact { Cow::Owned(compact_schema(schema)) } else { Cow::Borrowed(schema) }
    }
}

impl DynamicSession {
    /// What is loaded.
    pub fn session(&self) -> &ToolSession {
        &self.0.session
    }

    /// Where the tools are found.
    pub fn catalog(&self) -> &Catalog {
        self.0.tools.catalog()
    }

    /// The meta-tool by which tools are found, `browse_toolkit` or `find_tools`; none where the provider searches.
    pub fn discovery_tool(&self) -> Option<&'static str> {
        self.0.discovery
    }

    /// Changes when other tools, or the same in another form, are to be offered.
    pub fn revision(&self) -> (u64, u64) {
        let toolbox = self.catalog().toolbox();
        (self.0.session.revision(), toolpost_core::ToolSource::generation(toolbox))
    }

    /// The tools to offer now: core tools, meta-tools, and then what was loaded, in the order of its loading. So the
    /// beginning of the list stays the same for a provider's prompt cache. Core and meta-tools are never compact.
    ///
    /// Where the provider searches, all others follow, deferred, in the order of their coming; a tool that is made when it
    /// is needed is made then, and one that fails is omitted.
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
        // A lazy tool of a session that was saved is made now; a missing one is omitted until it returns.
        let tool = |name: &String, compact: bool, deferred: bool| {
            Some(OfferedTool { spec: setup.catalog.resolve(name).ok()?, compact, deferred })
        };
        let mut offered: Vec<_> = own.chain(loaded.filter_map(|name| tool(name, compact, false))).collect();
        if setup.discovery == Discovery::Native {
            let shown: HashSet<String> = offered.iter().map(|tool| tool.spec.name.clone()).collect();
            let deferred = self.deferred();
            let deferred = deferred.iter().filter(|name| !shown.contains(*name));
            offered.extend(deferred.filter_map(|name| tool(name, setup.compact, true)));
        }
        offered
    }

    /// The names of all tools, those that came later at the end.
    fn deferred(&self) -> Vec<String> {
        let mut names = self.0.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let known: HashSet<String> = names.iter().cloned().collect();
        let entries = self.catalog().entries();
        names
            .extend(entries.iter().map(|entry| entry.name().to_owned()).filter(|name| !known.contains(name)));
        names.clone()
    }

    /// Makes a call: of a meta-tool for this session, of all others in the toolbox. Calls of tools that there are count
    /// in the session's analytics. Meta-tools also run when the call asks for mock answers, so that what they load is
    /// there.
    pub async fn call(&self, mut call: Call) -> Reply {
        let setup = &*self.0.tools.0;
        let reply = if setup.discovery.is_meta_tool(&call.tool) {
            call.values.provide(self.clone());
            call.options.mock = false;
            setup.meta.call(call).await
        } else {
            setup.catalog.toolbox().call(call).await
        };
        // By the name that it has, whatever other one it was called by.
        if self.has_tool(&reply.record.tool) {
            self.0.session.record_call(&reply.record.tool);
        }
        reply
    }

    /// The tool of this name, loaded or not.
    pub fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        if self.0.tools.0.discovery.is_meta_tool(name) {
            self.0.own.iter().any(|own| own == name).then(|| self.0.tools.0.meta.spec(name)).flatten()
        } else {
            self.catalog().toolbox().spec(name)
        }
    }

    /// Whether there is a tool of this name, loaded or not.
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
