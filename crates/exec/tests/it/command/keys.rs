//! Each key does something: a test that fails when it is ignored.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Approval, Code, Hint, Placement, StartCheck, Timeout, ToolError};
use toolpost_exec::command::CommandTools;
use toolpost_sandbox::Level;

use crate::command::support::{Run, description, read, spec};
use crate::host::sandbox_or_skip;

/// A tool that runs a script of bash, whose braces are doubled.
fn bash(script: &str, file: &str, tool: &str) -> String {
    description("bash", file, &format!("args = [\"-c\", '''{script}''']\n{tool}"))
}

#[test]
fn the_description_is_in_the_spec() {
    let text = description(
        "p",
        "category = \"c\"\ngroup = \"g.h\"\ntags = [\"one\"]\n",
        r#"title = "T"
tags = ["two", "one"]
read_only = true
idempotent = true
open_world = true
args = ["{a}", "{b}", "{c}"]

[tool.parameters.a]
type = "string"
description = "A."
minLength = 1
maxLength = 9
pattern = "^x"
example = "xa"

[tool.parameters.b]
type = "array"
description = "B."
items = { type = "integer", description = "I.", minimum = 1, maximum = 3 }
minItems = 1
maxItems = 2
uniqueItems = true
optional = true

[tool.parameters.c]
type = "url"
description = "C."
default = "https://example.com"
enum = ["https://example.com", "https://example.org"]

[[tool.example]]
args = { a = "xy" }
output = "done"
"#,
    );
    let spec = spec(&text);
    assert_eq!((spec.title.as_deref(), spec.description.as_str()), (Some("T"), "Test."));
    assert_eq!((spec.category.as_deref(), spec.group.as_deref()), (Some("c"), Some("g.h")));
    assert_eq!(spec.tags, ["one", "two"]);
    let annotations = spec.annotations;
    assert!(
        annotations.read_only && annotations.idempotent && annotations.open_world && !annotations.destructive
    );
    assert_eq!(spec.examples[0].args, json!({ "a": "xy" }));
    assert_eq!(spec.examples[0].output, Some(json!("done")));
    assert_eq!(spec.meta["program"], "p");
    assert_eq!(
        *spec.input_schema.as_value(),
        json!({
            "type": "object",
            "properties": {
                "a": {
                    "type": "string", "description": "A.", "minLength": 1, "maxLength": 9, "pattern": "^x",
                    "examples": ["xa"]
                },
                "b": {
                    "type": "array", "description": "B.", "minItems": 1, "maxItems": 2, "uniqueItems": true,
                    "items": { "type": "integer", "description": "I.", "minimum": 1, "maximum": 3 }
                },
                "c": {
                    "type": "string", "format": "uri", "description": "C.",
                    "enum": ["https://example.com", "https://example.org"], "default": "https://example.com"
                }
            },
            "required": ["a"],
            "additionalProperties": false
        })
    );
    let names: Vec<&String> =
        spec.input_schema.as_value()["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["a", "b", "c"], "the order of the file");
    // What stands at the tool goes before what stands at the file.
    let own =
        self::spec(&description("p", "category = \"c\"\ngroup = \"g\"", "category = \"d\"\ngroup = \"h\""));
    assert_eq!((own.category.as_deref(), own.group.as_deref()), (Some("d"), Some("h")));
}

#[test]
fn every_keyword_of_a_parameter_reaches_the_schema() {
    let keywords = [
        ("number", "exclusiveMinimum", "1"),
        ("number", "exclusiveMaximum", "1"),
        ("number", "multipleOf", "2"),
        ("number", "minimum", "1"),
        ("number", "maximum", "1"),
        ("any", "const", "1"),
        ("string", "format", "\"email\""),
        ("object", "minProperties", "1"),
        ("object", "maxProperties", "1"),
        ("object", "additionalProperties", "false"),
        ("object", "properties", "{ a = { type = \"string\" } }"),
    ];
    for (kind, keyword, value) in keywords {
        let parameter =
            format!("[tool.parameters.x]\ntype = \"{kind}\"\ndescription = \"X.\"\n{keyword} = {value}");
        let spec = spec(&description("p", "", &format!("args = [\"{{x}}\"]\n{parameter}")));
        let schema = &spec.input_schema.as_value()["properties"]["x"];
        let expected: Value =
            serde_json::from_str(value).unwrap_or_else(|_| json!({ "a": { "type": "string" } }));
        assert_eq!(schema[keyword], expected, "{keyword}");
    }
}

#[test]
fn the_policy_of_a_tool_overrides_the_file() {
    let policy = "timeout = \"5s\"\nretries = 4\nconcurrency = 3\nrate = \"2/s\"\ncache = \"1m\"\napproval = \"deny\"\noutput_limit_bytes = 99\n";
    let of = |file: &str, tool: &str| {
        spec(&description("p", file, &format!("idempotent = true\n{tool}"))).policy.clone()
    };
    for policy in [
        of(&format!("[policy]\n{policy}"), ""),
        of("", &format!("[tool.policy]\n{policy}")),
        of(
            "[policy]\ntimeout = \"9s\"\nretries = 9\nconcurrency = 9\nrate = \"9/s\"\ncache = \"9m\"\napproval = \"allow\"\noutput_limit_bytes = 9",
            &format!("[tool.policy]\n{policy}"),
        ),
    ] {
        assert_eq!(policy.timeout, Some(Timeout::After(Duration::from_secs(5))));
        assert_eq!(policy.retry.map(|retry| retry.attempts), Some(4));
        assert_eq!(policy.concurrency, Some(3));
        assert_eq!(policy.rate, Some("2/s".parse().unwrap()));
        assert_eq!(policy.cache, Some(Duration::from_mins(1)));
        assert_eq!(policy.approval, Some(Approval::Deny));
        assert_eq!(policy.output_limit, Some(99));
        assert_eq!(policy.placement, Placement::Blocking);
    }
    assert_eq!(spec(&description("p", "", "destructive = true")).policy.approval, Some(Approval::Ask));
    assert_eq!(spec(&description("p", "", "")).policy.approval, None);
}

#[tokio::test]
async fn standard_input_environment_and_directory_are_set() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
    std::fs::write(directory.path().join("a/b/here"), "").unwrap();
    let text = bash(
        "cat; echo \"$FIXED $GIVEN ${{ABSENT-absent}} $OVER\"; ls",
        "env = { FIXED = \"f\", OVER = \"file\" }",
        r#"read_only = true
stdin = "<{input}>"
directory = "{where}"
env = { GIVEN = "g={input}", ABSENT = "{none}", OVER = "tool" }
[tool.parameters.input]
type = "string"
optional = true
description = "I."
[tool.parameters.none]
type = "string"
optional = true
description = "N."
[tool.parameters.where]
type = "file"
default = "."
description = "W."
"#,
    );
    let run = |args: Value| Run::new(&text, args).directory(directory.path());
    assert_eq!(
        run(json!({ "input": "in\n", "where": "a/b" })).text().await,
        "<in\n>f g=in\n absent tool\nhere\n"
    );
    assert_eq!(run(json!({})).text().await, "f  absent tool\na\n");
    for place in ["a/none", "..", "/etc"] {
        let error = run(json!({ "where": place })).error().await;
        assert_eq!(error.code(), Code::InvalidPath, "{place} {error}");
    }
}

