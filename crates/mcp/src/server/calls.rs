//! Running calls, and calls parked between two requests while a client answers questions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
#[expect(deprecated, reason = "older clients use logging")]
use rmcp::model::LoggingMessageNotificationParam;
use rmcp::model::{ErrorData, InputRequiredResult, ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolpost_core::{BoxFuture, Output, ToolError};

use super::port::{Abilities, CallPort, Notice, PendingQuestion};
use super::request::Binding;
use crate::convert::protocol_level;

/// A running call. Dropping it cancels it.
pub(crate) struct Active {
    future: BoxFuture<'static, Result<Output, ToolError>>,
    port: Arc<CallPort>,
    /// The arguments, unless the call was parked.
    pub(crate) arguments: Option<Arc<Value>>,
}

/// The next event of a call.
pub(crate) enum Step {
    Done(Result<Output, ToolError>),
    Asked(Vec<PendingQuestion>),
    /// The call is slow: it may become a task.
    Slow,
}

/// A sink for the progress and log notices of a call.
pub(crate) trait NoticeSink {
    fn send_all(&mut self, notices: VecDeque<Notice>) -> impl Future<Output = ()> + Send;
}

impl Active {
    pub(crate) fn new(future: BoxFuture<'static, Result<Output, ToolError>>, port: Arc<CallPort>) -> Self {
        Self { future, port, arguments: None }
    }

    /// Detaches the call from its request: it is a task now.
    pub(crate) fn detach(&self) {
        self.port.detach();
    }

    /// Runs the call until it is done, asks a question or is slow, and forwards notices. Must not be polled
    /// again when done.
    pub(crate) async fn step(&mut self, sink: &mut impl NoticeSink, slow_at: Option<Instant>) -> Step {
        loop {
            let is_slow = async {
                match slow_at {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = &mut self.future => {
                    sink.send_all(self.port.take_notices()).await;
                    return Step::Done(result);
                }
                () = self.port.changed() => {}
                () = is_slow => return Step::Slow,
            }
            let questions = self.port.take_questions();
            let notices = self.port.take_notices();
            // A slow client does not block the tool.
            let done = match select(&mut self.future, pin!(sink.send_all(notices))).await {
                Either::Left((result, sending)) => {
                    sending.await;
                    Some(result)
                }
                Either::Right(((), _)) => None,
            };
            if let Some(result) = done {
                sink.send_all(self.port.take_notices()).await;
                return Step::Done(result);
            }
            if !questions.is_empty() {
                return Step::Asked(questions);
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.port.close();
    }
}

/// Sends the notices of a call to a client.
pub(crate) struct Notifier {
    pub(crate) peer: Peer<RoleServer>,
    pub(crate) token: Option<ProgressToken>,
    /// The name that log lines carry.
    pub(crate) logger: String,
    last: f64,
    timeout: Duration,
}

impl Notifier {
    pub(crate) fn new(
        peer: Peer<RoleServer>,
        token: Option<ProgressToken>,
        logger: &str,
        timeout: Duration,
    ) -> Self {
        Self { peer, token, logger: logger.to_owned(), last: f64::NEG_INFINITY, timeout }
    }

    #[expect(deprecated, reason = "older clients use logging")]
    async fn send(&mut self, notice: Notice) -> bool {
        match notice {
            Notice::Progress(progress) => {
                let Some(token) = self.token.clone() else { return true };
                let value = progress.percent.unwrap_or_else(|| self.last.max(0.0).floor() + 1.0);
                // MCP requires increasing values, even when a retry starts again.
                self.last = if value > self.last { value } else { self.last.next_up() };
                let mut params = ProgressNotificationParam::new(token, self.last);
                params.total = progress.percent.map(|_| 100.0);
                params.message = Some(progress.message).filter(|message| !message.is_empty());
                self.peer.notify_progress(params).await.is_ok()
            }
            Notice::Log(line) => {
                let (level, data) = (protocol_level(line.level), Value::String(line.message));
                let params =
                    LoggingMessageNotificationParam::new(level, data).with_logger(self.logger.clone());
                self.peer.notify_logging_message(params).await.is_ok()
            }
        }
    }
}

impl NoticeSink for Notifier {
    async fn send_all(&mut self, notices: VecDeque<Notice>) {
        for notice in notices {
            let sent = tokio::time::timeout(self.timeout, self.send(notice)).await;
            if !matches!(sent, Ok(true)) {
                tracing::debug!("a notification did not reach the client");
                return;
            }
        }
    }
}

/// A tokio task that is aborted on drop.
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A call that waits for answers between two requests.
struct Parked {
    task: Task<Result<Output, ToolError>>,
    port: Arc<CallPort>,
    questions: Vec<PendingQuestion>,
    binding: Binding,
    _timer: Task<()>,
}

/// The parked calls, bounded in number and time.
pub(crate) struct Parking {
    /// By request state, which is random.
    parked: Mutex<HashMap<String, Parked>>,
    capacity: usize,
    time: Duration,
}

impl Parking {
    pub(crate) fn new(capacity: usize, time: Duration) -> Self {
        Self { parked: Mutex::default(), capacity, time }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Parked>> {
        // A table is whole after any panic.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of parked calls.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Cancels all parked calls.
    pub(crate) fn clear(&self) {
        let parked = std::mem::take(&mut *self.lock());
        drop(parked);
    }

    /// Parks a call and returns the questions for the client.
    ///
    /// # Errors
    /// The table is full: the questions fail with `OVERLOADED`, and the call continues.
    pub(crate) fn park(
        self: &Arc<Self>,
        mut active: Active,
        questions: Vec<PendingQuestion>,
        binding: &Binding,
    ) -> Result<InputRequiredResult, Active> {
        let requests =
            questions.iter().map(|question| (question.key.clone(), question.request.clone())).collect();
        let state = toolpost_core::random_hex(32);
        let mut parked = self.lock();
        let state = match state {
            Ok(state) if parked.len() < self.capacity => state,
            other => {
                drop(parked);
                let error = other.err().unwrap_or_else(|| {
                    ToolError::overloaded(format!(
                        "too many calls wait for answers: at most {}",
                        self.capacity
                    ))
                });
                for question in questions {
                    question.answer(Err(error.clone()));
                }
                return Err(active);
            }
        };
        let port = Arc::clone(&active.port);
        let nothing: BoxFuture<'static, _> = Box::pin(std::future::pending());
        let future = std::mem::replace(&mut active.future, nothing);
        // The remaining shell must not close the port on drop.
        active.port = Arc::default();
        let timer = {
            let (table, state, time) = (Arc::downgrade(self), state.clone(), self.time);
            Task::spawn(async move {
                tokio::time::sleep(time).await;
                // Dropped outside the lock.
                let expired = table.upgrade().and_then(|table| table.lock().remove(&state));
                drop(expired);
            })
        };
        let (task, binding) = (Task::spawn(future), binding.clone());
        parked.insert(state.clone(), Parked { task, port, questions, binding, _timer: timer });
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Resumes a parked call with the answers of its client. Open questions are asked again.
    ///
    /// # Errors
    /// The state is invalid, expired or belongs to another client or request; an answer is malformed.
    pub(crate) fn resume(
        self: &Arc<Self>,
        state: &str,
        mut answers: BTreeMap<String, Value>,
        abilities: Abilities,
        binding: &Binding,
    ) -> Result<Either<Active, InputRequiredResult>, ErrorData> {
        let invalid = |message: String| ErrorData::invalid_params(message, None);
        let mut waiting = self.lock();
        let parked = waiting.get(state).filter(|parked| parked.binding == *binding).ok_or_else(|| {
            let known = "the requestState is unknown, was already used, or belongs to another request";
            invalid(format!("{known}; repeat the call without it"))
        })?;
        let wrong = parked
            .questions
            .iter()
            .find(|question| answers.get(&question.key).is_some_and(|answer| !question.fits(answer)));
        if let Some(question) = wrong {
            return Err(invalid(format!("the response `{}` is malformed", shown(&question.key))));
        }
        let Some(parked) = waiting.remove(state) else {
            return Err(ErrorData::internal_error("a parked call vanished", None));
        };
        drop(waiting);
        parked.port.set_abilities(abilities);
        let mut open = Vec::new();
        for question in parked.questions {
            match answers.remove(&question.key) {
                Some(answer) => question.answer(Ok(answer)),
                None => open.push(question),
            }
        }
        let Parked { mut task, port, .. } = Parked { questions: Vec::new(), ..parked };
        let future = Box::pin(async move {
            (&mut task.0)
                .await
                .unwrap_or_else(|error| Err(ToolError::internal("the parked call panicked").caused_by(error)))
        });
        let active = Active::new(future, port);
        if open.is_empty() {
            return Ok(Either::Left(active));
        }
        Ok(match self.park(active, open, binding) {
            Ok(again) => Either::Right(again),
            Err(active) => Either::Left(active),
        })
    }
}

/// A client's text for an error message: shortened and escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
