//! What a run hands back.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::{Error, Report, Usage, Verdict};

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

/// Which files of the workspace a run created, changed and deleted. Paths are relative to the workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Changes {
    /// Files that were not there before.
    pub new: Vec<PathBuf>,
    /// Files whose content, size or time differs.
    pub changed: Vec<PathBuf>,
    /// Files that are gone.
    pub deleted: Vec<PathBuf>,
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
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) store: crate::platform::Store,
}

impl Artifact {
    /// The content. It is read from the workspace, which lives as long as the outcome.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        crate::platform::read_artifact(self)
    }
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
    /// The regular files that the program created or changed.
    pub artifacts: Vec<Artifact>,
    /// What changed in the workspace.
    pub changes: Changes,
    /// What the run used.
    pub usage: Usage,
    /// What confined the run.
    pub report: Report,
}

impl Outcome {
    /// Copies the artifacts into a folder of the host, created if missing. Nothing is overwritten: when a name is
    /// taken, the file gets a number (`plot-1.png`). Gives the paths in the order of [`Outcome::artifacts`].
    pub fn export(&self, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        crate::platform::export(&self.artifacts, folder)
    }
}
