//! How a client behaves.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{LogLevel, NoPort, Port, StartCheck, ToolError};
use toolpost_sandbox::{Backend, Granted};

use super::oauth::{OAuth, Session};
use super::{Client, Endpoint};

/// The bounds of what a server may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest message of a program, and the longest event of a stream, in bytes. Default 16 MiB. An answer over HTTP
    /// that is no stream has at most 16 MiB.
    pub message_bytes: usize,
    /// The most pages of one list. Default 100.
    pub pages: usize,
    /// The most tools, and likewise resources and prompts. Default 2,000. What comes after is not listed.
    pub items: usize,
    /// How deep a schema may be. Default 64. A tool with a deeper one is not listed.
    pub schema_depth: usize,
    /// The largest schema, in bytes of JSON. Default 256 KiB. A tool with a larger one is not listed.
    pub schema_bytes: usize,
    /// How many calls may be under way at once; more of them wait. Default 64.
    pub calls: usize,
    /// How many rounds of questions one call may have. Default 20.
    pub rounds: usize,
    /// How often one call is sent, where sending it again is right, and how often a connection is tried for it. Default 5.
    pub attempts: u32,
}

impl Default for Limits {
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

/// What happens while a server starts, for [`ClientBuilder::on_start`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StartEvent<'a> {
    /// A program was started.
    Started {
        /// What it sees of the host, as [`toolpost_sandbox::Report::shown`] has it.
        shown: &'a [PathBuf],
    },
    /// The server has not answered `initialize` for 1.5 s.
    Waiting {
        /// The end of what the program has written to standard error, values of variables masked.
        stderr: &'a str,
        /// How long one attempt to connect may take.
        limit: Duration,
    },
}

type StartSink = Box<dyn Fn(&StartEvent<'_>) + Send + Sync>;

pub(super) struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) name: String,
    pub(super) port: Arc<dyn Port>,
    pub(super) roots: Vec<PathBuf>,
    pub(super) limits: Limits,
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
    /// Who asks, if the server wants to know.
    pub(super) session: Option<Arc<Session>>,
}

impl Settings {
    /// Reports what happens while the server starts.
    pub(super) fn report(&self, event: &StartEvent<'_>) {
        if let Some(sink) = &self.on_start {
            sink(event);
        }
    }
}

/// How a server is reached and used. Made by [`Client::builder`], ended by [`connect`](Self::connect).
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
            limits: Limits::default(),
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

    /// Names the source, for records. Default `mcp`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Who is asked when the server asks and it cannot be told for which call. Otherwise the caller of that call is.
    /// Default: nobody.
    pub fn port(mut self, port: Arc<dyn Port>) -> Self {
        self.0.port = port;
        self
    }

    /// Adds a folder that the server is told to work in. Default none. It is a word to the server, not a permission.
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.roots.push(folder.into());
        self
    }

    /// Protects files and directories of the host, each with everything beneath, from what a program writes in its
    /// working directory ([`toolpost_sandbox::Sandbox::protect`]).
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.0.protected.extend(paths);
        self
    }

    /// Sets a check that runs directly before each start of a program, restarts included. Default none.
    pub fn start_check(mut self, check: StartCheck) -> Self {
        self.0.start_check = Some(check);
        self
    }

    /// Reports what happens while the server starts, restarts included. Default: nothing is reported.
    pub fn on_start(mut self, sink: impl Fn(&StartEvent<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_start = Some(Box::new(sink));
        self
    }

    /// Grants a program paths, variables and hosts. A level and a working directory among the grants win over those of
    /// [`Endpoint::Program`]. The values of variables are masked in all that the program prints. Default nothing.
    pub fn granted(mut self, granted: Granted) -> Self {
        self.0.granted = granted;
        self
    }

    /// Sets the bounds of what the server may cost.
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.0.limits);
        self
    }

    /// How long one attempt to connect may take, the start of a program included. Default 30 s. A person who is asked to
    /// log in has the time of [`OAuth::patience`] besides.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// How long all pages of one list may take. Default 30 s.
    pub fn list_timeout(mut self, timeout: Duration) -> Self {
        self.0.list_timeout = timeout;
        self
    }

    /// How long a call may take, the time in which somebody is asked aside. Default 1 min. The shortest of it, the call's
    /// own limit and its deadline counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// The least of the server's log lines that are wanted. Default [`LogLevel::Info`]. A verbose call gets all.
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.0.log_level = level;
        self
    }

    /// Whether a connection to anything but this machine is an error (`TOOLPOST_NO_NETWORK`). Default no. It says
    /// nothing of what a program does.
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.0.no_network = no_network;
        self
    }

    /// Where programs are looked up, in the form of `PATH`. Default [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.0.search_path = Some(path.into());
        self
    }

    /// A file or folder of the host that a program may read at its own path.
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.readable.push(path.into());
        self
    }

    /// The limits of a program's process. Default those of its level, without one of time.
    pub fn sandbox_limits(mut self, limits: toolpost_sandbox::Limits) -> Self {
        self.0.sandbox_limits = Some(limits);
        self
    }

    /// Who runs a program, for example containers (`toolpost_sandbox::docker::Docker`). Default: this host. The command is
    /// then one of the image's, and a search path or a readable path of the host means nothing.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.0.backend = Some(backend);
        self
    }

    /// Whether the server may answer with the handle of a task, which is then asked for until it is done. Default yes.
    pub fn tasks(mut self, tasks: bool) -> Self {
        self.0.tasks = tasks;
        self
    }

    /// How tokens for a server over HTTP are got, if it wants to know who asks. It counts only without a header
    /// `Authorization`. Default: not at all.
    pub fn oauth(mut self, oauth: OAuth) -> Self {
        self.1 = Some(oauth);
        self
    }

    /// Connects, and lists the tools. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// `DEPENDENCY` if the server cannot be reached or does not speak the protocol, `TIMEOUT`, `PERMISSION` if it is not
    /// allowed to be reached or wants to know who asks, `INVALID_INPUT` for an endpoint that is none.
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
