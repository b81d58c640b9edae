//! `EnhancedToolSchema`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost_core::{
    Args, Call, Ctx, Example, Output, ParameterType, Placement, Schema, Timeout, Tool, ToolError, ToolSpec,
    check_tool_name, tool_fn,
};

use crate::fields::Fields;
use crate::limits::{ResourceLimits, SecurityLevel};
use crate::parameter::{Parameter, object_of};

const CATEGORIES: [&str; 10] = [
    "file_system",
    "web_search",
    "code_execution",
    "data_processing",
    "communication",
    "system",
    "database",
    "security",
    "monitoring",
    "custom",
];
const TYPES: [&str; 4] = ["builtin", "custom", "mcp", "composite"];

/// A tool imported from an `EnhancedToolSchema`.
///
/// | field | here |
/// |---|---|
/// | `name` (3 to 64 characters), `display_name`, `category`, `idempotent` | the same |
/// | `description` (10 to 500 characters), `long_description` | the description, concatenated |
/// | `parameters`, `returns` | input and output schema; defaults are filled in before the tool runs |
/// | `parameters[].sensitive` | masked in records |
/// | `examples` | arguments and `expected_result`, which mock mode returns |
/// | `resource_limits.max_execution_time_seconds` (30) | the timeout |
/// | `cacheable`, `cache_ttl` | time that a result of an idempotent tool is cached, in seconds |
/// | `async_capable` | false: the tool runs on a thread for blocking work |
/// | `metadata.tags`, `metadata.keywords` | search tags |
/// | `deprecated`, `deprecation_message` | part of the description |
/// | `security`, `resource_limits` | limits that [`tighten`](Self::tighten) sets on a call |
/// | `type`, `stateful`, the rest of `metadata`, names and notes of examples | facts in `meta` |
///
/// `category` and `type` default to `custom`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImportedTool {
    /// The spec of the tool.
    pub spec: ToolSpec,
    /// Confinement of code that the tool starts.
    pub security: SecurityLevel,
    /// Limits of a call.
    pub limits: ResourceLimits,
}

impl ImportedTool {
    /// Reads an `EnhancedToolSchema`.
    ///
    /// # Errors
    /// `MISSING_PARAM` and `INVALID_INPUT` with the JSON pointer of a field that is missing, unknown, of another type, in
    /// conflict with another field, or beyond what a description can grant.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        let mut fields = Fields::new(value, "")?;
        let name = fields.required_text("name")?;
        if name.len() < 3 {
            return Err(fields.wrong("name", "expected 3 to 64 characters"));
        }
        check_tool_name(name).map_err(|message| fields.wrong("name", message))?;
        let description = description(&mut fields)?;
        let mut spec = ToolSpec::new(name, description);
        spec.title = fields.text("display_name")?.map(ToOwned::to_owned);
        spec.category = Some(fields.choice("category", &CATEGORIES, "custom")?.to_owned());
        spec.meta.insert("type".into(), fields.choice("type", &TYPES, "custom")?.into());

        let mut parameters: Vec<Parameter> = Vec::new();
        for (index, value) in fields.list("parameters")?.iter().enumerate() {
            let place = format!("parameters/{index}");
            let parameter = Parameter::read(value, fields.place(&place))?;
            if parameters.iter().any(|known| known.name == parameter.name) {
                return Err(fields.wrong(&format!("{place}/name"), "duplicate parameter"));
            }
            parameters.push(parameter);
        }
        spec.sensitive =
            parameters.iter().filter(|known| known.is_sensitive).map(|known| known.name.clone()).collect();
        spec.input_schema = Arc::new(Schema::new(object_of(&parameters, true).into()));
        if let Some(returns) = fields.any("returns") {
            spec.output_schema =
                Some(Arc::new(Schema::new(returns_schema(returns, fields.place("returns"))?)));
        }
        let mut descriptions = Vec::new();
        for (index, value) in fields.list("examples")?.iter().enumerate() {
            let (example, about) = example(value, fields.place(&format!("examples/{index}")))?;
            spec.examples.push(example);
            descriptions.push(about);
        }
        if !descriptions.is_empty() {
            spec.meta.insert("examples".into(), descriptions.into());
        }
        let security = match fields.any("security") {
            Some(value) => SecurityLevel::read(value, &fields.place("security"))?,
            None => SecurityLevel { level: Some("standard".into()), limits: ResourceLimits::none() },
        };
        let limits = match fields.any("resource_limits") {
            Some(value) => {
                ResourceLimits::read(value, &fields.place("resource_limits"), ResourceLimits::default())?
            }
            None => ResourceLimits::default(),
        };
        let limits = limits.tightened(&security.limits);
        spec.policy.timeout = Some(limits.time.map_or(Timeout::Never, Timeout::After));
        if !fields.flag("async_capable", true)? {
            spec.policy.placement = Placement::Blocking;
        }
        spec.annotations.idempotent = fields.flag("idempotent", false)?;
        let is_stateful = fields.flag("stateful", false)?;
        let is_cacheable = fields.flag("cacheable", true)?;
        if let Some(seconds) = fields.whole("cache_ttl")?.filter(|seconds| *seconds > 0) {
            let conflicts = [
                (!is_cacheable, "`cacheable` is false"),
                (is_stateful, "the tool is stateful"),
                (!spec.annotations.idempotent, "only an idempotent tool can be cached"),
            ];
            if let Some((_, reason)) = conflicts.into_iter().find(|(holds, _)| *holds) {
                return Err(fields
                    .wrong("cache_ttl", reason)
                    .suggest("Omit `cache_ttl`, or set `idempotent`."));
            }
            spec.policy.cache = Some(Duration::from_secs(seconds));
        }
        if is_stateful {
            spec.meta.insert("stateful".into(), true.into());
        }
        if let Some(metadata) = fields.any("metadata") {
            let (tags, facts) = metadata_of(metadata, fields.place("metadata"))?;
            spec.tags = tags;
            spec.meta.extend(facts);
        }
        fields.finish()?;
        spec.check().map_err(|error| ToolError::invalid_input(error.to_string()))?;
        Ok(Self { spec, security, limits })
    }

    /// Applies the level and the limits of the description to a call; stricter values of the call stay.
    #[must_use]
    pub fn tighten(&self, call: Call) -> Call {
        self.limits.apply(self.security.apply(call))
    }

    /// Creates the tool with its code, which gets the defaults of missing arguments.
    pub fn into_tool<F, Answer>(self, run: F) -> impl Tool + use<F, Answer>
    where
        F: Fn(Args, Ctx) -> Answer + Send + Sync,
        Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
    {
        let properties = self.spec.input_schema.as_value().get("properties").and_then(Value::as_object);
        let defaults: Vec<(String, Value)> = properties
            .into_iter()
            .flatten()
            .filter_map(|(name, schema)| Some((name.clone(), schema.get("default")?.clone())))
            .collect();
        tool_fn(self.spec, move |args, ctx| {
            let args = if defaults.iter().all(|(name, _)| args.get(name).is_some()) {
                args
            } else {
                let mut filled = args.as_value().clone();
                for (name, value) in &defaults {
                    if filled.get(name).is_none() {
                        filled[name] = value.clone();
                    }
                }
                Args::from(filled)
            };
            run(args, ctx)
        })
    }
}

