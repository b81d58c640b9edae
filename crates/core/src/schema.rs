//! Schemas of tools: checks whose errors a model can act on.

use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use toolpost_schema::CheckError;
pub use toolpost_schema::Problem;

use crate::secret::MASK;
use crate::{Code, Evaluation, ToolError};

/// A JSON Schema with its validator, compiled on first use.
#[derive(Debug)]
pub struct Schema {
    inner: toolpost_schema::Schema,
    decides_execution: OnceLock<bool>,
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::new)
    }
}

fn tool_error(error: CheckError) -> ToolError {
    match error {
        CheckError::Invalid(reason) => {
            ToolError::internal(format!("the tool's JSON Schema is invalid: {reason}"))
                .suggest("This is a defect of the tool: fix its schema.")
        }
        CheckError::TooLarge => {
            ToolError::invalid_input(error.to_string()).suggest("Send less at once, or nest it less deeply.")
        }
    }
}

impl Schema {
    /// Wraps a JSON Schema without compiling it.
    pub fn new(value: Value) -> Self {
        Self { inner: toolpost_schema::Schema::new(value), decides_execution: OnceLock::new() }
    }

    /// The schema of a type, such as one with `#[toolpost::data]`.
    pub fn from_type<T: JsonSchema>() -> Self {
        Self::new(crate::__private::schema_of::<T>())
    }

    /// The JSON Schema.
    pub fn as_value(&self) -> &Value {
        self.inner.as_value()
    }

    /// Whether a value of a member, or of one within it, decides what runs: see [`Evaluation`]. Determined on first use.
    pub fn decides_execution(&self) -> bool {
        *self.decides_execution.get_or_init(|| Evaluation::is_declared_in(self.as_value()))
    }

    /// The value with integers in place of whole floats such as `2.0`, where the schema has integers; `None` without such
    /// floats.
    pub fn normalized(&self, value: &Value) -> Option<Value> {
        crate::integers::normalized(self.as_value(), value)
    }

