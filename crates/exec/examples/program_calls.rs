//! Benchmark of executables: discovery of twenty programs with and without the cache, and calls of a shell script.
//!
//! Calls run in one process each and in one resident process, compared with a plain start of the script in the sandbox.
//!
//! Prints the tenth percentile as one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for the bench")]

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use toolpost_core::{Call, ToolSource as _};
use toolpost_exec::client::{Executables, ExecutablesBuilder};
use toolpost_sandbox::{Cancel, Level, Program, Sandbox};

const PROGRAMS: usize = 20;
const SAMPLES: usize = 200;
const DISCOVERIES: usize = 40;

fn write(directory: &Path, index: usize) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = directory.join(format!("program{index}"));
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --discover ]; then\necho '{{\"name\":\"p\",\"version\":\"1\",\"tools\":[{{\"name\":\"t{index}\",\"summary\":\"S.\",\"schema\":{{\"type\":\"object\"}}}}]}}'\nelse\necho '{{\"status\":\"success\",\"result\":{{\"n\":{index}}}}}'\nfi\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A program that stays, in shell: what is measured is this side.
const RESIDENT: &str = r#"#!/bin/sh
if [ "$1" = --discover ]; then
    echo '{"name":"p","version":"1","protocol":"0.1+toolpost.1","resident":true,"tools":[{"name":"stays","schema":{"type":"object"}}]}'
    exit
fi
echo '{"v":1,"id":0,"type":"hello","name":"p","version":"1","protocol":"0.1+toolpost.1"}'
while read -r line; do
    id=${line#*\"id\":}
    echo '{"v":1,"id":'"${id%%,*}"',"type":"result","ok":{"structured":7}}'
done
"#;

fn p10(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or_default()
}

fn builder(paths: &[std::path::PathBuf]) -> ExecutablesBuilder {
    paths.iter().fold(Executables::builder().sampling(false), ExecutablesBuilder::path)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..PROGRAMS).map(|index| write(directory.path(), index)).collect();
    let cache = directory.path().join("cache");
    runtime.block_on(builder(&paths).cache(&cache).discover());
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    let asked = (0..DISCOVERIES).map(|_| {
        timed(&mut || {
            let tools = runtime.block_on(builder(&paths).discover());
            assert!(tools.diagnostics().is_empty());
        })
    });
    let asked = p10(asked.collect());
    let cached = (0..SAMPLES).map(|_| {
        timed(&mut || {
            runtime.block_on(builder(&paths).cache(&cache).discover());
        })
    });
    let cached = p10(cached.collect());
    let tools = runtime.block_on(builder(&paths).cache(&cache).discover());
    let called = (0..SAMPLES).map(|_| {
        timed(&mut || {
            let reply = runtime.block_on(tools.call(Call::new("t7", json!({}))));
            assert!(reply.result.is_ok());
        })
    });
    let called = p10(called.collect());
    let sandbox = Sandbox::new().level(Level::Standard);
    let program = Program::argv([paths.get(7).unwrap().as_os_str(), "t7".as_ref(), "{}".as_ref()]);
    let plain = (0..SAMPLES).map(|_| {
        timed(&mut || {
            sandbox.run(&program, &Cancel::new(), &mut |_| {}).unwrap();
        })
    });
    let plain = p10(plain.collect());
    let path = directory.path().join("stays");
    std::fs::write(&path, RESIDENT).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let stays = runtime.block_on(builder(&[path]).resident(true).discover());
    let stayed = (0..SAMPLES * 10).map(|_| {
        timed(&mut || {
            let reply = runtime.block_on(stays.call(Call::new("stays", json!({}))));
            assert!(reply.result.is_ok());
        }) * 1e3
    });
    let stayed = p10(stayed.collect());
    let rows = json!({"rows": [
        {"name": "20 executables discovered at the same time", "value": asked, "unit": "ms"},
        {"name": "20 executables known from the cache", "value": cached, "unit": "ms"},
        {"name": "call of a shell script that speaks the protocol", "value": called, "unit": "ms", "promise": "≤ 5 ms", "promise_max": 5.0},
        {"name": "call of a program that stays", "value": stayed, "unit": "µs", "promise": "≤ 100 µs", "promise_max": 100.0},
        {"name": "the same script in the same sandbox, plain", "value": plain, "unit": "ms"},
    ]});
    println!("{rows}");
}
