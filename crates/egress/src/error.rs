//! Errors of allowlists and of the proxy's start.

/// An allowlist, a limit or a secret is invalid, or the proxy did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit is invalid.
    #[error("limit `{name}` is {value}, expected {expected}")]
    InvalidLimit {
        /// The limit.
        name: &'static str,
        /// The value.
        value: String,
        /// The expected range.
        expected: String,
    },
    /// A host pattern, a variable name or a header value is not allowed.
    #[error("{what} `{name}` is not allowed: {reason}")]
    InvalidName {
        /// The kind of name.
        what: &'static str,
        /// The name, truncated and escaped.
        name: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// The proxy did not start.
    #[error("cannot start the egress proxy: {0}")]
    Start(#[source] std::io::Error),
}

/// Escapes control characters and truncates to 80 characters, so that an untrusted name cannot fill an error.
pub fn shorten(text: &str) -> String {
    const MAX_CHARACTERS: usize = 80;
    let mut short: String = text.chars().take(MAX_CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARACTERS).is_some() {
        short.push('…');
    }
    short
}
