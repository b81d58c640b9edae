//! Targets of the code that the attribute macros generate. Unstable: may change in any release.

pub use schemars;
pub use serde;
pub use serde_json;

pub use crate::{
    Annotations, Approval, Args, BoxFuture, Ctx, Inject, IntoOutput, Mode, OnConflict, Output, Placement,
    Policy, Prompt, Rate, Resource, ResourceSpec, Retry, SpecError, StateConflict, StateSpec, TaskUse,
    Timeout, Tool, ToolError, ToolGroup, ToolSpec,
};
pub use std::sync::{Arc, LazyLock};
pub use std::time::Duration;

use std::marker::PhantomData;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{ParameterType, Schema, StateValue, StateView, to_json};

/// A parameter as its attribute describes it.
#[derive(Debug, Default)]
pub struct Parameter {
    /// The parameter's name.
    pub name: &'static str,
    /// The doc comment.
    pub description: &'static str,
    /// Is an `Option`.
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

/// The schema of a type as it stands alone.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let mut schema = generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
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
        let keywords = parameter.keywords.into_iter().map(|(keyword, value)| {
            let keyword = match keyword {
                "minLength" | "maxLength" => self.length_keyword(keyword, &schema),
                other => other,
            };
            (keyword, self.keyword_value(keyword, value, &schema))
        });
        let keywords: Vec<(&str, Value)> = keywords.collect();
        if let Some(object) = schema.as_object_mut() {
            // A reference stands beside its siblings in 2020-12, so that no wrapper is needed.
            if !parameter.description.is_empty() {
                object.insert("description".into(), parameter.description.into());
            }
            if let Some(default) = &parameter.default {
                object.insert("default".into(), default.clone());
            }
            for (keyword, value) in keywords {
                object.insert(keyword.into(), value);
            }
        }
        if !parameter.optional && parameter.default.is_none() {
            self.required.push(parameter.name.into());
        }
        self.properties.insert(parameter.name.into(), schema);
    }

    /// The keyword that bounds a value's length: characters of a string, items of an array, properties of an object.
    fn length_keyword(&self, keyword: &'static str, schema: &Value) -> &'static str {
        let is = |name: &str| self.allows(schema, name, 0);
        match keyword {
            "minLength" if is("array") => "minItems",
            "minLength" if is("object") => "minProperties",
            "maxLength" if is("array") => "maxItems",
            "maxLength" if is("object") => "maxProperties",
            other => other,
        }
    }

    fn keyword_value(&self, keyword: &str, mut value: Value, schema: &Value) -> Value {
        match (keyword, &mut value) {
            ("format", Value::String(name)) => ParameterType::format_for(name).into(),
            // An optional parameter also accepts `null`, even when the attribute lists its values.
            ("enum", Value::Array(values)) if self.allows(schema, "null", 0) => {
                values.push(Value::Null);
                value
            }
            _ => value,
        }
    }

    /// Whether a schema allows a type.
    fn allows(&self, schema: &Value, name: &str, depth: usize) -> bool {
        if depth > 8 {
            return false;
        }
        let listed = match schema.get("type") {
            Some(Value::String(kind)) => kind == name,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
            _ => false,
        };
        let reference = schema.get("$ref").and_then(Value::as_str);
        let target = reference
            .and_then(|reference| reference.strip_prefix("#/$defs/"))
            .and_then(|definition| self.generator.definitions().get(definition));
        let choices = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
        listed
            || target.is_some_and(|target| self.allows(target, name, depth + 1))
            || choices.flatten().any(|choice| self.allows(choice, name, depth + 1))
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

/// Removes keywords that neither a validator nor a model needs: Rust number formats, `$schema`.
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

/// The input schema of a tool whose parameters are the fields of one type.
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

/// Describes a resource that a tool reads.
///
/// # Errors
/// The URI pattern is invalid, or its placeholders differ from the tool's required parameters.
pub fn resource_spec(spec: &ToolSpec, pattern: &str, mime_types: &[&str]) -> Result<ResourceSpec, SpecError> {
    crate::resource::resource_spec(spec, pattern, mime_types)
}

/// A type that can be a parameter of a tool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a tool",
    label = "neither part of the schema nor injected",
    note = "if a model gives it: put `#[toolpost::data]` on the type",
    note = "if the application gives it: make the parameter `toolpost::Inject<{Self}>`"
)]
pub trait ToolParameter: DeserializeOwned + JsonSchema {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema> ToolParameter for T {}

/// A type that a tool can return, with its JSON Schema.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool",
    label = "has no JSON form",
    note = "put `#[toolpost::data]` on the type, or return `toolpost::Output`"
)]
pub trait ToolAnswer {
    /// The schema of the result; `None` if it constrains nothing.
    fn output_schema() -> Option<Arc<Schema>>;
}

