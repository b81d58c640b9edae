//! JSON Patches (RFC 6902) of documents.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::pointer::{
    at, check_pointer, child, child_mut, escape_pointer, index, misplaced, names, pointers_overlap,
};
use crate::ToolError;
use crate::parameter::kind;

/// Maximum memory for the `copy` operations of a patch, in bytes, approximately.
const MAX_COPIED: usize = 64 << 20;

/// One operation of a patch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

/// A JSON Patch (RFC 6902) of a document.
///
/// [`diff`](Self::diff) creates only `add`, `remove` and `replace`; a parsed patch may contain all six operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(Vec<Operation>);

impl Patch {
    /// Parses a patch, such as `[{"op": "replace", "path": "/a", "value": 1}]`.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the index of the invalid operation.
    pub fn parse(patch: &Value) -> Result<Self, ToolError> {
        let invalid = |index: usize, why: String| {
            ToolError::invalid_input(format!("operation {} of the patch is invalid: {why}", index + 1))
                .with("pointer", format!("/{index}"))
        };
        let operations = patch
            .as_array()
            .ok_or_else(|| ToolError::invalid_input("a patch must be an array of operations (RFC 6902)"))?;
        let read = operations.iter().enumerate().map(|(index, operation)| {
            let operation =
                Operation::deserialize(operation).map_err(|error| invalid(index, error.to_string()))?;
            for pointer in operation.pointers() {
                check_pointer(pointer).map_err(|why| invalid(index, why))?;
            }
            Ok(operation)
        });
        read.collect::<Result<_, _>>().map(Self)
    }

    /// The patch as JSON.
    pub fn to_value(&self) -> Value {
        // Cannot fail: all keys are strings and all numbers came from JSON.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether the patch has no operations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patch from one document to another, in linear time.
    ///
    /// Arrays are compared from both ends, so that an insertion at the start is one operation.
    pub fn diff(from: &Value, to: &Value) -> Self {
        let mut patch = Self::default();
        patch.compare(&mut String::new(), from, to);
        patch
    }

    fn compare(&mut self, pointer: &mut String, from: &Value, to: &Value) {
        match (from, to) {
            (Value::Object(from), Value::Object(to)) => self.compare_objects(pointer, from, to),
            (Value::Array(from), Value::Array(to)) => self.compare_lists(pointer, from, to),
            _ if from == to => {}
            _ => self.0.push(Operation::Replace { path: pointer.clone(), value: to.clone() }),
        }
    }

    fn compare_objects(&mut self, pointer: &mut String, from: &Map<String, Value>, to: &Map<String, Value>) {
        for (name, old) in from {
            within(pointer, name, |pointer| match to.get(name) {
                Some(new) => self.compare(pointer, old, new),
                None => self.0.push(Operation::Remove { path: pointer.clone() }),
            });
        }
        for (name, new) in to.iter().filter(|(name, _)| !from.contains_key(*name)) {
            within(pointer, name, |pointer| {
                self.0.push(Operation::Add { path: pointer.clone(), value: new.clone() });
            });
        }
    }

    fn compare_lists(&mut self, pointer: &mut String, from: &[Value], to: &[Value]) {
        let start = from.iter().zip(to).take_while(|(old, new)| old == new).count();
        let (from, to) = (from.get(start..).unwrap_or_default(), to.get(start..).unwrap_or_default());
        let end = from.iter().rev().zip(to.iter().rev()).take_while(|(old, new)| old == new).count();
        let (from, to) = (from.get(..from.len() - end), to.get(..to.len() - end));
        let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
        for (place, (old, new)) in from.iter().zip(to).enumerate() {
            within(pointer, &(start + place).to_string(), |pointer| self.compare(pointer, old, new));
        }
        for place in (to.len()..from.len()).rev() {
            within(pointer, &(start + place).to_string(), |pointer| {
                self.0.push(Operation::Remove { path: pointer.clone() });
            });
        }
        for (place, new) in to.iter().enumerate().skip(from.len()) {
            within(pointer, &(start + place).to_string(), |pointer| {
                self.0.push(Operation::Add { path: pointer.clone(), value: new.clone() });
            });
        }
    }

    /// Applies the patch to a copy of a document, which stays unchanged on failure.
    ///
    /// # Errors
    /// `PRECONDITION` with the pointer if a location is missing or a `test` fails; `LIMIT` if copies multiply.
    pub fn apply(&self, document: &Value) -> Result<Value, ToolError> {
        let mut document = document.clone();
        self.apply_to(&mut document)?;
        Ok(document)
    }

    /// Applies the patches of a history in order.
    ///
    /// # Errors
    /// Errors of [`parse`](Self::parse) and [`apply`](Self::apply).
    pub fn replay<'a>(
        document: &Value,
        patches: impl IntoIterator<Item = &'a Value>,
    ) -> Result<Value, ToolError> {
        let mut document = document.clone();
        patches.into_iter().try_for_each(|patch| Self::parse(patch)?.apply_to(&mut document))?;
        Ok(document)
    }

