//! Halves of characters in JSON: `\ud83d` without `\ude00` behind it is valid JSON by its grammar and no text in Unicode.
//!
//! Servers that cut texts by UTF-16 send them, and models write them into arguments. No reader of strings takes them, so
//! each becomes `\ufffd`, the replacement character, before anything is read.

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// The length of an escape such as `\ud83d`.
const ESCAPE: usize = 6;

/// JSON text in which every half of a character is the replacement character.
pub(crate) fn replaced(json: &str) -> Cow<'_, str> {
    let (mut whole, mut from) = (String::new(), 0);
    let mut at = match memmem::find(json.as_bytes(), b"\\u") {
        // Escapes before it, such as a backslash that is itself escaped, decide where it begins.
        Some(_) => 0,
        None => json.len(),
    };
    while let Some(found) = json.as_bytes().get(at..).and_then(|rest| memchr(b'\\', rest)) {
        at += found;
        let length = match (half(json, at), half(json, at + ESCAPE)) {
            (None, _) => 2,
            (Some(Half::First), Some(Half::Second)) => 2 * ESCAPE,
            (Some(_), _) => {
                whole.push_str(json.get(from..at).unwrap_or_default());
                whole.push_str("\\ufffd");
                from = at + ESCAPE;
                ESCAPE
            }
        };
        at += length;
    }
    if from == 0 {
        return Cow::Borrowed(json);
    }
    whole.push_str(json.get(from..).unwrap_or_default());
    Cow::Owned(whole)
}

/// Half of a character that two escapes stand for.
enum Half {
    First,
    Second,
}

/// Which half the escape at a place stands for; `None` if it stands for none or is no such escape.
fn half(json: &str, at: usize) -> Option<Half> {
    let digits = json.get(at..at + ESCAPE)?.strip_prefix("\\u")?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xD800..=0xDBFF => Some(Half::First),
        0xDC00..=0xDFFF => Some(Half::Second),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_replaced_and_all_else_stays() {
        for (json, expected) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uDE00 there""#, r#""\ufffd there""#),
            (r#""a\ud83d\ud83d\ude00b""#, r#""a\ufffd\ud83d\ude00b""#),
            (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
            (r#"{"\udc00":1}"#, r#"{"\ufffd":1}"#),
            // A backslash and a word, as arguments within arguments have it.
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
            (r#""\ud83d\ude00 \u00fc ü \n""#, r#""\ud83d\ude00 \u00fc ü \n""#),
            (r#""\u12"#, r#""\u12"#),
            (r#""\ud83"#, r#""\ud83"#),
            ("\"\\ud8ü\"", "\"\\ud8ü\""),
            ("", ""),
        ] {
            assert_eq!(replaced(json), expected, "{json}");
        }
    }

    #[test]
    fn what_comes_out_is_read_as_text() {
        for json in [r#""\ud83d""#, r#""x\udfffy\ud800""#, r#""\ud800\ud800\udc00\udc00""#] {
            serde_json::from_str::<String>(json).unwrap_err();
            serde_json::from_str::<String>(&replaced(json)).unwrap();
        }
    }
}
