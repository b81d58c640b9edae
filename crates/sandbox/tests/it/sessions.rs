//! Sessions: cells, interrupts, limits, resets, and hostile code.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{
    Cancel, CellLimits, Error, Interruption, Language, Layer, Outcome, Reached, Reset, SandboxEvent, Session,
    SessionLimits, Source, Verdict,
};

use crate::support::{Mode, eventually, is_running, open_directory, quick};

pub(crate) fn limits() -> CellLimits {
    CellLimits::default().with_wall(Duration::from_secs(20))
}

pub(crate) fn start(mode: Mode) -> Session {
    Session::start(&mode.sandbox(), Language::Python).unwrap()
}

pub(crate) fn run(session: &Session, code: &str) -> Outcome {
    session.run(code, &limits(), &Cancel::new(), &mut |_| {}).unwrap()
}

/// Runs a cell that must succeed, and returns its value.
pub(crate) fn value(session: &Session, code: &str) -> serde_json::Value {
    let outcome = run(session, code);
    assert_eq!(outcome.verdict, Verdict::Ok, "{code}\n{}", outcome.stderr.text());
    outcome.value.unwrap_or_default()
}

/// Runs a cell and interrupts it from another thread after its first output.
pub(crate) fn run_interrupted(session: &Session, code: &str) -> Outcome {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || receiver.recv().is_ok_and(|()| session.interrupt()));
        // Dropped with this closure, so that the thread ends without output too.
        let mut on_event = move |event: SandboxEvent<'_>| {
            if let SandboxEvent::Stdout(_) = event {
                let _ = sender.send(());
            }
        };
        session.run(code, &limits(), &Cancel::new(), &mut on_event).unwrap()
    })
}

#[test]
fn cells_build_on_each_other_and_each_has_its_own_output() {
    for mode in Mode::available() {
        let session = start(mode);
        assert_eq!(value(&session, "import math\nx = 20\nprint('first')"), json!(null));
        let mut events = Vec::new();
        let outcome = session
            .run("print('second'); x + 22", &limits(), &Cancel::new(), &mut |event| {
                if let SandboxEvent::Stdout(bytes) = event {
                    events.extend_from_slice(bytes);
                }
            })
            .unwrap();
        assert_eq!(outcome.value, Some(json!(42)), "{mode:?}");
        assert_eq!((outcome.stdout.text(), events), ("second\n".to_owned(), b"second\n".to_vec()));
        assert_eq!(outcome.exit_code, Some(0));
        assert_eq!(value(&session, "math.floor(x + 0.5)"), json!(20));
        assert_eq!(value(&session, "[1, 'ä', None, {'a': 1.5}]"), json!([1, "ä", null, {"a": 1.5}]));
        assert_eq!(session.cells(), 4);
    }
}

#[test]
fn an_error_ends_the_cell_and_its_traceback_names_it() {
    for mode in Mode::available() {
        let session = start(mode);
        value(&session, "def divide(a):\n    return 1 / a");
        let outcome = run(&session, "print('before')\ndivide(0)");
        assert_eq!((outcome.verdict, outcome.exit_code), (Verdict::Exit { code: 1 }, Some(1)));
        let text = outcome.stderr.text();
        for part in
            ["<cell 1>\", line 2, in divide", "return 1 / a", "<cell 2>\", line 2", "ZeroDivisionError"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<string>"), "{text}");
        assert_eq!(outcome.stdout.text(), "before\n");
        let outcome = run(&session, "x = (");
        assert!(outcome.stderr.text().contains("SyntaxError"), "{}", outcome.stderr.text());
        let outcome = run(&session, "import sys; sys.exit(3)");
        assert_eq!((outcome.verdict, outcome.exit_code), (Verdict::Exit { code: 3 }, Some(3)));
        assert_eq!(run(&session, "sys.exit()").verdict, Verdict::Ok);
        assert_eq!(value(&session, "divide(2)"), json!(0.5));
    }
}

#[test]
fn a_cell_can_await_and_its_tasks_continue_in_the_next() {
    let Some(mode) = Mode::available().pop() else { return };
    let session = start(mode);
    let code = "import asyncio\nasync def double(x):\n    await asyncio.sleep(0.01)\n    return x * 2\nawait double(21)";
    assert_eq!(value(&session, code), json!(42));
    assert_eq!(value(&session, "task = asyncio.get_event_loop().create_task(double(4))"), json!(null));
    assert_eq!(value(&session, "await task"), json!(8));
    let outcome = session
        .run(
            "await asyncio.sleep(60)",
            &limits().with_wall(Duration::from_millis(300)),
            &Cancel::new(),
            &mut |_| {},
        )
        .unwrap();
    assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Wall });
    assert_eq!(value(&session, "await double(1)"), json!(2));
}

