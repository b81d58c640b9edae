//! Characters at the end of truncated bytes.

/// The bytes without an incomplete UTF-8 character at their end, where a limit or a piece of a stream ends.
pub fn without_begun_character(bytes: &[u8]) -> &[u8] {
    /// A character has at most four bytes.
    const MAX_BEGUN: usize = 3;
    let from = bytes.len().saturating_sub(MAX_BEGUN);
    let begun = (from..bytes.len()).rev().find(|at| {
        let end = bytes.get(*at..).unwrap_or_default();
        std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
    });
    begun.and_then(|at| bytes.get(..at)).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_incomplete_last_character_is_dropped() {
        for character in ["é", "€", "😀"] {
            let text = format!("a{character}");
            let bytes = text.as_bytes();
            for end in 1..=bytes.len() {
                let expected: &[u8] = if end == bytes.len() { bytes } else { b"a" };
                assert_eq!(without_begun_character(&bytes[..end]), expected, "{character} {end}");
            }
        }
        for whole in [&b""[..], b"abc", b"a\xff", b"\x80\x80\x80", b"a\xe2\x82\xac\xac"] {
            assert_eq!(without_begun_character(whole), whole);
        }
    }
}
