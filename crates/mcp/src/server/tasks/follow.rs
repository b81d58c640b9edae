//! Task status notifications for clients that subscribe instead of polling.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{GetMeta as _, ServerNotification, TaskStatusNotification, TaskStatusNotificationParams};
use rmcp::service::{RequestContext, SubscriptionContext};
use serde::Deserialize;
use tokio::sync::watch;

use super::Tasks;
use crate::server::Principal;

/// The task ids of a `subscriptions/listen` request. rmcp's filter does not have them.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct TaskFilter(Vec<String>);

impl TaskFilter {
    /// Extracts the task ids from a message.
    pub(in crate::server) fn from_message(message: &[u8]) -> Option<Self> {
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
        // Most messages have no task ids and need no second parse.
        memchr::memmem::find(message, b"\"taskIds\"")?;
        let message: Message = serde_json::from_slice(message).ok()?;
        Some(Self(message.params.notifications.task_ids))
    }
}

/// The tasks that one client follows.
pub(in crate::server) struct FollowedTasks {
    tasks: Arc<Tasks>,
    principal: Principal,
    changes: watch::Receiver<u64>,
    /// The task ids with the last revision that the client has seen.
    known: Vec<(String, u64)>,
}

impl FollowedTasks {
    pub(in crate::server) fn new(
        tasks: &Arc<Tasks>,
        principal: Principal,
        context: &RequestContext<RoleServer>,
        max: usize,
    ) -> Self {
        let of_http = context.extensions.get::<http::request::Parts>();
        let filter = of_http
            .and_then(|parts| parts.extensions.get::<TaskFilter>())
            .or_else(|| context.extensions.get::<TaskFilter>())
            .cloned()
            .unwrap_or_default();
        let known = filter.0.into_iter().take(max).map(|id| (id, 0)).collect();
        Self { tasks: Arc::clone(tasks), principal, changes: tasks.changes.subscribe(), known }
    }

    /// Waits for a change of any task.
    pub(in crate::server) async fn changed(&mut self) {
        if self.known.is_empty() || self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Notifies the client of changed tasks; `false` if the client is gone.
    pub(in crate::server) async fn notify(&mut self, context: &SubscriptionContext) -> bool {
        self.changes.borrow_and_update();
        for (id, seen) in &mut self.known {
            let Some(revision) = self.tasks.revision(id, &self.principal).filter(|now| now != seen) else {
                continue;
            };
            let Ok(task) = self.tasks.get(id, &self.principal).await else { continue };
            let params = TaskStatusNotificationParams::new(task);
            let mut notification =
                ServerNotification::TaskStatusNotification(TaskStatusNotification::new(params));
            notification.get_meta_mut().set_subscription_id(context.sink().id().clone());
            if context.request_context().peer.send_notification(notification).await.is_err() {
                return false;
            }
            *seen = revision;
        }
        true
    }
}
