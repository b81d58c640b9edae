//! The files of one run: its workspace, its artifacts, and its changes of a host directory.

use std::time::SystemTime;

use toolpost_core::{RunId, RunRecord};
use toolpost_sandbox::Applied;

use crate::agent::workspace;
use crate::args::AgentArgs;
use crate::artifacts::{UnstoredFiles, artifacts, store, store_files, unstored_notices};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::held_changes;
use crate::outcome::print_artifacts;
use crate::print::Printer;
use crate::workspace::{Store, Workspace};

/// The files of a run that is open.
pub(crate) struct RunFiles<'a> {
    /// The run, which names the artifact directory.
    pub(crate) id: RunId,
    pub(crate) workspace: Workspace,
    /// The artifact store; see [`store`].
    pub(crate) store: Option<Store>,
    args: &'a AgentArgs,
    begun: SystemTime,
}

/// The files of a run whose work has ended.
pub(crate) struct CollectedFiles<'a> {
    files: RunFiles<'a>,
    changes: Result<Option<Applied>, Failure>,
    /// The failure if every new file was rejected.
    rejected: Result<(), Failure>,
    unstored: Result<(), Failure>,
}

impl<'a> RunFiles<'a> {
    /// Opens the workspace.
    pub(crate) fn open(args: &'a AgentArgs, config: &Config, printer: &Printer) -> Result<Self, Failure> {
        let (id, begun) = (RunId::new(), SystemTime::now());
        let workspace = workspace(args, config, printer)?;
        // A private copy has a note on held changes.
        if args.resume_last && !matches!(workspace, Workspace::Staged(_)) {
            held_changes::warn_of_held(workspace.host_directory().as_deref(), printer);
        }
        let store = store(args, config, &workspace, id);
        Ok(Self { id, workspace, store, args, begun })
    }

    /// The directory for files of hosted code.
    pub(crate) fn artifacts(&self, config: &Config) -> std::path::PathBuf {
        artifacts(self.args, config, self.id)
    }

    /// Stores the new files once all work in the workspace has ended. The record gets files, notices and changes.
    pub(crate) fn collect(mut self, record: &mut RunRecord, printer: &Printer) -> CollectedFiles<'a> {
        let changes = self.workspace.finish();
        let put = match &self.store {
            Some(store) => store_files(&self.workspace, store, &mut record.artifacts),
            None => Ok(UnstoredFiles::default()),
        };
        let none = UnstoredFiles::default();
        let files = put.as_ref().unwrap_or(&none);
        let notices = unstored_notices(&record.tool_calls, files);
        for notice in &notices {
            printer.warn(notice);
        }
        record.notices.extend(notices);
        record
            .notices
            .extend(changes.as_ref().ok().and_then(|changes| held_changes::notice(changes.as_ref()?)));
        record.changes = crate::run_changes::recorded();
        print_artifacts(&record.artifacts, printer);
        let rejected = files.check(&record.artifacts);
        CollectedFiles { files: self, changes, rejected, unstored: put.map(drop) }
    }
}

impl CollectedFiles<'_> {
    /// Settles the changes of the host directory. Returns the exit of the command.
    pub(crate) fn settle(self, mut ended: Result<Exit, Failure>, printer: &Printer) -> Result<Exit, Failure> {
        let Self { files, changes, rejected, unstored } = self;
        let is_interrupted = match &ended {
            Ok(exit) => *exit == Exit::Interrupted,
            Err(failure) => failure.exit == Exit::Interrupted,
        };
        let is_copy = changes.as_ref().is_ok_and(Option::is_some);
        let allowed = &files.args.permission.directory.allow_protected;
        let settled =
            changes.and_then(|changes| held_changes::settle(changes, allowed, is_interrupted, printer));
        if let (Err(_), Err(failure)) = (&ended, &settled) {
            printer.warn(&failure.message);
        }
        if let Err(failure) = &mut ended
            && is_interrupted
        {
            // The changes of a private copy are reported already.
            let directory = files.workspace.host_directory().filter(|_| !is_copy);
            let hints = directory.map(|one| held_changes::held_hints(&one, files.begun));
            failure.hints.extend(hints.into_iter().flatten());
        }
        crate::workspace::clear_stale();
        match unstored {
            // Files that could not be stored stay.
            Err(failure) => {
                let place = files.workspace.preserve();
                Err(failure.hint(format!("The files are still in `{}`.", place.display())))
            }
            Ok(()) => ended.and_then(|exit| rejected.and(settled).map(|()| exit)),
        }
    }
}
