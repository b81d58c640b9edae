//! Hosts with one missing feature, and their reports.

use std::os::unix::process::CommandExt as _;

use toolpost_sandbox::Host;

use super::world::World;
use crate::support::{eventually, is_running, python, quick};

#[test]
fn an_older_landlock_enforces_what_it_supports() {
    // As on Ubuntu 24.04: version 4, without scopes. The seccomp policy then blocks signals.
    for abi in 1..=5 {
        let host = Host::probe().without_namespaces().with_landlock(abi);
        let world = World::new();
        let sandbox = toolpost_sandbox::Sandbox::new().host(host).limits(quick());
        let code = format!(
            "{}[attempt(lambda: os.kill(PID, 9)), call(62, -1, 9), call(234, PID, PID, 9), attempt(lambda: open('/etc/shadow')), attempt(lambda: os.listdir('/tmp'))]",
            world.prelude()
        );
        let outcome = python(&sandbox, &code);
        assert_eq!(
            outcome.value,
            Some(serde_json::json!(["EPERM", "EPERM", "EPERM", "EACCES", "EACCES"])),
            "{abi} {}",
            outcome.stderr.text()
        );
        assert!(world.is_unharmed());
        let late = crate::support::bash(&sandbox, "setsid sleep 75901 & sleep 75901 & exit 0");
        assert!(late.verdict.is_ok(), "{late:?}");
        eventually("nothing survives", || !is_running("sleep 75901"));
    }
}

#[test]
fn a_host_that_denies_user_namespaces_is_detected() {
    // A user namespace in which no other can be created, as on a hardened kernel.
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && exec {} --exact attack::older::helper_poor_host --nocapture",
        program.display()
    );
    #[expect(clippy::disallowed_methods, reason = "the poor host")]
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "sh", "-c", &script])
        .env("TMPDIR", "/tmp")
        .env(crate::support::HELPER, "1")
        .current_dir("/");
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        // Real root would have no other user to run code as, which is an error.
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if text.contains("unshare failed") || text.contains("Permission denied") {
        println!("SKIP a_host_that_refuses_user_namespaces: {text}");
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn helper_poor_host() {
    // For a_host_that_denies_user_namespaces_is_detected.
    if !crate::support::is_helper() {
        return;
    }
    let host = Host::probe();
    let strict = host.availability(toolpost_sandbox::Level::Strict).unwrap();
    assert!(!strict.available, "{host:?}");
    assert!(strict.reason.as_ref().unwrap().contains("No space left"), "{strict:?}");
    assert!(strict.fix.as_ref().unwrap().contains("max_user_namespaces"), "{strict:?}");
    assert_eq!(host.best(), Some(toolpost_sandbox::Level::Standard));
    let sandbox = toolpost_sandbox::Sandbox::new().limits(quick());
    let outcome = crate::support::bash(&sandbox, "echo x > file; cat file; setsid sleep 75801 & exit 0");
    assert!(outcome.verdict.is_ok() && outcome.stdout.text() == "x\n", "{outcome:?}");
    eventually("nothing survives", || !is_running("sleep 75801"));
}
