//! Defects of plans: each is reported with its place.

use std::sync::Arc;

use serde_json::json;
use toolpost_core::{Alias, ToolSpec};
use toolpost_flow::{Format, Plan};

use crate::tools::{Ledger, plan, toolbox};

#[test]
fn a_long_expression_is_a_defect() {
    for part in ["1 + ", "not ", "(", "["] {
        let steps = format!("steps: [{{ id: a, tool: x, when: '{}1' }}]", part.repeat(20_000));
        let error = Plan::parse(&steps, Format::Yaml).unwrap_err();
        assert!(error.to_string().contains("an expression has at most 2000 bytes"), "{part}");
        let short = format!("steps: [{{ id: a, tool: x, when: '{}1' }}]", part.repeat(1_990 / part.len()));
        let _ = Plan::parse(&short, Format::Yaml);
    }
}

#[test]
fn defects_are_reported_with_line_and_column() {
    for (text, expected) in [
        ("name: x", "1:1: a plan has `steps`"),
        ("steps: []", "1:8: a block has at least one step"),
        ("steps: 5", "steps are a list, not a number"),
        ("kind: agent\nsteps: [{ tool: x }]", "1:1: the `kind` of a plan is `flow`"),
        ("steps:\n  - { id: a-b, tool: x }", "2:7: the id `a-b` has other characters"),
        ("steps:\n  - { id: a }", "step `a`: a step has one of tool, code"),
        ("steps:\n  - { id: a, tool: x, wait: 1s }", "a step does one thing, not tool and wait"),
        ("steps:\n  - { id: a, tol: x }", "a step has one of"),
        (
            "steps:\n  - { id: a, tool: x, wiht: {} }",
            "2:23: step `a`: this step has no field `wiht` (Did you mean `with`?)",
        ),
        ("steps:\n  - { id: a, tool: x }\n  - { id: a, tool: x }", "3:5: two steps have the id `a`"),
        (
            "steps:\n  - { id: load, tool: x }\n  - { id: b, tool: x, with: { v: '${{ steps.laod.output }}' } }",
            "3:5: step `b`: there is no step `laod` (Did you mean `load`?)",
        ),
        ("steps:\n  - { id: a, tool: x, needs: b }", "step `a`: there is no step `b`"),
        (
            "steps:\n  - { id: a, tool: x, with: { v: '${{ inptu.n }}' } }",
            "there is no `inptu` here (Did you mean `input`?)",
        ),
        ("steps:\n  - { id: a, tool: x, with: { v: '${{ item }}' } }", "there is no `item` here"),
        ("steps:\n  - { id: a, tool: x, with: { v: '${{ steps }}' } }", "name the step in an expression"),
        ("steps:\n  - { id: a, tool: x, with: { v: { w: '${{ 1 + }}' } } }", "`with.v.w`: `1 +`"),
        (
            "steps:\n  - { id: a, code: 'print(${{ run.id }})' }",
            "2:5: step `a`: `code`: a value would run as code (code gets values by `variables`; a step that runs a value says `evaluate: true`)",
        ),
        (
            "steps:\n  - { id: a, language: ruby, variables: { x: 1 }, code: 'p 1' }",
            "`variables` are for python, javascript, typescript, bash and sh",
        ),
        (
            "steps:\n  - { id: a, variables: { 'x;y': 1 }, code: '1' }",
            "2:27: step `a`: `x;y` is not the name of a variable",
        ),
        ("steps:\n  - { id: a, code: '1', with: { code: '2' } }", "`code` is given twice"),
        (
            "steps:\n  - { id: a, tool: x, with: { v: '${{ run.id | tojson }}' } }",
            "there is no filter `tojson`",
        ),
        (
            "steps:\n  - { id: p, output: '${{ previous }}', pipeline: [{ tool: x }] }",
            "step `p`: there is no `previous` here",
        ),
        (
            "steps:\n  - { id: s, flow: { timeout: 1x, steps: [{ tool: x }] } }",
            "step `s`: `timeout` is a duration",
        ),
        ("steps:\n  - { id: a, tool: x, when: '1 +' }", "`when`: `1 +`"),
        ("steps:\n  - { id: a, tool: x, with: { v: '${{ steps.a.output }}' } }", "which is the step itself"),
        (
            "steps:\n  - { id: a, tool: x, needs: c }\n  - { id: b, tool: x, needs: a }\n  - { id: c, tool: x, needs: b }",
            "these steps wait for each other: ",
        ),
        ("steps:\n  - { id: a, tool: x, retry: { max: 0 } }", "`max` is a whole number from 1"),
        ("steps:\n  - { id: a, tool: x, retry: { maximum: 3s } }", "`retry` has `max`"),
        ("steps:\n  - { id: a, wait: soon }", "`wait` is a duration"),
        ("steps:\n  - { id: a, wait: 1s, retry: 3 }", "`retry` is for calls"),
        ("steps:\n  - { id: a, wait: 1s, timeout: 1s }", "a `wait` has no `timeout`"),
        ("steps:\n  - { id: a, tool: x, priority: urgent }", "`urgent` is not a priority"),
        ("steps:\n  - { id: a, map: [1] }", "a map or a loop has `steps`"),
        (
            "steps:\n  - { id: a, map: [1], as: input, steps: [{ tool: x }] }",
            "`input` cannot be the name of an item",
        ),
        ("steps:\n  - { id: a, loop: {}, steps: [{ tool: x }] }", "a loop has `until`, `max` or both"),
        (
            "failure: { quorum: 3 }\nsteps:\n  - { id: a, tool: x }",
            "the quorum is 3, but the block has 1 steps",
        ),
        ("failure: maybe\nsteps:\n  - { id: a, tool: x }", "`failure` is `fail_fast`"),
        ("input: { n: { type: nothing } }\nsteps: [{ tool: x }]", "`input` is not a schema"),
        ("steps:\n  - { id: a, flow: other.yaml }", "not in other files"),
        ("steps:\n  - { id: a, tool: x, on_error: maybe }", "`on_error` is `fail`, `continue` or a list"),
        ("steps: [", "1:8: unclosed bracket"),
    ] {
        let error = Plan::parse(text, Format::Yaml).map(|_| ()).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn each_format_gives_the_same_plan() {
    let yaml = "name: x\ninput: { n: { type: integer } }\nsteps:\n  - id: a\n    tool: echo\n    with: { value: '${{ input.n }}' }\n";
    let toml = "name = 'x'\n[input.n]\ntype = 'integer'\n[[steps]]\nid = 'a'\ntool = 'echo'\nwith = { value = '${{ input.n }}' }\n";
    let json = json!({
        "steps": [{ "with": { "value": "${{ input.n }}" }, "tool": "echo", "id": "a" }],
        "input": { "n": { "type": "integer" } }, "name": "x",
    });
    let plans = [
        Plan::parse(yaml, Format::Yaml).unwrap(),
        Plan::parse(toml, Format::Toml).unwrap(),
        Plan::parse(&json.to_string(), Format::Yaml).unwrap(),
        Plan::from_value(&json).unwrap(),
    ];
    for plan in &plans {
        assert_eq!(plan.hash(), plans[0].hash());
        assert_eq!(Plan::from_value(plan.source()).unwrap().hash(), plans[0].hash());
    }
    let other = Plan::parse(&yaml.replace("input.n", "input.n + 0"), Format::Yaml).unwrap();
    assert_ne!(other.hash(), plans[0].hash());
}

#[test]
fn sub_flows_are_read_from_files_and_become_part_of_the_plan() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("main.yaml", "steps:\n  - { id: s, flow: parts/sub.toml, with: { n: 1 } }\n");
    std::fs::create_dir(directory.path().join("parts")).unwrap();
    write(
        "parts/sub.toml",
        "name = 'sub'\n[input.n]\ntype = 'integer'\n[[steps]]\nid = 'a'\ntool = 'echo'\nwith = { value = '${{ input.n }}' }\n",
    );
    let read = Plan::read(&directory.path().join("main.yaml")).unwrap();
    assert_eq!(read.source()["steps"][0]["flow"]["name"], "sub");
    assert_eq!(read.step_count(), 2);
    write("loop.yaml", "steps:\n  - { id: s, flow: loop.yaml }\n");
    let error = Plan::read(&directory.path().join("loop.yaml")).unwrap_err().to_string();
    assert!(error.contains("is a part of itself"), "{error}");
    write("parts/sub.toml", "[[steps]]\nid = 'a'\n");
    let error = Plan::read(&directory.path().join("main.yaml")).unwrap_err().to_string();
    assert!(error.contains("a step has one of"), "{error}");
    write("parts/sub.toml", "[[steps\n");
    let error = Plan::read(&directory.path().join("main.yaml")).unwrap_err().to_string();
    assert!(error.contains("sub.toml:1:"), "{error}");
}

#[test]
fn calls_are_checked_against_the_tools() {
    let specs: Vec<Arc<ToolSpec>> = toolbox(&Ledger::default()).specs();
    for (steps, expected) in [
        (
            "steps: [{ id: a, tool: ehco, with: { value: 1 } }]",
            "there is no tool `ehco` (Did you mean `echo`?)",
        ),
        ("steps: [{ id: a, tool: echo }]", "the arguments of `echo`"),
        (
            "steps: [{ id: a, tool: echo, with: { valeu: '${{ run.id }}' } }]",
            "`echo` needs the argument `value`",
        ),
        (
            "steps: [{ id: a, tool: echo, with: { value: 1, valeu: '${{ run.id }}' } }]",
            "`echo` has no argument `valeu` (Did you mean `value`?)",
        ),
        (
            "steps: [{ id: a, tool: sleep, with: { ms: x, name: '${{ run.id }}' } }]",
            "the argument `ms` of `sleep`",
        ),
        (
            "steps: [{ id: a, tool: sleep, with: { ms: 'x${{ run.id }}' } }]",
            "the argument `ms` of `sleep`: expected integer, found string",
        ),
        (
            "steps: [{ id: a, map: [1], steps: [{ id: b, tool: nope }] }]",
            "step `a.b`: there is no tool `nope`",
        ),
        (
            "input: { n: { type: integer } }\nsteps: [{ id: a, tool: echo, with: { value: 1 } }]",
            "nothing reads the input `n`",
        ),
        ("steps: [{ id: a, tool: echo, when: false, with: { value: 1 } }]", "it never runs"),
    ] {
        let problems = plan(steps).check(&specs);
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|line| line.contains(expected)), "{steps}\n{text:?}");
    }
    let good = plan(
        "input: { n: { type: integer } }
steps:
  - { id: a, tool: sleep, with: { ms: '${{ input.n }}', name: 'x${{ run.id }}' } }
  - { id: b, tool: echo, with: { value: { deep: ['${{ steps.a.output }}'] } } }",
    );
    assert_eq!(good.check(&specs), []);
}

