//! Limits and their verdicts, and attempts to fake verdicts.

use std::time::{Duration, Instant};

use toolpost_sandbox::{Cancel, Host, Layer, Level, Limits, Program, Reached, Verdict};

use crate::support::{Mode, bash, eventually, is_running, python, quick, run};

fn has_memory_limit() -> bool {
    Host::probe().capabilities.iter().any(|entry| entry.name == "cgroup_memory" && entry.available)
}

#[test]
fn the_wall_clock_ends_everything() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_wall(Duration::from_millis(300)));
        for (number, code) in [
            "sleep 71001",
            "trap '' TERM INT HUP; while :; do sleep 71001; done",
            "exec >&- 2>&-; sleep 71001",
            "sleep 71001 & kill -STOP $$; sleep 71001",
            "setsid sleep 71001 & (setsid sleep 71001 &) ; setsid setsid sleep 71001; sleep 71001",
        ]
        .into_iter()
        .enumerate()
        {
            let outcome = bash(&sandbox, code);
            assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 300 }, "{mode:?} {number} {outcome:?}");
            eventually("nothing survives", || !is_running("sleep 71001"));
        }
    }
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_run() {
    for mode in Mode::available() {
        for code in [
            "sleep 72001 & echo hi",
            "setsid sleep 72001 & echo hi",
            "(setsid sh -c 'sleep 72001; echo late' &) ; echo hi; exit 0",
            "trap '' TERM; (trap '' TERM; sleep 72001; sleep 72001) & echo hi",
        ] {
            let outcome = bash(&mode.sandbox(), code);
            assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {code} {outcome:?}");
            assert_eq!(outcome.stdout.text(), "hi\n");
            eventually("nothing survives", || !is_running("sleep 72001"));
        }
    }
}

#[test]
fn processor_time_is_limited_over_all_processes() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_cpu(Duration::from_millis(400)));
        for code in [
            "while True: pass",
            // Each child stays far below the limit and ends soon.
            "import os, time\nwhile True:\n    pid = os.fork()\n    if pid == 0:\n        end = time.process_time() + 0.05\n        while time.process_time() < end: pass\n        os._exit(0)\n    os.waitpid(pid, 0)",
            "import threading\nfor _ in range(20): threading.Thread(target=lambda: [i for i in iter(int, 1)]).start()",
        ] {
            let outcome = python(&sandbox, code);
            assert_eq!(outcome.verdict, Verdict::Cpu { limit_ms: 400 }, "{mode:?} {code} {outcome:?}");
        }
    }
}

#[test]
fn memory_is_limited_over_all_processes_with_kernel_proof() {
    if !has_memory_limit() {
        println!("SKIP memory over all processes: unproven here: no delegated cgroup");
        return;
    }
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_memory(48 << 20).with_workspace_bytes(200 << 20));
        for code in [
            "x = []\nwhile True: x.append(bytearray(1 << 20))",
            "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(20 << 20)\n        import time; time.sleep(5)\n        os._exit(0)\nfor _ in range(4):\n    _, s = os.wait()\n    if s: os._exit(9)",
            "import os\nf = os.memfd_create('m')\nwhile True: os.write(f, b'x' * (1 << 20))",
            "import mmap\nm = mmap.mmap(-1, 100 << 20)\nfor i in range(0, 100 << 20, 4096): m[i] = 1",
        ] {
            let outcome = python(&sandbox, code);
            assert_eq!(outcome.verdict, Verdict::Memory { limit: 48 << 20 }, "{mode:?} {code} {outcome:?}");
            assert!(outcome.report.reached.contains(&Reached::Memory));
            assert!(outcome.usage.peak_memory.unwrap() <= 48 << 20);
        }
    }
    let code = "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))";
    for mode in Mode::available().into_iter().filter(|mode| *mode != Mode::Shared) {
        let sandbox = mode.sandbox().limits(quick().with_memory(48 << 20).with_workspace_bytes(200 << 20));
        assert_eq!(python(&sandbox, code).verdict, Verdict::Memory { limit: 48 << 20 });
    }
}