#[test]
fn what_a_value_shows_of_itself_is_a_file() {
    let Some(mode) = Mode::available().pop() else { return };
    let session = start(mode);
    value(
        &session,
        "class Shown:\n    def _repr_html_(self): return '<b>ä</b>'\n    def __repr__(self): return 'shown'",
    );
    let outcome = run(&session, "Shown()");
    assert_eq!(outcome.value, Some(json!({"type": "__main__.Shown", "text": "shown"})));
    let names: Vec<&str> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(names, ["value-2.html"]);
    assert_eq!(outcome.artifacts[0].read().unwrap(), "<b>ä</b>".as_bytes());
    assert_eq!(outcome.artifacts[0].media_type, "text/html");
}

#[test]
fn artifacts_and_changes_belong_to_the_cell() {
    for mode in Mode::available() {
        let session = start(mode);
        let outcome = run(&session, "open('a.txt', 'w').write('one')\nopen('b.txt', 'w').write('two')");
        assert_eq!(outcome.changes.new.len(), 2, "{mode:?}");
        session.upload("given/data.csv", &Source::Bytes(b"a,b\n1,2\n".to_vec())).unwrap();
        let outcome = run(
            &session,
            "import os\nos.remove('a.txt')\nopen('b.txt', 'a').write('!')\nopen('given/data.csv').read()",
        );
        assert_eq!(outcome.value, Some(json!("a,b\n1,2\n")));
        let path = std::path::PathBuf::from;
        assert_eq!(outcome.changes.new, Vec::<std::path::PathBuf>::new());
        assert_eq!(
            (outcome.changes.changed, outcome.changes.deleted),
            (vec![path("b.txt")], vec![path("a.txt")])
        );
        assert_eq!(outcome.artifacts.len(), 1);
        assert_eq!(outcome.artifacts[0].read().unwrap(), b"two!");
        let files: Vec<String> = session.files().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(files, ["b.txt", "given/data.csv"]);
        assert_eq!(session.download("b.txt", 100).unwrap(), b"two!");
        assert!(matches!(session.download("b.txt", 3), Err(Error::TooLarge { .. })));
        session.upload("b.txt", &Source::Bytes(b"second".to_vec())).unwrap();
        assert_eq!(session.download("b.txt", 100).unwrap(), b"second");
        assert!(session.upload("given", &Source::Bytes(vec![])).is_err(), "a directory is not replaced");
        assert_eq!(session.download("given/data.csv", 100).unwrap(), b"a,b\n1,2\n");
        for name in ["../x", "/etc/passwd", "a/../b", ""] {
            assert!(session.upload(name, &Source::Bytes(vec![])).is_err());
            assert!(session.download(name, 100).is_err());
        }
        run(&session, "os.symlink('/etc/passwd', 'link'); os.symlink('/', 'root')");
        assert!(
            session.download("link", 10_000).is_err() && session.download("root/etc/passwd", 10_000).is_err()
        );
        let before = std::fs::read("/etc/passwd").unwrap();
        session.upload("link", &Source::Bytes(b"mine".to_vec())).unwrap();
        assert_eq!(session.download("link", 100).unwrap(), b"mine", "the link is replaced, not followed");
        assert_eq!(std::fs::read("/etc/passwd").unwrap(), before);
        assert!(session.upload("root/x", &Source::Bytes(vec![])).is_err());
    }
}

#[test]
fn an_interrupt_from_another_thread_ends_the_cell_and_not_the_session() {
    for mode in Mode::available() {
        let session = start(mode);
        value(&session, "kept = 1");
        assert!(!session.interrupt(), "nothing runs");
        for code in
            ["import time\ntime.sleep(60)", "while True: pass", "import threading\nthreading.Event().wait()"]
        {
            let start = Instant::now();
            let outcome = run_interrupted(&session, &format!("print('started', flush=True)\n{code}"));
            assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Caller }, "{mode:?} {code}");
            assert!(start.elapsed() < Duration::from_secs(10));
            assert!(outcome.stderr.text().contains("KeyboardInterrupt"));
        }
        // An interrupt that the code raises itself is an ordinary exception.
        assert_eq!(run(&session, "raise KeyboardInterrupt").verdict, Verdict::Exit { code: 1 });
        assert_eq!(value(&session, "kept"), json!(1));
    }
}

