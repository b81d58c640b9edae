//! How many schemas apply to one value.
//!
//! `allOf` and its kin apply further schemas to the same value, and a reference can be named many times: a few kilobytes
//! of definitions, of which each names the next one twice, are more checks than any machine makes.

use std::collections::HashMap;

use serde_json::Value;

use super::graph::{Graph, Place};

/// The most schemas that may apply to one value.
const HEAVIEST: u64 = 50_000;

/// The longest chain of schemas and references that may apply to one value.
const LONGEST_CHAIN: usize = 256;

/// What has no end, or one that is too far.
const ENDLESS: (u64, usize) = (u64::MAX, LONGEST_CHAIN);

/// Why checks against a schema would take too long, if they would.
pub(super) fn objection(schema: &Value) -> Option<String> {
    let graph = Graph::of(schema);
    if !graph.may_multiply {
        return None;
    }
    let mut weights = Weights { graph: &graph, known: HashMap::new() };
    let heaviest = graph.objects.iter().map(|place| weights.of(*place, 0).0).max()?;
    (heaviest > HEAVIEST).then(|| {
        format!(
            "more than {HEAVIEST} schemas, or a chain of them without an end, would apply to one value, because of \
             references that name each other within `allOf` and its kin, or of `unevaluatedProperties` and its kin \
             within each other; name each once"
        )
    })
}

struct Weights<'g, 'a> {
    graph: &'g Graph<'a>,
    /// What is known of a schema; `None` while it is being found out.
    known: HashMap<usize, Option<(u64, usize)>>,
}

impl<'a> Weights<'_, 'a> {
    /// How many schemas apply to a value that this one applies to, and how long the longest chain of them is. More than
    /// can be if there is no end to it.
    fn of(&mut self, place: Place<'a>, depth: usize) -> (u64, usize) {
        if !place.schema.is_object() {
            return (1, 1);
        }
        match self.known.get(&place.id()) {
            Some(Some(known)) => return *known,
            Some(None) => return ENDLESS,
            None if depth == LONGEST_CHAIN => return ENDLESS,
            None => {}
        }
        self.known.insert(place.id(), None);
        let (mut weight, mut chain) = (0_u64, 0);
        for part in self.graph.in_place(place) {
            let (more, longer) = self.of(part, depth + 1);
            weight = weight.saturating_add(more);
            chain = chain.max(longer);
        }
        weight = weight.saturating_mul(place.looks());
        let known = if chain >= LONGEST_CHAIN { ENDLESS } else { (weight.saturating_add(1), chain + 1) };
        self.known.insert(place.id(), Some(known));
        known
    }
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
            (
                "another look, written out",
                (0..40).fold(json!({}), |inner, _| json!({"unevaluatedProperties": false, "allOf": [inner]})),
            ),
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
