//! Tests of paths that git's own configuration and existing links make the host execute or obey. Each row proves first
//! that the host really runs the changed file, by a command of git or by a start of the program.

mod rows;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use toolpost_sandbox::{ApplyMode, HeldRun, Outcome, ProtectedPath, Sandbox, Workspace};

use self::rows::{Config, Content, EVERYDAY, MERGE, NOTEBOOK, Program, ROWS, Row, Setting, Text, row};
use crate::support::{bash, skip_without_namespaces};

/// A home directory with the project `p`.
struct Host {
    home: tempfile::TempDir,
}

impl Host {
    fn new(row: &Row) -> Self {
        let host = Self { home: tempfile::tempdir().unwrap() };
        fs::create_dir(host.project()).unwrap();
        host.run("git init -q -b main; echo 1 > a.txt; git add .; git commit -qm 1");
        let setup = row.setup.replace("NB; ", NOTEBOOK);
        let output = host.run(&format!("set -e; {setup}"));
        assert!(output.1 && !host.has_run(), "{}: {}", row.name, output.0);
        host
    }

    fn project(&self) -> PathBuf {
        self.home.path().canonicalize().unwrap().join("p")
    }

    fn mark(&self) -> PathBuf {
        self.project().join("../ran")
    }

    fn has_run(&self) -> bool {
        self.mark().exists()
    }

    /// Runs a script of the host in the project.
    fn run(&self, script: &str) -> (String, bool) {
        #[expect(clippy::disallowed_methods, reason = "the host's side of a repository")]
        let mut command = Command::new("timeout");
        command.current_dir(self.project()).args(["20", "bash", "-c", script]).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.home.path());
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0").env("TERM", "xterm");
        command.env("MARK", self.mark()).stdin(std::process::Stdio::null());
        for name in ["GIT_AUTHOR", "GIT_COMMITTER"] {
            command.env(format!("{name}_NAME"), "a").env(format!("{name}_EMAIL"), "a@a");
        }
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&text).into_owned(), output.status.success())
    }

    fn sandbox(&self, directory: &str) -> Sandbox {
        let config = ProtectedPath::GitConfig {
            file: self.home.path().join(".gitconfig"),
            home: self.home.path().into(),
        };
        let layers = self.home.path().join("layers");
        Sandbox::new()
            .workspace(Workspace::Host(self.project().join(directory)))
            .layers(layers)
            .protect([config])
    }

    fn content(&self, content: Content) -> String {
        let mark = self.mark();
        let mark = mark.display();
        match content {
            Program => format!("#!/bin/sh\ntouch '{mark}'\ntimeout 0.2 cat\n"),
            Config => format!("[core]\n\tfsmonitor = \"touch '{mark}'; false\"\n"),
            Setting(more) => format!("{more}[core]\n\tfsmonitor = \"touch '{mark}'; false\"\n"),
            Text(text) => text.to_owned(),
        }
    }
}

fn denied(outcome: &Outcome) -> Vec<String> {
    let applied = outcome.applied.iter().flat_map(|applied| &applied.denied);
    applied.map(|denied| denied.path.display().to_string()).collect()
}

/// A script that writes a file through its path.
fn writing(path: &str, content: &str) -> String {
    let parent = Path::new(path).parent().unwrap().display().to_string();
    let parent = if parent.is_empty() { ".".to_owned() } else { parent };
    format!("mkdir -p '{parent}'; cat > '{path}' <<'END'\n{content}END\nchmod +x '{path}'")
}

