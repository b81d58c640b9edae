//! Parts of an output that a limit truncated.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ToolError, pointers_overlap};

/// A part of an output that a limit truncated. A person or a model reads a mark in its place; where the output is used
/// as data, it is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// The JSON pointer of the part in the structured value, such as `/stdout`; empty for the whole output.
    pub pointer: String,
    /// The whole size, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The size of what the output has of it.
    pub returned: u64,
    /// The unit of both sizes.
    pub unit: TruncationUnit,
}

/// The unit of a [`Truncation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TruncationUnit {
    /// Bytes.
    Bytes,
    /// Items of a list.
    Items,
}

impl Truncation {
    /// A text or a value of which the output has so many bytes.
    pub fn bytes(pointer: impl Into<String>, size: Option<u64>, returned: u64) -> Self {
        Self { pointer: pointer.into(), size, returned, unit: TruncationUnit::Bytes }
    }

    /// A list of which the output has so many items.
    pub fn items(pointer: impl Into<String>, returned: u64) -> Self {
        Self { pointer: pointer.into(), size: None, returned, unit: TruncationUnit::Items }
    }

    /// Whether a value at a JSON pointer lacks something: it is the part, within it, or around it.
    pub fn affects(&self, pointer: &str) -> bool {
        pointers_overlap(&self.pointer, pointer)
    }

    /// The part of an object or a list that has the value under a name.
    #[must_use]
    pub fn beneath(mut self, pointer: &str) -> Self {
        self.pointer.insert_str(0, pointer);
        self
    }

    /// The error where the output is used as data: `LIMIT`.
    pub fn to_error(&self) -> ToolError {
        ToolError::limit(self.to_string())
            .with("truncated", self.pointer.as_str())
            .with("returned", self.returned)
            .suggest("Write large data to a file and hand on its path, or request less at once.")
    }
}

impl fmt::Display for Truncation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.strip_prefix('/') {
            Some(name) => write!(f, "`{}`", name.replace('/', "."))?,
            None => f.write_str("the output")?,
        }
        let unit = match self.unit {
            TruncationUnit::Bytes => "bytes",
            TruncationUnit::Items => "items",
        };
        let returned = grouped(self.returned);
        match self.size {
            Some(size) => {
                write!(f, " is truncated: it has {} {unit}, and {returned} were returned", grouped(size))
            }
            None => write!(f, " is truncated after {returned} {unit}"),
        }
    }
}

/// A number with a separator from 10,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    if number < 10_000 {
        return digits;
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn the_error_names_the_part_its_size_and_the_limit() {
        for (truncation, expected) in [
            (
                Truncation::bytes("/stdout", Some(3_000_001), 1 << 20),
                "`stdout` is truncated: it has 3,000,001 bytes, and 1,048,576 were returned",
            ),
            (Truncation::bytes("", None, 9_999), "the output is truncated after 9999 bytes"),
            (Truncation::items("/items", 1000), "`items` is truncated after 1000 items"),
            (Truncation::items("/items", 10).beneath("/list"), "`list.items` is truncated after 10 items"),
        ] {
            let error = truncation.to_error();
            assert_eq!((error.code(), error.message()), (Code::Limit, expected));
        }
    }

    #[test]
    fn a_value_around_or_within_a_truncated_part_is_affected() {
        let stdout = Truncation::bytes("/stdout", None, 1);
        for (pointer, expected) in [
            ("", true),
            ("/stdout", true),
            ("/stdout/0", true),
            ("/stdout_size", false),
            ("/exit_code", false),
        ] {
            assert_eq!(stdout.affects(pointer), expected, "{pointer}");
        }
        assert!(Truncation::bytes("", None, 1).affects("/exit_code"));
    }
}
