//! One walk through a schema, which makes the copy.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::SchemaTarget;
use super::dialect::{Fate, fate, types_of_keyword};
use super::limits::{
    ANTHROPIC_OPTIONAL, ANTHROPIC_UNIONS, DEEPEST, LONGEST_ENTRY, MOST_BYTES, MOST_LOST, MOST_VALUES,
    OPENAI_LISTED, OPENAI_NAME_BYTES, OPENAI_OBJECT_DEPTH, OPENAI_PROPERTIES,
};
use super::reference::{name_of, resolve};
use super::shape::{are_exclusive, is_plain, or_null, types_of};

type Object = Map<String, Value>;

/// The walk: what it knows, and what it has found.
pub(super) struct Walk<'a> {
    pub(super) root: &'a Value,
    target: SchemaTarget,
    /// Where the walk is, as a JSON pointer.
    at: String,
    depth: usize,
    objects: usize,
    left: usize,
    left_bytes: usize,
    definitions: Definitions,
    /// The references that are being written out at this place.
    open: Vec<String>,
    pub(super) lost: Lost,
    pub(super) counts: Counts,
}

/// What is counted because providers bound it.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) optional: usize,
    pub(super) unions: usize,
    properties: usize,
    listed: usize,
    name_bytes: usize,
}

/// What is referred to, each once.
#[derive(Default)]
struct Definitions {
    /// The number of each reference.
    numbers: HashMap<String, usize>,
    /// The references, with the names that they are sent under.
    list: Vec<(String, String)>,
    names: HashSet<String>,
    /// Which refers to which; the root is left out, since nothing refers to it.
    edges: Vec<Vec<usize>>,
    /// The definition that is being walked.
    current: Option<usize>,
}

/// What the provider does not check.
#[derive(Default)]
pub(super) struct Lost {
    entries: Vec<String>,
    more: usize,
}

