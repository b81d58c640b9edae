//! Changes of documents as JSON Patches (RFC 6902).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::pointer::{
    at, check_pointer, child, child_mut, escape_pointer, index, misplaced, names, pointers_overlap,
};
use crate::ToolError;
use crate::parameter::kind;

/// How much memory `copy` may take in one patch, about, in bytes.
const MOST_COPIED: usize = 64 << 20;

/// One step of a change.
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

/// A change of a document, as a JSON Patch (RFC 6902).
///
/// A patch that was made by [`diff`](Self::diff) has only `add`, `remove` and `replace`; one that was read may have all
/// six operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(Vec<Operation>);

impl Patch {
    /// Reads a patch, such as `[{"op": "replace", "path": "/a", "value": 1}]`.
    ///
    /// # Errors
    /// `INVALID_INPUT` that says which operation is none.
    pub fn parse(patch: &Value) -> Result<Self, ToolError> {
        let wrong = |index: usize, why: String| {
            ToolError::invalid_input(format!("operation {} of the patch is none: {why}", index + 1))
                .with("pointer", format!("/{index}"))
        };
        let operations = patch
            .as_array()
            .ok_or_else(|| ToolError::invalid_input("a patch is a list of operations, as in RFC 6902"))?;
        let read = operations.iter().enumerate().map(|(index, operation)| {
            let operation =
                Operation::deserialize(operation).map_err(|error| wrong(index, error.to_string()))?;
            for pointer in operation.pointers() {
                check_pointer(pointer).map_err(|why| wrong(index, why))?;
            }
            Ok(operation)
        });
        read.collect::<Result<_, _>>().map(Self)
    }

    /// The patch as JSON.
    pub fn to_value(&self) -> Value {
        // Nothing in it can fail: its keys are texts and its numbers came from JSON.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The change that makes one document of another. The time is linear in their size; a list is compared from both
    /// ends, so that one more item at its beginning is one operation.
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

    /// The document after the change. The one before stays as it is, also when the change fails in the middle.
    ///
    /// # Errors
    /// `PRECONDITION` with the pointer when a place is not there or a `test` fails; `LIMIT` when copies multiply.
    pub fn apply(&self, document: &Value) -> Result<Value, ToolError> {
        let mut document = document.clone();
        self.apply_to(&mut document)?;
        Ok(document)
    }

    /// Applies several changes in turn, as a history keeps them.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse) and [`apply`](Self::apply).
    pub fn replay<'a>(
        document: &Value,
        patches: impl IntoIterator<Item = &'a Value>,
    ) -> Result<Value, ToolError> {
        let mut document = document.clone();
        patches.into_iter().try_for_each(|patch| Self::parse(patch)?.apply_to(&mut document))?;
        Ok(document)
    }

