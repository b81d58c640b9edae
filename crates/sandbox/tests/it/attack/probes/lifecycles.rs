//! Rows 8, 18 to 20, 22, 24, 62 to 64, 67: attempts to survive, or to be miscounted.

use std::time::Duration;

use toolpost_sandbox::{Cancel, Host, Language, Layer, Program, Source, Verdict};

use crate::attack::expected::{OK, all};
use crate::attack::modes::{error_of, verdict_of};
use crate::attack::{Mode, Place, Probe, Who, host};
use crate::support::{HELPER, bash, eventually, is_running, python, run};

const UNSEEN: (Who, &str) =
    (Who::OwnKernel, "its processes are not the host's: nobody sees whether they live");

pub(crate) const PROBES: &[Probe] = &[
    host(8, "bash fork bomb ends", bash_bomb, all(OK)).slow(),
    host(19, "orphans of a double fork", orphans, all(OK)).slow(),
    host(20, "ignores signals, stops itself", stubborn, all(OK)).slow(),
    host(22, "the host is killed", killed_host, all(OK)).slow().not_for(&[
        (
            Who::PoorHosts,
            "the helper that is killed would have to make the poor host again; row 22 of `limits` and `starts` covers it",
        ),
        UNSEEN,
    ]),
    host(24, "spin in a hundred threads", spin, all(&["verdict:cpu"])).slow(),
    host(62, "sleeps over the limit", oversleep, all(&["verdict:timeout"])).slow(),
    host(63, "processor time spread over children", spread, all(&["verdict:cpu"]).in_own_kernel(&["verdict:cpu", "verdict:timeout"])).slow(),
    host(63, "stops itself over the limit", frozen, all(&["verdict:timeout"])).slow(),
    host(64, "exit status and signals of limits", spoof, all(OK)),
    host(64, "kills the first process", kill_first, all(OK).minimal(&["ok", "the run ends"]).in_own_kernel(&["ok", "error:Backend"])),
    host(67, "many runs at once", at_once, all(OK)).slow(),
    host(67, "cancelled in the middle", cancelled, all(OK)).not_for(&[UNSEEN]),
];

fn marker(kind: u32) -> String {
    format!("{kind}{}", std::process::id())
}

fn gone(marker: &str) {
    eventually("nothing survives", || !is_running(&format!("sleep {marker}")));
}

fn bash_bomb(place: &Place<'_>) -> String {
    if !is_counted(place) {
        return "not tried: nothing counts the processes of root here, and the host would have to bear them"
            .into();
    }
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_secs(2)).with_processes(12));
    let outcome = bash(&sandbox, "f() { f | f & f; }; f");
    if outcome.verdict.is_ok() {
        return verdict_of(&outcome);
    }
    "ok".into()
}

/// Whether the number of processes is limited: by a cgroup, a user namespace, or the user's own limit, which
/// root lacks.
fn is_counted(place: &Place<'_>) -> bool {
    let outcome = run(&place.sandbox(), &Program::argv(["true"])).unwrap();
    place.mode.level.name() != "minimal"
        || outcome.report.has(Layer::ProcessLimit)
        || crate::attack::lines::user() != 0
}

fn orphans(place: &Place<'_>) -> String {
    let marker = marker(752);
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_millis(800)));
    let code = format!(
        "trap '' TERM INT HUP; for i in 1 2 3; do (setsid setsid sleep {marker} &); done; setsid sleep {marker} & sleep {marker}"
    );
    let outcome = bash(&sandbox, &code);
    gone(&marker);
    if matches!(outcome.verdict, Verdict::Timeout { .. }) { "ok".into() } else { verdict_of(&outcome) }
}

fn stubborn(place: &Place<'_>) -> String {
    let marker = marker(753);
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_millis(600)));
    for code in [
        format!("trap '' TERM INT HUP QUIT; while :; do sleep {marker}; done"),
        format!("sleep {marker} & kill -STOP $$; sleep {marker}"),
    ] {
        let outcome = bash(&sandbox, &code);
        gone(&marker);
        if !matches!(outcome.verdict, Verdict::Timeout { .. }) {
            return verdict_of(&outcome);
        }
    }
    "ok".into()
}

/// The variables with the helper's mode.
const LEVEL: &str = "TOOLPOST_ATTACK_LEVEL";
const BACKEND: &str = "TOOLPOST_ATTACK_BACKEND";

fn killed_host(place: &Place<'_>) -> String {
    #[expect(clippy::disallowed_methods, reason = "the host program that is killed")]
    let mut host = std::process::Command::new(std::env::current_exe().unwrap());
    if place.mode.backend == "docker" {
        host.env(crate::attack::world::DAEMON, place.world.docker_socket().unwrap());
    }
    let mut host = host
        .args(["--exact", "attack::probes::lifecycles::helper_that_is_killed", "--nocapture"])
        .env(HELPER, "1")
        .env(LEVEL, place.mode.level.name())
        .env(BACKEND, place.mode.backend)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let sleeping = format!("sleep 754{}", host.id());
    eventually("the program runs", || is_running(&sleeping));
    host.kill().unwrap();
    host.wait().unwrap();
    eventually("nothing survives the host", || !is_running(&sleeping));
    "ok".into()
}

