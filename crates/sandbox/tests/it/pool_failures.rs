//! Pools with slow, excessive or killed parts: runs continue or end with the right verdict, and parts are
//! replaced.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use toolpost_sandbox::{Cancel, Language, Outcome, Pool, Sandbox, SandboxEvent, Verdict};

use crate::pools::{behind, python, python_pool, ready, served, strict};
use crate::support::{eventually, open_directory, run};

/// A virtual environment with an additional module. None, with a message, if its Python is missing in a
/// sandbox.
fn with_module(test: &str, name: &str, source: &str) -> Option<(tempfile::TempDir, Sandbox)> {
    let look = "import sys\n[sys.version_info[0], sys.version_info[1], sys.executable]";
    let value = run(&strict(), &python(look)).ok().and_then(|outcome| outcome.value);
    let Some(value) = value else {
        println!("SKIP {test}: there is no Python");
        return None;
    };
    let directory = open_directory();
    let packages = directory.path().join(format!("lib/python{}.{}/site-packages", value[0], value[1]));
    std::fs::create_dir_all(&packages).unwrap();
    std::fs::create_dir(directory.path().join("bin")).unwrap();
    let real = PathBuf::from(value[2].as_str().unwrap());
    std::os::unix::fs::symlink(&real, directory.path().join("bin/python3")).unwrap();
    let home = format!("home = {}\n", real.parent().unwrap().display());
    std::fs::write(directory.path().join("pyvenv.cfg"), home).unwrap();
    std::fs::write(packages.join(format!("{name}.py")), source).unwrap();
    let path = format!("{}:/usr/bin:/bin", directory.path().join("bin").display());
    let sandbox = strict().search_path(path);
    let found = run(
        &sandbox,
        &python(&format!("import importlib.util\nimportlib.util.find_spec('{name}') is not None")),
    );
    if found.ok().and_then(|outcome| outcome.value) != Some(json!(true)) {
        println!("SKIP {test}: this Python makes no virtual environment of links");
        return None;
    }
    Some((directory, sandbox))
}

#[test]
fn a_slow_zygote_is_killed_and_runs_continue() {
    let test = "a_slow_zygote_is_killed_and_runs_continue";
    if python_pool(test, &strict()).is_none() {
        return;
    }
    let Some((_directory, sandbox)) = with_module(test, "slow_to_load", "import time\ntime.sleep(600)\n")
    else {
        return;
    };
    let builder = Pool::builder(&sandbox).language(Language::Python).preload(["slow_to_load"]);
    let pool = Arc::new(builder.load_timeout(Duration::from_millis(400)).build().unwrap());
    let begun = Instant::now();
    let outcome = run(&behind(&sandbox, &pool), &python("1 + 1")).unwrap();
    let notes = outcome.report.notes.join("\n");
    assert_eq!((outcome.report.backend.as_str(), outcome.value), ("process", Some(json!(2))));
    assert!(notes.contains("loading the zygote timed out"), "{notes}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(pool.metrics().unavailable.is_some_and(|reason| reason.contains("loading the zygote timed out")));
    let dropped = Instant::now();
    drop(pool);
    assert!(dropped.elapsed() < Duration::from_secs(10), "{:?}", dropped.elapsed());
}

#[test]
fn a_request_waits_for_a_worker_until_its_timeout() {
    let test = "a_request_waits_for_a_worker_until_its_timeout";
    if python_pool(test, &strict()).is_none() {
        return;
    }
    let Some((_directory, sandbox)) = with_module(test, "slow_to_load", "import time\ntime.sleep(600)\n")
    else {
        return;
    };
    for (within, least) in [(Duration::ZERO, 0.0), (Duration::from_secs(2), 2.0)] {
        let builder = Pool::builder(&sandbox).language(Language::Python).preload(["slow_to_load"]);
        let pool =
            Arc::new(builder.worker_timeout(within).queue_timeout(Duration::from_secs(40)).build().unwrap());
        let begun = Instant::now();
        let outcome = run(&behind(&sandbox, &pool), &python("1 + 1")).unwrap();
        let took = begun.elapsed().as_secs_f64();
        assert!(outcome.report.notes.join("\n").contains("waiting for a worker timed out"));
        assert!(took >= least && took < 25.0, "{within:?}: {took} s");
    }
}

#[test]
fn a_pool_bounds_concurrent_runs() {
    let sandbox = strict();
    let test = "a_pool_bounds_concurrent_runs";
    let builder = Pool::builder(&sandbox).language(Language::Python).max_concurrency(2);
    let Some(pool) = ready(test, builder, 2) else { return };
    let pooled = behind(&sandbox, &pool);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| pooled.run(&python("import time; time.sleep(20)"), &cancel, &mut |_| {}).unwrap());
        }
        eventually("two run and one waits", || {
            let metrics = pool.metrics();
            (metrics.running, metrics.waiting) == (2, 1)
        });
        cancel.cancel();
    });
}

