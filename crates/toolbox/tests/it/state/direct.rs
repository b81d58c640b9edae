//! Direct changes of documents by tools and applications, and handles.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost::{Call, Code, Ctx, DocStore, OnConflict, Patch, StateConflict, StateDoc, ToolError, tool};
use toolpost_toolbox::{MemoryStore, Toolbox};

use super::{Shared, at_once, by, history_is_whole, versions};

fn patch(operations: &Value) -> Patch {
    Patch::parse(operations).unwrap()
}

async fn filled(values: &[Value]) -> StateDoc {
    let document = StateDoc::new(Arc::new(MemoryStore::new()), "d").unwrap();
    for value in values {
        document.replace(value).await.unwrap();
    }
    document
}

#[tokio::test]
async fn a_document_has_a_version_and_a_history() {
    let document = filled(&[json!({"a": 1}), json!({"a": 2, "b": [1]}), json!({"a": 2, "b": [1, 2]})]).await;
    assert_eq!((document.id(), document.version().await.unwrap()), ("d", 3));
    assert_eq!(*document.state().await.unwrap(), json!({"a": 2, "b": [1, 2]}));
    let snapshot = document.get_snapshot().await.unwrap();
    assert_eq!((snapshot.version, snapshot.get("/b/1")), (3, Some(&json!(2))));
    let copy: super::Counts = filled(&[json!({"a": 1})]).await.clone_state().await.unwrap();
    assert_eq!(copy["a"], 1);
    assert_eq!(filled(&[]).await.clone_state::<Vec<u8>>().await.unwrap(), Vec::<u8>::new());

    for (version, expected) in [(0, json!(null)), (1, json!({"a": 1})), (3, json!({"a": 2, "b": [1, 2]}))] {
        assert_eq!(*document.at(version).await.unwrap().value, expected);
    }
    assert_eq!(document.at(4).await.unwrap_err().code(), Code::NotFound);
    let log = document.log(1, 1).await.unwrap();
    assert_eq!((log.len(), log[0].version), (1, 2));
    assert_eq!(
        document.diff(1, 3).await.unwrap().to_value(),
        json!([{"op": "replace", "path": "/a", "value": 2}, {"op": "add", "path": "/b", "value": [1, 2]}])
    );
    assert_eq!(document.diff(3, 2).await.unwrap().to_value(), json!([{"op": "remove", "path": "/b/1"}]));
}

