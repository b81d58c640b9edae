//! Text encodings by name.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{EncoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use toolpost::{ToolError, did_you_mean};

use super::shown;

/// The suggested names. Every label of the Encoding Standard is accepted.
const NAMES: [&str; 20] = [
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16le",
    "utf-16be",
    "utf-16le-sig",
    "utf-16be-sig",
    "ascii",
    "latin-1",
    "windows-1252",
    "windows-1250",
    "windows-1251",
    "iso-8859-2",
    "iso-8859-15",
    "shift_jis",
    "euc-jp",
    "euc-kr",
    "gbk",
    "gb18030",
    "big5",
];

/// An encoding, and whether the text has a byte order mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextEncoding {
    encoding: &'static Encoding,
    mark: bool,
    /// Whether to restrict `windows-1252` to ASCII.
    ascii: bool,
}

/// Decoded text.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) text: String,
    /// The encoding by which `write_file` restores the same bytes.
    pub(super) encoding: String,
    /// Whether some bytes are invalid in the encoding, and U+FFFD in the text.
    pub(super) lossy: bool,
}

impl TextEncoding {
    /// Finds an encoding by its name.
    pub(crate) fn named(name: &str) -> Result<Self, ToolError> {
        let plain = |encoding| Self { encoding, mark: false, ascii: false };
        let lower = name.trim().to_ascii_lowercase();
        let found = match lower.as_str() {
            "utf-8-sig" | "utf-8-bom" | "utf8-sig" => Some(Self { mark: true, ..plain(UTF_8) }),
            "utf-16" | "utf16" | "utf-16le-sig" => Some(Self { mark: true, ..plain(UTF_16LE) }),
            "utf-16be-sig" => Some(Self { mark: true, ..plain(UTF_16BE) }),
            "ascii" | "us-ascii" => Some(Self { ascii: true, ..plain(encoding_rs::WINDOWS_1252) }),
            "latin-1" => Some(plain(encoding_rs::WINDOWS_1252)),
            "cp932" => Some(plain(encoding_rs::SHIFT_JIS)),
            label => Encoding::for_label_no_replacement(label.as_bytes())
                .filter(|encoding| *encoding != encoding_rs::X_USER_DEFINED)
                .map(plain),
        };
        found.ok_or_else(|| {
            ToolError::invalid_input(format!(
                "unknown encoding `{}`; expected, for example, utf-8, utf-16, windows-1252 or shift_jis",
                shown(name)
            ))
            .with("pointer", "/encoding")
            .suggest_maybe(did_you_mean(&lower, NAMES))
        })
    }

    fn name(self) -> String {
        let name = if self.ascii { "ascii".into() } else { self.encoding.name().to_ascii_lowercase() };
        if self.mark { format!("{name}-sig") } else { name }
    }

    /// Encodes text.
    pub(crate) fn encode(self, text: &str) -> Result<Vec<u8>, ToolError> {
        if self.encoding == UTF_8 {
            let mark: &[u8] = if self.mark { b"\xef\xbb\xbf" } else { b"" };
            return Ok([mark, text.as_bytes()].concat());
        }
        if self.encoding == UTF_16LE || self.encoding == UTF_16BE {
            let bytes = |unit: u16| {
                if self.encoding == UTF_16LE { unit.to_le_bytes() } else { unit.to_be_bytes() }
            };
            let mark = self.mark.then_some(0xfeff);
            return Ok(mark.into_iter().chain(text.encode_utf16()).flat_map(bytes).collect());
        }
        if self.ascii
            && let Some(letter) = text.chars().find(|letter| !letter.is_ascii())
        {
            return Err(self.unmappable(text, letter));
        }
        let mut encoder = self.encoding.new_encoder();
        let room = encoder.max_buffer_length_from_utf8_without_replacement(text.len());
        let mut bytes = Vec::with_capacity(room.unwrap_or(text.len()));
        match encoder.encode_from_utf8_to_vec_without_replacement(text, &mut bytes, true).0 {
            EncoderResult::InputEmpty => Ok(bytes),
            EncoderResult::Unmappable(letter) => Err(self.unmappable(text, letter)),
            EncoderResult::OutputFull => {
                Err(ToolError::internal(format!("no room for the text in {}", self.name())))
            }
        }
    }

    fn unmappable(self, text: &str, letter: char) -> ToolError {
        let before = text.split(letter).next().unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let message = format!(
            "`{}` in line {line} of the content does not exist in {}",
            letter.escape_debug(),
            self.name()
        );
        ToolError::invalid_input(message)
            .with("pointer", "/content")
            .suggest("Use the encoding `utf-8`, or remove the character.")
    }

