//! The tools of the tests, and their ledger of effects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Args, Commit, Committed, Ctx, DocStore, Output, ParameterType, Patch, ToolError, ToolSpec, Write, tool_fn,
};
use toolpost_flow::{Flows, Format, Plan};
use toolpost_toolbox::Toolbox;

/// The actions of the tools, in order.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    entries: Arc<Mutex<Vec<String>>>,
    attempts: Arc<Mutex<HashMap<String, u32>>>,
}

impl Ledger {
    pub(crate) fn entries(&self) -> Vec<String> {
        self.entries.lock().unwrap().clone()
    }

    fn add(&self, entry: String) {
        self.entries.lock().unwrap().push(entry);
    }

    /// Counts the attempts of a name.
    fn attempt(&self, name: &str) -> u32 {
        let mut attempts = self.attempts.lock().unwrap();
        let count = attempts.entry(name.to_owned()).or_default();
        *count += 1;
        *count
    }
}

/// `echo` returns its argument, `fail` fails, `flaky` fails so many times first, `sleep` sleeps, `effect` writes into the
/// ledger.
pub(crate) fn toolbox(ledger: &Ledger) -> Toolbox {
    let any = |name: &str| {
        ToolSpec::new(name, "A tool of the tests.").input(json!({
            "type": "object", "properties": { "value": {} }, "required": ["value"], "additionalProperties": false,
        }))
    };
    let echo = tool_fn(any("echo"), async |args, _| {
        Ok(Output::json(args.get("value").cloned().unwrap_or_default()))
    });
    let own = ledger.clone();
    let effect = tool_fn(any("effect"), move |args: Args, _: Ctx| {
        let own = own.clone();
        async move {
            let value = args.get("value").cloned().unwrap_or_default();
            own.add(match &value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            Ok::<_, ToolError>(Output::json(value))
        }
    });
    let own = ledger.clone();
    let spec = ToolSpec::new("fail", "Fail.")
        .optional_parameter("message", ParameterType::String, "The message.")
        .optional_parameter("times", ParameterType::Integer, "How many attempts fail; default all.")
        .optional_parameter("name", ParameterType::String, "Whose attempts are counted.");
    let fail = tool_fn(spec, move |args: Args, _: Ctx| {
        let own = own.clone();
        async move {
            let name = args.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let times = args.get("times").and_then(Value::as_u64).unwrap_or(u64::MAX);
            let attempt = own.attempt(&name);
            own.add(format!("attempt {attempt} of {name}"));
            if u64::from(attempt) > times {
                return Ok(Output::json(json!(attempt)));
            }
            let message = args.get("message").and_then(Value::as_str).unwrap_or("it failed").to_owned();
            Err(ToolError::dependency(message))
        }
    });
    let own = ledger.clone();
    let spec = ToolSpec::new("sleep", "Sleep.")
        .parameter("ms", ParameterType::Integer, "Milliseconds.")
        .optional_parameter("name", ParameterType::String, "A name for the ledger.");
    let sleep = tool_fn(spec, move |args: Args, ctx: Ctx| {
        let own = own.clone();
        async move {
            let name = args.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            own.add(format!("{name} begins"));
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(args.decode("ms")?)) => {}
                () = ctx.cancelled() => {
                    own.add(format!("{name} is stopped"));
                    return Err(ToolError::cancelled("stopped"));
                }
            }
            own.add(format!("{name} ends"));
            Ok(Output::json(json!(name)))
        }
    });
    Toolbox::builder().tool(echo).tool(effect).tool(fail).tool(sleep).build().unwrap()
}

pub(crate) fn flows() -> (Flows, Ledger) {
    let ledger = Ledger::default();
    (Flows::new(toolbox(&ledger)), ledger)
}

/// A plan of steps.
pub(crate) fn plan(steps: &str) -> Plan {
    Plan::parse(steps, Format::Yaml).unwrap_or_else(|error| panic!("{error}"))
}

/// Changes a document, with an event.
pub(crate) async fn append(store: &dyn DocStore, id: &str, value: Value, event: Value) {
    let document = store.load(id).await.unwrap();
    let patch = Patch::diff(&document.value, &value).to_value();
    let write = Write { id: document.id, base: document.version, patch, value: Arc::new(value) };
    let commit = Commit { writes: vec![write], event: Some(event), ..Commit::default() };
    assert!(matches!(store.commit(commit).await.unwrap(), Committed::Done(_)));
}
