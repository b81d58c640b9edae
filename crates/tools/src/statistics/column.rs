//! Numbers from JSON values and table columns.

use serde_json::Value;
use toolpost::{ToolError, did_you_mean};

use super::NotANumber;
use crate::files::shown;

/// Maximum number of values.
pub(super) const MAX_VALUES: usize = 5_000_000;
/// Maximum number of non-numeric examples.
const MAX_EXAMPLES: usize = 5;
/// Marks of missing values in tables.
const MISSING: [&str; 6] = ["", "na", "n/a", "nan", "null", "none"];

/// The values of a column in order, NaN for missing and non-numeric ones.
#[derive(Debug, Default)]
pub(super) struct Column {
    pub(super) values: Vec<f64>,
    pub(super) missing: u64,
    pub(super) non_numeric: u64,
    pub(super) examples: Vec<NotANumber>,
}

impl Column {
    fn number(&mut self, number: f64) -> Result<(), ToolError> {
        if self.values.len() >= MAX_VALUES {
            return Err(ToolError::limit(format!("more than {MAX_VALUES} values"))
                .suggest("Run code for that many, or analyze a part of them."));
        }
        self.values.push(number);
        Ok(())
    }

    fn missing(&mut self) -> Result<(), ToolError> {
        self.missing += 1;
        self.number(f64::NAN)
    }

    fn non_numeric(&mut self, value: &str) -> Result<(), ToolError> {
        self.non_numeric += 1;
        if self.examples.len() < MAX_EXAMPLES {
            let position = self.values.len() as u64 + 1;
            self.examples.push(NotANumber { position, value: shown(value) });
        }
        self.number(f64::NAN)
    }

    /// The numbers without missing and non-numeric values.
    pub(super) fn numbers(&self) -> Vec<f64> {
        self.values.iter().copied().filter(|value| !value.is_nan()).collect()
    }

    /// Converts JSON values: `null` is missing, anything but numbers is non-numeric.
    pub(super) fn of_json(values: &[Value]) -> Result<Self, ToolError> {
        let mut column = Self::default();
        for value in values {
            match value {
                Value::Number(number) => {
                    column.number(number.as_f64().filter(|number| number.is_finite()).unwrap_or(f64::NAN))?;
                }
                Value::Null => column.missing()?,
                Value::String(text) => column.non_numeric(text)?,
                other => column.non_numeric(&other.to_string())?,
            }
        }
        Ok(column)
    }

    fn text(&mut self, text: &str) -> Result<(), ToolError> {
        let text = text.trim();
        if MISSING.iter().any(|missing| text.eq_ignore_ascii_case(missing)) {
            return self.missing();
        }
        // Rust also parses `inf` and `infinity`.
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        match text.parse::<f64>() {
            Ok(number) if plain && number.is_finite() => self.number(number),
            _ => self.non_numeric(text),
        }
    }
}

/// A table as text, with its format.
pub(super) struct Table<'a> {
    pub(super) text: &'a str,
    pub(super) delimiter: Option<char>,
    pub(super) has_header: bool,
}

