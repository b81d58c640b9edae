//! Joins streamed arguments of a function call, whose pieces have a path.

use serde_json::{Map, Value};

use crate::RawJson;
use crate::fields::Members;

/// Maximum number of steps of a path.
const MAX_DEPTH: usize = 100;

/// Maximum number of list elements of a call that are skipped by a higher index.
const MAX_SKIPPED: usize = 1_000;

/// The arguments so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Arguments {
    root: Value,
    /// The path of the string that the next piece may continue.
    open: Option<String>,
    skipped: usize,
}

enum Step {
    Name(String),
    Index(usize),
}

impl Arguments {
    /// Sets complete arguments.
    pub(super) fn set(&mut self, whole: Value) {
        self.root = whole;
        self.open = None;
    }

    /// Adds a piece. The error names the invalid part.
    pub(super) fn take(&mut self, piece: &Members<'_>) -> Result<(), String> {
        let path: String = piece.read("jsonPath").unwrap_or_default();
        let value = if let Some(text) = piece.read::<String>("stringValue") {
            Value::String(text)
        } else if let Some(number) = piece.read::<serde_json::Number>("numberValue") {
            Value::Number(number)
        } else if let Some(is) = piece.read::<bool>("boolValue") {
            Value::Bool(is)
        } else if piece.get("nullValue").is_some() {
            Value::Null
        } else {
            return Ok(());
        };
        let steps = steps(&path)?;
        let continues = self.open.as_deref() == Some(path.as_str());
        let place =
            place(&mut self.root, steps, &mut self.skipped).map_err(|what| format!("`{path}`: {what}"))?;
        match (place, value) {
            (Value::String(text), Value::String(more)) if continues => text.push_str(&more),
            (place, value) => *place = value,
        }
        self.open = piece.read::<bool>("willContinue").unwrap_or_default().then_some(path);
        Ok(())
    }

    /// The arguments: an object, empty if there were no pieces.
    pub(super) fn finish(self) -> RawJson {
        let root = if self.root.is_null() { Value::Object(Map::new()) } else { self.root };
        (&root).into()
    }
}

/// Finds the value at a path, and creates it if it is missing.
fn place<'a>(root: &'a mut Value, steps: Vec<Step>, skipped: &mut usize) -> Result<&'a mut Value, String> {
    let mut place = root;
    for step in steps {
        place = match step {
            Step::Name(name) => {
                if place.is_null() {
                    *place = Value::Object(Map::new());
                }
                let Value::Object(members) = place else {
                    return Err(format!("expected an object around `{name}`"));
                };
                members.entry(name).or_insert(Value::Null)
            }
            Step::Index(index) => {
                if place.is_null() {
                    *place = Value::Array(Vec::new());
                }
                let Value::Array(elements) = place else {
                    return Err(format!("expected a list around `[{index}]`"));
                };
                if index >= elements.len() {
                    *skipped = skipped.saturating_add(index - elements.len());
                    if *skipped > MAX_SKIPPED {
                        return Err(format!("more than {MAX_SKIPPED} list elements are skipped"));
                    }
                    elements.resize(index + 1, Value::Null);
                }
                &mut elements[index]
            }
        };
    }
    Ok(place)
}

/// Parses a path such as `$.a[0]['b c']`.
fn steps(path: &str) -> Result<Vec<Step>, String> {
    let wrong = || {
        format!("expected a path such as `$.a[0].b`, found `{}`", path.chars().take(100).collect::<String>())
    };
    let mut rest = path.strip_prefix('$').ok_or_else(wrong)?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MAX_DEPTH {
            return Err(format!("a path of more than {MAX_DEPTH} steps"));
        }
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return Err(wrong());
            }
            steps.push(Step::Name(after[..end].to_owned()));
            rest = &after[end..];
            continue;
        }
        let after = rest.strip_prefix('[').ok_or_else(wrong)?;
        if let Some(quote) = after.chars().next().filter(|first| matches!(first, '\'' | '"')) {
            let (name, after) = quoted(&after[1..], quote).ok_or_else(wrong)?;
            steps.push(Step::Name(name));
            rest = after.strip_prefix(']').ok_or_else(wrong)?;
        } else {
            let (number, after) = after.split_once(']').ok_or_else(wrong)?;
            steps.push(Step::Index(number.parse().map_err(|_| wrong())?));
            rest = after;
        }
    }
    Ok(steps)
}

/// A quoted name and the rest after it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.push(characters.next()?.1),
            character if character == quote => return Some((name, &text[at + 1..])),
            character => name.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(pieces: &[&str]) -> Result<String, String> {
        let mut arguments = Arguments::default();
        for piece in pieces {
            arguments.take(&serde_json::from_str(piece).unwrap())?;
        }
        Ok(arguments.finish().get().to_owned())
    }

    #[test]
    fn pieces_become_an_object() {
        let pieces = [
            r#"{"jsonPath":"$.a","stringValue":"x","willContinue":true}"#,
            r#"{"jsonPath":"$.a","stringValue":"y ü","willContinue":true}"#,
            r#"{"jsonPath":"$.a","stringValue":""}"#,
            r#"{"jsonPath":"$.b[0].c","numberValue":1.0}"#,
            r#"{"jsonPath":"$.b[2]['d e']","boolValue":true}"#,
            r#"{"jsonPath":"$[\"f'\\\"\"]","nullValue":"NULL_VALUE"}"#,
            r#"{"jsonPath":"$.later","willContinue":true}"#,
        ];
        let expected = r#"{"a":"xy ü","b":[{"c":1.0},null,{"d e":true}],"f'\"":null}"#;
        assert_eq!(arguments(&pieces).unwrap(), expected);
        assert_eq!(arguments(&[]).unwrap(), "{}");
    }

    #[test]
    fn skipped_elements_are_bounded_over_all_pieces() {
        let pieces = [
            r#"{"jsonPath":"$.a[3]","boolValue":true}"#,
            r#"{"jsonPath":"$.b[18446744073709551615]","boolValue":true}"#,
        ];
        assert!(arguments(&pieces).unwrap_err().contains("more than 1000 list elements"));
    }

    #[test]
    fn a_string_that_ended_is_replaced_and_not_continued() {
        let piece = r#"{"jsonPath":"$.a","stringValue":"x"}"#;
        assert_eq!(arguments(&[piece, piece]).unwrap(), r#"{"a":"x"}"#);
    }

    #[test]
    fn hostile_paths_are_rejected() {
        let deep = format!(r#"{{"jsonPath":"${}","boolValue":true}}"#, ".a".repeat(MAX_DEPTH + 1));
        for piece in [
            r#"{"jsonPath":"$.a[99999999999]","boolValue":true}"#,
            r#"{"jsonPath":"$.a[1001]","boolValue":true}"#,
            r#"{"jsonPath":"a","boolValue":true}"#,
            r#"{"jsonPath":"$..a","boolValue":true}"#,
            r#"{"jsonPath":"$[*]","boolValue":true}"#,
            r#"{"jsonPath":"$['a","boolValue":true}"#,
            r#"{"jsonPath":"$['a'","boolValue":true}"#,
            r#"{"boolValue":true}"#,
            &deep,
        ] {
            assert!(arguments(&[piece]).is_err(), "{piece}");
        }
        let clash = [r#"{"jsonPath":"$.a","boolValue":true}"#, r#"{"jsonPath":"$.a.b","boolValue":true}"#];
        assert!(arguments(&clash).unwrap_err().contains("expected an object"));
    }
}
