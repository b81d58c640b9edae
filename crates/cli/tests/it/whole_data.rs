//! Data that is used is whole, or the command fails with `LIMIT`; a person reads a mark.

use crate::support::TestEnv;

/// Steps of a flow, the exit code of `flow run`, and a part of its output or its error.
const ROWS: [(&str, i32, &str); 9] = [
    (
        "steps:
  - { id: a, command: [python3, -c, \"print('A' * 3000000)\"] }
  - { id: b, tool: write_file, with: { path: out.txt, content: '${{ steps.a.output.stdout }}' } }",
        6,
        "`stdout` is truncated: it has 3,000,001 bytes, and 1,048,576 were returned",
    ),
    (
        "steps:
  - { id: a, command: [python3, -c, \"import sys; sys.stderr.write('A' * 3000000)\"] }
  - { id: b, tool: write_file, with: { path: out.txt, content: '${{ steps.a.output.stderr }}' } }",
        6,
        "`stderr` is truncated",
    ),
    (
        "steps: [{ id: a, code: 'list(range(300000))' }]\noutput: '${{ steps.a.output.value | length }}'",
        6,
        "`value` is truncated",
    ),
    (
        "steps: [{ id: m, map: [1], steps: [{ id: a, code: '\"x\" * 2000000' }] }]\noutput: '${{ steps.m.output[0].value }}'",
        6,
        "`value` is truncated",
    ),
    (
        "steps: [{ id: f, flow: { steps: [{ id: a, code: '\"x\" * 2000000' }] } }]\noutput: '${{ steps.f.output.value }}'",
        6,
        "`value` is truncated",
    ),
    // What is not used may be truncated.
    (
        "steps:
  - { id: a, command: [python3, -c, \"print('A' * 3000000)\"] }
  - { id: b, when: '${{ steps.a.output.exit_code == 0 }}', tool: calculate, with: { expression: 6*7 } }
output: '${{ steps.b.output.text }}'",
        0,
        "42",
    ),
    // Up to the limit it is whole.
    (
        "steps: [{ id: a, code: 'print(\"é\" * 500000)' }, { id: b, variables: { t: '${{ steps.a.output.stdout }}' }, code: 'len(t)' }]\noutput: '${{ steps.b.output.value }}'",
        0,
        "500001",
    ),
    // The whole error of a program.
    (
        "steps:
  - id: a
    code: |
      def f(): raise ValueError('no')
      f()",
        1,
        "in f",
    ),
    (
        "steps: [{ id: a, command: [python3, -c, \"import sys; sys.exit('one\\\\ntwo\\\\nthree')\"] }]",
        1,
        "one\n  │ two\n  │ three",
    ),
];

#[test]
fn output_that_a_flow_uses_is_whole_or_an_error() {
    let env = TestEnv::new();
    for (index, (steps, exit, expected)) in ROWS.into_iter().enumerate() {
        let file = format!("f{index}.yaml");
        env.write(&file, format!("kind: flow\nname: f{index}\n{steps}\n"));
        env.run(["trust", file.as_str()]).ok();
        let finished = env.run(["flow", "run", file.as_str(), "--yes"]).exit(exit);
        assert!(
            format!("{finished}").contains(expected) || finished.err.contains(expected),
            "{steps} {finished}"
        );
        assert!(!env.path("out.txt").exists(), "{steps}");
    }
}

#[test]
fn json_of_truncated_output_fails_and_text_is_marked() {
    let env = TestEnv::new();
    env.write("f.yaml", "kind: flow\nname: f\nsteps: [{ id: a, code: 'print(\"é\" * 1000000)' }]\n");
    env.run(["trust", "f.yaml"]).ok();
    let long = "print('é' * 1000000)";
    for (words, stdin) in [
        (&["exec", "--json", "--lang", "python", "-"][..], long),
        (&["exec", "--json", "--lang", "python", "-"], "list(range(300000))"),
        (&["exec", "--format", "jsonl", "--lang", "python", "-"], "list(range(300000))"),
        (&["call", "--json", "run_code", "language=python", "code=print('é' * 1000000)"], ""),
        (&["flow", "run", "f.yaml", "--json"], ""),
    ] {
        let finished = env.run_with(stdin, words).exit(6);
        assert!(finished.err.contains("\"LIMIT\"") && finished.err.contains("is truncated"), "{words:?}");
        // Nothing of a character is left at a gap.
        assert!(!finished.out.is_empty() && !finished.out.contains('\u{fffd}'), "{words:?}");
    }
    for words in [
        &["call", "run_code", "language=python", "code=print('é' * 1000000)"][..],
        &["flow", "run", "f.yaml"],
    ] {
        let finished = env.run(words).ok();
        assert!(finished.out.contains("bytes dropped") && finished.err.contains("is truncated"), "{words:?}");
    }
    let whole = env.run(["exec", "--json", "--max-output", "4M", "--", "python3", "-c", long]).ok();
    assert_eq!(whole.json()["stdout"]["dropped"], 0);
}

#[test]
fn a_gap_splits_no_character() {
    let env = TestEnv::new();
    for character in ["é", "€", "😀"] {
        for shift in 0..4 {
            let code = format!("print('a' * {shift} + '{character}' * 20000, end='')");
            let finished = env
                .run_with(code.as_str(), ["exec", "--json", "--max-output", "2K", "--lang", "python", "-"]);
            let stdout = finished.json()["stdout"].clone();
            let text = stdout["text"].as_str().unwrap();
            assert!(!text.contains('\u{fffd}') && text.contains(character), "{character} {shift}: {text}");
            let dropped = stdout["dropped"].as_u64().unwrap() as usize;
            let mark = format!("\n[… {dropped} bytes dropped …]\n");
            assert_eq!(text.replace(&mark, "").len() + dropped, shift + 20000 * character.len());
        }
    }
}

/// A model reads the whole output in parts: with `read_file`, and with code.
#[test]
fn the_whole_output_is_a_file_of_the_run() {
    const TURNS: &str = r#"
turns:
  - calls: [{ tool: run_code, args: { language: python, code: "for i in range(300000): print(i)" } }]
  - calls: [{ tool: run_code, args: { language: bash, code: "cd $(awk '/toolpost-outputs-/ { path = $5 } END { print path }' /proc/self/mountinfo); ls | wc -l; grep -c 7 *.txt; tail -n 1 *.txt; touch x" } }]
  - text: "{{ last.text }}"
"#;
    let env = TestEnv::new();
    env.write("s.yaml", TURNS);
    let run = ["run", "--model", "script:s.yaml", "--tools", "run_code,read_file", "-p", "Count."];
    let finished = env.run(run).ok();
    for part in ["1\n122853\n299999\n", "Read-only file system"] {
        assert!(finished.out.contains(part), "{part}: {}", finished.out);
    }
    env.run(["runs", "export", "last", "run.jsonl"]).ok();
    let exported = std::fs::read_to_string(env.path("run.jsonl")).unwrap();
    let path = exported.split('`').find(|part| part.contains("toolpost-outputs-")).unwrap().to_owned();
    assert!(!std::path::Path::new(&path).parent().unwrap().exists(), "{path}");
    // The replay has the same paths.
    env.run(["runs", "replay", "last", "--yes"]).ok();
    // A program that uses the output has no file.
    let called = env.run(["call", "run_code", "language=python", "code=print('x' * 2000000)"]).ok();
    assert!(!called.out.contains("toolpost-outputs-"), "{called}");
}
