//! `run_code` with prewarmed Python workers.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_sandbox::{Egress, Host, Level};
use toolpost_testkit::eventually;
use toolpost_tools::{CodePool, CodeSettings};

use crate::support::{Bench, skip};

fn settings(pool: &CodePool) -> CodeSettings {
    let mut settings = CodeSettings::default();
    settings.pool = Some(pool.clone());
    settings
}

/// A toolbox with these settings; none, loudly, where the host has no level strict or no Python.
fn bench(settings: CodeSettings) -> Option<Bench> {
    let host = Host::probe();
    let strict = host.availability(Level::Strict).is_some_and(|entry| entry.available);
    let languages = toolpost_runtimes::Languages::of_host(host, None);
    if !strict || !languages.iter().any(|found| found.language.name() == "python" && found.available) {
        skip("no level strict, or no Python");
        return None;
    }
    Some(Bench::with(|builder| builder.provide(settings)))
}

/// Who ran a piece of code, and its value.
async fn ran(bench: &Bench, code: &str) -> (String, Value) {
    let reply = bench.reply("run_code", json!({"language": "python", "code": code})).await;
    let report = &reply.record.sandbox.as_ref().unwrap()["report"];
    let value = reply.result.unwrap().structured.unwrap()["value"].clone();
    (report["backend"].as_str().unwrap().to_owned(), value)
}

/// Waits until the workers are ready; false, loudly, where the host supports none.
async fn ready(pool: &CodePool, children: usize) -> bool {
    let metrics = || pool.metrics().unwrap();
    let settled = async || metrics().ready == children || metrics().unavailable.is_some();
    eventually("the workers are ready", settled).await;
    let unavailable = metrics().unavailable;
    if let Some(reason) = &unavailable {
        skip(reason);
    }
    unavailable.is_none()
}

#[tokio::test]
async fn the_first_run_is_ordinary_and_the_next_ones_are_forked() {
    let pool = CodePool::new().children(3).preload(["colorsys"]);
    let Some(bench) = bench(settings(&pool)) else { return };
    let code = "import os, sys\nopen('made.txt', 'a').write('x')\n['colorsys' in sys.modules, os.getcwd(), sorted(os.listdir('.'))]";
    bench.put("in.txt", "there");
    assert!(pool.metrics().is_none(), "nothing is made before it is needed");
    bench.run("run_code", json!({"language": "sh", "code": "true"})).await.unwrap();
    assert!(pool.metrics().is_none());
    let (backend, cold) = ran(&bench, code).await;
    assert_eq!((backend.as_str(), &cold[0]), ("process", &json!(false)));
    if !ready(&pool, 3).await {
        return;
    }
    let (backend, value) = ran(&bench, code).await;
    assert_eq!(backend, "pool");
    assert!(cold[2].to_string().contains(r#""in.txt","made.txt""#), "{cold}");
    assert_eq!(value, json!([true, cold[1], cold[2]]), "it sees what an ordinary run sees");
    assert_eq!(std::fs::read_to_string(bench.path("made.txt")).unwrap(), "xx");
    assert_eq!(pool.metrics().unwrap().served, 1);
    // A call with less than the others runs all the same, and a model hears nothing of how it was run.
    let mut call = bench.call("run_code", json!({"language": "python", "code": "1"}));
    call.options.level = Some("maximum".into());
    let reply = bench.toolbox.call(call).await;
    let record = reply.record.sandbox.as_ref().unwrap();
    assert!(record["report"]["notes"].to_string().contains("cold"), "{record}");
    let output = reply.result.unwrap();
    assert!(!output.to_text().contains("cold"), "{}", output.to_text());
}

#[tokio::test]
async fn calls_do_not_wait_for_a_starting_pool() {
    let Some(plain) = bench(CodeSettings::default()) else { return };
    let found = ran(&plain, "import sys\n[*sys.version_info[:2], sys.executable]").await.1;
    // A virtual environment with a module that takes its time.
    let directory = tempfile::tempdir().unwrap();
    let packages = directory.path().join(format!("lib/python{}.{}/site-packages", found[0], found[1]));
    std::fs::create_dir_all(&packages).unwrap();
    std::fs::create_dir(directory.path().join("bin")).unwrap();
    std::fs::write(packages.join("slow_to_load.py"), "import time\ntime.sleep(300)\n").unwrap();
    let python = Path::new(found[2].as_str().unwrap());
    std::os::unix::fs::symlink(python, directory.path().join("bin/python3")).unwrap();
    let home = format!("home = {}\n", python.parent().unwrap().display());
    std::fs::write(directory.path().join("pyvenv.cfg"), home).unwrap();
    let pool = CodePool::new().preload(["slow_to_load"]);
    let mut settings = settings(&pool);
    settings.search_path = Some(format!("{}/bin:/usr/bin:/bin", directory.path().display()).into());
    let bench = Bench::with(|builder| builder.provide(settings));
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(ran(&bench, "1").await.0, "process");
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let metrics = pool.metrics().unwrap();
    assert_eq!((metrics.ready, metrics.missing.len(), metrics.cold), (0, 0, 2), "{metrics:?}");
}

#[tokio::test]
async fn an_unsupported_call_creates_no_pool() {
    let pool = CodePool::new();
    let mut standard = settings(&pool);
    standard.level = Some(Level::Standard);
    let mut egress = settings(&pool);
    egress.egress = Some(Egress::new());
    for settings in [standard, egress] {
        let Some(bench) = bench(settings) else { return };
        assert_eq!(ran(&bench, "1").await.0, "process");
        assert!(pool.metrics().is_none());
    }
    for wrong in
        [CodePool::new().children(0), CodePool::new().children(257), CodePool::new().preload(["a b"])]
    {
        wrong.check().unwrap_err();
        let Some(bench) = bench(settings(&wrong)) else { return };
        assert_eq!(ran(&bench, "1").await.0, "process");
        assert!(wrong.unavailable().is_some() && wrong.metrics().is_none());
        assert_eq!(ran(&bench, "2").await.1, json!(2));
    }
    pool.check().unwrap();
}

#[tokio::test]
async fn a_pool_ends_with_its_toolbox() {
    let pool = CodePool::new().preload(["colorsys"]);
    let Some(bench) = bench(settings(&pool)) else { return };
    ran(&bench, "1").await;
    if !ready(&pool, CodePool::DEFAULT_CHILDREN).await {
        return;
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter(|task| {
                std::fs::read(task.path().join("comm")).is_ok_and(|name| name == b"toolpost-pool\n")
            })
            .count()
    };
    let before = threads();
    assert!(before > 0);
    drop((bench, pool));
    assert_eq!(threads(), before - 1);
}
