//! Base64 and percent-encoding, for secrets in headers.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let number = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = number(0) << 16 | number(1) << 8 | number(2);
        for index in 0..4 {
            let letter = LETTERS.get((bits >> (18 - 6 * index)) as usize & 63).copied().unwrap_or(b'=');
            text.push(if index <= part.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Decodes standard base64 with padding.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - letters.len() > 2 {
        return None;
    }
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for letter in letters.bytes() {
        let value = LETTERS.iter().position(|own| *own == letter)? as u32;
        bits = bits << 6 | value;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

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
    fn base64_matches_the_standard() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("~~~???>", "fn5+Pz8/Pg=="),
        ] {
            assert_eq!(to_base64(plain.as_bytes()), encoded);
            assert_eq!(from_base64(encoded).unwrap(), plain.as_bytes());
        }
        for wrong in ["Zg", "Zg=", "Z===", "Zm9v!A==", "====", "Zg==Zg=="] {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
        assert_eq!(percent("a b/ü"), "a%20b%2F%C3%BC");
    }
}
