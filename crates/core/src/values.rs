//! Checks of values before parsing and writing.

/// Whether a JSON text may contain more than `max` values, by a count of its commas and opening brackets.
///
/// A text of 32 MiB can become gigabytes of values; this check needs no parsing.
pub fn has_more_values_than(text: &[u8], max: usize) -> bool {
    // Each value takes at least one byte, and most texts are short.
    if text.len() <= max {
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
    marks >= max
}

/// Whether a field has its default, so that JSON omits it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
