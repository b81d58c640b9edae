//! Copies a schema into the dialect of a provider.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use toolpost_schema::{Budget, Merger, resolve, type_names};

use super::SchemaTarget;
use super::keywords::{Handling, handling};
use super::limits::{
    ANTHROPIC_MAX_OPTIONAL, ANTHROPIC_MAX_UNIONS, MAX_BYTES, MAX_DEPTH, MAX_ENTRY_CHARS, MAX_UNCHECKED,
    MAX_VALUES, OPENAI_MAX_ENUM_VALUES, OPENAI_MAX_NAME_BYTES, OPENAI_MAX_OBJECT_DEPTH,
    OPENAI_MAX_PROPERTIES,
};
use super::types::{are_exclusive, is_plain, or_null};

type Object = Map<String, Value>;

/// Walks a schema once and writes the copy.
pub(super) struct Lowering<'a> {
    root: &'a Value,
    target: SchemaTarget,
    merger: Merger<'a>,
    /// The current place, as a JSON pointer.
    at: String,
    depth: usize,
    object_depth: usize,
    definitions: Definitions,
    /// The references that are being inlined at this place.
    open: Vec<String>,
    pub(super) unchecked: Unchecked,
    pub(super) counts: Counts,
}

/// Counts that providers limit.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) optional: usize,
    pub(super) unions: usize,
    properties: usize,
    enum_values: usize,
    name_bytes: usize,
}

/// The targets of references, each once.
#[derive(Default)]
struct Definitions {
    /// The number of each reference.
    numbers: HashMap<String, usize>,
    /// The references, with their names in the copy.
    list: Vec<(String, String)>,
    names: HashSet<String>,
    /// Which definition refers to which. Nothing refers to the root, so it has no entry.
    edges: Vec<Vec<usize>>,
    /// The definition that is being walked.
    current: Option<usize>,
}

/// Keywords that the provider does not check.
#[derive(Default)]
pub(super) struct Unchecked {
    entries: Vec<String>,
    more: usize,
}

