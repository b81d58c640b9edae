//! Errors of a description, with their place.

use std::fmt;
use std::ops::Range;

/// What is wrong with a description, and where.
///
/// ```text
/// tools.toml:12: tool.args[2]: expected the name of a parameter, found `patern`; did you mean `pattern`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// Where the text comes from, as the caller named it.
    pub origin: String,
    /// The line, from 1.
    pub line: usize,
    /// The key or item at fault, such as `tool.args[2]`; empty for the file as a whole.
    pub key: String,
    /// What was expected and what was found.
    pub message: String,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.origin, self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for DescriptionError {}

/// The text that is read, to turn an offset into a line.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) origin: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// An error at a place of the text.
    pub(super) fn error(
        &self,
        span: &Range<usize>,
        key: &str,
        message: impl Into<String>,
    ) -> DescriptionError {
        let before = self.text.as_bytes().iter().take(span.start);
        DescriptionError {
            origin: self.origin.to_owned(),
            line: before.filter(|byte| **byte == b'\n').count() + 1,
            key: key.to_owned(),
            message: message.into(),
        }
    }
}
