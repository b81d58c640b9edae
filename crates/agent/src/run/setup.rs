//! A run, before it has begun.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use toolpost_core::{
    CallId, CallOptions, Caller, Cancellation, NoPort, Port, RunId, RunRecord, Scope, Values,
};
use toolpost_llm::{CodeExecutionMeter, Model, Turn};
use toolpost_toolbox::ToolSession;

use super::notices::{Notices, shortened};
use super::{Run, Until};
use crate::family::Family;
use crate::memory::Keeper;
use crate::{Agent, Conversation, Runs};

impl Run {
    /// A run that begins with a prompt.
    pub fn new(agent: &Agent, prompt: impl Into<String>) -> Self {
        Self::from_turns(agent, vec![Turn::user(prompt)])
    }

    /// Asks this model, instead of the agent's.
    pub fn with_model(mut self, model: Arc<dyn Model>) -> Self {
        self.agent = self.agent.with_model(model);
        self
    }

    /// A run that goes on from a conversation.
    pub fn from_turns(agent: &Agent, turns: Vec<Turn>) -> Self {
        Self {
            agent: agent.clone(),
            id: RunId::new(),
            turns,
            caller: Caller::new("agent"),
            scope: Scope::new("agent"),
            port: Arc::new(NoPort),
            values: Values::default(),
            cancellation: Cancellation::new(),
            options: CallOptions::default(),
            parent: None,
            notices: Notices::default(),
            tool_session: None,
            usage_metadata: Map::new(),
            keeper: Keeper::default(),
            carry: BTreeMap::new(),
            code_meter: CodeExecutionMeter::new(),
            answer: agent.0.answer.clone(),
            pauses: agent.0.pauses,
            tools: None,
            until: Until::Answer,
            resumed: None,
            outer: None,
            team: Arc::default(),
            earlier: Vec::new(),
            deadline: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Gives it the name that somebody has reserved for it already.
    pub fn with_id(mut self, id: RunId) -> Self {
        self.id = id;
        self
    }

    /// Says for whom it calls tools.
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Says what its calls belong to, and where they work.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Says who takes files and answers questions.
    pub fn with_port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = port;
        self
    }

    /// Injects values into the tools that it calls.
    pub fn with_values(mut self, values: Values) -> Self {
        self.values = values;
        self
    }

    /// Says how it is stopped.
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Says what its calls ask for beyond their arguments, such as a sandbox level. Default: nothing.
    pub fn with_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Says that the run is made from within a call, at this depth: its own calls are nested in that one, and count
    /// towards the toolbox's limit of nesting. Default: they are nested in none.
    pub fn with_parent(mut self, call: CallId, depth: u8) -> Self {
        self.parent = Some((call, depth));
        self
    }

    /// Goes on with the tools that a conversation has loaded, and keeps there what it loads. Default: the agent's
    /// session, or a new one. Without effect where the agent offers all tools.
    pub fn with_tool_session(mut self, session: ToolSession) -> Self {
        self.tool_session = Some(session);
        self
    }

    /// Goes on with what a conversation carries to providers beyond its turns, by the provider's name; see
    /// [`Outcome::carry`](crate::Outcome::carry). What an answer among the turns has itself is newer. Default: nothing, and
    /// in a conversation that is kept what is kept with it.
    pub fn with_carry(mut self, carry: BTreeMap<String, Map<String, Value>>) -> Self {
        self.carry = carry;
        self
    }

    /// Keeps it in a conversation, whose scope its calls then belong to unless another is set. Its turns must be those of
    /// the conversation, and what is new: [`Conversation::run`] makes such a run. Default: nowhere.
    pub fn with_conversation(self, conversation: &Conversation) -> Self {
        let edition = conversation.edition();
        self.held_by(conversation, edition)
    }

    /// Keeps it in a conversation whose turns it has as they were at an edition.
    pub(crate) fn held_by(mut self, conversation: &Conversation, edition: u64) -> Self {
        self.scope = self.scope.with_id(conversation.id());
        self.keeper.hold(conversation, edition);
        self
    }

    /// Keeps its record, and what its models are asked and answer, among these runs. Default: nowhere.
    pub fn kept_in(mut self, runs: &Runs) -> Self {
        self.keeper.runs = Some(runs.clone());
        self
    }

    /// Says when it must be over, besides its limit of time. Default: never.
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Makes it a part of another run: what it spends counts there, and it gets what was injected there.
    pub(crate) fn within(mut self, family: &Arc<Family>) -> Self {
        if self.values.is_empty() {
            self.values = family.values.clone();
        }
        if self.keeper.runs.is_none() {
            self.keeper.runs.clone_from(&family.runs);
        }
        if self.usage_metadata.is_empty() {
            self.usage_metadata.clone_from(&family.usage_metadata);
        }
        self.outer = Some(Arc::clone(family));
        self
    }

    /// Says who had the conversation before, and for how long the provider's code was billed for then.
    pub(crate) fn after(mut self, records: Vec<Arc<RunRecord>>, code_meter: CodeExecutionMeter) -> Self {
        self.earlier = records;
        self.code_meter = code_meter;
        self
    }

    /// Names the agents that the conversation may move to.
    pub(crate) fn in_team(mut self, names: Arc<[String]>) -> Self {
        self.team = names;
        self
    }

    /// Adds something that its record shall say. At most 64 notices are kept.
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.add(shortened(&notice.into()));
        self
    }

    /// Offers only these tools, of those that the agent has; none of them for an empty list. Calls of others are refused.
    /// Default: all.
    pub fn with_tools(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Has tools answered for from their examples or output schemas, instead of running them. Default: no.
    pub fn with_mock_tools(mut self, mock: bool) -> Self {
        self.options.mock = mock;
        self
    }

    /// Joins turns of the same side that follow each other in the conversation so far; see
    /// [`merge_turns`](crate::merge_turns).
    pub fn with_merged_history(mut self) -> Self {
        self.turns = crate::merge_turns(self.turns);
        self
    }

    /// Says what every event of usage carries along, such as who pays. Default: nothing.
    pub fn with_usage_metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.usage_metadata = metadata;
        self
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).field("agent", &self.agent).finish_non_exhaustive()
    }
}
