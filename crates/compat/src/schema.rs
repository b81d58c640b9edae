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

/// A tool that was described by an `EnhancedToolSchema`.
///
/// | field | here |
/// |---|---|
/// | `name` (3 to 64 characters), `display_name`, `category`, `idempotent` | the same |
/// | `description` (10 to 500 characters), `long_description` | the description, one after the other |
/// | `parameters`, `returns` | input and output schema; defaults are filled in before the tool runs |
/// | `parameters[].sensitive` | masked in records |
/// | `examples` | `parameters` and `expected_result`, which mock mode answers with |
/// | `resource_limits.max_execution_time_seconds` (30) | the timeout |
/// | `cacheable`, `cache_ttl` | how long a success of an idempotent tool is kept, in seconds |
/// | `async_capable` | false: it runs on a thread for blocking work |
/// | `metadata.tags`, `metadata.keywords` | words to find it by |
/// | `deprecated`, `deprecation_message` | said in the description, where a model reads it |
/// | `security`, `resource_limits` | what [`tighten`](Self::tighten) gives to a call |
/// | `type`, `stateful`, the rest of `metadata`, names and notes of examples | facts in `meta` |
///
/// `category` and `type` may be left out, and are `custom` then.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImportedTool {
    /// What is known of it.
    pub spec: ToolSpec,
    /// How code that it starts is confined.
    pub security: SecurityLevel,
    /// How much a call of it may use.
    pub limits: ResourceLimits,
}

impl ImportedTool {
    /// Reads an `EnhancedToolSchema`.
    ///
    /// # Errors
    /// `MISSING_PARAM` and `INVALID_INPUT` with the JSON pointer of the field: it is missing, of another type, not
    /// known, contradicts another one, or asks for something that a description cannot give.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        let mut fields = Fields::of(value, "")?;
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
                return Err(
                    fields.wrong(&format!("{place}/name"), "there is a parameter of this name already")
                );
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
        let mut told = Vec::new();
        for (index, value) in fields.list("examples")?.iter().enumerate() {
            let (example, about) = example(value, fields.place(&format!("examples/{index}")))?;
            spec.examples.push(example);
            told.push(about);
        }
        if !told.is_empty() {
            spec.meta.insert("examples".into(), told.into());
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
            let against = [
                (!is_cacheable, "`cacheable` is false"),
                (is_stateful, "the tool is stateful"),
                (!spec.annotations.idempotent, "only an idempotent tool can be cached"),
            ];
            if let Some((_, reason)) = against.into_iter().find(|(holds, _)| *holds) {
                return Err(fields
                    .wrong("cache_ttl", reason)
                    .suggest("Leave `cache_ttl` out, or set `idempotent`."));
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

    /// The call, with the level and the limits that the description asks for where they are tighter than its own.
    #[must_use]
    pub fn tighten(&self, call: Call) -> Call {
        self.limits.apply(self.security.apply(call))
    }

    /// The tool, with the code that was not part of the description. It gets the defaults of arguments that were left
    /// out.
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
            .suggest("Say what it does and when to use it; put more into `long_description`."));
    }
    if let Some(long) = fields.text("long_description")? {
        description = format!("{description}\n\n{}", long.trim());
    }
    let message = fields.text("deprecation_message")?;
    match (fields.flag("deprecated", false)?, message) {
        (true, Some(message)) => description = format!("{description}\n\nDeprecated: {}", message.trim()),
        (true, None) => {
            return Err(fields.wrong("deprecation_message", "a deprecated tool says what to use instead"));
        }
        (false, Some(_)) => return Err(fields.wrong("deprecation_message", "the tool is not `deprecated`")),
        (false, None) => {}
    }
    Ok(description)
}

fn returns_schema(value: &Value, place: String) -> Result<Value, ToolError> {
    let mut fields = Fields::of(value, place)?;
    let kind: ParameterType = fields
        .required_text("type")?
        .parse()
        .map_err(|message: String| fields.wrong("type", message.trim()))?;
    let description = fields.required_text("description")?.to_owned();
    let mut schema = kind.schema();
    if let Some(properties) = fields.object("properties")? {
        if kind != ParameterType::Object {
            return Err(fields
                .wrong("properties", format!("only an object has them, and it returns `{}`", kind.name())));
        }
        let mut parameters = Vec::new();
        for (name, value) in properties {
            let place = format!("properties/{name}");
            let parameter = Parameter::read(value, fields.place(&place))?;
            if parameter.name != *name {
                return Err(
                    fields.wrong(&format!("{place}/name"), format!("expected `{name}`, as its key says"))
                );
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

/// An example, and what is told of it.
fn example(value: &Value, place: String) -> Result<(Example, Value), ToolError> {
    let mut fields = Fields::of(value, place)?;
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

/// The words to find a tool by, and the other facts.
fn metadata_of(value: &Value, place: String) -> Result<(Vec<String>, Map<String, Value>), ToolError> {
    let mut fields = Fields::of(value, place)?;
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
