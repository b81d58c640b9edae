//! The operation of a request, its input and its outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::model::{
    ClientResult, CreateTaskResult, InputRequest, InputRequiredResult, InputResponses, ServerRequest,
};
use rmcp::{ErrorData, Peer, RoleServer};
use serde_json::{Map, Value};
use toolpost_core::{Output, ToolError};

use super::port::PendingQuestion;

/// When a call becomes a task.
#[derive(Clone, Copy)]
pub(super) struct TaskPlan {
    pub(super) after: Duration,
    /// Whether the call fails if no task can be created.
    pub(super) is_required: bool,
    pub(super) is_rerunnable: bool,
}

/// The outcome of a request.
pub(super) enum Outcome {
    Done(Result<Output, ToolError>),
    InputRequired(InputRequiredResult),
    Task(CreateTaskResult),
}

/// The method of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    Call,
    Render,
    Read,
}

/// The operation that a request asks for.
pub(super) struct Operation {
    pub(super) kind: OperationKind,
    /// The tool, the prompt or the URI.
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

impl Operation {
    pub(super) fn new(kind: OperationKind, name: String, arguments: Option<Map<String, Value>>) -> Self {
        Self { kind, name, arguments: arguments.unwrap_or_default() }
    }

    /// Binds a request state to its client, method and name.
    pub(super) fn binding(&self, owner: Option<&str>) -> Binding {
        Binding { owner: owner.map(str::to_owned), kind: self.kind, name: self.name.clone() }
    }
}

/// The request that a request state belongs to.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Binding {
    owner: Option<String>,
    kind: OperationKind,
    name: String,
}

/// The answers and the state of the previous round.
pub(super) struct RoundInput {
    pub(super) state: Option<String>,
    pub(super) answers: InputResponses,
}

impl RoundInput {
    /// # Errors
    /// An answer is not an object.
    pub(super) fn new(state: Option<String>, answers: Option<InputResponses>) -> Result<Self, ErrorData> {
        let answers: BTreeMap<String, Value> = answers.unwrap_or_default();
        if let Some((key, _)) = answers.iter().find(|(_, answer)| !answer.is_object()) {
            let key = super::calls::shown(key);
            return Err(ErrorData::invalid_params(format!("the response `{key}` is not an object"), None));
        }
        Ok(Self { state, answers })
    }
}

/// Asks a legacy client, which answers while the request is pending.
pub(super) async fn ask_legacy_client(peer: Peer<RoleServer>, question: PendingQuestion) {
    let request = match question.request.clone() {
        InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
        InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
        InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
        _ => return,
    };
    let failed = |reason: String| ToolError::dependency(format!("the client did not answer: {reason}"));
    let answer = match peer.send_request(request).await {
        Ok(ClientResult::EmptyResult(_)) => Err(failed("it sent an empty result".to_owned())),
        Ok(result) => serde_json::to_value(result).map_err(|error| failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    };
    let answer = answer.and_then(|answer| {
        if question.fits(&answer) { Ok(answer) } else { Err(failed("the answer is malformed".to_owned())) }
    });
    question.answer(answer);
}
