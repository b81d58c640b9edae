//! JSON pointers (RFC 6901): names of places in a document.

use std::borrow::Cow;

use serde_json::Value;

use crate::ToolError;

/// One name as a part of a pointer.
pub fn escape_pointer(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) { name.replace('~', "~0").replace('/', "~1").into() } else { name.into() }
}

/// Checks a pointer: empty, or parts that each begin with `/`, with `~` only as `~0` and `~1`.
///
/// # Errors
/// A sentence that says what was expected.
pub fn check_pointer(pointer: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("`{pointer}` is not a JSON pointer: {what}"));
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return wrong("it is empty or begins with `/`");
    }
    if pointer.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return wrong("`~` is written `~0`, and `/` in a name `~1`");
    }
    Ok(())
}

/// The names in a pointer, outermost first.
pub(super) fn names(pointer: &str) -> impl Iterator<Item = Cow<'_, str>> {
    pointer.split('/').skip(1).map(|part| {
        if part.contains('~') { part.replace("~1", "/").replace("~0", "~").into() } else { part.into() }
    })
}

/// Whether one of two places is the other or lies in it.
pub fn pointers_overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The index that a name is in a list of this length: digits, without a zero in front.
pub(super) fn index(name: &str, length: usize) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|index| plain && *index < length)
}

/// A part of a value, if it is there.
pub(super) fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(name),
        Value::Array(items) => items.get(index(name, items.len())?),
        _ => None,
    }
}

/// A part of a value, to change it.
pub(super) fn child_mut<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(map) => map.get_mut(name),
        Value::Array(items) => {
            let index = index(name, items.len())?;
            items.get_mut(index)
        }
        _ => None,
    }
}

/// What stands at a place, if anything does.
pub(super) fn at<'a>(document: &'a Value, pointer: &str) -> Option<&'a Value> {
    names(pointer).try_fold(document, |value, name| child(value, &name))
}

/// An error about a place in a document.
pub(super) fn misplaced(pointer: &str, what: &str) -> ToolError {
    let place = if pointer.is_empty() { "the whole document" } else { pointer };
    ToolError::precondition(format!("{place}: {what}")).with("pointer", pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn places_overlap_when_one_lies_in_the_other() {
        for (one, other, expected) in [
            ("", "/a", true),
            ("", "", true),
            ("/a", "/a", true),
            ("/a", "/a/b", true),
            ("/a/b", "/a/c", false),
            ("/a", "/ab", false),
            ("/a~1b", "/a/b", false),
            ("/", "/a", false),
            ("/", "//a", true),
        ] {
            assert_eq!(pointers_overlap(one, other), expected, "{one} {other}");
            assert_eq!(pointers_overlap(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn names_of_any_kind_can_be_reached() {
        let document = json!({"a/b": {"~": [{"": 1}]}, "0": "zero"});
        for (pointer, expected) in [
            ("/a~1b/~0/0/", Some(json!(1))),
            ("/0", Some(json!("zero"))),
            ("/a~1b/~0/00", None),
            ("/a~1b/~0/-", None),
            ("/a~1b/~0/+0", None),
        ] {
            assert_eq!(at(&document, pointer).cloned(), expected, "{pointer}");
            assert_eq!(check_pointer(pointer), Ok(()));
        }
        assert_eq!(escape_pointer("a/b~"), "a~1b~0");
        for wrong in ["a", "/~", "/~2", "/a~"] {
            assert!(check_pointer(wrong).is_err(), "{wrong}");
        }
    }
}
