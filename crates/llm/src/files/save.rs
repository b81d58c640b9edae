//! Where a downloaded file goes: the caller creates the file, under a name that every host takes.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes: every file system takes it, with a number.
const LONGEST_NAME: usize = 200;

/// A file that was downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SavedFile {
    /// The provider's id; of a file that stood in the answer, what it is called.
    pub id: String,
    /// The provider's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is.
    pub path: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The media type, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

/// A file that is removed again with this value: half a file is worse than none.
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Lets the file stay, and says where it is.
    pub(super) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // That it stays is no reason to hide why it is unfinished.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Creates a file under a name, or a free one like it, and returns its path.
///
/// The name has no separator and suits every host.
pub type CreateFile<'a> = dyn Fn(&str) -> io::Result<(File, PathBuf)> + Sync + 'a;

/// The name that a file gets: the last part of a path, without what a shell, a terminal or a file system of any host
/// takes for something else.
pub(super) fn file_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut clean = String::new();
    for character in last.chars() {
        let odd = character.is_control()
            || matches!(character, '<' | '>' | ':' | '"' | '|' | '?' | '*')
            // Marks that change the direction of text can make `exe.txt` of `txt.exe`.
            || matches!(character, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
            // Others take no room, or are not seen.
            || matches!(character, '\u{AD}' | '\u{115F}' | '\u{1160}' | '\u{180E}' | '\u{3164}' | '\u{FFA0}' | '\u{E0000}'..='\u{E007F}');
        let character = if odd { '_' } else { character };
        if clean.len() + character.len_utf8() > LONGEST_NAME {
            break;
        }
        clean.push(character);
    }
    // A leading point hides a file; a final point or space is dropped by some hosts. A leading dash is an option's.
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

/// A text of the provider's in an error: short, and without what a terminal obeys.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(100).map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_only_a_name() {
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
            assert_eq!(file_name(name), expected, "{name:?}");
        }
        assert!(file_name(&"ü".repeat(500)).len() <= LONGEST_NAME);
    }
}
