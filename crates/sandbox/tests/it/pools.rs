//! Pools: pooled runs equal cold ones, runs share nothing, and dead parts are replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{
    Cancel, Error, Host, Language, Layer, Level, Limits, Outcome, Pool, PoolBuilder, Program, Reached,
    Sandbox, SandboxEvent, Source, Stdin, Verdict, Workspace,
};

use crate::support::{eventually, quick, run};

pub(crate) fn strict() -> Sandbox {
    Sandbox::new().level(Level::Strict).limits(quick())
}

pub(crate) fn python(code: &str) -> Program {
    Program::code(Language::Python, code)
}

/// Waits for idle workers; none if this host does not support the pool.
pub(crate) fn ready(name: &str, builder: PoolBuilder, spares: usize) -> Option<Arc<Pool>> {
    let pool = Arc::new(builder.build().unwrap());
    let mut unavailable = None;
    eventually(name, || {
        let metrics = pool.metrics();
        unavailable = metrics.unavailable.filter(|_| metrics.ready < spares);
        unavailable.is_some() || metrics.ready >= spares
    });
    let Some(reason) = unavailable else { return Some(pool) };
    println!("SKIP {name}: {reason}");
    assert!(!Host::probe().availability(Level::Strict).unwrap().available, "{reason}");
    None
}

pub(crate) fn python_pool(name: &str, sandbox: &Sandbox) -> Option<Arc<Pool>> {
    ready(name, Pool::builder(sandbox).language(Language::Python), 1)
}

/// The sandbox with a pool as backend.
pub(crate) fn behind(sandbox: &Sandbox, pool: &Arc<Pool>) -> Sandbox {
    sandbox.clone().backend(pool.clone())
}

pub(crate) fn served(sandbox: &Sandbox, program: &Program) -> Outcome {
    let outcome = run(sandbox, program).unwrap();
    assert_eq!(outcome.report.backend, "pool", "{:?}", outcome.report.notes);
    outcome
}

/// The parts of an outcome that must be equal in cold and pooled runs.
pub(crate) fn essence(outcome: &Outcome) -> serde_json::Value {
    let artifacts: Vec<_> =
        outcome.artifacts.iter().map(|artifact| (&artifact.path, artifact.size, &artifact.sha256)).collect();
    json!({
        "verdict": outcome.verdict,
        "exit": outcome.exit_code,
        "stdout": outcome.stdout.text(),
        "stderr": outcome.stderr.text(),
        "value": outcome.value,
        "artifacts": artifacts,
        "changes": outcome.changes,
        "layers": outcome.report.layers,
        "missing": outcome.report.missing,
        "level": outcome.report.effective,
        "reached": outcome.report.reached,
    })
}