#[test]
fn without_a_cgroup_each_process_is_limited() {
    let host = Host::probe().without_cgroups();
    let sandbox = toolpost_sandbox::Sandbox::new().host(host).limits(quick().with_memory(64 << 20));
    let outcome =
        python(&sandbox, "try:\n    x = bytearray(100 << 20)\nexcept MemoryError:\n    print('refused')");
    assert_eq!(outcome.stdout.text(), "refused\n", "{outcome:?}");
    assert!(!outcome.report.has(Layer::MemoryLimit));
}

#[test]
fn processes_are_limited_and_a_fork_bomb_ends() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_processes(12));
        let code = "import os, errno, time\ncount = 0\nwhile True:\n    try:\n        if os.fork() == 0:\n            time.sleep(20)\n    except OSError as e:\n        break\n    count += 1\n[count]";
        let outcome = python(&sandbox, code);
        let count = outcome
            .value
            .as_ref()
            .and_then(|value| value[0].as_u64())
            .unwrap_or_else(|| panic!("{outcome:?}"));
        if outcome.report.has(Layer::ProcessLimit) {
            assert_eq!(count, 11, "{mode:?} {outcome:?}");
        } else {
            println!("unproven here ({mode:?}): the limit counts all processes of the user, got {count}");
        }
        let sandbox = mode.sandbox().limits(quick().with_processes(12).with_wall(Duration::from_secs(3)));
        let bomb = bash(&sandbox, "f() { f | f & f; }; f");
        assert!(!bomb.verdict.is_ok(), "{bomb:?}");
    }
}

#[test]
fn output_is_truncated_to_head_and_tail_and_a_flood_ends() {
    for mode in Mode::available() {
        let limits = quick().with_stdout(1000).with_stderr(500);
        let outcome = bash(&mode.sandbox().limits(limits), "seq 1 100000; seq 1 50000 >&2");
        let text = outcome.stdout.text();
        assert_eq!(outcome.verdict, Verdict::Ok);
        assert!(text.starts_with("1\n2\n3\n") && text.ends_with("\n99999\n100000\n"), "{text}");
        assert_eq!(outcome.stdout.head.len() + outcome.stdout.tail.len(), 1000);
        assert_eq!(outcome.stdout.dropped, 588_895 - 1000);
        assert!(outcome.report.reached.contains(&Reached::Stderr), "{:?}", outcome.report.reached);

        let limits = quick().with_output_total(50 << 20);
        let outcome = bash(&mode.sandbox().limits(limits), "yes & yes >&2");
        assert_eq!(outcome.verdict, Verdict::Output { limit: 50 << 20 });
    }
}

#[test]
fn a_never_ending_line_and_both_pipes_full_do_not_hang() {
    for mode in Mode::available() {
        let outcome = python(
            &mode.sandbox(),
            "import sys\nfor _ in range(64):\n    sys.stderr.write('e' * 65536)\nfor _ in range(64):\n    sys.stdout.write('o' * 65536)",
        );
        assert_eq!(outcome.verdict, Verdict::Ok);
        assert_eq!(outcome.stdout.dropped, (4 << 20) - (1 << 20));
    }
}

#[test]
fn the_workspace_is_limited_in_bytes_and_files() {
    for mode in Mode::available() {
        let limits = quick().with_workspace_bytes(4 << 20).with_workspace_inodes(200);
        let sandbox = mode.sandbox().limits(limits);
        let fill = "f = open('big', 'wb', 0)\nimport time\nfor _ in range(64):\n    f.write(b'x' * (1 << 20)); time.sleep(0.02)";
        let outcome = python(&sandbox, fill);
        assert_eq!(outcome.verdict, Verdict::Disk { limit: 4 << 20 }, "{mode:?} {outcome:?}");
        let nameless = "import os, time\nf = open('big', 'wb', 0)\nos.remove('big')\nfor _ in range(64):\n    f.write(b'x' * (1 << 20)); time.sleep(0.02)";
        let outcome = python(&sandbox, nameless);
        // The kernel's own limit fails a write; afterwards the unnamed file is gone.
        let refused = Verdict::Exit { code: 1 };
        let expected = if mode == Mode::Shared { Verdict::Disk { limit: 4 << 20 } } else { refused };
        assert_eq!(outcome.verdict, expected, "{mode:?} {outcome:?}");
        let hidden = "import os, time\nfor _ in range(60): os.mkdir('d'); os.chdir('d')\nf = open('big', 'wb', 0)\nfor _ in range(64):\n    f.write(b'x' * (1 << 20)); time.sleep(0.02)";
        let outcome = python(&sandbox, hidden);
        assert_eq!(outcome.verdict, Verdict::Disk { limit: 4 << 20 }, "{mode:?} {outcome:?}");
        let many =
            "import time\nfor i in range(5000):\n    open(f'f{i}', 'w').close()\n    time.sleep(0.001)";
        let outcome = python(&sandbox, many);
        assert_eq!(outcome.verdict, Verdict::Inodes { limit: 200 }, "{mode:?} {outcome:?}");
        assert!(outcome.report.reached.contains(&Reached::Inodes));
    }
}

