//! The whole table of names in a host directory, and everyday work that it must not hinder.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolpost_sandbox::{
    ApplyMode, HeldRun, Mark, Outcome, Program, ProtectedPath, Sandbox, Verdict, Workspace,
};

use crate::support::skip_without_namespaces;

/// The rows as text: a row is a line that begins with a pattern.
const DENIED: &str = include_str!("../../src/protected/table/denied.rs");
const MARKED: &str = include_str!("../../src/protected/table/marked.rs");

/// Samples of the patterns of rows that begin with a word, and the programs of the rows.
fn rows<'a>(table: &'a str, word: &str) -> Vec<(String, &'a str)> {
    let begin = format!("{word}(\"");
    let all = table.lines().filter_map(|line| line.trim().strip_prefix(begin.as_str()));
    all.map(|row| {
        let mut strings = row.split('"').step_by(2);
        let pattern = strings.next().unwrap();
        (pattern.replace('*', "q"), strings.next().unwrap())
    })
    .collect()
}

fn run(directory: &Path, layers: &Path, code: &str, protected: &[ProtectedPath]) -> Outcome {
    let sandbox = Sandbox::new()
        .workspace(Workspace::Host(directory.to_owned()))
        .layers(layers)
        .protect(protected.iter().cloned());
    let program = Program::argv(["python3", "-c", code]);
    let outcome = crate::support::run(&sandbox, &program).unwrap();
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    outcome
}

/// Code that writes each path; one that cannot be written beside the others is skipped.
fn writes<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let paths: Vec<&str> = paths.into_iter().collect();
    format!(
        "import os\nfor path in {paths:?}:\n  try:\n    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n    \
         open(path, 'x').write('x')\n  except OSError: pass\n"
    )
}

#[test]
fn every_row_holds_in_a_host_directory() {
    if skip_without_namespaces("every_row_holds_in_a_host_directory") {
        return;
    }
    let [directory, layers] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (denied, once) = (rows(DENIED, "deny"), rows(DENIED, "once"));
    let marked: Vec<_> = [rows(MARKED, "mark"), rows(MARKED, "contents")].concat();
    assert!(denied.len() > 450 && once.len() > 20 && marked.len() > 180);
    // One directory for each row: rows share their beginnings.
    let at = |group: &str, rows: &[(String, &str)]| -> Vec<String> {
        rows.iter().enumerate().map(|(index, (path, _))| format!("{group}{index}/{path}")).collect()
    };
    let (denied_at, once_at, marked_at) = (at("d", &denied), at("o", &once), at("m", &marked));
    let written = |paths: &[String]| writes(paths.iter().map(String::as_str));
    let outcome = run(directory.path(), layers.path(), &written(&denied_at), &[]);
    let applied = outcome.applied.unwrap();
    assert_eq!(applied.denied_count, denied.len(), "{:?}", applied.denied);
    for path in &denied_at {
        assert!(!directory.path().join(path).exists(), "{path}");
    }
    for denied in &applied.denied {
        // `d12/.ssh`: the message has the program of the row, or of one with the same name.
        assert!(denied.message.starts_with("protected: "), "{denied:?}");
        assert!(
            rows(DENIED, "deny").iter().any(|(_, program)| denied.message.contains(program)),
            "{denied:?}"
        );
    }
    for half in marked_at.chunks(150).chain([once_at.as_slice()]) {
        let applied = run(directory.path(), layers.path(), &written(half), &[]).applied.unwrap();
        assert_eq!(applied.denied_count, 0, "{:?}", applied.denied);
        for path in half {
            assert!(directory.path().join(path).exists(), "{path}");
            let is_listed = applied.marked.iter().any(|marked| Path::new(path).starts_with(&marked.path));
            assert!(is_listed, "{path} {:?}", applied.marked);
        }
    }
    // What exists stays.
    let code = format!("{}\nfor path in {once_at:?}: open(path, 'w').write('changed')\n", "import os");
    let applied = run(directory.path(), layers.path(), &code, &[]).applied.unwrap();
    assert_eq!(applied.denied_count, once.len(), "{:?}", applied.denied);
    for path in &once_at {
        assert_eq!(fs::read_to_string(directory.path().join(path)).unwrap(), "x", "{path}");
    }
}

