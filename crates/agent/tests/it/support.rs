//! Models, agents and checks that several tests share.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use toolpost::CallId;
use toolpost_agent::{Agent, AgentBuilder, Decision, Run, RunOutput, RunState, Runs};
use toolpost_llm::{
    HostedModel, HttpClient, HttpOptions, ItemView, Model, ModelError, ModelId, ModelInfo, Provider,
    ProviderAccess, Recording, ReplayModel, Request, ResponseStream, ScriptModel, Secret, ToolResult, Turn,
};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest};
use toolpost_toolbox::Toolbox;

/// A model whose answers are a function.
pub(crate) struct FakeModel {
    id: ModelId,
    info: Option<ModelInfo>,
    answer: Box<dyn Fn(&Request) -> ResponseStream + Send + Sync>,
    requests: Mutex<Vec<Request>>,
}

impl FakeModel {
    pub(crate) fn new(answer: impl Fn(&Request) -> ResponseStream + Send + Sync + 'static) -> Arc<Self> {
        Self::with_info(None, answer)
    }

    pub(crate) fn with_info(
        info: Option<ModelInfo>,
        answer: impl Fn(&Request) -> ResponseStream + Send + Sync + 'static,
    ) -> Arc<Self> {
        let id = info.as_ref().map_or_else(|| ModelId::new("test", "fake"), |info| info.id.clone());
        Arc::new(Self { id, info, answer: Box::new(answer), requests: Mutex::default() })
    }

    /// A script whose requests are stored.
    pub(crate) fn script(script: &str) -> Arc<Self> {
        let model = ScriptModel::parse("test", script).unwrap();
        Self::new(move |request| model.stream(request))
    }

    /// A model that never answers.
    pub(crate) fn silent() -> Arc<Self> {
        Self::new(|_| Box::pin(futures_util::stream::pending()))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The names of the tools of each request.
    pub(crate) fn offered(&self) -> Vec<Vec<String>> {
        let names = |request: &Request| request.tools.iter().map(|tool| tool.name.clone()).collect();
        self.requests().iter().map(names).collect()
    }
}

impl std::fmt::Debug for FakeModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeModel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Model for FakeModel {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn info(&self) -> Option<&ModelInfo> {
        self.info.as_ref()
    }

    fn check(&self, _request: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        self.requests.lock().unwrap().push(request.clone());
        (self.answer)(request)
    }
}

/// An agent that plays a script with these tools.
pub(crate) fn scripted(script: &str, toolbox: Toolbox) -> AgentBuilder {
    Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox)
}

/// The tools of [`agent`](crate::agent).
pub(crate) fn toolbox() -> Toolbox {
    Toolbox::builder().tool(crate::add).tool(crate::wait).tool(crate::broken).build().unwrap()
}

/// A model of a provider at a loopback server.
pub(crate) fn hosted(server: &LoopbackProvider, provider: &str, name: &str) -> Arc<dyn Model> {
    let access =
        ProviderAccess { base_url: Some(server.base_url()), ..ProviderAccess::new(Secret::new("key")) };
    let client = HttpClient::new(HttpOptions { no_network: true, ..HttpOptions::default() }).unwrap();
    Arc::new(HostedModel::new(Provider::find(provider).unwrap(), name, access, client).unwrap())
}

/// The bodies of all requests.
pub(crate) fn bodies(server: &LoopbackProvider) -> Vec<Value> {
    server.requests().iter().map(ReceivedRequest::json).collect()
}

/// The state as another process reads it.
pub(crate) fn reread(output: &RunOutput) -> RunState {
    let text = serde_json::to_string(output.state.as_ref().unwrap()).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The approval of all pending calls.
pub(crate) fn approvals(state: &RunState) -> Vec<(CallId, Decision)> {
    state.pending_calls().map(|call| (call.id, Decision::Approve)).collect()
}

/// Resumes a run with all pending calls approved.
pub(crate) fn resume(agent: &Agent, state: &RunState) -> Run {
    agent.resume(state.clone(), approvals(state)).unwrap()
}

/// The tool results of a turn.
pub(crate) fn results(turns: &[Turn], index: usize) -> &[ToolResult] {
    match turns.get(index) {
        Some(Turn::ToolResults(results)) => results,
        _ => panic!("no results at {index}: {turns:?}"),
    }
}

/// The texts of the tool results of a turn.
pub(crate) fn texts(turns: &[Turn], index: usize) -> Vec<String> {
    results(turns, index).iter().map(ToolResult::joined_text).collect()
}

/// Checks that every call has its result, and every result its call.
#[track_caller]
pub(crate) fn check_pairs(turns: &[Turn]) {
    let mut open: Vec<String> = Vec::new();
    for turn in turns {
        match turn {
            Turn::ToolResults(results) => {
                let answered: Vec<String> = results.iter().map(|result| result.call_id.clone()).collect();
                assert_eq!(std::mem::take(&mut open), answered);
                continue;
            }
            _ => assert!(open.is_empty(), "calls without results: {open:?}"),
        }
        if let Turn::Assistant(turn) = turn {
            open.extend(turn.items.iter().filter_map(|item| match item.view() {
                ItemView::ToolCall { id, .. } => Some(id.clone()),
                _ => None,
            }));
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

/// A writer into memory.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Exports a run. Returns the number of exchanges, and the model that replays them.
pub(crate) async fn export(
    runs: &Runs,
    id: toolpost::RunId,
) -> Result<(usize, Arc<dyn Model>), toolpost::ToolError> {
    let written = Written::default();
    let count = runs.export(id, &Recording::new(written.clone(), Vec::new())).await?;
    Ok((count, Arc::new(ReplayModel::parse("run", &written.text(), Vec::new()).unwrap())))
}