#[test]
fn a_program_cannot_fake_a_limit() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox();
        for code in [124, 137, 139, 152, 255] {
            assert_eq!(bash(&sandbox, &format!("exit {code}")).verdict, Verdict::Exit { code });
        }
        assert_eq!(bash(&sandbox, "kill -KILL $$").verdict, Verdict::Signal { signal: 9 });
        assert_eq!(bash(&sandbox, "kill -XCPU $$").verdict, Verdict::Signal { signal: 24 });
        let limited = mode.sandbox().limits(quick().with_cpu(Duration::from_secs(5)));
        assert_eq!(bash(&limited, "kill -XCPU $$").verdict, Verdict::Signal { signal: 24 });
        assert_eq!(bash(&sandbox, "kill -SEGV $$").verdict, Verdict::Signal { signal: 11 });
    }
}

#[test]
fn descriptors_and_file_sizes_are_limited() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_descriptors(40).with_file_size(1 << 20));
        let code = "import errno\nfiles = []\ntry:\n    while True: files.append(open('/dev/null'))\nexcept OSError as e:\n    first = errno.errorcode[e.errno]\nfor f in files: f.close()\ntry:\n    open('big', 'wb').truncate(1 << 40)\nexcept OSError as e:\n    second = errno.errorcode[e.errno]\n[len(files) < 40, first, second]";
        let outcome = python(&sandbox, code);
        assert_eq!(outcome.value, Some(serde_json::json!([true, "EMFILE", "EFBIG"])), "{mode:?} {outcome:?}");
    }
}

#[test]
fn the_share_of_a_processor_is_limited() {
    if !Host::probe().capabilities.iter().any(|entry| entry.name == "cgroup_cpu" && entry.available) {
        println!("SKIP share of a processor: unproven here: no delegated cgroup");
        return;
    }
    let limits = Limits::default().with_cpu_quota(0.2).with_wall(Duration::from_secs(10));
    let sandbox = Mode::available()[0].sandbox().limits(limits);
    let outcome = python(
        &sandbox,
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass",
    );
    assert!(outcome.report.has(Layer::CpuQuota), "{outcome:?}");
    assert!(outcome.usage.wall > Duration::from_millis(900), "{:?}", outcome.usage);
}

/// The sandboxes whose host is killed: every mode, and limited hosts.
fn of_killed_host(name: &str) -> toolpost_sandbox::Sandbox {
    let poor = Host::probe().without_namespaces();
    let sandbox = toolpost_sandbox::Sandbox::new().limits(quick());
    match name {
        // Without signal scopes only a cgroup is left.
        "Landlock 4" => sandbox.host(poor.with_landlock(4)),
        "minimal" => sandbox.level(Level::Minimal),
        "minimal, no namespaces" => sandbox.level(Level::Minimal).host(poor),
        "minimal, nothing" => sandbox.level(Level::Minimal).host(poor.without_cgroups()),
        _ => Mode::ALL.into_iter().find(|mode| format!("{mode:?}") == name).unwrap().sandbox(),
    }
}

