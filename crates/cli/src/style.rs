//! Styles of output, and escaping of untrusted text.

use anstyle::{AnsiColor, Style};

/// Success.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// An error.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Hints, paths and literals.
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
/// A warning.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Secondary text.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Names and headings.
pub(crate) const STRONG: Style = Style::new().bold();

/// The styles of help pages.
pub(crate) const HELP: clap::builder::Styles = clap::builder::Styles::styled()
    .header(STRONG)
    .usage(STRONG)
    .literal(HINT)
    .placeholder(FAINT)
    .error(BAD)
    .valid(GOOD)
    .invalid(WARN);

/// A text with a style.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Escapes control characters in untrusted text, except line feeds and tabs.
pub(crate) fn harmless(text: &str) -> String {
    let mut before = None;
    let mut characters = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        shown.push(match character {
            '\n' | '\t' => character,
            '\u{0}'..='\u{1f}' => pictured(character),
            '\u{7f}' => '␡',
            // Joiners combine emoji and letters; elsewhere they only hide text.
            '\u{200c}' | '\u{200d}'
                if before.is_some_and(joins) && characters.peek().is_some_and(|c| joins(*c)) =>
            {
                character
            }
            other if is_hidden(other) => '�',
            other => other,
        });
        before = Some(character);
    }
    shown
}

/// Whether a character is invisible, breaks a line, or changes the text direction.
fn is_hidden(character: char) -> bool {
    matches!(character,
        // C1 controls.
        '\u{80}'..='\u{9f}'
        // The soft hyphen, fillers, and the Mongolian vowel separator.
        | '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
        // Zero-width marks, line separators, and bidirectional controls.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // Tag characters, which can encode a whole text.
        | '\u{e0000}'..='\u{e007f}')
}

/// Whether a joiner may stand beside a character.
fn joins(character: char) -> bool {
    !character.is_ascii() && !character.is_whitespace() && !is_hidden(character)
}

/// The picture of a control character.
fn pictured(character: char) -> char {
    char::from_u32(0x2400 + u32::from(character)).unwrap_or('?')
}

/// An untrusted name or path on one line of a terminal.
pub(crate) fn label(text: &str) -> String {
    harmless(text).chars().map(|c| if matches!(c, '\n' | '\t') { pictured(c) } else { c }).collect()
}

/// Untrusted text within a message; its further lines are indented.
pub(crate) fn paragraph(text: &str) -> String {
    harmless(text.trim_end()).replace('\n', "\n  │ ")
}

/// Untrusted text on one line of at most `width` characters.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let line: String = harmless(text).chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c }).collect();
    if line.chars().count() <= width {
        return line;
    }
    let short: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{short}…")
}

/// A text as one word of a shell.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "_-./:=@%+,".contains(one);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(harmless("a\x1b[31mb\x07\r\n\tc\u{202e}\u{9b}"), "a␛[31mb␇␍\n\tc��");
        assert_eq!(one_line("a\nb\tc", 80), "a b c");
        assert_eq!(label("a\nb\tc\x1b"), "a␊b␉c␛");
        assert_eq!(paragraph("a\nerror: b\n"), "a\n  │ error: b");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    #[test]
    fn hidden_characters_are_replaced_and_joiners_stay() {
        for text in ["👩\u{200d}👩\u{200d}👧", "می\u{200c}خواهم", "❤\u{fe0f}\u{200d}🔥", "क्\u{200d}ष"]
        {
            assert_eq!(harmless(text), text);
        }
        for hidden in [
            '\u{feff}',
            '\u{ad}',
            '\u{e0000}',
            '\u{e0041}',
            '\u{e007f}',
            '\u{2028}',
            '\u{2029}',
            '\u{3164}',
            '\u{115f}',
            '\u{1160}',
            '\u{180e}',
            '\u{2060}',
            '\u{2064}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
        ] {
            assert_eq!(harmless(&format!("rm{hidden} x")), "rm� x", "{hidden:?}");
        }
        // Two joiners in a row hide text, and so does a joiner beside ASCII.
        assert_eq!(harmless("👩\u{200d}\u{200d}👧"), "👩��👧");
        assert_eq!(harmless("a\u{200d}b"), "a�b");
    }
}
