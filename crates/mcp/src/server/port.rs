//! What a client can do for a tool: notices on their way, questions that wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::{ClientCapabilities, ElicitRequest, ElicitRequestParams, InputRequest};
#[expect(deprecated, reason = "sampling and roots go on for the clients that have them")]
use rmcp::model::{CreateMessageRequest, CreateMessageRequestParams, ListRootsRequest, SamplingMessage};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use toolpost_core::{
    Answer, BoxFuture, CallId, Delivery, LogLevel, LogLine, Port, Progress, Question, QuestionKind, Root,
    Sample, SampleRequest, ToolError, Usage,
};

/// The most notices that wait for a client.
const MAX_NOTICES: usize = 256;
/// The most questions of one call.
const MAX_QUESTIONS: u32 = 1_000;
/// The property of an answer that is not an object by itself.
const ANSWER: &str = "answer";
/// The property of an approval.
const APPROVE: &str = "approve";
/// In the facts of an error: the capability that the client lacks.
pub(crate) const CAPABILITY: &str = "client_capability";

/// What is told without waiting.
#[derive(Debug)]
pub(crate) enum Notice {
    Progress(Progress),
    Log(LogLine),
}

/// A question that waits for its answer.
pub(crate) struct Asked {
    /// What the answer is called.
    pub(crate) key: String,
    /// The question, as the client gets it.
    pub(crate) request: InputRequest,
    answer: oneshot::Sender<Result<Value, ToolError>>,
}

impl Asked {
    /// Whether a client's answer has the form that belongs to the question; the tool looks at what it says.
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

    /// Answers it, or says why there is no answer.
    pub(crate) fn answer(self, answer: Result<Value, ToolError>) {
        // Nobody waits any more if the call has ended.
        let _ = self.answer.send(answer);
    }
}

/// What a client takes, for one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) elicitation: bool,
    pub(crate) sampling: bool,
    pub(crate) roots: bool,
    /// Whether progress is wanted.
    pub(crate) progress: bool,
    /// The least level of log lines that are wanted.
    pub(crate) log: Option<LogLevel>,
}