    /// Names of the required properties.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.inner.required()
    }

    /// The reason why a check against the schema may take unbounded time: its references multiply.
    pub(crate) fn unbounded_reason(&self) -> Option<String> {
        self.inner.unbounded_reason()
    }

    /// The schema without its invalid keywords, and the JSON pointers of those that were dropped. A valid schema, and one
    /// that stays invalid, are unchanged.
    #[must_use]
    pub fn repaired(self) -> (Self, Vec<String>) {
        if self.defect().is_none() {
            return (self, Vec::new());
        }
        let (value, dropped) = toolpost_schema::repaired(self.as_value().clone());
        (Self::new(value), dropped)
    }

    /// The reason why this is not a valid JSON Schema; `None` if it is valid.
    pub fn defect(&self) -> Option<&str> {
        self.inner.defect()
    }

    /// Whether a value matches the schema.
    ///
    /// # Errors
    /// `INTERNAL` if the schema is invalid; `INVALID_INPUT` if the check needs more than 1,000,000 applications of a schema
    /// to the value and its parts.
    pub fn is_valid(&self, value: &Value) -> Result<bool, ToolError> {
        self.inner.is_valid(value).map_err(tool_error)
    }

    /// The mismatches of a value, at most 16.
    ///
    /// If an explanation needs more than 200,000 applications of a schema, it is one general problem.
    ///
    /// # Errors
    /// Errors of [`is_valid`](Self::is_valid).
    pub fn problems(&self, value: &Value) -> Result<Vec<Problem>, ToolError> {
        self.inner.problems(value).map_err(tool_error)
    }

    /// Checks arguments. The error has the JSON pointer, the expectation, the value and a correction.
    ///
    /// # Errors
    /// `MISSING_PARAM` for a missing required property, else `INVALID_INPUT`.
    pub fn check(&self, value: &Value) -> Result<(), ToolError> {
        self.check_hiding(value, &[])
    }

    /// Checks arguments without quoting the properties named in `sensitive`.
    ///
    /// # Errors
    /// `MISSING_PARAM` for a missing required property, else `INVALID_INPUT`.
    pub fn check_hiding(&self, value: &Value, sensitive: &[String]) -> Result<(), ToolError> {
        if self.is_valid(value)? {
            return Ok(());
        }
        let mut problems = self.problems(value)?;
        for problem in problems.iter_mut().filter(|problem| problem.quotes_value && problem.missing.is_none())
        {
            let property = problem.pointer.split('/').nth(1);
            let hidden = |name: &String| property.is_none_or(|property| property == name);
            if sensitive.iter().any(hidden) {
                MASK.clone_into(&mut problem.found);
                problem.suggestion = None;
            }
        }
        let Some(first) = problems.iter().find(|problem| problem.missing.is_some()).or(problems.first())
        else {
            return Err(ToolError::invalid_input("the arguments do not match the tool's schema"));
        };
        let code = if first.missing.is_some() { Code::MissingParam } else { Code::InvalidInput };
        let others = problems.iter().filter(|problem| *problem != first);
        let sentences: Vec<String> = std::iter::once(first).chain(others).map(ToString::to_string).collect();
        let pointers: Vec<Value> = problems.iter().map(|problem| problem.pointer.clone().into()).collect();
        Err(ToolError::new(code, sentences.join("; "))
            .with("pointer", first.pointer.clone())
            .with("expected", first.expected.clone())
            .with("found", first.found.clone())
            .with("pointers", pointers)
            .suggest_maybe(problems.iter().find_map(|problem| problem.suggestion.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParameterType;
    use serde_json::json;

    fn weather() -> Schema {
        Schema::new(json!({
            "type": "object",
            "properties": {
                "city": { "type": "string", "description": "City name." },
                "days": { "type": "integer", "minimum": 1, "maximum": 14 },
                "units": { "enum": ["metric", "imperial"] }
            },
            "required": ["city"],
            "additionalProperties": false
        }))
    }

    #[test]
    fn a_missing_parameter_is_reported_with_its_description() {
        let error = weather().check(&json!({})).unwrap_err();
        assert_eq!(error.code(), Code::MissingParam);
        assert_eq!(error.message(), "`city` is missing: expected City name");
        assert_eq!(error.context()["pointer"], "/city");
    }

    #[test]
    fn a_wrong_type_is_reported_with_pointer_expectation_and_value() {
        let error = weather().check(&json!({"city": "Oslo", "days": "three"})).unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput);
        assert_eq!(error.message(), r#"/days: expected integer, found string ("three")"#);
        let error = weather().check(&json!({"city": "Oslo", "days": 15})).unwrap_err();
        assert_eq!(error.message(), "/days: expected at most 14, found 15");
    }

    #[test]
    fn misspelled_parameters_and_values_get_a_suggestion() {
        let error = weather().check(&json!({"city": "Oslo", "dyas": 3})).unwrap_err();
        assert_eq!(error.suggestion(), Some("Did you mean `days`?"));
        assert_eq!(error.context()["pointer"], "/dyas");
        let error = weather().check(&json!({"city": "Oslo", "units": "metrik"})).unwrap_err();
        assert_eq!(error.suggestion(), Some("Did you mean `metric`?"));
    }

    #[test]
    fn an_invalid_schema_is_the_tools_defect() {
        let error = Schema::new(json!({"type": "strnig"})).check(&json!(1)).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
    }

    /// Each common type accepts valid values and rejects invalid ones.
    #[test]
    fn common_types_are_checked() {
        let table = [
            ("string", json!("a"), json!(1)),
            ("integer", json!(1), json!(1.5)),
            ("number", json!(1.5), json!("1")),
            ("boolean", json!(true), json!(1)),
            ("array", json!([1]), json!({})),
            ("object", json!({}), json!([])),
            ("null", Value::Null, json!(0)),
            ("file", json!("a/b.txt"), json!("a\0b")),
            ("url", json!("https://example.com/a?b=c"), json!("not a url")),
            ("email", json!("a@example.com"), json!("a at example.com")),
            ("uuid", json!("936da01f-9abd-4d9d-80c7-02af85c822a8"), json!("936da01f")),
            ("datetime", json!("2026-11-21T10:00:00Z"), json!("21 November")),
            ("json", json!(r#"{"a": [1]}"#), json!("{a: 1}")),
            ("base64", json!("aGVsbG8="), json!("aGVsbG8*")),
            ("code", json!("print(1)\n"), json!("print(\0)")),
        ];
        for (name, good, bad) in table {
            let schema = Schema::new(name.parse::<ParameterType>().unwrap().schema());
            assert!(schema.is_valid(&good).unwrap(), "{name} accepts {good}");
            assert!(!schema.is_valid(&bad).unwrap(), "{name} rejects {bad}");
        }
        assert!(Schema::new(ParameterType::Any.schema()).is_valid(&json!([null, 1])).unwrap());
        assert!("strnig".parse::<ParameterType>().unwrap_err().contains("Did you mean `string`?"));
    }
}