/// Code with equal outcomes in cold and pooled runs.
pub(crate) const PYTHON: [(&str, &str); 38] = [
    ("value", "6 * 7"),
    ("value of a dictionary", "{'a': [1, 2.5, None, True, 'é']}"),
    ("no value", "x = 1"),
    ("value that is not a json", "object"),
    ("print", "print('out'); import sys; print('err', file=sys.stderr)"),
    ("result line", "print('::result {\"a\": 1}')"),
    ("traceback", "def f():\n    return 1 / 0\nf()"),
    ("syntax error", "x ="),
    ("exit status", "import sys; sys.exit(7)"),
    ("exit with none", "import sys; sys.exit()"),
    ("exit with text", "import sys; sys.exit('a reason')"),
    ("exit with a large number", "import sys; sys.exit(259)"),
    ("exit at once", "import os; os._exit(3)"),
    ("signal", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    ("abort", "import os; os.abort()"),
    ("main", "import sys; [__name__, sys.argv, __file__ if '__file__' in globals() else None]"),
    ("module of main", "import __main__; x = 5; __main__.x"),
    (
        "directory",
        "import os; [os.getcwd(), sorted(os.listdir('.')), os.listdir('/tmp'), os.listdir('/dev/shm')]",
    ),
    ("root", "import os; sorted(os.listdir('/'))"),
    ("environment", "import os; dict(sorted(os.environ.items()))"),
    (
        "identity",
        "import os; [os.getuid(), os.getgid(), os.getgroups(), os.getpid(), os.getppid(), os.getsid(0)]",
    ),
    ("processes", "import os; sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"),
    (
        "status",
        "[line for line in open('/proc/self/status') if line.split(':')[0] in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', \
         'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'SigBlk', 'SigIgn', 'SigCgt', 'Threads', 'Umask')]",
    ),
    (
        "limits",
        "import resource; [resource.getrlimit(getattr(resource, name)) for name in ('RLIMIT_NOFILE', 'RLIMIT_FSIZE', \
         'RLIMIT_CORE', 'RLIMIT_MEMLOCK', 'RLIMIT_CPU', 'RLIMIT_DATA')]",
    ),
    ("open descriptors", "import os; [fd for fd in range(64) if os.path.exists(f'/proc/self/fd/{fd}')]"),
    ("next descriptor", "import os; os.open('/dev/null', 0)"),
    (
        "streams",
        "import sys; [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.fileno()) for s in (sys.stdin, sys.stdout, sys.stderr)]",
    ),
    ("host name", "import socket; socket.gethostname()"),
    (
        "no network",
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 1), 1)\nexcept OSError as error:\n    print(error)",
    ),
    (
        "no mount",
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); [libc.unshare(0x10000000), ctypes.get_errno(), libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), ctypes.get_errno()]",
    ),
    ("read-only root", "try:\n    open('/usr/x', 'w')\nexcept OSError as error:\n    print(error)"),
    ("file that nobody closed", "f = open('left.txt', 'w'); f.write('x' * 10)"),
    (
        "file in a cycle",
        "class A: pass\na = A(); a.a = a; a.f = open('cycle.txt', 'w'); a.f.write('y')\ndel a",
    ),
    (
        "files",
        "import os\nos.mkdir('d')\nopen('d/a.txt', 'w').write('1')\nopen('b.csv', 'w').write('a,b')\nos.symlink('/etc/passwd', 'l')",
    ),
    ("at exit", "import atexit; atexit.register(print, 'bye'); print('hello', end=' ')"),
    ("destructor", "class A:\n    def __del__(self):\n        print('gone')\na = A()"),
    (
        "thread that continues",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
    ),
    (
        "child",
        "import subprocess, sys; subprocess.run(['echo', 'from a child'], check=True); subprocess.run([sys.executable, '-c', 'print(1)'], stderr=subprocess.DEVNULL).returncode",
    ),
];

#[test]
fn a_pooled_run_equals_a_cold_run() {
    let sandbox = strict();
    let Some(pool) = python_pool("a_pooled_run_equals_a_cold_run", &sandbox) else { return };
    let pooled = behind(&sandbox, &pool);
    for (name, code) in PYTHON {
        let cold = run(&sandbox, &python(code)).unwrap();
        let warm = served(&pooled, &python(code));
        assert_eq!(essence(&cold), essence(&warm), "{name}");
    }
    assert!(run(&sandbox, &python("1")).unwrap().report.has(Layer::Seccomp));
    assert_eq!(pool.metrics().served, PYTHON.len() as u64);
}

#[test]
fn input_uploads_variables_and_directories_reach_a_worker() {
    let sandbox = strict();
    let Some(pool) = python_pool("input_uploads_variables_and_directories_reach_a_worker", &sandbox) else {
        return;
    };
    let requests = [
        sandbox.clone().stdin(Stdin::Bytes(b"a line\nand another".to_vec())),
        sandbox.clone().stdin(Stdin::Bytes(vec![b'x'; 300_000])),
        sandbox.clone().env("TOKEN", "päss").env("HOME", "/tmp"),
        sandbox
            .clone()
            .file("data/in.csv", Source::Bytes(b"1,2".to_vec()))
            .file("b.txt", Source::Bytes(b"b".to_vec())),
        sandbox.clone().file("data/in.csv", Source::Bytes(b"1,2".to_vec())).directory("data"),
    ];
    let code = python(
        "import os, sys\ntext = sys.stdin.read()\nprint(len(text), text[:20])\n\
         print(os.getcwd(), sorted((base, tuple(sorted(names))) for base, _, names in os.walk('/workspace')))\n\
         print(sorted(os.environ.items()), os.path.getsize('b.txt') if os.path.exists('b.txt') else None)\n\
         [open(os.path.join(base, name), 'a').write('!') for base, _, names in os.walk('/workspace') for name in names]\n\
         open('/workspace/new', 'w').write('n')",
    );
    for request in requests {
        let cold = run(&request, &code).unwrap();
        let warm = served(&behind(&request, &pool), &code);
        assert_eq!(essence(&cold), essence(&warm));
        assert!(cold.verdict.is_ok(), "{}", cold.stderr.text());
    }
    let missing = behind(&sandbox.clone().directory("nowhere"), &pool);
    let error = run(&missing, &code).unwrap_err().to_string();
    assert!(error.contains("enter workspace") && error.contains("nowhere"), "{error}");
}