#[tokio::test]
async fn a_working_directory_is_required_optional_or_never_shown() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("here"), "").unwrap();
    let text = |key: &str| bash("ls", "", &format!("read_only = true\n{key}"));
    for (key, expected) in
        [("", "here\n"), ("working_directory = \"required\"", "here\n"), ("working_directory = \"none\"", "")]
    {
        assert_eq!(
            Run::new(&text(key), json!({})).directory(directory.path()).text().await,
            expected,
            "{key}"
        );
    }
    assert_eq!(Run::new(&text(""), json!({})).text().await, "");
    let error = Run::new(&text("working_directory = \"required\""), json!({})).error().await;
    assert_eq!(error.code(), Code::Precondition);
    assert!(error.suggestion().unwrap().contains("Set a working directory"), "{error}");
}

#[tokio::test]
async fn a_read_only_tool_cannot_write_and_others_return_files() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let script = "echo text > made 2>/dev/null && echo written || echo refused";
    let run = |tool: &str| Run::new(&bash(script, "", tool), json!({})).directory(directory.path());
    assert_eq!(run("read_only = true").text().await, "refused\n");
    assert!(!directory.path().join("made").exists());
    let output = run("").output().await;
    assert_eq!(output.to_text(), "written\n");
    assert_eq!(output.artifacts.len(), 1);
    assert_eq!((output.artifacts[0].name.as_str(), output.artifacts[0].size), ("made", 5));
    assert_eq!(std::fs::read(directory.path().join("made")).unwrap(), b"text\n");
    let report = &output.evidence.unwrap().sandbox.unwrap()["report"];
    assert_eq!(report["effective"], "standard");
}

