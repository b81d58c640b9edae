//! A thousand runs leave nothing behind.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Cancel, CellLimits, Language, Pool, Program, Sandbox, Session, Source, Workspace};

use crate::support::{Mode, run};

/// The resources of this process that a run could leak.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    mounts: Vec<String>,
    descriptors: usize,
    groups: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
    children: Vec<String>,
    threads: usize,
}

fn holdings() -> Holdings {
    let mut groups = BTreeSet::new();
    collect_groups(Path::new("/sys/fs/cgroup"), 0, &mut groups);
    let own = format!("toolpost-{}-", std::process::id());
    let directories = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own)))
        .collect();
    let threads: Vec<PathBuf> =
        std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path()).collect();
    Holdings {
        // Docker daemons on this machine mount and unmount concurrently.
        mounts: std::fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .filter(|line| !line.contains("docker"))
            .filter(|line| line.contains(&own) || !line.contains("/toolpost-"))
            .map(str::to_owned)
            .collect(),
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        groups,
        directories,
        children: threads
            .iter()
            .map(|thread| std::fs::read_to_string(thread.join("children")).unwrap_or_default())
            .filter(|children| !children.is_empty())
            .collect(),
        threads: threads.len(),
    }
}

/// The cgroups of this process, at any depth.
fn collect_groups(directory: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    let own = format!("toolpost-{}-", std::process::id());
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() || path.is_symlink() {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with(&own) {
            found.insert(path);
        } else if depth < 8 {
            collect_groups(&path, depth + 1, found);
        }
    }
}

fn thousand_runs() {
    let host_directory = crate::support::open_directory();
    std::fs::set_permissions(host_directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let modes = Mode::available();
    let programs = [
        Program::argv(["true"]),
        Program::argv(["sh", "-c", "sleep 60 & echo x > file; exit 3"]),
        Program::argv(["./no-such-program"]),
    ];
    let one = |number: usize| {
        let mode = modes[number % modes.len()];
        let mut sandbox = mode.sandbox();
        if number.is_multiple_of(5) {
            sandbox = sandbox.file("a/b.txt", Source::Bytes(b"x".to_vec()));
        }
        if number.is_multiple_of(7) && mode != Mode::Shared {
            sandbox = sandbox.workspace(Workspace::Host(host_directory.path().to_owned()));
            let _ = std::fs::remove_dir_all(host_directory.path().join("a"));
        }
        let program = &programs[number / modes.len() % programs.len()];
        if number.is_multiple_of(9) {
            // Started and dropped, at once or later.
            let started = sandbox.start(program);
            if number.is_multiple_of(2) {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            drop(started);
            return;
        }
        let outcome = run(&sandbox, program);
        assert_eq!(outcome.is_err(), *program == programs[2], "{outcome:?}");
        drop(outcome);
    };
    // Cached resources: the first process, the id map, host facts.
    (0..42).for_each(one);
    let before = holdings();
    (0..if crate::attack::is_complete() { 1000 } else { 150 }).for_each(one);
    let after = holdings();
    assert_eq!(before, after);
    let left: Vec<_> =
        std::fs::read_dir(host_directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "a" || name == "file"), "placeholders are left: {left:?}");
}

/// Runs with every kind of end: success, failure, limit, cancellation, set-up error.
fn one_of_every_end(sandbox: &Sandbox, number: usize) {
    let code = match number % 6 {
        0 => "open('file', 'w').write('x')\n1",
        1 => "import os\nos.fork() or __import__('time').sleep(60)\nos._exit(3)",
        2 => "1 / 0",
        3 => "import os\nos.kill(os.getpid(), 9)",
        4 => "while True: pass",
        _ => "import time\ntime.sleep(60)",
    };
    let program = Program::code(Language::Python, code);
    let sandbox = match number % 30 {
        7 => sandbox.clone().file("a", Source::Path("/no/such/file".into())),
        13 => sandbox.clone().directory("not-there"),
        19 => sandbox.clone().file("a/b.txt", Source::Bytes(b"x".to_vec())),
        _ => sandbox.clone(),
    };
    let cancel = Cancel::new();
    if number % 6 < 4 {
        let _ = sandbox.run(&program, &cancel, &mut |_| {});
        return;
    }
    std::thread::scope(|scope| {
        let running = scope.spawn(|| sandbox.run(&program, &cancel, &mut |_| {}));
        std::thread::sleep(std::time::Duration::from_millis(number as u64 % 7));
        cancel.cancel();
        let _ = running.join();
    });
}

/// The leftovers of `work`, after delayed cleanups.
fn leaves_nothing(what: &str, work: impl Fn(usize)) {
    leaves_nothing_after(what, if crate::attack::is_complete() { 1000 } else { 60 }, work);
}

fn leaves_nothing_after(what: &str, runs: usize, work: impl Fn(usize)) {
    work(30);
    // The first measurement is taken when nothing changes any more; the second when it equals the first, or
    // never will.
    let mut before = holdings();
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = holdings();
        if now == before {
            break;
        }
        before = now;
    }
    work(runs);
    let mut after = holdings();
    for _ in 0..300 {
        if after == before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        after = holdings();
    }
    assert_eq!(before, after, "{what}");
}

