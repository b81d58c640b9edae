//! What a run came to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{CallId, Payload, RunRecord};
use toolpost_llm::{CodeExecutionMeter, ModelError, Turn};
use toolpost_toolbox::ToolSession;

use super::RunState;
use crate::StopReason;

/// What a run came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    pub stop: StopReason,
    /// Everything that is kept of it.
    pub record: Arc<RunRecord>,
    /// The conversation, every tool call with its result.
    pub turns: Vec<Turn>,
    /// Why the model failed, when it did.
    pub error: Option<ModelError>,
    /// What the conversation has loaded, if its agent loads tools: for the run that goes on from it.
    pub tool_session: Option<ToolSession>,
    /// What the next requests of the conversation carry to providers beyond its turns, by the provider's name: the id of a
    /// container, for one. For the run that goes on from it: [`Run::with_carry`](crate::Run::with_carry).
    pub carry: BTreeMap<String, Map<String, Value>>,
    /// The time that the provider's code was billed for, of the whole conversation.
    pub(crate) code_meter: CodeExecutionMeter,
    /// What tools had for the application only, in the order of the model's calls. They are values of this process, and
    /// no part of a state: a run that goes on from one has none of the calls before it.
    pub payloads: Vec<CallPayload>,
    /// The answer as a value, if it had to fit a schema and does.
    pub value: Option<Value>,
    /// What the run can be gone on from, if calls wait for somebody.
    pub state: Option<RunState>,
    /// The member of the team that the conversation moves to.
    pub(crate) handoff: Option<usize>,
}

/// What a tool had for the application only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallPayload {
    /// The call that it came with.
    pub call: CallId,
    /// The tool's name.
    pub tool: Arc<str>,
    /// The value.
    pub payload: Payload,
}

impl Outcome {
    /// The answer.
    pub fn text(&self) -> &str {
        &self.record.response
    }
}
