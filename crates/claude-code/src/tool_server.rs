//! Tool servers: the connected sources, served to the program over loopback.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Answer, Artifact, BoxFuture, Call, CallId, CallRecord, Caller, Delivery, LogLine, Output, Port, Progress,
    PromptSpec, Question, Reply, ResourceSpec, Root, Sample, SampleRequest, Scope, Secret, ToolError,
    ToolSource, ToolSpec,
};
use toolpost_mcp::server::{RunningServer, Server};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind, printable, redact};
use super::executor::Address;

/// Records of calls that one turn has at most.
const MAX_RECORDS: usize = 10_000;
/// Time for a source to list its tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for a server to finish its calls at the end of a session.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the name of a tool server, which is a part of `mcp__NAME__TOOL`.
pub(super) fn check_server_name(name: &str) -> Result<(), ClaudeCodeError> {
    let valid = name.len() <= 32
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
        && !name.contains("__")
        && !name.ends_with('_');
    if valid {
        return Ok(());
    }
    let error = Kind::Setting.error(format!("invalid name of a tool server: `{}`", printable(name)));
    Err(error.hint("use at most 32 letters, digits, `-` and single `_`, and begin with a letter"))
}

/// A tool server of a session.
pub(super) struct ToolServer {
    pub(super) name: String,
    /// The bearer token, which only the program has.
    pub(super) token: Secret,
    /// The names of its tools in Claude Code.
    pub(super) tools: Vec<String>,
    running: RunningServer,
    source: Arc<SessionSource>,
}

impl ToolServer {
    /// Serves a source.
    pub(super) async fn start(
        name: &str,
        source: &Arc<dyn ToolSource>,
        owner: &Owner,
    ) -> Result<Self, ClaudeCodeError> {
        let failed = |reason: &str| {
            Kind::ToolServer.error(format!("the tool server `{name}` failed to start: {reason}"))
        };
        let specs = match tokio::time::timeout(LIST_TIMEOUT, source.list()).await {
            Ok(Ok(specs)) => specs,
            Ok(Err(error)) => return Err(failed(&error.public(CallId::new()).to_string())),
            Err(_) => return Err(failed("listing its tools timed out after 15 s")),
        };
        let tools = specs.iter().map(|spec| format!("mcp__{name}__{}", spec.name)).collect();
        let token = toolpost_core::random_hex(32)
            .map_err(|error| Kind::Sandbox.error(redact(error.message(), &[])))?;
        let token = Secret::new(token);
        let source = Arc::new(SessionSource::new(Arc::clone(source), owner.clone()));
        let server = Server::builder(Arc::clone(&source) as Arc<dyn ToolSource>)
            .name(name)
            .version(env!("CARGO_PKG_VERSION"))
            .bearer(token.clone())
            .build()
            .map_err(|error| failed(&error.to_string()))?;
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let running = server.http(address).await.map_err(|error| failed(&error.to_string()))?;
        Ok(Self { name: name.to_owned(), token, tools, running, source })
    }

    /// The entry in the program's list of tool servers, with the token.
    pub(super) fn entry(&self) -> Value {
        json!({
            "type": "http",
            "url": self.running.connection_url(),
            "headers": { "Authorization": format!("Bearer {}", self.token.expose()) },
        })
    }

    /// The address that the program connects to.
    pub(super) fn address(&self) -> Result<Address, ClaudeCodeError> {
        Address::parse(&self.running.connection_url())
    }

    /// Takes the records of the calls since the last turn.
    pub(super) fn take_records(&self) -> VecDeque<Arc<CallRecord>> {
        std::mem::take(&mut *self.source.records())
    }

    /// Stops the server after its running calls.
    pub(super) async fn stop(self) {
        // After a timeout, dropping the server stops it.
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.running.stop()).await;
    }
}

/// The owner of the calls of a session.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) caller: Caller,
    pub(super) scope: Scope,
    pub(super) port: Option<Arc<dyn Port>>,
}

/// A source that runs calls for the owner of the session, and collects their records.
struct SessionSource {
    inner: Arc<dyn ToolSource>,
    owner: Owner,
    records: Mutex<VecDeque<Arc<CallRecord>>>,
}

impl SessionSource {
    fn new(inner: Arc<dyn ToolSource>, owner: Owner) -> Self {
        Self { inner, owner, records: Mutex::default() }
    }

    fn records(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<CallRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call with the caller, scope and port of the session.
    fn of_session(&self, mut call: Call) -> Call {
        call.caller = self.owner.caller.clone();
        call.scope = Some(self.owner.scope.clone());
        if let Some(owner) = &self.owner.port {
            call.port = Arc::new(TwoPorts { wire: call.port, owner: Arc::clone(owner) });
        }
        call
    }
}

impl ToolSource for SessionSource {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        self.inner.list()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let reply = self.inner.call(self.of_session(call)).await;
            let mut records = self.records();
            if records.len() == MAX_RECORDS {
                records.pop_front();
            }
            records.push_back(Arc::clone(&reply.record));
            drop(records);
            reply
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.inner.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.inner.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.inner.read(self.of_session(call))
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.inner.render(self.of_session(call))
    }
}

/// Sends progress over the wire, and questions and files to the owner of the session.
struct TwoPorts {
    wire: Arc<dyn Port>,
    owner: Arc<dyn Port>,
}

impl Port for TwoPorts {
    fn progress(&self, call: CallId, progress: Progress) -> Delivery {
        self.wire.progress(call, progress)
    }

    fn log(&self, call: CallId, line: LogLine) -> Delivery {
        self.wire.log(call, line)
    }

    fn takes_artifacts(&self) -> bool {
        self.owner.takes_artifacts()
    }

    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        self.owner.artifact(call, artifact)
    }

    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        self.owner.ask(call, question)
    }

    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        self.owner.sample(call, request)
    }

    fn roots(&self, call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        self.wire.roots(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolpost_core::NoPort;

    /// A source that stores the caller and the owner of the last read.
    #[derive(Default)]
    struct Reads(Mutex<Option<(Caller, Option<String>)>>);

    impl ToolSource for Reads {
        fn name(&self) -> &'static str {
            "reads"
        }

        fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn generation(&self) -> u64 {
            0
        }

        fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
            unreachable!("`{}` is not called", call.tool)
        }

        fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
            let owner = call.scope.as_ref().map(|scope| scope.owner().to_owned());
            *self.0.lock().unwrap() = Some((call.caller, owner));
            Box::pin(async { Ok(Output::text("read")) })
        }

        fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
            self.read(call)
        }
    }

    #[tokio::test]
    async fn resources_and_prompts_have_the_caller_of_the_session() {
        let reads = Arc::new(Reads::default());
        let caller = Caller::new("agent").with_identity("ada");
        let owner = Owner { caller: caller.clone(), scope: Scope::new("ada"), port: Some(Arc::new(NoPort)) };
        let source = SessionSource::new(Arc::clone(&reads) as Arc<dyn ToolSource>, owner);
        let wire = || Call::new("file:///notes", json!({})).with_caller(Caller::new("mcp"));
        let expected = Some((caller, Some("ada".to_owned())));
        source.read(wire()).await.unwrap();
        assert_eq!(reads.0.lock().unwrap().take(), expected);
        source.render(wire()).await.unwrap();
        assert_eq!(reads.0.lock().unwrap().take(), expected);
    }
}
