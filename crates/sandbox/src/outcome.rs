//! What a run hands back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::sandbox::check_file_name;
use crate::{Applied, Error, Rejection, Report, SafeDirectory, Usage, Verdict, WriteError};

/// A piece of output, handed to the caller while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Bytes of standard output, as they came: not necessarily whole lines or valid UTF-8.
    Stdout(&'a [u8]),
    /// Bytes of standard error.
    Stderr(&'a [u8]),
}

/// Captured output: the head and the tail. Serialises as `text` (with a mark where bytes are missing) and `dropped`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes, when some between were dropped; otherwise empty.
    pub tail: Vec<u8>,
    /// How many bytes between head and tail were dropped.
    pub dropped: u64,
}

impl Captured {
    /// Keeps at most `limit` bytes of an output: the first and the last half.
    pub fn keep(bytes: &[u8], limit: usize) -> Self {
        if bytes.len() <= limit {
            return Self { head: bytes.to_vec(), tail: Vec::new(), dropped: 0 };
        }
        let (head, rest) = bytes.split_at(limit - limit / 2);
        let tail = rest.get(rest.len() - limit / 2..).unwrap_or_default();
        Self { head: head.to_vec(), tail: tail.to_vec(), dropped: (bytes.len() - limit) as u64 }
    }

    /// All kept bytes, with a line in between that says how many are missing, if any are.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        if self.dropped > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes dropped …]\n", self.dropped).as_bytes());
        }
        bytes.extend_from_slice(&self.tail);
        bytes
    }

    /// The same as text; invalid UTF-8 is replaced. Control characters are left: who prints it must escape them.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

impl Serialize for Captured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut fields = serializer.serialize_struct("Captured", 2)?;
        fields.serialize_field("text", &self.text())?;
        fields.serialize_field("dropped", &self.dropped)?;
        fields.end()
    }
}

/// Which files of the workspace a run created, changed and deleted. Paths are relative to the workspace. As JSON they are
/// text, in which U+FFFD stands for what is not UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Changes {
    /// Files that were not there before.
    #[serde(serialize_with = "serialize_paths")]
    pub new: Vec<PathBuf>,
    /// Files whose content, size or time differs.
    #[serde(serialize_with = "serialize_paths")]
    pub changed: Vec<PathBuf>,
    /// Files that are gone.
    #[serde(serialize_with = "serialize_paths")]
    pub deleted: Vec<PathBuf>,
}

fn serialize_paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// A file that the program left in its workspace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Artifact {
    /// The path relative to the workspace: valid UTF-8, no `..`, no control characters.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 of the content, in lower-case hexadecimal.
    pub sha256: String,
    /// The media type by extension and first bytes, `application/octet-stream` if unknown.
    pub media_type: &'static str,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// Where the content of an artifact is.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// In the workspace, which lives as long as this.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side makes it")
    )]
    Workspace(crate::platform::Store),
    /// In memory.
    Bytes(Arc<[u8]>),
}

impl Artifact {
    /// An artifact whose content is in memory. A path that could not safely become a file of a host, for example one
    /// with `..` or a control character, is refused with [`Error::InvalidName`].
    pub fn from_bytes(path: impl Into<String>, content: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        let (path, content) = (path.into(), content.into());
        check_file_name(&path)?;
        let sha256 = sha256(&content);
        let first = content.get(..content.len().min(16)).unwrap_or_default();
        let media_type = crate::media::media_type(&path, first);
        Ok(Self { path, size: content.len() as u64, sha256, media_type, content: Content::Bytes(content) })
    }

    /// The content. It is read from the workspace, which lives as long as the outcome, or from memory.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        match &self.content {
            Content::Workspace(store) => crate::platform::read_artifact(self, store),
            Content::Bytes(bytes) => Ok(bytes.to_vec()),
        }
    }
}

/// The SHA-256 of bytes, in lower-case hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(content) {
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
    }
    text
}

/// What a run hands back. The run itself succeeded; what the program did is in [`Outcome::verdict`].
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// How the program ended.
    pub verdict: Verdict,
    /// The exit status, when the program exited by itself.
    pub exit_code: Option<i32>,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// The value of the last expression of code, or of the last line `::result JSON` on standard output.
    pub value: Option<serde_json::Value>,
    /// Whether standard output has the value already: as a line `::result JSON`, or because the language prints it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub value_printed: bool,
    /// The regular files that the program created or changed.
    pub artifacts: Vec<Artifact>,
    /// What changed in the workspace.
    pub changes: Changes,
    /// What became of the changes to a host directory. None where there was no private layer, or nothing in it.
    pub applied: Option<Applied>,
    /// What the run used.
    pub usage: Usage,
    /// What confined the run.
    pub report: Report,
}

impl Outcome {
    /// An outcome with no output, no value and no files: its fields are then filled in.
    pub fn new(verdict: Verdict, report: Report) -> Self {
        Self {
            verdict,
            exit_code: None,
            stdout: Captured::default(),
            stderr: Captured::default(),
            value: None,
            value_printed: false,
            artifacts: Vec::new(),
            changes: Changes::default(),
            applied: None,
            usage: Usage::default(),
            report,
        }
    }

    /// Copies the artifacts into a directory of the host, in their order.
    ///
    /// It is a [`SafeDirectory`]: nothing is overwritten, and a protected path is rejected.
    pub fn export(&self, directory: &Path) -> Result<Vec<Result<PathBuf, Rejection>>, Error> {
        let fail = |action, path: &Path, source| Error::File { action, path: path.to_owned(), source };
        let target = SafeDirectory::open(directory).map_err(|source| fail("export to", directory, source))?;
        let export = |artifact: &Artifact| match target
            .write(Path::new(&artifact.path), &mut artifact.read()?.as_slice())
        {
            Ok(path) => Ok(Ok(path)),
            Err(WriteError::Rejected(rejection)) => Ok(Err(rejection)),
            Err(WriteError::Io(source)) => {
                Err(fail("write artifact", &directory.join(&artifact.path), source))
            }
        };
        self.artifacts.iter().map(export).collect()
    }
}

/// Bytes as lower-case hexadecimal digits.
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
