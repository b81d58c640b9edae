//! A private copy of a host directory, for several programs and file tools before anything is applied.

use std::path::{Path, PathBuf};

use rustix::fd::AsFd as _;

use super::super::prepare::program_owner;
use super::baseline::{self, Copied};
use super::copy_place::CopyPlace;
use super::held::{HeldLayer, State};
use super::private_copy::{PrivateCopy, clear};
use super::seal::seal;
use super::{check_overlays, path_of};
use crate::apply::{Applied, ApplyState};
use crate::{ApplyMode, DirectoryRules, Error, Host, Level, ReviewDecision, Sandbox, SandboxHint};

/// A copy in use by this process.
#[derive(Debug)]
pub(crate) struct StagedLayer {
    /// None after its end.
    copy: Option<PrivateCopy>,
    /// The path of the copy.
    path: PathBuf,
    /// The host directory.
    original: PathBuf,
    /// The entries that were not copied.
    skipped: Vec<PathBuf>,
    mode: ApplyMode,
    rules: DirectoryRules,
    notes: Vec<String>,
}

impl Drop for StagedLayer {
    fn drop(&mut self) {
        if self.mode != ApplyMode::Discard {
            let _ = self.finish(ApplyMode::Hold);
        }
    }
}

impl StagedLayer {
    pub(crate) fn create(directory: &Path, sandbox: &Sandbox) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let facts = &sandbox.host.as_ref().unwrap_or_else(|| Host::probe()).facts;
        // Without layers programs work in the copy itself.
        let has_layers = || {
            let device = rustix::fs::stat(directory).map_or(0, |stat| stat.st_dev);
            facts.namespaces.is_ok() && check_overlays(directory, device, sandbox.layers.as_deref()).is_ok()
        };
        let program = program_owner(facts, Level::Standard).filter(|_| !has_layers());
        let copy = PrivateCopy::create(directory, sandbox, program, &SandboxHint::OmitReview, &mut notes)?;
        let skipped = copy.baseline.iter().filter(|(_, copied)| **copied == Copied::Skipped);
        Ok(Self {
            path: copy.path().to_owned(),
            original: path_of(&copy.layer.record.directory),
            skipped: skipped.map(|(path, _)| path.clone()).collect(),
            mode: sandbox.apply,
            rules: copy.layer.rules(sandbox),
            notes,
            copy: Some(copy),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn host_directory(&self) -> PathBuf {
        self.original.clone()
    }

    pub(crate) fn not_copied(&self) -> impl Iterator<Item = &Path> {
        self.skipped.iter().map(PathBuf::as_path)
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Ends the copy: applies, holds or discards its changes.
    pub(crate) fn end(mut self) -> Result<Applied, Error> {
        self.finish(self.mode)
    }

    fn finish(&mut self, mode: ApplyMode) -> Result<Applied, Error> {
        let Some(mut copy) = self.copy.take() else {
            return Ok(Applied::new("", ApplyState::Discarded));
        };
        if mode == ApplyMode::Discard {
            copy.layer.is_done = true;
            return Ok(Applied::new(copy.layer.id(), ApplyState::Discarded));
        }
        let (mut layer, denied) = copy.seal()?;
        let mut applied = layer.end(mode, None, &self.rules)?;
        for (path, reason) in denied {
            applied.deny_unlisted(&path, reason, ReviewDecision::Denied);
        }
        Ok(applied)
    }
}

/// Turns the copy of a killed process into a held layer; none if nothing changed.
pub(super) fn recover(mut held: HeldLayer) -> Option<HeldLayer> {
    let directory = held.directory.as_fd();
    if held.upper_is_empty() {
        // An unrecoverable copy stays, and the next command tries again.
        let baseline = baseline::load(directory).ok()?;
        let copy = CopyPlace::open(directory, held.record.copy.as_ref()).ok()?;
        seal(directory, copy.as_fd(), baseline).ok()?;
    }
    if held.upper_is_empty() {
        held.discard();
        return None;
    }
    held.record.state = State::Held;
    held.save().ok()?;
    clear(&mut held.record, held.directory.as_fd());
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::super::seal::NEXT;
    use super::*;
    use crate::{DenialReason, HeldRun, Limits};
    use rustix::fs::{FileType, Mode};
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    struct Bench {
        place: tempfile::TempDir,
        sandbox: Sandbox,
    }

    impl Bench {
        /// A host directory with an entry of each kind.
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            let sandbox = Sandbox::new().layers(place.path().join("layers")).apply(ApplyMode::Hold);
            let bench = Self { place, sandbox };
            for name in
                ["same", "changed", "gone", "a/in", "a/b/deep", "whole/x", "part/x", "to-dir", "to-file/x"]
            {
                fs::create_dir_all(bench.host(name).parent().unwrap()).unwrap();
                fs::write(bench.host(name), name).unwrap();
            }
            fs::set_permissions(bench.host("same"), fs::Permissions::from_mode(0o4755)).unwrap();
            fs::hard_link(bench.host("same"), bench.host("second")).unwrap();
            symlink("same", bench.host("link")).unwrap();
            std::os::unix::net::UnixListener::bind(bench.host("part/socket")).unwrap();
            bench
        }

        fn host(&self, name: &str) -> PathBuf {
            self.place.path().join("host").join(name)
        }

        fn copy(&self) -> StagedLayer {
            StagedLayer::create(&self.host(""), &self.sandbox).unwrap()
        }

        /// Whether all layers are removed.
        fn is_empty(&self) -> bool {
            let entries = fs::read_dir(self.place.path().join("layers")).into_iter().flatten().flatten();
            entries.filter(|entry| entry.path().is_dir()).count() == 0
        }

        fn held(&self) -> Vec<HeldRun> {
            HeldRun::all(self.sandbox.layers.as_deref())
                .into_iter()
                .filter(|run| run.directory() == self.host("").canonicalize().unwrap())
                .collect()
        }

        /// The content of the host directory by path.
        fn tree(&self) -> Vec<String> {
            let mut all = Vec::new();
            let mut open = vec![PathBuf::new()];
            while let Some(below) = open.pop() {
                for entry in fs::read_dir(self.host("").join(&below)).unwrap().flatten() {
                    let name = below.join(entry.file_name());
                    if entry.file_type().unwrap().is_dir() {
                        open.push(name.clone());
                        all.push(format!("{}/", name.display()));
                    } else {
                        let content = fs::read_to_string(entry.path()).unwrap_or_default();
                        all.push(format!("{}={content}", name.display()));
                    }
                }
            }
            all.sort();
            all
        }
    }

    fn work(copy: &Path) {
        fs::write(copy.join("changed"), "new content").unwrap();
        fs::remove_file(copy.join("gone")).unwrap();
        fs::create_dir_all(copy.join("new/below")).unwrap();
        fs::write(copy.join("new/below/file"), "made").unwrap();
        fs::remove_dir_all(copy.join("whole")).unwrap();
        fs::remove_dir_all(copy.join("part")).unwrap();
        fs::remove_file(copy.join("to-dir")).unwrap();
        fs::create_dir(copy.join("to-dir")).unwrap();
        fs::write(copy.join("to-dir/y"), "y").unwrap();
        fs::remove_dir_all(copy.join("to-file")).unwrap();
        fs::write(copy.join("to-file"), "file").unwrap();
        fs::rename(copy.join("a/b"), copy.join("moved")).unwrap();
    }

    const WORKED: [&str; 16] = [
        "a/",
        "a/in=a/in",
        "changed=new content",
        "link=same",
        "moved/",
        "moved/deep=a/b/deep",
        "new/",
        "new/below/",
        "new/below/file=made",
        "part/",
        "part/socket=",
        "same=same",
        "second=same",
        "to-dir/",
        "to-dir/y=y",
        "to-file=file",
    ];

    #[test]
    fn the_copy_is_like_its_original_and_leaves_out_sockets() {
        let bench = Bench::new();
        let copy = bench.copy();
        for name in ["same", "second", "a", "a/b/deep", "link"] {
            let [was, is] =
                [bench.host(name), copy.path().join(name)].map(|path| fs::symlink_metadata(path).unwrap());
            assert_eq!((is.mtime(), is.mtime_nsec()), (was.mtime(), was.mtime_nsec()), "{name}");
            assert_eq!(is.mode() & 0o777, was.mode() & 0o777, "{name}");
            assert_eq!(
                (is.uid(), is.gid(), is.file_type()),
                (was.uid(), was.gid(), was.file_type()),
                "{name}"
            );
        }
        assert_eq!(fs::symlink_metadata(copy.path().join("same")).unwrap().mode() & 0o7000, 0);
        assert_eq!(fs::read_to_string(copy.path().join("link")).unwrap(), "same");
        assert_eq!(copy.not_copied().collect::<Vec<_>>(), [Path::new("part/socket")]);
        let outer = fs::symlink_metadata(copy.path().parent().unwrap()).unwrap();
        assert_eq!(outer.mode() & 0o777, 0o700);
        // Nothing changed, so no layer remains.
        let ended = copy.end().unwrap();
        assert_eq!((ended.state, ended.changed), (ApplyState::Applied, 0));
        assert!(bench.held().is_empty());
        assert!(bench.is_empty());
    }

    #[test]
    fn changes_are_held_applied_and_taken_back() {
        let bench = Bench::new();
        let before = bench.tree();
        let copy = bench.copy();
        work(copy.path());
        let ended = copy.end().unwrap();
        assert_eq!((ended.state, ended.denied_count), (ApplyState::Held, 0), "{ended:?}");
        assert_eq!(bench.tree(), before);
        let held = bench.held().pop().unwrap();
        assert_eq!(held.id(), ended.id);
        let applied = held.apply(&[]).unwrap();
        assert_eq!(applied.denied, [], "{applied:?}");
        assert_eq!(bench.tree(), WORKED);
        bench.held().pop().unwrap().undo().unwrap();
        assert_eq!(bench.tree(), before);
    }

    #[test]
    fn changes_can_be_applied_at_once_or_discarded() {
        let mut bench = Bench::new();
        let before = bench.tree();
        bench.sandbox = bench.sandbox.apply(ApplyMode::Discard);
        let copy = bench.copy();
        work(copy.path());
        assert_eq!(copy.end().unwrap().state, ApplyState::Discarded);
        assert_eq!(bench.tree(), before);
        assert!(bench.held().is_empty());
        bench.sandbox = bench.sandbox.apply(ApplyMode::Now);
        let copy = bench.copy();
        work(copy.path());
        assert_eq!(copy.end().unwrap().state, ApplyState::Applied);
        assert_eq!(bench.tree(), WORKED);
    }

    #[test]
    fn what_the_host_changed_meanwhile_is_a_conflict_and_the_rest_is_applied() {
        let bench = Bench::new();
        let copy = bench.copy();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(bench.host("changed"), "of the host").unwrap();
        fs::write(bench.host("same"), "of the host").unwrap();
        fs::write(bench.host("whole/later"), "of the host").unwrap();
        fs::remove_file(bench.host("a/in")).unwrap();
        work(copy.path());
        copy.end().unwrap();
        let applied = bench.held().pop().unwrap().apply(&[]).unwrap();
        let denied: Vec<_> =
            applied.denied.iter().map(|denied| (denied.path.to_str().unwrap(), &denied.reason)).collect();
        assert_eq!(denied, [("changed", &DenialReason::Conflict), ("whole/later", &DenialReason::Conflict)]);
        for (name, content) in [
            ("changed", "of the host"),
            ("same", "of the host"),
            ("whole/later", "of the host"),
            ("new/below/file", "made"),
        ] {
            assert_eq!(fs::read_to_string(bench.host(name)).unwrap(), content);
        }
        assert!(!bench.host("a/in").exists() && !bench.host("gone").exists());
    }

    #[test]
    fn what_was_not_copied_never_changes() {
        let bench = Bench::new();
        let copy = bench.copy();
        fs::write(copy.path().join("part/socket"), "a file").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, copy.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        fs::write(copy.path().join("new"), "new").unwrap();
        let ended = copy.end().unwrap();
        let denied: Vec<_> = ended.denied.iter().map(|denied| denied.path.to_str().unwrap()).collect();
        assert_eq!(denied, ["part/socket", "pipe"]);
        let before = bench.tree().len();
        bench.held().pop().unwrap().apply(&[]).unwrap();
        assert_eq!(bench.tree().len(), before + 1);
    }

    #[test]
    fn the_copy_of_a_killed_process_is_held_and_one_without_changes_goes_away() {
        for (moves, changes) in [(false, true), (true, true), (false, false)] {
            let bench = Bench::new();
            let mut copy = bench.copy();
            if changes {
                work(copy.path());
            }
            if moves {
                // Simulates a kill while the changes are collected.
                let layer = copy.path().parent().unwrap().join(NEXT);
                fs::create_dir_all(layer.join("new/below")).unwrap();
                fs::rename(copy.path().join("new/below/file"), layer.join("new/below/file")).unwrap();
                fs::rename(copy.path().join("changed"), layer.join("changed")).unwrap();
            }
            drop(copy.copy.take());
            drop(copy);
            let mut held = bench.held();
            assert_eq!(held.len(), usize::from(changes));
            match held.pop() {
                Some(held) => {
                    assert_eq!(held.apply(&[]).unwrap().denied, []);
                    assert_eq!(bench.tree(), WORKED);
                }
                None => assert!(bench.is_empty()),
            }
        }
        // Also for an end that fails or panics.
        let bench = Bench::new();
        let copy = bench.copy();
        work(copy.path());
        drop(copy);
        assert!(bench.held().pop().unwrap().is_waiting());
        // A copy whose changes would be discarded.
        let mut bench = Bench::new();
        bench.sandbox = bench.sandbox.apply(ApplyMode::Discard);
        let mut copy = bench.copy();
        work(copy.path());
        drop(copy.copy.take());
        drop(copy);
        assert!(bench.held().is_empty());
        assert!(bench.is_empty());
    }

    #[test]
    fn a_directory_that_is_too_large_is_not_copied() {
        for (limits, limit) in [
            (Limits::default().with_layer_bytes(20), "0 MiB"),
            (Limits::default().with_layer_inodes(5), "5 entries"),
        ] {
            let bench = Bench::new();
            let error =
                StagedLayer::create(&bench.host(""), &bench.sandbox.clone().limits(limits)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(limit) && error.hint() == Some(SandboxHint::OmitReview), "{text}");
            assert!(bench.is_empty());
        }
    }

    #[test]
    fn directories_without_rights_come_back_with_their_mode() {
        let bench = Bench::new();
        let copy = bench.copy();
        fs::write(copy.path().join("a/new"), "x").unwrap();
        fs::set_permissions(copy.path().join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        copy.end().unwrap();
        bench.held().pop().unwrap().apply(&[]).unwrap();
        assert_eq!(fs::metadata(bench.host("a")).unwrap().mode() & 0o777, 0o500);
        assert_eq!(fs::read_to_string(bench.host("a/new")).unwrap(), "x");
        fs::set_permissions(bench.host("a"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
