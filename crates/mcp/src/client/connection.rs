//! One connection to a server, from its first message on.
#![expect(deprecated, reason = "servers of the older era ask for completions and folders, and log")]

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CancelTaskParams, CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig,
    ClientRequest, DiscoverRequest, DiscoverRequestParams, ElicitationCapability, FormElicitationCapability,
    GetExtensions as _, Implementation, JsonObject, LoggingLevel, PingRequest, ProtocolVersion, RequestId,
    RequestMetaObject, RootsCapabilities, SamplingCapability, ServerNotification, ServerPeerInfo,
    ServerResult, SetLevelRequestParams, SubscriptionFilter, TASKS_EXTENSION_ID, UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, Peer, PeerRequestOptions, RoleClient, RunningService,
    serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use tokio::task::AbortHandle;
use toolpost_core::{LogLevel, ToolError, format_duration};
use toolpost_sandbox::Verdict;

use super::answer::Asked;
use super::failure::{self, Failure};
use super::flight::{Arrival, Flight, Flights, Tag, Watched};
use super::handler::{Changes, Handler};
use super::program::{self, Errors};
use super::settings::{Settings, StartEvent};
use super::{Endpoint, http, websocket};

/// The shortest and the longest wait before a stream of notices is opened again.
const LISTEN_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Where a request of the newer era says which log lines are wanted.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// How long a server may take to answer before its operator is told what is waited for.
const ANSWER: Duration = Duration::from_millis(1_500);
/// How long the cancellation of a task may take.
const CANCEL: Duration = Duration::from_secs(5);

/// A connection. Dropped, it ends, and with it the program at its other end.
pub(super) struct Connection {
    service: RunningService<RoleClient, Handler>,
    pub(super) info: Arc<ServerPeerInfo>,
    flights: Arc<Flights>,
    name: String,
    listener: Option<AbortHandle>,
    /// What a program writes to standard error.
    errors: Option<Errors>,
}

/// What is spoken.
#[derive(Clone, Copy)]
enum Era {
    /// The newer one, or the older one if the server does not know it.
    Either,
    /// The one that begins with `initialize`.
    Older,
}

/// Why a connection did not begin.
enum Start {
    Failed(ToolError),
    /// The server knows of both eras, and speaks only the older one.
    OlderEra,
}

