//! Renders Markdown as lines for a terminal.

mod stream;
mod table;
mod wrap;

use anstyle::{Effects, Style};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

pub(crate) use self::stream::Stream;
use self::table::Table;
use self::wrap::{Piece, wrap};
use crate::style::{FAINT, HINT, STRONG, harmless, paint};

/// The maximum depth of indentation of lists and quotes.
const MAX_DEPTH: usize = 8;
/// The minimum width of wrapped text.
const MIN_WIDTH: usize = 16;

/// The supported extensions of Markdown.
fn parser(source: &str) -> Parser<'_> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    Parser::new_ext(source, options)
}

/// Renders Markdown as wrapped lines. Control characters are escaped, also those of entities.
pub(crate) fn lines(source: &str, width: usize) -> Vec<String> {
    let mut page = Page { width: width.max(MIN_WIDTH), ..Page::default() };
    for event in parser(source) {
        page.take(event);
    }
    page.end_of_text();
    page.lines
}

/// An open list.
struct List {
    /// The next number of an ordered list.
    number: Option<u64>,
}

#[derive(Default)]
struct Page {
    width: usize,
    lines: Vec<String>,
    /// Text that is not wrapped yet.
    pieces: Vec<Piece>,
    /// The open styles, outermost first.
    styles: Vec<Style>,
    lists: Vec<List>,
    /// The prefixes of each line: one per open quote and list item.
    margins: Vec<Margin>,
    table: Option<Table>,
    /// The URLs of open links, and the text before them.
    links: Vec<(String, usize)>,
    /// Whether a code block is open.
    is_code: bool,
    code: String,
    /// Whether an empty line precedes the next block.
    apart: bool,
}

