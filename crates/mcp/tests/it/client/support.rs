//! Servers to connect to.

use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use toolpost_core::{Call, Output, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};

use super::fixture::Fixture;

/// A program among the examples of this crate.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(std::path::Path::parent).unwrap();
    let program = folder.join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p toolpost-mcp --examples`",
        program.display()
    );
    program
}

/// The fixture as a program.
pub(crate) fn program(is_legacy: bool) -> Endpoint {
    let era = if is_legacy { "legacy" } else { "modern" };
    Endpoint::program([example("protocol_server").into_os_string(), era.into()])
}

/// The fixture over HTTP. Dropped, it is gone with all its connections.
pub(crate) struct HttpServer {
    pub(crate) fixture: Fixture,
    pub(crate) address: std::net::SocketAddr,
    task: JoinHandle<()>,
}

impl HttpServer {
    pub(crate) async fn start(fixture: Fixture) -> Self {
        Self::start_at(fixture, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(fixture: Fixture, address: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let theirs = fixture.clone();
        let service = StreamableHttpService::new(
            move || Ok(theirs.clone()),
            Arc::new(LocalSessionManager::default()),
            StreamableHttpServerConfig::default(),
        );
        let facts = Arc::clone(&fixture.facts);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                stream.set_nodelay(true).unwrap();
                let (service, facts) = (service.clone(), Arc::clone(&facts));
                connections.spawn(async move {
                    let service =
                        hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                            if let Some(value) = request.headers().get("x-key") {
                                facts.headers.lock().unwrap().push(value.to_str().unwrap().to_owned());
                            }
                            hyper::service::Service::call(&TowerToHyperService::new(service.clone()), request)
                        });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { fixture, address, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::http(self.url())
    }

    /// Ends it at once, with everything that is under way.
    pub(crate) async fn kill(self) -> Fixture {
        let Self { fixture, task, .. } = self;
        task.abort();
        let _ = task.await;
        fixture
    }
}

/// Connects with a name.
pub(crate) async fn connect(endpoint: Endpoint) -> Arc<Client> {
    Client::builder(endpoint).name("srv").connect().await.unwrap()
}

/// Calls a tool.
pub(crate) async fn call(
    client: &Client,
    tool: &str,
    arguments: serde_json::Value,
) -> Result<Output, ToolError> {
    client.call(Call::new(tool, arguments)).await.result
}

/// The text of a tool's answer.
pub(crate) async fn said(client: &Client, tool: &str, arguments: serde_json::Value) -> String {
    call(client, tool, arguments).await.unwrap().to_text().into_owned()
}