#[test]
fn limits_hold_in_a_worker_with_the_same_verdicts() {
    let second = Duration::from_secs(1);
    let quick = || quick().with_memory(96 << 20).with_processes(12);
    let rows: [(&str, Limits, &str); 7] = [
        ("wall", quick().with_wall(second), "while True: pass"),
        ("cpu", quick().with_cpu(Duration::from_millis(600)), "while True: pass"),
        ("memory", quick(), "x = bytearray(200 << 20)\nprint(len(x))"),
        ("file size", quick().with_file_size(1 << 20), "open('a', 'wb').write(bytes(2 << 20))"),
        (
            "processes",
            quick(),
            "import os, time\nfor _ in range(40):\n    if os.fork() == 0:\n        time.sleep(30)\n",
        ),
        (
            "disk",
            quick().with_workspace_bytes(1 << 20),
            "try:\n    open('a', 'wb').write(bytes(2 << 20))\nexcept OSError as error:\n    raise SystemExit(1)",
        ),
        ("output", quick().with_output_total(100_000), "while True: print('x' * 1000)"),
    ];
    for (name, limits, code) in rows {
        let sandbox = strict().limits(limits);
        let Some(pool) = python_pool("limits_hold_in_a_worker_with_the_same_verdicts", &sandbox) else {
            return;
        };
        let cold = run(&sandbox, &python(code)).unwrap();
        let warm = served(&behind(&sandbox, &pool), &python(code));
        assert_eq!(cold.verdict, warm.verdict, "{name}: {} {}", cold.stderr.text(), warm.stderr.text());
        assert!(!warm.verdict.is_ok(), "{name}");
        // How much more is printed before the end is chance.
        let reached = |outcome: &Outcome| {
            let certain = |reached: &&Reached| **reached != Reached::Stdout;
            outcome.report.reached.iter().filter(certain).copied().collect::<Vec<_>>()
        };
        assert_eq!(reached(&cold), reached(&warm), "{name}");
    }
}

#[test]
fn a_run_sees_nothing_of_the_previous_run() {
    let sandbox = strict();
    let builder =
        Pool::builder(&sandbox).language(Language::Python).preload(["json", "random"]).idle_workers(1);
    let Some(pool) = ready("a_run_sees_nothing_of_the_previous_run", builder, 1) else { return };
    let pooled = behind(&sandbox, &pool);
    let leave = "import builtins, json, os, sys, threading, time, random, ctypes\n\
        json.secret = builtins.secret = sys.secret = os.environ['SECRET'] = 'SECRET-OF-A'\n\
        sys.modules['planted'] = json\n\
        json.dumps = None\n\
        keep = ['SECRET-OF-A' * 1000 for _ in range(1000)]\n\
        for place in ('/tmp/a', '/dev/shm/a', '/workspace/a'):\n    open(place, 'w').write('SECRET-OF-A')\n\
        libc = ctypes.CDLL(None)\n\
        queue, segment = libc.msgget(4711, 0o1666), libc.shmget(4711, 4096, 0o1666)\n\
        random.seed(1)\n\
        threading.Thread(target=time.sleep, args=(0.05,)).start()\n\
        if os.fork() == 0:\n    os.setsid()\n    time.sleep(0.05)\n    os._exit(0)\n\
        print(segment >= 0)";
    let look = "import builtins, json, os, sys, threading, random, ctypes\n\
        libc = ctypes.CDLL(None)\n\
        found = [hasattr(json, 'secret'), hasattr(builtins, 'secret'), hasattr(sys, 'secret'), 'SECRET' in os.environ,\n\
        'planted' in sys.modules, json.dumps is None, os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('/workspace'),\n\
        libc.msgget(4711, 0) >= 0, libc.shmget(4711, 4096, 0) >= 0, threading.active_count(),\n\
        sorted(int(name) for name in os.listdir('/proc') if name.isdigit())]\n\
        needle = b'SECRET-' + b'OF-A' * 1\n\
        memory = 0\n\
        for line in open('/proc/self/maps'):\n\
        \x20   start, end = (int(part, 16) for part in line.split()[0].split('-'))\n\
        \x20   if 'rw' in line and '[v' not in line:\n\
        \x20       try:\n\
        \x20           with open('/proc/self/mem', 'rb') as file:\n\
        \x20               file.seek(start)\n\
        \x20               memory += file.read(end - start).count(b'SECRET-OF-ASECRET-OF-A')\n\
        \x20       except (OSError, ValueError):\n\
        \x20           pass\n\
        [found, memory]";
    for _ in 0..3 {
        assert_eq!(served(&pooled, &python(leave)).stdout.text(), "True\n");
        let outcome = served(&pooled, &python(look));
        let nothing = json!([
            [false, false, false, false, false, false, [], [], [], false, false, 1, [1, 2]],
            // The source of the searching code itself may contain the needle.
            outcome.value.as_ref().map_or(json!(null), |value| value[1].clone())
        ]);
        assert_eq!(outcome.value.clone().unwrap_or_default(), nothing, "{}", outcome.stderr.text());
        let copies = nothing[1].as_u64().unwrap();
        assert!(copies < 100, "{copies} copies of what the run before held");
    }
}

