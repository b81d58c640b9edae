//! The toolbox.

mod resources;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use serde_json::Value;
use toolpost_core::{
    Approval, BoxFuture, Call, CallError, CallRecord, Caller, DocStore, IntoTool, Output, Placement,
    PromptSpec, Reply, ResourceSpec, SourceStatus, SpecError, StateDoc, Tool, ToolError, ToolSource,
    ToolSpec, Values,
};

use crate::path::cache::Cache;
use crate::path::pace::Paces;
use crate::path::queue::Scheduler;
use crate::path::records::Records;
use crate::registry::{Entry, Target};
use crate::shared::Shared;
use crate::state::lanes::Lanes;
use crate::state::{Limited, sleep};
use crate::view::View;
use crate::waits::WaitGraph;
use crate::{MemoryStore, ToolUsage, ToolboxBuilder, path};

/// A set of tools, and the one way to call them. Cheap to clone; all clones share their state.
///
/// ```
/// # use toolpost_core as toolpost;
/// # use toolpost_toolbox::Toolbox;
/// # use toolpost_core::{ToolSpec, ParameterType, Output, tool_fn};
/// # use serde_json::json;
/// let spec = ToolSpec::new("shout", "Write a text in capitals.").parameter("text", ParameterType::String, "The text.");
/// let shout = tool_fn(spec, async |args, _ctx| Ok(Output::text(args.decode::<String>("text")?.to_uppercase())));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let toolbox = Toolbox::builder().tool(shout).build()?;
/// let output = toolbox.run("shout", json!({ "text": "hello" })).await.unwrap();
/// assert_eq!(output.to_text(), "HELLO");
/// # Ok::<(), toolpost_core::SpecError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Toolbox(pub(crate) Arc<Shared>);

impl ToolboxBuilder {
    /// Checks the tools and builds the toolbox.
    ///
    /// # Errors
    /// A tool is invalid, or two tools have one name.
    pub fn build(mut self) -> Result<Toolbox, SpecError> {
        let tools = std::mem::take(&mut self.tools);
        let offers = std::mem::take(&mut self.offers);
        let toolbox = Toolbox::from_builder(self);
        for tool in tools {
            toolbox.add(tool)?;
        }
        for offer in offers {
            toolbox.offer(offer)?;
        }
        Ok(toolbox)
    }
}

impl Toolbox {
    /// Returns a builder.
    pub fn builder() -> ToolboxBuilder {
        ToolboxBuilder::default()
    }

    pub(crate) fn from_builder(config: ToolboxBuilder) -> Self {
        let settings = &config.settings;
        let graph = WaitGraph::default();
        Self(Arc::new(Shared {
            registry: RwLock::default(),
            offers: RwLock::default(),
            generation: AtomicU64::new(0),
            scheduler: Scheduler::new(settings.concurrency, settings.queue, graph.clone()),
            paces: Paces::default(),
            refreshing: tokio::sync::Mutex::default(),
            cache: Cache::new(settings.cache_entries, settings.cache_bytes),
            records: Records::new(settings.records),
            documents: Arc::new(Limited {
                store: config
                    .store
                    .clone()
                    .unwrap_or_else(|| Arc::new(MemoryStore::of_clock(Arc::clone(&config.clock)))),
                limit: settings.document_limit,
            }),
            lanes: Lanes::new(graph),
            config,
        }))
    }

