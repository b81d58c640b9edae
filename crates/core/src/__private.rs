//! What the attribute macros emit calls to. Not for hands; may change at any time.

pub use schemars;
pub use serde;
pub use serde_json;

pub use crate::{
    Annotations, Approval, Args, BoxFuture, Ctx, Inject, IntoOutput, Output, Placement, Policy, Rate, Retry,
    Timeout, Tool, ToolError, ToolGroup, ToolSpec,
};
pub use std::sync::{Arc, LazyLock};
pub use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{ParameterType, Schema};

/// What an attribute says of a parameter.
#[derive(Debug, Default)]
pub struct Parameter {
    /// The parameter's name.
    pub name: &'static str,
    /// The doc comment.
    pub description: &'static str,
    /// Whether it is an `Option`.
    pub optional: bool,
    /// The default, as JSON.
    pub default: Option<Value>,
    /// JSON Schema keywords from the attribute: minimum, pattern and so on.
    pub keywords: Vec<(&'static str, Value)>,
}

/// Builds the input schema of a tool, parameter by parameter.
#[derive(Debug)]
pub struct InputBuilder {
    generator: SchemaGenerator,
    properties: Map<String, Value>,
    required: Vec<Value>,
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

impl Default for InputBuilder {
    fn default() -> Self {
        Self { generator: generator(), properties: Map::new(), required: Vec::new() }
    }
}

impl InputBuilder {
    /// Adds a parameter of a type.
    pub fn parameter<T: ToolParameter>(&mut self, parameter: Parameter) {
        let mut schema = self.generator.subschema_for::<T>().to_value();
        tidy(&mut schema);
        // A boolean schema takes no keywords.
        if !schema.is_object() {
            schema = json!({});
        }
        if let Some(object) = schema.as_object_mut() {
            // A reference stands beside its siblings in 2020-12, so that no wrapper is needed.
            if !parameter.description.is_empty() {
                object.insert("description".into(), parameter.description.into());
            }
            if let Some(default) = &parameter.default {
                object.insert("default".into(), default.clone());
            }
            for (keyword, value) in parameter.keywords {
                let value = match (keyword, value.as_str()) {
                    ("format", Some(name)) => ParameterType::format_for(name).into(),
                    _ => value,
                };
                object.insert(keyword.into(), value);
            }
        }
        if !parameter.optional && parameter.default.is_none() {
            self.required.push(parameter.name.into());
        }
        self.properties.insert(parameter.name.into(), schema);
    }

    /// The schema of all parameters.
    pub fn finish(mut self) -> Arc<Schema> {
        let mut definitions = Value::Object(self.generator.take_definitions(true));
        tidy(&mut definitions);
        let mut schema = json!({ "type": "object", "properties": self.properties });
        if !self.required.is_empty() {
            schema["required"] = self.required.into();
        }
        schema["additionalProperties"] = false.into();
        if definitions.as_object().is_some_and(|map| !map.is_empty()) {
            schema["$defs"] = definitions;
        }
        Arc::new(Schema::new(schema))
    }
}

/// Takes out what says nothing to a validator or a model: Rust's number formats, titles of types, the dialect.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.remove("$schema");
            let rust_format = object.get("format").and_then(Value::as_str).is_some_and(|format| {
                format.starts_with("int")
                    || format.starts_with("uint")
                    || matches!(format, "float" | "double")
            });
            if rust_format {
                object.remove("format");
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The schema of a type that is the whole input of a tool.
pub fn input_schema<T: ToolParameter>() -> Arc<Schema> {
    let mut schema = generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        if object.contains_key("properties") && !object.contains_key("additionalProperties") {
            object.insert("additionalProperties".into(), false.into());
        }
    }
    Arc::new(Schema::new(schema))
}

/// The schema of a result, `None` for one that says nothing.
pub fn output_schema<T: ToolAnswer>() -> Option<Arc<Schema>> {
    let mut schema = generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    let says_nothing = schema.get("type").and_then(Value::as_str) == Some("null")
        || schema.as_object().is_none_or(|object| object.keys().all(|key| key == "title"));
    (!says_nothing).then(|| Arc::new(Schema::new(schema)))
}

/// What can be a parameter of a tool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a tool",
    label = "neither part of the schema nor injected",
    note = "if a model gives it: put `#[toolpost::data]` on the type",
    note = "if the application gives it: make the parameter `toolpost::Inject<{Self}>`"
)]
pub trait ToolParameter: DeserializeOwned + JsonSchema {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema> ToolParameter for T {}

/// What can be the result of a tool: it has a schema, so that callers know what comes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool",
    label = "has no JSON form",
    note = "put `#[toolpost::data]` on the type, or return `toolpost::Output`"
)]
pub trait ToolAnswer: JsonSchema {}

#[diagnostic::do_not_recommend]
impl<T: JsonSchema> ToolAnswer for T {}

/// Decodes one argument, or its default when it is absent.
///
/// # Errors
/// `MISSING_PARAM` or `INVALID_INPUT`.
pub fn decode<T: ToolParameter>(
    args: &Args,
    name: &str,
    default: Option<fn() -> Value>,
) -> Result<T, ToolError> {
    match default {
        Some(default) if args.get(name).is_none() => T::deserialize(&default()).map_err(|error| {
            ToolError::internal(format!(
                "the default of the parameter `{name}` does not fit its type: {error}"
            ))
        }),
        _ => args.decode(name),
    }
}

/// Turns any error that a tool function may answer with into a [`ToolError`].
pub fn into_error(error: impl Into<ToolError>) -> ToolError {
    error.into()
}
