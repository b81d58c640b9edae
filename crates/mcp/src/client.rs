//! Servers of the protocol as sources of tools.
//!
//! ```no_run
//! # async fn doc() -> Result<(), toolpost_core::ToolError> {
//! use toolpost_core::{Call, ToolSource as _};
//! use toolpost_mcp::client::{Client, Endpoint};
//!
//! let weather = Client::builder(Endpoint::http("https://example.com/mcp")).name("weather").connect().await?;
//! for spec in weather.list().await? {
//!     println!("{}: {}", spec.name, spec.summary());
//! }
//! let reply = weather.call(Call::new("forecast", serde_json::json!({ "city": "Oslo" }))).await;
//! # Ok(())
//! # }
//! ```
//!
//! A server of either era is found out by asking: first as in the era of 2026-07-28, then with `initialize`.
//!
//! | what a server does | what comes of it |
//! |---|---|
//! | tells its progress, or a line of its log | the caller's port gets it |
//! | asks a person, or a model, in either era | the caller is asked, `Port::ask` and `Port::sample` |
//! | answers with the handle of a task | the task is asked for until it is done, and cancelled if nobody waits any more |
//! | says that its lists have changed | [`generation`](toolpost_core::ToolSource::generation) grows |
//! | answers with an error, or says that a tool failed | a typed error; that of a server of this project comes back whole |
//! | goes away | it is connected to again; see below |
//! | gives a tool a name that is none here | another one is made of it, always the same; its own is in meta, `mcp_name` |
//! | gives two tools one name | the second one is not listed ([`Client::problems`]) |
//!
//! # When a server goes away
//!
//! Its tools stay listed. The next call connects again, as does one whose request surely did not arrive; another one is
//! sent again only if the tool calls itself idempotent or read-only, else its error says that it may have been carried
//! out. Waits between attempts grow from 100 ms to 5 s; how many there are is a limit ([`Limits::attempts`]).

mod answer;
mod call;
mod catalog;
mod connection;
mod endpoint;
mod failure;
mod flight;
mod handler;
mod http;
mod message;
mod oauth;
mod program;
mod settings;
mod websocket;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use toolpost_core::{
    BoxFuture, Call, CallRecord, Clock as _, Code, Output, PromptSpec, Reply, ResourceSpec, Status,
    SystemClock, ToolError, ToolSource, ToolSpec,
};

use self::catalog::Catalog;
use self::connection::Connection;
use self::failure::Failure;
use self::handler::Changes;
use self::settings::Settings;

pub use self::endpoint::Endpoint;
pub use self::oauth::{Enterprise, Identity, Login, OAuth, TokenStore};
pub use self::settings::{ClientBuilder, Limits, StartEvent};

/// How long a server is given to answer whether it is well.
const PROBE: Duration = Duration::from_secs(2);
/// The shortest and the longest wait between two attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A server of the protocol, as a source of tools, resources and prompts. It connects again by itself.
pub struct Client {
    settings: Settings,
    link: tokio::sync::Mutex<Link>,
    /// What is known of the server, also while it is not there.
    catalog: RwLock<Arc<Catalog>>,
    listing: tokio::sync::Mutex<()>,
    changes: Arc<Changes>,
    calls: Semaphore,
}

/// The connection, if there is one.
#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// How many attempts in a row have failed, and when and why the last one did.
    failures: u32,
    failed: Option<(Instant, ToolError)>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.settings.name)
            .field("endpoint", &self.settings.endpoint)
            .finish_non_exhaustive()
    }
}

/// The wait after so many failures.
fn backoff(failures: u32) -> Duration {
    let (shortest, longest) = BACKOFF;
    shortest.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest)
}

/// Whether another attempt may go better.
fn may_pass(error: &ToolError) -> bool {
    matches!(error.code(), Code::Dependency | Code::Timeout | Code::Overloaded)
}

impl Client {
    /// Says where the server is, and how it is used.
    pub fn builder(endpoint: Endpoint) -> ClientBuilder {
        ClientBuilder::new(endpoint)
    }

    async fn connected(settings: Settings) -> Result<Arc<Self>, ToolError> {
        let calls = Semaphore::new(settings.limits.calls.max(1));
        let client = Arc::new(Self {
            settings,
            link: tokio::sync::Mutex::default(),
            catalog: RwLock::default(),
            listing: tokio::sync::Mutex::default(),
            changes: Arc::default(),
            calls,
        });
        let connection = client.connection().await?;
        client.look(&connection).await.map_err(Failure::into_error)?;
        Ok(client)
    }

    /// What the server says about how its tools are used.
    pub async fn instructions(&self) -> Option<String> {
        let link = self.link.lock().await;
        link.connection.as_ref()?.info.instructions.clone()
    }

    /// The version of the protocol that is spoken with it now, such as `2026-07-28`.
    pub async fn protocol(&self) -> Option<String> {
        let link = self.link.lock().await;
        Some(link.connection.as_ref()?.info.protocol_version.as_str().to_owned())
    }

    /// What is wrong with the tools of the server, since they were last listed.
    pub fn problems(&self) -> Vec<String> {
        self.catalog().problems.clone()
    }

    /// Ends the connection, and with it the program at its other end. The next call connects again.
    pub async fn disconnect(&self) {
        self.link.lock().await.connection = None;
    }

    fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The connection that is open, or a new one: one attempt, and none so soon after the last one that failed.
    async fn connection(&self) -> Result<Arc<Connection>, ToolError> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            if !connection.is_closed() {
                return Ok(Arc::clone(connection));
            }
            link.connection = None;
        }
        if let Some((at, error)) = &link.failed
            && at.elapsed() < backoff(link.failures)
        {
            return Err(error.clone());
        }
        match Box::pin(Connection::open(&self.settings, &self.changes)).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                if self.catalog().is_known() {
                    // It may not be the server that it was.
                    self.changes.tools();
                }
                *link = Link { connection: Some(Arc::clone(&connection)), ..Link::default() };
                Ok(connection)
            }
            Err(error) => {
                link.failures = link.failures.saturating_add(1);
                link.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// A call that nobody has made: whoever stands behind this client is asked.
    fn own(&self, what: &str, arguments: Value) -> Call {
        let mut call = Call::new(what, arguments);
        call.port = Arc::clone(&self.settings.port);
        call
    }

    /// Lets go of a connection that is of no use any more.
    async fn forget(&self, lost: &Arc<Connection>) {
        let mut link = self.link.lock().await;
        if link.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, lost)) {
            link.connection = None;
        }
    }

    /// Lists the tools anew.
    async fn look(&self, connection: &Connection) -> Result<(), Failure> {
        // Whatever changes from here on is seen by the next look.
        self.changes.take_tools();
        let found = match Box::pin(catalog::tools(connection, &self.settings)).await {
            Ok(found) => found,
            Err(error) => {
                self.changes.put_back();
                return Err(error);
            }
        };
        for problem in &found.problems {
            tracing::warn!(server = self.settings.name, "{problem}");
        }
        let mut known = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_known() && !known.is_like(&found) {
            self.changes.others();
        }
        *known = Arc::new(found);
        Ok(())
    }

    /// Lists the tools anew if they may have changed. A server that is not there keeps those that it had.
    async fn freshen(&self) -> Result<(), ToolError> {
        if !self.changes.has_tools() && !self.catalog().is_expired() {
            return Ok(());
        }
        let _listing = self.listing.lock().await;
        if !self.changes.has_tools() && !self.catalog().is_expired() {
            return Ok(());
        }
        let connection = self.connection().await?;
        match self.look(&connection).await {
            Ok(()) => Ok(()),
            Err(failure) => {
                if connection.is_closed() {
                    self.forget(&connection).await;
                }
                Err(failure.into_error())
            }
        }
    }

    /// Another connection in place of one that turned out to be dead.
    async fn instead_of(&self, lost: &Arc<Connection>) -> Result<Arc<Connection>, ToolError> {
        self.forget(lost).await;
        self.connection().await
    }
}

impl ToolSource for Client {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async move {
            if let Err(error) = self.freshen().await {
                tracing::warn!(server = self.settings.name, %error, "the tools are listed as they were");
            }
            Ok(self.catalog().tools.iter().map(|bound| Arc::clone(&bound.spec)).collect())
        })
    }

    fn generation(&self) -> u64 {
        self.changes.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let begun = Instant::now();
            let started = SystemClock.timestamp();
            let tool: Arc<str> = call.tool.as_str().into();
            let mut record = CallRecord::begin(&call, tool, self.settings.name.as_str().into(), started);
            let result = self.run(&call, &mut record.attempts).await;
            record.duration = begun.elapsed();
            let raw = self.settings.granted.raw_names();
            if !raw.is_empty() {
                record.sandbox = Some(serde_json::json!({ "raw_variables": raw }));
            }
            match &result {
                Ok(output) => {
                    record.status = output.status();
                    record.content_bytes = output.model_text().len();
                    record.artifacts =
                        output.artifacts.iter().cloned().map(toolpost_core::Artifact::without_data).collect();
                }
                Err(error) => {
                    record.status = Status::Error;
                    record.error = Some(error.clone());
                    record.causes = error.causes();
                }
            }
            Reply { result, record: Arc::new(record) }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async move {
            let connection = self.connection().await?;
            let found = match catalog::resources(&connection, &self.settings).await {
                Err(Failure::Lost(_)) => {
                    let connection = self.instead_of(&connection).await?;
                    catalog::resources(&connection, &self.settings).await
                }
                found => found,
            };
            found.map_err(Failure::into_error)
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async move {
            let connection = self.connection().await?;
            let found = match catalog::prompts(&connection, &self.settings).await {
                Err(Failure::Lost(_)) => {
                    let connection = self.instead_of(&connection).await?;
                    catalog::prompts(&connection, &self.settings).await
                }
                found => found,
            };
            found.map_err(Failure::into_error)
        })
    }

    /// Whether there is a connection, or one can be made. Over HTTP a connection says nothing of the server: it is asked.
    /// One that is busy and does not answer soon is not gone.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let connection = self.connection().await?;
            if matches!(self.settings.endpoint, Endpoint::Program { .. }) {
                return Ok(());
            }
            match tokio::time::timeout(PROBE, connection.probe()).await {
                Ok(Err(lost)) => {
                    self.forget(&connection).await;
                    Err(lost.into_error())
                }
                Ok(Ok(())) | Err(_) => Ok(()),
            }
        })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.read_for(&call).await })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move { self.render_for(&call).await })
    }

    fn read_resource<'a>(&'a self, uri: &'a str) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move { self.read_for(&self.own(uri, Value::Null)).await })
    }

    fn render_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move { self.render_for(&self.own(name, Value::Object(arguments.clone()))).await })
    }
}
