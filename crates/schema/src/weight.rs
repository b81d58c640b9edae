//! Counts how many schemas apply to one value.
//!
//! `allOf` and similar keywords apply further schemas to the same value, and references can repeat. A few kilobytes of
//! definitions that each reference the next one twice need more checks than any machine performs.

use std::collections::HashMap;

use serde_json::Value;

use crate::graph::{Graph, Place};

/// Maximum number of schemas that may apply to one value.
const MAX_WEIGHT: u64 = 50_000;

/// Maximum length of a chain of schemas and references that apply to one value.
const MAX_CHAIN: usize = 256;

/// The weight of a chain that is endless or too long.
const ENDLESS: (u64, usize) = (u64::MAX, MAX_CHAIN);

/// The reason why checks against a schema may take unbounded time.
pub(crate) fn unbounded_reason(schema: &Value) -> Option<String> {
    let graph = Graph::new(schema);
    if !graph.may_multiply {
        return None;
    }
    let mut weights = Weights { graph: &graph, known: HashMap::new() };
    let weight = graph.objects.iter().map(|place| weights.weigh(*place, 0).0).max()?;
    (weight > MAX_WEIGHT).then(|| {
        format!(
            "more than {MAX_WEIGHT} schemas apply to one value, because references in `allOf` or \
             `unevaluatedProperties` repeat or form a cycle; reference each schema once"
        )
    })
}

struct Weights<'g, 'a> {
    graph: &'g Graph<'a>,
    /// Weights by schema; `None` while a weight is being computed.
    known: HashMap<usize, Option<(u64, usize)>>,
}

impl<'a> Weights<'_, 'a> {
    /// The number of schemas that apply with this one and the length of their longest chain, or [`ENDLESS`].
    fn weigh(&mut self, place: Place<'a>, depth: usize) -> (u64, usize) {
        if !place.schema.is_object() {
            return (1, 1);
        }
        match self.known.get(&place.id()) {
            Some(Some(known)) => return *known,
            Some(None) => return ENDLESS,
            None if depth == MAX_CHAIN => return ENDLESS,
            None => {}
        }
        self.known.insert(place.id(), None);
        let (mut weight, mut chain) = (0_u64, 0);
        for part in self.graph.in_place(place) {
            let (more, longer) = self.weigh(part, depth + 1);
            weight = weight.saturating_add(more);
            chain = chain.max(longer);
        }
        weight = weight.saturating_mul(place.passes());
        let known = if chain >= MAX_CHAIN { ENDLESS } else { (weight.saturating_add(1), chain + 1) };
        self.known.insert(place.id(), Some(known));
        known
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Definitions that each reference the next one twice.
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
    fn multiplying_references_are_rejected_in_every_form() {
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
            let objection = unbounded_reason(&schema);
            assert!(objection.is_some_and(|text| text.contains("50000 schemas")), "{name}");
        }
    }

    #[test]
    fn written_out_and_nested_schemas_are_accepted() {
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
            assert_eq!(unbounded_reason(&schema), None, "{schema}");
        }
    }
}