    /// What fails in the middle has changed what was before it.
    fn apply_to(&self, document: &mut Value) -> Result<(), ToolError> {
        let mut copied = 0;
        for operation in &self.0 {
            match operation {
                Operation::Add { path, value } => add(document, path, value.clone())?,
                Operation::Remove { path } => drop(remove(document, path)?),
                Operation::Replace { path, value } => *place(document, path)? = value.clone(),
                Operation::Move { from, path } => {
                    if path.len() > from.len() && pointers_overlap(from, path) {
                        return Err(misplaced(path, "a value cannot be moved into itself"));
                    }
                    let value = remove(document, from)?;
                    add(document, path, value)?;
                }
                Operation::Copy { from, path } => {
                    let value = at(document, from).ok_or_else(|| misplaced(from, "there is nothing"))?;
                    copied += memory(value);
                    if copied > MOST_COPIED {
                        return Err(ToolError::limit(format!(
                            "a patch may copy {MOST_COPIED} bytes, and this one copies more"
                        )));
                    }
                    let value = value.clone();
                    add(document, path, value)?;
                }
                Operation::Test { path, value } => {
                    if at(document, path) != Some(value) {
                        return Err(misplaced(path, "it is not what the patch tests for"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether two changes of the same document could disturb each other: one touches what the other touches, or both
    /// touch the same list in a way that moves its items.
    pub fn overlaps(&self, other: &Self) -> bool {
        let touched: Vec<&str> = other.touched().collect();
        self.touched().any(|one| touched.iter().any(|other| pointers_overlap(one, other)))
    }

    /// Applies a change that was made of one document to a newer version of it, if nothing that the change touches
    /// has changed since: the result is then the same as if it had been made of the newer version.
    ///
    /// # Errors
    /// `CONFLICT` when both changed the same place.
    pub fn rebase(&self, base: &Value, newest: &Value) -> Result<Value, ToolError> {
        if self.overlaps(&Self::diff(base, newest)) {
            return Err(ToolError::conflict("somebody else changed the same part of the document")
                .suggest("Read it again and repeat the change."));
        }
        self.apply(newest)
    }

    /// What it reads or changes. Adding and removing an item moves those behind it, so that the whole list is meant;
    /// without the document a number may be a name as well, and the larger place is taken.
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

    /// Puts a value at a place of a document, and notes the change. What lies on the way there and is not there yet, or
    /// is null, becomes an object.
    ///
    /// # Errors
    /// `PRECONDITION` with the pointer of whatever is in the way.
    pub(super) fn set(&mut self, document: &mut Value, pointer: &str, value: Value) -> Result<(), ToolError> {
        let mut reached = String::new();
        let mut here = document;
        let mut rest = names(pointer);
        while let Some(name) = rest.next() {
            let next = format!("{reached}/{}", escape_pointer(&name));
            if child(here, &name).is_some() {
                here = child_mut(here, &name).ok_or_else(|| misplaced(&next, "there is nothing"))?;
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

/// Does something with the pointer of a part.
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
        .ok_or_else(|| misplaced(pointer, "there is nothing"))
}

/// The value that a place lies in, and its name there.
fn parent<'a>(document: &'a mut Value, pointer: &str) -> Result<(&'a mut Value, String), ToolError> {
    let (before, _) = pointer.rsplit_once('/').ok_or_else(|| misplaced(pointer, "it lies in nothing"))?;
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
                .ok_or_else(|| misplaced(pointer, &format!("the list has {length} items")))?;
            items.insert(index, value);
        }
        other => {
            let what = format!("expected an object or a list to add to, found {}", kind(other));
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
    removed.ok_or_else(|| misplaced(pointer, "there is nothing to remove"))
}

/// About how many bytes of memory a value takes: its texts and names, and a little for each value in it.
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
    fn operations_do_what_the_standard_says() {
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
    fn a_failed_change_names_its_place_and_changes_nothing() {
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
    fn what_is_no_patch_is_refused_by_number() {
        for (value, expected) in [
            (json!({}), "list of operations"),
            (json!([{"op": "add", "path": "/a", "value": 1}, {"op": "put", "path": "/a"}]), "operation 2"),
            (json!([{"op": "remove"}]), "operation 1"),
            (json!([{"op": "remove", "path": "a"}]), "not a JSON pointer"),
        ] {
            let error = Patch::parse(&value).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
    }

    #[test]
    fn copies_cannot_multiply_without_end() {
        let doubling: Vec<Value> =
            (0..64).map(|step| json!({"op": "copy", "from": "", "path": format!("/{step}")})).collect();
        assert_eq!(patch(&json!(doubling)).apply(&json!({})).unwrap_err().code(), Code::Limit);
        // Few values, and much in each.
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
    fn a_value_finds_its_place_and_makes_the_way_there() {
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
            (json!({"a": "text"}), "/a/b", "/a: expected an object to put `b` into, found a text"),
            (json!([1]), "/1", "the whole document: expected an object to put `1` into, found a list"),
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

    /// A document and two variants of it, alike enough that changes are often apart.
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
        fn the_patch_of_a_diff_makes_the_target(from in any_value(), to in any_value()) {
            let patch = Patch::diff(&from, &to);
            prop_assert_eq!(patch.apply(&from).unwrap(), to.clone());
            prop_assert_eq!(Patch::parse(&patch.to_value()).unwrap(), patch.clone());
            prop_assert_eq!(patch.is_empty(), from == to);
        }

        #[test]
        fn a_rebased_change_is_as_if_it_had_been_made_later((base, mine, theirs) in any_variants()) {
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
        fn setting_a_place_is_its_patch(document in any_value(), value in any_value(), pointer in "(/[a-c01]{1,2}){0,3}") {
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
