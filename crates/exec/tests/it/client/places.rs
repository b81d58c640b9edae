//! Where programs run, and what they see.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Call, Code, Scope, ToolSource as _};
use toolpost_sandbox::Level;

use super::{Programs, call, error, outcome, port, shell, source, value};
use crate::host::sandbox_or_skip;

const LOOK: &str = r#"
echo made > made 2>/dev/null
printf '{"status":"success","result":{"here":"%s","file":"%s","given":"%s","secret":"%s","shadow":"%s"}}\n' \
    "$PWD" "$(cat input 2>/dev/null)" "$GIVEN" "$HOST_SECRET" "$(head -c 1 /etc/shadow 2>/dev/null)""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_program_sees_only_the_directory_of_its_scope() {
    let Some(()) = sandbox_or_skip() else { return };
    let programs = Programs::new();
    let path = programs.tool("looks", &json!({}), LOOK);
    let work = tempfile::tempdir().unwrap();
    let directory = work.path().canonicalize().unwrap();
    std::fs::write(directory.join("input"), "seen").unwrap();
    let tools = source().path(&path).env("GIVEN", "1").discover().await;
    let scope = Scope::new("ada").with_working_dir(&directory);
    let reply = tools.call(Call::new("t", json!({})).with_scope(scope.clone())).await;
    let expected = |here: &str, file: &str| json!({"here": here, "file": file, "given": "1", "secret": "", "shadow": ""});
    assert_eq!(value(&reply), expected(directory.to_str().unwrap(), "seen"));
    assert_eq!(std::fs::read_to_string(directory.join("made")).unwrap(), "made\n");
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["effective"], "standard");
    // Without a directory it has one of its own.
    assert_eq!(value(&call(&tools, "t", json!({})).await), expected("/workspace", ""));
    // The stricter of the operator's level and the call's.
    let mut strict = Call::new("t", json!({})).with_scope(scope.clone());
    strict.options.level = Some("strict".to_owned());
    let reply = tools.call(strict).await;
    assert_eq!(value(&reply), expected("/workspace", "seen"));
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["effective"], "strict");
    let operator = source().path(&path).env("GIVEN", "1").level(Level::Strict).discover().await;
    let mut lower = Call::new("t", json!({}));
    lower.options.level = Some("standard".to_owned());
    let reply = operator.call(lower).await;
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["effective"], "strict");
    let mut unknown = Call::new("t", json!({}));
    unknown.options.level = Some("unconfined".to_owned());
    assert!(error(&tools.call(unknown).await).message().contains("unknown level"));
    // The call's own directory goes before the scope's.
    let other = tempfile::tempdir().unwrap();
    let mut own = Call::new("t", json!({})).with_scope(scope);
    own.options.working_dir = Some(other.path().to_owned());
    assert_eq!(value(&tools.call(own).await)["file"], "");
    assert!(other.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_working_directory_are_handed_over_and_no_others() {
    let Some(()) = sandbox_or_skip() else { return };
    let body = r#"
echo text > made.txt; ln -s /etc/passwd link; mkfifo pipe; mkdir sub
for uri in "file://$PWD/made.txt" made.txt file:///etc/passwd link pipe sub ../../../etc/passwd http://x/y; do
    echo "{\"type\":\"artifact\",\"name\":\"$(basename "$uri")\",\"uri\":\"$uri\"}"
done
echo '{"status":"success","result":1}'"#;
    for level in [Level::Standard, Level::Strict] {
        let programs = Programs::new();
        let path = programs.tool("makes", &json!({}), body);
        let work = tempfile::tempdir().unwrap();
        let tools = source().path(path).level(level).discover().await;
        let scope = Scope::new("ada").with_working_dir(work.path());
        let port = port();
        let reply =
            tools.call(Call::new("t", json!({})).with_scope(scope.clone()).with_port(port.clone())).await;
        assert_eq!(value(&reply), json!(1));
        let heard = port.heard();
        let taken: Vec<_> = heard.artifacts.iter().map(|file| (file.name.as_str(), file.size)).collect();
        assert_eq!(taken, [("made.txt", 5), ("made.txt", 5)], "{level}: {:?}", heard.log);
        assert_eq!(heard.log.len(), 6, "{:?}", heard.log);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_stay_in_the_output_without_a_port() {
    let programs = Programs::new();
    let body = "echo '{\"type\":\"artifact\",\"name\":\"a\",\"uri\":\"data:,hi\"}'; echo '{\"status\":\"success\",\"result\":1}'";
    let tools = source().path(programs.tool("p", &json!({}), body)).discover().await;
    let reply = call(&tools, "t", json!({})).await;
    let output = reply.result.as_ref().unwrap();
    assert_eq!((output.artifacts.len(), output.artifacts[0].size), (1, 2));
    assert_eq!(reply.record.artifacts.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shortest_timeout_applies() {
    let programs = Programs::new();
    let slow = "sleep 20; echo '{\"status\":\"success\",\"result\":1}'";
    let policy = json!({"policy": {"timeout": {"after": "300ms"}}});
    let own = source().path(programs.tool("own", &policy, slow)).discover().await;
    assert_eq!(error(&call(&own, "t", json!({})).await).code(), Code::Timeout);
    let tools = source().path(programs.tool("slow", &json!({}), slow)).discover().await;
    let mut options = Call::new("t", json!({}));
    options.options.timeout = Some(Duration::from_millis(300));
    assert_eq!(error(&tools.call(options).await).code(), Code::Timeout);
    let deadline = Call::new("t", json!({})).with_deadline(Instant::now() + Duration::from_millis(300));
    assert_eq!(error(&tools.call(deadline).await).code(), Code::Timeout);
    let over = Call::new("t", json!({})).with_deadline(Instant::now());
    assert_eq!(
        outcome(&tools.call(over).await.result),
        Err((Code::Timeout, "the call has no time left".into()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_reads_readable_paths() {
    let programs = Programs::new();
    let discovery =
        json!({"name": "s", "version": "1", "tools": [{"name": "t", "schema": {"type": "object"}}]});
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("lib.sh"),
        "answer() { echo '{\"status\":\"success\",\"result\":42}'; }\n",
    )
    .unwrap();
    let library = directory.path().canonicalize().unwrap().join("lib.sh");
    let path = programs.write("s", &shell(&discovery, &format!(". {}; answer", library.display())));
    let blind = source().path(&path).discover().await;
    let reply = call(&blind, "t", json!({})).await;
    assert!(error(&reply).is_program_failure(), "{reply:?}");
    assert!(error(&reply).context()["stderr"].as_str().unwrap().contains("lib.sh"), "{reply:?}");
    let tools = source().path(&path).readable(&library).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(42));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interpreter_is_on_the_search_path() {
    let programs = Programs::new();
    let script = programs.path().join("tool.py");
    std::fs::write(&script, "import json,sys\nprint(json.dumps({'name':'p','version':'1','tools':[{'name':'t','schema':{'type':'object'}}]}) if sys.argv[1]=='--discover' else json.dumps({'status':'success','result':sys.argv[1]}))\n").unwrap();
    let tools = source().path(&script).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!("t"));
    let nowhere = source().path(&script).search_path("/nowhere").discover().await;
    assert!(nowhere.diagnostics()[0].error.message().contains("python3"), "{:?}", nowhere.diagnostics());
    let other = source().path(&script).python("no-such-python").discover().await;
    assert!(other.diagnostics()[0].error.message().contains("no-such-python"), "{:?}", other.diagnostics());
}

/// A Python script whose description is in a module beside it.
const WITH_MODULE: &str = "import json, sys, helper\nif sys.argv[1] == '--discover':\n    tool = {'name': 't', 'summary': helper.SUMMARY, 'schema': {'type': 'object'}}\n    print(json.dumps({'name': 'p', 'version': '1', 'tools': [tool]}))\nelse:\n    print(json.dumps({'status': 'success', 'result': [helper.SUMMARY, getattr(sys, 'flags').no_site]}))\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reads_its_own_directory_at_every_level() {
    let available = sandbox_or_skip().is_some();
    let programs = Programs::new();
    let script = programs.path().join("tool.py");
    std::fs::write(&script, WITH_MODULE).unwrap();
    std::fs::write(programs.path().join("helper.py"), "SUMMARY = 'First.'\n").unwrap();
    let shell = programs.write("reads", "#!/bin/sh\ncat \"$(dirname \"$0\")/discovery.json\"\n");
    let discovery =
        json!({"name": "r", "version": "1", "tools": [{"name": "r", "schema": {"type": "object"}}]});
    std::fs::write(programs.path().join("discovery.json"), discovery.to_string()).unwrap();
    for level in [Level::Minimal, Level::Standard, Level::Strict] {
        if level.is_boundary() && !available {
            continue;
        }
        let tools = source().path(&script).path(&shell).level(level).discover().await;
        assert_eq!(super::shown(&tools), Vec::<String>::new(), "{level}");
        assert_eq!(super::names(&tools).await, ["t", "r"], "{level}");
        assert_eq!(value(&call(&tools, "t", json!({})).await), json!(["First.", 0]), "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_knows_modules_and_the_way_a_program_is_run() {
    let programs = Programs::new();
    let cache = tempfile::tempdir().unwrap();
    let script = programs.path().join("tool.py");
    std::fs::write(&script, WITH_MODULE).unwrap();
    std::fs::write(programs.path().join("helper.py"), "SUMMARY = 'First.'\n").unwrap();
    let description = async || {
        let tools = source().path(&script).cache(cache.path()).discover().await;
        let list = tools.list().await.unwrap();
        list.first().map(|spec| spec.description.clone()).unwrap_or_default()
    };
    assert_eq!(description().await, "First.");
    // The file itself is the same.
    std::fs::write(programs.path().join("helper.py"), "SUMMARY = 'The second.'\n").unwrap();
    assert_eq!(description().await, "The second.");
    // A manifest of another interpreter is not used.
    let other = source().path(&script).cache(cache.path()).python("no-such-python").discover().await;
    assert_eq!(super::names(&other).await, Vec::<String>::new());
    let nowhere = source().path(&script).cache(cache.path()).search_path("/nowhere").discover().await;
    assert_eq!(super::names(&nowhere).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_run_by_the_interpreter_of_its_first_line() {
    let programs = Programs::new();
    let found = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let Some(python) = found else {
        println!("SKIP a_script_is_run_by_the_interpreter_of_its_first_line: there is no Python");
        return;
    };
    let script = programs.path().join("tool.py");
    std::fs::write(programs.path().join("helper.py"), "SUMMARY = 'S.'\n").unwrap();
    std::fs::write(&script, format!("#!{python} -S\n{WITH_MODULE}")).unwrap();
    // The name `python3` leads nowhere.
    let tools = source().path(&script).search_path("/nowhere").discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(["S.", 1]), "{:?}", super::shown(&tools));
    let operator = source().path(&script).python("no-such-python").discover().await;
    assert_eq!(super::names(&operator).await, Vec::<String>::new(), "what the operator names goes first");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_has_the_exit_status_and_the_end_of_stderr() {
    let programs = Programs::new();
    let script = programs.path().join("tool.py");
    let failing = |code: &str| {
        format!(
            "import json, sys, os\nif sys.argv[1] == '--discover':\n    print(json.dumps({{'name': 'p', 'version': '1', 'tools': [{{'name': 't', 'schema': {{'type': 'object'}}}}]}}))\nelse:\n    {code}\n"
        )
    };
    for (code, fact, ended, stderr) in [
        ("raise ValueError('no such city')", "exit_code", json!(1), "ValueError: no such city"),
        ("print('bye', file=sys.stderr, flush=True); os.abort()", "signal", json!(6), "bye"),
        ("print('nothing', file=sys.stderr)", "exit_code", json!(0), "nothing"),
    ] {
        std::fs::write(&script, failing(code)).unwrap();
        let tools = source().path(&script).discover().await;
        let reply = call(&tools, "t", json!({})).await;
        let error = error(&reply);
        assert!(error.is_program_failure(), "{error:?}");
        assert_eq!(error.context()[fact], ended, "{error:?}");
        assert!(error.context()["stderr"].as_str().unwrap().ends_with(stderr), "{error:?}");
    }
    // A program that reports an unreachable dependency has not crashed.
    let code = "print(json.dumps({'status': 'error', 'error': {'code': 'DEPENDENCY', 'message': 'down'}}))";
    std::fs::write(&script, failing(code)).unwrap();
    let tools = source().path(&script).discover().await;
    let reply = call(&tools, "t", json!({})).await;
    assert!(error(&reply).code() == Code::Dependency && !error(&reply).is_program_failure(), "{reply:?}");
    // The same when the program is asked what it has.
    std::fs::write(&script, "import not_there\n").unwrap();
    let tools = source().path(&script).discover().await;
    let found = tools.diagnostics().remove(0).error;
    assert!(found.is_program_failure(), "{found:?}");
    let stderr = found.context()["stderr"].as_str().unwrap();
    assert!(stderr.ends_with("ModuleNotFoundError: No module named 'not_there'"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_grants_and_leaks_no_value() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(outside.join("out")).unwrap();
    std::fs::write(outside.join("read"), "outside").unwrap();
    let body = r#"
echo "the key is $KEY" >&2
echo made > OUTSIDE/out/made
[ "$1" = fails ] && exit 3
printf '{"status":"success","result":{"here":"%s","read":"%s","key":"%s"}}\n' "$PWD" "$(cat OUTSIDE/read 2>/dev/null)" "$KEY""#;
    let body = body.replace("OUTSIDE", outside.to_str().unwrap());
    let programs = Programs::new();
    let path = programs.tool("looks", &json!({}), &body);
    let broken = programs.write("broken", "#!/bin/sh\necho \"no such key: $KEY\" >&2\nexit 3\n");
    let plain = source().path(&path).discover().await;
    let reply = call(&plain, "t", json!({})).await;
    assert_eq!(value(&reply), json!({ "here": "/workspace", "read": "", "key": "" }));
    let grants = json!({
        "secrets": [{ "name": "KEY", "raw": true }], "readable": [outside.join("read")], "writable": [outside.join("out")],
        "level": "strict", "workdir": outside.join("out"),
    });
    let grants: toolpost_sandbox::Grants = serde_json::from_value(grants).unwrap();
    let granted = grants.resolve(&mut |_| Some("canary-of-a-key".to_owned())).unwrap();
    let tools = source().path(&path).path(&broken).granted(granted).discover().await;
    let reply = call(&tools, "t", json!({})).await;
    assert_eq!(value(&reply), json!({ "here": "/workspace", "read": "outside", "key": "[secret]" }));
    assert_eq!(std::fs::read_to_string(outside.join("out/made")).unwrap(), "made\n");
    let report = &reply.record.sandbox.as_ref().unwrap()["report"];
    assert_eq!((&report["raw_variables"], &report["effective"]), (&json!(["KEY"]), &json!("strict")));
    let diagnostics: Vec<_> =
        tools.diagnostics().iter().map(|one| one.error.context()["stderr"].clone()).collect();
    assert_eq!(diagnostics, ["no such key: [secret]"]);
    assert!(!format!("{reply:?} {tools:?}").contains("canary"));
}
