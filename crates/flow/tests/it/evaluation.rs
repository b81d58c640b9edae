//! Values run as code only with `evaluate: true`: every kind of step, field and expression, in every block.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost_core::{Alias, Args, Code, Ctx, Output, ToolError, ToolSpec, tool_fn};
use toolpost_flow::{Flows, Format, Plan, RunStatus, evaluated_steps};
use toolpost_toolbox::Toolbox;

use crate::resume::runtime;

/// Tools with arguments that decide what runs.
fn specs() -> Vec<ToolSpec> {
    let of = |name: &str, properties: Value, more: Value| {
        let mut schema = json!({ "type": "object", "properties": properties });
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ToolSpec::new(name, "A tool of the tests.").input(schema)
    };
    let mut run_code = of(
        "run_code",
        json!({
            "language": { "type": "string", "format": "program" }, "code": { "type": "string", "format": "code" },
            "stdin": { "type": ["string", "null"] }, "session": { "type": "object" },
        }),
        json!({}),
    );
    run_code.aliases.push(Alias::new("python").parameter("source", "code").argument("language", "python"));
    let argv = json!({ "type": "array", "items": { "type": "string" }, "format": "argv" });
    let run_command = json!({ "argv": argv, "stdin": { "type": ["string", "null"], "format": "stdin" } });
    let foreign = json!({
        "plain": {},
        "script": { "anyOf": [{ "type": "null" }, { "type": "string", "format": "code" }] },
        "job": { "$ref": "#/$defs/job" },
        "jobs": { "type": "array", "items": { "$ref": "#/$defs/job" } },
        "first": { "type": "array", "prefixItems": [{ "format": "code" }, {}] },
        "named": { "type": "object", "additionalProperties": { "allOf": [{ "format": "code" }] } },
        "like": { "type": "object", "patternProperties": { "^run": { "format": "program" } } },
    });
    let job = json!({ "type": "object", "properties": {
        "name": { "type": "string" }, "run": { "type": "string", "format": "code" },
        "next": { "$ref": "#/$defs/job" },
    } });
    vec![
        run_code,
        of("run_command", run_command, json!({})),
        of("foreign", foreign, json!({ "$defs": { "job": job } })),
        of("echo", json!({ "value": {} }), json!({})),
    ]
}

/// The forms of an expression in place of a text.
const FORMS: [&str; 3] = ["${{ input.x }}", "a ${{ input.x }}", "${{ steps.src.output }} b"];