fn description(fields: &mut Fields<'_>) -> Result<String, ToolError> {
    let mut description = fields.required_text("description")?.trim().to_owned();
    if !(10..=500).contains(&description.chars().count()) {
        let found = description.chars().count();
        return Err(fields
            .wrong("description", format!("expected 10 to 500 characters, found {found}"))
            .suggest("Describe its purpose and use; move details into `long_description`."));
    }
    if let Some(long) = fields.text("long_description")? {
        description = format!("{description}\n\n{}", long.trim());
    }
    let message = fields.text("deprecation_message")?;
    match (fields.flag("deprecated", false)?, message) {
        (true, Some(message)) => description = format!("{description}\n\nDeprecated: {}", message.trim()),
        (true, None) => {
            return Err(fields.wrong("deprecation_message", "a deprecated tool needs a message"));
        }
        (false, Some(_)) => return Err(fields.wrong("deprecation_message", "the tool is not `deprecated`")),
        (false, None) => {}
    }
    Ok(description)
}

fn returns_schema(value: &Value, place: String) -> Result<Value, ToolError> {
    let mut fields = Fields::new(value, place)?;
    let kind: ParameterType = fields
        .required_text("type")?
        .parse()
        .map_err(|message: String| fields.wrong("type", message.trim()))?;
    let description = fields.required_text("description")?.to_owned();
    let mut schema = kind.schema();
    if let Some(properties) = fields.object("properties")? {
        if kind != ParameterType::Object {
            return Err(fields.wrong(
                "properties",
                format!("only objects have properties; the tool returns `{}`", kind.name()),
            ));
        }
        let mut parameters = Vec::new();
        for (name, value) in properties {
            let place = format!("properties/{name}");
            let parameter = Parameter::read(value, fields.place(&place))?;
            if parameter.name != *name {
                return Err(fields.wrong(&format!("{place}/name"), format!("expected `{name}`, its key")));
            }
            parameters.push(parameter);
        }
        schema = object_of(&parameters, false).into();
    }
    schema["description"] = description.into();
    let examples = fields.list("examples")?;
    if !examples.is_empty() {
        schema["examples"] = examples.into();
    }
    fields.finish()?;
    Ok(schema)
}

/// An example and its description.
fn example(value: &Value, place: String) -> Result<(Example, Value), ToolError> {
    let mut fields = Fields::new(value, place)?;
    let name = fields.required_text("name")?;
    let description = fields.required_text("description")?;
    let args = fields.object("parameters")?.cloned().unwrap_or_default();
    let output = fields.any("expected_result").cloned();
    let mut about = json!({ "name": name, "description": description });
    if let Some(notes) = fields.text("notes")? {
        about["notes"] = notes.into();
    }
    fields.finish()?;
    Ok((Example { args: args.into(), output }, about))
}

/// The search tags and the other facts.
fn metadata_of(value: &Value, place: String) -> Result<(Vec<String>, Map<String, Value>), ToolError> {
    let mut fields = Fields::new(value, place)?;
    let mut facts = Map::new();
    for name in [
        "version",
        "author",
        "license",
        "homepage",
        "repository",
        "documentation",
        "created_at",
        "updated_at",
    ] {
        if let Some(text) = fields.text(name)? {
            facts.insert(name.into(), text.into());
        }
    }
    let dependencies = fields.texts("dependencies")?;
    if !dependencies.is_empty() {
        facts.insert("dependencies".into(), dependencies.into());
    }
    let mut tags = fields.texts("tags")?;
    for keyword in fields.texts("keywords")? {
        if !tags.contains(&keyword) {
            tags.push(keyword);
        }
    }
    fields.finish()?;
    Ok((tags, facts))
}
