//! Reconnecting sources.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{Call, Cancellation, Code, RetryAdvice, SourceState, ToolError, ToolSource};
use toolpost_gateway::{ReconnectSettings, Reconnecting};

use super::upstream::{Lists, Upstream, call, names, spec};

/// The upstream of the next connections.
#[derive(Clone, Default)]
struct Place {
    upstream: Arc<Mutex<Option<Arc<Upstream>>>>,
    tries: Arc<AtomicUsize>,
}

impl Place {
    fn put(&self, upstream: Option<&Arc<Upstream>>) {
        *self.upstream.lock().unwrap() = upstream.cloned();
    }

    fn start(&self, change: impl FnOnce(&mut ReconnectSettings)) -> Reconnecting {
        let mut settings = ReconnectSettings::default();
        change(&mut settings);
        let place = self.clone();
        let connect = move || {
            place.tries.fetch_add(1, Ordering::SeqCst);
            let found = place.upstream.lock().unwrap().clone();
            async move {
                let found = found.ok_or_else(|| ToolError::dependency("connection refused"))?;
                Ok(found as Arc<dyn ToolSource>)
            }
        };
        Reconnecting::start("up", connect, settings)
    }
}

const SOON: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn a_disconnected_source_lists_its_tools_and_calls_wait() {
    let place = Place::default();
    let first = Upstream::new("first", &["add"]);
    place.put(Some(&first));
    let source = place.start(|_| {});
    assert_eq!(names(&source).await, ["add"], "the first list waits for the connection");
    assert_eq!(call(&source, "add").await.unwrap(), "first:add");
    let generation = source.generation();

    place.put(None);
    first.kill();
    let second = Upstream::new("second", &["add"]);
    let back = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        place.put(Some(&second));
    };
    let (answer, ()) = tokio::join!(call(&source, "add"), back);
    assert_eq!(answer.unwrap(), "second:add", "a call that did not start waits");
    assert_eq!(names(&source).await, ["add"]);
    assert_eq!(source.generation(), generation, "the same names are not a change");
    let status = source.status().remove(0);
    assert_eq!((status.state, status.connections, status.failures), (SourceState::Ready, 2, 0));

    let third = Upstream::new("third", &["add", "sub"]);
    place.put(Some(&third));
    second.kill();
    assert_eq!(call(&source, "add").await.unwrap(), "third:add");
    assert_ne!(source.generation(), generation, "other names are");
    assert_eq!(names(&source).await, ["add", "sub"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_times_out_and_is_retryable() {
    let place = Place::default();
    let upstream = Upstream::new("up", &["add"]);
    place.put(Some(&upstream));
    let source = place.start(|settings| settings.wait_timeout = Duration::from_secs(4));
    source.ready(SOON).await.unwrap();
    place.put(None);
    upstream.kill();
    let begun = tokio::time::Instant::now();
    let reply = source.call(Call::new("add", json!({}))).await;
    let error = reply.result.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 4);
    assert_eq!(error.code(), Code::Dependency);
    assert!(matches!(error.retry_advice(), Some(RetryAdvice::NotStarted(_))), "{error:?}");
    assert!(error.message().contains("connection refused"), "{error}");
    assert_eq!(reply.record.attempts, 0);
    assert_eq!(names(&source).await, ["add"]);
    assert_eq!(source.resources().await.unwrap().len(), 0);
    assert!(source.health().await.is_err());

    let cancellation = Cancellation::new();
    cancellation.cancel();
    let cancelled = source.call(Call::new("add", json!({})).with_cancellation(cancellation)).await;
    assert_eq!(cancelled.result.unwrap_err().code(), Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn reconnect_delays_grow_up_to_the_maximum() {
    let place = Place::default();
    let source = place.start(|settings| {
        settings.initial_wait = Duration::from_secs(1);
        settings.max_wait = Duration::from_secs(8);
    });
    tokio::time::sleep(Duration::from_mins(2)).await;
    let tries = place.tries.load(Ordering::SeqCst);
    // 1, 2, 4, then 8 s at most and 4 s at least.
    assert!((16..=34).contains(&tries), "{tries}");
    assert_eq!(source.status()[0].failures as usize, tries);
    place.put(Some(&Upstream::new("up", &["add"])));
    source.ready(Duration::from_secs(9)).await.unwrap();
    drop(source);
    let tries = place.tries.load(Ordering::SeqCst);
    place.put(None);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(place.tries.load(Ordering::SeqCst), tries, "dropping it ends the attempts");
}

#[tokio::test(start_paused = true)]
async fn health_checks_detect_a_lost_idle_source() {
    let place = Place::default();
    let first = Upstream::new("first", &["add"]);
    place.put(Some(&first));
    let source = place.start(|settings| settings.health_interval = Duration::from_secs(5));
    source.ready(SOON).await.unwrap();
    let second = Upstream::new("second", &["add"]);
    place.put(Some(&second));
    first.kill();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(source.status()[0].connections, 2);
    assert_eq!(call(&source, "add").await.unwrap(), "second:add");
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_calls_are_repeated() {
    for (idempotent, expected) in [(true, Ok("second:add".to_owned())), (false, Err(Code::Dependency))] {
        let tool = || {
            let mut add = spec("add", "Add.");
            add.annotations.idempotent = idempotent;
            vec![add]
        };
        let place = Place::default();
        let first = Upstream::of("first", tool());
        let second = Upstream::of("second", tool());
        place.put(Some(&first));
        let source = place.start(|_| {});
        source.ready(SOON).await.unwrap();
        let _gate = first.close_gate();
        let kill = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(first.count_calls(), 1, "it has begun");
            place.put(Some(&second));
            first.kill();
        };
        let (answer, ()) = tokio::join!(call(&source, "add"), kill);
        assert_eq!(answer.map_err(|error| error.code()), expected);
        assert_eq!(second.count_calls(), usize::from(idempotent));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_tool_does_not_cause_a_reconnect() {
    let place = Place::default();
    place.put(Some(&Upstream::new("up", &["fail"])));
    let source = place.start(|_| {});
    for _ in 0..3 {
        let error = call(&source, "fail").await.unwrap_err();
        assert_eq!(error.message(), "the weather service is down");
    }
    assert_eq!(source.status()[0].connections, 1);
}

#[tokio::test(start_paused = true)]
async fn a_source_with_a_hanging_list_is_not_connected() {
    let place = Place::default();
    let upstream = Upstream::new("up", &["add"]);
    upstream.lists(Lists::Never);
    place.put(Some(&upstream));
    let source = place.start(|settings| settings.list_timeout = Duration::from_secs(2));
    let error = source.ready(Duration::from_secs(5)).await.unwrap_err();
    assert!(error.message().contains("did not answer the list request"), "{error}");
    assert_eq!(source.list().await.unwrap_err().code(), Code::Dependency);
    upstream.lists(Lists::Well);
    source.ready(SOON).await.unwrap();
    // Later it hangs: the names that are known stay.
    upstream.lists(Lists::Never);
    assert_eq!(names(&source).await, ["add"]);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_connect_times_out() {
    let mut settings = ReconnectSettings::default();
    settings.connect_timeout = Duration::from_secs(1);
    let source =
        Reconnecting::start("up", std::future::pending::<Result<Arc<dyn ToolSource>, ToolError>>, settings);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let status = source.status().remove(0);
    assert!(status.failures >= 3 && status.state == SourceState::Failed, "{status:?}");
    assert!(status.reason.unwrap().contains("no connection within 1s"));
}