impl Lost {
    fn add(&mut self, entry: impl FnOnce() -> String) {
        if self.entries.len() + 1 >= MOST_LOST {
            self.more += 1;
            return;
        }
        let entry: String = entry().chars().take(LONGEST_ENTRY).collect();
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

impl<'a> Walk<'a> {
    pub(super) fn new(root: &'a Value, target: SchemaTarget) -> Self {
        Self {
            root,
            target,
            at: String::new(),
            depth: 0,
            objects: 0,
            left: MOST_VALUES,
            left_bytes: MOST_BYTES,
            definitions: Definitions::default(),
            open: Vec::new(),
            lost: Lost::default(),
            counts: Counts::default(),
        }
    }

    /// The whole schema. An error says why the provider cannot keep to it.
    pub(super) fn document(&mut self) -> Result<Value, String> {
        let mut start = self.root;
        // The root must be an object itself where the provider is strict.
        let may_refer = self.target == SchemaTarget::GeminiJsonSchema;
        for _ in 0..if may_refer { 0 } else { DEEPEST } {
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
            _ => return Err(self.stop("expected an object as the schema")),
        };
        let mut done = 0;
        let mut definitions = Object::new();
        while let Some((reference, name)) = self.definitions.list.get(done).cloned() {
            self.definitions.current = Some(done);
            self.at = format!("/$defs/{name}");
            (self.depth, self.objects) = (0, 0);
            let Some(target) = resolve(self.root, &reference) else {
                return Err(self.stop(&format!("`$ref` `{reference}` does not point into the schema")));
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
        let Counts { optional, unions, properties, listed, name_bytes } = self.counts;
        let limits: &[(usize, usize, &str)] = match self.target {
            SchemaTarget::OpenAiStrict => &[
                (properties, OPENAI_PROPERTIES, "properties"),
                (listed, OPENAI_LISTED, "listed values"),
                (name_bytes, OPENAI_NAME_BYTES, "bytes of names and listed values"),
            ],
            SchemaTarget::AnthropicStrict => &[
                (optional, ANTHROPIC_OPTIONAL, "parameters that may be left out"),
                (unions, ANTHROPIC_UNIONS, "parameters of several types"),
            ],
            _ => &[],
        };
        if let Some((found, most, what)) = limits.iter().find(|(found, most, _)| found > most) {
            return Err(format!("the schema has {found} {what}, and the provider takes at most {most}"));
        }
        if self.target == SchemaTarget::AnthropicStrict && self.definitions.has_cycle() {
            return Err("a part of the schema refers to itself".to_owned());
        }
        Ok(())
    }

    /// The reason to give up, with the place.
    pub(super) fn stop(&self, what: &str) -> String {
        let what: String = what.chars().take(LONGEST_ENTRY).collect();
        format!("{what} at {}", self.place())
    }

    fn place(&self) -> String {
        if self.at.is_empty() {
            return "the root".to_owned();
        }
        let shown: String = self.at.chars().take(LONGEST_ENTRY / 2).collect();
        format!("`{shown}`")
    }

    /// Notes a keyword that is no longer checked.
    pub(super) fn lose(&mut self, keyword: &str) {
        let place = self.place();
        let keyword: String = keyword.chars().take(LONGEST_ENTRY / 2).collect();
        self.lost.add(|| format!("`{keyword}` at {place}"));
    }

    /// Counts one value.
    pub(super) fn count(&mut self) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            format!("the schema has more than {MOST_VALUES} values with all its references")
        })?;
        Ok(())
    }

    /// Counts the values that are looked at or copied, and the bytes of their texts.
    pub(super) fn spend(&mut self, value: &Value) -> Result<(), String> {
        let mut waiting = vec![value];
        while let Some(value) = waiting.pop() {
            self.count()?;
            match value {
                Value::String(text) => self.spend_bytes(text)?,
                Value::Array(elements) => waiting.extend(elements),
                Value::Object(members) => {
                    for (name, member) in members {
                        self.spend_bytes(name)?;
                        waiting.push(member);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn spend_bytes(&mut self, text: &str) -> Result<(), String> {
        self.left_bytes = self.left_bytes.checked_sub(text.len()).ok_or_else(|| {
            format!("the schema has more than {} MiB of texts with all its references", MOST_BYTES >> 20)
        })?;
        Ok(())
    }

    /// Counts what of a schema is not walked by itself: a reference may bring it to many places.
    fn spend_words(&mut self, schema: &Object) -> Result<(), String> {
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    for name in properties.keys() {
                        self.spend_bytes(name)?;
                    }
                }
                ("$ref", Value::String(reference)) => self.spend_bytes(reference)?,
                // Walked, written elsewhere, or, as for types, few.
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
                    self.spend_bytes(keyword)?;
                    self.spend(value)?;
                }
            }
        }
        Ok(())
    }

    /// A schema one level down.
    fn child(&mut self, segment: &str, schema: &Value) -> Result<Value, String> {
        let here = self.at.len();
        self.at.push('/');
        self.at.push_str(segment);
        let lowered = self.node(schema)?;
        self.at.truncate(here);
        Ok(lowered)
    }

    fn node(&mut self, schema: &Value) -> Result<Value, String> {
        self.count()?;
        if self.depth == DEEPEST {
            return Err(format!("the schema is nested deeper than {DEEPEST}"));
        }
        self.depth += 1;
        let lowered = match schema {
            Value::Object(schema) => self.object(schema, false),
            Value::Bool(true) => self.anything(Object::new()),
            _ => Err(self.stop("expected a schema")),
        };
        self.depth -= 1;
        lowered
    }

    /// A place where any value fits.
    fn anything(&mut self, mut words: Object) -> Result<Value, String> {
        match self.target {
            SchemaTarget::GeminiJsonSchema => Ok(Value::Object(words)),
            SchemaTarget::GeminiOpenApi => {
                let place = self.place();
                self.lost.add(|| format!("lists at {place}, which takes any value"));
                let types = ["string", "number", "boolean", "object"];
                words.insert("anyOf".to_owned(), types.iter().map(|name| json!({"type": name})).collect());
                Ok(Value::Object(words))
            }
            _ => Err(self.stop("any value is allowed")),
        }
    }

    fn object(&mut self, schema: &Object, is_root: bool) -> Result<Value, String> {
        let flat = self.flat(schema)?;
        let schema = &*flat;
        self.spend_words(schema)?;
        if let Some(Value::String(reference)) = schema.get("$ref") {
            if is_root && self.target.is_strict() {
                return Err(self.stop("a reference that leads to no object"));
            }
            return self.reference(reference, schema);
        }
        let types = types_of(schema);
        let is_shaped = ["properties", "items", "prefixItems", "enum", "const"]
            .iter()
            .any(|name| schema.contains_key(*name));
        let union = ["anyOf", "oneOf"]
            .into_iter()
            .find_map(|keyword| schema.get(keyword).and_then(Value::as_array).map(|list| (keyword, list)))
            .filter(|_| !is_shaped);
        if let Some((keyword, branches)) = union {
            if is_root && self.target.is_strict() {
                return Err(self.stop(&format!("`{keyword}` instead of an object")));
            }
            return self.union(schema, keyword, branches, &types);
        }
        let types = if types.is_empty() && is_root { vec!["object"] } else { types };
        if is_root && self.target.is_strict() && types != ["object"] {
            return Err(self.stop("expected `type` to be `object`"));
        }
        let mut made = Made::default();
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
                "enum" | "const" => self.listed(&mut made, keyword, value, &types)?,
                "description" => made.describe(value),
                "patternProperties" if self.target.is_strict() => {
                    return Err(self.stop("`patternProperties` allows properties of any name"));
                }
                _ => self.keyword(&mut made, keyword, value, &types),
            }
        }
        if types.is_empty() {
            return self.anything(made.into_object());
        }
        if types.contains(&"object") {
            self.properties(&mut made, schema, is_root)?;
        }
        if types.contains(&"array") {
            self.items(&mut made, schema)?;
        }
        Ok(self.with_types(made.into_object(), &types))
    }

