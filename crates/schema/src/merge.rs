//! Merges schemas that apply to the same value: `allOf`, and references with siblings.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::budget::Budget;
use crate::reference::resolve;

/// Keywords that constrain nothing: the outermost value wins.
const ANNOTATIONS: &[&str] =
    &["title", "description", "default", "examples", "example", "$comment", "deprecated"];

/// Maximum nesting of `allOf` and references.
const MAX_DEPTH: usize = 64;

/// The types that JSON Schema has.
const TYPE_COUNT: usize = 7;

/// Merges schemas of one document: `allOf`, and references with siblings.
#[derive(Debug)]
pub struct Merger<'a> {
    root: &'a Value,
    /// The remaining work.
    pub budget: Budget,
    /// Keywords that conflicted and could not be merged, with the value that was dropped.
    pub conflicts: Vec<(String, Value)>,
}

impl<'a> Merger<'a> {
    /// Merges schemas below `root`, the document of the references.
    pub fn new(root: &'a Value, budget: Budget) -> Self {
        Self { root, budget, conflicts: Vec::new() }
    }

    /// The schema without `allOf` and without references that have siblings.
    ///
    /// # Errors
    /// A sentence on the contradiction, the missing target, or the exhausted budget.
    pub fn flatten<'s>(
        &mut self,
        schema: &'s Map<String, Value>,
    ) -> Result<Cow<'s, Map<String, Value>>, String> {
        let has_all_of = schema.contains_key("allOf");
        let has_siblings = schema.contains_key("$ref") && !constrains_only_by(schema, "$ref");
        if !has_all_of && !has_siblings {
            return Ok(Cow::Borrowed(schema));
        }
        // Older drafts describe a reference in this form.
        if let Some([Value::Object(only)]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
            && only.contains_key("$ref")
            && constrains_only_by(only, "$ref")
            && constrains_only_by(schema, "allOf")
        {
            let mut described = Map::new();
            for (keyword, value) in schema.iter().chain(only) {
                if !matches!(keyword.as_str(), "allOf" | "$defs" | "definitions") {
                    self.budget.spend(value)?;
                    described.entry(keyword.clone()).or_insert_with(|| value.clone());
                }
            }
            return Ok(Cow::Owned(described));
        }
        let mut merged = Map::new();
        self.merge(&mut merged, schema)?;
        if let Some(Value::Array(names)) = merged.get_mut("required") {
            let mut known = HashSet::new();
            names.retain(|name| known.insert(name.clone()));
        }
        Ok(Cow::Owned(merged))
    }

    /// Merges a schema into another one, with all references and `allOf` resolved.
    ///
    /// # Errors
    /// Errors of [`flatten`](Self::flatten); the keywords that were merged until then remain.
    pub fn merge(
        &mut self,
        merged: &mut Map<String, Value>,
        schema: &Map<String, Value>,
    ) -> Result<(), String> {
        self.merge_at(merged, schema, 0)
    }

    fn merge_at(
        &mut self,
        merged: &mut Map<String, Value>,
        schema: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err("`allOf` refers to itself".to_owned());
        }
        // A schema without keywords counts too: it may only refer to others.
        self.budget.spend_value()?;
        for (keyword, value) in schema {
            if !matches!(keyword.as_str(), "allOf" | "$ref" | "$defs" | "definitions") {
                self.budget.spend(value)?;
                self.merge_keyword(merged, keyword, value)?;
            }
        }
        if let Some(reference) = schema.get("$ref") {
            match reference.as_str().and_then(|reference| resolve(self.root, reference)) {
                Some(Value::Object(target)) => self.merge_at(merged, target, depth + 1)?,
                Some(Value::Bool(true)) => {}
                _ => return Err(format!("`$ref` {reference} does not point into the schema")),
            }
        }
        for branch in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            match branch {
                Value::Object(branch) => self.merge_at(merged, branch, depth + 1)?,
                Value::Bool(true) => {}
                _ => return Err("no value can match `allOf`".to_owned()),
            }
        }
        Ok(())
    }

    fn merge_keyword(
        &mut self,
        merged: &mut Map<String, Value>,
        keyword: &str,
        value: &Value,
    ) -> Result<(), String> {
        let Some(ours) = merged.get_mut(keyword) else {
            merged.insert(keyword.to_owned(), value.clone());
            return Ok(());
        };
        if ours == value || ANNOTATIONS.contains(&keyword) {
            return Ok(());
        }
        match (keyword, &mut *ours, value) {
            ("properties", Value::Object(ours), Value::Object(theirs)) => {
                for (name, theirs) in theirs {
                    match ours.get_mut(name) {
                        Some(ours) if ours == theirs => {}
                        Some(ours) => add_branch(ours, theirs),
                        None => {
                            ours.insert(name.clone(), theirs.clone());
                        }
                    }
                }
            }
            // `flatten` removes duplicates.
            ("required", Value::Array(ours), Value::Array(theirs)) => ours.extend(theirs.iter().cloned()),
            ("items", _, _) => add_branch(ours, value),
            ("additionalProperties", _, Value::Bool(false)) => *ours = Value::Bool(false),
            ("additionalProperties", _, _) => {}
            ("type", _, _) => *ours = common_types(ours, value)?,
            ("enum", Value::Array(ours), Value::Array(theirs)) => {
                let theirs: HashSet<&Value> = theirs.iter().collect();
                ours.retain(|value| theirs.contains(value));
            }
            (
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties",
                Value::Number(lower),
                Value::Number(_),
            ) => {
                if value.as_f64() > lower.as_f64() {
                    *ours = value.clone();
                }
            }
            (
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties",
                Value::Number(upper),
                Value::Number(_),
            ) => {
                if value.as_f64() < upper.as_f64() {
                    *ours = value.clone();
                }
            }
            _ => self.conflicts.push((keyword.to_owned(), value.clone())),
        }
        Ok(())
    }
}

/// The types that two `type` keywords have in common.
fn common_types(ours: &Value, theirs: &Value) -> Result<Value, String> {
    let (ours, theirs) = (type_names(ours), type_names(theirs));
    let is_narrower = |one: &str, other: &str| one == "integer" && other == "number";
    let common = |name: &&str| -> Option<Value> {
        theirs.iter().find_map(|other| {
            let found = if name == other || is_narrower(name, other) {
                name
            } else if is_narrower(other, name) {
                other
            } else {
                return None;
            };
            Some(json!(found))
        })
    };
    let mut both: Vec<Value> = ours.iter().filter_map(common).collect();
    match both.len() {
        0 => Err("no value has all the types of `allOf`".to_owned()),
        1 => Ok(both.remove(0)),
        _ => Ok(Value::Array(both)),
    }
}

fn type_names(value: &Value) -> Vec<&str> {
    let list = match value {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    list.iter().filter_map(Value::as_str).take(TYPE_COUNT).collect()
}

/// Adds a schema to the `allOf` of another one. The list stays flat.
fn add_branch(ours: &mut Value, theirs: &Value) {
    let is_list = ours.as_object().is_some_and(|ours| ours.len() == 1);
    match ours.get_mut("allOf") {
        Some(Value::Array(branches)) if is_list => branches.push(theirs.clone()),
        _ => *ours = json!({"allOf": [ours.take(), theirs]}),
    }
}

/// Whether this keyword is the only one in a schema that constrains values.
fn constrains_only_by(schema: &Map<String, Value>, keyword: &str) -> bool {
    schema.keys().all(|name| {
        name == keyword
            || ANNOTATIONS.contains(&name.as_str())
            || matches!(name.as_str(), "$defs" | "definitions" | "$schema" | "$id")
    })
}
