//! The roles that colours have.

use anstyle::{AnsiColor, Style};

/// Something succeeded.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Something failed.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What to do next; paths and literals.
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
/// Something that needs attention.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Less important than its surroundings.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Names and headings.
pub(crate) const STRONG: Style = Style::new().bold();

/// The roles that help pages use.
pub(crate) const HELP: clap::builder::Styles = clap::builder::Styles::styled()
    .header(STRONG)
    .usage(STRONG)
    .literal(HINT)
    .placeholder(FAINT)
    .error(BAD)
    .valid(GOOD)
    .invalid(WARN);

/// A text in a role.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Text of strangers, for a terminal: control characters but line feeds and tabs are shown and not obeyed.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' | '\t' => character,
            '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('?'),
            '\u{7f}' => '␡',
            // C1 controls, and what reverses the direction of reading or hides.
            '\u{80}'..='\u{9f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => '�',
            other => other,
        })
        .collect()
}

/// The same on one line of at most so many characters.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let line: String = harmless(text).chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c }).collect();
    if line.chars().count() <= width {
        return line;
    }
    let short: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{short}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(harmless("a\x1b[31mb\x07\r\n\tc\u{202e}\u{9b}"), "a␛[31mb␇␍\n\tc��");
        assert_eq!(one_line("a\nb\tc", 80), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }
}