/// `python -m venv .venv`, `pip install -U pip` and `pip install -e .`.
const PIP: &str = "
import os, venv
os.environ.pop('__PYVENV_LAUNCHER__', None)
venv.EnvBuilder(clear=CLEAR, symlinks=True).create('.venv')
def script(name):
    path = '.venv/bin/' + name
    if os.path.lexists(path): os.remove(path)
    open(path, 'w').write('#!' + os.path.abspath('.venv/bin/python') + '\\n'); os.chmod(path, 0o755)
for name in ('pip', 'pip3', 'pip3.12', 'own-tool'): script(name)
import glob
packages = glob.glob('.venv/lib/python3*/site-packages')[0]
open(packages + '/__editable__.p.pth', 'w').write(os.getcwd() + '/src\\n')
os.makedirs(packages + '/pip', exist_ok=True); open(packages + '/pip/__init__.py', 'w').write('')
";
/// `npm ci`.
const NPM: &str = "
import os, shutil
shutil.rmtree('node_modules', ignore_errors=True)
os.makedirs('node_modules/.bin'); os.makedirs('node_modules/typescript/bin')
open('node_modules/typescript/package.json', 'w').write('{}')
open('node_modules/typescript/bin/tsc', 'w').write('x'); os.chmod('node_modules/typescript/bin/tsc', 0o755)
os.symlink('../typescript/bin/tsc', 'node_modules/.bin/tsc')
open('package-lock.json', 'w').write('{}')
";
/// `uv sync` with a new environment. `SAME` has its `activate` scripts.
const UV: &str = "
import os, shutil
shutil.rmtree('.venv'); os.makedirs('.venv/bin'); os.makedirs('.venv/lib/python3.12/site-packages/p')
for name in SAME: open('.venv/bin/' + name, 'w').write(SAME[name])
open('.venv/pyvenv.cfg', 'w').write('home = /usr/bin\\nuv = 0.9\\n')
os.symlink('/usr/bin/python3', '.venv/bin/python3'); os.symlink('python3', '.venv/bin/python')
open('.venv/lib/python3.12/site-packages/_virtualenv.pth', 'w').write('import _virtualenv')
open('uv.lock', 'w').write('version = 1')
";
/// `pre-commit run`.
const HOOKS: &str = "
import os
open('app.py', 'w').write('x = 1\\n'); open('.pre-commit-cache', 'w').write('x')
os.makedirs('.ruff_cache/0', exist_ok=True); open('.ruff_cache/0/x', 'w').write('x')
";

/// The names and contents of the `activate` scripts of an environment, as JSON.
fn activate_scripts(root: &Path) -> String {
    let files = fs::read_dir(root.join(".venv/bin")).unwrap().flatten();
    let scripts: BTreeMap<String, String> = files
        .filter_map(|file| Some((file.file_name().into_string().ok()?, file.path())))
        .filter(|(name, _)| name.to_lowercase().starts_with("activate"))
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect();
    serde_json::to_string(&scripts).unwrap()
}

