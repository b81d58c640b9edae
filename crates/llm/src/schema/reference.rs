//! References within a schema.

use std::borrow::Cow;

use serde_json::Value;

/// What a reference points to; `None` if it points out of the schema, or nowhere.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.contains('%') {
        return root.pointer(&percent_decoded(pointer)?);
    }
    root.pointer(pointer)
}

fn percent_decoded(text: &str) -> Option<Cow<'_, str>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let (high, low) =
                (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// A name for what a reference points to, of letters that every provider takes.
pub(super) fn name_of(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or_default();
    let name: String = last
        .chars()
        .take(60)
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' })
        .collect();
    if name.is_empty() || name == "_" { "root".to_owned() } else { name }
}