/// Steps in which a value decides what runs: `X` stands for each form, `W` for one expression alone.
fn evaluated() -> Vec<Value> {
    let mut rows = vec![
        json!({ "code": "X" }),
        json!({ "code": "X", "language": "sh" }),
        json!({ "code": "X", "language": "perl" }),
        json!({ "code": "X", "variables": { "v": "${{ input.x }}" } }),
        json!({ "command": "W" }),
        json!({ "command": ["X"] }),
        json!({ "command": ["X", "a"] }),
        json!({ "tool": "run_code", "with": "W" }),
        json!({ "tool": "run_code", "with": { "language": "python", "code": "X" } }),
        json!({ "tool": "run_code", "with": { "language": "X", "code": "1" } }),
        json!({ "tool": "python", "with": { "source": "X" } }),
        json!({ "tool": "python", "with": { "code": "X" } }),
        json!({ "tool": "run_command", "with": "W" }),
        json!({ "tool": "run_command", "with": { "argv": "W" } }),
        json!({ "tool": "run_command", "with": { "argv": ["X"] } }),
        json!({ "tool": "run_command", "with": { "argv": ["sh"], "stdin": "X" } }),
        json!({ "tool": "foreign", "with": "W" }),
        json!({ "tool": "foreign", "with": { "script": "X" } }),
        json!({ "tool": "foreign", "with": { "job": "W" } }),
        json!({ "tool": "foreign", "with": { "job": { "run": "X" } } }),
        json!({ "tool": "foreign", "with": { "job": { "next": { "next": { "run": "X" } } } } }),
        json!({ "tool": "foreign", "with": { "job": { "next": "W" } } }),
        json!({ "tool": "foreign", "with": { "jobs": "W" } }),
        json!({ "tool": "foreign", "with": { "jobs": ["W"] } }),
        json!({ "tool": "foreign", "with": { "jobs": [{ "name": "a" }, { "run": "X" }] } }),
        json!({ "tool": "foreign", "with": { "first": ["X", 1] } }),
        json!({ "tool": "foreign", "with": { "named": { "any": "X" } } }),
        json!({ "tool": "foreign", "with": { "like": { "run it": "X" } } }),
    ];
    for interpreter in [
        json!(["sh", "-c", "X"]),
        json!(["/bin/bash", "-euo", "pipefail", "-c", "X", "name"]),
        json!(["python3.12", "-I", "-c", "X"]),
        json!(["node", "--eval", "X"]),
        json!(["perl", "-ne", "X", "file"]),
        json!(["awk", "X", "file"]),
        json!(["sed", "-n", "X", "file"]),
        json!(["env", "A=1", "X"]),
        json!(["sudo", "-u", "root", "X"]),
        json!(["find", ".", "-exec", "X", "{}", ";"]),
        json!(["ssh", "host", "X"]),
        json!(["docker", "run", "X"]),
        json!(["ruby", "X"]),
        json!(["python", "--", "X"]),
    ] {
        rows.push(json!({ "command": interpreter.clone() }));
        rows.push(json!({ "tool": "run_command", "with": { "argv": interpreter } }));
    }
    for reader in
        [json!(["sh"]), json!(["bash", "-s", "a"]), json!(["python3", "-"]), json!(["env", "python"])]
    {
        rows.push(json!({ "command": reader, "with": { "stdin": "X" } }));
    }
    rows
}

/// Steps in which a value is data.
fn data() -> Vec<Value> {
    vec![
        json!({ "code": "1", "variables": { "v": "X" } }),
        json!({ "code": "1", "with": { "stdin": "X" } }),
        json!({ "code": "1", "with": { "session": { "id": "X" } } }),
        json!({ "tool": "run_code", "with": { "language": "sh", "code": "cat", "stdin": "X" } }),
        json!({ "command": ["grep", "X", "file"] }),
        json!({ "command": ["git", "commit", "--message=X"] }),
        json!({ "command": ["sort"], "with": { "stdin": "X" } }),
        json!({ "command": ["sh", "-c", "echo \"$1\"", "sh", "X"] }),
        json!({ "command": ["sh", "-c", "cat"], "with": { "stdin": "X" } }),
        json!({ "command": ["python3", "-I", "tool.py", "X"] }),
        json!({ "command": ["python3", "-m", "tool", "X"] }),
        json!({ "command": ["awk", "-v", "name=X", "{ print name }", "X"] }),
        json!({ "command": ["find", ".", "-name", "X"] }),
        json!({ "command": ["docker", "logs", "X"] }),
        json!({ "command": ["/usr/bin/pythonize", "X"] }),
        json!({ "tool": "run_command", "with": { "argv": ["grep", "X"] } }),
        json!({ "tool": "foreign", "with": { "plain": "X" } }),
        json!({ "tool": "foreign", "with": { "plain": { "code": "X", "argv": ["X"] } } }),
        json!({ "tool": "foreign", "with": { "job": { "name": "X" } } }),
        json!({ "tool": "foreign", "with": { "first": [1, "X"] } }),
        json!({ "tool": "foreign", "with": { "like": { "other": 1 }, "plain": "X" } }),
        json!({ "tool": "echo", "with": "W" }),
        json!({ "tool": "echo", "with": { "value": { "code": ["X"] } } }),
    ]
}