impl Unchecked {
    fn add(&mut self, entry: &str) {
        if self.entries.len() + 1 >= MAX_UNCHECKED {
            self.more += 1;
            return;
        }
        let entry: String = entry.chars().take(MAX_ENTRY_CHARS).collect();
        if !self.entries.contains(&entry) {
            self.entries.push(entry);
        }
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        let mut entries = self.entries;
        if self.more > 0 {
            entries.push(format!("and {} more", self.more));
        }
        entries
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn new(root: &'a Value, target: SchemaTarget) -> Self {
        Self {
            root,
            target,
            merger: Merger::new(root, Budget::new(MAX_VALUES, MAX_BYTES)),
            at: String::new(),
            depth: 0,
            object_depth: 0,
            definitions: Definitions::default(),
            open: Vec::new(),
            unchecked: Unchecked::default(),
            counts: Counts::default(),
        }
    }

    fn is_gemini(&self) -> bool {
        self.target == SchemaTarget::Gemini
    }

    /// Lowers the whole schema. The error says why the provider cannot enforce it.
    pub(super) fn document(&mut self) -> Result<Value, String> {
        let mut start = self.root;
        // A strict provider wants an object as the root, not a reference.
        for _ in 0..if self.is_gemini() { 0 } else { MAX_DEPTH } {
            let Some(Value::String(reference)) = start.get("$ref") else { break };
            if start.as_object().is_some_and(|start| start.contains_key("properties")) {
                break;
            }
            match resolve(self.root, reference) {
                Some(target) if !std::ptr::eq(target, start) => start = target,
                _ => break,
            }
        }
        let mut lowered = match start {
            Value::Object(start) => self.object(start, true)?,
            Value::Bool(true) => self.object(&Object::new(), true)?,
            _ => return Err(self.error("expected an object as the schema")),
        };
        let mut done = 0;
        let mut definitions = Object::new();
        while let Some((reference, name)) = self.definitions.list.get(done).cloned() {
            self.definitions.current = Some(done);
            self.at = format!("/$defs/{name}");
            (self.depth, self.object_depth) = (0, 0);
            let Some(target) = resolve(self.root, &reference) else {
                return Err(self.error(&format!("`$ref` `{reference}` does not point into the schema")));
            };
            let definition = self.node(target)?;
            self.counts.name_bytes += name.len();
            definitions.insert(name, definition);
            done += 1;
        }
        self.at.clear();
        if !definitions.is_empty()
            && let Value::Object(lowered) = &mut lowered
        {
            lowered.insert("$defs".to_owned(), Value::Object(definitions));
        }
        self.check_limits()?;
        Ok(lowered)
    }

    fn check_limits(&self) -> Result<(), String> {
        let Counts { optional, unions, properties, enum_values, name_bytes } = self.counts;
        let limits: &[(usize, usize, &str)] = match self.target {
            SchemaTarget::OpenAiStrict => &[
                (properties, OPENAI_MAX_PROPERTIES, "properties"),
                (enum_values, OPENAI_MAX_ENUM_VALUES, "enum values"),
                (name_bytes, OPENAI_MAX_NAME_BYTES, "bytes of names and enum values"),
            ],
            SchemaTarget::AnthropicStrict => &[
                (optional, ANTHROPIC_MAX_OPTIONAL, "optional parameters"),
                (unions, ANTHROPIC_MAX_UNIONS, "parameters with several types"),
            ],
            SchemaTarget::Gemini => &[],
        };
        if let Some((found, max, what)) = limits.iter().find(|(found, max, _)| found > max) {
            return Err(format!("the schema has {found} {what}; the provider accepts at most {max}"));
        }
        if self.target == SchemaTarget::AnthropicStrict && self.definitions.has_cycle() {
            return Err("the schema is recursive".to_owned());
        }
        Ok(())
    }

    /// An error message with the current place.
    fn error(&self, what: &str) -> String {
        let what: String = what.chars().take(MAX_ENTRY_CHARS).collect();
        format!("{what} at {}", self.place())
    }

    fn place(&self) -> String {
        if self.at.is_empty() {
            return "the root".to_owned();
        }
        let shown: String = self.at.chars().take(MAX_ENTRY_CHARS / 2).collect();
        format!("`{shown}`")
    }

    /// Reports a keyword that the provider does not check.
    fn report_unchecked(&mut self, keyword: &str) {
        let keyword: String = keyword.chars().take(MAX_ENTRY_CHARS / 2).collect();
        let entry = format!("`{keyword}` at {}", self.place());
        self.unchecked.add(&entry);
    }

    /// Spends the keywords that the walk copies whole: a reference may copy them to many places.
    fn spend_copied(&mut self, schema: &Object) -> Result<(), String> {
        let budget = &mut self.merger.budget;
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    properties.keys().try_for_each(|name| budget.spend_text(name))?;
                }
                ("$ref", Value::String(reference)) => budget.spend_text(reference)?,
                // Walked, written elsewhere, or bounded by itself.
                (
                    "type"
                    | "items"
                    | "prefixItems"
                    | "additionalItems"
                    | "additionalProperties"
                    | "anyOf"
                    | "oneOf"
                    | "allOf"
                    | "$defs"
                    | "definitions",
                    _,
                ) => {}
                _ => {
                    budget.spend_text(keyword)?;
                    budget.spend(value)?;
                }
            }
        }
        Ok(())
    }

    /// Lowers a schema one level down.
    fn child(&mut self, segment: &str, schema: &Value) -> Result<Value, String> {
        let here = self.at.len();
        self.at.push('/');
        self.at.push_str(segment);
        let lowered = self.node(schema)?;
        self.at.truncate(here);
        Ok(lowered)
    }

    fn node(&mut self, schema: &Value) -> Result<Value, String> {
        self.merger.budget.spend_value()?;
        if self.depth == MAX_DEPTH {
            return Err(format!("the schema is nested deeper than {MAX_DEPTH}"));
        }
        self.depth += 1;
        let lowered = match schema {
            Value::Object(schema) => self.object(schema, false),
            Value::Bool(true) => self.any_value(Object::new()),
            _ => Err(self.error("expected a schema")),
        };
        self.depth -= 1;
        lowered
    }

    /// A schema that allows any value.
    fn any_value(&self, annotations: Object) -> Result<Value, String> {
        if self.is_gemini() {
            Ok(Value::Object(annotations))
        } else {
            Err(self.error("any value is allowed"))
        }
    }

    fn object(&mut self, schema: &Object, is_root: bool) -> Result<Value, String> {
        let flat = self.merger.flatten(schema).map_err(|what| self.error(&what))?;
        for (keyword, _) in std::mem::take(&mut self.merger.conflicts) {
            self.report_unchecked(&keyword);
        }
        let schema = &*flat;
        self.spend_copied(schema)?;
        if let Some(Value::String(reference)) = schema.get("$ref") {
            if is_root && self.target.is_strict() {
                return Err(self.error("the reference does not lead to an object"));
            }
            return self.reference(reference, schema);
        }
        let types = type_names(schema);
        let is_shaped = ["properties", "items", "prefixItems", "enum", "const"]
            .iter()
            .any(|name| schema.contains_key(*name));
        let union = ["anyOf", "oneOf"]
            .into_iter()
            .find_map(|keyword| schema.get(keyword).and_then(Value::as_array).map(|list| (keyword, list)))
            .filter(|_| !is_shaped);
        if let Some((keyword, branches)) = union {
            if is_root && self.target.is_strict() {
                return Err(self.error(&format!("expected an object, found `{keyword}`")));
            }
            return self.union(schema, keyword, branches, &types);
        }
        let types = if types.is_empty() && is_root { vec!["object"] } else { types };
        if is_root && self.target.is_strict() && types != ["object"] {
            return Err(self.error("expected `type` to be `object`"));
        }
        let mut draft = Draft::default();
        for (keyword, value) in schema {
            match keyword.as_str() {
                "type"
                | "required"
                | "items"
                | "prefixItems"
                | "additionalProperties"
                | "properties"
                | "$defs"
                | "definitions" => {}
                "enum" | "const" => self.enum_values(&mut draft, keyword, value)?,
                "description" => draft.set_description(value),
                "patternProperties" if self.target.is_strict() => {
                    return Err(self.error("`patternProperties` allows properties of any name"));
                }
                _ => self.keyword(&mut draft, keyword, value, &types),
            }
        }
        if types.is_empty() {
            return self.any_value(draft.into_object());
        }
        if types.contains(&"object") {
            self.properties(&mut draft, schema, is_root)?;
        }
        if types.contains(&"array") {
            self.items(&mut draft, schema)?;
        }
        let mut written = Object::new();
        if let [one] = types.as_slice() {
            written.insert("type".to_owned(), json!(one));
        } else {
            self.counts.unions += 1;
            written.insert("type".to_owned(), json!(types));
        }
        written.append(&mut draft.into_object());
        Ok(Value::Object(written))
    }

    fn keyword(&mut self, draft: &mut Draft, keyword: &str, value: &Value, types: &[&str]) {
        match handling(self.target, keyword, value, types) {
            Handling::Send => {
                draft.lowered.insert(keyword.to_owned(), value.clone());
            }
            Handling::Drop => {}
            Handling::Describe => draft.describe(keyword, value),
            Handling::Unchecked => {
                draft.describe(keyword, value);
                self.report_unchecked(keyword);
            }
        }
    }

    /// Lowers `enum` and `const`.
    fn enum_values(&mut self, draft: &mut Draft, keyword: &str, value: &Value) -> Result<(), String> {
        let values = match (keyword, value) {
            ("const", value) => std::slice::from_ref(value),
            (_, Value::Array(values)) => values.as_slice(),
            _ => return Err(self.error("expected a list as `enum`")),
        };
        self.counts.enum_values += values.len();
        self.counts.name_bytes += values.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
        if values.iter().any(|value| value.is_object() || value.is_array()) {
            draft.describe(keyword, value);
            self.report_unchecked(keyword);
        } else if self.is_gemini() {
            draft.lowered.insert("enum".to_owned(), json!(values));
        } else {
            draft.lowered.insert(keyword.to_owned(), value.clone());
        }
        Ok(())
    }

    fn properties(&mut self, draft: &mut Draft, schema: &Object, is_root: bool) -> Result<(), String> {
        let is_openai = self.target == SchemaTarget::OpenAiStrict;
        self.object_depth += 1;
        if is_openai && self.object_depth > OPENAI_MAX_OBJECT_DEPTH {
            return Err(format!(
                "objects are nested deeper than {OPENAI_MAX_OBJECT_DEPTH}, the provider's maximum"
            ));
        }
        let empty = Object::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let listed = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let required: HashSet<&str> = listed.iter().filter_map(Value::as_str).collect();
        let mut lowered = Object::new();
        let mut names = Vec::new();
        for (name, property) in properties {
            let is_required = required.contains(name.as_str());
            if property == &Value::Bool(false) && !is_required {
                continue;
            }
            self.counts.properties += 1;
            self.counts.name_bytes += name.len();
            let segment = format!("properties/{}", name.replace('~', "~0").replace('/', "~1"));
            let mut property = self.child(&segment, property)?;
            if !is_required {
                self.counts.optional += 1;
                if is_openai {
                    property = or_null(property);
                }
            }
            if is_required || is_openai {
                names.push(name.as_str());
            }
            lowered.insert(name.clone(), property);
        }
        if let Some(missing) =
            listed.iter().filter_map(Value::as_str).find(|name| !lowered.contains_key(*name))
        {
            if self.target.is_strict() {
                return Err(self.error(&format!("`{missing}` is required but not among the properties")));
            }
            self.report_unchecked("required");
        }
        let has_properties = !lowered.is_empty();
        draft.lowered.insert("properties".to_owned(), Value::Object(lowered));
        if !names.is_empty() || is_openai {
            draft.lowered.insert("required".to_owned(), json!(names));
        }
        self.object_depth -= 1;
        self.additional(draft, schema.get("additionalProperties"), is_root || has_properties)
    }

    /// Lowers `additionalProperties`. A strict provider allows none.
    fn additional(
        &mut self,
        draft: &mut Draft,
        additional: Option<&Value>,
        may_close: bool,
    ) -> Result<(), String> {
        let written = if self.target.is_strict() {
            let is_closed = matches!(additional, Some(Value::Bool(false)));
            if !is_closed && (additional.is_some() || !may_close) {
                return Err(self.error("properties of any name are allowed"));
            }
            Value::Bool(false)
        } else {
            match additional {
                None => return Ok(()),
                Some(schema @ Value::Object(_)) => self.child("additionalProperties", schema)?,
                Some(other) => other.clone(),
            }
        };
        draft.lowered.insert("additionalProperties".to_owned(), written);
        Ok(())
    }

    fn items(&mut self, draft: &mut Draft, schema: &Object) -> Result<(), String> {
        // Before `prefixItems`, a list in `items` described a tuple.
        let (tuple, rest) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(tuple)), rest) => (Some(tuple), rest),
            (_, Some(Value::Array(tuple))) => (Some(tuple), schema.get("additionalItems")),
            (_, rest) => (None, rest),
        };
        let rest = rest.filter(|rest| rest.is_object() || rest == &&Value::Bool(true));
        if self.is_gemini() {
            if let Some(tuple) = tuple {
                let mut lowered = Vec::new();
                for (position, element) in tuple.iter().enumerate() {
                    lowered.push(self.child(&format!("prefixItems/{position}"), element)?);
                }
                draft.lowered.insert("prefixItems".to_owned(), Value::Array(lowered));
            }
            if let Some(rest) = rest {
                let lowered = self.child("items", rest)?;
                draft.lowered.insert("items".to_owned(), lowered);
            }
            return Ok(());
        }
        let lowered = match (tuple.map(Vec::as_slice), rest) {
            (None | Some([]), rest) => self.child("items", rest.unwrap_or(&Value::Bool(true)))?,
            (Some(tuple), rest) => {
                self.report_unchecked("prefixItems");
                let mut elements = Distinct::default();
                for element in tuple.iter().chain(rest) {
                    elements.add(self.child("prefixItems", element)?);
                }
                match <[Value; 1]>::try_from(elements.list) {
                    Ok([one]) => one,
                    Err(elements) => {
                        self.counts.unions += 1;
                        json!({"anyOf": elements})
                    }
                }
            }
        };
        draft.lowered.insert("items".to_owned(), lowered);
        Ok(())
    }

    fn union(
        &mut self,
        schema: &Object,
        keyword: &str,
        branches: &[Value],
        types: &[&str],
    ) -> Result<Value, String> {
        let mut draft = Draft::default();
        for (name, value) in schema {
            match name.as_str() {
                "type" | "$defs" | "definitions" => {}
                "description" => draft.set_description(value),
                name if name == keyword => {}
                "required" | "additionalProperties" | "patternProperties" if self.target.is_strict() => {
                    self.report_unchecked(name);
                }
                _ => self.keyword(&mut draft, name, value, types),
            }
        }
        // Strict providers know `anyOf` only.
        let sent = if self.is_gemini() { keyword } else { "anyOf" };
        if keyword != sent && !are_exclusive(branches) {
            self.report_unchecked("oneOf");
        }
        let mut lowered = Distinct::default();
        for (position, branch) in branches.iter().enumerate() {
            if branch == &Value::Bool(false) {
                continue;
            }
            let narrowed = match branch {
                Value::Object(branch)
                    if !types.is_empty() && type_names(branch).is_empty() && is_plain(branch) =>
                {
                    let mut narrowed = branch.clone();
                    narrowed.insert("type".to_owned(), schema.get("type").cloned().unwrap_or_default());
                    Some(Value::Object(narrowed))
                }
                _ => None,
            };
            let branch = narrowed.as_ref().unwrap_or(branch);
            lowered.add(self.child(&format!("{keyword}/{position}"), branch)?);
        }
        if lowered.list.is_empty() {
            return Err(self.error(&format!("no value can match `{keyword}`")));
        }
        self.counts.unions += 1;
        let mut union = draft.into_object();
        union.insert(sent.to_owned(), Value::Array(lowered.list));
        Ok(Value::Object(union))
    }

    /// Lowers a reference, which has at most annotations beside it.
    fn reference(&mut self, reference: &str, schema: &Object) -> Result<Value, String> {
        let Some(target) = resolve(self.root, reference) else {
            if self.target.is_strict() {
                return Err(self.error(&format!("`$ref` `{reference}` does not point into the schema")));
            }
            self.report_unchecked("$ref");
            return self.any_value(Object::new());
        };
        let mut draft = Draft::default();
        for (name, value) in schema {
            match name.as_str() {
                "$ref" | "$defs" | "definitions" => {}
                "description" => draft.set_description(value),
                _ => self.keyword(&mut draft, name, value, &[]),
            }
        }
        let mut annotations = draft.into_object();
        if self.target != SchemaTarget::AnthropicStrict || annotations.is_empty() {
            let name = format!("#/$defs/{}", self.definitions.name(reference));
            // A reference stands alone, except at the root for Gemini.
            if annotations.is_empty() || (self.is_gemini() && self.at.is_empty()) {
                annotations.insert("$ref".to_owned(), name.into());
            } else {
                annotations.insert("anyOf".to_owned(), json!([{"$ref": name}]));
            }
            return Ok(Value::Object(annotations));
        }
        if self.open.iter().any(|open| open == reference) {
            return Err(self.error("the schema is recursive"));
        }
        self.open.push(reference.to_owned());
        let lowered = self.node(target)?;
        self.open.pop();
        match lowered {
            Value::Object(mut lowered) => {
                lowered.append(&mut annotations);
                Ok(Value::Object(lowered))
            }
            other => Ok(other),
        }
    }
}