#[test]
fn helper_that_is_killed() {
    // For row 22.
    if !crate::support::is_helper() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the parent test says what to do")]
    let (level, backend) = (std::env::var(LEVEL).unwrap(), std::env::var(BACKEND).unwrap());
    let modes = Mode::all();
    let mode = modes.iter().find(|mode| mode.level.name() == level && mode.backend == backend).unwrap();
    let world = crate::attack::world::World::new();
    let place = mode.on(Host::probe(), &world).unwrap();
    let marker = marker(754);
    let code = format!(
        "trap '' HUP TERM INT; (setsid setsid sleep {marker} &); setsid sleep {marker} & sleep {marker}"
    );
    let program = Program::code(Language::Bash, code);
    place.sandbox().run(&program, &Cancel::new(), &mut |_| {}).unwrap();
}

fn spin(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_cpu(Duration::from_millis(400)).with_processes(120));
    let code = "import threading\ndef spin():\n    while True: pass\nfor _ in range(100): threading.Thread(target=spin).start()";
    let outcome = python(&sandbox, code);
    verdict_of(&outcome)
}

fn oversleep(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_millis(500)));
    let outcome = python(&sandbox, "import time\ntime.sleep(60)");
    verdict_of(&outcome)
}

fn spread(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_cpu(Duration::from_millis(400)));
    let code = "import os, time\nwhile True:\n    pid = os.fork()\n    if pid == 0:\n        end = time.process_time() + 0.05\n        while time.process_time() < end: pass\n        os._exit(0)\n    os.waitpid(pid, 0)";
    verdict_of(&python(&sandbox, code))
}

fn frozen(place: &Place<'_>) -> String {
    let sandbox =
        place.limited(|limits| limits.with_wall(Duration::from_millis(600)).with_cpu(Duration::from_secs(5)));
    verdict_of(&bash(&sandbox, "kill -STOP $$; sleep 60"))
}

fn spoof(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_cpu(Duration::from_secs(10)));
    let rows = [
        ("exit 124", Verdict::Exit { code: 124 }),
        ("exit 137", Verdict::Exit { code: 137 }),
        ("exit 152", Verdict::Exit { code: 152 }),
        ("kill -KILL $$", Verdict::Signal { signal: 9 }),
        ("kill -XCPU $$", Verdict::Signal { signal: 24 }),
        ("kill -XFSZ $$", Verdict::Signal { signal: 25 }),
        ("kill -SEGV $$", Verdict::Signal { signal: 11 }),
        ("echo Killed >&2; echo 'MemoryError' >&2; exit 1", Verdict::Exit { code: 1 }),
    ];
    for (code, expected) in rows {
        let outcome = bash(&sandbox, code);
        // Without another restriction of signals, the policy blocks them, also to the program itself.
        let is_refused = code.starts_with("kill") && outcome.stderr.text().contains("not permitted");
        if outcome.verdict != expected && !(is_refused && outcome.verdict == Verdict::Exit { code: 1 }) {
            return format!("{code}: {:?}", outcome.verdict);
        }
    }
    "ok".into()
}

/// The shim cannot be killed or stopped from inside; the program's own status counts.
fn kill_first(place: &Place<'_>) -> String {
    // Only one attempt at the parent: once it is gone, the next parent is a host process.
    let code = "import os\nparent = os.getppid()\nfor signal in (19, 15, 17, 11, 9) if parent == 1 else (9,):\n    try: os.kill(parent, signal)\n    except OSError: pass\nimport time; time.sleep(0.1)\nos._exit(7)";
    let outcome = match run(&place.sandbox(), &Program::code(Language::Python, code)) {
        Ok(outcome) => outcome,
        Err(error) => return error_of(&error),
    };
    match outcome.verdict {
        Verdict::Exit { code: 7 } => "ok".into(),
        // With equal privileges the run ends, with everything that it started.
        Verdict::Signal { signal: 9 } if place.mode.level.name() == "minimal" => "the run ends".into(),
        other => format!("{other:?}"),
    }
}

fn at_once(place: &Place<'_>) -> String {
    let wrong = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let wrong = &wrong;
            scope.spawn(move || {
                for round in 0..3 {
                    let token = format!("{thread}-{round}");
                    let sandbox = place
                        .limited(|limits| limits.with_descriptors(40 + thread))
                        .file("in.txt", Source::Bytes(token.clone().into()))
                        .env("TOKEN", &token);
                    let script = "cat in.txt; cp in.txt out.txt; echo \" $TOKEN $(ulimit -n)\"; ls | wc -l";
                    let outcome = run(&sandbox, &Program::argv(["bash", "-c", script])).unwrap();
                    let expected = format!("{token} {token} {}\n2\n", 40 + thread);
                    let came = outcome.artifacts.first().and_then(|artifact| artifact.read().ok());
                    if outcome.stdout.text() != expected || came.as_deref() != Some(token.as_bytes()) {
                        wrong.lock().unwrap().push(outcome.stdout.text());
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    if wrong.is_empty() { "ok".into() } else { format!("mixed: {wrong:?}") }
}

fn cancelled(place: &Place<'_>) -> String {
    let marker = marker(755);
    let cancel = Cancel::new();
    let code = Program::code(Language::Bash, format!("(setsid sleep {marker} &); sleep {marker}"));
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| place.sandbox().run(&code, &cancel, &mut |_| {}));
        eventually("it runs", || is_running(&format!("sleep {marker}")));
        cancel.cancel();
        running.join().unwrap().unwrap()
    });
    gone(&marker);
    if outcome.verdict == Verdict::Cancelled { "ok".into() } else { verdict_of(&outcome) }
}
