//! Pools and host directories: an attached directory behaves as in a cold run, and no other worker sees it.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use toolpost_sandbox::{
    Error, Host, Language, Layer, Level, Outcome, Pool, Program, Reached, Sandbox, Source, Workspace,
};

use crate::attack::hosts::{How, PoorHost, command};
use crate::pools::{PYTHON, behind, essence, python, ready, served, strict};
use crate::support::{HELPER, PROTECTED_PATHS, eventually, is_helper, open_directory, run};

/// A directory with some files, all for their owner only.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("data/inner")).unwrap();
    std::fs::write(directory.path().join("in.csv"), "key,value\na,1\n").unwrap();
    std::fs::write(directory.path().join("data/old.txt"), "old").unwrap();
    std::fs::write(directory.path().join("CLAUDE.md"), "original\n").unwrap();
    std::fs::set_permissions(directory.path().join("in.csv"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

/// A pool whose workers attach host directories.
fn attaching(test: &str, sandbox: &Sandbox) -> Option<Arc<Pool>> {
    ready(test, Pool::builder(sandbox).language(Language::Python).host_directories(true), 1)
}

fn within(sandbox: &Sandbox, directory: &Path) -> Sandbox {
    sandbox.clone().workspace(Workspace::Host(directory.to_owned()))
}

/// The content of a directory: path, owner, mode and content.
fn listing(directory: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let (mut found, mut waiting) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(&next).unwrap().flatten() {
            let metadata = entry.path().symlink_metadata().unwrap();
            let content = if metadata.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
            found.push(format!(
                "{} {} {:o} {}",
                entry.path().strip_prefix(directory).unwrap().display(),
                metadata.uid(),
                metadata.mode(),
                String::from_utf8_lossy(&content)
            ));
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Runs the same in two equal directories, cold and pooled, and returns both outcomes.
fn both(sandbox: &Sandbox, pool: &Arc<Pool>, program: &Program, name: &str) -> [Outcome; 2] {
    let (first, second) = (directory(), directory());
    let cold = run(&within(sandbox, first.path()), program).unwrap();
    let warm = served(&behind(&within(sandbox, second.path()), pool), program);
    assert_eq!(essence(&cold), essence(&warm), "{name}");
    assert_eq!(listing(first.path()), listing(second.path()), "{name}");
    assert!(warm.report.has(Layer::ProtectedPaths) && !warm.report.has(Layer::WorkspaceQuota), "{name}");
    [cold, warm]
}

/// Code about files with equal outcomes in cold and pooled runs.
const FILES: [(&str, &str); 9] = [
    (
        "places",
        "import os; [os.getcwd(), os.path.realpath('.'), os.path.realpath('..'), sorted(os.listdir('..')), sorted(os.listdir('/workspace')), os.environ['HOME'], os.path.ismount('/workspace'), os.stat('.').st_ino == os.stat('/workspace').st_ino, os.stat('in.csv').st_uid]",
    ),
    (
        "mounts",
        "[line.split(' - ')[1].split()[0] + ' ' + line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/workspace'][-1]",
    ),
    (
        "changes",
        "import os\nopen('new.txt', 'w').write('n')\nopen('in.csv', 'a').write('b,2\\n')\nos.remove('data/old.txt')\nos.rename('data/inner', 'moved')\nos.link('new.txt', 'data/linked')\nos.makedirs('a/b/c')\nopen('a/b/c/deep', 'w').close()\nos.chmod('new.txt', 0o640)",
    ),
    (
        "what is not copied back",
        "import os, socket\nos.symlink('/etc/passwd', 'passwd')\nos.symlink('../../../../etc/shadow', 'shadow')\nos.mkfifo('fifo')\nsocket.socket(socket.AF_UNIX).bind('socket')\nopen('one', 'w').write('x')\nos.link('one', 'two')\nfor name in ['-rf', 'new\\nline', 'CON', 'rtl\\u202e']: open(name, 'w').close()\nopen('good', 'w').write('good')",
    ),
    (
        "nothing beside the directory can be written",
        "import os\nfor path in ['/x', '/usr/x', '/workspace/../x', '/etc/x', '/dev/x', '/proc/x']:\n    try:\n        open(path, 'w'); print('written', path)\n    except OSError as error:\n        print(path, error)",
    ),
    (
        "no device and no way to another owner",
        "import os, stat\nfor action in (lambda: os.mknod('null', stat.S_IFCHR | 0o666, os.makedev(1, 3)), lambda: os.chown('in.csv', 0, 0), lambda: os.mkdir('mnt') or os.system('mount -t tmpfs x mnt 2>/dev/null')):\n    try:\n        print(action())\n    except OSError as error:\n        print(error)",
    ),
    (
        "no way round the root",
        "import os\nfor path in ['/proc/self/root/workspace/in.csv', '/proc/1/root/workspace/in.csv', '/proc/self/cwd/../etc/hostname', '/proc/1/cwd/in.csv']:\n    try:\n        print(path, len(open(path).read()) > 0)\n    except OSError as error:\n        print(path, 'refused')",
    ),
    (
        "child processes",
        "import subprocess; subprocess.run(['sh', '-c', 'pwd; cat in.csv; echo from sh > sh.txt'], capture_output=True, text=True).stdout",
    ),
    (
        "threads of execution",
        "import threading\nthreads = [threading.Thread(target=lambda at=at: open(f't{at}', 'w').write('t')) for at in range(8)]\n[thread.start() for thread in threads]; [thread.join() for thread in threads]\n1",
    ),
];

#[test]
fn a_worker_with_a_host_directory_equals_a_cold_run() {
    let sandbox = strict();
    let test = "a_worker_with_a_host_directory_equals_a_cold_run";
    let Some(pool) = attaching(test, &sandbox) else { return };
    for (name, code) in FILES.into_iter().chain(PYTHON.into_iter().step_by(2)) {
        // The first process is in no Landlock domain, so that no code can inspect it.
        if name != "no way round the root" {
            both(&sandbox, &pool, &python(code), name);
        }
    }
    let (_, code) = FILES.into_iter().find(|(name, _)| *name == "no way round the root").unwrap();
    let lines = |outcome: &Outcome| {
        outcome
            .stdout
            .text()
            .lines()
            .filter(|line| !line.contains("/proc/1/"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, second) = (directory(), directory());
    let cold = run(&within(&sandbox, first.path()), &python(code)).unwrap();
    let warm = served(&behind(&within(&sandbox, second.path()), &pool), &python(code));
    assert_eq!(lines(&cold), lines(&warm));
    let metrics = pool.metrics();
    assert_eq!((metrics.cold, metrics.died), (0, 0), "{metrics:?}");
}

#[test]
fn uploads_directories_and_variables_reach_a_worker_with_a_host_directory() {
    let sandbox = strict();
    let test = "uploads_directories_and_variables_reach_a_worker_with_a_host_directory";
    let Some(pool) = attaching(test, &sandbox) else { return };
    let code = python(
        "import os\nprint(os.getcwd(), sorted(os.listdir('.')), os.environ.get('TOKEN'), open('/workspace/up/load.txt').read())\n\
         open('relative', 'w').write('r'); open('/workspace/absolute', 'w').write('a')",
    );
    for request in [
        sandbox.clone().file("up/load.txt", Source::Bytes(b"uploaded".to_vec())),
        sandbox.clone().file("up/load.txt", Source::Bytes(b"u".to_vec())).directory("data").env("TOKEN", "t"),
    ] {
        let [cold, _] = both(&request, &pool, &code, "uploads");
        assert!(cold.verdict.is_ok(), "{}", cold.stderr.text());
    }
    let place = directory();
    let missing = behind(&within(&sandbox.clone().directory("nowhere"), place.path()), &pool);
    let error = run(&missing, &python("1")).unwrap_err().to_string();
    assert!(error.contains("enter workspace") && error.contains("nowhere"), "{error}");
    for path in ["/", "/proc", "/no/such", "/etc/passwd"] {
        let unfit = behind(&within(&sandbox, Path::new(path)), &pool);
        let error = run(&unfit, &python("1")).unwrap_err();
        assert!(matches!(error, Error::Workspace { .. }), "{path} {error}");
    }
}

#[test]
fn protected_paths_of_an_attached_directory_cannot_be_written() {
    let sandbox = strict();
    let test = "protected_paths_of_an_attached_directory_cannot_be_written";
    let Some(pool) = attaching(test, &sandbox) else { return };
    let mut code = String::from(
        "import os\nopen('evil', 'w').close()\nallowed = []\ndef attempt(name, action):\n    try:\n        action(); allowed.append(name)\n    except OSError: pass\n",
    );
    for path in PROTECTED_PATHS.into_iter().chain(["inner/.git"]) {
        writeln!(
            code,
            "attempt('write {path}', lambda: open('{path}', 'w').write('evil'))\n\
             attempt('inside {path}', lambda: open('{path}/evil', 'w').write('evil'))\n\
             attempt('rename {path}', lambda: os.rename('{path}', 'moved'))\n\
             attempt('replace {path}', lambda: os.replace('evil', '{path}'))"
        )
        .unwrap();
    }
    code.push_str("allowed");
    for with_repository in [false, true] {
        let place = directory();
        std::fs::create_dir_all(place.path().join("inner/.git/hooks")).unwrap();
        std::fs::write(place.path().join("inner/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        if with_repository {
            std::fs::create_dir_all(place.path().join(".git/hooks")).unwrap();
            std::fs::write(place.path().join(".git/config"), "[core]\n").unwrap();
        }
        let before = listing(place.path());
        let sandbox = behind(&within(&sandbox, place.path()), &pool);
        let outcome = served(&sandbox, &python(&code));
        assert!(outcome.verdict.is_ok(), "{with_repository} {}", outcome.stderr.text());
        let after = listing(place.path());
        let lost: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
        assert!(lost.is_empty(), "{with_repository} {lost:?}");
        let planted: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
        let is_known = |line: &str| {
            ["evil", "moved", "AGENTS.md", "CLAUDE.md"].iter().any(|name| line.starts_with(name))
        };
        assert!(planted.iter().all(|line| is_known(line)), "{with_repository} {planted:?}");
    }
}

#[test]
fn no_directory_is_visible_to_another_run_or_stays_mounted() {
    let sandbox = strict();
    let test = "no_directory_is_visible_to_another_run_or_stays_mounted";
    let Some(pool) = attaching(test, &sandbox) else { return };
    // Docker daemons mount and unmount during this test.
    let mounts = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().filter(|line| !line.contains("/docker/")).count()
    };
    let before = mounts();
    let (first, second) = (directory(), directory());
    std::fs::write(first.path().join("secret-of-the-first"), "s").unwrap();
    let look = python(
        "import os\nfound = [os.path.join(base, name) for top in ('/workspace', '/tmp', '/dev/shm') for base, _, names in os.walk(top) for name in names]\n\
         [found, [line.split()[3] for line in open('/proc/self/mountinfo')]]",
    );
    let seen = |outcome: &Outcome| outcome.value.clone().unwrap().to_string();
    for _ in 0..3 {
        let outcome = served(&behind(&within(&sandbox, first.path()), &pool), &look);
        assert!(seen(&outcome).contains("secret-of-the-first"), "{}", seen(&outcome));
        let name = first.path().file_name().unwrap().to_str().unwrap();
        for other in [within(&sandbox, second.path()), sandbox.clone()] {
            let outcome = served(&behind(&other, &pool), &look);
            assert!(!seen(&outcome).contains("secret-of-the-first"), "{}", seen(&outcome));
            assert!(!seen(&outcome).contains(name), "{}", seen(&outcome));
        }
    }
    // A run that continues while others start and end.
    let code = "import os, time\nopen('mine', 'w').write(os.environ['WHO'])\ntime.sleep(0.05)\n[open('mine').read(), sorted(os.listdir('.'))]";
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (sandbox, pool) = (&sandbox, &pool);
            scope.spawn(move || {
                for round in 0..6 {
                    let (place, who) = (directory(), format!("{worker}.{round}"));
                    let request = within(&sandbox.clone().env("WHO", &who), place.path());
                    let outcome = served(&behind(&request, pool), &python(code));
                    assert_eq!(outcome.value.unwrap()[0], json!(who));
                    assert_eq!(std::fs::read_to_string(place.path().join("mine")).unwrap(), who);
                }
            });
        }
    });
    drop(pool);
    assert_eq!(mounts(), before);
    // Nothing pins the directories: they can be deleted.
    let (first, second) = (first.keep(), second.keep());
    eventually("the directories are free", || {
        [&first, &second].iter().all(|path| !path.exists() || std::fs::remove_dir_all(path).is_ok())
    });
}

#[test]
fn files_of_a_warm_up_are_not_in_a_host_directory() {
    let sandbox = strict();
    let test = "files_of_a_warm_up_are_not_in_a_host_directory";
    let warm_up = "open('/workspace/warm', 'w').write('w'); held = open('/workspace/warm')";
    let builder = Pool::builder(&sandbox).language(Language::Python).host_directories(true).warm_up(warm_up);
    let Some(pool) = ready(test, builder, 1) else { return };
    let place = directory();
    let look = python("import os; [os.path.exists('warm'), os.path.exists('/workspace/warm')]");
    let outcome = served(&behind(&within(&sandbox, place.path()), &pool), &look);
    assert_eq!(outcome.value, Some(json!([false, false])));
    assert!(outcome.changes.new.is_empty() && outcome.changes.deleted.is_empty(), "{:?}", outcome.changes);
    assert_eq!(served(&behind(&sandbox, &pool), &look).value, Some(json!([true, true])));
}

#[test]
fn limits_hold_in_a_host_directory_and_fresh_runs_are_unchanged() {
    let test = "limits_hold_in_a_host_directory_and_fresh_runs_are_unchanged";
    let small = strict().limits(crate::support::quick().with_file_size(1 << 16));
    let Some(pool) = attaching(test, &small) else { return };
    let [cold, _] = both(&small, &pool, &python("open('a', 'wb').write(bytes(1 << 20))"), "file size");
    assert!(!cold.verdict.is_ok() && cold.report.reached.contains(&Reached::FileSize), "{cold:?}");
    let sandbox = strict();
    let Some(pool) = attaching(test, &sandbox) else { return };
    for (name, code) in PYTHON.into_iter().skip(1).step_by(4) {
        let cold = run(&sandbox, &python(code)).unwrap();
        let warm = served(&behind(&sandbox, &pool), &python(code));
        assert_eq!(essence(&cold), essence(&warm), "{name}");
    }
}

/// Landlock blocks what only it can block, in a host directory and in a fresh workspace.
#[test]
fn landlock_holds_in_a_worker_that_locks_late() {
    let test = "landlock_holds_in_a_worker_that_locks_late";
    let sandbox = strict();
    if !run(&sandbox, &python("1")).is_ok_and(|outcome| outcome.report.has(Layer::LandlockFiles)) {
        println!("SKIP {test}: no Landlock in level strict");
        return;
    }
    let Some(pool) = attaching(test, &sandbox) else { return };
    // Only Landlock keeps the program from writing its own file in `/proc`.
    let code = python(
        "try:\n    open('/proc/self/comm', 'w').write('x')\n    r = 'written'\nexcept PermissionError:\n    r = 'refused'\nr",
    );
    let place = directory();
    for request in [sandbox.clone(), within(&sandbox, place.path())] {
        assert_eq!(run(&request, &code).unwrap().value, Some(json!("refused")));
        let outcome = served(&behind(&request, &pool), &code);
        assert_eq!(outcome.value, Some(json!("refused")));
        assert!(outcome.report.has(Layer::LandlockFiles));
    }
}

#[test]
fn runs_that_cannot_attach_a_directory_are_cold_with_a_reason() {
    let test = "runs_that_cannot_attach_a_directory_are_cold_with_a_reason";
    let standard = strict().level(Level::Standard);
    let Some(pool) = attaching(test, &standard) else { return };
    let place = directory();
    let outcome = run(&behind(&within(&standard, place.path()), &pool), &python("1")).unwrap();
    let notes = outcome.report.notes.join("\n");
    assert!(
        outcome.verdict.is_ok() && notes.contains("started cold") && notes.contains("cannot attach"),
        "{notes}"
    );
    let sandbox = strict();
    for builder in [Pool::builder(&sandbox).language(Language::Python), Pool::builder(&sandbox)] {
        let program = if format!("{builder:?}").contains("Some(Python)") {
            python("1")
        } else {
            Program::argv(["true"])
        };
        let pool = Arc::new(builder.build().unwrap());
        let outcome = run(&behind(&within(&sandbox, place.path()), &pool), &program).unwrap();
        let notes = outcome.report.notes.join("\n");
        assert!(outcome.verdict.is_ok() && notes.contains("PoolBuilder::host_directories"), "{notes}");
    }
    let Some(pool) = attaching(test, &sandbox) else { return };
    let request = sandbox.clone().workspace(Workspace::ReadOnlyHost(place.path().to_owned()));
    let outcome = run(&behind(&request, &pool), &python("1")).unwrap();
    assert!(outcome.report.notes.join("\n").contains("read-only"), "{:?}", outcome.report.notes);
}

/// Starts this test as a separate program without a system call.
#[test]
fn a_host_that_cannot_attach_directories_runs_cold_with_a_reason() {
    const TEST: &str = "a_host_that_cannot_attach_directories_runs_cold_with_a_reason";
    if !is_helper() {
        let calls: &'static [(&[u32], i32)] = &[(&[428], libc::ENOSYS)];
        let host = PoorHost { name: "a kernel without open_tree", how: How::Process(calls, None) };
        let mut command = command(&host, &std::env::current_exe().unwrap()).unwrap();
        let output = command
            .args(["--exact", &format!("pool_directories::{TEST}"), "--nocapture"])
            .env(HELPER, "1")
            .output()
            .unwrap();
        let printed =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    if !Host::probe().availability(Level::Strict).unwrap().available {
        println!("SKIP {TEST}: no namespaces");
        return;
    }
    let sandbox = strict();
    let Some(pool) = attaching(TEST, &sandbox) else { return };
    let place = open_directory();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let request = within(&sandbox.clone().file("up", Source::Bytes(b"u".to_vec())), place.path());
    let outcome = run(&behind(&request, &pool), &python("open('up').read()")).unwrap();
    let notes = outcome.report.notes.join("\n");
    assert_eq!(outcome.value, Some(json!("u")), "{}", outcome.stderr.text());
    assert!(notes.contains("started cold") && notes.contains("attach"), "{notes}");
    assert_eq!((pool.metrics().cold, pool.metrics().served), (1, 0));
    served(&behind(&sandbox, &pool), &python("1"));
}
