//! Runs the table and prints the results.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use toolpost_sandbox::Host;

use super::hosts::{self, HOSTS, How};
use super::lines::{Line, Result, user};
use super::modes::{Absence, result_of};
use super::probes;
use super::rows::ROWS;
use super::selection::{HERE, is_host_wanted, is_mode_wanted, is_wanted};
use super::world::World;
use super::{ANY, Kind, Mode, Place, Probe, Who};
use crate::support::{HELPER, eventually, is_helper, is_running};

/// The limited host of a helper process.
const HOST: &str = "TOOLPOST_ATTACK_HOST";
/// The number of concurrent probes, if they neither measure nor fill anything.
const AT_ONCE: usize = 4;

#[test]
fn every_row_has_a_probe() {
    let found: BTreeSet<u32> = probes::all().iter().map(|probe| probe.row).collect();
    let missing: Vec<_> = ROWS.iter().filter(|row| !found.contains(&row.number)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let names: BTreeSet<_> = probes::all().iter().map(|probe| (probe.row, probe.name)).collect();
    assert_eq!(names.len(), probes::all().len(), "two probes of a row have the same name");
    for (index, row) in ROWS.iter().enumerate() {
        assert_eq!(row.number as usize, index + 1, "{}", row.attack);
        row.print();
    }
    // The parts into which `cargo xtask attack` splits the table.
    for backend in Mode::all().iter().map(|mode| mode.backend).collect::<BTreeSet<_>>() {
        println!("\nATTACK PART\tattack::table::the_attack_table_holds_here\t{backend}");
    }
    for poor in HOSTS {
        let test = match poor.how {
            How::Facts(_) => "the_attack_table_holds_on_hosts_with_fewer_facts",
            How::Process(..) => "the_attack_table_holds_on_poor_hosts",
        };
        println!("\nATTACK PART\tattack::table::{test}\t{}", poor.name);
    }
    // The features of the host. Reasons contain paths and kernels; only availability is the fact.
    for capability in &Host::probe().capabilities {
        println!("\nATTACK FACT\t{}\t{}\t{}", capability.name, user(), capability.available);
    }
}

/// Runs every selected probe in one mode. Returns the failures.
fn attack(place: &Place<'_>, host: &str) -> Vec<String> {
    let wanted = probes::all().into_iter().filter(|probe| is_wanted(probe, place, host));
    let (slow, quick): (Vec<&Probe>, Vec<&Probe>) = wanted.partition(|probe| probe.is_slow);
    let queue = Mutex::new(quick.into_iter());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some(probe) = next else { break };
                    let found = attack_once(probe, place, host);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.extend(slow.into_iter().filter_map(|probe| attack_once(probe, place, host)));
    wrong
}

/// Runs a probe in one mode and prints the result. Returns a failure.
fn attack_once(probe: &Probe, place: &Place<'_>, host: &str) -> Option<String> {
    let mut line = Line {
        row: probe.row,
        probe: probe.name,
        level: place.mode.level.name(),
        backend: place.mode.backend,
        host,
        expected: String::new(),
        got: "",
        result: Result::NotThere,
        took: Duration::ZERO,
    };
    if let Some(reason) = silent(probe, place, host) {
        line.got = reason;
        line.print();
        return None;
    }
    let wanted = probe.expected.at(place.mode.backend, place.mode.level.name(), place.has_namespaces());
    let is_free = wanted.starts_with(ANY);
    let start = Instant::now();
    let (got, errors) = carry_out(probe, place);
    line.took = start.elapsed();
    if let Some(reason) = got.strip_prefix("not tried: ") {
        line.got = reason;
        line.print();
        return None;
    }
    let is_unharmed = place.world.is_unharmed();
    let held = is_unharmed && (is_free || wanted.contains(&got.as_str()));
    line.expected = if is_free { "allowed, no promise".into() } else { wanted.join(" or ") };
    line.got = &got;
    line.result = if held { Result::Held } else { Result::Wrong };
    line.print();
    (!held).then(|| {
        format!(
            "row {} `{}` at {} on {}, {host}, user {}: {got}, expected {wanted:?}, the process of the host {}\n{errors}",
            probe.row,
            probe.name,
            place.mode.level,
            place.mode.backend,
            user(),
            if is_unharmed { "lives" } else { "was killed" }
        )
    })
}

/// The reason why a probe does not apply at a place.
fn silent(probe: &Probe, place: &Place<'_>, host: &str) -> Option<&'static str> {
    let needs_programs = matches!(probe.kind, Kind::Host(_)) && !probe.is_for_cells;
    match place.mode.backend {
        "session" if needs_programs => Some(
            "it needs a program, a request or a limit of its own; a session has cells, and tests of its own",
        ),
        "pool" if needs_programs => {
            Some("it needs a program, a request or a limit of its own, which a pool runs cold: see `process`")
        }
        _ => probe.not_for.iter().find(|(who, _)| applies(*who, place, host)).map(|(_, reason)| *reason),
    }
}

/// Returns the answer and the program's output.
fn carry_out(probe: &Probe, place: &Place<'_>) -> (String, String) {
    match probe.kind {
        Kind::Inside(code) => {
            let result = place.try_attack(code);
            let said = match &result {
                Ok(outcome) => outcome.stderr.text(),
                Err(error) => error.to_string(),
            };
            (result_of(&result), said)
        }
        Kind::Host(attack) => {
            // A panicking probe must not hide the others.
            let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(place)));
            (attempt.unwrap_or_else(|_| "the probe panicked".into()), String::new())
        }
    }
}