#[test]
fn what_git_executes_or_obeys_is_denied() {
    if skip_without_namespaces("what_git_executes_or_obeys_is_denied") {
        return;
    }
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = ROWS
            .chunks(ROWS.len().div_ceil(4))
            .map(|rows| scope.spawn(move || rows.iter().filter_map(check).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The reason for which a row does not hold.
fn check(row: &Row) -> Option<String> {
    let script = row.host.replace("MERGE", MERGE);
    let host = Host::new(row);
    // Without a sandbox the host runs the file.
    let place = host.project().join(row.directory).join(row.path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(&place, host.content(row.content)).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let (text, _) = host.run(&script);
    if !host.has_run() {
        return Some(format!("{}: the host does not run it: {text}", row.name));
    }
    let host = Host::new(row);
    let outcome = bash(&host.sandbox(row.directory), &writing(row.path, &host.content(row.content)));
    let denied = denied(&outcome);
    if !denied.iter().any(|path| Path::new(row.path).starts_with(path)) {
        return Some(format!("{}: denied is {denied:?}: {:?}", row.name, outcome.applied));
    }
    host.run(&script);
    host.has_run().then(|| format!("{}: the host runs what code wrote", row.name))
}

#[test]
fn everyday_work_goes_on() {
    if skip_without_namespaces("everyday_work_goes_on") {
        return;
    }
    for (name, setup, code, changed) in EVERYDAY {
        let host = Host::new(&row(name, setup, "", Program, ""));
        let sandbox = host.sandbox("");
        let names = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
        let sandbox = names.into_iter().fold(sandbox, |sandbox, name| sandbox.env(name, "a"));
        let outcome = bash(&sandbox, code);
        assert_eq!(denied(&outcome), Vec::<String>::new(), "{name}: {outcome:?}");
        for path in *changed {
            assert!(host.project().join(path).is_file(), "{name}: {path}: {outcome:?}");
        }
        assert!(host.run("git fsck").1, "{name}");
    }
}

#[test]
fn the_operator_allows_a_named_path() {
    if skip_without_namespaces("the_operator_allows_a_named_path") {
        return;
    }
    let setup =
        "mkdir hk d; git config core.hooksPath hk; ln -s d .vscode; git config core.fsmonitor tools/f";
    let host = Host::new(&row("allowed", setup, "", Program, ""));
    let code = "mkdir -p tools; for path in hk/pre-commit d/tasks.json tools/f; do echo 1 > $path; done";
    let sandbox = host.sandbox("").allow_protected(["hk".into(), "d".into()]);
    assert_eq!(denied(&bash(&sandbox, code)), ["tools/f"]);
    assert_eq!(denied(&bash(&host.sandbox("").allow_protected([".".into()]), code)), Vec::<String>::new());
}

#[test]
fn held_changes_are_judged_again() {
    if skip_without_namespaces("held_changes_are_judged_again") {
        return;
    }
    let host = Host::new(&row("held", "mkdir hk", "", Program, ""));
    let sandbox = host.sandbox("").apply(ApplyMode::Hold);
    let outcome = bash(&sandbox, "echo 1 > hk/pre-commit; echo 1 > b.txt");
    let id = outcome.applied.as_ref().unwrap().id.clone();
    drop(outcome);
    // The user names the directory before the changes are applied.
    host.run("git config core.hooksPath hk");
    let held = HeldRun::find(&id, Some(&host.home.path().join("layers"))).unwrap();
    let applied = held.apply(&[]).unwrap();
    let denied: Vec<_> = applied.denied.iter().map(|denied| denied.path.display().to_string()).collect();
    assert_eq!(denied, ["hk/pre-commit"]);
    assert!(host.project().join("b.txt").is_file());
}

#[test]
fn a_live_directory_shows_named_paths_read_only() {
    if skip_without_namespaces("a_live_directory_shows_named_paths_read_only") {
        return;
    }
    let setup = "mkdir -p hk tools; echo true > hk/pre-commit; echo true > tools/f; git config core.hooksPath hk; \
        git config core.fsmonitor 'sh tools/f'; chmod -R a+rwX .";
    let host = Host::new(&row("live", setup, "", Program, ""));
    let config = host.project();
    let sandbox = Sandbox::new().workspace(Workspace::LiveHost(config.clone()));
    let code = "echo 1 > hk/pre-commit; echo 1 > hk/new; echo 1 > tools/f; mv hk old; mv tools old; echo 1 > tools/g; echo 1 > b.txt; true";
    let outcome = bash(&sandbox, code);
    let read = |path: &str| fs::read_to_string(config.join(path)).unwrap_or_default();
    assert_eq!([read("hk/pre-commit"), read("tools/f")], ["true\n", "true\n"], "{outcome:?}");
    assert_eq!([read("hk/new"), read("tools/g"), read("b.txt")], ["", "1\n", "1\n"], "{outcome:?}");
}
