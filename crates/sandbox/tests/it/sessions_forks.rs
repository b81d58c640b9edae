//! Forks of live interpreters, and saved and restored sessions.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use toolpost_sandbox::{
    Cancel, Error, Language, Level, Reset, Sandbox, Session, SessionLimits, Source, Verdict,
};

use crate::sessions::{limits, run, start, value};
use crate::support::{Mode, eventually, is_running};

/// A session that can be forked, if the host supports it.
fn forkable(mode: Mode) -> Option<Session> {
    let session = start(mode);
    match session.fork(1) {
        Ok(_) => Some(session),
        Err(error @ Error::SessionRejected { .. }) => {
            println!("SKIP forks {mode:?}: {error}");
            assert!(mode == Mode::Shared && error.hint().is_some(), "{error}");
            None
        }
        Err(error) => panic!("{mode:?}: {error}"),
    }
}

#[test]
fn forks_copy_memory_and_files_and_continue_independently() {
    for mode in Mode::available() {
        let Some(session) = forkable(mode) else { continue };
        run(
            &session,
            "import os\nx = [1]\nos.makedirs('d')\nopen('d/a', 'w').write('parent')\n\
             open('/tmp/t', 'w').write('scratch')\nwhere = os.getcwd()\nos.symlink('d/a', 'l')",
        );
        let forks = session.fork(2).unwrap();
        for (number, fork) in forks.iter().enumerate() {
            assert_eq!(
                value(
                    fork,
                    "x, open('d/a').read(), open('/tmp/t').read(), open('l').read(), os.getcwd() == where"
                ),
                json!([[1], "parent", "scratch", "parent", true])
            );
            assert_eq!(fork.cells(), 2);
            run(
                fork,
                &format!(
                    "x.append({number})\nopen(where + '/d/a', 'w').write('fork {number}')\nopen('/tmp/t', 'w').write('{number}')"
                ),
            );
        }
        run(&session, "open('d/a', 'a').write('!')\nx.append('p')");
        for (number, fork) in forks.iter().enumerate() {
            let found =
                value(fork, "[x, open('d/a').read(), open('/tmp/t').read(), sorted(os.listdir('.'))]");
            assert_eq!(found, json!([[1, number], format!("fork {number}"), number.to_string(), ["d", "l"]]));
            let outcome = run(fork, "open('new', 'w').write('n')");
            assert_eq!(outcome.changes.new, [std::path::PathBuf::from("new")]);
            assert_eq!(outcome.artifacts[0].read().unwrap(), b"n");
            assert_eq!(fork.download("d/a", 100).unwrap(), format!("fork {number}").as_bytes());
        }
        assert_eq!(
            value(&session, "[x, open('d/a').read(), open('/tmp/t').read(), sorted(os.listdir('.'))]"),
            json!([[1, "p"], "parent!", "scratch", ["d", "l"]])
        );
        // A program that a fork starts sees the fork's files.
        run(&forks[0], "import subprocess");
        assert_eq!(
            value(
                &forks[0],
                "subprocess.run(['cat', where + '/d/a'], capture_output=True, text=True).stdout"
            ),
            json!("fork 0")
        );
    }
}

#[test]
fn forks_fork_and_outlive_each_other() {
    for mode in Mode::available() {
        let Some(session) = forkable(mode) else { continue };
        run(&session, "x = 'root'\nopen('f', 'w').write('root')");
        let child = session.fork(1).unwrap().pop().unwrap();
        run(&child, "x = 'child'\nopen('f', 'w').write('child')");
        let grandchild = child.fork(1).unwrap().pop().unwrap();
        drop(session);
        assert_eq!(value(&grandchild, "x, open('f').read()"), json!(["child", "child"]), "{mode:?}");
        run(&grandchild, "open('f', 'w').write('grandchild')");
        // The death of one does not affect the others.
        let outcome = run(&child, "import os; os._exit(7)");
        // Its parent is dead, so another process reaped it; since Linux 6.15 its pidfd has the status.
        if !outcome.report.notes.iter().any(|note| note.contains("is unknown")) {
            assert_eq!((outcome.verdict, outcome.exit_code), (Verdict::Exit { code: 7 }, Some(7)));
        }
        assert!(child.ended().is_some());
        assert_eq!(value(&grandchild, "x, open('f').read()"), json!(["child", "grandchild"]));
        let more = grandchild.fork(3).unwrap();
        assert_eq!(value(&more[2], "open('f').read()"), json!("grandchild"));
        grandchild.reset(Reset::KeepFiles).unwrap();
        assert_eq!(
            value(&grandchild, "import os; [open('f').read(), 'x' in globals()]"),
            json!(["grandchild", false])
        );
        drop(grandchild);
        assert_eq!(value(&more[0], "x"), json!("child"));
    }
}

