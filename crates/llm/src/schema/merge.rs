//! Several schemas that all hold, as one.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::limits::DEEPEST;
use super::reference::resolve;
use super::walk::Walk;

/// Keywords that say something and constrain nothing: the outermost word wins.
const WORDS: &[&str] = &["title", "description", "default", "examples", "example", "$comment", "deprecated"];

impl Walk<'_> {
    /// The schema without `allOf`, and without a reference that has constraints beside it.
    pub(super) fn flat<'s>(
        &mut self,
        schema: &'s Map<String, Value>,
    ) -> Result<Cow<'s, Map<String, Value>>, String> {
        let has_all_of = schema.contains_key("allOf");
        let is_open_reference = schema.contains_key("$ref") && !is_only(schema, "$ref");
        if !has_all_of && !is_open_reference {
            return Ok(Cow::Borrowed(schema));
        }
        // The form in which a reference was described before it could have anything beside it.
        if let Some([Value::Object(only)]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
            && only.contains_key("$ref")
            && is_only(only, "$ref")
            && is_only(schema, "allOf")
        {
            let mut described = Map::new();
            for (keyword, value) in schema.iter().chain(only) {
                if !matches!(keyword.as_str(), "allOf" | "$defs" | "definitions") {
                    self.spend(value)?;
                    described.entry(keyword.clone()).or_insert_with(|| value.clone());
                }
            }
            return Ok(Cow::Owned(described));
        }
        let mut merged = Map::new();
        self.merge(&mut merged, schema, 0)?;
        if let Some(Value::Array(names)) = merged.get_mut("required") {
            let mut known = HashSet::new();
            names.retain(|name| known.insert(name.clone()));
        }
        Ok(Cow::Owned(merged))
    }

    fn merge(
        &mut self,
        merged: &mut Map<String, Value>,
        schema: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(self.stop("`allOf` refers to itself"));
        }
        // Each schema counts, also one that does nothing but name others.
        self.count()?;
        for (keyword, value) in schema {
            if !matches!(keyword.as_str(), "allOf" | "$ref" | "$defs" | "definitions") {
                self.spend(value)?;
                self.join(merged, keyword, value)?;
            }
        }
        if let Some(reference) = schema.get("$ref") {
            let target = reference.as_str().and_then(|reference| resolve(self.root, reference));
            match target {
                Some(Value::Object(target)) => self.merge(merged, target, depth + 1)?,
                Some(Value::Bool(true)) => {}
                _ => return Err(self.stop(&format!("`$ref` {reference} does not point into the schema"))),
            }
        }
        for branch in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            match branch {
                Value::Object(branch) => self.merge(merged, branch, depth + 1)?,
                Value::Bool(true) => {}
                _ => return Err(self.stop("nothing can fit `allOf`")),
            }
        }
        Ok(())
    }

    /// Adds a keyword's value to a schema that may have the keyword.
    fn join(&mut self, merged: &mut Map<String, Value>, keyword: &str, value: &Value) -> Result<(), String> {
        let Some(ours) = merged.get_mut(keyword) else {
            merged.insert(keyword.to_owned(), value.clone());
            return Ok(());
        };
        if ours == value || WORDS.contains(&keyword) {
            return Ok(());
        }
        match (keyword, &mut *ours, value) {
            ("properties", Value::Object(ours), Value::Object(theirs)) => {
                for (name, theirs) in theirs {
                    match ours.get_mut(name) {
                        Some(ours) if ours == theirs => {}
                        Some(ours) => also(ours, theirs),
                        None => {
                            ours.insert(name.clone(), theirs.clone());
                        }
                    }
                }
            }
            ("required", Value::Array(ours), Value::Array(theirs)) => {
                // Each is named once in the end: `flat`.
                ours.extend(theirs.iter().cloned());
            }
            ("items", _, _) => also(ours, value),
            ("additionalProperties", _, Value::Bool(false)) => *ours = Value::Bool(false),
            ("additionalProperties", _, _) => {}
            ("type", _, _) => {
                let (ours, theirs) = (names(ours), names(value));
                let both: Vec<Value> = ours
                    .iter()
                    .filter_map(|name| {
                        let narrow = |one: &str, other: &str| one == "number" && other == "integer";
                        theirs.iter().find_map(|other| {
                            (name == other || narrow(other, name))
                                .then(|| name.clone())
                                .or_else(|| narrow(name, other).then(|| other.clone()))
                        })
                    })
                    .map(Value::String)
                    .collect();
                let joined = match both.as_slice() {
                    [] => return Err(self.stop("nothing has all the types of `allOf`")),
                    [one] => one.clone(),
                    _ => Value::Array(both),
                };
                merged.insert("type".to_owned(), joined);
            }
            ("enum", Value::Array(ours), Value::Array(theirs)) => {
                let theirs: HashSet<&Value> = theirs.iter().collect();
                ours.retain(|value| theirs.contains(value));
            }
            _ => self.lose(keyword),
        }
        Ok(())
    }
}

/// Makes a schema that both hold. Flat, however often that happens.
fn also(ours: &mut Value, theirs: &Value) {
    let is_list = ours.as_object().is_some_and(|ours| ours.len() == 1);
    match ours.get_mut("allOf") {
        Some(Value::Array(all)) if is_list => all.push(theirs.clone()),
        _ => *ours = json!({"allOf": [ours.take(), theirs]}),
    }
}

/// The type names of a `type` keyword's value: there are seven.
fn names(value: &Value) -> Vec<String> {
    let list = match value {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    list.iter().filter_map(|name| name.as_str().map(str::to_owned)).take(7).collect()
}

/// Whether a schema has nothing beside a keyword that constrains.
fn is_only(schema: &Map<String, Value>, keyword: &str) -> bool {
    schema.keys().all(|name| {
        name == keyword
            || WORDS.contains(&name.as_str())
            || matches!(name.as_str(), "$defs" | "definitions" | "$schema" | "$id")
    })
}
