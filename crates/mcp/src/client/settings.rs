//! The settings of a client.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{CallError, LogLevel, StartCheck};
use toolpost_sandbox::{Backend, Granted, ProtectedPath};

use super::oauth::{OAuth, Session};
use super::{Client, Endpoint};

/// The longest message of a server, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The most concurrent calls; further ones wait.
pub(super) const MAX_CALLS: usize = 64;
/// The minimum level of server logs; verbose calls get all levels.
pub(super) const LOG_LEVEL: LogLevel = LogLevel::Info;

/// A progress report of a starting server, for [`ClientBuilder::on_start`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StartEvent<'a> {
    /// A program was started.
    Started {
        /// The host paths that the program sees; see [`toolpost_sandbox::Report::shown`].
        shown: &'a [PathBuf],
        /// The paths that its files name and that it does not see; see [`toolpost_sandbox::Report::not_shown`].
        not_shown: &'a [PathBuf],
    },
    /// The server has not answered `initialize` for 10 s.
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
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) no_network: bool,
    pub(super) search_path: Option<OsString>,
    pub(super) home: Option<PathBuf>,
    pub(super) backend: Option<Arc<dyn Backend>>,
    pub(super) protected: Vec<ProtectedPath>,
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
            connect_timeout: Duration::from_secs(30),
            timeout: Duration::from_mins(1),
            no_network: false,
            search_path: None,
            home: None,
            backend: None,
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

    /// Protects host paths, each with everything beneath, from writes of the program
    /// ([`toolpost_sandbox::Sandbox::protect`]).
    pub fn protect(mut self, paths: impl IntoIterator<Item = impl Into<ProtectedPath>>) -> Self {
        self.0.protected.extend(paths.into_iter().map(Into::into));
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

    /// Sets the timeout of one connection attempt, program start included, and of one list with all its
    /// pages. Default: 30 s. [`OAuth::login_timeout`] comes on top.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// Sets the time limit of a call, open questions excluded. Default: 1 min. The call's own limit and
    /// deadline may be shorter.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
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

    /// Sets the home directory whose toolchains the program may use ([`toolpost_sandbox::Sandbox::home`]).
    /// Default: none.
    pub fn home(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.home = Some(directory.into());
        self
    }

    /// Sets the sandbox backend, for example `toolpost_docker::Docker`. Default: this host. A
    /// backend with images ignores search path and readable paths.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.0.backend = Some(backend);
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
    pub async fn connect(self) -> Result<Arc<Client>, CallError> {
        let Self(mut settings, oauth) = self;
        if let (Some(oauth), Endpoint::Http { url, headers }) = (oauth, &settings.endpoint)
            && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            settings.session = Some(oauth.session(url, settings.no_network)?);
        }
        Ok(Client::connected(settings).await?)
    }
}
