//! Code of a step. A value reaches it as a variable; as a part of the code, it needs `evaluate: true`.

use std::fmt::Write as _;

use serde_json::Value;
use toolpost_core::{WideJson, wide_integer};

use crate::names::Names;
use crate::prologue;
use crate::template::{Expression, Template};

/// Code with the values of its variables.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    language: Language,
    variables: Vec<(String, Template)>,
    body: Template,
}

/// The languages that can have variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    JavaScript,
    Shell,
}

impl Language {
    fn from_name(name: &Value) -> Option<Self> {
        match name.as_str()? {
            "python" => Some(Self::Python),
            "javascript" | "typescript" => Some(Self::JavaScript),
            "bash" | "sh" => Some(Self::Shell),
            _ => None,
        }
    }
}

impl Code {
    /// The template of the text. An error says what is wrong.
    pub(crate) fn template(
        language: &Value,
        code: &Value,
        variables: Vec<(String, Template)>,
    ) -> Result<Template, String> {
        let body = Template::parse(code).map_err(|(_, reason)| reason)?;
        match body {
            body if variables.is_empty() => Ok(body),
            body => match Language::from_name(language) {
                Some(language) => Ok(Template::Code(Box::new(Self { language, variables, body }))),
                None => Err("`variables` are for python, javascript, typescript, bash and sh; give other \
                             languages their values with `with: { stdin: … }`"
                    .to_owned()),
            },
        }
    }

    /// The text without its variables.
    pub(crate) fn body(&self) -> &Template {
        &self.body
    }

    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        let values = self.variables.iter().flat_map(|(_, value)| value.expressions());
        values.chain(self.body.expressions()).collect()
    }

    /// The text: the code, with statements that set the variables where the first other statement may be.
    pub(crate) fn text(&self, names: &Names) -> Result<Value, String> {
        let mut text = String::new();
        for (name, template) in &self.variables {
            let value = template.value(names)?;
            self.set(&mut text, name, &value).map_err(|reason| format!("the variable `{name}`: {reason}"))?;
        }
        match self.body.value(names)? {
            Value::String(body) => {
                let place = match self.language {
                    Language::Python => prologue::of_python(&body),
                    Language::JavaScript => prologue::of_javascript(&body),
                    Language::Shell => prologue::after_hashbang(&body),
                };
                Ok(Value::String(place.insert(&text, &body)))
            }
            other => Err(format!("code is a text, not `{other}`")),
        }
    }

    fn set(&self, text: &mut String, name: &str, value: &Value) -> Result<(), String> {
        // A JSON text is a valid text of Python and of JavaScript, whatever it has.
        let quoted = || Value::from(WideJson(value).to_string());
        let written = match self.language {
            Language::Python => write!(text, "{name} = __import__('json').loads({}); ", quoted()),
            Language::JavaScript if has_unsafe_integer(value) => {
                write!(text, "const {name} = {}; ", javascript(value))
            }
            Language::JavaScript => write!(text, "const {name} = JSON.parse({}); ", quoted()),
            Language::Shell => {
                let plain = match value {
                    Value::String(plain) => plain.clone(),
                    Value::Null => String::new(),
                    other => WideJson(other).to_string(),
                };
                if plain.contains('\0') {
                    return Err("a shell has no character with the code 0".to_owned());
                }
                write!(text, "{name}='{}'; ", plain.replace('\'', r"'\''"))
            }
        };
        written.map_err(|error| error.to_string())
    }
}

/// The digits of an integer that a number of JavaScript would round.
fn unsafe_integer(value: &Value) -> Option<String> {
    const MAX_SAFE: u64 = (1 << 53) - 1;
    let magnitude = value.as_u64().or_else(|| value.as_i64().map(i64::unsigned_abs));
    match magnitude {
        Some(magnitude) => (magnitude > MAX_SAFE).then(|| value.to_string()),
        None => wide_integer(value).map(str::to_owned),
    }
}

