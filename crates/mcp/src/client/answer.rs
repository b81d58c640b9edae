//! What servers ask of whoever calls them: something of a person, a completion of a model, the folders to work in.
#![expect(deprecated, reason = "servers of the older era ask for completions and folders")]

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction,
    InputRequest, InputRequests, InputResponses, ListRootsResult, Role, Root, SamplingMessage,
    SamplingMessageContentBlock,
};
use serde_json::{Map, Value, json};
use toolpost_core::{Answer, CallId, Port, Question, SampleRequest, ToolError};

use super::flight::Flight;
use crate::convert::inward::shortened;

/// The longest question, and the longest prompt of a completion, in characters.
const MAX_QUESTION: usize = 8_000;
const MAX_PROMPT: usize = 1 << 20;
/// The longest name of an answer, in characters.
const MAX_NAME: usize = 200;
/// The most folders of a caller that a server is told.
const MAX_ROOTS: usize = 100;

/// Who is asked.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) flight: Option<Arc<Flight>>,
    /// Who is asked if the call is not known.
    pub(super) port: Arc<dyn Port>,
    pub(super) roots: Arc<[PathBuf]>,
}

impl Asked {
    fn port(&self) -> (&dyn Port, CallId) {
        match &self.flight {
            Some(flight) => (&*flight.port, flight.call),
            None => (&*self.port, CallId::new()),
        }
    }

    /// Answers all questions of a round, one after another: a person has one attention.
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
                    return Err(ToolError::precondition(
                        "the server asks for something that is not known here",
                    ));
                }
            };
            answers.insert(key, answer?);
        }
        Ok(answers)
    }

    /// Asks a person.
    pub(super) async fn elicit(
        &self,
        asked: ElicitRequestParams,
        name: Option<&str>,
    ) -> Result<ElicitResult, ToolError> {
        let _pause = self.flight.as_ref().map(Flight::question).transpose()?;
        let (port, call) = self.port();
        let (question, schema) = match asked {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(requested_schema)?;
                (Question::with_schema(shortened(&message, MAX_QUESTION), schema.clone()), Some(schema))
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                let text = format!(
                    "{}\nThe server asks to open {} . Answer true when that is done.",
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
                fill_in(&mut fields, &schema);
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(fields))
            }
            // One field may be answered by its value alone.
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

    /// Asks a model.
    pub(super) async fn sample(
        &self,
        asked: CreateMessageRequestParams,
    ) -> Result<CreateMessageResult, ToolError> {
        let _pause = self.flight.as_ref().map(Flight::question).transpose()?;
        let (port, call) = self.port();
        if asked.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(ToolError::precondition("completions for servers have no tools"));
        }
        let mut request = SampleRequest::new(prompt(asked.messages)?);
        request.system = asked.system_prompt.map(|text| shortened(&text, MAX_PROMPT));
        request.max_tokens = asked.max_tokens.max(1);
        request.temperature = asked.temperature.map(f64::from);
        request.stop_sequences = asked.stop_sequences.unwrap_or_default();
        let sample = port.sample(call, &request).await?;
        let message = SamplingMessage::assistant_text(sample.content);
        let mut result = CreateMessageResult::new(message, "unknown".to_owned());
        result.stop_reason = Some(CreateMessageResult::STOP_REASON_END_TURN.to_owned());
        Ok(result)
    }

    /// The folders to work in: those that the operator has named, and those of the caller.
    pub(super) async fn roots(&self) -> ListRootsResult {
        let (port, call) = self.port();
        let address = |path: &PathBuf| reqwest::Url::from_directory_path(path).ok();
        let named = self.roots.iter().filter_map(address).map(|url| Root::new(url.as_str()));
        // A caller that works nowhere has none.
        let theirs = port.roots(call).await.unwrap_or_default().into_iter().take(MAX_ROOTS).map(|root| {
            let made = Root::new(root.uri);
            match root.name {
                Some(name) => made.with_name(name),
                None => made,
            }
        });
        ListRootsResult::new(named.chain(theirs).collect())
    }
}

/// The messages as one prompt: the text itself if there is one only.
fn prompt(messages: Vec<SamplingMessage>) -> Result<String, ToolError> {
    let mut turns = Vec::new();
    for message in messages {
        let who = if matches!(message.role, Role::User) { "User" } else { "Assistant" };
        for block in message.content.into_vec() {
            let SamplingMessageContentBlock::Text(text) = block else {
                return Err(ToolError::precondition("only text can be completed for a server"));
            };
            turns.push((who, text.text));
        }
    }
    let text = match turns.as_slice() {
        [("User", text)] => text.clone(),
        turns => turns.iter().map(|(who, text)| format!("{who}: {text}")).collect::<Vec<_>>().join("\n\n"),
    };
    if text.len() > MAX_PROMPT {
        return Err(ToolError::limit("the server asks for the completion of more than 1 MiB"));
    }
    Ok(text)
}

/// Takes the schema's defaults for the fields that were left out.
fn fill_in(fields: &mut Map<String, Value>, schema: &Value) {
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
