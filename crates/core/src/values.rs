//! How much is in a JSON text, before it is read.

/// Whether a text, read as JSON, could have more values than this: about one for each mark outside of strings. A text of
/// 32 MiB can become gigabytes of values; this finds out without reading it.
pub fn has_more_values_than(text: &[u8], most: usize) -> bool {
    // Each value takes a byte at least, and most texts are too short for so many.
    if text.len() <= most {
        return false;
    }
    let (mut marks, mut in_text, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => marks += 1,
            _ => {}
        }
    }
    // The outermost value has no mark before it.
    marks >= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_outside_of_strings_count() {
        assert!(has_more_values_than(b"[1,2,3]", 3));
        assert!(!has_more_values_than(b"[1,2,3]", 4));
        assert!(!has_more_values_than(br#"["a,b,\",c,d,e"]"#, 3));
        assert!(!has_more_values_than(b"[[[[", 4));
    }
}
