//! Counts how many schemas apply to a value and its parts.
//!
//! A recursive schema with two alternatives for the same property doubles the work with each level of the value: 100
//! bytes can need more checks than any machine performs. The count depends on the value, so it is taken before the
//! check, at a lower cost than the check.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use crate::graph::{Graph, Place};
use crate::walk::{Part, subschemas};

/// Maximum number of schema applications in a check of a value and its parts.
pub(crate) const MAX_CHECKS: u64 = 1_000_000;

/// Maximum number of schema applications in an explanation, which uses memory for each.
pub(crate) const MAX_EXPLAINED: u64 = 200_000;

/// Maximum length of a chain of applied schemas, which bounds the recursion depth.
const MAX_CHAIN: usize = 768;

/// Represents any value without parts.
const LEAF: &Value = &Value::Null;

/// Counts the applications of a document's schemas.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Number of schemas.
    schemas: u64,
    /// Whether a schema may apply more than once to a value.
    may_multiply: bool,
}

impl Steps {
    pub(crate) fn from_schema(schema: &Value) -> Self {
        let graph = Graph::new(schema);
        Self { schemas: graph.objects.len() as u64 + 1, may_multiply: graph.may_multiply }
    }

    /// Whether at most `max` schemas apply to a value and its parts.
    pub(crate) fn are_within(&self, max: u64, schema: &Value, value: &Value) -> bool {
        if !self.may_multiply && self.schemas.saturating_mul(values_in(value)) <= max {
            return true;
        }
        let graph = Graph::new(schema);
        let mut count = Count { graph: &graph, numbers: HashMap::new(), nodes: Vec::new(), left: max };
        let root = count.number(Place::root(schema));
        count.apply(root, value, 0).is_some()
    }
}

/// Number of values in a value, itself included.
fn values_in(value: &Value) -> u64 {
    let mut waiting = vec![value];
    let mut count = 0;
    while let Some(value) = waiting.pop() {
        count += 1;
        match value {
            Value::Array(elements) => waiting.extend(elements),
            Value::Object(members) => waiting.extend(members.values()),
            _ => {}
        }
    }
    count
}

/// A schema and the schemas that apply with it, by number.
#[derive(Default)]
struct Node<'a> {
    /// Schemas for the same value, and the number of passes.
    parts: Vec<usize>,
    passes: u64,
    /// Schemas for the members of an object: by name, for all, and for unnamed ones.
    properties: HashMap<&'a str, usize>,
    members: Vec<usize>,
    others: Vec<usize>,
    /// Schema for the names of members.
    names: Option<usize>,
    /// Schemas for the elements of a list: the first ones, the following ones, and all.
    first: Vec<usize>,
    items: Option<usize>,
    elements: Vec<usize>,
}

struct Count<'g, 'a> {
    graph: &'g Graph<'a>,
    numbers: HashMap<usize, usize>,
    /// The schemas, with their nodes once they applied.
    nodes: Vec<(Place<'a>, Option<Rc<Node<'a>>>)>,
    left: u64,
}

