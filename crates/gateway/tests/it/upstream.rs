//! A configurable source for tests.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;
use toolpost_core::{
    BoxFuture, Call, CallRecord, Caller, Clock as _, Content, Output, ParameterType, PromptSpec, Reply,
    ResourceSpec, RetryAdvice, SystemClock, ToolError, ToolSource, ToolSpec,
};

/// The behavior of an upstream's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    Well,
    Never,
    Fails,
    After(Duration),
}

/// A source for tests: each tool answers with `NAME:TOOL`.
pub(super) struct Upstream {
    pub(super) name: String,
    tools: Mutex<Vec<Arc<ToolSpec>>>,
    generation: AtomicU64,
    lists: Mutex<Lists>,
    /// The number of list requests.
    pub(super) listed: AtomicUsize,
    /// The received calls, in order.
    pub(super) calls: Mutex<Vec<String>>,
    /// Calls wait for a permit of this gate, if any.
    gate: Mutex<Option<Arc<Semaphore>>>,
    alive: AtomicBool,
    resources: Mutex<Vec<Arc<ResourceSpec>>>,
    prompts: Mutex<Vec<Arc<PromptSpec>>>,
    /// The number of reads and renderings.
    pub(super) reads: AtomicUsize,
}

pub(super) fn spec(name: &str, description: &str) -> ToolSpec {
    ToolSpec::new(name, description).optional_parameter("text", ParameterType::String, "A text.")
}

impl Upstream {
    pub(super) fn new(name: &str, tools: &[&str]) -> Arc<Self> {
        let specs = tools.iter().map(|tool| spec(tool, &format!("The tool {tool}."))).collect();
        Self::of(name, specs)
    }

    pub(super) fn of(name: &str, specs: Vec<ToolSpec>) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            tools: Mutex::new(specs.into_iter().map(Arc::new).collect()),
            generation: AtomicU64::new(0),
            lists: Mutex::new(Lists::Well),
            listed: AtomicUsize::new(0),
            calls: Mutex::default(),
            gate: Mutex::default(),
            alive: AtomicBool::new(true),
            resources: Mutex::default(),
            prompts: Mutex::default(),
            reads: AtomicUsize::new(0),
        })
    }

    /// Changes the tools and the generation.
    pub(super) fn set(&self, specs: Vec<ToolSpec>) {
        self.set_silently(specs);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes the tools without a new generation.
    pub(super) fn set_silently(&self, specs: Vec<ToolSpec>) {
        *self.tools.lock().unwrap() = specs.into_iter().map(Arc::new).collect();
    }

    pub(super) fn lists(&self, how: Lists) {
        *self.lists.lock().unwrap() = how;
    }

    pub(super) fn offers(&self, resources: &[&str], prompts: &[&str]) {
        let resource = |uri: &&str| Arc::new(ResourceSpec::new(uri.parse().unwrap(), "A resource."));
        *self.resources.lock().unwrap() = resources.iter().map(resource).collect();
        let prompt =
            |name: &&str| Arc::new(serde_json::from_value::<PromptSpec>(json!({ "name": name })).unwrap());
        *self.prompts.lock().unwrap() = prompts.iter().map(prompt).collect();
    }

    /// Changes the resources, the prompts and the generation.
    pub(super) fn offer(&self, resources: Vec<ResourceSpec>, prompts: Vec<PromptSpec>) {
        *self.resources.lock().unwrap() = resources.into_iter().map(Arc::new).collect();
        *self.prompts.lock().unwrap() = prompts.into_iter().map(Arc::new).collect();
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Blocks calls until permits are added.
    pub(super) fn close_gate(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(Arc::clone(&gate));
        gate
    }

    /// Fails running and later calls.
    pub(super) fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
        if let Some(gate) = &*self.gate.lock().unwrap() {
            gate.close();
        }
    }

    pub(super) fn count_calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    async fn answer(&self, call: &Call) -> Result<Output, ToolError> {
        let refused =
            || ToolError::dependency("connection refused").retry(RetryAdvice::NotStarted(Duration::ZERO));
        if !self.alive.load(Ordering::SeqCst) {
            return Err(refused());
        }
        let specs = self.tools.lock().unwrap().clone();
        let known = specs
            .iter()
            .find(|spec| spec.name == call.tool || spec.aliases.iter().any(|alias| alias.name == call.tool));
        let Some(spec) = known else {
            return Err(ToolError::not_found(format!("no tool {}", call.tool)));
        };
        self.calls.lock().unwrap().push(call.tool.clone());
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            match gate.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Err(ToolError::dependency("connection lost")),
            }
        }
        match spec.name.as_str() {
            "fail" => Err(ToolError::dependency("the weather service is down")),
            "link" => {
                let resource = |uri: &str| Content::Resource {
                    uri: uri.to_owned(),
                    media_type: "text/plain".into(),
                    text: None,
                };
                let mut output = Output::text("see");
                output.content.push(resource("notes://7"));
                output.content.push(resource("https://example.com/"));
                Ok(output)
            }
            name => Ok(Output::text(format!("{}:{name}", self.name))),
        }
    }
}

impl ToolSource for Upstream {
    fn name(&self) -> &str {
        &self.name
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            self.listed.fetch_add(1, Ordering::SeqCst);
            let how = *self.lists.lock().unwrap();
            match how {
                Lists::Well => {}
                Lists::Never => std::future::pending().await,
                Lists::Fails => return Err(ToolError::dependency("no list today")),
                Lists::After(wait) => tokio::time::sleep(wait).await,
            }
            if !self.alive.load(Ordering::SeqCst) {
                return Err(ToolError::dependency("connection refused"));
            }
            Ok(self.tools.lock().unwrap().clone())
        })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let mut record = CallRecord::begin(
                &call,
                call.tool.as_str().into(),
                self.name.as_str().into(),
                SystemClock.timestamp(),
            );
            let result = self.answer(&call).await;
            let unbegun = matches!(&result, Err(error) if error.retry_advice().is_some());
            record.attempts = u32::from(!unbegun);
            record.error = result.as_ref().err().cloned();
            Reply { result, record: Arc::new(record) }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(self.resources.lock().unwrap().clone()) })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(self.prompts.lock().unwrap().clone()) })
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            Ok(Output::text(format!("{}:{}", self.name, call.tool)))
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.read(call)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async {
            if self.alive.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err(ToolError::dependency("connection closed"))
            }
        })
    }
}

/// The names of the tools that a source lists.
pub(super) async fn names(source: &dyn ToolSource) -> Vec<String> {
    source.list().await.unwrap().iter().map(|spec| spec.name.clone()).collect()
}

/// Waits until a condition holds.
pub(super) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), poll).await.unwrap();
}

/// The text of a tool's output, or its error.
pub(super) async fn call(source: &dyn ToolSource, tool: &str) -> Result<String, ToolError> {
    source.call(Call::new(tool, json!({}))).await.result.map(|output| output.to_text().into_owned())
}

pub(super) fn caller(identity: &str) -> Caller {
    Caller::new("test").with_identity(identity)
}
