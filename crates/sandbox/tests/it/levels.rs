//! The levels: restrictions of each, and which one a run gets.

use std::time::Duration;

use toolpost_sandbox::{Error, Host, Layer, Level, Limits, Sandbox, Source, Verdict, Workspace};

use crate::support::{bash, eventually, is_running, open_directory, python, quick, run};

/// Level `minimal` with and without namespaces.
fn minimal() -> [Sandbox; 2] {
    [Host::probe().clone(), Host::probe().without_namespaces()]
        .map(|host| Sandbox::new().level(Level::Minimal).host(host).limits(quick()))
}

/// Level `maximum`, or none with a message.
fn maximum(test: &str) -> Option<Sandbox> {
    let entry = Host::probe().availability(Level::Maximum).unwrap();
    if !entry.available {
        println!("SKIP {test}: {entry:?}");
        return None;
    }
    Some(Sandbox::new().level(Level::Maximum))
}

#[test]
fn minimal_has_the_host_without_privileges() {
    let secret = open_directory();
    std::fs::write(secret.path().join("file"), "host").unwrap();
    for sandbox in minimal() {
        let code = format!(
            "cat {}/file; id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; env | grep -c CARGO",
            secret.path().display()
        );
        let outcome = bash(&sandbox, &code);
        let text = outcome.stdout.text();
        let user = rustix::process::geteuid().as_raw();
        assert!(text.starts_with(&format!("host{user}\n")), "the host's files, as its user: {outcome:?}");
        assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
        assert!(text.contains("NoNewPrivs:\t1") && text.contains("Seccomp:\t2"), "{text}");
        assert!(text.ends_with("\n0\n"), "the environment is clean: {text}");
        if user == 0 {
            assert!(text.contains("CapBnd:\t0000000000000000"), "{text}");
            assert!(!outcome.report.has(Layer::UnprivilegedUser));
        }
        assert_eq!(outcome.report.effective, Level::Minimal);
        assert!(outcome.report.notes.iter().any(|note| note.contains("is not a boundary")), "{outcome:?}");
        for layer in [Layer::NoCapabilities, Layer::NoNewPrivileges, Layer::Seccomp, Layer::ResourceLimits] {
            assert!(outcome.report.has(layer), "{layer:?}");
        }
    }
}

#[test]
fn minimal_blocks_calls_that_no_tool_needs() {
    for sandbox in minimal() {
        let code = format!(
            "{}[call(425, 8, 0), attempt(lambda: socket.socket(40, socket.SOCK_STREAM)), call(165, b'none', b'/tmp', b'tmpfs', 0, 0), \
             call(272, 0x10000000), call(175, 0, 0, 0), call(321, 0, 0, 0), attempt(lambda: socket.socket(socket.AF_INET).bind(('127.0.0.1', 0)))]",
            crate::attack::PRELUDE
        );
        let found = python(&sandbox, &code).value;
        let expected = serde_json::json!(["ENOSYS", "EACCES", "EPERM", "EPERM", "EPERM", "EPERM", "allowed"]);
        assert_eq!(found, Some(expected));
    }
}

#[test]
fn minimal_transfers_files_and_leaves_no_process() {
    for sandbox in minimal() {
        let directory = open_directory();
        for workspace in [Workspace::Fresh, Workspace::Host(directory.path().to_owned())] {
            let sandbox = sandbox.clone().workspace(workspace).file("in.txt", Source::Bytes(b"given".into()));
            let outcome = bash(
                &sandbox,
                "cp in.txt out.txt; (setsid sleep 76001 &) ; (setsid sleep 76001 & sleep 76001) & exit 0",
            );
            assert_eq!(outcome.verdict, Verdict::Ok, "{outcome:?}");
            assert_eq!(
                outcome.artifacts.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(),
                ["out.txt"]
            );
            assert_eq!(outcome.artifacts[0].read().unwrap(), b"given");
            eventually("nothing survives", || !is_running("sleep 76001"));
        }
        let refused = run(
            &sandbox.workspace(Workspace::ReadOnlyHost(directory.path().to_owned())),
            &toolpost_sandbox::Program::argv(["true"]),
        );
        assert!(matches!(refused, Err(Error::Workspace { .. })), "{refused:?}");
    }
}

#[test]
fn minimal_must_be_named() {
    let poor = Host::probe().without_namespaces().with_landlock(0);
    assert!(poor.availability(Level::Minimal).unwrap().available);
    assert_eq!(poor.best(), None);
    let program = toolpost_sandbox::Program::argv(["true"]);
    for sandbox in [
        Sandbox::new(),
        Sandbox::new().allow_degraded(true),
        Sandbox::new().level(Level::Maximum).allow_degraded(true),
        Sandbox::new().level(Level::Standard).allow_degraded(true),
    ] {
        let refused = run(&sandbox.host(poor.clone()), &program);
        assert!(matches!(refused, Err(Error::LevelUnavailable { .. })), "{refused:?}");
    }
}

