//! A toolbox as an MCP server.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use toolpost::call::{Reply, Secret};
use toolpost::extend::{BoxFuture, ToolSource};
use toolpost::mcp::server::{RunningServer, Server};
use toolpost::resources::{PromptSpec, ResourceSpec};
use toolpost::{Call, Caller, Output, ToolError, ToolSpec};

use crate::driver::{Driver, Mode};
use crate::inbox::Inbox;
use crate::port::failed;
use crate::runtime;

/// How long the end of `serve` waits for a free port, which takes less than a millisecond.
const MAX_CLOSE: Duration = Duration::from_secs(1);

/// How a toolbox is served.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    name: Option<String>,
    version: Option<String>,
    instructions: Option<String>,
    http: Option<SocketAddr>,
    token: Option<Secret>,
    on_ready: Option<Arc<Py<PyAny>>>,
}

impl Settings {
    /// The settings of keyword arguments.
    ///
    /// # Errors
    /// `TypeError` for an unknown one, `ValueError` for an invalid address.
    pub(crate) fn new(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut settings = Self::default();
        for (name, value) in options.into_iter().flatten().filter(|(_, value)| !value.is_none()) {
            match name.extract::<&str>()? {
                "name" => settings.name = Some(value.extract()?),
                "version" => settings.version = Some(value.extract()?),
                "instructions" => settings.instructions = Some(value.extract()?),
                "http" => settings.http = Some(address(value.extract()?)?),
                "token" => settings.token = Some(Secret::new(value.extract::<String>()?)),
                "on_ready" => settings.on_ready = Some(Arc::new(value.unbind())),
                other => {
                    let message = format!("serve() got an unexpected keyword argument '{other}'");
                    return Err(PyTypeError::new_err(message));
                }
            }
        }
        Ok(settings)
    }

    /// Serves until the client disconnects or, over HTTP, until the future is dropped.
    pub(crate) async fn serve(self, source: Arc<dyn ToolSource>) -> Result<(), ToolError> {
        let mut builder = Server::builder(source).name(self.name.unwrap_or_else(|| "toolpost".to_owned()));
        if let Some(version) = self.version {
            builder = builder.version(version);
        }
        if let Some(instructions) = self.instructions {
            builder = builder.instructions(instructions);
        }
        if let Some(token) = self.token {
            builder = builder.bearer(token);
        }
        let server = builder.build()?;
        let Some(address) = self.http else { return stdio(&server).await };
        let running = server.http(address).await?;
        let url = running.connection_url();
        let _listening = Listening(Some(running));
        if let Some(on_ready) = self.on_ready {
            Python::attach(|py| on_ready.call1(py, (url,)).map(drop)).map_err(failed)?;
        }
        std::future::pending().await
    }
}

/// A listening server that frees its port before `serve` returns.
struct Listening(Option<RunningServer>);

impl Drop for Listening {
    fn drop(&mut self) {
        let (Some(server), Ok(handle)) = (self.0.take(), runtime::handle()) else { return };
        let (closed, wait) = mpsc::channel::<()>();
        handle.spawn(async move {
            server.close().await;
            drop(closed);
        });
        // Nothing is sent: the wait ends with the task.
        let _ = wait.recv_timeout(MAX_CLOSE);
    }
}

fn address(text: &str) -> PyResult<SocketAddr> {
    text.replace("localhost", "127.0.0.1").parse().map_err(|_| {
        PyValueError::new_err(format!("`http` must be an address such as 127.0.0.1:8000, found `{text}`"))
    })
}

/// Serves standard input and output. Prints of tools go to standard error.
async fn stdio(server: &Server) -> Result<(), ToolError> {
    match (toolpost::exec::own_input(), toolpost::exec::own_output()) {
        (Ok(input), Ok(output)) => server.serve_files(input, output).await,
        _ => server.stdio().await,
    }
}

/// The source, whose coroutines run on the event loop that is polling this call.
///
/// # Errors
/// The event loop cannot read files.
pub(crate) fn on_current_loop(source: Arc<dyn ToolSource>) -> Result<Arc<dyn ToolSource>, ToolError> {
    let driver = Driver::current();
    let Some(Mode::Task(event_loop) | Mode::Tasks(event_loop)) = driver.as_deref().map(Driver::mode) else {
        return Ok(source);
    };
    let watched = Python::attach(|py| Inbox::of_loop(event_loop.bind(py)))?;
    Ok(Arc::new(OnLoop { source, driver: Driver::new(Mode::Remote(watched)) }))
}

struct OnLoop {
    source: Arc<dyn ToolSource>,
    driver: Arc<Driver>,
}

impl OnLoop {
    fn driven<'a, T>(&'a self, future: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
        Box::pin(async move {
            let mut future = pin!(future);
            poll_fn(|context| self.driver.poll(|| future.as_mut().poll(context))).await
        })
    }
}

impl ToolSource for OnLoop {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        self.source.list()
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.driven(self.source.call(call))
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.source.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.source.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.driven(self.source.read(call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.driven(self.source.render(call))
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let source = self.source.seen_by(caller)?;
        Some(Arc::new(Self { source, driver: Arc::clone(&self.driver) }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    fn viewer(&self) -> Option<&Caller> {
        self.source.viewer()
    }
}
