//! Imported limits of a call.

use serde_json::{Value, json};
use toolpost_compat::{ImportedTool, ResourceLimits, SecurityLevel};
use toolpost_core::{Call, Code, Reply};

use crate::support::{Bench, skip};

async fn reply(bench: &Bench, limits: Value, tool: &str, arguments: Value) -> Reply {
    let limits = ResourceLimits::from_json(&limits).unwrap();
    bench.toolbox.call(limits.apply(bench.call(tool, arguments))).await
}

/// The result of `run_code`; `None` on a host that runs no code.
async fn python(bench: &Bench, limits: Value, code: &str) -> Option<Value> {
    match reply(bench, limits, "run_code", json!({ "language": "python", "code": code })).await.result {
        Ok(output) => output.structured,
        Err(error) if error.code() == Code::Timeout => Some(json!({ "verdict": { "kind": "timeout" } })),
        Err(error) => {
            skip(error);
            None
        }
    }
}

#[tokio::test]
async fn code_gets_the_smaller_limits() {
    let bench = Bench::new();
    let Some(value) = python(&bench, json!({}), "print(1)").await else { return };
    assert_eq!(value["exit_code"], 0, "with the defaults: {value}");
    for (field, code, good, bad) in [
        ("max_memory_mb", "x = bytearray(100 << 20); print(len(x))", json!(300), json!(40)),
        ("max_execution_time_seconds", "import time; time.sleep(2); print(1)", json!(20), json!(1)),
        ("max_file_size_mb", "open('big', 'wb').write(b'x' * (2 << 20)); print(1)", json!(3), json!(1)),
        (
            "max_subprocess_count",
            "import subprocess; print(subprocess.run(['/bin/true']).returncode)",
            json!(2),
            json!(0),
        ),
    ] {
        // All other limits come from the settings.
        let mut limits = json!({
            "max_memory_mb": null, "max_cpu_percent": null, "max_execution_time_seconds": null,
            "max_file_size_mb": null, "max_subprocess_count": null,
        });
        limits[field] = good;
        let Some(value) = python(&bench, limits.clone(), code).await else { return };
        assert_eq!(value["exit_code"], 0, "{field}: {value}");
        limits[field] = bad;
        let value = python(&bench, limits, code).await.unwrap();
        assert_ne!(value["exit_code"], 0, "{field}: {value}");
    }
}

#[tokio::test]
async fn the_cpu_quota_reaches_the_sandbox() {
    let bench = Bench::new();
    let call = bench.call("run_code", json!({ "language": "python", "code": "1" }));
    let limits =
        ResourceLimits::from_json(&json!({ "max_cpu_percent": 25, "max_subprocess_count": null })).unwrap();
    let reply = bench.toolbox.call(limits.apply(call)).await;
    match reply.result {
        Ok(_) => {
            let sandbox = reply.record.sandbox.as_ref().unwrap().to_string();
            assert!(sandbox.contains("cpu") && limits.cpu == Some(0.25), "{sandbox}");
        }
        // A quota needs a cgroup; without one the call is denied.
        Err(error) => {
            assert!(error.to_string().contains("cpu") || error.to_string().contains("cgroup"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_requested_level_is_applied_or_denied() {
    let bench = Bench::new();
    let security = SecurityLevel::from_json(&json!({ "level": "strict" })).unwrap();
    let call = security.apply(bench.call("run_code", json!({ "language": "python", "code": "1" })));
    match bench.toolbox.call(call).await.result {
        Ok(output) => assert_eq!(output.structured.unwrap()["level"], "strict"),
        Err(error) => assert_eq!(error.code(), Code::Permission, "{error}"),
    }
}

#[tokio::test]
async fn a_call_cannot_request_a_level_below_the_default() {
    let bench = Bench::new();
    let call = |level: Option<&str>| {
        let mut call = bench.call("run_code", json!({ "language": "python", "code": "1" }));
        call.options.level = level.map(str::to_owned);
        bench.toolbox.call(call)
    };
    let level = |reply: Reply| reply.result.unwrap().structured.unwrap()["level"].clone();
    let default = level(call(None).await);
    assert_eq!(level(call(Some("standard")).await), default);
    assert_eq!(level(call(Some("minimal")).await), default);
}

#[test]
fn an_imported_tool_only_tightens_a_call() {
    let imported = ImportedTool::from_json(&json!({
        "name": "sum_up", "description": "Sum up some numbers.",
        "security": { "level": "strict", "resource_limits": { "max_memory_mb": 64 } },
        "resource_limits": { "max_memory_mb": 128, "max_execution_time_seconds": 5 },
    }))
    .unwrap();
    let call = imported.tighten(Call::new("sum_up", json!({})));
    assert_eq!(call.options.level.as_deref(), Some("strict"));
    assert_eq!(call.options.timeout.unwrap().as_secs(), 5);
    assert_eq!(call.values.get::<ResourceLimits>().unwrap().memory, Some(64 << 20));
    let mut stricter = Call::new("sum_up", json!({}));
    stricter.options.level = Some("maximum".into());
    stricter.options.timeout = Some(std::time::Duration::from_secs(1));
    let call = imported.tighten(stricter);
    assert_eq!(
        (call.options.level.as_deref(), call.options.timeout.unwrap().as_secs()),
        (Some("maximum"), 1)
    );
}

#[cfg(feature = "http")]
#[tokio::test]
async fn requests_are_counted_over_all_calls_of_one_limit() {
    use toolpost_testkit::provider::{LoopbackProvider, Reply};
    use toolpost_tools::HttpSettings;

    let server = LoopbackProvider::start_with(|request| match request.path.as_str() {
        "/moved" => Reply::new(302, "text/plain", "").header("location", "/"),
        _ => Reply::new(200, "text/plain", "ok"),
    })
    .unwrap();
    let mut settings = HttpSettings::default();
    settings.allowed_hosts = vec!["127.0.0.1".into()];
    let bench = Bench::with(|builder| builder.provide(settings));
    let limits = ResourceLimits::from_json(&json!({ "max_network_requests": 3 })).unwrap();
    let ask = async |path: &str| {
        let call = bench.call("http_request", json!({ "url": format!("{}{path}", server.base_url()) }));
        bench.toolbox.call(limits.apply(call)).await.result.map_err(|error| error.code())
    };
    assert!(ask("/").await.is_ok());
    assert!(ask("/moved").await.is_ok(), "a redirect is a second request");
    assert_eq!(ask("/").await.unwrap_err(), Code::Limit);
    assert_eq!(server.requests().len(), 3);
}
