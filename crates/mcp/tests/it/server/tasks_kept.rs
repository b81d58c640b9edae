//! Tasks that outlive their server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Annotations, Code, Output, ParameterType, TaskUse, ToolError, ToolSpec, tool_fn};
use toolpost_mcp::server::{RunningServer, Server};
use toolpost_store::TaskFile;
use toolpost_toolbox::Toolbox;

use super::tasks::{Client, serve_source};

/// How often each tool has begun.
#[derive(Clone, Default)]
struct Begun(Arc<[AtomicUsize; 3]>);

/// Tools that take a while the first time.
fn toolbox(begun: &Begun) -> Toolbox {
    let mut builder = Toolbox::builder().name("kept");
    for (place, (name, idempotent, is_secret)) in
        [("once", false, false), ("again", true, false), ("secret", true, true)].into_iter().enumerate()
    {
        let mut spec = ToolSpec::new(name, "Take a while.")
            .task(TaskUse::AtOnce)
            .parameter("ms", ParameterType::Integer, "How long, the first time.")
            .parameter("word", ParameterType::String, "What is said.")
            .annotations(Annotations { idempotent, ..Annotations::default() });
        if is_secret {
            spec.sensitive.push("word".into());
        }
        let begun = begun.clone();
        builder = builder.tool(tool_fn(spec, move |args, _ctx| {
            let count = begun.0[place].fetch_add(1, Ordering::SeqCst);
            async move {
                let ms = if count == 0 { args.decode("ms")? } else { 0 };
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(Output::text(format!("said {}", args.decode::<String>("word")?)))
            }
        }));
    }
    builder.build().unwrap()
}

async fn serve(begun: &Begun, file: &Path) -> RunningServer {
    // The previous server may be exiting, and this waits for it.
    let file = file.to_owned();
    let tasks = tokio::task::spawn_blocking(move || TaskFile::open(file)).await.unwrap().unwrap();
    serve_source(toolbox(begun), |builder| builder.task_store(Arc::new(tasks))).await
}

fn said(task: &Value) -> &Value {
    &task["result"]["content"][0]["text"]
}

#[tokio::test]
async fn a_server_that_vanishes_leaves_results_and_an_honest_word() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let begun = Begun::default();
    let running = serve(&begun, &file).await;
    let client = Client(running.address(), None);
    let word = |word: &str, ms: u64| json!({ "ms": ms, "word": word });
    let long = client.begin("once", word("one", 60_000)).await;
    let again = client.begin("again", word("two", 60_000)).await;
    let secret = client.begin("secret", word("hunter2", 60_000)).await;
    // The second call of a tool is quick.
    let finished = client.begin("once", word("three", 0)).await;
    client.end(&finished).await;
    let cancelled = client.begin("once", word("four", 0)).await;
    client.end(&cancelled).await;
    drop(running);
    let running = serve(&begun, &file).await;
    let client = Client(running.address(), None);
    let task = client.end(&finished).await;
    assert_eq!(said(&task), "said three", "{task}");
    for id in [&long, &secret] {
        let task = client.get(id).await["result"].take();
        assert_eq!(task["status"], "failed", "{task}");
        let message = task["error"]["message"].as_str().unwrap();
        assert!(message.contains("interrupted"), "{message}");
    }
    let task = client.end(&again).await;
    assert_eq!(said(&task), "said two", "{task}");
    assert_eq!(begun.0.each_ref().map(|count| count.load(Ordering::SeqCst)), [3, 2, 1]);
    drop(running);
    // What a tool calls sensitive is not written down.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(7).any(|piece| piece == b"hunter2"));
    }
}

#[tokio::test]
async fn a_call_that_kills_its_server_each_time_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let mut id = String::new();
    let mut begun = 0;
    for life in 0..4 {
        // Each life is a new process to the tool, which takes long every time.
        let count = Begun::default();
        let running = serve(&count, &file).await;
        let client = Client(running.address(), None);
        if life == 0 {
            id = client.begin("again", json!({ "ms": 60_000, "word": "x" })).await;
        }
        if life == 3 {
            assert_eq!(client.get(&id).await["result"]["status"], "failed");
        } else {
            assert_eq!(client.get(&id).await["result"]["status"], "working");
            while count.0[1].load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        begun += count.0[1].load(Ordering::SeqCst);
    }
    assert_eq!(begun, 3);
}

#[tokio::test]
async fn a_server_that_is_stopped_lets_tasks_end_and_says_which_did_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let begun = Begun::default();
    let tasks = TaskFile::open(&file).unwrap();
    let server = Server::builder(Arc::new(toolbox(&begun)))
        .task_store(Arc::new(tasks))
        .limits(|limits| limits.drain = Duration::from_secs(1))
        .build()
        .unwrap();
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = Client(running.address(), None);
    let long = client.begin("once", json!({ "ms": 60_000, "word": "one" })).await;
    let short = client.begin("again", json!({ "ms": 300, "word": "two" })).await;
    running.stop().await;
    drop(server);
    let running = serve(&begun, &file).await;
    let client = Client(running.address(), None);
    let task = client.end(&short).await;
    assert_eq!(said(&task), "said two", "{task}");
    let task = client.end(&long).await;
    assert!(task["error"]["message"].as_str().unwrap().contains("interrupted"), "{task}");
    assert_eq!(begun.0.each_ref().map(|count| count.load(Ordering::SeqCst)), [1, 1, 0]);
}

#[tokio::test]
async fn a_file_that_another_server_has_is_an_error_before_anything_listens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let _running = serve(&Begun::default(), &file).await;
    let other = tokio::task::spawn_blocking(move || TaskFile::open(file)).await.unwrap();
    let error: ToolError = other.unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
}