    /// Creates an empty toolbox with the settings, clock, event sink and record sink of this one.
    #[must_use]
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        let config = &self.0.config;
        Self::from_builder(ToolboxBuilder {
            name: name.into(),
            settings: config.settings.clone(),
            clock: Arc::clone(&config.clock),
            events: config.events.clone(),
            records: config.records.clone(),
            ..ToolboxBuilder::default()
        })
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// The tool is invalid, or another tool has its name.
    pub fn add<Kind>(&self, tool: impl IntoTool<Kind>) -> Result<(), SpecError> {
        let tool = tool.into_tool();
        let entry = Entry::local(tool, Arc::clone(&self.0.config.name));
        if entry.spec.policy.placement == Placement::Worker && self.0.config.runner.is_none() {
            return Err(SpecError {
                tool: entry.spec.name.clone(),
                message: "the tool runs in a worker process, and this toolbox has no runner: call \
                          `toolpost::worker_entry(build)` first in `main`, and give the toolbox \
                          `.runner(toolpost::workers())`"
                    .into(),
            });
        }
        self.0.registry_mut().insert(entry)?;
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a tool, and returns whether it existed. Running calls continue.
    pub fn remove(&self, name: &str) -> bool {
        let removed = self.0.registry_mut().remove(name);
        // After the change, so that a reader in between reads again.
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        removed
    }

    /// Adds all tools of a source, and follows the changes of its list.
    ///
    /// # Errors
    /// The source cannot list its tools, or another tool has one of their names.
    pub async fn add_source(&self, source: Arc<dyn ToolSource>) -> Result<(), CallError> {
        Ok(self.0.read_list(&source).await?)
    }

    /// Adds a source that is still starting. The next list or unknown tool reads its tools; a name that is taken by
    /// then makes that read fail, and the failure is logged.
    pub fn add_starting_source(&self, source: Arc<dyn ToolSource>) {
        self.0.registry_mut().add_unread(source);
        self.0.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// A local tool, without the call path; `None` for a source's tool. For implementations of
    /// [`Runner`](toolpost_core::Runner), which run it in another process.
    pub fn own_tool(&self, name: &str) -> Option<Arc<dyn Tool>> {
        match &self.0.registry().get(name)?.target {
            Target::Local(tool) => Some(Arc::clone(tool)),
            Target::Source(_) => None,
        }
    }

    /// The values that are injected into all calls.
    pub fn values(&self) -> &Values {
        &self.0.config.values
    }

    /// The specs of all tools, in the order of registration.
    pub fn specs(&self) -> Vec<Arc<ToolSpec>> {
        self.0.registry().in_order().map(|entry| Arc::clone(&entry.spec)).collect()
    }

    /// The spec of a tool, by its name or an alias.
    pub fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.0.registry().get(name).map(|entry| Arc::clone(&entry.spec))
    }

    /// The approval of a tool, from the operator's settings and the tool's policy; `None` for an unknown tool.
    pub fn approval(&self, tool: &str) -> Option<Approval> {
        self.0.registry().get(tool).map(|entry| path::approval(&self.0, &entry))
    }

    /// Runs a call. Dropping the future stops the call, and the call is still recorded.
    pub fn call(&self, call: Call) -> impl Future<Output = Reply> + Send {
        path::call(&self.0, Arc::new(call), None)
    }

    /// Runs a call without options, and drops the record.
    ///
    /// # Errors
    /// Errors of the tool and of the call path.
    pub async fn run(&self, tool: &str, arguments: Value) -> Result<Output, CallError> {
        self.call(Call::new(tool, arguments)).await.into_output()
    }

    /// A document of the tools, by its full name. An owner is written `@` and its identity, as in
    /// `counters/@alice`; a scope is written `+` and its id.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name does not have 1 to 256 bytes, or has control characters.
    pub fn state(&self, document: &str) -> Result<StateDoc, CallError> {
        Ok(StateDoc::new(self.documents(), document)?.with_sleep(sleep))
    }

    /// The store of documents, with the toolbox's limit on their size.
    pub fn documents(&self) -> Arc<dyn DocStore> {
        Arc::clone(&self.0.documents)
    }

    /// The latest records, oldest first: at most [`ToolboxSettings::records`](crate::ToolboxSettings::records).
    pub fn records(&self) -> Vec<Arc<CallRecord>> {
        self.0.records.to_vec()
    }

    /// The usage of each tool, in the order of registration.
    pub fn usage(&self) -> Vec<ToolUsage> {
        self.0.registry().in_order().map(|entry| entry.counters.read(&entry.name)).collect()
    }
}

impl Toolbox {
    /// The specs for an outer toolbox, with the approvals of this toolbox's operator.
    pub(crate) fn approved_specs(&self) -> Vec<Arc<ToolSpec>> {
        let registry = self.0.registry();
        let specs = registry.in_order().map(|entry| {
            let approval = path::approval(&self.0, entry);
            if approval == entry.spec.policy.approval.unwrap_or_default() {
                return Arc::clone(&entry.spec);
            }
            let mut spec = ToolSpec::clone(&entry.spec);
            spec.policy.approval = Some(approval);
            Arc::new(spec)
        });
        specs.collect()
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registry = self.0.registry();
        let names: Vec<&str> = registry.names().collect();
        f.debug_struct("Toolbox").field("name", &self.0.config.name).field("tools", &names).finish()
    }
}

impl ToolSource for Toolbox {
    fn name(&self) -> &str {
        &self.0.config.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            // A source that fails to list keeps its tools.
            let known = self.0.refresh().await;
            let specs = self.approved_specs();
            if specs.is_empty() { known.map(|()| specs) } else { Ok(specs) }
        })
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Relaxed).wrapping_add(self.0.registry().source_generations())
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(Toolbox::resources(self).await) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(Toolbox::prompts(self).await) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(Toolbox::read(self, call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(Toolbox::render(self, call))
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(path::call(&self.0, Arc::new(call), None))
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let any = self.0.sources().iter().any(|source| source.seen_by(caller).is_some());
        any.then(|| Arc::new(View::new(self.clone(), caller.clone())) as Arc<dyn ToolSource>)
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.0.sources().iter().flat_map(|source| source.status()).collect()
    }
}
