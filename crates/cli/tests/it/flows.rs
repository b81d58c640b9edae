//! `toolpost flow`: plans are checked, run, shown, approved, killed, resumed, and are tools.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Running, TestEnv, eventually};

const SQUARES: &str = "kind: flow
name: squares
description: Multiplies numbers.
input:
  top: { type: integer, default: 2 }
steps:
  - id: each
    map: '${{ range(1, input.top + 1) | list }}'
    as: n
    steps:
      - { id: calc, tool: calculate, with: { expression: '${{ n }} * ${{ n }}' } }
    output: '${{ steps.calc.output.value }}'
";

fn world(plan: &str) -> TestEnv {
    let env = TestEnv::new();
    trust(&env, "plan.yaml", plan);
    env
}

fn trust(env: &TestEnv, name: &str, content: &str) {
    env.write(name, content);
    env.run(["trust", name]).ok();
}

/// The newest run, as `flow show` has it.
fn last(env: &TestEnv) -> Value {
    env.run(["flow", "show", "last", "--json"]).ok().json()
}

#[test]
fn a_plan_is_checked_run_and_shown() {
    let env = world(SQUARES);
    let plan = env.run(["flow", "plan", "plan.yaml"]).ok();
    assert_eq!(plan.out, "squares, 2 steps\neach: map, each `n`, 16 at once\n  calc: calculate\n", "{plan}");
    assert!(env.run(["flow", "plan", "plan.yaml", "--mermaid"]).ok().out.starts_with("flowchart TD\n"));
    let drawn = env.run(["flow", "plan", "plan.yaml", "--svg"]).ok().out;
    assert!(
        drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n") && drawn.contains(">calc</text>"),
        "{drawn}"
    );
    env.run(["flow", "plan", "plan.yaml", "--svg", "--mermaid"]).exit(2);
    assert_eq!(env.run(["flow", "run", "plan.yaml", "--dry-run"]).ok().out, "valid\n");
    let run = env.run(["flow", "run", "plan.yaml", "top=4"]).ok();
    assert_eq!(run.out, "[1,4,9,16]\n", "{run}");
    for step in ["each[0].calc", "each[3].calc", "each"] {
        assert!(run.err.contains(&format!("✓ {step}\n")), "{run}");
    }
    let shown = last(&env);
    assert_eq!(
        (&shown["state"], &shown["output"], &shown["succeeded"], &shown["input"]),
        (&json!("succeeded"), &json!([1, 4, 9, 16]), &json!(5), &json!({ "top": 4 }))
    );
    let page = env.run(["flow", "show", "last"]).ok().out;
    assert!(
        page.contains("\n✓ each  ")
            && page.contains("\n    ✓ calc  ")
            && page.contains(shown["hash"].as_str().unwrap()),
        "{page}"
    );
    let listed = env.run(["flow", "ls", "--json"]).ok().json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1);
    env.run(["flow", "rm", "last"]).ok();
    assert_eq!(env.run(["flow", "ls", "--json"]).ok().json()["runs"], json!([]));
}

#[test]
fn a_plan_is_estimated_from_its_past_runs() {
    let plan = "kind: flow
name: paid
input: { n: { type: integer } }
steps:
  - id: each
    map: [1, 2]
    steps: [{ id: share, tool: calculate, with: { expression: '6 / ${{ input.n }}' } }]
  - { id: nap, needs: each, wait: 30ms }
";
    let env = world(plan);
    let estimate = || env.run(["flow", "plan", "plan.yaml", "--json"]).ok().json()["estimate"].clone();
    assert_eq!(estimate(), Value::Null);
    for n in ["n=1", "n=2", "n=3"] {
        env.run(["flow", "run", "plan.yaml", n]).ok();
    }
    env.run(["flow", "run", "plan.yaml", "n=0"]).exit(1);
    let past = estimate();
    assert_eq!(
        (&past["runs"], &past["success_rate"], &past["same_plan"], &past["steps"]["each.share"]["runs"]),
        (&json!(4), &json!(0.75), &json!(true), &json!(3)),
        "{past}"
    );
    assert_eq!(past["steps"].as_object().unwrap().len(), 1, "{past}");
    let time = |name: &str| past["duration_ms"][name].as_f64().unwrap();
    assert!(time("p50") >= 30.0 && time("p90") >= time("p50"), "{past}");
    assert!(past["steps"]["each.share"]["p50_ms"].as_f64().unwrap() > 0.0, "{past}");
    let page = env.run(["flow", "plan", "plan.yaml"]).ok().out;
    assert!(page.starts_with("paid, 3 steps\npast runs: 4, p50 ") && page.contains(", 1 failed\n"), "{page}");
    assert!(
        page.contains("\n  share: calculate  (p50 ") && page.ends_with("\nnap: wait, after each\n"),
        "{page}"
    );
    // A changed plan has the figures of its name until it has runs of its own.
    trust(&env, "plan.yaml", &plan.replace("30ms", "1ms"));
    assert!(env.run(["flow", "plan", "plan.yaml"]).ok().out.contains(", 1 failed, of an earlier plan\n"));
    assert_eq!((&estimate()["runs"], &estimate()["same_plan"]), (&json!(4), &json!(false)));
    env.run(["flow", "run", "plan.yaml", "n=2"]).ok();
    let past = estimate();
    assert_eq!((&past["runs"], &past["same_plan"]), (&json!(1), &json!(true)), "{past}");
    trust(&env, "plan.yaml", &plan.replace("name: paid", "name: other"));
    assert_eq!(estimate(), Value::Null);
}

