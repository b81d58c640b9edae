//! References within a schema.

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The target of a reference; `None` if the reference leaves the schema or its target is missing.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(&percent_decode_str(pointer).decode_utf8().ok()?)
}

/// A name for the target of a reference, in characters that every provider accepts.
pub(super) fn definition_name(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or_default();
    let name: String = last
        .chars()
        .take(60)
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' })
        .collect();
    if name.is_empty() || name == "_" { "root".to_owned() } else { name }
}
