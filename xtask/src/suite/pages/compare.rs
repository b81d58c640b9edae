//! Output as a page shows it: `…` stands for any text, and a line `…` for any lines.

/// The placeholder of any text in a line.
const ANY: char = '…';

/// Whether the printed lines are the expected ones.
pub fn fits(printed: &[&str], expected: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=printed.len()).any(|from| fits(&printed[from..], rest))
        }
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, more)| line_fits(first, line) && fits(more, rest))
        }
    }
}

/// Whether a printed line is the expected one. Space at the end does not count.
fn line_fits(printed: &str, expected: &str) -> bool {
    let (printed, expected) = (printed.trim_end(), expected.trim_end());
    let Some((first, rest)) = expected.split_once(ANY) else { return printed == expected };
    let Some(mut left) = printed.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once(ANY).unwrap_or(("", rest));
    for piece in middle.split(ANY) {
        match left.split_once(piece) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_stands_for_any_text() {
        for (printed, expected, is_fit) in [
            ("a b c d", "a … d", true),
            ("a b c d", "a…", true),
            ("a b c d", "…d", true),
            ("a b c d", "a … c … d", false),
            ("a b c  d", "a … c … d", true),
            ("a b", "a b c", false),
            ("a b", "a", false),
            ("a", "a…a", false),
        ] {
            assert_eq!(fits(&[printed], &[expected]), is_fit, "{printed} {expected}");
        }
    }

    #[test]
    fn a_line_of_it_stands_for_any_lines() {
        for (printed, expected, is_fit) in [
            (&["a", "b", "c"][..], &["a", "…", "c"][..], true),
            (&["a", "c"], &["a", "…", "c"], true),
            (&["a", "c", "b", "c"], &["…", "c"], true),
            (&["a", "b"], &["a", "…", "c"], false),
            (&["a", "b"], &["a"], false),
            (&["a"], &["a", "b"], false),
            (&[], &["…"], true),
        ] {
            assert_eq!(fits(printed, expected), is_fit, "{printed:?} {expected:?}");
        }
    }
}
