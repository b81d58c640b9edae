//! Recorded exchanges: writing them, and giving them back.

mod failure;

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::Timestamp;

use crate::offline::diff::differences;
use crate::offline::say::events_of;
use crate::offline::{schema, script};
use crate::{
    BoxFuture, Catalog, Cost, ErrorKind, Model, ModelError, ModelEvent, ModelId, ModelInfo, Provider,
    RawJson, Request, Response, ResponseStream, Scrubber, Secret,
};

/// The version of the format: one JSON object a line. Version 1 had no failures.
const VERSION: u32 = 2;

/// The largest recording, in bytes.
const LARGEST: usize = 256 * 1024 * 1024;

/// The provider's name in the [`ModelId`] of a replayed model.
const PROVIDER: &str = "replay";

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

/// Who is told of every exchange with a model.
pub trait ExchangeSink: Send + Sync {
    /// A model was asked, and has answered or failed.
    ///
    /// # Errors
    /// The exchange could not be kept: then its answer becomes this error, because a recording with holes would replay
    /// wrongly.
    fn exchange(
        &self,
        model: &ModelId,
        request: &Request,
        answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError>;
}

/// Writes exchanges down, one JSON object a line: `v`, `model`, `request`, and `response` or `error`. Headers are never
/// among them. Every occurrence of a secret of at least 8 bytes is masked, and so are, everywhere in a line, the texts that
/// the request's provider options have under names of secrets, such as `authorization_token`, or as headers.
pub struct Recording {
    writer: Mutex<Box<dyn Write + Send>>,
    scrubber: Scrubber,
}

impl Recording {
    /// A recording into a writer, which is flushed after each exchange.
    pub fn new(writer: impl Write + Send + 'static, secrets: Vec<Secret>) -> Self {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        Self { writer: Mutex::new(writer), scrubber: Scrubber::new(secrets) }
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
            ModelError::new(ErrorKind::Script, format!("the recording cannot be written: {what}"))
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
        let mut line = self.scrubber.and_of(request).scrub_json(&line);
        line.push('\n');
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(line.as_bytes())
            .and_then(|()| writer.flush())
            .map_err(|error| failed(error.to_string()))
    }
}

/// A model whose exchanges somebody is told of: a [`Recording`], for one. An exchange that is given up before its end,
/// because its stream is dropped, is not told.
pub struct Recorder {
    model: Arc<dyn Model>,
    sink: Arc<dyn ExchangeSink>,
}

impl Recorder {
    /// Records the exchanges of `model` into `writer`, as a [`Recording`].
    pub fn new(model: Arc<dyn Model>, writer: impl Write + Send + 'static, secrets: Vec<Secret>) -> Self {
        Self::tell(model, Arc::new(Recording::new(writer, secrets)))
    }

