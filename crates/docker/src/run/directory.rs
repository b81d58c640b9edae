//! A host directory as workspace: copies its files in before the run and changes back after it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use toolpost_egress::shorten;

use super::{Listing, Read as _, Run, WorkspaceFile};
use toolpost_sandbox::{Changes, Error, ProtectedEntryKind, Rejection, Report, Workspace};

/// The maximum number of notes of one kind.
const MAX_NOTES: usize = 20;

impl Run<'_> {
    /// Copies the files of the directory into the workspace.
    pub(super) fn copy_in(&mut self) -> Result<(), Error> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        let Workspace::Host(place) = self.request.workspace() else { return Ok(()) };
        let limit = self.limits.workspace_bytes;
        let files = directory.files();
        let size = files.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
        if size > limit {
            let hint = "raise the limit `workspace_bytes`, or use the backend `process`";
            return Err(Error::TooLarge { what: "workspace", size, maximum: limit, hint });
        }
        let mut refused = Notes::default();
        for (path, size) in files {
            let (file, is_executable) = match directory.read(&path) {
                Ok(opened) => opened,
                Err(error) => {
                    refused.add(&path, &error.to_string());
                    continue;
                }
            };
            self.send_file(path.as_os_str().as_bytes(), file.take(size), &place.join(&path))?;
            if is_executable {
                self.channel().send(b'X', &[]);
            }
        }
        refused.report("is not copied into the container", &mut self.report);
        if directory.others() > 0 {
            let count = directory.others();
            self.report
                .notes
                .push(format!("{count} links and other special files are not copied into the container"));
        }
        self.report.notes.push("the workspace is a copy of the directory; changes are copied back".into());
        self.directory = Some(directory);
        Ok(())
    }

    /// Copies new, changed and deleted files back.
    pub(super) fn copy_back(
        &mut self,
        changes: &Changes,
        after: &Listing,
        report: &mut Report,
    ) -> Result<(), Error> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        let mut refused = Notes::default();
        let mut left = self.limits.workspace_bytes;
        let is_written = |path: &PathBuf| {
            changes.new.contains(path) || changes.changed.contains(path) || !directory.had(path)
        };
        let written: Vec<_> = after.files.iter().filter(|(path, _)| is_written(path)).collect();
        let deleted: Vec<_> = changes.deleted.iter().filter(|path| directory.had(path)).collect();
        // Judge all changes together: a repository may come in parts.
        let kind = |entry: &WorkspaceFile| {
            if entry.is_regular() { ProtectedEntryKind::File } else { ProtectedEntryKind::Special }
        };
        let files = written.iter().map(|(path, entry)| (PathBuf::clone(path), Some(kind(entry))));
        let judged =
            directory.protected(files.chain(deleted.iter().map(|path| (PathBuf::clone(path), None))));
        for (path, entry) in written {
            if let Some(protection) = judged.get(path) {
                refused.add(path, &Rejection::Protected(*protection).to_string());
            } else if !entry.is_regular() || entry.names() != 1 {
                refused.add(path, "it is not a regular file with one link");
            } else if entry.size() > left {
                // A sparse file may claim more than the workspace limit.
                refused.add(path, "it exceeds the workspace limit");
            } else {
                left -= entry.size();
                let written = match self.fetch_bytes(path.as_os_str().as_bytes(), entry.size())? {
                    Ok(content) => directory.write(path, &content, entry.is_executable()),
                    Err(reason) => Err(reason),
                };
                if let Err(reason) = written {
                    refused.add(path, &reason);
                }
            }
        }
        for path in deleted {
            if let Some(protection) = judged.get(path) {
                refused.add(path, &Rejection::Protected(*protection).to_string());
            } else if let Err(reason) = directory.remove(path) {
                refused.add(path, &reason);
            }
        }
        refused.report("is not copied back", report);
        Ok(())
    }
}

/// Skipped files with reasons.
#[derive(Debug, Default)]
struct Notes {
    lines: Vec<(String, String)>,
    more: usize,
}

impl Notes {
    fn add(&mut self, path: &Path, reason: &str) {
        if self.lines.len() < MAX_NOTES {
            self.lines.push((shorten(&path.to_string_lossy()), reason.to_owned()));
        } else {
            self.more += 1;
        }
    }

    fn report(self, what: &str, report: &mut Report) {
        report
            .notes
            .extend(self.lines.into_iter().map(|(name, reason)| format!("`{name}` {what}: {reason}")));
        if self.more > 0 {
            report.notes.push(format!("{} more files likewise", self.more));
        }
    }
}
