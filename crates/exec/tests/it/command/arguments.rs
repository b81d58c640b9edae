//! From the arguments of a call to the arguments of a program.

use serde_json::{Value, json};
use toolpost_core::Code;

use crate::command::support::{description, line};

fn with(args: &str, parameters: &str) -> String {
    description("prog", "", &format!("args = {args}\n{parameters}"))
}

fn check(text: &str, rows: &[(Value, &[&str])]) {
    for (args, expected) in rows {
        assert_eq!(line(text, args.clone()).unwrap(), *expected, "{args}");
    }
}

const STRING: &str = "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\n";
const LIST: &str = "[tool.parameters.x]\ntype = \"array\"\noptional = true\ndescription = \"X.\"\n";
const FLAG: &str = "[tool.parameters.x]\ntype = \"boolean\"\noptional = true\ndescription = \"X.\"\n";

#[test]
fn an_item_is_one_argument_whatever_is_in_it() {
    let text = with(r#"["a b", "--x={x}", "<{x}>", "{{{x}}}"]"#, STRING);
    for value in ["", "a b", "$(id); `id` | cat > y & ' \" \\ * ?", "two\nlines", "-rf", "é\u{202e}x"] {
        let expected =
            ["a b".to_owned(), format!("--x={value}"), format!("<{value}>"), format!("{{{value}}}")];
        assert_eq!(line(&text, json!({ "x": value })).unwrap(), expected);
    }
}

#[test]
fn an_item_with_a_missing_parameter_is_dropped_or_defaulted() {
    let text = with(
        r#"["a", "--x={x}", "{y}-{x}", "b"]"#,
        &format!(
            "{STRING}optional = true\n[tool.parameters.y]\ntype = \"integer\"\ndefault = 7\ndescription = \"Y.\"\n"
        ),
    );
    check(
        &text,
        &[
            (json!({}), &["a", "b"]),
            (json!({ "x": null }), &["a", "b"]),
            (json!({ "x": "1" }), &["a", "--x=1", "7-1", "b"]),
            (json!({ "x": "1", "y": 2 }), &["a", "--x=1", "2-1", "b"]),
        ],
    );
}

#[test]
fn a_list_repeats_its_item_or_is_joined() {
    let text = with(r#"["--x={x}", "{x}"]"#, LIST);
    check(
        &text,
        &[
            (json!({}), &[]),
            (json!({ "x": [] }), &[]),
            (json!({ "x": ["a", 1, true] }), &["--x=a", "--x=1", "--x=true", "a", "1", "true"]),
        ],
    );
    let joined = with(r#"["--x={x}"]"#, &format!("{LIST}join = \",\"\n"));
    check(&joined, &[(json!({ "x": ["a", "b"] }), &["--x=a,b"]), (json!({ "x": [] }), &[])]);
}

#[test]
fn conditions_add_arguments() {
    let text = with(r#"[{ when = "x", args = ["-r", "{x}"], otherwise = ["-n"] }]"#, FLAG);
    check(
        &text,
        &[(json!({ "x": true }), &["-r", "true"]), (json!({ "x": false }), &["-n"]), (json!({}), &["-n"])],
    );
    let text = with(
        r#"[{ when = "x", is = "a", args = ["-a"] }, { when = "x", args = ["-x"] }]"#,
        &format!("{STRING}optional = true\n"),
    );
    check(
        &text,
        &[
            (json!({ "x": "a" }), &["-a", "-x"]),
            (json!({ "x": "b" }), &["-x"]),
            (json!({ "x": "" }), &[]),
            (json!({}), &[]),
        ],
    );
    let text = with(r#"[{ when = "x", args = ["-x"] }]"#, LIST);
    check(&text, &[(json!({ "x": ["a"] }), &["-x"]), (json!({ "x": [] }), &[])]);
}

#[test]
fn values_that_are_no_text_are_written_as_json() {
    let any = "[tool.parameters.x]\ntype = \"any\"\ndescription = \"X.\"\n";
    let text = with(r#"["{x}"]"#, any);
    check(
        &text,
        &[
            (json!({ "x": 1.5 }), &["1.5"]),
            (json!({ "x": true }), &["true"]),
            (json!({ "x": { "a": [1, null] } }), &[r#"{"a":[1,null]}"#]),
        ],
    );
}

#[test]
fn a_value_never_becomes_an_option() {
    let parameters =
        format!("{STRING}[tool.parameters.n]\ntype = \"integer\"\ndefault = 1\ndescription = \"N.\"\n");
    let bare = with(r#"["{x}", "{n}"]"#, &parameters);
    let error = line(&bare, json!({ "x": "--exec=id" })).unwrap_err();
    assert_eq!(
        (error.code(), error.context()["pointer"].as_str()),
        (Code::InvalidInput, Some("/x")),
        "{error}"
    );
    assert!(error.message().contains("which `prog` parses as an option"), "{error}");
    assert!(error.suggestion().unwrap().contains("./-name"), "{error}");
    assert!(line(&bare, json!({ "x": "a", "n": -1 })).is_err());
    assert!(line(&with(r#"["{x}"]"#, LIST), json!({ "x": ["a", "-b"] })).is_err());
    // An empty value does not hide what follows it.
    assert!(line(&with(r#"["{x}-o{n}"]"#, &parameters), json!({ "x": "" })).is_err());

    for (args, expected) in [
        (r#"["--", "{x}", "{n}"]"#, vec!["--", "-v", "1"]),
        (r#"["--x={x}", "{n}"]"#, vec!["--x=-v", "1"]),
        (r#"["./{x}", "{n}"]"#, vec!["./-v", "1"]),
        (r#"["-n{n}", "--", "{x}"]"#, vec!["-n1", "--", "-v"]),
    ] {
        assert_eq!(line(&with(args, &parameters), json!({ "x": "-v" })).unwrap(), expected, "{args}");
    }
    let allowed = with(r#"["-name", "{x}"]"#, &format!("{STRING}allow_leading_dash = true\n"));
    check(&allowed, &[(json!({ "x": "-v" }), &["-name", "-v"])]);
    // A value of `--` is not a separator.
    let text = with(
        r#"["--x={x}", "{y}", "{x}"]"#,
        &format!(
            "{STRING}optional = true\n[tool.parameters.y]\ntype = \"string\"\nallow_leading_dash = true\ndescription = \"Y.\"\n"
        ),
    );
    assert!(line(&text, json!({ "y": "--", "x": "-v" })).is_err());
    // Without `--`, nothing is protected.
    let text = with(r#"[{ when = "x", is = "a", args = ["--"] }, "{x}"]"#, STRING);
    assert!(line(&text, json!({ "x": "-v" })).is_err());
}

#[test]
fn arguments_of_the_file_stand_before_those_of_the_tool() {
    let text = description("prog", "args = [\"-C\", \"--\"]", &format!("args = [\"{{x}}\"]\n{STRING}"));
    check(&text, &[(json!({ "x": "-v" }), &["-C", "--", "-v"])]);
}

#[test]
fn an_unknown_tool_suggests_the_nearest() {
    let tools = toolpost_exec::command::CommandTools::shipped("git").unwrap();
    let error = tools.command_line("git_lgo", &json!({}).into()).unwrap_err();
    assert_eq!((error.code(), error.suggestion()), (Code::NotFound, Some("Did you mean `git_log`?")));
    let error = toolpost_exec::command::CommandTools::shipped("gti").unwrap_err();
    assert_eq!((error.code(), error.suggestion()), (Code::NotFound, Some("Did you mean `git`?")));
}
