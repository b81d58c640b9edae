//! JSON Schema 2020-12: lazy compilation, asserted formats, errors that a model can act on.

mod graph;
mod steps;
mod weight;

use std::fmt::{self, Write as _};
use std::sync::OnceLock;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, PatternOptions, Validator};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use self::steps::{MAX_CHECKS, MAX_EXPLAINED, Steps};
use crate::{Code, ToolError, suggestions};

/// Maximum number of problems in one report.
const MAX_PROBLEMS: usize = 16;
/// Maximum number of names in one problem.
const MAX_NAMES: usize = 8;
/// Maximum number of backtracking steps of a pattern on one text.
const MAX_BACKTRACKS: usize = 100_000;
/// Maximum length of a quoted value, in characters.
const MAX_QUOTE: usize = 80;

/// A JSON Schema with its validator, compiled on first use.
pub struct Schema {
    value: Value,
    compiled: OnceLock<Result<Compiled, String>>,
}

struct Compiled {
    validator: Validator,
    steps: Steps,
}

/// One mismatch between a value and its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer of the value; empty for the whole value.
    pub pointer: String,
    /// The expectation, in words.
    pub expected: String,
    /// The value found, truncated.
    pub found: String,
    /// Name of a missing required property.
    pub missing: Option<String>,
    /// A correction, such as a similar name.
    pub suggestion: Option<String>,
    /// Whether [`found`](Self::found) quotes the value, not only property names.
    quotes_value: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "the arguments" } else { self.pointer.as_str() };
        match &self.missing {
            Some(name) => write!(f, "`{name}` is missing: expected {}", self.expected),
            None => write!(f, "{place}: expected {}, found {}", self.expected, self.found),
        }
    }
}

fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// A name in backticks, truncated.
fn quote_name(name: &str) -> String {
    let short: String = name.chars().take(MAX_QUOTE).collect();
    if short.len() < name.len() { format!("`{short}…`") } else { format!("`{short}`") }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn is_base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn has_no_nul(text: &str) -> bool {
    !text.contains('\0')
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && has_no_nul(text)
}

/// A predicate for a format.
type IsInFormat = fn(&str) -> bool;

/// Formats beyond JSON Schema's own.
const FORMATS: [(&str, IsInFormat); 4] =
    [("json", is_json), ("base64", is_base64), ("code", has_no_nul), ("file", is_path)];

/// Whether a text matches one of [`FORMATS`]; `None` for any other format.
pub(crate) fn own_format(name: &str, text: &str) -> Option<bool> {
    FORMATS.iter().find(|(own, _)| *own == name).map(|(_, is_in)| is_in(text))
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::new)
    }
}

impl Schema {
    /// Wraps a JSON Schema without compiling it.
    pub fn new(value: Value) -> Self {
        Self { value, compiled: OnceLock::new() }
    }

    /// The schema of a type, such as one with `#[toolpost::data]`.
    pub fn of<T: JsonSchema>() -> Self {
        Self::new(crate::__private::schema_of::<T>())
    }

    /// The JSON Schema.
    pub fn as_value(&self) -> &Value {
        &self.value
    }

    /// Names of the required properties.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let names = self.value.get("required").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Why a check against the schema may take unbounded time: its references multiply.
    pub(crate) fn unbounded_reason(&self) -> Option<String> {
        weight::unbounded_reason(&self.value)
    }

    /// Why this is not a valid JSON Schema; `None` if it is valid.
    pub fn defect(&self) -> Option<&str> {
        self.compile().as_ref().err().map(String::as_str)
    }