/// Interrupts a session at every moment of many cells. Each ends by itself or by the interrupt.
pub(crate) fn interrupt_at_any_moment(session: &Session, cells: usize, code: impl Fn(usize) -> String) {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while !done.load(std::sync::atomic::Ordering::SeqCst) && begin.elapsed() < Duration::from_mins(1)
            {
                session.interrupt();
                std::thread::sleep(Duration::from_micros(700));
            }
        });
        for number in 0..cells {
            let code = code(number);
            let outcome = run(session, &code);
            let expected = [Verdict::Ok, Verdict::Interrupted { by: Interruption::Caller }];
            assert!(expected.contains(&outcome.verdict), "{number} {code}: {outcome:?}");
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert_eq!(value(session, "7"), json!(7));
}

#[test]
fn an_interrupt_at_any_moment_affects_at_most_one_cell() {
    let Some(mode) = Mode::available().pop() else { return };
    interrupt_at_any_moment(&start(mode), 200, |_| "sum(range(20000))".into());
}

#[test]
fn a_cell_over_its_wall_limit_is_interrupted_then_killed() {
    for mode in Mode::available() {
        let session = start(mode);
        let short = limits().with_wall(Duration::from_millis(200)).with_grace(Duration::from_millis(300));
        let go = |code: &str| session.run(code, &short, &Cancel::new(), &mut |_| {}).unwrap();
        let outcome = go("import time\ntime.sleep(60)");
        assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Wall }, "{mode:?}");
        assert_eq!(value(&session, "5"), json!(5));
        let begin = Instant::now();
        let outcome = go("while True:\n    try: time.sleep(60)\n    except BaseException: pass");
        assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 200 }, "{mode:?}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert!(
            outcome.report.notes.iter().any(|note| note.contains("ignored the interrupt")),
            "{:?}",
            outcome.report.notes
        );
        let error = session.run("1", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::SessionEnded { .. }), "{error}");
        assert!(error.to_string().contains("wall time") && error.hint().is_some(), "{error}");
        assert!(session.ended().unwrap().contains("ignored the interrupt"));
    }
}

#[test]
fn processor_time_output_and_value_are_limited_for_each_cell() {
    for mode in Mode::available() {
        let session = start(mode);
        let go =
            |code: &str, limits: CellLimits| session.run(code, &limits, &Cancel::new(), &mut |_| {}).unwrap();
        let outcome = go("while True: pass", limits().with_cpu(Some(Duration::from_millis(300))));
        assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Cpu }, "{mode:?}");
        assert!(
            outcome.usage.user + outcome.usage.system >= Duration::from_millis(250),
            "{:?}",
            outcome.usage
        );
        let outcome = go("import os\nfor _ in range(60000): os.stat('/')", limits());
        assert!(outcome.usage.system >= Duration::from_millis(10), "{mode:?} {:?}", outcome.usage);
        let idle = limits().with_idle(Some(Duration::from_millis(300)));
        let outcome = go("import time\ntime.sleep(60)", idle.clone());
        assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Idle }, "{mode:?}");
        assert_eq!(
            go("for _ in range(20):\n    time.sleep(0.05)\n    print(1, flush=True)", idle).verdict,
            Verdict::Ok
        );
        // The time of one cell does not count for the next.
        let outcome = go("sum(range(1000))", limits().with_cpu(Some(Duration::from_millis(300))));
        assert_eq!(outcome.verdict, Verdict::Ok);
        let outcome =
            go("while True: print('x' * 1000)", limits().with_output_total(1 << 20).with_stdout(1000));
        assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Output });
        assert!(outcome.stdout.head.len() + outcome.stdout.tail.len() <= 1000);
        assert!(outcome.report.reached.contains(&Reached::Stdout));
        let outcome = go("import sys\nprint('e' * 3000, file=sys.stderr)", limits().with_stderr(100));
        assert!(outcome.stderr.dropped > 0 && outcome.report.reached.contains(&Reached::Stderr));
        let outcome = go("for n in range(5): open(f'{n}', 'w').write('12345')", limits().with_artifacts(2));
        assert_eq!((outcome.artifacts.len(), outcome.changes.new.len()), (2, 5));
        let outcome =
            go("for n in range(5): open(f'{n}', 'a').write('12345')", limits().with_artifact_bytes(25));
        assert_eq!(outcome.artifacts.len(), 2, "{:?}", outcome.report.notes);
        assert_eq!(value(&session, "1"), json!(1));
    }
}