    /// Writes the types as the provider takes them.
    fn with_types(&mut self, mut lowered: Object, types: &[&str]) -> Value {
        let mut written = Object::new();
        match types {
            [one] => {
                written.insert("type".to_owned(), json!(one));
            }
            _ if self.target != SchemaTarget::GeminiOpenApi => {
                self.counts.unions += 1;
                written.insert("type".to_owned(), json!(types));
            }
            _ => {
                let others: Vec<&str> = types.iter().copied().filter(|name| *name != "null").collect();
                if others.len() < types.len() {
                    written.insert("nullable".to_owned(), Value::Bool(true));
                }
                if let [one] = others.as_slice() {
                    written.insert("type".to_owned(), json!(one));
                } else {
                    let branches = others.iter().map(|name| {
                        let mut branch = Object::new();
                        branch.insert("type".to_owned(), json!(name));
                        for (keyword, value) in &lowered {
                            if types_of_keyword(keyword).contains(name) {
                                branch.insert(keyword.clone(), value.clone());
                            }
                        }
                        Value::Object(branch)
                    });
                    written.insert("anyOf".to_owned(), branches.collect());
                    lowered.retain(|keyword, _| types_of_keyword(keyword).is_empty());
                }
            }
        }
        written.append(&mut lowered);
        Value::Object(written)
    }

    fn keyword(&mut self, made: &mut Made, keyword: &str, value: &Value, types: &[&str]) {
        match fate(self.target, keyword, value, types) {
            Fate::Keep => {
                made.lowered.insert(keyword.to_owned(), value.clone());
            }
            Fate::Drop => {}
            Fate::Tell => made.tell(keyword, value),
            Fate::Lose => {
                made.tell(keyword, value);
                self.lose(keyword);
            }
        }
    }