/// The processes of a pool whose environment has a mark: its zygote, and the zygote's first process.
fn zygote(mark: &str) -> Option<(Pid, Pid)> {
    let read = |pid: i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let text = |pid: i32, file: &str| String::from_utf8_lossy(&read(pid, file)).into_owned();
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        if !text(pid, "cmdline").contains("Loads modules once") || !text(pid, "environ").contains(mark) {
            continue;
        }
        let status = text(pid, "status");
        let parent =
            status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<i32>().ok()?;
        // A fork of the zygote has its own first process.
        if text(parent, "cmdline").starts_with("p\0") {
            return Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?));
        }
    }
    None
}

/// Runs code that waits, acts meanwhile, and returns the outcome.
fn meanwhile(sandbox: &Sandbox, act: impl FnOnce()) -> Outcome {
    let code = python(
        "import time\nprint('begun', flush=True)\ntime.sleep(1.5)\nopen('end.txt', 'w').write('e')\n'ended'",
    );
    let (sender, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            sandbox.run(&code, &Cancel::new(), &mut |event| {
                if matches!(event, SandboxEvent::Stdout(_)) {
                    let _ = sender.send(());
                }
            })
        });
        begun.recv_timeout(Duration::from_secs(20)).unwrap();
        act();
        running.join().unwrap().unwrap()
    })
}

#[test]
fn a_killed_zygote_ends_no_run_and_is_replaced() {
    let test = "a_killed_zygote_ends_no_run_and_is_replaced";
    let mark = "zygote-that-is-killed";
    let sandbox = strict().env("TOOLPOST_TEST_MARK", mark);
    let Some(pool) = python_pool(test, &sandbox) else { return };
    let pooled = behind(&sandbox, &pool);
    let Some((before, _)) = zygote(mark) else {
        println!("SKIP {test}: the zygote's variables cannot be read here");
        return;
    };
    let outcome = meanwhile(&pooled, || {
        // Workers are idle while it is killed.
        eventually("workers are idle", || pool.metrics().ready == 2);
        kill_process(before, Signal::KILL).unwrap();
        eventually("it is noticed", || pool.metrics().restarted == 1);
    });
    assert_eq!((&outcome.verdict, &outcome.value), (&Verdict::Ok, &Some(json!("ended"))));
    assert_eq!(outcome.artifacts[0].path, "end.txt");
    eventually("there is another", || zygote(mark).is_some_and(|(now, _)| now != before));
    for _ in 0..4 {
        assert_eq!(served(&pooled, &python("7")).value, Some(json!(7)));
    }
    let metrics = pool.metrics();
    assert_eq!((metrics.restarted, metrics.cold, metrics.unavailable), (1, 0, None));
}

#[test]
fn a_killed_first_process_ends_its_runs_with_the_right_verdict() {
    let test = "a_killed_first_process_ends_its_runs_with_the_right_verdict";
    let mark = "first-process-that-is-killed";
    let sandbox = strict().env("TOOLPOST_TEST_MARK", mark);
    let Some(pool) = python_pool(test, &sandbox) else { return };
    let pooled = behind(&sandbox, &pool);
    let Some((_, first)) = zygote(mark) else {
        println!("SKIP {test}: the zygote's variables cannot be read here");
        return;
    };
    let outcome = meanwhile(&pooled, || {
        eventually("workers are idle", || pool.metrics().ready == 2);
        kill_process(first, Signal::KILL).unwrap();
    });
    assert_eq!(outcome.verdict, Verdict::Signal { signal: libc::SIGKILL }, "{outcome:?}");
    assert_eq!((outcome.exit_code, &outcome.value), (None, &None));
    assert!(outcome.report.notes.join("\n").contains("killed from outside"), "{:?}", outcome.report.notes);
    assert!(outcome.stdout.text().contains("begun"));
    assert_eq!(run(&pooled, &python("7")).unwrap().value, Some(json!(7)));
    eventually("spares are there again", || pool.metrics().ready > 0);
    assert_eq!(served(&pooled, &python("8")).value, Some(json!(8)));
    let metrics = pool.metrics();
    assert!(metrics.restarted == 1 && metrics.died >= 2 && metrics.unavailable.is_none(), "{metrics:?}");
}