#[test]
fn a_cancelled_cell_ends_with_its_verdict() {
    let Some(mode) = Mode::available().pop() else { return };
    let session = start(mode);
    let cancel = Cancel::new();
    let code = "import time; print('started', flush=True); time.sleep(60)";
    let outcome = session.run(code, &limits(), &cancel, &mut |_| cancel.cancel()).unwrap();
    assert_eq!(outcome.verdict, Verdict::Cancelled);
    assert_eq!(value(&session, "3"), json!(3));
}

#[test]
fn memory_and_processes_are_limited_per_session() {
    for mode in Mode::available() {
        let small = mode.sandbox().limits(quick().with_memory(96 << 20).with_processes(12));
        let session = Session::start(&small, Language::Python).unwrap();
        let outcome =
            run(&session, "import subprocess\nall = [subprocess.Popen(['sleep', '60']) for _ in range(40)]");
        // Only a cgroup counts denied processes.
        if outcome.verdict != (Verdict::Processes { limit: 12 }) {
            assert_eq!(outcome.verdict, Verdict::Exit { code: 1 }, "{mode:?}");
            assert!(outcome.stderr.text().contains("unavailable"), "{}", outcome.stderr.text());
        }
        let session = Session::start(&small, Language::Python).unwrap();
        let outcome = run(&session, "x = bytearray(300 << 20)\nlen(x)");
        if outcome.report.has(Layer::MemoryLimit) {
            assert_eq!(
                outcome.verdict,
                Verdict::Memory { limit: 96 << 20 },
                "{mode:?} {:?}",
                outcome.report.notes
            );
            assert!(session.run("1", &limits(), &Cancel::new(), &mut |_| {}).is_err());
        } else {
            assert_eq!(outcome.verdict, Verdict::Exit { code: 1 }, "{mode:?}");
        }
    }
}

#[test]
fn a_reset_keeps_the_files_or_nothing() {
    for mode in Mode::available() {
        let session = start(mode);
        run(
            &session,
            "import subprocess, os\nx = 1\nopen('kept', 'w').write('k')\nopen(os.environ['TMPDIR'] + '/t', 'w').write('t')",
        );
        run(&session, "subprocess.Popen(['setsid', 'sleep', '61.5'])");
        session.reset(Reset::KeepFiles).unwrap();
        eventually("what the old interpreter started is dead", || !is_running("sleep 61.5"));
        assert_eq!(value(&session, "open('kept').read()"), json!("k"));
        assert!(run(&session, "x").stderr.text().contains("NameError"), "{mode:?}");
        session.reset(Reset::Fresh).unwrap();
        assert_eq!(
            value(&session, "import os; sorted(os.listdir('.')) + os.listdir(os.environ['TMPDIR'])"),
            json!([])
        );
    }
}

#[test]
fn a_session_has_its_own_limits() {
    let Some(mode) = Mode::available().pop() else { return };
    let begin =
        |limits: SessionLimits| Session::start_with(&mode.sandbox(), Language::Python, &limits).unwrap();
    let session = begin(SessionLimits::default().with_cells(2));
    value(&session, "1");
    value(&session, "2");
    let error = session.run("3", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, Error::SessionRejected { .. }) && error.to_string().contains("2 cells"),
        "{error}"
    );

    let session = begin(SessionLimits::default().with_idle(Some(Duration::from_millis(300))));
    value(&session, "1");
    eventually("an idle session ends", || session.ended().is_some_and(|reason| reason.contains("`idle`")));

    let session = begin(SessionLimits::default().with_total(Some(Duration::from_secs(3))));
    eventually("a session ends after its time", || {
        session.ended().is_some_and(|reason| reason.contains("`total`"))
    });
    let error = session.run("1", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::SessionEnded { .. }), "{error}");
}

#[test]
fn a_frozen_session_stops_and_resumes() {
    for mode in Mode::available() {
        let settings = SessionLimits::default().with_freeze_after(Some(Duration::from_millis(300)));
        let session = Session::start_with(&mode.sandbox(), Language::Python, &settings).unwrap();
        run(
            &session,
            "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'while :; do echo x >> ticks; sleep 0.02; done'])",
        );
        eventually("it freezes by itself", || session.is_frozen());
        let size =
            || session.files().unwrap().iter().find(|(name, _)| name == "ticks").map_or(0, |(_, size)| *size);
        session.freeze().unwrap();
        // Listing files thaws it, so the size is compared across a freeze.
        let code = "import os, time\nsize = os.stat('ticks').st_size\ntime.sleep(0.3)\nos.stat('ticks').st_size > size";
        assert_eq!(value(&session, code), json!(true), "{mode:?}: it continues");
        assert!(size() > 0);
        session.freeze().unwrap();
        assert!(session.is_frozen());
        drop(session);
    }
}

