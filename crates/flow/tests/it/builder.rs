//! Plans in Rust beside the same plans in files.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Priority;
use toolpost_flow::{Format, Plan, PlanBuilder};

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Each member that a file may have.
const EVERYTHING: &str = "
kind: flow
name: everything
description: Each member.
input: { list: { type: array }, top: { type: integer, default: 3 } }
tools: [builtin, ./tools.py]
timeout: 3600s
failure: continue
max_parallel: 8
output: { all: '${{ steps.blocks.output }}' }
steps:
  - { id: call, description: A call., tool: x, with: { v: 1 }, priority: high, timeout: 250ms, retry: 3 }
  - { id: text, needs: call, code: 'f(v)', language: python, variables: { v: '${{ input.top }}' } }
  - { id: program, needs: [call, text], command: [ls, '-l'], when: 'input.top > 1', on_error: continue }
  - { id: limited, tool: x, pool: gpu, limit: { key: db, concurrency: 2, rate: 10/m }, heartbeat: 30s, cache: 3600s }
  - { id: pause, wait: 5ms }
  - { id: answer, signal: go, timeout: 60s }
  - { id: ok, approve: 'Continue?' }
  - id: blocks
    failure: { quorum: 1 }
    max_parallel: 2
    output: '${{ steps.one.output }}'
    parallel:
      - { id: one, tool: x, retry: { max: 2, initial: 1ms, maximum: 2s, on: [TIMEOUT] } }
      - { id: two, sequential: [{ id: a, tool: x }] }
      - { id: three, pipeline: [{ id: a, tool: x }, { id: b, tool: x, with: { v: '${{ previous }}' } }] }
      - { id: four, race: [{ id: a, tool: x }] }
  - id: each
    map: '${{ input.list }}'
    as: row
    steps: [{ tool: x, with: { v: '${{ row }}' } }]
  - id: again
    loop: { until: 'index == 2', max: 5 }
    steps: [{ id: n, tool: x }]
  - id: sub
    flow: { kind: flow, name: inner, input: { n: {} }, steps: [{ id: a, tool: x, with: { v: '${{ input.n }}' } }] }
    with: { n: 1 }
  - id: pay
    tool: x
    on_error: [{ id: note, tool: x, with: { v: '${{ error.message }}' } }]
    compensate: [{ id: back, tool: x, with: { v: '${{ output }}' } }]
";

fn everything() -> PlanBuilder {
    let call = |id: &str| Plan::step(id).tool("x");
    let with = |id: &str, value: &str| call(id).with(json!({ "v": value }));
    Plan::builder("everything")
        .description("Each member.")
        .input("list", json!({ "type": "array" }))
        .input("top", json!({ "type": "integer", "default": 3 }))
        .tools(["builtin", "./tools.py"])
        .timeout(Duration::from_hours(1))
        .failure("continue")
        .max_parallel(8)
        .output(json!({ "all": "${{ steps.blocks.output }}" }))
        .step(
            call("call")
                .description("A call.")
                .with(json!({ "v": 1 }))
                .priority(Priority::High)
                .timeout(Duration::from_millis(250))
                .retry(3),
        )
        .step(
            Plan::step("text")
                .needs("call")
                .code("f(v)")
                .language("python")
                .variable("v", "${{ input.top }}"),
        )
        .step(
            Plan::step("program")
                .needs(["call", "text"])
                .command(["ls", "-l"])
                .when("input.top > 1")
                .continue_on_error(),
        )
        .step(
            call("limited")
                .pool("gpu")
                .limit(json!({ "key": "db", "concurrency": 2, "rate": "10/m" }))
                .heartbeat(Duration::from_secs(30))
                .cache("3600s"),
        )
        .step(Plan::step("pause").wait("5ms"))
        .step(Plan::step("answer").signal("go").timeout(Duration::from_mins(1)))
        .step(Plan::step("ok").approve("Continue?"))
        .step(
            Plan::step("blocks")
                .failure(json!({ "quorum": 1 }))
                .max_parallel(2)
                .output("${{ steps.one.output }}")
                .parallel([
                    call("one")
                        .retry(json!({ "max": 2, "initial": "1ms", "maximum": "2s", "on": ["TIMEOUT"] })),
                    Plan::step("two").sequential([call("a")]),
                    Plan::step("three").pipeline([call("a"), with("b", "${{ previous }}")]),
                    Plan::step("four").race([call("a")]),
                ]),
        )
        .steps([
            Plan::step("each")
                .map("${{ input.list }}")
                .item("row")
                .steps([toolpost_flow::StepBuilder::default().tool("x").with(json!({ "v": "${{ row }}" }))]),
            Plan::step("again").until("index == 2").max_iterations(5).steps([call("n")]),
        ])
        .step(
            Plan::step("sub")
                .flow(Plan::builder("inner").input("n", json!({})).step(with("a", "${{ input.n }}")))
                .with(json!({ "n": 1 })),
        )
        .step(
            call("pay")
                .on_error([with("note", "${{ error.message }}")])
                .compensate([with("back", "${{ output }}")]),
        )
}

