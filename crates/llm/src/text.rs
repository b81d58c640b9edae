//! JSON in the text of an answer: in a fenced block, with prose around it, or cut out of both.
//!
//! Models that were only asked for JSON, and not kept to it, write it so. Everything here takes time in proportion to
//! the text, whatever the text is.

use crate::RawJson;

/// The most JSON values that [`json_values`] gives.
const MOST_VALUES: usize = 1_000;

/// The most brackets that are tried by themselves where no pair of brackets is a value.
const MOST_BEGINNINGS: usize = 64;

/// The deepest nesting of a value that is found.
const DEEPEST: usize = 128;

/// The text without the fence, the byte order mark and the white space around it; otherwise as it is.
///
/// ```
/// use toolpost_llm::text::without_fence;
///
/// assert_eq!(without_fence("```json\n{\"a\": 1}\n```\n"), "{\"a\": 1}");
/// assert_eq!(without_fence(" {} "), "{}");
/// ```
pub fn without_fence(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}').trim();
    let mark = if text.starts_with("```") { '`' } else { '~' };
    let inner = text.trim_start_matches(mark);
    if text.len() - inner.len() < 3 {
        return text;
    }
    // What stands behind the opening marks on their line is the language; a fence may also be all on one line.
    let inner = inner.trim_end_matches(mark);
    match inner.split_once('\n') {
        Some((language, body)) if !language.contains(['{', '[', '"']) => body.trim(),
        _ => inner.strip_prefix("json").unwrap_or(inner).trim(),
    }
}

/// The contents of the fenced blocks of a Markdown text, in their order. The last one may lack its end.
pub fn fenced_blocks(text: &str) -> Vec<&str> {
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
        if blocks.len() == MOST_VALUES {
            return blocks;
        }
    }
    if let Some((_, from)) = open {
        blocks.push(text[from..].trim());
    }
    blocks
}

/// The JSON value that a text means: the whole text, else the content of the first fenced block that is JSON, else the
/// longest object or list that stands in it. `None` if there is none.
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

/// The objects and lists that stand in a text, in their order, none within another. At most 1,000.
///
/// Of brackets within brackets the outermost that are JSON count. A text that was made to be tried again and again is
/// given up after four times its length.
pub fn json_values(text: &str) -> Vec<RawJson> {
    let mut spans = balanced(text);
    spans.sort_unstable();
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
        if found.len() == MOST_VALUES {
            break;
        }
    }
    if found.is_empty() {
        // A quoted bracket in prose misleads the search for partners: a few beginnings are tried by themselves.
        let openings = text.match_indices(['{', '[']).map(|(start, _)| start).take(MOST_BEGINNINGS);
        found.extend(openings.filter_map(|start| beginning(&text[start..])).take(1));
    }
    found
}

/// The object or list that a text begins with.
fn beginning(text: &str) -> Option<RawJson> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<RawJson>();
    values.next()?.ok()
}

/// The places of brackets with their partners, their beginnings and ends.
fn balanced(text: &str) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut open: Vec<(usize, u8)> = Vec::new();
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                // No text of JSON has a line break in it: the quote before was one of prose.
                b'"' | b'\n' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            // Quotes matter within brackets only: prose has them too.
            b'"' => in_string = !open.is_empty(),
            b'{' | b'[' => {
                if open.len() == DEEPEST {
                    open.clear();
                }
                open.push((at, byte));
            }
            b'}' | b']' => {
                let opening = if byte == b'}' { b'{' } else { b'[' };
                match open.pop() {
                    Some((start, kind)) if kind == opening => spans.push((start, at + 1)),
                    // A bracket without its partner: nothing that is open can be a value.
                    _ => open.clear(),
                }
            }
            _ => {}
        }
    }
    spans
}

/// An object or a list; a number or a word in a text is not what was asked for.
fn parse(text: &str) -> Result<RawJson, serde_json::Error> {
    let raw = RawJson::parse(text)?;
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
    fn json_is_found_however_it_is_wrapped() {
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
    fn a_hostile_text_ends_soon() {
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
            assert!(json_values(&text).len() <= MOST_VALUES);
            assert!(fenced_blocks(&text).len() <= MOST_VALUES);
            find_json(&text);
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
