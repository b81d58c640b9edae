//! Clients that are told when a task changes, instead of asking.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{GetMeta as _, ServerNotification, TaskStatusNotification, TaskStatusNotificationParams};
use rmcp::service::{RequestContext, SubscriptionContext};
use serde::Deserialize;
use tokio::sync::watch;

use super::Tasks;
use crate::server::Principal;

/// The tasks that a request to listen names. The library's filter does not know them.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct Wanted(Vec<String>);

impl Wanted {
    /// Looks for them in a message.
    pub(in crate::server) fn of(message: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Message {
            params: Params,
        }
        #[derive(Deserialize)]
        struct Params {
            notifications: Filter,
        }
        #[derive(Deserialize)]
        struct Filter {
            #[serde(rename = "taskIds")]
            task_ids: Vec<String>,
        }
        // Most messages are none of these, and need not be read twice.
        memchr::memmem::find(message, b"\"taskIds\"")?;
        let message: Message = serde_json::from_slice(message).ok()?;
        Some(Self(message.params.notifications.task_ids))
    }
}

/// The tasks that one client follows.
pub(in crate::server) struct Followed {
    tasks: Arc<Tasks>,
    principal: Principal,
    changes: watch::Receiver<u64>,
    /// Each with the change that the client was told of last.
    known: Vec<(String, u64)>,
}

impl Followed {
    pub(in crate::server) fn new(
        tasks: &Arc<Tasks>,
        principal: Principal,
        context: &RequestContext<RoleServer>,
        most: usize,
    ) -> Self {
        let of_http = context.extensions.get::<http::request::Parts>();
        let wanted = of_http
            .and_then(|parts| parts.extensions.get::<Wanted>())
            .or_else(|| context.extensions.get::<Wanted>())
            .cloned()
            .unwrap_or_default();
        let known = wanted.0.into_iter().take(most).map(|id| (id, 0)).collect();
        Self { tasks: Arc::clone(tasks), principal, changes: tasks.changes.subscribe(), known }
    }

    /// Waits until any task has changed.
    pub(in crate::server) async fn changed(&mut self) {
        if self.known.is_empty() || self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Tells of those that have changed since the last time; `false` if the client takes nothing any more.
    pub(in crate::server) async fn tell(&mut self, context: &SubscriptionContext) -> bool {
        self.changes.borrow_and_update();
        for (id, told) in &mut self.known {
            let Some(revision) = self.tasks.revision(id, &self.principal).filter(|now| now != told) else {
                continue;
            };
            let Ok(task) = self.tasks.get(id, &self.principal).await else { continue };
            let params = TaskStatusNotificationParams::new(task);
            let mut notice = ServerNotification::TaskStatusNotification(TaskStatusNotification::new(params));
            notice.get_meta_mut().set_subscription_id(context.sink().id().clone());
            if context.request_context().peer.send_notification(notice).await.is_err() {
                return false;
            }
            *told = revision;
        }
        true
    }
}
