//! Percent-encoding, for secrets in headers.

/// Percent-encodes everything except letters, digits and `-._~`.
pub(super) fn percent(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_bytes_are_percent_encoded() {
        assert_eq!(percent("a b/ü"), "a%20b%2F%C3%BC");
    }
}
