//! A call, as a front creates it.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{CallId, Cancellation, EventSink, NoPort, Port, Rate, Scope, Values};

/// The caller: a front, its user and its client program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The front, such as `cli`, `agent` or `library`.
    pub front: Cow<'static, str>,
    /// The user name or client id, if the front knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Arc<str>>,
    /// The client program, such as `claude-code`, if the front knows it. The program names itself, so no permission
    /// depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Arc<str>>,
}

impl Caller {
    /// A front without a user.
    pub const fn new(front: &'static str) -> Self {
        Self { front: Cow::Borrowed(front), identity: None, program: None }
    }

    /// Sets the user.
    #[must_use]
    pub fn with_identity(mut self, identity: impl Into<Arc<str>>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Sets the client program.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<Arc<str>>) -> Self {
        self.program = Some(program.into());
        self
    }
}

/// The order of queued calls. A call that waits rises by one level every 30 seconds, so that each has its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// After all other calls.
    Background,
    /// Before background calls.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before normal calls.
    High,
    /// Before all other calls.
    Critical,
}

impl std::str::FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "background" => Ok(Self::Background),
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            "critical" => Ok(Self::Critical),
            _ => {
                Err(format!("`{text}` is not a priority: expected background, low, normal, high or critical"))
            }
        }
    }
}

/// A limit that all calls with the same key share, whatever their tools. It holds in one toolbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLimit {
    /// The shared resource of the calls, such as the name of a database or an account.
    pub key: Arc<str>,
    /// The maximum number of them at once; unlimited without it.
    pub concurrency: Option<usize>,
    /// The maximum number of them that begin in a period; unlimited without it.
    pub rate: Option<Rate>,
}

/// Options of a call. They can only tighten the policy.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Timeout of one attempt; the policy's applies if it is shorter.
    pub timeout: Option<Duration>,
    /// Number of retries; the policy's applies if it is smaller.
    pub retries: Option<u32>,
    /// Neither reads nor writes the cache.
    pub no_cache: bool,
    /// Validates everything and reports the plan. Runs only tools with a dry run of their own
    /// ([`ToolSpec::dry_run`](crate::ToolSpec)).
    pub dry_run: bool,
    /// Validates the arguments and runs nothing.
    pub validate: bool,
    /// Answers from the tool's examples or output schema without running it.
    pub mock: bool,
    /// Asks tools for detailed output.
    pub verbose: bool,
    /// A program uses the output as data: the content is not shortened for a model.
    pub whole_output: bool,
    /// Requested sandbox level. Tools that run code use it if it is stricter than their own.
    pub level: Option<String>,
    /// Working directory; defaults to the scope's.
    pub working_dir: Option<PathBuf>,
    /// Facts that the record stores unchanged.
    pub metadata: Map<String, Value>,
}

/// One call: a front creates it, each toolbox may tighten it, the tool's host receives it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// Its id.
    pub id: CallId,
    /// The parent call.
    pub parent: Option<CallId>,
    /// Number of ancestors.
    pub depth: u8,
    /// Tool name.
    pub tool: String,
    /// Arguments as received.
    pub arguments: Arc<Value>,
    /// The caller.
    pub caller: Caller,
    /// The run or conversation of the call.
    pub scope: Option<Scope>,
    /// Deadline, queueing included.
    pub deadline: Option<Instant>,
    /// Cancels the call.
    pub cancellation: Cancellation,
    /// Its order among queued calls.
    pub priority: Priority,
    /// Calls with the same key have one external effect.
    pub idempotency_key: Option<String>,
    /// A limit that it shares with other calls, besides the limits of its tool.
    pub limit: Option<Arc<CallLimit>>,
    /// Options beyond the arguments.
    pub options: CallOptions,
    /// A toolbox in front already obtained approval and counted the call. Only code of this process sets it, no wire
    /// does, and it does not override what this toolbox's operator denies.
    pub approved: bool,
    /// Values injected into tools for this call.
    pub values: Values,
    /// The caller's side of the call while the tool runs.
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
            limit: None,
            options: CallOptions::default(),
            approved: false,
            values: Values::default(),
            port: Arc::clone(&NO_PORT),
            events: None,
        }
    }

    /// Sets the caller.
    #[must_use]
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Sets the caller's port.
    #[must_use]
    pub fn with_port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = port;
        self
    }

    /// Sets the run or conversation.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the cancellation.
    #[must_use]
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Sets a limit that it shares with other calls.
    #[must_use]
    pub fn with_limit(mut self, limit: Arc<CallLimit>) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Injects a value by its type into this call and its nested calls.
    #[must_use]
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.provide(value);
        self
    }

    /// Injects a value by name into this call and its nested calls.
    #[must_use]
    pub fn provide_named(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.values.provide_named(name, value);
        self
    }

    /// A nested call. It inherits caller, scope, deadline, cancellation, priority, values, port and options with their
    /// metadata, but neither the idempotency key nor the shared limit.
    #[must_use]
    pub fn nested(&self, tool: impl Into<String>, arguments: impl Into<Arc<Value>>) -> Self {
        Self {
            id: CallId::new(),
            parent: Some(self.id),
            depth: self.depth.saturating_add(1),
            tool: tool.into(),
            arguments: arguments.into(),
            idempotency_key: None,
            limit: None,
            approved: false,
            ..self.clone()
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold secrets. Only the record shows them, masked.
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
