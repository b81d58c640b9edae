//! Telling clients that a list has changed.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rmcp::{Peer, RoleServer};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::calls::Task;
use super::handler::Shared;
use super::listing::LIST_TIME;

/// How often the source is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How often each list has changed.
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
    /// Clients of the older era that are told without having asked.
    peers: Mutex<Vec<Peer<RoleServer>>>,
    watcher: OnceLock<Task<()>>,
}

impl Changes {
    /// What changes from now on.
    pub(super) fn follow(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// Tells a client of the older era from now on.
    pub(super) fn add(&self, peer: Peer<RoleServer>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|peer| !peer.is_transport_closed());
        peers.push(peer);
    }

    /// Looks at the source from now on, until the server is gone.
    pub(super) fn watch(shared: &Arc<Shared>) {
        let weak = Arc::downgrade(shared);
        shared.changes.watcher.get_or_init(|| {
            let mut last = shared.source.generation();
            Task::spawn(async move {
                let mut digests: Option<[Vec<u8>; 2]> = None;
                loop {
                    tokio::time::sleep(LOOK).await;
                    let Some(shared) = weak.upgrade() else { return };
                    if digests.is_none() {
                        digests = Some(offers(&shared).await);
                    }
                    let now = shared.source.generation();
                    if now == last {
                        continue;
                    }
                    last = now;
                    let offered = offers(&shared).await;
                    let [resources, prompts] = digests.replace(offered.clone()).unwrap_or_default();
                    shared.changes.tell([resources != offered[0], prompts != offered[1]]).await;
                }
            })
        });
    }

    async fn tell(&self, [resources, prompts]: [bool; 2]) {
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
            // A client that takes nothing does not keep the others waiting.
            let told = async {
                let _ = peer.notify_tool_list_changed().await;
                if resources {
                    let _ = peer.notify_resource_list_changed().await;
                }
                if prompts {
                    let _ = peer.notify_prompt_list_changed().await;
                }
            };
            let _ = tokio::time::timeout(LOOK, told).await;
        }
    }
}

/// What tells one state of the resources and the prompts from another.
async fn offers(shared: &Shared) -> [Vec<u8>; 2] {
    let digest = |value: serde_json::Result<String>| Sha256::digest(value.unwrap_or_default()).to_vec();
    let resources = tokio::time::timeout(LIST_TIME, shared.source.resources()).await;
    let prompts = tokio::time::timeout(LIST_TIME, shared.source.prompts()).await;
    [
        digest(serde_json::to_string(&resources.ok().and_then(Result::ok))),
        digest(serde_json::to_string(&prompts.ok().and_then(Result::ok))),
    ]
}