/// The result of a tool that prints this.
async fn parsed(output: &str, printed: &str) -> Value {
    let text = description(
        "cat",
        "",
        &format!(
            "stdin = \"{{x}}\"\n[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\n[tool.output]\n{output}"
        ),
    );
    let reply = Run::new(&text, json!({ "x": printed })).reply().await;
    match reply.result {
        Ok(output) => output.result_value(),
        Err(error) => json!(format!("{}: {}", error.code(), error.message())),
    }
}

fn items(items: &Value, truncated: bool) -> Value {
    json!({ "items": items, "truncated": truncated })
}

#[tokio::test]
async fn output_becomes_what_its_format_says() {
    let Some(()) = sandbox_or_skip() else { return };
    let rows = [
        ("format = \"text\"", "a\nb\n", json!("a\nb\n")),
        ("format = \"lines\"", "a\r\n\nb", items(&json!(["a", "b"]), false)),
        ("format = \"lines\"\nlimit = 1", "a\nb\n", items(&json!(["a"]), true)),
        ("format = \"lines\"\nlimit = 2", "a\nb\n", items(&json!(["a", "b"]), false)),
        ("format = \"lines\"\nrecord_separator = \"--\"", "a--b\nc--", items(&json!(["a", "b\nc"]), false)),
        ("format = \"lines\"\nlimit_bytes = 4", "a\nb\ncdefghi", items(&json!(["a", "b"]), true)),
        ("format = \"json\"", " {\"a\": [1]}\n", json!({ "a": [1] })),
        ("format = \"json\"\nempty = []", " \n", json!([])),
        ("format = \"json\"", "", Value::Null),
        ("format = \"json_lines\"", "{\"a\":1}\n\"b\" 3", items(&json!([{ "a": 1 }, "b", 3]), false)),
        ("format = \"json_lines\"\nlimit = 1", "1 2", items(&json!([1]), true)),
        ("format = \"json_lines\"\nlimit_bytes = 4", "[1]\n[2]\n[33333]", items(&json!([[1]]), true)),
        (
            "format = \"captures\"\npattern = '^(?<n>\\d+)(?: (?<t>\\w+))?$'\ntypes = { n = \"integer\" }",
            "1 a\nnothing\n2\n",
            items(&json!([{ "n": 1, "t": "a" }, { "n": 2 }]), false),
        ),
        ("format = \"captures\"\npattern = '^(?<n>\\d+)'\nsingle = true", "x\n7 a\n8\n", json!({ "n": "7" })),
        (
            "format = \"captures\"\npattern = '(?s)^(?<a>.*)$'\nrecord_separator = \"\\u001E\"\nlimit = 1",
            "a\nb\u{1e}c\u{1e}",
            items(&json!([{ "a": "a\nb" }]), true),
        ),
        (
            "format = \"fields\"\ncolumns = [\"n\", \"b\", \"rest\"]\ntypes = { n = \"number\", b = \"boolean\" }",
            "1.5\tyes\tx\ty\n\tfalse\n",
            items(&json!([{ "n": 1.5, "b": true, "rest": "x\ty" }, { "b": false }]), false),
        ),
        (
            "format = \"fields\"\ncolumns = [\"a\", \"b\"]\nfield_separator = \"::\"\nsingle = true",
            "1::2",
            json!({ "a": "1", "b": "2" }),
        ),
        (
            "format = \"csv\"\ntypes = { n = \"integer\" }",
            "n,t\n1,\"a, \"\"b\"\"\"\n",
            items(&json!([{ "n": 1, "t": "a, \"b\"" }]), false),
        ),
        ("format = \"csv\"\ncolumns = [\"a\"]\nlimit = 1", "1\n2\n", items(&json!([{ "a": "1" }]), true)),
    ];
    for (output, printed, expected) in rows {
        assert_eq!(parsed(output, printed).await, expected, "{output} {printed:?}");
    }
    let wrong = [
        (
            "format = \"json\"",
            "{",
            "DEPENDENCY: the output of `cat` does not match its description: it is not one JSON value",
        ),
        ("format = \"json\"\nlimit_bytes = 4", "\"1234567890\"", "LIMIT: `cat` printed more than 4 bytes"),
        (
            "format = \"json_lines\"",
            "1 x",
            "DEPENDENCY: the output of `cat` does not match its description: it is not JSON",
        ),
        (
            "format = \"captures\"\npattern = '^(?<n>\\d+)'\nsingle = true",
            "x",
            "NOT_FOUND: no useful output from `cat`",
        ),
        (
            "format = \"captures\"\npattern = '^(?<n>.*)$'\ntypes = { n = \"integer\" }",
            "1.5",
            "DEPENDENCY: the output of `cat` does not match its description: `n`: expected an integer, found \"1.5\"",
        ),
        (
            "format = \"fields\"\ncolumns = [\"a\"]\ntypes = { a = \"boolean\" }",
            "maybe",
            "expected true or false",
        ),
    ];
    for (output, printed, expected) in wrong {
        let found = parsed(output, printed).await;
        assert!(found.as_str().unwrap().contains(expected), "{output}\n{found}");
    }
}

