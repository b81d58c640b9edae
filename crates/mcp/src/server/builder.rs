//! Builds a server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;
use toolpost_core::{BoxFuture, CallError, Secret, TaskStore, ToolError, ToolSource, ToolSpec};

use super::calls::Parking;
use super::changes::Changes;
use super::client::create_private;
use super::guard::Guard;
use super::handler::Shared;
use super::listing::{HintForEach, Listings};
use super::tasks::Tasks;
use super::{Certificate, Client, Hints, ResourceServer, ServerLimits};

/// A completion request: an argument of a prompt or a variable of a URI pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The prompt's name or the URI pattern.
    pub of: String,
    /// Whether `of` is a URI pattern.
    pub is_resource: bool,
    /// The argument to complete.
    pub argument: String,
    /// The text typed so far.
    pub value: String,
    /// The arguments that are already filled in.
    pub known: BTreeMap<String, String>,
}

impl Completion {
    pub(super) fn new(of: String, is_resource: bool, argument: String, value: String) -> Self {
        Self { of, is_resource, argument, value, known: BTreeMap::new() }
    }
}

/// The completion callback.
pub(super) type Completer = Arc<dyn Fn(Completion) -> BoxFuture<'static, Vec<String>> + Send + Sync>;

/// Configures a [`Server`].
#[must_use = "a builder does nothing until `build`"]
pub struct ServerBuilder {
    source: Arc<dyn ToolSource>,
    name: Option<String>,
    version: String,
    instructions: Option<String>,
    limits: ServerLimits,
    hints: Option<HintForEach>,
    completer: Option<Completer>,
    guard: Guard,
    tls: Option<Certificate>,
    task_store: Option<Arc<dyn TaskStore>>,
    directories: Option<PathBuf>,
}

impl ServerBuilder {
    /// Sets the server name. Default: the source's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the server version. Default: 0.1.0.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the instructions for the client's model. Default: none.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Changes the limits.
    pub fn limits(mut self, change: impl FnOnce(&mut ServerLimits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// Sets the hints for Claude Code on every tool, also future ones. Default: none.
    pub fn hints(mut self, hints: impl Fn(&ToolSpec) -> Hints + Send + Sync + 'static) -> Self {
        self.hints = Some(Arc::new(hints));
        self
    }

    /// Sets the completion of prompt arguments and URI variables, at most 100 values. Default: none.
    pub fn complete<Answer>(mut self, complete: impl Fn(Completion) -> Answer + Send + Sync + 'static) -> Self
    where
        Answer: Future<Output = Vec<String>> + Send + 'static,
    {
        self.completer = Some(Arc::new(move |request| Box::pin(complete(request))));
        self
    }

    /// Requires this bearer token. Call again to allow several: each is another client, with the name `token-N` of its
    /// position in permissions and records.
    pub fn bearer(mut self, token: Secret) -> Self {
        self.guard.accept(token, None);
        self
    }

    /// Requires a bearer token of a named client, like [`bearer`](Self::bearer). Tokens with the same name are one
    /// client, which outlives each of them.
    ///
    /// # Errors
    /// `INVALID_INPUT` unless the name has 1 to 64 of `a-z`, `0-9`, `-` and `_`, and begins neither with `-` or `_` nor
    /// with `token-` or `oauth-`.
    pub fn client(mut self, name: &str, token: Secret) -> Result<Self, CallError> {
        self.guard.accept(token, Some(Client::named(name)?));
        Ok(self)
    }

    /// Gives each client a working directory of its own beneath a directory: with the client's name, or a digest of its
    /// credential. Both are created, for this user alone. Clients without a credential get none. Default: calls have no
    /// working directory.
    pub fn client_directories(mut self, parent: impl Into<PathBuf>) -> Self {
        self.directories = Some(parent.into());
        self
    }

    /// Requires a token of an authorization server and points other requests to it. With
    /// [`bearer`](Self::bearer), either token is accepted.
    pub fn oauth(mut self, rules: ResourceServer) -> Self {
        self.guard.oauth = Some(rules);
        self
    }

    /// Sets a persistent task store. After a restart an interrupted task runs again if its tool is idempotent
    /// or read-only, has no sensitive arguments and no conversation state, and its client is still accepted;
    /// otherwise it fails. A task belongs to the credential of its client. Default: in memory.
    pub fn task_store(mut self, store: Arc<dyn TaskStore>) -> Self {
        self.task_store = Some(store);
        self
    }

    /// Requires TLS for HTTP and WebSocket.
    pub fn tls(mut self, certificate: Certificate) -> Self {
        self.tls = Some(certificate);
        self
    }

    /// Allows a host name besides loopback: `name`, or `name:port` for one port. Requests with another `Host`
    /// are rejected.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.guard.hosts.push(name.into());
        self
    }

    /// Allows a web origin, such as `https://app.example`. The server's own origin is always allowed; others
    /// are rejected.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.guard.origins.push(origin.into());
        self
    }

    /// Allows listening beyond loopback, for a server that authenticates clients. Default: no.
    pub fn beyond_loopback(mut self) -> Self {
        self.guard.beyond_loopback = true;
        self
    }

    /// Builds the server. It does not listen yet.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a token is empty or of two clients, or a limit is 0; `INVALID_PATH` if the directory of clients
    /// cannot be created.
    pub fn build(self) -> Result<Server, CallError> {
        let Self {
            source,
            name,
            version,
            instructions,
            limits,
            hints,
            completer,
            guard,
            tls,
            task_store,
            directories,
        } = self;
        guard.check()?;
        if let Some(parent) = &directories {
            create_private(parent).map_err(|error| {
                ToolError::invalid_path(format!("cannot create `{}`: {error}", parent.display()))
            })?;
        }
        let counts = [
            ("sessions", limits.sessions),
            ("connections", limits.connections),
            ("calls", limits.calls),
            ("requests_per_stream", limits.requests_per_stream),
            ("request_bytes", limits.request_bytes),
            ("page", limits.page),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(ToolError::invalid_input(format!("`{name}`: expected at least 1, found 0")).into());
        }
        if limits.tasks > 0 && limits.task_ttl.is_zero() {
            return Err(ToolError::invalid_input("`task_ttl`: expected a positive duration, found 0").into());
        }
        let shared = Shared {
            name: name.unwrap_or_else(|| source.name().to_owned()),
            version,
            instructions,
            calls: Arc::new(Semaphore::new(limits.calls.min(Semaphore::MAX_PERMITS))),
            parking: Arc::new(Parking::new(limits.parked, limits.parked_time)),
            tasks: Tasks::new(task_store, &limits),
            listings: Listings::new(hints),
            changes: Changes::default(),
            completer,
            guard,
            tls,
            directories,
            source,
            limits,
            started_calls: std::sync::atomic::AtomicU64::new(0),
            info: tokio::sync::OnceCell::new(),
            scopes: std::sync::Mutex::default(),
        };
        Ok(Server(Arc::new(shared)))
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A tool source served over MCP. Cheap to clone; clones are the same server.
#[derive(Clone)]
pub struct Server(pub(super) Arc<Shared>);

impl Server {
    /// Begins to configure a server for a source, such as a toolbox.
    pub fn builder(source: Arc<dyn ToolSource>) -> ServerBuilder {
        ServerBuilder {
            source,
            name: None,
            version: "0.1.0".to_owned(),
            instructions: None,
            limits: ServerLimits::default(),
            hints: None,
            completer: None,
            guard: Guard::default(),
            tls: None,
            task_store: None,
            directories: None,
        }
    }

    /// The server name.
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
