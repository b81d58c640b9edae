//! References within a schema.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The target of a reference within the schema.
///
/// `None` if the reference leaves the schema, names an anchor, or points nowhere.
pub fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match split(reference) {
        ("", pointer) => root.pointer(&pointer),
        _ => None,
    }
}

/// The address and the decoded fragment of a reference.
pub(crate) fn split(reference: &str) -> (&str, Cow<'_, str>) {
    let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    (address, percent_decode_str(fragment).decode_utf8_lossy())
}
