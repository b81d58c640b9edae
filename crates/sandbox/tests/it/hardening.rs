//! Escapes that attacks found, now closed; each test repeats one.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{
    Backend as _, Cancel, Host, Interruption, Language, Layer, Level, Pool, Program, Sandbox, Session,
    Verdict,
};

use crate::attack::PRELUDE;
use crate::attack::hosts::{How, PoorHost, command};
use crate::sessions::{limits, run as cell, value};
use crate::support::{HELPER, Mode, is_helper, python, quick, run};

/// Starts this test as a separate program on a limited host.
fn again(host: &PoorHost, test: &str) {
    let mut command = command(host, &std::env::current_exe().unwrap()).unwrap();
    let output = command
        .args(["--exact", &format!("hardening::{test}"), "--nocapture"])
        .env(HELPER, "1")
        .output()
        .unwrap();
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

fn has_namespaces(test: &str) -> bool {
    let entry = Host::probe().availability(Level::Strict).unwrap();
    if !entry.available {
        println!("SKIP {test}: no namespaces");
    }
    entry.available
}

/// Tries to open files for writing that would lift limits, and lists those that opened.
const KERNEL_FILES: &str = "found = []
for directory, _, names in os.walk('/sys/fs/cgroup'):
    for name in names:
        if name in ('cgroup.procs', 'tasks', 'release_agent', 'cgroup.subtree_control', 'memory.limit_in_bytes', 'memory.max'):
            if attempt(lambda: open(os.path.join(directory, name), 'a')) == 'allowed': found.append(os.path.join(directory, name))
    if attempt(lambda: os.mkdir(os.path.join(directory, 'left'))) == 'allowed': found.append(directory)
for name in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sysrq-trigger', '/sys/kernel/uevent_helper'):
    if attempt(lambda: open(name, 'a')) == 'allowed': found.append(name)
import stat
for name in os.listdir('/dev'):
    path = '/dev/' + name
    if stat.S_ISBLK(os.lstat(path).st_mode) or name in ('mem', 'port', 'kmsg', 'kvm'):
        if os.getuid() == 0 and attempt(lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))) == 'allowed' and os.stat(path).st_mode & 6 != 6: found.append(path)
";

#[test]
fn minimal_cannot_escape_its_limits() {
    if !has_namespaces("minimal_cannot_escape_its_limits") {
        return;
    }
    let sandbox = Sandbox::new().level(Level::Minimal).limits(quick());
    let outcome = python(&sandbox, &format!("{PRELUDE}{KERNEL_FILES}found"));
    assert_eq!(outcome.value, Some(json!([])), "{}", outcome.stderr.text());
    assert!(outcome.report.has(Layer::KernelFiles) && outcome.report.has(Layer::MountNamespace));
    // Common devices are available.
    let code = format!(
        "{PRELUDE}import pty\n[attempt(lambda: open('/dev/null', 'r+b')), attempt(lambda: open('/dev/urandom', 'rb').read(1)), \
         attempt(lambda: open('/sys/kernel/mm/transparent_hugepage/enabled').read()), attempt(pty.openpty), \
         attempt(lambda: open('/proc/sys/kernel/osrelease').read())]"
    );
    let outcome = python(&sandbox, &code);
    assert_eq!(
        outcome.value,
        Some(json!(["allowed", "allowed", "allowed", "allowed", "allowed"])),
        "{}",
        outcome.stderr.text()
    );
}

#[test]
fn minimal_reports_limits_that_it_cannot_enforce() {
    let sandbox =
        Sandbox::new().level(Level::Minimal).host(Host::probe().without_namespaces()).limits(quick());
    let outcome = run(&sandbox, &Program::argv(["true"])).unwrap();
    let missing = outcome.report.missing.iter().find(|missing| missing.layer == Layer::KernelFiles);
    assert!(missing.is_some_and(|missing| missing.reason.contains("cgroup")), "{:?}", outcome.report);
}

