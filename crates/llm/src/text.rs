//! Extracts JSON from the text of an answer: from fenced blocks or prose.
//!
//! The running time is linear in the text, also for hostile text.

use std::fmt::Write as _;

use crate::RawJson;

/// Maximum number of JSON values or blocks that are found.
const MAX_VALUES: usize = 1_000;

/// Maximum number of opening brackets that are tried if no bracket pair is a value.
const MAX_STARTS: usize = 64;

/// Maximum nesting of a found value.
const MAX_DEPTH: usize = 128;

/// The text without an enclosing fence, byte order mark and white space.
fn without_fence(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}').trim();
    let mark = if text.starts_with("```") { '`' } else { '~' };
    let inner = text.trim_start_matches(mark);
    if text.len() - inner.len() < 3 {
        return text;
    }
    // The rest of the opening line is the language. A fence may also be on a single line.
    let inner = inner.trim_end_matches(mark);
    match inner.split_once('\n') {
        Some((language, body)) if !language.contains(['{', '[', '"']) => body.trim(),
        _ => inner.strip_prefix("json").unwrap_or(inner).trim(),
    }
}

/// The contents of the fenced blocks of a Markdown text, in order. The last block may be unclosed.
fn fenced_blocks(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let bare = line.trim();
        match open {
            None => {
                let mark = if bare.starts_with('`') { '`' } else { '~' };
                let marks = bare.len() - bare.trim_start_matches(mark).len();
                if marks >= 3 && !bare[marks..].contains(mark) {
                    open = Some((&bare[..marks], at));
                }
            }
            Some((marks, from)) => {
                let mark = marks.chars().next().unwrap_or('`');
                if bare.len() >= marks.len() && bare.chars().all(|letter| letter == mark) {
                    blocks.push(text[from..start].trim());
                    open = None;
                }
            }
        }
        if blocks.len() == MAX_VALUES {
            return blocks;
        }
    }
    if let Some((_, from)) = open {
        blocks.push(text[from..].trim());
    }
    blocks
}

/// Finds the JSON value of a text; `None` if there is none.
///
/// Control characters within strings are accepted, and escaped in the found value.
/// It is the whole text, else the first fenced block that is JSON, else the longest object or list in the text.
///
/// ```
/// use toolpost_llm::text::find_json;
///
/// let text = "Here it is {as you wished}: {\"a\": [1, 2]}. Anything else?";
/// assert_eq!(find_json(text).unwrap().get(), "{\"a\": [1, 2]}");
/// ```
pub fn find_json(text: &str) -> Option<RawJson> {
    let whole = without_fence(text);
    if let Ok(found) = parse(whole) {
        return Some(found);
    }
    let fenced = fenced_blocks(text).into_iter().find_map(|block| parse(block).ok());
    if fenced.is_some() {
        return fenced;
    }
    let mut longest: Option<RawJson> = None;
    for found in json_values(text) {
        if longest.as_ref().is_none_or(|longest| found.get().len() > longest.get().len()) {
            longest = Some(found);
        }
    }
    longest
}

/// The outermost objects and lists in a text, in order. The search stops after four times the text's length.
fn json_values(text: &str) -> Vec<RawJson> {
    // A line break ends a string that began in prose, and is a part of a string with control characters.
    let mut spans = [balanced(text, true), balanced(text, false)].concat();
    spans.sort_unstable();
    spans.dedup();
    let mut found = Vec::new();
    let (mut behind, mut budget) = (0, text.len().saturating_mul(4));
    for (start, end) in spans {
        if start < behind || budget < end - start {
            continue;
        }
        budget -= end - start;
        if let Ok(value) = parse(&text[start..end]) {
            found.push(value);
            behind = end;
        }
        if found.len() == MAX_VALUES {
            break;
        }
    }
    if found.is_empty() {
        // A quoted bracket in prose confuses the matching of brackets, so a few opening brackets are tried alone.
        let openings = text.match_indices(['{', '[']).map(|(start, _)| start).take(MAX_STARTS);
        found.extend(openings.filter_map(|start| leading_value(&text[start..])).take(1));
    }
    found
}

/// The object or list at the beginning of a text.
fn leading_value(text: &str) -> Option<RawJson> {
    let first = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<RawJson>().next()?.ok();
    first(text).or_else(|| first(&escaped(text)?))
}

