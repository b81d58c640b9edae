//! The catalog of a toolbox: search over all its tools, and dynamic loading in conversations.

mod definition;
mod dynamic;
mod entry;
mod index;
mod meta;
mod search;
mod session;
mod text;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use serde::Serialize;
use toolpost_core::{SpecError, Tool, ToolError, ToolSource, ToolSpec, check_tool_name, suggestions};

pub use self::definition::{compact_schema, definition, definition_tokens};
pub use self::dynamic::{DiscoveryMode, DynamicSession, DynamicTools, OfferedTool};
pub use self::entry::{CatalogEntry, ToolSummary};
pub use self::meta::{META_TOOL_NAMES, is_meta_tool, meta_tools};
pub use self::search::{Found, Hit, Matching, Search};
pub use self::session::{Analytics, Budget, ToolSession, Unloaded};

use self::index::Index;
use toolpost_toolbox::Toolbox;

/// A searchable catalog of the tools of a toolbox and of its sources.
///
/// It follows the changes of the toolbox. Cheap to clone; all clones share their state.
///
/// ```
/// # use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
/// # use toolpost_gateway::catalog::{Catalog, Search};
/// # use toolpost_toolbox::Toolbox;
/// let spec = ToolSpec::new("send_email", "Send an e-mail.").parameter("to", ParameterType::String, "The recipient.");
/// let toolbox = Toolbox::builder().tool(tool_fn(spec, async |_, _| Ok(Output::default()))).build()?;
/// let catalog = Catalog::new(&toolbox);
/// assert_eq!(catalog.search(&Search::new("emails")).names(), ["send_email"]);
/// # Ok::<(), toolpost_core::SpecError>(())
/// ```
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    toolbox: Toolbox,
    state: RwLock<CatalogIndex>,
}

#[derive(Default)]
struct CatalogIndex {
    index: Index,
    /// The generation of the toolbox at the last update.
    seen: Option<u64>,
    /// The names in the toolbox at the last update.
    registered: HashSet<String>,
    /// The entries of all lazy tools, created or not.
    lazy: HashMap<String, Arc<CatalogEntry>>,
}

/// The tokens that a compact definition saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenSavings {
    /// The tokens of the full definition.
    pub full: u64,
    /// The tokens of the compact definition.
    pub compact: u64,
    /// The difference.
    pub saved: u64,
}

impl Catalog {
    /// Creates the catalog of a toolbox. Its first use reads the toolbox.
    pub fn new(toolbox: &Toolbox) -> Self {
        Self(Arc::new(Inner { toolbox: toolbox.clone(), state: RwLock::default() }))
    }

    /// The toolbox.
    pub fn toolbox(&self) -> &Toolbox {
        &self.0.toolbox
    }

    /// Adds a lazy tool: the catalog lists its summary, and the first load creates it.
    ///
    /// `make` must return quickly. Its tool must have the name of the summary. After a failure, the next load
    /// calls `make` again.
    ///
    /// # Errors
    /// The name is invalid, or another tool has it.
    pub fn add_lazy(
        &self,
        summary: ToolSummary,
        make: impl Fn() -> Result<Arc<dyn Tool>, ToolError> + Send + Sync + 'static,
    ) -> Result<(), SpecError> {
        let wrong = |message: String| Err(SpecError { tool: summary.name.clone(), message });
        if let Err(message) = check_tool_name(&summary.name) {
            return wrong(message);
        }
        drop(self.fresh());
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.index.get(&summary.name).is_some() {
            return wrong("another tool has this name; rename one of them".to_owned());
        }
        let name = summary.name.clone();
        let entry = Arc::new(CatalogEntry::lazy(summary, Arc::new(make)));
        state.index.insert(Arc::clone(&entry));
        state.lazy.insert(name, entry);
        Ok(())
    }

    /// Lists the toolbox's sources again if their generations have changed.
    ///
    /// # Errors
    /// No source can be listed and no tool is known. Known tools stay.
    pub async fn refresh(&self) -> Result<(), ToolError> {
        if self.0.state.read().unwrap_or_else(PoisonError::into_inner).seen
            == Some(self.0.toolbox.generation())
        {
            return Ok(());
        }
        ToolSource::list(&self.0.toolbox).await.map(drop)
    }

