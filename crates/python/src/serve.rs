//! A toolbox as an MCP server.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use toolpost::call::{Reply, Secret};
use toolpost::error::Code;
use toolpost::extend::{BoxFuture, ToolSource};
use toolpost::mcp::server::{RunningServer, Server};
use toolpost::resources::{PromptSpec, ResourceSpec};
use toolpost::{Call, Caller, Output, ToolError, ToolSpec};

use crate::ctx::AppContext;
use crate::driver::{Driver, Mode};
use crate::inbox::Inbox;
use crate::port::{failed, plain_function};
use crate::{errors, runtime};

/// The time that the end of `serve` waits for a free port, which takes less than a millisecond.
const MAX_CLOSE: Duration = Duration::from_secs(1);

/// The settings of a served toolbox.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    name: Option<String>,
    version: Option<String>,
    instructions: Option<String>,
    http: Option<SocketAddr>,
    token: Option<Secret>,
    hosts: Vec<String>,
    context: Option<Arc<AppContext>>,
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
                "hosts" => settings.hosts = value.extract()?,
                "context" => settings.context = Some(Arc::new(AppContext(value.unbind()))),
                "on_ready" => {
                    plain_function("on_ready", &value)?;
                    settings.on_ready = Some(Arc::new(value.unbind()));
                }
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
        let mut builder = Server::builder(Arc::new(Served::new(source, self.context)?));
        if let Some(name) = self.name {
            builder = builder.name(name);
        }
        if let Some(version) = self.version {
            builder = builder.version(version);
        }
        if let Some(instructions) = self.instructions {
            builder = builder.instructions(instructions);
        }
        let has_token = self.token.is_some();
        if let Some(token) = self.token {
            builder = builder.bearer(token);
        }
        if let Some(address) = self.http.filter(|address| !address.ip().is_loopback()) {
            if self.hosts.is_empty() || !has_token {
                return Err(ToolError::permission(format!("`{address}` is reachable from other hosts"))
                    .suggest("Set `token`, and the names that clients use in `hosts`, such as [\"tools.example\"]."));
            }
            builder = builder.beyond_loopback();
        }
        for host in self.hosts {
            builder = builder.host(host);
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
        (Ok(input), Ok(output)) => Ok(server.serve_files(input, output).await?),
        _ => Ok(server.stdio().await?),
    }
}

/// The surroundings of a toolbox's source in a server.
struct Served {
    source: Arc<dyn ToolSource>,
    /// Runs coroutines on the event loop that awaits the server.
    driver: Option<Arc<Driver>>,
    context: Option<Arc<AppContext>>,
}

impl Served {
    /// # Errors
    /// The event loop that awaits the server cannot read files.
    fn new(source: Arc<dyn ToolSource>, context: Option<Arc<AppContext>>) -> Result<Self, ToolError> {
        let awaiting = Driver::current();
        let driver = match awaiting.as_deref().map(Driver::mode) {
            Some(Mode::Task(event_loop) | Mode::Tasks(event_loop)) => {
                let watched = Python::attach(|py| Inbox::of_loop(event_loop.bind(py)))?;
                Some(Driver::new(Mode::Remote(watched)))
            }
            _ => None,
        };
        Ok(Self { source, driver, context })
    }

    /// Answers a call, and logs a defect of the tool: the client gets neither message nor traceback.
    fn answer<'a, T: Send + 'a>(
        &'a self,
        mut call: Call,
        run: impl FnOnce(Call) -> BoxFuture<'a, T>,
        error: fn(&T) -> Option<&ToolError>,
    ) -> BoxFuture<'a, T> {
        if let Some(context) = &self.context {
            call.values.provide_shared(Arc::clone(context));
        }
        let name = call.tool.clone();
        let mut future = run(call);
        Box::pin(async move {
            let answer = match &self.driver {
                None => future.await,
                Some(driver) => poll_fn(|context| driver.poll(|| future.as_mut().poll(context))).await,
            };
            if let Some(error) = error(&answer).filter(|error| error.code() == Code::Internal) {
                errors::log(&name, error);
            }
            answer
        })
    }
}

impl ToolSource for Served {
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
        self.answer(call, |call| self.source.call(call), |reply| reply.result.as_ref().err())
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.source.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.source.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.answer(call, |call| self.source.read(call), |result| result.as_ref().err())
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.answer(call, |call| self.source.render(call), |result| result.as_ref().err())
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let source = self.source.seen_by(caller)?;
        Some(Arc::new(Self { source, driver: self.driver.clone(), context: self.context.clone() }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    fn viewer(&self) -> Option<&Caller> {
        self.source.viewer()
    }
}
