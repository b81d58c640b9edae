//! Runs the table and says what came out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use toolpost_sandbox::{Host, Level};

use super::hosts::{self, HOSTS, How};
use super::lines::{Line, Result, is_complete, user};
use super::probes;
use super::rows::ROWS;
use super::world::World;
use super::{ANY, Kind, Mode, Place, Probe, Who, answer_of};
use crate::support::{HELPER, eventually, is_helper, is_running};

const HERE: &str = "this host";
/// Which poor host a helper process is on.
const HOST: &str = "TOOLPOST_ATTACK_HOST";
/// Rows that are the core of the table on other backends and levels, and on poor hosts.
const CORE: [u32; 10] = [2, 3, 5, 25, 26, 31, 39, 53, 66, 70];

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
}

/// Whether a probe is run at a place. Whole, that is everything here, and on poor hosts all but what takes long and
/// what pools and sessions share with cold runs. The core, which every change must pass, is everything at one level.
fn is_wanted(probe: &Probe, place: &Place<'_>, host: &str) -> bool {
    let is_core = CORE.contains(&probe.row) && !probe.is_slow;
    let is_cold = place.mode.backend == "process";
    match (host == HERE, is_complete()) {
        (true, true) => true,
        (false, true) => is_core || (is_cold && !probe.is_slow),
        (true, false) => {
            is_core
                || is_cold
                    && match place.mode.level {
                        Level::Strict => true,
                        Level::Standard => !probe.is_slow,
                        _ => false,
                    }
        }
        (false, false) => is_core,
    }
}

/// Runs every probe in one mode. Gives what was wrong.
fn attack(place: &Place<'_>, host: &str, wrong: &mut Vec<String>) {
    for probe in probes::all() {
        if !is_wanted(probe, place, host) {
            continue;
        }
        let reason =
            probe.not_for.iter().find(|(who, _)| applies(*who, place, host)).map(|(_, reason)| *reason);
        let needs_programs = matches!(probe.kind, Kind::Host(_)) && !probe.is_for_cells;
        let reason = match place.mode.backend {
            "session" if needs_programs => Some(
                "it needs a program, a request or a limit of its own; a session has cells, and tests of its own",
            ),
            "pool" if needs_programs => Some(
                "it needs a program, a request or a limit of its own, which a pool runs cold: see `process`",
            ),
            _ => reason,
        };
        let mut line = Line {
            row: probe.row,
            probe: probe.name,
            level: place.mode.level.name(),
            backend: place.mode.backend,
            host,
            expected: String::new(),
            got: reason.unwrap_or_default(),
            result: Result::NotThere,
            took: Duration::ZERO,
        };
        if reason.is_some() {
            line.print();
            continue;
        }
        let wanted = probe.expected.at(place.mode.level.name(), place.has_namespaces());
        let is_free = wanted.starts_with(ANY);
        let start = Instant::now();
        let (got, errors) = carry_out(probe, place);
        line.took = start.elapsed();
        if let Some(reason) = got.strip_prefix("not tried: ") {
            line.got = reason;
            line.print();
            continue;
        }
        let held = is_free || wanted.contains(&got.as_str());
        line.expected = if is_free { "allowed, no promise".into() } else { wanted.join(" or ") };
        line.got = &got;
        line.result = if held { Result::Held } else { Result::Wrong };
        line.print();
        if !held {
            wrong.push(format!(
                "row {} `{}` at {} on {}, {host}, user {}: {got}, expected {wanted:?}\n{errors}",
                probe.row,
                probe.name,
                place.mode.level,
                place.mode.backend,
                user()
            ));
        }
        assert!(place.world.is_unharmed(), "row {} killed a process of the host", probe.row);
    }
}

/// Gives the answer, and what the program said.
fn carry_out(probe: &Probe, place: &Place<'_>) -> (String, String) {
    match probe.kind {
        Kind::Inside(code) => {
            let outcome = place.attack(code);
            (answer_of(&outcome), outcome.stderr.text())
        }
        Kind::Host(attack) => {
            // One that panics must not hide the others.
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
        Who::Backend(name) => place.mode.backend == name,
        Who::ButBackend(name) => place.mode.backend != name,
        Who::Level(name) => place.mode.level.name() == name,
        Who::Shared => is_shared,
        Who::PrivateRoot => place.has_namespaces() && place.mode.level.name() != "minimal",
        Who::ButShared => !is_shared,
        Who::PoorHosts => host != HERE,
    }
}

/// Runs the table in every mode that a host gives.
fn attack_all(host: &Host, name: &str) {
    let world = World::new();
    let mut wrong = Vec::new();
    let mut modes = 0;
    for mode in Mode::all() {
        match mode.on(host, &world) {
            Ok(place) => {
                modes += 1;
                attack(&place, name, &mut wrong);
            }
            Err(reason) => {
                println!("SKIP attacks at {} on {}, {name}: {reason}", mode.level, mode.backend);
                let refused = Line {
                    row: 70,
                    probe: "the level is refused, with the reason",
                    level: mode.level.name(),
                    backend: mode.backend,
                    host: name,
                    expected: "refused".into(),
                    got: &reason,
                    result: Result::Held,
                    took: Duration::ZERO,
                };
                refused.print();
            }
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
        attack_all(&change(Host::probe()), poor.name);
    }
}

#[test]
fn the_attack_table_holds_on_poor_hosts() {
    let program = std::env::current_exe().unwrap();
    let mut failed = Vec::new();
    for poor in HOSTS {
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