impl<'a> Count<'_, 'a> {
    /// The number of a schema.
    fn number(&mut self, place: Place<'a>) -> usize {
        *self.numbers.entry(place.id()).or_insert_with(|| {
            self.nodes.push((place, None));
            self.nodes.len() - 1
        })
    }

    fn node(&mut self, number: usize) -> Rc<Node<'a>> {
        let (place, known) = &self.nodes[number];
        if let Some(known) = known {
            return Rc::clone(known);
        }
        let place = *place;
        let parts = self.graph.in_place(place);
        let mut node = Node {
            parts: parts.into_iter().map(|part| self.number(part)).collect(),
            passes: place.passes(),
            ..Node::default()
        };
        for (part, schema) in subschemas(place.schema) {
            let number = self.number(place.within(schema));
            match part {
                Part::Whole | Part::Definition => {}
                Part::Member(name) => drop(node.properties.insert(name, number)),
                // Patterns are not matched: assume that all apply.
                Part::MatchingMembers => node.members.push(number),
                Part::OtherMembers => node.others.push(number),
                Part::Names => node.names = Some(number),
                Part::Element(_) => node.first.push(number),
                Part::OtherElements => node.items = Some(number),
                Part::AnyElement => node.elements.push(number),
            }
        }
        let node = Rc::new(node);
        self.nodes[number].1 = Some(Rc::clone(&node));
        node
    }

    /// Counts the application of a schema to a value; `None` above the maximum.
    fn apply(&mut self, number: usize, value: &Value, depth: usize) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        if depth == MAX_CHAIN {
            return None;
        }
        let node = self.node(number);
        for _ in 0..node.passes {
            for part in &node.parts {
                self.apply(*part, value, depth + 1)?;
            }
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    if let Some(names) = node.names {
                        self.apply(names, LEAF, depth + 1)?;
                    }
                    let own = node.properties.get(name.as_str());
                    let others = if own.is_some() { &[] } else { node.others.as_slice() };
                    for schema in own.into_iter().chain(&node.members).chain(others) {
                        self.apply(*schema, member, depth + 1)?;
                    }
                }
            }
            Value::Array(elements) => {
                for (position, element) in elements.iter().enumerate() {
                    let own = node.first.get(position).or(node.items.as_ref());
                    for schema in own.into_iter().chain(&node.elements) {
                        self.apply(*schema, element, depth + 1)?;
                    }
                }
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Map, json};

    use super::*;
    use crate::{CheckError, Schema};

    /// A value with this many levels around `end`.
    fn nested(levels: usize, end: Value) -> Value {
        (0..levels).fold(end, |inner, _| json!({"c": inner}))
    }

    fn chain(levels: usize, definition: impl Fn(&Value) -> Value) -> Value {
        let definitions: Map<String, Value> = (0..levels)
            .map(|level| {
                let next = json!({"$ref": format!("#/$defs/M{}", level + 1)});
                (format!("M{level}"), definition(&next))
            })
            .chain([(format!("M{levels}"), json!({"type": "string"}))])
            .collect();
        json!({"$ref": "#/$defs/M0", "$defs": definitions})
    }

    /// Two alternatives that both recurse into the same property.
    fn twice(next: &Value) -> Value {
        let branch = json!({"type": "object", "properties": {"c": next}});
        json!({"anyOf": [branch, branch]})
    }

    #[test]
    fn work_that_grows_with_depth_is_rejected_in_bounded_time() {
        let itself = |keyword: &str| {
            let branch = json!({"type": "object", "properties": {"c": {"$ref": "#"}}});
            json!({keyword: [branch, branch, {"type": "string"}]})
        };
        let pattern = json!({
            "type": ["object", "string"], "patternProperties": {"^c": {"$ref": "#"}, "c$": {"$ref": "#"}},
        });
        let beside = json!({
            "type": ["object", "string"],
            "additionalProperties": {"$ref": "#"},
            "allOf": [{"properties": {"c": {"$ref": "#"}}}],
        });
        let started = Instant::now();
        for (name, schema) in [
            ("anyOf", itself("anyOf")),
            (
                "allOf",
                json!({"allOf": [{"properties": {"c": {"$ref": "#"}}}, {"properties": {"c": {"$ref": "#"}}}]}),
            ),
            ("patterns", pattern),
            ("beside", beside),
            ("definitions", chain(60, twice)),
        ] {
            let schema = Schema::new(schema);
            assert_eq!(schema.is_valid(&nested(100, json!(1))), Err(CheckError::TooLarge), "{name}");
        }
        let schema = Schema::new(itself("anyOf"));
        assert_eq!(schema.problems(&nested(100, json!(1))), Err(CheckError::TooLarge));
        assert!(started.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn a_fast_check_with_a_slow_explanation_gets_a_short_one() {
        // The first alternative fits quickly; without it each level has two errors of the next.
        let schema = Schema::new(chain(17, twice));
        assert!(schema.is_valid(&nested(17, json!("end"))).unwrap());
        let problems = schema.problems(&nested(17, json!(1))).unwrap();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].pointer, "");
        assert!(problems[0].expected.contains("fits the schema"), "{problems:?}");
        // With fewer levels the place is named.
        assert_ne!(schema.problems(&nested(3, json!(1))).unwrap()[0].expected, problems[0].expected);
    }

    #[test]
    fn a_check_does_not_overflow_the_stack() {
        let deep = |levels: usize, next: Value| {
            (0..levels).fold(next, |inner, _| json!({"allOf": [{"description": "one more"}, inner]}))
        };
        // Each chain is short, and each level of the value begins another one.
        let definitions = json!({
            "Node": {"properties": {"c": {"$ref": "#/$defs/L0"}}},
            "L0": deep(40, json!({"$ref": "#/$defs/L1"})),
            "L1": deep(40, json!({"$ref": "#/$defs/L2"})),
            "L2": deep(40, json!({"$ref": "#/$defs/Node"})),
        });
        let schema = Schema::new(json!({"$ref": "#/$defs/Node", "$defs": definitions}));
        assert!(schema.is_valid(&nested(3, json!(1))).unwrap());
        assert_eq!(schema.is_valid(&nested(120, json!(1))), Err(CheckError::TooLarge));
    }

    #[test]
    fn common_recursion_and_large_values_are_checked() {
        let tree = json!({
            "$ref": "#/$defs/Node",
            "$defs": {"Node": {
                "type": "object",
                "properties": {"c": {"$ref": "#/$defs/Node"}, "all": {"items": {"$ref": "#/$defs/Node"}}},
            }},
        });
        let schema = Schema::new(tree);
        assert!(schema.is_valid(&nested(120, json!({"all": vec![json!({}); 10_000]}))).unwrap());
        let problems = schema.problems(&nested(100, json!(1))).unwrap();
        assert_eq!(problems[0].pointer, "/c".repeat(100));
        // Without references there is no need to count each.
        let numbers = Schema::new(json!({"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}));
        let mut value = vec![json!(1); 50_000];
        assert!(numbers.is_valid(&json!(value)).unwrap());
        value[49_999] = json!("x");
        assert_eq!(numbers.problems(&json!(value)).unwrap()[0].pointer, "/49999");
    }
}