/// A step with an expression in place of the marks.
fn with_form(step: &Value, form: &str) -> Value {
    let text = step.to_string();
    let form = json!(form).to_string();
    let written = text
        .replace("\"W\"", &json!(FORMS[0]).to_string())
        .replace("\"X\"", &form)
        .replace("=X\"", &format!("={}", &form[1..]));
    assert_ne!(written, text);
    serde_json::from_str(&written).unwrap()
}

/// Plans that have the step in each kind of block.
fn plans(step: &Value) -> Vec<Value> {
    let mut step = step.clone();
    step["id"] = "it".into();
    let src = json!({ "id": "src", "tool": "echo", "with": { "value": 1 } });
    let sub = json!({ "input": { "x": {} }, "steps": [src, step] });
    let outer = [
        step.clone(),
        json!({ "id": "b", "parallel": [step] }),
        json!({ "id": "b", "pipeline": [step] }),
        json!({ "id": "b", "race": [step] }),
        json!({ "id": "b", "map": [1], "steps": [step] }),
        json!({ "id": "b", "loop": { "max": 1 }, "steps": [step] }),
        json!({ "id": "b", "flow": sub, "with": { "x": 1 } }),
        json!({ "id": "b", "tool": "echo", "with": { "value": 1 }, "on_error": [step] }),
        json!({ "id": "b", "tool": "echo", "with": { "value": 1 }, "compensate": [step] }),
    ];
    outer.into_iter().map(|step| json!({ "input": { "x": {} }, "steps": [src, step] })).collect()
}

