//! Sessions between cells: what counts as use, freezing, and idle work.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{Language, Session, SessionLimits};

use crate::sessions::{run, start, value};
use crate::support::{Mode, eventually};

#[test]
fn reading_the_state_does_not_keep_a_session_alive() {
    let Some(mode) = Mode::available().pop() else { return };
    let settings = SessionLimits::default().with_idle(Some(Duration::from_millis(600)));
    let session = Session::start_with(&mode.sandbox(), Language::Python, &settings).unwrap();
    value(&session, "1");
    eventually("it ends while its state is read", || {
        let _ = (session.report(), session.cells(), session.fork_time(), session.is_frozen());
        session.ended().is_some()
    });
    assert!(session.ended().unwrap().contains("`idle`"), "{:?}", session.ended());
}

/// The processor time in ticks of host processes with this text in their command lines.
fn ticks(text: &str) -> u64 {
    let of = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if !line.contains(text) {
            return None;
        }
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let numbers = stat.rsplit_once(") ")?.1;
        Some(numbers.split(' ').skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum::<u64>())
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).sum()
}

#[test]
fn a_frozen_session_uses_no_processor_time_and_the_next_cell_thaws_it() {
    for mode in Mode::available() {
        let session = start(mode);
        // Two busy ones: a thread of the interpreter, and a program.
        run(
            &session,
            "import subprocess, threading, time\ncount = 0\ndef work():\n    global count\n    while True: count += 1\n\
             threading.Thread(target=work, daemon=True).start()\n\
             child = subprocess.Popen(['sh', '-c', 'while :; do :; done', 'busy-65-375'])",
        );
        let begin = Instant::now();
        let before = ticks("busy-65-375");
        eventually("it works while it is not frozen", || ticks("busy-65-375") > before + 2);
        session.freeze().unwrap();
        // The kernel stops each process at its next step, which is late on a busy machine.
        let pause = begin.elapsed().max(Duration::from_millis(400));
        let mut frozen = ticks("busy-65-375");
        eventually("it stands still", || {
            std::thread::sleep(pause);
            std::mem::replace(&mut frozen, ticks("busy-65-375")) == frozen
        });
        // Reading the state does not thaw it.
        assert!(session.report().is_ok() && session.ended().is_none() && session.is_frozen());
        assert_eq!(ticks("busy-65-375"), frozen, "{mode:?}");
        assert_eq!(
            value(&session, "before = count; time.sleep(0.5); count > before"),
            json!(true),
            "{mode:?}: the thread continues"
        );
        assert!(!session.is_frozen());
        eventually("the program continues", || ticks("busy-65-375") > frozen);
        drop(session);
        eventually("nothing is left", || ticks("busy-65-375") == 0);
    }
}

#[test]
fn small_objects_move_into_huge_pages_while_idle() {
    let Some(mode) = Mode::available().into_iter().next() else { return };
    let session = start(mode);
    run(&session, "held = [n * 1000003 for n in range(1_500_000)]");
    let code = "[int(line.split()[1]) for line in open('/proc/self/smaps_rollup') if line.startswith(('Rss', 'AnonH'))]";
    let supported = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| !text.contains("[never]"));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<u32> = release.split('.').take(2).filter_map(|part| part.parse().ok()).collect();
    if mode == Mode::Shared || !supported || version < vec![6, 1] {
        println!("SKIP the_memory_of_small_objects: large pages are off, or Linux {release} cannot be told");
        return;
    }
    let large = || value(&session, code)[1].as_u64().unwrap();
    let (begin, first) = (Instant::now(), large());
    // A host may lack free huge pages: then a part is enough.
    while large() < first + (8 << 10) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{} KiB from {first} KiB", large());
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(value(&session, "held == [n * 1000003 for n in range(1_500_000)]"), json!(true));
}
