//! MCP servers as sources of tools.
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
//! The client tries protocol version 2026-07-28 first and falls back to `initialize` (2025-11-25 and
//! earlier).
//!
//! | the server | the client |
//! |---|---|
//! | reports progress or logs a line | passes it to the caller's port |
//! | requests elicitation or sampling | asks the caller: `Port::ask`, `Port::sample` |
//! | answers with a task | polls the task until it is done and cancels it if the caller goes away |
//! | notifies of changed lists | increments [`generation`](toolpost_core::ToolSource::generation) |
//! | returns an error | returns a typed error; a Toolpost server's error keeps all its fields |
//! | disconnects | reconnects; see below |
//! | has a tool with an invalid name | derives a stable valid name; the original is in `mcp_name` of the meta |
//! | has two tools of one name | drops the second one ([`Client::problems`]) |
//!
//! # Reconnecting
//!
//! The tools stay listed. The next call reconnects. A call whose request certainly did not arrive is sent
//! again; any other call only if its tool is idempotent or read-only, else the error says that the call may
//! have run. There are at most five attempts; the wait between them doubles from 100 ms.

mod answer;
mod call;
mod catalog;
mod connection;
mod endpoint;
mod failure;
mod flight;
mod handler;
mod http;
mod json;
mod message;
mod oauth;
mod post;
mod program;
mod response;
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
use self::settings::{MAX_CALLS, Settings};

pub use self::endpoint::Endpoint;
pub use self::oauth::{Identity, Login, OAuth, TokenStore};
pub use self::settings::{ClientBuilder, StartEvent};

/// The timeout of a health check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest and the longest wait between two connection attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An MCP server as a source of tools, resources and prompts. Reconnects by itself.
pub struct Client {
    settings: Settings,
    link: tokio::sync::Mutex<Link>,
    /// The last listed tools, also while disconnected.
    catalog: RwLock<Arc<Catalog>>,
    listing: tokio::sync::Mutex<()>,
    changes: Arc<Changes>,
    calls: Semaphore,
}

/// The connection, if there is one.
#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// The failed attempts in a row.
    failures: u32,
    last_failure: Option<(Instant, ToolError)>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.settings.name)
            .field("endpoint", &self.settings.endpoint)
            .finish_non_exhaustive()
    }
}

/// The wait after a number of failures.
fn backoff(failures: u32) -> Duration {
    let (shortest, longest) = BACKOFF;
    shortest.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest)
}

/// Whether another attempt may succeed.
fn is_transient(error: &ToolError) -> bool {
    matches!(error.code(), Code::Dependency | Code::Timeout | Code::Overloaded)
}

impl Client {
    /// Begins to configure a client.
    pub fn builder(endpoint: Endpoint) -> ClientBuilder {
        ClientBuilder::new(endpoint)
    }

    async fn connected(settings: Settings) -> Result<Arc<Self>, ToolError> {
        let client = Arc::new(Self {
            settings,
            link: tokio::sync::Mutex::default(),
            catalog: RwLock::default(),
            listing: tokio::sync::Mutex::default(),
            changes: Arc::default(),
            calls: Semaphore::new(MAX_CALLS),
        });
        let connection = client.connection().await?;
        client.reload_tools(&connection).await.map_err(Failure::into_error)?;
        Ok(client)
    }

    /// The server's instructions for using its tools.
    pub async fn instructions(&self) -> Option<String> {
        let link = self.link.lock().await;
        link.connection.as_ref()?.info.instructions.clone()
    }

    /// The negotiated protocol version, such as `2026-07-28`.
    pub async fn protocol(&self) -> Option<String> {
        let link = self.link.lock().await;
        Some(link.connection.as_ref()?.info.protocol_version.as_str().to_owned())
    }

    /// The problems of the last tool list, such as invalid definitions.
    pub fn problems(&self) -> Vec<String> {
        self.catalog().problems.clone()
    }

    /// Closes the connection and stops the server program. The next call reconnects.
    pub async fn disconnect(&self) {
        self.link.lock().await.connection = None;
    }

    fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The open connection, or a new one: one attempt, with backoff after a failure.
    async fn connection(&self) -> Result<Arc<Connection>, ToolError> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            if !connection.is_closed() {
                return Ok(Arc::clone(connection));
            }
            link.connection = None;
        }
        if let Some((at, error)) = &link.last_failure
            && at.elapsed() < backoff(link.failures)
        {
            return Err(error.clone());
        }
        match Box::pin(Connection::open(&self.settings, &self.changes)).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                if self.catalog().is_loaded() {
                    // The server may be another version now.
                    self.changes.tools();
                }
                *link = Link { connection: Some(Arc::clone(&connection)), ..Link::default() };
                Ok(connection)
            }
            Err(error) => {
                link.failures = link.failures.saturating_add(1);
                link.last_failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Drops a broken connection.
    async fn discard(&self, lost: &Arc<Connection>) {
        let mut link = self.link.lock().await;
        if link.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, lost)) {
            link.connection = None;
        }
    }

    /// Lists the tools again.
    async fn reload_tools(&self, connection: &Connection) -> Result<(), Failure> {
        // Changes from here on trigger the next reload.
        self.changes.set_tools(false);
        let found = match Box::pin(catalog::tools(connection, &self.settings)).await {
            Ok(found) => found,
            Err(error) => {
                self.changes.set_tools(true);
                return Err(error);
            }
        };
        for problem in &found.problems {
            tracing::warn!(server = self.settings.name, "{problem}");
        }
        let mut known = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_loaded() && !known.is_same_list(&found) {
            self.changes.others();
        }
        *known = Arc::new(found);
        Ok(())
    }

    /// Lists the tools again if they may have changed. A disconnected server keeps its old list.
    async fn refresh(&self) -> Result<(), ToolError> {
        if !self.changes.has_tools() && !self.catalog().is_expired() {
            return Ok(());
        }
        let _listing = self.listing.lock().await;
        if !self.changes.has_tools() && !self.catalog().is_expired() {
            return Ok(());
        }
        let connection = self.connection().await?;
        match self.reload_tools(&connection).await {
            Ok(()) => Ok(()),
            Err(failure) => {
                if connection.is_closed() {
                    self.discard(&connection).await;
                }
                Err(failure.into_error())
            }
        }
    }

    /// Lists items, once more over a new connection if the connection broke.
    async fn list_items<T>(
        &self,
        list: impl for<'a> Fn(&'a Connection, &'a Settings) -> BoxFuture<'a, Result<Vec<T>, Failure>>,
    ) -> Result<Vec<T>, ToolError> {
        let connection = self.connection().await?;
        let found = match list(&connection, &self.settings).await {
            Err(Failure::Lost(_)) => {
                self.discard(&connection).await;
                list(&*self.connection().await?, &self.settings).await
            }
            found => found,
        };
        found.map_err(Failure::into_error)
    }
}

impl ToolSource for Client {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async move {
            if let Err(error) = self.refresh().await {
                tracing::warn!(server = self.settings.name, %error, "listing tools failed; using the previous list");
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
                record.sandbox = Some(toolpost_sandbox::RunEvidence::of_raw_variables(raw).to_value());
            }
            match &result {
                Ok(output) => {
                    record.status = output.status();
                    record.content_bytes = output.to_text().len();
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
        Box::pin(self.list_items(|connection, settings| Box::pin(catalog::resources(connection, settings))))
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(self.list_items(|connection, settings| Box::pin(catalog::prompts(connection, settings))))
    }

    /// Whether a connection exists or can be made. An HTTP server is sent a probe; a slow answer still counts
    /// as healthy.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let connection = self.connection().await?;
            if matches!(self.settings.endpoint, Endpoint::Program { .. }) {
                return Ok(());
            }
            match tokio::time::timeout(PROBE_TIMEOUT, connection.probe()).await {
                Ok(Err(lost)) => {
                    self.discard(&connection).await;
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
        Box::pin(async move { self.read_for(&Call::new(uri, Value::Null)).await })
    }

    fn render_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move { self.render_for(&Call::new(name, Value::Object(arguments.clone()))).await })
    }
}
