//! Errors of a description, with their location.

use std::fmt;
use std::ops::Range;

/// An error in a description, with its location.
///
/// ```text
/// tools.toml:12: tool.args[2]: expected the name of a parameter, found `patern`; did you mean `pattern`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// The origin of the text, as the caller named it.
    pub origin: String,
    /// The line, from 1.
    pub line: usize,
    /// The key or item, such as `tool.args[2]`; empty for the whole file.
    pub key: String,
    /// The expectation and the value found.
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

/// A text, to convert an offset into a line.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) origin: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// An error at a span of the text.
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