#[test]
fn strict_and_maximum_fail_closed() {
    let poor = Host::probe().without_namespaces();
    let program = toolpost_sandbox::Program::argv(["true"]);
    for level in [Level::Strict, Level::Maximum] {
        let sandbox = Sandbox::new().host(poor.clone()).level(level);
        let refused = run(&sandbox, &program).unwrap_err();
        assert!(
            matches!(&refused, Error::LevelUnavailable { level: named, .. } if *named == level),
            "{refused}"
        );
        if !poor.availability(Level::Standard).unwrap().available {
            println!("SKIP a part of strict_and_maximum_fail_closed: no Landlock");
            continue;
        }
        let lowered = run(&sandbox.allow_degraded(true), &program).unwrap();
        assert_eq!((lowered.report.requested, lowered.report.effective), (Some(level), Level::Standard));
        assert!(lowered.report.degraded);
    }
}

#[test]
fn a_level_brings_its_limits_unless_the_caller_sets_them() {
    let Some(sandbox) = maximum("a_level_brings_its_limits") else { return };
    let small = Limits::for_level(Level::Maximum);
    let code = "import os, resource\n[resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0], os.statvfs('.').f_blocks * os.statvfs('.').f_frsize]";
    let found = python(&sandbox, code).value;
    assert_eq!(found, Some(serde_json::json!([small.descriptors, small.file_size, small.workspace_bytes])));
    let own = Limits::default().with_descriptors(100).with_wall(Duration::from_secs(20));
    let found = python(&sandbox.clone().limits(own.clone()), code).value;
    assert_eq!(found, Some(serde_json::json!([100, own.file_size, own.workspace_bytes])));
    // Lowering a level does not raise its limits.
    assert_eq!(sandbox.limits_at(Level::Standard), small);
    assert_eq!(Sandbox::new().limits_at(Level::Standard), Limits::for_level(Level::Standard));
}

#[test]
fn maximum_reports_the_shared_kernel() {
    let Some(sandbox) = maximum("maximum_says") else { return };
    let outcome = bash(&sandbox, "true");
    assert_eq!((&outcome.verdict, outcome.report.effective), (&Verdict::Ok, Level::Maximum));
    assert!(outcome.report.notes.iter().any(|note| note.contains("shares the host's kernel")), "{outcome:?}");
    for layer in [Layer::PrivateRoot, Layer::PidNamespace, Layer::NetworkNamespace, Layer::TreeKill] {
        assert!(outcome.report.has(layer), "{layer:?}");
    }
}

