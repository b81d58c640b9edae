//! The port of a call: queues notices and questions for the client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::{ClientCapabilities, ElicitRequest, ElicitRequestParams, InputRequest};
#[expect(deprecated, reason = "older clients use sampling and roots")]
use rmcp::model::{CreateMessageRequest, CreateMessageRequestParams, ListRootsRequest, SamplingMessage};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, oneshot};
use toolpost_core::{
    Answer, BoxFuture, CallId, Delivery, LogLevel, LogLine, Port, Progress, Question, QuestionKind, Root,
    Sample, SampleRequest, ToolError, Usage,
};

/// The most queued notices.
const MAX_NOTICES: usize = 256;
/// The most questions of one call.
const MAX_QUESTIONS: u32 = 1_000;
/// The form field for a non-object answer.
const ANSWER: &str = "answer";
/// The form field of an approval.
const APPROVE: &str = "approve";
/// The error context key for a missing client capability.
pub(crate) const CAPABILITY: &str = "client_capability";

/// A progress update or a log line.
#[derive(Debug)]
pub(crate) enum Notice {
    Progress(Progress),
    Log(LogLine),
}

/// A question that waits for its answer.
pub(crate) struct PendingQuestion {
    /// The key of the answer.
    pub(crate) key: String,
    /// The request for the client.
    pub(crate) request: InputRequest,
    answer: oneshot::Sender<Result<Value, ToolError>>,
}

impl PendingQuestion {
    /// Whether a client's answer is well-formed. The tool validates the content.
    pub(crate) fn fits(&self, answer: &Value) -> bool {
        match &self.request {
            InputRequest::Elicitation(_) => {
                let action = answer.get("action").and_then(Value::as_str);
                action.is_some_and(|action| ["accept", "decline", "cancel"].contains(&action))
            }
            InputRequest::CreateMessage(_) => sampled_text(answer).is_some(),
            _ => answer.get("roots").is_some_and(Value::is_array),
        }
    }

    /// Delivers the answer or an error.
    pub(crate) fn answer(self, answer: Result<Value, ToolError>) {
        // The call may have ended.
        let _ = self.answer.send(answer);
    }
}

/// The client's capabilities for one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) elicitation: bool,
    pub(crate) sampling: bool,
    pub(crate) roots: bool,
    /// Whether the client requested progress.
    pub(crate) progress: bool,
    /// The minimum log level that the client requested.
    pub(crate) log: Option<LogLevel>,
}

impl Abilities {
    pub(crate) fn from_capabilities(capabilities: Option<&ClientCapabilities>) -> Self {
        // Without a mode, elicitation means forms.
        let elicitation = capabilities
            .and_then(|known| known.elicitation.as_ref())
            .is_some_and(|known| known.form.is_some() || known.url.is_none());
        Self {
            elicitation,
            sampling: capabilities.is_some_and(|known| known.sampling.is_some()),
            roots: capabilities.is_some_and(|known| known.roots.is_some()),
            progress: false,
            log: None,
        }
    }
}

#[derive(Default)]
struct Queue {
    abilities: Abilities,
    notices: VecDeque<Notice>,
    questions: Vec<PendingQuestion>,
    count: u32,
    /// Answers that arrived before their questions.
    early: BTreeMap<String, Value>,
    closed: bool,
}

