//! JSON Schemas in Gemini's dialect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::RawJson;
use crate::schema::{SchemaTarget, lower};

/// Maximum number of cached schemas.
const MAX_CACHED: usize = 1_000;

/// A cache of lowered schemas by source text, because every request of a conversation sends the same tools.
#[derive(Debug, Default)]
pub(super) struct Schemas(Mutex<HashMap<String, Arc<GeminiSchema>>>);

/// A lowered schema.
#[derive(Debug)]
pub(super) struct GeminiSchema {
    /// The schema.
    pub(super) json: String,
    /// The reason why the schema was replaced by an open object, if it was.
    pub(super) unsupported: Option<String>,
}

impl Schemas {
    /// The lowered form of a schema.
    pub(super) fn get(&self, schema: &RawJson) -> Arc<GeminiSchema> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sent) = known().get(schema.get()) {
            return Arc::clone(sent);
        }
        // The lock is free during lowering, so two threads may lower the same schema.
        let sent = Arc::new(lowered(schema));
        let mut known = known();
        if known.len() == MAX_CACHED {
            known.clear();
        }
        known.insert(schema.get().to_owned(), Arc::clone(&sent));
        sent
    }
}

fn lowered(schema: &RawJson) -> GeminiSchema {
    let value = match schema.to_value() {
        Ok(value) => value,
        Err(error) => {
            return GeminiSchema {
                json: r#"{"type":"object"}"#.to_owned(),
                unsupported: Some(error.to_string()),
            };
        }
    };
    let result = lower(&value, SchemaTarget::Gemini);
    // The descriptions contain the other unchecked keywords.
    let is_bare = result.schema == serde_json::json!({"type": "object"}) && result.schema != value;
    GeminiSchema {
        json: result.schema.to_string(),
        unsupported: result.unchecked.into_iter().next().filter(|_| is_bare),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_lowered_once() {
        let schemas = Schemas::default();
        let schema = RawJson::from(
            &json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": 2}}}),
        );
        let first = schemas.get(&schema);
        assert!(Arc::ptr_eq(&first, &schemas.get(&schema)));
        assert!(!first.json.contains("\"multipleOf\"") && first.unsupported.is_none(), "{first:?}");
        for number in 0..=MAX_CACHED {
            schemas.get(&RawJson::from(&json!({"type": "object", "title": number.to_string()})));
        }
        assert!(schemas.0.lock().unwrap().len() <= MAX_CACHED);
    }

    #[test]
    fn an_unreadable_schema_becomes_an_open_object() {
        let deep = format!("{}{}", r#"{"not":"#.repeat(500), "}".repeat(500).replacen('}', "{}}", 1));
        let sent = Schemas::default().get(&RawJson::parse(deep).unwrap());
        assert_eq!(sent.json, r#"{"type":"object"}"#);
        assert!(sent.unsupported.is_some());
    }
}
