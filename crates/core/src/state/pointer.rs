//! JSON pointers (RFC 6901).

use std::borrow::Cow;

use serde_json::Value;

use crate::ToolError;

/// Escapes a name as one part of a pointer.
pub fn escape_pointer(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) { name.replace('~', "~0").replace('/', "~1").into() } else { name.into() }
}

/// Checks a pointer: empty, or parts that each start with `/`, with `~` only as `~0` and `~1`.
///
/// # Errors
/// The expected form.
pub fn check_pointer(pointer: &str) -> Result<(), String> {
    let invalid = |what: &str| Err(format!("`{pointer}` is not a JSON pointer: {what}"));
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return invalid("it must be empty or start with `/`");
    }
    if pointer.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return invalid("escape `~` as `~0`, and `/` in a name as `~1`");
    }
    Ok(())
}

/// The names in a pointer, outermost first.
pub(super) fn names(pointer: &str) -> impl Iterator<Item = Cow<'_, str>> {
    pointer.split('/').skip(1).map(|part| {
        if part.contains('~') { part.replace("~1", "/").replace("~0", "~").into() } else { part.into() }
    })
}

/// Whether two locations are equal or one contains the other.
pub fn pointers_overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Parses a name as an index below a length: digits without a leading zero.
pub(super) fn index(name: &str, length: usize) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|index| plain && *index < length)
}

/// A member or an item of a value.
pub(super) fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(name),
        Value::Array(items) => items.get(index(name, items.len())?),
        _ => None,
    }
}

/// A member or an item of a value, mutable.
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

/// The value at a location.
pub(super) fn at<'a>(document: &'a Value, pointer: &str) -> Option<&'a Value> {
    names(pointer).try_fold(document, |value, name| child(value, &name))
}

/// The error for a location in a document.
pub(super) fn misplaced(pointer: &str, what: &str) -> ToolError {
    let place = if pointer.is_empty() { "the whole document" } else { pointer };
    ToolError::precondition(format!("{place}: {what}")).with("pointer", pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn locations_overlap_when_one_contains_the_other() {
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
    fn any_name_can_be_reached() {
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