impl From<ToolError> for Start {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// Connects once.
    pub(super) async fn open(settings: &Settings, changes: &Arc<Changes>) -> Result<Self, ToolError> {
        let longer = settings.session.as_ref().map_or(Duration::ZERO, |session| session.longer());
        let limit = settings.connect_timeout.saturating_add(longer);
        // Of the program that was started last.
        let errors = Mutex::new(None);
        let last_errors = || errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let begun = async {
            match Self::begin(settings, changes, Era::Either, &errors).await {
                // It knows of both eras and speaks only the older one, or answers anything to what it does not know.
                Err(Start::OlderEra) => Self::begin(settings, changes, Era::Older, &errors).await,
                begun => begun,
            }
        };
        let mut begun = pin!(tokio::time::timeout(limit, begun));
        let begun = match tokio::time::timeout(ANSWER, begun.as_mut()).await {
            Ok(begun) => begun,
            Err(_) => {
                // Who is asked to log in knows what is waited for.
                if longer.is_zero() {
                    let stderr = last_errors().map(|errors: Errors| errors.text()).unwrap_or_default();
                    settings.report(&StartEvent::Waiting { stderr: &stderr, limit });
                }
                begun.await
            }
        };
        let errors = last_errors();
        let name = &settings.name;
        let error = match begun {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(Start::Failed(error))) => match &errors {
                Some(errors) => with_end(error, errors, name).await,
                None => error,
            },
            Ok(Err(Start::OlderEra)) => ToolError::dependency(format!(
                "the server `{name}` speaks no version of the protocol that is known here"
            )),
            Err(_) => ToolError::timeout(format!(
                "the server `{name}` did not answer `initialize` within {}",
                format_duration(limit)
            )),
        };
        Err(match &errors {
            Some(errors) => with_errors(error, errors),
            None => error,
        })
    }

    async fn begin(
        settings: &Settings,
        changes: &Arc<Changes>,
        era: Era,
        program_errors: &Mutex<Option<Errors>>,
    ) -> Result<Self, Start> {
        let flights = Arc::new(Flights::default());
        let asked =
            Asked { flight: None, port: Arc::clone(&settings.port), roots: settings.roots.as_slice().into() };
        let handler = Handler::new(config(settings), Arc::clone(&flights), Arc::clone(changes), asked);
        let name = &settings.name;
        let of_start = |error| {
            if let (
                Era::Either,
                ClientInitializeError::NoCompatibleProtocolVersion { .. }
                | ClientInitializeError::ExpectedInitResult(_),
            ) = (era, &error)
            {
                return Start::OlderEra;
            }
            Start::Failed(failure::of_start(error, name))
        };
        let service = match &settings.endpoint {
            Endpoint::Http { url, headers } => {
                let transport = http::transport(settings, url, headers)?;
                serve(handler, transport, &flights, era).await.map_err(of_start)?
            }
            Endpoint::WebSocket { url, headers } => {
                let messages = websocket::connect(settings, url, headers).await?;
                serve(handler, messages, &flights, era).await.map_err(of_start)?
            }
            Endpoint::Program { argv, env, dir, level } => {
                let start = program::Start { argv, env, dir: dir.as_deref(), level: *level };
                let (streams, errors) = program::start(settings, start).await?;
                *program_errors.lock().unwrap_or_else(PoisonError::into_inner) = Some(errors);
                serve(handler, streams, &flights, era).await.map_err(of_start)?
            }
        };
        let Some(info) = service.peer().peer_info() else {
            return Err(ToolError::dependency(format!("the server `{name}` did not say who it is")).into());
        };
        let mut connection = Self {
            service,
            info,
            flights,
            name: name.clone(),
            listener: None,
            errors: program_errors.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        connection.listen(changes);
        connection.set_log_level(settings.log_level).await;
        Ok(connection)
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.service.peer().is_transport_closed()
    }

    /// Whether requests carry all that they need, and there is no session.
    pub(super) fn is_stateless(&self) -> bool {
        !self.info.protocol_version.has_initialize()
    }

    /// Sends a request and waits for its answer. Dropping the future cancels the request.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        flight: Option<&Arc<Flight>>,
        mut meta: RequestMetaObject,
    ) -> Result<ServerResult, Failure> {
        if !self.is_stateless() {
            meta.remove(LOG_LEVEL);
        }
        let _landing = flight.map(|flight| {
            flight.is_leaving();
            request.extensions_mut().insert(Tag(Arc::clone(flight)));
            Landing { flights: &self.flights, flight }
        });
        let options = PeerRequestOptions::no_options().with_meta(meta);
        let peer = self.service.peer();
        let of_service = |error| failure::of_service(error, &self.name);
        let handle = peer.send_request_with_option(request, options).await.map_err(of_service)?;
        let mut guard = CancelOnDrop { peer, id: Some(handle.id.clone()) };
        let answer = handle.await_response().await;
        guard.id = None;
        let has_failed = match &answer {
            Ok(ServerResult::CallToolResult(result)) => result.is_error == Some(true),
            Ok(_) => false,
            Err(_) => flight.is_some(),
        };
        if has_failed {
            self.log_errors();
        }
        answer.map_err(of_service)
    }

    /// Logs the end of the program's standard error. Callers do not get it: it is for the operator.
    fn log_errors(&self) {
        let text = self.errors.as_ref().map(Errors::text).unwrap_or_default();
        if !text.is_empty() {
            tracing::info!(target: "toolpost::mcp", "a call of `{}` failed, its stderr ends with:\n{text}", self.name);
        }
    }

    /// Whether the server still answers; an error is an answer.
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

    /// Cancels a task that nobody waits for any more.
    pub(super) async fn cancel_task(&self, task: CancelTaskParams) {
        let sent = tokio::time::timeout(CANCEL, self.service.peer().cancel_task(task)).await;
        if !matches!(sent, Ok(Ok(()))) {
            tracing::debug!(server = self.name, "a task could not be cancelled");
        }
    }

    /// Tells the server which log lines are wanted; in the newer era each request does.
    async fn set_log_level(&self, level: LogLevel) {
        if self.is_stateless() || self.info.capabilities.logging.is_none() {
            return;
        }
        let params = SetLevelRequestParams::new(protocol_level(level));
        if let Err(error) = self.service.peer().set_level(params).await {
            tracing::debug!(server = self.name, %error, "the server did not take the level of its log");
        }
    }

    /// Opens the stream of notices that the newer era has, for as long as the connection lives.
    fn listen(&mut self, changes: &Arc<Changes>) {
        let capabilities = &self.info.capabilities;
        let wanted = |said: Option<bool>| said.filter(|said| *said);
        let mut filter = SubscriptionFilter::new();
        filter.tools_list_changed = wanted(capabilities.tools.as_ref().and_then(|tools| tools.list_changed));
        filter.prompts_list_changed =
            wanted(capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed));
        filter.resources_list_changed =
            wanted(capabilities.resources.as_ref().and_then(|resources| resources.list_changed));
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