#[test]
fn a_killed_host_leaves_nothing_behind() {
    let mut names: Vec<String> = Mode::available().iter().map(|mode| format!("{mode:?}")).collect();
    names.extend(["minimal", "minimal, no namespaces", "minimal, nothing"].map(str::to_owned));
    let old = of_killed_host("Landlock 4");
    let report = bash(&old, "true").report;
    if report.has(Layer::TreeKill) {
        names.push("Landlock 4".into());
    } else {
        println!("SKIP a killed host with Landlock 4: {:?}", report.missing);
    }
    // The helper below is this test program, killed in the middle of a run.
    for name in names {
        #[expect(clippy::disallowed_methods, reason = "the host program that is killed")]
        let mut host = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "limits::helper_that_is_killed", "--nocapture"])
            .env(crate::support::HELPER, "1")
            .env("TOOLPOST_TEST_MODE", &name)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        eventually("the program runs", || is_running("sleep 73001"));
        host.kill().unwrap();
        host.wait().unwrap();
        eventually(&format!("the program is dead: {name}"), || !is_running("sleep 73001"));
    }
}

#[test]
fn helper_that_is_killed() {
    // For a_killed_host_leaves_nothing_behind.
    if !crate::support::is_helper() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the parent test says what to do")]
    let wanted = std::env::var("TOOLPOST_TEST_MODE").unwrap_or_default();
    if wanted.is_empty() {
        return;
    }
    let code = "trap '' HUP TERM INT; (setsid setsid sleep 73001 &); setsid sleep 73001 & sleep 73001";
    let program = Program::code(toolpost_sandbox::Language::Bash, code);
    of_killed_host(&wanted).run(&program, &Cancel::new(), &mut |_| {}).unwrap();
}

#[test]
fn many_runs_at_once_never_mix() {
    let mode = Mode::available()[0];
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                for round in 0..8 {
                    let token = format!("{thread}-{round}");
                    let sandbox =
                        mode.sandbox().file("in.txt", toolpost_sandbox::Source::Bytes(token.clone().into()));
                    let outcome =
                        run(&sandbox, &Program::argv(["sh", "-c", "cat in.txt; cp in.txt out.txt"])).unwrap();
                    assert_eq!(outcome.stdout.text(), token);
                    assert_eq!(outcome.artifacts.len(), 1, "{outcome:?}");
                    assert_eq!(outcome.artifacts[0].read().unwrap(), token.as_bytes());
                }
            });
        }
    });
}

#[test]
fn only_an_idle_program_is_ended() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_idle(Duration::from_millis(600)));
        let start = Instant::now();
        let outcome = bash(&sandbox, "sleep 77001 & sleep 77001");
        assert_eq!(outcome.verdict, Verdict::Idle { limit_ms: 600 }, "{mode:?} {outcome:?}");
        assert!(start.elapsed() > Duration::from_millis(600));
        eventually("nothing survives", || !is_running("sleep 77001"));
        for code in [
            "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass",
            "import time\nfor _ in range(15): print('.', flush=True); time.sleep(0.1)",
            "import os, time\nif os.fork() == 0:\n    end = time.monotonic() + 1.5\n    while time.monotonic() < end: pass\n    os._exit(0)\nos.wait()",
        ] {
            let outcome = python(&sandbox, code);
            assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {code} {outcome:?}");
        }
    }
}

#[test]
fn a_file_size_verdict_needs_a_file_of_that_size() {
    for mode in Mode::available() {
        let sandbox = mode.sandbox().limits(quick().with_file_size(1 << 20));
        let outcome = bash(&sandbox, "exec head -c 2000000 /dev/zero > big");
        assert_eq!(outcome.verdict, Verdict::FileSize { limit: 1 << 20 }, "{mode:?} {outcome:?}");
        assert!(outcome.report.reached.contains(&Reached::FileSize));
        let outcome = bash(&sandbox, "kill -XFSZ $$");
        assert_eq!(outcome.verdict, Verdict::Signal { signal: 25 }, "{mode:?} {outcome:?}");
        assert!(!outcome.report.reached.contains(&Reached::FileSize));
        let caught = "open('big', 'wb').truncate(1 << 20)";
        let outcome = python(&sandbox, caught);
        assert_eq!(outcome.verdict, Verdict::Ok);
        assert!(outcome.report.reached.contains(&Reached::FileSize));
    }
}

