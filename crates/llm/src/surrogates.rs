//! Repairs unpaired surrogates in JSON: `\ud83d` without `\ude00` is valid JSON but not valid Unicode.
//!
//! Servers that split texts by UTF-16 units send them, and models write them into arguments. String parsers reject them, so
//! each becomes the replacement character `\ufffd` before parsing.

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// The length of an escape such as `\ud83d`.
const ESCAPE: usize = 6;

/// Replaces every unpaired surrogate in JSON text.
pub(crate) fn replaced(json: &str) -> Cow<'_, str> {
    let (mut whole, mut from) = (String::new(), 0);
    for (at, _) in unpaired(json) {
        whole.push_str(json.get(from..at).unwrap_or_default());
        whole.push_str("\\ufffd");
        from = at + ESCAPE;
    }
    if from == 0 {
        return Cow::Borrowed(json);
    }
    whole.push_str(json.get(from..).unwrap_or_default());
    Cow::Owned(whole)
}

/// Whether a string of an event ends with a high surrogate, whose pair the next event may have.
pub(crate) fn ends_in_high_surrogate(json: &str) -> bool {
    trailing_high(json).next().is_some()
}

/// Moves a high surrogate at the end of one event into the next one. `None` if no pair was split.
pub(crate) fn join(first: &str, second: &str) -> Option<(String, String)> {
    let start = trailing_high(first).last()?;
    let half = first.get(start..start + ESCAPE)?;
    let is_start =
        |at: usize| second.get(..at).is_some_and(|before| before.ends_with('"') && !before.ends_with("\\\""));
    let starts = unpaired(second).filter(|(at, half)| *half == Half::Low && is_start(*at)).map(|(at, _)| at);
    let (mut joined, mut from) = (String::new(), 0);
    for at in starts {
        joined.push_str(second.get(from..at)?);
        joined.push_str(half);
        from = at;
    }
    if from == 0 {
        return None;
    }
    joined.push_str(second.get(from..)?);
    let (mut left, mut from) = (String::new(), 0);
    for at in trailing_high(first) {
        left.push_str(first.get(from..at)?);
        from = at + ESCAPE;
    }
    left.push_str(first.get(from..)?);
    Some((left, joined))
}

/// The positions of high surrogates at the end of strings.
fn trailing_high(json: &str) -> impl Iterator<Item = usize> {
    let is_end = |at: usize| json.as_bytes().get(at + ESCAPE) == Some(&b'"');
    unpaired(json).filter(move |(at, half)| *half == Half::High && is_end(*at)).map(|(at, _)| at)
}

/// Every unpaired surrogate, with its position.
fn unpaired(json: &str) -> impl Iterator<Item = (usize, Half)> {
    let mut at = match memmem::find(json.as_bytes(), b"\\u") {
        // Earlier escapes decide which backslash starts an escape.
        Some(_) => 0,
        None => json.len(),
    };
    std::iter::from_fn(move || {
        loop {
            let found = at + memchr(b'\\', json.as_bytes().get(at..)?)?;
            match (half(json, found), half(json, found + ESCAPE)) {
                (None, _) => at = found + 2,
                (Some(Half::High), Some(Half::Low)) => at = found + 2 * ESCAPE,
                (Some(half), _) => {
                    at = found + ESCAPE;
                    return Some((found, half));
                }
            }
        }
    })
}

/// A half of a surrogate pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    High,
    Low,
}

/// The surrogate at a position, if there is one.
fn half(json: &str, at: usize) -> Option<Half> {
    let digits = json.get(at..at + ESCAPE)?.strip_prefix("\\u")?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xD800..=0xDBFF => Some(Half::High),
        0xDC00..=0xDFFF => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpaired_surrogates_are_replaced() {
        for (json, expected) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uDE00 there""#, r#""\ufffd there""#),
            (r#""a\ud83d\ud83d\ude00b""#, r#""a\ufffd\ud83d\ude00b""#),
            (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
            (r#"{"\udc00":1}"#, r#"{"\ufffd":1}"#),
            // An escaped backslash, as in nested JSON.
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
    fn a_split_surrogate_pair_is_joined() {
        for (first, second, expected) in [
            (r#"{"t":"a\ud83d"}"#, r#"{"t":"\ude00b"}"#, Some((r#"{"t":"a"}"#, r#"{"t":"\ud83d\ude00b"}"#))),
            // The text occurs twice in both events.
            (
                r#"["\ud83d","\ud83d"]"#,
                r#"["\ude00","\ude00"]"#,
                Some((r#"["",""]"#, r#"["\ud83d\ude00","\ud83d\ude00"]"#)),
            ),
            // An unpaired surrogate within a text stays.
            (
                r#""\ud83d b\ud83d""#,
                r#""\ude00 \ude00""#,
                Some((r#""\ud83d b""#, r#""\ud83d\ude00 \ude00""#)),
            ),
            (r#""a\ud83d""#, r#""b\ude00""#, None),
            (r#""a\ud83d""#, r#""\"\ude00""#, None),
            (r#""a\ud83db""#, r#""\ude00""#, None),
            (r#""a\\ud83d""#, r#""\ude00""#, None),
            (r#""a\ude00""#, r#""\ude00""#, None),
            (r#""a""#, r#""\ude00""#, None),
        ] {
            let expected = expected.map(|(first, second)| (first.to_owned(), second.to_owned()));
            assert_eq!(join(first, second), expected, "{first} {second}");
        }
        for (json, expected) in
            [(r#""\ud83d""#, true), (r#""\ud83d\ude00""#, false), (r#""\ud83d ""#, false), ("", false)]
        {
            assert_eq!(ends_in_high_surrogate(json), expected, "{json}");
        }
    }

    #[test]
    fn the_result_parses_as_text() {
        for json in [r#""\ud83d""#, r#""x\udfffy\ud800""#, r#""\ud800\ud800\udc00\udc00""#] {
            serde_json::from_str::<String>(json).unwrap_err();
            serde_json::from_str::<String>(&replaced(json)).unwrap();
        }
    }
}
