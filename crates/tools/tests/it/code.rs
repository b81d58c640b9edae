//! `run_code` and `run_command`: results, live output and errors.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{Cancellation, Code, LogLevel};
use toolpost_sandbox::{Host, SYSTEM_SEARCH_PATH};
use toolpost_testkit::{MemoryPort, eventually};
use toolpost_tools::{CodeSettings, FileRoot, Level};

use crate::support::{Bench, is_sleeping, skip};

/// A bench; `None`, with a message, on a host that cannot run the program.
fn bench_for(program: &str) -> Option<Bench> {
    let level = Host::probe().best();
    let found =
        SYSTEM_SEARCH_PATH.split(':').any(|directory| std::path::Path::new(directory).join(program).exists());
    match (level, found) {
        (None, _) => skip("this host can give no level of the sandbox"),
        (_, false) => skip(format!("there is no `{program}` in {SYSTEM_SEARCH_PATH}")),
        _ => return Some(Bench::new()),
    }
    None
}

fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

/// Settings with a change.
fn settings(change: impl FnOnce(&mut CodeSettings)) -> CodeSettings {
    let mut settings = CodeSettings::default();
    change(&mut settings);
    settings
}

/// A bench whose operator has settings of their own.
fn bench_with(settings: CodeSettings) -> Option<Bench> {
    bench_for("python3").map(|_| Bench::with(|builder| builder.provide(settings)))
}

#[tokio::test]
async fn value_output_and_exit_code_come_back() {
    let Some(bench) = bench_for("python3") else { return };
    let output = bench
        .run("run_code", python("import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'n': 42}"))
        .await;
    let output = output.unwrap();
    assert_eq!(output.to_text(), "value: {\"n\":42}\nstdout:\nout\nstderr:\nerr");
    let value = output.structured.unwrap();
    assert_eq!(value["level"], Host::probe().best().unwrap().name());
    let expected = json!({
        "exit_code": 0, "return_code": 0, "stdout": "out\n", "stderr": "err\n", "value": {"n": 42}, "artifacts": [],
        "verdict": {"kind": "ok"}, "level": value["level"]
    });
    assert_eq!(value, expected);
    let value = bench.value("run_code", python("print('::result [1, 2]')")).await;
    assert_eq!(value["value"], json!([1, 2]));
    let silent = bench.run("run_code", python("pass")).await.unwrap();
    assert_eq!(silent.to_text(), "The program succeeded without output.");
}

#[tokio::test]
async fn a_table_is_text_for_the_model_and_rows_for_programs() {
    let Some(bench) = bench_for("python3") else {
        return;
    };
    let code = "{'type': 'DataFrame', 'shape': [1, 1], 'text': '   a\\n0  1', 'data': [[1]]}";
    let output = bench.run("run_code", python(code)).await.unwrap();
    assert_eq!(output.to_text(), "value:\n   a\n0  1");
    assert_eq!(output.structured.unwrap()["value"]["data"], json!([[1]]));
}

#[tokio::test]
async fn a_missing_package_or_host_has_a_hint() {
    let Some(bench) = bench_for("python3") else { return };
    for (language, code, expected) in [
        ("python", "import pandas", "`pandas` is not installed: write the code without it."),
        ("bash", "no-such-command", "The command `no-such-command` is not available"),
        (
            "python",
            "import urllib.request as r\nr.urlopen('http://name.invalid/')",
            "The sandbox blocks connections to `name.invalid`.",
        ),
    ] {
        let output = bench.run("run_code", json!({"language": language, "code": code})).await.unwrap();
        assert!(output.to_text().contains(expected), "{}", output.to_text());
        assert!(!output.to_text().contains("--"), "options are not a model's: {}", output.to_text());
    }
}

#[tokio::test]
async fn code_that_fails_is_a_result() {
    let Some(bench) = bench_for("python3") else { return };
    let value = bench.value("run_code", python("import sys; sys.exit(3)")).await;
    assert_eq!((&value["exit_code"], &value["verdict"]), (&json!(3), &json!({"kind": "exit", "code": 3})));
    let output = bench.run("run_code", python("1 / 0")).await.unwrap();
    assert!(output.to_text().contains("ZeroDivisionError"), "{}", output.to_text());
    assert!(output.to_text().ends_with("The program exited with status 1."), "{}", output.to_text());
    let value = bench.value("run_code", python("def (")).await;
    assert!(value["stderr"].as_str().unwrap().contains("SyntaxError"), "{value}");
}