#[test]
fn rejected_actions_have_reason_and_fix() {
    let Some(mode) = Mode::available().pop() else { return };
    let error = Session::start(&mode.sandbox(), Language::Ruby).unwrap_err();
    assert!(error.to_string().contains("ruby") && error.hint().is_some(), "{error}");
    let session = start(mode);
    for (code, part) in [("a\0b", "NUL"), (&*"#".repeat(9 << 20), "8388608")] {
        let error = session.run(code, &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let error =
        session.run("1", &limits().with_wall(Duration::ZERO), &Cancel::new(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("`wall`"), "{error}");
    assert_eq!(session.cells(), 0);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let session = &session;
        scope.spawn(move || {
            let code = "import time; print(1, flush=True); time.sleep(60)";
            session.run(code, &limits(), &Cancel::new(), &mut |_| sender.send(()).unwrap()).unwrap()
        });
        receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let second = session.run("1", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
        assert!(matches!(second, Error::SessionRejected { .. }), "{second}");
        assert!(session.files().is_err() && session.reset(Reset::Fresh).is_err());
        assert!(session.interrupt());
    });
    let large = format!("x = 1\n{}\nx + 1", "# padding padding padding\n".repeat(30_000));
    assert_eq!(value(&session, &large), json!(2));
}

#[test]
fn a_host_directory_workspace_cannot_be_forked() {
    for mode in Mode::available().into_iter().filter(|mode| *mode != Mode::Shared) {
        let directory = open_directory();
        std::fs::write(directory.path().join("given"), "g").unwrap();
        let sandbox =
            mode.sandbox().workspace(toolpost_sandbox::Workspace::Host(directory.path().to_owned()));
        let session = Session::start(&sandbox, Language::Python).unwrap();
        let outcome = run(&session, "open('made', 'w').write(open('given').read() + '!')");
        assert_eq!(outcome.changes.new, [std::path::PathBuf::from("made")], "{mode:?}");
        assert_eq!(std::fs::read_to_string(directory.path().join("made")).unwrap(), "g!");
        let denied = run(&session, "open('.mcp.json', 'w').close()").applied.unwrap();
        assert_eq!(denied.denied_count, 1, "{denied:?}");
        let error = session.fork(1).unwrap_err();
        assert!(matches!(error, Error::SessionRejected { .. }) && error.hint().is_some(), "{error}");
        assert!(error.to_string().contains("can copy only a fresh workspace"), "{error}");
        drop(session);
        assert!(!directory.path().join(".mcp.json").exists());
    }
}

#[test]
fn the_settings_of_the_sandbox_hold() {
    for mode in Mode::available() {
        let sandbox = mode
            .sandbox()
            .file("sub/in.txt", Source::Bytes(b"hello".to_vec()))
            .directory("sub")
            .env("GREETING", "hi")
            .limits(quick().with_workspace_bytes(1 << 20).with_descriptors(64));
        let session = Session::start(&sandbox, Language::Python).unwrap();
        assert_eq!(
            value(&session, "import os; open('in.txt').read() + os.environ['GREETING']"),
            json!("hellohi")
        );
        assert_eq!(
            value(&session, "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"),
            json!(64)
        );
        let outcome = run(&session, "open('big', 'wb').write(b'x' * (4 << 20))");
        if mode == Mode::Shared {
            // There the host measures, and ends the session.
            eventually("a full workspace ends the session", || {
                session.ended().is_some_and(|reason| reason.contains("workspace held more than"))
            });
        } else {
            assert_eq!(outcome.verdict, Verdict::Disk { limit: 1 << 20 });
        }
        let plain =
            Session::start_with(&mode.sandbox(), Language::Python, &SessionLimits::default().with_forks(0))
                .unwrap();
        let report = plain.report().unwrap();
        assert!(report.has(Layer::NoCapabilities) && report.has(Layer::Seccomp), "{report:?}");
        assert!(matches!(plain.fork(1), Err(Error::SessionRejected { .. })));
        let outcome = run(&plain, "import os; os.chroot('.')");
        assert!(outcome.stderr.text().contains("PermissionError"), "{}", outcome.stderr.text());
    }
}
