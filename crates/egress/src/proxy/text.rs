//! The encodings in which a server may return a secret.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The minimum length of an encoded secret within other base64. A shorter one could occur by chance.
const MIN_BASE64: usize = 8;

/// A secret in each encoding that is recognized: verbatim, in JSON text, percent-encoded, in base64 of both
/// alphabets at each offset, and in hexadecimal.
pub(super) fn forms(secret: &str) -> Vec<String> {
    // A header value loses its surrounding space.
    let mut forms = vec![secret.to_owned(), secret.trim().to_owned()];
    let quoted = secret.replace('\\', r"\\").replace('"', "\\\"");
    forms.extend([quoted.replace('/', r"\/"), quoted.replace('\\', r"\\").replace('"', "\\\""), quoted]);
    for hex in [hex as fn(u8, &mut String), hex_upper] {
        forms.push(percent(secret, hex));
        let mut digits = String::new();
        secret.bytes().for_each(|byte| hex(byte, &mut digits));
        forms.push(digits);
    }
    for offset in 0..3usize {
        let bytes = [&vec![0; offset][..], secret.as_bytes()].concat();
        // Without the letters that share bits with a neighbor.
        let (first, last) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
        for encoded in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend(
                encoded.get(first..last).filter(|inner| inner.len() >= MIN_BASE64).map(str::to_owned),
            );
        }
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Percent-encodes everything except letters, digits and `-._~`.
fn percent(text: &str, hex: fn(u8, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            hex(byte, &mut out);
        }
    }
    out
}

fn hex(byte: u8, out: &mut String) {
    out.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(digit.into(), 16)));
}

fn hex_upper(byte: u8, out: &mut String) {
    let mut digits = String::new();
    hex(byte, &mut digits);
    out.push_str(&digits.to_ascii_uppercase());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_every_encoding_once() {
        let found = forms("a/b\"c\\+~secret");
        for expected in [
            "a/b\"c\\+~secret",
            r#"a/b\"c\\+~secret"#,
            r#"a\/b\"c\\+~secret"#,
            r#"a/b\\\"c\\\\+~secret"#,
            "a%2Fb%22c%5C%2B~secret",
            "a%2fb%22c%5c%2b~secret",
            "612f6222635c2b7e736563726574",
            "612F6222635C2B7E736563726574",
            "YS9iImNcK35zZWNyZX",
        ] {
            assert!(found.iter().any(|form| form == expected), "{expected}\n{found:?}");
        }
        assert!(forms(" padded-secret ").iter().any(|form| form == "padded-secret"));
        // Plain letters have the same form in most encodings.
        assert_eq!(forms("plainletters").len(), 1 + 2 + 3);
    }
}