/// Hands notices of changes on, and opens their stream again when it ends.
async fn keep_listening(peer: Peer<RoleClient>, filter: SubscriptionFilter, changes: Arc<Changes>) {
    let (mut wait, longest) = LISTEN_AGAIN;
    let mut has_gap = false;
    while !peer.is_transport_closed() {
        if let Ok(mut notices) = peer.listen(filter.clone()).await {
            if has_gap {
                // Nobody told what happened meanwhile.
                changes.tools();
                changes.others();
            }
            wait = LISTEN_AGAIN.0;
            while let Ok(Some(notice)) = notices.next().await {
                match notice {
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

/// Begins: the newer era first, the older one if the server does not know it.
async fn serve<T>(
    handler: Handler,
    transport: T,
    flights: &Arc<Flights>,
    era: Era,
) -> Result<RunningService<RoleClient, Handler>, ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
    T::Error: Arrival,
{
    let lifecycle = match era {
        Era::Either => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        },
        Era::Older => ClientLifecycleMode::Initialize,
    };
    serve_client_with_lifecycle(handler, Watched::new(transport, Arc::clone(flights)), lifecycle).await
}

/// What this client says of itself.
fn config(settings: &Settings) -> ClientConfig {
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(
        ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new()),
    );
    capabilities.sampling = Some(SamplingCapability::default());
    capabilities.roots = Some(RootsCapabilities::default());
    if settings.tasks {
        capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), JsonObject::new())].into());
    }
    let mut config = ClientConfig::default();
    config.protocol_version = ProtocolVersion::V_2025_11_25;
    config.capabilities = capabilities;
    config.client_info = Implementation::new("toolpost", env!("CARGO_PKG_VERSION"));
    config
}

pub(super) fn protocol_level(level: LogLevel) -> LoggingLevel {
    match level {
        LogLevel::Trace | LogLevel::Debug => LoggingLevel::Debug,
        LogLevel::Info => LoggingLevel::Info,
        LogLevel::Warn => LoggingLevel::Warning,
        LogLevel::Error => LoggingLevel::Error,
    }
}

/// What a program's own end says more than that of its streams.
async fn with_end(error: ToolError, errors: &Errors, name: &str) -> ToolError {
    let ended = |how: &str| ToolError::dependency(format!("the server `{name}` {how} before it answered"));
    match errors.ended().await {
        Some(Verdict::Ok) => ended("ended with status 0").with("exit_code", 0),
        Some(Verdict::Exit { code }) => ended(&format!("ended with status {code}")).with("exit_code", *code),
        Some(Verdict::Signal { signal }) => {
            ended(&format!("was ended by signal {signal}")).with("signal", *signal)
        }
        Some(Verdict::Memory { limit }) => ToolError::limit(format!(
            "the server `{name}` needed more than its {} MiB of memory",
            limit >> 20
        )),
        _ => error,
    }
}

/// With the end of what the program wrote to standard error.
fn with_errors(error: ToolError, errors: &Errors) -> ToolError {
    match errors.text() {
        text if text.is_empty() => error,
        text => error.with("stderr", text),
    }
}

/// Forgets a call when its request is over, however it ended.
struct Landing<'a> {
    flights: &'a Flights,
    flight: &'a Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.flights.remove(self.flight);
    }
}

/// Tells the server when nobody waits for an answer any more.
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
            let reason = Some("the caller does not wait any more".to_owned());
            let notice = CancelledNotification::new(CancelledNotificationParam::new(Some(id), reason));
            // A server that is gone needs no notice.
            let _ = peer.send_notification(notice.into()).await;
        });
    }
}