#[test]
fn a_fork_reaches_no_processes_or_files_of_others() {
    for mode in Mode::available() {
        let Some(session) = forkable(mode) else { continue };
        run(&session, "import os, signal\nowner = os.getpid()\nopen('secret', 'w').write('parent secret')");
        let forks = session.fork(2).unwrap();
        run(&session, "open('later', 'w').write('later secret')");
        let sibling = value(&forks[1], "os.getpid()");
        let attack = format!(
            "found = []\nfor pid in (owner, {sibling}, 1):\n    for what in (lambda: os.kill(pid, signal.SIGKILL), \
             lambda: open(f'/proc/{{pid}}/mem', 'rb'), lambda: os.listdir(f'/proc/{{pid}}/root'), \
             lambda: os.readlink(f'/proc/{{pid}}/fd/1'), lambda: os.listdir(f'/proc/{{pid}}/cwd')):\n        try:\n            what()\n            \
             found.append(pid)\n        except OSError: pass\nfound"
        );
        assert_eq!(value(&forks[0], &attack), json!([]), "{mode:?}");
        // Its root is private, even if it raises the capability again.
        let escape = "import ctypes\nlibc = ctypes.CDLL(None)\nheader = (ctypes.c_uint32 * 2)(0x20080522, 0)\n\
            sets = (ctypes.c_uint32 * 6)(1 << 18, 1 << 18, 0, 0, 0, 0)\nlibc.syscall(126, header, sets)\n\
            os.makedirs('/workspace/x', exist_ok=True)\nhold = os.open('/', os.O_RDONLY)\nos.chroot('/workspace/x')\n\
            os.fchdir(hold)\nfor _ in range(20): os.chdir('..')\nos.chroot('.')\nsorted(os.listdir('/workspace'))";
        if cfg!(target_arch = "x86_64") && mode == Mode::Strict {
            assert_eq!(value(&forks[1], escape), json!(["secret", "x"]), "not `later`");
        }
        assert_eq!(value(&session, "open('secret').read()"), json!("parent secret"));
        // No program inherits the capability.
        let outcome = run(
            &session,
            "import subprocess\nprint(subprocess.run(['grep', 'Cap', '/proc/self/status'], capture_output=True, text=True).stdout)",
        );
        let sets: Vec<String> = outcome
            .stdout
            .text()
            .lines()
            .map(|line| line.replace(['0', '\t'], ""))
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(sets, ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"], "{mode:?}");
        assert!(run(&session, "os.chroot('/')").stderr.text().contains("PermissionError"));
    }
}

#[test]
fn landlock_holds_in_a_session_that_can_be_forked_and_in_its_forks() {
    use toolpost_sandbox::Layer;
    for mode in Mode::available() {
        let Some(session) = forkable(mode) else { continue };
        let report = session.report().unwrap();
        let missing = report.missing.iter().find(|missing| missing.layer == Layer::LandlockFiles);
        if let Some(missing) = missing.filter(|missing| missing.reason.contains("Linux 5.13")) {
            println!("SKIP landlock_holds {mode:?}: {}", missing.reason);
            return;
        }
        assert!(report.has(Layer::LandlockFiles), "{mode:?} {:?}", report.missing);
        assert!(report.missing.iter().all(|missing| missing.layer != Layer::LandlockFiles));
        let fork = session.fork(1).unwrap().pop().unwrap();
        let second = fork.fork(1).unwrap().pop().unwrap();
        let code = "import os\ndef refused(path, flags=os.O_WRONLY):\n    try: os.close(os.open(path, flags))\n    \
            except OSError as error: return type(error).__name__\n    return 'open'\n\
            [refused('/proc/self/mem'), refused('/proc/self/comm'), refused('/proc/self/oom_score_adj'), \
             refused('/dev/null'), refused('mine', os.O_WRONLY | os.O_CREAT), refused('/tmp/mine', os.O_WRONLY | os.O_CREAT), \
             os.rename('mine', 'yours'), os.mkdir('d'), os.rename('yours', 'd/yours'), os.remove('d/yours'), os.rmdir('d'), \
             [line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')]]";
        let no = "PermissionError";
        let expected =
            json!([no, no, no, "open", "open", "open", null, null, null, null, null, ["0000000000000000"]]);
        for (who, one) in [("first", &session), ("fork", &fork), ("fork of a fork", &second)] {
            assert_eq!(value(one, code), expected, "{mode:?} {who}");
        }
        fork.reset(Reset::Fresh).unwrap();
        assert_eq!(value(&fork, code), expected, "{mode:?} after a reset");
    }
}

#[test]
fn a_reset_ends_orphaned_programs_and_no_forks() {
    for mode in Mode::available() {
        let Some(session) = forkable(mode) else { continue };
        let fork = session.fork(1).unwrap().pop().unwrap();
        let (own, other) = (format!("66.{}1", std::process::id()), format!("66.{}2", std::process::id()));
        let start = |marker: &str| {
            format!(
                "import subprocess\nsubprocess.run(['sh', '-c', 'setsid sleep {marker} > /dev/null 2>&1 &'])"
            )
        };
        run(&session, &start(&own));
        run(&fork, &start(&other));
        let is_running = |marker: &str| crate::support::is_running(&format!("sleep {marker}"));
        // The shells do not wait until their programs have replaced them.
        eventually("both programs run", || is_running(&own) && is_running(&other));
        session.reset(Reset::KeepFiles).unwrap();
        assert!(!is_running(&own), "{mode:?}");
        assert!(is_running(&other), "{mode:?}: what a fork started is the fork's");
        fork.reset(Reset::KeepFiles).unwrap();
        assert!(!is_running(&other), "{mode:?}");
        assert_eq!(value(&session, "1"), json!(1));
    }
}

#[test]
fn a_reused_fork_root_is_clean() {
    let Some(mode) = Mode::available().into_iter().find(|mode| forkable(*mode).is_some()) else { return };
    let settings = SessionLimits::default().with_forks(1);
    let session = Session::start_with(&mode.sandbox(), Language::Python, &settings).unwrap();
    run(&session, "import os, subprocess\nopen('mine', 'w').write('mine')");
    for round in 0..4 {
        let fork = session.fork(1).unwrap().pop().unwrap();
        assert_eq!(
            value(&fork, "[sorted(os.listdir('.')), os.listdir('/tmp')]"),
            json!([["mine"], []]),
            "{round}"
        );
        // An orphaned program, directories without permissions, and a workspace without any.
        run(
            &fork,
            "open('/tmp/left', 'w').write('x')\nos.makedirs('deep/er')\nos.chmod('deep', 0)\n\
             subprocess.run(['sh', '-c', 'setsid sleep 64.125 &'])\nos.chmod('.', 0)",
        );
        eventually("the orphaned program runs", || is_running("sleep 64.125"));
        drop(fork);
        eventually("what a fork left is dead", || !is_running("sleep 64.125"));
    }
    assert_eq!(value(&session, "sorted(os.listdir('.'))"), json!(["mine"]));
}

#[test]
fn a_failed_fork_names_the_reason() {
    let host = toolpost_sandbox::Host::probe();
    for (level, reason) in [(Level::Minimal, "uses the host's files"), (Level::Maximum, "no capability")] {
        if !host.availability(level).is_some_and(|entry| entry.available) {
            println!("SKIP where_nothing_can_be_forked {level}: this host does not give it");
            continue;
        }
        let sandbox = Sandbox::new().level(level).limits(crate::support::quick());
        let session = Session::start(&sandbox, Language::Python).unwrap();
        let error = session.fork(1).unwrap_err();
        let is_refused = matches!(error, Error::SessionRejected { .. });
        // On a host without namespaces that is the first reason.
        let text = error.to_string();
        assert!(is_refused && (text.contains(reason) || text.contains("namespaces")), "{level}: {error}");
        assert!(error.hint().unwrap().to_string().contains("`strict`"), "{error}");
        assert_eq!(value(&session, "1 + 1"), json!(2), "{level}: the session continues");
    }
}

#[test]
fn a_fork_has_new_random_numbers_and_no_threads_or_programs_of_its_parent() {
    let Some(session) = Mode::available().into_iter().find_map(forkable) else { return };
    run(
        &session,
        "import random, threading, time, subprocess\nrandom.seed(1)\nthreading.Thread(target=lambda: time.sleep(30), daemon=True).start()\nchild = subprocess.Popen(['sleep', '31.25'])",
    );
    let forks = session.fork(2).unwrap();
    let numbers: Vec<_> = forks.iter().chain([&session]).map(|one| value(one, "random.random()")).collect();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
    assert_eq!(value(&forks[0], "threading.active_count()"), json!(1));
    // Ending a fork does not affect its parent; ending the parent ends its programs, but no fork.
    drop(forks.into_iter().next());
    assert!(is_running("sleep 31.25"));
    let fork = session.fork(1).unwrap().pop().unwrap();
    drop(session);
    eventually("the parent's program is dead", || !is_running("sleep 31.25"));
    assert_eq!(value(&fork, "1"), json!(1));
}

#[test]
fn host_paths_beneath_tmp_are_visible_in_a_fork() {
    let shown = crate::support::open_directory();
    if !shown.path().starts_with("/tmp") {
        println!("SKIP host_paths_beneath_tmp_are_visible_in_a_fork: short-lived files are elsewhere");
        return;
    }
    std::fs::write(shown.path().join("given"), "given").unwrap();
    let Some(mode) = Mode::available().into_iter().find(|mode| forkable(*mode).is_some()) else { return };
    let sandbox = mode.sandbox().read_only(shown.path());
    let session = Session::start(&sandbox, Language::Python).unwrap();
    run(&session, "import os\nopen('mine', 'w').write('mine')");
    let fork = session.fork(1).unwrap().pop().unwrap();
    let path = shown.path().join("given");
    assert_eq!(
        value(&fork, &format!("[open('mine').read(), open({path:?}).read()]")),
        json!(["mine", "given"])
    );
    fork.reset(Reset::Fresh).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "given", "what is shown is never emptied");
}

