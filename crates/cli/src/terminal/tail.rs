//! The last lines of a terminal, which change in place.

use anstream::adapter::strip_str;

use super::markdown;

/// The drawn lines that may still change. Each fits into the width that the terminal had.
#[derive(Default)]
pub(crate) struct Tail {
    drawn: Vec<String>,
}

impl Tail {
    /// Forgets the drawn lines: they stay.
    pub(super) fn leave(&mut self) {
        self.drawn.clear();
    }

    /// The rows to erase, and the text that writes finished lines above the changing ones, on a terminal of so many
    /// columns and rows.
    pub(crate) fn redraw(
        &mut self,
        mut finished: Vec<String>,
        changing: Vec<String>,
        (columns, rows): (usize, usize),
    ) -> (usize, String) {
        let done = finished.len();
        finished.extend(changing);
        let lines = finished;
        // A narrower window wraps the drawn lines.
        let heights: Vec<usize> = self.drawn.iter().map(|line| height(line, columns)).collect();
        // Lines above the screen are out of reach.
        let mut left = rows.saturating_sub(1);
        let in_reach = heights.iter().rev().take_while(|height| {
            let fits = **height <= left;
            left = left.saturating_sub(**height);
            fits
        });
        let out_of_reach = heights.len() - in_reach.count();
        let same =
            self.drawn.iter().zip(&lines).take_while(|(old, new)| old == new).count().max(out_of_reach);
        let erased = heights.iter().skip(same).sum();
        let mut text = String::new();
        for line in lines.get(same..).unwrap_or_default() {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.into_iter().skip(done).collect();
        (erased, text)
    }
}

/// The rows that a line takes.
fn height(line: &str, columns: usize) -> usize {
    markdown::columns(&strip_str(line).to_string()).div_ceil(columns.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_changed_lines_are_written_again() {
        let mut tail = Tail::default();
        let size = (20, 10);
        for (finished, changing, erased, text) in [
            (&[][..], &["a", "b"][..], 0, "a\nb\n"),
            (&[], &["a", "b"], 0, ""),
            (&[], &["a", "c"], 1, "c\n"),
            (&["done"], &["a", "c"], 2, "done\na\nc\n"),
            (&[], &[], 2, ""),
            (&[], &[], 0, ""),
        ] {
            assert_eq!(tail.redraw(lines(finished), lines(changing), size), (erased, text.to_owned()));
        }
    }

    #[test]
    fn lines_that_a_narrower_window_wraps_are_erased_whole() {
        let mut tail = Tail::default();
        tail.redraw(Vec::new(), lines(&["\x1b[1m0123456789\x1b[0m", "0123"]), (20, 10));
        assert_eq!(tail.redraw(Vec::new(), Vec::new(), (4, 10)), (4, String::new()));
        // What has left the screen stays.
        tail.redraw(Vec::new(), lines(&["0123456789", "0123"]), (20, 10));
        assert_eq!(tail.redraw(Vec::new(), Vec::new(), (4, 4)), (1, String::new()));
    }
}
