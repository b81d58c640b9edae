//! One connection to a server.
#![expect(deprecated, reason = "older servers use sampling, roots and logging")]

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CancelTaskParams, CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig,
    ClientRequest, DiscoverRequest, DiscoverRequestParams, ElicitationCapability, FormElicitationCapability,
    GetExtensions as _, Implementation, JsonObject, PingRequest, ProtocolVersion, RequestId,
    RequestMetaObject, RootsCapabilities, SamplingCapability, ServerNotification, ServerPeerInfo,
    SetLevelRequestParams, SubscriptionFilter, TASKS_EXTENSION_ID, UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, Peer, PeerRequestOptions, RoleClient, RunningService,
    serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::task::AbortHandle;
use toolpost_core::{ToolError, format_duration};
use toolpost_sandbox::Verdict;

use super::failure::{self, Failure};
use super::flight::{Flight, Flights, SendFailure, Tag, Watched};
use super::handler::{Changes, Handler};
use super::program::{self, Stderr};
use super::response::json_of;
use super::settings::{LOG_LEVEL, Settings, StartEvent};
use super::{Endpoint, http, websocket};
use crate::convert::inward::Notes;
use crate::convert::protocol_level;

/// The shortest and the longest wait before the notification stream is reopened.
const RELISTEN_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// The `_meta` key for the log level of a request (2026-07-28).
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// The time that a server may stay silent before the wait is reported.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(10);
/// The timeout of cancelling a task.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection. Dropping it closes it and stops the server program.
pub(super) struct Connection {
    service: RunningService<RoleClient, Handler>,
    pub(super) info: Arc<ServerPeerInfo>,
    flights: Arc<Flights>,
    name: String,
    listener: Option<AbortHandle>,
    /// The standard error of a server program.
    stderr: Option<Stderr>,
}

/// The protocol versions to try.
#[derive(Clone, Copy)]
enum Versions {
    /// 2026-07-28, with a fallback to older versions.
    Any,
    /// Only versions with `initialize`.
    Legacy,
}

/// The reason why a connection could not be opened.
enum OpenError {
    Failed(ToolError),
    /// The server rejected 2026-07-28.
    LegacyOnly,
}

