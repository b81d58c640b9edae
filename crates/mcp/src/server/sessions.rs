//! Sessions of the older era: at most so many, each with its owner.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, create_local_session,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};

use super::{Limits, Principal};

/// The header that names a session.
pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// How long an answer is kept for a client that has lost its stream and comes back.
const ANSWERS_KEPT: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// Whom the request at hand speaks for.
    pub(super) static REQUESTER: Principal;
}

/// When a session was used last, and whose it is.
struct Use {
    at: u64,
    owner: Principal,
}

#[derive(Default)]
struct Uses {
    clock: u64,
    used: HashMap<SessionId, Use>,
}

impl Uses {
    /// The session that ends for a new one: the owner's own least recently used one if the owner has its share of all
    /// sessions, else that of the owner with the most. So no client ends a session of a client within its share.
    fn surplus(&self, owner: &Principal) -> Option<SessionId> {
        let mut counts = HashMap::from([(owner, 0_usize)]);
        for used in self.used.values() {
            *counts.entry(&used.owner).or_default() += 1;
        }
        let share = (self.used.len() / counts.len()).max(1);
        let has_share = counts.get(owner).is_some_and(|count| *count >= share);
        let most = counts.values().max().copied();
        let mut candidates: Vec<_> = self.used.iter().collect();
        candidates.retain(|(_, used)| {
            if has_share { used.owner == *owner } else { counts.get(&used.owner).copied() == most }
        });
        candidates.into_iter().min_by_key(|(_, used)| used.at).map(|(id, _)| id.clone())
    }
}

/// The sessions of a server.
pub(super) struct Sessions {
    inner: LocalSessionManager,
    uses: Mutex<Uses>,
    places: usize,
}

impl Sessions {
    pub(super) fn new(limits: &Limits) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(limits.session_idle);
        inner.session_config.init_timeout = Some(limits.head_time);
        // Each answer would be kept for a minute, for a client that may have lost its stream.
        inner.session_config.completed_cache_ttl = ANSWERS_KEPT;
        Self { inner, uses: Mutex::default(), places: limits.sessions }
    }

    fn lock(&self) -> MutexGuard<'_, Uses> {
        // The table is whole after any panic.
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lock().used.len()
    }

    /// Whether a session is open, and this client's.
    pub(super) fn is_open_to(&self, id: &str, principal: &Principal) -> bool {
        self.lock().used.get(id).is_some_and(|used| used.owner == *principal)
    }

    /// Whether whoever asks may use a session. Outside a request, whoever asks is the server.
    fn is_theirs(&self, id: &SessionId) -> bool {
        let uses = self.lock();
        let owner = uses.used.get(id).map(|used| &used.owner);
        owner.is_none_or(|owner| REQUESTER.try_with(|requester| requester == owner).unwrap_or(true))
    }

    fn note_use(&self, id: &SessionId) {
        let mut uses = self.lock();
        uses.clock += 1;
        let now = uses.clock;
        if let Some(used) = uses.used.get_mut(id) {
            used.at = now;
        }
    }

    /// Notes a new session, and says which one has to go for it.
    fn note_new(&self, id: SessionId) -> Option<SessionId> {
        let owner = REQUESTER.try_with(Principal::clone).unwrap_or_default();
        let mut uses = self.lock();
        let surplus = if uses.used.len() >= self.places { uses.surplus(&owner) } else { None };
        if let Some(surplus) = &surplus {
            uses.used.remove(surplus);
        }
        uses.clock += 1;
        let at = uses.clock;
        uses.used.insert(id, Use { at, owner });
        surplus
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = match toolpost_core::random_hex(32) {
            Ok(id) => {
                let id: SessionId = id.into();
                let (handle, worker) = create_local_session(id.clone(), self.inner.session_config.clone());
                self.inner.sessions.write().await.insert(id.clone(), handle);
                (id, WorkerTransport::spawn(worker))
            }
            Err(_) => self.inner.create_session().await?,
        };
        if let Some(surplus) = self.note_new(id.clone()) {
            tracing::debug!("a session ends for a new one: there are as many as there may be");
            self.inner.close_session(&surplus).await?;
        }
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        let is_there = self.is_theirs(id) && self.inner.has_session(id).await?;
        if is_there {
            self.note_use(id);
        }
        Ok(is_there)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        if !self.is_theirs(id) {
            return Ok(());
        }
        self.lock().used.remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.resume(id, last_event_id).await
    }
}
