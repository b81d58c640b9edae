//! Where a downloaded file goes: into the folder that it was meant for, under a name of its own, over nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The longest name, in bytes: every file system takes it, with a number.
const LONGEST_NAME: usize = 200;

/// The most files of one name in a folder.
const MOST_OF_A_NAME: u32 = 10_000;

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

/// A new file in a folder, which is made if it is not there, under the nearest to this name that is free.
pub(super) fn create(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    std::fs::create_dir_all(folder)?;
    let name = file_name(name);
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (name.as_str(), String::new()),
    };
    for number in 1..=MOST_OF_A_NAME {
        let name = if number == 1 { name.clone() } else { format!("{stem} ({number}){extension}") };
        let path = folder.join(name);
        // A link of that name is not followed either: it is there already.
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{MOST_OF_A_NAME} files are called `{name}`")))
}

/// The name that a file gets: the last part of a path, without what a shell, a terminal or a file system of any host
/// takes for something else.
fn file_name(name: &str) -> String {
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

    #[test]
    fn nothing_is_overwritten_and_no_link_is_followed() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("new/artifacts");
        let (_, first) = create(&folder, "a.txt").unwrap();
        let (_, second) = create(&folder, "x/a.txt").unwrap();
        assert_eq!(first, folder.join("a.txt"));
        assert_eq!(second, folder.join("a (2).txt"));
        #[cfg(unix)]
        {
            let victim = outer.path().join("victim");
            std::os::unix::fs::symlink(&victim, folder.join("link")).unwrap();
            let (_, path) = create(&folder, "link").unwrap();
            assert_eq!(path, folder.join("link (2)"));
            assert!(!victim.exists());
        }
    }
}