/// The prefix of lines of a quote or list item.
struct Margin {
    /// The prefix of its first line.
    first: String,
    /// The prefix of the other lines.
    rest: String,
    style: Style,
    used: bool,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.is_code => self.code.push_str(&text),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.write(&text),
            Event::Code(text) => {
                self.styles.push(HINT);
                self.write(&text);
                self.styles.pop();
            }
            Event::SoftBreak => self.write(" "),
            Event::HardBreak => self.write("\n"),
            Event::Rule => {
                self.begin_block();
                let room = self.room().min(40);
                self.put_line(&paint(FAINT, "─".repeat(room)));
                self.apart = true;
            }
            Event::TaskListMarker(is_done) => self.write(if is_done { "[x] " } else { "[ ] " }),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => {
                self.begin_block();
                self.styles.push(STRONG.underline());
            }
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.margin("│ ".into(), "│ ".into(), FAINT);
                self.apart = false;
            }
            Tag::CodeBlock(kind) => {
                self.begin_block();
                self.is_code = true;
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    let language = one_word(&language);
                    self.put_line(&paint(FAINT, format!("  {language}")));
                }
            }
            Tag::List(number) => {
                self.end_of_text();
                if self.lists.is_empty() {
                    self.begin_block();
                }
                self.lists.push(List { number });
                self.apart = false;
            }
            Tag::Item => {
                self.end_of_text();
                let mark = match self.lists.last_mut() {
                    Some(List { number: Some(number) }) => {
                        let mark = format!("{number}. ");
                        *number = number.saturating_add(1);
                        mark
                    }
                    _ => "• ".to_owned(),
                };
                let rest = " ".repeat(mark.chars().count());
                self.margin(mark, rest, Style::new());
                self.apart = false;
            }
            Tag::Table(_) => {
                self.begin_block();
                self.table = Some(Table::default());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.begin_row();
                }
            }
            Tag::Emphasis => self.styles.push(Style::new().italic()),
            Tag::Strong => self.styles.push(STRONG),
            Tag::Strikethrough => self.styles.push(Style::new().strikethrough()),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.pieces.len()));
                self.styles.push(Style::new().underline());
            }
            Tag::Paragraph | Tag::HtmlBlock => self.begin_block(),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.end_block();
            }
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_block(),
            TagEnd::BlockQuote(_) => {
                self.end_of_text();
                self.margins.pop();
                self.apart = true;
            }
            TagEnd::CodeBlock => {
                self.is_code = false;
                for line in std::mem::take(&mut self.code).lines() {
                    self.put_code(line);
                }
                self.apart = true;
            }
            TagEnd::List(_) => {
                self.end_of_text();
                self.lists.pop();
                self.apart = self.lists.is_empty();
            }
            TagEnd::Item => {
                self.end_of_text();
                // An empty item still has its mark.
                if self.margins.last().is_some_and(|margin| !margin.used) {
                    self.put_line("");
                }
                self.margins.pop();
                self.apart = false;
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    for line in table.lines(self.room()) {
                        self.put_line(&line);
                    }
                }
                self.apart = true;
            }
            TagEnd::TableCell => {
                let pieces = std::mem::take(&mut self.pieces);
                if let Some(table) = &mut self.table {
                    table.cell(pieces);
                }
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some((address, since)) = self.links.pop() {
                    let said: String = self
                        .pieces
                        .get(since..)
                        .unwrap_or_default()
                        .iter()
                        .map(|piece| &*piece.text)
                        .collect();
                    // A link's URL follows its text, unless the text is the URL.
                    if !address.is_empty()
                        && said != address
                        && address.strip_prefix("mailto:") != Some(&said)
                    {
                        self.styles.push(FAINT);
                        self.write(&format!(" ({address})"));
                        self.styles.pop();
                    }
                }
            }
            _ => {}
        }
    }

    fn write(&mut self, text: &str) {
        let style = self.styles.iter().fold(Style::new(), |all, one| over(all, *one));
        self.pieces.push(Piece { text: harmless(text), style });
    }

    fn margin(&mut self, first: String, rest: String, style: Style) {
        // Deep nesting must leave room for words.
        let (first, rest) = if self.margins.len() < MAX_DEPTH { (first, rest) } else { Default::default() };
        self.margins.push(Margin { first, rest, style, used: false });
    }

    /// The columns that remain for words.
    fn room(&self) -> usize {
        let taken: usize = self.margins.iter().map(|margin| margin.rest.chars().count()).sum();
        self.width.saturating_sub(taken).max(MIN_WIDTH / 2)
    }

    fn begin_block(&mut self) {
        self.end_of_text();
        if std::mem::take(&mut self.apart) && !self.lines.is_empty() {
            self.put_line("");
        }
    }

    fn end_block(&mut self) {
        self.end_of_text();
        self.apart = true;
    }

    /// Wraps the pending text.
    fn end_of_text(&mut self) {
        // A cell's text waits for its column.
        if self.pieces.is_empty() || self.table.is_some() {
            return;
        }
        let pieces = std::mem::take(&mut self.pieces);
        for line in wrap(&pieces, self.room()) {
            self.put_line(&line);
        }
    }

    fn put_code(&mut self, line: &str) {
        for line in code_lines(line, self.room()) {
            self.put_line(&line);
        }
    }

    fn put_line(&mut self, line: &str) {
        let mut whole = String::new();
        for margin in &mut self.margins {
            let text = if margin.used { &margin.rest } else { &margin.first };
            margin.used = true;
            whole.push_str(&paint(margin.style, text));
        }
        whole.push_str(line);
        self.lines.push(whole.trim_end().to_owned());
    }
}

/// Writes a line of code, indented and wrapped.
fn code_lines(line: &str, room: usize) -> Vec<String> {
    let text = harmless(line).replace('\t', "    ");
    if text.trim().is_empty() {
        return vec![String::new()];
    }
    wrap::cut(&text, room.saturating_sub(2).max(1)).into_iter().map(|line| format!("  {line}")).collect()
}

/// The language of a fence.
fn one_word(text: &str) -> String {
    crate::style::one_line(text.split([' ', ',', '{']).next().unwrap_or_default(), 32)
}

/// Combines two styles.
fn over(below: Style, above: Style) -> Style {
    let effects: Effects = below.get_effects() | above.get_effects();
    below.fg_color(above.get_fg_color().or(below.get_fg_color())).effects(effects)
}

/// The width of a text in columns.
pub(crate) fn columns(text: &str) -> usize {
    wrap::columns(text)
}