#[test]
fn the_format_gives_the_schema_of_the_result() {
    let schema = |output: &str| {
        let spec = spec(&description("p", "", &format!("[tool.output]\n{output}")));
        spec.output_schema.as_ref().map(|schema| schema.as_value().clone())
    };
    assert_eq!(schema("format = \"text\""), None);
    assert_eq!(schema("format = \"json\""), None);
    assert_eq!(schema("format = \"json\"\nschema = { type = \"array\" }"), Some(json!({ "type": "array" })));
    let fields = "format = \"fields\"\ncolumns = [\"a\", \"b\"]\ntypes = { a = \"integer\" }\n";
    let item =
        json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "string" } } });
    assert_eq!(schema(&format!("{fields}single = true")), Some(item.clone()));
    assert_eq!(schema(fields).unwrap()["properties"]["items"]["items"], item);
}

#[tokio::test]
async fn the_other_stream_can_be_read() {
    let Some(()) = sandbox_or_skip() else { return };
    let script = "echo out; echo err >&2";
    assert_eq!(
        Run::new(&bash(script, "", "[tool.output]\nformat = \"text\""), json!({})).text().await,
        "out\n"
    );
    let other = bash(script, "", "[tool.output]\nformat = \"text\"\nstream = \"stderr\"");
    assert_eq!(Run::new(&other, json!({})).text().await, "err\n");
}

#[tokio::test]
async fn an_exit_status_means_what_the_first_rule_says() {
    let Some(()) = sandbox_or_skip() else { return };
    let rules = r#"
[[tool.exit]]
code = 1
means = "empty"
[[tool.exit]]
code = [2, 3]
stderr = "no such"
means = "NOT_FOUND"
message = "It is not there."
suggestion = "Look elsewhere."
[[tool.exit]]
code = 2
means = "success"
[[tool.exit]]
stderr = "denied"
means = "PERMISSION"
"#;
    let file = "[[exit]]\ncode = [1, 9]\nmeans = \"CONFLICT\"\n";
    let run = |script: &str| {
        let tool = format!("[tool.output]\nformat = \"lines\"\n{rules}");
        Run::new(&bash(script, file, &tool), json!({}))
    };
    assert_eq!(run("echo a; exit 1").value().await, items(&json!([]), false));
    assert_eq!(run("echo a; exit 2").value().await, items(&json!(["a"]), false));
    let error = run("echo no such thing >&2; exit 3").error().await;
    assert_eq!((error.code(), error.message()), (Code::NotFound, "It is not there."));
    assert_eq!(error.suggestion(), Some("Look elsewhere."));
    assert_eq!(
        (&error.context()["exit_code"], &error.context()["stderr"]),
        (&json!(3), &json!("no such thing"))
    );
    assert_eq!(run("echo denied >&2; exit 77").error().await.code(), Code::Permission);
    assert_eq!(run("echo denied >&2; exit 0").value().await, items(&json!([]), false));
    assert_eq!(run("exit 9").error().await.code(), Code::Conflict, "a rule of the file");
    let error = run("echo bad >&2; exit 4").error().await;
    assert_eq!((error.code(), error.message()), (Code::Dependency, "`bash` exited with status 4: bad"));
    let error = run("exit 4").error().await;
    assert_eq!(error.message(), "`bash` exited with status 4 and printed no error");
    let error = run("kill -SEGV $$").error().await;
    assert_eq!((error.code(), error.message()), (Code::Dependency, "`bash` was killed by signal 11"));
}

