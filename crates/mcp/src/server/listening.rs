//! The stream on which a client of the stateless era hears of changes.

use rmcp::ErrorData;
use rmcp::service::SubscriptionContext;

use super::handler::Handler;
use super::tasks::Followed;
use super::watched::Watch;

/// Tells a client of the stateless era of changes, until it has heard enough.
pub(super) async fn listen(handler: &Handler, context: SubscriptionContext) -> Result<(), ErrorData> {
    let shared = &handler.shared;
    let principal = handler.principal(context.request_context());
    let mut tasks = Followed::new(
        &shared.tasks,
        principal.clone(),
        context.request_context(),
        shared.limits.subscriptions,
    );
    let mut counts = shared.changes.follow();
    let mut known = *counts.borrow_and_update();
    let sink = context.sink();
    let accepted = sink.accepted();
    let uris = accepted.resource_subscriptions.clone().unwrap_or_default();
    let mut watch = Watch::new(shared, principal);
    loop {
        let told = tokio::time::timeout(shared.limits.write_time, tasks.tell(&context));
        if !matches!(told.await, Ok(true)) {
            return Ok(());
        }
        let mut updated = Vec::new();
        for uri in &uris {
            if watch.changed(uri).await {
                updated.push(uri.clone());
            }
        }
        if updated.is_empty() {
            let look = tokio::time::sleep(shared.limits.watch_interval);
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = counts.changed() => if changed.is_err() { return Ok(()) },
                () = tasks.changed() => {}
                () = look, if !uris.is_empty() => {}
            }
        }
        let now = *counts.borrow_and_update();
        let wants = |wanted: Option<bool>, before: u64, after: u64| wanted == Some(true) && before != after;
        let told = async {
            if wants(accepted.tools_list_changed, known.tools, now.tools) {
                sink.notify_tool_list_changed().await?;
            }
            if wants(accepted.resources_list_changed, known.resources, now.resources) {
                sink.notify_resource_list_changed().await?;
            }
            if wants(accepted.prompts_list_changed, known.prompts, now.prompts) {
                sink.notify_prompt_list_changed().await?;
            }
            for uri in updated {
                sink.notify_resource_updated(uri).await?;
            }
            Ok::<(), rmcp::service::SubscriptionSendError>(())
        };
        match tokio::time::timeout(shared.limits.write_time, told).await {
            Ok(Ok(())) => known = now,
            Ok(Err(_)) | Err(_) => return Ok(()),
        }
    }
}