#[diagnostic::do_not_recommend]
impl<T: JsonSchema> ToolAnswer for T {
    fn output_schema() -> Option<Arc<Schema>> {
        let schema = schema_of::<T>();
        let says_nothing = schema.get("type").and_then(Value::as_str) == Some("null")
            || schema.as_object().is_none_or(|object| object.keys().all(|key| key == "title"));
        (!says_nothing).then(|| Arc::new(Schema::new(schema)))
    }
}

/// An `Output` has no fixed schema.
impl ToolAnswer for Output {
    fn output_schema() -> Option<Arc<Schema>> {
        None
    }
}

// The types below distinguish types, not names: an inherent method takes precedence over a trait's method. An alias of
// `Result` is therefore a `Result`, and a user's own type `Ctx` is an ordinary argument.

/// The type that a tool function returns.
#[derive(Debug)]
pub struct Return<T>(PhantomData<fn() -> T>);

impl<T> Return<T> {
    /// Creates the marker.
    pub const fn marker() -> Self {
        Self(PhantomData)
    }
}

impl<T, E> Return<Result<T, E>> {
    /// The schema of the type in `Ok`.
    pub fn output_schema(&self) -> Option<Arc<Schema>>
    where
        T: ToolAnswer,
    {
        T::output_schema()
    }
}

/// The schema of a return type other than `Result`.
pub trait PlainReturn<T> {
    /// The schema of the value.
    fn output_schema(&self) -> Option<Arc<Schema>>
    where
        T: ToolAnswer;
}

impl<T> PlainReturn<T> for Return<T> {
    fn output_schema(&self) -> Option<Arc<Schema>>
    where
        T: ToolAnswer,
    {
        T::output_schema()
    }
}

/// The value that a tool function returned.
#[derive(Debug)]
pub struct Returned<T>(pub T);

impl<T, E> Returned<Result<T, E>> {
    /// The value in `Ok` as an output.
    ///
    /// # Errors
    /// The function's own, and `INTERNAL` when the value has no JSON form.
    pub fn into_tool_output(self) -> Result<Output, ToolError>
    where
        T: IntoOutput,
        E: ToolFailure,
    {
        self.0.map_err(into_error)?.into_output()
    }
}

/// Converts a return value other than `Result` into an output.
pub trait PlainReturned<T> {
    /// The value as an output.
    ///
    /// # Errors
    /// `INTERNAL` when the value has no JSON form.
    fn into_tool_output(self) -> Result<Output, ToolError>
    where
        T: IntoOutput;
}

impl<T> PlainReturned<T> for Returned<T> {
    fn into_tool_output(self) -> Result<Output, ToolError>
    where
        T: IntoOutput,
    {
        self.0.into_output()
    }
}

/// The type of a parameter of a tool function.
#[derive(Debug)]
pub struct Slot<T>(PhantomData<fn() -> T>);

impl<T> Slot<T> {
    /// Creates the marker.
    pub const fn marker() -> Self {
        Self(PhantomData)
    }
}

impl<T> Slot<Option<T>> {
    /// An `Option` is optional.
    pub const fn is_optional(&self) -> bool {
        true
    }
}

impl Slot<Ctx> {
    /// A `Ctx` is not part of the schema.
    pub fn describe(&self, _input: &mut InputBuilder, _parameter: Parameter) {}

    /// The context of the call.
    ///
    /// # Errors
    /// None.
    pub fn take(
        &self,
        _args: &Args,
        ctx: &Ctx,
        _name: &str,
        _default: Option<fn() -> Value>,
    ) -> Result<Ctx, ToolError> {
        self.fill(ctx)
    }

    /// The context of the call.
    ///
    /// # Errors
    /// None.
    pub fn fill(&self, ctx: &Ctx) -> Result<Ctx, ToolError> {
        Ok(ctx.clone())
    }
}

impl<T: Send + Sync + 'static> Slot<Inject<T>> {
    /// An injected value is not part of the schema.
    pub fn describe(&self, _input: &mut InputBuilder, _parameter: Parameter) {}

    /// The injected value.
    ///
    /// # Errors
    /// `PRECONDITION` if the application does not provide it.
    pub fn take(
        &self,
        _args: &Args,
        ctx: &Ctx,
        _name: &str,
        _default: Option<fn() -> Value>,
    ) -> Result<Inject<T>, ToolError> {
        self.fill(ctx)
    }

    /// The injected value.
    ///
    /// # Errors
    /// `PRECONDITION` if the application does not provide it.
    pub fn fill(&self, ctx: &Ctx) -> Result<Inject<T>, ToolError> {
        ctx.inject()
    }
}

