//! What has tools for Claude Code, and how it reaches them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{
    Answer, Artifact, BoxFuture, Call, CallId, CallRecord, Caller, Delivery, LogLine, Output, Port, Progress,
    PromptSpec, Question, Reply, ResourceSpec, Root, Sample, SampleRequest, Scope, Secret, ToolError,
    ToolSource, ToolSpec,
};
use toolpost_mcp::server::{RunningServer, Server};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind, foreign};
use super::executor::Address;

/// The most records of calls that are kept of one turn.
const MAX_RECORDS: usize = 10_000;
/// How long a tool server may take to say that it is well.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long all tools of a source may take to be listed.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a server may take to finish its calls when the session ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Something that has tools.
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    Source(Arc<dyn ToolSource>),
    Http { url: String, headers: Vec<(String, Secret)> },
    Program { program: String, arguments: Vec<String>, environment: Vec<(String, Secret)> },
}

impl Connection {
    /// A source of this process, such as a toolbox. It is served on a loopback address with a token of its own for as
    /// long as the session lives.
    pub fn source(source: Arc<dyn ToolSource>) -> Self {
        Self(Kind::Source(source))
    }

    /// A server of the Model Context Protocol at a URL.
    pub fn http(url: impl Into<String>) -> Self {
        Self(Kind::Http { url: url.into(), headers: Vec::new() })
    }

    /// Adds a header to the requests to a URL, such as `Authorization`. Without effect for anything else.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: Secret) -> Self {
        if let Kind::Http { headers, .. } = &mut self.0 {
            headers.push((name.into(), value));
        }
        self
    }

    /// A program that speaks the Model Context Protocol over its standard streams. Claude Code starts it, where it runs
    /// itself: in the sandbox, the program must be in one of the system's folders, in a container in the image. `${NAME}`
    /// in an argument is replaced by Claude Code, by a variable of its own.
    pub fn program<A: Into<String>>(
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self(Kind::Program { program: program.into(), arguments, environment: Vec::new() })
    }

    /// Adds a variable to the environment of a program. Without effect for anything else.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: Secret) -> Self {
        if let Kind::Program { environment, .. } = &mut self.0 {
            environment.push((name.into(), value));
        }
        self
    }

    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let values: &[(String, Secret)] = match &self.0 {
            Kind::Source(_) => &[],
            Kind::Http { headers, .. } => headers,
            Kind::Program { environment, .. } => environment,
        };
        values.iter().map(|(_, value)| value)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Source(source) => f.debug_tuple("Source").field(&source.name()).finish(),
            Kind::Http { url, .. } => f.debug_tuple("Http").field(url).finish(),
            Kind::Program { program, .. } => f.debug_tuple("Program").field(program).finish(),
        }
    }
}

/// What a tool server may be called: what stands in `mcp__NAME__TOOL` and can be told from it again.
pub(super) fn check_server_name(name: &str) -> Result<(), ClaudeCodeError> {
    let valid = name.len() <= 32
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
        && !name.contains("__")
        && !name.ends_with('_');
    if valid {
        return Ok(());
    }
    let shown: String = name.chars().filter(|letter| !letter.is_control()).take(60).collect();
    Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, format!("`{shown}` is no name for a tool server"))
        .hint("use at most 32 letters, digits, `-` and single `_`, and begin with a letter"))
}

/// A tool server while a session lives.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) kind: ServedKind,
}

pub(super) enum ServedKind {
    /// One of ours.
    Own { running: RunningServer, token: Secret, source: Arc<Watched>, tools: Vec<String> },
    /// Somebody else's.
    Foreign(Connection),
}

