//! The catalog, its sessions and its meta-tools.

mod golden;
mod meta;
mod ranking;
mod search;
mod session;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost::{
    BoxFuture, Call, CallId, Output, Port, Sample, SampleRequest, Tool, ToolError, ToolSpec, tool_fn,
};
use toolpost_gateway::catalog::DynamicSession;
use toolpost_toolbox::Toolbox;

/// The recorded answers of `llm_factory_toolkit`, if available.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn golden(test: &str) -> Option<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev/llm_factory_toolkit/golden.json");
    let written = std::fs::read_to_string(file).ok();
    if written.is_none() {
        println!(
            "SKIP {test}: no answers of llm_factory_toolkit; `cargo xtask test` makes them where a package index is"
        );
    }
    written.map(|text| serde_json::from_str(&text).unwrap())
}

/// A tool without effects, from its JSON description.
fn tool_of(listed: &Value) -> impl Tool + use<> {
    let text = |name: &str| listed[name].as_str().map(str::to_owned);
    let mut spec = ToolSpec::new(text("name").unwrap(), text("description").unwrap());
    if listed["parameters"].is_object() {
        spec = spec.input(listed["parameters"].clone());
    }
    spec.category = text("category");
    spec.group = text("group");
    spec.tags = serde_json::from_value(listed["tags"].clone()).unwrap_or_default();
    tool_fn(spec, async |_, _| Ok(Output::text("done")))
}

fn toolbox_of(listed: &Value) -> Toolbox {
    let toolbox = Toolbox::builder().build().unwrap();
    for listed in listed.as_array().unwrap() {
        toolbox.add(tool_of(listed)).unwrap();
    }
    toolbox
}

/// The tools of most tests.
fn office() -> Toolbox {
    toolbox_of(&json!([
        { "name": "find_contact", "description": "Find a person.", "category": "crm", "group": "crm.contacts", "tags": ["person"] },
        { "name": "move_deal", "description": "Move a deal.", "category": "crm", "group": "crm.pipeline", "tags": ["sale"] },
        { "name": "crm_summary", "description": "Count people and deals.", "category": "crm", "tags": ["report"] },
        { "name": "send_letter", "description": "Send a letter by post.", "category": "mail", "group": "mail", "tags": ["post"] },
        { "name": "make_tea", "description": "Boil water.", "category": "kitchen" },
    ]))
}

/// A caller whose model gives one answer, or none.
struct OneAnswer(Option<String>);

impl Port for OneAnswer {
    fn sample<'a>(&'a self, _: CallId, _: &'a SampleRequest) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            let content = self.0.clone().ok_or_else(|| ToolError::dependency("no connection"))?;
            Ok(Sample { content, usage: None })
        })
    }
}

/// Calls a tool in a session.
async fn call(
    session: &DynamicSession,
    tool: &str,
    arguments: Value,
    port: Arc<dyn Port>,
) -> Result<Output, ToolError> {
    session.call(Call::new(tool, arguments).with_port(port)).await.result
}

/// Calls a tool without a model, and returns its structured result.
async fn body(session: &DynamicSession, tool: &str, arguments: Value) -> Value {
    let output = call(session, tool, arguments, Arc::new(OneAnswer(None))).await.unwrap();
    output.structured.unwrap()
}
