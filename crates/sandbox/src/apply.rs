//! What becomes of the changes that a run made to a host directory.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::protected::{Mark, Protection};
use crate::{Changes, Error, Sandbox};

/// Paths that are named in [`Applied`]; of more only the number is given.
pub(crate) const MAX_NAMED: usize = 200;
/// Existing files that a run may delete without a question, those in directories of build products not counted.
pub(crate) const MAX_DELETED: usize = 1_000;

/// When the changes of a run in a host directory ([`crate::Workspace::Host`]) reach the directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApplyMode {
    /// When the run has ended. A run that was cancelled, or that deletes more than 1,000 files or everything, is held.
    #[default]
    Now,
    /// When [`HeldRun::apply`] is called.
    Hold,
    /// Never: the changes end with the run.
    Discard,
}

/// What became of the changes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApplyState {
    /// What may change has changed.
    Applied,
    /// They wait for [`HeldRun::apply`] or [`HeldRun::discard`].
    Held,
    /// They are gone.
    Discarded,
}

/// A path that apply did not change, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Denied {
    /// The path, relative to the directory.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Why.
    pub reason: DenialReason,
    /// The same as a sentence without a full stop.
    pub message: String,
}

/// Why apply did not change a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
#[non_exhaustive]
pub enum DenialReason {
    /// Host programs execute or obey it. [`crate::Sandbox::allow_protected`] admits it.
    Protected(Protection),
    /// The host's entry is not what the code saw any more.
    Conflict,
    /// A `.gitattributes` with drivers, which git executes.
    GitDriver,
    /// A socket, a FIFO or a device.
    Special,
    /// The host refused.
    Failed(String),
}

impl fmt::Display for DenialReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected(protection) => write!(formatter, "protected: {protection}"),
            Self::Conflict => formatter.write_str("conflict: it changed on the host during the run"),
            Self::GitDriver => formatter.write_str("protected: git executes the drivers that it names"),
            Self::Special => formatter.write_str("it is a socket, a FIFO or a device"),
            Self::Failed(reason) => formatter.write_str(reason),
        }
    }
}

/// A changed path that other programs treat in a special way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Marked {
    /// The path, relative to the directory.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Which programs.
    pub mark: Mark,
}

/// What became of the changes that a run made to a host directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// The run, as `toolpost apply`, `discard` and `undo` take it.
    pub id: String,
    /// What became of its changes.
    pub state: ApplyState,
    /// Why they are held, if they are.
    pub held_because: Option<&'static str>,
    /// How many entries changed on the host.
    pub changed: usize,
    /// How many did not.
    pub denied_count: usize,
    /// The first 200 of those.
    pub denied: Vec<Denied>,
    /// Changed files that build tools execute and agents read, links that lead outside; 200 at most.
    pub marked: Vec<Marked>,
    /// Whether [`HeldRun::undo`] can take the changes back.
    pub can_undo: bool,
}

impl Applied {
    pub(crate) fn new(id: &str, state: ApplyState) -> Self {
        Self {
            id: id.to_owned(),
            state,
            held_because: None,
            changed: 0,
            denied_count: 0,
            denied: Vec::new(),
            marked: Vec::new(),
            can_undo: false,
        }
    }

    pub(crate) fn deny(&mut self, path: &Path, reason: DenialReason) {
        self.denied_count += 1;
        if self.denied.len() < MAX_NAMED {
            let message = reason.to_string();
            self.denied.push(Denied { path: path.to_owned(), reason, message });
        }
    }

    pub(crate) fn mark(&mut self, path: &Path, mark: Mark) {
        if self.marked.len() < MAX_NAMED {
            self.marked.push(Marked { path: path.to_owned(), mark });
        }
    }
}

/// Why changes are held that should have been applied.
pub(crate) const CANCELLED: &str = "the run was cancelled";
pub(crate) const MASS_DELETION: &str = "the run deletes more than 1,000 files, or everything";

/// A run whose changes to a host directory were not applied, or can be taken back.
#[derive(Debug)]
pub struct HeldRun(pub(crate) crate::platform::HeldLayer);

impl HeldRun {
    /// All of this user, the newest first. `layers` is the directory that [`crate::Sandbox::layers`] names, if any.
    pub fn all(layers: Option<&Path>) -> Vec<Self> {
        crate::platform::held_layers(layers).into_iter().map(Self).collect()
    }

    /// The one with this identifier, or the beginning of one.
    pub fn find(id: &str, layers: Option<&Path>) -> Result<Self, Error> {
        crate::platform::held_layer(id, layers).map(Self)
    }

    /// Its identifier: eight hexadecimal digits.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// The host directory.
    pub fn directory(&self) -> PathBuf {
        self.0.host_directory()
    }

    /// When the run began.
    pub fn started(&self) -> SystemTime {
        self.0.started()
    }

    /// Whether its changes wait. If not, they were applied and can be taken back.
    pub fn is_waiting(&self) -> bool {
        self.0.is_waiting()
    }

    /// What would change.
    pub fn changes(&self) -> Changes {
        self.0.changes()
    }

    /// The content that a changed file would have, at most `limit` bytes. None for anything but a regular file.
    pub fn content(&self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        self.0.content(path, limit)
    }

    /// Applies its changes. `allowed` are protected paths that are admitted, relative to the directory.
    pub fn apply(self, allowed: &[PathBuf]) -> Result<Applied, Error> {
        self.0.apply(allowed)
    }

    /// Removes its changes.
    pub fn discard(self) {
        self.0.discard();
    }

    /// Takes back what was applied, where the host's entry is still the one that apply made.
    pub fn undo(self) -> Result<Applied, Error> {
        self.0.undo()
    }
}

/// A private copy of a host directory, in which tools work until the changes are applied, held or discarded as a whole.
///
/// Programs and file tools work in [`StagedDirectory::path`] as in any host directory ([`crate::Workspace::Host`]). What
/// they change there is not held and cannot be taken back by itself. Sockets, pipes, devices, other mounts and unreadable
/// entries are not copied, and never change. At most [`crate::Limits::layer_bytes`] and [`crate::Limits::layer_inodes`]
/// are copied. The changes of a process that was killed are held.
#[derive(Debug)]
pub struct StagedDirectory(crate::platform::StagedLayer);

impl StagedDirectory {
    /// Copies a directory. Of `sandbox` the limits and [`Sandbox::layers`], [`Sandbox::apply`],
    /// [`Sandbox::allow_protected`] and [`Sandbox::protect`] count.
    ///
    /// # Errors
    /// [`Error::Workspace`] if the directory is too large, or cannot be copied.
    pub fn copy(directory: &Path, sandbox: &Sandbox) -> Result<Self, Error> {
        crate::platform::StagedLayer::create(directory, sandbox).map(Self)
    }

    /// The copy.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The host directory, without symbolic links.
    pub fn original(&self) -> PathBuf {
        self.0.host_directory()
    }

    /// What was not copied, relative to the directory.
    pub fn not_copied(&self) -> impl Iterator<Item = &Path> {
        self.0.not_copied()
    }

    /// Remarks on what earlier runs have left there, as in [`crate::Report::notes`].
    pub fn notes(&self) -> &[String] {
        self.0.notes()
    }

    /// Ends the copy, and applies, holds or discards what changed in it ([`Sandbox::apply`]). Nothing may run in it any
    /// more.
    pub fn end(self) -> Result<Applied, Error> {
        self.0.end()
    }
}

fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
