//! Many concurrent callers: no lost call, no starvation, no leaked permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use toolpost::{Call, Caller, Inject, tool};
use toolpost_toolbox::Toolbox;

#[derive(Default)]
struct Load {
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Inside<'a>(&'a Load);

impl<'a> Inside<'a> {
    fn enter(load: &'a Load) -> Self {
        let now = load.now.fetch_add(1, Ordering::SeqCst) + 1;
        load.most.fetch_max(now, Ordering::SeqCst);
        Self(load)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Stay a moment.
#[tool]
async fn stay(load: Inject<Load>) {
    let _inside = Inside::enter(&load);
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_share_eight_permits() {
    let load = Arc::new(Load::default());
    let toolbox = Toolbox::builder()
        .tool(stay)
        .provide_shared(Arc::clone(&load))
        .settings(|settings| (settings.concurrency, settings.records) = (8, 2000))
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..1000)
        .map(|index| {
            let toolbox = toolbox.clone();
            tokio::spawn(async move {
                let caller = Caller::new("test").with_identity(format!("caller {}", index % 10));
                let call = toolbox.call(Call::new("stay", json!({})).with_caller(caller));
                // Every seventh caller drops its call.
                if index % 7 == 0 {
                    let _ =
                        tokio::time::timeout(Duration::from_micros(50 * (index as u64 % 100)), call).await;
                } else {
                    call.await.result.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(load.most.load(Ordering::SeqCst) <= 8);
    assert_eq!(toolbox.records().len(), 1000);
    // All permits are free again: eight concurrent calls do not wait.
    assert_eq!(load.now.load(Ordering::SeqCst), 0);
    let calls = (0..8).map(|_| toolbox.call(Call::new("stay", json!({}))));
    let replies = futures_util::future::join_all(calls).await;
    assert!(replies.iter().all(|reply| reply.record.queue_wait.is_zero()));
}
