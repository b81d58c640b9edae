//! Resource subscriptions: polls resources and notifies clients of changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::{ErrorData, Peer, RoleServer};
use sha2::{Digest as _, Sha256};
use toolpost_core::{Call, Code, ToolError};

use super::Principal;
use super::calls::{Task, shown};
use super::handler::{Shared, caller_of};
use super::listing::LIST_TIMEOUT as READ_TIMEOUT;

/// The digest of a resource's content.
///
/// # Errors
/// Errors of the resource.
async fn digest(shared: &Shared, principal: &Principal, uri: &str) -> Result<Vec<u8>, ToolError> {
    let call = Call::new(uri, serde_json::Value::Null)
        .with_caller(caller_of(principal))
        .with_scope(shared.scope_of(principal));
    let reading = shared.source.read(call);
    let output = tokio::time::timeout(READ_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(ToolError::timeout("reading the resource timed out")))?;
    let text = serde_json::to_string(&(&output.content, &output.structured))?;
    Ok(Sha256::digest(text).to_vec())
}

/// The last known digests of resources.
pub(super) struct ResourceWatch {
    shared: Weak<Shared>,
    principal: Principal,
    known: HashMap<String, Vec<u8>>,
}

impl ResourceWatch {
    pub(super) fn new(shared: &Arc<Shared>, principal: Principal) -> Self {
        Self { shared: Arc::downgrade(shared), principal, known: HashMap::new() }
    }

    /// Whether a resource has changed since the last call; `false` the first time.
    pub(super) async fn changed(&mut self, uri: &str) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        // An unreadable resource counts as unchanged until it can be read again.
        let Ok(now) = digest(&shared, &self.principal, uri).await else { return false };
        self.known.insert(uri.to_owned(), now.clone()).is_some_and(|before| before != now)
    }
}

/// The subscriptions of one legacy client.
#[derive(Default)]
pub(super) struct Subscriptions(Mutex<HashMap<String, Task<()>>>);

impl Subscriptions {
    /// # Errors
    /// The resource is unknown, or the client has too many subscriptions.
    pub(super) async fn add(
        &self,
        shared: &Arc<Shared>,
        principal: Principal,
        peer: Peer<RoleServer>,
        uri: String,
    ) -> Result<(), ErrorData> {
        match digest(shared, &principal, &uri).await {
            Err(error) if error.code() == Code::NotFound => {
                let message = format!("unknown resource `{}`", shown(&uri));
                return Err(ErrorData::resource_not_found(message, None));
            }
            // A resource that fails now may be readable later.
            Ok(_) | Err(_) => {}
        }
        let interval = shared.limits.watch_interval;
        let mut watch = ResourceWatch::new(shared, principal);
        let watched = uri.clone();
        let task = Task::spawn(async move {
            loop {
                if watch.changed(&watched).await {
                    let sent = peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(&watched));
                    if sent.await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(interval).await;
            }
        });
        let mut subscriptions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if subscriptions.len() >= shared.limits.subscriptions && !subscriptions.contains_key(&uri) {
            return Err(ErrorData::invalid_params(
                format!("too many subscriptions: at most {}", shared.limits.subscriptions),
                None,
            ));
        }
        subscriptions.insert(uri, task);
        Ok(())
    }

    pub(super) fn remove(&self, uri: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uri);
    }
}