/// The spans of matching brackets. A line break may end a string.
fn balanced(text: &str, line_ends_string: bool) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut open: Vec<(usize, u8)> = Vec::new();
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                b'\n' if line_ends_string => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            // Quotes count only within brackets, because prose has them too.
            b'"' => in_string = !open.is_empty(),
            b'{' | b'[' => {
                if open.len() == MAX_DEPTH {
                    open.clear();
                }
                open.push((at, byte));
            }
            b'}' | b']' => {
                let opening = if byte == b'}' { b'{' } else { b'[' };
                match open.pop() {
                    Some((start, kind)) if kind == opening => spans.push((start, at + 1)),
                    // An unmatched bracket: no open bracket can start a value.
                    _ => open.clear(),
                }
            }
            _ => {}
        }
    }
    spans
}

/// The text with escaped control characters within strings; `None` if it has none.
fn escaped(text: &str) -> Option<String> {
    let mut whole = String::new();
    let (mut in_string, mut after_backslash, mut copied) = (false, false, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !after_backslash => in_string = !in_string,
            0..=0x1f if in_string => {
                if after_backslash {
                    return None;
                }
                whole.push_str(text.get(copied..at)?);
                let _ = write!(whole, "\\u{byte:04x}");
                copied = at + 1;
            }
            _ => {}
        }
        after_backslash = in_string && byte == b'\\' && !after_backslash;
    }
    if copied == 0 {
        return None;
    }
    whole.push_str(text.get(copied..)?);
    Some(whole)
}

/// Parses an object or a list, with control characters within strings. Other values do not count.
fn parse(text: &str) -> Result<RawJson, serde_json::Error> {
    let raw = match RawJson::parse(text) {
        Ok(raw) => raw,
        Err(error) => RawJson::parse(&escaped(text).ok_or(error)?)?,
    };
    if raw.get().starts_with(['{', '[']) {
        Ok(raw)
    } else {
        Err(serde::de::Error::custom("not an object or a list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_in_fences_and_prose() {
        for (text, expected) in [
            ("{\"a\": 1}", Some("{\"a\": 1}")),
            ("\u{feff} [1, 2]\n", Some("[1, 2]")),
            ("```json\n{\"a\": 1}\n```", Some("{\"a\": 1}")),
            ("```\n{\"a\": 1}\n```", Some("{\"a\": 1}")),
            ("~~~\n[]\n~~~", Some("[]")),
            ("```json {\"a\": 1} ```", Some("{\"a\": 1}")),
            ("```json\n{\"a\": 1}", Some("{\"a\": 1}")),
            ("Sure!\n```json\n{\"a\": \"```\"}\n```\nDone.", Some("{\"a\": \"```\"}")),
            ("```text\nno\n```\n```json\n{\"b\": 2}\n```", Some("{\"b\": 2}")),
            ("The answer is {\"a\": {\"b\": \"}\"}} as asked.", Some("{\"a\": {\"b\": \"}\"}}")),
            ("It's {like this}: [1] or {\"longer\": true}", Some("{\"longer\": true}")),
            ("{ not json {\"a\": \"\\\"{\"} }", Some("{\"a\": \"\\\"{\"}")),
            ("say \"{\" and then {\"a\": 1}", Some("{\"a\": 1}")),
            ("] } {\"a\": 1}", Some("{\"a\": 1}")),
            ("{\"a\": \"x\ny\t\u{1}\"}", Some("{\"a\": \"x\\u000ay\\u0009\\u0001\"}")),
            ("So: {\"a\": \"x\n}\"} and [1]", Some("{\"a\": \"x\\u000a}\"}")),
            ("{\"a\": \"\\\"\n\"}", Some("{\"a\": \"\\\"\\u000a\"}")),
            ("{\"a\":\u{1} 1}", None),
            ("{\"a\": 1", None),
            ("nothing here: 7, true, \"x\"", None),
            ("7", None),
            ("", None),
            ("```", None),
        ] {
            assert_eq!(find_json(text).as_ref().map(RawJson::get), expected, "{text}");
        }
        let found = json_values("[1] {\"a\": [2]} x [3, {}]");
        assert_eq!(found.iter().map(RawJson::get).collect::<Vec<_>>(), ["[1]", "{\"a\": [2]}", "[3, {}]"]);
    }

    #[test]
    fn hostile_text_ends_early() {
        let began = std::time::Instant::now();
        for text in [
            "{".repeat(200_000),
            "{\"a\":".repeat(40_000),
            "[".repeat(100_000) + &"]".repeat(100_000),
            "[x".repeat(60_000) + &"]".repeat(60_000),
            "{}".repeat(100_000),
            "```\n".repeat(50_000),
            "\"".repeat(200_000),
            "{\"\\".repeat(60_000),
        ] {
            assert!(json_values(&text).len() <= MAX_VALUES);
            assert!(fenced_blocks(&text).len() <= MAX_VALUES);
            find_json(&text);
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
