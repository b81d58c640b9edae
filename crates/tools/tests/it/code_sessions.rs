//! `run_code` with `session`: an interpreter that stays for the calls of one scope.

use serde_json::{Value, json};
use toolpost_core::{Call, Code, Scope};
use toolpost_testkit::eventually;
use toolpost_tools::CodeSettings;

use crate::support::{Bench, is_sleeping, skip};

fn cell(session: &Value, code: &str) -> Value {
    json!({ "language": "python", "code": code, "session": session })
}

fn scope_of(bench: &Bench) -> Scope {
    Scope::new("ada").with_working_dir(bench.path(""))
}

/// The answer of a call in a scope.
async fn run(bench: &Bench, scope: &Scope, arguments: Value) -> Result<Value, toolpost_core::ToolError> {
    let call = Call::new("run_code", arguments).with_scope(scope.clone());
    bench.toolbox.call(call).await.result.map(|output| output.structured.unwrap())
}

/// A bench; `None`, with a message, on a host without sessions.
async fn bench(settings: CodeSettings) -> Option<Bench> {
    let bench = Bench::with(|builder| builder.provide(settings));
    match run(&bench, &scope_of(&bench), cell(&json!({ "id": "try" }), "1")).await {
        Ok(_) => Some(bench),
        Err(error) => {
            skip(error.message());
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_persists_variables_and_forks() {
    let Some(bench) = bench(CodeSettings::default()).await else { return };
    let scope = scope_of(&bench);
    std::fs::write(bench.path("table.csv"), "a\n1\n").unwrap();
    let begun =
        run(&bench, &scope, cell(&json!({ "id": "a" }), "x = open('table.csv').read()\nlen(x)")).await;
    assert_eq!(begun.unwrap()["value"], 4);
    let next =
        run(&bench, &scope, cell(&json!({ "id": "a" }), "open('out.txt', 'w').write(x)")).await.unwrap();
    assert_eq!(next["artifacts"][0]["name"], "out.txt", "{next:#}");
    assert_eq!(std::fs::read_to_string(bench.path("out.txt")).unwrap(), "a\n1\n");
    let forked = run(
        &bench,
        &scope,
        cell(&json!({ "id": "b", "fork_of": "a" }), "x = 'other'\nopen('out.txt').read()"),
    )
    .await
    .unwrap();
    assert_eq!(forked["value"], "a\n1\n");
    assert_eq!(run(&bench, &scope, cell(&json!({ "id": "a" }), "x")).await.unwrap()["value"], "a\n1\n");
    assert_eq!(run(&bench, &scope, cell(&json!({ "id": "b" }), "x")).await.unwrap()["value"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_id_belongs_to_one_scope() {
    let Some(bench) = bench(CodeSettings::default()).await else { return };
    let (own, other) = (scope_of(&bench), scope_of(&bench));
    let session = json!({ "id": "a" });
    run(&bench, &own, cell(&session, "secret = 42")).await.unwrap();
    let seen = run(&bench, &other, cell(&session, "'secret' in globals()")).await.unwrap();
    assert_eq!(seen["value"], false);
    let forked = run(&bench, &scope_of(&bench), cell(&json!({ "id": "c", "fork_of": "a" }), "secret")).await;
    assert_eq!(forked.unwrap_err().code(), Code::NotFound);
    let none = bench.toolbox.call(Call::new("run_code", cell(&session, "1"))).await.result.unwrap_err();
    assert_eq!(none.code(), Code::Precondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_scope_ends_its_sessions() {
    let Some(bench) = bench(CodeSettings::default()).await else { return };
    let scope = scope_of(&bench);
    let code = "import subprocess\np = subprocess.Popen(['sleep', '98761'])\np.pid > 0";
    assert_eq!(run(&bench, &scope, cell(&json!({ "id": "a" }), code)).await.unwrap()["value"], true);
    assert!(is_sleeping("98761"));
    drop(scope);
    eventually("the session is killed", async || !is_sleeping("98761")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_bounds_the_sessions_of_a_scope() {
    let mut settings = CodeSettings::default();
    settings.sessions = 2;
    let Some(bench) = bench(settings).await else { return };
    let scope = scope_of(&bench);
    for id in ["a", "b", "a"] {
        run(&bench, &scope, cell(&json!({ "id": id }), "1")).await.unwrap();
    }
    for session in [json!({ "id": "c" }), json!({ "id": "c", "fork_of": "a" })] {
        let refused = run(&bench, &scope, cell(&session, "1")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Limit);
        assert!(refused.suggestion().unwrap().contains("Resume one of them"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_session_arguments_are_errors() {
    let Some(bench) = bench(CodeSettings::default()).await else { return };
    let scope = scope_of(&bench);
    run(&bench, &scope, cell(&json!({ "id": "a" }), "1")).await.unwrap();
    let mut with_stdin = cell(&json!({ "id": "a" }), "1");
    with_stdin["stdin"] = "x".into();
    let mut other = cell(&json!({ "id": "a" }), "echo 1");
    other["language"] = "bash".into();
    for (arguments, code) in [
        (with_stdin, Code::InvalidInput),
        (other, Code::Precondition),
        (cell(&json!({ "id": "" }), "1"), Code::InvalidInput),
        (cell(&json!({ "id": "a", "fork_of": "a" }), "1"), Code::Conflict),
        (cell(&json!({ "id": "b", "fork_of": "aa" }), "1"), Code::NotFound),
    ] {
        let error = run(&bench, &scope, arguments.clone()).await.unwrap_err();
        assert_eq!(error.code(), code, "{arguments}: {}", error.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_cell_is_interrupted_and_its_session_stays() {
    let Some(bench) = bench(CodeSettings::default()).await else { return };
    let scope = scope_of(&bench);
    run(&bench, &scope, cell(&json!({ "id": "a" }), "x = 1")).await.unwrap();
    let mut slow = cell(&json!({ "id": "a" }), "import time\ntime.sleep(100)");
    slow["timeout"] = 0.3.into();
    let ended = run(&bench, &scope, slow).await.unwrap();
    assert_eq!(ended["verdict"], json!({ "kind": "interrupted", "by": "wall" }));
    assert_eq!(run(&bench, &scope, cell(&json!({ "id": "a" }), "x")).await.unwrap()["value"], 1);
}
