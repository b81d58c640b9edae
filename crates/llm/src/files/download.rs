//! Downloaded files and their names. The caller creates the file.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Maximum length of a name in bytes, with room for a number.
const MAX_NAME: usize = 200;

/// A downloaded file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SavedFile {
    /// The provider's id, or the name of a file that was part of an answer.
    pub id: String,
    /// The provider's name for the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The local path.
    pub path: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The media type, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

/// An incomplete file, which is deleted on drop.
pub(super) struct PartialFile(PathBuf);

impl PartialFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Keeps the file, and returns its path.
    pub(super) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The reason why the file is incomplete matters more.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Creates a file with this name or a similar free one, and returns its path.
///
/// The name has no separator and is valid on every host.
pub type CreateFile<'a> = dyn Fn(&str) -> io::Result<(File, PathBuf)> + Sync + 'a;

/// A portable file name: the last part of a path, without characters that a shell, a terminal or a file system
/// interprets.
pub(super) fn safe_file_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut clean = String::new();
    for character in last.chars() {
        let is_unsafe = character.is_control()
            || matches!(character, '<' | '>' | ':' | '"' | '|' | '?' | '*')
            // Direction marks can display `txt.exe` as `exe.txt`.
            || matches!(character, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
            // These are invisible.
            || matches!(character, '\u{AD}' | '\u{115F}' | '\u{1160}' | '\u{180E}' | '\u{3164}' | '\u{FFA0}' | '\u{E0000}'..='\u{E007F}');
        let character = if is_unsafe { '_' } else { character };
        if clean.len() + character.len_utf8() > MAX_NAME {
            break;
        }
        clean.push(character);
    }
    // A leading dot hides a file, and a leading dash looks like an option. Some hosts drop a final dot or space.
    let clean = clean.trim_matches(|character: char| character == '.' || character.is_whitespace());
    let clean = clean.trim_start_matches('-');
    let stem = clean.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let is_device = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (stem.len() == 4 && (stem.starts_with("COM") || stem.starts_with("LPT")));
    match clean {
        "" => "file".to_owned(),
        clean if is_device => format!("_{clean}"),
        clean => clean.to_owned(),
    }
}

/// A short excerpt of a provider's text, without control characters.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(100).map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_becomes_a_portable_one() {
        for (name, expected) in [
            ("report.csv", "report.csv"),
            ("../../etc/passwd", "passwd"),
            ("/etc/passwd", "passwd"),
            ("..\\..\\windows\\system.ini", "system.ini"),
            ("..", "file"),
            ("", "file"),
            (".bashrc", "bashrc"),
            ("-rf", "rf"),
            ("a\u{0}b\n\u{1b}[2Jc", "a_b__[2Jc"),
            ("x\u{202E}txt.exe", "x_txt.exe"),
            ("x\u{2028}y\u{AD}z\u{E0041}", "x_y_z_"),
            ("nul.txt", "_nul.txt"),
            ("COM1", "_COM1"),
            ("a:b*c?.txt", "a_b_c_.txt"),
            ("name. ", "name"),
            ("über größe.csv", "über größe.csv"),
        ] {
            assert_eq!(safe_file_name(name), expected, "{name:?}");
        }
        assert!(safe_file_name(&"ü".repeat(500)).len() <= MAX_NAME);
    }
}