/// Truncates a text to a width, with an ellipsis.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    let piece = wrap::cut(text, width.saturating_sub(1).max(1)).first().copied().unwrap_or_default();
    format!("{piece}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines without styles.
    fn plain(source: &str, width: usize) -> Vec<String> {
        lines(source, width).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn each_kind_of_block_is_rendered() {
        let page = "# Head\n\nA *b* **c** ~~d~~ `e`.\n\n- one\n- two\n  1. deep\n  2. deeper\n\n> quoted\n> more\n\n```sh\nls  -l\n```\n\n- [x] done\n\n***\n\n<b>html</b>";
        assert_eq!(
            plain(page, 60),
            [
                "Head",
                "",
                "A b c d e.",
                "",
                "• one",
                "• two",
                "  1. deep",
                "  2. deeper",
                "",
                "│ quoted more",
                "",
                "  sh",
                "  ls  -l",
                "",
                "• [x] done",
                "",
                &"─".repeat(40),
                "",
                "<b>html</b>",
            ]
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let page = "A long line of words that continues and continues, with averyveryverylongwordthatfitsnowhere in it, \
            and 漢字漢字漢字漢字漢字漢字漢字漢字.\n\n- item with many many many words in it\n\n> quote quote quote quote quote quote\n\n\
            ```\nlet code = \"a line of code that is longer than the terminal is wide\";\n```\n\n\
            | a long head | another head |\n|---|---|\n| some words | and others |\n";
        for width in [16, 20, 33, 60, 200] {
            for line in plain(page, width) {
                assert!(columns(&line) <= width, "{width}: {line}");
            }
            let words = plain(page, width).concat().replace(' ', "");
            for word in ["averyveryvery", "漢字漢字", "nowhere", "terminal"] {
                let all = words.replace("│", "");
                assert!(all.contains(word), "{width}: {word} in {all}");
            }
        }
    }

    #[test]
    fn a_table_has_columns_or_is_a_list() {
        let table = "| name | number |\n|---|---|\n| `one` | 1 |\n| three | 3 |\n";
        assert_eq!(plain(table, 40), ["name   number", "─────  ──────", "one    1", "three  3"]);
        let wide = "| name | what it is for |\n|---|---|\n| one | the first of all |\n| two | the next |\n";
        assert_eq!(
            plain(wide, 20),
            [
                "name: one",
                "what it is for: the",
                "first of all",
                "",
                "name: two",
                "what it is for: the",
                "next"
            ]
        );
    }

    #[test]
    fn a_link_shows_its_url() {
        assert_eq!(
            plain("[here](https://example.org) <https://example.org>", 80),
            ["here (https://example.org) https://example.org"]
        );
    }

    #[test]
    fn control_characters_in_markdown_are_escaped() {
        for hostile in [
            "\u{1b}[31mred",
            "&#27;[31mred",
            "&#x1b;]0;title&#7;",
            "`&#27;` \u{9b}31m",
            "```\n\u{1b}[2J\n```",
            "```\u{1b}[2J\ncode\n```",
            "[a](\u{1b}[2J)",
            "[a](<&#27;[2J>)",
            "<b \u{1b}[2J>",
            "| \u{1b}[2J |\n|---|\n| &#27;c |\n",
            "# \u{1b}[2J",
            "a\rb\u{8}c\u{202e}d",
        ] {
            let shown = plain(hostile, 80).join("\n");
            let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!shown.contains(bad), "{hostile:?}: {shown:?}");
            // Every style is reset.
            for line in lines(hostile, 80) {
                assert!(!line.contains("[2J") || !line.contains("\u{1b}[2J"), "{line:?}");
                assert!(!line.contains("\u{1b}[31m"), "{line:?}");
            }
        }
    }

    #[test]
    fn deep_nesting_is_rendered() {
        let deep = "> ".repeat(5000) + "words";
        assert!(plain(&deep, 40).concat().contains("words"));
        let list: String = (0..200).map(|depth| " ".repeat(2 * depth) + "- x\n").collect();
        assert!(plain(&list, 40).iter().all(|line| columns(line) <= 40));
    }
}