#[test]
fn the_number_of_forks_is_limited() {
    let Some(mode) = Mode::available().into_iter().find(|mode| forkable(*mode).is_some()) else { return };
    let settings = SessionLimits::default().with_forks(2);
    let session = Session::start_with(&mode.sandbox(), Language::Python, &settings).unwrap();
    for count in [0, 3] {
        assert!(matches!(session.fork(count), Err(Error::SessionRejected { .. })));
    }
    let forks = session.fork(2).unwrap();
    let error = forks[0].fork(1).unwrap_err();
    assert!(error.to_string().contains("already 3 interpreters"), "{error}");
    drop(forks);
    assert_eq!(session.fork(2).unwrap().len(), 2);
    // Too deep a tree is an error, and the session continues.
    run(
        &session,
        "import os\nhere = os.getcwd()\nfor n in range(60):\n    os.mkdir('d'); os.chdir('d')\nos.chdir(here)",
    );
    let error = session.fork(1).unwrap_err();
    assert!(error.to_string().contains("48 levels"), "{error}");
    assert_eq!(value(&session, "2"), json!(2));
}

#[test]
fn code_that_hangs_at_a_fork_fails_only_that_fork() {
    let Some(session) = Mode::available().into_iter().find_map(forkable) else { return };
    run(&session, "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(60))");
    let begin = std::time::Instant::now();
    assert!(session.fork(1).is_err());
    assert!(begin.elapsed() < Duration::from_secs(9));
    assert_eq!(value(&session, "2"), json!(2));
}

