//! Clients of one server: their directories and documents.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use toolpost_core::{Output, Secret, ToolSpec, tool_fn};
use toolpost_mcp::server::{RunningServer, ServerBuilder};
use toolpost_toolbox::Toolbox;

use super::support::{begin_session, modern, post_legacy, post_with, serve_source};
use super::websocket::Socket;

/// A tool that returns the owner, the name and the working directory of its client.
fn toolbox() -> Toolbox {
    let place = tool_fn(ToolSpec::new("place", "The place of a call."), async |_args, ctx| {
        let owner = ctx.scope().map(|scope| scope.owner().to_owned());
        let name = ctx.caller().identity.as_deref().map(str::to_owned);
        Ok(Output::json(json!({ "owner": owner, "name": name, "directory": ctx.working_dir() })))
    });
    Toolbox::builder().name("calc").tool(place).build().unwrap()
}

/// The answers to a client over each transport.
async fn places(running: &RunningServer, token: Option<&str>) -> [Value; 3] {
    let address = running.address();
    let authorization = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = authorization.iter().map(|value| ("Authorization", value.as_str())).collect();
    let params = json!({ "name": "place", "arguments": {} });
    let request = modern(1, "tools/call", params.clone(), json!({}));
    let mut modern = post_with(address, &request, &headers).await.message();
    let session = begin_session(address, &headers).await;
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut legacy = post_legacy(address, Some(&session), &message, &headers).await.message();
    let mut socket = Socket::connect(running, &headers).await.unwrap();
    socket.send(&request).await;
    let mut live = socket.next().await;
    [&mut modern, &mut legacy, &mut live].map(|answer| answer["result"]["structuredContent"].take())
}

/// Three clients: by name with two tokens, and by position.
fn clients(builder: ServerBuilder) -> ServerBuilder {
    let builder = builder.client("laptop", Secret::new("a")).unwrap().client("laptop", Secret::new("b"));
    builder.unwrap().bearer(Secret::new("c")).bearer(Secret::new("d"))
}

#[tokio::test]
async fn each_client_has_a_directory_and_documents_of_its_own() {
    let parent = tempfile::tempdir().unwrap();
    let running = serve_source(toolbox(), |builder| clients(builder).client_directories(parent.path())).await;
    let mut owners: Vec<String> = Vec::new();
    for (token, name) in [("a", "laptop"), ("b", "laptop"), ("c", "token-3"), ("d", "token-4")] {
        let [one, ..] = places(&running, Some(token)).await;
        for place in places(&running, Some(token)).await {
            assert_eq!(place, one, "{token}: all connections of a client are alike");
        }
        assert_eq!(one["name"], name);
        let directory = Path::new(one["directory"].as_str().unwrap());
        assert_eq!(directory.parent(), Some(parent.path()));
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let owner = one["owner"].as_str().unwrap();
        assert_eq!(directory.file_name().unwrap(), owner);
        owners.push(owner.to_owned());
    }
    assert_eq!(owners[..2], ["laptop", "laptop"]);
    assert!(owners[2] != owners[3] && owners[2..].iter().all(|owner| owner.len() == 38), "{owners:?}");
    running.stop().await;
    // Another server with other positions.
    let running = serve_source(toolbox(), |builder| {
        builder.bearer(Secret::new("d")).bearer(Secret::new("c")).client_directories(parent.path())
    })
    .await;
    for (token, name, owner) in [("c", "token-2", &owners[2]), ("d", "token-1", &owners[3])] {
        let [place, ..] = places(&running, Some(token)).await;
        assert_eq!((&place["name"], &place["owner"]), (&json!(name), &json!(owner)));
    }
    running.stop().await;
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 3);
}

#[tokio::test]
async fn without_client_directories_or_credentials_a_call_has_none() {
    let parent = tempfile::tempdir().unwrap();
    let running = serve_source(toolbox(), clients).await;
    let [place, ..] = places(&running, Some("a")).await;
    assert_eq!((&place["owner"], &place["directory"]), (&json!("laptop"), &Value::Null));
    running.stop().await;
    let running = serve_source(toolbox(), |builder| builder.client_directories(parent.path())).await;
    let [place, ..] = places(&running, None).await;
    assert_eq!(place, json!({ "owner": "mcp", "name": null, "directory": null }));
    running.stop().await;
}