#[test]
fn streams_of_random_numbers_differ_from_run_to_run() {
    let sandbox = strict();
    let builder = Pool::builder(&sandbox)
        .language(Language::Python)
        .preload(["random", "numpy"])
        .warm_up("import random\nrandom.seed(7)")
        .idle_workers(2);
    let Some(pool) = ready("streams_of_random_numbers_differ_from_run_to_run", builder, 1) else { return };
    let pooled = behind(&sandbox, &pool);
    let has_numpy = pool.metrics().preloaded.contains(&"numpy".to_owned());
    if !has_numpy {
        println!(
            "SKIP numpy in streams_of_random_numbers_differ_from_run_to_run: {:?}",
            pool.metrics().missing
        );
        assert_eq!(pool.metrics().missing[0].0, "numpy");
    }
    let numpy = if has_numpy { "import numpy\nn = int(numpy.random.randint(1 << 60))" } else { "n = 0" };
    let code = format!("import random\n{numpy}\n[random.random(), n]");
    let values: Vec<_> = (0..6).map(|_| served(&pooled, &python(&code)).value.unwrap()).collect();
    for (index, value) in values.iter().enumerate() {
        for other in &values[..index] {
            assert_ne!(value[0], other[0]);
            assert!(!has_numpy || value[1] != other[1], "{values:?}");
        }
    }
}

#[test]
fn a_warm_up_runs_in_each_worker_before_its_code() {
    let sandbox = strict();
    let warm_up = "import json\njson.warmed = True\nprint('lost')\nopen('/workspace/made', 'w').write('x')";
    let builder = Pool::builder(&sandbox).language(Language::Python).preload(["json"]).warm_up(warm_up);
    let Some(pool) = ready("a_warm_up_runs_in_each_worker_before_its_code", builder, 1) else { return };
    let outcome =
        served(&behind(&sandbox, &pool), &python("import json, os; [json.warmed, os.listdir('.')]"));
    assert_eq!(outcome.value, Some(json!([true, ["made"]])));
    assert_eq!((outcome.stdout.text(), outcome.changes.new.len()), (String::new(), 0));
}

#[test]
fn missing_modules_are_named_and_the_rest_is_loaded() {
    let sandbox = strict();
    let names = ["json", "no_such_module", "decimal"];
    let builder = Pool::builder(&sandbox).language(Language::Python).preload(names);
    let Some(pool) = ready("missing_modules_are_named_and_the_rest_is_loaded", builder, 1) else { return };
    let metrics = pool.metrics();
    assert_eq!(metrics.preloaded, ["json", "decimal"]);
    assert_eq!(metrics.missing.len(), 1);
    assert!(metrics.missing[0].1.contains("ModuleNotFoundError"), "{metrics:?}");
    let loaded = served(
        &behind(&sandbox, &pool),
        &python("import sys; ['decimal' in sys.modules, 'fractions' in sys.modules]"),
    );
    assert_eq!(loaded.value, Some(json!([true, false])));
}

