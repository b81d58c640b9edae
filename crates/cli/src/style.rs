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
    let mut before = None;
    let mut characters = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        shown.push(match character {
            '\n' | '\t' => character,
            '\u{0}'..='\u{1f}' => pictured(character),
            '\u{7f}' => '␡',
            // They join emoji, and letters of scripts that are written joined; elsewhere they only hide.
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

/// Whether a character is not seen, ends a line where none is expected, or reverses the direction of reading.
fn is_hidden(character: char) -> bool {
    matches!(character,
        // C1 controls.
        '\u{80}'..='\u{9f}'
        // The soft hyphen, fillers, and a separator of vowels.
        | '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
        // Marks without a width, separators of lines, and what directs reading.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // Tags: a whole text can be written with them.
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

/// A name or a path of strangers, for a terminal: on one line, whatever is in it.
pub(crate) fn label(text: &str) -> String {
    harmless(text).chars().map(|c| if matches!(c, '\n' | '\t') { pictured(c) } else { c }).collect()
}

/// Text of strangers within a message of ours, for a terminal: no line of it looks like a line of ours.
pub(crate) fn paragraph(text: &str) -> String {
    harmless(text.trim_end()).replace('\n', "\n  │ ")
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
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(harmless("a\x1b[31mb\x07\r\n\tc\u{202e}\u{9b}"), "a␛[31mb␇␍\n\tc��");
        assert_eq!(one_line("a\nb\tc", 80), "a b c");
        assert_eq!(label("a\nb\tc\x1b"), "a␊b␉c␛");
        assert_eq!(paragraph("a\nerror: b\n"), "a\n  │ error: b");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    #[test]
    fn what_hides_is_shown_and_what_joins_is_kept() {
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
        // Two joiners hide one another's work, and none joins what is written apart.
        assert_eq!(harmless("👩\u{200d}\u{200d}👧"), "👩��👧");
        assert_eq!(harmless("a\u{200d}b"), "a�b");
    }
}