#[test]
fn a_saved_session_is_restored_and_lists_differences() {
    for mode in Mode::available() {
        let target = tempfile::tempdir().unwrap();
        let directory = target.path().join("saved");
        let session = start(mode);
        session.upload("data/in.csv", &Source::Bytes(b"1,2".to_vec())).unwrap();
        run(
            &session,
            "import time\nrows = open('data/in.csv').read().split(',')\nopen('out', 'w').write('+'.join(rows))\nopen('.bashrc', 'w').close()\nlen(rows)",
        );
        run(&session, "stamp = time.time_ns()\nopen('stamp', 'w').write(str(stamp))\nstamp");
        run(&session, "1 / 0");
        let short = limits().with_wall(Duration::from_millis(200));
        session.run("time.sleep(60)", &short, &Cancel::new(), &mut |_| {}).unwrap();
        let stamp = session.download("stamp", 100).unwrap();
        assert_eq!(session.save(&directory).unwrap(), Vec::<String>::new());
        assert!(session.save(&directory).unwrap_err().to_string().contains("not empty"));
        drop(session);
        let names =
            std::fs::read_dir(directory.join("files")).unwrap().flatten().map(|entry| entry.file_name());
        let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        assert!(names.len() == 4 && names.iter().all(|name| name.parse::<usize>().is_ok()), "{names:?}");

        let restore =
            || Session::restore(&mode.sandbox(), &SessionLimits::default(), &directory, &Cancel::new());
        let (again, differences) = restore().unwrap();
        let what: Vec<(Option<u32>, &str)> =
            differences.iter().map(|one| (one.cell, one.subject.as_str())).collect();
        assert_eq!(
            what,
            [(Some(2), "value"), (Some(4), "cell"), (None, "file `stamp`")],
            "{mode:?} {differences:?}"
        );
        assert_eq!(value(&again, "rows"), json!(["1", "2"]));
        assert_eq!(again.download("stamp", 100).unwrap(), stamp, "the files are as they were saved");
        assert_eq!(again.download("out", 100).unwrap(), b"1+2");
        // It can be saved again.
        again.save(&target.path().join("second")).unwrap();

        // Another version, a damaged record and hostile names are rejected.
        let record = directory.join("session.json");
        let text = std::fs::read_to_string(&record).unwrap();
        assert!(text.starts_with("{\"v\":2,"), "{text}");
        for (from, to, part) in [
            ("\"v\":2", "\"v\":1", "expected version 2, found 1"),
            (
                "\"v\":2",
                "\"v\":3,\"later\":0",
                "has format 3, but this program supports formats up to 2; use the newer program",
            ),
            ("\"log\"", "\"other\"", "other"),
            ("\"path\":\"out\"", "\"path\":\"../out\"", "`..`"),
            ("{\"v\"", "{\"v", "saved session"),
        ] {
            std::fs::write(&record, text.replacen(from, to, 1)).unwrap();
            let error = restore().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        std::fs::write(&record, &text).unwrap();
        for name in &names {
            std::fs::write(directory.join("files").join(name), "damaged").unwrap();
        }
        assert!(restore().map(|_| ()).unwrap_err().to_string().contains("differs from the saved"));
    }
}

/// `tests/golden` has one saved session per format from 2 on; every release must restore all of them.
///
/// A new format has no directory yet: this test makes it, and fails once.
#[test]
fn the_saved_session_of_each_format_is_restored() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let directory = |format: u32| golden.join(format!("session-{format}"));
    let newest = directory(Session::FORMAT);
    let mode = Mode::available()[0];
    if !newest.exists() {
        let session = start(mode);
        session.upload("data/in.csv", &Source::Bytes(b"1,2".to_vec())).unwrap();
        value(
            &session,
            "rows = open('data/in.csv').read().split(',')\nopen('out', 'w').write('+'.join(rows))\nlen(rows)",
        );
        session.reset(Reset::KeepFiles).unwrap();
        value(&session, "print('again')\n6 * 7");
        session.save(&newest).unwrap();
        panic!("made `{}`: commit it", newest.display());
    }
    for format in 2..=Session::FORMAT {
        let (session, differences) =
            Session::restore(&mode.sandbox(), &SessionLimits::default(), &directory(format), &Cancel::new())
                .unwrap();
        assert_eq!(differences, [], "format {format}");
        assert_eq!(session.download("out", 100).unwrap(), b"1+2");
    }
}

#[test]
fn a_thousand_cells_and_a_hundred_forks_leave_nothing() {
    let Some(session) = Mode::available().into_iter().find_map(forkable) else { return };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    value(&session, "1");
    drop(session.fork(2).unwrap());
    let before = descriptors();
    for _ in 0..1000 {
        value(&session, "x = 1");
    }
    for _ in 0..50 {
        for fork in session.fork(2).unwrap() {
            assert_eq!(value(&fork, "x"), json!(1));
        }
    }
    // Other tests of this program open and close descriptors concurrently.
    eventually("no descriptor is left", || descriptors() < before + 60);
    let zombies = value(
        &session,
        "import os\nn = 0\nfor p in os.listdir('/proc'):\n    if p.isdigit():\n        try: n += open(f'/proc/{p}/stat').read().split(') ')[1][0] == 'Z'\n        except OSError: pass\nn",
    );
    assert!(zombies.as_u64().unwrap() <= 3, "{zombies}");
}
