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
    for (at, _) in alone(json) {
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

/// Whether a text of an event ends with the first half of a character, so that the next event may have the second one.
pub(crate) fn ends_in_half(json: &str) -> bool {
    last_halves(json).next().is_some()
}

/// Two events that came one behind the other, with the character that was cut between them in the second; `None` if none
/// was.
pub(crate) fn joined(first: &str, second: &str) -> Option<(String, String)> {
    let begun = last_halves(first).last()?;
    let half = first.get(begun..begun + ESCAPE)?;
    let is_start =
        |at: usize| second.get(..at).is_some_and(|before| before.ends_with('"') && !before.ends_with("\\\""));
    let starts = alone(second).filter(|(at, half)| *half == Half::Second && is_start(*at)).map(|(at, _)| at);
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
    for at in last_halves(first) {
        left.push_str(first.get(from..at)?);
        from = at + ESCAPE;
    }
    left.push_str(first.get(from..)?);
    Some((left, joined))
}

/// Where the first halves are that texts end with.
fn last_halves(json: &str) -> impl Iterator<Item = usize> {
    let is_end = |at: usize| json.as_bytes().get(at + ESCAPE) == Some(&b'"');
    alone(json).filter(move |(at, half)| *half == Half::First && is_end(*at)).map(|(at, _)| at)
}

/// Every half that has no other half beside it.
fn alone(json: &str) -> impl Iterator<Item = (usize, Half)> {
    let mut at = match memmem::find(json.as_bytes(), b"\\u") {
        // Escapes before it, such as a backslash that is itself escaped, decide where it begins.
        Some(_) => 0,
        None => json.len(),
    };
    std::iter::from_fn(move || {
        loop {
            let found = at + memchr(b'\\', json.as_bytes().get(at..)?)?;
            match (half(json, found), half(json, found + ESCAPE)) {
                (None, _) => at = found + 2,
                (Some(Half::First), Some(Half::Second)) => at = found + 2 * ESCAPE,
                (Some(half), _) => {
                    at = found + ESCAPE;
                    return Some((found, half));
                }
            }
        }
    })
}

/// Half of a character that two escapes stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    fn a_character_that_was_cut_between_two_events_is_joined() {
        for (first, second, expected) in [
            (r#"{"t":"a\ud83d"}"#, r#"{"t":"\ude00b"}"#, Some((r#"{"t":"a"}"#, r#"{"t":"\ud83d\ude00b"}"#))),
            // Both say it twice.
            (
                r#"["\ud83d","\ud83d"]"#,
                r#"["\ude00","\ude00"]"#,
                Some((r#"["",""]"#, r#"["\ud83d\ude00","\ud83d\ude00"]"#)),
            ),
            // Another half within a text stays what it was.
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
            assert_eq!(joined(first, second), expected, "{first} {second}");
        }
        for (json, expected) in
            [(r#""\ud83d""#, true), (r#""\ud83d\ude00""#, false), (r#""\ud83d ""#, false), ("", false)]
        {
            assert_eq!(ends_in_half(json), expected, "{json}");
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
