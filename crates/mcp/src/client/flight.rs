//! Pending calls: route progress and logs of a server to their callers.
#![expect(deprecated, reason = "older servers use logging")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientJsonRpcMessage, GetExtensions as _, GetMeta as _, JsonRpcMessage, NumberOrString,
    ProgressNotificationParam, ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use toolpost_core::{CallId, LogLevel, LogLine, Port, Progress, ToolError};

use crate::convert::inward::shortened;
use crate::convert::log_level;

/// The longest progress or log message, in characters.
const MAX_MESSAGE: usize = 8_000;
/// The most questions of one call.
const MAX_QUESTIONS: usize = 1_000;

/// A pending call.
pub(super) struct Flight {
    pub(super) call: CallId,
    pub(super) port: Arc<dyn Port>,
    /// Whether the request certainly did not reach the server.
    unsent: AtomicBool,
    questions: AtomicUsize,
    pauses: Mutex<Pauses>,
}

/// The time during which questions were open.
#[derive(Default)]
struct Pauses {
    open: usize,
    since: Option<Instant>,
    total: Duration,
}

/// Carries the call along with a request to the transport; never serialized.
#[derive(Clone)]
pub(super) struct Tag(pub(super) Arc<Flight>);

impl Flight {
    pub(super) fn new(call: CallId, port: Arc<dyn Port>) -> Arc<Self> {
        Arc::new(Self {
            call,
            port,
            unsent: AtomicBool::new(false),
            questions: AtomicUsize::new(0),
            pauses: Mutex::default(),
        })
    }

    /// Marks the request as not yet sent.
    pub(super) fn set_unsent(&self) {
        self.unsent.store(true, Ordering::Release);
    }

    /// Whether the last request certainly did not reach the server.
    pub(super) fn is_unsent(&self) -> bool {
        self.unsent.load(Ordering::Acquire)
    }

    /// Counts a question and pauses the time limit until the guard is dropped.
    pub(super) fn question(self: &Arc<Self>) -> Result<Pause, ToolError> {
        if self.questions.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            return Err(ToolError::limit(format!("a call may ask at most {MAX_QUESTIONS} questions")));
        }
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.open += 1;
        pauses.since.get_or_insert_with(Instant::now);
        drop(pauses);
        Ok(Pause(Arc::clone(self)))
    }

    /// The total paused time, and whether the call is paused now.
    fn paused(&self) -> (Duration, bool) {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        (pauses.total + pauses.since.map_or(Duration::ZERO, |since| since.elapsed()), pauses.open > 0)
    }

    /// Waits until the time limit is used up, pauses excluded.
    pub(super) async fn expired(&self, limit: Duration) {
        let begun = Instant::now();
        loop {
            let (paused, is_paused) = self.paused();
            let used = begun.elapsed().saturating_sub(paused);
            if used >= limit && !is_paused {
                return;
            }
            tokio::time::sleep((limit.saturating_sub(used)).max(Duration::from_millis(20))).await;
        }
    }
}

/// Pauses the time limit of a call while it lives.
pub(super) struct Pause(Arc<Flight>);

impl Drop for Pause {
    fn drop(&mut self) {
        let mut pauses = self.0.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.open -= 1;
        if pauses.open == 0
            && let Some(since) = pauses.since.take()
        {
            pauses.total += since.elapsed();
        }
    }
}

/// The pending calls of one connection.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<NumberOrString, PendingCall>>);

struct PendingCall {
    flight: Arc<Flight>,
    token: Option<NumberOrString>,
}

impl Flights {
    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<NumberOrString, PendingCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a call.
    pub(super) fn remove(&self, flight: &Arc<Flight>) {
        self.entries().retain(|_, entry| !Arc::ptr_eq(&entry.flight, flight));
    }

    /// The call of a request, or the only pending call if the transport does not name the request.
    pub(super) fn of_request(&self, id: Option<&NumberOrString>) -> Option<Arc<Flight>> {
        let entries = self.entries();
        match id {
            Some(id) => entries.get(id).map(|entry| Arc::clone(&entry.flight)),
            None => only(entries.values()),
        }
    }