impl From<ToolError> for OpenError {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// Connects once.
    pub(super) async fn open(settings: &Settings, changes: &Arc<Changes>) -> Result<Self, ToolError> {
        let extra_time = settings.session.as_ref().map_or(Duration::ZERO, |session| session.extra_time());
        let limit = settings.connect_timeout.saturating_add(extra_time);
        // The standard error of the last started program.
        let stderr = Mutex::new(None);
        let last_stderr = || stderr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opening = async {
            match Self::begin(settings, changes, Versions::Any, &stderr).await {
                // The server supports only older versions, or answers unknown requests arbitrarily.
                Err(OpenError::LegacyOnly) => Self::begin(settings, changes, Versions::Legacy, &stderr).await,
                opened => opened,
            }
        };
        let mut opening = pin!(tokio::time::timeout(limit, opening));
        let opened = match tokio::time::timeout(REPORT_WAIT_AFTER, opening.as_mut()).await {
            Ok(opened) => opened,
            Err(_) => {
                // During a login the user knows about the wait.
                if extra_time.is_zero() {
                    let stderr = last_stderr().map(|stderr: Stderr| stderr.text()).unwrap_or_default();
                    settings.report(&StartEvent::Waiting { stderr: &stderr, limit });
                }
                opening.await
            }
        };
        let stderr = last_stderr();
        let name = &settings.name;
        let error = match opened {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(OpenError::Failed(error))) => match &stderr {
                Some(stderr) => with_exit(error, stderr, name).await,
                None => error,
            },
            Ok(Err(OpenError::LegacyOnly)) => {
                ToolError::dependency(format!("the server `{name}` supports no known protocol version"))
            }
            Err(_) => ToolError::timeout(format!(
                "the server `{name}` did not answer `initialize` within {}",
                format_duration(limit)
            )),
        };
        Err(match &stderr {
            Some(stderr) => with_stderr(error, stderr),
            None => error,
        })
    }

    async fn begin(
        settings: &Settings,
        changes: &Arc<Changes>,
        versions: Versions,
        program_stderr: &Mutex<Option<Stderr>>,
    ) -> Result<Self, OpenError> {
        let flights = Arc::new(Flights::default());
        let handler = Handler::new(config(), Arc::clone(&flights), Arc::clone(changes));
        let name = &settings.name;
        let of_start = |error| {
            if let (
                Versions::Any,
                ClientInitializeError::NoCompatibleProtocolVersion { .. }
                | ClientInitializeError::ExpectedInitResult(_),
            ) = (versions, &error)
            {
                return OpenError::LegacyOnly;
            }
            OpenError::Failed(failure::of_start(error, name))
        };
        let service = match &settings.endpoint {
            Endpoint::Http { url, headers } => {
                let transport = http::transport(settings, url, headers)?;
                serve(handler, transport, &flights, versions).await.map_err(of_start)?
            }
            Endpoint::WebSocket { url, headers } => {
                let socket = websocket::connect(settings, url, headers).await?;
                serve(handler, socket, &flights, versions).await.map_err(of_start)?
            }
            Endpoint::Program { argv, env, dir, level } => {
                let start = program::Start { argv, env, dir: dir.as_deref(), level: *level };
                let (streams, stderr) = program::start(settings, start).await?;
                *program_stderr.lock().unwrap_or_else(PoisonError::into_inner) = Some(stderr);
                serve(handler, streams, &flights, versions).await.map_err(of_start)?
            }
        };
        let Some(info) = service.peer().peer_info() else {
            return Err(ToolError::dependency(format!("the server `{name}` sent no server info")).into());
        };
        let mut connection = Self {
            service,
            info,
            flights,
            name: name.clone(),
            listener: None,
            stderr: program_stderr.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        connection.listen(changes);
        connection.set_log_level().await;
        Ok(connection)
    }

    /// Whether the transport is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.service.peer().is_transport_closed()
    }

    /// Whether the protocol version is stateless: no `initialize`, no session.
    pub(super) fn is_stateless(&self) -> bool {
        !self.info.protocol_version.has_initialize()
    }

    /// Sends a request and waits for its result, as JSON with what its text lost. Dropping the future cancels the request.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        flight: Option<&Arc<Flight>>,
        mut meta: RequestMetaObject,
    ) -> Result<(Value, Notes), Failure> {
        if !self.is_stateless() {
            meta.remove(LOG_LEVEL_KEY);
        }
        let _guard = flight.map(|flight| {
            flight.set_unsent();
            request.extensions_mut().insert(Tag(Arc::clone(flight)));
            RemoveOnDrop { flights: &self.flights, flight }
        });
        let options = PeerRequestOptions::no_options().with_meta(meta);
        let peer = self.service.peer();
        let of_service = |error| failure::of_service(error, &self.name);
        let handle = peer.send_request_with_option(request, options).await.map_err(of_service)?;
        let mut guard = CancelOnDrop { peer, id: Some(handle.id.clone()) };
        let answer = handle.await_response().await;
        guard.id = None;
        let answer = answer.map(json_of);
        let has_failed = match &answer {
            Ok((result, _)) => result.get("isError").is_some_and(|is_error| *is_error == true),
            Err(_) => flight.is_some(),
        };
        if has_failed {
            self.log_stderr();
        }
        answer.map_err(of_service)
    }

    /// Logs the last stderr output for the operator; callers never get it.
    fn log_stderr(&self) {
        let text = self.stderr.as_ref().map(Stderr::text).unwrap_or_default();
        if !text.is_empty() {
            tracing::info!(target: "toolpost::mcp", "a call of `{}` failed; last stderr output:\n{text}", self.name);
        }
    }

    /// Sends a health check; an error response counts as healthy.
    pub(super) async fn probe(&self) -> Result<(), Failure> {
        let request = if self.is_stateless() {
            ClientRequest::DiscoverRequest(DiscoverRequest::new(DiscoverRequestParams {}))
        } else {
            ClientRequest::PingRequest(PingRequest::default())
        };
        match self.request(request, None, RequestMetaObject::default()).await {
            Err(lost @ Failure::Lost(_)) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Cancels a task.
    pub(super) async fn cancel_task(&self, task: CancelTaskParams) {
        let sent = tokio::time::timeout(CANCEL_TIMEOUT, self.service.peer().cancel_task(task)).await;
        if !matches!(sent, Ok(Ok(()))) {
            tracing::debug!(server = self.name, "cancelling a task failed");
        }
    }

    /// Sets the log level of the session. In 2026-07-28 each request carries the level.
    async fn set_log_level(&self) {
        if self.is_stateless() || self.info.capabilities.logging.is_none() {
            return;
        }
        let params = SetLevelRequestParams::new(protocol_level(LOG_LEVEL));
        if let Err(error) = self.service.peer().set_level(params).await {
            tracing::debug!(server = self.name, %error, "the server rejected the log level");
        }
    }

    /// Opens the notification stream of 2026-07-28, for the life of the connection.
    fn listen(&mut self, changes: &Arc<Changes>) {
        let capabilities = &self.info.capabilities;
        let mut filter = SubscriptionFilter::new();
        filter.tools_list_changed =
            capabilities.tools.as_ref().and_then(|tools| tools.list_changed).filter(|changes| *changes);
        filter.prompts_list_changed =
            capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed).filter(|changes| *changes);
        filter.resources_list_changed =
            capabilities.resources.as_ref().and_then(|list| list.list_changed).filter(|changes| *changes);
        if !self.is_stateless() || filter == SubscriptionFilter::new() {
            return;
        }
        let (peer, changes) = (self.service.peer().clone(), Arc::clone(changes));
        self.listener = Some(tokio::spawn(keep_listening(peer, filter, changes)).abort_handle());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// Handles list change notifications and reopens their stream when it ends.
async fn keep_listening(peer: Peer<RoleClient>, filter: SubscriptionFilter, changes: Arc<Changes>) {
    let (mut wait, longest) = RELISTEN_WAIT;
    let mut has_gap = false;
    while !peer.is_transport_closed() {
        if let Ok(mut notifications) = peer.listen(filter.clone()).await {
            if has_gap {
                // Notifications may have been missed.
                changes.tools();
                changes.others();
            }
            wait = RELISTEN_WAIT.0;
            while let Ok(Some(notification)) = notifications.next().await {
                match notification {
                    ServerNotification::ToolListChangedNotification(_) => changes.tools(),
                    ServerNotification::PromptListChangedNotification(_)
                    | ServerNotification::ResourceListChangedNotification(_) => changes.others(),
                    _ => {}
                }
            }
        }
        has_gap = true;
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
    }
}

/// Negotiates the protocol version.
async fn serve<T>(
    handler: Handler,
    transport: T,
    flights: &Arc<Flights>,
    versions: Versions,
) -> Result<RunningService<RoleClient, Handler>, ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
    T::Error: SendFailure,
{
    let lifecycle = match versions {
        Versions::Any => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        },
        Versions::Legacy => ClientLifecycleMode::Initialize,
    };
    serve_client_with_lifecycle(handler, Watched::new(transport, Arc::clone(flights)), lifecycle).await
}

/// The client's capabilities and info.
fn config() -> ClientConfig {
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(
        ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new()),
    );
    capabilities.sampling = Some(SamplingCapability::default());
    capabilities.roots = Some(RootsCapabilities::default());
    capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), JsonObject::new())].into());
    let mut config = ClientConfig::default();
    config.protocol_version = ProtocolVersion::V_2025_11_25;
    config.capabilities = capabilities;
    config.client_info = Implementation::new("toolpost", env!("CARGO_PKG_VERSION"));
    config
}

