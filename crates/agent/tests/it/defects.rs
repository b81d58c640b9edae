//! Defects of tools: the run continues, the log has them, and so has its record.

use std::fmt;
use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{Output, Placement, Tool, ToolError, ToolSpec, tool_fn};
use toolpost_agent::Agent;
use toolpost_llm::ScriptModel;
use toolpost_toolbox::Toolbox;

/// The logged errors of this thread.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, line: &tracing::Metadata<'_>) -> bool {
        *line.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                let _infallible = fmt::Write::write_fmt(&mut self.0, format_args!("{field}={value:?} "));
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn spec(placement: Placement) -> ToolSpec {
    let mut spec = ToolSpec::new("lost", "Look a key up.");
    spec.policy.placement = placement;
    spec
}

#[tokio::test]
async fn a_defect_of_a_tool_stands_in_the_record_of_a_successful_run() {
    let panics = |placement| -> Arc<dyn Tool> {
        Arc::new(tool_fn(spec(placement), |args, _| {
            let is_known = args.as_value().get("key").is_some();
            async move { if is_known { Ok(Output::text("")) } else { panic!("no key blue") } }
        }))
    };
    let fails = tool_fn(spec(Placement::Inline), |_, _| async { Err(ToolError::internal("no key blue")) });
    for (what, tool) in [
        ("a panic", panics(Placement::Inline)),
        ("a panic on a thread", panics(Placement::Blocking)),
        ("an internal error", Arc::new(fails) as Arc<dyn Tool>),
    ] {
        let script = json!({ "turns": [{ "calls": [{ "tool": "lost", "args": {} }] }, { "text": "Done." }] });
        let model = Arc::new(ScriptModel::parse("test", &script.to_string()).unwrap());
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        let errors = Errors::default();
        let guard = tracing::subscriber::set_default(errors.clone());
        let record = Agent::builder(model, toolbox).build().run("Go.").finish().await.record;
        drop(guard);
        let lines = errors.0.lock().unwrap().clone();
        let [line] = lines.as_slice() else { panic!("{what}: {lines:?}") };
        assert!(line.contains("tool=lost") && line.contains("no key blue"), "{what}: {line}");
        assert!(record.success, "{what}");
        let error = record.tool_calls[0].error.as_ref().unwrap();
        assert!(error.message().contains("no key blue"), "{what}: {error}");
        let [notice] = record.notices.as_slice() else { panic!("{what}: {:?}", record.notices) };
        assert!(notice.starts_with("the tool `lost` failed with INTERNAL: "), "{what}: {notice}");
        assert!(notice.contains("no key blue"), "{what}: {notice}");
        // The model gets no details.
        assert!(!record.response.contains("blue"), "{what}");
    }
}
