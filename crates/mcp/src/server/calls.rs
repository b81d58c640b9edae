//! Calls that run, and calls that wait between two requests for the answers of a client.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use rmcp::model::{
    ErrorData, InputRequiredResult, ProgressNotificationParam, ProgressToken, RequestStateCodec, SealOptions,
};
#[expect(deprecated, reason = "log lines go on for the clients that want them")]
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use rmcp::{Peer, RoleServer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolpost_core::{BoxFuture, LogLevel, Output, ToolError};

use super::port::{Abilities, Asked, CallPort, Notice};

/// A call that somebody polls. Dropping it stops it.
pub(crate) struct Active {
    future: BoxFuture<'static, Result<Output, ToolError>>,
    port: Arc<CallPort>,
    /// What it was called with, unless it has waited for answers since.
    pub(crate) arguments: Option<Arc<Value>>,
}

/// What happened next.
pub(crate) enum Step {
    Done(Result<Output, ToolError>),
    Asked(Vec<Asked>),
    /// It takes longer than is waited for.
    Slow,
}

/// What is told of a call, on its way to whoever wants it.
pub(crate) trait Tell {
    fn tell(&mut self, notices: VecDeque<Notice>) -> impl Future<Output = ()> + Send;
}

impl Active {
    pub(crate) fn new(future: BoxFuture<'static, Result<Output, ToolError>>, port: Arc<CallPort>) -> Self {
        Self { future, port, arguments: None }
    }

    /// Its request is over: from now on it tells what a task tells.
    pub(crate) fn on_its_own(&self) {
        self.port.set_on_its_own();
    }

    /// Runs it until it is done or asks something, or is slow. What it tells goes to the client meanwhile. Not to be
    /// polled again when it is done.
    pub(crate) async fn step(&mut self, teller: &mut impl Tell, slow_at: Option<Instant>) -> Step {
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
                    teller.tell(self.port.take_notices()).await;
                    return Step::Done(result);
                }
                () = self.port.news() => {}
                () = is_slow => return Step::Slow,
            }
            let questions = self.port.take_questions();
            let notices = self.port.take_notices();
            // A client that is slow to take notices does not stop the tool.
            let told = match select(&mut self.future, pin!(teller.tell(notices))).await {
                Either::Left((result, telling)) => {
                    telling.await;
                    Some(result)
                }
                Either::Right(((), _)) => None,
            };
            if let Some(result) = told {
                teller.tell(self.port.take_notices()).await;
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

/// Tells a client what a call tells.
pub(crate) struct Teller {
    pub(crate) peer: Peer<RoleServer>,
    pub(crate) token: Option<ProgressToken>,
    /// The name that log lines carry.
    pub(crate) logger: String,
    last: f64,
    patience: Duration,
}

impl Teller {
    pub(crate) fn new(
        peer: Peer<RoleServer>,
        token: Option<ProgressToken>,
        logger: &str,
        patience: Duration,
    ) -> Self {
        Self { peer, token, logger: logger.to_owned(), last: f64::NEG_INFINITY, patience }
    }

    #[expect(deprecated, reason = "log lines go on for the clients that want them")]
    async fn send(&mut self, notice: Notice) -> bool {
        match notice {
            Notice::Progress(progress) => {
                let Some(token) = self.token.clone() else { return true };
                let value = progress.percent.unwrap_or_else(|| self.last.max(0.0).floor() + 1.0);
                // The protocol wants each value above the one before, also when an attempt begins again.
                self.last = if value > self.last { value } else { self.last.next_up() };
                let mut params = ProgressNotificationParam::new(token, self.last);
                params.total = progress.percent.map(|_| 100.0);
                params.message = Some(progress.message).filter(|message| !message.is_empty());
                self.peer.notify_progress(params).await.is_ok()
            }
            Notice::Log(line) => {
                let level = match line.level {
                    LogLevel::Trace | LogLevel::Debug => LoggingLevel::Debug,
                    LogLevel::Info => LoggingLevel::Info,
                    LogLevel::Warn => LoggingLevel::Warning,
                    LogLevel::Error => LoggingLevel::Error,
                };
                let params = LoggingMessageNotificationParam::new(level, Value::String(line.message))
                    .with_logger(self.logger.clone());
                self.peer.notify_logging_message(params).await.is_ok()
            }
        }
    }
}

impl Tell for Teller {
    async fn tell(&mut self, notices: VecDeque<Notice>) {
        for notice in notices {
            let sent = tokio::time::timeout(self.patience, self.send(notice)).await;
            if !matches!(sent, Ok(true)) {
                tracing::debug!("a notice did not reach the client");
                return;
            }
        }
    }
}

/// A task that ends with this value.
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
    questions: Vec<Asked>,
    _timer: Task<()>,
}

/// The calls that wait, at most so many and so long.
pub(crate) struct Parking {
    parked: Mutex<HashMap<String, Parked>>,
    codec: RequestStateCodec,
    places: usize,
    time: Duration,
}

/// What the sealed state of a request says.
#[derive(Serialize, Deserialize)]
struct State {
    handle: String,
}

/// Who waits for what: only the same client gets on with the same request.
pub(crate) fn binding(owner: Option<&str>, method: &str, name: &str) -> Vec<u8> {
    // Lengths first, so that no two triples look the same.
    let owner = owner.map_or_else(|| "-".to_owned(), |owner| format!("+{}:{owner}", owner.len()));
    format!("{owner}\n{method}\n{name}").into_bytes()
}

impl Parking {
    pub(crate) fn new(places: usize, time: Duration) -> Result<Self, ToolError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|error| ToolError::internal(format!("no random key for request states: {error}")))?;
        let codec = RequestStateCodec::try_new(key.to_vec())
            .map_err(|error| ToolError::internal(format!("the key for request states: {error}")))?;
        Ok(Self { parked: Mutex::default(), codec, places, time })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Parked>> {
        // A table is whole after any panic.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends all that wait.
    pub(crate) fn clear(&self) {
        let parked = std::mem::take(&mut *self.lock());
        drop(parked);
    }

    /// Lets a call wait for answers, and says what the client is to be asked.
    ///
    /// # Errors
    /// There is no place: the questions get `OVERLOADED`, and the call goes on.
    pub(crate) fn park(
        self: &Arc<Self>,
        mut active: Active,
        questions: Vec<Asked>,
        binding: &[u8],
    ) -> Result<InputRequiredResult, Active> {
        let requests = questions.iter().map(|asked| (asked.key.clone(), asked.request.clone())).collect();
        let sealed = toolpost_core::random_hex(32).and_then(|handle| {
            let state = State { handle: handle.clone() };
            let options = SealOptions::new().associated_data(binding).ttl(self.time);
            let sealed = self.codec.seal_json_with(&state, &options);
            Ok((handle, sealed.map_err(|error| ToolError::internal(error.to_string()))?))
        });
        let mut parked = self.lock();
        let (handle, sealed) = match sealed {
            Ok(sealed) if parked.len() < self.places => sealed,
            other => {
                drop(parked);
                let error = other.err().unwrap_or_else(|| {
                    ToolError::overloaded(format!("{} calls wait for answers already", self.places))
                });
                for asked in questions {
                    asked.answer(Err(error.clone()));
                }
                return Err(active);
            }
        };
        let port = Arc::clone(&active.port);
        let nothing: BoxFuture<'static, _> = Box::pin(std::future::pending());
        let future = std::mem::replace(&mut active.future, nothing);
        // The husk must not close the port when it is dropped.
        active.port = Arc::default();
        let timer = {
            let (table, handle, time) = (Arc::downgrade(self), handle.clone(), self.time);
            Task::spawn(async move {
                tokio::time::sleep(time).await;
                let gone = table.upgrade().and_then(|table| table.lock().remove(&handle));
                drop(gone);
            })
        };
        parked.insert(handle, Parked { task: Task::spawn(future), port, questions, _timer: timer });
        Ok(InputRequiredResult::new(Some(requests), Some(sealed)))
    }

    /// Takes up a call again with the answers of its client. What is still open is asked again.
    ///
    /// # Errors
    /// The state is none of ours, or of another client or request, or its call waits no more; an answer has the wrong
    /// form.
    pub(crate) fn resume(
        self: &Arc<Self>,
        sealed: &str,
        mut answers: BTreeMap<String, Value>,
        abilities: Abilities,
        binding: &[u8],
    ) -> Result<Either<Active, InputRequiredResult>, ErrorData> {
        let state: State = self.codec.open_json_with(sealed, binding).map_err(|error| {
            ErrorData::invalid_params(
                format!("the requestState was not made for this request: {error}"),
                None,
            )
        })?;
        let mut waiting = self.lock();
        let Some(parked) = waiting.get(&state.handle) else {
            let message = "the requestState belongs to no waiting call: it was used already, or it waited too long; make \
                           the call again without it";
            return Err(ErrorData::invalid_params(message, None));
        };
        let wrong = parked
            .questions
            .iter()
            .find(|asked| answers.get(&asked.key).is_some_and(|answer| !asked.fits(answer)));
        if let Some(asked) = wrong {
            let message = format!("the response `{}` does not have the form of an answer", shown(&asked.key));
            return Err(ErrorData::invalid_params(message, None));
        }
        let Some(parked) = waiting.remove(&state.handle) else {
            return Err(ErrorData::internal_error("the table of waiting calls is broken", None));
        };
        drop(waiting);
        parked.port.set_abilities(abilities);
        let mut open = Vec::new();
        for asked in parked.questions {
            match answers.remove(&asked.key) {
                Some(answer) => asked.answer(Ok(answer)),
                None => open.push(asked),
            }
        }
        let Parked { mut task, port, .. } = Parked { questions: Vec::new(), ..parked };
        let future = Box::pin(async move {
            (&mut task.0).await.unwrap_or_else(|error| {
                Err(ToolError::internal("the call broke while it waited").caused_by(error))
            })
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

/// A name of the client's as an error may show it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
