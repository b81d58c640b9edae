//! JSON Schemas as Gemini takes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::RawJson;
use crate::schema::{SchemaTarget, lower};

/// The most schemas that are kept.
const MOST: usize = 1_000;

/// Schemas that were made for the provider, by the caller's text: a conversation sends its tools with every request.
#[derive(Debug, Default)]
pub(super) struct Schemas(Mutex<HashMap<String, Arc<Sent>>>);

/// A schema as it is sent.
#[derive(Debug)]
pub(super) struct Sent {
    /// The schema.
    pub(super) json: String,
    /// Why nothing of the caller's schema is left, if that is so.
    pub(super) loss: Option<String>,
}

impl Schemas {
    /// The schema to send for one of the caller's.
    pub(super) fn of(&self, schema: &RawJson) -> Arc<Sent> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sent) = known().get(schema.get()) {
            return Arc::clone(sent);
        }
        // Nobody else waits while it is made; two may make the same.
        let sent = Arc::new(made(schema));
        let mut known = known();
        if known.len() == MOST {
            known.clear();
        }
        known.insert(schema.get().to_owned(), Arc::clone(&sent));
        sent
    }
}

fn made(schema: &RawJson) -> Sent {
    let value = match schema.to_value() {
        Ok(value) => value,
        Err(error) => {
            return Sent { json: r#"{"type":"object"}"#.to_owned(), loss: Some(error.to_string()) };
        }
    };
    let lowered = lower(&value, SchemaTarget::Gemini);
    // What is lost of a schema that is otherwise there stands in its descriptions.
    let is_bare = lowered.schema == serde_json::json!({"type": "object"}) && lowered.schema != value;
    Sent { json: lowered.schema.to_string(), loss: lowered.unchecked.into_iter().next().filter(|_| is_bare) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_made_once() {
        let schemas = Schemas::default();
        let schema = RawJson::from(
            &json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": 2}}}),
        );
        let first = schemas.of(&schema);
        assert!(Arc::ptr_eq(&first, &schemas.of(&schema)));
        assert!(!first.json.contains("\"multipleOf\"") && first.loss.is_none(), "{first:?}");
        for number in 0..=MOST {
            schemas.of(&RawJson::from(&json!({"type": "object", "title": number.to_string()})));
        }
        assert!(schemas.0.lock().unwrap().len() <= MOST);
    }

    #[test]
    fn a_schema_that_nobody_can_read_is_an_object_of_anything() {
        let deep = format!("{}{}", r#"{"not":"#.repeat(500), "}".repeat(500).replacen('}', "{}}", 1));
        let sent = Schemas::default().of(&RawJson::parse(deep).unwrap());
        assert_eq!(sent.json, r#"{"type":"object"}"#);
        assert!(sent.loss.is_some());
    }
}