    /// The only values that are allowed.
    fn listed(
        &mut self,
        made: &mut Made,
        keyword: &str,
        value: &Value,
        types: &[&str],
    ) -> Result<(), String> {
        let values = match (keyword, value) {
            ("const", value) => std::slice::from_ref(value),
            (_, Value::Array(values)) => values.as_slice(),
            _ => return Err(self.stop("expected a list as `enum`")),
        };
        self.counts.listed += values.len();
        self.counts.name_bytes += values.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
        let is_simple = values.iter().all(|value| !value.is_object() && !value.is_array());
        let (texts, others): (Vec<&Value>, Vec<&Value>) = values.iter().partition(|value| value.is_string());
        match self.target {
            SchemaTarget::GeminiOpenApi => {
                let is_sent = !texts.is_empty() && others.iter().all(|value| value.is_null());
                if is_sent && types.contains(&"string") {
                    made.lowered.insert("enum".to_owned(), json!(texts));
                    return Ok(());
                }
            }
            SchemaTarget::GeminiJsonSchema if is_simple => {
                made.lowered.insert("enum".to_owned(), json!(values));
                return Ok(());
            }
            SchemaTarget::OpenAiStrict | SchemaTarget::AnthropicStrict if is_simple => {
                made.lowered.insert(keyword.to_owned(), value.clone());
                return Ok(());
            }
            _ => {}
        }
        made.tell(keyword, value);
        self.lose(keyword);
        Ok(())
    }

