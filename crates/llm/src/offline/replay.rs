//! Records exchanges with models and replays them.

mod failure;

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::Timestamp;

use crate::offline::diff::differences;
use crate::offline::events::stream_of;
use crate::offline::{schema, script};
use crate::{
    BoxFuture, Cost, ErrorKind, Model, ModelCatalog, ModelError, ModelEvent, ModelId, ModelInfo, Provider,
    RawJson, Request, Response, ResponseStream, Scrubber,
};

/// The version of the format, JSON Lines. Version 1 had no errors.
const VERSION: u32 = 2;

/// The largest recording, in bytes.
const MAX_FILE: usize = 256 * 1024 * 1024;

/// The provider's name in the [`ModelId`] of a replayed model.
const PROVIDER: &str = "replay";

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    v: u32,
    model: ModelId,
    request: RawJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ModelError>,
}

/// A receiver of every exchange with a model.
pub trait ExchangeSink: Send + Sync {
    /// Receives a request with its answer or error.
    ///
    /// # Errors
    /// The exchange cannot be stored. The error then replaces the answer, because a recording with gaps is invalid.
    fn exchange(
        &self,
        model: &ModelId,
        request: &Request,
        answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError>;
}

/// Writes exchanges as JSON Lines: `v`, `model`, `request`, and `response` or `error`. Headers are not recorded.
///
/// Every occurrence of a secret of at least 8 bytes is masked. Provider options with names of secrets, such as
/// `authorization_token`, headers in options, and [secrets in tool calls](crate::call_secrets) are secrets too.
pub struct Recording {
    writer: Mutex<Box<dyn Write + Send>>,
    scrubber: Scrubber,
}

impl Recording {
    /// The newest version of the format.
    pub const FORMAT: u32 = VERSION;

    /// A recording to a writer, which is flushed after each exchange.
    pub fn new(writer: impl Write + Send + 'static, secrets: impl Into<Scrubber>) -> Self {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        Self { writer: Mutex::new(writer), scrubber: secrets.into() }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("scrubber", &self.scrubber).finish_non_exhaustive()
    }
}

impl ExchangeSink for Recording {
    fn exchange(
        &self,
        model: &ModelId,
        request: &Request,
        answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError> {
        let failed = |what: String| {
            ModelError::new(ErrorKind::Script, format!("cannot write the recording: {what}"))
                .with_model(model)
        };
        let line = Line {
            v: VERSION,
            model: model.clone(),
            request: request_json(request, model)?,
            response: answer.ok().cloned(),
            error: answer.err().cloned(),
        };
        let line = serde_json::to_string(&line).map_err(|error| failed(error.to_string()))?;
        let mut line = self.scrubber.with_exchange_secrets(request, answer.ok()).scrub_json(&line);
        line.push('\n');
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(line.as_bytes())
            .and_then(|()| writer.flush())
            .map_err(|error| failed(error.to_string()))
    }
}

/// A model that reports its exchanges to a sink, such as a [`Recording`].
///
/// An exchange whose stream is dropped early is not reported.
pub struct Recorder {
    model: Arc<dyn Model>,
    sink: Arc<dyn ExchangeSink>,
}

impl Recorder {
    /// Records the exchanges of `model` to `writer`, as a [`Recording`].
    pub fn new(
        model: Arc<dyn Model>,
        writer: impl Write + Send + 'static,
        secrets: impl Into<Scrubber>,
    ) -> Self {
        Self::with_sink(model, Arc::new(Recording::new(writer, secrets)))
    }

    /// Reports the exchanges of `model` to a sink.
    pub fn with_sink(model: Arc<dyn Model>, sink: Arc<dyn ExchangeSink>) -> Self {
        Self { model, sink }
    }
}

fn request_json(request: &Request, model: &ModelId) -> Result<RawJson, ModelError> {
    RawJson::from_value(request)
        .map_err(|error| ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model))
}

impl Model for Recorder {
    fn id(&self) -> &ModelId {
        self.model.id()
    }

