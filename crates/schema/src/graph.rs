//! The graph of schemas that apply to the same value, by keywords and references.

use serde_json::Value;

use crate::reference::split;
use crate::walk::{Part, subschemas};

/// Keywords that reference a schema for the same value.
const REFERENCES: &[&str] = &["$ref", "$dynamicRef"];

/// Keywords that need a second pass over all applied schemas.
const UNEVALUATED: &[&str] = &["unevaluatedProperties", "unevaluatedItems"];

/// A schema and its resource, the base of its references.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) schema: &'a Value,
    resource: &'a Value,
}

impl<'a> Place<'a> {
    /// The root of a document.
    pub(crate) fn root(schema: &'a Value) -> Self {
        Self { schema, resource: schema }
    }

    /// A schema inside this one.
    pub(crate) fn within(self, schema: &'a Value) -> Self {
        Self { schema, resource: resource_of(schema, self.resource) }
    }

    /// Number of passes over the schemas that apply in place.
    pub(crate) fn passes(self) -> u64 {
        if UNEVALUATED.iter().any(|keyword| self.schema.get(*keyword).is_some()) { 2 } else { 1 }
    }

    /// Identifies the schema within its document.
    pub(crate) fn id(self) -> usize {
        std::ptr::from_ref(self.schema).addr()
    }
}

/// A document and the targets of its references.
pub(crate) struct Graph<'a> {
    root: &'a Value,
    /// Schemas with an id, by its last segment.
    resources: Vec<(&'a str, &'a Value)>,
    /// Schemas with an anchor.
    anchors: Vec<(&'a str, Place<'a>)>,
    /// All objects of the document, the possible targets of references.
    pub(crate) objects: Vec<Place<'a>>,
    /// Whether a schema may apply more than once to a value.
    pub(crate) may_multiply: bool,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        let mut graph = Self {
            root,
            resources: Vec::new(),
            anchors: Vec::new(),
            objects: Vec::new(),
            may_multiply: false,
        };
        let mut waiting = vec![Place::root(root)];
        while let Some(around) = waiting.pop() {
            let place = around.within(around.schema);
            match place.schema {
                Value::Object(members) => {
                    graph.may_multiply |=
                        place.passes() > 1 || REFERENCES.iter().any(|keyword| members.contains_key(*keyword));
                    if let Some(id) = members.get("$id").and_then(Value::as_str) {
                        graph.resources.push((last_segment(id), place.schema));
                    }
                    let anchors = ["$anchor", "$dynamicAnchor"].into_iter();
                    let anchors = anchors.filter_map(|keyword| members.get(keyword)?.as_str());
                    graph.anchors.extend(anchors.map(|name| (name, place)));
                    graph.objects.push(place);
                    waiting.extend(members.values().map(|value| Place { schema: value, ..place }));
                }
                Value::Array(elements) => {
                    waiting.extend(elements.iter().map(|value| Place { schema: value, ..place }));
                }
                _ => {}
            }
        }
        graph
    }

    /// The schemas that apply to every value of this one.
    pub(crate) fn in_place(&self, place: Place<'a>) -> Vec<Place<'a>> {
        let own = subschemas(place.schema).into_iter().filter(|(part, _)| *part == Part::Whole);
        let mut parts: Vec<_> = own.map(|(_, schema)| place.within(schema)).collect();
        for reference in REFERENCES.iter().filter_map(|keyword| place.schema.get(*keyword)?.as_str()) {
            parts.extend(self.targets(reference, place.resource));
        }
        parts
    }

    /// The possible targets of a reference.
    fn targets(&self, reference: &str, resource: &'a Value) -> Vec<Place<'a>> {
        let (base, fragment) = split(reference);
        let name = last_segment(base);
        let resources: Vec<&Value> = match base {
            "" => vec![resource],
            _ => self.resources.iter().filter(|(id, _)| *id == name).map(|(_, resource)| *resource).collect(),
        };
        if fragment.is_empty() {
            return resources.into_iter().map(Place::root).collect();
        }
        if fragment.starts_with('/') {
            // An unknown id may be that of the root.
            let resources = if resources.is_empty() { vec![self.root] } else { resources };
            return resources.into_iter().filter_map(|resource| pointed_at(resource, &fragment)).collect();
        }
        let anchors = self.anchors.iter().filter(|(name, _)| *name == fragment);
        anchors.map(|(_, target)| *target).collect()
    }
}

/// The resource of a value: the value itself if it has an id.
fn resource_of<'a>(value: &'a Value, around: &'a Value) -> &'a Value {
    if value.get("$id").is_some_and(Value::is_string) { value } else { around }
}

/// The schema at a JSON pointer.
fn pointed_at<'a>(resource: &'a Value, pointer: &str) -> Option<Place<'a>> {
    let mut found = Place::root(resource);
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        let value = match found.schema {
            Value::Object(members) => members.get(&token)?,
            Value::Array(elements) => elements.get(token.parse::<usize>().ok()?)?,
            _ => return None,
        };
        found = found.within(value);
    }
    Some(found)
}

/// The last segment of an id's path, which a relative reference shares.
fn last_segment(id: &str) -> &str {
    let path = id.split('#').next().unwrap_or_default().trim_end_matches('/');
    path.rsplit(['/', ':']).next().unwrap_or_default()
}
