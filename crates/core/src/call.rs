//! One call, as a front makes it.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{CallId, Cancellation, EventSink, NoPort, Port, Scope, Values};

/// Who calls: the front, and whom it speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// Such as `cli`, `agent` or `library`.
    pub front: Cow<'static, str>,
    /// A user name or a client id, when the front knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Arc<str>>,
    /// The program that asks, such as `claude-code`, when the front is told. It is what the program says of itself:
    /// nothing that is permitted depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Arc<str>>,
}

impl Caller {
    /// A front that speaks for nobody in particular.
    pub const fn new(front: &'static str) -> Self {
        Self { front: Cow::Borrowed(front), identity: None, program: None }
    }

    /// Says whom it speaks for.
    #[must_use]
    pub fn with_identity(mut self, identity: impl Into<Arc<str>>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Says which program asks.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<Arc<str>>) -> Self {
        self.program = Some(program.into());
        self
    }
}

/// Which of the waiting calls goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// After everything else.
    Low,
    /// As usual.
    #[default]
    Normal,
    /// Before what is usual.
    High,
    /// Before everything else.
    Critical,
}

impl std::str::FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            "critical" => Ok(Self::Critical),
            _ => Err(format!("`{text}` is not a priority: expected low, normal, high or critical")),
        }
    }
}

/// What a caller asks for beyond the arguments. It can only tighten what policy allows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// How long one attempt may run: the shorter of this and the policy's counts.
    pub timeout: Option<Duration>,
    /// How many further attempts: the fewer of this and the policy's count.
    pub retries: Option<u32>,
    /// Neither read from the cache nor write to it.
    pub no_cache: bool,
    /// Check everything and tell what would be done; run nothing but a tool that says it has a dry run of its own
    /// ([`ToolSpec::dry_run`](crate::ToolSpec)).
    pub dry_run: bool,
    /// Check the arguments and run nothing, whatever the tool says.
    pub validate: bool,
    /// Answer from the tool's examples or output schema instead of running it.
    pub mock: bool,
    /// Tools may tell more of what they do.
    pub verbose: bool,
    /// The sandbox level that the caller asks for, by name. Tools that run code use the stricter of it and their own.
    pub level: Option<String>,
    /// The folder to work in; else the scope's.
    pub working_dir: Option<PathBuf>,
    /// Facts that are written to the record as they are.
    pub metadata: Map<String, Value>,
}

/// One call, owned: made by a front, tightened by a toolbox, travelling to wherever the tool lives.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// Its name.
    pub id: CallId,
    /// The call that it was made from.
    pub parent: Option<CallId>,
    /// How many calls stand above it.
    pub depth: u8,
    /// The tool's name.
    pub tool: String,
    /// The arguments, as they came.
    pub arguments: Arc<Value>,
    /// Who calls.
    pub caller: Caller,
    /// The run or conversation that it belongs to.
    pub scope: Option<Scope>,
    /// When it must be over, waiting included.
    pub deadline: Option<Instant>,
    /// Asked when it shall stop.
    pub cancellation: Cancellation,
    /// Which of the waiting calls goes first.
    pub priority: Priority,
    /// Two calls with the same key are one to the outside world.
    pub idempotency_key: Option<String>,
    /// What is asked for beyond the arguments.
    pub options: CallOptions,
    /// A toolbox in front of this one has asked for approval and has counted the call. Only code of this process can
    /// say so: it never comes in over a wire, and it does not lift what this toolbox's operator denies.
    pub approved: bool,
    /// Values that are injected into tools, for this call alone.
    pub values: Values,
    /// What the caller can do while the tool runs.
    pub port: Arc<dyn Port>,
    /// Receives the events of this call and of its nested calls, beside the sink of the toolbox.
    pub events: Option<EventSink>,
}

static NO_PORT: LazyLock<Arc<dyn Port>> = LazyLock::new(|| Arc::new(NoPort));

impl Call {
    /// A call without options.
    pub fn new(tool: impl Into<String>, arguments: impl Into<Arc<Value>>) -> Self {
        Self {
            id: CallId::new(),
            parent: None,
            depth: 0,
            tool: tool.into(),
            arguments: arguments.into(),
            caller: Caller::new("library"),
            scope: None,
            deadline: None,
            cancellation: Cancellation::never(),
            priority: Priority::default(),
            idempotency_key: None,
            options: CallOptions::default(),
            approved: false,
            values: Values::default(),
            port: Arc::clone(&NO_PORT),
            events: None,
        }
    }

    /// Says who calls.
    #[must_use]
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Says what the caller can do while the tool runs.
    #[must_use]
    pub fn with_port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = port;
        self
    }

    /// Sends the events of this call and of its nested calls to a sink, which must return at once.
    #[must_use]
    pub fn with_events(mut self, sink: EventSink) -> Self {
        self.events = Some(sink);
        self
    }

    /// Says which run or conversation it belongs to.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Says when it must be over.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Says how it is stopped.
    #[must_use]
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Says how urgent it is.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Says that it is one with all calls of the same key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Injects a value by its type, for this call and those nested in it.
    #[must_use]
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.provide(value);
        self
    }

    /// Injects a value by its name, for this call and those nested in it.
    #[must_use]
    pub fn provide_named(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.values.provide_named(name, value);
        self
    }

    /// A call made from within this one: caller, scope, deadline, cancellation, priority, values, port and options
    /// are inherited, its metadata among them; the idempotency key is not.
    #[must_use]
    pub fn nested(&self, tool: impl Into<String>, arguments: impl Into<Arc<Value>>) -> Self {
        Self {
            id: CallId::new(),
            parent: Some(self.id),
            depth: self.depth.saturating_add(1),
            tool: tool.into(),
            arguments: arguments.into(),
            idempotency_key: None,
            approved: false,
            ..self.clone()
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold secrets: only the record, which masks them, shows them.
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("parent", &self.parent)
            .field("depth", &self.depth)
            .field("tool", &self.tool)
            .field("caller", &self.caller)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}