#[test]
fn misbehaving_workers_are_bounded_and_replaced() {
    let sandbox = strict();
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(30));
    for (name, warm_up, limit, expected) in [
        ("exits", "import os; os._exit(0)", long, "before it was ready"),
        ("fails", "1 / 0", long, "ZeroDivisionError"),
        ("never ready", "import time; time.sleep(60)", short, "timed out after"),
        (
            "writes to every descriptor",
            "import os\nfor fd in range(3, 300):\n    try:\n        os.write(fd, b'X' * 48)\n    except OSError:\n        pass",
            long,
            "an invalid message",
        ),
    ] {
        let builder =
            Pool::builder(&sandbox).language(Language::Python).warm_up(warm_up).ready_timeout(limit);
        let pool = Arc::new(builder.build().unwrap());
        eventually(name, || pool.metrics().unavailable.is_some_and(|reason| reason.contains(expected)));
        let outcome = run(&behind(&sandbox, &pool), &python("1 + 1")).unwrap();
        let notes = outcome.report.notes.join("\n");
        assert_eq!((outcome.report.backend.as_str(), outcome.value), ("process", Some(json!(2))), "{name}");
        assert!(notes.contains("started cold") && notes.contains(expected), "{name}: {notes}");
        let metrics = pool.metrics();
        assert!(metrics.died >= 3 && metrics.ready == 0 && metrics.cold == 1, "{name}: {metrics:?}");
    }
}

#[test]
fn a_worker_cannot_kill_its_first_process_or_the_zygote() {
    let sandbox = strict();
    let warm_up = "import os\nfor pid in (1, -1):\n    for signal in (19, 15, 9):\n        try:\n            os.kill(pid, signal)\n        except OSError:\n            pass";
    let builder = Pool::builder(&sandbox).language(Language::Python).warm_up(warm_up);
    let Some(pool) = ready("a_worker_cannot_kill_its_first_process_or_the_zygote", builder, 1) else {
        return;
    };
    let pooled = behind(&sandbox, &pool);
    for _ in 0..3 {
        assert_eq!(served(&pooled, &python("1 + 1")).value, Some(json!(2)));
    }
    // The same from the code itself.
    let outcome = served(&pooled, &python(&format!("{warm_up}\n3")));
    assert_eq!((outcome.verdict, outcome.value), (Verdict::Ok, Some(json!(3))));
    assert_eq!(served(&pooled, &python("4")).value, Some(json!(4)));
    let metrics = pool.metrics();
    assert_eq!((metrics.died, metrics.cold), (0, 0), "{metrics:?}");
}

#[test]
fn a_host_without_proc_in_sandboxes_runs_cold_with_a_reason() {
    if !Host::probe().availability(Level::Strict).unwrap().available {
        println!("SKIP a_host_without_proc_in_sandboxes_runs_cold_with_a_reason: no namespaces");
        return;
    }
    let sandbox = strict().host(Host::probe().without_process_files());
    let pool = Arc::new(Pool::builder(&sandbox).language(Language::Python).build().unwrap());
    let outcome = run(&behind(&sandbox, &pool), &python("1 + 1")).unwrap();
    let notes = outcome.report.notes.join("\n");
    assert_eq!((outcome.report.backend.as_str(), outcome.value), ("process", Some(json!(2))), "{notes}");
    assert!(notes.contains("started cold") && notes.contains("`/proc`"), "{notes}");
}

#[test]
fn writing_to_the_descriptors_of_a_worker_harms_no_other_run() {
    let sandbox = strict();
    let Some(pool) = python_pool("code_that_writes_to_the_descriptors_of_a_spare", &sandbox) else { return };
    let pooled = behind(&sandbox, &pool);
    let code = "import os\nfor fd in range(3, 300):\n    try:\n        os.write(fd, b'X' * 48)\n    except OSError:\n        pass";
    for _ in 0..3 {
        let outcome = served(&pooled, &python(code));
        assert_eq!((outcome.verdict, outcome.value), (Verdict::Ok, None));
        assert_eq!(served(&pooled, &python("1")).value, Some(json!(1)));
    }
    assert_eq!(pool.metrics().died, 0);
}

