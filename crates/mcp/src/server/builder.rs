//! How a server is put together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;
use toolpost_core::{BoxFuture, Secret, TaskStore, ToolError, ToolSource, ToolSpec};

use super::calls::Parking;
use super::changes::Changes;
use super::guard::Guard;
use super::handler::Shared;
use super::listing::{Hinting, Listings};
use super::tasks::Tasks;
use super::{Certificate, Hints, Limits, ResourceServer};

/// What a client wants to be completed: an argument of a prompt, or a part of a resource's address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The prompt's name, or the pattern of addresses.
    pub of: String,
    /// Whether it is a resource.
    pub is_resource: bool,
    /// The argument.
    pub argument: String,
    /// What is typed so far.
    pub value: String,
    /// Arguments that are known already.
    pub known: BTreeMap<String, String>,
}

impl Completion {
    pub(super) fn new(of: String, is_resource: bool, argument: String, value: String) -> Self {
        Self { of, is_resource, argument, value, known: BTreeMap::new() }
    }
}

/// What completes arguments.
pub(super) type Completing = Arc<dyn Fn(Completion) -> BoxFuture<'static, Vec<String>> + Send + Sync>;

/// Puts a [`Server`] together.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    source: Arc<dyn ToolSource>,
    name: Option<String>,
    version: String,
    instructions: Option<String>,
    limits: Limits,
    hints: Hinting,
    completing: Option<Completing>,
    guard: Guard,
    tls: Option<Certificate>,
    task_store: Option<Arc<dyn TaskStore>>,
}

impl Builder {
    /// Names it. Default: the source's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says which version it is. Default: 0.1.0.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Says how its tools are used together, for the model of the client. Default: nothing.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Changes what bounds it.
    pub fn settings(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// Says more of a tool to Claude Code.
    pub fn hints(mut self, tool: impl Into<String>, hints: &Hints) -> Self {
        self.hints.by_name.insert(tool.into(), hints.to_meta());
        self
    }

    /// Says more of each tool to Claude Code, also of those that come later. What [`hints`](Self::hints) says of a tool
    /// goes before it.
    pub fn hints_of_each(mut self, hint: impl Fn(&ToolSpec) -> Hints + Send + Sync + 'static) -> Self {
        self.hints.of_each = Some(Arc::new(hint));
        self
    }

    /// Completes arguments of prompts and parts of addresses, at most 100 values. Default: nothing is completed.
    pub fn complete<Answer>(mut self, complete: impl Fn(Completion) -> Answer + Send + Sync + 'static) -> Self
    where
        Answer: Future<Output = Vec<String>> + Send + 'static,
    {
        self.completing = Some(Arc::new(move |wanted| Box::pin(complete(wanted))));
        self
    }

    /// Serves only requests that bring this token, as `Authorization: Bearer …`. May be called again, for several.
    pub fn bearer(mut self, token: Secret) -> Self {
        self.guard.tokens.push(token);
        self
    }

    /// Serves only requests that bring a token of an authorization server, and tells the others where to get one. With
    /// [`bearer`](Self::bearer) besides, either is taken.
    pub fn oauth(mut self, rules: ResourceServer) -> Self {
        self.guard.oauth = Some(rules);
        self
    }

    /// Keeps tasks there, so that they outlive this process. A task that was interrupted is run again if its tool is
    /// idempotent or only reads, has no sensitive arguments and keeps nothing for one conversation alone; else it has
    /// failed. Tokens of [`bearer`](Self::bearer) are known by their place: their order must stay. Default: in memory.
    pub fn task_store(mut self, store: Arc<dyn TaskStore>) -> Self {
        self.task_store = Some(store);
        self
    }

    /// Serves HTTP and WebSocket over TLS alone.
    pub fn tls(mut self, certificate: Certificate) -> Self {
        self.tls = Some(certificate);
        self
    }

    /// Names under which clients reach it, beside those of the loopback: `name`, or `name:port` for one port alone.
    /// Requests for any other `Host` are refused.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.guard.hosts.push(name.into());
        self
    }

    /// A web page's origin, such as `https://app.example`, whose requests are served. Pages of the server's own address
    /// are served too, all others are refused.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.guard.origins.push(origin.into());
        self
    }

    /// Allows addresses beyond the loopback, for a server that authenticates its clients. Default: refused.
    pub fn beyond_loopback(mut self) -> Self {
        self.guard.beyond_loopback = true;
        self
    }

    /// The server. Nothing listens yet.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a token is empty, or a limit is 0 that must not be.
    pub fn build(self) -> Result<Server, ToolError> {
        let Self { source, name, version, instructions, limits, hints, completing, guard, tls, task_store } =
            self;
        guard.check()?;
        let counts = [
            ("sessions", limits.sessions),
            ("connections", limits.connections),
            ("calls", limits.calls),
            ("requests_per_stream", limits.requests_per_stream),
            ("request_bytes", limits.request_bytes),
            ("page", limits.page),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(ToolError::invalid_input(format!("`{name}`: expected at least 1, found 0")));
        }
        if limits.tasks > 0 && limits.task_ttl.is_zero() {
            return Err(ToolError::invalid_input("`task_ttl`: expected more than no time at all, found 0"));
        }
        let shared = Shared {
            name: name.unwrap_or_else(|| source.name().to_owned()),
            version,
            instructions,
            calls: Arc::new(Semaphore::new(limits.calls.min(Semaphore::MAX_PERMITS))),
            parking: Arc::new(Parking::new(limits.parked, limits.parked_time)?),
            tasks: Tasks::new(task_store, &limits),
            listings: Listings::new(hints),
            changes: Changes::default(),
            completing,
            guard,
            tls,
            source,
            limits,
            counted: std::sync::atomic::AtomicU64::new(0),
            info: tokio::sync::OnceCell::new(),
            scopes: std::sync::Mutex::default(),
        };
        Ok(Server(Arc::new(shared)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A source of tools that clients of the protocol can reach. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct Server(pub(super) Arc<Shared>);

impl Server {
    /// Puts a server together for a source; a toolbox is one.
    pub fn builder(source: Arc<dyn ToolSource>) -> Builder {
        Builder {
            source,
            name: None,
            version: "0.1.0".to_owned(),
            instructions: None,
            limits: Limits::default(),
            hints: Hinting::default(),
            completing: None,
            guard: Guard::default(),
            tls: None,
            task_store: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.0.name)
            .field("version", &self.0.version)
            .finish_non_exhaustive()
    }
}