#[tokio::test]
async fn disjoint_changes_are_rebased() {
    let base = json!({"a": 1, "list": [1, 2, 3], "b": 1});
    let newer = json!({"a": 1, "list": [1, 2, 3], "b": 2});
    for (changes, expected) in [
        (
            json!([{"op": "replace", "path": "/a", "value": 5}]),
            Ok(json!({"a": 5, "list": [1, 2, 3], "b": 2})),
        ),
        (
            json!([{"op": "add", "path": "/list/0", "value": 0}]),
            Ok(json!({"a": 1, "list": [0, 1, 2, 3], "b": 2})),
        ),
        (json!([]), Ok(newer.clone())),
        (json!([{"op": "replace", "path": "/b", "value": 5}]), Err(Code::Conflict)),
        (json!([{"op": "remove", "path": "/b"}]), Err(Code::Conflict)),
        (json!([{"op": "replace", "path": "", "value": 5}]), Err(Code::Conflict)),
        (json!([{"op": "test", "path": "/a", "value": 7}]), Err(Code::Precondition)),
        (json!([{"op": "remove", "path": "/x"}]), Err(Code::Precondition)),
        // The second operation fails, so nothing changes.
        (json!([{"op": "remove", "path": "/a"}, {"op": "remove", "path": "/a"}]), Err(Code::Precondition)),
    ] {
        let document = filled(&[base.clone(), newer.clone()]).await;
        let result = document.apply_changes(1, &patch(&changes)).await;
        match expected {
            Ok(value) => {
                assert_eq!(result.unwrap(), if changes == json!([]) { 2 } else { 3 });
                assert_eq!(*document.state().await.unwrap(), value, "{changes}");
            }
            Err(code) => {
                assert_eq!(result.unwrap_err().code(), code, "{changes}");
                assert_eq!(*document.state().await.unwrap(), newer);
                assert_eq!(document.version().await.unwrap(), 2);
            }
        }
    }
    // A patch on a changed list is applied as a whole or not at all.
    let document = filled(&[json!([1, 2, 3]), json!([3])]).await;
    let stale = patch(&json!([{"op": "add", "path": "/3", "value": 4}]));
    assert_eq!(document.apply_changes(1, &stale).await.unwrap_err().code(), Code::Conflict);
    assert_eq!(document.apply_changes(9, &stale).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_direct_change_follows_its_policy() {
    let change = async |times: u32, conflict: StateConflict| {
        let store = Shared::with(times, "/n", json!(10));
        let document = StateDoc::new(store.clone(), "d").unwrap();
        let document = document.with_sleep(|time| Box::pin(tokio::time::sleep(time))).on_conflict(conflict);
        let start = tokio::time::Instant::now();
        let mut runs = 0;
        let result = document
            .change(|value| {
                runs += 1;
                let n = value.get("n").and_then(Value::as_i64).unwrap_or(0);
                *value = json!({ "n": n + 1 });
                Ok(n)
            })
            .await;
        history_is_whole(&*store, "d").await;
        (result.map_err(|error| error.code()), runs, start.elapsed().as_millis())
    };
    let (result, runs, waited) = change(2, StateConflict::default()).await;
    assert_eq!((result, runs), (Ok((20, 3)), 3));
    assert!((7..=16).contains(&waited), "{waited}");
    let few = StateConflict { max_retries: 1, ..StateConflict::default() };
    assert_eq!(change(1, few.clone()).await.0, Ok((10, 2)));
    assert_eq!(change(2, few).await.0, Err(Code::Conflict));
    let error = StateConflict { action: OnConflict::Error, ..StateConflict::default() };
    assert_eq!(change(1, error).await.0, Err(Code::Conflict));
    assert_eq!(change(16, StateConflict::default()).await.1, 17);
}

#[tokio::test]
async fn failed_and_empty_changes_commit_nothing() {
    let document = filled(&[json!(1)]).await;
    let error = document
        .change(|value| {
            *value = json!(2);
            Err::<(), _>(ToolError::precondition("no"))
        })
        .await
        .unwrap_err();
    assert_eq!(error.message(), "no");
    assert_eq!(document.replace(&1).await.unwrap(), 1);
    assert_eq!(document.replace(&f64::NAN).await.unwrap_err().code(), Code::Internal);
    assert_eq!(document.version().await.unwrap(), 1);
}

/// Count with a direct change.
#[tool]
async fn count(ctx: &Ctx, document: String) -> Result<u64, ToolError> {
    let counter = ctx.state(&document)?;
    let (n, _) = counter
        .change(|value| {
            let n = value.as_u64().unwrap_or(0) + 1;
            *value = json!(n);
            Ok(n)
        })
        .await?;
    Ok(n)
}

/// Change a parameter's document directly.
#[tool]
async fn both(#[state(id = "d")] number: &mut u64, ctx: &Ctx) -> Result<u64, ToolError> {
    *number += 1;
    Ok(ctx.state("d")?.replace(&7).await?)
}

/// Count from a thread, after the end of the call.
#[tool(timeout_s = 0.02)]
fn too_late(ctx: &Ctx) -> Result<u64, ToolError> {
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(ctx.wait(ctx.state("late")?.replace(&1))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_change_documents_directly() {
    let store = Arc::new(MemoryStore::new());
    let toolbox = Toolbox::builder()
        .tool(count)
        .tool(both)
        .tool(too_late)
        .settings(|settings| settings.document_limit = 50)
        .store(store.clone())
        .build()
        .unwrap();
    let reply = toolbox.call(by("alice", "count", json!({"document": "n/{owner}"}))).await;
    assert_eq!(reply.result.unwrap().structured, Some(json!(1)));
    assert_eq!(reply.record.state, versions("n/@alice", 0, 1));
    let log = store.log("n/@alice", 0, 9).await.unwrap();
    assert_eq!(log[0].call, Some(reply.record.id));
    assert_eq!(
        log[0].event,
        Some(json!({"tool": "count", "caller": {"front": "test", "identity": "alice"}}))
    );

    let calls = (0..64).map(|_| by("bob", "count", json!({"document": "n/{owner}"})));
    for reply in at_once(std::slice::from_ref(&toolbox), calls).await {
        reply.result.unwrap();
    }
    assert_eq!(store.load("n/@bob").await.unwrap().version, 64);
    // An argument cannot name an owner.
    for document in ["n/@alice", "@alice", "n/{name}", "n//x", "", "+x"] {
        let error = toolbox.call(by("eve", "count", json!({"document": document}))).await.result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput, "{document}");
    }
    let error = toolbox.call(by("eve", "count", json!({"document": "n/{scope}"}))).await.result.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);

    let error = toolbox.run("both", json!({})).await.unwrap_err();
    assert!(error.message().contains("a direct change is not possible"), "{error}");
    assert_eq!(toolbox.run("too_late", json!({})).await.unwrap_err().code(), Code::Timeout);
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    assert_eq!(store.load("late").await.unwrap().version, 0);
    let error = toolbox.state("d").unwrap().replace(&"x".repeat(60)).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
}

/// Open a cart.
#[tool]
async fn open_cart(ctx: &Ctx) -> Result<String, ToolError> {
    ctx.mint("carts", &Vec::<String>::new()).await
}

/// Put something into a cart.
#[tool]
async fn put(
    #[state(id = "carts/{owner}/{cart}", existing)] items: &mut Vec<String>,
    cart: String,
    item: String,
) -> usize {
    items.push(item);
    items.len()
}

#[tokio::test]
async fn a_handle_gives_no_access_to_another_caller() {
    let toolbox = Toolbox::builder().tool(open_cart).tool(put).build().unwrap();
    let open = async || {
        let reply = toolbox.call(by("alice", "open_cart", json!({}))).await;
        reply.result.unwrap().structured.unwrap().as_str().unwrap().to_owned()
    };
    let (cart, other) = (open().await, open().await);
    assert!(cart.len() == 32 && cart != other);
    let put = async |who: &str, cart: &str| {
        toolbox.call(by(who, "put", json!({"cart": cart, "item": "x"}))).await.result
    };
    assert_eq!(put("alice", &cart).await.unwrap().structured, Some(json!(1)));
    assert_eq!(put("alice", &cart).await.unwrap().structured, Some(json!(2)));
    let missing = "0".repeat(32);
    for (who, name) in [("bob", &cart), ("alice", &missing), ("bob", &format!("../@alice/{cart}"))] {
        let error = put(who, name).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{who}");
    }
    // Another caller gets the same error as for an unknown handle.
    let other = Call::new("put", json!({"cart": cart, "item": "x"}));
    assert_eq!(toolbox.call(other).await.result.unwrap_err().message(), format!("unknown document `{cart}`"));
}

/// Start a change and do not wait for its end.
#[tool(backoff_initial_ms = 1, backoff_max_ms = 1, policy(idempotent))]
async fn hasty(ctx: &Ctx, again: bool) -> Result<u64, ToolError> {
    let document = ctx.state("d")?;
    if ctx.attempt() == 1 {
        let short = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(short, document.replace(&1)).await.is_err());
        if again {
            return Err(ToolError::dependency("once more"));
        }
    }
    Ok(document.version().await?)
}

// The clock is paused, so that the change has started before the timeout on any machine.
#[tokio::test(start_paused = true)]
async fn running_direct_commits_are_awaited_and_recorded() {
    for (again, seen) in [(false, 0), (true, 1)] {
        let store = Shared::gated();
        let toolbox =
            Toolbox::builder().tool(hasty).store(store.clone() as Arc<dyn DocStore>).build().unwrap();
        let caller = toolbox.clone();
        let call = by("ada", "hasty", json!({ "again": again }));
        let task = tokio::spawn(async move { caller.call(call).await });
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(toolbox.records().is_empty() && !task.is_finished());
        store.open();
        let reply = task.await.unwrap();
        assert_eq!(reply.result.unwrap().structured, Some(json!(seen)));
        assert_eq!(reply.record.state, versions("d", 0, 1));
    }
}

/// Read a document.
#[tool(policy(idempotent, cache = "1h"))]
async fn look(ctx: &Ctx) -> Result<u64, ToolError> {
    Ok(ctx.state("d")?.version().await?)
}

/// Read a document as a parameter.
#[tool(policy(idempotent))]
async fn look_too(#[state(id = "d")] number: &u64) -> u64 {
    *number
}

/// Let another tool read.
#[tool(policy(idempotent, cache = "1h"))]
async fn let_look(ctx: &Ctx, tool: String) -> Result<Value, ToolError> {
    Ok(ctx.call(tool, json!({})).await?.structured.unwrap_or_default())
}

#[tokio::test]
async fn results_that_depend_on_a_document_are_not_cached() {
    let toolbox = Toolbox::builder().tool(look).tool(look_too).tool(let_look).build().unwrap();
    for n in 0..3_u64 {
        let seen =
            async |tool: &str, arguments: Value| toolbox.run(tool, arguments).await.unwrap().structured;
        assert_eq!(seen("look", json!({})).await, Some(json!(n)));
        assert_eq!(seen("let_look", json!({"tool": "look"})).await, Some(json!(n)));
        assert_eq!(seen("let_look", json!({"tool": "look_too"})).await, Some(json!(n)));
        toolbox.state("d").unwrap().replace(&(n + 1)).await.unwrap();
    }
}