#[test]
fn a_zygote_is_rotated_by_forks_and_by_age() {
    let sandbox = strict();
    let seed = python("hash('a')");
    for (name, builder) in [
        ("runs", Pool::builder(&sandbox).rotate_after(3)),
        ("time", Pool::builder(&sandbox).rotate_interval(Duration::from_millis(200))),
        ("neither", Pool::builder(&sandbox)),
    ] {
        let builder = builder.language(Language::Python).idle_workers(1);
        let Some(pool) = ready("a_zygote_is_replaced", builder, 1) else { return };
        let pooled = behind(&sandbox, &pool);
        let hash = || served(&pooled, &seed).value.unwrap();
        let first = hash();
        if name == "neither" {
            assert!((0..8).all(|_| hash() == first));
        } else {
            eventually(name, || hash() != first);
        }
        assert_eq!(pool.metrics().rotated > 0, name != "neither", "{name}: {:?}", pool.metrics());
    }
}

#[test]
fn an_idle_pool_ends_its_workers_and_restarts() {
    let sandbox = strict();
    let idle = Some(Duration::from_millis(300));
    let builder = Pool::builder(&sandbox).language(Language::Python).idle_shutdown(idle);
    let Some(pool) = ready("an_idle_pool_ends_its_workers_and_restarts", builder, 1) else { return };
    eventually("the spares are gone", || pool.metrics().ready == 0);
    let forked = pool.metrics().forked;
    assert_eq!(served(&behind(&sandbox, &pool), &python("2")).value, Some(json!(2)));
    assert!(pool.metrics().forked > forked);
}

#[test]
fn requests_beyond_the_limits_of_a_pool_wait_or_fail() {
    let sandbox = strict();
    let builder = Pool::builder(&sandbox)
        .language(Language::Python)
        .max_concurrency(1)
        .queue(1)
        .queue_timeout(Duration::from_millis(400));
    let Some(pool) = ready("requests_beyond_the_limits_of_a_pool_wait_or_fail", builder, 1) else { return };
    let pooled = behind(&sandbox, &pool);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| pooled.run(&python("import time; time.sleep(20)"), &cancel, &mut |_| {}).unwrap());
        eventually("it runs", || pool.metrics().running == 1);
        let second = scope.spawn(|| run(&pooled, &python("1")));
        eventually("it waits", || pool.metrics().waiting == 1);
        let error = run(&pooled, &python("1")).unwrap_err();
        assert!(matches!(&error, Error::Overloaded { running: 1, waiting: 1, .. }), "{error}");
        let error = second.join().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Overloaded { waiting: 0, .. }), "{error}");
        cancel.cancel();
    });
    assert_eq!(pool.metrics().overloaded, 2);
    assert_eq!(run(&pooled, &python("3")).unwrap().value, Some(json!(3)));
}

#[test]
fn a_pooled_run_is_cancelled_with_everything_that_it_started() {
    let sandbox = strict();
    let Some(pool) = python_pool("a_run_in_a_spare_is_cancelled", &sandbox) else { return };
    let cancel = Cancel::new();
    let code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '76541'])\nprint('x', flush=True)\ntime.sleep(60)";
    let start = Instant::now();
    let outcome = behind(&sandbox, &pool)
        .run(&python(code), &cancel, &mut |event| {
            if matches!(event, SandboxEvent::Stdout(_)) {
                cancel.cancel();
            }
        })
        .unwrap();
    assert_eq!((outcome.verdict, outcome.stdout.text().as_str()), (Verdict::Cancelled, "x\n"));
    assert!(start.elapsed() < Duration::from_secs(10));
    eventually("all are dead", || !crate::support::is_running("sleep 76541"));
}

#[test]
fn after_a_pooled_run_nothing_that_it_started_is_alive() {
    let sandbox = strict();
    let Some(pool) = python_pool("when_a_run_in_a_spare_returns", &sandbox) else { return };
    let pooled = behind(&sandbox, &pool);
    // It left the session and holds no stream, so only the end of the namespace ends it.
    let code = "import os\nread, write = os.pipe()\nos.set_inheritable(write, False)\nif os.fork() == 0:\n    os.setsid()\n    for number in range(3):\n        os.close(number)\n    os.close(4)\n    os.execvp('sleep', ['sleep', '76542'])\nos.close(write)\nos.read(read, 1)";
    for round in 0..5 {
        assert!(served(&pooled, &python(code)).verdict.is_ok());
        assert!(!crate::support::is_running("sleep 76542"), "round {round}");
        assert!(served(&pooled, &python("print(1)")).verdict.is_ok());
    }
}