#[tokio::test]
async fn standard_input_is_passed() {
    let Some(bench) = bench_for("python3") else { return };
    let mut arguments = python("import sys; sys.stdin.read()");
    assert_eq!(bench.value("run_code", arguments.clone()).await["value"], "");
    arguments["stdin"] = "hello\n".into();
    assert_eq!(bench.value("run_code", arguments).await["value"], "hello\n");
    let value = bench.value("run_command", json!({"argv": ["cat"], "stdin": "x"})).await;
    assert_eq!(value["stdout"], "x");
}

#[tokio::test]
async fn timeout_stops_the_code() {
    let Some(bench) = bench_for("python3") else { return };
    let start = Instant::now();
    let mut arguments = python("print('begun', flush=True)\nwhile True: pass");
    arguments["timeout"] = 0.5.into();
    let output = bench.run("run_code", arguments).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(output.to_text().contains("begun") && output.to_text().contains("timed out"), "{output:?}");
    let value = output.structured.unwrap();
    assert_eq!((&value["verdict"]["kind"], &value["exit_code"]), (&json!("timeout"), &json!(null)));
    assert_eq!(value["verdict"]["limit_ms"], 500);
    let mut arguments = python("1");
    arguments["timeout"] = 301.into();
    let error = bench.error("run_code", arguments).await;
    assert_eq!((error.code(), &error.context()["pointer"]), (Code::InvalidInput, &json!("/timeout")));
}

#[tokio::test]
async fn the_time_of_the_call_is_a_limit_too() {
    let Some(bench) = bench_for("python3") else { return };
    let mut call = bench.call("run_code", python("print('begun', flush=True)\nimport time; time.sleep(60)"));
    call.options.timeout = Some(Duration::from_secs(3));
    let output = bench.toolbox.call(call).await.result.unwrap();
    let value = output.structured.unwrap();
    assert_eq!((&value["verdict"]["kind"], &value["stdout"]), (&json!("timeout"), &json!("begun\n")));
}

#[tokio::test]
async fn files_of_the_working_directory_persist() {
    let Some(bench) = bench_for("python3") else {
        return;
    };
    bench.put("in.txt", "from before");
    let code = "text = open('in.txt').read()\nopen('plot.txt', 'w').write(text.upper())\n";
    let output = bench.run("run_code", python(code)).await;
    let output = match output {
        Err(error) if error.code() == Code::Precondition => {
            skip(error);
            return;
        }
        output => output.unwrap(),
    };
    assert!(output.to_text().contains("files: plot.txt (11 bytes, text/plain)"), "{}", output.to_text());
    let value = output.structured.clone().unwrap();
    let file = &value["artifacts"][0];
    assert_eq!((file["name"].as_str(), file["size"].as_u64()), (Some("plot.txt"), Some(11)));
    assert_eq!(file["sha256"].as_str().unwrap().len(), 64);
    let toolpost_core::ArtifactData::Bytes(bytes) = &output.artifacts[0].data else { panic!("{output:?}") };
    assert_eq!(&**bytes, b"FROM BEFORE");
    assert_eq!(bench.read("plot.txt").await, "FROM BEFORE");
    assert_eq!(bench.names(), ["in.txt", "plot.txt"]);
}

#[tokio::test]
async fn without_a_directory_code_gets_a_fresh_one() {
    let Some(bench) = bench_for("python3") else {
        return;
    };
    let output = bench.toolbox.run("run_code", python("open('a.txt', 'w').write('kept')")).await.unwrap();
    let toolpost_core::ArtifactData::Bytes(bytes) = &output.artifacts[0].data else { panic!("{output:?}") };
    assert_eq!((output.artifacts[0].name.as_str(), &**bytes), ("a.txt", &b"kept"[..]));
    let value = bench.toolbox.run("run_code", python("import os; os.listdir()")).await.unwrap();
    assert_eq!(value.structured.unwrap()["value"], json!([]));
}

