//! Where two JSON values differ.

use serde_json::Value;

/// The most differences that are listed.
const MOST: usize = 10;

/// The longest value that is shown, in characters.
const LONGEST: usize = 120;

/// One line per difference: the JSON pointer, what was expected, what was found.
pub(crate) fn differences(expected: &Value, found: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare(expected, found, "", &mut lines);
    lines
}

fn compare(expected: &Value, found: &Value, at: &str, lines: &mut Vec<String>) {
    if lines.len() >= MOST || expected == found {
        return;
    }
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (name, value) in expected {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                match found.get(name) {
                    Some(other) => compare(value, other, &at, lines),
                    None => lines.push(format!("{at}: expected {}, found nothing", short(value))),
                }
            }
            for (name, value) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
                lines.push(format!("{at}/{name}: expected nothing, found {}", short(value)));
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
        _ => lines.push(format!("{at}: expected {}, found {}", short(expected), short(found))),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
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
