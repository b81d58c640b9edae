//! The definition of a tool.

mod check;

use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{Alias, OnConflict, ParameterType, Policy, Schema, StateSpec, TaskUse, hex};

/// Maximum length of a tool name, which every provider and protocol accepts.
const MAX_NAME: usize = 64;

/// The reason why a tool definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The tool's name, possibly empty.
    pub tool: String,
    /// The defect and the expectation.
    pub message: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tool `{}` is invalid: {}", self.tool, self.message)
    }
}

impl std::error::Error for SpecError {}

/// Hints about a tool's effects. The author gives them; the toolbox does not guarantee them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The tool changes nothing.
    pub read_only: bool,
    /// The tool may destroy data.
    pub destructive: bool,
    /// Repeating a call has no further effect.
    pub idempotent: bool,
    /// The tool reaches beyond this machine.
    pub open_world: bool,
}

/// The interaction during a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One answer.
    #[default]
    Unary,
    /// Progress, log lines and files during the call, then one answer.
    Streaming,
    /// Questions and answers, then one result.
    Session,
}

/// An example call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// The arguments.
    pub args: Value,
    /// The output, which mock mode returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

/// The definition of a tool. Serialization preserves its [`digest`](Self::digest).
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// `^[a-zA-Z][a-zA-Z0-9_-]{0,63}$`
    pub name: String,
    /// Aliases; they are not listed.
    #[serde(default)]
    pub aliases: Vec<Alias>,
    /// Display name.
    #[serde(default)]
    pub title: Option<String>,
    /// The purpose of the tool, and when to use it; the first line is the [summary](Self::summary).
    pub description: String,
    /// A JSON Schema 2020-12 of type object.
    pub input_schema: Arc<Schema>,
    /// The JSON Schema of the structured output.
    #[serde(default)]
    pub output_schema: Option<Arc<Schema>>,
    /// Example calls.
    #[serde(default)]
    pub examples: Vec<Example>,
    /// Category, such as `file_system`.
    #[serde(default)]
    pub category: Option<String>,
    /// Dotted group, such as `crm.contacts`.
    #[serde(default)]
    pub group: Option<String>,
    /// Search tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Hints about its effects.
    #[serde(default)]
    pub annotations: Annotations,
    /// The interaction during a call.
    #[serde(default)]
    pub mode: Mode,
    /// Whether a call may outlive its request.
    #[serde(default)]
    pub task: TaskUse,
    /// Whether the tool implements dry runs itself, by checking [`Ctx::is_dry_run`](crate::Ctx::is_dry_run).
    #[serde(default)]
    pub dry_run: bool,
    /// The tool's policy.
    #[serde(default)]
    pub policy: Policy,
    /// The document parts of its `#[state]` parameters, in order.
    #[serde(default)]
    pub state: Vec<StateSpec>,
    /// Names of injected values, which cannot be arguments.
    #[serde(default)]
    pub injected: Vec<String>,
    /// Names of arguments that records mask.
    #[serde(default)]
    pub sensitive: Vec<String>,
    /// Metadata, such as the tool's original name.
    #[serde(default)]
    pub meta: Map<String, Value>,
}

/// Checks a tool name.
///
/// # Errors
/// The expected form.
pub fn check_tool_name(name: &str) -> Result<(), String> {
    let mut bytes = name.bytes();
    let good = bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        && name.len() <= MAX_NAME;
    if good {
        return Ok(());
    }
    Err("a tool name starts with a letter and has at most 64 letters, digits, `_` or `-`".to_owned())
}

