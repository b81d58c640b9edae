//! The settings of a client.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{LogLevel, NoPort, Port, StartCheck, ToolError};
use toolpost_sandbox::{Backend, Granted};

use super::oauth::{OAuth, Session};
use super::{Client, Endpoint};

/// Limits on the data and the work of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLimits {
    /// The longest stdio message and SSE event, in bytes. Default: 16 MiB. A plain HTTP response has at most
    /// 16 MiB.
    pub message_bytes: usize,
    /// The most pages of one list. Default: 100.
    pub pages: usize,
    /// The most tools, and as many resources and prompts. Default: 2,000. Further ones are dropped.
    pub items: usize,
    /// The nesting depth of a schema. Default: 64. Tools with deeper ones are dropped.
    pub schema_depth: usize,
    /// The largest schema, in bytes of JSON. Default: 256 KiB. Tools with larger ones are dropped.
    pub schema_bytes: usize,
    /// The most concurrent calls; further ones wait. Default: 64.
    pub calls: usize,
    /// The most input rounds of one call. Default: 20.
    pub rounds: usize,
    /// The most attempts of a call that may be repeated, and of a connection for it. Default: 5.
    pub attempts: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            message_bytes: 16 << 20,
            pages: 100,
            items: 2_000,
            schema_depth: 64,
            schema_bytes: 256 << 10,
            calls: 64,
            rounds: 20,
            attempts: 5,
        }
    }
}

/// A progress report of a starting server, for [`ClientBuilder::on_start`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StartEvent<'a> {
    /// A program was started.
    Started {
        /// The host paths that the program sees; see [`toolpost_sandbox::Report::shown`].
        shown: &'a [PathBuf],
    },
    /// The server has not answered `initialize` for 1.5 s.
    Waiting {
        /// The last stderr output, with the values of variables masked.
        stderr: &'a str,
        /// The timeout of one connection attempt.
        limit: Duration,
    },
}

type StartSink = Box<dyn Fn(&StartEvent<'_>) + Send + Sync>;

pub(super) struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) name: String,
    pub(super) port: Arc<dyn Port>,
    pub(super) roots: Vec<PathBuf>,
    pub(super) limits: ClientLimits,
    pub(super) connect_timeout: Duration,
    pub(super) list_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) log_level: LogLevel,
    pub(super) no_network: bool,
    pub(super) search_path: Option<OsString>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) sandbox_limits: Option<toolpost_sandbox::Limits>,
    pub(super) backend: Option<Arc<dyn Backend>>,
    pub(super) tasks: bool,
    pub(super) protected: Vec<PathBuf>,
    pub(super) start_check: Option<StartCheck>,
    pub(super) granted: Granted,
    on_start: Option<StartSink>,
    /// The OAuth session, if configured.
    pub(super) session: Option<Arc<Session>>,
}

impl Settings {
    /// Reports an event to [`ClientBuilder::on_start`].
    pub(super) fn report(&self, event: &StartEvent<'_>) {
        if let Some(sink) = &self.on_start {
            sink(event);
        }
    }
}

