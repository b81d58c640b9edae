//! JSON Schema 2020-12: lazy compilation, asserted formats, errors that a model can act on.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use crate::steps::{MAX_CHECKS, MAX_EXPLAINED, Steps};
use crate::types::type_name;
use crate::weight;
use crate::{did_you_mean, suggestions};

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

#[derive(Debug)]
struct Compiled {
    validator: Validator,
    steps: Steps,
}

/// The reason why a value was not checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The schema is not a valid JSON Schema, for this reason.
    #[error("the JSON Schema is invalid: {0}")]
    Invalid(String),
    /// The check needs more than 1,000,000 applications of a schema.
    #[error("the value is too large or too deeply nested for its schema (over 1,000,000 checks)")]
    TooLarge,
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
    pub quotes_value: bool,
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
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
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

/// Whether a text matches the format `json`, `base64`, `code` or `file`; `None` for any other format.
pub fn matches_own_format(name: &str, text: &str) -> Option<bool> {
    FORMATS.iter().find(|(own, _)| *own == name).map(|(_, is_in)| is_in(text))
}

impl Schema {
    /// Wraps a JSON Schema without compiling it.
    pub fn new(value: Value) -> Self {
        Self { value, compiled: OnceLock::new() }
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

    /// The reason why a check against the schema may take unbounded time: its references multiply.
    pub fn unbounded_reason(&self) -> Option<String> {
        weight::unbounded_reason(&self.value)
    }

    /// The reason why this is not a valid JSON Schema; `None` if it is valid.
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
            Ok(Compiled { validator, steps: Steps::from_schema(&self.value) })
        })
    }

    /// The validator, if it checks the value in bounded time.
    fn compiled_for(&self, value: &Value) -> Result<&Compiled, CheckError> {
        let compiled = self.compile().as_ref().map_err(|reason| CheckError::Invalid(reason.clone()))?;
        if compiled.steps.are_within(MAX_CHECKS, &self.value, value) {
            return Ok(compiled);
        }
        Err(CheckError::TooLarge)
    }

    /// Whether a value matches the schema.
    ///
    /// # Errors
    /// An invalid schema, or a check of more than 1,000,000 applications of a schema to the value and its parts.
    pub fn is_valid(&self, value: &Value) -> Result<bool, CheckError> {
        Ok(self.compiled_for(value)?.validator.is_valid(value))
    }

    /// The mismatches of a value, at most 16.
    ///
    /// If an explanation needs more than 200,000 applications of a schema, it is one general problem.
    ///
    /// # Errors
    /// Errors of [`is_valid`](Self::is_valid).
    pub fn problems(&self, value: &Value) -> Result<Vec<Problem>, CheckError> {
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
                    .find_map(|name| did_you_mean(name, known.iter().copied()));
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

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn problems_are_bounded() {
        let schema = Schema::new(json!({"type": "array", "items": {"type": "integer"}}));
        let problems = schema.problems(&json!(vec!["x".repeat(10_000); 1000])).unwrap();
        assert_eq!(problems.len(), MAX_PROBLEMS);
        assert!(problems.iter().all(|problem| problem.to_string().len() < 250));
    }

    #[test]
    fn a_schema_error_names_the_schema() {
        let defect = |value: Value| Schema::new(value).defect().map(str::to_owned);
        assert_eq!(defect(json!({"type": "string"})), None);
        let defect = defect(json!({"type": "strnig"})).unwrap();
        assert!(
            defect.contains("strnig") && defect.contains("/type") && !defect.contains("tool"),
            "{defect}"
        );
    }
}