fn applies(who: Who, place: &Place<'_>, host: &str) -> bool {
    let is_shared = place.mode.level.name() == "standard" && !place.has_namespaces();
    match who {
        Who::WithoutLandlock => {
            !place.host.capabilities.iter().any(|entry| entry.name == "landlock" && entry.available)
        }
        Who::ForkingSessions => {
            let level = place.mode.level.name();
            place.mode.backend == "session" && ["standard", "strict"].contains(&level) && !is_shared
        }
        Who::OwnKernel => place.has_own_kernel(),
        Who::Backend(name) => place.mode.backend == name,
        Who::ButBackend(name) => place.mode.backend != name,
        Who::Level(name) => place.mode.level.name() == name,
        Who::Shared => is_shared,
        Who::PrivateRoot => place.has_namespaces() && place.mode.level.name() != "minimal",
        Who::ButShared => !is_shared,
        Who::UntracedRoot => super::lines::user() == 0 && !may_trace(),
        Who::PoorHosts => host != HERE,
    }
}

/// Whether this process has `CAP_SYS_PTRACE`.
fn may_trace() -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & CAP_SYS_PTRACE != 0
}

/// Prints why a mode is unavailable. Returns a failure.
fn absent(mode: &Mode, host: &str, absence: &Absence) -> Option<String> {
    let (reason, result) = match absence {
        Absence::Refused(reason) => (reason, Result::Held),
        Absence::NotHere(reason) => (reason, Result::NotThere),
        Absence::Broken(reason) => (reason, Result::Wrong),
    };
    let place = format!("attacks at {} on {}, {host}", mode.level, mode.backend);
    println!("SKIP {place}: {reason}");
    let line = Line {
        row: 70,
        probe: "a level is given, or refused with the reason",
        level: mode.level.name(),
        backend: mode.backend,
        host,
        expected: if result == Result::NotThere { String::new() } else { "given or refused".into() },
        got: reason,
        result,
        took: Duration::ZERO,
    };
    line.print();
    (result == Result::Wrong).then(|| format!("{place}: {reason}"))
}

/// Runs the table in every mode of a host.
fn attack_all(host: &Host, name: &str) {
    let world = World::new();
    let mut wrong = Vec::new();
    let mut modes = 0;
    for mode in Mode::all().into_iter().filter(|mode| is_mode_wanted(mode, name)) {
        match mode.on(host, &world) {
            Ok(place) => {
                modes += 1;
                wrong.extend(attack(&place, name));
            }
            Err(absence) => wrong.extend(absent(&mode, name, &absence)),
        }
    }
    if modes == 0 {
        println!("SKIP attacks on {name}: no level is available");
    }
    assert!(wrong.is_empty(), "{} probes:\n{}", wrong.len(), wrong.join("\n"));
    eventually("no orphan of an attack lives", || !is_running("74001"));
}

#[test]
fn the_attack_table_holds_here() {
    attack_all(Host::probe(), HERE);
}

#[test]
fn the_attack_table_holds_on_hosts_with_fewer_facts() {
    for poor in HOSTS {
        let How::Facts(change) = poor.how else { continue };
        if !is_host_wanted(poor.name) {
            continue;
        }
        attack_all(&change(Host::probe()), poor.name);
    }
}

#[test]
fn the_attack_table_holds_on_poor_hosts() {
    let program = std::env::current_exe().unwrap();
    let mut failed = Vec::new();
    for poor in HOSTS {
        if !is_host_wanted(poor.name) {
            continue;
        }
        let Some(mut command) = hosts::command(poor, &program) else { continue };
        let output = command
            .args(["--exact", "attack::table::helper_on_a_poor_host", "--nocapture", "--test-threads", "1"])
            .env(HELPER, "1")
            .env(HOST, poor.name)
            .env("TMPDIR", "/tmp")
            .current_dir("/")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("{text}");
        if errors.contains("unshare failed")
            || errors.contains("Permission denied") && !text.contains("ATTACK")
        {
            println!("SKIP attacks on {}: {errors}", poor.name);
        } else if !output.status.success() || !text.contains("1 passed") {
            failed.push(format!("{}: {}\n{errors}", poor.name, output.status));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn helper_on_a_poor_host() {
    // For the_attack_table_holds_on_poor_hosts.
    if !is_helper() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the parent test says where this is")]
    let name = std::env::var(HOST).unwrap();
    let poor = HOSTS.iter().find(|poor| poor.name == name).unwrap();
    attack_all(Host::probe(), poor.name);
}