    /// The state after an update from the toolbox.
    fn fresh(&self) -> RwLockReadGuard<'_, CatalogIndex> {
        // The generation is read before the tools, so that the next call sees a change in between.
        let generation = self.0.toolbox.generation();
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        if state.seen == Some(generation) {
            return state;
        }
        drop(state);
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.seen != Some(generation) {
            state.follow(&self.0.toolbox.specs());
            state.seen = Some(generation);
        }
        drop(state);
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Searches for tools, the best first.
    pub fn search(&self, search: &Search) -> Found {
        self.fresh().index.search(search)
    }

    /// The entry of a tool, by its name or an alias.
    pub fn entry(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        let state = self.fresh();
        let aliased = || state.index.get(&self.0.toolbox.spec(name)?.name);
        state.index.get(name).or_else(aliased).cloned()
    }

    /// All entries, in the order of registration.
    pub fn entries(&self) -> Vec<Arc<CatalogEntry>> {
        self.fresh().index.entries().cloned().collect()
    }

    /// The number of tools.
    pub fn len(&self) -> usize {
        self.fresh().index.len()
    }

    /// Whether the catalog is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All categories, sorted.
    pub fn list_categories(&self) -> Vec<String> {
        self.fresh().index.categories().cloned().collect()
    }

    /// All groups, sorted.
    pub fn list_groups(&self) -> Vec<String> {
        self.fresh().index.groups().cloned().collect()
    }

    /// The names of the tools in a group and its subgroups, sorted: `crm` includes `crm.contacts`.
    pub fn tools_in_group(&self, group: &str) -> Vec<String> {
        let state = self.fresh();
        let inside =
            |entry: &&Arc<CatalogEntry>| entry.group().is_some_and(|own| search::is_below(own, group));
        let mut names: Vec<String> =
            state.index.entries().filter(inside).map(|entry| entry.name().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// At most three similar names.
    pub fn similar_names(&self, name: &str) -> Vec<String> {
        let name = text::beginning(name.trim(), 256);
        if name.is_empty() {
            return Vec::new();
        }
        let near = Search::new(name).matching(Matching::Any).limit(64);
        let found = self.search(&near);
        let similar = suggestions(name, found.names());
        let near = if similar.is_empty() { found.names() } else { similar };
        near.into_iter().take(3).map(str::to_owned).collect()
    }

    /// The tokens that compact definitions would save, by tool. Lazy tools count once they are created.
    pub fn token_savings(&self) -> BTreeMap<String, TokenSavings> {
        let state = self.fresh();
        let specs = state.index.entries().filter_map(|entry| entry.spec());
        let savings = specs.map(|spec| {
            let (full, compact) = (definition_tokens(spec, false), definition_tokens(spec, true));
            (spec.name.clone(), TokenSavings { full, compact, saved: full.saturating_sub(compact) })
        });
        savings.collect()
    }

    /// The spec of a tool, by its name or an alias. Creates a lazy tool.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown tool; otherwise the error of its creation.
    pub fn resolve(&self, name: &str) -> Result<Arc<ToolSpec>, ToolError> {
        let missing = || ToolError::not_found(format!("unknown tool `{}`", text::truncated(name, 64)));
        let entry = self.entry(name).ok_or_else(missing)?;
        let Some(make) = entry.make() else { return entry.spec().cloned().ok_or_else(missing) };
        let tool = make()?;
        let spec = tool.spec();
        if spec.name != name {
            return Err(ToolError::internal(format!(
                "the lazy tool `{name}` was created with the name `{}`",
                text::truncated(&spec.name, 64)
            )));
        }
        match self.0.toolbox.add(tool) {
            Ok(()) => Ok(spec),
            // A concurrent call has created it.
            Err(error) => self.0.toolbox.spec(name).ok_or_else(|| ToolError::internal(error.to_string())),
        }
    }
}

impl CatalogIndex {
    /// Updates the index with the tools of the toolbox.
    fn follow(&mut self, specs: &[Arc<ToolSpec>]) {
        let mut registered = HashSet::with_capacity(specs.len());
        for spec in specs {
            let known = self.index.get(&spec.name).and_then(|entry| entry.spec());
            if !known.is_some_and(|known| Arc::ptr_eq(known, spec)) {
                self.index.insert(Arc::new(CatalogEntry::ready(Arc::clone(spec))));
            }
            registered.insert(spec.name.clone());
        }
        for name in self.registered.difference(&registered) {
            match self.lazy.get(name) {
                Some(lazy) => self.index.insert(Arc::clone(lazy)),
                None => self.index.remove(name),
            }
        }
        self.registered = registered;
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog")
            .field("toolbox", &self.0.toolbox.name())
            .field("tools", &self.len())
            .finish()
    }
}