impl ToolSpec {
    /// A tool without parameters. Registration validates the name.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        let empty = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        Self {
            name: name.into(),
            aliases: Vec::new(),
            title: None,
            description: description.into(),
            input_schema: Arc::new(Schema::new(empty)),
            output_schema: None,
            examples: Vec::new(),
            category: None,
            group: None,
            tags: Vec::new(),
            annotations: Annotations::default(),
            mode: Mode::default(),
            task: TaskUse::default(),
            dry_run: false,
            policy: Policy::default(),
            state: Vec::new(),
            injected: Vec::new(),
            sensitive: Vec::new(),
            meta: Map::new(),
        }
    }

    /// Adds a required parameter.
    #[must_use]
    pub fn parameter(self, name: &str, kind: ParameterType, description: &str) -> Self {
        self.add_parameter(name, kind, description, true)
    }

    /// Adds an optional parameter.
    #[must_use]
    pub fn optional_parameter(self, name: &str, kind: ParameterType, description: &str) -> Self {
        self.add_parameter(name, kind, description, false)
    }

    fn add_parameter(mut self, name: &str, kind: ParameterType, description: &str, required: bool) -> Self {
        let mut schema = self.input_schema.as_value().clone();
        let mut property = kind.schema();
        property["description"] = description.into();
        schema["properties"][name] = property;
        if required {
            match schema.get_mut("required").and_then(Value::as_array_mut) {
                Some(names) => names.push(name.into()),
                None => schema["required"] = json!([name]),
            }
        }
        self.input_schema = Arc::new(Schema::new(schema));
        self
    }

    /// Sets the input schema.
    #[must_use]
    pub fn input(mut self, schema: Value) -> Self {
        self.input_schema = Arc::new(Schema::new(schema));
        self
    }

    /// Sets the output schema.
    #[must_use]
    pub fn output(mut self, schema: Value) -> Self {
        self.output_schema = Some(Arc::new(Schema::new(schema)));
        self
    }

    /// Sets the policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the interaction mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether a call may outlive its request.
    #[must_use]
    pub fn task(mut self, task: TaskUse) -> Self {
        self.task = task;
        self
    }

    /// Sets the hints about effects.
    #[must_use]
    pub fn annotations(mut self, annotations: Annotations) -> Self {
        self.annotations = annotations;
        self
    }

    /// Adds an example.
    #[must_use]
    pub fn example(mut self, args: Value, output: Option<Value>) -> Self {
        self.examples.push(Example { args, output });
        self
    }

    /// The first line of the description.
    pub fn summary(&self) -> &str {
        self.description.lines().next().unwrap_or_default()
    }

    /// Validates the definition: names, policy, and the keywords, defaults and examples of parameters.
    ///
    /// At most 50,000 schemas may apply to one value. Patterns are compiled, and so are schemas of defaults and examples
    /// that do not obviously match.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), SpecError> {
        let invalid = |message: String| Err(SpecError { tool: self.name.clone(), message });
        if let Err(message) = check_tool_name(&self.name) {
            return invalid(message);
        }
        if self.description.trim().is_empty() {
            return invalid(
                "it has no description; describe it, so that a model knows when to call it".into(),
            );
        }
        let schema = self.input_schema.as_value();
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return invalid("its input schema must have `\"type\": \"object\"`".into());
        }
        for (which, schema) in [("input", Some(&self.input_schema)), ("output", self.output_schema.as_ref())]
        {
            if let Some(reason) = schema.and_then(|schema| schema.unbounded_reason()) {
                return invalid(format!("its {which} schema is too complex: {reason}"));
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let declared = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        if let Some(name) = self.injected.iter().find(|name| declared(name)) {
            return invalid(format!("`{name}` is injected and cannot also be an argument"));
        }
        for alias in &self.aliases {
            if alias.name == self.name {
                return invalid(format!("its alias `{}` is its own name", alias.name));
            }
            if let Some(message) = alias.invalid_reason(declared) {
                return invalid(message);
            }
        }
        if let Some(name) = self.sensitive.iter().find(|name| !declared(name)) {
            return invalid(format!("the sensitive argument `{name}` is not a parameter"));
        }
        if self.policy.cache.is_some() && !self.annotations.idempotent {
            return invalid(
                "only an idempotent tool can be cached; add `idempotent`, or remove `cache`".into(),
            );
        }
        if let Some(message) = self.invalid_state() {
            return invalid(message);
        }
        if self.policy.concurrency == Some(0) {
            return invalid("a concurrency of 0 would block every call".into());
        }
        check::invalid_reason(self).map_or(Ok(()), invalid)
    }

    /// The reason why its state is invalid.
    fn invalid_state(&self) -> Option<String> {
        if self.policy.cache.is_some() && !self.state.is_empty() {
            return Some("a tool with state cannot be cached; remove `cache`".into());
        }
        let properties = self.input_schema.as_value().get("properties").and_then(Value::as_object);
        let merges = self.policy.conflict.as_ref().is_some_and(|policy| policy.action == OnConflict::Merge);
        if merges && self.state.iter().filter(|state| state.writes).count() != 1 {
            return Some("`merge` needs exactly one writable `#[state]` parameter".into());
        }
        self.state.iter().find_map(|state| {
            let unknown = |name: &&str| !properties.is_some_and(|known| known.contains_key(*name));
            let secret = |name: &&str| self.sensitive.iter().any(|sensitive| sensitive == name);
            state
                .check()
                .err()
                .or_else(|| {
                    let name = state.arguments().find(unknown)?;
                    Some(format!("`{{{name}}}` in the state `{}` is not a parameter", state.id))
                })
                .or_else(|| {
                    let name = state.arguments().find(secret)?;
                    Some(format!("`{name}` is sensitive, so it cannot be part of a document id"))
                })
        })
    }

    /// SHA-256 of the definition in hexadecimal digits, independent of the order of keys.
    pub fn digest(&self) -> String {
        digest_of(self)
    }
}

/// SHA-256 of a definition as JSON, independent of the order of keys.
pub(crate) fn digest_of(definition: &impl Serialize) -> String {
    let mut hasher = Sha256::new();
    let value = serde_json::to_value(definition).unwrap_or_default();
    feed(&mut hasher, &value);
    hex(hasher.finalize())
}

/// Hashes a JSON value with its keys in order, so that equal values have equal digests.
fn feed(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            hasher.update(b"{");
            for (key, value) in entries {
                hasher.update(Value::from(key.as_str()).to_string());
                hasher.update(b":");
                feed(hasher, value);
                hasher.update(b",");
            }
            hasher.update(b"}");
        }
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                feed(hasher, item);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        scalar => hasher.update(scalar.to_string()),
    }
}

