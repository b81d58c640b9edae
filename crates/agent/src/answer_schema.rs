//! The schema of a run's answer.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolpost_core::{JsonSchema, Schema};
use toolpost_llm::schema::without_nulls;
use toolpost_llm::text::find_json;

/// Reports why a value that matches the schema is invalid.
type Check = Arc<dyn Fn(&Value) -> Result<(), String> + Send + Sync>;

/// The schema that an answer must match.
#[derive(Clone)]
pub(crate) struct AnswerSchema {
    schema: Arc<Schema>,
    /// Checks what the schema cannot express.
    check: Option<Check>,
}

impl AnswerSchema {
    pub(crate) fn new(schema: Value) -> Self {
        Self { schema: Arc::new(Schema::new(schema)), check: None }
    }

    /// A schema, and a check of what it cannot express.
    pub(crate) fn with_check(
        schema: Value,
        check: impl Fn(&Value) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { check: Some(Arc::new(check)), ..Self::new(schema) }
    }

    /// The schema of a type, which an answer must also deserialize to.
    pub(crate) fn from_type<T: DeserializeOwned + JsonSchema>() -> Self {
        let check = |value: &Value| T::deserialize(value).map(drop).map_err(|error| error.to_string());
        Self { schema: Arc::new(Schema::from_type::<T>()), check: Some(Arc::new(check)) }
    }

    pub(crate) fn schema(&self) -> &Value {
        self.schema.as_value()
    }

    /// The value of a text, if it matches.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        // Providers with strict schemas write `null` for absent members.
        let value = without_nulls(json_in(text)?, self.schema.as_value());
        self.schema.check(&value).map_err(|error| error.message().to_owned())?;
        match &self.check {
            Some(check) => check(&value).map(|()| value),
            None => Ok(value),
        }
    }
}

/// The JSON value of a text, or the one inside other text.
fn json_in(text: &str) -> Result<Value, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let value = match find_json(text) {
        Some(found) => found.to_value(),
        None => serde_json::from_str(text),
    };
    value.map_err(|error| format!("it is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_in_text() {
        for (text, found) in [
            ("{\"a\": 1}", json!({"a": 1})),
            ("```json\n{\"a\": [1]}\n```", json!({"a": [1]})),
            ("Here it is: [1, 2]. Good luck.", json!([1, 2])),
            (" 7 ", json!(7)),
        ] {
            assert_eq!(json_in(text), Ok(found), "{text}");
        }
        for text in ["", "no", "{", "{\"a\": }", "} {"] {
            assert!(json_in(text).is_err(), "{text}");
        }
    }
}
