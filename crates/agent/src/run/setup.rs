//! Starting points and options of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use toolpost_core::{
    CallId, CallOptions, Caller, Cancellation, Ctx, NoPort, Port, RunId, RunRecord, Scope, Values,
};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, Model, Turn};

use super::notices::{Notices, truncate};
use super::{Decision, ResumeError, Run, RunState, Until};
use crate::answer_schema::AnswerSchema;
use crate::memory::Persistence;
use crate::run_context::RunContext;
use crate::{Agent, Conversation, Runs};

impl Agent {
    /// Starts a run with a prompt; awaiting it yields the output.
    pub fn run(&self, prompt: impl Into<String>) -> Run {
        self.run_turns(vec![Turn::user(prompt)])
    }

    /// Starts a run that continues a conversation.
    pub fn run_turns(&self, turns: Vec<Turn>) -> Run {
        Run {
            agent: self.clone(),
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
            persistence: Persistence::default(),
            provider_state: BTreeMap::new(),
            code_meter: CodeExecutionMeter::new(),
            answer: self.0.answer.clone(),
            tools: None,
            until: Until::Answer,
            resumed: None,
            outer: None,
            is_adopted: false,
            team: Arc::default(),
            earlier: Vec::new(),
            deadline: None,
            events: None,
        }
    }

    /// Resumes a run that awaits decisions. Calls without a decision stay pending.
    ///
    /// # Errors
    /// The state has an unknown version, or a decision names no pending call.
    pub fn resume(
        &self,
        state: RunState,
        decisions: impl IntoIterator<Item = (CallId, Decision)>,
    ) -> Result<Run, ResumeError> {
        Run::resumed(self, state, decisions)
    }
}

impl Conversation {
    /// Starts a run that continues the conversation with a prompt, and persists it while it runs.
    pub fn run(&self, agent: &Agent, prompt: impl Into<String>) -> Run {
        self.run_turn(agent, Turn::user(prompt))
    }

    /// Starts a run that continues the conversation with a turn, such as a prompt with images, and persists it.
    ///
    /// Pending calls of an earlier run get a result that says that they did not run; that run can no longer be resumed.
    pub fn run_turn(&self, agent: &Agent, turn: Turn) -> Run {
        let (mut turns, edition) = self.turns_to_continue();
        turns.push(turn);
        let run = agent.run_turns(turns).with_conversation_at(self, edition);
        match self.tool_session() {
            Some(session) => run.with_tool_session(session),
            None => run,
        }
    }
}

impl Conversation {
    /// Resumes a run that was interrupted: after its last exchange, without a new prompt. If there is none, or the last one
    /// gave an answer, the prompt is sent.
    pub(crate) fn take_up(&self, agent: &Agent, prompt: String) -> Run {
        let (turns, edition) = self.turns_to_continue();
        match turns.last() {
            None | Some(Turn::Assistant(_)) => self.run(agent, prompt),
            Some(_) => {
                let run = agent.run_turns(turns).with_conversation_at(self, edition);
                match self.tool_session() {
                    Some(session) => run.with_tool_session(session),
                    None => run,
                }
            }
        }
    }
}

impl Run {
    /// Uses this model instead of the agent's.
    pub fn with_model(mut self, model: Arc<dyn Model>) -> Self {
        self.agent = self.agent.with_model(model);
        self
    }

    /// The id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Sets the id of the run. Defaults to a new one.
    pub fn with_id(mut self, id: RunId) -> Self {
        self.id = id;
        self
    }