#[test]
fn a_child_that_the_kernel_kills_for_memory_ends_a_strict_run() {
    if !has_memory_limit() {
        println!("SKIP a_child_that_the_kernel_kills: no delegated cgroup");
        return;
    }
    let code = "import os, time\nif os.fork() == 0:\n    x = []\n    while True: x.append(bytearray(1 << 20))\nos.wait()\ntime.sleep(600)\nprint('alive')";
    for mode in Mode::available().into_iter().filter(|mode| *mode == Mode::Strict) {
        let outcome = python(&mode.sandbox().limits(quick().with_memory(48 << 20)), code);
        assert_eq!(outcome.verdict, Verdict::Memory { limit: 48 << 20 }, "{mode:?} {outcome:?}");
        assert_eq!(outcome.stdout.text(), "", "{outcome:?}");
    }
}

#[test]
fn a_denied_process_ends_a_run_at_maximum() {
    let host = Host::probe();
    if !host.availability(Level::Maximum).unwrap().available {
        println!("SKIP a_denied_process_ends_a_run_at_maximum: {host:?}");
        return;
    }
    let sandbox = toolpost_sandbox::Sandbox::new().level(Level::Maximum);
    let code = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(30)\nexcept OSError: pass\ntime.sleep(600)\nprint('alive')";
    let outcome = python(&sandbox, code);
    if has_memory_limit() {
        let limit = Limits::for_level(Level::Maximum).processes;
        assert_eq!(outcome.verdict, Verdict::Processes { limit }, "{outcome:?}");
        assert_eq!(outcome.stdout.text(), "");
    } else {
        println!(
            "unproven here: no cgroup counts refusals, so that the idle time ends it: {:?}",
            outcome.verdict
        );
        assert!(!outcome.verdict.is_ok(), "{outcome:?}");
    }
}

#[test]
fn without_a_cgroup_the_memory_of_all_processes_is_polled() {
    for mode in Mode::available() {
        let sandbox =
            mode.sandbox().host(mode.host().without_cgroups()).limits(quick().with_memory(64 << 20));
        // None of them exceeds the limit of one process.
        let code = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(30 << 20)\n        time.sleep(60)\n        os._exit(0)\nos.wait()";
        let outcome = python(&sandbox, code);
        assert_eq!(outcome.verdict, Verdict::Memory { limit: 64 << 20 }, "{mode:?} {outcome:?}");
        assert!(outcome.report.has(Layer::MemoryWatch) && !outcome.report.has(Layer::MemoryLimit));
        // A memory file is not process memory. It cannot be created here; level `minimal` counts it.
        let file = "import os, time\nf = os.memfd_create('m')\nfor _ in range(100): os.write(f, b'x' * (1 << 20))\ntime.sleep(60)";
        let outcome = python(&sandbox, file);
        assert!(outcome.stderr.text().contains("Function not implemented"), "{mode:?} {outcome:?}");
        let outcome = python(&sandbox.clone().level(Level::Minimal), file);
        assert_eq!(outcome.verdict, Verdict::Memory { limit: 64 << 20 }, "{mode:?} {outcome:?}");
        // Shared memory counts once.
        let shared = "import os, time\nx = bytearray(40 << 20)\nfor _ in range(5):\n    if os.fork() == 0:\n        time.sleep(0.5)\n        os._exit(0)\nfor _ in range(5): os.wait()";
        assert_eq!(python(&sandbox, shared).verdict, Verdict::Ok, "{mode:?}");
    }
}

#[test]
fn swap_is_off_or_reported() {
    for mode in Mode::available() {
        let outcome = bash(&mode.sandbox(), "true");
        let missing = outcome.report.missing.iter().any(|missing| missing.layer == Layer::NoSwap);
        assert!(outcome.report.has(Layer::NoSwap) != missing, "{outcome:?}");
        if mode.host().capabilities.iter().any(|entry| entry.name == "swap_off" && entry.available) {
            assert!(!missing, "{outcome:?}");
        }
    }
}
