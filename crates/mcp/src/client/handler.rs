//! Handles requests and notifications of a server.
#![expect(deprecated, reason = "older servers use sampling and roots")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rmcp::ClientHandler;
use rmcp::model::{
    ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult,
    ErrorCode, ErrorData, Extensions, ListRootsResult,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext, RoleClient};
use tokio::sync::Semaphore;
use toolpost_core::{Code, ToolError};

use super::answer::Responder;
use super::flight::Flights;

/// The most questions of a server at once; further ones wait.
const MAX_QUESTIONS: usize = 16;

/// List changes since the last reload.
#[derive(Default)]
pub(super) struct Changes {
    generation: AtomicU64,
    tools: AtomicBool,
}

impl Changes {
    /// Records that the tools may have changed.
    pub(super) fn tools(&self) {
        self.tools.store(true, Ordering::Release);
        self.others();
    }

    /// Records another change.
    pub(super) fn others(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Records whether the tools are to be listed again, without a change.
    pub(super) fn set_tools(&self, changed: bool) {
        self.tools.store(changed, Ordering::Release);
    }

    /// Whether the tools may have changed.
    pub(super) fn has_tools(&self) -> bool {
        self.tools.load(Ordering::Acquire)
    }

    /// The number of changes.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

pub(super) struct Handler {
    pub(super) config: ClientConfig,
    pub(super) flights: Arc<Flights>,
    pub(super) changes: Arc<Changes>,
    permits: Semaphore,
}

impl Handler {
    pub(super) fn new(config: ClientConfig, flights: Arc<Flights>, changes: Arc<Changes>) -> Self {
        Self { config, flights, changes, permits: Semaphore::new(MAX_QUESTIONS) }
    }

    /// A responder for the call that the request belongs to, if the transport names it.
    fn responder(&self, extensions: &Extensions) -> Responder {
        Responder(match extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => self.flights.of_request(Some(id)),
            Some(InboundStreamOrigin::Unassociated) | None => self.flights.of_request(None),
        })
    }

    /// Answers a request of the server unless the server cancels it.
    async fn answer<T>(
        &self,
        context: &RequestContext<RoleClient>,
        answer: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ErrorData> {
        let _permit = self.permits.acquire().await;
        let cancelled = || ToolError::cancelled("the server cancelled the request");
        let answered = context.ct.run_until_cancelled(answer).await;
        answered.unwrap_or_else(|| Err(cancelled())).map_err(|error| rpc_error(&error))
    }
}

/// The error for the server, without internal details.
fn rpc_error(error: &ToolError) -> ErrorData {
    let code = match error.code() {
        Code::InvalidInput | Code::MissingParam | Code::Precondition => ErrorCode::INVALID_REQUEST,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    let message = match error.code() {
        Code::Precondition => error.message().to_owned(),
        code => format!("the request failed ({code})"),
    };
    ErrorData::new(code, message, None)
}

impl ClientHandler for Handler {
    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.answer(&context, async { self.responder(&context.extensions).sample(params).await }).await
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.answer(&context, async { self.responder(&context.extensions).elicit(params, None).await }).await
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(self.responder(&context.extensions).roots().await)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.tools();
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.others();
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.others();
    }

    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }
}