    /// Sets the caller of its tool calls.
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Sets the scope of its tool calls, with their working directory.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets the port that receives artifacts and answers questions of tools.
    pub fn with_port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = port;
        self
    }

    /// Injects values into the tools that it calls.
    pub fn with_values(mut self, values: Values) -> Self {
        self.values = values;
        self
    }

    /// Sets the cancellation that stops the run.
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Sets the options of its tool calls, such as a sandbox level. Defaults to none.
    pub fn with_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Nests the run in a call at this depth. Defaults to no call.
    ///
    /// Its tool calls are children of that call and count towards the toolbox's limit of nesting.
    pub fn with_parent(mut self, call: CallId, depth: u8) -> Self {
        self.parent = Some((call, depth));
        self
    }

    /// Continues with the loaded tools of a conversation, and stores there what it loads.
    ///
    /// Defaults to the agent's session, else a new one. No effect if the agent offers all tools.
    pub fn with_tool_session(mut self, session: ToolSession) -> Self {
        self.tool_session = Some(session);
        self
    }

    /// Continues with the provider state of a conversation, by provider name; see
    /// [`RunOutput::provider_state`](crate::RunOutput::provider_state).
    ///
    /// State of an answer among the turns takes precedence. Defaults to the state of the stored conversation, else none.
    pub fn with_provider_state(mut self, state: BTreeMap<String, Map<String, Value>>) -> Self {
        self.provider_state = state;
        self
    }

    /// Persists the run in a conversation, which becomes its scope. Defaults to nowhere.
    ///
    /// The turns of the run must be those of the conversation plus new ones, as [`Conversation::run`] sets them.
    pub fn with_conversation(self, conversation: &Conversation) -> Self {
        let edition = conversation.edition();
        self.with_conversation_at(conversation, edition)
    }

    /// Persists the run in a conversation whose turns it has as of an edition.
    pub(crate) fn with_conversation_at(mut self, conversation: &Conversation, edition: u64) -> Self {
        self.scope = self.scope.with_id(conversation.id());
        self.persistence.set_conversation(conversation, edition);
        self
    }

    /// Persists the record of the run and the exchanges with its models. Defaults to nowhere.
    pub fn persist_to(mut self, runs: &Runs) -> Self {
        self.persistence.runs = Some(runs.clone());
        self
    }

    /// Stores options of the caller with the run, for a later resume or replay; see [`Runs::options`]. Defaults to none.
    ///
    /// No effect without [`persist_to`](Self::persist_to).
    pub fn with_stored_options(mut self, options: Value) -> Self {
        self.persistence.options = Some(options);
        self
    }

    /// Sets a deadline beside the time limit of the run. Defaults to none.
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Nests the run in a tool call: it has the call's caller, scope, deadline and port.
    ///
    /// If a run made the call, that run counts the spending of this one, and its record has the record of this one. The
    /// injected values of that run apply unless this run has its own.
    pub fn within_call(self, ctx: &Ctx) -> Self {
        let run = match ctx.scope() {
            Some(scope) => self.with_scope(scope.clone()),
            None => self,
        };
        run.nested_in(ctx)
    }

    /// As [`within_call`](Self::within_call), with a scope of its own.
    pub(crate) fn nested_in(self, ctx: &Ctx) -> Self {
        let mut run = self
            .with_caller(ctx.caller().clone())
            .with_port(ctx.port())
            .with_deadline(ctx.deadline())
            .with_parent(ctx.id(), ctx.depth());
        if let Ok(context) = ctx.inject::<Arc<RunContext>>() {
            run = run.within(&context);
            run.is_adopted = true;
        }
        run
    }

    /// Nests the run in another one: that run counts its spending, and passes on its injected values.
    pub(crate) fn within(mut self, outer: &Arc<RunContext>) -> Self {
        if self.values.is_empty() {
            self.values = outer.values.clone();
        }
        if self.persistence.runs.is_none() {
            self.persistence.runs.clone_from(&outer.runs);
        }
        if self.usage_metadata.is_empty() {
            self.usage_metadata.clone_from(&outer.usage_metadata);
        }
        self.outer = Some(Arc::clone(outer));
        self
    }

    /// Sets the records of earlier team members, and the code execution time that was billed for them.
    pub(crate) fn after(mut self, records: Vec<Arc<RunRecord>>, code_meter: CodeExecutionMeter) -> Self {
        self.earlier = records;
        self.code_meter = code_meter;
        self
    }

    /// Sets the team members that may take over the conversation.
    pub(crate) fn in_team(mut self, names: Arc<[String]>) -> Self {
        self.team = names;
        self
    }

    /// Adds a notice to the record. A record has at most 64 notices.
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.add(truncate(&notice.into()));
        self
    }

    /// Offers only these tools of the agent; none for an empty list. Defaults to all.
    ///
    /// Calls of other tools are rejected.
    pub fn with_tools(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Answers tool calls from examples or output schemas instead of running tools. Defaults to false.
    pub fn with_mock_tools(mut self, mock: bool) -> Self {
        self.options.mock = mock;
        self
    }

    /// Merges consecutive turns of the same role; see [`merge_turns`](crate::merge_turns).
    pub fn with_merged_history(mut self) -> Self {
        self.turns = crate::merge_turns(self.turns);
        self
    }

    /// Sets the metadata of its usage events, such as an account. Defaults to none.
    pub fn with_usage_metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.usage_metadata = metadata;
        self
    }

    /// Requires the answer to match a JSON Schema; [`RunOutput::value`](crate::RunOutput::value) has the value.
    ///
    /// Defaults to the agent's schema, else text.
    pub fn with_answer_schema(mut self, schema: Value) -> Self {
        self.answer = Some(AnswerSchema::new(schema));
        self
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).field("agent", &self.agent).finish_non_exhaustive()
    }
}
