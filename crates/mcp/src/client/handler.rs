//! What a server asks and tells outside an answer.
#![expect(deprecated, reason = "servers of the older era ask for completions and folders")]

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

use super::answer::Asked;
use super::flight::Flights;

/// How many questions of a server are answered at once; more of them wait.
const MAX_QUESTIONS: usize = 16;

/// What changed at the server since it was last looked at.
#[derive(Default)]
pub(super) struct Changes {
    generation: AtomicU64,
    tools: AtomicBool,
}

impl Changes {
    /// The tools may not be the same any more.
    pub(super) fn tools(&self) {
        self.tools.store(true, Ordering::Release);
        self.others();
    }

    /// Something is not the same any more.
    pub(super) fn others(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the tools may have changed. Asking forgets it.
    pub(super) fn take_tools(&self) -> bool {
        self.tools.swap(false, Ordering::AcqRel)
    }

    /// Takes back that the news were taken.
    pub(super) fn put_back(&self) {
        self.tools.store(true, Ordering::Release);
    }

    /// Whether the tools may have changed.
    pub(super) fn has_tools(&self) -> bool {
        self.tools.load(Ordering::Acquire)
    }

    /// How often anything has changed.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

pub(super) struct Handler {
    pub(super) config: ClientConfig,
    pub(super) flights: Arc<Flights>,
    pub(super) changes: Arc<Changes>,
    pub(super) asked: Asked,
    places: Semaphore,
}

impl Handler {
    pub(super) fn new(
        config: ClientConfig,
        flights: Arc<Flights>,
        changes: Arc<Changes>,
        asked: Asked,
    ) -> Self {
        Self { config, flights, changes, asked, places: Semaphore::new(MAX_QUESTIONS) }
    }

    /// Who is asked: the caller of the call that the question belongs to, as far as the transport can tell.
    fn asked(&self, extensions: &Extensions) -> Asked {
        let flight = match extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => self.flights.of_request(Some(id)),
            Some(InboundStreamOrigin::Unassociated) | None => self.flights.of_request(None),
        };
        Asked { flight, ..self.asked.clone() }
    }
}

/// An error as the server gets it: what went wrong inside here is not its business.
fn refusal(error: &ToolError) -> ErrorData {
    let code = match error.code() {
        Code::InvalidInput | Code::MissingParam | Code::Precondition => ErrorCode::INVALID_REQUEST,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    let message = match error.code() {
        Code::Precondition => error.message().to_owned(),
        code => format!("it could not be answered ({code})"),
    };
    ErrorData::new(code, message, None)
}

impl ClientHandler for Handler {
    async fn create_message(
        &self,
        asked: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let _place = self.places.acquire().await;
        tokio::select! {
            answer = async { self.asked(&context.extensions).sample(asked).await } => {
                answer.map_err(|error| refusal(&error))
            }
            () = context.ct.cancelled() => Err(refusal(&ToolError::cancelled("the server asks no more"))),
        }
    }

    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let _place = self.places.acquire().await;
        tokio::select! {
            answer = async { self.asked(&context.extensions).elicit(asked, None).await } => {
                answer.map_err(|error| refusal(&error))
            }
            () = context.ct.cancelled() => Err(refusal(&ToolError::cancelled("the server asks no more"))),
        }
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(self.asked(&context.extensions).roots().await)
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