#[tokio::test]
async fn output_is_logged_while_the_code_runs() {
    let Some(bench) = bench_for("python3") else { return };
    let port = MemoryPort::new(100, 100);
    let code = "import sys, time\nprint('one', flush=True)\nprint('two', file=sys.stderr, flush=True)\n\
                print('th', end='', flush=True)\ntime.sleep(1.5)\nprint('ree', flush=True)\nprint('end', end='')";
    let call = bench.call("run_code", python(code)).with_port(port.clone());
    let toolbox = bench.toolbox.clone();
    let running = tokio::spawn(async move { toolbox.call(call).await });
    eventually("two lines are logged", async || port.heard().log.len() == 2).await;
    assert!(!running.is_finished(), "the lines come before the end");
    running.await.unwrap().result.unwrap();
    let mut heard: Vec<_> = port.heard().log.into_iter().map(|line| (line.level, line.message)).collect();
    // The two streams have no order between each other.
    heard.sort_by_key(|line| line.0);
    let line = |level, text: &str| (level, text.to_owned());
    assert_eq!(
        heard,
        [
            line(LogLevel::Info, "one"),
            line(LogLevel::Info, "three"),
            line(LogLevel::Info, "end"),
            line(LogLevel::Warn, "two")
        ]
    );
}

#[tokio::test]
async fn large_output_is_truncated_in_log_and_result() {
    let Some(bench) = bench_for("python3") else {
        return;
    };
    let port = MemoryPort::new(1_000_000, 100);
    let call = bench.call("run_code", python("for i in range(1_000_000): print(i)")).with_port(port.clone());
    let output = bench.toolbox.call(call).await.result.unwrap();
    assert!(output.to_text().len() <= 64 << 10);
    let stdout = output.structured.unwrap()["stdout"].as_str().unwrap().to_owned();
    assert!(stdout.starts_with("0\n1\n") && stdout.ends_with("999999\n") && stdout.contains("dropped"));
    let heard = port.heard().log;
    assert!(heard.len() <= 4096, "{}", heard.len());
    assert!(heard.last().unwrap().message.contains("further output"), "{:?}", heard.last());
}

#[tokio::test]
async fn cancelling_the_call_ends_the_program() {
    let Some(bench) = bench_for("python3") else { return };
    let cancellation = Cancellation::new();
    let code = "import subprocess\nsubprocess.run(['sleep', '98762'])";
    let call = bench.call("run_code", python(code)).with_cancellation(cancellation.clone());
    let toolbox = bench.toolbox.clone();
    let running = tokio::spawn(async move { toolbox.call(call).await });
    eventually("the program runs", async || is_sleeping("98762")).await;
    cancellation.cancel();
    assert_eq!(running.await.unwrap().result.unwrap_err().code(), Code::Cancelled);
    eventually("the program is killed", async || !is_sleeping("98762")).await;
}

#[tokio::test]
async fn the_record_has_the_layers_of_the_run() {
    let Some(bench) = bench_for("python3") else { return };
    let reply = bench.reply("run_code", python("1")).await;
    reply.result.unwrap();
    let record = serde_json::to_value(&*reply.record).unwrap();
    let sandbox = &record["sandbox"];
    assert_eq!(sandbox["verdict"]["kind"], "ok", "{record}");
    assert_eq!(sandbox["report"]["effective"], Host::probe().best().unwrap().name());
    assert!(!sandbox["report"]["layers"].as_array().unwrap().is_empty());
    assert!(sandbox["usage"]["wall_ms"].as_f64().unwrap() > 0.0, "{sandbox}");
}

#[tokio::test]
async fn code_that_cannot_run_is_an_error() {
    let Some(bench) = bench_for("python3") else { return };
    for (tool, arguments, code, expected) in [
        ("run_code", json!({"language": "pyhton", "code": "1"}), Code::InvalidInput, "did you mean `python`"),
        ("run_code", json!({"language": "python", "code": "1\u{0}"}), Code::InvalidInput, "code"),
        ("run_code", json!({"language": "python", "code": "1", "timeout": 0}), Code::InvalidInput, "0.001"),
        ("run_command", json!({"argv": []}), Code::InvalidInput, "no program"),
        ("run_command", json!({"argv": [""]}), Code::InvalidInput, "no program"),
        ("run_command", json!({"argv": ["no-such-program"]}), Code::NotFound, "no-such-program"),
        ("run_command", json!({"argv": ["echo", "a\u{0}b"]}), Code::InvalidInput, "NUL"),
    ] {
        let error = bench.error(tool, arguments.clone()).await;
        assert_eq!(error.code(), code, "{arguments}: {error}");
        assert!(error.to_string().contains(expected), "{arguments}: {error}");
    }
    let nowhere = settings(|settings| settings.search_path = Some("/nonexistent".into()));
    let bench = Bench::with(|builder| builder.provide(nowhere));
    let error = bench.error("run_code", python("1")).await;
    assert_eq!(error.code(), Code::Precondition, "{error}");
    assert!(error.to_string().contains("install"), "{error}");
}

