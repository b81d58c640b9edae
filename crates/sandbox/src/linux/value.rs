//! The value of code: JSON from its interpreter or from a line of its output, within a limit.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{Language, Reached, Report};

/// The first bytes of a text within a limit, and its size.
#[derive(Debug)]
pub(crate) struct Bounded {
    bytes: Vec<u8>,
    size: u64,
    limit: usize,
}

impl Bounded {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), size: 0, limit }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        let room = self.limit - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The whole text, if the limit allows it.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        (self.bytes.len() as u64 == self.size).then_some(&self.bytes)
    }

    /// The text after a prefix, if it has the prefix.
    fn after(&self, prefix: &[u8]) -> Option<Self> {
        let bytes = self.bytes.strip_prefix(prefix)?.to_vec();
        let length = prefix.len();
        Some(Self { bytes, size: self.size - length as u64, limit: self.limit - length })
    }
}

/// Finds the last line `::result JSON` of a stream.
#[derive(Debug)]
pub(crate) struct ResultLine {
    line: Bounded,
    /// Whether the line can be a result.
    is_possible: bool,
    found: Option<Bounded>,
}

const PREFIX: &[u8] = b"::result ";

impl ResultLine {
    pub(crate) fn new(limit: usize) -> Self {
        Self { line: Bounded::new(limit + PREFIX.len()), is_possible: true, found: None }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.extend(piece);
            self.end_line();
        }
        self.extend(last);
    }

    fn extend(&mut self, piece: &[u8]) {
        if self.is_possible {
            self.line.push(piece);
            let overlap = self.line.bytes.len().min(PREFIX.len());
            self.is_possible = self.line.bytes[..overlap] == PREFIX[..overlap];
        }
    }

    fn end_line(&mut self) {
        if self.is_possible
            && let Some(text) = self.line.after(PREFIX)
        {
            self.found = Some(text);
        }
        self.line.bytes.clear();
        (self.line.size, self.is_possible) = (0, true);
    }

    pub(crate) fn finish(mut self) -> Option<Bounded> {
        self.end_line();
        self.found
    }
}

/// A value of code.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) value: Value,
    /// Whether a line of standard output has it.
    pub(crate) is_printed: bool,
}

/// The value: that of an explicit result line, else the interpreter's, else the rows that its language printed.
pub(crate) fn value(
    interpreter: &Bounded,
    line: Option<&Bounded>,
    printed: impl FnOnce() -> Option<Value>,
    language: Option<Language>,
    report: &mut Report,
) -> Option<Found> {
    if let Some(line) = line
        && let Some(value) = read(line, "the line `::result`", report)
    {
        return Some(Found { value, is_printed: true });
    }
    let own = if interpreter.size > 0 { read(interpreter, "the value", report) } else { None };
    let value = own.or_else(printed)?;
    Some(Found { value, is_printed: language.is_some_and(Language::prints_value) })
}

/// Parses a value; a note says what was wrong with it, or that it is truncated.
fn read(text: &Bounded, what: &str, report: &mut Report) -> Option<Value> {
    let Some(whole) = text.whole() else {
        report.reached.push(Reached::Value);
        let (size, limit) = (text.size, text.limit);
        report.notes.push(format!("the value is truncated: it has {size} bytes, and the limit is {limit}"));
        return Some(truncated(&text.bytes, size));
    };
    match serde_json::from_slice(&with_wide_integers(whole)) {
        Ok(value) => Some(value),
        Err(error) => {
            report.notes.push(format!("{what} is not JSON: {error}"));
            None
        }
    }
}

