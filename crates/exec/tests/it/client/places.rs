//! Where programs run, and what they see.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Call, Code, Scope, ToolSource as _};
use toolpost_sandbox::{Host, Level};

use super::{Programs, call, error, port, shell, source, told, value};

fn has_namespaces(test: &str) -> bool {
    let entry = Host::probe().availability(Level::Strict).unwrap();
    if !entry.available {
        println!("SKIP {test}: {}", entry.reason.clone().unwrap_or_default());
    }
    entry.available
}

const LOOK: &str = r#"
echo made > made 2>/dev/null
printf '{"status":"success","result":{"here":"%s","file":"%s","given":"%s","secret":"%s","shadow":"%s"}}\n' \
    "$PWD" "$(cat input 2>/dev/null)" "$GIVEN" "$HOST_SECRET" "$(head -c 1 /etc/shadow 2>/dev/null)""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_program_works_in_the_folder_of_the_scope_and_sees_no_more() {
    if !has_namespaces("a_program_works_in_the_folder_of_the_scope_and_sees_no_more") {
        return;
    }
    let programs = Programs::new();
    let path = programs.tool("looks", &json!({}), LOOK);
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().canonicalize().unwrap();
    std::fs::write(folder.join("input"), "seen").unwrap();
    let tools = source().path(&path).env("GIVEN", "1").discover().await;
    let scope = Scope::new("ada").with_working_dir(&folder);
    let reply = tools.call(Call::new("t", json!({})).with_scope(scope.clone())).await;
    let expected = |here: &str, file: &str| json!({"here": here, "file": file, "given": "1", "secret": "", "shadow": ""});
    assert_eq!(value(&reply), expected(folder.to_str().unwrap(), "seen"));
    assert_eq!(std::fs::read_to_string(folder.join("made")).unwrap(), "made\n");
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["effective"], "standard");
    // Without a folder it has one of its own.
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
    // The call's own folder goes before the scope's.
    let other = tempfile::tempdir().unwrap();
    let mut own = Call::new("t", json!({})).with_scope(scope);
    own.options.working_dir = Some(other.path().to_owned());
    assert_eq!(value(&tools.call(own).await)["file"], "");
    assert!(other.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_working_folder_are_handed_over_and_no_others() {
    if !has_namespaces("files_of_the_working_folder_are_handed_over_and_no_others") {
        return;
    }
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
async fn a_port_that_takes_no_files_leaves_them_in_the_output() {
    let programs = Programs::new();
    let body = "echo '{\"type\":\"artifact\",\"name\":\"a\",\"uri\":\"data:,hi\"}'; echo '{\"status\":\"success\",\"result\":1}'";
    let tools = source().path(programs.tool("p", &json!({}), body)).discover().await;
    let reply = call(&tools, "t", json!({})).await;
    let output = reply.result.as_ref().unwrap();
    assert_eq!((output.artifacts.len(), output.artifacts[0].size), (1, 2));
    assert_eq!(reply.record.artifacts.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shortest_time_counts() {
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
        told(&tools.call(over).await.result),
        Err((Code::Timeout, "no time is left for the call".into()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_reads_what_the_operator_shows_it() {
    let programs = Programs::new();
    let discovery =
        json!({"name": "s", "version": "1", "tools": [{"name": "t", "schema": {"type": "object"}}]});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("lib.sh"),
        "answer() { echo '{\"status\":\"success\",\"result\":42}'; }\n",
    )
    .unwrap();
    let library = folder.path().canonicalize().unwrap().join("lib.sh");
    let path = programs.write("s", &shell(&discovery, &format!(". {}; answer", library.display())));
    let blind = source().path(&path).discover().await;
    assert_eq!(error(&call(&blind, "t", json!({})).await).code(), Code::Dependency);
    let tools = source().path(&path).readable(&library).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(42));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interpreter_is_looked_up_where_the_operator_says() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_what_is_granted_and_no_value_leaves_it() {
    if !has_namespaces("a_program_gets_what_is_granted_and_no_value_leaves_it") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().canonicalize().unwrap();
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
        "env": [{ "name": "KEY", "raw": true }], "readable": [outside.join("read")], "writable": [outside.join("out")],
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