#[tokio::test]
async fn an_old_program_is_rejected_with_a_hint() {
    let Some(()) = sandbox_or_skip() else { return };
    let text = |minimum: &str, pattern: &str| {
        bash(
            "echo hi",
            &format!(
                "install = \"get it\"\n[version]\nargs = [\"-c\", \"echo tool 2.10\"]\nminimum = \"{minimum}\"\npattern = '{pattern}'"
            ),
            "",
        )
    };
    assert_eq!(Run::new(&text("2.9", r"tool (\S+)"), json!({})).text().await, "hi\n");
    let error = Run::new(&text("2.11", r"tool (\S+)"), json!({})).error().await;
    assert_eq!(
        (error.code(), error.message()),
        (Code::Precondition, "`bash` has version 2.10, expected at least 2.11")
    );
    assert_eq!(error.suggestion(), Some("Install a newer one: get it."));
    let error = Run::new(&text("1", r"other (\S+)"), json!({})).error().await;
    assert!(error.message().contains("reported no version"), "{error}");
    // Without `args` it is asked by `--version`.
    let bash_itself = bash("echo hi", "[version]\nminimum = \"99\"\npattern = 'version (\\d+\\.\\d+)'", "");
    let error = Run::new(&bash_itself, json!({})).error().await;
    assert!(error.message().starts_with("`bash` has version "), "{error}");
}

