//! Jinja's language with bounds: no filter takes or makes more than [`MAX_ITEMS`] items or [`MAX_TEXT`] bytes.
//!
//! The library bounds the instructions of an evaluation, not what a filter allocates.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};

/// The maximum number of instructions of one evaluation.
const FUEL: u64 = 100_000;
/// The maximum size of a text, in bytes.
pub(crate) const MAX_TEXT: usize = 4 << 20;
/// The maximum number of items of all lists of a value together.
pub(crate) const MAX_ITEMS: usize = 10_000_000;
/// Filters whose result is bounded by what they take.
const FILTERS: [&str; 34] = [
    "abs",
    "attr",
    "bool",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "groupby",
    "int",
    "items",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "trim",
    "unique",
    "upper",
];
/// Filters that can make more than they take.
const GROWING: [&str; 2] = ["join", "replace"];

/// Filters without bounds, or for web pages.
const REMOVED: [&str; 11] =
    ["batch", "chain", "e", "escape", "format", "indent", "pprint", "safe", "slice", "tojson", "zip"];

/// The library's own filters.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut plain = Environment::new();
    for name in REMOVED {
        plain.remove_filter(name);
    }
    plain
});

pub(crate) static LANGUAGE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut language = PLAIN.clone();
    language.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    language.set_fuel(Some(FUEL));
    for name in FILTERS.into_iter().chain(GROWING) {
        language.add_filter(name, move |values: Rest<Value>| bounded(name, &values));
    }
    language
});

/// Applies a filter to values that are small enough.
fn bounded(name: &str, values: &[Value]) -> Result<Value, Error> {
    for value in values {
        let mut room = Room::default();
        room.take(value)?;
    }
    let text = |at: usize| values.get(at).and_then(Value::as_str).unwrap_or_default();
    let growth = match name {
        "join" => values.first().and_then(Value::len).unwrap_or_default().saturating_mul(text(1).len()),
        "replace" if text(1).is_empty() => (text(0).len() + 1).saturating_mul(text(2).len()),
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        // A filter by its name would have no bounds.
        "map" if values.len() > 1 && GROWING.contains(&text(1)) => usize::MAX,
        _ => 0,
    };
    if growth > MAX_TEXT {
        return Err(too_large(&format!("the result of `{name}`")));
    }
    PLAIN.empty_state().apply_filter(name, values)
}

fn too_large(what: &str) -> Error {
    let message = format!("{what} has more than {MAX_TEXT} bytes of text or {MAX_ITEMS} items");
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The rest of a value's limit.
pub(crate) struct Room {
    items: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { items: MAX_ITEMS, bytes: 16 * MAX_TEXT }
    }
}

impl Room {
    /// Takes the items and the texts of a value out of the room.
    pub(crate) fn take(&mut self, value: &Value) -> Result<(), Error> {
        let none = || too_large("the value");
        match value.kind() {
            ValueKind::String | ValueKind::Bytes => {
                let bytes = value.as_bytes().map_or(0, <[u8]>::len);
                self.bytes = self.bytes.checked_sub(bytes).ok_or_else(none)?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                if value.len().is_some_and(|length| length > self.items) {
                    return Err(none());
                }
                for item in value.try_iter()? {
                    self.items = self.items.checked_sub(1).ok_or_else(none)?;
                    self.take(&item)?;
                }
            }
            ValueKind::Map => {
                for name in value.try_iter()? {
                    self.items = self.items.checked_sub(1).ok_or_else(none)?;
                    self.take(&name)?;
                    self.take(&value.get_item(&name)?)?;
                }
            }
            ValueKind::Number if f64::try_from(value.clone()).is_ok_and(|number| !number.is_finite()) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "the result is not a number that JSON has",
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The filter in the text after `|` that the language does not have.
pub(crate) fn unknown_filter(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end =
        text.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).unwrap_or(text.len());
    let name = text.get(..end)?;
    let is_known = FILTERS.contains(&name) || GROWING.contains(&name);
    (!is_known).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn value(expression: &str) -> Result<Value, Error> {
        let value = LANGUAGE.compile_expression(expression)?.eval(())?;
        Room::default().take(&value).map(|()| value)
    }

    #[test]
    fn filters_work_as_jinja_says() {
        for (expression, expected) in [
            ("[3, 1, 2] | sort | join('-')", "1-2-3"),
            ("[1, 2, 3] | map('string') | join", "123"),
            ("[{'a': 2}, {'a': 1}] | sort(attribute='a') | map(attribute='a') | list", "[1, 2]"),
            ("missing | default('x')", "x"),
            ("'aXbX' | replace('X', '--') | upper", "A--B--"),
            ("[1, 2, 3, 4] | select('even') | list | length", "2"),
            ("'a b' | split | last", "b"),
            ("2.567 | round(1)", "2.6"),
            ("[1, 0, none, 5] | select | sum", "6"),
        ] {
            assert_eq!(value(expression).unwrap().to_string(), expected, "{expression}");
        }
    }

    #[test]
    fn no_expression_takes_much_memory_or_time() {
        for expression in [
            "[[1]] * 100000000",
            "([[1]] * 100000000) | list",
            "([[1]] * 100000000) | map(attribute='x') | list | length",
            "([1] * 100000000) | join",
            "([1] * 100000000) | sort | first",
            "([1] * 9000000) | join('xxxxxxxxxx')",
            "'a' | replace('a', 'x' * 100000) | replace('x', 'x' * 100000) | length",
            "'aaaa' | replace('', 'x' * 4000000)",
            "['a'] | map('replace', 'a', 'b') | list",
            "{'a': [1] * 100000000}",
            "range(1000000000) | list",
            "'%1000000000s' | format('x')",
            "'x' | indent(1000000000)",
            "[1] | batch(1000000000, 'x') | list",
            "[1] | slice(1000000000) | list",
            "1 / 0",
            "[0 / 0.0]",
        ] {
            let begin = Instant::now();
            let error = value(expression).expect_err(expression);
            let text = error.to_string();
            let is_named = ["more than", "too many", "too large", "is unknown", "not a number"]
                .iter()
                .any(|part| text.contains(part));
            assert!(is_named, "{expression}: {text}");
            assert!(begin.elapsed().as_secs() < 10, "{expression}: {:?}", begin.elapsed());
        }
    }
}
