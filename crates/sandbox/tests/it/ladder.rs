//! The fallback ladder: hosts without some features, what they report, and what they still support.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use toolpost_sandbox::{Error, Host, Layer, Level, Outcome, Program, Sandbox};

use crate::attack::hosts::{How, PoorHost, command};
use crate::support::{bash, eventually, is_running, python, quick, run};

/// A rung: how the host is limited, and what must hold there.
struct Rung {
    host: PoorHost,
    /// The feature that the host must report as missing.
    lacks: &'static str,
    check: fn(&Host),
}

const NEW_CALLS: &[u32] = &[424, 434, 435, 436];
const LANDLOCK: &[u32] = &[444, 445, 446];
const MOUNTS: &[u32] = &[155, 165, 166, 428, 429, 430, 431, 432, 433, 442];

const RUNGS: [Rung; 6] = [
    Rung {
        host: PoorHost {
            name: "neither clone3 nor pidfd_send_signal nor close_range",
            how: How::Process(&[(NEW_CALLS, libc::ENOSYS)], None),
        },
        lacks: "close_range",
        check: old_calls,
    },
    Rung {
        host: PoorHost {
            name: "the same refused by a filter that does not know them",
            how: How::Process(&[(&[424, 434, 436], libc::EPERM), (&[435], libc::ENOSYS)], None),
        },
        lacks: "pidfd",
        check: old_calls,
    },
    Rung {
        host: PoorHost { name: "no Landlock", how: How::Process(&[(LANDLOCK, libc::ENOSYS)], None) },
        lacks: "landlock",
        check: no_landlock,
    },
    Rung {
        host: PoorHost {
            name: "user namespaces without rights",
            how: How::Process(&[(MOUNTS, libc::EPERM)], None),
        },
        lacks: "namespaces",
        check: no_namespaces,
    },
    Rung {
        host: PoorHost {
            name: "neither namespaces nor Landlock",
            how: How::Process(&[(&[56, 272, 308], libc::EPERM), (&[435, 444, 445, 446], libc::ENOSYS)], None),
        },
        lacks: "namespaces",
        check: only_minimal,
    },
    Rung {
        host: PoorHost {
            name: "a masked /proc",
            how: How::Process(&[], Some("mount --bind /dev/null /proc/version")),
        },
        lacks: "process_files",
        check: no_process_files,
    },
];

#[test]
fn every_rung_is_detected_attested_and_has_a_fix() {
    for rung in RUNGS {
        let program = std::env::current_exe().unwrap();
        let mut command = if rung.lacks == "process_files" {
            masked(&rung.host, &program)
        } else {
            command(&rung.host, &program).unwrap()
        };
        command
            .args(["--exact", "ladder::helper_on_a_rung", "--nocapture", "--test-threads", "1"])
            .env(crate::support::HELPER, rung.host.name)
            .env("TMPDIR", "/tmp")
            .current_dir("/");
        let output = command.output().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if text.contains("unshare:") || text.contains("mount:") {
            println!("SKIP {}: {text}", rung.host.name);
            continue;
        }
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", rung.host.name);
    }
}

