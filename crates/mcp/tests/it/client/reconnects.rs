//! Servers that exit and restart.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Call, Code, RetryAdvice, ToolSource as _};
use toolpost_mcp::client::Endpoint;
use toolpost_sandbox::Level;
use toolpost_testkit::eventually;

use super::fixture::Fixture;
use super::support::{HttpServer, call, call_text, connect, program};

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_program_fails_its_call_and_restarts() {
    for is_legacy in [false, true] {
        let client = connect(program(is_legacy)).await;
        let tools = client.list().await.unwrap().len();
        let count = async || call_text(&client, "count", json!({})).await;
        assert_eq!([count().await, count().await], ["0", "1"]);
        let error = call(&client, "crash", json!({})).await.unwrap_err();
        let expected = (Code::Dependency, Some(RetryAdvice::Never));
        assert_eq!((error.code(), error.retry_advice()), expected, "{error}");
        assert!(error.message().contains("may have run"), "{error}");
        assert_eq!(client.list().await.unwrap().len(), tools);
        assert_eq!(count().await, "0", "a new process");
        client.disconnect().await;
        assert_eq!(client.protocol().await, None);
        client.health().await.unwrap();
        assert!(client.protocol().await.is_some());
        assert_eq!(count().await, "0", "another new process");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_call_is_repeated_after_a_crash() {
    let Endpoint::Program { argv, env, .. } = program(false) else { unreachable!() };
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("marker");
    let dir = Some(directory.path().to_owned());
    let client = connect(Endpoint::Program { argv, env, dir, level: Level::Minimal }).await;
    // The program persists a marker in its working directory.
    let reply = client.call(Call::new("crash_once", json!({ "file": marker }))).await;
    assert_eq!(reply.result.unwrap().to_text(), "survived");
    assert_eq!(reply.record.attempts, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_to_reach_a_stopped_server_are_bounded() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let client = connect(server.endpoint()).await;
    let tools = client.list().await.unwrap().len();
    server.kill().await;
    let begun = Instant::now();
    let reply = client.call(Call::new("add", json!({ "a": 1, "b": 2 }))).await;
    let error = reply.result.unwrap_err();
    assert_eq!((error.code(), reply.record.attempts), (Code::Dependency, 5), "{error}");
    assert!(matches!(error.retry_advice(), Some(RetryAdvice::NotStarted(_))), "{error:#?}");
    // The waits double: 100, 200, 400 and 800 ms.
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());
    assert_eq!(client.list().await.unwrap().len(), tools, "the previous list stays");
    client.disconnect().await;
    assert_eq!(client.health().await.unwrap_err().code(), Code::Dependency);
    assert_eq!(client.list().await.unwrap().len(), tools);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_under_load_loses_no_tool_and_repeats_no_call() {
    for is_legacy in [false, true] {
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        let (address, facts) = (server.address, Arc::clone(&server.fixture.facts));
        let client = connect(server.endpoint()).await;
        let tools = client.list().await.unwrap().len();
        let counting: Vec<_> = (0..4)
            .map(|_| {
                let client = Arc::clone(&client);
                tokio::spawn(async move {
                    let mut results = Vec::new();
                    for _ in 0..60 {
                        results.push(call(&client, "count", json!({})).await);
                    }
                    results
                })
            })
            .collect();
        let adding: Vec<_> = (0..2)
            .map(|_| {
                let client = Arc::clone(&client);
                tokio::spawn(async move {
                    for number in 0..60 {
                        let output = call(&client, "add", json!({ "a": number, "b": 1 })).await.unwrap();
                        assert_eq!(output.structured, Some(json!({ "sum": number + 1 })));
                    }
                })
            })
            .collect();
        eventually("calls run", async || facts.counted.load(Ordering::SeqCst) >= 20).await;
        let fixture = server.kill().await;
        assert_eq!(client.list().await.unwrap().len(), tools);
        let _server = HttpServer::start_at(fixture, address).await;
        let (mut finished, mut lost) = (HashSet::new(), 0);
        for task in counting {
            for result in task.await.unwrap() {
                match result {
                    Ok(output) => assert!(finished.insert(output.to_text().into_owned()), "counted twice"),
                    Err(error) => {
                        assert_eq!(error.code(), Code::Dependency, "{error}");
                        lost += 1;
                    }
                }
            }
        }
        for task in adding {
            task.await.unwrap();
        }
        // Each counting task had at most one pending call at the kill.
        assert!(lost <= 4, "{lost}");
        let (counted, finished) = (facts.counted.load(Ordering::SeqCst), finished.len() as u64);
        assert!((finished..=finished + lost).contains(&counted), "{counted} {finished} {lost}");
        assert_eq!(client.list().await.unwrap().len(), tools);
    }
}