#[tokio::test]
async fn the_stricter_level_applies() {
    let Some(bench) = bench_with(settings(|settings| settings.level = Some(Level::Standard))) else {
        return;
    };
    let mut call = bench.call("run_code", python("1"));
    assert_eq!(bench.value("run_code", python("1")).await["level"], "standard");
    call.options.level = Some("strickt".into());
    let error = bench.toolbox.call(call.clone()).await.result.unwrap_err();
    assert!(error.message().contains("did you mean `strict`"), "{error}");
    if !Host::probe().availability(Level::Strict).unwrap().available {
        skip("level strict is not available");
        return;
    }
    call.options.level = Some("strict".into());
    let strict = bench.toolbox.call(call.clone()).await.result.unwrap();
    assert_eq!(strict.structured.unwrap()["level"], "strict");
    let Some(bench) = bench_with(settings(|settings| settings.level = Some(Level::Strict))) else {
        return;
    };
    call.options.level = Some("standard".into());
    let strict = bench.toolbox.call(call).await.result.unwrap();
    assert_eq!(strict.structured.unwrap()["level"], "strict", "a call cannot loosen");
}

#[tokio::test]
async fn the_limits_of_the_operator_hold() {
    let few = settings(|settings| {
        settings.limits = settings.limits.clone().with_stdout(100).with_wall(Duration::from_millis(700));
        settings.max_timeout = Duration::from_secs(2);
    });
    let Some(bench) = bench_with(few) else { return };
    let value = bench.value("run_code", python("print('x' * 10_000)")).await;
    assert!(value["stdout"].as_str().unwrap().len() < 200, "{value}");
    let value = bench.value("run_code", python("import time; time.sleep(9)")).await;
    assert_eq!(value["verdict"], json!({"kind": "timeout", "limit_ms": 700}));
    let mut arguments = python("1");
    arguments["timeout"] = 3.into();
    let error = bench.error("run_code", arguments).await;
    assert!(error.message().contains("at most 2 seconds"), "{error}");
}

#[tokio::test]
async fn readable_directories_are_read_only() {
    let shown = tempfile::Builder::new().prefix("shown-").tempdir_in("/var/tmp").unwrap();
    std::fs::write(shown.path().join("data"), "shown").unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(shown.path(), permissions).unwrap();
    let code = format!("open({:?}).read()", shown.path().join("data").display().to_string());
    let Some(bench) = bench_for("python3") else { return };
    assert_eq!(bench.value("run_code", python(&code)).await["exit_code"], 1);
    let path = shown.path().to_owned();
    let Some(bench) = bench_with(settings(|settings| settings.read_only.push(path))) else { return };
    assert_eq!(bench.value("run_code", python(&code)).await["value"], "shown");
    let code = format!("open({:?}, 'w')", shown.path().join("data").display().to_string());
    assert_eq!(bench.value("run_code", python(&code)).await["exit_code"], 1);
}

#[tokio::test]
async fn a_command_runs_without_a_shell() {
    let Some(bench) = bench_for("echo") else { return };
    let output = bench.run("run_command", json!({"argv": ["echo", "$HOME", "*", "; ls"]})).await.unwrap();
    assert_eq!(output.to_text(), "stdout:\n$HOME * ; ls");
    let value = bench.value("run_command", json!({"argv": ["sleep", "30"], "timeout": 0.3})).await;
    assert_eq!(value["verdict"]["kind"], "timeout");
}

#[tokio::test]
async fn the_root_is_the_default_workspace() {
    if bench_for("python3").is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a"), "of the root").unwrap();
    let bench = Bench::with(|builder| builder.provide(FileRoot::new(root.path())));
    let output = bench.toolbox.run("run_code", python("open('a').read()")).await.unwrap();
    assert_eq!(output.structured.unwrap()["value"], "of the root");
}

#[tokio::test]
async fn other_languages_run() {
    for (language, program, code, expected) in [
        ("bash", "bash", "echo \"::result $((6 * 7))\"", json!(42)),
        ("javascript", "node", "6 * 7", json!(42)),
    ] {
        let Some(bench) = bench_for(program) else { continue };
        let value = bench.value("run_code", json!({"language": language, "code": code})).await;
        assert_eq!(value["value"], expected, "{value}");
    }
}