/// Calls that end a run at level `maximum`: code, and the name in the verdict.
const ENDED: [(&str, &str); 12] = [
    ("call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "`mount`"),
    ("call(166, b'/proc', 2)", "`umount2`"),
    ("call(272, 0x10000000)", "`unshare`"),
    ("call(308, 0, 0)", "`setns`"),
    ("call(321, 0, 0, 0)", "`bpf`"),
    ("call(298, 0, 0, -1, -1, 0)", "`perf_event_open`"),
    ("call(101, 0, 0, 0, 0)", "`ptrace`"),
    ("call(250, 0, -3, 0)", "`keyctl`"),
    ("call(175, 0, 0, 0)", "`init_module`"),
    ("call(323, 1)", "`userfaultfd`"),
    ("call(172, 3)", "`iopl`"),
    ("call(310, os.getppid(), 0, 0, 0, 0, 0)", "`process_vm_readv`"),
];

#[test]
fn maximum_ends_a_run_at_an_unlisted_call_and_names_it() {
    let Some(sandbox) = maximum("maximum_ends_a_run") else { return };
    for (code, name) in ENDED {
        // The second line never runs, whatever the program does about signals, or in another process.
        for code in [
            format!(
                "{}import signal\nsignal.signal(signal.SIGSYS, signal.SIG_IGN)\n{code}\nprint('alive')",
                crate::attack::PRELUDE
            ),
            format!(
                "{}import time\nif os.fork() == 0:\n    {code}\n    print('alive')\ntime.sleep(4)\nprint('alive')",
                crate::attack::PRELUDE
            ),
        ] {
            let outcome = python(&sandbox, &code);
            let Verdict::Denied { rule } = &outcome.verdict else { panic!("{name}: {outcome:?}") };
            assert!(rule.contains(name) && rule.contains('('), "{rule}");
            assert_eq!((outcome.stdout.text(), outcome.exit_code), (String::new(), None));
            assert!(outcome.usage.wall < Duration::from_secs(3), "{:?}", outcome.usage);
        }
    }
}

#[test]
fn maximum_answers_calls_of_harmless_programs() {
    let Some(sandbox) = maximum("maximum_answers") else { return };
    let code = format!(
        "{}[call(435, 0, 0), call(425, 8, 0), call(319, b'x', 0), attempt(lambda: socket.socket(socket.AF_INET)), call(227, 0, struct.pack('qq', 0, 0)), \
         call(157, 22, 2, 0, 0, 0), call(157, 35, 1, 0, 0, 0), call(317, 0, 0, 0), call(600), call(275, 0, 0, 0, 0, 0, 0), call(29, 0, 4096, 0o600)]",
        crate::attack::PRELUDE
    );
    let outcome = python(&sandbox, &code);
    assert_eq!(
        outcome.value,
        Some(serde_json::json!([
            "ENOSYS", "ENOSYS", "EPERM", "EACCES", "EPERM", "EPERM", "EPERM", "EPERM", "ENOSYS", "ENOSYS",
            "ENOSYS"
        ])),
        "{outcome:?}"
    );
    assert!(outcome.report.has(Layer::SeccompAllowlist));
}

#[test]
fn common_programs_run_at_maximum() {
    use toolpost_sandbox::{Language, Program};
    let Some(sandbox) = maximum("what_people_run") else { return };
    for (language, code, expected) in [
        (
            Language::Python,
            "import json, re, threading, subprocess, tempfile, sqlite3, hashlib, concurrent.futures as f\nwith f.ThreadPoolExecutor(2) as pool: a = list(pool.map(abs, [-1, 2]))\nopen(tempfile.mktemp(), 'w').close()\nprint(a, subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip())",
            "[1, 2] child\n",
        ),
        (
            Language::Python,
            "import multiprocessing as m\nq = m.get_context('fork').Queue()\np = m.get_context('fork').Process(target=q.put, args=(5,)); p.start(); print(q.get()); p.join()",
            "5\n",
        ),
        (
            Language::Python,
            "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n    print((await p.communicate())[0].decode().strip())\nasyncio.run(f())",
            "hi\n",
        ),
        (
            Language::JavaScript,
            "const { execFileSync } = require('child_process'); const files = require('fs'); files.writeFileSync('a', 'x'); files.copyFileSync('a', 'b'); console.log(execFileSync('cat', ['b']).toString())",
            "x\n",
        ),
        (
            Language::Bash,
            "mkdir -p d && cd d && seq 1 10 | sort -rn | head -2 | tr '\\n' ' '; cat <(echo sub); tar cf t.tar -C .. d 2>/dev/null; ls -la >/dev/null; cp -a t.tar u.tar; find . -name '*.tar' | wc -l; sed -n 1p /etc/passwd | cut -d: -f1; awk 'BEGIN { print 6 * 7 }'",
            "10 9 sub\n2\nroot\n42\n",
        ),
    ] {
        match run(&sandbox, &Program::code(language, code)) {
            Err(Error::LanguageMissing { .. }) => println!("SKIP {language} at maximum: not installed"),
            Ok(outcome) => {
                assert_eq!(outcome.verdict, Verdict::Ok, "{language}: {outcome:?}");
                assert!(outcome.stdout.text().contains(expected), "{language}: {outcome:?}");
            }
            Err(error) => panic!("{language}: {error}"),
        }
    }
}

/// Source, compiler with arguments, and the program's output.
const COMPILED: [(&str, &str, &[&str]); 4] = [
    (
        "a.c",
        "#include <stdio.h>\n#include <pthread.h>\nvoid *f(void *a) { return a; }\nint main() { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); printf(\"made\\n\"); }",
        &["cc", "-pthread", "-o", "made", "a.c"],
    ),
    (
        "a.cc",
        "#include <iostream>\n#include <thread>\nint main() { std::thread([] { std::cout << \"made\\n\"; }).join(); }",
        &["c++", "-pthread", "-o", "made", "a.cc"],
    ),
    (
        "a.rs",
        "fn main() { std::thread::spawn(|| println!(\"made\")).join().unwrap(); assert!(std::process::Command::new(\"true\").status().unwrap().success()); }",
        &["rustc", "-o", "made", "a.rs"],
    ),
    (
        "a.go",
        "package main\nimport (\"fmt\"; \"os/exec\")\nfunc main() { c := make(chan int); go func() { c <- 1 }(); <-c; if exec.Command(\"true\").Run() == nil { fmt.Println(\"made\") } }",
        &["go", "build", "-o", "made", "a.go"],
    ),
];

#[test]
fn compiled_programs_run_at_maximum() {
    let Some(sandbox) = maximum("what_compilers_make") else { return };
    for (name, source, command) in COMPILED {
        let directory = open_directory();
        std::fs::write(directory.path().join(name), source).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the compiler of the host")]
        let made = std::process::Command::new(command[0])
            .args(&command[1..])
            .current_dir(directory.path())
            .env("GOCACHE", directory.path().join("cache"))
            .env("GOFLAGS", "-mod=mod")
            .output();
        match made {
            Ok(output) if output.status.success() => {}
            other => {
                println!("SKIP {} at maximum: {other:?}", command[0]);
                continue;
            }
        }
        let program = Source::Path(directory.path().join("made"));
        let outcome =
            bash(&sandbox.clone().file("made", program), "cp made /tmp/made; chmod +x /tmp/made; /tmp/made");
        assert_eq!(
            (outcome.verdict.clone(), outcome.stdout.text()),
            (Verdict::Ok, "made\n".into()),
            "{name} {outcome:?}"
        );
    }
}
