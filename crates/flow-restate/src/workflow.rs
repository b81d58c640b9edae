//! The Restate workflow of a run: its handlers.

use std::time::Duration;

use restate_sdk::prelude::*;
use toolpost_core::{Clock as _, RunId, SystemClock};
use toolpost_flow::FlowEvent;

use crate::drive::{self, Batch, INBOX, batch_key};
use crate::wire::{End, Message, Page, Start};

/// The key of the invocation's id, which signals need.
const INVOCATION: &str = "invocation";
/// The key of the status of a run that has ended.
const ENDED: &str = "ended";
/// The time in which a run takes a signal, unless it has ended.
const ANSWER: Duration = Duration::from_secs(20);
/// The maximum number of batches of events in one answer.
const PAGE: u64 = 500;

/// The workflow of runs.
pub(crate) struct RunWorkflow;

#[restate_sdk::workflow(
    name = "ToolpostFlow",
    lazy_state,
    journal_retention = "7 days",
    workflow_completion_retention = "7 days",
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "2s",
        factor = 2.0,
        max_attempts = 1000000
    )
)]
impl RunWorkflow {
    /// Runs a plan to its end.
    #[handler]
    async fn run(&self, ctx: WorkflowContext<'_>, Json(start): Json<Start>) -> HandlerResult<Json<End>> {
        let terminal = |message: String| TerminalError::new_with_code(400, message);
        let run: RunId =
            ctx.key().parse().map_err(|_| terminal(format!("`{}` is not the id of a run", ctx.key())))?;
        ctx.set(INVOCATION, ctx.invocation_id().to_owned());
        // The time, from the journal.
        let Json(began) = ctx.run(|| async { Ok(Json(SystemClock.timestamp())) }).name("time").await?;
        let end = drive::run(&ctx, run, start, began).await?;
        ctx.set(ENDED, end.status.as_str().to_owned());
        Ok(Json(end))
    }

    /// Sends a message to the run.
    #[handler]
    async fn send(&self, ctx: SharedWorkflowContext<'_>, Json(event): Json<FlowEvent>) -> HandlerResult<()> {
        let is_message = matches!(
            event,
            FlowEvent::Signal { .. } | FlowEvent::Answered { .. } | FlowEvent::CancelRequested { .. }
        );
        if !is_message {
            let message = "a client may signal, answer and cancel; only workers decide how steps end";
            return Err(TerminalError::new_with_code(400, message).into());
        }
        if let Some(status) = ctx.get::<String>(ENDED).await? {
            let message = format!("the run has ended ({status})");
            return Err(TerminalError::new_with_code(409, message).into());
        }
        let Some(invocation) = ctx.get::<String>(INVOCATION).await? else {
            return Err(TerminalError::new_with_code(404, "the run does not exist or has not begun").into());
        };
        let Json(at) = ctx.run(|| async { Ok(Json(SystemClock.timestamp())) }).name("time").await?;
        let FlowEvent::Signal { name, .. } = &event else {
            let message = Message { at, event, reply: None };
            ctx.invocation_handle(invocation).signal(INBOX).resolve(Json(message));
            return Ok(());
        };
        // Only the run knows the signals that are on their way.
        let rejection = format!("the signal `{name}` was already sent");
        let (reply, answer) = ctx.awakeable::<Json<bool>>();
        let message = Message { at, event, reply: Some(reply) };
        ctx.invocation_handle(invocation).signal(INBOX).resolve(Json(message));
        let is_taken = restate_sdk::select! {
            answer = answer => Some(answer?.into_inner()),
            _ = ctx.sleep(ANSWER) => None
        };
        let (code, message) = match is_taken {
            Some(true) => return Ok(()),
            Some(false) => (409, rejection),
            None => match ctx.get::<String>(ENDED).await? {
                Some(status) => (409, format!("the run has ended ({status})")),
                None => (503, "the run did not take the signal in time".to_owned()),
            },
        };
        Err(TerminalError::new_with_code(code, message).into())
    }

    /// The events of the run, some batches after a number.
    #[handler]
    async fn events(&self, ctx: SharedWorkflowContext<'_>, after: u64) -> HandlerResult<Json<Page>> {
        let mut page = Page { events: Vec::new(), next: after };
        while page.next < after.saturating_add(PAGE)
            && let Some(Json(events)) = ctx.get::<Json<Batch>>(&batch_key(page.next)).await?
        {
            page.events.extend(events);
            page.next += 1;
        }
        Ok(Json(page))
    }
}