/// Configures a [`Client`]. [`Client::builder`] creates it, [`connect`](Self::connect) finishes it.
#[must_use]
pub struct ClientBuilder(Settings, Option<OAuth>);

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("name", &self.0.name)
            .field("endpoint", &self.0.endpoint)
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let settings = Settings {
            endpoint,
            name: "mcp".to_owned(),
            port: Arc::new(NoPort),
            roots: Vec::new(),
            limits: ClientLimits::default(),
            connect_timeout: Duration::from_secs(30),
            list_timeout: Duration::from_secs(30),
            timeout: Duration::from_mins(1),
            log_level: LogLevel::Info,
            no_network: false,
            search_path: None,
            readable: Vec::new(),
            sandbox_limits: None,
            backend: None,
            tasks: true,
            protected: Vec::new(),
            start_check: None,
            granted: Granted::default(),
            on_start: None,
            session: None,
        };
        Self(settings, None)
    }

    /// Sets the source name in records. Default: `mcp`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Sets the port for requests that belong to no known call. Default: none.
    pub fn port(mut self, port: Arc<dyn Port>) -> Self {
        self.0.port = port;
        self
    }

    /// Adds an MCP root. Default: none. A root informs the server and grants no access.
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.roots.push(folder.into());
        self
    }

    /// Protects host paths, each with everything beneath, from writes of the program
    /// ([`toolpost_sandbox::Sandbox::protect`]).
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.0.protected.extend(paths);
        self
    }

    /// Sets a check that runs before each start of a program, restarts included. Default: none.
    pub fn start_check(mut self, check: StartCheck) -> Self {
        self.0.start_check = Some(check);
        self
    }

    /// Sets a sink for events of a starting server, restarts included. Default: none.
    pub fn on_start(mut self, sink: impl Fn(&StartEvent<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_start = Some(Box::new(sink));
        self
    }

    /// Grants a program paths, variables and hosts. Granted levels and working directories override
    /// [`Endpoint::Program`]. Variable values are masked in the program's output. Default: nothing.
    pub fn granted(mut self, granted: Granted) -> Self {
        self.0.granted = granted;
        self
    }

    /// Changes the limits.
    pub fn limits(mut self, change: impl FnOnce(&mut ClientLimits)) -> Self {
        change(&mut self.0.limits);
        self
    }

    /// Sets the timeout of one connection attempt, program start included. Default: 30 s.
    /// [`OAuth::login_timeout`] comes on top.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// Sets the timeout of one list, all pages included. Default: 30 s.
    pub fn list_timeout(mut self, timeout: Duration) -> Self {
        self.0.list_timeout = timeout;
        self
    }

    /// Sets the time limit of a call, open questions excluded. Default: 1 min. The call's own limit and
    /// deadline may be shorter.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Sets the minimum level of server logs. Default: [`LogLevel::Info`]. Verbose calls get all levels.
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.0.log_level = level;
        self
    }

    /// Blocks connections beyond loopback (`TOOLPOST_NO_NETWORK`). Default: no. Does not restrict programs.
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.0.no_network = no_network;
        self
    }

    /// Sets the program search path, in the format of `PATH`. Default:
    /// [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.0.search_path = Some(path.into());
        self
    }

    /// Adds a host path that a program may read.
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.readable.push(path.into());
        self
    }

    /// Sets the sandbox limits of a program. Default: those of its level, without a time limit.
    pub fn sandbox_limits(mut self, limits: toolpost_sandbox::Limits) -> Self {
        self.0.sandbox_limits = Some(limits);
        self
    }

    /// Sets the sandbox backend, for example `toolpost_docker::Docker`. Default: this host. A
    /// backend with images ignores search path and readable paths.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.0.backend = Some(backend);
        self
    }

    /// Allows the server to answer with a task, which is then polled. Default: yes.
    pub fn tasks(mut self, tasks: bool) -> Self {
        self.0.tasks = tasks;
        self
    }

    /// Sets OAuth for a server over HTTP. Default: none. An `Authorization` header takes precedence.
    pub fn oauth(mut self, oauth: OAuth) -> Self {
        self.1 = Some(oauth);
        self
    }

    /// Connects and lists the tools. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// `DEPENDENCY` if the server is unreachable or speaks no MCP, `TIMEOUT`, `PERMISSION` if the network is
    /// blocked or authorization is required, `INVALID_INPUT` for an invalid endpoint.
    pub async fn connect(self) -> Result<Arc<Client>, ToolError> {
        let Self(mut settings, oauth) = self;
        if let (Some(oauth), Endpoint::Http { url, headers }) = (oauth, &settings.endpoint)
            && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            settings.session = Some(oauth.session(url, settings.no_network)?);
        }
        Client::connected(settings).await
    }
}
