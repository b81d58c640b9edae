//! How many schemas apply to one value.
//!
//! `allOf` and its kin apply further schemas to the same value, and a reference can be named many times: a few kilobytes
//! of definitions, of which each names the next one twice, are more checks than any machine makes.

use std::collections::HashMap;

use serde_json::Value;

/// The most schemas that may apply to one value.
const HEAVIEST: u64 = 50_000;

/// The longest chain of schemas and references that may apply to one value.
const LONGEST_CHAIN: usize = 256;

/// What has no end, or one that is too far.
const ENDLESS: (u64, usize) = (u64::MAX, LONGEST_CHAIN);

/// Keywords whose values, a schema or several, apply to the same value.
const IN_PLACE: &[&str] =
    &["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];

/// Why checks against a schema would take too long, if they would.
pub(super) fn objection(schema: &Value) -> Option<String> {
    let mut weights =
        Weights { root: schema, resources: Vec::new(), anchors: Vec::new(), known: HashMap::new() };
    let mut objects = Vec::new();
    let mut has_references = false;
    let mut waiting = vec![(schema, schema)];
    while let Some((value, resource)) = waiting.pop() {
        let resource = resource_of(value, resource);
        match value {
            Value::Object(members) => {
                has_references |= REFERENCES.iter().any(|keyword| members.contains_key(*keyword));
                if let Some(id) = members.get("$id").and_then(Value::as_str) {
                    weights.resources.push((last_segment(id), value));
                }
                let anchors = ["$anchor", "$dynamicAnchor"].into_iter();
                let anchors = anchors.filter_map(|keyword| members.get(keyword)?.as_str());
                weights.anchors.extend(anchors.map(|name| (name, value, resource)));
                objects.push((value, resource));
                waiting.extend(members.values().map(|value| (value, resource)));
            }
            Value::Array(elements) => waiting.extend(elements.iter().map(|value| (value, resource))),
            _ => {}
        }
    }
    // Without references no schema applies more often than it is written.
    if !has_references {
        return None;
    }
    let heaviest = objects.into_iter().map(|(value, resource)| weights.of(value, resource, 0).0).max()?;
    (heaviest > HEAVIEST).then(|| {
        format!(
            "more than {HEAVIEST} schemas, or a chain of them without an end, would apply to one value, because of \
             references that name each other within `allOf` and its kin; name each once"
        )
    })
}

/// Keywords that name a schema which applies to the same value.
const REFERENCES: &[&str] = &["$ref", "$dynamicRef"];

struct Weights<'a> {
    root: &'a Value,
    /// The schemas that have an id, by its last segment.
    resources: Vec<(&'a str, &'a Value)>,
    /// The schemas that have an anchor, and the resources that they are in.
    anchors: Vec<(&'a str, &'a Value, &'a Value)>,
    /// What is known, by the schema's place in memory; `None` while it is being found out.
    known: HashMap<usize, Option<(u64, usize)>>,
}

impl<'a> Weights<'a> {
    /// How many schemas apply to a value that this one applies to, and how long the longest chain of them is. More than
    /// can be if there is no end to it.
    fn of(&mut self, schema: &'a Value, resource: &'a Value, depth: usize) -> (u64, usize) {
        let Value::Object(members) = schema else { return (1, 1) };
        let place = std::ptr::from_ref(schema).addr();
        match self.known.get(&place) {
            Some(Some(known)) => return *known,
            Some(None) => return ENDLESS,
            None if depth == LONGEST_CHAIN => return ENDLESS,
            None => {}
        }
        self.known.insert(place, None);
        let mut parts = Vec::new();
        for keyword in IN_PLACE {
            let schemas: Vec<&Value> = match members.get(*keyword) {
                Some(Value::Array(list)) => list.iter().collect(),
                Some(Value::Object(named)) if keyword.starts_with("depend") => named.values().collect(),
                Some(one @ Value::Object(_)) => vec![one],
                _ => continue,
            };
            parts.extend(schemas.into_iter().map(|schema| (schema, resource_of(schema, resource))));
        }
        for reference in REFERENCES.iter().filter_map(|keyword| members.get(*keyword)?.as_str()) {
            parts.extend(self.targets(reference, resource));
        }
        let (mut weight, mut chain) = (0_u64, 0);
        for (schema, resource) in parts {
            let (more, longer) = self.of(schema, resource, depth + 1);
            weight = weight.saturating_add(more);
            chain = chain.max(longer);
        }
        // What is left over is found by a second look at everything that applies.
        if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems") {
            weight = weight.saturating_mul(2);
        }
        let known = if chain >= LONGEST_CHAIN { ENDLESS } else { (weight.saturating_add(1), chain + 1) };
        self.known.insert(place, Some(known));
        known
    }

    /// What a reference may be about, each with the resource that it is in.
    fn targets(&self, reference: &str, resource: &'a Value) -> Vec<(&'a Value, &'a Value)> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decoded(fragment);
        let name = last_segment(base);
        let resources: Vec<&Value> = match base {
            "" => vec![resource],
            _ => self.resources.iter().filter(|(id, _)| *id == name).map(|(_, resource)| *resource).collect(),
        };
        if fragment.is_empty() {
            return resources.into_iter().map(|resource| (resource, resource)).collect();
        }
        if fragment.starts_with('/') {
            // An id that nobody embedded may be that of the whole.
            let resources = if resources.is_empty() { vec![self.root] } else { resources };
            return resources.into_iter().filter_map(|resource| pointed_at(resource, &fragment)).collect();
        }
        let anchors = self.anchors.iter().filter(|(name, ..)| *name == fragment);
        anchors.map(|(_, target, resource)| (*target, *resource)).collect()
    }
}

