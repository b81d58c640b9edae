//! The levels: what each takes away, and which is given.

use std::time::Duration;

use toolpost_sandbox::{Error, Host, Layer, Level, Limits, Sandbox, Source, Verdict, Workspace};

use crate::support::{bash, eventually, is_running, open_folder, python, quick, run};

/// The level `minimal` with namespaces where the host has them, and without.
fn minimal() -> [Sandbox; 2] {
    [Host::probe().clone(), Host::probe().without_namespaces()]
        .map(|host| Sandbox::new().level(Level::Minimal).host(host).limits(quick()))
}

/// Level `maximum`, or why not.
fn maximum(test: &str) -> Option<Sandbox> {
    let entry = Host::probe().availability(Level::Maximum).unwrap();
    if !entry.available {
        println!("SKIP {test}: {entry:?}");
        return None;
    }
    Some(Sandbox::new().level(Level::Maximum))
}

#[test]
fn minimal_has_the_host_and_no_rights() {
    let secret = open_folder();
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
        assert!(outcome.report.notes.iter().any(|note| note.contains("no boundary")), "{outcome:?}");
        for layer in [Layer::NoCapabilities, Layer::NoNewPrivileges, Layer::Seccomp, Layer::ResourceLimits] {
            assert!(outcome.report.has(layer), "{layer:?}");
        }
    }
}

#[test]
fn minimal_refuses_the_few_calls_that_no_tool_needs() {
    for sandbox in minimal() {
        let code = format!(
            "{}[call(425, 8, 0), attempt(lambda: socket.socket(40, socket.SOCK_STREAM)), call(165, b'none', b'/tmp', b'tmpfs', 0, 0), \
             call(272, 0x10000000), call(175, 0, 0, 0), call(321, 0, 0, 0), attempt(lambda: socket.socket(socket.AF_INET).bind(('127.0.0.1', 0)))]",
            crate::attack_rows::PRELUDE
        );
        let found = python(&sandbox, &code).value;
        let expected = serde_json::json!(["ENOSYS", "EACCES", "EPERM", "EPERM", "EPERM", "EPERM", "allowed"]);
        assert_eq!(found, Some(expected));
    }
}

#[test]
fn minimal_takes_files_hands_them_back_and_leaves_no_process() {
    for sandbox in minimal() {
        let folder = open_folder();
        for workspace in [Workspace::Fresh, Workspace::Host(folder.path().to_owned())] {
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
            &sandbox.workspace(Workspace::ReadOnlyHost(folder.path().to_owned())),
            &toolpost_sandbox::Program::argv(["true"]),
        );
        assert!(matches!(refused, Err(Error::Workspace { .. })), "{refused:?}");
    }
}

#[test]
fn nobody_gets_minimal_who_did_not_name_it() {
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
    // A level that is lowered does not raise the limits of the one that was named.
    assert_eq!(sandbox.limits_at(Level::Standard), small);
    assert_eq!(Sandbox::new().limits_at(Level::Standard), Limits::for_level(Level::Standard));
}

#[test]
fn maximum_says_that_there_is_no_second_kernel() {
    let Some(sandbox) = maximum("maximum_says") else { return };
    let outcome = bash(&sandbox, "true");
    assert_eq!((&outcome.verdict, outcome.report.effective), (&Verdict::Ok, Level::Maximum));
    assert!(outcome.report.notes.iter().any(|note| note.contains("no second kernel")), "{outcome:?}");
    for layer in [Layer::PrivateRoot, Layer::PidNamespace, Layer::NetworkNamespace, Layer::TreeKill] {
        assert!(outcome.report.has(layer), "{layer:?}");
    }
}
