//! `Outcome`: the result of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::sandbox::check_file_name;
use crate::{Applied, Error, Rejection, Report, ResourceUsage, SafeDirectory, Verdict, WriteError};

/// Output of a running program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SandboxEvent<'a> {
    /// Bytes of standard output as they arrived; lines and UTF-8 sequences may be split.
    Stdout(&'a [u8]),
    /// Bytes of standard error.
    Stderr(&'a [u8]),
}

/// Captured output: head and tail.
///
/// Serializes as `text`, with a mark for dropped bytes, and `dropped`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes; empty if nothing was dropped.
    pub tail: Vec<u8>,
    /// The number of bytes dropped between head and tail.
    pub dropped: u64,
}

impl Captured {
    fn size(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64 + self.dropped
    }

    /// Captures at most `limit` bytes of an output: the first and last half.
    pub fn keep(bytes: &[u8], limit: usize) -> Self {
        if bytes.len() <= limit {
            return Self { head: bytes.to_vec(), tail: Vec::new(), dropped: 0 };
        }
        let (head, rest) = bytes.split_at(limit - limit / 2);
        let tail = rest.get(rest.len() - limit / 2..).unwrap_or_default();
        let dropped = (bytes.len() - limit) as u64;
        Self { head: head.to_vec(), tail: tail.to_vec(), dropped }.at_characters()
    }

    /// Drops the parts of characters at the gap, if the bytes around it are UTF-8.
    pub(crate) fn at_characters(mut self) -> Self {
        if self.dropped == 0 {
            return self;
        }
        let is_text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(_) => true,
            // The output may end inside a character.
            Err(error) => error.error_len().is_none(),
        };
        let begun = match std::str::from_utf8(&self.head) {
            Err(error) if error.error_len().is_none() => self.head.len() - error.valid_up_to(),
            _ => 0,
        };
        let is_rest = |byte: &&u8| matches!(byte, 0x80..=0xbf);
        let rest = self.tail.iter().take_while(is_rest).count();
        let rest = if rest < 4 && self.tail.get(rest..).is_some_and(is_text) { rest } else { 0 };
        self.head.truncate(self.head.len() - begun);
        self.tail.drain(..rest);
        self.dropped += (begun + rest) as u64;
        self
    }

    /// Returns head and tail, with a line between them that counts dropped bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        if self.dropped > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes dropped …]\n", self.dropped).as_bytes());
        }
        bytes.extend_from_slice(&self.tail);
        bytes
    }

    /// Returns the same as text with invalid UTF-8 replaced.
    ///
    /// Control characters remain; escape them before printing.
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

/// The workspace files that a run created, changed and deleted.
///
/// Paths are relative to the workspace. In JSON, U+FFFD replaces invalid UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Changes {
    /// New files.
    #[serde(serialize_with = "serialize_paths")]
    pub new: Vec<PathBuf>,
    /// Files with other content, size or modification time.
    #[serde(serialize_with = "serialize_paths")]
    pub changed: Vec<PathBuf>,
    /// Deleted files.
    #[serde(serialize_with = "serialize_paths")]
    pub deleted: Vec<PathBuf>,
}

fn serialize_paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// A file that the program created or changed in its workspace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SandboxArtifact {
    /// The path relative to the workspace: valid UTF-8, no `..`, no control characters.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 of the content, in lower-case hexadecimal.
    pub sha256: String,
    /// The media type from extension and first bytes; `application/octet-stream` if unknown.
    pub media_type: &'static str,
    /// Whether its owner may execute it, without set-ID bits. An export preserves that.
    #[serde(skip)]
    pub is_executable: bool,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// The content of an artifact.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// A workspace file. The workspace lives as long as this value.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side makes it")
    )]
    Workspace(crate::platform::Store),
    /// In memory.
    Bytes(Arc<[u8]>),
}