#[test]
fn mismatched_requests_run_cold_with_a_reason() {
    let sandbox = strict();
    let Some(pool) = python_pool("mismatched_requests_run_cold_with_a_reason", &sandbox) else { return };
    let directory = crate::support::open_directory();
    for (request, program, reason) in [
        (
            sandbox.clone().workspace(Workspace::ReadOnlyHost(directory.path().into())),
            python("1"),
            "read-only",
        ),
        (sandbox.clone().limits(quick().with_memory(1 << 28)), python("1"), "limits"),
        (sandbox.clone().env("PYTHONHASHSEED", "0"), python("1"), "variables"),
        (sandbox.clone(), Program::code(Language::Bash, "echo 1"), "python"),
        (sandbox.clone(), Program::argv(["true"]), "python"),
    ] {
        let outcome = run(&behind(&request, &pool), &program).unwrap();
        let notes = outcome.report.notes.join("\n");
        assert!(outcome.verdict.is_ok() && outcome.report.backend == "process");
        assert!(notes.contains("started cold") && notes.contains(reason), "{notes}");
    }
    assert_eq!((pool.metrics().cold, pool.metrics().served), (5, 0));
    let bare = strict().level(Level::Standard).host(Host::probe().without_namespaces());
    let pool = Arc::new(Pool::builder(&bare).language(Language::Python).build().unwrap());
    if Host::probe().without_namespaces().availability(Level::Standard).unwrap().available {
        let outcome = run(&behind(&bare, &pool), &python("1")).unwrap();
        assert!(outcome.report.notes.join("").contains("needs namespaces"), "{:?}", outcome.report.notes);
    }
}

#[test]
fn other_languages_and_programs_run_pooled_as_cold() {
    let sandbox = strict().env("OWN", "1").stdin(Stdin::Bytes(b"in".to_vec()));
    for (language, program) in [
        (
            None,
            Program::argv([
                "sh",
                "-c",
                "cat; pwd; env | sort; ls -a; id; cat /proc/self/status | grep -E 'Cap|Sec|Sig'; exit 3",
            ]),
        ),
        (None, Program::argv(["/bin/true"])),
        (None, Program::argv(["./missing"])),
        (
            Some(Language::Bash),
            Program::code(
                Language::Bash,
                "cat; echo $OWN; pwd; env | sort; echo x > new; ls /proc/self/fd; kill -9 $$",
            ),
        ),
        (Some(Language::Sh), Program::code(Language::Sh, "cat; echo $OWN; false")),
        (Some(Language::Perl), Program::code(Language::Perl, "print <STDIN>; print 6 * 7; exit 2")),
        (Some(Language::Ruby), Program::code(Language::Ruby, "puts STDIN.read; 6 * 7")),
        (
            Some(Language::JavaScript),
            Program::code(
                Language::JavaScript,
                "console.log(require('fs').readFileSync(0, 'utf8'), process.env.OWN, process.cwd(), process.argv.length); 6 * 7",
            ),
        ),
        (Some(Language::JavaScript), Program::code(Language::JavaScript, "throw new Error('x')")),
    ] {
        let cold = run(&sandbox, &program);
        if matches!(cold, Err(Error::LanguageMissing { .. })) {
            println!("SKIP {language:?}: it is not installed");
            continue;
        }
        let mut builder = Pool::builder(&sandbox).idle_workers(1);
        if let Some(language) = language {
            builder = builder.language(language);
        }
        let Some(pool) = ready("other_languages_and_arguments", builder, 1) else { return };
        for _ in 0..2 {
            let warm = run(&behind(&sandbox, &pool), &program);
            match (&cold, warm) {
                (Ok(cold), Ok(warm)) => {
                    assert_eq!(warm.report.backend, "pool", "{:?}", warm.report.notes);
                    assert_eq!(essence(cold), essence(&warm), "{program:?}");
                }
                (Err(cold), Err(warm)) => assert_eq!(cold.to_string(), warm.to_string()),
                (cold, warm) => panic!("{cold:?} {warm:?}"),
            }
        }
    }
}

