//! The fixture as a program and over HTTP.

use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use toolpost_core::{Call, Output, Port, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_testkit::MemoryPort;

use super::fixture::Fixture;

/// The path of an example program of this crate.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let directory = tests.parent().and_then(std::path::Path::parent).unwrap();
    let program = directory.join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p toolpost-mcp --examples`",
        program.display()
    );
    program
}

/// The fixture as a program.
pub(crate) fn program(is_legacy: bool) -> Endpoint {
    let version = if is_legacy { "legacy" } else { "modern" };
    Endpoint::program([example("protocol_server").into_os_string(), version.into()])
}

/// The fixture over HTTP.
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
        let handler = fixture.clone();
        let service = StreamableHttpService::new(
            move || Ok(handler.clone()),
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

    /// Stops the server at once, with its connections and calls.
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

/// A call with a port.
pub(crate) fn call_with(port: &Arc<MemoryPort>, tool: &str, arguments: serde_json::Value) -> Call {
    Call::new(tool, arguments).with_port(Arc::clone(port) as Arc<dyn Port>)
}

/// Calls a tool.
pub(crate) async fn call(
    client: &Client,
    tool: &str,
    arguments: serde_json::Value,
) -> Result<Output, ToolError> {
    client.call(Call::new(tool, arguments)).await.result
}

/// Calls a tool and returns the text of its result.
pub(crate) async fn call_text(client: &Client, tool: &str, arguments: serde_json::Value) -> String {
    call(client, tool, arguments).await.unwrap().to_text().into_owned()
}
