//! Runs of one directory at the same time: what they write arrives, or is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use toolpost_sandbox::{
    Applied, Cancel, DenialReason, HeldRun, Level, Outcome, Program, Repeat, Sandbox, SandboxEvent, Stdin,
    Workspace,
};

use crate::support::skip_without_namespaces;

/// A directory that code writes to, and its layers.
struct Place {
    directory: tempfile::TempDir,
    layers: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), layers: tempfile::tempdir().unwrap() }
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox::new()
            .workspace(Workspace::Host(self.directory.path().to_owned()))
            .layers(self.layers.path())
            .repeat(Repeat::Always)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs a script; at its first output, the host appends a line to `log`.
    fn run_beside_the_host(&self, sandbox: &Sandbox, script: &str) -> Outcome {
        let log = self.path("log");
        let mut is_first = true;
        let mut on_event = move |_: SandboxEvent<'_>| {
            if std::mem::take(&mut is_first) {
                append(&log, "host\n");
            }
        };
        sandbox.run(&bash(script), &Cancel::new(), &mut on_event).unwrap()
    }
}

fn bash(script: &str) -> Program {
    Program::argv(["bash", "-c", script])
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn lost(outcome: &Outcome) -> usize {
    outcome.applied.as_ref().map_or(0, |applied| applied.failed_count)
}

/// Each run appends to one file, writes one of its own, and replaces a third.
#[test]
fn what_runs_write_at_the_same_time_arrives() {
    if skip_without_namespaces("what_runs_write_at_the_same_time_arrives") {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a longer run is asked for by hand")]
    let rounds = std::env::var("TOOLPOST_TEST_ROUNDS").map_or(1, |text| text.parse().unwrap());
    for round in 0..rounds {
        let place = Place::new();
        if round % 2 == 0 {
            append(&place.path("log"), "first\n");
        }
        let outcomes = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..64 {
                let (place, outcomes) = (&place, &outcomes);
                scope.spawn(move || {
                    // Half of them write equal lines.
                    let line = if number % 2 == 0 { "same".to_owned() } else { number.to_string() };
                    let script =
                        format!("echo {line} >> log; echo {number} > own{number}; echo {number} > third");
                    let outcome = place.sandbox().run(&bash(&script), &Cancel::new(), &mut |_| {}).unwrap();
                    outcomes.lock().unwrap().push((number, outcome));
                });
            }
        });
        let outcomes = outcomes.into_inner().unwrap();
        let lines = place.read("log").lines().filter(|line| *line != "first").count();
        let missing = outcomes.iter().filter(|(_, outcome)| lost(outcome) > 0).count();
        assert_eq!((lines, missing), (64, 0), "round {round}");
        for (number, _) in &outcomes {
            assert_eq!(place.read(&format!("own{number}")), format!("{number}\n"));
        }
        let third = place.read("third");
        assert!((0..64).any(|number| third == format!("{number}\n")), "{third:?}");
    }
}

#[test]
fn a_repeated_run_starts_with_the_other_version() {
    if skip_without_namespaces("a_repeated_run_starts_with_the_other_version") {
        return;
    }
    let rows = [
        // What it writes, and the result of both in order.
        ("echo run >> log", "host\nrun\n"),
        ("cat log > copy; echo run >> log", "host\nrun\n"),
        ("sed -i '1i run' log 2>/dev/null; touch log; [ -s log ] || echo run > log", "run\nhost\n"),
        ("rm -f log", ""),
        ("mkdir made && echo run >> log", "host\nrun\n"),
    ];
    for (script, expected) in rows {
        let place = Place::new();
        let script = format!("echo go; sleep 0.2; {script}");
        let outcome = place.run_beside_the_host(&place.sandbox(), &script);
        assert_eq!(place.read("log"), expected, "{script}");
        assert_eq!(outcome.stdout.text(), "go\n", "{script}: the outcome is that of the second attempt");
        assert_eq!((outcome.exit_code, lost(&outcome)), (Some(0), 0), "{script}: {:?}", outcome.applied);
    }
}

/// A change of a sandbox.
type Change<'a> = &'a dyn Fn(Sandbox) -> Sandbox;

/// Without a repetition, nothing is lost: the host's version stays, and that of the run is held.
#[test]
fn a_conflict_is_named_and_held() {
    if skip_without_namespaces("a_conflict_is_named_and_held") {
        return;
    }
    let input = tempfile::NamedTempFile::new().unwrap();
    let other = tempfile::tempdir().unwrap();
    let long = "echo go; sleep 5.2; echo run >> log; echo own > own";
    let short = "echo go; sleep 0.2; echo run >> log; echo own > own";
    let rows: [(&str, Change<'_>, &str); 5] = [
        ("never", &|sandbox| sandbox.repeat(Repeat::Never), short),
        ("not silent", &|sandbox| sandbox.repeat(Repeat::IfSilent), short),
        ("an input file", &|sandbox| sandbox.stdin(Stdin::File(input.path().to_owned())), short),
        ("a writable directory", &|sandbox| sandbox.read_write(other.path()), short),
        ("longer than 5 seconds", &|sandbox| sandbox, long),
    ];
    for (name, change, script) in rows {
        let place = Place::new();
        append(&place.path("log"), "first\n");
        let outcome = place.run_beside_the_host(&change(place.sandbox()), script);
        let applied: &Applied = outcome.applied.as_ref().unwrap();
        assert_eq!((applied.failed_count, applied.held_count), (1, 1), "{name}: {applied:?}");
        assert_eq!(applied.denied[0].reason, DenialReason::Conflict, "{name}");
        assert!(applied.failure().unwrap().contains("`log` was not applied"), "{name}: {applied:?}");
        assert_eq!(
            (place.read("log"), place.read("own")),
            ("first\nhost\n".into(), "own\n".into()),
            "{name}"
        );
        let id = applied.id.clone();
        drop(outcome);
        let held = HeldRun::find(&id, Some(place.layers.path())).unwrap();
        assert!(held.content(Path::new("log"), 100).unwrap().ends_with(b"run\n"), "{name}");
    }
}

/// A silent program is repeated also for a caller that passes its output on.
#[test]
fn a_silent_run_is_repeated() {
    if skip_without_namespaces("a_silent_run_is_repeated") {
        return;
    }
    let place = Place::new();
    let sandbox = place.sandbox().repeat(Repeat::IfSilent);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let program = bash(&format!("sleep 0.1; echo {number} >> log"));
                assert_eq!(lost(&sandbox.run(&program, &Cancel::new(), &mut |_| {}).unwrap()), 0);
            });
        }
    });
    assert_eq!(place.read("log").lines().count(), 8);
}

/// Writes beside the directory of a run keep their own level.
#[test]
fn a_repetition_has_the_level_of_the_first_attempt() {
    if skip_without_namespaces("a_repetition_has_the_level_of_the_first_attempt") {
        return;
    }
    let place = Place::new();
    let sandbox = place.sandbox().level(Level::Strict);
    let outcome = place.run_beside_the_host(&sandbox, "echo go; sleep 0.2; echo run >> log");
    assert_eq!((place.read("log").as_str(), outcome.report.effective), ("host\nrun\n", Level::Strict));
}
