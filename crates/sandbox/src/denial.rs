//! Reasons for which apply does not write a path, with a hint for each.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::protected::{Protection, ProtectionRule};
use crate::review::lossy;
use crate::{Rejection, SandboxHint};

/// A path that apply denied, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denied {
    /// The path, relative to the directory.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The reason.
    pub reason: DenialReason,
    /// The reason as a sentence without a full stop.
    pub message: String,
    /// The text of the fix, as a sentence ([`DenialReason::hint`]).
    #[serde(default)]
    pub hint: Option<String>,
}

impl Denied {
    pub(crate) fn new(path: &Path, reason: DenialReason) -> Self {
        let (message, hint) = (reason.to_string(), reason.hint().map(|hint| hint.to_string()));
        Self { path: path.to_owned(), reason, message, hint }
    }

    /// The fix. One that another process wrote may have no more than its text.
    pub fn hint(&self) -> Option<SandboxHint> {
        self.reason.hint().or_else(|| self.hint.as_deref().map(SandboxHint::other))
    }
}

/// The reason for which apply denied a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
#[non_exhaustive]
pub enum DenialReason {
    /// Host programs execute or obey it. [`crate::Sandbox::allow_protected`] allows it.
    Protected(ProtectionRule),
    /// The host's entry changed since the run read it.
    Conflict,
    /// A `.gitattributes` file with drivers, which git executes.
    GitDriver,
    /// A commit, a stash or the index has it, and git would write it into the work tree. References and index are
    /// held. [`crate::Sandbox::allow_protected`] allows it.
    Committed(ProtectionRule),
    /// A socket, a FIFO or a device.
    Special,
    /// It replaces a directory with entries that apply does not delete.
    NotEmpty,
    /// The host returned an error.
    Failed(HostError),
}

impl DenialReason {
    /// Whether the state of the host is the reason, and not a rule.
    pub fn is_by_host(&self) -> bool {
        matches!(self, Self::Conflict | Self::Failed(_))
    }

    /// Whether [`crate::Sandbox::allow_protected`] allows the path.
    pub fn is_allowable(&self) -> bool {
        match self {
            Self::Protected(rule) | Self::Committed(rule) => rule.kind.is_allowable(),
            Self::GitDriver => true,
            Self::Conflict | Self::Special | Self::NotEmpty | Self::Failed(_) => false,
        }
    }

    /// The fix for the operator. None if no fix is known.
    pub fn hint(&self) -> Option<SandboxHint> {
        match self {
            reason if reason.is_allowable() => Some(SandboxHint::AllowProtected),
            Self::Protected(rule) | Self::Committed(rule) if rule.kind == Protection::Own => {
                Some(SandboxHint::other("Toolpost keeps its own files there; choose other paths."))
            }
            Self::Protected(_) | Self::Committed(_) => Some(SandboxHint::TrustAgain),
            Self::Conflict => Some(SandboxHint::other(
                "The directory changed during the run: move the host's version, then apply again or repeat the run.",
            )),
            Self::Failed(error) => error.hint(),
            Self::GitDriver | Self::Special | Self::NotEmpty => None,
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected(rule) => write!(formatter, "protected: {rule}"),
            Self::Conflict => formatter.write_str("conflict: it changed on the host during the run"),
            Self::GitDriver => formatter.write_str("protected: git executes the drivers that it names"),
            Self::Committed(rule) => {
                write!(formatter, "git would write it from a commit or the index: {rule}")
            }
            Self::Special => formatter.write_str("it is a socket, a FIFO or a device"),
            Self::NotEmpty => formatter.write_str("it replaces a directory with denied entries"),
            Self::Failed(error) => write!(formatter, "{error}"),
        }
    }
}

impl Protection {
    /// Whether [`crate::Sandbox::allow_protected`] allows paths of this reason.
    pub fn is_allowable(self) -> bool {
        !matches!(self, Self::Trusted | Self::TrustedCode | Self::Own)
    }
}

impl Rejection {
    /// Whether the operator can allow the path.
    pub fn is_allowable(&self) -> bool {
        match self {
            Self::Protected(rule) => rule.kind.is_allowable(),
            Self::GitDriver => true,
            Self::Name => false,
        }
    }
}

/// An error of the host during apply. In JSON, its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostError {
    kind: io::ErrorKind,
    message: String,
}

impl HostError {
    /// The kind of error.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }

    fn hint(&self) -> Option<SandboxHint> {
        Some(SandboxHint::other(match self.kind {
            io::ErrorKind::CrossesDevices => return Some(SandboxHint::OtherFileSystem),
            io::ErrorKind::PermissionDenied => {
                "Give your user write permission there, then apply again or repeat the run."
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "Mount the file system writable, then apply again or repeat the run."
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "Free disk space, then apply again or repeat the run."
            }
            _ => return None,
        }))
    }
}

impl From<io::Error> for HostError {
    fn from(error: io::Error) -> Self {
        Self { kind: error.kind(), message: error.to_string() }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Serialize for HostError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.message)
    }
}

impl<'de> Deserialize<'de> for HostError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { kind: io::ErrorKind::Other, message: String::deserialize(deserializer)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_hint() {
        const ALLOW: &str = "The operator can allow the path.";
        let failed = |errno: i32| DenialReason::Failed(io::Error::from_raw_os_error(errno).into());
        let protected = |kind: Protection| DenialReason::Protected(kind.into());
        for (reason, expected) in [
            (protected(Protection::Repository), Some(ALLOW)),
            (protected(Protection::Credentials), Some(ALLOW)),
            (protected(Protection::StartFile), Some(ALLOW)),
            (protected(Protection::Editor), Some(ALLOW)),
            (protected(Protection::Agent), Some(ALLOW)),
            (protected(Protection::SearchPath), Some(ALLOW)),
            (protected(Protection::Instructions), Some(ALLOW)),
            (DenialReason::GitDriver, Some(ALLOW)),
            (DenialReason::Committed(Protection::Editor.into()), Some(ALLOW)),
            (protected(Protection::Trusted), Some("trust the file of the target again")),
            (protected(Protection::TrustedCode), Some("trust the file of the target again")),
            (protected(Protection::Own), Some("choose other paths")),
            (DenialReason::Conflict, Some("move the host's version")),
            (DenialReason::Special, None),
            (DenialReason::NotEmpty, None),
            // EPERM, EACCES, EXDEV, ENOSPC, EROFS, EDQUOT, EIO.
            (failed(1), Some("write permission")),
            (failed(13), Some("write permission")),
            (failed(18), Some("as the working directory")),
            (failed(28), Some("Free disk space")),
            (failed(30), Some("Mount the file system writable")),
            (failed(122), Some("Free disk space")),
            (failed(5), None),
        ] {
            let hint = reason.hint().map(|hint| hint.to_string());
            assert_eq!(hint.is_some(), expected.is_some(), "{reason:?}");
            let has = hint.as_ref().zip(expected).is_none_or(|(hint, expected)| hint.contains(expected));
            assert!(has, "{reason:?}: {hint:?}");
            assert_eq!(
                hint.as_ref().is_some_and(|hint| hint.contains(ALLOW)),
                reason.is_allowable(),
                "{reason:?}"
            );
            assert!(hint.is_none_or(|hint| hint.matches(['.', ';']).count() <= 3 && hint.ends_with('.')));
        }
    }
}