/// JSON with integers beyond 64 bits as `{"type": "int", "text": DIGITS}`: a number of `serde_json` would round them.
fn with_wide_integers(text: &[u8]) -> Cow<'_, [u8]> {
    /// Shorter integers fit.
    const MIN_DIGITS: usize = 19;
    let mut changed = Vec::new();
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        match byte {
            b'"' => in_string = !in_string,
            b'\\' => at += 1,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().take_while(|byte| is_part(byte)).count();
                let number = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                if length >= MIN_DIGITS && is_wide(number) {
                    changed.extend_from_slice(&text[copied..at]);
                    changed.extend_from_slice(format!(r#"{{"type":"int","text":"{number}"}}"#).as_bytes());
                    copied = at + length;
                }
                at += length - 1;
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    changed.extend_from_slice(&text[copied..]);
    Cow::Owned(changed)
}

/// Whether the text of a JSON number is an integer beyond 64 bits.
fn is_wide(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
}

/// The type, the first characters and the size of a value whose JSON is too large.
fn truncated(bytes: &[u8], size: u64) -> Value {
    /// The maximum size of the text in bytes.
    const MAX_HEAD: usize = 4000;
    let bytes = &bytes[..bytes.len().min(MAX_HEAD)];
    let head = match std::str::from_utf8(bytes) {
        Ok(head) => head,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    let (kind, text) = match head.as_bytes().first() {
        Some(b'"') => ("string".into(), begun_string(head)),
        Some(b'[') => ("array".into(), None),
        Some(b'{') => typed(head).unwrap_or_else(|| ("object".into(), None)),
        _ => ("number".into(), None),
    };
    let text = text.unwrap_or_else(|| head.to_owned());
    json!({ "type": kind, "text": format!("{text}…"), "size": size })
}

/// The type of a value that is a type and a text, or more, and the text if it is next.
fn typed(head: &str) -> Option<(String, Option<String>)> {
    let rest = head.strip_prefix(r#"{"type":"#)?;
    let mut strings = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let kind = strings.next()?.ok()?;
    let rest = &rest[strings.byte_offset()..];
    Some((kind, rest.strip_prefix(r#","text":"#).and_then(begun_string)))
}

/// The characters of a JSON string that has no end.
fn begun_string(head: &str) -> Option<String> {
    /// The longest escape: two halves of a character.
    const MAX_ESCAPE: usize = 12;
    let cuts = (0..=MAX_ESCAPE).filter_map(|cut| head.get(..head.len().checked_sub(cut)?));
    cuts.filter(|text| text.len() > 1).find_map(|text| serde_json::from_str(&format!("{text}\"")).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(limit: usize, text: &str) -> Bounded {
        let mut bounded = Bounded::new(limit);
        text.as_bytes().chunks(7).for_each(|piece| bounded.push(piece));
        bounded
    }

    fn report() -> Report {
        Report::new("", None, crate::Level::Strict)
    }

    fn found(limit: usize, text: &str) -> (Option<Value>, Report) {
        let mut report = report();
        let found = value(&bounded(limit, text), None, || None, None, &mut report);
        (found.map(|found| found.value), report)
    }

    #[test]
    fn the_last_result_line_wins_however_it_is_cut() {
        let text = b"hello\n::result {\"a\": 1}\nx ::result 2\n::result [3]\nbye ::result 4";
        for chunk in 1..text.len() {
            let mut line = ResultLine::new(64);
            text.chunks(chunk).for_each(|piece| line.push(piece));
            assert_eq!(line.finish().unwrap().bytes, b"[3]");
        }
        for (limit, text, expected, size) in [
            (8, "::result 5", Some("5"), 1),
            (8, "::result 12345678", Some("12345678"), 8),
            (8, "::result 1234567890\n", Some("12345678"), 10),
            (8, "::result 1\n::resul", Some("1"), 1),
            (8, "::resulx 1", None, 0),
        ] {
            let mut line = ResultLine::new(limit);
            line.push(text.as_bytes());
            let found = line.finish();
            let text = found.as_ref().map(|found| std::str::from_utf8(&found.bytes).unwrap());
            assert_eq!((text, found.as_ref().map_or(0, |found| found.size)), (expected, size), "{text:?}");
        }
    }

    #[test]
    fn integers_beyond_64_bits_keep_their_digits() {
        let wide = |digits: &str| json!({ "type": "int", "text": digits });
        for (text, expected) in [
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551616", wide("18446744073709551616")),
            ("-9223372036854775809", wide("-9223372036854775809")),
            (
                "[1267650600228229401496703205376, 0.5,-10000000000000000000000000]",
                json!([wide("1267650600228229401496703205376"), 0.5, wide("-10000000000000000000000000")]),
            ),
            (r#"{"18446744073709551616": "\\\" 18446744073709551616"}"#, {
                json!({ "18446744073709551616": "\\\" 18446744073709551616" })
            }),
            ("1267650600228229401496703205376.5", json!(1.267_650_600_228_229_4e30)),
            ("10000000000000000000000e1", json!(1e23)),
            ("0.12345678901234567", json!(0.123_456_789_012_345_67)),
        ] {
            assert_eq!(found(1000, text).0, Some(expected), "{text}");
        }
        for invalid in [
            "018446744073709551616",
            "18446744073709551616x",
            "--18446744073709551616",
            "1844674407370955161\\",
        ] {
            let (value, report) = found(1000, invalid);
            assert_eq!(value, None, "{invalid}");
            assert!(report.notes[0].contains("is not JSON"), "{invalid} {:?}", report.notes);
        }
    }

    #[test]
    fn a_value_that_is_too_large_has_its_type_its_first_characters_and_its_size() {
        let text = |kind: &str, text: &str, size: usize| json!({ "type": kind, "text": text, "size": size });
        for (limit, whole, expected) in [
            (8, "[1,2,3,4,5]", text("array", "[1,2,3,4…", 11)),
            (8, "12345678901", text("number", "12345678…", 11)),
            (8, r#"{"a":12345}"#, text("object", r#"{"a":123…"#, 11)),
            (8, r#""abcdefghi""#, text("string", "abcdefg…", 11)),
            (1, r#""abc""#, text("string", "\"…", 5)),
            // Neither a character nor an escape is cut.
            (4, "[\"éé\"]", text("array", "[\"é…", 8)),
            (12, r#""a\ud83d\ude00b""#, text("string", "a…", 16)),
            (8, r#""a\u00e9b""#, text("string", "aé…", 10)),
            (7, r#""a\u00e9b""#, text("string", "a…", 10)),
            (24, r#"{"type":"set","text":"{1, 2, 3}"}"#, text("set", "{1…", 33)),
            (20, r#"{"type":"DataFrame","shape":[1,1]}"#, text("DataFrame", r#"{"type":"DataFrame",…"#, 34)),
            (14, r#"{"type":"DataFrame","shape":[1,1]}"#, text("object", r#"{"type":"DataF…"#, 34)),
        ] {
            let (value, report) = found(limit, whole);
            assert_eq!(value, Some(expected), "{whole}");
            assert_eq!(report.reached, [Reached::Value]);
            assert!(report.notes[0].contains(&format!("has {} bytes", whole.len())), "{:?}", report.notes);
        }
        let (value, _) = found(100_000, &format!("\"{}\"", "é".repeat(60_000)));
        assert_eq!(value.unwrap()["text"].as_str().unwrap(), format!("{}…", "é".repeat(1999)));
    }

    #[test]
    fn a_result_line_comes_before_the_interpreters_value() {
        for (own, line, expected, is_printed) in [
            ("1", Some("2"), Some(json!(2)), true),
            ("1", Some("{1}"), Some(json!(1)), false),
            ("", Some("x"), None, false),
            ("", None, None, false),
            ("3", None, Some(json!(3)), false),
        ] {
            let line = line.map(|text| bounded(100, text));
            let found = value(&bounded(100, own), line.as_ref(), || None, None, &mut report());
            assert_eq!(found, expected.map(|value| Found { value, is_printed }));
        }
        let rows = || Some(json!([{ "a": 1 }]));
        let found = value(&Bounded::new(10), None, rows, Some(Language::Sqlite), &mut report());
        assert_eq!(found, Some(Found { value: json!([{ "a": 1 }]), is_printed: true }));
    }
}