    /// Tells of the exchanges of `model`.
    pub fn tell(model: Arc<dyn Model>, sink: Arc<dyn ExchangeSink>) -> Self {
        Self { model, sink }
    }
}

fn request_json(request: &Request, model: &ModelId) -> Result<RawJson, ModelError> {
    RawJson::of(request)
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
        let (id, sink, asked) = (self.model.id().clone(), Arc::clone(&self.sink), request.clone());
        let events = self.model.stream(request).map(move |event| {
            match &event {
                Ok(ModelEvent::Done(response)) => sink.exchange(&id, &asked, Ok(response))?,
                // What went wrong counts, also when it cannot be written down.
                Err(error) => drop(sink.exchange(&id, &asked, Err(error))),
                Ok(_) => {}
            }
            event
        });
        events.boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let answer = self.model.respond(request).await;
            let told = self.sink.exchange(self.id(), request, answer.as_ref());
            if answer.is_ok() {
                told?;
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

/// A model that gives recorded answers to the recorded requests, and an error to any other. An exchange that failed
/// fails again in the same way.
///
/// Each answer is given once. Requests may come in another order than recorded, as they do from parallel agents.
#[derive(Debug)]
pub struct ReplayModel {
    id: ModelId,
    /// What is known of models.
    catalog: Arc<Catalog>,
    /// What is known of the one that gave the first recorded answer.
    info: Option<ModelInfo>,
    exchanges: Vec<Exchange>,
    given: Mutex<Vec<bool>>,
    scrubber: Scrubber,
}

#[derive(Debug)]
struct Exchange {
    request: Value,
    answer: Result<Response, ModelError>,
}

impl ReplayModel {
    /// Reads a file that a [`Recorder`] wrote, of at most 256 MiB. The recorder's secrets are masked in requests
    /// before they are compared.
    pub fn load(path: impl AsRef<Path>, secrets: Vec<Secret>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let text = crate::offline::files::read_text(path, LARGEST)
            .map_err(|error| error.with_model(&ModelId::new(PROVIDER, &name)))?;
        Self::parse(name, &text, secrets)
    }

    /// Reads a recording's text. `name` stands for the file in errors and in the model's id.
    pub fn parse(name: impl Into<String>, text: &str, secrets: Vec<Secret>) -> Result<Self, ModelError> {
        let id = ModelId::new(PROVIDER, name);
        let mut exchanges = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| {
                let message = format!("{}, line {}: {what}", id.name, index + 1);
                ModelError::new(ErrorKind::Script, message).with_model(&id)
            };
            let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if !(1..=VERSION).contains(&line.v) {
                return Err(wrong(format!("v: expected 1 to {VERSION}, found {}", line.v)));
            }
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
        let given = Mutex::new(vec![false; exchanges.len()]);
        let catalog = Arc::clone(Catalog::built_in());
        let info = known(&exchanges, &catalog);
        Ok(Self { id, catalog, info, exchanges, given, scrubber: Scrubber::new(secrets) })
    }

    /// Takes what is known of models, and their prices, from here. Default: what is built in.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Arc<Catalog>) -> Self {
        self.info = known(&self.exchanges, &catalog);
        self.catalog = catalog;
        self
    }

    /// How many answers were not given yet.
    pub fn left(&self) -> usize {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.iter().filter(|given| !**given).count()
    }

    fn answer(&self, request: &Request) -> Result<Response, ModelError> {
        let failed = |kind: ErrorKind, message: String| ModelError::new(kind, message).with_model(&self.id);
        let scrubber = self.scrubber.and_of(request);
        let written = scrubber.scrub_json(request_json(request, &self.id)?.get());
        let found: Value = serde_json::from_str(&written)
            .map_err(|error| failed(ErrorKind::InvalidRequest, error.to_string()))?;
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || self.exchanges.iter().enumerate().filter(|(index, _)| !given[*index]);
        let Some((next, expected)) = open().next() else {
            let message = format!("the recording has {} answers, and all were given", self.exchanges.len());
            return Err(failed(ErrorKind::ScriptExhausted, message));
        };
        let same = open().find(|(_, exchange)| exchange.request == found).map(|(index, _)| index);
        let Some(index) = same else {
            let lines = differences(&expected.request, &found).join("\n  ");
            return Err(failed(
                ErrorKind::ReplayMismatch,
                format!("against request {}:\n  {lines}\n", next + 1),
            ));
        };
        given[index] = true;
        self.exchanges[index].answer.clone()
    }
}

/// Whether a model was scripted, and costs nothing.
fn is_free(id: &ModelId) -> bool {
    [script::PROVIDER, schema::PROVIDER].contains(&id.provider.as_str())
}

/// What is known of a model whose answers were recorded.
fn known_of(id: &ModelId, catalog: &Catalog) -> ModelInfo {
    if is_free(id) { ModelInfo::free(id) } else { catalog.find(id) }
}

/// What is known of the model that gave the first answer.
fn known(exchanges: &[Exchange], catalog: &Catalog) -> Option<ModelInfo> {
    let origin = |exchange: &Exchange| match &exchange.answer {
        Ok(response) => Some(response.origin.clone()),
        Err(error) => error.details.model.clone(),
    };
    let origin = exchanges.iter().find_map(origin);
    origin.filter(|id| is_free(id) || Provider::find(&id.provider).is_some()).map(|id| known_of(&id, catalog))
}

impl Model for ReplayModel {
    fn id(&self) -> &ModelId {
        &self.id
    }

    /// That of the first recorded answer, since what an agent does may depend on it.
    fn info(&self) -> Option<&ModelInfo> {
        self.info.as_ref()
    }

    /// What the answer has cost when it was recorded.
    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        known_of(&response.origin, &self.catalog).cost_of(response, at)
    }

    fn check(&self, _request: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let events: Vec<Result<ModelEvent, ModelError>> = match self.answer(request) {
            Ok(response) => events_of(response).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        futures_util::stream::iter(events).boxed()
    }
}
