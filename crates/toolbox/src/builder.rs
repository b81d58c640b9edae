//! How a toolbox is put together, and every default of the call path.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{
    Approval, CallRecord, Clock, DocStore, Event, EventSink, IntoTool, IntoTools, Prompt, Resource, Runner,
    SystemClock, Tool, Values,
};

use crate::offers::Offer;

/// Who gets every record. It is called where a call ends and must return at once.
pub(crate) type RecordSink = Arc<dyn Fn(&Arc<CallRecord>) + Send + Sync>;

/// The limits of a toolbox. A tool's own policy and a call's options can only be tighter or, for a tool that says so,
/// different in kind; these hold for everything else.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long one attempt may run. Default: 60 s.
    pub timeout: Duration,
    /// How long an answer to a question may take. Default: 10 min.
    pub answer_timeout: Duration,
    /// How many calls run at once. Default: 64.
    pub concurrency: usize,
    /// How many calls wait at most. Default: 1,024; then `OVERLOADED`.
    pub queue: usize,
    /// How many bytes of text a model gets. Default: 64 KiB.
    pub output_limit: usize,
    /// How many bytes of pictures and sound, in base 64, a model gets. Default: 16 MiB.
    pub media_limit: usize,
    /// How large the arguments of one call may be, about, as JSON. Default: 16 MiB.
    pub arguments_limit: usize,
    /// How deep calls may nest. Default: 8.
    pub depth: u8,
    /// How many records are kept. Default: 1,024.
    pub records: usize,
    /// How many answers are cached. Default: 1,024.
    pub cache_entries: usize,
    /// How many bytes the cached answers may have together, as JSON. Default: 16 MiB.
    pub cache_bytes: usize,
    /// How many artefacts one call may hand over. Default: 256.
    pub artifacts: usize,
    /// How many bytes a document may have, as JSON. Default: 1 MiB; then `LIMIT`.
    pub document_limit: usize,
}

impl Default for Settings {
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

/// Puts a [`Toolbox`](crate::Toolbox) together.
#[must_use = "a builder does nothing until `build`"]
pub struct ToolboxBuilder {
    pub(crate) name: Arc<str>,
    pub(crate) settings: Settings,
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
            settings: Settings::default(),
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
    /// Names the toolbox, for records of calls that come through another one. Default: `local`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a tool: the name of a function with `#[tool]`, or anything that implements [`Tool`].
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

    /// Adds a resource: the name of a function with `#[resource]`.
    pub fn resource<R: Resource + 'static>(mut self, resource: impl FnOnce() -> R) -> Self {
        self.offers.push(Offer::Resource(Arc::new(resource())));
        self
    }

    /// Adds a prompt: the name of a function with `#[prompt]`.
    pub fn prompt<P: Prompt + 'static>(mut self, prompt: impl FnOnce() -> P) -> Self {
        self.offers.push(Offer::Prompt(Arc::new(prompt())));
        self
    }

    /// Changes limits.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Injects a value by its type into all tools that take an `Inject<T>`.
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.provide(value);
        self
    }

    /// Injects a value that others share, by its type.
    pub fn provide_shared<T: Send + Sync + 'static>(mut self, value: Arc<T>) -> Self {
        self.values.provide_shared(value);
        self
    }

    /// Injects a value by its name into all tools that have a parameter with `#[arg(inject)]` of this name.
    pub fn provide_named(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.values.provide_named(name, value);
        self
    }

    /// Says whether a tool may be called, whatever the tool itself says.
    pub fn approval(mut self, tool: impl Into<String>, approval: Approval) -> Self {
        self.approvals.insert(tool.into(), approval);
        self
    }

    /// Says whether tools may be called that [`approval`](Self::approval) does not name; the stricter of this and
    /// the tool's own policy counts.
    pub fn default_approval(mut self, approval: Approval) -> Self {
        self.default_approval = Some(approval);
        self
    }

    /// Keeps the documents of `#[state]` there. Default: a [`MemoryStore`](crate::MemoryStore) of its own.
    pub fn store(mut self, store: Arc<dyn DocStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Runs the tools with the placement `worker` there. Without one they cannot be registered.
    pub fn runner(mut self, runner: impl Runner + 'static) -> Self {
        self.runner = Some(Arc::new(runner));
        self
    }

    /// Takes time from elsewhere, for tests.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Is told of every event of every call. It must return at once.
    pub fn on_event(mut self, sink: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events = Some(Arc::new(sink));
        self
    }

    /// Is given every record. It must return at once.
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