fn run_every_end_on_every_backend() {
    for mode in Mode::available() {
        leaves_nothing(&format!("{mode:?}"), |runs| {
            (0..runs / 3).for_each(|number| one_of_every_end(&mode.sandbox(), number));
        });
    }
    let strict = Mode::Strict.sandbox();
    if !Mode::available().contains(&Mode::Strict) {
        println!("SKIP leaks of pools and sessions: level strict is not available");
        return;
    }
    leaves_nothing("pool", |runs| {
        let pool = Pool::builder(&strict).language(Language::Python).build().unwrap();
        let pooled = strict.clone().backend(std::sync::Arc::new(pool));
        (0..runs).for_each(|number| one_of_every_end(&pooled, number));
    });
    leaves_nothing("session", |runs| {
        let limits = CellLimits::default().with_wall(std::time::Duration::from_millis(300));
        for number in 0..runs / 20 {
            let session = Session::start(&strict, Language::Python).unwrap();
            for cell in 0..18 {
                let code = ["x = 1", "open('file', 'w').write('x')", "1 / 0", "print('y' * 5000)"][cell % 4];
                session.run(code, &limits, &Cancel::new(), &mut |_| {}).unwrap();
            }
            // Forks, and an end that the session did not choose.
            if let Ok(forks) = session.fork(2) {
                let _ = forks[0].run("import os\nos._exit(1)", &limits, &Cancel::new(), &mut |_| {});
            }
            let last =
                if number % 2 == 0 { "import os\nos.kill(os.getpid(), 9)" } else { "while True: pass" };
            let _ = session.run(last, &limits, &Cancel::new(), &mut |_| {});
        }
    });
}

#[test]
fn every_end_of_a_run_leaves_nothing_behind_on_any_backend() {
    let text = alone("leaks::helper_every_end");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn helper_every_end() {
    // For every_end_of_a_run_leaves_nothing_behind_on_any_backend.
    if crate::support::is_helper() {
        run_every_end_on_every_backend();
    }
}

/// Fewer runs than elsewhere: the daemon takes a second per container.
fn every_end_in_containers() {
    use toolpost_docker::{Docker, DockerHost, Options};
    const RUNS: usize = 150;
    if !crate::attack::is_complete() {
        println!("SKIP leaks of containers: `cargo xtask attack` makes their image, which takes minutes");
        return;
    }
    let world = crate::attack::world::World::new();
    let socket = match world.docker_socket() {
        Ok(socket) => socket,
        Err(reason) => return println!("SKIP leaks of containers: {reason}"),
    };
    leaves_nothing_after("docker", RUNS, |runs| {
        let options = Options::new(crate::attack::world::ATTACKED);
        let docker = Docker::connect(&DockerHost::Unix(socket.clone()), options).unwrap();
        let sandbox = Sandbox::new().backend(std::sync::Arc::new(docker)).limits(crate::support::quick());
        (0..runs).for_each(|number| one_of_every_end(&sandbox, number));
    });
    crate::support::eventually("no container is left", || world.containers().is_empty());
}

#[test]
fn every_end_of_a_container_leaves_nothing_behind() {
    let text = alone("leaks::helper_containers");
    assert!(text.contains("1 passed"), "{text}");
    println!("{text}");
}

#[test]
fn helper_containers() {
    // For every_end_of_a_container_leaves_nothing_behind.
    if crate::support::is_helper() {
        every_end_in_containers();
    }
}

/// Runs a test in a separate process, so that no other test holds anything meanwhile.
fn alone(test: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the test program itself, alone")]
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn a_thousand_runs_leave_nothing_behind() {
    let text = alone("leaks::helper_thousand_runs");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn helper_thousand_runs() {
    // For a_thousand_runs_leave_nothing_behind.
    if !crate::support::is_helper() {
        return;
    }
    thousand_runs();
}

#[test]
fn an_ended_session_leaves_nothing_before_its_drop() {
    for mode in Mode::available() {
        let session = Session::start(&mode.sandbox(), Language::Python).unwrap();
        session.end();
        let mut groups = BTreeSet::new();
        collect_groups(Path::new("/sys/fs/cgroup"), 0, &mut groups);
        assert!(groups.is_empty(), "{mode:?} {groups:?}");
        assert!(session.ended().is_some());
        session.end();
    }
}