/// The exit of the program, as a more precise error.
async fn with_exit(error: ToolError, stderr: &Stderr, name: &str) -> ToolError {
    let exited = |how: &str| ToolError::dependency(format!("the server `{name}` {how} before it answered"));
    let verdict = match stderr.exit().await {
        Some(Ok(verdict)) => verdict,
        Some(Err(unstarted)) => return unstarted.clone(),
        None => return error,
    };
    match verdict {
        Verdict::Ok => exited("exited with status 0").with("exit_code", 0),
        Verdict::Exit { code } => exited(&format!("exited with status {code}")).with("exit_code", *code),
        Verdict::Signal { signal } => {
            exited(&format!("was killed by signal {signal}")).with("signal", *signal)
        }
        Verdict::Memory { limit } => {
            ToolError::limit(format!("the server `{name}` exceeded its memory limit of {} MiB", limit >> 20))
        }
        _ => error,
    }
}

/// Adds the last stderr output.
fn with_stderr(error: ToolError, stderr: &Stderr) -> ToolError {
    match stderr.text() {
        text if text.is_empty() => error,
        text => error.with("stderr", text),
    }
}

/// Removes a call from the pending ones when its request ends.
struct RemoveOnDrop<'a> {
    flights: &'a Flights,
    flight: &'a Arc<Flight>,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.flights.remove(self.flight);
    }
}

/// Sends a cancellation when the caller drops the request.
struct CancelOnDrop<'a> {
    peer: &'a Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let peer = self.peer.clone();
        runtime.spawn(async move {
            let reason = Some("the caller went away".to_owned());
            let notification = CancelledNotification::new(CancelledNotificationParam::new(Some(id), reason));
            // The server may be gone.
            let _ = peer.send_notification(notification.into()).await;
        });
    }
}