/// The port of one call.
#[derive(Default)]
pub(crate) struct CallPort {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl CallPort {
    pub(crate) fn new(abilities: Abilities, early: BTreeMap<String, Value>) -> Self {
        Self { queue: Mutex::new(Queue { abilities, early, ..Queue::default() }), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A queue is whole after any panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the capabilities of the next request's client.
    pub(crate) fn set_abilities(&self, abilities: Abilities) {
        self.lock().abilities = abilities;
    }

    /// Detaches the port from its request: a task reports progress and drops logs.
    pub(crate) fn detach(&self) {
        let mut queue = self.lock();
        queue.abilities.progress = true;
        queue.abilities.log = None;
    }

    /// Waits for a notice or a question.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the queued notices, oldest first.
    pub(crate) fn take_notices(&self) -> VecDeque<Notice> {
        std::mem::take(&mut self.lock().notices)
    }

    /// Takes the queued questions.
    pub(crate) fn take_questions(&self) -> Vec<PendingQuestion> {
        std::mem::take(&mut self.lock().questions)
    }

    /// Closes the port: pending questions are cancelled.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.questions.clear();
    }

    fn enqueue(&self, notice: Notice) -> Delivery {
        let mut queue = self.lock();
        let is_requested = match &notice {
            Notice::Progress(_) => queue.abilities.progress,
            Notice::Log(line) => queue.abilities.log.is_some_and(|minimum| line.level >= minimum),
        };
        if !is_requested || queue.closed {
            return Delivery::Dropped;
        }
        let delivery = if queue.notices.len() < MAX_NOTICES {
            queue.notices.push_back(notice);
            Delivery::Delivered
        } else {
            // Newer progress replaces older progress; log lines are dropped.
            match (notice, queue.notices.back_mut()) {
                (notice @ Notice::Progress(_), Some(last @ Notice::Progress(_))) => {
                    *last = notice;
                    Delivery::Coalesced
                }
                _ => Delivery::Dropped,
            }
        };
        drop(queue);
        self.changed.notify_one();
        delivery
    }

    /// Asks the client and waits for a well-formed answer.
    async fn ask_client(
        &self,
        name: Option<&str>,
        kind: &str,
        request: InputRequest,
    ) -> Result<Value, ToolError> {
        let answered = {
            let mut queue = self.lock();
            queue.count += 1;
            if queue.closed {
                return Err(ToolError::cancelled("the client disconnected"));
            }
            if queue.count > MAX_QUESTIONS {
                return Err(ToolError::limit("a call may ask at most 1,000 questions"));
            }
            let mut key = name.map_or_else(|| format!("{kind}-{}", queue.count), str::to_owned);
            if queue.questions.iter().any(|question| question.key == key) {
                key = format!("{key}-{}", queue.count);
            }
            let (answer, answered) = oneshot::channel();
            let question = PendingQuestion { key, request, answer };
            match queue.early.remove(&question.key) {
                Some(early) if question.fits(&early) => question.answer(Ok(early)),
                _ => {
                    queue.questions.push(question);
                    self.changed.notify_one();
                }
            }
            answered
        };
        answered.await.unwrap_or_else(|_| Err(ToolError::cancelled("the client did not answer")))
    }
}

fn unsupported(what: &str, capability: &str) -> ToolError {
    ToolError::precondition(format!("the client does not support {what}"))
        .suggest("Use another client, or pass the value as an argument.")
        .with(CAPABILITY, capability)
}

/// The question as a form, and the form field that holds the value, if any.
fn form(question: &Question) -> (String, Value, Option<&'static str>) {
    let single = |name: &'static str, schema: Value| {
        let schema = json!({ "type": "object", "properties": { name: schema }, "required": [name] });
        (question.message.clone(), schema, Some(name))
    };
    match &question.kind {
        QuestionKind::Input { schema: Some(schema) }
            if schema.get("type").and_then(Value::as_str) == Some("object") =>
        {
            (question.message.clone(), with_plain_fields(schema.clone()), None)
        }
        QuestionKind::Input { schema } => {
            single(ANSWER, schema.clone().unwrap_or_else(|| json!({ "type": "string" })))
        }
        QuestionKind::Approval { tool, arguments } => {
            let (_, schema, name) =
                single(APPROVE, json!({ "type": "boolean", "description": "Allow this call." }));
            (format!("{}\n\n{tool} {arguments}", question.message), schema, name)
        }
        _ => single(ANSWER, json!({ "type": "string" })),
    }
}

/// The schema of a form, whose optional fields have one type: a form has no null, a user leaves the field empty.
fn with_plain_fields(mut schema: Value) -> Value {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        let is_null = |kind: &Value| kind == "null" || kind.get("type").is_some_and(|kind| kind == "null");
        for key in ["type", "anyOf"] {
            let Some(Value::Array(kinds)) = field.get_mut(key) else { continue };
            kinds.retain(|kind| !is_null(kind));
            if let [only] = kinds.as_mut_slice() {
                match only.take() {
                    Value::Object(only) => {
                        field.remove(key);
                        field.extend(only);
                    }
                    only => drop(field.insert(key.to_owned(), only)),
                }
            }
        }
        if field.get("default").is_some_and(Value::is_null) {
            field.remove("default");
        }
    }
    schema
}

