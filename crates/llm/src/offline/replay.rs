//! Recorded exchanges: writing them, and giving them back.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::offline::diff::differences;
use crate::offline::say::events_of;
use crate::{
    BoxFuture, ErrorKind, Model, ModelError, ModelEvent, ModelId, RawJson, Request, Response, ResponseStream,
    Secret,
};

/// The version of the format: one JSON object a line.
const VERSION: u32 = 1;

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
    response: Response,
}

/// A model whose exchanges are written down, one JSON object a line. Only answers are recorded; an exchange that
/// fails is not.
pub struct Recorder {
    model: Arc<dyn Model>,
    file: Arc<RecordingFile>,
}

struct RecordingFile {
    writer: Mutex<Box<dyn Write + Send>>,
    secrets: Vec<Secret>,
}

impl Recorder {
    /// Records the exchanges of `model` into `writer`. Every occurrence of a secret is masked.
    pub fn new(model: Arc<dyn Model>, writer: impl Write + Send + 'static, secrets: Vec<Secret>) -> Self {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        Self { model, file: Arc::new(RecordingFile { writer: Mutex::new(writer), secrets }) }
    }
}

impl RecordingFile {
    /// Writes one exchange. What cannot be recorded is an error: a recording with holes would replay wrongly.
    fn write(&self, model: &ModelId, request: &RawJson, response: &Response) -> Result<(), ModelError> {
        let failed = |what: String| {
            ModelError::new(ErrorKind::Script, format!("the recording cannot be written: {what}"))
                .with_model(model)
        };
        let line =
            Line { v: VERSION, model: model.clone(), request: request.clone(), response: response.clone() };
        let line = serde_json::to_string(&line).map_err(|error| failed(error.to_string()))?;
        let mut line = scrub(&self.secrets, line);
        line.push('\n');
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(line.as_bytes())
            .and_then(|()| writer.flush())
            .map_err(|error| failed(error.to_string()))
    }
}

fn scrub(secrets: &[Secret], text: String) -> String {
    secrets.iter().fold(text, |text, secret| secret.scrub(&text))
}

fn request_json(request: &Request, model: &ModelId) -> Result<RawJson, ModelError> {
    RawJson::of(request)
        .map_err(|error| ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model))
}

impl Model for Recorder {
    fn id(&self) -> &ModelId {
        self.model.id()
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.model.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let (id, file) = (self.model.id().clone(), Arc::clone(&self.file));
        let written = request_json(request, &id);
        let events = self.model.stream(request).map(move |event| {
            let event = event?;
            if let (ModelEvent::Done(response), written) = (&event, &written) {
                file.write(&id, written.as_ref().map_err(Clone::clone)?, response)?;
            }
            Ok(event)
        });
        events.boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let written = request_json(request, self.id())?;
            let response = self.model.respond(request).await?;
            self.file.write(self.id(), &written, &response)?;
            Ok(response)
        })
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("model", &self.model).finish_non_exhaustive()
    }
}

/// A model that gives recorded answers to the recorded requests, and an error to any other.
///
/// Each answer is given once. Requests may come in another order than recorded, as they do from parallel agents.
#[derive(Debug)]
pub struct ReplayModel {
    id: ModelId,
    exchanges: Vec<Exchange>,
    given: Mutex<Vec<bool>>,
    secrets: Vec<Secret>,
}

#[derive(Debug)]
struct Exchange {
    request: Value,
    response: Response,
}

impl ReplayModel {
    /// Reads a file that a [`Recorder`] wrote, of at most 256 MiB. The recorder's secrets are masked in requests
    /// before they are compared.
    pub fn load(path: impl AsRef<Path>, secrets: Vec<Secret>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = crate::offline::files::read_text(path, LARGEST)?;
        Self::parse(path.display().to_string(), &text, secrets)
    }

    /// Reads a recording's text. `name` stands for the file in errors and in the model's id.
    pub fn parse(name: impl Into<String>, text: &str, secrets: Vec<Secret>) -> Result<Self, ModelError> {
        let id = ModelId::new(PROVIDER, name);
        let mut exchanges = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| {
                ModelError::new(ErrorKind::Script, format!("{}, line {}: {what}", id.name, index + 1))
            };
            let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if line.v != VERSION {
                return Err(wrong(format!("v: expected {VERSION}, found {}", line.v)));
            }
            let request = line.request.to_value().map_err(|error| wrong(error.to_string()))?;
            exchanges.push(Exchange { request, response: line.response });
        }
        if exchanges.is_empty() {
            return Err(ModelError::new(ErrorKind::Script, format!("{}: the recording is empty", id.name)));
        }
        let given = Mutex::new(vec![false; exchanges.len()]);
        Ok(Self { id, exchanges, given, secrets })
    }

    fn answer(&self, request: &Request) -> Result<Response, ModelError> {
        let failed = |kind: ErrorKind, message: String| ModelError::new(kind, message).with_model(&self.id);
        let written = scrub(&self.secrets, request_json(request, &self.id)?.get().to_owned());
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
        Ok(self.exchanges[index].response.clone())
    }
}

impl Model for ReplayModel {
    fn id(&self) -> &ModelId {
        &self.id
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
