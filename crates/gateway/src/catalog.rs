//! The catalog of a toolbox: finding one tool among ten thousand, and loading tools while a conversation goes on.

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
pub use self::dynamic::{Discovery, DynamicSession, DynamicTools, OfferedTool};
pub use self::entry::{CatalogEntry, ToolSummary};
pub use self::meta::{META_TOOL_NAMES, is_meta_tool, meta_tools};
pub use self::search::{Found, Hit, Matching, Search};
pub use self::session::{Analytics, Budget, ToolSession, Unloaded};

use self::entry::Lazy;
use self::index::Index;
use toolpost_toolbox::Toolbox;

/// The tools of a toolbox and of its sources, to be searched. It follows what is registered; cheap to clone, and all
/// clones are the same catalog.
///
/// ```
/// # use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
/// # use toolpost_gateway::catalog::{Catalog, Search};
/// # use toolpost_toolbox::Toolbox;
/// let spec = ToolSpec::new("send_email", "Send an e-mail.").parameter("to", ParameterType::String, "Who gets it.");
/// let toolbox = Toolbox::builder().tool(tool_fn(spec, async |_, _| Ok(Output::default()))).build()?;
/// let catalog = Catalog::new(&toolbox);
/// assert_eq!(catalog.search(&Search::new("emails")).names(), ["send_email"]);
/// # Ok::<(), toolpost_core::SpecError>(())
/// ```
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    toolbox: Toolbox,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    /// The state of the toolbox that the index was made of.
    seen: Option<u64>,
    /// The names that the toolbox had then.
    registered: HashSet<String>,
    /// Tools that are made when they are needed, also those that were made already.
    lazy: HashMap<String, Lazy>,
}

/// How many tokens compact definitions save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenSavings {
    /// Tokens of the full definition.
    pub full: u64,
    /// Tokens of the compact one.
    pub compact: u64,
    /// The difference.
    pub saved: u64,
}

impl Catalog {
    /// The catalog of a toolbox. Nothing is read before it is first used.
    pub fn new(toolbox: &Toolbox) -> Self {
        Self(Arc::new(Inner { toolbox: toolbox.clone(), state: RwLock::default() }))
    }

    /// The toolbox.
    pub fn toolbox(&self) -> &Toolbox {
        &self.0.toolbox
    }

    /// Lists a tool that is made when it is first loaded. Until then it costs its summary.
    ///
    /// `make` must return soon. The tool that it makes must have the name of the summary; what fails is tried again
    /// when the tool is next loaded.
    ///
    /// # Errors
    /// The name is none that a tool can have, or there is a tool of this name.
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
            return wrong("there is one of this name already; rename one of them".to_owned());
        }
        let name = summary.name.clone();
        let lazy = Lazy { summary: Arc::new(summary), make: Arc::new(make) };
        state.index.insert(Arc::new(CatalogEntry::lazy(lazy.clone())));
        state.lazy.insert(name, lazy);
        Ok(())
    }

    /// Asks the toolbox's sources what they have now, where they say that it has changed.
    ///
    /// # Errors
    /// No source could be read and nothing is known. What was known stays.
    pub async fn refresh(&self) -> Result<(), ToolError> {
        if self.0.state.read().unwrap_or_else(PoisonError::into_inner).seen
            == Some(self.0.toolbox.generation())
        {
            return Ok(());
        }
        ToolSource::list(&self.0.toolbox).await.map(drop)
    }

    /// The state, after it has followed the toolbox.
    fn fresh(&self) -> RwLockReadGuard<'_, State> {
        // First the generation, then the tools: what changes in between is read again next time.
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

    /// The tools that fit, the best first.
    pub fn search(&self, search: &Search) -> Found {
        self.fresh().index.search(search)
    }

    /// What is known of one tool, by its name or one of its aliases.
    pub fn entry(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        let state = self.fresh();
        let aliased = || state.index.get(&self.0.toolbox.spec(name)?.name);
        state.index.get(name).or_else(aliased).cloned()
    }

    /// All tools, in the order of their coming.
    pub fn entries(&self) -> Vec<Arc<CatalogEntry>> {
        self.fresh().index.entries().cloned().collect()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.fresh().index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All categories, in order.
    pub fn list_categories(&self) -> Vec<String> {
        self.fresh().index.categories().cloned().collect()
    }

    /// All groups, in order.
    pub fn list_groups(&self) -> Vec<String> {
        self.fresh().index.groups().cloned().collect()
    }

    /// The names of the tools of a group and of those below it, in order: `crm` has those of `crm` and of
    /// `crm.contacts`.
    pub fn tools_in_group(&self, group: &str) -> Vec<String> {
        let state = self.fresh();
        let inside =
            |entry: &&Arc<CatalogEntry>| entry.group().is_some_and(|own| search::is_below(own, group));
        let mut names: Vec<String> =
            state.index.entries().filter(inside).map(|entry| entry.name().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// At most three names that may have been meant.
    pub fn similar_names(&self, name: &str) -> Vec<String> {
        let name = text::beginning(name.trim(), 256);
        if name.is_empty() {
            return Vec::new();
        }
        let near = Search::new(name).matching(Matching::Any).limit(64);
        let found = self.search(&near);
        let spelt_nearly = suggestions(name, found.names());
        let near = if spelt_nearly.is_empty() { found.names() } else { spelt_nearly };
        near.into_iter().take(3).map(str::to_owned).collect()
    }

    /// How many tokens compact definitions would save, for each tool that is there, by name.
    pub fn token_savings(&self) -> BTreeMap<String, TokenSavings> {
        let state = self.fresh();
        let specs = state.index.entries().filter_map(|entry| entry.spec());
        let savings = specs.map(|spec| {
            let (full, compact) = (definition_tokens(spec, false), definition_tokens(spec, true));
            (spec.name.clone(), TokenSavings { full, compact, saved: full.saturating_sub(compact) })
        });
        savings.collect()
    }

    /// All that is known of a tool, by its name or one of its aliases. It is made if it was not there yet.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none; otherwise why it could not be made.
    pub fn resolve(&self, name: &str) -> Result<Arc<ToolSpec>, ToolError> {
        let missing = || ToolError::not_found(format!("there is no tool `{}`", text::shortened(name, 64)));
        let entry = self.entry(name).ok_or_else(missing)?;
        let Some(make) = entry.make() else { return entry.spec().cloned().ok_or_else(missing) };
        let tool = make()?;
        let spec = tool.spec();
        if spec.name != name {
            return Err(ToolError::internal(format!(
                "the tool that was to be `{name}` is called `{}`",
                text::shortened(&spec.name, 64)
            )));
        }
        match self.0.toolbox.add(tool) {
            Ok(()) => Ok(spec),
            // Another call has made it in the meantime.
            Err(error) => self.0.toolbox.spec(name).ok_or_else(|| ToolError::internal(error.to_string())),
        }
    }
}

impl State {
    /// Brings the index to what the toolbox has now.
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
                Some(lazy) => self.index.insert(Arc::new(CatalogEntry::lazy(lazy.clone()))),
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