impl Serialize for ToolSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        if !self.aliases.is_empty() {
            map.serialize_entry("aliases", &self.aliases)?;
        }
        if let Some(title) = &self.title {
            map.serialize_entry("title", title)?;
        }
        map.serialize_entry("summary", self.summary())?;
        map.serialize_entry("description", &self.description)?;
        map.serialize_entry("input_schema", self.input_schema.as_value())?;
        if let Some(schema) = &self.output_schema {
            map.serialize_entry("output_schema", schema.as_value())?;
        }
        if !self.examples.is_empty() {
            map.serialize_entry("examples", &self.examples)?;
        }
        if let Some(category) = &self.category {
            map.serialize_entry("category", category)?;
        }
        if let Some(group) = &self.group {
            map.serialize_entry("group", group)?;
        }
        if !self.tags.is_empty() {
            map.serialize_entry("tags", &self.tags)?;
        }
        map.serialize_entry("annotations", &self.annotations)?;
        if self.mode != Mode::Unary {
            map.serialize_entry("mode", &self.mode)?;
        }
        if !self.task.is_default() {
            map.serialize_entry("task", &self.task)?;
        }
        if self.dry_run {
            map.serialize_entry("dry_run", &true)?;
        }
        map.serialize_entry("policy", &self.policy)?;
        if !self.state.is_empty() {
            map.serialize_entry("state", &self.state)?;
        }
        if !self.injected.is_empty() {
            map.serialize_entry("injected", &self.injected)?;
        }
        if !self.sensitive.is_empty() {
            map.serialize_entry("sensitive", &self.sensitive)?;
        }
        if !self.meta.is_empty() {
            map.serialize_entry("meta", &self.meta)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "read_file", "mcp__server__tool", "A-1", &"a".repeat(64)] {
            assert!(check_tool_name(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "a b", "a.b", "é", "a\n", &"a".repeat(65)] {
            assert!(check_tool_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_spec_round_trips() {
        let mut spec = ToolSpec::new("a", "A.\n\nMore.")
            .parameter("n", crate::ParameterType::Integer, "N.")
            .output(json!({"type": "integer"}))
            .mode(Mode::Streaming)
            .task(TaskUse::Only)
            .example(json!({"n": 1}), Some(json!(2)));
        spec.aliases.push(Alias::new("b").argument("n", 1));
        spec.title = Some("T".into());
        spec.category = Some("c".into());
        spec.group = Some("g.h".into());
        spec.tags.push("t".into());
        spec.annotations.idempotent = true;
        spec.dry_run = true;
        spec.policy.concurrency = Some(3);
        spec.sensitive.push("n".into());
        spec.meta.insert("k".into(), json!({"z": 1, "a": 2}));
        let read: ToolSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&spec).unwrap());
        assert_eq!(read.digest(), spec.digest());
    }

    #[test]
    fn the_digest_ignores_key_order_and_sees_changes() {
        let spec = |schema: &str| ToolSpec::new("a", "A.").input(serde_json::from_str(schema).unwrap());
        let one = spec(r#"{"type":"object","properties":{"x":{"type":"string"}}}"#);
        let same = spec(r#"{"properties":{"x":{"type":"string"}},"type":"object"}"#);
        let other = spec(r#"{"properties":{"x":{"type":"integer"}},"type":"object"}"#);
        assert_eq!(one.digest(), same.digest());
        assert_ne!(one.digest(), other.digest());
        assert_eq!(one.digest().len(), 64);
    }

    #[test]
    fn contradictions_are_rejected() {
        let mut spec = ToolSpec::new("a", "A.").parameter("user", ParameterType::String, "Who.");
        assert!(spec.check().is_ok());
        spec.injected.push("user".into());
        assert!(spec.check().unwrap_err().message.contains("injected"));
        spec.injected.clear();
        spec.policy.cache = Some(std::time::Duration::from_secs(1));
        assert!(spec.check().unwrap_err().message.contains("idempotent"));
        assert!(ToolSpec::new("a", " ").check().is_err());
        // Each definition references the next one twice: a check would take 2^40 steps.
        let mut definitions: serde_json::Map<String, Value> = (0..40)
            .map(|level| {
                let next = json!({"$ref": format!("#/$defs/M{}", level + 1)});
                (format!("M{level}"), json!({"allOf": [next, next]}))
            })
            .collect();
        definitions.insert("M40".into(), json!({}));
        let heavy =
            json!({"type": "object", "properties": {"p": {"$ref": "#/$defs/M0"}}, "$defs": definitions});
        let error = ToolSpec::new("a", "A.").input(heavy.clone()).check().unwrap_err();
        assert!(
            error.message.contains("its input schema is too complex: more than 50000 schemas"),
            "{error}"
        );
        let error = ToolSpec::new("a", "A.").output(heavy.clone()).check().unwrap_err();
        assert!(error.message.contains("its output schema"), "{error}");
        let error = Schema::new(heavy).is_valid(&json!({"p": 1})).unwrap_err();
        assert!(error.message().contains("more than 50000 schemas"), "{error}");
        assert!(ToolSpec::new("a", "A.").input(json!({"type": "array"})).check().is_err());
    }
}