#[test]
fn code_in_javascript_may_use_any_name() {
    let Some(mode) = Mode::available().into_iter().next() else { return };
    let code = "const fs = require('fs'), source = 1, packages = 2, keep = 3;\nlet value = 4;\nfs.writeFileSync('x', 'y');\nsource + packages + keep + value";
    let sandbox = mode.sandbox();
    let program = Program::code(Language::JavaScript, code);
    let cold = match run(&sandbox, &program) {
        Err(toolpost_sandbox::Error::LanguageMissing { .. }) => {
            println!("SKIP code_in_javascript_may_use_any_name: no Node.js");
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!(cold.value, Some(json!(10)), "{}", cold.stderr.text());
    let pool = Pool::builder(&sandbox).language(Language::JavaScript).build().unwrap();
    assert_eq!(pool.name(), "pool");
    let pooled = run(&sandbox.clone().backend(std::sync::Arc::new(pool)), &program).unwrap();
    assert_eq!(pooled.value, Some(json!(10)), "{}", pooled.stderr.text());
    if mode != Mode::Shared {
        assert_eq!(pooled.report.backend, "pool", "{:?}", pooled.report.notes);
    }
}

#[test]
fn a_flood_of_interrupts_hangs_no_session() {
    for mode in Mode::available() {
        let session = Session::start(&mode.sandbox(), Language::Python).unwrap();
        for pause in [0u64, 1, 20] {
            for code in [
                "while True: pass",
                "import time\nwhile True: time.sleep(0.001)",
                "def f(n): return f(n + 1)\nwhile True:\n    try: f(0)\n    except RecursionError: pass",
                "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nwhile True: pass",
                "import time\nfor n in range(20):\n    try: time.sleep(0.05)\n    except KeyboardInterrupt: pass\n1",
            ] {
                let begin = Instant::now();
                let stop = std::sync::atomic::AtomicBool::new(false);
                let outcome = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                            session.interrupt();
                            std::thread::sleep(Duration::from_millis(pause));
                        }
                    });
                    let outcome = session.run(code, &limits(), &Cancel::new(), &mut |_| {});
                    stop.store(true, std::sync::atomic::Ordering::SeqCst);
                    outcome.unwrap()
                });
                assert!(begin.elapsed() < Duration::from_secs(8), "{mode:?} {code}: {:?}", begin.elapsed());
                let ended = matches!(
                    outcome.verdict,
                    Verdict::Interrupted { by: Interruption::Caller } | Verdict::Ok | Verdict::Exit { .. }
                );
                assert!(ended, "{mode:?} {code}: {:?} {}", outcome.verdict, outcome.stderr.text());
                assert_eq!(value(&session, "20 + 2"), json!(22), "{mode:?} {code}");
            }
        }
    }
}

#[test]
fn sessions_are_interrupted_where_signals_go_by_number() {
    const TEST: &str = "sessions_are_interrupted_where_signals_go_by_number";
    if !is_helper() {
        let host = PoorHost {
            name: "a container that refuses to signal by descriptor",
            how: How::Process(&[(&[424], libc::EPERM)], None),
        };
        again(&host, TEST);
        return;
    }
    for mode in Mode::available() {
        let session = Session::start(&mode.sandbox(), Language::Python).unwrap();
        let short = limits().with_wall(Duration::from_millis(400));
        let outcome =
            session.run("import time; time.sleep(60)", &short, &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Wall }, "{mode:?}");
        assert_eq!(value(&session, "1"), json!(1));
        let begin = Instant::now();
        let deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)";
        let outcome = session
            .run(deaf, &short.clone().with_grace(Duration::from_millis(300)), &Cancel::new(), &mut |_| {})
            .unwrap();
        assert!(matches!(outcome.verdict, Verdict::Timeout { .. }), "{mode:?} {:?}", outcome.verdict);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn pools_and_sessions_report_missing_pidfds() {
    const TEST: &str = "pools_and_sessions_report_missing_pidfds";
    if !is_helper() {
        let host = PoorHost {
            name: "a container that refuses descriptors of processes",
            how: How::Process(&[(&[434], libc::ENOSYS)], None),
        };
        again(&host, TEST);
        return;
    }
    for mode in Mode::available() {
        let error = Session::start(&mode.sandbox(), Language::Python).unwrap_err().to_string();
        assert!(error.contains("pidfds"), "{mode:?} {error}");
    }
    let pool = Pool::builder(&Sandbox::new()).language(Language::Python).build().unwrap();
    let reason = pool.metrics().unavailable.unwrap();
    assert!(reason.contains("namespaces") || reason.contains("pidfds"), "{reason}");
}

#[test]
fn a_worker_has_no_other_descriptors_without_close_range() {
    const TEST: &str = "a_worker_has_no_other_descriptors_without_close_range";
    if !is_helper() {
        let calls: &'static [(&[u32], i32)] = &[(&[436], libc::ENOSYS)];
        again(&PoorHost { name: "a kernel without close_range", how: How::Process(calls, None) }, TEST);
        return;
    }
    if !has_namespaces(TEST) {
        return;
    }
    let sandbox = Mode::Strict.sandbox();
    let pool = Pool::builder(&sandbox).language(Language::Python).build().unwrap();
    let sandbox = sandbox.backend(std::sync::Arc::new(pool));
    let code = "import os\nnames = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n[name for name in names if name > 5 and os.path.exists(f'/proc/self/fd/{name}') and not os.readlink(f'/proc/self/fd/{name}').startswith('/proc')]";
    let outcome = python(&sandbox, code);
    assert_eq!(outcome.value, Some(json!([])), "{}", outcome.stderr.text());
    assert_eq!(outcome.report.backend, "pool", "{:?}", outcome.report.notes);
}