/// A parameter that the caller passes.
pub trait ArgumentSlot<T> {
    /// Only an `Option` is optional.
    fn is_optional(&self) -> bool {
        false
    }

    /// Adds the parameter to the schema.
    fn describe(&self, input: &mut InputBuilder, parameter: Parameter)
    where
        T: ToolParameter;

    /// Decodes the argument, or uses its default.
    ///
    /// # Errors
    /// `MISSING_PARAM` or `INVALID_INPUT`.
    fn take(
        &self,
        args: &Args,
        ctx: &Ctx,
        name: &str,
        default: Option<fn() -> Value>,
    ) -> Result<T, ToolError>
    where
        T: ToolParameter;
}

impl<T> ArgumentSlot<T> for Slot<T> {
    fn describe(&self, input: &mut InputBuilder, parameter: Parameter)
    where
        T: ToolParameter,
    {
        input.parameter::<T>(parameter);
    }

    fn take(
        &self,
        args: &Args,
        _ctx: &Ctx,
        name: &str,
        default: Option<fn() -> Value>,
    ) -> Result<T, ToolError>
    where
        T: ToolParameter,
    {
        decode(args, name, default)
    }
}

/// Decodes an argument, or uses its default.
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
            ToolError::internal(format!("the default of parameter `{name}` does not fit its type: {error}"))
        }),
        _ => args.decode(name),
    }
}

/// An error type of a tool function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a tool",
    label = "is not an error",
    note = "implement `std::error::Error` for it, or fail with `toolpost::ToolError`"
)]
pub trait ToolFailure {
    /// Converts the error.
    fn into_tool_error(self) -> ToolError;
}

#[diagnostic::do_not_recommend]
impl<E: Into<ToolError>> ToolFailure for E {
    fn into_tool_error(self) -> ToolError {
        self.into()
    }
}

/// Converts an error of a tool function into a [`ToolError`].
pub fn into_error(error: impl ToolFailure) -> ToolError {
    error.into_tool_error()
}

/// A `#[state]` parameter while the tool runs.
#[derive(Debug)]
pub struct StateSlot<T> {
    index: usize,
    view: StateView,
    value: T,
    /// Returns the new JSON value if the value changed. A function pointer, so that a missing bound is reported once.
    changed: fn(&StateView, &T) -> Result<Option<Value>, ToolError>,
}

/// Loads the part of a document that a `#[state]` parameter sees.
///
/// # Errors
/// `INTERNAL` if the stored value does not fit the type.
pub fn load_state<T: StateValue>(ctx: &Ctx, index: usize) -> Result<StateSlot<T>, ToolError> {
    let view = ctx.state_view(index)?;
    let value = view.decode()?;
    Ok(StateSlot { index, view, value, changed: StateView::changed })
}

impl<T> StateSlot<T> {
    /// Reads the value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Changes the value.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Writes the value back if it changed.
    ///
    /// # Errors
    /// `INTERNAL` with the JSON pointer of a value that JSON cannot represent.
    pub fn write_back(&self, ctx: &Ctx) -> Result<(), ToolError> {
        match (self.changed)(&self.view, &self.value)? {
            Some(value) => ctx.set_state(self.index, value),
            None => Ok(()),
        }
    }
}

/// A return type of a `merge` function.
#[diagnostic::on_unimplemented(
    message = "the `merge` function returns `{Self}`",
    label = "expected `{T}` or a `Result` with it",
    note = "write `fn(before: {T}, mine: {T}, theirs: {T}) -> {T}`"
)]
pub trait Merged<T> {
    /// Converts the value into a result.
    fn into_merged(self) -> Result<T, ToolError>;
}

impl<T> Merged<T> for T {
    fn into_merged(self) -> Result<T, ToolError> {
        Ok(self)
    }
}

impl<T, E: ToolFailure> Merged<T> for Result<T, E> {
    fn into_merged(self) -> Result<T, ToolError> {
        self.map_err(into_error)
    }
}

/// Merges two versions of a value with the tool's function; a missing value is the type's default.
///
/// # Errors
/// Errors of the function; `INTERNAL` when a value does not fit the type or JSON cannot represent it.
pub fn merge<T: StateValue, M: Merged<T>>(
    function: impl FnOnce(T, T, T) -> M,
    before: Option<&Value>,
    mine: &Value,
    theirs: Option<&Value>,
) -> Result<Value, ToolError> {
    let decode = |value: Option<&Value>| -> Result<T, ToolError> {
        value.map_or_else(|| Ok(T::default()), |value| Ok(T::deserialize(value)?))
    };
    to_json(&function(decode(before)?, decode(Some(mine))?, decode(theirs)?).into_merged()?)
}