#[test]
fn calls_by_an_alias_are_checked_as_the_tool_gets_them() {
    let mut specs: Vec<Arc<ToolSpec>> = toolbox(&Ledger::default()).specs();
    let sleep = specs.iter_mut().find(|spec| spec.name == "sleep").unwrap();
    Arc::make_mut(sleep).aliases.push(Alias::new("nap").parameter("millis", "ms").argument("name", "n"));
    for (arguments, expected) in [
        ("{ millis: 1 }", ""),
        ("{ millis: 1, name: n }", ""),
        ("{ millis: '${{ 1 }}' }", ""),
        ("{ millis: x }", "the arguments of `nap`"),
        ("{ millis: 1, ms: 2 }", "the arguments of `nap`: `millis` and `ms` are the same argument"),
        ("{ millis: 1, name: m }", "the arguments of `nap`: the alias `nap` sets `name`"),
        ("{ millis: 'x${{ run.id }}' }", "the argument `ms` of `sleep`: expected integer, found string"),
        ("{ name: '${{ run.id }}' }", "`sleep` needs the argument `ms`"),
    ] {
        let problems = plan(&format!("steps: [{{ id: a, tool: nap, with: {arguments} }}]")).check(&specs);
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let is_expected = match expected {
            "" => text.is_empty(),
            expected => text.iter().any(|line| line.contains(expected)),
        };
        assert!(is_expected, "{arguments}\n{text:?}");
    }
}

