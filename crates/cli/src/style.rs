//! Styles of output, and escaping of untrusted text.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
pub(crate) use toolpost_core::harmless;
use toolpost_core::pictured;

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

/// A text with a style, which only [`shown`] turns into escape sequences.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{}{text}{}", trusted(style.render()), trusted(style.render_reset()))
}

/// Marks the escape sequences of a text of this program as styles.
pub(crate) fn trusted(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    if text.contains(ESCAPE) { text.replace(ESCAPE, &format!("{}{ESCAPE}", mark())) } else { text }
}

/// The begin of an escape sequence.
const ESCAPE: &str = "\x1b[";

/// The mark before each escape sequence of a style. Untrusted text cannot guess it, so it has no styles.
fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    // A sequence itself, so that measuring and stripping ignore it.
    MARK.get_or_init(|| format!("{ESCAPE}{}m", RandomState::new().build_hasher().finish()))
}

/// A text as it is printed: the styles of [`paint`] if `coloured`, and every other control or hidden character escaped.
pub(crate) fn shown(text: &str, coloured: bool) -> String {
    let mut parts = text.split(mark());
    let mut shown = harmless(parts.next().unwrap_or_default());
    for part in parts {
        let (sequence, rest) = part.split_at(part.find('m').map_or(0, |at| at + 1));
        if coloured {
            shown.push_str(sequence);
        }
        shown.push_str(&harmless(rest));
    }
    shown
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
        assert_eq!(one_line("a\nb\tc", 80), "a b c");
        assert_eq!(label("a\nb\tc\x1b"), "a␊b␉c␛");
        assert_eq!(paragraph("a\nerror: b\n"), "a\n  │ error: b");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    #[test]
    fn only_painted_styles_are_shown() {
        let hostile = "\x1b[31mred\x1b]0;title\x07\u{202e}";
        let painted = format!("{} {} {hostile}", paint(BAD, hostile), paint(HINT, paint(STRONG, "both")));
        let inert = "␛[31mred␛]0;title␇�";
        assert_eq!(
            shown(&painted, true),
            format!("\x1b[1m\x1b[31m{inert}\x1b[0m \x1b[36m\x1b[1mboth\x1b[0m\x1b[0m {inert}")
        );
        assert_eq!(shown(&painted, false), format!("{inert} both {inert}"));
        assert_eq!(shown(&trusted("\x1b[4mhelp\x1b[0m"), true), "\x1b[4mhelp\x1b[0m");
        assert_eq!(shown("a\nb\tc", true), "a\nb\tc");
        assert_eq!(anstream::adapter::strip_str(&paint(WARN, "x")).to_string(), "x");
    }
}