#[test]
fn a_second_of_processor_time_is_a_limit_not_a_signal() {
    let Some(mode) = Mode::available().into_iter().next() else { return };
    let sandbox = mode.sandbox().limits(quick().with_cpu(Duration::from_secs(1)));
    for _ in 0..4 {
        let outcome = python(&sandbox, "while True: pass");
        assert_eq!(outcome.verdict, Verdict::Cpu { limit_ms: 1000 }, "{:?}", outcome.usage);
    }
}

#[test]
fn a_workspace_is_measured_without_openat2() {
    const TEST: &str = "a_workspace_is_measured_without_openat2";
    if !is_helper() {
        for error in [libc::ENOSYS, libc::EPERM] {
            let calls: &'static [(&[u32], i32)] =
                if error == libc::ENOSYS { &[(&[437], libc::ENOSYS)] } else { &[(&[437], libc::EPERM)] };
            again(&PoorHost { name: "a kernel without openat2", how: How::Process(calls, None) }, TEST);
        }
        return;
    }
    for mode in Mode::available() {
        let sandbox = mode.sandbox();
        let code =
            "import os, time\nos.makedirs('a/b')\nopen('a/b/out', 'w').write('made')\ntime.sleep(0.5)\n1";
        let outcome =
            python(&sandbox.file("in/x.txt", toolpost_sandbox::Source::Bytes(b"given".into())), code);
        assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {:?}", outcome.report);
        assert_eq!(outcome.artifacts.len(), 1, "{mode:?} {:?}", outcome.report.notes);
        assert_eq!(outcome.artifacts[0].read().unwrap(), b"made");
    }
}

fn maximum(test: &str) -> Option<Session> {
    if !Host::probe().availability(Level::Maximum).unwrap().available {
        println!("SKIP {test}: no level `maximum`");
        return None;
    }
    Some(Session::start(&Sandbox::new().level(Level::Maximum).limits(quick()), Language::Python).unwrap())
}

#[test]
fn cells_work_at_maximum_and_a_blocked_call_is_named() {
    const TEST: &str = "cells_work_at_maximum_and_a_blocked_call_is_named";
    let Some(session) = maximum(TEST) else { return };
    assert_eq!(value(&session, "x = 20\nx + 1"), json!(21));
    assert_eq!(value(&session, "import subprocess\nsubprocess.run(['true']).returncode"), json!(0));
    let short = limits().with_wall(Duration::from_millis(400));
    let outcome = session.run("while True: pass", &short, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(outcome.verdict, Verdict::Interrupted { by: Interruption::Wall });
    assert_eq!(value(&session, "x"), json!(20));
    drop(session);
    for (code, name) in [
        ("call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "`mount`"),
        ("call(101, 0, 0, 0, 0)", "`ptrace`"),
        ("if os.fork() == 0: call(321, 0, 0, 0)\nimport time; time.sleep(5)", "`bpf`"),
    ] {
        let Some(session) = maximum(TEST) else { return };
        let outcome = cell(&session, &format!("{PRELUDE}{code}\nprint('alive')"));
        let Verdict::Denied { rule } = &outcome.verdict else { panic!("{name}: {outcome:?}") };
        assert!(rule.contains(name), "{rule}");
        assert_eq!(outcome.stdout.text(), "");
    }
}

#[test]
fn a_cell_at_maximum_cannot_inspect_its_parent() {
    let Some(session) = maximum("a_cell_at_maximum_cannot_inspect_its_parent") else { return };
    let code = format!(
        "{PRELUDE}parent = os.getppid()\n[attempt(lambda: open(f'/proc/{{parent}}/' + name, 'rb').read(1)) for name in ('maps', 'mem', 'environ')] + \
         [attempt(lambda: os.kill(parent, 9)), attempt(lambda: os.readlink(f'/proc/{{parent}}/fd/4'))]"
    );
    let found = value(&session, &code);
    let refused = found.as_array().unwrap().iter().all(|answer| answer == "EACCES" || answer == "EPERM");
    assert!(refused, "{found}");
}

#[test]
fn deeply_nested_directories_end_no_session() {
    for mode in Mode::available() {
        let session = Session::start(&mode.sandbox(), Language::Python).unwrap();
        // On disk every further directory takes longer.
        let count = if mode == Mode::Shared { 1000 } else { 10_000 };
        let code =
            format!("import os\nfor _ in range({count}):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)");
        let outcome = cell(&session, &code);
        // Under load the cell is interrupted; the session must stay alive.
        let ended = matches!(
            outcome.verdict,
            Verdict::Ok | Verdict::Exit { .. } | Verdict::Inodes { .. } | Verdict::Interrupted { .. }
        );
        assert!(ended, "{mode:?} {:?} {:?}", outcome.verdict, outcome.report.notes);
        assert_eq!(session.ended(), None, "{mode:?}");
    }
}
