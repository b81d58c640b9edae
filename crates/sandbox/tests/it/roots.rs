//! The private root of level `strict`: the same however it is made, and nothing of one run in the next.

use serde_json::{Value, json};
use toolpost_sandbox::{Language, Program, Sandbox};

use crate::support::{Mode, open_folder, python, quick, run};

/// Level `strict`, if this host has it.
fn strict() -> Option<Sandbox> {
    Mode::available().contains(&Mode::Strict).then(|| Mode::Strict.sandbox().limits(quick()))
}

/// Everything in the root besides `/usr` and `/proc`, and what the program sees of its mounts.
const INVENTORY: &str = r"
import os
found = []
for folder, folders, files in os.walk('/'):
    if folder == '/':
        folders[:] = [name for name in folders if name not in ('usr', 'proc', 'tmp')]
    for name in folders + files:
        path = os.path.join(folder, name)
        stat = os.lstat(path)
        link = os.readlink(path) if os.path.islink(path) else None
        found.append([path, stat.st_mode, stat.st_uid, stat.st_nlink, link])
mounts = [line.split(' ')[4:6] for line in open('/proc/self/mountinfo')]
mounts = [entry for entry in mounts if not entry[0].startswith('/tmp/')]
[sorted(found, key=str), sorted(mounts)]
";

#[test]
fn a_root_from_the_template_is_the_root_that_a_run_makes_itself() {
    let Some(sandbox) = strict() else { return };
    // A run that shows something of its own makes its own root.
    let folder = open_folder();
    let own = python(&sandbox.clone().read_only(folder.path()), INVENTORY).value.unwrap();
    let shared = python(&sandbox, INVENTORY).value.unwrap();
    assert_eq!(own[1], shared[1], "mounts");
    assert_eq!(own[0], shared[0], "files");
    let text = shared.to_string();
    assert!(text.contains("/etc/passwd") && text.contains("/dev/urandom"), "{text}");
}

/// Puts a mark wherever it can, tries to change what is there, and looks for the marks of others first.
const MARKS: &str = r"
import os, stat
marks, kept = [], []
for folder, folders, files in os.walk('/'):
    if folder == '/':
        folders[:] = [name for name in folders if name not in ('usr', 'proc')]
    marks += [os.path.join(folder, name) for name in files if name.startswith('mark')]
    for name in files:
        path = os.path.join(folder, name)
        # A device takes what is written; what must stay is the node itself.
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                open(path, 'a').write('changed')
                kept.append(path)
        except OSError:
            pass
        for change in (lambda: os.utime(path, (1, 1), follow_symlinks=False), lambda: os.remove(path), lambda: os.rename(path, path + '2')):
            try:
                change()
                kept.append(path)
            except OSError:
                pass
    try:
        open(os.path.join(folder, 'mark'), 'w').write('x')
        kept.append(folder)
    except OSError:
        pass
[marks, sorted(set(kept)), open('/etc/passwd').read()]
";

#[test]
fn a_run_sees_nothing_of_the_runs_before_and_changes_nothing_for_those_after() {
    let Some(sandbox) = strict() else { return };
    let looks: Vec<Value> = (0..3).map(|_| python(&sandbox, MARKS).value.unwrap()).collect();
    for look in &looks {
        assert_eq!(look[0], json!([]), "marks of another run");
        // Only the places that are the run's own; that they take marks shows that the test tries.
        assert_eq!(look[1], json!(["/dev/shm", "/tmp", "/workspace"]));
        assert_eq!(look[2], looks[0][2]);
    }
}

#[test]
fn runs_at_the_same_time_have_mounts_of_their_own() {
    let Some(sandbox) = strict() else { return };
    let code = "import os, time\nopen('/tmp/mark', 'x')\nopen('/dev/shm/mark', 'x')\nopen('mark', 'x')\ntime.sleep(1)\n\
                [os.readlink('/proc/self/ns/mnt'), len(os.listdir('/tmp') + os.listdir('/dev/shm') + os.listdir('.'))]";
    let program = Program::code(Language::Python, code);
    let values: Vec<Value> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&sandbox, &program).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap().value.unwrap()).collect()
    });
    for (index, value) in values.iter().enumerate() {
        assert_eq!(value[1], 3, "{values:?}");
        assert!(values[..index].iter().all(|other| other[0] != value[0]), "{values:?}");
    }
}

#[test]
fn what_the_host_mounts_later_is_seen_by_the_next_run() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP what_the_host_mounts_later: only root mounts");
        return;
    }
    // In mounts of its own, so that the machine keeps its.
    #[expect(clippy::disallowed_methods, reason = "the test program itself, with other mounts")]
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "roots::helper_that_mounts", "--nocapture"])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn helper_that_mounts() {
    // For what_the_host_mounts_later_is_seen_by_the_next_run.
    if !crate::support::is_helper() {
        return;
    }
    let Some(sandbox) = strict() else { return };
    let seen = |expected: &str| {
        let outcome = crate::support::bash(&sandbox, "ls /usr/local/share");
        assert_eq!(outcome.stdout.text().contains("later"), expected == "later", "{outcome:?}");
    };
    let mount = |program: &str, arguments: &[&str]| {
        #[expect(clippy::disallowed_methods, reason = "what a host does meanwhile")]
        let status = std::process::Command::new(program).args(arguments).status().unwrap();
        assert!(status.success());
    };
    seen("nothing");
    seen("nothing");
    mount("mount", &["-t", "tmpfs", "none", "/usr/local/share"]);
    std::fs::write("/usr/local/share/later", "x").unwrap();
    seen("later");
    seen("later");
    // Nothing that is kept holds the mount.
    mount("umount", &["/usr/local/share"]);
    seen("nothing");
}
