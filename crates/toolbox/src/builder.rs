//! The builder of a toolbox, and the defaults of the call path.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{
    Approval, CallRecord, Clock, DocStore, Event, EventSink, IntoTool, IntoTools, Prompt, Resource, Runner,
    SystemClock, Tool, Values,
};

use crate::offers::Offer;

/// Receives every record, at the end of its call. It must return at once.
pub(crate) type RecordSink = Arc<dyn Fn(&Arc<CallRecord>) + Send + Sync>;

/// The limits of a toolbox. A tool's policy and a call's options can override some of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolboxSettings {
    /// The timeout of one attempt. Default: 60 s.
    pub timeout: Duration,
    /// The timeout of an answer to a question. Default: 10 min.
    pub answer_timeout: Duration,
    /// The maximum number of running calls. Default: 64.
    pub concurrency: usize,
    /// The maximum number of queued calls. Default: 1,024; then `OVERLOADED`.
    pub queue: usize,
    /// The maximum text for a model, in bytes. Default: 64 KiB.
    pub output_limit: usize,
    /// The maximum images and audio for a model, in bytes of base64. Default: 16 MiB.
    pub media_limit: usize,
    /// The estimated maximum size of a call's arguments, in bytes of JSON. Default: 16 MiB.
    pub arguments_limit: usize,
    /// The maximum depth of nested calls. Default: 8.
    pub depth: u8,
    /// The maximum number of stored records. Default: 1,024.
    pub records: usize,
    /// The maximum number of cached results. Default: 1,024.
    pub cache_entries: usize,
    /// The maximum size of all cached results, in bytes of JSON. Default: 16 MiB.
    pub cache_bytes: usize,
    /// The maximum number of artifacts per call. Default: 256.
    pub artifacts: usize,
    /// The maximum size of a document, in bytes of JSON. Default: 1 MiB; then `LIMIT`.
    pub document_limit: usize,
}

impl Default for ToolboxSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_mins(1),
            answer_timeout: Duration::from_mins(10),
            concurrency: 64,
            queue: 1024,
            output_limit: 64 * 1024,
            media_limit: 16 * 1024 * 1024,
            arguments_limit: 16 * 1024 * 1024,
            depth: 8,
            records: 1024,
            cache_entries: 1024,
            cache_bytes: 16 * 1024 * 1024,
            artifacts: 256,
            document_limit: 1024 * 1024,
        }
    }
}

/// Builds a [`Toolbox`](crate::Toolbox).
#[must_use = "a builder does nothing until `build`"]
pub struct ToolboxBuilder {
    pub(crate) name: Arc<str>,
    pub(crate) settings: ToolboxSettings,
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) values: Values,
    pub(crate) approvals: HashMap<String, Approval>,
    pub(crate) default_approval: Option<Approval>,
    pub(crate) store: Option<Arc<dyn DocStore>>,
    pub(crate) runner: Option<Arc<dyn Runner>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Option<EventSink>,
    pub(crate) records: Option<RecordSink>,
}

impl Default for ToolboxBuilder {
    fn default() -> Self {
        Self {
            name: "local".into(),
            settings: ToolboxSettings::default(),
            tools: Vec::new(),
            offers: Vec::new(),
            values: Values::default(),
            approvals: HashMap::new(),
            default_approval: None,
            store: None,
            runner: None,
            clock: Arc::new(SystemClock),
            events: None,
            records: None,
        }
    }
}

impl ToolboxBuilder {
    /// Sets the name, for records of an outer toolbox. Default: `local`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a tool: a function with `#[tool]`, or a value that implements [`Tool`].
    pub fn tool<Kind>(mut self, tool: impl IntoTool<Kind>) -> Self {
        self.tools.push(tool.into_tool());
        self
    }

    /// Adds several tools: a value whose `impl` block has `#[tools]`, or any iterator of tools, such as a
    /// `Vec<Arc<dyn Tool>>`.
    pub fn tools<Kind>(mut self, tools: impl IntoTools<Kind>) -> Self {
        self.tools.extend(tools.into_list());
        self
    }

    /// Adds a resource: a function with `#[resource]`.
    pub fn resource<R: Resource + 'static>(mut self, resource: impl FnOnce() -> R) -> Self {
        self.offers.push(Offer::Resource(Arc::new(resource())));
        self
    }

    /// Adds a prompt: a function with `#[prompt]`.
    pub fn prompt<P: Prompt + 'static>(mut self, prompt: impl FnOnce() -> P) -> Self {
        self.offers.push(Offer::Prompt(Arc::new(prompt())));
        self
    }

    /// Changes the limits.
    pub fn settings(mut self, change: impl FnOnce(&mut ToolboxSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Injects a value by its type, for parameters of type `Inject<T>`.
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.provide(value);
        self
    }

    /// Injects a shared value by its type.
    pub fn provide_shared<T: Send + Sync + 'static>(mut self, value: Arc<T>) -> Self {
        self.values.provide_shared(value);
        self
    }

    /// Injects a value by its name, for parameters with `#[arg(inject)]`.
    pub fn provide_named(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.values.provide_named(name, value);
        self
    }

    /// Sets the approval of a tool. It overrides the policy of the tool.
    pub fn approval(mut self, tool: impl Into<String>, approval: Approval) -> Self {
        self.approvals.insert(tool.into(), approval);
        self
    }

    /// Sets the approval of all tools without an [`approval`](Self::approval). The stricter of this and the tool's
    /// policy counts.
    pub fn default_approval(mut self, approval: Approval) -> Self {
        self.default_approval = Some(approval);
        self
    }

    /// Sets the store of documents, for `#[state]`. Default: a new [`MemoryStore`](crate::MemoryStore).
    pub fn store(mut self, store: Arc<dyn DocStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the runner of tools with the placement `worker`. Without a runner they cannot be registered.
    pub fn runner(mut self, runner: impl Runner + 'static) -> Self {
        self.runner = Some(Arc::new(runner));
        self
    }

    /// Sets the clock, for tests.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Passes every event of every call to a sink, which must return at once.
    pub fn on_event(mut self, sink: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events = Some(Arc::new(sink));
        self
    }

    /// Passes every record to a sink, which must return at once.
    pub fn on_record(mut self, sink: impl Fn(&Arc<CallRecord>) + Send + Sync + 'static) -> Self {
        self.records = Some(Arc::new(sink));
        self
    }
}

impl fmt::Debug for ToolboxBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolboxBuilder")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
