//! Requests of servers to the caller: elicitation, sampling and roots.
#![expect(deprecated, reason = "older servers use sampling and roots")]

use std::sync::Arc;

use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction,
    InputRequest, InputRequests, InputResponses, ListRootsResult, Role, Root, SamplingMessage,
    SamplingMessageContentBlock,
};
use serde_json::{Map, Value, json};
use toolpost_core::{Answer, CallId, NoPort, Port, Question, SampleRequest, ToolError};

use super::flight::Flight;
use crate::convert::inward::shortened;

/// The longest question and the longest sampling prompt, in characters.
const MAX_QUESTION: usize = 8_000;
const MAX_PROMPT: usize = 1 << 20;
/// The longest name of a question, in characters.
const MAX_NAME: usize = 200;
/// The most roots of a caller that a server gets.
const MAX_ROOTS: usize = 100;

/// Answers the requests of a server for one call; without a call it declines.
pub(super) struct Responder(pub(super) Option<Arc<Flight>>);

impl Responder {
    fn port(&self) -> (&dyn Port, CallId) {
        match &self.0 {
            Some(flight) => (&*flight.port, flight.call),
            None => (&NoPort, CallId::new()),
        }
    }

    /// Answers all questions of a round, one at a time.
    pub(super) async fn answer_all(&self, questions: InputRequests) -> Result<InputResponses, ToolError> {
        let mut answers = InputResponses::new();
        for (key, question) in questions {
            let answer = match question {
                InputRequest::Elicitation(request) => {
                    serde_json::to_value(self.elicit(request.params, Some(&key)).await?)
                }
                InputRequest::CreateMessage(request) => {
                    serde_json::to_value(self.sample(request.params).await?)
                }
                InputRequest::ListRoots(_) => serde_json::to_value(self.roots().await),
                _ => {
                    return Err(ToolError::precondition("the server sent an unknown input request"));
                }
            };
            answers.insert(key, answer?);
        }
        Ok(answers)
    }

    /// Asks the user.
    pub(super) async fn elicit(
        &self,
        params: ElicitRequestParams,
        name: Option<&str>,
    ) -> Result<ElicitResult, ToolError> {
        let _pause = self.0.as_ref().map(Flight::question).transpose()?;
        let (port, call) = self.port();
        let (question, schema) = match params {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(requested_schema)?;
                (Question::with_schema(shortened(&message, MAX_QUESTION), schema.clone()), Some(schema))
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                let text = format!(
                    "{}\nOpen {} and answer true when you are done.",
                    shortened(&message, MAX_QUESTION),
                    shortened(&url, 2_000)
                );
                (Question::with_schema(text, json!({ "type": "boolean" })), None)
            }
            _ => return Ok(ElicitResult::new(ElicitationAction::Decline)),
        };
        let question = match name {
            Some(name) => question.named(shortened(name, MAX_NAME)),
            None => question,
        };
        Ok(match (port.ask(call, &question).await?, schema) {
            (Answer::Declined, _) => ElicitResult::new(ElicitationAction::Decline),
            (Answer::Given { value: Value::Object(mut fields) }, Some(schema)) => {
                add_defaults(&mut fields, &schema);
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(fields))
            }
            // A single field may be answered with a bare value.
            (Answer::Given { value }, Some(schema)) => match only_field(&schema) {
                Some(name) => {
                    ElicitResult::new(ElicitationAction::Accept).with_content(json!({ name: value }))
                }
                None => ElicitResult::new(ElicitationAction::Decline),
            },
            (Answer::Given { value }, None) if value == false => {
                ElicitResult::new(ElicitationAction::Decline)
            }
            (Answer::Given { .. }, None) => ElicitResult::new(ElicitationAction::Accept),
        })
    }

    /// Asks a model for a completion.
    pub(super) async fn sample(
        &self,
        params: CreateMessageRequestParams,
    ) -> Result<CreateMessageResult, ToolError> {
        let _pause = self.0.as_ref().map(Flight::question).transpose()?;
        let (port, call) = self.port();
        if params.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(ToolError::precondition("sampling with tools is not supported"));
        }
        let mut request = SampleRequest::new(prompt(params.messages)?);
        request.system = params.system_prompt.map(|text| shortened(&text, MAX_PROMPT));
        request.max_tokens = params.max_tokens.max(1);
        request.temperature = params.temperature.map(f64::from);
        request.stop_sequences = params.stop_sequences.unwrap_or_default();
        let sample = port.sample(call, &request).await?;
        let message = SamplingMessage::assistant_text(sample.content);
        let mut result = CreateMessageResult::new(message, "unknown".to_owned());
        result.stop_reason = Some(CreateMessageResult::STOP_REASON_END_TURN.to_owned());
        Ok(result)
    }

    /// The roots of the caller.
    pub(super) async fn roots(&self) -> ListRootsResult {
        let (port, call) = self.port();
        // A caller may have no roots.
        let roots = port.roots(call).await.unwrap_or_default().into_iter().take(MAX_ROOTS).map(|root| {
            let listed = Root::new(root.uri);
            match root.name {
                Some(name) => listed.with_name(name),
                None => listed,
            }
        });
        ListRootsResult::new(roots.collect())
    }
}

/// The messages as one prompt; a single user message stays as it is.
fn prompt(messages: Vec<SamplingMessage>) -> Result<String, ToolError> {
    let mut turns = Vec::new();
    for message in messages {
        let who = if matches!(message.role, Role::User) { "User" } else { "Assistant" };
        for block in message.content.into_vec() {
            let SamplingMessageContentBlock::Text(text) = block else {
                return Err(ToolError::precondition("sampling supports only text messages"));
            };
            turns.push((who, text.text));
        }
    }
    let text = match turns.as_slice() {
        [("User", text)] => text.clone(),
        turns => turns.iter().map(|(who, text)| format!("{who}: {text}")).collect::<Vec<_>>().join("\n\n"),
    };
    if text.len() > MAX_PROMPT {
        return Err(ToolError::limit("the sampling prompt of the server is larger than 1 MiB"));
    }
    Ok(text)
}

/// Adds the schema's defaults for missing fields.
fn add_defaults(fields: &mut Map<String, Value>, schema: &Value) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if let (false, Some(default)) = (fields.contains_key(name), property.get("default")) {
            fields.insert(name.clone(), default.clone());
        }
    }
}

fn only_field(schema: &Value) -> Option<&str> {
    let properties = schema.get("properties")?.as_object()?;
    (properties.len() == 1).then(|| properties.keys().next())?.map(String::as_str)
}
