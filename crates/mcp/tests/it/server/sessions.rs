//! Legacy sessions: bounded, each with an owner.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::Secret;
use toolpost_testkit::eventually;

use super::support::{begin_session, post_legacy, request, serve, status};

const ADA: (&str, &str) = ("Authorization", "Bearer ada");
const EVE: (&str, &str) = ("Authorization", "Bearer eve");

fn list() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })
}

#[tokio::test]
async fn the_least_recently_used_session_is_evicted() {
    let running = serve(|builder| builder.limits(|limits| limits.sessions = 2)).await;
    let address = running.address();
    let first = begin_session(address, &[]).await;
    let second = begin_session(address, &[]).await;
    assert_eq!(post_legacy(address, Some(&first), &list(), &[]).await.status, 200);
    let third = begin_session(address, &[]).await;
    for (session, expected) in [(&first, 200), (&second, 404), (&third, 200)] {
        assert_eq!(post_legacy(address, Some(session), &list(), &[]).await.status, expected);
    }
    assert_eq!(status(address).await["sessions"], 2);
}

#[tokio::test]
async fn a_session_belongs_to_its_owner_and_its_id_is_random() {
    let running = serve(|builder| builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))).await;
    let address = running.address();
    let session = begin_session(address, &[ADA]).await;
    assert!(session.len() == 64 && session.bytes().all(|byte| byte.is_ascii_hexdigit()), "{session}");
    let post = async |token| post_legacy(address, Some(&session), &list(), &[token]).await.status;
    assert_eq!(post(EVE).await, 404);
    let stream = ("Accept", "text/event-stream");
    for (method, id, headers, expected) in [
        ("DELETE", session.as_str(), vec![EVE], 404),
        ("DELETE", "unknown", vec![EVE], 404),
        ("DELETE", &session, vec![("Authorization", "Bearer no")], 401),
        ("GET", &session, vec![EVE, stream], 404),
    ] {
        let headers = [&[("Mcp-Session-Id", id)], headers.as_slice()].concat();
        assert_eq!(request(address, method, "/mcp", &headers, "").await.status, expected, "{headers:?}");
    }
    assert_eq!(post(ADA).await, 200);
    let headers = [("Mcp-Session-Id", session.as_str()), ADA];
    assert_eq!(request(address, "DELETE", "/mcp", &headers, "").await.status, 200);
    assert_eq!(post(ADA).await, 404);
}

#[tokio::test]
async fn a_client_within_its_share_loses_no_session_to_another() {
    let running = serve(|builder| {
        let builder = builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"));
        builder.limits(|limits| limits.sessions = 4)
    })
    .await;
    let address = running.address();
    let mut sessions = vec![(begin_session(address, &[ADA]).await, ADA, 200)];
    for expected in [404, 404, 404, 404, 200, 200] {
        sessions.push((begin_session(address, &[EVE]).await, EVE, expected));
    }
    assert_eq!(post_legacy(address, Some(&sessions[0].0), &list(), &[ADA]).await.status, 200);
    // A new session of ada evicts one beyond eve's share.
    sessions.push((begin_session(address, &[ADA]).await, ADA, 200));
    for (session, token, expected) in sessions {
        assert_eq!(
            post_legacy(address, Some(&session), &list(), &[token]).await.status,
            expected,
            "{token:?}"
        );
    }
}

#[tokio::test]
async fn an_idle_session_expires() {
    let idle = Duration::from_millis(200);
    let running = serve(|builder| builder.limits(|limits| limits.session_idle = idle)).await;
    let address = running.address();
    let session = begin_session(address, &[]).await;
    // A rejected session id must not count as a use.
    eventually("the session is gone", async || {
        tokio::time::sleep(2 * idle).await;
        post_legacy(address, Some(&session), &list(), &[]).await.status == 404
    })
    .await;
}
