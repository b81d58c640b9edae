//! The state of the changes that a run made to a host directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize};

use crate::denial::{DenialReason, Denied};
use crate::protected::Mark;
use crate::review::{Review, ReviewDecision, ReviewedChange, ReviewedEntry, lossy};
use crate::{Changes, Error, ProtectedEntryKind, Sandbox, SandboxHint};

/// The version of the format of held changes.
pub(crate) const VERSION: u32 = 2;

/// The number of paths that [`Applied`] lists; the rest are only counted.
pub(crate) const MAX_NAMED: usize = 200;
/// The number of files that a run may delete without being held.
pub(crate) const MAX_DELETED: usize = 1_000;

/// When the changes of a run in a host directory ([`crate::Workspace::Host`]) reach the directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApplyMode {
    /// At the end of the run. A cancelled run is held, and one that deletes all files (at least 2), over half of at
    /// least 10, or more than 1,000. Moved files, build directories and files that `.gitignore` names do not count.
    #[default]
    Now,
    /// On [`HeldRun::apply`].
    Hold,
    /// Never: the changes are discarded with the run.
    Discard,
}

/// The state of a run's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApplyState {
    /// Allowed changes are on the host. [`Applied::held_count`] others can still wait.
    Applied,
    /// The changes wait for [`HeldRun::apply`] or [`HeldRun::discard`].
    Held,
    /// The changes were discarded.
    Discarded,
}

/// A changed path that other programs execute or obey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Marked {
    /// The path, relative to the directory.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The kind of use.
    pub mark: Mark,
}

/// The state of the changes that a run made to a host directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Applied {
    /// The run id for `toolpost apply`, `discard` and `undo`.
    pub id: String,
    /// The state of the changes.
    pub state: ApplyState,
    /// The reason why the changes are held, if they are.
    #[serde(deserialize_with = "known_reason")]
    pub held_because: Option<Sentence>,
    /// The number of entries changed on the host.
    pub changed: usize,
    /// The number of denied entries.
    pub denied_count: usize,
    /// The number of denied changes that stay held for another [`HeldRun::apply`].
    pub held_count: usize,
    /// The number of changes that conflicts and errors of the host prevented, outside of build directories. Unlike
    /// other denied changes, they broke no rule.
    pub failed_count: usize,
    /// The first 200 denied entries.
    pub denied: Vec<Denied>,
    /// Changed files that build tools execute or agents read, and links that lead outside; at most 200.
    pub marked: Vec<Marked>,
    /// Whether [`HeldRun::undo`] can revert the changes.
    pub can_undo: bool,
    /// The changes with what apply did, or does once they are no longer held; the first 200 that it writes, and the
    /// first 200 others.
    #[serde(default)]
    pub review: Review,
    /// Whether nothing was applied because of a conflict, so that the run is repeated ([`crate::Repeat`]).
    #[serde(skip)]
    pub(crate) is_postponed: bool,
}

impl Applied {
    pub(crate) fn new(id: &str, state: ApplyState) -> Self {
        Self {
            id: id.to_owned(),
            state,
            held_because: None,
            changed: 0,
            denied_count: 0,
            held_count: 0,
            failed_count: 0,
            denied: Vec::new(),
            marked: Vec::new(),
            can_undo: false,
            review: Review::default(),
            is_postponed: false,
        }
    }

    /// The sentence, without a full stop, for changes that broke no rule and were not applied. None if there are none.
    pub fn failure(&self) -> Option<String> {
        if self.failed_count == 0 {
            return None;
        }
        let is_failed = |denied: &&Denied| denied.reason.is_by_host();
        let (path, reason) = match self.denied.iter().find(is_failed) {
            Some(denied) => (denied.path.display().to_string(), denied.message.as_str()),
            None => ("…".to_owned(), "it is not among the first denied entries"),
        };
        let more = match self.failed_count - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let held = if self.held_count > 0 { "; this run's version is held" } else { "" };
        Some(format!("`{path}` was not applied ({reason}){more}{held}"))
    }

    /// The fix for the cause that [`Applied::failure`] names. None if none is known.
    pub fn failure_hint(&self) -> Option<SandboxHint> {
        self.denied.iter().find(|denied| denied.reason.is_by_host())?.hint()
    }

    pub(crate) fn deny(&mut self, path: &Path, reason: DenialReason) {
        self.denied_count += 1;
        if self.denied.len() < MAX_NAMED {
            self.denied.push(Denied::new(path, reason));
        }
    }

    /// Denies a change that is not in the layer.
    pub(crate) fn deny_unlisted(&mut self, path: &Path, reason: DenialReason, decision: ReviewDecision) {
        let is_special = reason == DenialReason::Special;
        let after = is_special.then_some(ReviewedEntry {
            kind: ProtectedEntryKind::Special,
            mode: None,
            size: None,
            target: None,
        });
        let change = ReviewedChange::new(path, None, after, Some(reason.clone()));
        self.review.changes.push(ReviewedChange { decision, ..change });
        self.review.truncate(MAX_NAMED);
        self.deny(path, reason);
    }

    pub(crate) fn mark(&mut self, path: &Path, mark: Mark) {
        let is_listed = |marked: &Marked| marked.path.as_os_str() == path.as_os_str() && marked.mark == mark;
        if self.marked.len() < MAX_NAMED && !self.marked.iter().any(is_listed) {
            self.marked.push(Marked { path: path.to_owned(), mark });
        }
    }
}

/// Reasons for holding changes instead of applying them.
pub(crate) const CANCELLED: &str = "the run was cancelled";
pub(crate) const OVER_LIMIT: &str = "the changes exceed a limit of the run";
pub(crate) const MASS_DELETION: &str = "the run deletes all files, over half of them, or more than 1,000";