fn has_unsafe_integer(value: &Value) -> bool {
    unsafe_integer(value).is_some()
        || match value {
            Value::Array(items) => items.iter().any(has_unsafe_integer),
            Value::Object(members) => members.values().any(has_unsafe_integer),
            _ => false,
        }
}

/// A literal of JavaScript in which such integers are a `BigInt`.
fn javascript(value: &Value) -> String {
    if let Some(digits) = unsafe_integer(value) {
        return format!("{digits}n");
    }
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(javascript).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            // In brackets, `__proto__` is a member like others.
            let member = |(name, value): (&String, &Value)| {
                format!("[{}]:{}", Value::from(name.as_str()), javascript(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn code(language: &str, value: Value) -> Result<String, String> {
        let value = Template::Constant(value.into());
        let template =
            Code::template(&json!(language), &json!("print(x)"), vec![("x".to_owned(), value)]).unwrap();
        template.value(&Names::none()).map(|text| text.as_str().unwrap().to_owned())
    }

    #[test]
    fn values_are_variables() {
        for (language, value, expected) in [
            ("python", json!([true, null]), "x = __import__('json').loads(\"[true,null]\"); \nprint(x)"),
            (
                "typescript",
                json!({"__proto__": 1}),
                "const x = JSON.parse(\"{\\\"__proto__\\\":1}\"); \nprint(x)",
            ),
            ("bash", json!("it's $(id)"), "x='it'\\''s $(id)'; \nprint(x)"),
            (
                "python",
                json!([{ "type": "int", "text": "18446744073709551616" }, 9_007_199_254_740_993_u64]),
                "x = __import__('json').loads(\"[18446744073709551616,9007199254740993]\"); \nprint(x)",
            ),
            (
                "javascript",
                json!({ "__proto__": [{ "type": "int", "text": "-18446744073709551616" }, -9_007_199_254_740_992_i64] }),
                "const x = {[\"__proto__\"]:[-18446744073709551616n,-9007199254740992n]}; \nprint(x)",
            ),
            (
                "javascript",
                json!([9_007_199_254_740_991_u64, 1e300]),
                "const x = JSON.parse(\"[9007199254740991,1e+300]\"); \nprint(x)",
            ),
            (
                "sh",
                json!({ "type": "int", "text": "18446744073709551616" }),
                "x='18446744073709551616'; \nprint(x)",
            ),
            ("sh", json!([1, "a b"]), "x='[1,\"a b\"]'; \nprint(x)"),
            ("sh", Value::Null, "x=''; \nprint(x)"),
        ] {
            assert_eq!(code(language, value).unwrap(), expected, "{language}");
        }
        assert!(code("bash", json!("a\0b")).unwrap_err().contains("the variable `x`"));
    }

    /// The interpreters read each value back, and run none of it.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test starts interpreters for their own texts")]
    fn no_text_becomes_code() {
        let evil = [
            "'; import os; os._exit(3) #",
            "\"); import os; os._exit(3) #",
            "\\\"); import os; os._exit(3) #",
            "\n\r\u{2028}\u{2029}\u{85}\0\u{1f600} import os; os._exit(3)",
            "'\"\"\"'''\\",
        ];
        for text in evil {
            let source = code("python", json!({ text: [text, 1e300, -0.5] })).unwrap();
            let source = source.replace("print(x)", "import json; print(json.dumps(x))");
            let run = std::process::Command::new("python3").args(["-I", "-c", &source]).output().unwrap();
            let read: Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!(read, json!({ text: [text, 1e300, -0.5] }), "{source}");
            if text.contains('\0') {
                continue;
            }
            let source = code("sh", json!(text)).unwrap().replace("print(x)", "printf %s \"$x\"");
            let run = std::process::Command::new("sh").args(["-c", &source]).output().unwrap();
            assert_eq!(String::from_utf8(run.stdout).unwrap(), text, "{source}");
        }
    }
}