/// The defects of a plan, of itself and with the tools.
fn defects(plan: &Value, specs: &[Arc<ToolSpec>]) -> Vec<String> {
    match Plan::from_value(plan) {
        Ok(plan) => {
            let problems = plan.check(specs).into_iter().filter(|problem| !problem.is_warning);
            problems.map(|problem| problem.to_string()).collect()
        }
        Err(error) => error.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_value_runs_as_code_only_if_its_step_says_so() {
    let specs: Vec<Arc<ToolSpec>> = specs().into_iter().map(Arc::new).collect();
    let mut count = 0;
    for (step, form) in evaluated().iter().flat_map(|step| FORMS.map(|form| (step, form))) {
        let mut step = with_form(step, form);
        for plan in plans(&step) {
            count += 1;
            let found = defects(&plan, &specs);
            assert_eq!(found.len(), 1, "{plan}\n{found:?}");
            let is_named =
                found[0].contains("would run as code") || found[0].contains("would name the program");
            assert!(is_named && found[0].contains("`evaluate: true`"), "{plan}\n{found:?}");
            assert!(found[0].contains("it`: `"), "{plan}\n{found:?}");
        }
        step["evaluate"] = true.into();
        for plan in plans(&step) {
            assert_eq!(defects(&plan, &specs), [""; 0], "{plan}");
            let outline = Plan::from_value(&plan).unwrap().to_text();
            assert!(outline.contains(", runs values as code"), "{outline}");
        }
    }
    assert!(count > 1_000, "{count}");
}

#[test]
fn a_value_is_data_everywhere_else() {
    let specs: Vec<Arc<ToolSpec>> = specs().into_iter().map(Arc::new).collect();
    for (step, form) in data().iter().flat_map(|step| FORMS.map(|form| (step, form))) {
        let mut step = with_form(step, form);
        for plan in plans(&step) {
            assert_eq!(defects(&plan, &specs), [""; 0], "{plan}");
        }
        step["evaluate"] = true.into();
        let problems = Plan::from_value(&plans(&step)[0]).unwrap().check(&specs);
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().all(|problem| problem.is_warning), "{text:?}");
        assert!(text.iter().any(|line| line.contains("`evaluate` has no effect")), "{step}: {text:?}");
    }
}

#[test]
fn names_are_no_expressions() {
    for (step, expected) in [
        (json!({ "tool": "${{ input.x }}" }), "`tool` is a name, not an expression"),
        (json!({ "tool": "run_${{ input.x }}", "evaluate": true }), "`tool` is a name, not an expression"),
        (json!({ "code": "1", "language": "${{ input.x }}" }), "`language` is a name, not an expression"),
        (json!({ "tool": "echo", "pool": "${{ input.x }}" }), "the name of a `pool`"),
        (json!({ "variables": { "${{ input.x }}": 1 }, "code": "1" }), "is not the name of a variable"),
        (json!({ "flow": "${{ input.x }}" }), "`flow` is the path of a file, not an expression"),
        (json!({ "evaluate": "${{ true }}", "code": "1" }), "`evaluate` is true or false, not a text"),
        (json!({ "evaluate": true, "wait": "1s" }), "`evaluate` is for calls"),
        (json!({ "evaluate": true, "parallel": [{ "code": "1" }] }), "`evaluate` is for calls"),
    ] {
        let text = json!({ "input": { "x": {} }, "steps": [step] }).to_string();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        std::fs::write(&path, &text).unwrap();
        let found = Plan::read(&path).unwrap_err().to_string();
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

/// Plans that nothing checked against the tools: the driver checks each call.
#[test]
fn a_driver_checks_each_call() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let mut builder = Toolbox::builder();
    for spec in specs() {
        let (called, name) = (Arc::clone(&called), spec.name.clone());
        builder = builder.tool(tool_fn(spec, move |_: Args, _: Ctx| {
            called.lock().unwrap().push(name.clone());
            async { Ok::<_, ToolError>(Output::json(json!({ "verdict": { "kind": "ok" } }))) }
        }));
    }
    let flows = Flows::new(builder.build().unwrap());
    let run = |step: &Value, input: &Value| {
        let plan = json!({ "input": { "x": {} }, "steps": [step] });
        let run = flows.run(Plan::from_value(&plan).unwrap(), json!({ "x": input }));
        runtime().block_on(run.into_future()).unwrap()
    };
    // The plan alone shows the others.
    let rows = evaluated();
    for step in rows.iter().filter(|step| step.get("tool").is_some()) {
        let is_whole = step.to_string().contains("\"W\"");
        let input = if is_whole { json!({}) } else { json!("x") };
        let mut step = with_form(step, FORMS[0]);
        let error = run(&step, &input).error.unwrap_or_else(|| panic!("{step}"));
        assert_eq!(error.code(), Code::InvalidInput, "{step}: {error}");
        assert!(error.message().contains("a value would "), "{step}: {error}");
        assert_eq!(*called.lock().unwrap(), [""; 0], "{step}");
        step["evaluate"] = true.into();
        let outcome = run(&step, &input);
        let is_other =
            outcome.error.as_ref().is_some_and(|error| !error.message().contains("a value would "));
        assert!(outcome.status == RunStatus::Succeeded || is_other, "{step}: {:?}", outcome.error);
        called.lock().unwrap().clear();
    }
}

#[test]
fn the_steps_that_run_values_are_listed_from_the_text() {
    let text = "x: &run { id: run, code: '${{ input.x }}', evaluate: true }
input: { x: {} }
steps:
  - { id: a, code: '1' }
  - { code: '${{ input.x }}', evaluate: true }
  - id: each
    map: [1]
    steps:
      - id: b
        tool: run_command
        with: { argv: ['${{ item }}'] }
        evaluate: true
        on_error: [{ id: h, command: [x], evaluate: true }]
  - { id: sub, flow: { steps: [*run] } }
";
    let expected =
        [("step2", "code"), ("each.b", "run_command"), ("each.b:error.h", "command"), ("sub.run", "code")];
    let found = evaluated_steps(text, Format::Yaml);
    let found: Vec<(&str, &str)> = found.iter().map(|(step, what)| (step.as_str(), what.as_str())).collect();
    assert_eq!(found, expected);
    assert_eq!(evaluated_steps("steps: [", Format::Yaml), []);
}