    /// Registers the call of a request that is being sent.
    fn register(&self, message: &mut ClientJsonRpcMessage) -> Option<Arc<Flight>> {
        let JsonRpcMessage::Request(request) = message else { return None };
        let Tag(flight) = request.request.extensions_mut().remove::<Tag>()?;
        let token = request.request.get_meta().get_progress_token().map(|token| token.0);
        let entry = PendingCall { flight: Arc::clone(&flight), token };
        self.entries().insert(request.id.clone(), entry);
        flight.unsent.store(false, Ordering::Release);
        Some(flight)
    }

    /// Routes progress and logs to callers, in order. Returns any other message.
    fn route(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        let JsonRpcMessage::Notification(notification) = &message else { return Some(message) };
        match &notification.notification {
            ServerNotification::ProgressNotification(progress) => self.progress(&progress.params),
            ServerNotification::LoggingMessageNotification(line) => {
                let level = log_level(line.params.level);
                self.log(level, line.params.logger.as_deref(), &line.params.data);
            }
            ServerNotification::ResourceUpdatedNotification(_)
            | ServerNotification::TaskStatusNotification(_)
            | ServerNotification::CustomNotification(_) => {}
            _ => return Some(message),
        }
        None
    }

    fn progress(&self, params: &ProgressNotificationParam) {
        let flight = {
            let entries = self.entries();
            let of_token = |entry: &&PendingCall| entry.token.as_ref() == Some(&params.progress_token.0);
            entries.values().find(of_token).map(|entry| Arc::clone(&entry.flight))
        };
        // The call may have ended.
        let Some(flight) = flight else { return };
        let percent = params.total.filter(|total| *total > 0.0).map(|total| params.progress / total * 100.0);
        let percent = percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
        let message = match &params.message {
            Some(message) => shortened(message, MAX_MESSAGE),
            None => params.total.map_or_else(
                || format!("{}", params.progress),
                |total| format!("{} of {total}", params.progress),
            ),
        };
        flight.port.progress(flight.call, Progress { message, percent, attempt: 1 });
    }

    fn log(&self, level: LogLevel, logger: Option<&str>, data: &Value) {
        let Some(flight) = only(self.entries().values()) else {
            tracing::debug!("a log line of a server belongs to no single call");
            return;
        };
        let text = match data {
            Value::String(text) => shortened(text, MAX_MESSAGE),
            data => shortened(&data.to_string(), MAX_MESSAGE),
        };
        let message = match logger {
            Some(logger) => format!("{}: {text}", shortened(logger, MAX_MESSAGE)),
            None => text,
        };
        flight.port.log(flight.call, LogLine { level, message });
    }
}

/// The call of all entries, if there is only one.
fn only<'a>(mut entries: impl Iterator<Item = &'a PendingCall>) -> Option<Arc<Flight>> {
    let first = entries.next()?;
    entries.all(|entry| Arc::ptr_eq(&entry.flight, &first.flight)).then(|| Arc::clone(&first.flight))
}

/// A send error that may know that the message was not delivered.
pub(super) trait SendFailure {
    fn is_undelivered(&self) -> bool;
}

/// A transport that registers requests and routes notifications of pending calls.
pub(super) struct Watched<T> {
    inner: T,
    flights: Arc<Flights>,
}

impl<T> Watched<T> {
    pub(super) fn new(inner: T, flights: Arc<Flights>) -> Self {
        Self { inner, flights }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Watched<T>
where
    T::Error: SendFailure,
{
    type Error = T::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let flight = self.flights.register(&mut message);
        let sending = self.inner.send(message);
        async move {
            let sent = sending.await;
            if let (Err(error), Some(flight)) = (&sent, flight)
                && error.is_undelivered()
            {
                flight.unsent.store(true, Ordering::Release);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.inner.receive().await?;
            if let Some(message) = self.flights.route(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
