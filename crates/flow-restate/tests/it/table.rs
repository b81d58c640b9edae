//! The table of the driver of one machine, on Restate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use toolpost_core::{Args, Call, Cancellation, Ctx, RunId, ToolSpec, tool_fn};
use toolpost_flow::Plan;
use toolpost_flow_restate::{Cluster, StartOptions, Worker};
use toolpost_toolbox::Toolbox;

use crate::rows::{Row, Script, Trace, rows};
use crate::server::{self, Servers};
use crate::worker;

/// The tools of each run.
type Toolboxes = Arc<Mutex<HashMap<String, Toolbox>>>;

/// Tools that pass their calls to the tools of the run.
fn toolbox(rows: &[Row], toolboxes: &Toolboxes) -> Toolbox {
    let names: std::collections::BTreeSet<&str> =
        rows.iter().flat_map(|row| row.tools.keys().map(String::as_str)).chain(["echo"]).collect();
    let mut builder = Toolbox::builder();
    for name in names {
        let toolboxes = Arc::clone(toolboxes);
        let spec = ToolSpec::new(name, "A tool of the run.").input(serde_json::json!({ "type": "object" }));
        let name = name.to_owned();
        builder = builder.tool(tool_fn(spec, move |args: Args, ctx: Ctx| {
            let key = ctx.idempotency_key().unwrap_or_default().to_owned();
            let toolbox = toolboxes.lock().unwrap()[key.split('/').next().unwrap()].clone();
            let token = Cancellation::new();
            let call = Call::new(name.as_str(), args.as_value().clone())
                .with_idempotency_key(key)
                .with_cancellation(token.clone());
            async move {
                let mut calling = std::pin::pin!(toolbox.call(call));
                tokio::select! {
                    reply = &mut calling => reply.result,
                    () = ctx.cancelled() => {
                        token.cancel();
                        calling.await.result
                    }
                }
            }
        }));
    }
    builder.build().unwrap()
}

async fn run_row(row: &Row, cluster: &Cluster, toolboxes: &Toolboxes) -> Result<(), String> {
    let text = |error: toolpost_core::CallError| error.to_string();
    let script = Script::default();
    let mut options = StartOptions::default();
    options.id = RunId::new();
    let id = options.id;
    toolboxes.lock().unwrap().insert(id.to_string(), row.toolbox(&script));
    let plan = Plan::from_value(&row.plan).map_err(|error| error.to_string())?;
    cluster.start(&plan, row.input.clone(), options).await.map_err(text)?;
    let trace = Trace::default();
    let send = async {
        for message in &row.outside {
            while !trace.has(&message.after) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let value = message.value.clone();
            let sent = match (&message.signal, &message.answer, &message.cancel) {
                (Some(name), ..) => cluster.signal(id, name, value).await,
                (_, Some(step), _) => cluster.answer(id, Some(step), value).await.map(drop),
                (.., reason) => cluster.cancel(id, reason.as_deref().unwrap()).await,
            };
            message.check(sent.map_err(toolpost_core::ToolError::from))?;
        }
        std::future::pending::<Result<(), String>>().await
    };
    let outcome = tokio::select! {
        outcome = cluster.follow(id, |progress| trace.show(progress)) => outcome.map_err(text)?,
        failed = send => return failed,
    };
    row.check_end(outcome.status, &outcome.output, outcome.error.as_ref(), &script)?;
    row.check_events(&trace.entries())?;
    let stored = cluster.show(id).await.map_err(text)?;
    let events: Vec<_> = stored.events.into_iter().map(|(_, event)| event).collect();
    row.check_journal(&events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_end_as_they_say_on_restate() {
    const AT_ONCE: usize = 6;
    let Some(binary) = server::binary("rows_end_as_they_say_on_restate") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let node = servers.first();
    let (mut rows, toolboxes) = (rows(), Toolboxes::default());
    // A cluster makes each call: it has no cache of outputs.
    rows.retain(|row| !row.plan.to_string().contains("\"cache\":"));
    let _worker = worker::local(Worker::new(toolbox(&rows, &toolboxes)), &node.admin).await;
    let cluster = Cluster::new(&node.ingress).unwrap();
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let failures: Mutex<Vec<String>> = Mutex::default();
    futures_util::future::join_all((0..AT_ONCE).map(|_| async {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::SeqCst)) {
            let run = run_row(row, &cluster, &toolboxes);
            let ended = tokio::time::timeout(Duration::from_mins(1), run).await;
            if let Err(problem) = ended.unwrap_or_else(|_| Err("it does not end".to_owned())) {
                failures.lock().unwrap().push(format!("{}: {problem}", row.name));
            }
        }
    }))
    .await;
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} rows fail\n{}", failures.len(), rows.len(), failures.join("\n"));
    println!("{} rows in {:.1} s", rows.len(), begun.elapsed().as_secs_f64());
}
