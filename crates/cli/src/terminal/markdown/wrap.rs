//! Wraps words.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::style::paint;

/// A text with a style.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) style: Style,
}

/// The width of a text in columns.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

/// Splits a text into pieces that fit.
pub(super) fn cut(text: &str, width: usize) -> Vec<&str> {
    let (mut lines, mut begin, mut taken) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        let columns = character.width().unwrap_or(0);
        if taken + columns > width && at > begin {
            lines.extend(text.get(begin..at));
            (begin, taken) = (at, 0);
        }
        taken += columns;
    }
    lines.extend(text.get(begin..));
    lines
}

/// Wraps pieces at spaces, and within words that are too wide. A line feed ends a line.
pub(super) fn wrap(pieces: &[Piece], width: usize) -> Vec<String> {
    let mut page =
        Lines { width: width.max(1), done: Vec::new(), line: String::new(), taken: 0, space: None };
    // A word may have several pieces, such as `**a**b`.
    let mut word: Vec<(&str, Style)> = Vec::new();
    for piece in pieces {
        let mut rest = piece.text.as_str();
        while let Some(first) = rest.chars().next() {
            let end = if first.is_whitespace() {
                page.word(&mut word);
                if first == '\n' {
                    page.end_line();
                } else {
                    page.space = Some(piece.style);
                }
                first.len_utf8()
            } else {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                word.push((rest.get(..end).unwrap_or_default(), piece.style));
                end
            };
            rest = rest.get(end..).unwrap_or_default();
        }
    }
    page.word(&mut word);
    if page.taken > 0 || page.done.is_empty() {
        page.end_line();
    }
    page.done
}

struct Lines {
    width: usize,
    done: Vec<String>,
    line: String,
    taken: usize,
    /// The style of a space before the next word.
    space: Option<Style>,
}

impl Lines {
    fn end_line(&mut self) {
        self.done.push(std::mem::take(&mut self.line));
        (self.taken, self.space) = (0, None);
    }

    fn word(&mut self, word: &mut Vec<(&str, Style)>) {
        if word.is_empty() {
            return;
        }
        let wide: usize = word.iter().map(|(text, _)| columns(text)).sum();
        let space = self.space.take().filter(|_| self.taken > 0);
        if let Some(style) = space {
            if self.taken + 1 + wide > self.width && wide <= self.width {
                self.end_line();
            } else if self.taken + 1 < self.width {
                self.line.push_str(&paint(style, " "));
                self.taken += 1;
            } else {
                self.end_line();
            }
        }
        for (text, style) in word.drain(..) {
            let mut rest = text;
            while !rest.is_empty() {
                let left = self.width.saturating_sub(self.taken);
                let piece = cut(rest, left.max(1)).first().copied().unwrap_or(rest);
                if columns(piece) > left && self.taken > 0 {
                    self.end_line();
                    continue;
                }
                self.line.push_str(&paint(style, piece));
                self.taken += columns(piece);
                rest = rest.get(piece.len()..).unwrap_or_default();
                if !rest.is_empty() {
                    self.end_line();
                }
            }
        }
    }
}