    fn info(&self) -> Option<&ModelInfo> {
        self.model.info()
    }

    fn alternatives(&self) -> &[Arc<dyn Model>] {
        self.model.alternatives()
    }

    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        self.model.cost(response, at)
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.model.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let events = self.model.stream(request);
        let (id, sink, request) = (self.model.id().clone(), Arc::clone(&self.sink), request.clone());
        let events = events.map(move |event| {
            match &event {
                Ok(ModelEvent::Done(response)) => sink.exchange(&id, &request, Ok(response))?,
                // The model's error matters more than an error of the sink.
                Err(error) => drop(sink.exchange(&id, &request, Err(error))),
                Ok(_) => {}
            }
            event
        });
        events.boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let answer = self.model.respond(request).await;
            let recorded = self.sink.exchange(self.id(), request, answer.as_ref());
            if answer.is_ok() {
                recorded?;
            }
            answer
        })
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("model", &self.model).finish_non_exhaustive()
    }
}

/// A model that replays recorded answers and errors. A request that was not recorded is an error.
///
/// Each answer is replayed once. The order of requests may differ, as with parallel agents.
///
/// The recording of a resumed conversation also replays from its first recorded prompt, without the turns before.
#[derive(Debug)]
pub struct ReplayModel {
    id: ModelId,
    catalog: Arc<ModelCatalog>,
    /// The model of the first recorded answer.
    info: Option<ModelInfo>,
    exchanges: Vec<Exchange>,
    replayed: Mutex<Vec<bool>>,
    /// The recorded turns before the first request; none if that request has them.
    history: OnceLock<Vec<Value>>,
    scrubber: Scrubber,
}

#[derive(Debug)]
struct Exchange {
    request: Value,
    answer: Result<Response, ModelError>,
}

impl ReplayModel {
    /// Reads a recording of at most 256 MiB. The recorder's secrets are masked in requests before the comparison.
    pub fn load(path: impl AsRef<Path>, secrets: impl Into<Scrubber>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let text = crate::offline::files::read_text(path, MAX_FILE)
            .map_err(|error| error.with_model(&ModelId::new(PROVIDER, &name)))?;
        Self::parse(name, &text, secrets)
    }