/// The test program in a mount namespace with a part of `/proc` covered, as in containers.
fn masked(host: &PoorHost, program: &std::path::Path) -> Command {
    let How::Process(_, Some(prepare)) = host.how else { panic!("a command") };
    let script = format!("{prepare} && exec {} \"$@\"", program.display());
    #[expect(clippy::disallowed_methods, reason = "the tests themselves, on a poor host")]
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

#[test]
fn helper_on_a_rung() {
    // For every_rung_is_found_out.
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one says which")]
    let Some(name) = std::env::var_os(crate::support::HELPER) else { return };
    let Some(rung) = RUNGS.into_iter().find(|rung| name == rung.host.name) else { return };
    let host = Host::probe();
    let lacking = host.capabilities.iter().find(|entry| entry.name == rung.lacks).unwrap();
    assert!(!lacking.available, "{host:?}");
    assert!(lacking.fix.is_some_and(|fix| fix.len() > 10), "{lacking:?}");
    (rung.check)(host);
}

/// The minimum of every level on every host.
fn works(sandbox: &Sandbox) -> Outcome {
    let outcome =
        bash(sandbox, "echo x > file; cat file; setsid sleep 78001 & (setsid sleep 78001 &) ; exit 0");
    assert!(outcome.verdict.is_ok() && outcome.stdout.text() == "x\n", "{outcome:?}");
    eventually("nothing survives", || !is_running("sleep 78001"));
    let late = sandbox.clone().limits(quick().with_wall(std::time::Duration::from_millis(400)));
    let late = bash(&late, "trap '' TERM; setsid sleep 78002 & sleep 78002");
    assert_eq!(late.verdict, toolpost_sandbox::Verdict::Timeout { limit_ms: 400 }, "{late:?}");
    eventually("nothing survives", || !is_running("sleep 78002"));
    assert_eq!(python(sandbox, "6 * 7").value, Some(42.into()));
    outcome
}

fn strict() -> Sandbox {
    Sandbox::new().level(Level::Strict).limits(quick())
}

fn old_calls(host: &Host) {
    if !host.availability(Level::Strict).unwrap().available {
        println!("SKIP old calls at level strict: {host:?}");
        return;
    }
    // A descriptor that a careless host leaves inheritable, far above the placed ones.
    let leaked = rustix::io::dup(std::fs::File::open("/usr/bin/env").unwrap()).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let outcome = works(&strict());
    for call in ["close_range", "pidfd_send_signal", "clone3"] {
        assert!(outcome.report.notes.iter().any(|note| note.contains(call)), "{call}: {outcome:?}");
    }
    let open = bash(&strict(), "ls /proc/self/fd | wc -l; ls -l /proc/self/fd");
    // Input, output, errors, the value, the code, and the listed directory.
    let count: u32 = open.stdout.text().lines().next().unwrap().parse().unwrap();
    assert!(count <= 6 && !open.stdout.text().contains("/usr/bin/env"), "{open:?}");
}

fn no_landlock(host: &Host) {
    if !host.availability(Level::Strict).unwrap().available {
        println!("SKIP no Landlock at level strict: {host:?}");
        return;
    }
    let outcome = works(&strict());
    for layer in [Layer::LandlockFiles, Layer::LandlockSignals] {
        assert!(!outcome.report.has(layer));
        assert!(
            outcome
                .report
                .missing
                .iter()
                .any(|missing| missing.layer == layer && missing.reason.contains("needs"))
        );
    }
    assert!(outcome.report.has(Layer::TreeKill) && outcome.report.has(Layer::PrivateRoot));
}

fn fails_closed(host: &Host) {
    for level in [Level::Strict, Level::Maximum] {
        let entry = host.availability(level).unwrap();
        assert!(!entry.available && entry.reason.is_some() && entry.fix.is_some(), "{entry:?}");
        let refused = run(&Sandbox::new().level(level), &Program::argv(["true"]));
        assert!(matches!(refused, Err(Error::LevelUnavailable { .. })), "{refused:?}");
    }
}

fn no_namespaces(host: &Host) {
    fails_closed(host);
    assert!(host.availability(Level::Strict).unwrap().fix.as_ref().unwrap().contains("AppArmor"));
    let profile = host.apparmor_profile(std::path::Path::new("/opt/tool post/toolpost"));
    assert!(profile.contains("\"/opt/tool post/toolpost\"") && profile.contains("userns,"), "{profile}");
    let outcome = works(&Sandbox::new().limits(quick()));
    assert_eq!(outcome.report.effective, Level::Standard);
    for layer in [Layer::MountNamespace, Layer::NetworkNamespace, Layer::PrivateRoot] {
        assert!(outcome.report.missing.iter().any(|missing| missing.layer == layer), "{outcome:?}");
    }
    assert!(outcome.report.has(Layer::LandlockFiles));
}

fn only_minimal(host: &Host) {
    fails_closed(host);
    assert!(!host.availability(Level::Standard).unwrap().available);
    let refused = run(&Sandbox::new().allow_degraded(true), &Program::argv(["true"]));
    assert!(matches!(refused, Err(Error::LevelUnavailable { .. })), "{refused:?}");
    let outcome = works(&Sandbox::new().level(Level::Minimal).limits(quick()));
    assert!(outcome.report.missing.iter().any(|missing| missing.layer == Layer::PidNamespace), "{outcome:?}");
}

fn no_process_files(host: &Host) {
    let entry = host.availability(Level::Strict).unwrap();
    assert!(entry.available, "{host:?}");
    let outcome = works(&strict());
    assert!(outcome.report.notes.iter().any(|note| note.contains("/proc")), "{outcome:?}");
    assert!(outcome.report.has(Layer::PrivateRoot));
    // Never the host's: no process is visible.
    let found = bash(
        &strict(),
        "cd /proc; echo *; echo x > /proc/y; cat /proc/1/environ /proc/version; ls /proc/self",
    );
    assert_eq!(found.stdout.text(), "self\nfd\n", "{found:?}");
    let compiled = python(&strict(), "import os\nos.path.exists('/proc/self/status')");
    assert_eq!(compiled.value, Some(false.into()));
    assert_eq!(bash(&Sandbox::new().level(Level::Maximum), "echo $((6 * 7))").stdout.text(), "42\n");
}