/// A reason of this program. By its name, deserialized values borrow nothing.
type Sentence = &'static str;

/// One of these reasons; another program may have others.
fn known_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static str>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let known =
        |text: String| [CANCELLED, OVER_LIMIT, MASS_DELETION].into_iter().find(|known| *known == text);
    Ok(text.and_then(known))
}

/// A run with held changes, or with applied changes that can be undone.
#[derive(Debug)]
pub struct HeldRun(pub(crate) crate::platform::HeldLayer);

impl HeldRun {
    /// The version of the format of held changes.
    pub const FORMAT: u32 = VERSION;

    /// Lists all runs of this user, newest first. `layers` is the directory of [`crate::Sandbox::layers`], if
    /// set.
    pub fn all(layers: Option<&Path>) -> Vec<Self> {
        crate::platform::held_layers(layers).into_iter().map(Self).collect()
    }

    /// Finds a run by its id or a unique prefix of it.
    pub fn find(id: &str, layers: Option<&Path>) -> Result<Self, Error> {
        crate::platform::held_layer(id, layers).map(Self)
    }

    /// The id: eight hexadecimal digits.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// The host directory.
    pub fn directory(&self) -> PathBuf {
        self.0.host_directory()
    }

    /// The start of the run.
    pub fn started(&self) -> SystemTime {
        self.0.started()
    }

    /// Whether changes wait; otherwise all were applied.
    pub fn is_waiting(&self) -> bool {
        self.0.is_waiting()
    }

    /// Whether changes were applied and can be undone, even if others still wait.
    pub fn can_undo(&self) -> bool {
        self.0.can_undo()
    }

    /// The reasons for runs whose records this program does not open: a format, or an invalid proof.
    pub fn unproven(layers: Option<&Path>) -> Vec<String> {
        crate::platform::unproven_layers(layers)
    }

    /// The changes.
    pub fn changes(&self) -> Changes {
        self.0.changes()
    }

    /// Returns the new content of a changed file, at most `limit` bytes. None for anything but a regular
    /// file.
    pub fn content(&self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        self.0.content(path, limit)
    }

    /// Judges the changes as [`HeldRun::apply`] would now, and writes nothing.
    ///
    /// Lists the first 10,000 changes that apply writes, and the first 10,000 others. An error of the host is foreseen if
    /// the host's permissions and mounts show it.
    pub fn review(&self, allowed: &[PathBuf]) -> Result<Review, Error> {
        self.0.review(allowed)
    }

    /// Applies the changes. `allowed` are protected paths to change anyway, relative to the directory.
    ///
    /// Denied changes stay held ([`Applied::held_count`]).
    pub fn apply(self, allowed: &[PathBuf]) -> Result<Applied, Error> {
        self.0.apply(allowed)
    }

    /// Discards the changes that wait. Applied ones can still be undone.
    pub fn discard(self) {
        self.0.discard();
    }

    /// Undoes the applied changes, where the host's entry is still the one that apply wrote.
    pub fn undo(self) -> Result<Applied, Error> {
        self.0.undo(&mut crate::platform::Restored::default())
    }

    /// The id of the run that this one belongs to ([`crate::RunChanges`]).
    pub fn run(&self) -> Option<&str> {
        self.0.run()
    }

    /// Undoes the applied changes of all runs that belong to the run with this id or unique prefix, the last one first.
    ///
    /// None if there is no such run. The changes of file tools are among them.
    pub fn undo_run(id: &str, layers: Option<&Path>) -> Option<Result<Applied, Error>> {
        let all = crate::platform::held_layers(layers);
        let ids: std::collections::BTreeSet<String> = all
            .iter()
            .filter_map(|layer| layer.run())
            .filter(|run| run.starts_with(id))
            .map(str::to_owned)
            .collect();
        let id = ids.first().filter(|_| ids.len() == 1 && !id.is_empty())?.clone();
        let mut restored = crate::platform::Restored::default();
        let mut whole = Applied::new(&id, ApplyState::Discarded);
        // The newest first.
        for layer in all.into_iter().filter(|layer| layer.run() == Some(&id) && layer.can_undo()) {
            match layer.undo(&mut restored) {
                Ok(applied) => {
                    whole.changed += applied.changed;
                    whole.held_count += applied.held_count;
                    whole.failed_count += applied.failed_count;
                    for denied in applied.denied {
                        whole.deny(&denied.path, denied.reason);
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(whole))
    }
}

/// A private copy of a host directory for tools; its changes are applied, held or discarded together.
///
/// Programs and file tools work in [`StagedDirectory::path`] as in any host directory
/// ([`crate::Workspace::Host`]). A single change in the copy cannot be held or undone. Sockets, pipes,
/// devices, other mounts and unreadable entries are not copied and never change. The copy holds at most
/// [`crate::Limits::layer_bytes`] and [`crate::Limits::layer_inodes`]. If its process is killed, the changes
/// are held.
#[derive(Debug)]
pub struct StagedDirectory(crate::platform::StagedLayer);

impl StagedDirectory {
    /// Copies a directory. Uses only the limits of `sandbox` and [`Sandbox::layers`], [`Sandbox::apply`],
    /// [`Sandbox::allow_protected`] and [`Sandbox::protect`].
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

    /// The entries that were not copied, relative to the directory.
    pub fn not_copied(&self) -> impl Iterator<Item = &Path> {
        self.0.not_copied()
    }

    /// Notes on leftovers of earlier runs, as in [`crate::Report::notes`].
    pub fn notes(&self) -> &[String] {
        self.0.notes()
    }

    /// Ends the copy and applies, holds or discards its changes ([`Sandbox::apply`]). No program may still
    /// run in it.
    pub fn end(self) -> Result<Applied, Error> {
        self.0.end()
    }
}
