//! The history of the line editor, per project, without lines that look like secrets.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::env;
use crate::regular_file;

/// The maximum number of recalled lines.
const MAX_ENTRIES: usize = 1000;
/// The maximum length of a stored line, in bytes.
const MAX_ENTRY: usize = 16 << 10;
/// The maximum size of the file; a larger one is rewritten with its last lines.
const MAX_FILE: u64 = 4 << 20;

/// Prefixes of well-known API keys.
const KEYS: [&str; 12] =
    ["sk-", "sk_", "xai-", "AIza", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "hf_"];
/// Words before a secret.
const NAMES: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "api_key",
    "api-key",
    "apikey",
    "access_token",
    "authorization",
];

/// The file and its entries.
pub(super) struct History {
    path: Option<PathBuf>,
    entries: Vec<String>,
}

impl History {
    /// Reads the file; an unreadable one is ignored.
    pub(super) fn open(path: Option<PathBuf>) -> Self {
        // Opening a pipe blocks.
        let path = path.filter(|path| path.metadata().map_or(true, |metadata| metadata.is_file()));
        let entries = path.as_deref().and_then(|path| read(path).ok()).unwrap_or_default();
        Self { path, entries }
    }

    /// The stored lines, oldest first.
    pub(super) fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Stores a line unless it looks like a secret; true if it may be recalled.
    pub(super) fn add(&self, entry: &str) -> bool {
        if entry.len() > MAX_ENTRY || is_secret(entry, &secrets()) {
            return false;
        }
        if let Some(path) = &self.path {
            // A failed write does not stop the chat.
            let _ = append(path, entry);
        }
        true
    }
}

/// The keys of the environment.
fn secrets() -> Vec<String> {
    let secrets = env::secrets().into_iter().map(|secret| secret.expose().to_owned());
    secrets.filter(|secret| secret.len() >= 6).collect()
}

/// Whether a text has one of these secrets, or something that looks like one.
fn is_secret(text: &str, secrets: &[String]) -> bool {
    if secrets.iter().any(|secret| text.contains(secret.as_str())) || text.contains("PRIVATE KEY-----") {
        return true;
    }
    let is_key = |word: &str| {
        KEYS.iter().any(|start| word.strip_prefix(start).is_some_and(|rest| rest.len() >= 12))
            && word.chars().any(|character| character.is_ascii_digit())
    };
    let quotes = ['"', '\'', '`', ',', ';', '(', ')', '<', '>', '=', ':'];
    if text.split(|c: char| c.is_whitespace() || quotes.contains(&c)).any(is_key) {
        return true;
    }
    let lower = text.to_lowercase();
    lower.contains("bearer ey")
        || NAMES.iter().any(|name| {
            lower.match_indices(name).any(|(at, _)| {
                let rest =
                    lower.get(at + name.len()..).unwrap_or_default().trim_start_matches(['"', '\'', ' ']);
                rest.strip_prefix(['=', ':']).is_some_and(|value| value.trim_start().len() >= 4)
            })
        })
}

fn read(path: &Path) -> io::Result<Vec<String>> {
    let file = regular_file::open(path)?;
    let is_large = file.metadata()?.len() > MAX_FILE;
    let lines = BufReader::new(file).take(8 * MAX_FILE).lines().map_while(Result::ok);
    let mut entries: Vec<String> = lines.filter_map(|line| serde_json::from_str(&line).ok()).collect();
    entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
    if is_large {
        let text: String = entries.iter().filter_map(|entry| line(entry).ok()).collect();
        regular_file::replace(path, &text)?;
    }
    Ok(entries)
}

fn line(entry: &str) -> io::Result<String> {
    Ok(serde_json::to_string(entry)? + "\n")
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        regular_file::create_directory(directory)?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // Messages are private.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // One write, because other chats append too.
    options.open(path)?.write_all(line(entry)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn secrets_are_detected_by_value_and_by_form() {
        let set = ["my-own-key-value".to_owned()];
        for text in [
            "use my-own-key-value here",
            "the key is sk-ant-0123456789abcdef",
            "export OPENAI_API_KEY=abcdefgh",
            "password: hunter2",
            "{\"secret\": \"abcd\"}",
            "curl -H 'Authorization: Basic abcd'",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "token ghp_0123456789abcdefghij",
        ] {
            assert!(is_secret(text, &set), "{text}");
        }
        for text in [
            "what is a password manager?",
            "explain the secret of good tea",
            "list sk-learn examples with 3 classes",
            "how do api keys work: are they secret",
            "translate `ask-and-answer-sessions-of-2024`",
        ] {
            assert!(!is_secret(text, &set), "{text}");
        }
    }

    #[test]
    fn lines_are_stored_and_secrets_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/history.jsonl");
        let history = History::open(Some(path.clone()));
        assert!(history.add("first\nwith two lines"));
        assert!(!history.add("password=hunter2"));
        assert!(history.add("second"));
        assert_eq!(History::open(Some(path.clone())).entries(), ["first\nwith two lines", "second"]);
        assert!(!fs::read_to_string(&path).unwrap().contains("hunter2"));
    }

    #[test]
    fn a_large_file_is_rewritten_with_its_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let long = "x".repeat(10_000);
        let text: String = (0..600).map(|number| line(&format!("{number} {long}")).unwrap()).collect();
        fs::write(&path, "not JSON\n".to_owned() + &text).unwrap();
        let entries = History::open(Some(path.clone())).entries;
        assert_eq!(entries.len(), 600);
        fs::write(&path, text.repeat(2)).unwrap();
        assert_eq!(History::open(Some(path.clone())).entries.len(), MAX_ENTRIES);
        assert!(fs::read_to_string(&path).unwrap().lines().count() == MAX_ENTRIES);
    }
}
