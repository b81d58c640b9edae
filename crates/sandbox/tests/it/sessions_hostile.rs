//! Hostile cells against the host's side of a session.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{Cancel, Error, Language, Outcome, Session, SessionLimits, Verdict};

use crate::sessions::{limits, run, start, value};
use crate::support::{Mode, eventually, is_running};

/// Runs a hostile cell that must end in time.
fn attack(session: &Session, code: &str) -> Outcome {
    let begin = Instant::now();
    let short = limits().with_wall(Duration::from_secs(2)).with_grace(Duration::from_millis(300));
    let outcome = session.run(code, &short, &Cancel::new(), &mut |_| {}).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(8), "{code}: {:?}", begin.elapsed());
    outcome
}

/// Cells, and whether the session can survive them.
const ATTACKS: [(&str, &str, bool); 16] = [
    (
        "junk on the control descriptor",
        "import os\nfor n in range(50): os.write(4, b'E' + bytes(16) + b'o\\0')\n1",
        true,
    ),
    (
        "packets of other sizes",
        "import os\nfor n in (0, 1, 16, 17, 18, 60017): os.write(4, b'E' * n)\n1",
        true,
    ),
    (
        "a flood of the control descriptor",
        "import os\nwhile True: os.write(4, b'E' + bytes(16) + b'o\\0')",
        false,
    ),
    ("the control descriptor closed", "import os\nos.close(4)", false),
    ("all descriptors closed", "import os\nos.closerange(0, 100)", false),
    ("the control descriptor replaced", "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 4)", false),
    ("a copy that stays", "import os, time\nif os.fork() == 0:\n    time.sleep(100)\n1", true),
    ("a copy that returns", "import os\npid = os.fork()\n1", true),
    (
        "a copy that answers",
        "import os\nkeep = os.dup(4)\nif os.fork() == 0:\n    import time\n    while True: os.write(keep, b'E' + bytes(16) + b'o\\0'); time.sleep(0.001)\n1",
        true,
    ),
    ("streams replaced", "import sys, io\nsys.stdout = io.StringIO()\nsys.stderr = None\n1", true),
    ("streams closed", "import sys\nsys.stdout.close()\nsys.stderr.close()\n1", true),
    ("a handler of its own", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n1", true),
    ("another program", "import os\nos.execv('/bin/sleep', ['sleep', '100'])", false),
    ("the end", "import os\nos._exit(0)", false),
    ("a crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", false),
    ("itself stopped", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", false),
];

#[test]
fn no_cell_hangs_or_deceives_the_host() {
    for mode in Mode::available() {
        for (name, code, lives_on) in ATTACKS {
            let session = start(mode);
            let outcome = attack(&session, code);
            if lives_on {
                assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {name}: {}", outcome.stderr.text());
                assert_eq!(value(&session, "20 + 1"), json!(21), "{mode:?} {name}");
                let short = limits().with_wall(Duration::from_millis(300));
                let outcome =
                    session.run("import time; time.sleep(60)", &short, &Cancel::new(), &mut |_| {}).unwrap();
                assert!(
                    matches!(outcome.verdict, Verdict::Interrupted { .. }),
                    "{mode:?} {name}: {:?}",
                    outcome.verdict
                );
            } else {
                eventually("the session has ended", || session.ended().is_some());
                let error = session.run("1", &limits(), &Cancel::new(), &mut |_| {}).unwrap_err();
                assert!(matches!(error, Error::SessionEnded { .. }), "{mode:?} {name}: {error}");
            }
        }
    }
}

#[test]
fn the_verdict_comes_from_the_kernel_not_the_cell() {
    for mode in Mode::available() {
        let verdict = |code: &str| attack(&start(mode), code).verdict;
        assert_eq!(verdict("import os; os._exit(137)"), Verdict::Exit { code: 137 }, "{mode:?}");
        assert_eq!(verdict("import os; os.kill(os.getpid(), 11)"), Verdict::Signal { signal: 11 });
        assert_eq!(verdict("import os; os.kill(os.getpid(), 9)"), Verdict::Signal { signal: 9 });
        assert_eq!(verdict("import os; os._exit(0)"), Verdict::Ok);
        let flooded = verdict("import os\nwhile True: os.write(4, b'x' * 17)");
        assert!(matches!(flooded, Verdict::Denied { .. }), "{flooded:?}");
    }
}

#[test]
fn leftovers_of_a_cell_do_not_affect_the_next_and_end_with_the_session() {
    for mode in Mode::available() {
        let session = start(mode);
        run(
            &session,
            "import threading, time, os, subprocess\ndef talk():\n    while True:\n        time.sleep(0.01)\n        \
             os.write(1, b'late ')\n        os.write(4, b'E' + bytes(16) + b'o\\0')\n\
             threading.Thread(target=talk, daemon=True).start()\n\
             subprocess.Popen(['setsid', 'sh', '-c', '(trap \"\" TERM INT HUP; sleep 62.5) & sleep 62.5'])",
        );
        eventually("output between the cells is noted", || {
            let outcome = run(&session, "3");
            assert_eq!(outcome.value, Some(json!(3)), "{mode:?}");
            outcome.report.notes.iter().any(|note| note.contains("between the cells"))
        });
        eventually("the leftovers run", || is_running("sleep 62.5"));
        drop(session);
        assert!(!is_running("sleep 62.5"), "{mode:?}");
    }
}

#[test]
fn the_zygote_is_out_of_reach_so_that_a_reset_is_fresh() {
    for mode in Mode::available() {
        let session = start(mode);
        // Every process of the session but itself: the first process and the zygote.
        let code = "import os, signal\nreached = []\nfor pid in [int(p) for p in os.listdir('/proc') if p.isdigit()]:\n    \
            if pid == os.getpid(): continue\n    for what in (lambda: os.kill(pid, signal.SIGKILL), lambda: open(f'/proc/{pid}/mem', 'r+b')):\n        \
            try:\n            what()\n            reached.append(pid)\n        except OSError: pass\nreached";
        if mode == Mode::Shared {
            let code = "import os, signal\ntry:\n    os.kill(os.getppid(), signal.SIGKILL)\n    r = 'reached'\nexcept PermissionError: r = 'refused'\nr";
            assert_eq!(value(&session, code), json!("refused"));
        } else {
            assert_eq!(value(&session, code), json!([]), "{mode:?}");
        }
        assert_eq!(value(&session, "1"), json!(1));
    }
}

#[test]
fn a_flood_of_output_costs_neither_memory_nor_time() {
    let Some(mode) = Mode::available().pop() else { return };
    let session = start(mode);
    let outcome = session
        .run(
            "import sys\nwhile True: sys.stdout.write('x' * 100000)",
            &limits().with_wall(Duration::from_secs(1)).with_stdout(10_000),
            &Cancel::new(),
            &mut |_| {},
        )
        .unwrap();
    assert!(outcome.stdout.dropped > 0 && outcome.stdout.bytes().len() < 11_000);
    assert!(matches!(outcome.verdict, Verdict::Interrupted { .. }), "{:?}", outcome.verdict);
    assert_eq!(value(&session, "1"), json!(1));
}

#[test]
fn a_session_dies_when_its_host_program_is_killed() {
    // The host program is this test again, in a process that is killed.
    if crate::support::is_helper() {
        let Some(mode) = Mode::available().into_iter().next() else { return };
        let session =
            Session::start_with(&mode.sandbox(), Language::Python, &SessionLimits::default()).unwrap();
        run(&session, "import subprocess; subprocess.Popen(['setsid', 'sleep', '63.75'])");
        // Until the other process kills this one.
        std::thread::park_timeout(Duration::from_mins(1));
        return;
    }
    let own = std::env::current_exe().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the host program that is killed")]
    let mut child = std::process::Command::new(own)
        .args(["--exact", "sessions_hostile::a_session_dies_when_its_host_program_is_killed", "--nocapture"])
        .env(crate::support::HELPER, "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the program of its cell runs", || is_running("sleep 63.75"));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("nothing of it lives on", || !is_running("sleep 63.75"));
}
