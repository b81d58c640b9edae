//! Comma-separated values (RFC 4180).

/// Parses rows. A quoted field may contain commas, line ends and doubled quotes; misplaced quotes are literal.
pub(super) fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row: Vec<String> = Vec::new();
    let mut field = String::new();
    let mut in_quotes = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if in_quotes && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' if in_quotes => in_quotes = false,
            '"' if field.is_empty() => in_quotes = true,
            ',' if !in_quotes => row.push(std::mem::take(&mut field)),
            '\r' if !in_quotes && letters.peek() == Some(&'\n') => {}
            '\n' if !in_quotes => {
                row.push(std::mem::take(&mut field));
                let full = std::mem::take(&mut row);
                // An empty line is not a row.
                if full != [""] {
                    rows.push(full);
                }
            }
            other => field.push(other),
        }
    }
    if !field.is_empty() || !row.is_empty() {
        row.push(field);
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_parse_as_spreadsheets_write_them() {
        for (text, expected) in [
            ("", vec![]),
            ("a,b\n1,2\n", vec![vec!["a", "b"], vec!["1", "2"]]),
            ("a,b\r\n\r\n1,", vec![vec!["a", "b"], vec!["1", ""]]),
            ("\"x, y\",\"say \"\"hi\"\"\",\"two\nlines\"\n", vec![vec!["x, y", "say \"hi\"", "two\nlines"]]),
            ("5\" pipe,\"open", vec![vec!["5\" pipe", "open"]]),
            (",\n", vec![vec!["", ""]]),
        ] {
            assert_eq!(rows(text), expected, "{text:?}");
        }
    }
}
