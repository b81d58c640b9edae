//! Sandboxes at the same time: nothing of one is in another.

use std::time::Duration;

use toolpost_sandbox::{Host, Layer, Source, Verdict};

use crate::attack::{Mode as Way, world::World};
use crate::support::{Mode, python};

#[test]
fn two_runs_do_not_see_each_other() {
    for mode in Mode::available() {
        let code = "import socket, time, os\n\
                    try:\n    s = socket.socket(socket.AF_UNIX); s.bind('\\0toolpost-sibling'); s.listen()\nexcept OSError: pass\n\
                    open('own', 'w').write('x')\nprint(os.getpid(), flush=True)\ntime.sleep(1.5)";
        let spy = "import socket, os, time\n\
                   time.sleep(0.7)\nresults = []\n\
                   try:\n    socket.socket(socket.AF_UNIX).connect('\\0toolpost-sibling'); results.append('socket')\nexcept OSError: pass\n\
                   try:\n    if 'toolpost-sibling' in open('/proc/net/unix').read(): results.append('name')\nexcept OSError: pass\n\
                   if os.path.exists('own'): results.append('file')\nresults";
        std::thread::scope(|scope| {
            let first = scope.spawn(|| python(&mode.sandbox(), code));
            let outcome = python(&mode.sandbox(), spy);
            assert_eq!(outcome.value, Some(serde_json::json!([])), "{mode:?} {}", outcome.stderr.text());
            assert!(first.join().unwrap().verdict.is_ok());
        });
    }
}

/// Two sandboxes with other limits, files and variables, each many times at once: neither gets anything of the other.
#[test]
fn two_sandboxes_under_load_never_mix() {
    let world = World::new();
    for way in Way::all() {
        let Ok(place) = way.on(Host::probe(), &world) else { continue };
        if way.backend != "process" {
            continue;
        }
        let small = place.limited(|limits| {
            limits
                .with_memory(48 << 20)
                .with_descriptors(40)
                .with_wall(Duration::from_secs(20))
                .with_value_bytes(2000)
        });
        let large = place.limited(|limits| limits.with_memory(200 << 20).with_descriptors(90));
        let one = |name: &'static str,
                   descriptors: usize,
                   bytes: usize,
                   sandbox: &toolpost_sandbox::Sandbox| {
            let sandbox = sandbox.clone().env("NAME", name).file("own", Source::Bytes(name.into()));
            let code = format!(
                "import os, resource\nx = bytearray({bytes})\nopen('made-' + os.environ['NAME'], 'w').write(open('own').read())\n\
                 [os.environ['NAME'], open('own').read(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], sorted(os.listdir('.'))]"
            );
            let outcome = python(&sandbox, &code);
            if name == "small" && bytes > 48 << 20 {
                // The larger one's memory is not for the smaller.
                let proved = !outcome.report.has(Layer::MemoryLimit)
                    || matches!(outcome.verdict, Verdict::Memory { .. });
                assert!(!outcome.verdict.is_ok() && proved, "{way:?} {:?}", outcome.verdict);
                return;
            }
            let made = format!("made-{name}");
            let expected = serde_json::json!([name, name, descriptors, [made, "own"]]);
            assert_eq!(
                outcome.value,
                Some(expected),
                "{way:?} {:?} {}",
                outcome.verdict,
                outcome.stderr.text()
            );
            assert_eq!(outcome.artifacts.len(), 1, "{:?}", outcome.artifacts);
            assert_eq!(outcome.artifacts[0].path, made);
            assert_eq!(outcome.artifacts[0].read().unwrap(), name.as_bytes());
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (small, large, one) = (&small, &large, &one);
                scope.spawn(move || {
                    for round in 0..6 {
                        if (thread + round) % 2 == 0 {
                            one("small", 40, if round == 4 { 100 << 20 } else { 1 << 20 }, small);
                        } else {
                            one("large", 90, 100 << 20, large);
                        }
                    }
                });
            }
        });
    }
}