    /// Applies the patch in place; a failure leaves the earlier operations applied.
    fn apply_to(&self, document: &mut Value) -> Result<(), ToolError> {
        let mut copied = 0;
        for operation in &self.0 {
            match operation {
                Operation::Add { path, value } => add(document, path, value.clone())?,
                Operation::Remove { path } => drop(remove(document, path)?),
                Operation::Replace { path, value } => *place(document, path)? = value.clone(),
                Operation::Move { from, path } => {
                    if path.len() > from.len() && pointers_overlap(from, path) {
                        return Err(misplaced(path, "cannot move a value into itself"));
                    }
                    let value = remove(document, from)?;
                    add(document, path, value)?;
                }
                Operation::Copy { from, path } => {
                    let value = at(document, from).ok_or_else(|| misplaced(from, "missing"))?;
                    copied += memory(value);
                    if copied > MAX_COPIED {
                        return Err(ToolError::limit(format!(
                            "the patch copies more than {MAX_COPIED} bytes"
                        )));
                    }
                    let value = value.clone();
                    add(document, path, value)?;
                }
                Operation::Test { path, value } => {
                    if at(document, path) != Some(value) {
                        return Err(misplaced(path, "the value differs from the patch's test"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether two patches of the same document may conflict: one touches a location of the other, or both move items of
    /// the same array.
    pub fn overlaps(&self, other: &Self) -> bool {
        let touched: Vec<&str> = other.touched().collect();
        self.touched().any(|one| touched.iter().any(|other| pointers_overlap(one, other)))
    }

    /// Applies a patch of one version to a newer version, if the newer version left everything that the patch touches
    /// unchanged.
    ///
    /// # Errors
    /// `CONFLICT` if both changed the same location.
    pub fn rebase(&self, base: &Value, newest: &Value) -> Result<Value, ToolError> {
        if self.overlaps(&Self::diff(base, newest)) {
            return Err(ToolError::conflict("another writer changed the same part of the document")
                .suggest("Read the document again and repeat the change."));
        }
        self.apply(newest)
    }

    /// The locations that the patch reads or changes. An insertion or removal moves later items, so it touches the whole
    /// array. A numeric name may be an index, so it counts as one.
    fn touched(&self) -> impl Iterator<Item = &str> {
        fn list_of(path: &str) -> &str {
            match path.rsplit_once('/') {
                Some((list, item)) if item == "-" || item.bytes().all(|byte| byte.is_ascii_digit()) => list,
                _ => path,
            }
        }
        self.0
            .iter()
            .flat_map(|operation| match operation {
                Operation::Add { path, .. } | Operation::Remove { path } => [Some(list_of(path)), None],
                Operation::Replace { path, .. } | Operation::Test { path, .. } => [Some(path.as_str()), None],
                Operation::Move { from, path } => [Some(list_of(from)), Some(list_of(path))],
                Operation::Copy { from, path } => [Some(from.as_str()), Some(list_of(path))],
            })
            .flatten()
    }

    /// Sets a value in a document and records the operation. Missing and null parents become objects.
    ///
    /// # Errors
    /// `PRECONDITION` with the pointer of a parent that is not an object.
    pub(super) fn set(&mut self, document: &mut Value, pointer: &str, value: Value) -> Result<(), ToolError> {
        let mut reached = String::new();
        let mut here = document;
        let mut rest = names(pointer);
        while let Some(name) = rest.next() {
            let next = format!("{reached}/{}", escape_pointer(&name));
            if child(here, &name).is_some() {
                here = child_mut(here, &name).ok_or_else(|| misplaced(&next, "missing"))?;
                reached = next;
                continue;
            }
            let missing: Vec<_> = rest.collect();
            let value = missing
                .into_iter()
                .rev()
                .fold(value, |value, name| Value::Object(Map::from_iter([(name.into_owned(), value)])));
            return match here {
                Value::Object(map) => {
                    self.0.push(Operation::Add { path: next, value: value.clone() });
                    map.insert(name.into_owned(), value);
                    Ok(())
                }
                Value::Null => {
                    *here = Value::Object(Map::from_iter([(name.into_owned(), value)]));
                    self.0.push(Operation::Replace { path: reached, value: here.clone() });
                    Ok(())
                }
                other => {
                    let what = format!("expected an object to put `{name}` into, found {}", kind(other));
                    Err(misplaced(&reached, &what))
                }
            };
        }
        self.compare(&mut reached, here, &value);
        *here = value;
        Ok(())
    }
}

impl Operation {
    fn pointers(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::Add { path, .. }
            | Self::Remove { path }
            | Self::Replace { path, .. }
            | Self::Test { path, .. } => [Some(path.as_str()), None],
            Self::Move { from, path } | Self::Copy { from, path } => {
                [Some(from.as_str()), Some(path.as_str())]
            }
        }
        .into_iter()
        .flatten()
    }
}

/// Runs a function with the pointer of a part.
fn within(pointer: &mut String, name: &str, work: impl FnOnce(&mut String)) {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(&escape_pointer(name));
    work(pointer);
    pointer.truncate(length);
}

fn place<'a>(document: &'a mut Value, pointer: &str) -> Result<&'a mut Value, ToolError> {
    names(pointer)
        .try_fold(document, |value, name| child_mut(value, &name))
        .ok_or_else(|| misplaced(pointer, "missing"))
}

/// The parent of a location, and the location's name in it.
fn parent<'a>(document: &'a mut Value, pointer: &str) -> Result<(&'a mut Value, String), ToolError> {
    let (before, _) = pointer.rsplit_once('/').ok_or_else(|| misplaced(pointer, "it has no parent"))?;
    let name = names(pointer).last().unwrap_or_default().into_owned();
    Ok((place(document, before)?, name))
}

fn add(document: &mut Value, pointer: &str, value: Value) -> Result<(), ToolError> {
    if pointer.is_empty() {
        *document = value;
        return Ok(());
    }
    let (holder, name) = parent(document, pointer)?;
    match holder {
        Value::Object(map) => drop(map.insert(name, value)),
        Value::Array(items) if name == "-" => items.push(value),
        Value::Array(items) => {
            let length = items.len();
            let index = index(&name, length + 1)
                .ok_or_else(|| misplaced(pointer, &format!("the array has {length} items")))?;
            items.insert(index, value);
        }
        other => {
            let what = format!("expected an object or an array to add to, found {}", kind(other));
            return Err(misplaced(pointer, &what));
        }
    }
    Ok(())
}

fn remove(document: &mut Value, pointer: &str) -> Result<Value, ToolError> {
    if pointer.is_empty() {
        return Ok(document.take());
    }
    let (holder, name) = parent(document, pointer)?;
    let removed = match holder {
        Value::Object(map) => map.shift_remove(&name),
        Value::Array(items) => index(&name, items.len()).map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or_else(|| misplaced(pointer, "nothing to remove"))
}

/// Approximate memory of a value in bytes: its strings and names, and a constant per value.
fn memory(value: &Value) -> usize {
    64 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + memory(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use proptest::prelude::*;
    use serde_json::json;

    fn patch(value: &Value) -> Patch {
        Patch::parse(value).unwrap()
    }

    #[test]
    fn operations_follow_the_rfc() {
        let before = json!({"a": {"b": 1}, "list": [1, 2, 3], "a/b": 0});
        for (operations, after) in [
            (
                json!([{"op": "add", "path": "/c", "value": null}]),
                json!({"a": {"b": 1}, "list": [1, 2, 3], "a/b": 0, "c": null}),
            ),
            (
                json!([{"op": "add", "path": "/list/1", "value": 9}]),
                json!({"a": {"b": 1}, "list": [1, 9, 2, 3], "a/b": 0}),
            ),
            (
                json!([{"op": "add", "path": "/list/-", "value": 9}]),
                json!({"a": {"b": 1}, "list": [1, 2, 3, 9], "a/b": 0}),
            ),
            (
                json!([{"op": "remove", "path": "/list/0"}, {"op": "remove", "path": "/a~1b"}]),
                json!({"a": {"b": 1}, "list": [2, 3]}),
            ),
            (json!([{"op": "replace", "path": "", "value": 7}]), json!(7)),
            (
                json!([{"op": "move", "from": "/a/b", "path": "/list/3"}]),
                json!({"a": {}, "list": [1, 2, 3, 1], "a/b": 0}),
            ),
            (
                json!([{"op": "copy", "from": "/list", "path": "/a/b"}]),
                json!({"a": {"b": [1, 2, 3]}, "list": [1, 2, 3], "a/b": 0}),
            ),
            (json!([{"op": "test", "path": "/a", "value": {"b": 1}}]), before.clone()),
        ] {
            assert_eq!(patch(&operations).apply(&before).unwrap(), after, "{operations}");
        }
    }

    #[test]
    fn a_failed_patch_names_the_location_and_changes_nothing() {
        let document = json!({"a": 1, "list": [1]});
        for (operation, pointer) in [
            (json!({"op": "remove", "path": "/b"}), "/b"),
            (json!({"op": "replace", "path": "/a/b", "value": 1}), "/a/b"),
            (json!({"op": "add", "path": "/a/b", "value": 1}), "/a/b"),
            (json!({"op": "add", "path": "/list/2", "value": 1}), "/list/2"),
            (json!({"op": "add", "path": "/list/01", "value": 1}), "/list/01"),
            (json!({"op": "remove", "path": "/list/-"}), "/list/-"),
            (json!({"op": "test", "path": "/a", "value": 2}), "/a"),
            (json!({"op": "copy", "from": "/x", "path": "/y"}), "/x"),
            (json!({"op": "move", "from": "/list", "path": "/list/0"}), "/list/0"),
        ] {
            let before = document.clone();
            let change = patch(&json!([{"op": "replace", "path": "/a", "value": 5}, operation]));
            let error = change.apply(&document).unwrap_err();
            assert_eq!((error.code(), &error.context()["pointer"]), (Code::Precondition, &json!(pointer)));
            assert_eq!(document, before);
        }
    }

    #[test]
    fn invalid_patches_are_rejected_by_index() {
        for (value, expected) in [
            (json!({}), "array of operations"),
            (json!([{"op": "add", "path": "/a", "value": 1}, {"op": "put", "path": "/a"}]), "operation 2"),
            (json!([{"op": "remove"}]), "operation 1"),
            (json!([{"op": "remove", "path": "a"}]), "not a JSON pointer"),
        ] {
            let error = Patch::parse(&value).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
    }

    #[test]
    fn copies_are_bounded() {
        let doubling: Vec<Value> =
            (0..64).map(|step| json!({"op": "copy", "from": "", "path": format!("/{step}")})).collect();
        assert_eq!(patch(&json!(doubling)).apply(&json!({})).unwrap_err().code(), Code::Limit);
        // Few values with much text each.
        let large = json!({"text": "x".repeat(1 << 20), "list": []});
        let copies = |times| vec![json!({"op": "copy", "from": "/text", "path": "/list/-"}); times];
        assert_eq!(patch(&json!(copies(65))).apply(&large).unwrap_err().code(), Code::Limit);
        assert!(patch(&json!(copies(8))).apply(&large).is_ok());
    }

    #[test]
    fn small_changes_are_small_patches() {
        for (from, to, expected) in [
            (json!({"a": 1, "b": 2}), json!({"b": 2, "a": 1}), json!([])),
            (json!({"a": 1}), json!({"a": 2}), json!([{"op": "replace", "path": "/a", "value": 2}])),
            (json!([1, 2, 3]), json!([0, 1, 2, 3]), json!([{"op": "add", "path": "/0", "value": 0}])),
            (
                json!([1, 2, 3, 4]),
                json!([1, 4]),
                json!([{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}]),
            ),
            (
                json!([{"n": 1}, 2]),
                json!([{"n": 5}, 2]),
                json!([{"op": "replace", "path": "/0/n", "value": 5}]),
            ),
            (json!({"x/y": 1}), json!({}), json!([{"op": "remove", "path": "/x~1y"}])),
        ] {
            assert_eq!(Patch::diff(&from, &to).to_value(), expected);
        }
    }

    #[test]
    fn set_creates_missing_parents() {
        for (before, pointer, after) in [
            (json!(null), "/by_name/a", json!({"by_name": {"a": 7}})),
            (json!({"by_name": {"b": 1}}), "/by_name/a", json!({"by_name": {"b": 1, "a": 7}})),
            (json!({"by_name": {"a": 1}}), "/by_name/a", json!({"by_name": {"a": 7}})),
            (json!({"by_name": null}), "/by_name/a~1b/c", json!({"by_name": {"a/b": {"c": 7}}})),
            (json!([1, [2]]), "/1/0", json!([1, [7]])),
            (json!({"old": 1}), "", json!(7)),
        ] {
            let (mut changed, mut made) = (before.clone(), Patch::default());
            made.set(&mut changed, pointer, json!(7)).unwrap();
            assert_eq!(changed, after);
            assert_eq!(made.apply(&before).unwrap(), after, "{}", made.to_value());
            made = Patch::default();
            made.set(&mut changed, pointer, json!(7)).unwrap();
            assert!(made.is_empty());
        }
        for (document, pointer, expected) in [
            (json!({"a": "text"}), "/a/b", "/a: expected an object to put `b` into, found a string"),
            (json!([1]), "/1", "the whole document: expected an object to put `1` into, found an array"),
        ] {
            let error = Patch::default().set(&mut document.clone(), pointer, json!(7)).unwrap_err();
            assert_eq!(error.message(), expected);
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..4_i64).prop_map(Value::from),
            "[a-c/~]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec(("[a-c0-1/~]{0,2}", inner), 0..5)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    /// A document and two variants, similar enough that changes are often disjoint.
    fn any_variants() -> impl Strategy<Value = (Value, Value, Value)> {
        let fields = || prop::collection::vec(any_value(), 4);
        let which = || prop::collection::vec(any::<bool>(), 4);
        (fields(), fields(), fields(), which(), which()).prop_map(|(base, one, other, in_one, in_other)| {
            let document =
                |parts: &[Value]| json!({"a": parts[0], "b": {"c": parts[1], "d": parts[2]}, "0": parts[3]});
            let variant = |new: &[Value], chosen: &[bool]| {
                let parts: Vec<Value> = (0..4)
                    .map(|part| if chosen[part] { new[part].clone() } else { base[part].clone() })
                    .collect();
                document(&parts)
            };
            (document(&base), variant(&one, &in_one), variant(&other, &in_other))
        })
    }

    proptest! {
        #[test]
        fn a_diff_produces_its_target(from in any_value(), to in any_value()) {
            let patch = Patch::diff(&from, &to);
            prop_assert_eq!(patch.apply(&from).unwrap(), to.clone());
            prop_assert_eq!(Patch::parse(&patch.to_value()).unwrap(), patch.clone());
            prop_assert_eq!(patch.is_empty(), from == to);
        }

        #[test]
        fn a_rebased_patch_equals_serial_execution((base, mine, theirs) in any_variants()) {
            let (my_change, their_change) = (Patch::diff(&base, &mine), Patch::diff(&base, &theirs));
            if let Ok(rebased) = my_change.rebase(&base, &theirs) {
                // Serial execution in either order.
                prop_assert_eq!(&rebased, &my_change.apply(&theirs).unwrap());
                prop_assert_eq!(&rebased, &their_change.apply(&mine).unwrap());
            } else {
                prop_assert!(my_change.overlaps(&their_change) && their_change.overlaps(&my_change));
            }
        }

        #[test]
        fn set_equals_its_patch(document in any_value(), value in any_value(), pointer in "(/[a-c01]{1,2}){0,3}") {
            let (mut changed, mut patch) = (document.clone(), Patch::default());
            if patch.set(&mut changed, &pointer, value.clone()).is_ok() {
                prop_assert_eq!(at(&changed, &pointer), Some(&value));
                prop_assert_eq!(patch.apply(&document).unwrap(), changed);
            } else {
                prop_assert_eq!(document, changed);
            }
        }
    }
}
