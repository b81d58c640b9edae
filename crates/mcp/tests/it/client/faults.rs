//! Servers that go away and come back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Call, Code, RetryAdvice, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_sandbox::Level;

use super::fixture::Fixture;
use super::support::{HttpServer, call, connect, program, said};

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_program_fails_its_call_and_restarts() {
    for is_legacy in [false, true] {
        let client = connect(program(is_legacy)).await;
        let names = client.list().await.unwrap().len();
        assert_eq!(said(&client, "count", json!({})).await, "0");
        assert_eq!(said(&client, "count", json!({})).await, "1");
        let error = call(&client, "crash", json!({})).await.unwrap_err();
        assert_eq!(
            (error.code(), error.retry_advice()),
            (Code::Dependency, Some(RetryAdvice::Never)),
            "{error}"
        );
        assert!(error.message().contains("may have run"), "{error}");
        assert_eq!(client.list().await.unwrap().len(), names);
        assert_eq!(said(&client, "count", json!({})).await, "0", "it is a new process");
        client.disconnect().await;
        assert_eq!(client.protocol().await, None);
        client.health().await.unwrap();
        assert!(client.protocol().await.is_some());
        assert_eq!(said(&client, "count", json!({})).await, "0", "and so is this one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_call_is_sent_again() {
    let Endpoint::Program { argv, env, .. } = program(false) else { unreachable!() };
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("marker");
    let endpoint =
        Endpoint::Program { argv, env, dir: Some(folder.path().to_owned()), level: Level::Minimal };
    let client = connect(endpoint).await;
    let reply = client.call(Call::new("crash_once", json!({ "file": marker }))).await;
    assert_eq!(reply.result.unwrap().to_text(), "survived");
    assert_eq!(reply.record.attempts, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_tried_a_bounded_number_of_times() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let once = Client::builder(server.endpoint()).limits(|l| l.attempts = 1).connect().await.unwrap();
    let thrice = Client::builder(server.endpoint()).limits(|l| l.attempts = 3).connect().await.unwrap();
    let names = once.list().await.unwrap().len();
    server.kill().await;
    for (client, attempts, shortest) in [(once, 1, 0), (thrice, 3, 300)] {
        let begun = Instant::now();
        let reply = client.call(Call::new("add", json!({ "a": 1, "b": 2 }))).await;
        let error = reply.result.unwrap_err();
        assert_eq!(error.code(), Code::Dependency, "{error}");
        // The first request may use a closing connection: its arrival is unknown.
        let is_unsure = attempts == 1 && error.retry_advice() == Some(RetryAdvice::Never);
        assert!(is_unsure || matches!(error.retry_advice(), Some(RetryAdvice::NotStarted(_))), "{error:#?}");
        assert_eq!(reply.record.attempts, attempts);
        assert!(begun.elapsed() >= Duration::from_millis(shortest), "{:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(client.list().await.unwrap().len(), names, "its names stay");
        client.disconnect().await;
        assert_eq!(client.health().await.unwrap_err().code(), Code::Dependency);
        assert_eq!(client.list().await.unwrap().len(), names);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_restarted_under_load_loses_no_name_and_no_finished_call() {
    for is_legacy in [false, true] {
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        let address = server.address;
        let client = Client::builder(server.endpoint()).limits(|l| l.attempts = 8).connect().await.unwrap();
        let names = client.list().await.unwrap().len();
        let counting: Vec<_> = (0..4)
            .map(|_| {
                let client = Arc::clone(&client);
                tokio::spawn(async move {
                    let mut results = Vec::new();
                    for _ in 0..60 {
                        results.push(call(&client, "count", json!({})).await);
                        tokio::time::sleep(Duration::from_millis(5)).await;
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
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        let fixture = server.kill().await;
        let facts = Arc::clone(&fixture.facts);
        assert_eq!(client.list().await.unwrap().len(), names);
        tokio::time::sleep(Duration::from_millis(300)).await;
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
        // Each of the four had at most one call under way when the server went.
        assert!(lost <= 4, "{lost}");
        let counted = facts.counted.load(Ordering::SeqCst);
        assert!(
            (finished.len() as u64..=finished.len() as u64 + lost).contains(&counted),
            "{counted} {lost}"
        );
        assert_eq!(client.list().await.unwrap().len(), names);
    }
}