    fn compile(&self) -> &Result<Compiled, String> {
        self.compiled.get_or_init(|| {
            if let Some(reason) = weight::unbounded_reason(&self.value) {
                return Err(reason);
            }
            let options = jsonschema::options()
                .with_draft(Draft::Draft202012)
                .should_validate_formats(true)
                .with_pattern_options(PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS));
            let validator = FORMATS
                .into_iter()
                .fold(options, |options, (name, is_in)| options.with_format(name, is_in))
                .build(&self.value)
                .map_err(|error| format!("{error} at {}", error.schema_path()))?;
            Ok(Compiled { validator, steps: Steps::of(&self.value) })
        })
    }

    fn compiled(&self) -> Result<&Compiled, ToolError> {
        self.compile().as_ref().map_err(|reason| {
            ToolError::internal(format!("the tool's JSON Schema is invalid: {reason}"))
                .suggest("This is a defect of the tool: fix its schema.")
        })
    }

    /// The validator, if it checks the value in bounded time.
    fn compiled_for(&self, value: &Value) -> Result<&Compiled, ToolError> {
        let compiled = self.compiled()?;
        if compiled.steps.are_within(MAX_CHECKS, &self.value, value) {
            return Ok(compiled);
        }
        Err(ToolError::invalid_input(
            "the value is too large or too deeply nested for its schema (over 1,000,000 checks)",
        )
        .suggest("Send less at once, or nest it less deeply."))
    }

    /// Whether a value matches the schema.
    ///
    /// # Errors
    /// `INTERNAL` if the schema is invalid; `INVALID_INPUT` if the check needs more than 1,000,000 applications of a schema
    /// to the value and its parts.
    pub fn is_valid(&self, value: &Value) -> Result<bool, ToolError> {
        Ok(self.compiled_for(value)?.validator.is_valid(value))
    }

    /// The mismatches of a value, at most 16.
    ///
    /// If an explanation needs more than 200,000 applications of a schema, it is one general problem.
    ///
    /// # Errors
    /// Those of [`is_valid`](Self::is_valid).
    pub fn problems(&self, value: &Value) -> Result<Vec<Problem>, ToolError> {
        let Compiled { validator, steps } = self.compiled_for(value)?;
        if !steps.are_within(MAX_EXPLAINED, &self.value, value) {
            let mismatch = (!validator.is_valid(value)).then(|| Problem {
                pointer: String::new(),
                expected: "a value that fits the schema; it is too large or nested too deeply to say where it does not"
                    .to_owned(),
                found: quote(value),
                missing: None,
                suggestion: None,
                quotes_value: true,
            });
            return Ok(mismatch.into_iter().collect());
        }
        Ok(validator.iter_errors(value).take(MAX_PROBLEMS).map(|error| self.problem(&error)).collect())
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
                crate::secret::MASK.clone_into(&mut problem.found);
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

    /// Names of the properties that the object with this schema pointer declares.
    fn property_names(&self, schema_pointer: &str) -> Vec<&str> {
        let holder = schema_pointer.rsplit_once('/').map_or("", |(holder, _)| holder);
        self.value
            .pointer(holder)
            .and_then(|schema| schema.get("properties"))
            .and_then(Value::as_object)
            .map(|properties| properties.keys().map(String::as_str).collect())
            .unwrap_or_default()
    }

    fn description_of(&self, schema_pointer: &str, property: &str) -> Option<&str> {
        let holder = schema_pointer.rsplit_once('/').map_or("", |(holder, _)| holder);
        self.value.pointer(holder)?.get("properties")?.get(property)?.get("description")?.as_str()
    }

    fn problem(&self, error: &jsonschema::ValidationError<'_>) -> Problem {
        let pointer = error.instance_path().as_str().to_owned();
        let schema_pointer = error.schema_path().as_str().to_owned();
        let instance = error.instance();
        let mut problem = Problem {
            pointer,
            expected: String::new(),
            found: quote(instance),
            missing: None,
            suggestion: None,
            quotes_value: true,
        };
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default().to_owned();
                problem.expected = self
                    .description_of(&schema_pointer, &name)
                    .map_or_else(|| "a value".to_owned(), |text| text.trim_end_matches('.').to_owned());
                problem.pointer = format!("{}/{name}", problem.pointer);
                "nothing".clone_into(&mut problem.found);
                problem.missing = Some(name);
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let known = self.property_names(&schema_pointer);
                problem.expected = if known.is_empty() {
                    "no properties".to_owned()
                } else {
                    format!("only the properties {}", known.join(", "))
                };
                problem.quotes_value = false;
                let names: Vec<String> =
                    unexpected.iter().take(MAX_NAMES).map(|name| quote_name(name)).collect();
                problem.found = names.join(", ");
                if unexpected.len() > MAX_NAMES {
                    // Writing to a string cannot fail.
                    let _ = write!(problem.found, " and {} more", unexpected.len() - MAX_NAMES);
                }
                problem.suggestion = unexpected
                    .iter()
                    .take(MAX_NAMES)
                    .find_map(|name| crate::did_you_mean(name, known.iter().copied()));
                if let Some(name) = unexpected.first() {
                    let name: String = name.chars().take(MAX_QUOTE).collect();
                    problem.pointer =
                        format!("{}/{}", problem.pointer, name.replace('~', "~0").replace('/', "~1"));
                }
            }
            ValidationErrorKind::Enum { options } => {
                let options: Vec<&str> =
                    options.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                problem.expected = format!("one of {}", options.join(", "));
                if let Some(found) = instance.as_str() {
                    problem.suggestion = suggestions(found, options.iter().copied())
                        .first()
                        .map(|near| format!("Did you mean `{near}`?"));
                }
            }
            ValidationErrorKind::Type { kind } => {
                problem.expected = match kind {
                    TypeKind::Single(kind) => format!("{kind}"),
                    TypeKind::Multiple(kinds) => {
                        kinds.iter().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" or ")
                    }
                };
                problem.found = format!("{} ({})", type_name(instance), problem.found);
            }
            kind => problem.expected = expectation(kind, &schema_pointer),
        }
        problem
    }
}