    /// Decodes bytes. A byte order mark of the same encoding is removed and noted.
    fn decode(mut self, bytes: &[u8]) -> Decoded {
        let rest = match Encoding::for_bom(bytes) {
            Some((encoding, length)) if encoding == self.encoding => {
                self.mark = true;
                bytes.get(length..).unwrap_or_default()
            }
            // For `utf-16` the mark decides.
            Some((encoding, length)) if self.mark && encoding == UTF_16BE => {
                self.encoding = encoding;
                bytes.get(length..).unwrap_or_default()
            }
            _ => {
                self.mark = false;
                bytes
            }
        };
        let (text, lossy) = if self.ascii {
            let text: String = rest
                .iter()
                .map(|byte| if byte.is_ascii() { char::from(*byte) } else { char::REPLACEMENT_CHARACTER })
                .collect();
            (text, !rest.is_ascii())
        } else {
            let (text, lossy) = self.encoding.decode_without_bom_handling(rest);
            (text.into_owned(), lossy)
        };
        Decoded { text, encoding: self.name(), lossy }
    }
}

/// Decodes bytes; detects a byte order mark, then UTF-8, then guesses the encoding.
///
/// # Errors
/// The kind of a binary file.
pub(super) fn decode(bytes: &[u8], encoding: Option<TextEncoding>) -> Result<Decoded, String> {
    if let Some(encoding) = encoding {
        return Ok(encoding.decode(bytes));
    }
    let plain = |encoding| TextEncoding { encoding, mark: false, ascii: false };
    if bytes.starts_with(&[0xff, 0xfe, 0, 0]) || bytes.starts_with(&[0, 0, 0xfe, 0xff]) {
        return Err("UTF-32 text is not supported".into());
    }
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return Ok(plain(encoding).decode(bytes));
    }
    if let Some(kind) = binary_kind(bytes) {
        return Err(kind);
    }
    if std::str::from_utf8(bytes).is_ok() {
        return Ok(plain(UTF_8).decode(bytes));
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(bytes, true);
    Ok(plain(detector.guess(None, Utf8Detection::Deny)).decode(bytes))
}

/// Signatures of binary files.
const SIGNATURES: [(&[u8], &str); 14] = [
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"RIFF", "a RIFF file (WebP, WAV or AVI)"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (also DOCX, XLSX, JAR)"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"\x7fELF", "an ELF program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"OggS", "an Ogg file"),
];

/// The kind of a binary file.
fn binary_kind(bytes: &[u8]) -> Option<String> {
    let is_control =
        |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b | 0x08);
    let nul = bytes.iter().position(|byte| *byte == 0);
    let controls = bytes.iter().filter(is_control).count();
    if nul.is_none() && controls * 20 <= bytes.len() && !bytes.starts_with(b"%PDF-") {
        return None;
    }
    let known = SIGNATURES.iter().find(|(signature, _)| bytes.starts_with(signature));
    Some(match (known, nul) {
        (Some((_, kind)), _) => format!("it is {kind}"),
        (None, Some(place)) => format!("it has a NUL byte at offset {place}"),
        (None, None) => format!("{controls} of its {} bytes are control characters", bytes.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_text_encodes_to_the_same_bytes() {
        let text = "Grüße, 日本";
        for name in ["utf-8", "utf-8-sig", "utf-16", "utf-16le", "utf-16be", "utf-16be-sig", "gb18030"] {
            let encoding = TextEncoding::named(name).unwrap();
            let bytes = encoding.encode(text).unwrap();
            let decoded = decode(&bytes, Some(encoding)).unwrap();
            assert_eq!((decoded.text.as_str(), decoded.lossy), (text, false), "{name}");
            let again = TextEncoding::named(&decoded.encoding).unwrap();
            assert_eq!(again.encode(&decoded.text).unwrap(), bytes, "{name} as {}", decoded.encoding);
        }
    }

    #[test]
    fn binary_files_are_recognized() {
        for (bytes, expected) in [
            (&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "PNG"),
            (b"%PDF-1.7 plain", "PDF"),
            (b"ab\0cd", "offset 2"),
            (b"\x01\x02\x03\x04", "control"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
        ] {
            let reason = decode(bytes, None).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn the_suggested_names_exist() {
        for name in NAMES {
            TextEncoding::named(name).unwrap();
        }
        let error = TextEncoding::named("utf-9").unwrap_err();
        assert!(error.suggestion().unwrap().contains("`utf-8`"), "{error}");
        assert!(TextEncoding::named("x-user-defined").is_err());
    }
}
