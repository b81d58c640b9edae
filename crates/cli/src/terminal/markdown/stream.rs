//! Streamed Markdown: finished blocks never change.

use super::{code_lines, lines, one_word, parser};
use crate::style::{FAINT, paint};

/// The maximum size of a block that is rendered again as it grows; longer ones are finished by lines.
const MAX_BLOCK: usize = 16 << 10;

/// The size up to which a block is rendered again for each line.
const SMALL_BLOCK: usize = 1 << 10;

/// An open code block.
struct Fence {
    mark: char,
    length: usize,
    indent: usize,
}

/// Streamed text, split into finished and pending.
#[derive(Default)]
pub(crate) struct Stream {
    /// The pending text.
    pending: String,
    fence: Option<Fence>,
    /// Whether a finished block precedes the next one.
    has_begun: bool,
    /// Whether the pending text continues a block whose beginning is finished.
    goes_on: bool,
    /// The length of the pending text at the last search for a block's end.
    looked_at: usize,
}

impl Stream {
    /// Adds text and returns newly finished lines, in amortized linear time.
    pub(crate) fn push(&mut self, text: &str, width: usize) -> Vec<String> {
        self.pending.push_str(text);
        let mut finished = Vec::new();
        // Blocks end at line ends.
        if text.contains('\n') || self.fence.is_some() {
            while self.should_render() && self.step(width, &mut finished) {
                self.looked_at = 0;
            }
        }
        if self.fence.is_none() && self.pending.len() > MAX_BLOCK {
            self.freeze(width, &mut finished);
        }
        finished
    }

    /// The lines of the pending text.
    pub(crate) fn open(&self, width: usize) -> Vec<String> {
        let mut open = Vec::new();
        if self.fence.is_some() {
            // The last line of code is incomplete, and may be the end of the block.
            if !self.pending.trim().is_empty() {
                open.extend(code_lines(&self.pending, width));
            }
            return open;
        }
        let block = lines(&self.pending, width);
        if !block.is_empty() {
            self.set_apart(&mut open);
            open.extend(block);
        }
        open
    }

    /// Ends the text and returns the last lines.
    pub(crate) fn finish(&mut self, width: usize) -> Vec<String> {
        let last = self.open(width);
        *self = Self::default();
        last
    }

    /// Whether to search for the end of a block, so that the total time stays linear.
    fn should_render(&self) -> bool {
        self.fence.is_some()
            || self.pending.len() <= SMALL_BLOCK
            || self.pending.len() >= self.looked_at + self.looked_at / 4
    }

    fn set_apart(&self, to: &mut Vec<String>) {
        if self.has_begun && !self.goes_on {
            to.push(String::new());
        }
    }

    /// Finishes a block; true if there may be more.
    fn step(&mut self, width: usize, finished: &mut Vec<String>) -> bool {
        if self.fence.is_some() {
            return self.step_code(width, finished);
        }
        let empty = self.pending.len() - self.pending.trim_start_matches('\n').len();
        self.pending.drain(..empty);
        self.looked_at = self.pending.len();
        // An incomplete line may become a table row: `|`.
        let whole = self.pending.rfind('\n').map_or(0, |at| at + 1);
        let starts = starts(self.pending.get(..whole).unwrap_or_default());
        if let [.., last] = *starts.as_slice()
            && starts.len() > 1
        {
            let done: String = self.pending.drain(..last).collect();
            self.write(&done, width, finished);
            return true;
        }
        self.open_fence(finished)
    }

    /// Finishes complete lines of code; true at the end of the block.
    fn step_code(&mut self, width: usize, finished: &mut Vec<String>) -> bool {
        let Some(fence) = &self.fence else { return false };
        let (mut done, mut closed) = (0, false);
        for line in self.pending.split_inclusive('\n').take_while(|line| line.ends_with('\n')) {
            done += line.len();
            closed = fence.is_closed_by(line);
            if closed {
                break;
            }
            let line = line.trim_end_matches(['\n', '\r']);
            let own = line.len() - line.trim_start_matches(' ').len();
            finished.extend(code_lines(line.get(own.min(fence.indent)..).unwrap_or(line), width));
        }
        self.pending.drain(..done);
        if closed {
            (self.fence, self.goes_on) = (None, false);
        } else if self.pending.len() > MAX_BLOCK {
            // A line without an end must not be wrapped at each drawing.
            finished.extend(code_lines(&std::mem::take(&mut self.pending), width));
        }
        closed
    }

    /// Detects that the only block is code.
    fn open_fence(&mut self, finished: &mut Vec<String>) -> bool {
        let Some(end) = self.pending.find('\n') else { return false };
        let Some((fence, language)) = self.pending.get(..end).and_then(Fence::opened_by) else {
            return false;
        };
        self.set_apart(finished);
        if !language.is_empty() {
            finished.push(paint(FAINT, format!("  {language}")));
        }
        self.pending.drain(..=end);
        (self.fence, self.has_begun, self.goes_on) = (Some(fence), true, false);
        true
    }