#[test]
fn a_plan_in_rust_is_that_of_its_file() {
    let nightly = Plan::builder("nightly")
        .description("Works through a list of a thousand items, eight at once.")
        .tools(["builtin"])
        .input("items", json!({ "type": "integer", "default": 1000, "minimum": 1 }))
        .step(
            Plan::step("each")
                .map("${{ range(1, input.items + 1) | list }}")
                .item("number")
                .max_parallel(8)
                .failure("continue")
                .steps([Plan::step("digest").tool("hash_text").with(json!({ "text": "item ${{ number }}" }))])
                .output("${{ steps.digest.output.hash[:1] }}"),
        )
        .step(
            Plan::step("count")
                .variable("digits", "${{ steps.each.output }}")
                .code("{digit: digits.count(digit) for digit in sorted(set(digits))}\n"),
        )
        .output("${{ steps.each.output | length }} items, ${{ steps.count.output.value | length }} groups");
    let write = |id: &str, content: &str| {
        let with = json!({ "path": "order-${{ input.order }}.txt", "content": content });
        Plan::step(id).tool("write_file").with(with)
    };
    let refund = Plan::builder("refund")
        .description("Pays an order back. From 100 euros on a person decides.")
        .tools(["builtin"])
        .input("order", json!({ "type": "integer" }))
        .input("euros", json!({ "type": "number", "minimum": 0 }))
        .step(
            Plan::step("decide")
                .when("${{ input.euros >= 100 }}")
                .approve("Pay ${{ input.euros }} euros for order ${{ input.order }} back?")
                .member("timeout", "2d"),
        )
        .step(
            write("reserve", "reserved: ${{ input.euros }}")
                .needs("decide")
                .compensate([write("free", "free again")]),
        )
        .step(write("pay", "paid back: ${{ input.euros }}").needs("reserve"))
        .output("order ${{ input.order }} is paid back");
    for (file, built) in [
        (EVERYTHING.to_owned(), everything()),
        (example("nightly.yaml"), nightly),
        (example("refund.yaml"), refund),
    ] {
        let read = Plan::parse(&file, Format::Yaml).unwrap();
        let built = built.build().unwrap();
        assert_eq!(built.source(), read.source());
        assert_eq!(built.hash(), read.hash());
        assert_eq!(built.to_text(), read.to_text());
        // A plan of plans, and a plan that was built.
        let outer = Plan::builder("outer").step(Plan::step("s").flow(&built).with(json!({})));
        assert_eq!(Value::from(outer)["steps"][0]["flow"], *read.source());
    }
}

#[test]
fn a_plan_is_written_as_the_file_that_it_was() {
    let mut texts: Vec<String> = ["best", "nightly", "refund", "report", "weather"]
        .iter()
        .map(|name| example(&format!("{name}.yaml")))
        .collect();
    texts.push(EVERYTHING.to_owned());
    for text in &texts {
        let read = Plan::parse(text, Format::Yaml).unwrap();
        let written = read.to_yaml();
        let again = Plan::parse(&written, Format::Yaml).unwrap_or_else(|error| panic!("{error}\n{written}"));
        assert_eq!(again.source(), read.source(), "{written}");
        assert_eq!(again.hash(), read.hash());
    }
    assert!(
        Plan::parse(&example("nightly.yaml"), Format::Yaml)
            .unwrap()
            .to_yaml()
            .contains("\nsteps:\n  - id: each\n    map: "),
        "the style of the examples"
    );
}

