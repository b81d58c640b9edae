//! Bodies as they were on the wire: compressed, as most clients ask for them.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::{decompress_to_vec_with_limit, decompress_to_vec_zlib_with_limit};

/// The most bytes that a body is unpacked to.
const LARGEST: usize = 64 * 1024 * 1024;

/// The first bytes of `gzip`.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// The bytes that were packed with `gzip` or, as servers understand `deflate`, with zlib; `None` if these were not.
///
/// # Errors
/// When those of `gzip` are cut, broken, or more than 64 MiB.
pub fn unpacked(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if is_zlib(bytes) {
        // Text may begin so by chance.
        return Ok(decompress_to_vec_zlib_with_limit(bytes, LARGEST).ok());
    }
    if !bytes.starts_with(&GZIP) {
        return Ok(None);
    }
    let data =
        behind_header(bytes).ok_or("a body of `gzip` cannot be unpacked: it ends within its header")?;
    let unpacked = decompress_to_vec_with_limit(data, LARGEST);
    unpacked
        .map(Some)
        .map_err(|error| format!("a body of `gzip` cannot be unpacked to at most 64 MiB: {error}"))
}

/// Whether two bytes are the header of zlib: its method, and a sum that is right once in 31 times by chance.
fn is_zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [method, flags, ..] if method & 0x8f == 8
        && (u16::from(*method) << 8 | u16::from(*flags)).is_multiple_of(31))
}

/// The bytes behind the header of `gzip`, which may have a name and more.
fn behind_header(bytes: &[u8]) -> Option<&[u8]> {
    let flags = *bytes.get(3)?;
    let mut rest = bytes.get(10..)?;
    if flags & 4 != 0 {
        let (length, extra) = rest.split_first_chunk::<2>()?;
        rest = extra.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [8, 16] {
        if flags & text != 0 {
            let end = rest.iter().position(|byte| *byte == 0)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & 2 != 0 { rest.get(2..) } else { Some(rest) }
}

/// The bytes packed with `gzip`, without the sums at its end, which [`unpacked`] does not look at.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GZIP.to_vec();
    packed.extend([0; 6]);
    packed.push(255);
    packed.extend(compress_to_vec(bytes, 6));
    packed
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::*;

    #[test]
    fn what_was_packed_is_unpacked() {
        let text = "data: {\"a\": 1}\n\n".repeat(1_000);
        let text = text.as_bytes();
        assert!(gzip(text).len() < 1_000);
        assert_eq!(unpacked(&gzip(text)), Ok(Some(text.to_vec())));
        assert_eq!(unpacked(&compress_to_vec_zlib(text, 6)), Ok(Some(text.to_vec())));
        // With everything that a header may have: more fields, a name, a comment, a sum.
        let mut whole = vec![0x1f, 0x8b, 8, 4 | 8 | 16 | 2, 0, 0, 0, 0, 0, 255];
        whole.extend(b"\x03\0abcname\0comment\0\x12\x34");
        whole.extend(compress_to_vec(text, 1));
        whole.extend([0; 8]);
        assert_eq!(unpacked(&whole), Ok(Some(text.to_vec())));
        for plain in ["", "x", "{\"a\": 1}", "data: 1\n\n"] {
            assert_eq!(unpacked(plain.as_bytes()), Ok(None));
        }
    }

    #[test]
    fn what_is_broken_or_too_large_is_an_error() {
        let bomb = gzip(&vec![0; LARGEST + 1]);
        assert!(bomb.len() < 200_000);
        assert!(unpacked(&bomb).unwrap_err().contains("64 MiB"));
        let packed = gzip(&b"some text that is long enough".repeat(9));
        for cut in [3, 9, 12, packed.len() - 2] {
            assert!(unpacked(&packed[..cut]).is_err(), "{cut}");
        }
        assert!(unpacked(b"\x1f\x8b\x08\x08\0\0\0\0\0\xffa name without an end").is_err());
    }
}