    /// Finishes the pending text up to its last complete line, or all of it.
    fn freeze(&mut self, width: usize, finished: &mut Vec<String>) {
        let end = self.pending.rfind('\n').map_or(self.pending.len(), |at| at + 1);
        let done: String = self.pending.drain(..end).collect();
        self.write(&done, width, finished);
        self.goes_on = true;
    }

    fn write(&mut self, done: &str, width: usize, finished: &mut Vec<String>) {
        let block = lines(done, width);
        if !block.is_empty() {
            self.set_apart(finished);
            self.has_begun = true;
            finished.extend(block);
        }
        self.goes_on = false;
    }
}

/// The starts of the outermost blocks.
fn starts(source: &str) -> Vec<usize> {
    let (mut depth, mut starts) = (0_usize, Vec::new());
    for (event, range) in parser(source).into_offset_iter() {
        let begins = match event {
            pulldown_cmark::Event::Start(_) => {
                depth += 1;
                depth == 1
            }
            pulldown_cmark::Event::End(_) => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0,
        };
        if begins {
            starts.push(range.start);
        }
    }
    starts
}

impl Fence {
    fn opened_by(line: &str) -> Option<(Self, String)> {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let mark = text.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let length = text.chars().take_while(|other| *other == mark).count();
        let language = text.get(length..)?.trim();
        let is_fence = indent < 4 && length >= 3 && !(mark == '`' && language.contains('`'));
        is_fence.then(|| (Self { mark, length, indent }, one_word(language)))
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim_end();
        let text = line.trim_start_matches(' ');
        line.len() - text.len() < 4 && text.len() >= self.length && text.chars().all(|mark| mark == self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders a text in pieces of so many characters.
    fn streamed(text: &str, size: usize, width: usize) -> Vec<String> {
        let (mut stream, mut all) = (Stream::default(), Vec::new());
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(size) {
            all.extend(stream.push(&piece.iter().collect::<String>(), width));
        }
        all.extend(stream.finish(width));
        all
    }

    const PAGE: &str = "# Title\n\nSome *words* that\nare wrapped.\n\n- one\n- two\n  - deep\n\n1. a\n2. b\n\n> said\n\n```rust\nfn main() {\n\n    body();\n}\n```\nAfter.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\nThe end: `code` and [link](https://example.org).";

    #[test]
    fn streamed_text_renders_like_the_whole() {
        for width in [20, 40, 80] {
            let whole = lines(PAGE, width);
            for size in [1, 2, 3, 7, 50, 1000] {
                assert_eq!(streamed(PAGE, size, width), whole, "width {width}, pieces of {size}");
            }
        }
    }

    #[test]
    fn finished_blocks_are_returned_at_once() {
        let mut stream = Stream::default();
        assert!(stream.push("First.\n\nSec", 80).is_empty() || stream.open(80) == ["", "Sec"]);
        assert_eq!(stream.push("ond.\n\nThird\n", 80).last().map(String::as_str), Some("Second."));
        // Code comes line by line.
        assert_eq!(stream.push("\n```\n", 80), ["", "Third", ""]);
        assert_eq!(stream.push("let a = 1;\n", 80), ["  let a = 1;"]);
        assert_eq!(stream.push("let b", 80), Vec::<String>::new());
        assert_eq!(stream.open(80), ["  let b"]);
    }

    #[test]
    fn code_in_one_large_piece_is_scanned_once() {
        let mut stream = Stream::default();
        let begun = std::time::Instant::now();
        assert_eq!(stream.push(&format!("```\n{}```\nAfter.\n", "\n".repeat(1 << 20)), 80).len(), 1 << 20);
        assert_eq!(stream.push("\n```\n", 80), ["", "After.", ""]);
        for _ in 0..1_000 {
            stream.push(&"x".repeat(1_000), 80);
            assert!(stream.pending.len() <= MAX_BLOCK + 1_000);
        }
        assert!(begun.elapsed() < std::time::Duration::from_mins(1), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_endless_block_takes_bounded_memory_and_time() {
        for piece in
            ["- an item\n", "word ", "> quoted\n", "```\n", "| a | b |\n|---|---|\n", "\n", "[", "*a", "# "]
        {
            let mut stream = Stream::default();
            let begun = std::time::Instant::now();
            for _ in 0..30_000 {
                stream.push(piece, 80);
                assert!(stream.pending.len() <= MAX_BLOCK + piece.len(), "{piece:?}");
            }
            assert!(begun.elapsed() < std::time::Duration::from_mins(1), "{piece:?}: {:?}", begun.elapsed());
        }
    }
}
