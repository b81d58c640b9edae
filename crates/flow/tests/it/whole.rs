//! Outputs that are used as data are whole, or the step fails with `LIMIT`.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Args, Code, Ctx, Output, ToolError, ToolSpec, Truncation, tool_fn};
use toolpost_flow::{FlowOutcome, FlowTool, Flows, Format, Plan, RunStatus};
use toolpost_toolbox::Toolbox;

/// More than the toolbox shows to a model.
const SIZE: usize = 3_000_000;

fn spec(name: &str) -> ToolSpec {
    ToolSpec::new(name, "A tool of the tests.").input(json!({ "type": "object" }))
}

/// Tools with large outputs: as text, as the servers of the Model Context Protocol give it, as a value, and truncated.
fn flows() -> Flows {
    let text = tool_fn(spec("text"), async |_: Args, _: Ctx| Ok(Output::text("é".repeat(SIZE / 2))));
    let value = tool_fn(spec("value"), async |_: Args, _: Ctx| Ok(Output::json(json!("x".repeat(SIZE)))));
    let cut = tool_fn(spec("cut"), async |_: Args, _: Ctx| {
        let output = Output::json(json!({ "stdout": "head … tail", "exit_code": 0 }));
        Ok::<_, ToolError>(output.with_truncated([Truncation::bytes("/stdout", Some(9), 4)]))
    });
    let size = tool_fn(spec("size"), async |args: Args, _: Ctx| {
        let text = args.get("value").and_then(Value::as_str).unwrap_or_default();
        Ok::<_, ToolError>(Output::json(json!(text.len())))
    });
    let nested = tool_fn(spec("nested"), async |args: Args, ctx: Ctx| {
        let tool: String = args.decode("tool")?;
        Ok::<_, ToolError>(Output::json(json!(ctx.call(tool, json!({})).await?.to_text().len())))
    });
    let builder = Toolbox::builder().tool(text).tool(value).tool(cut).tool(size).tool(nested);
    Flows::new(builder.build().unwrap())
}

fn run(flows: &Flows, steps: &str) -> FlowOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let plan = Plan::parse(steps, Format::Yaml).unwrap();
    runtime.block_on(async { flows.run(plan, Value::Null).await.unwrap() })
}

#[test]
fn a_large_output_is_whole_in_the_next_step() {
    let flows = flows();
    for (steps, expected) in [
        (
            "steps: [{ id: a, tool: text }, { id: b, tool: size, with: { value: '${{ steps.a.output }}' } }]",
            json!(SIZE),
        ),
        (
            "steps: [{ id: a, tool: value }, { id: b, tool: size, with: { value: '${{ steps.a.output }}' } }]",
            json!(SIZE),
        ),
        (
            "steps: [{ id: m, map: [1, 2], steps: [{ id: a, tool: text }] }, { id: b, tool: size, with: { value: '${{ steps.m.output[1] }}' } }]",
            json!(SIZE),
        ),
        (
            "steps: [{ id: f, flow: { steps: [{ id: a, tool: text }] } }, { id: b, tool: size, with: { value: '${{ steps.f.output }}' } }]",
            json!(SIZE),
        ),
        ("steps: [{ id: a, tool: nested, with: { tool: text } }]", json!(SIZE)),
    ] {
        let outcome = run(&flows, steps);
        assert_eq!(
            (outcome.output, outcome.error.map(|error| error.to_string())),
            (expected, None),
            "{steps}"
        );
    }
}

#[test]
fn truncated_output_fails_where_it_is_used() {
    let flows = flows();
    for (steps, failed) in [
        (
            "steps: [{ id: a, tool: cut }, { id: b, tool: size, with: { value: '${{ steps.a.output.stdout }}' } }]",
            "a",
        ),
        (
            "steps: [{ id: a, tool: cut }, { id: b, tool: size, with: { value: '${{ steps.a.output }}' } }]",
            "a",
        ),
        ("steps: [{ id: a, tool: cut }]\noutput: '${{ steps.a.output.stdout }}'", "a"),
        (
            "steps: [{ id: m, map: [1], steps: [{ id: a, tool: cut }] }]\noutput: '${{ steps.m.output }}'",
            "m[0].a",
        ),
        (
            "steps: [{ id: f, flow: { steps: [{ id: a, tool: cut }] } }]\noutput: '${{ steps.f.output }}'",
            "f.a",
        ),
        (
            "steps: [{ id: p, pipeline: [{ id: a, tool: cut }, { id: b, tool: size, with: { value: '${{ previous.stdout }}' } }] }]",
            "p.a",
        ),
        ("steps: [{ id: a, tool: nested, with: { tool: cut } }]", "a"),
    ] {
        let outcome = run(&flows, steps);
        let error = outcome.error.unwrap_or_else(|| panic!("{steps} succeeded"));
        assert_eq!(error.code(), Code::Limit, "{steps} {error}");
        assert_eq!(error.message(), "`stdout` is truncated: it has 9 bytes, and 4 were returned", "{steps}");
        assert_eq!(error.context()["step"], failed, "{steps}");
    }
}

#[test]
fn truncated_output_that_only_its_reader_sees_is_marked() {
    let flows = flows();
    let truncated = vec![Truncation::bytes("/stdout", Some(9), 4)];
    for (steps, expected) in [
        ("steps: [{ id: a, tool: cut }]", truncated.clone()),
        ("steps: [{ id: a, tool: cut }, { id: b, needs: a, tool: size }]", Vec::new()),
        (
            "steps: [{ id: a, tool: cut }, { id: b, when: '${{ steps.a.output.exit_code == 0 }}', tool: size }]",
            Vec::new(),
        ),
        ("steps: [{ id: a, tool: cut }]\noutput: '${{ steps.a.status }}'", Vec::new()),
    ] {
        let outcome = run(&flows, steps);
        assert_eq!((outcome.status, outcome.truncated), (RunStatus::Succeeded, expected), "{steps}");
    }
    // A flow that is a tool says so to its caller.
    let plan = Plan::parse("name: inner\nsteps: [{ id: a, tool: cut }]", Format::Yaml).unwrap();
    let tool = FlowTool::new(plan, flows);
    let outer =
        Flows::new(Toolbox::builder().tool(Arc::new(tool) as Arc<dyn toolpost_core::Tool>).build().unwrap());
    let outcome = run(&outer, "steps: [{ id: f, tool: inner }]\noutput: '${{ steps.f.output.stdout }}'");
    assert_eq!(outcome.error.map(|error| error.code()), Some(Code::Limit));
}