#[test]
fn a_run_of_a_plan_is_a_run() {
    let env = world(SQUARES);
    env.run(["flow", "run", "plan.yaml", "top=2"]).ok();
    trust(
        &env,
        "bad.yaml",
        "kind: flow\nname: bad\nsteps: [{ tool: calculate, with: { expression: '1/0' } }]\n",
    );
    env.run(["flow", "run", "bad.yaml"]).exit(1);
    let runs = env.run(["runs", "ls", "--json"]).ok().json()["runs"].clone();
    let titles: Vec<&str> =
        runs.as_array().unwrap().iter().map(|run| run["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["flow bad", "flow squares"]);
    assert_eq!((&runs[0]["success"], &runs[1]["success"]), (&json!(false), &json!(true)));
    let id = runs[1]["id"].as_str().unwrap();
    let shown = env.run(["runs", "show", id, "--json"]).ok().json();
    assert_eq!(shown["record"]["response"], "[1,4]");
    let calls = shown["record"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["calculate", "calculate"]);
    // The id is that of `flow show`, and a call leads to its run.
    assert_eq!(env.run(["flow", "show", id, "--json"]).ok().json()["id"], id);
    let call = calls[0]["id"].as_str().unwrap();
    assert_eq!(env.run(["runs", "show", call, "--json"]).ok().json()["summary"]["id"], id);
    let stats = env.run(["runs", "stats", "--json"]).ok().json();
    assert_eq!(
        (&stats["models"]["flow"]["runs"], &stats["models"]["flow"]["succeeded"]),
        (&json!(2), &json!(1))
    );
    assert!(env.run(["runs", "ls"]).ok().out.contains("flow squares"));
}

#[test]
fn the_events_of_a_run_are_lines_of_json() {
    let env = world(SQUARES);
    let run =
        env.run(["flow", "run", "plan.yaml", "top=1", "--durability", "none", "--format", "jsonl"]).ok();
    let lines: Vec<Value> = run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["step_started", "step_ended", "step_ended", "run_finished"], "{run}");
    assert_eq!((&lines[3]["output"], &lines[3]["status"]), (&json!([1]), &json!("succeeded")));
    let failed = env.run(["flow", "ls", "--json"]).exit(1);
    assert_eq!(failed.error()["code"], "NOT_FOUND", "{failed}");
}

#[test]
fn defects_have_the_file_the_line_and_the_fix() {
    let env = TestEnv::new();
    // The first check of a plan is that of its text; tools are known when the plan is opened.
    for (text, is_text, expected) in [
        (
            "kind: flow\nsteps:\n  - { id: a, tool: calculat }\n",
            false,
            "plan.yaml:3:5: step `a`: there is no tool `calculat`",
        ),
        (
            "kind: flow\nsteps:\n  - { id: a, tool: calculate, with: { expression: '${{ steps.b.output }}' } }\n",
            true,
            "plan.yaml:3:5: step `a`: there is no step `b`",
        ),
        (
            "kind: flow\nsteps:\n  - { id: a, tool: calculate, with: { expression: 5 } }\n",
            false,
            "plan.yaml:3:5: step `a`: the arguments of `calculate`",
        ),
        ("kind: flow\nsteps: [\n", false, "plan.yaml:2:8: unclosed bracket"),
    ] {
        env.write("plan.yaml", text);
        let commands = if is_text {
            vec![vec!["trust", "plan.yaml"]]
        } else {
            env.run(["trust", "plan.yaml"]).ok();
            vec![vec!["flow", "plan", "plan.yaml"], vec!["flow", "run", "plan.yaml"]]
        };
        for words in commands {
            let failed = env.run(words).exit(2);
            assert!(failed.err.contains(expected), "{text}\n{failed}");
        }
    }
    env.write("other.yaml", SQUARES);
    let failed = env.run(["flow", "run", "other.yaml"]).exit(5);
    assert!(failed.err.contains("toolpost trust other.yaml"), "{failed}");
    trust(&env, "plan.yaml", SQUARES);
    let failed = env.run(["flow", "run", "plan.yaml", "top=many"]).exit(1);
    assert!(failed.err.contains("top"), "{failed}");
}

#[test]
fn sub_flows_are_trusted_with_the_plan() {
    let env = TestEnv::new();
    env.write("sub.yaml", SQUARES);
    trust(&env, "plan.yaml", "kind: flow\nsteps:\n  - { id: s, flow: sub.yaml, with: { top: 3 } }\n");
    assert_eq!(env.run(["flow", "run", "plan.yaml"]).ok().out, "[1,4,9]\n");
    env.write("sub.yaml", SQUARES.replace("* ${{ n }}", "+ ${{ n }}"));
    let failed = env.run(["flow", "run", "plan.yaml"]).exit(5);
    assert!(failed.err.contains("trust"), "{failed}");
}

#[test]
fn a_failed_step_is_named_and_has_the_exit_code_of_its_error() {
    let env = world("kind: flow\nsteps:\n  - { id: bad, tool: calculate, with: { expression: '1 / 0' } }\n");
    let failed = env.run(["flow", "run", "plan.yaml"]).exit(1);
    assert!(
        failed.err.contains("the step `bad` failed: ") && failed.err.contains("toolpost flow show"),
        "{failed}"
    );
    let shown = last(&env);
    assert_eq!((&shown["state"], &shown["error"]["step"]), (&json!("failed"), &json!("bad")));
}

fn start(env: &TestEnv) -> Running {
    let running = env.start(["flow", "run", "plan.yaml"]);
    eventually("the step waits", || {
        let shown = env.run(["flow", "show", "last", "--json"]);
        shown.status.success() && shown.json()["waiting"] == json!(["ok"])
    });
    running
}

const ASKS: &str = "kind: flow
steps:
  - { id: a, tool: calculate, with: { expression: 2 + 3 } }
  - { id: ok, approve: 'Continue with ${{ steps.a.output.value }}?', timeout: 7d }
  - { id: b, needs: ok, tool: write_file, with: { path: out.txt, content: 'sum ${{ steps.a.output.value }}' } }
output: '${{ steps.ok.output.comment | default(run.id) }}'
";

#[test]
fn another_process_approves_or_denies_a_step() {
    let env = world(ASKS);
    let running = start(&env);
    let page = env.run(["flow", "show", "last"]).ok().out;
    assert!(page.contains("… ok  waiting, ") && page.contains("approval: Continue with 5?\n"), "{page}");
    env.run(["flow", "approve", "last", "--comment", "fine"]).ok();
    let finished = running.finish().ok();
    assert_eq!((finished.out.as_str(), env.read("out.txt").as_str()), ("fine\n", "sum 5"), "{finished}");
    assert!(finished.err.contains("ok waits: Continue with 5?"), "{finished}");
    let running = start(&env);
    env.run(["flow", "approve", "last", "ok", "--deny", "--comment", "too small"]).ok();
    let finished = running.finish().exit(5);
    assert!(finished.err.contains("the step `ok` failed: it was denied: too small"), "{finished}");
    let failed = env.run(["flow", "approve", "last"]).exit(1);
    assert!(failed.err.contains("no step of the run waits"), "{failed}");
}

#[test]
fn a_signal_answers_no_approval() {
    let env = world(ASKS);
    let running = start(&env);
    let answer = r#"{"approved":true}"#;
    let failed = env.run(["flow", "signal", "last", "ok", answer]).exit(2);
    assert!(failed.err.contains("the step `ok` is an approval, not a signal"), "{failed}");
    assert!(failed.err.contains("toolpost flow approve ") && failed.err.contains(" ok"), "{failed}");
    assert_eq!(last(&env)["state"], "waiting");
    env.run(["flow", "approve", "last", "--deny"]).ok();
    running.finish().exit(5);
    let events: Vec<Value> = last(&env)["log"].as_array().unwrap().clone();
    assert!(events.iter().any(|event| event["event"] == "answered" && event["step"] == "ok"), "{events:?}");
    assert!(events.iter().all(|event| event["event"] != "signal"), "{events:?}");
}

#[test]
fn a_user_approves_no_process_of_another_user() {
    use std::os::unix::fs::MetadataExt as _;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIP a_user_approves_no_process_of_another_user: not root");
        return;
    }
    let env = TestEnv::new().of_user(65_534).unwrap();
    trust(&env, "squares.yaml", SQUARES);
    env.run(["flow", "run", "squares.yaml"]).ok();
    trust(&env, "plan.yaml", ASKS);
    let running = env.start_as_self(["flow", "run", "plan.yaml"]);
    eventually("the step waits", || last(&env)["waiting"] == json!(["ok"]));
    let denied = env.run(["flow", "approve", "last"]).exit(5);
    assert!(denied.err.contains("belongs to the user 0, who alone approves its steps"), "{denied}");
    assert_eq!(last(&env)["state"], "waiting");
    env.run(["flow", "approve", "last", "--deny"]).ok();
    let finished = running.finish().exit(5);
    assert!(finished.err.contains("it was denied"), "{finished}");
    // Files that root has replaced or created are still the user's.
    env.run(["flow", "run", "squares.yaml"]).ok();
}

