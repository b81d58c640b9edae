//! Calls that must show progress.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use toolpost_core::{Call, Event, Reply, ToolError, format_duration};
use toolpost_toolbox::Toolbox;

/// Makes a call, and stops it if it, or a call that it makes, shows nothing for a time.
pub(super) async fn reply(toolbox: &Toolbox, mut call: Call, limit: Duration) -> Reply {
    let last = Arc::new(Mutex::new(Instant::now()));
    let (seen, earlier) = (Arc::clone(&last), call.events.take());
    call.events = Some(Arc::new(move |event: &Event| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if let Some(earlier) = &earlier {
            earlier(event);
        }
    }));
    let stop = call.cancellation.child();
    call.cancellation = stop.clone();
    let silent = async {
        loop {
            let end = *last.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    };
    let mut reply = pin!(toolbox.call(call));
    tokio::select! {
        biased;
        reply = &mut reply => reply,
        () = silent => {
            stop.cancel();
            let mut reply = reply.await;
            // It may have succeeded at the last moment.
            if reply.result.is_err() {
                let time = format_duration(limit);
                reply.result = Err(ToolError::timeout(format!("it showed no progress for {time}, its `heartbeat`")));
            }
            reply
        }
    }
}
