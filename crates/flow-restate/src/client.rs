//! A client of the cluster, by the HTTP API that Restate calls ingress.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toolpost_core::{CallError, Clock as _, Code, RunId, SystemClock, ToolError, Truncation};
use toolpost_flow::driver::Watch;
use toolpost_flow::{FlowEvent, FlowProgress, FlowSummary, Plan, RunStatus, StoredFlow};

use crate::object::{ALL, Filter, MAX_RUNS, RUNS};
use crate::wire::{End, Page, Start, VERSION, WORKFLOW, pool_service};
use crate::worker::cause;

/// The limit of a request. One that waits for the end of a run is then sent again.
const REQUEST: Duration = Duration::from_secs(30);
/// The default number of calls of a run in flight.
const DEFAULT_PARALLEL: usize = 64;
/// The number of lost connections in a row after which waiting for a run fails.
const MAX_LOST: u32 = 20;
/// The time between two attempts to wait.
const PAUSE: Duration = Duration::from_millis(500);
/// The time between two looks at the events of a run.
const LOOK: Duration = Duration::from_millis(200);
/// The time in which a started run begins, so that it has an inbox.
const BEGIN: Duration = Duration::from_secs(2);

/// The HTTP client for an address. The system's certificates are read for `https:` only.
pub(crate) fn http(url: &str) -> Result<Client, ToolError> {
    let wrong = |error: &dyn std::fmt::Display| {
        ToolError::precondition(format!("cannot create the HTTP client: {error}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let tls = if url.starts_with("https:") {
        let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| wrong(&error))?;
        tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
    } else {
        tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    };
    Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(Duration::from_secs(10))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| wrong(&error))
}

/// Whether an address is on this machine.
pub fn is_loopback(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

/// The start of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StartOptions {
    /// The id. Default: a new one. A second start with the same id fails with `CONFLICT`.
    pub id: RunId,
    /// The maximum number of calls in flight. Default: 64.
    pub max_parallel: usize,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { id: RunId::new(), max_parallel: DEFAULT_PARALLEL }
    }
}

/// A run that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOutcome {
    /// The run.
    pub id: RunId,
    /// The end.
    pub status: RunStatus,
    /// The output of the plan; null unless it succeeded.
    pub output: Value,
    /// The reason of the failure or the cancellation.
    pub error: Option<ToolError>,
    /// The parts of the output that a limit truncated. Where the output is used as data, that is an error.
    pub truncated: Vec<Truncation>,
    /// The steps that succeeded.
    pub succeeded: u64,
    /// The steps that failed.
    pub failed: u64,
}

/// A client of a Restate cluster: starts, awaits, shows, signals and cancels runs.
#[derive(Clone, Debug)]
pub struct Cluster {
    http: Client,
    url: Arc<str>,
}

impl Cluster {
    /// A client of the ingress at an address, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// `INVALID_INPUT` for another address.
    pub fn new(url: &str) -> Result<Self, CallError> {
        let is_http = url.starts_with("http://") || url.starts_with("https://");
        if !is_http || reqwest::Url::parse(url).is_err() {
            return Err(ToolError::invalid_input(format!("`{url}` is not the address of a cluster"))
                .suggest("Give the ingress of a Restate server, such as `http://127.0.0.1:8080`.")
                .into());
        }
        Ok(Self { http: http(url)?, url: url.trim_end_matches('/').into() })
    }

    /// Lists the runs that match, the latest first, at most `limit`. The cluster lists its latest 1,000 runs.
    ///
    /// # Errors
    /// `PRECONDITION` if no worker serves the list, and `DEPENDENCY` if the cluster is unreachable.
    pub async fn list(
        &self,
        matches: impl Fn(&FlowSummary) -> bool,
        limit: usize,
    ) -> Result<Vec<FlowSummary>, CallError> {
        let mut found = Vec::new();
        for mut run in self.listed("", MAX_RUNS).await? {
            if found.len() >= limit {
                break;
            }
            if run.status == RunStatus::Running {
                // The list has the start and the end of a run; the run has the rest. A run that is deleted stays as listed.
                run = self.show(run.id).await.map_or(run, |run| run.summary);
            }
            found.extend(Some(run).filter(&matches));
        }
        Ok(found)
    }

    async fn listed(&self, prefix: &str, limit: usize) -> Result<Vec<FlowSummary>, ToolError> {
        let filter = Filter { prefix: prefix.to_owned(), after: None, limit };
        self.request(Method::POST, &format!("{RUNS}/{ALL}/list"), Some(&filter), Some(REQUEST)).await
    }

    /// The run with an id, or the only listed run whose id begins with a text; the latest one for `last`.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_INPUT` for several runs, and those of [`list`](Self::list).
    pub async fn find(&self, start: &str) -> Result<RunId, CallError> {
        if let Ok(id) = start.parse() {
            return Ok(id);
        }
        let start = start.trim().to_ascii_lowercase();
        let found = if start == "last" { self.listed("", 1).await? } else { self.listed(&start, 2).await? };
        match found.as_slice() {
            [run] => Ok(run.id),
            [] => Err(ToolError::not_found(format!("the cluster lists no run `{start}`"))
                .suggest("Give the whole id of an older run.")
                .into()),
            _ => Err(ToolError::invalid_input(format!("several runs begin with `{start}`"))
                .suggest("Give more characters of the id.")
                .into()),
        }
    }