/// A machine that restarts sends SIGTERM first.
#[test]
fn a_terminated_run_is_interrupted_and_continues() {
    let env = world(ASKS).leaving_files();
    for signal in [Signal::TERM, Signal::HUP] {
        let running = start(&env);
        running.signal(signal);
        let ended = running.finish().exit(130);
        assert!(ended.err.contains("`toolpost flow resume "), "{ended}");
        assert_eq!(last(&env)["state"], "interrupted");
        env.run(["flow", "approve", "last"]).ok();
        env.run(["flow", "resume", "last"]).ok();
        assert_eq!(last(&env)["state"], "succeeded");
    }
}

#[test]
fn a_killed_run_is_interrupted_and_continues() {
    let env = world(ASKS).leaving_files();
    let running = start(&env);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().status.code(), None);
    assert_eq!(last(&env)["state"], "interrupted");
    // No process runs it: the approval waits for the process that continues it.
    let listed = env.run(["flow", "ls"]).ok().out;
    assert!(listed.contains("interrupted") && listed.contains("1 steps, waits for ok · "), "{listed}");
    let page = env.run(["flow", "show", "last"]).ok().out;
    assert!(page.contains(", deadline 2") && page.contains("Z, approval: Continue with 5?"), "{page}");
    let approved = env.run(["flow", "approve", "last"]).ok();
    assert!(approved.err.contains("toolpost flow resume"), "{approved}");
    let second = env.run(["flow", "approve", "last", "--deny"]).exit(1);
    assert!(second.err.contains("the step `ok` already has an answer: approved"), "{second}");
    assert!(env.run(["flow", "show", "last"]).ok().out.contains("pending    answer ok {"));
    let resumed = env.run(["flow", "resume", "last"]).ok();
    assert!(!resumed.err.contains("waits"), "{resumed}");
    assert_eq!(env.read("out.txt"), "sum 5");
    let shown = last(&env);
    let calls = |step: &str| {
        let is_end = |event: &&Value| event["event"] == "step_succeeded" && event["step"] == step;
        shown["log"].as_array().unwrap().iter().filter(is_end).count()
    };
    assert_eq!((calls("a"), calls("b")), (1, 1), "{shown}");
    let failed = env.run(["flow", "resume", "last"]).exit(1);
    assert!(failed.err.contains("the run has ended (succeeded)"), "{failed}");
}

