//! Detects list changes of the source and notifies clients.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rmcp::{Peer, RoleServer};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::calls::Task;
use super::handler::Shared;
use super::listing::in_time;

/// The poll interval of the source, and the timeout of a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The number of changes of each list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) tools: u64,
    pub(super) resources: u64,
    pub(super) prompts: u64,
}

/// The changes of a source.
#[derive(Default)]
pub(super) struct Changes {
    counts: watch::Sender<Counts>,
    /// Legacy clients, which get notifications without a subscription.
    peers: Mutex<Vec<Peer<RoleServer>>>,
    watcher: OnceLock<Task<()>>,
}

impl Changes {
    /// Subscribes to changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// Adds a legacy client.
    pub(super) fn add(&self, peer: Peer<RoleServer>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|peer| !peer.is_transport_closed());
        peers.push(peer);
    }

    /// Polls the source until the server is dropped.
    pub(super) fn watch(shared: &Arc<Shared>) {
        let weak = Arc::downgrade(shared);
        shared.changes.watcher.get_or_init(|| {
            let mut last = shared.source.generation();
            Task::spawn(async move {
                let mut known: Option<[Vec<u8>; 2]> = None;
                loop {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    let Some(shared) = weak.upgrade() else { return };
                    if known.is_none() {
                        known = Some(digests(&shared).await);
                    }
                    let now = shared.source.generation();
                    if now == last {
                        continue;
                    }
                    last = now;
                    let current = digests(&shared).await;
                    let [resources, prompts] = known.replace(current.clone()).unwrap_or_default();
                    shared.changes.notify([resources != current[0], prompts != current[1]]).await;
                }
            })
        });
    }

    async fn notify(&self, [resources, prompts]: [bool; 2]) {
        self.counts.send_modify(|counts| {
            counts.tools += 1;
            counts.resources += u64::from(resources);
            counts.prompts += u64::from(prompts);
        });
        let peers: Vec<Peer<RoleServer>> = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|peer| !peer.is_transport_closed());
            peers.clone()
        };
        for peer in peers {
            // A stuck client does not delay the others.
            let sent = async {
                let _ = peer.notify_tool_list_changed().await;
                if resources {
                    let _ = peer.notify_resource_list_changed().await;
                }
                if prompts {
                    let _ = peer.notify_prompt_list_changed().await;
                }
            };
            let _ = tokio::time::timeout(POLL_INTERVAL, sent).await;
        }
    }
}

/// The digests of the resources and the prompts.
async fn digests(shared: &Shared) -> [Vec<u8>; 2] {
    let digest = |value: serde_json::Result<String>| Sha256::digest(value.unwrap_or_default()).to_vec();
    [
        digest(serde_json::to_string(&in_time(shared.source.resources()).await.ok())),
        digest(serde_json::to_string(&in_time(shared.source.prompts()).await.ok())),
    ]
}