    fn properties(&mut self, made: &mut Made, schema: &Object, is_root: bool) -> Result<(), String> {
        self.objects += 1;
        if self.target == SchemaTarget::OpenAiStrict && self.objects > OPENAI_OBJECT_DEPTH {
            return Err(format!(
                "objects are nested deeper than {OPENAI_OBJECT_DEPTH}, and the provider takes no more"
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
                if self.target == SchemaTarget::OpenAiStrict {
                    property = or_null(property);
                }
            }
            if is_required || self.target == SchemaTarget::OpenAiStrict {
                names.push(name.as_str());
            }
            lowered.insert(name.clone(), property);
        }
        if let Some(missing) =
            listed.iter().filter_map(Value::as_str).find(|name| !lowered.contains_key(*name))
        {
            if self.target.is_strict() {
                return Err(self.stop(&format!("`{missing}` is required and not among the properties")));
            }
            self.lose("required");
        }
        let has_properties = !lowered.is_empty();
        if has_properties || !matches!(self.target, SchemaTarget::GeminiOpenApi) {
            made.lowered.insert("properties".to_owned(), Value::Object(lowered));
        }
        if !names.is_empty() || self.target == SchemaTarget::OpenAiStrict {
            made.lowered.insert("required".to_owned(), json!(names));
        }
        self.objects -= 1;
        self.additional(made, schema.get("additionalProperties"), is_root || has_properties)
    }

    /// Properties that are not named. A strict provider allows none.
    fn additional(
        &mut self,
        made: &mut Made,
        additional: Option<&Value>,
        may_close: bool,
    ) -> Result<(), String> {
        let closed = matches!(additional, Some(Value::Bool(false)));
        if self.target.is_strict() {
            if !closed && (additional.is_some() || !may_close) {
                return Err(self.stop("properties of any name are allowed"));
            }
            made.lowered.insert("additionalProperties".to_owned(), Value::Bool(false));
            return Ok(());
        }
        match additional {
            Some(schema @ Value::Object(_)) if self.target == SchemaTarget::GeminiJsonSchema => {
                let lowered = self.child("additionalProperties", schema)?;
                made.lowered.insert("additionalProperties".to_owned(), lowered);
            }
            Some(bool) if self.target == SchemaTarget::GeminiJsonSchema => {
                made.lowered.insert("additionalProperties".to_owned(), bool.clone());
            }
            Some(schema @ Value::Object(_)) => {
                self.spend(schema)?;
                made.tell("additionalProperties", schema);
                self.lose("additionalProperties");
            }
            _ => {}
        }
        Ok(())
    }

    fn items(&mut self, made: &mut Made, schema: &Object) -> Result<(), String> {
        // A list in `items` is how tuples were written before `prefixItems`.
        let (tuple, rest) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(tuple)), rest) => (Some(tuple), rest),
            (_, Some(Value::Array(tuple))) => (Some(tuple), schema.get("additionalItems")),
            (_, rest) => (None, rest),
        };
        let rest = rest.filter(|rest| rest.is_object() || rest == &&Value::Bool(true));
        if self.target == SchemaTarget::GeminiJsonSchema {
            if let Some(tuple) = tuple {
                let mut lowered = Vec::new();
                for (position, element) in tuple.iter().enumerate() {
                    lowered.push(self.child(&format!("prefixItems/{position}"), element)?);
                }
                made.lowered.insert("prefixItems".to_owned(), Value::Array(lowered));
            }
            if let Some(rest) = rest {
                let lowered = self.child("items", rest)?;
                made.lowered.insert("items".to_owned(), lowered);
            }
            return Ok(());
        }
        let lowered = match (tuple.map(Vec::as_slice), rest) {
            (None | Some([]), None) => {
                let nothing = Value::Bool(true);
                self.child("items", &nothing)?
            }
            (None | Some([]), Some(rest)) => self.child("items", rest)?,
            (Some(tuple), rest) => {
                self.lose("prefixItems");
                let mut kinds = Different::default();
                for element in tuple.iter().chain(rest) {
                    kinds.add(self.child("prefixItems", element)?);
                }
                match <[Value; 1]>::try_from(kinds.list) {
                    Ok([one]) => one,
                    Err(kinds) => {
                        self.counts.unions += 1;
                        json!({"anyOf": kinds})
                    }
                }
            }
        };
        made.lowered.insert("items".to_owned(), lowered);
        Ok(())
    }

    fn union(
        &mut self,
        schema: &Object,
        keyword: &str,
        branches: &[Value],
        types: &[&str],
    ) -> Result<Value, String> {
        let mut made = Made::default();
        for (name, value) in schema {
            match name.as_str() {
                "type" | "$defs" | "definitions" => {}
                "description" => made.describe(value),
                name if name == keyword => {}
                "required" | "additionalProperties" | "patternProperties" if self.target.is_strict() => {
                    self.lose(name);
                }
                _ => self.keyword(&mut made, name, value, types),
            }
        }
        // It takes the one word for the other.
        let sent = if self.target == SchemaTarget::GeminiJsonSchema { keyword } else { "anyOf" };
        if keyword != sent && !are_exclusive(branches) {
            self.lose("oneOf");
        }
        let mut lowered = Different::default();
        let mut has_null = false;
        for (position, branch) in branches.iter().enumerate() {
            if branch == &Value::Bool(false) {
                continue;
            }
            let narrowed = match branch {
                Value::Object(branch)
                    if !types.is_empty() && types_of(branch).is_empty() && is_plain(branch) =>
                {
                    let mut narrowed = branch.clone();
                    narrowed.insert("type".to_owned(), schema.get("type").cloned().unwrap_or_default());
                    Some(Value::Object(narrowed))
                }
                _ => None,
            };
            let branch = self.child(&format!("{keyword}/{position}"), narrowed.as_ref().unwrap_or(branch))?;
            if self.target == SchemaTarget::GeminiOpenApi && branch.get("type") == Some(&json!("null")) {
                has_null = true;
            } else {
                lowered.add(branch);
            }
        }
        let mut union = made.into_object();
        if has_null {
            union.insert("nullable".to_owned(), Value::Bool(true));
        }
        match lowered.list.as_mut_slice() {
            [] if has_null => {
                union.insert("type".to_owned(), json!("null"));
                union.remove("nullable");
            }
            [] => return Err(self.stop(&format!("nothing can fit `{keyword}`"))),
            [Value::Object(one)] if self.target == SchemaTarget::GeminiOpenApi => {
                for (name, value) in std::mem::take(one) {
                    union.entry(name).or_insert(value);
                }
            }
            _ => {
                self.counts.unions += 1;
                union.insert(sent.to_owned(), Value::Array(lowered.list));
            }
        }
        Ok(Value::Object(union))
    }

    /// A reference, with words beside it at most.
    fn reference(&mut self, reference: &str, schema: &Object) -> Result<Value, String> {
        let Some(target) = resolve(self.root, reference) else {
            return if self.target.is_strict() {
                Err(self.stop(&format!("`$ref` `{reference}` does not point into the schema")))
            } else {
                self.lose("$ref");
                self.anything(Object::new())
            };
        };
        let mut made = Made::default();
        for (name, value) in schema {
            match name.as_str() {
                "$ref" | "$defs" | "definitions" => {}
                "description" => made.describe(value),
                _ => self.keyword(&mut made, name, value, &[]),
            }
        }
        let mut words = made.into_object();
        if matches!(self.target, SchemaTarget::OpenAiStrict | SchemaTarget::GeminiJsonSchema)
            || words.is_empty() && self.target == SchemaTarget::AnthropicStrict
        {
            let pointer = json!({"$ref": format!("#/$defs/{}", self.definitions.name(reference))});
            if words.is_empty() {
                return Ok(pointer);
            }
            // Beside a reference nothing may stand but at the root of Gemini's.
            if self.target == SchemaTarget::GeminiJsonSchema && self.at.is_empty() {
                words.extend(pointer.as_object().cloned().unwrap_or_default());
                return Ok(Value::Object(words));
            }
            words.insert("anyOf".to_owned(), json!([pointer]));
            return Ok(Value::Object(words));
        }
        if self.open.iter().any(|open| open == reference) {
            if self.target.is_strict() {
                return Err(self.stop("a part of the schema refers to itself"));
            }
            let place = self.place();
            self.lost.add(|| format!("what `{reference}` is within itself, at {place}"));
            let types = target.as_object().map(types_of).unwrap_or_default();
            return match types.first() {
                Some(&"array") | None => self.anything(words),
                Some(name) => {
                    words.insert("type".to_owned(), json!(name));
                    Ok(Value::Object(words))
                }
            };
        }
        self.open.push(reference.to_owned());
        let lowered = self.node(target)?;
        self.open.pop();
        match lowered {
            Value::Object(mut lowered) => {
                lowered.append(&mut words);
                Ok(Value::Object(lowered))
            }
            other => Ok(other),
        }
    }
}