/// Installers write the same files in the same places. The operator's `PATH` has both directories.
#[test]
fn everyday_work_goes_on() {
    if skip_without_namespaces("everyday_work_goes_on") {
        return;
    }
    let [directory, layers] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let root = directory.path().canonicalize().unwrap();
    fs::write(root.join(".pre-commit-config.yaml"), "repos: []\n").unwrap();
    let path = [".venv/bin", "node_modules/.bin"].map(|entry| ProtectedPath::SearchPath(root.join(entry)));
    let relative = ProtectedPath::SearchPath("node_modules/.bin".into());
    let protected: Vec<_> = path.into_iter().chain([relative]).collect();
    let clear = |clear| PIP.replace("CLEAR", clear);
    for (name, code) in [
        ("python -m venv, pip install -U pip, pip install -e .", clear("False")),
        ("again", clear("False")),
        ("python -m venv --clear", clear("True")),
        ("npm ci", NPM.into()),
        ("npm ci again", NPM.into()),
        ("pre-commit run", HOOKS.into()),
        ("uv sync", UV.into()),
    ] {
        let code =
            if name == "uv sync" { format!("SAME = {}\n{code}", activate_scripts(&root)) } else { code };
        let applied = run(&root, layers.path(), &code, &protected).applied.unwrap();
        assert_eq!(applied.denied_count, 0, "{name}: {:?}", applied.denied);
        assert!(name == "pre-commit run" || !applied.marked.is_empty(), "{name}");
        // The contents of a directory are one line.
        assert!(applied.marked.len() < 30, "{name}: {:?}", applied.marked);
    }
    for name in ["activate", "python", "python3"] {
        assert!(root.join(".venv/bin").join(name).symlink_metadata().is_ok(), "{name}");
    }
    assert!(root.join("node_modules/.bin/tsc").symlink_metadata().is_ok());
}

/// A new program with the name of one of the system, in a directory of the operator's `PATH`.
#[test]
fn programs_of_the_system_are_not_planted_in_the_search_path() {
    if skip_without_namespaces("programs_of_the_system_are_not_planted_in_the_search_path") {
        return;
    }
    let [directory, layers] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let root = directory.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/sed"), "of the operator").unwrap();
    fs::set_permissions(root.join("bin/sed"), fs::Permissions::from_mode(0o755)).unwrap();
    let protected = [ProtectedPath::SearchPath(root.join("bin")), ProtectedPath::SearchPath("tools".into())];
    let names = ["bin/ls", "bin/toolpost", "bin/own", "bin/sub/ls", "a/tools/ls", "a/tools/own", "a/ls"];
    let code = format!("{}\nopen('bin/sed', 'w').write('changed')", writes(names));
    let applied = run(&root, layers.path(), &code, &protected).applied.unwrap();
    let denied: Vec<_> = applied.denied.iter().map(|denied| denied.path.to_str().unwrap()).collect();
    assert_eq!(denied, ["a/tools/ls", "bin/ls", "bin/toolpost"]);
    let marked: Vec<_> =
        applied.marked.iter().map(|marked| (marked.path.to_str().unwrap(), marked.mark)).collect();
    let on_path = ["a/tools/own", "bin/own", "bin/sed"].map(|path| (path, Mark::SearchPath));
    assert_eq!(marked, [&on_path[..], &[("bin/sed", Mark::Executable)]].concat());
}

/// The process that applies held changes has another `PATH`.
#[test]
fn held_changes_are_judged_by_the_search_path_of_their_run() {
    if skip_without_namespaces("held_changes_are_judged_by_the_search_path_of_their_run") {
        return;
    }
    let [directory, layers] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let root = directory.path().canonicalize().unwrap();
    let sandbox = Sandbox::new()
        .workspace(Workspace::Host(root.clone()))
        .layers(layers.path())
        .apply(ApplyMode::Hold)
        .protect([ProtectedPath::SearchPath(root.join("bin"))]);
    let program = Program::argv(["python3", "-c", &writes(["bin/ls", "bin/own"])]);
    let held = crate::support::run(&sandbox, &program).unwrap().applied.unwrap();
    let applied = HeldRun::find(&held.id, Some(layers.path())).unwrap().apply(&[]).unwrap();
    assert_eq!(applied.denied.iter().map(|denied| &*denied.path).collect::<Vec<_>>(), [Path::new("bin/ls")]);
    assert!(root.join("bin/own").exists() && !root.join("bin/ls").exists());
}
