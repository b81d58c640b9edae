//! Lazy sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{Call, Code, RetryAdvice, SourceState, ToolError, ToolSource};
use toolpost_gateway::{Connect, ManifestStore, MemoryManifests, ReconnectSettings, Reconnecting};
use toolpost_toolbox::Toolbox;

use super::upstream::{Upstream, call, names, spec};

fn start(digest: &str, store: Arc<dyn ManifestStore>, connect: impl Connect + 'static) -> Reconnecting {
    let mut settings = ReconnectSettings::default();
    settings.connect_timeout = Duration::from_secs(5);
    Reconnecting::lazy("up", digest, store, connect, settings)
}

/// A lazy source, and how often it was started.
fn lazy(
    upstream: &Arc<Upstream>,
    digest: &str,
    store: &Arc<MemoryManifests>,
) -> (Reconnecting, Arc<AtomicUsize>) {
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let upstream = Arc::clone(upstream);
    let connect = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let source: Arc<dyn ToolSource> = upstream.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(source)
        }
    };
    (start(digest, Arc::clone(store) as Arc<dyn ManifestStore>, connect), starts)
}

#[tokio::test]
async fn a_lazy_source_starts_once_on_first_use() {
    let upstream = Upstream::new("up", &["add"]);
    upstream.offers(&["notes://{id}"], &["greet"]);
    let store = Arc::new(MemoryManifests::default());
    let (first, starts) = lazy(&upstream, "digest", &store);
    assert_eq!(names(&first).await, ["add"], "without a manifest the list starts it");
    assert_eq!(starts.load(Ordering::SeqCst), 1);

    let (second, starts) = lazy(&upstream, "digest", &store);
    assert_eq!(names(&second).await, ["add"]);
    assert_eq!(second.resources().await.unwrap()[0].uri_pattern.as_str(), "notes://{id}");
    assert_eq!(second.prompts().await.unwrap()[0].name, "greet");
    second.health().await.unwrap();
    assert_eq!(second.status()[0].state, SourceState::NotStarted);
    assert_eq!(starts.load(Ordering::SeqCst), 0, "listing starts nothing");
    let generation = second.generation();
    let (one, two) = tokio::join!(call(&second, "add"), call(&second, "add"));
    assert_eq!((one.unwrap(), two.unwrap()), ("up:add".to_owned(), "up:add".to_owned()));
    assert_eq!(starts.load(Ordering::SeqCst), 1, "concurrent first calls start it once");
    assert_eq!(second.generation(), generation, "nothing has changed");

    let (other, starts) = lazy(&upstream, "another digest", &store);
    assert_eq!(names(&other).await, ["add"]);
    assert_eq!(starts.load(Ordering::SeqCst), 1, "changed start parameters have no manifest");
}

#[tokio::test]
async fn a_stale_manifest_is_a_change() {
    let upstream = Upstream::new("up", &["add"]);
    let store = Arc::new(MemoryManifests::default());
    names(&lazy(&upstream, "digest", &store).0).await;
    upstream.set_silently(vec![spec("sub", "Subtract.")]);
    let source = Arc::new(lazy(&upstream, "digest", &store).0);
    let toolbox = Toolbox::builder().build().unwrap();
    toolbox.add_source(source.clone()).await.unwrap();
    assert!(toolbox.spec("add").is_some(), "from the manifest");
    let generation = source.generation();
    assert_eq!(toolbox.run("add", json!({})).await.unwrap_err().code(), Code::NotFound);
    assert_ne!(source.generation(), generation);
    assert!(toolbox.run("sub", json!({})).await.is_ok());
    assert_eq!(store.load("digest").unwrap().tools[0].name, "sub");
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_retryable() {
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let store: Arc<dyn ManifestStore> = Arc::new(MemoryManifests::default());
    let fails = start("d", Arc::clone(&store), move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Err::<Arc<dyn ToolSource>, _>(ToolError::not_found("no such program")) }
    });
    for _ in 0..3 {
        let error = call(&fails, "add").await.unwrap_err();
        assert_eq!(error.message(), "`up` cannot be started: no such program");
        assert_eq!(error.code(), Code::Dependency);
        assert!(matches!(error.retry_advice(), Some(RetryAdvice::NotStarted(_))));
    }
    assert_eq!(starts.load(Ordering::SeqCst), 1, "it backs off");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(call(&fails, "add").await.is_err());
    assert_eq!(starts.load(Ordering::SeqCst), 2);

    let hangs = start("d", store, std::future::pending::<Result<Arc<dyn ToolSource>, ToolError>>);
    let begun = tokio::time::Instant::now();
    assert_eq!(call(&hangs, "add").await.unwrap_err().code(), Code::Timeout);
    assert_eq!(begun.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_does_not_cancel_the_start() {
    let upstream = Upstream::new("up", &["add"]);
    let (source, starts) = lazy(&upstream, "d", &Arc::default());
    let deadline = std::time::Instant::now() + Duration::from_millis(5);
    let reply = source.call(Call::new("add", json!({})).with_deadline(deadline)).await;
    assert_eq!(reply.result.unwrap_err().code(), Code::Timeout);
    let dropped = tokio::time::timeout(Duration::from_millis(5), call(&source, "add")).await;
    assert!(dropped.is_err());
    assert!(call(&source, "add").await.is_ok());
    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

fn breaks() -> Result<Arc<dyn ToolSource>, ToolError> {
    panic!("on purpose")
}

#[tokio::test]
async fn a_panicking_start_fails_its_callers() {
    let store: Arc<dyn ManifestStore> = Arc::new(MemoryManifests::default());
    let source = start("d", store, || async { breaks() });
    let answer = tokio::time::timeout(Duration::from_secs(5), call(&source, "add")).await.unwrap();
    assert_eq!(answer.unwrap_err().code(), Code::Dependency);
}
