//! Names as the most forgiving file system and program compare them.

use std::borrow::Cow;

/// The maximum length of the part of a short name before its extension.
const MAX_SHORT: usize = 8;
/// The maximum number of letters before the `~` of a short name.
const MAX_STEM: usize = 6;

/// Folds a name as the most forgiving file system and program do.
pub(crate) fn fold(name: &str) -> Cow<'_, str> {
    let plain = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'));
    if plain && !name.ends_with('.') {
        return Cow::Borrowed(name);
    }
    let visible = name.chars().filter(|letter| !is_ignorable(*letter));
    // Via upper case: the long s has no lower case of its own. The capital sharp s has none but in lower case.
    let upper = visible.flat_map(char::to_lowercase).flat_map(char::to_uppercase);
    let lower: String = upper.flat_map(char::to_lowercase).collect();
    // On NTFS a colon begins a stream name.
    let base = lower.split_once(':').map_or(lower.as_str(), |(base, _)| base);
    let trimmed = base.trim_end_matches(['.', ' ']);
    if ShortName::from_name(trimmed).is_some_and(|short| short.can_be(".git")) {
        return Cow::Borrowed(".git");
    }
    Cow::Owned(if trimmed.is_empty() { lower.clone() } else { trimmed.to_owned() })
}

/// Characters without a glyph, which some file systems ignore and no reader sees.
fn is_ignorable(letter: char) -> bool {
    matches!(letter,
        '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
        | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}'
        | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

/// A folded name in the form of FAT and NTFS short names: `claude~1`, `mcp~1.jso`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShortName<'a> {
    stem: &'a str,
    /// The length of the `~` and the number.
    tail: usize,
    extension: &'a str,
}

impl<'a> ShortName<'a> {
    pub(super) fn from_name(name: &'a str) -> Option<Self> {
        let (base, extension) = name.split_once('.').unwrap_or((name, ""));
        let (stem, number) = base.rsplit_once('~')?;
        let is_number = !number.starts_with('0') && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = !stem.is_empty() && !number.is_empty() && base.len() <= MAX_SHORT;
        let is_plain = name.is_ascii() && extension.len() <= 3 && !extension.contains('.');
        (is_number && is_short && is_plain).then_some(Self { stem, tail: number.len() + 1, extension })
    }

    /// Whether a file system can give this short name to a name.
    pub(super) fn can_be(self, name: &str) -> bool {
        let visible = name.trim_start_matches('.');
        let (base, extension) = visible.rsplit_once('.').unwrap_or((visible, ""));
        // A name that is short already has no other one.
        let is_long = visible != name || base.len() > MAX_SHORT || extension.len() > 3 || base.contains('.');
        let base = letters(base);
        let length = base.len().min(MAX_STEM).min(MAX_SHORT - self.tail);
        let is_stem = base.get(..length) == Some(self.stem) || self.is_hash_of(&base);
        is_long && is_stem && letters(extension).get(..extension.len().min(3)) == Some(self.extension)
    }

    /// Whether a file system can give this short name to a name with this beginning and end.
    pub(super) fn can_begin_and_end(self, begin: &str, end: &str) -> bool {
        let begin = letters(begin.trim_start_matches('.'));
        let is_stem = self.stem.starts_with(begin.as_str()) || begin.starts_with(self.stem);
        let extension = end.rsplit_once('.').map(|(_, extension)| letters(extension));
        (is_stem || self.is_hash_of(&begin))
            && extension
                .is_none_or(|extension| extension.get(..extension.len().min(3)) == Some(self.extension))
    }

    /// NTFS: after four names with one beginning, two letters and four digits of a checksum.
    fn is_hash_of(self, base: &str) -> bool {
        let digits = self.stem.get(2..).unwrap_or_default();
        self.stem.len() == MAX_STEM
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
            && base.get(..2).is_none_or(|letters| self.stem.starts_with(letters))
            && self.stem.starts_with(base.get(..1).unwrap_or_default())
    }
}

/// The letters of a name that its short name has.
fn letters(name: &str) -> String {
    let kept = name.chars().filter(|letter| !matches!(letter, '.' | ' '));
    kept.map(|letter| if matches!(letter, '+' | ',' | ';' | '=' | '[' | ']') { '_' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_folded() {
        for (name, expected) in [
            ("notes.md", "notes.md"),
            (".BashRC", ".bashrc"),
            (".bashrc.", ".bashrc"),
            (".bashrc ", ".bashrc"),
            (".bash\u{200B}rc", ".bashrc"),
            (".ba\u{17F}hrc", ".bashrc"),
            (".\u{1E9E}h", ".ssh"),
            (".\u{DF}h", ".ssh"),
            (".le\u{1E9E}\u{212A}ey", ".lesskey"),
            (".git\u{1BCA0}", ".git"),
            (".g\u{1BCA3}it", ".git"),
            (".vscode\u{1D173}", ".vscode"),
            ("\u{1D17A}.vscode", ".vscode"),
            (".mcp.json::$DATA", ".mcp.json"),
            ("GIT~1", ".git"),
            ("git~12", ".git"),
            ("GI12AF~3", ".git"),
            ("git~01", "git~01"),
            ("git~", "git~"),
            ("digit~1", "digit~1"),
            ("...", "..."),
        ] {
            assert_eq!(fold(name), expected, "{name:?}");
        }
    }

    #[test]
    fn short_names_are_those_of_their_names() {
        for (short, name, expected) in [
            ("claude~1", ".claude", true),
            ("claude~9", ".claude", true),
            ("claud~10", ".claude", true),
            ("claude~10", ".claude", false),
            ("clau~1", ".claude", false),
            ("cl1f2e~1", ".claude", true),
            ("ca1f2e~1", ".claude", false),
            ("vscode~1", ".vscode", true),
            ("vscode~1.x", ".vscode", false),
            ("bashrc~1", ".bashrc", true),
            ("gitmod~1", ".gitmodules", true),
            ("gi7eba~1", ".gitmodules", true),
            ("mcp~1.jso", ".mcp.json", true),
            ("mcp~1.jso", "mcp.json", true),
            ("pre-co~1.yam", ".pre-commit-config.yaml", true),
            ("claude~1.md", "claude.md", false),
            ("hk~1.pkl", "hk.pkl", false),
            ("openco~1.jso", "opencode.json", true),
        ] {
            assert_eq!(
                ShortName::from_name(short).is_some_and(|short| short.can_be(name)),
                expected,
                "{short} {name}"
            );
        }
        for (short, begin, end, expected) in [
            ("misepr~1.tom", "mise.", ".toml", true),
            ("mise~1.tom", "mise.", ".toml", true),
            ("miseab~1.yml", "mise.", ".toml", false),
            ("lefth~1.yml", "mise.", ".toml", false),
            ("lefth~10.yml", "lefthook.", "", true),
            ("envrc~1", ".envrc", "", true),
            ("work~1.cod", "", ".code-workspace", true),
            ("work~1.txt", "", ".code-workspace", false),
        ] {
            let found = ShortName::from_name(short).is_some_and(|short| short.can_begin_and_end(begin, end));
            assert_eq!(found, expected, "{short} {begin}*{end}");
        }
    }
}