#[test]
fn two_hundred_runs_leave_nothing_and_never_mix() {
    let sandbox = strict();
    let builder = Pool::builder(&sandbox).language(Language::Python).idle_workers(3).max_concurrency(4);
    let Some(pool) = ready("two_hundred_runs_leave_nothing_and_never_mix", builder, 1) else { return };
    let pooled = behind(&sandbox, &pool);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pooled = &pooled;
            scope.spawn(move || {
                for number in 0..50 {
                    let mark = format!("{thread}-{number}");
                    let sandbox = pooled.clone().file("mark", Source::Bytes(mark.clone().into()));
                    let code = format!("import os\nassert open('mark').read() == {mark:?}\nopen('out', 'w').write({mark:?})\nprint({mark:?})\nsorted(os.listdir('.'))");
                    let outcome = served(&sandbox, &python(&code));
                    assert_eq!(outcome.stdout.text(), format!("{mark}\n"));
                    assert_eq!(outcome.value, Some(json!(["mark", "out"])));
                    assert_eq!(outcome.artifacts[0].read().unwrap(), mark.as_bytes());
                }
            });
        }
    });
    let metrics = pool.metrics();
    assert_eq!((metrics.served, metrics.cold, metrics.died), (200, 0, 0), "{metrics:?}");
    assert!(metrics.latency_p50 > Duration::ZERO && metrics.latency_p50 <= metrics.latency_p99);
    drop(pooled);
    drop(pool);
}

/// The environment with the profile `data`, if the checkout has one.
fn data() -> Option<Sandbox> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev/data-env/bin");
    let directory = directory.canonicalize().ok()?;
    Some(strict().search_path(format!("{}:/usr/bin:/bin", directory.display())))
}

#[test]
fn a_pool_that_has_loaded_pandas_runs_an_analysis() {
    let name = "a_pool_that_has_loaded_pandas_runs_an_analysis";
    let Some(sandbox) = data() else {
        println!("SKIP {name}: there is no environment with packages in .dev/data-env");
        return;
    };
    // This user may not reach its interpreter: then another one is found.
    let look = "import importlib.util, sys\n[importlib.util.find_spec('pandas') is not None, sys.executable]";
    let found = run(&sandbox, &python(look)).ok().and_then(|outcome| outcome.value);
    if found.as_ref().is_none_or(|found| found[0] != true) {
        println!("SKIP {name}: the Python that this user finds has no pandas: {found:?}");
        return;
    }
    let code = "import pandas as pd, numpy as np\n\
        frame = pd.read_csv('in.csv')\n\
        frame.groupby('key').value.sum().to_csv('out.csv')\n\
        [frame.groupby('key').value.mean().to_dict(), int(np.random.randint(1 << 60))]";
    let sandbox = sandbox.limits(quick().with_wall(Duration::from_mins(1)).with_memory(1 << 30));
    let request = sandbox.clone().file("in.csv", Source::Bytes(b"key,value\na,1\na,3\nb,5\n".to_vec()));
    let profile = toolpost_runtimes::Profile::named("data").unwrap();
    let builder = Pool::builder(&sandbox)
        .language(Language::Python)
        .preload(profile.modules())
        .warm_up("import pandas as pd\npd.DataFrame({'a': [1, 1], 'b': [1, 2]}).groupby('a').b.sum()")
        .ready_timeout(Duration::from_secs(30));
    let Some(pool) = ready(name, builder, 2) else { return };
    let metrics = pool.metrics();
    if !metrics.preloaded.contains(&"pandas".to_owned()) {
        println!("SKIP {name}: {:?}", metrics.missing);
        return;
    }
    let pooled = behind(&request, &pool);
    let mut numbers = Vec::new();
    for _ in 0..4 {
        let outcome = served(&pooled, &python(code));
        let value = outcome.value.unwrap_or_else(|| panic!("{}", outcome.stderr.text()));
        assert_eq!(value[0], json!({"a": 2.0, "b": 5.0}));
        assert_eq!(outcome.artifacts[0].read().unwrap(), b"key,value\na,4\nb,5\n");
        numbers.push(value[1].clone());
    }
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
    for name in profile.modules() {
        let is_named = metrics.missing.iter().any(|(missing, _)| missing == name);
        assert!(is_named != metrics.preloaded.contains(&name.to_owned()), "{name} {metrics:?}");
    }
    println!("{metrics:?}");
}