#[tokio::test]
async fn description_and_operator_configure_the_sandbox() {
    let Some(()) = sandbox_or_skip() else { return };
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("data"), "data\n").unwrap();
    let script = format!("cat {}/data || echo hidden", secret.path().display());
    let readable = format!("[sandbox]\nreadable = [\"{}\"]", secret.path().display());
    assert_eq!(Run::new(&bash(&script, "", ""), json!({})).text().await, "hidden\n");
    assert_eq!(Run::new(&bash(&script, &readable, ""), json!({})).text().await, "data\n");
    let path = secret.path().to_owned();
    let by_operator =
        Run::new(&bash(&script, "", ""), json!({})).settings(|settings| settings.readable = vec![path]);
    assert_eq!(by_operator.text().await, "data\n");

    let level = |run: Run| async move {
        run.output().await.evidence.unwrap().sandbox.unwrap()["report"]["effective"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let plain = bash("true", "", "");
    let strict = bash("true", "[sandbox]\nlevel = \"strict\"", "");
    assert_eq!(level(Run::new(&plain, json!({}))).await, "standard");
    assert_eq!(level(Run::new(&strict, json!({}))).await, "strict");
    assert_eq!(
        level(Run::new(&plain, json!({})).settings(|settings| settings.level = Some(Level::Strict))).await,
        "strict"
    );
    assert_eq!(
        level(Run::new(&strict, json!({})).settings(|settings| settings.level = Some(Level::Standard))).await,
        "strict"
    );
    let mut asked = Run::new(&plain, json!({}));
    asked.call.options.level = Some("strict".into());
    assert_eq!(level(asked).await, "strict");

    let much = "import sys; x = b'x' * (700 << 20); print(len(x))";
    let python = |file: &str| description("python3", file, &format!("args = [\"-c\", \"{much}\"]"));
    let error = Run::new(&python(""), json!({})).error().await;
    assert!(matches!(error.code(), Code::Limit | Code::Dependency), "{error}");
    assert_eq!(Run::new(&python("[sandbox]\nmemory_mib = 1024"), json!({})).text().await, "734003200\n");
    let limits = toolpost_sandbox::Limits::default().with_memory(1 << 30);
    assert_eq!(
        Run::new(&python(""), json!({})).settings(|settings| settings.limits = limits).text().await,
        "734003200\n"
    );

    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("bin/own-program");
    std::fs::create_dir(directory.path().join("bin")).unwrap();
    std::fs::write(&program, "#!/bin/sh\necho own\n").unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let own = description("own-program", "", "");
    assert_eq!(Run::new(&own, json!({})).error().await.code(), Code::Dependency);
    let search = directory.path().join("bin").into_os_string();
    assert_eq!(
        Run::new(&own, json!({})).settings(|settings| settings.search_path = Some(search)).text().await,
        "own\n"
    );
}

#[tokio::test]
async fn a_program_that_needs_the_network_is_denied() {
    let text = bash("true", "[sandbox]\nnetwork = true", "");
    assert_eq!(spec(&text).meta["needs_network"], true);
    let error = Run::new(&text, json!({})).error().await;
    assert_eq!(error.code(), Code::Permission);
    assert!(
        error.message().contains("no host is allowed")
            && error.hint() == Some(Hint::AllowHost { host: None }),
        "{error}"
    );
}

#[tokio::test]
async fn secrets_avoid_the_command_line_and_are_masked() {
    let Some(()) = sandbox_or_skip() else { return };
    let parameter = "[tool.parameters.token]\ntype = \"string\"\nsensitive = true\ndescription = \"T.\"\n";
    let script =
        "test \"$TOKEN\" = canary-7c1f && echo same; echo \"$TOKEN\"; echo \"$TOKEN\" >&2; exit $CODE";
    let text = |code: u8| {
        bash(script, "", &format!("env = {{ TOKEN = \"{{token}}\", CODE = \"{code}\" }}\n{parameter}"))
    };
    let args = json!({ "token": "canary-7c1f" });
    let reply = Run::new(&text(0), args.clone()).reply().await;
    assert_eq!(reply.result.unwrap().to_text(), "same\n[secret]\n");
    let record = serde_json::to_string(&*reply.record).unwrap();
    assert!(!record.contains("canary"), "{record}");
    let reply = Run::new(&text(3), args.clone()).reply().await;
    let all = format!("{:?} {}", reply.result.unwrap_err(), serde_json::to_string(&*reply.record).unwrap());
    assert!(!all.contains("canary") && all.contains("[secret]"), "{all}");
    let allowed =
        description("echo", "", &format!("args = [\"--t={{token}}\"]\n{parameter}allow_in_args = true"));
    let tools = read(&allowed);
    let line = tools.command_line("t", &args.clone().into()).unwrap();
    assert_eq!(line, ["echo", "--t=canary-7c1f"]);
    assert_eq!(Run::new(&allowed, args).text().await, "--t=[secret]\n");
}

#[tokio::test]
async fn secrets_of_several_lines_are_masked_line_by_line() {
    let Some(()) = sandbox_or_skip() else { return };
    let parameter = "[tool.parameters.token]\ntype = \"string\"\nsensitive = true\ndescription = \"T.\"\n";
    let text =
        bash("echo \"$TOKEN\"; exit 3", "", &format!("env = {{ TOKEN = \"{{token}}\" }}\n{parameter}"));
    let mut run = Run::new(&text, json!({ "token": "BEGIN\ncanary-7c1f\nEND OF IT" }));
    let port = toolpost_testkit::MemoryPort::new(100, 10);
    run.call = run.call.with_port(port.clone());
    run.reply().await;
    let logs = format!("{:?}", port.heard());
    assert!(!logs.contains("canary") && !logs.contains("BEGIN") && logs.contains("[secret]"), "{logs}");
}

#[tokio::test]
async fn a_working_directory_reveals_nothing_of_the_host() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("a")).unwrap();
    std::os::unix::fs::symlink("/usr", directory.path().join("link")).unwrap();
    let parameter = "[tool.parameters.where]\ntype = \"string\"\ndescription = \"W.\"\n";
    let text = bash("pwd", "", &format!("read_only = true\ndirectory = \"{{where}}\"\n{parameter}"));
    let run = |place: &str| Run::new(&text, json!({ "where": place })).directory(directory.path());
    assert!(run("a").text().await.ends_with("/a\n"));
    for place in
        ["/usr", "/no-such-directory", "../../usr", "../../no-such-directory", "link", "a/../../..", "none"]
    {
        let error = run(place).error().await;
        assert_eq!(error.code(), Code::InvalidPath, "{place}: {error}");
        assert_eq!(error.message(), format!("`{place}` is not a directory beneath the working directory"));
    }
}

#[tokio::test]
async fn a_start_check_runs_before_each_start() {
    let Some(()) = sandbox_or_skip() else { return };
    let version = "[version]\nminimum = \"1\"\npattern = 'version (\\d+)'\n";
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = std::sync::Arc::clone(&asked);
    let check = StartCheck::new(move || match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0..3 => Ok(()),
        _ => Err(ToolError::permission("it has changed")),
    });
    let tools = CommandTools::from_toml_checked(&bash("echo done", version, ""), "t.toml", check).unwrap();
    // The question for the version is a start as well.
    for checks in [2, 3] {
        assert_eq!(Run::of(tools.clone(), "t", json!({})).text().await, "done\n");
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), checks);
    }
    let error = Run::of(tools, "t", json!({})).error().await;
    assert_eq!((error.code(), error.message()), (Code::Permission, "it has changed"));
}
