//! Untrusted text for a terminal.

/// Escapes control characters in untrusted text, except line feeds and tabs, and removes characters that are invisible or
/// change the direction of text.
///
/// A control character becomes its picture, such as `␛`; an invisible one becomes `�`. The variation selector of a
/// character that is not ASCII, such as an emoji, is dropped.
pub fn harmless(text: &str) -> String {
    // The character before, and whether it has a variation selector.
    let mut before = None;
    let mut characters = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        if let Some((base, has_selector @ false)) = &mut before
            && joins(*base)
            && is_variation_selector(character)
        {
            *has_selector = true;
            continue;
        }
        shown.push(match character {
            '\n' | '\t' => character,
            '\u{0}'..='\u{1f}' => pictured(character),
            '\u{7f}' => '␡',
            // Joiners combine emoji and letters; elsewhere they only hide text.
            '\u{200c}' | '\u{200d}'
                if before.is_some_and(|(base, _)| joins(base))
                    && characters.peek().is_some_and(|c| joins(*c)) =>
            {
                character
            }
            other if is_hidden(other) => '�',
            other => other,
        });
        before = Some((character, false));
    }
    shown
}

fn is_variation_selector(character: char) -> bool {
    matches!(character, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' | '\u{180b}'..='\u{180d}' | '\u{180f}')
}

/// Whether a character is invisible, breaks a line, or changes the direction of text.
pub fn is_hidden(character: char) -> bool {
    is_variation_selector(character)
        || matches!(character,
            // C1 controls.
            '\u{80}'..='\u{9f}'
            // The soft hyphen, the grapheme joiner, fillers, and vowels without a shape.
            | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
            // Zero-width marks, line separators, and bidirectional controls.
            | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            // The blank of Braille, which looks like a space.
            | '\u{2800}'
            // Interlinear annotations, and what Unicode reserves beside them.
            | '\u{fff0}'..='\u{fffb}'
            // Format controls of hieroglyphs, shorthand and music.
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tag characters, which can encode a whole text, and what Unicode reserves beside them.
            | '\u{e0000}'..='\u{e0fff}')
}

/// Whether a joiner may stand beside a character.
fn joins(character: char) -> bool {
    !character.is_ascii() && !character.is_whitespace() && !is_hidden(character)
}

/// The picture of a control character.
pub fn pictured(character: char) -> char {
    char::from_u32(0x2400 + u32::from(character)).unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_pictured() {
        assert_eq!(harmless("a\x1b[31mb\x07\r\n\tc\u{202e}\u{9b}\x7f"), "a␛[31mb␇␍\n\tc��␡");
    }

    #[test]
    fn joiners_of_letters_and_emoji_stay() {
        for text in ["👩\u{200d}👩\u{200d}👧", "می\u{200c}خواهم", "क्\u{200d}ष", "日本語", "é e\u{301} 한글"]
        {
            assert_eq!(harmless(text), text);
        }
        // Two joiners in a row hide text, and so does a joiner beside ASCII.
        assert_eq!(harmless("👩\u{200d}\u{200d}👧"), "👩��👧");
        assert_eq!(harmless("a\u{200d}b"), "a�b");
    }

    #[test]
    fn no_hidden_character_is_shown() {
        let hidden = (0x80..=0x9f)
            .chain([0xad, 0x34f, 0x61c, 0x115f, 0x1160, 0x17b4, 0x17b5])
            .chain(0x180b..=0x180f)
            .chain(0x200b..=0x200f)
            .chain(0x2028..=0x202e)
            .chain(0x2060..=0x206f)
            .chain([0x2800, 0x3164])
            .chain(0xfe00..=0xfe0f)
            .chain([0xfeff, 0xffa0])
            .chain(0xfff9..=0xfffb)
            .chain(0x13430..=0x1343f)
            .chain(0x1bca0..=0x1bca3)
            .chain(0x1d173..=0x1d17a)
            .chain(0xe0001..=0xe007f)
            .chain(0xe0100..=0xe01ef);
        for hidden in hidden.filter_map(char::from_u32) {
            assert_eq!(harmless(&format!("rm{hidden} x")), "rm� x", "{hidden:?}");
            assert_eq!(harmless(&hidden.to_string()), "�", "{hidden:?}");
            assert!(!harmless(&format!("👩{hidden}{hidden}👧")).contains(hidden), "{hidden:?}");
        }
    }

    #[test]
    fn one_variation_selector_of_a_base_is_dropped_and_others_are_marked() {
        for (text, expected) in [
            ("❤\u{fe0f} ok", "❤ ok"),
            ("❤\u{fe0f}\u{200d}🔥", "❤\u{200d}🔥"),
            ("葛\u{e0100}城", "葛城"),
            ("❤\u{fe0f}\u{e0101}\u{e0102}", "❤��"),
            ("a\u{fe0f}", "a�"),
            ("\u{fe0f}", "�"),
        ] {
            assert_eq!(harmless(text), expected, "{text:?}");
        }
    }
}
