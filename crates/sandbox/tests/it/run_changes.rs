//! The changes of one run are listed and undone together.

use std::fs;
use std::path::PathBuf;

use toolpost_sandbox::{ApplyState, HeldRun, RunChanges, Sandbox, Workspace};

use crate::support::{bash, skip_without_namespaces};

struct Place {
    directory: tempfile::TempDir,
    layers: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap(), layers: tempfile::tempdir().unwrap() };
        for name in ["kept", "changed", "deleted"] {
            fs::write(place.path(name), "before").unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn begin(&self) -> RunChanges {
        RunChanges::begin(Some(self.layers.path())).unwrap()
    }

    fn sandbox(&self, changes: &RunChanges) -> Sandbox {
        let workspace = Workspace::Host(self.directory.path().to_owned());
        Sandbox::new().workspace(workspace).layers(self.layers.path()).run_changes(changes.clone())
    }

    /// As a file tool: by the host itself.
    fn write(&self, changes: &RunChanges, name: &str, content: &str) {
        let path = self.path(name);
        let writing = changes.writing(self.directory.path(), name.as_ref());
        let was_there = path.exists();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        writing.written(was_there);
    }

    fn there(&self) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(&path).unwrap_or_else(|_| "a directory".into()))
            })
            .collect();
        all.sort();
        all
    }
}

#[test]
fn a_run_of_programs_and_file_tools_is_undone_as_a_whole() {
    if skip_without_namespaces("a_run_of_programs_and_file_tools_is_undone_as_a_whole") {
        return;
    }
    let place = Place::new();
    let before = place.there();
    let changes = place.begin();
    place.write(&changes, "changed", "by a file tool");
    bash(&place.sandbox(&changes), "echo and code >> changed; rm deleted; mkdir d; echo x > d/new");
    place.write(&changes, "d/deep/file", "by a file tool");
    bash(&place.sandbox(&changes), "echo again >> changed; echo gone > brief; echo more >> d/new");
    bash(&place.sandbox(&changes), "rm brief; touch -d 2001-01-01 kept");
    // Another run in between removes nothing of this one.
    let other = place.begin();
    bash(&place.sandbox(&other), "echo other > other");
    let summary = changes.summary();
    let names = |paths: &[PathBuf]| -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(place.directory.path()).unwrap().display().to_string();
        paths.iter().map(name).collect()
    };
    assert_eq!(names(&summary.created), ["d", "d/deep/file", "d/new"]);
    assert_eq!(names(&summary.changed), ["changed", "kept"]);
    assert_eq!(names(&summary.deleted), ["deleted"]);
    assert!(summary.can_undo && summary.held.is_empty());
    let id = changes.id().to_owned();
    drop((changes, other));
    let undone = HeldRun::undo_run(&id, Some(place.layers.path())).unwrap().unwrap();
    assert_eq!((undone.state, undone.denied_count), (ApplyState::Discarded, 0), "{:?}", undone.denied);
    fs::remove_file(place.path("other")).unwrap();
    assert_eq!(place.there(), before);
    assert!(HeldRun::undo_run(&id, Some(place.layers.path())).is_none(), "nothing is left to undo");
}

/// An edit between two programs of a run stays, with what is below it.
#[test]
fn undo_keeps_what_the_user_wrote_between() {
    if skip_without_namespaces("undo_keeps_what_the_user_wrote_between") {
        return;
    }
    let place = Place::new();
    let changes = place.begin();
    bash(&place.sandbox(&changes), "echo one > changed; echo one > kept");
    fs::write(place.path("changed"), "by the user").unwrap();
    bash(&place.sandbox(&changes), "echo two > changed; echo two > kept");
    let id = changes.id().to_owned();
    drop(changes);
    let undone = HeldRun::undo_run(&id, Some(place.layers.path())).unwrap().unwrap();
    assert_eq!(undone.denied_count, 1, "{undone:?}");
    assert_eq!(fs::read_to_string(place.path("changed")).unwrap(), "by the user");
    assert_eq!(fs::read_to_string(place.path("kept")).unwrap(), "before");
}

/// The old versions of an ended run go with the next one; those of a run that continues stay.
#[test]
fn old_versions_stay_while_their_run_goes_on() {
    if skip_without_namespaces("old_versions_stay_while_their_run_goes_on") {
        return;
    }
    let place = Place::new();
    let (first, second) = (place.begin(), place.begin());
    bash(&place.sandbox(&first), "echo first > first");
    bash(&place.sandbox(&second), "echo second > second");
    let runs = || -> Vec<String> {
        let all = HeldRun::all(Some(place.layers.path()));
        // The other directories for layers of this machine may have more.
        let here = all.iter().filter(|run| run.directory() == place.directory.path());
        here.filter_map(|run| run.run().map(str::to_owned)).collect()
    };
    assert_eq!(runs().len(), 2);
    drop(first);
    bash(&place.sandbox(&second), "echo third > third");
    assert_eq!(runs(), vec![second.id().to_owned(); 2]);
    drop(second);
    let third = place.begin();
    bash(&place.sandbox(&third), "echo fourth > fourth");
    assert_eq!(runs(), [third.id()]);
    drop(third);
    let marks = fs::read_dir(place.layers.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("run-"));
    assert_eq!(marks.count(), 0, "no mark of an ended run is left");
}
