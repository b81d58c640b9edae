//! Command lines and what they print, as data.

use serde::Deserialize;
use serde_json::Value;

use super::program::run;
use super::tools::{single, toolbox};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The held part.
    name: String,
    argv: Vec<String>,
    #[serde(default)]
    stdin: String,
    /// Whether the program has one tool.
    #[serde(default)]
    single: bool,
    /// The lines of standard output.
    stdout: Vec<Value>,
    /// The lines of standard error.
    #[serde(default)]
    stderr: Vec<Value>,
    exit: u8,
}

/// Whether a value is what was expected: `"*"` is any text, and an object with the key `"..."` may have more keys.
pub(super) fn fits(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(text), Value::String(_)) if text == "*" => true,
        (Value::String(text), Value::Number(_)) if text == "#" => true,
        (Value::Object(expected), Value::Object(found)) => {
            let more = expected.contains_key("...");
            let keys = expected.iter().filter(|(key, _)| *key != "...");
            keys.clone().all(|(key, value)| found.get(key).is_some_and(|found| fits(value, found)))
                && (more || keys.count() == found.len())
        }
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len() && expected.iter().zip(found).all(|(one, other)| fits(one, other))
        }
        _ => expected == found,
    }
}

#[test]
fn every_command_line_prints_what_the_table_says() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("../../data/argv.json")).unwrap();
    assert!(rows.len() >= 45, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for row in rows {
        let words: Vec<&str> = row.argv.iter().map(String::as_str).collect();
        let toolbox = if row.single { single() } else { toolbox() };
        let ended = run(toolbox, &words, std::io::Cursor::new(row.stdin.into_bytes()));
        let (output, errors) = (ended.lines(), super::program::lines(&ended.errors));
        let good = fits(&Value::Array(row.stdout.clone()), &Value::Array(output.clone()))
            && fits(&Value::Array(row.stderr.clone()), &Value::Array(errors.clone()))
            && ended.status == row.exit;
        if !good {
            wrong.push(format!(
                "{}: {:?}\n  expected {} {} [{}]\n  found    {} {} [{}]",
                row.name,
                row.argv,
                Value::Array(row.stdout),
                Value::Array(row.stderr),
                row.exit,
                Value::Array(output),
                Value::Array(errors),
                ended.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn help_reads_like_a_command_line() {
    let help = run(toolbox(), &["--help"], std::io::empty());
    for part in ["Usage: demo TOOL", "Tools:\n  add ", "Commands:", "--resident", "Exit code:"] {
        assert!(help.output.contains(part), "{part}: {}", help.output);
    }
    assert_eq!(help.output, run(toolbox(), &[], std::io::empty()).output);
    let add = run(toolbox(), &["add", "--help"], std::io::empty()).output;
    for part in [
        "Add two numbers.",
        "Usage: demo add --a INTEGER [FLAGS]",
        "--a INTEGER",
        "The first. [required]",
        "The second. [default 10]",
        r#"demo add '{"a":1,"b":2}'"#,
    ] {
        assert!(add.contains(part), "{part}: {add}");
    }
    let only = run(single(), &["--help"], std::io::empty()).output;
    assert!(only.contains("greet"), "{only}");
    let greet = run(single(), &["greet", "--help"], std::io::empty()).output;
    assert!(greet.contains("Usage: demo --name TEXT"), "{greet}");
    assert_eq!(run(toolbox(), &["--version"], std::io::empty()).output, "demo 1.2.3\n");
}

#[test]
fn arguments_come_from_a_file() {
    let file = std::env::temp_dir().join(format!("toolpost-exec-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"a": 4, "b": 5}"#).unwrap();
    let named = format!("@{}", file.display());
    let ended = run(toolbox(), &["add", &named], std::io::empty());
    assert_eq!(ended.output, "{\"status\":\"success\",\"result\":{\"result\":9}}\n");
    // One byte more than 16 MiB is refused, and 16 MiB are read.
    std::fs::write(&file, vec![b' '; 16 * 1024 * 1024 + 1]).unwrap();
    let ended = run(toolbox(), &["add", &named], std::io::empty());
    assert!(ended.output.contains("larger than 16 MiB") && ended.status == 2, "{ended:?}");
    std::fs::remove_file(&file).unwrap();
    let ended = run(toolbox(), &["add", &named], std::io::empty());
    assert!(ended.output.contains("INVALID_PATH") && ended.status == 2, "{ended:?}");
    let ended = run(toolbox(), &["add", "-"], std::io::repeat(b' '));
    assert!(ended.output.contains("larger than 16 MiB"), "{ended:?}");
}

#[test]
fn deep_and_odd_input_is_rejected() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [deep.as_str(), "{\"a\":1", "{\"a\":1}x", "{'a':1}"] {
        let ended = run(toolbox(), &["add", text], std::io::empty());
        assert!(
            ended.output.starts_with(r#"{"status":"error","error":{"code":"INVALID_INPUT""#),
            "{ended:?}"
        );
        assert_eq!(ended.status, 2);
    }
    let ended = run(toolbox(), &["add", "-"], std::io::Cursor::new(vec![0xff, 0xfe]));
    assert!(ended.output.contains("INVALID_INPUT"), "{ended:?}");
    let ended = run(toolbox(), &["add", "-"], std::io::Cursor::new("[1]"));
    assert!(ended.output.contains("not a JSON object"), "{ended:?}");
}

#[test]
fn patterns_match_inside_the_root() {
    for tool in ["explode", "fail"] {
        let words: &[&str] = if tool == "fail" { &["fail", "--code", "INTERNAL"] } else { &["explode"] };
        let ended = run(toolbox(), words, std::io::empty());
        // The caller gets the id of the call, the author what went wrong under it.
        let id = ended.output.split("record of call ").nth(1).unwrap().split('"').next().unwrap();
        assert!(!ended.output.contains("hunter2"), "{ended:?}");
        assert!(ended.errors.starts_with(&format!("error: call {id}: ")), "{ended:?}");
        assert!(ended.errors.contains("hunter2"), "{ended:?}");
        assert_eq!(ended.status, 1);
    }
    let secret = "hunter2hunter2";
    let dry =
        run(toolbox(), &["sign_in", "--user", "ada", "--password", secret, "--dry-run"], std::io::empty());
    assert!(dry.output.contains("would_execute") && !dry.output.contains(secret), "{dry:?}");
    let short =
        run(toolbox(), &["sign_in", "--user", "ada", "--password", "zx", "--validate"], std::io::empty());
    assert!(short.output.contains("\"valid\":false") && !short.output.contains("zx"), "{short:?}");
}

#[test]
fn a_person_reads_text_and_a_pipe_json() {
    for (words, output, errors, status) in [
        (&["add", "--a", "1"][..], "11\n", "", 0),
        (&["order"], "status: shipped\nid:     7\n", "", 0),
        (&["add", "--a", "x"], "", "error: ", 1),
        (&["ad", "--a", "1"], "", "error: Unknown command: ad\nhint: Did you mean `add`?\n", 2),
        (&["count", "--to", "2"], "", "error: This tool requires --stream flag\n", 1),
    ] {
        let ended = super::program::run_for_terminal(toolbox(), words);
        assert_eq!((ended.output.as_str(), ended.status), (output, status), "{words:?}: {ended:?}");
        assert!(ended.errors.starts_with(errors), "{words:?}: {ended:?}");
        // Through a pipe nothing changes.
        let piped = run(toolbox(), words, std::io::empty());
        assert!(piped.output.starts_with('{') && piped.status == status, "{piped:?}");
    }
    // A request for the protocol gets the protocol.
    let streamed = super::program::run_for_terminal(toolbox(), &["count", "--to", "2", "--stream"]);
    assert!(streamed.lines().iter().all(Value::is_object), "{streamed:?}");
}

#[test]
fn a_program_without_the_protocol_says_so() {
    for words in [&["--mcp"][..], &["--mcp-http", "127.0.0.1:0"], &["--mcp-http=127.0.0.1:0"]] {
        for toolbox in [toolbox(), single()] {
            let ended = run(toolbox, words, std::io::empty());
            let error = &ended.lines()[0]["error"];
            assert!(error["message"].as_str().unwrap().contains("without the feature `mcp`"), "{ended:?}");
            assert!(error["suggestion"].as_str().unwrap().contains("Enable the feature `mcp`"), "{ended:?}");
            assert_eq!(ended.status, 2);
        }
    }
}