#[test]
fn a_plan_is_drawn() {
    let drawn = plan(
        "steps:
  - { id: a, tool: echo, with: { value: 1 } }
  - { id: ok, approve: 'Continue with ${{ steps.a.output }}?' }
  - id: each
    map: '${{ steps.a.output }}'
    when: steps.ok.output.approved
    steps: [{ id: b, tool: echo, with: { value: '${{ item }}' } }]",
    );
    assert_eq!(
        drawn.to_mermaid(),
        "flowchart TD
  a[\"a: echo\"]
  ok{{\"ok: approve\"}}
  a --> ok
  subgraph each[\"each: map, each item, 16 at once\"]
    each_b[\"b: echo\"]
  end
  a -.-> each
  ok -.-> each
"
    );
    assert_eq!(
        drawn.to_text(),
        "a: echo
ok: approve, after a
each: map, each `item`, 16 at once, after a, ok, when ${{ steps.ok.output.approved }}
  b: echo
"
    );
}

#[test]
fn a_drawing_has_each_step_once_and_escapes_all_text() {
    let plan = plan(
        r#"name: '<script>alert("&")</script>'
steps:
  - { id: a, description: "</title>\u0007 & 'b'", tool: echo, with: {}, retry: 2, timeout: 2h }
  - id: each
    map: [1, 2]
    steps:
      - { id: b, tool: echo, with: {}, when: "${{ item < 2 }}" }
      - { id: c, needs: b, wait: 5m }
  - { id: ok, needs: [a, each], approve: "Continue?" }
  - { id: d, needs: [ok, a], signal: "a & b" }
"#,
    );
    let drawn = plan.to_svg().unwrap();
    let count = |text: &str| drawn.matches(text).count();
    for (id, kind) in
        [("a", "echo"), ("b", "echo"), ("c", "wait 5m"), ("ok", "approval"), ("d", "signal a &amp; b")]
    {
        assert_eq!(count(&format!(">{id}</text>")), 1, "{id}: {drawn}");
        assert_eq!(count(&format!("<title>{id}: {kind}")), 1, "{id}: {drawn}");
    }
    assert_eq!(count("<tspan class=\"id\">each</tspan>"), 1, "{drawn}");
    assert!(drawn.contains("&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;"), "{drawn}");
    assert!(drawn.contains("&lt;/title&gt;\u{fffd} &amp; &#39;b&#39;"), "{drawn}");
    for badge in ["retry 2", "timeout 2h", "when"] {
        assert_eq!(count(&format!(">{badge}</text>")), 1, "{badge}: {drawn}");
    }
    // d needs a through ok: that line follows.
    assert_eq!(
        (count("marker-end"), count("class=\"line\""), count("class=\"line maybe\"")),
        (4, 4, 0),
        "{drawn}"
    );
    assert_eq!(count("<g"), count("</g>"));
    assert_eq!(drawn.chars().filter(|c| c.is_control() && *c != '\n').count(), 0);
}

#[test]
fn a_huge_plan_is_not_drawn() {
    let steps = |count: usize| {
        let steps: Vec<String> = (0..count).map(|at| format!("{{ id: s{at}, wait: 1s }}")).collect();
        plan(&format!("steps: [{}]\n", steps.join(", ")))
    };
    assert_eq!(steps(2_000).to_svg().unwrap().matches(">wait 1s</text>").count(), 2_000);
    let error = steps(2_001).to_svg().unwrap_err();
    assert_eq!(error.code(), toolpost_core::Code::Limit);
    assert_eq!(error.message(), "a drawing has at most 2000 steps, and this plan has 2001");
}