impl Definitions {
    /// The name of a reference in the copy.
    fn name(&mut self, reference: &str) -> String {
        let number = match self.numbers.get(reference) {
            Some(number) => *number,
            None => {
                let number = self.list.len();
                let mut name = definition_name(reference);
                while !self.names.insert(name.clone()) {
                    // The number is unique, so few names are tried.
                    name = format!("{name}_{number}");
                }
                self.numbers.insert(reference.to_owned(), number);
                self.list.push((reference.to_owned(), name));
                self.edges.push(Vec::new());
                number
            }
        };
        if let Some(edges) = self.current.and_then(|current| self.edges.get_mut(current)) {
            edges.push(number);
        }
        self.list.get(number).map(|(_, name)| name.clone()).unwrap_or_default()
    }

    /// Whether a definition refers to itself, directly or through others.
    fn has_cycle(&self) -> bool {
        let mut incoming = vec![0_usize; self.edges.len()];
        for to in self.edges.iter().flatten() {
            incoming[*to] += 1;
        }
        let mut free: Vec<usize> = (0..self.edges.len()).filter(|number| incoming[*number] == 0).collect();
        let mut removed = 0;
        while let Some(number) = free.pop() {
            removed += 1;
            for to in &self.edges[number] {
                incoming[*to] -= 1;
                if incoming[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        removed < self.edges.len()
    }
}

/// A name for the target of a reference, in characters that every provider accepts.
fn definition_name(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or_default();
    let name: String = last
        .chars()
        .take(60)
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' })
        .collect();
    if name.is_empty() || name == "_" { "root".to_owned() } else { name }
}

/// Distinct schemas in order.
#[derive(Default)]
struct Distinct {
    list: Vec<Value>,
    known: HashSet<Value>,
}

impl Distinct {
    fn add(&mut self, schema: Value) {
        if self.known.insert(schema.clone()) {
            self.list.push(schema);
        }
    }
}

/// A schema that is being written.
#[derive(Default)]
struct Draft {
    lowered: Object,
    description: String,
    /// Keywords that are described instead of sent.
    described: Vec<String>,
}

impl Draft {
    fn set_description(&mut self, value: &Value) {
        value.as_str().unwrap_or_default().clone_into(&mut self.description);
    }

    fn describe(&mut self, keyword: &str, value: &Value) {
        let value = value.to_string();
        if value.len() <= MAX_ENTRY_CHARS && keyword.len() <= MAX_ENTRY_CHARS {
            self.described.push(format!("{keyword}: {value}"));
        }
    }

    fn into_object(self) -> Object {
        let Self { mut lowered, mut description, described } = self;
        if !described.is_empty() {
            if !description.is_empty() {
                description.push(' ');
            }
            description.push('(');
            description.push_str(&described.join(", "));
            description.push(')');
        }
        if !description.is_empty() {
            lowered.insert("description".to_owned(), Value::String(description));
        }
        lowered
    }
}
