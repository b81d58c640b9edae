//! Clients, by their credentials.

use std::fs::DirBuilder;
use std::io;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use toolpost_core::{Secret, ToolError};

/// The longest client name, in bytes.
const MAX_NAME: usize = 64;
/// The number of digest bytes in a key.
const KEY_BYTES: usize = 16;
/// The beginnings of names and keys that no client may choose.
const RESERVED: [&str; 2] = [TOKEN, OAUTH];
const TOKEN: &str = "token-";
const OAUTH: &str = "oauth-";
/// The beginning of the name of an OAuth client.
const SUBJECT: &str = "oauth:";

/// An authenticated client.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    /// The name in permissions and records: `laptop`, `token-2`, `oauth:ada`.
    pub(super) name: String,
    /// The owner of tasks and documents, and the name of the working directory. It depends on the credential alone,
    /// not on a position, and is a valid file name.
    pub(super) key: String,
}

impl Client {
    /// A client with a chosen name, whatever its token.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name is invalid.
    pub(super) fn named(name: &str) -> Result<Self, ToolError> {
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let starts_well = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let is_reserved = RESERVED.iter().any(|reserved| name.starts_with(reserved));
        if !starts_well || is_reserved || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
            return Err(ToolError::invalid_input("the name of a client is invalid").suggest(
                "Use at most 64 of `a-z`, `0-9`, `-` and `_`, not beginning with `token-` or `oauth-`.",
            ));
        }
        Ok(Self { name: name.to_owned(), key: name.to_owned() })
    }

    /// The client of the token at a position.
    pub(super) fn of_token(position: usize, token: &Secret) -> Self {
        Self { name: format!("{TOKEN}{position}"), key: key(TOKEN, &[token.expose()]) }
    }

    /// The client of an access token.
    pub(super) fn of_subject(issuer: &str, subject: &str) -> Self {
        Self { name: format!("{SUBJECT}{subject}"), key: key(OAUTH, &[issuer, subject]) }
    }

    /// The subject in the name of an OAuth client.
    pub(super) fn subject(name: &str) -> Option<&str> {
        name.strip_prefix(SUBJECT)
    }
}

/// A digest of the parts, after a prefix.
fn key(prefix: &str, parts: &[&str]) -> String {
    let mut digest = Sha256::new_with_prefix(prefix);
    for part in parts {
        // The length separates the parts.
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    let bytes = digest.finalize();
    bytes.iter().take(KEY_BYTES).fold(prefix.to_owned(), |key, byte| key + &format!("{byte:02x}"))
}

/// Creates a directory for this user alone, unless it exists. Its name may have a link that code left.
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_directory = directory.symlink_metadata()?.is_dir();
            if is_directory { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_name_that_no_other_credential_has() {
        for (name, is_valid) in [
            ("laptop", true),
            ("2-b_c", true),
            (&*"a".repeat(MAX_NAME), true),
            (&*"a".repeat(MAX_NAME + 1), false),
            ("", false),
            (".", false),
            ("..", false),
            ("-a", false),
            ("_a", false),
            ("a.b", false),
            ("a/b", false),
            ("A", false),
            ("token-1", false),
            ("oauth-1", false),
            ("oauth:ada", false),
            ("ä", false),
        ] {
            assert_eq!(Client::named(name).is_ok(), is_valid, "{name}");
        }
    }

    #[test]
    fn a_key_depends_on_the_credential_alone() {
        let token = |position, text| Client::of_token(position, &Secret::new(text)).key;
        assert_eq!(token(1, "a"), token(2, "a"));
        let keys = [
            token(1, "a"),
            token(1, "b"),
            token(1, ""),
            Client::of_subject("https://a", "b").key,
            Client::of_subject("https://ab", "").key,
            Client::of_subject("https://", "ab").key,
            Client::named("ada").unwrap().key,
        ];
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key), "{key}");
            assert!(key.len() <= MAX_NAME && !key.contains(['/', '.']), "{key}");
        }
    }
}