    /// Starts a run, which then needs this client no longer.
    ///
    /// # Errors
    /// `INVALID_INPUT` for wrong inputs, `CONFLICT` for the id of another run, `PRECONDITION` without a worker, and
    /// `DEPENDENCY` if the cluster is unreachable.
    pub async fn start(&self, plan: &Plan, input: Value, options: StartOptions) -> Result<RunId, CallError> {
        let StartOptions { id, max_parallel } = options;
        let input = plan.complete(input)?;
        let plan = plan.source().clone();
        // Workers of an earlier version serve no list.
        let is_listed = self.listed("", 0).await.is_ok();
        let start = Start { v: VERSION, plan, input, max_parallel, checks_outputs: true, is_listed };
        let path = format!("{WORKFLOW}/{id}/run/send");
        let sent: Value = self.request(Method::POST, &path, Some(&start), Some(REQUEST)).await?;
        if sent["status"] == "PreviouslyAccepted" {
            return Err(ToolError::conflict(format!("the run `{id}` exists already")).into());
        }
        Ok(id)
    }

    /// Waits until a run has ended. Lost connections are tried again for about 10 s.
    ///
    /// # Errors
    /// `NOT_FOUND`, and `DEPENDENCY` if the cluster is unreachable or the run was killed.
    pub async fn outcome(&self, id: RunId) -> Result<ClusterOutcome, CallError> {
        let path = format!("restate/workflow/{WORKFLOW}/{id}/attach");
        let mut lost = 0;
        loop {
            // A machine that vanishes closes no connection, so each request waits for a while only.
            let waiting = self.request(Method::GET, &path, None::<&()>, None);
            let Ok(end) = tokio::time::timeout(REQUEST, waiting).await else { continue };
            match end {
                Ok(End { status, output, error, truncated, succeeded, failed }) => {
                    let output = Arc::unwrap_or_clone(output);
                    return Ok(ClusterOutcome { id, status, output, error, truncated, succeeded, failed });
                }
                Err(error) if error.retry_advice().is_some() && lost < MAX_LOST => lost += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits as [`outcome`](Self::outcome) does, and shows the progress of the run from its start.
    ///
    /// # Errors
    /// As for [`outcome`](Self::outcome).
    pub async fn follow(
        &self,
        id: RunId,
        mut show: impl FnMut(&FlowProgress) + Send,
    ) -> Result<ClusterOutcome, CallError> {
        let (mut watch, mut next) = (Watch::new(id), 0);
        let mut outcome = pin!(self.outcome(id));
        loop {
            let ended = tokio::select! {
                ended = &mut outcome => Some(ended),
                () = tokio::time::sleep(LOOK) => None,
            };
            loop {
                let page = match self.page(id, next).await {
                    Ok(page) if page.next > next => page,
                    Ok(_) => break,
                    // The next look has the rest.
                    Err(_) if ended.is_none() => break,
                    Err(error) => return Err(error.into()),
                };
                for (at, event) in &page.events {
                    watch.progress(*at, event)?.iter().for_each(&mut show);
                }
                next = page.next;
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// Events after a number of batches.
    async fn page(&self, id: RunId, after: u64) -> Result<Page, ToolError> {
        self.request(Method::POST, &format!("{WORKFLOW}/{id}/events"), Some(&after), Some(REQUEST)).await
    }

    /// The run with its events so far. Its owner is the cluster until it ends.
    ///
    /// # Errors
    /// `NOT_FOUND`, and `DEPENDENCY` if the cluster is unreachable.
    pub async fn show(&self, id: RunId) -> Result<StoredFlow, CallError> {
        let (mut events, mut next) = (Vec::new(), 0);
        loop {
            let page = self.page(id, next).await?;
            if page.next == next {
                break;
            }
            events.extend(page.events);
            next = page.next;
        }
        if events.is_empty() {
            let message = format!("the run `{id}` does not exist or has not begun");
            return Err(ToolError::not_found(message).into());
        }
        let mut run = StoredFlow::from_events(id, events)?;
        if run.summary.status == RunStatus::Running {
            run.summary.owner = Some(self.url.to_string());
        }
        Ok(run)
    }

    /// The pools of a plan without a registered worker. Steps with such a pool wait.
    ///
    /// # Errors
    /// `DEPENDENCY` if the cluster is unreachable.
    pub async fn missing_pools(&self, plan: &Plan) -> Result<Vec<String>, CallError> {
        let mut missing = Vec::new();
        for pool in plan.pools() {
            // No service has this handler: the answer names the service or the handler.
            let path = format!("{}/-", pool_service(pool));
            let request = self.http.post(format!("{}/{path}", self.url)).timeout(REQUEST);
            let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
            let status = answer.status();
            let body = answer.text().await.map_err(|error| self.unreachable(&error))?;
            if status == StatusCode::NOT_FOUND && body.contains("make sure to register the service") {
                missing.push(pool.to_owned());
            }
        }
        Ok(missing)
    }

    /// Sends a value to the step that waits for this signal, now or later.
    ///
    /// # Errors
    /// Errors of [`StoredFlow::check_signal`], `NOT_FOUND`, and `DEPENDENCY` if the cluster is unreachable.
    pub async fn signal(&self, id: RunId, name: &str, value: Value) -> Result<(), CallError> {
        self.begun(id).await?.check_signal(name)?;
        Ok(self.send(id, &FlowEvent::Signal { name: name.to_owned(), value }).await?)
    }

    /// Answers the approval of a step, as [`StoredFlow::approval`] finds it. Returns the step.
    ///
    /// # Errors
    /// Errors of [`StoredFlow::approval`], `NOT_FOUND`, and `DEPENDENCY` if the cluster is unreachable.
    pub async fn answer(&self, id: RunId, step: Option<&str>, answer: Value) -> Result<String, CallError> {
        let run = self.begun(id).await?;
        let step = run.approval(step, SystemClock.timestamp())?;
        self.send(id, &run.answer(&step, answer)).await?;
        Ok(step)
    }

    /// The run with its events. A run that was accepted may not have begun.
    async fn begun(&self, id: RunId) -> Result<StoredFlow, CallError> {
        let asked = tokio::time::Instant::now();
        loop {
            match self.show(id).await {
                Err(error) if error.code() == Code::NotFound && asked.elapsed() < BEGIN => {}
                other => return other,
            }
            tokio::time::sleep(PAUSE / 5).await;
        }
    }

    /// Asks a run to end: its calls are stopped, and what it did is undone as the plan says.
    ///
    /// # Errors
    /// `NOT_FOUND`, `PRECONDITION` if the run has ended, and `DEPENDENCY` if the cluster is unreachable.
    pub async fn cancel(&self, id: RunId, reason: &str) -> Result<(), CallError> {
        Ok(self.send(id, &FlowEvent::CancelRequested { reason: reason.to_owned() }).await?)
    }

    async fn send(&self, id: RunId, event: &FlowEvent) -> Result<(), ToolError> {
        let path = format!("{WORKFLOW}/{id}/send");
        let begun = tokio::time::Instant::now();
        loop {
            let sent: Result<Value, ToolError> =
                self.request(Method::POST, &path, Some(event), Some(REQUEST)).await;
            match sent {
                // A run that was accepted may not have begun.
                Err(error) if error.code() == Code::NotFound && begun.elapsed() < BEGIN => {}
                other => return other.map(drop),
            }
            tokio::time::sleep(PAUSE / 5).await;
        }
    }

    /// Sends a request, and decodes the answer; an empty one is null.
    pub(crate) async fn request<Body: Serialize + ?Sized, Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Body>,
        limit: Option<Duration>,
    ) -> Result<Answer, ToolError> {
        let mut request = self.http.request(method, format!("{}/{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            return Err(rejected(status, &body));
        }
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).map_err(|error| {
            ToolError::dependency(format!(
                "the cluster at `{}` gave an answer of another format: {error}",
                self.url
            ))
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> ToolError {
        ToolError::dependency(format!("the cluster at `{}` is unreachable: {}", self.url, cause(error)))
            .suggest("Check that the Restate server runs and that the address is its ingress.")
            .retry(toolpost_core::RetryAdvice::After(PAUSE))
    }
}

/// The error of an answer.
fn rejected(status: StatusCode, body: &[u8]) -> ToolError {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["message"].as_str().unwrap_or("no message").to_owned();
    match status {
        StatusCode::NOT_FOUND if message.contains("service") => {
            ToolError::precondition("the cluster has no worker of the pool `default`")
                .suggest(toolpost_core::Hint::StartFlowWorker)
        }
        StatusCode::NOT_FOUND => ToolError::not_found("the run does not exist or has not begun"),
        StatusCode::CONFLICT => ToolError::precondition(message),
        StatusCode::BAD_REQUEST => ToolError::invalid_input(message),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            ToolError::dependency(format!("the cluster is overloaded: {message}"))
                .retry(toolpost_core::RetryAdvice::After(PAUSE))
        }
        _ => ToolError::dependency(format!("the cluster answered {status}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_this_machine_is_loopback() {
        for url in ["http://127.0.0.1:8080", "http://localhost", "https://[::1]:1/x", "http://127.9.9.9/"] {
            assert!(super::is_loopback(url), "{url}");
        }
        for url in [
            "http://10.0.0.1",
            "http://127.0.0.1:80@example.org/",
            "http://localhost.example.org",
            "127.0.0.1",
        ] {
            assert!(!super::is_loopback(url), "{url}");
        }
    }
}