    /// Parses a recording. `name` stands for the file in errors and in the model's id.
    pub fn parse(
        name: impl Into<String>,
        text: &str,
        secrets: impl Into<Scrubber>,
    ) -> Result<Self, ModelError> {
        let id = ModelId::new(PROVIDER, name);
        let mut exchanges = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| {
                let message = format!("{}, line {}: {what}", id.name, index + 1);
                ModelError::new(ErrorKind::Script, message).with_model(&id)
            };
            // The version first: a newer line may have unknown fields.
            let Version { v } = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if v > VERSION {
                return Err(wrong(format!(
                    "the recording has format {v}, but this program supports formats up to {VERSION}; use the newer program that wrote it"
                )));
            }
            if v < 1 {
                return Err(wrong(format!("v: expected 1 to {VERSION}, found {v}")));
            }
            let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let request = line.request.to_value().map_err(|error| wrong(error.to_string()))?;
            let answer = match (line.response, line.error) {
                (Some(response), None) => Ok(response),
                (None, Some(failure)) => Err(failure),
                _ => return Err(wrong("expected either `response` or `error`".to_owned())),
            };
            exchanges.push(Exchange { request, answer });
        }
        if exchanges.is_empty() {
            let message = format!("{}: the recording is empty", id.name);
            return Err(ModelError::new(ErrorKind::Script, message).with_model(&id));
        }
        let replayed = Mutex::new(vec![false; exchanges.len()]);
        let catalog = Arc::clone(ModelCatalog::built_in());
        let info = first_info(&exchanges, &catalog);
        let history = OnceLock::new();
        Ok(Self { id, catalog, info, exchanges, replayed, history, scrubber: secrets.into() })
    }

    /// Sets the catalog for prices and features. Default: the built-in one.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Arc<ModelCatalog>) -> Self {
        self.info = first_info(&self.exchanges, &catalog);
        self.catalog = catalog;
        self
    }

    /// The number of answers that were not replayed yet.
    pub fn remaining(&self) -> usize {
        let replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner);
        replayed.iter().filter(|replayed| !**replayed).count()
    }

    fn answer(&self, request: &Request) -> Result<Response, ModelError> {
        let failed = |kind: ErrorKind, message: String| ModelError::new(kind, message).with_model(&self.id);
        let scrubber = self.scrubber.with_exchange_secrets(request, None);
        let written = scrubber.scrub_json(request_json(request, &self.id)?.get());
        let found: Value = serde_json::from_str(&written)
            .map_err(|error| failed(ErrorKind::InvalidRequest, error.to_string()))?;
        let mut replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || self.exchanges.iter().enumerate().filter(|(index, _)| !replayed[*index]);
        let Some((next, expected)) = open().next() else {
            let message = format!("all {} answers of the recording were replayed", self.exchanges.len());
            return Err(failed(ErrorKind::ScriptExhausted, message));
        };
        let whole = self.with_history(&found);
        let is_same = |request: &Value| *request == found || whole.as_ref() == Some(request);
        let same = open().find(|(_, exchange)| is_same(&exchange.request)).map(|(index, _)| index);
        let Some(index) = same else {
            let lines = differences(&expected.request, whole.as_ref().unwrap_or(&found)).join("\n  ");
            return Err(failed(
                ErrorKind::ReplayMismatch,
                format!("differences to request {}:\n  {lines}\n", next + 1),
            ));
        };
        replayed[index] = true;
        self.exchanges[index].answer.clone()
    }

    /// The request with the recorded history before its turns, if the first request lacked that history.
    fn with_history(&self, request: &Value) -> Option<Value> {
        let turns_of = |request: &Value| request.get("turns").and_then(Value::as_array).cloned();
        let turns = turns_of(request).filter(|turns| !turns.is_empty())?;
        let history = self.history.get_or_init(|| {
            let recorded = self.exchanges.first().and_then(|first| turns_of(&first.request));
            let mut recorded = recorded.unwrap_or_default();
            let is_end = recorded.ends_with(&turns);
            recorded.truncate(if is_end { recorded.len() - turns.len() } else { 0 });
            recorded
        });
        (!history.is_empty()).then(|| {
            let mut whole = request.clone();
            whole["turns"] = history.iter().chain(&turns).cloned().collect();
            whole
        })
    }
}

/// Whether a model is scripted and therefore free.
fn is_free(id: &ModelId) -> bool {
    [script::PROVIDER, schema::PROVIDER].contains(&id.provider.as_str())
}

/// The catalog data of a recorded model.
fn recorded_info(id: &ModelId, catalog: &ModelCatalog) -> ModelInfo {
    if is_free(id) { ModelInfo::free(id) } else { catalog.find(id) }
}

/// The catalog data of the model of the first answer.
fn first_info(exchanges: &[Exchange], catalog: &ModelCatalog) -> Option<ModelInfo> {
    let origin = |exchange: &Exchange| match &exchange.answer {
        Ok(response) => Some(response.origin.clone()),
        Err(error) => error.details.model.clone(),
    };
    let origin = exchanges.iter().find_map(origin);
    origin
        .filter(|id| is_free(id) || Provider::find(&id.provider).is_some())
        .map(|id| recorded_info(&id, catalog))
}

impl Model for ReplayModel {
    fn id(&self) -> &ModelId {
        &self.id
    }

    /// The catalog data of the first recorded answer's model, on which an agent may depend.
    fn info(&self) -> Option<&ModelInfo> {
        self.info.as_ref()
    }

    /// The cost of the recorded answer.
    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        recorded_info(&response.origin, &self.catalog).cost_of(response, at)
    }

    fn check(&self, _request: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        stream_of(self.answer(request))
    }
}