impl Served {
    /// Makes a connection ready: a source is served, and every server is asked whether it is well.
    pub(super) async fn start(
        name: &str,
        connection: &Connection,
        front: &Front,
    ) -> Result<Self, ClaudeCodeError> {
        let failed = |why: &str| {
            ClaudeCodeError::new(
                ClaudeCodeErrorKind::ToolServer,
                format!("the tool server `{name}` cannot be used: {why}"),
            )
        };
        let kind = match &connection.0 {
            Kind::Source(source) => {
                let listed = tokio::time::timeout(LIST_TIMEOUT, source.list());
                let specs = match listed.await {
                    Ok(Ok(specs)) => specs,
                    Ok(Err(error)) => return Err(failed(&error.public(CallId::new()).to_string())),
                    Err(_) => return Err(failed("it did not list its tools within 15 s")),
                };
                let tools = specs.iter().map(|spec| format!("mcp__{name}__{}", spec.name)).collect();
                let watched = Arc::new(Watched::new(Arc::clone(source), front.clone()));
                let token = random_token()?;
                let server = Server::builder(Arc::clone(&watched) as Arc<dyn ToolSource>)
                    .name(name)
                    .version(env!("CARGO_PKG_VERSION"))
                    .bearer(token.clone())
                    .build()
                    .map_err(|error| failed(&error.to_string()))?;
                let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
                let running = server.http(address).await.map_err(|error| failed(&error.to_string()))?;
                ServedKind::Own { running, token, source: watched, tools }
            }
            _ => ServedKind::Foreign(connection.clone()),
        };
        let served = Self { name: name.to_owned(), kind };
        served.check_health().await.map_err(|why| failed(&why))?;
        Ok(served)
    }

    /// Whether somebody is there, and well, where that can be asked.
    async fn check_health(&self) -> Result<(), String> {
        let (url, own) = match &self.kind {
            ServedKind::Own { running, .. } => (running.health_url(), true),
            ServedKind::Foreign(Connection(Kind::Http { url, .. })) => (url.clone(), false),
            ServedKind::Foreign(_) => return Ok(()),
        };
        let address = Address::of(&url).map_err(|error| error.to_string())?;
        let place = format!("{}:{}", address.host, address.port);
        let asked = async {
            let host = address.host.trim_start_matches('[').trim_end_matches(']');
            let mut stream = TcpStream::connect((host, address.port)).await?;
            if !own {
                // What else somebody else's server answers is its own affair; Claude Code says whether it can use it.
                return Ok(true);
            }
            let path =
                url.parse::<http::Uri>().ok().map_or_else(|| "/".to_owned(), |uri| uri.path().to_owned());
            let request = format!("GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.take(4096).read_to_end(&mut answer).await?;
            Ok::<bool, std::io::Error>(answer.starts_with(b"HTTP/1.1 200 "))
        };
        match tokio::time::timeout(HEALTH_TIMEOUT, asked).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(format!("it says that it is not well, at `{place}`")),
            Ok(Err(error)) => Err(format!("no server answers at `{place}`: {error}")),
            Err(_) => Err(format!("no server answered at `{place}` within 5 s")),
        }
    }

    /// As it stands in the list of tool servers that the program reads. It holds the server's token.
    pub(super) fn entry(&self) -> Value {
        let texts = |pairs: &[(String, Secret)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), value.expose().into())).collect()
        };
        match &self.kind {
            ServedKind::Own { running, token, .. } => json!({
                "type": "http",
                "url": running.connection_url(),
                "headers": { "Authorization": format!("Bearer {}", token.expose()) },
            }),
            ServedKind::Foreign(Connection(Kind::Http { url, headers })) => {
                json!({ "type": "http", "url": url, "headers": texts(headers) })
            }
            ServedKind::Foreign(Connection(Kind::Program { program, arguments, environment })) => {
                json!({ "type": "stdio", "command": program, "args": arguments, "env": texts(environment) })
            }
            ServedKind::Foreign(_) => Value::Null,
        }
    }

    /// Where the program must be able to connect to; nowhere for a program.
    pub(super) fn address(&self) -> Result<Option<Address>, ClaudeCodeError> {
        match &self.kind {
            ServedKind::Own { running, .. } => Address::of(&running.connection_url()).map(Some),
            ServedKind::Foreign(Connection(Kind::Http { url, .. })) => Address::of(url).map(Some),
            ServedKind::Foreign(_) => Ok(None),
        }
    }

    /// The names of its tools as Claude Code knows them; none where only Claude Code knows.
    pub(super) fn tools(&self) -> &[String] {
        match &self.kind {
            ServedKind::Own { tools, .. } => tools,
            ServedKind::Foreign(_) => &[],
        }
    }

    /// The records of the calls since the last time.
    pub(super) fn take_records(&self) -> Vec<Arc<CallRecord>> {
        match &self.kind {
            ServedKind::Own { source, .. } => source.take_records(),
            ServedKind::Foreign(_) => Vec::new(),
        }
    }

    /// Whether its calls leave records in this process.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.kind, ServedKind::Own { .. })
    }

    /// The token that only the program knows.
    pub(super) fn token(&self) -> Option<&Secret> {
        match &self.kind {
            ServedKind::Own { token, .. } => Some(token),
            ServedKind::Foreign(_) => None,
        }
    }

    /// Ends it, when its calls are over.
    pub(super) async fn stop(self) {
        if let ServedKind::Own { running, .. } = self.kind {
            // What does not end by itself goes with the value.
            let _ = tokio::time::timeout(STOP_TIMEOUT, running.stop()).await;
        }
    }
}

