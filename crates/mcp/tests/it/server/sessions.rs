//! Sessions of the older era: bounded, and each its owner's.

use serde_json::{Value, json};
use toolpost_core::Secret;

use super::support::{begin_session, post_legacy, request, serve};

fn list() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })
}

#[tokio::test]
async fn the_session_that_was_used_longest_ago_gives_way() {
    let running = serve(|builder| builder.limits(|limits| limits.sessions = 2)).await;
    let address = running.address();
    let first = begin_session(address, json!({}), &[]).await;
    let second = begin_session(address, json!({}), &[]).await;
    assert_eq!(post_legacy(address, Some(&first), &list(), &[]).await.status, 200);
    let third = begin_session(address, json!({}), &[]).await;
    for (session, expected) in [(&first, 200), (&second, 404), (&third, 200)] {
        assert_eq!(post_legacy(address, Some(session), &list(), &[]).await.status, expected);
    }
    let status: Value =
        serde_json::from_str(&request(address, "GET", "/status", &[], "").await.body).unwrap();
    assert_eq!(status["sessions"], 2);
}

#[tokio::test]
async fn a_session_is_its_owners_and_its_name_cannot_be_guessed() {
    let running = serve(|builder| builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))).await;
    let address = running.address();
    let (ada, eve) = ([("Authorization", "Bearer ada")], [("Authorization", "Bearer eve")]);
    let session = begin_session(address, json!({}), &ada).await;
    assert!(session.len() == 64 && session.bytes().all(|byte| byte.is_ascii_hexdigit()), "{session}");
    assert_eq!(post_legacy(address, Some(&session), &list(), &eve).await.status, 404);
    for (id, token, expected) in [
        (session.as_str(), "Bearer eve", 404),
        ("unknown", "Bearer eve", 404),
        (session.as_str(), "Bearer no", 401),
    ] {
        let headers = [("Mcp-Session-Id", id), ("Authorization", token)];
        assert_eq!(request(address, "DELETE", "/mcp", &headers, "").await.status, expected, "{id} {token}");
    }
    let stream = [
        ("Mcp-Session-Id", session.as_str()),
        ("Authorization", "Bearer eve"),
        ("Accept", "text/event-stream"),
    ];
    assert_eq!(request(address, "GET", "/mcp", &stream, "").await.status, 404);
    assert_eq!(post_legacy(address, Some(&session), &list(), &ada).await.status, 200);
    let headers = [("Mcp-Session-Id", session.as_str()), ("Authorization", "Bearer ada")];
    assert_eq!(request(address, "DELETE", "/mcp", &headers, "").await.status, 202);
    assert_eq!(post_legacy(address, Some(&session), &list(), &ada).await.status, 404);
}

#[tokio::test]
async fn a_client_within_its_share_loses_no_session_to_another() {
    let running = serve(|builder| {
        let builder = ["ada", "eve"].into_iter().fold(builder, |all, token| all.bearer(Secret::new(token)));
        builder.limits(|limits| limits.sessions = 4)
    })
    .await;
    let address = running.address();
    let (ada, eve) = ([("Authorization", "Bearer ada")], [("Authorization", "Bearer eve")]);
    let of_ada = begin_session(address, json!({}), &ada).await;
    let mut of_eve = Vec::new();
    for _ in 0..6 {
        of_eve.push(begin_session(address, json!({}), &eve).await);
    }
    assert_eq!(post_legacy(address, Some(&of_ada), &list(), &ada).await.status, 200);
    // What is beyond the share of the other gives way.
    let second = begin_session(address, json!({}), &ada).await;
    for session in [&of_ada, &second] {
        assert_eq!(post_legacy(address, Some(session), &list(), &ada).await.status, 200);
    }
    for (session, expected) in of_eve.iter().zip([404, 404, 404, 404, 200, 200]) {
        assert_eq!(post_legacy(address, Some(session), &list(), &eve).await.status, expected);
    }
}

#[tokio::test]
async fn an_abandoned_session_ends_by_itself() {
    let running =
        serve(|builder| builder.limits(|limits| limits.session_idle = std::time::Duration::from_millis(200)))
            .await;
    let session = begin_session(running.address(), json!({}), &[]).await;
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(post_legacy(running.address(), Some(&session), &list(), &[]).await.status, 404);
}