impl Abilities {
    pub(crate) fn of(capabilities: Option<&ClientCapabilities>) -> Self {
        // A client that names no mode of elicitation has forms.
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
struct Waiting {
    abilities: Abilities,
    notices: VecDeque<Notice>,
    questions: Vec<Asked>,
    count: u32,
    /// Answers that came before their questions.
    early: BTreeMap<String, Value>,
    closed: bool,
}

/// The port of one call.
#[derive(Default)]
pub(crate) struct CallPort {
    waiting: Mutex<Waiting>,
    news: Notify,
}

impl CallPort {
    pub(crate) fn new(abilities: Abilities, early: BTreeMap<String, Value>) -> Self {
        Self { waiting: Mutex::new(Waiting { abilities, early, ..Waiting::default() }), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A queue is whole after any panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of the next round may be able to do other things.
    pub(crate) fn set_abilities(&self, abilities: Abilities) {
        self.lock().abilities = abilities;
    }

    /// There is no request any more: progress is what its client sees of the call, and log lines go nowhere.
    pub(crate) fn set_on_its_own(&self) {
        let mut waiting = self.lock();
        waiting.abilities.progress = true;
        waiting.abilities.log = None;
    }

    /// Waits until there is something to tell or to ask.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// What is to be told, oldest first.
    pub(crate) fn take_notices(&self) -> VecDeque<Notice> {
        std::mem::take(&mut self.lock().notices)
    }

    /// What is to be asked.
    pub(crate) fn take_questions(&self) -> Vec<Asked> {
        std::mem::take(&mut self.lock().questions)
    }

    /// Ends all waiting: nobody will answer.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.questions.clear();
    }

    fn tell(&self, notice: Notice) -> Delivery {
        let mut waiting = self.lock();
        let wanted = match &notice {
            Notice::Progress(_) => waiting.abilities.progress,
            Notice::Log(line) => waiting.abilities.log.is_some_and(|least| line.level >= least),
        };
        if !wanted || waiting.closed {
            return Delivery::Dropped;
        }
        let delivery = if waiting.notices.len() < MAX_NOTICES {
            waiting.notices.push_back(notice);
            Delivery::Delivered
        } else {
            // The latest progress says what the one before said; log lines do not.
            match (notice, waiting.notices.back_mut()) {
                (notice @ Notice::Progress(_), Some(last @ Notice::Progress(_))) => {
                    *last = notice;
                    Delivery::Coalesced
                }
                _ => Delivery::Dropped,
            }
        };
        drop(waiting);
        self.news.notify_one();
        delivery
    }

    /// Puts a question; the answer is the client's, of the right form.
    async fn put(&self, name: Option<&str>, kind: &str, request: InputRequest) -> Result<Value, ToolError> {
        let answered = {
            let mut waiting = self.lock();
            waiting.count += 1;
            if waiting.closed {
                return Err(ToolError::cancelled("the client is gone"));
            }
            if waiting.count > MAX_QUESTIONS {
                return Err(ToolError::limit("one call may ask 1,000 questions, and all are asked"));
            }
            let mut key = name.map_or_else(|| format!("{kind}-{}", waiting.count), str::to_owned);
            if waiting.questions.iter().any(|asked| asked.key == key) {
                key = format!("{key}-{}", waiting.count);
            }
            let (answer, answered) = oneshot::channel();
            let asked = Asked { key, request, answer };
            match waiting.early.remove(&asked.key) {
                Some(early) if asked.fits(&early) => asked.answer(Ok(early)),
                _ => {
                    waiting.questions.push(asked);
                    self.news.notify_one();
                }
            }
            answered
        };
        answered.await.unwrap_or_else(|_| Err(ToolError::cancelled("the client did not answer")))
    }
}

fn cannot(verb: &str, capability: &str) -> ToolError {
    ToolError::precondition(format!("this client cannot {verb}"))
        .suggest("Call the tool from a client that can, or give it what it needs as an argument.")
        .with(CAPABILITY, capability)
}

/// The question as a form, and the property of the answer that is the value, if it is not the whole.
fn form(question: &Question) -> (String, Value, Option<&'static str>) {
    let single = |name: &'static str, schema: Value| {
        let schema = json!({ "type": "object", "properties": { name: schema }, "required": [name] });
        (question.message.clone(), schema, Some(name))
    };
    match &question.kind {
        QuestionKind::Input { schema: Some(schema) }
            if schema.get("type").and_then(Value::as_str) == Some("object") =>
        {
            (question.message.clone(), schema.clone(), None)
        }
        QuestionKind::Input { schema } => {
            single(ANSWER, schema.clone().unwrap_or_else(|| json!({ "type": "string" })))
        }
        QuestionKind::Approval { tool, arguments } => {
            let (_, schema, name) =
                single(APPROVE, json!({ "type": "boolean", "description": "Whether it may be run." }));
            (format!("{}\n\n{tool} {arguments}", question.message), schema, name)
        }
        _ => single(ANSWER, json!({ "type": "string" })),
    }
}

#[expect(deprecated, reason = "sampling goes on for the clients that have it")]
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

/// The text of a completion: of one block, or of the blocks of text among several.
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
        self.tell(Notice::Progress(progress))
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        self.tell(Notice::Log(line))
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            if !self.lock().abilities.elicitation {
                return Err(cannot("answer questions", "elicitation"));
            }
            let (message, schema, property) = form(question);
            let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
            let params: ElicitRequestParams = serde_json::from_value(params).map_err(|error| {
                ToolError::precondition(format!(
                    "the question cannot be asked as a form, whose fields are texts, numbers, truth values and choices: \
                     {error}"
                ))
            })?;
            let request = InputRequest::Elicitation(ElicitRequest::new(params));
            let answer = self.put(question.name.as_deref(), "ask", request).await?;
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
                return Err(cannot("complete prompts for a tool", "sampling"));
            }
            let answer = self.put(None, "sample", sampling(request)).await?;
            let content = sampled_text(&answer).unwrap_or_default();
            let model = answer.get("model").and_then(Value::as_str);
            tracing::debug!(model, "the client's model answered");
            Ok(Sample { content, usage: None::<Usage> })
        })
    }

    fn roots(&self, _call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        Box::pin(async move {
            if !self.lock().abilities.roots {
                return Err(cannot("say where it works", "roots"));
            }
            #[expect(deprecated, reason = "roots go on for the clients that have them")]
            let request = InputRequest::ListRoots(ListRootsRequest::default());
            let answer = self.put(None, "roots", request).await?;
            let roots = answer.get("roots").cloned().unwrap_or_default();
            serde_json::from_value(roots).map_err(|error| {
                ToolError::dependency(format!("the client's list of roots cannot be read: {error}"))
            })
        })
    }
}
