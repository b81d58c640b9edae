//! The format of a script: a YAML file, or its turns as values.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::template::{self, Template};
use toolpost_core::did_you_mean;

/// The largest script file, in bytes.
pub(super) const MAX_FILE: usize = 1024 * 1024;

/// A script file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    turns: Vec<ScriptTurn>,
}

/// One turn of the model.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptTurn {
    /// The expectation about the latest tool result.
    #[serde(default)]
    pub(super) expect: Option<Expectation>,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) calls: Vec<ScriptCall>,
    /// The stop reason, if it is not the default.
    #[serde(default)]
    pub(super) stop: Option<String>,
    /// The reported tokens of the turn.
    #[serde(default)]
    pub(super) usage: ScriptUsage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScriptUsage {
    pub(super) input: u64,
    pub(super) output: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expectation {
    #[serde(default)]
    pub(super) result_contains: Option<String>,
    #[serde(default)]
    pub(super) result_equals: Option<Value>,
    #[serde(default)]
    pub(super) is_error: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptCall {
    pub(super) tool: String,
    #[serde(default)]
    pub(super) args: Map<String, Value>,
}

/// Parses the turns of a script file and checks them. The error names the line and the expected value.
pub(super) fn parse(text: &str) -> Result<Vec<ScriptTurn>, String> {
    if text.len() > MAX_FILE {
        return Err(format!("the file has {} bytes; the limit is {MAX_FILE}", text.len()));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: 100_000,
            max_total_scalar_bytes: MAX_FILE,
            max_aliases: 0,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    let script: Script =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| explain(&error))?;
    if script.turns.is_empty() {
        return Err("turns: expected at least one".to_owned());
    }
    for (index, turn) in script.turns.iter().enumerate() {
        turn.check().map_err(|what| format!("turn {}: {what}", index + 1))?;
    }
    Ok(script.turns)
}

/// Reads a turn from a value and checks it; a string is a turn of text.
pub(super) fn turn_of(value: Value) -> Result<ScriptTurn, String> {
    let turn = match value {
        Value::String(text) => ScriptTurn { text: Some(text), ..ScriptTurn::default() },
        value @ Value::Object(_) => serde_json::from_value(value).map_err(|error| error.to_string())?,
        other => return Err(format!("expected a string or an object, found {other}")),
    };
    turn.check()?;
    Ok(turn)
}

impl ScriptTurn {
    /// Checks what the types cannot express.
    fn check(&self) -> Result<(), String> {
        if self.text.is_none() && self.calls.is_empty() && self.stop.is_none() {
            return Err("expected `text`, `calls` or both, found neither".to_owned());
        }
        if let Some(Expectation { result_contains: None, result_equals: None, is_error: None }) = self.expect
        {
            return Err("expect: expected `result_contains`, `result_equals` or `is_error`".to_owned());
        }
        if let Some(text) = &self.text {
            Template::parse(text)?;
        }
        for call in &self.calls {
            template::check(&Value::Object(call.args.clone()))
                .map_err(|what| format!("call of `{}`: {what}", call.tool))?;
        }
        Ok(())
    }
}

fn explain(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    if let serde_saphyr::Error::SerdeUnknownField { field, expected, .. } = error.without_snippet()
        && let Some(suggestion) = did_you_mean(field, expected.iter().copied())
    {
        return format!("{text}. {suggestion}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_error_of_an_invalid_file_names_its_line() {
        for (text, expected) in [
            ("turns:\n  - txt: hello\n", &["txt", "line 2", "Did you mean `text`?"] as &[&str]),
            ("turns:\n  - text: a\n  - calls: [{ tol: x }]\n", &["tol", "line 3", "Did you mean `tool`?"]),
            ("turns: []\n", &["turns", "at least one"]),
            ("turns:\n  - expect: {}\n    text: a\n", &["turn 1", "result_contains"]),
            ("turns:\n  - {}\n", &["turn 1", "`text`, `calls` or both"]),
            ("turns:\n  - text: '{{ lst }}'\n", &["turn 1", "lst"]),
            (
                "turns:\n  - calls: [{tool: t, args: {a: ['{{ last.x | y }}']}}]\n",
                &["turn 1", "call of `t`", "`y`"],
            ),
            ("turns:\n  - text: [\n", &["line"]),
        ] {
            let error = parse(text).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{text:?}: expected {part:?} in {error:?}");
            }
        }
    }

    #[test]
    fn the_error_of_an_invalid_turn_names_the_problem() {
        for (turn, expected) in [
            (json!({ "txt": "hello" }), &["unknown field `txt`", "`text`"] as &[&str]),
            (json!({}), &["`text`, `calls` or both"]),
            (json!({ "expect": {}, "text": "a" }), &["result_contains"]),
            (json!("{{ lst }}"), &["lst"]),
            (
                json!({ "calls": [{ "tool": "t", "args": { "a": "{{ last.x | y }}" } }] }),
                &["call of `t`", "`y`"],
            ),
            (json!(1), &["a string or an object", "1"]),
        ] {
            let error = turn_of(turn.clone()).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{turn}: expected {part:?} in {error:?}");
            }
        }
    }

    #[test]
    fn size_depth_and_aliases_are_bounded() {
        assert!(parse(&" ".repeat(MAX_FILE + 1)).unwrap_err().contains("bytes"));
        let deep = format!(
            "turns:\n  - calls: [{{tool: t, args: {{a: {}{}}}}}]\n",
            "[".repeat(200),
            "]".repeat(200)
        );
        assert!(parse(&deep).is_err());
        assert!(parse("turns:\n  - &a {text: x}\n  - *a\n").is_err());
    }
}
