//! Values of code on the command line: each command prints the same one, and none is lost or rounded.

use serde_json::Value;
use toolpost_sandbox::Language;

use crate::generated_values::{Batch, batches};
use crate::support::TestEnv;

/// Code, and the value that is printed.
const PYTHON: [(&str, &str); 12] = [
    ("2**100", "1267650600228229401496703205376"),
    ("[2**64, -10**25, 2**53 + 1]", "[18446744073709551616,-10000000000000000000000000,9007199254740993]"),
    ("{'n': {'deep': 2**64}}", r#"{"n":{"deep":18446744073709551616}}"#),
    ("{7}", r#"{"type":"set","text":"{7}"}"#),
    ("float('nan')", r#"{"type":"float","text":"nan"}"#),
    ("[1, b'x', range(3)]", r#"[1,{"type":"bytes","text":"b'x'"},{"type":"range","text":"range(0, 3)"}]"#),
    (
        "import datetime; datetime.date(2024, 1, 2)",
        r#"{"type":"datetime.date","text":"datetime.date(2024, 1, 2)"}"#,
    ),
    ("{1: 'a', '1': 'b'}", r#"{"type":"dict","text":"{1: 'a', '1': 'b'}"}"#),
    ("0.1 + 0.2", "0.30000000000000004"),
    ("'text'", "text"),
    ("import asyncio; await asyncio.sleep(0, {8})", r#"{"type":"set","text":"{8}"}"#),
    ("print('::result ' + str(2**64))", "::result 18446744073709551616"),
];
const JAVASCRIPT: [(&str, &str); 6] = [
    ("2n**70n", "1180591620717411303424"),
    ("[2**60, 2n**64n]", "[1152921504606846976,18446744073709551616]"),
    ("new Map([[1, 2]])", r#"{"type":"Map","text":"Map(1) { 1 => 2 }"}"#),
    ("const x = await Promise.resolve(8);\nx", "8"),
    ("({ at: new Date(0), none: undefined })", {
        r#"{"at":{"type":"Date","text":"1970-01-01T00:00:00.000Z"},"none":{"type":"undefined","text":"undefined"}}"#
    }),
    ("NaN", r#"{"type":"number","text":"NaN"}"#),
];

#[test]
fn each_command_prints_the_same_value() {
    let env = TestEnv::new().leaving_files();
    let rows = PYTHON.map(|(code, value)| ("python", code, value));
    let has_node = env.run(["exec", "--lang", "javascript", "-"]).status.success();
    if !has_node {
        println!("SKIP JavaScript in each_command_prints_the_same_value: Node.js is missing");
    }
    let others = JAVASCRIPT.map(|(code, value)| ("javascript", code, value));
    for (language, code, value) in rows.into_iter().chain(others.into_iter().filter(|_| has_node)) {
        let session = ["exec", "-q", "--session", language, "--lang", language, "-"];
        for words in [&["exec", "-q", "--lang", language, "-"][..], &session] {
            assert_eq!(env.run_with(code, words).ok().out.trim_end(), value, "{words:?} {code}");
        }
        let json = env.run_with(code, ["exec", "--json", "--lang", language, "-"]).ok().out;
        let of_json = if value == "text" { "\"text\"" } else { value.trim_start_matches("::result ") };
        assert!(json.contains(&format!("\"value\":{of_json},")), "{code}: {json}");
        let (language, code) = (format!("language={language}"), format!("code={code}"));
        let json = env.run(["call", "--json", "run_code", &language, &code]).ok().out;
        assert!(json.contains(&format!("\"value\":{of_json},")), "{code}: {json}");
        let text = env.run(["call", "run_code", &language, &code]).ok().out;
        assert!(text.starts_with(&format!("value: {of_json}\n")), "{code}: {text}");
    }
    for language in ["python", "javascript"] {
        env.run(["exec", "-q", "--session", language, "--end"]);
    }
}

#[test]
fn integers_of_a_flow_keep_their_digits() {
    let env = TestEnv::new();
    env.write(
        "f.yaml",
        "kind: flow
name: f
steps:
  - { id: big, code: '[2**64, 2**53 + 1]' }
  - { id: python, variables: { x: '${{ steps.big.output.value }}' }, code: 'sum(x)' }
  - { id: shell, language: sh, variables: { x: '${{ steps.big.output.value[0] }}' }, code: 'printf %s \"$x\"' }
output:
  whole: '${{ steps.python.output.value }}'
  text: 'n = ${{ steps.python.output.value }}'
  shell: '${{ steps.shell.output.stdout }}'
",
    );
    env.run(["trust", "f.yaml"]).ok();
    let out = env.run(["flow", "run", "f.yaml"]).ok().out;
    let sum = (1_u128 << 64) + (1 << 53) + 1;
    let expected = format!(r#"{{"whole":{sum},"text":"n = {sum}","shell":"18446744073709551616"}}"#);
    assert_eq!(out.trim_end(), expected);
    if !env.run(["exec", "--lang", "javascript", "-"]).status.success() {
        println!("SKIP JavaScript in integers_of_a_flow_keep_their_digits: Node.js is missing");
        return;
    }
    env.write(
        "j.yaml",
        "kind: flow
name: j
steps:
  - { id: big, code: '[2**64, 2**53 + 1, 2**53 - 1]' }
  - { id: js, language: javascript, variables: { x: '${{ steps.big.output.value }}' }, code: '[x[0] + 1n, x[1], typeof x[2]]' }
output: '${{ steps.js.output.value }}'
",
    );
    env.run(["trust", "j.yaml"]).ok();
    let out = env.run(["flow", "run", "j.yaml"]).ok().out;
    assert_eq!(out.trim_end(), r#"[18446744073709551617,9007199254740993,"number"]"#);
}

/// JSON whose integers beyond 64 bits are their type and text, as tools have them: other numbers would round them.
fn exact(text: &str) -> Value {
    /// Shorter integers fit.
    const MIN_DIGITS: usize = 19;
    let (mut json, mut number, mut is_string, mut is_escaped) = (String::new(), String::new(), false, false);
    for letter in text.chars().chain([' ']) {
        if !is_string && (letter.is_ascii_digit() || "+-.eE".contains(letter)) {
            number.push(letter);
            continue;
        }
        let is_integer = number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
        let fits = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
        if number.len() >= MIN_DIGITS && is_integer && !fits {
            json.extend([r#"{"type":"int","text":""#, number.as_str(), "\"}"]);
        } else {
            json.push_str(&number);
        }
        number.clear();
        is_string ^= letter == '"' && !is_escaped;
        is_escaped = is_string && letter == '\\' && !is_escaped;
        json.push(letter);
    }
    serde_json::from_str(&json).unwrap()
}

#[test]
fn generated_values_leave_each_command_equal_or_as_text() {
    let env = TestEnv::new();
    for (language, name) in [(Language::Python, "python"), (Language::JavaScript, "javascript")] {
        if !env.run(["exec", "--lang", name, "-"]).status.success() {
            println!("SKIP {name} in generated_values_leave_each_command_equal_or_as_text: it is missing");
            continue;
        }
        // The sandbox's own test has most of them.
        for seed in 0..batches().div_ceil(5) {
            let batch = Batch::new(language, 1_000 + seed);
            let code = batch.code();
            let outcome = env.run_with(code.as_str(), ["exec", "--json", "--lang", name, "-"]).ok();
            let exec = exact(&outcome.out);
            let (language, code) = (format!("language={name}"), format!("code={code}"));
            let outcome = env.run(["call", "--json", "run_code", &language, &code]).ok();
            let call = exact(&outcome.out);
            for (way, stdout, value) in [
                ("exec", &exec["stdout"]["text"], &exec["value"]),
                ("run_code", &call["result"]["stdout"], &call["result"]["value"]),
            ] {
                let fault = batch.fault(stdout.as_str().unwrap(), Some(value));
                assert_eq!(fault, None, "{way} {name} seed {seed}");
            }
        }
    }
}
