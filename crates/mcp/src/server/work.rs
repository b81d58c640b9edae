//! What a request is for, what it brings of the round before, and what it has led to.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::model::{
    ClientResult, CreateTaskResult, InputRequest, InputRequiredResult, InputResponses, ServerRequest,
};
use rmcp::{ErrorData, Peer, RoleServer};
use serde_json::{Map, Value};
use toolpost_core::{Output, ToolError};

use super::port::Asked;

/// When a call becomes a task.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) after: Duration,
    /// Whether it is refused when it cannot.
    pub(super) is_must: bool,
    pub(super) can_run_again: bool,
}

/// What a request has led to.
pub(super) enum Outcome {
    Done(Result<Output, ToolError>),
    Asks(InputRequiredResult),
    Task(CreateTaskResult),
}

/// What a request is for.
pub(super) enum Work {
    Call(String, Map<String, Value>),
    Render(String, Map<String, Value>),
    Read(String),
}

impl Work {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Call(name, _) | Self::Render(name, _) | Self::Read(name) => name,
        }
    }
}

/// What a request brings of the round before.
pub(super) struct Round {
    pub(super) state: Option<String>,
    pub(super) answers: InputResponses,
}

impl Round {
    /// # Errors
    /// An answer is no object.
    pub(super) fn new(state: Option<String>, answers: Option<InputResponses>) -> Result<Self, ErrorData> {
        let answers: BTreeMap<String, Value> = answers.unwrap_or_default();
        if let Some((key, _)) = answers.iter().find(|(_, answer)| !answer.is_object()) {
            let key = super::calls::shown(key);
            return Err(ErrorData::invalid_params(format!("the response `{key}` is no object"), None));
        }
        Ok(Self { state, answers })
    }
}

/// Asks a client of the older era, which answers while the request is open.
pub(super) async fn ask(peer: Peer<RoleServer>, asked: Asked) {
    let request = match asked.request.clone() {
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
        if asked.fits(&answer) { Ok(answer) } else { Err(failed("its answer has another form".to_owned())) }
    });
    asked.answer(answer);
}