#[test]
fn a_run_is_cancelled_by_ctrl_c_and_by_another_process() {
    let env = world(ASKS);
    let running = start(&env);
    running.signal(Signal::INT);
    running.finish().exit(130);
    assert_eq!(last(&env)["state"], "cancelled");
    let running = start(&env);
    let failed = env.run(["flow", "resume", "last"]).exit(1);
    assert!(failed.err.contains("is running in another process"), "{failed}");
    env.run(["flow", "cancel", "last", "--reason", "not today"]).ok();
    let finished = running.finish().exit(130);
    assert!(finished.err.contains("not today"), "{finished}");
}

#[test]
fn a_signal_carries_a_value() {
    let env = world(
        "kind: flow\nsteps:\n  - { id: s, signal: ok }\n  - { id: c, tool: calculate, with: { expression: '${{ steps.s.output.n }} + 1' } }\noutput: '${{ steps.c.output.value }}'\n",
    );
    let running = start(&env);
    env.run(["flow", "signal", "last", "ok", "{\"n\": 41}"]).ok();
    assert_eq!(running.finish().ok().out, "42\n");
}

#[test]
fn a_flow_is_a_tool_of_every_command() {
    let env = world(SQUARES);
    let called = env.run(["call", "plan.yaml", "top=3"]).ok();
    assert_eq!(called.out, "[1,4,9]\n", "{called}");
    let listed = env.run(["tools", "plan.yaml", "--json"]).ok().out;
    assert!(listed.contains("\"squares\"") && listed.contains("Multiplies numbers."), "{listed}");
    let record = env.run(["call", "plan.yaml", "top=2", "--format", "jsonl"]).ok().record();
    assert_eq!(record["tool"], "squares", "{record}");
    let failed = env.run(["call", "plan.yaml", "top=x"]).exit(1);
    assert!(failed.err.contains("top"), "{failed}");
}

