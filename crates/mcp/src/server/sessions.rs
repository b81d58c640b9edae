//! Legacy sessions: bounded, each with an owner.

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

use super::{Principal, ServerLimits};

/// The header that names a session.
pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// The time that a response is cached for a client that resumes its stream.
const RESUME_CACHE_TTL: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// The principal of the current request.
    pub(super) static REQUESTER: Principal;
}

/// The last use and the owner of a session.
struct Usage {
    at: u64,
    owner: Principal,
}

#[derive(Default)]
struct Table {
    clock: u64,
    sessions: HashMap<SessionId, Usage>,
}

impl Table {
    /// The session to evict for a new one: the owner's least recently used session if the owner has its
    /// share, else one of the owner with the most sessions. A client within its share is never evicted by
    /// others.
    fn to_evict(&self, owner: &Principal) -> Option<SessionId> {
        let mut counts = HashMap::from([(owner, 0_usize)]);
        for used in self.sessions.values() {
            *counts.entry(&used.owner).or_default() += 1;
        }
        let share = (self.sessions.len() / counts.len()).max(1);
        let has_share = counts.get(owner).is_some_and(|count| *count >= share);
        let most = counts.values().max().copied();
        let mut candidates: Vec<_> = self.sessions.iter().collect();
        candidates.retain(|(_, used)| {
            if has_share { used.owner == *owner } else { counts.get(&used.owner).copied() == most }
        });
        candidates.into_iter().min_by_key(|(_, used)| used.at).map(|(id, _)| id.clone())
    }
}

/// The sessions of a server.
pub(super) struct Sessions {
    inner: LocalSessionManager,
    table: Mutex<Table>,
    capacity: usize,
}

impl Sessions {
    pub(super) fn new(limits: &ServerLimits) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(limits.session_idle);
        inner.session_config.init_timeout = Some(limits.head_time);
        // The default caches each response for a minute.
        inner.session_config.completed_cache_ttl = RESUME_CACHE_TTL;
        Self { inner, table: Mutex::default(), capacity: limits.sessions }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is whole after any panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of sessions.
    pub(super) fn len(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Whether a session exists and belongs to this client.
    pub(super) fn is_open_to(&self, id: &str, principal: &Principal) -> bool {
        self.lock().sessions.get(id).is_some_and(|used| used.owner == *principal)
    }

    /// Whether the current requester may use a session. Outside a request the server itself is the requester.
    fn is_allowed(&self, id: &SessionId) -> bool {
        let table = self.lock();
        let owner = table.sessions.get(id).map(|used| &used.owner);
        owner.is_none_or(|owner| REQUESTER.try_with(|requester| requester == owner).unwrap_or(true))
    }

    fn touch(&self, id: &SessionId) {
        let mut table = self.lock();
        table.clock += 1;
        let now = table.clock;
        if let Some(used) = table.sessions.get_mut(id) {
            used.at = now;
        }
    }

    /// Adds a session and returns the one to evict.
    fn insert(&self, id: SessionId) -> Option<SessionId> {
        let owner = REQUESTER.try_with(Principal::clone).unwrap_or_default();
        let mut table = self.lock();
        let evicted = if table.sessions.len() >= self.capacity { table.to_evict(&owner) } else { None };
        if let Some(evicted) = &evicted {
            table.sessions.remove(evicted);
        }
        table.clock += 1;
        let at = table.clock;
        table.sessions.insert(id, Usage { at, owner });
        evicted
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
        if let Some(evicted) = self.insert(id.clone()) {
            tracing::debug!("evicted a session: the limit is reached");
            self.inner.close_session(&evicted).await?;
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
        let exists = self.is_allowed(id) && self.inner.has_session(id).await?;
        if exists {
            self.touch(id);
        }
        Ok(exists)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        if !self.is_allowed(id) {
            return Ok(());
        }
        self.lock().sessions.remove(id);
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
