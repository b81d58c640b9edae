//! Reviewed changes: what apply does with each change of a run.
//!
//! Apply makes this value, both when it writes and when it only judges ([`crate::HeldRun::review`]). Text and JSON are
//! rendered from it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::denial::DenialReason;
use crate::protected::{Mark, ProtectedEntryKind, Protection, ProtectionRule};

/// The maximum number of written changes, and of others, that [`crate::HeldRun::review`] lists.
pub(crate) const MAX_REVIEWED: usize = 10_000;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// The host has no entry there.
    Created,
    /// The entry stays of its kind: other content, target, mode or time.
    Changed,
    /// The entry is deleted, with all entries beneath.
    Deleted,
    /// An entry of another kind takes its place, such as a link that of a directory.
    Replaced,
}

/// The decision of apply on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReviewDecision {
    /// Apply writes it to the host.
    Applied,
    /// Apply does not write it, and holds it for another apply.
    Held,
    /// Apply does not write it, and discards it.
    Denied,
}

/// An entry before or after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReviewedEntry {
    /// The kind of entry.
    pub kind: ProtectedEntryKind,
    /// The permission bits, in JSON as an octal text such as `0755`. Apply writes no set-user-ID, set-group-ID or sticky
    /// bit. None for links.
    #[serde(with = "octal")]
    pub mode: Option<u32>,
    /// The size of a regular file in bytes.
    pub size: Option<u64>,
    /// The target of a link.
    #[serde(serialize_with = "lossy_target")]
    pub target: Option<PathBuf>,
}

/// A change of one path, and what apply does with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReviewedChange {
    /// The path, relative to the directory.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The host's entry.
    pub before: Option<ReviewedEntry>,
    /// The new entry. None for a deletion.
    pub after: Option<ReviewedEntry>,
    /// The number of entries beneath a directory that is deleted or replaced.
    pub beneath: usize,
    /// The rule that protects the path: that of the denial, or of a path that the operator allows.
    pub protection: Option<ProtectionRule>,
    /// The use of the new entry by other programs.
    pub marks: Vec<Mark>,
    /// The decision of apply.
    pub decision: ReviewDecision,
    /// The reason for which apply does not write the change.
    pub reason: Option<DenialReason>,
    /// The reason as a sentence without a full stop.
    pub message: Option<String>,
    /// The fix, as a sentence.
    pub hint: Option<String>,
}

/// The changes of a run with what apply does: first those that it writes, then held and denied ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Review {
    /// The changes, directories before their content.
    pub changes: Vec<ReviewedChange>,
    /// The number of further changes that apply writes.
    pub more_applied: usize,
    /// The number of further changes that apply does not write.
    pub more_denied: usize,
}

impl Review {
    /// The changes of one decision.
    pub fn with(&self, decision: ReviewDecision) -> impl Iterator<Item = &ReviewedChange> {
        self.changes.iter().filter(move |change| change.decision == decision)
    }

    /// Omits all but the first changes that apply writes, and of the others.
    pub(crate) fn truncate(&mut self, max: usize) {
        let (mut applied, mut denied) = (0, 0);
        self.changes.retain(|change| {
            let is_applied = change.decision == ReviewDecision::Applied;
            let count = if is_applied { &mut applied } else { &mut denied };
            *count += 1;
            *count <= max
        });
        self.more_applied += applied.saturating_sub(max);
        self.more_denied += denied.saturating_sub(max);
    }
}

impl ReviewedChange {
    /// A change that apply writes, unless it has a `reason`.
    pub(crate) fn new(
        path: &Path,
        before: Option<ReviewedEntry>,
        after: Option<ReviewedEntry>,
        reason: Option<DenialReason>,
    ) -> Self {
        let kind = match (&before, &after) {
            (None, Some(_)) => ChangeKind::Created,
            (Some(_), None) => ChangeKind::Deleted,
            (Some(before), Some(after)) if before.kind != after.kind => ChangeKind::Replaced,
            _ => ChangeKind::Changed,
        };
        let decision = if reason.is_none() { ReviewDecision::Applied } else { ReviewDecision::Denied };
        let protection = match reason {
            Some(DenialReason::Protected(rule) | DenialReason::Committed(rule)) => Some(rule),
            Some(DenialReason::GitDriver) => Some(Protection::Repository.into()),
            _ => None,
        };
        let message = reason.as_ref().map(ToString::to_string);
        let hint = reason.as_ref().and_then(DenialReason::hint).map(|hint| hint.to_string());
        Self {
            path: path.to_owned(),
            kind,
            before,
            after,
            beneath: 0,
            protection,
            marks: Vec::new(),
            decision,
            reason,
            message,
            hint,
        }
    }
}

pub(crate) fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

#[expect(clippy::ref_option, reason = "serde passes the field")]
fn lossy_target<S: serde::Serializer>(target: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    target.as_ref().map(|target| target.to_string_lossy()).serialize(serializer)
}

/// Permission bits as an octal text.
mod octal {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
    pub(super) fn serialize<S: Serializer>(mode: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        mode.map(|mode| format!("{mode:04o}")).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| u32::from_str_radix(&text, 8)).transpose().map_err(D::Error::custom)
    }
}