/// 256 random bits.
fn random_token() -> Result<Secret, ClaudeCodeError> {
    let token = toolpost_core::random_hex(32)
        .map_err(|error| ClaudeCodeError::new(ClaudeCodeErrorKind::Sandbox, foreign(error.message(), &[])))?;
    Ok(Secret::new(token))
}

/// On whose behalf tools are called.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) caller: Caller,
    pub(super) scope: Scope,
    pub(super) port: Option<Arc<dyn Port>>,
}

/// A source whose calls are made for the session's owner, and whose records are kept for the turn's.
pub(super) struct Watched {
    inner: Arc<dyn ToolSource>,
    front: Front,
    records: Mutex<VecDeque<Arc<CallRecord>>>,
}

impl Watched {
    fn new(inner: Arc<dyn ToolSource>, front: Front) -> Self {
        Self { inner, front, records: Mutex::default() }
    }

    fn take_records(&self) -> Vec<Arc<CallRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// What came over the wire is asked by the session: its caller, its scope, its port.
    fn of_session(&self, mut call: Call) -> Call {
        call.caller = self.front.caller.clone();
        call.scope = Some(self.front.scope.clone());
        if let Some(owner) = &self.front.port {
            call.port = Arc::new(TwoPorts { wire: call.port, owner: Arc::clone(owner) });
        }
        call
    }
}

impl ToolSource for Watched {
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
            let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
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

/// How far a call has come goes back over the wire; questions and files go to the session's owner.
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

    /// What the source behind saw last.
    #[derive(Default)]
    struct Seen(Mutex<Option<(Caller, Option<String>)>>);

    impl Seen {
        fn keep(&self, call: &Call) {
            let owner = call.scope.as_ref().map(|scope| scope.owner().to_owned());
            *self.0.lock().unwrap() = Some((call.caller.clone(), owner));
        }
    }

    impl ToolSource for Seen {
        fn name(&self) -> &'static str {
            "seen"
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
            self.keep(&call);
            Box::pin(async { Ok(Output::text("read")) })
        }

        fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
            self.keep(&call);
            Box::pin(async { Ok(Output::text("rendered")) })
        }
    }

    /// What a read for another caller would show is not shown to the session, and the other way round.
    #[tokio::test]
    async fn resources_and_prompts_are_asked_for_by_the_session() {
        let seen = Arc::new(Seen::default());
        let front = Front {
            caller: Caller::new("agent").with_identity("ada"),
            scope: Scope::new("ada"),
            port: Some(Arc::new(NoPort)),
        };
        let watched = Watched::new(Arc::clone(&seen) as Arc<dyn ToolSource>, front.clone());
        let wire = || Call::new("file:///notes", json!({})).with_caller(Caller::new("mcp"));
        let expected = Some((front.caller, Some("ada".to_owned())));

        watched.read(wire()).await.unwrap();
        assert_eq!(seen.0.lock().unwrap().take(), expected);
        watched.render(wire()).await.unwrap();
        assert_eq!(seen.0.lock().unwrap().take(), expected);
    }
}