impl SandboxArtifact {
    /// Creates an artifact from bytes in memory.
    ///
    /// A path that is unsafe on a host, for example with `..` or a control character, returns
    /// [`Error::InvalidName`].
    pub fn from_bytes(path: impl Into<String>, content: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        let (path, content) = (path.into(), content.into());
        check_file_name(&path)?;
        let sha256 = sha256(&content);
        let first = content.get(..content.len().min(16)).unwrap_or_default();
        let media_type = crate::media::media_type(&path, first);
        let (size, content) = (content.len() as u64, Content::Bytes(content));
        Ok(Self { path, size, sha256, media_type, is_executable: false, content })
    }

    /// Reads the content from memory or from the workspace, which lives as long as the outcome.
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

/// The result of a run. [`Outcome::verdict`] tells how the program ended.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The end of the program.
    pub verdict: Verdict,
    /// The exit status, if the program exited by itself.
    pub exit_code: Option<i32>,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// The value of the last expression, or of the last line `::result JSON` on standard output.
    ///
    /// A part that JSON cannot hold exactly is `{"type": …, "text": …}`, with the language's own text. An integer
    /// beyond 64 bits has the type `int` and its digits. A value whose JSON exceeds [`crate::Limits::value_bytes`]
    /// has its first characters as `text` and its `size` in bytes.
    pub value: Option<serde_json::Value>,
    /// Whether standard output contains the value too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub value_printed: bool,
    /// The regular files that the program created or changed.
    pub artifacts: Vec<SandboxArtifact>,
    /// Changes in the workspace.
    pub changes: Changes,
    /// The state of the changes to a host directory. None without a private layer or without changes.
    pub applied: Option<Applied>,
    /// The resources that the run used.
    pub usage: ResourceUsage,
    /// The layers that confined the run.
    pub report: Report,
}

impl Outcome {
    /// The size of standard output and standard error together, in bytes, if a limit dropped a part of them.
    pub fn truncated_size(&self) -> Option<u64> {
        (self.stdout.dropped + self.stderr.dropped > 0).then(|| self.stdout.size() + self.stderr.size())
    }

    /// Creates an outcome without output, value and files, for a backend to fill in.
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
            usage: ResourceUsage::default(),
            report,
        }
    }

    /// Copies the artifacts in order into a host directory.
    ///
    /// The directory is a [`SafeDirectory`]: nothing is overwritten, and protected paths are rejected.
    pub fn export(&self, directory: &Path) -> Result<Vec<Result<PathBuf, Rejection>>, Error> {
        let fail = |action, path: &Path, source| Error::File { action, path: path.to_owned(), source };
        let target = SafeDirectory::open(directory).map_err(|source| fail("export to", directory, source))?;
        let export = |artifact: &SandboxArtifact| match target.write_with(
            Path::new(&artifact.path),
            &mut artifact.read()?.as_slice(),
            artifact.is_executable,
        ) {
            Ok(path) => Ok(Ok(path)),
            Err(WriteError::Rejected(rejection)) => Ok(Err(rejection)),
            Err(WriteError::Io(source)) => {
                Err(fail("write artifact", &directory.join(&artifact.path), source))
            }
        };
        self.artifacts.iter().map(export).collect()
    }
}

/// The facts of a run in the record of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunEvidence {
    /// The end of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The resources that the run used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
    /// The layers that confined the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// The variables with secret values of a program that serves several calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw_variables: Vec<String>,
}

impl RunEvidence {
    /// The evidence of a program that serves several calls and has these variables.
    pub fn of_raw_variables(raw_variables: Vec<String>) -> Self {
        Self { raw_variables, ..Self::default() }
    }

    /// Reads evidence. None if it has another form.
    pub fn read(value: &serde_json::Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// The evidence as JSON.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl From<&Outcome> for RunEvidence {
    fn from(outcome: &Outcome) -> Self {
        Self {
            verdict: Some(outcome.verdict.clone()),
            usage: Some(outcome.usage.clone()),
            report: Some(outcome.report.clone()),
            raw_variables: Vec::new(),
        }
    }
}

/// Formats bytes as lower-case hexadecimal digits.
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
