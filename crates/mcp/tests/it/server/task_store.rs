//! Tasks that outlive their server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Annotations, Code, Output, ParameterType, Secret, TaskUse, ToolSpec, tool_fn};
use toolpost_mcp::server::RunningServer;
use toolpost_store::TaskFile;
use toolpost_testkit::eventually;
use toolpost_toolbox::Toolbox;

use super::support::serve_source;
use super::tasks::Client;

/// The number of runs of each tool: `once`, `again` and `secret`.
#[derive(Clone, Default)]
struct Runs(Arc<[AtomicUsize; 3]>);

impl Runs {
    fn counts(&self) -> [usize; 3] {
        self.0.each_ref().map(|count| count.load(Ordering::SeqCst))
    }
}

/// Tools that take `ms` in their first run.
fn toolbox(runs: &Runs) -> Toolbox {
    let mut builder = Toolbox::builder().name("stored");
    for (place, (name, idempotent, is_secret)) in
        [("once", false, false), ("again", true, false), ("secret", true, true)].into_iter().enumerate()
    {
        let mut spec = ToolSpec::new(name, "Take a while.")
            .task(TaskUse::AtOnce)
            .parameter("ms", ParameterType::Integer, "The duration of the first run.")
            .parameter("word", ParameterType::String, "The word to return.")
            .annotations(Annotations { idempotent, ..Annotations::default() });
        if is_secret {
            spec.sensitive.push("word".into());
        }
        let runs = runs.clone();
        builder = builder.tool(tool_fn(spec, move |args, _ctx| {
            let count = runs.0[place].fetch_add(1, Ordering::SeqCst);
            async move {
                let ms = if count == 0 { args.decode("ms")? } else { 0 };
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(Output::text(format!("returned {}", args.decode::<String>("word")?)))
            }
        }));
    }
    builder.build().unwrap()
}

async fn serve(runs: &Runs, file: &Path) -> RunningServer {
    // Opening waits for a previous server that still exits.
    let file = file.to_owned();
    let tasks = tokio::task::spawn_blocking(move || TaskFile::open(file)).await.unwrap().unwrap();
    serve_source(toolbox(runs), |builder| {
        builder.task_store(Arc::new(tasks)).limits(|limits| limits.drain = Duration::from_secs(2))
    })
    .await
}

/// A variant with clients: their names, if they have some, and tokens.
async fn serve_clients(runs: &Runs, file: &Path, clients: &[(Option<&str>, &str)]) -> RunningServer {
    let file = file.to_owned();
    let tasks = tokio::task::spawn_blocking(move || TaskFile::open(file)).await.unwrap().unwrap();
    serve_source(toolbox(runs), |builder| {
        let builder =
            builder.task_store(Arc::new(tasks)).limits(|limits| limits.drain = Duration::from_millis(100));
        clients.iter().fold(builder, |builder, (name, token)| match name {
            Some(name) => builder.client(name, Secret::new(token)).unwrap(),
            None => builder.bearer(Secret::new(token)),
        })
    })
    .await
}

fn arguments(word: &str, ms: u64) -> Value {
    json!({ "ms": ms, "word": word })
}

fn assert_interrupted(task: &Value) {
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"]["message"].as_str().unwrap().contains("interrupted"), "{task}");
}

#[tokio::test]
async fn a_killed_server_leaves_results_and_its_idempotent_calls_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.db");
    let runs = Runs::default();
    let running = serve(&runs, &file).await;
    let client = Client(running.address(), None);
    let long = client.begin("once", arguments("one", 60_000)).await;
    let again = client.begin("again", arguments("two", 60_000)).await;
    let secret = client.begin("secret", arguments("hunter2", 60_000)).await;
    // The second run of a tool is quick.
    let finished = client.begin("once", arguments("three", 0)).await;
    client.end(&finished).await;
    drop(running);
    let running = serve(&runs, &file).await;
    let client = Client(running.address(), None);
    for (id, expected) in [(&finished, "returned three"), (&again, "returned two")] {
        let task = client.end(id).await;
        assert_eq!(task["result"]["content"][0]["text"], expected, "{task}");
    }
    for id in [&long, &secret] {
        assert_interrupted(&client.get(id).await["result"].take());
    }
    assert_eq!(runs.counts(), [2, 2, 1]);
    drop(running);
    // Sensitive arguments are not stored.
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(7).any(|piece| piece == b"hunter2"));
    }
}