impl Table<'_> {
    /// The given delimiter, or the most frequent one in the first line.
    fn delimiter(&self) -> Result<u8, ToolError> {
        if let Some(delimiter) = self.delimiter {
            return u8::try_from(delimiter).ok().filter(u8::is_ascii).ok_or_else(|| {
                ToolError::invalid_input(format!("the delimiter `{delimiter}` is not an ASCII character"))
                    .with("pointer", "/delimiter")
            });
        }
        let first = self.text.lines().next().unwrap_or_default();
        let count = |delimiter: u8| {
            let mut quoted = false;
            first
                .bytes()
                .filter(|byte| {
                    quoted ^= *byte == b'"';
                    !quoted && *byte == delimiter
                })
                .count()
        };
        // `max_by_key` takes the last of equals, which prefers the comma.
        Ok(*b"|\t;,".iter().max_by_key(|delimiter| count(**delimiter)).unwrap_or(&b','))
    }

    /// Reads columns by name or by number from 1. `None` selects the only column.
    pub(super) fn columns(
        &self,
        requested: &[(&str, Option<&str>)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<(String, Column)>, ToolError> {
        let invalid = |error: csv::Error| {
            ToolError::invalid_input(format!("cannot parse the table: {error}")).with("pointer", "/path")
        };
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(self.delimiter()?)
            .has_headers(false)
            .flexible(true)
            .from_reader(self.text.as_bytes());
        let mut record = csv::StringRecord::new();
        if !reader.read_record(&mut record).map_err(invalid)? {
            return Err(ToolError::invalid_input("the file has no rows").with("pointer", "/path"));
        }
        let names: Vec<String> = if self.has_header {
            record.iter().map(|name| name.trim().to_owned()).collect()
        } else {
            (1..=record.len()).map(|number| number.to_string()).collect()
        };
        let mut found = Vec::new();
        for (pointer, name) in requested {
            let index = find(&names, *name).map_err(|error| error.with("pointer", *pointer))?;
            found.push((index, Column::default()));
        }
        let mut more = !self.has_header || reader.read_record(&mut record).map_err(invalid)?;
        let mut rows = 0_u64;
        while more {
            rows += 1;
            if rows.is_multiple_of(4096) && is_cancelled() {
                return Err(ToolError::cancelled("the caller cancelled the analysis"));
            }
            for (index, column) in &mut found {
                column.text(record.get(*index).unwrap_or_default())?;
            }
            more = reader.read_record(&mut record).map_err(invalid)?;
        }
        Ok(found
            .into_iter()
            .map(|(index, column)| (names.get(index).cloned().unwrap_or_default(), column))
            .collect())
    }
}

fn find(names: &[String], requested: Option<&str>) -> Result<usize, ToolError> {
    let listed = || {
        let shown: Vec<String> = names.iter().take(20).map(|name| format!("`{}`", shown(name))).collect();
        format!("The file has {} columns: {}.", names.len(), shown.join(", "))
    };
    let Some(requested) = requested else {
        return if names.len() == 1 {
            Ok(0)
        } else {
            Err(ToolError::missing_param("`column` is missing, but the file has several").suggest(listed()))
        };
    };
    let by_name = names.iter().position(|name| name == requested.trim());
    let by_number =
        || requested.trim().parse::<usize>().ok().filter(|number| (1..=names.len()).contains(number));
    by_name.or_else(|| by_number().map(|number| number - 1)).ok_or_else(|| {
        let near = did_you_mean(requested, names.iter().map(String::as_str)).unwrap_or_default();
        ToolError::invalid_input(format!("unknown column `{}`", shown(requested)))
            .suggest(format!("{near} {}", listed()).trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, requested: Option<&str>) -> Result<(String, Column), ToolError> {
        let table = Table { text, delimiter: None, has_header: true };
        table.columns(&[("/column", requested)], &|| false).map(|mut columns| columns.remove(0))
    }

    #[test]
    fn the_delimiter_is_detected_outside_of_quotes() {
        for text in ["a,b\n1,2\n", "a;b\n1;2\n", "a\tb\n1\t2\n", "a|b\n1|2\n", "\"a;;;;\",b\n1,2\n"] {
            assert_eq!(read(text, Some("b")).unwrap().1.values, [2.0], "{text}");
        }
    }

    #[test]
    fn non_numeric_values_are_counted_and_shown() {
        let (name, column) = read("x\n1\n\"\"\nNA\nabc\ninf\n1e999\n 2.5 \n1_0\n0x10\n", None).unwrap();
        assert_eq!((name.as_str(), column.numbers()), ("x", vec![1.0, 2.5]));
        assert_eq!((column.missing, column.non_numeric), (2, 5));
        let shown: Vec<(u64, &str)> =
            column.examples.iter().map(|example| (example.position, example.value.as_str())).collect();
        assert_eq!(shown, [(4, "abc"), (5, "inf"), (6, "1e999"), (8, "1_0"), (9, "0x10")]);
    }

    #[test]
    fn a_cancelled_call_stops_reading() {
        let text = format!("x\n{}", "1\n".repeat(5000));
        let table = Table { text: &text, delimiter: None, has_header: true };
        let error = table.columns(&[("/column", None)], &|| true).unwrap_err();
        assert_eq!(error.code(), toolpost::Code::Cancelled);
    }
}