impl Definitions {
    /// The name that a reference is sent under.
    fn name(&mut self, reference: &str) -> String {
        let number = match self.numbers.get(reference) {
            Some(number) => *number,
            None => {
                let number = self.list.len();
                let mut name = name_of(reference);
                while !self.names.insert(name.clone()) {
                    // The number of this reference is no other one's, so few names are tried.
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

    /// Whether a definition leads back to itself.
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

/// Schemas that all differ, in the order in which they came.
#[derive(Default)]
struct Different {
    list: Vec<Value>,
    known: HashSet<Value>,
}

impl Different {
    fn add(&mut self, schema: Value) {
        if self.known.insert(schema.clone()) {
            self.list.push(schema);
        }
    }
}

/// A schema in the making.
#[derive(Default)]
struct Made {
    lowered: Object,
    description: String,
    /// What is told instead of checked.
    told: Vec<String>,
}

impl Made {
    fn describe(&mut self, value: &Value) {
        value.as_str().unwrap_or_default().clone_into(&mut self.description);
    }

    fn tell(&mut self, keyword: &str, value: &Value) {
        let value = value.to_string();
        if value.len() <= LONGEST_ENTRY && keyword.len() <= LONGEST_ENTRY {
            self.told.push(format!("{keyword}: {value}"));
        }
    }

    fn into_object(self) -> Object {
        let Self { mut lowered, mut description, told } = self;
        if !told.is_empty() {
            if !description.is_empty() {
                description.push(' ');
            }
            description.push('(');
            description.push_str(&told.join(", "));
            description.push(')');
        }
        if !description.is_empty() {
            lowered.insert("description".to_owned(), Value::String(description));
        }
        lowered
    }
}