#[tokio::test]
async fn a_call_that_kills_its_server_runs_three_times_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.db");
    let mut id = String::new();
    for life in 0..4 {
        // Each server has a new process: the tool takes long every time.
        let runs = Runs::default();
        let running = serve(&runs, &file).await;
        let client = Client(running.address(), None);
        if life == 0 {
            id = client.begin("again", arguments("x", 60_000)).await;
        }
        let status = client.get(&id).await["result"]["status"].take();
        if life < 3 {
            assert_eq!(status, "working");
            eventually("the call runs", async || runs.counts() == [0, 1, 0]).await;
        } else {
            assert_eq!((status, runs.counts()), (json!("failed"), [0; 3]));
        }
    }
}

#[tokio::test]
async fn a_stopped_server_drains_its_tasks_and_records_the_interrupted_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.db");
    let runs = Runs::default();
    let running = serve(&runs, &file).await;
    let client = Client(running.address(), None);
    let long = client.begin("once", arguments("one", 60_000)).await;
    let short = client.begin("again", arguments("two", 300)).await;
    running.stop().await;
    let running = serve(&runs, &file).await;
    let client = Client(running.address(), None);
    let task = client.end(&short).await;
    assert_eq!(task["result"]["content"][0]["text"], "returned two", "{task}");
    assert_interrupted(&client.end(&long).await);
    assert_eq!(runs.counts(), [1, 1, 0]);
    let other = tokio::task::spawn_blocking(move || TaskFile::open(file)).await.unwrap();
    let error = other.unwrap_err();
    assert_eq!(error.code(), Code::Dependency, "two servers share a file");
}

#[tokio::test]
async fn a_stored_task_belongs_to_its_credential_whatever_its_position() {
    let before = [(None, "first"), (None, "second"), (Some("laptop"), "third")];
    // Each later server: its tokens, and for each token of the task's client whether it has the task.
    for (after, readers) in [
        (&before[..], &[("first", true), ("second", false), ("third", false)][..]),
        (&[(None, "second"), (None, "first")], &[("second", false), ("first", true)]),
        (&[(None, "second")], &[("second", false)]),
        (&[(Some("laptop"), "first")], &[("first", false)]),
        (&[], &[("", false)]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tasks.db");
        let runs = Runs::default();
        let running = serve_clients(&runs, &file, &before).await;
        let client = Client(running.address(), Some("first"));
        let done = client.begin("once", arguments("done", 0)).await;
        client.end(&done).await;
        let cut = client.begin("again", arguments("cut", 60_000)).await;
        running.stop().await;
        let running = serve_clients(&runs, &file, after).await;
        for (token, is_owner) in readers {
            let client = Client(running.address(), Some(token).filter(|token| !token.is_empty()).copied());
            for (id, text) in [(&done, "returned done"), (&cut, "returned cut")] {
                if *is_owner {
                    let end = client.end(id).await;
                    assert_eq!(end["result"]["content"][0]["text"], text, "{after:?} {token}: {end}");
                } else {
                    let unknown = client.get(id).await;
                    assert_eq!(unknown["error"]["code"], -32602, "{after:?} {token}: {unknown}");
                }
            }
        }
        running.stop().await;
        // A call runs again only for a client that is still accepted.
        let is_accepted = readers.iter().any(|(_, is_owner)| *is_owner);
        assert_eq!(runs.counts()[1], if is_accepted { 2 } else { 1 }, "{after:?}");
    }
}

#[tokio::test]
async fn the_tasks_of_a_named_client_outlive_its_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.db");
    let runs = Runs::default();
    let running = serve_clients(&runs, &file, &[(Some("laptop"), "old"), (Some("other"), "b")]).await;
    let id = Client(running.address(), Some("old")).begin("once", arguments("done", 0)).await;
    Client(running.address(), Some("old")).end(&id).await;
    running.stop().await;
    let clients = [(Some("other"), "b"), (Some("laptop"), "old"), (Some("laptop"), "new")];
    let running = serve_clients(&runs, &file, &clients).await;
    for (token, is_owner) in [("old", true), ("new", true), ("b", false)] {
        let task = Client(running.address(), Some(token)).get(&id).await;
        assert_eq!(task["result"]["status"] == "completed", is_owner, "{token}: {task}");
    }
    running.stop().await;
}
