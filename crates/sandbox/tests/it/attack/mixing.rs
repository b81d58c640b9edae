//! Concurrent sandboxes share nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use toolpost_sandbox::{Cancel, Host, Language, Layer, Level, Limits, Program, Sandbox, Source, Verdict};

use super::is_complete;
use super::modes::{Absence, limits};
use super::world::World;
use super::{Mode, Place};
use crate::support::{eventually, python};

/// A mode with limits, if available. The core has every level of cold runs, and level `strict` of the other
/// backends.
fn place<'a>(mode: &'a Mode, world: &'a World, limits: Limits) -> Option<Place<'a>> {
    if !is_complete() && mode.backend != "process" && mode.level != Level::Strict {
        return None;
    }
    match mode.limited(Host::probe(), world, limits) {
        Ok(place) => Some(place),
        Err(Absence::Broken(reason)) => panic!("{mode:?}: {reason}"),
        Err(Absence::Refused(reason) | Absence::NotHere(reason)) => {
            println!("SKIP mixing at {} on {}: {reason}", mode.level, mode.backend);
            None
        }
    }
}

/// One run leaves marks and stays; the other then looks for them.
#[test]
fn concurrent_runs_do_not_see_each_other() {
    let world = World::new();
    let code = "import os, socket, time\n\
                try:\n    s = socket.socket(socket.AF_UNIX); s.bind('\\0toolpost-sibling'); s.listen()\nexcept OSError: pass\n\
                open('own', 'w').write('x')\nprint('there', flush=True)\ntime.sleep(60)";
    let spy = "import os, socket\nresults = []\n\
               try:\n    socket.socket(socket.AF_UNIX).connect('\\0toolpost-sibling'); results.append('socket')\nexcept OSError: pass\n\
               try:\n    if 'toolpost-sibling' in open('/proc/net/unix').read(): results.append('name')\nexcept OSError: pass\n\
               if os.path.exists('own'): results.append('file')\nresults";
    for mode in Mode::all() {
        // Level `minimal` has the host's network, with everybody's abstract sockets.
        if mode.level == Level::Minimal {
            continue;
        }
        let Some(place) = place(&mode, &world, limits().with_wall(Duration::from_mins(2))) else { continue };
        let (cancel, is_there) = (Cancel::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let sandbox = place.sandbox();
                let program = Program::code(Language::Python, code);
                sandbox.run(&program, &cancel, &mut |_| is_there.store(true, Ordering::SeqCst))
            });
            eventually("the first one is there", || is_there.load(Ordering::SeqCst) || first.is_finished());
            let outcome = python(&place.sandbox(), spy);
            cancel.cancel();
            assert_eq!(first.join().unwrap().unwrap().verdict, Verdict::Cancelled, "{mode:?}");
            assert_eq!(outcome.value, Some(serde_json::json!([])), "{mode:?} {}", outcome.stderr.text());
        });
    }
}

/// The input of a run and its expected result.
struct Kind<'a> {
    name: &'static str,
    descriptors: u32,
    memory: u64,
    place: Place<'a>,
}

fn check(kind: &Kind<'_>, bytes: u64) {
    let Kind { name, descriptors, memory, place } = kind;
    let sandbox: Sandbox = place.sandbox().env("NAME", *name).file("own", Source::Bytes((*name).into()));
    let code = format!(
        "import os, resource\nx = bytearray({bytes})\nopen('made-' + os.environ['NAME'], 'w').write(open('own').read())\n\
         [os.environ['NAME'], open('own').read(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], sorted(os.listdir('.'))]"
    );
    let outcome = python(&sandbox, &code);
    let way = place.mode;
    // The runtime of the test daemon does not limit memory.
    if bytes > *memory && !place.has_own_kernel() {
        // The larger one's memory is not for the smaller.
        let proved =
            !outcome.report.has(Layer::MemoryLimit) || matches!(outcome.verdict, Verdict::Memory { .. });
        assert!(!outcome.verdict.is_ok() && proved, "{way:?} {:?}", outcome.verdict);
        return;
    }
    let artifact = format!("made-{name}");
    let expected = serde_json::json!([name, name, descriptors, [artifact, "own"]]);
    let said = outcome.stderr.text();
    assert_eq!(outcome.value, Some(expected), "{way:?} {:?} {said}", outcome.verdict);
    assert_eq!(outcome.artifacts.len(), 1, "{way:?} {:?}", outcome.artifacts);
    assert_eq!(outcome.artifacts[0].path, artifact);
    assert_eq!(outcome.artifacts[0].read().unwrap(), name.as_bytes());
}

/// Two sandboxes with other limits, files and variables, each many times at once: neither sees anything of
/// the other.
#[test]
fn two_sandboxes_under_load_never_mix() {
    let world = World::new();
    let rounds = if is_complete() { 6 } else { 3 };
    for mode in Mode::all() {
        let kind = |name, descriptors: u32, memory: u64| {
            let limits = limits().with_descriptors(descriptors).with_memory(memory);
            place(&mode, &world, limits).map(|place| Kind { name, descriptors, memory, place })
        };
        let (Some(small), Some(large)) = (kind("small", 40, 48 << 20), kind("large", 90, 200 << 20)) else {
            continue;
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (small, large) = (&small, &large);
                scope.spawn(move || {
                    for round in 0..rounds {
                        match (thread + round) % 2 {
                            0 => check(small, if round == rounds - 2 { 100 << 20 } else { 1 << 20 }),
                            _ => check(large, 100 << 20),
                        }
                    }
                });
            }
        });
    }
}