#[test]
fn no_text_changes_when_it_is_written() {
    let parts = [
        "",
        " ",
        "\n",
        "\t",
        "a",
        "on",
        "n",
        "~",
        "null",
        "true",
        "1",
        "1.0",
        "0x1F",
        "1e3",
        "-",
        "- a",
        "#",
        " # b",
        ": ",
        "a: b",
        "'",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "&x",
        "*x",
        "!x",
        "|",
        ">",
        "%",
        "@",
        "`",
        "---",
        "...",
        "é",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{0}",
        "\u{1b}",
        "\r",
        "\r\n",
        "2030-01-31",
        "<<",
        "=",
        "?",
        ",",
        "${{ run.id }}",
    ];
    let mut values =
        vec![json!(1), json!(-0.5), json!(1e300), json!(u64::MAX), json!(null), json!([]), json!({})];
    for first in parts {
        for second in parts {
            values.push(json!(format!("{first}{second}")));
            values.push(json!(format!("{first}\n{second}\n\n{first}")));
        }
        values.push(json!(first.repeat(200)));
        values.push(json!({ first: { "deep": [[first, {}], [], { first: null }] } }));
    }
    for value in values {
        let plan =
            Plan::builder("x").step(Plan::step("a").tool("x").with(json!({ "v": [value] }))).build().unwrap();
        let written = plan.to_yaml();
        let read =
            Plan::parse(&written, Format::Yaml).unwrap_or_else(|error| panic!("{value} {error}\n{written}"));
        assert_eq!(read.source(), plan.source(), "{written}");
    }
}

#[test]
fn a_defect_has_the_message_of_a_file() {
    let x = |id: &str| Plan::step(id).tool("x");
    for (built, file) in [
        (Plan::builder("p"), "{}"),
        (Plan::builder("p").steps([]), "steps: []"),
        (Plan::builder("p").step(Plan::step("a")), "steps: [{ id: a }]"),
        (Plan::builder("p").step(x("a b")), "steps: [{ id: a b, tool: x }]"),
        (Plan::builder("p").step(x("a").wait("1s")), "steps: [{ id: a, tool: x, wait: 1s }]"),
        (Plan::builder("p").step(x("a")).step(x("a")), "steps: [{ id: a, tool: x }, { id: a, tool: x }]"),
        (
            Plan::builder("p").step(x("a").needs("b")).step(x("b").needs(["a"])),
            "steps: [{ id: a, tool: x, needs: b }, { id: b, tool: x, needs: a }]",
        ),
        (
            Plan::builder("p").step(x("load")).step(x("b").with(json!({ "v": "${{ steps.laod.output }}" }))),
            "steps: [{ id: load, tool: x }, { id: b, tool: x, with: { v: '${{ steps.laod.output }}' } }]",
        ),
        (Plan::builder("p").step(x("a").when("1 +")), "steps: [{ id: a, tool: x, when: '1 +' }]"),
        (Plan::builder("p").step(x("a").retry("often")), "steps: [{ id: a, tool: x, retry: often }]"),
        (Plan::builder("p").step(x("a").member("wiht", 1)), "steps: [{ id: a, tool: x, wiht: 1 }]"),
        (Plan::builder("p").failure("maybe").step(x("a")), "failure: maybe\nsteps: [{ id: a, tool: x }]"),
    ] {
        let messages = |error: toolpost_flow::PlanError| {
            let problems = error.0.into_iter();
            problems.map(|problem| (problem.step, problem.message, problem.hint)).collect::<Vec<_>>()
        };
        let of_file = Plan::parse(file, Format::Yaml).map(drop).map_err(messages).expect_err(file);
        assert_eq!(built.build().map(drop).map_err(messages).expect_err(file), of_file);
    }
}
