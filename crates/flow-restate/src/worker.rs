//! The server of a worker, and its registration.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use restate_sdk::endpoint::Endpoint;
use restate_sdk::http_server::HttpServer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use toolpost_core::{Caller, Masks, Scope};
use toolpost_toolbox::Toolbox;

use crate::client::http;
use crate::object::{RunIndex, StateIndex, StateObject};
use crate::pool::{self, MAX_ADMITTED, Tools};
use crate::wire::{WORKFLOW, pool_service};
use crate::workflow::RunWorkflow;

/// The pool of steps that name none. Its workers also execute the runs and hold the state of tools.
pub const DEFAULT_POOL: &str = "default";
/// The limit of a registration.
const REGISTRATION: Duration = Duration::from_secs(30);

/// The reason why a worker cannot serve or register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerError(String);

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WorkerError {}

/// A server that executes steps with the tools of a toolbox.
///
/// All who reach its port can call its tools. Beyond loopback it needs an [`identity_key`](Self::identity_key), so that
/// it takes signed requests of one Restate cluster only.
#[must_use = "a worker does nothing until `serve`"]
pub struct Worker {
    toolbox: Toolbox,
    pools: Vec<String>,
    caller: Caller,
    scope: Option<Scope>,
    masks: Masks,
    identity_keys: Vec<String>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("pools", &self.pools).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker of the pool `default`.
    pub fn new(toolbox: Toolbox) -> Self {
        Self {
            toolbox,
            pools: Vec::new(),
            caller: Caller::new("flow"),
            scope: None,
            masks: Masks::default(),
            identity_keys: Vec::new(),
        }
    }

    /// Adds a pool: letters, digits, `_` and `-`, at most 64. Without any, the pool is [`DEFAULT_POOL`].
    pub fn pool(mut self, name: impl Into<String>) -> Self {
        self.pools.push(name.into());
        self
    }

    /// Sets the caller of the steps' calls. Default: `flow`.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Sets the scope of the steps' calls, with the working directory.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Masks these secrets in the outputs and errors of steps, which Restate stores.
    pub fn masks(mut self, masks: Masks) -> Self {
        self.masks = masks;
        self
    }

    /// Adds an identity key of the Restate server, such as `publickeyv1_…`. With one, other requests are rejected.
    pub fn identity_key(mut self, key: impl Into<String>) -> Self {
        self.identity_keys.push(key.into());
        self
    }

    /// The names of the services that it serves.
    pub fn services(&self) -> Vec<String> {
        let pools = self.pool_names();
        let mut names: Vec<String> = pools.iter().map(|pool| pool_service(pool)).collect();
        if pools.contains(&DEFAULT_POOL) {
            names.extend([
                WORKFLOW.to_owned(),
                crate::object::STATE.to_owned(),
                crate::object::INDEX.to_owned(),
                crate::object::RUNS.to_owned(),
            ]);
        }
        names
    }

    fn pool_names(&self) -> Vec<&str> {
        if self.pools.is_empty() {
            vec![DEFAULT_POOL]
        } else {
            self.pools.iter().map(String::as_str).collect()
        }
    }

    fn endpoint(&self) -> Result<Endpoint, WorkerError> {
        let tools = Arc::new(Tools {
            toolbox: self.toolbox.clone(),
            caller: self.caller.clone(),
            scope: self.scope.clone(),
            masks: self.masks.clone(),
            admitted: Semaphore::new(MAX_ADMITTED),
        });
        let mut builder = Endpoint::builder();
        for key in &self.identity_keys {
            builder = builder.identity_key(key).map_err(|error| {
                WorkerError(format!("the identity key `{key}` is invalid: {error}; expected `publickeyv1_…`"))
            })?;
        }
        for name in self.pool_names() {
            builder = builder.bind(pool::service(&tools, name).map_err(WorkerError)?);
            if name == DEFAULT_POOL {
                builder = builder.bind(RunWorkflow).bind(StateObject).bind(StateIndex).bind(RunIndex);
            }
        }
        Ok(builder.build())
    }

    /// Serves until the future ends, and then up to 10 s longer for calls in flight.
    ///
    /// # Errors
    /// The name of a pool or an identity key is invalid, or the address is not loopback and there is no identity key.
    pub async fn serve(self, listener: TcpListener, end: impl Future) -> Result<(), WorkerError> {
        let endpoint = self.endpoint()?;
        let address = listener.local_addr().map_err(|error| WorkerError(error.to_string()))?;
        if !address.ip().is_loopback() && self.identity_keys.is_empty() {
            return Err(WorkerError(format!(
                "a worker at `{address}` needs an identity key: without one, all who reach it call its tools"
            )));
        }
        HttpServer::new(endpoint).serve_with_cancel(listener, end).await;
        Ok(())
    }
}

/// Registers the services at an address with the admin API of a Restate server.
///
/// `url` is the address under which the servers reach the worker. Several workers of a pool share one: that of a load
/// balancer, or a DNS name with several addresses.
///
/// # Errors
/// The server is unreachable, or cannot reach the worker.
pub async fn register(admin: &str, url: &str, services: &[String]) -> Result<(), WorkerError> {
    let client = http(admin).map_err(|error| WorkerError(error.message().to_owned()))?;
    let endpoint = format!("{}/deployments", admin.trim_end_matches('/'));
    // An address that is known keeps its services unless it is registered by force.
    for force in [false, true] {
        let answer = client
            .post(&endpoint)
            .json(&json!({ "uri": url, "force": force }))
            .timeout(REGISTRATION)
            .send()
            .await
            .map_err(|error| {
                WorkerError(format!("the Restate admin API at `{admin}` is unreachable: {}", cause(&error)))
            })?;
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or_default();
        if status.is_success() {
            let known: Vec<&str> = body["services"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|service| service["name"].as_str())
                .collect();
            if services.iter().all(|service| known.contains(&service.as_str())) {
                return Ok(());
            }
        } else if status != reqwest::StatusCode::CONFLICT || force {
            let message = body["message"].as_str().unwrap_or("no message");
            return Err(WorkerError(format!("Restate cannot use the worker at `{url}`: {message}")));
        }
    }
    Err(WorkerError(format!("the worker at `{url}` has other services than {}", services.join(", "))))
}

/// The innermost cause of an error of the HTTP client.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
