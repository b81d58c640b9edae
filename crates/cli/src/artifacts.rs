//! Stores the artifacts of runs, and reports files that were not stored.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost_core::{Artifact, ArtifactData, CallRecord, RunId};
use toolpost_sandbox::UnreturnedFile;

use crate::args::AgentArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::outcome::evidence;
use crate::workspace::{Store, Workspace, all_rejected, names_of};

/// The maximum number of notices of one kind.
const MAX_NOTICES: usize = 5;

/// The artifact store; none for a host directory without `--artifacts`.
pub(crate) fn store(args: &AgentArgs, config: &Config, workspace: &Workspace, id: RunId) -> Option<Store> {
    let is_named = args.artifacts.is_some() || config.settings.artifacts.is_some();
    let is_fresh = matches!(workspace, Workspace::Fresh { .. });
    (is_named || is_fresh).then(|| Store::new(artifacts(args, config, id)))
}

/// The artifact directory of a run.
pub(crate) fn artifacts(args: &AgentArgs, config: &Config, id: RunId) -> PathBuf {
    let default =
        || config.settings.artifacts.clone().unwrap_or_else(|| "artifacts".into()).join(id.to_string());
    args.artifacts.clone().unwrap_or_else(default)
}

/// The files of a fresh directory that were not stored.
#[derive(Debug, Default)]
pub(crate) struct UnstoredFiles {
    /// Links, pipes and files with several names.
    left: Vec<PathBuf>,
    /// A sentence about each protected path.
    rejected: Vec<String>,
}

impl UnstoredFiles {
    /// Fails if every new file was rejected.
    pub(crate) fn check(&self, artifacts: &[Artifact]) -> Result<(), Failure> {
        let is_nothing_left = !self.rejected.is_empty() && artifacts.is_empty();
        if is_nothing_left { Err(all_rejected(&self.rejected)) } else { Ok(()) }
    }
}

/// Moves new files of a fresh directory to the artifact store.
pub(crate) fn store_files(
    workspace: &Workspace,
    store: &Store,
    artifacts: &mut Vec<Artifact>,
) -> Result<UnstoredFiles, Failure> {
    let (names, left) = workspace.new_files()?;
    let mut rejected = Vec::new();
    // Artifacts of calls name files in the directory, which is removed.
    artifacts.retain(|artifact| !names.iter().any(|name| name.as_os_str() == artifact.name.as_str()));
    for name in names {
        let text = name.to_string_lossy().into_owned();
        let path = match store.store_file(&text, &workspace.path().join(&name)) {
            Ok(path) => path,
            Err(failure) if failure.exit == Exit::Denied => {
                rejected.push(failure.message);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        artifacts.push(Artifact {
            name: path.display().to_string(),
            media_type: media_type(&name).to_owned(),
            size,
            sha256: None,
            data: ArtifactData::Path(path),
        });
    }
    Ok(UnstoredFiles { left, rejected })
}

/// Notices of files that sandboxes dropped or that were not stored.
pub(crate) fn unstored_notices(calls: &[Arc<CallRecord>], files: &UnstoredFiles) -> Vec<String> {
    let reports = calls.iter().filter_map(|call| evidence(call)?.report);
    let dropped: Vec<UnreturnedFile> = reports.flat_map(|report| report.unreturned).collect();
    let mut notices: Vec<String> = Vec::new();
    for notice in dropped.iter().map(ToString::to_string) {
        if !notices.contains(&notice) {
            notices.push(notice);
        }
    }
    let is_noted = |path: &PathBuf| dropped.iter().any(|file| Path::new(&file.path) == path);
    let left: Vec<PathBuf> = files.left.iter().filter(|path| !is_noted(path)).cloned().collect();
    notices.extend(names_of(&left).map(|names| {
        format!("not stored: {names}; links, pipes and files with several names are not artifacts")
    }));
    notices.extend(files.rejected.iter().cloned());
    truncate_notices(notices, "notices of this kind")
}

/// Truncates a list of notices and counts the rest.
pub(crate) fn truncate_notices(mut notices: Vec<String>, what: &str) -> Vec<String> {
    let more = notices.len().saturating_sub(MAX_NOTICES);
    if more > 0 {
        notices.truncate(MAX_NOTICES);
        notices.push(format!("and {more} more {what}"));
    }
    notices
}

/// The media type of a file by its extension.
pub(crate) fn media_type(name: &Path) -> &'static str {
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => "text/csv",
        Some("docx") => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        Some("gif") => "image/gif",
        Some("html") => "text/html",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("json") => "application/json",
        Some("md") => "text/markdown",
        Some("pdf") => "application/pdf",
        Some("png") => "image/png",
        Some("py") => "text/x-python",
        Some("svg") => "image/svg+xml",
        Some("txt" | "log") => "text/plain",
        Some("webp") => "image/webp",
        Some("xlsx") => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        Some("xml") => "application/xml",
        Some("zip") => "application/zip",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_files_are_listed_and_not_stored() {
        for (made, put, is_ok) in [
            (&[".bashrc", "good"][..], &["good"][..], true),
            (&[".git/config", ".octaverc"], &[], false),
            (&[], &[], true),
        ] {
            let workspace = Workspace::open(None, &[]).unwrap();
            for name in made {
                let path = workspace.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            let out = tempfile::tempdir().unwrap();
            let mut artifacts = Vec::new();
            let files = store_files(&workspace, &Store::new(out.path()), &mut artifacts).unwrap();
            let names: Vec<_> = artifacts.iter().map(|artifact| out.path().join(&artifact.name)).collect();
            assert_eq!(names, put.iter().map(|name| out.path().join(name)).collect::<Vec<_>>());
            assert_eq!(
                files.check(&artifacts).map_err(|failure| failure.exit),
                if is_ok { Ok(()) } else { Err(Exit::Denied) }
            );
            let notices = unstored_notices(&[], &files).join("\n");
            for name in made.iter().filter(|name| !put.contains(name)) {
                assert!(notices.contains(&format!("`{name}` was not written")), "{notices}");
            }
        }
    }
}
