//! The notification stream of protocol version 2026-07-28.

use rmcp::ErrorData;
use rmcp::service::SubscriptionContext;

use super::handler::Handler;
use super::tasks::FollowedTasks;
use super::watch::ResourceWatch;

/// Sends change notifications until the client stops listening.
pub(super) async fn listen(handler: &Handler, context: SubscriptionContext) -> Result<(), ErrorData> {
    let shared = &handler.shared;
    let principal = handler.principal(context.request_context());
    let mut tasks = FollowedTasks::new(
        &shared.tasks,
        principal.clone(),
        context.request_context(),
        shared.limits.subscriptions,
    );
    let mut counts = shared.changes.subscribe();
    let mut known = *counts.borrow_and_update();
    let sink = context.sink();
    let accepted = sink.accepted();
    let uris = accepted.resource_subscriptions.clone().unwrap_or_default();
    let mut watch = ResourceWatch::new(shared, principal);
    loop {
        let sent = tokio::time::timeout(shared.limits.write_time, tasks.notify(&context));
        if !matches!(sent.await, Ok(true)) {
            return Ok(());
        }
        let mut updated = Vec::new();
        for uri in &uris {
            if watch.changed(uri).await {
                updated.push(uri.clone());
            }
        }
        if updated.is_empty() {
            let poll = tokio::time::sleep(shared.limits.watch_interval);
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = counts.changed() => if changed.is_err() { return Ok(()) },
                () = tasks.changed() => {}
                () = poll, if !uris.is_empty() => {}
            }
        }
        let now = *counts.borrow_and_update();
        let is_due =
            |accepted: Option<bool>, before: u64, after: u64| accepted == Some(true) && before != after;
        let sending = async {
            if is_due(accepted.tools_list_changed, known.tools, now.tools) {
                sink.notify_tool_list_changed().await?;
            }
            if is_due(accepted.resources_list_changed, known.resources, now.resources) {
                sink.notify_resource_list_changed().await?;
            }
            if is_due(accepted.prompts_list_changed, known.prompts, now.prompts) {
                sink.notify_prompt_list_changed().await?;
            }
            for uri in updated {
                sink.notify_resource_updated(uri).await?;
            }
            Ok::<(), rmcp::service::SubscriptionSendError>(())
        };
        match tokio::time::timeout(shared.limits.write_time, sending).await {
            Ok(Ok(())) => known = now,
            Ok(Err(_)) | Err(_) => return Ok(()),
        }
    }
}
