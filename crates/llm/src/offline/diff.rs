//! Differences between two JSON values.

use serde_json::Value;

/// Maximum number of differences in the list.
const MAX_DIFFERENCES: usize = 10;

/// Maximum length of an excerpt of a value, in characters.
const MAX_CHARS: usize = 120;

/// One line per difference: the JSON pointer, the expected and the found value.
pub(crate) fn differences(expected: &Value, found: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare(expected, found, "", &mut lines);
    lines
}

fn compare(expected: &Value, found: &Value, at: &str, lines: &mut Vec<String>) {
    if lines.len() >= MAX_DIFFERENCES || expected == found {
        return;
    }
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (name, value) in expected {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                match found.get(name) {
                    Some(other) => compare(value, other, &at, lines),
                    None => lines.push(format!("{at}: expected {}, found nothing", excerpt(value))),
                }
            }
            for (name, value) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
                lines.push(format!("{at}/{name}: expected nothing, found {}", excerpt(value)));
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            for (index, pair) in expected.iter().zip(found).enumerate() {
                compare(pair.0, pair.1, &format!("{at}/{index}"), lines);
            }
            if expected.len() != found.len() {
                lines.push(format!("{at}: expected {} elements, found {}", expected.len(), found.len()));
            }
        }
        _ => lines.push(format!("{at}: expected {}, found {}", excerpt(expected), excerpt(found))),
    }
}

fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_named_by_pointer() {
        let expected = json!({"a": [1, {"b/c": "x"}], "gone": true});
        let found = json!({"a": [1.0, {"b/c": "y"}, 3], "new": null});
        assert_eq!(
            differences(&expected, &found),
            [
                "/a/0: expected 1, found 1.0",
                "/a/1/b~1c: expected \"x\", found \"y\"",
                "/a: expected 2 elements, found 3",
                "/gone: expected true, found nothing",
                "/new: expected nothing, found null",
            ]
        );
        assert!(differences(&expected, &expected).is_empty());
    }
}