/// The plan of docs/flows.md.
#[test]
fn the_plan_of_the_guide_runs_as_printed() {
    let guide = include_str!("../../../../docs/flows.md");
    let plan = guide.split("```yaml file=report.yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let env = world(plan);
    env.run(["flow", "plan", "plan.yaml"]).ok();
    let run = env.run(["flow", "run", "plan.yaml", "topic=river", "--yes"]).ok();
    assert_eq!(run.out, "[\"river 1: 2\",\"river 2: 8\",\"river 3: 18\"]\n", "{run}");
    assert_eq!(env.read("report.txt"), "river 1: 2\nriver 2: 8\nriver 3: 18");
}

/// A value that would be code in any text around it.
const HOSTILE: &str = "'; touch stolen #\"); import os; os.system('touch stolen') #\n$(touch stolen)";

#[test]
fn programs_fail_their_steps_and_values_never_become_code() {
    let env = world(
        "kind: flow
input: { text: { type: string } }
steps:
  - { id: python, variables: { text: '${{ input.text }}', n: 2 }, code: '[text] * n' }
  - { id: shell, language: sh, variables: { text: '${{ input.text }}' }, code: 'printf %s \"$text\"' }
  - { id: argv, command: [printf, '%s', '${{ input.text }}'] }
  - { id: exit, code: \"import sys\\nsys.exit('first\\\\nlast')\", on_error: continue }
  - { id: killed, command: [sh, -c, 'kill -9 $$'], on_error: continue }
  - { id: slow, code: 'import time; time.sleep(60)', with: { timeout: 0.5 }, on_error: continue }
  - id: again
    command: [sh, -c, 'test -e once || { touch once; exit 7; }']
    retry: { max: 1, initial: 1ms }
  - { id: raw, tool: run_code, with: { language: python, code: exit(3) } }
output:
  texts: ['${{ steps.python.output.value }}', '${{ steps.shell.output.stdout }}', '${{ steps.argv.output.stdout }}']
  errors: ['${{ steps.exit.error.message }}', '${{ steps.killed.error.message }}', '${{ steps.slow.error.code }}']
  codes: ['${{ steps.again.output.exit_code }}', '${{ steps.raw.output.exit_code }}']
",
    );
    let input = json!({ "text": HOSTILE }).to_string();
    let run = env.run(["flow", "run", "plan.yaml", &input]).ok();
    assert_eq!(
        serde_json::from_str::<Value>(&run.out).unwrap(),
        json!({
            "texts": [[HOSTILE, HOSTILE], HOSTILE, HOSTILE],
            "errors": [
                "the program ended with exit status 1:\nfirst\nlast",
                "the program was ended by signal 9",
                "TIMEOUT",
            ],
            "codes": [0, 3],
        }),
        "{run}"
    );
    assert!(!env.path("stolen").exists(), "{run}");
}

/// Plans in which a value decides what runs, with their built-in tools.
const EVALUATED: [(&str, &str); 14] = [
    ("code: '${{ steps.a.output.value }}'", "`code`: a value would run as code"),
    ("code: \"x = '${{ steps.a.output.value }}'\"", "`code`: a value would run as code"),
    ("{ language: sh, code: 'echo ${{ steps.a.output.value }}' }", "`code`: a value would run as code"),
    ("command: '${{ steps.a.output.value }}'", "`command`: a value would name the program"),
    ("command: ['${{ steps.a.output.value }}', b]", "`command.0`: a value would name the program"),
    ("command: [sh, -c, '${{ steps.a.output.value }}']", "`command.2`: a value would run as code"),
    (
        "{ command: [python3], with: { stdin: '${{ steps.a.output.value }}' } }",
        "`stdin`: a value would run as code",
    ),
    (
        "{ tool: run_code, with: { language: python, code: '${{ steps.a.output.value }}' } }",
        "`code`: a value would run as code",
    ),
    (
        "{ tool: run_code, with: { language: '${{ steps.a.output.value }}', code: '1' } }",
        "`language`: a value would name the program",
    ),
    (
        "{ tool: run_code, with: \"${{ {'language': 'python', 'code': steps.a.output.value} }}\" }",
        "`with`: a value would run as code",
    ),
    (
        "{ tool: python_code_executor, with: { code: '${{ steps.a.output.value }}' } }",
        "`code`: a value would run as code",
    ),
    (
        "{ tool: run_command, with: { argv: '${{ steps.a.output.value }}' } }",
        "`argv`: a value would name the program",
    ),
    (
        "{ tool: run_command, with: { argv: [env, '${{ steps.a.output.value }}'] } }",
        "`argv.1`: a value would run as code",
    ),
    (
        "{ tool: run_command, with: { argv: [sh], stdin: '${{ steps.a.output.value }}' } }",
        "`stdin`: a value would run as code",
    ),
];

fn evaluating(step: &str) -> String {
    let members = step.trim_start_matches('{').trim_end_matches('}');
    let step = if step.starts_with('{') { members.to_owned() } else { format!(" {step} ") };
    format!(
        "kind: flow\nsteps:\n  - {{ id: a, code: '\"print(7)\"' }}\n  - {{ id: b,{step}MORE }}\noutput: '${{{{ steps.b.output.stdout }}}}'\n"
    )
}

#[test]
fn a_value_runs_as_code_only_with_evaluate() {
    let env = TestEnv::new();
    for (step, expected) in EVALUATED {
        let plan = evaluating(step);
        env.write("plan.yaml", plan.replace("MORE", ""));
        // The meaning of a tool's arguments is known when the plan is opened.
        let commands = if step.contains("tool: ") {
            env.run(["trust", "plan.yaml"]).ok();
            vec![
                vec!["flow", "plan", "plan.yaml"],
                vec!["flow", "run", "plan.yaml"],
                vec!["tools", "plan.yaml"],
            ]
        } else {
            vec![vec!["trust", "plan.yaml"]]
        };
        for words in commands {
            let failed = env.run(words).exit(2);
            assert!(failed.err.contains(&format!("step `b`: {expected}")), "{step}\n{failed}");
            assert!(failed.err.contains("`evaluate: true`"), "{failed}");
        }
        env.write("plan.yaml", plan.replace("MORE", ", evaluate: true"));
        let trusted = env.run(["trust", "plan.yaml"]).ok();
        assert!(trusted.err.contains("step `b` runs values as code ("), "{trusted}");
        let listed = env.run(["trust"]).ok();
        assert!(listed.out.contains("step `b` runs values as code ("), "{listed}");
        let shown = env.run(["flow", "plan", "plan.yaml"]).ok();
        assert!(shown.out.contains(", runs values as code"), "{shown}");
        assert_eq!(env.run(["flow", "plan", "plan.yaml", "--json"]).ok().json()["evaluated"], json!(["b"]));
    }
    let plan = evaluating(EVALUATED[0].0);
    trust(&env, "sub.yaml", &plan.replace("MORE", ", evaluate: true"));
    assert_eq!(env.run(["flow", "run", "sub.yaml"]).ok().out, "7\n");
    env.write("outer.yaml", "kind: flow\nsteps: [{ id: s, flow: sub.yaml }]\n");
    let trusted = env.run(["trust", "outer.yaml"]).ok();
    assert!(trusted.err.contains("`sub.yaml`: step `b` runs values as code (code)"), "{trusted}");
}

#[test]
fn options_of_a_run_count() {
    let env = world(
        "kind: flow
steps:
  - { id: a, tool: write_file, with: { path: a.txt, content: a } }
  - { id: b, tool: write_file, with: { path: b.txt, content: b } }
",
    );
    std::fs::create_dir(env.path("below")).unwrap();
    let events = |more: &[&str]| -> Vec<String> {
        let words = ["flow", "run", "plan.yaml", "--format", "jsonl", "--workdir", "below"];
        let run = env.run(words.iter().chain(more)).ok();
        let lines = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(events(&[])[..2], ["step_started", "step_started"]);
    assert_eq!(events(&["--max-parallel", "1"])[..2], ["step_started", "step_ended"]);
    assert!(env.path("below/a.txt").exists() && !env.path("a.txt").exists());
    assert_eq!(
        env.run(["flow", "ls", "--limit", "1", "--json"]).ok().json()["runs"].as_array().unwrap().len(),
        1
    );

    let denied = env.run(["flow", "run", "plan.yaml", "--ask", "--no-input"]).exit(5);
    assert!(denied.err.contains("the step `a` failed"), "{denied}");
    let listed = |options: &[&str]| {
        let runs = env.run(["flow", "ls", "--json"].iter().chain(options)).ok().json()["runs"].clone();
        runs.as_array().unwrap().len()
    };
    assert_eq!([listed(&["--status", "succeeded"]), listed(&["--status", "failed"])], [2, 1]);
    assert_eq!(
        [listed(&["--name", "other"]), listed(&["--since", "1h"]), listed(&["--since", "1us"])],
        [0, 3, 0]
    );
    env.run(["flow", "ls", "--status", "done"]).exit(2);

    trust(&env, "squares.yaml", SQUARES);
    trust(&env, "uses.yaml", "kind: flow\nsteps:\n  - { id: s, tool: squares, with: { top: 3 } }\n");
    env.run(["flow", "run", "uses.yaml"]).exit(2);
    assert_eq!(env.run(["flow", "run", "uses.yaml", "--tools", "./squares.yaml"]).ok().out, "[1,4,9]\n");
}

#[test]
fn the_steps_of_a_run_are_a_tree_with_skipped_blocked_and_failed_ones() {
    let env = world(
        "kind: flow
failure: continue
steps:
  - id: each
    map: '${{ range(0, 12) | list }}'
    as: n
    failure: continue
    steps:
      - { id: calc, tool: calculate, with: { expression: '1 / (${{ n }} - 7)' }, retry: { max: 1, initial: 1ms, on: [INVALID_INPUT] } }
      - { id: twice, needs: calc, tool: calculate, with: { expression: 2 * 2 } }
  - { id: use, needs: each, tool: calculate, with: { expression: 1 + 1 } }
  - { id: maybe, when: '${{ false }}', approve: 'Sure?' }
  - { id: ask, approve: 'Now?', timeout: 10ms, on_error: continue }
  - id: fixed
    tool: calculate
    with: { expression: 1 / 0 }
    on_error: [{ id: fix, tool: calculate, with: { expression: 1 + 4 } }]
",
    );
    env.run(["flow", "run", "plan.yaml", "--no-input"]).exit(1);
    let page = env.run(["flow", "show", "last"]).ok().out;
    for part in [
        "✗ each  ",
        "\n  ✗ [7]  ",
        "\n    ✗ calc  ",
        " 2 attempts  INVALID_INPUT: division by zero",
        "\n    - twice  blocked\n  12 items: 11 succeeded, 1 failed\n",
        "- maybe  skipped\n",
        "- use  blocked\n",
        "✗ ask  ",
        "approval: Now?  TIMEOUT: no answer in time\n",
        "✓ fixed  ",
        "\n  ✓ on error  ",
        "\n    ✓ fix  ",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(page.matches("INVALID_INPUT: division by zero").count(), 3, "{page}");
    let steps = last(&env)["steps"].clone();
    let find = |steps: &Value, id: &str| {
        let step = steps.as_array().unwrap().iter().find(|step| step["id"] == id);
        step.unwrap_or_else(|| panic!("no {id}: {steps}")).clone()
    };
    let each = find(&steps, "each");
    assert_eq!(each["steps"].as_array().unwrap().len(), 12);
    let calc = find(&find(&each["steps"], "[7]")["steps"], "calc");
    assert_eq!(
        (&calc["path"], &calc["status"], &calc["attempts"], &calc["error"]["code"], &calc["tool"]),
        (&json!("each[7].calc"), &json!("failed"), &json!(2), &json!("INVALID_INPUT"), &json!("calculate"))
    );
    assert!(calc["duration_ms"].as_f64().unwrap() >= 1.0, "{calc}");
    assert_eq!(find(&steps, "ask")["waits_for"], json!({ "approval": "Now?" }));
    assert_eq!(find(&steps, "maybe")["status"], "skipped");
    assert_eq!(find(&steps, "use")["status"], "blocked");
    assert_eq!(find(&find(&steps, "fixed")["steps"], ":error")["status"], "succeeded");
}

#[test]
fn a_run_that_is_not_stored_is_not_to_be_shown() {
    let env = world("kind: flow\nname: bad\nsteps: [{ tool: calculate, with: { expression: '1/0' } }]\n");
    let hint = "`toolpost flow show";
    assert!(env.run(["flow", "run", "plan.yaml"]).exit(1).err.contains(hint));
    let failed = env.run(["flow", "run", "plan.yaml", "--durability", "none"]).exit(1);
    assert!(!failed.err.contains(hint), "{failed}");
}

/// The final content of a terminal: erased lines are gone.
fn remaining(shown: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in shown.split('\n') {
        // Each drawing begins with a movement up and an erasure.
        let (up, line) = match line.split_once("A\r\u{1b}[J") {
            Some((up, rest)) => (up.rsplit('[').next().unwrap().parse().unwrap(), rest),
            None => (0, line),
        };
        lines.truncate(lines.len() - up);
        lines.push(line);
    }
    lines.join("\n")
}

const NAPS: &str = "kind: flow
steps:
  - id: each
    map: [0.1, 0.1, 0.5]
    max_parallel: 2
    steps: [{ id: nap, command: [sleep, '${{ item | string }}'] }]
  - { id: last, needs: each, command: [sleep, '0.3'] }
output: '${{ steps.last.status }}'
";

#[test]
fn a_terminal_shows_what_runs_and_what_remains_is_lines() {
    let mut env = world(NAPS);
    env = env.with("TERM", "xterm");
    let finished = env.on_terminal("", ["flow", "run", "plan.yaml", "--color", "never"]).ok();
    for part in [
        "items 0/3\r\n",
        "items 2/3\r\n",
        "  … each[2].nap  run_command  0 s\r\n",
        " of ",
        " · 1 running · 0 s\r\n",
    ] {
        assert!(finished.out.contains(part), "{part}: {finished}");
    }
    let mut lines: Vec<String> =
        remaining(&finished.out).lines().map(|line| line.trim_end().to_owned()).collect();
    lines[..3].sort();
    assert_eq!(
        lines,
        ["✓ each[0].nap", "✓ each[1].nap", "✓ each[2].nap", "✓ each", "✓ last", "succeeded"],
        "{finished}"
    );
    // In a pipe there are the lines alone.
    let run = env.run(["flow", "run", "plan.yaml"]).ok();
    assert!(!run.err.contains("running") && run.err.ends_with("✓ each\n✓ last\n"), "{run}");
}

#[test]
fn an_interrupt_erases_what_runs() {
    let mut env = world(&NAPS.replace("0.5", "60"));
    env = env.with("TERM", "xterm");
    let (screen, running) = env.start_on_terminal("", ["flow", "run", "plan.yaml", "--color", "never"]);
    screen.wait_for("items 2/3", 1);
    running.signal(Signal::INT);
    let finished = env.shown(screen, running).exit(130);
    let remaining = remaining(&finished.out);
    assert!(!remaining.contains(" steps") && remaining.contains("\nerror: "), "{remaining}\n{finished}");
}