/// The expectation of a keyword, in words.
fn expectation(kind: &ValidationErrorKind, schema_pointer: &str) -> String {
    match kind {
        ValidationErrorKind::Minimum { limit } => format!("at least {limit}"),
        ValidationErrorKind::Maximum { limit } => format!("at most {limit}"),
        ValidationErrorKind::ExclusiveMinimum { limit } => format!("more than {limit}"),
        ValidationErrorKind::ExclusiveMaximum { limit } => format!("less than {limit}"),
        ValidationErrorKind::MinLength { limit } => format!("at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("at most {limit} characters"),
        ValidationErrorKind::MinItems { limit } => format!("at least {limit} items"),
        ValidationErrorKind::MaxItems { limit } => format!("at most {limit} items"),
        ValidationErrorKind::Pattern { pattern } => format!("text that matches {pattern}"),
        ValidationErrorKind::Format { format } => format!("text in the format `{format}`"),
        ValidationErrorKind::Constant { expected_value } => quote(expected_value),
        _ => format!("a value that fits the schema at {schema_pointer}"),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.value)
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
    fn problems_are_bounded() {
        let schema = Schema::new(json!({"type": "array", "items": {"type": "integer"}}));
        let value = json!(vec!["x".repeat(10_000); 1000]);
        assert_eq!(schema.problems(&value).unwrap().len(), MAX_PROBLEMS);
        assert!(schema.check(&value).unwrap_err().message().len() < 4000);
    }

    #[test]
    fn an_invalid_schema_is_the_tools_defect() {
        let error = Schema::new(json!({"type": "strnig"})).check(&json!(1)).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
    }

    #[test]
    fn a_schema_error_names_the_schema() {
        let defect = |value: Value| Schema::new(value).defect().map(str::to_owned);
        assert_eq!(defect(json!({"type": "string"})), None);
        let told = defect(json!({"type": "strnig"})).unwrap();
        assert!(told.contains("strnig") && told.contains("/type") && !told.contains("tool"), "{told}");
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
            assert!(!schema.is_valid(&bad).unwrap(), "{name} refuses {bad}");
        }
        assert!(Schema::new(ParameterType::Any.schema()).is_valid(&json!([null, 1])).unwrap());
        assert!("strnig".parse::<ParameterType>().unwrap_err().contains("Did you mean `string`?"));
    }
}
