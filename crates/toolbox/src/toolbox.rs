//! The toolbox: what fronts hold.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use toolpost_core::{
    BoxFuture, Call, CallRecord, IntoTool, Output, Reply, SpecError, ToolError, ToolGroup, ToolSource,
    ToolSpec,
};

use crate::path::cache::Cache;
use crate::path::queue::Gate;
use crate::path::record::Ring;
use crate::registry::{Entry, Registry, Target};
use crate::{Builder, Settings, ToolUsage, path};

/// A set of tools, and the one way to call them. Cheap to clone; all clones are the same toolbox.
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
/// assert_eq!(output.model_text(), "HELLO");
/// # Ok::<(), toolpost_core::SpecError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Toolbox(pub(crate) Arc<Shared>);

/// What all clones of a toolbox share.
pub(crate) struct Shared {
    pub(crate) config: Builder,
    pub(crate) registry: RwLock<Registry>,
    generation: AtomicU64,
    /// How many calls run at once.
    pub(crate) gate: Gate,
    /// How many calls wait, for whatever.
    pub(crate) waiting: AtomicU64,
    pub(crate) cache: Mutex<Cache>,
    pub(crate) ring: Mutex<Ring>,
}

impl Shared {
    // Nothing is left half done behind these locks, so that a panic elsewhere does not matter.
    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.config.settings
    }

    /// Reads the lists of those sources again that have changed.
    pub(crate) async fn refresh(&self) -> Result<(), ToolError> {
        let stale = self.registry().stale_sources();
        for source in stale {
            let generation = source.generation();
            let specs = source.list().await?;
            self.registry_mut().take_list(&source, generation, specs).map_err(|error| {
                ToolError::precondition(error.to_string())
                    .suggest("Rename or filter the tools of one source.")
            })?;
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Toolbox {
    /// Puts a toolbox together.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_builder(config: Builder) -> Self {
        let settings = &config.settings;
        Self(Arc::new(Shared {
            registry: RwLock::default(),
            generation: AtomicU64::new(0),
            gate: Gate::new(settings.concurrency),
            waiting: AtomicU64::new(0),
            cache: Mutex::new(Cache::new(settings.cache_entries, settings.cache_bytes)),
            ring: Mutex::new(Ring::new(settings.records)),
            config,
        }))
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// The tool contradicts itself, or another one has its name.
    pub fn add<Kind>(&self, tool: impl IntoTool<Kind>) -> Result<(), SpecError> {
        let tool = tool.into_tool();
        let entry = Entry::new(tool.spec(), Target::Local(tool), Arc::clone(&self.0.config.name));
        self.0.registry_mut().insert(entry)?;
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Adds the tools of a value whose `impl` block has `#[tools]`.
    ///
    /// # Errors
    /// One of the tools contradicts itself, or another one has its name.
    pub fn add_group(&self, group: impl ToolGroup) -> Result<(), SpecError> {
        group.into_tools().into_iter().try_for_each(|tool| self.add(tool))
    }

    /// Takes a tool out. Calls that run already go on. Returns whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        self.0.registry_mut().remove(name)
    }

    /// Adds all tools of a source, now and whenever its list changes.
    ///
    /// # Errors
    /// The source cannot list its tools, or one of them has a name that is taken.
    pub async fn add_source(&self, source: Arc<dyn ToolSource>) -> Result<(), ToolError> {
        let generation = source.generation();
        let specs = source.list().await?;
        self.0.registry_mut().take_list(&source, generation, specs).map_err(|error| {
            ToolError::precondition(error.to_string()).suggest("Rename or filter the tools of one source.")
        })?;
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// What is known of every tool, in the order of their coming.
    pub fn specs(&self) -> Vec<Arc<ToolSpec>> {
        self.0.registry().in_order().map(|entry| Arc::clone(&entry.spec)).collect()
    }

    /// What is known of one tool.
    pub fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.0.registry().get(name).map(|entry| Arc::clone(&entry.spec))
    }

    /// Makes a call, whoever asks for it. The future is the call: dropping it stops the call, and it is still recorded.
    pub async fn call(&self, call: Call) -> Reply {
        path::call(&self.0, call, None).await
    }

    /// Makes a call without options, and drops the record.
    ///
    /// # Errors
    /// Those of the tool and of the call path.
    pub async fn run(&self, tool: &str, arguments: Value) -> Result<Output, ToolError> {
        self.call(Call::new(tool, arguments)).await.result
    }

    /// The latest records, oldest first: at most [`Settings::records`].
    pub fn records(&self) -> Vec<Arc<CallRecord>> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner).to_vec()
    }

    /// How often each tool was used, in the order of their coming.
    pub fn usage(&self) -> Vec<ToolUsage> {
        self.0.registry().in_order().map(|entry| entry.counters.read(&entry.name)).collect()
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
            self.0.refresh().await?;
            Ok(self.specs())
        })
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Relaxed).wrapping_add(self.0.registry().source_generations())
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(path::call(&self.0, call, None))
    }
}
