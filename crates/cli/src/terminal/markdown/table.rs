//! Renders tables: in columns if they fit, else a line per cell.

use anstyle::Style;

use super::wrap::{Piece, columns, wrap};
use crate::style::{FAINT, STRONG, paint};

/// The rows of a table; the first is its head.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Vec<Cell>>,
}

struct Cell {
    text: String,
    columns: usize,
}

impl Table {
    pub(super) fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(super) fn cell(&mut self, mut pieces: Vec<Piece>) {
        let is_head = self.rows.len() == 1;
        for piece in &mut pieces {
            piece.text = piece.text.replace(['\n', '\t'], " ");
            if is_head {
                piece.style = piece.style.bold();
            }
        }
        let mut text = String::new();
        for piece in &pieces {
            text.push_str(&paint(piece.style, &piece.text));
        }
        let columns = pieces.iter().map(|piece| columns(&piece.text)).sum();
        if let Some(row) = self.rows.last_mut() {
            row.push(Cell { text, columns });
        }
    }

    pub(super) fn lines(&self, room: usize) -> Vec<String> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..count)
            .map(|at| self.rows.iter().filter_map(|row| Some(row.get(at)?.columns)).max().unwrap_or(0))
            .collect();
        if widths.iter().sum::<usize>() + 2 * count.saturating_sub(1) > room {
            return self.as_list(room);
        }
        let mut lines = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line.push_str(&cell.text);
                if at + 1 < count {
                    line.push_str(&" ".repeat(width.saturating_sub(cell.columns) + 2));
                }
            }
            lines.push(line.trim_end().to_owned());
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                lines.push(paint(FAINT, rules.join("  ")));
            }
        }
        lines
    }

    /// A line per cell, row by row.
    fn as_list(&self, room: usize) -> Vec<String> {
        let Some((head, rows)) = self.rows.split_first() else { return Vec::new() };
        let mut lines = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            if number > 0 {
                lines.push(String::new());
            }
            for (name, cell) in head.iter().zip(row) {
                let name = anstream::adapter::strip_str(&name.text).to_string();
                let text = anstream::adapter::strip_str(&cell.text).to_string();
                let pieces = [
                    Piece { text: format!("{name}:"), style: STRONG },
                    Piece { text: format!(" {text}"), style: Style::new() },
                ];
                lines.extend(wrap(&pieces, room));
            }
        }
        lines
    }
}