#[expect(deprecated, reason = "older clients use sampling")]
fn sampling(request: &SampleRequest) -> InputRequest {
    let mut params = CreateMessageRequestParams::new(
        vec![SamplingMessage::user_text(&request.prompt)],
        request.max_tokens,
    );
    params.system_prompt.clone_from(&request.system);
    params.temperature = request.temperature.map(|temperature| temperature as f32);
    params.stop_sequences = (!request.stop_sequences.is_empty()).then(|| request.stop_sequences.clone());
    InputRequest::CreateMessage(CreateMessageRequest::new(params))
}

/// The text of a sampling result, of one or several text blocks.
fn sampled_text(answer: &Value) -> Option<String> {
    let content = answer.get("content")?;
    let texts = |block: &Value| block.get("text").and_then(Value::as_str).map(str::to_owned);
    match content {
        Value::Array(blocks) => Some(blocks.iter().filter_map(texts).collect::<Vec<_>>().join("\n")),
        block => texts(block),
    }
}

impl Port for CallPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        self.enqueue(Notice::Progress(progress))
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        self.enqueue(Notice::Log(line))
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            if !self.lock().abilities.elicitation {
                return Err(unsupported("questions (elicitation)", "elicitation"));
            }
            let (message, schema, property) = form(question);
            let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
            let params: ElicitRequestParams = serde_json::from_value(params).map_err(|error| {
                ToolError::precondition("the question does not fit an elicitation form")
                    .suggest("Ask for strings, numbers, booleans or choices.")
                    .caused_by(error)
            })?;
            let request = InputRequest::Elicitation(ElicitRequest::new(params));
            let answer = self.ask_client(question.name.as_deref(), "ask", request).await?;
            if answer.get("action").and_then(Value::as_str) != Some("accept") {
                return Ok(Answer::Declined);
            }
            let content = answer.get("content").cloned().unwrap_or(Value::Null);
            let value = match property {
                Some(property) => content.get(property).cloned().unwrap_or(Value::Null),
                None => content,
            };
            match &question.kind {
                QuestionKind::Approval { .. } if value != true => Ok(Answer::Declined),
                _ => Ok(Answer::Given { value }),
            }
        })
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            if !self.lock().abilities.sampling {
                return Err(unsupported("sampling", "sampling"));
            }
            let answer = self.ask_client(None, "sample", sampling(request)).await?;
            let content = sampled_text(&answer).unwrap_or_default();
            let model = answer.get("model").and_then(Value::as_str);
            tracing::debug!(model, "sampling result");
            Ok(Sample { content, usage: None::<Usage> })
        })
    }

    fn roots(&self, _call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        Box::pin(async move {
            if !self.lock().abilities.roots {
                return Err(unsupported("roots", "roots"));
            }
            #[expect(deprecated, reason = "older clients use roots")]
            let request = InputRequest::ListRoots(ListRootsRequest::default());
            let answer = self.ask_client(None, "roots", request).await?;
            let roots = answer.get("roots").cloned().unwrap_or_default();
            serde_json::from_value(roots)
                .map_err(|error| ToolError::dependency(format!("the client sent invalid roots: {error}")))
        })
    }
}