/// The resource that a value is in: itself, if it has an id.
fn resource_of<'a>(value: &'a Value, around: &'a Value) -> &'a Value {
    if value.get("$id").is_some_and(Value::is_string) { value } else { around }
}

/// The value at a JSON pointer, and the resource that it is in.
fn pointed_at<'a>(resource: &'a Value, pointer: &str) -> Option<(&'a Value, &'a Value)> {
    let mut found = (resource, resource);
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        let value = match found.0 {
            Value::Object(members) => members.get(&token)?,
            Value::Array(elements) => elements.get(token.parse::<usize>().ok()?)?,
            _ => return None,
        };
        found = (value, resource_of(value, found.1));
    }
    Some(found)
}

/// The last segment of an id's path: what a relative reference to it has in common with it.
fn last_segment(id: &str) -> &str {
    let path = id.split('#').next().unwrap_or_default().trim_end_matches('/');
    path.rsplit(['/', ':']).next().unwrap_or_default()
}

fn percent_decoded(text: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Definitions of which each names the next one twice, in one of the ways of naming.
    fn doubling(levels: usize, next: fn(usize) -> Value, more: fn(usize) -> Value) -> Value {
        let mut definitions = Map::new();
        for level in 0..levels {
            let mut definition = json!({"allOf": [next(level + 1), next(level + 1)]});
            if let (Value::Object(definition), Value::Object(more)) = (&mut definition, more(level)) {
                definition.extend(more);
            }
            definitions.insert(format!("M{level}"), definition);
        }
        definitions.insert(format!("M{levels}"), more(levels));
        json!({"type": "object", "properties": {"p": next(0)}, "$defs": definitions})
    }

    #[test]
    fn what_multiplies_is_refused_however_it_is_named() {
        let nothing: fn(usize) -> Value = |_| json!({});
        let pointer: fn(usize) -> Value = |level| json!({"$ref": format!("#/$defs/M{level}")});
        let mut relative =
            doubling(30, |level| json!({"$ref": format!("root.json#/$defs/M{level}")}), nothing);
        relative["$id"] = json!("https://example.com/root.json");
        let unevaluated = json!({"$defs": (0..30).map(|level| {
            let next = json!({"$ref": format!("#/$defs/M{}", level + 1)});
            (format!("M{level}"), json!({"unevaluatedProperties": false, "allOf": [next]}))
        }).collect::<Map<_, _>>()});
        let chain = json!({"$defs": (0..1_000).map(|level| {
            (format!("M{level}"), json!({"$ref": format!("#/$defs/M{}", level + 1)}))
        }).collect::<Map<_, _>>()});
        for (name, schema) in [
            ("pointers", doubling(30, pointer, nothing)),
            ("escaped", doubling(30, |level| json!({"$ref": format!("#/%24defs/M{level}")}), nothing)),
            (
                "anchors",
                doubling(
                    30,
                    |level| json!({"$ref": format!("#m{level}")}),
                    |level| json!({"$anchor": format!("m{level}")}),
                ),
            ),
            (
                "dynamic anchors",
                doubling(
                    30,
                    |level| json!({"$dynamicRef": format!("#m{level}")}),
                    |level| json!({"$dynamicAnchor": format!("m{level}")}),
                ),
            ),
            (
                "ids",
                doubling(
                    30,
                    |level| json!({"$ref": format!("m{level}")}),
                    |level| json!({"$id": format!("https://example.com/m{level}")}),
                ),
            ),
            ("relative", relative),
            ("another look", unevaluated),
            ("a chain", chain),
            (
                "itself",
                json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            ),
        ] {
            let objection = objection(&schema);
            assert!(objection.is_some_and(|text| text.contains("50000 schemas")), "{name}");
        }
    }

    #[test]
    fn what_is_written_out_or_goes_down_is_taken() {
        let pointer: fn(usize) -> Value = |level| json!({"$ref": format!("#/$defs/M{level}")});
        for schema in [
            doubling(10, pointer, |_| json!({"type": "string"})),
            json!({"anyOf": vec![json!({"type": "string"}); 60_000]}),
            json!({"properties": {"child": {"$ref": "#"}, "twin": {"$ref": "#"}}}),
            json!({
                "$ref": "#/$defs/Node",
                "$defs": {"Node": {"properties": {"children": {"items": {"$ref": "#/$defs/Node"}}}}},
            }),
            json!({
                "$id": "https://example.com/tree", "$dynamicAnchor": "node",
                "properties": {"children": {"items": {"$dynamicRef": "#node"}}},
            }),
            json!({"$ref": "https://example.com/elsewhere"}),
            json!({"properties": {"$ref": {"type": "string"}, "allOf": {"type": "array"}, "not": true}}),
        ] {
            assert_eq!(objection(&schema), None, "{schema}");
        }
    }
}
