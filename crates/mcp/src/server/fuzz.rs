//! Property tests with random input for every parser of client data. For a long run: `PROPTEST_CASES=1000000
//! cargo nextest run -p toolpost-mcp fuzz`; proptest shrinks and prints failures. `cargo-fuzz` would need a
//! nightly compiler.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut as _, BytesMut};
use futures_util::StreamExt as _;
use http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use proptest::prelude::*;
use rmcp::model::JsonRpcMessage;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use toolpost_core::Secret;

use super::calls::Parking;
use super::guard::Guard;
use super::port::Abilities;
use super::request::{Operation, OperationKind};
use super::single_json::{First, first_message};
use super::tasks::TaskFilter;
use super::wire::{Lines, Read, RequestGate};
use super::{ResourceServer, ServerLimits};

/// Fragments of messages, valid and invalid.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "-0",
    "1e999",
    "123456789012345678901234567890",
    "\"jsonrpc\":\"2.0\"",
    "\"jsonrpc\":\"1.0\"",
    "\"id\":",
    "\"id\":1",
    "\"id\":-1",
    "\"id\":1.5",
    "\"id\":\"\"",
    "\"method\":\"tools/call\"",
    "\"method\":\"tasks/get\"",
    "\"method\":\"subscriptions/listen\"",
    "\"method\":\"notifications/cancelled\"",
    "\"params\":{",
    "\"params\":[",
    "\"taskId\":\"x\"",
    "\"notifications\":{\"taskIds\":[",
    "\"requestId\":1",
    "\"_meta\":{",
    "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"",
    "\"result\":{}",
    "\"error\":{\"code\":1,\"message\":\"\"}",
    "\u{feff}",
    "\u{202e}",
    "\n",
    "\r\n",
    " ",
    "\0",
    "data: ",
    "event: x\n",
    "id: 1\n\n",
];

/// Concatenated fragments, deep nesting, truncated messages, or random bytes.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let pieces = proptest::collection::vec(proptest::sample::select(PIECES), 0..40)
        .prop_map(|pieces| pieces.concat().into_bytes());
    let deep = (1_usize..3_000, proptest::sample::select(vec!["[", "{\"a\":", "{\"params\":[["]))
        .prop_map(|(depth, piece)| piece.repeat(depth).into_bytes());
    let whole =
        (any::<u64>(), proptest::sample::select(vec!["tools/call", "ping", "tasks/update"]), any::<u16>())
            .prop_map(|(id, method, cut)| {
                let params =
                    json!({ "name": "x", "taskId": "y", "arguments": {}, "inputResponses": { "a": 1 } });
                let text =
                    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
                let end = text.len() - usize::from(cut) % text.len();
                text.into_bytes().into_iter().take(end).collect::<Vec<u8>>()
            });
    prop_oneof![pieces, deep, whole, proptest::collection::vec(any::<u8>(), 0..300)]
}

/// A token or state with some bytes changed.
fn changed(good: &str, changes: &[(u16, u8)]) -> Option<String> {
    let mut bytes = good.as_bytes().to_vec();
    for (place, byte) in changes {
        let place = usize::from(*place) % bytes.len();
        bytes[place] = b' ' + byte % 95;
    }
    String::from_utf8(bytes).ok().filter(|text| text != good)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #[test]
    fn a_message_parses_or_gets_a_json_rpc_error(all in proptest::collection::vec(messages(), 1..8)) {
        let gate = RequestGate::new(4);
        let (mut open, mut freed) = (0, 0);
        let mut rejected = Vec::new();
        for bytes in &all {
            // Only valid JSON can have a task filter.
            prop_assert!(TaskFilter::from_message(bytes).is_none() || serde_json::from_slice::<Value>(bytes).is_ok());
            match gate.read(bytes) {
                Read::Message(message) => {
                    open += usize::from(matches!(*message, JsonRpcMessage::Request(_)));
                    freed += usize::from(matches!(*message, JsonRpcMessage::Notification(_)));
                }
                Read::Rejected(answer, permit) => {
                    let answer: Value = serde_json::from_slice(&answer).unwrap();
                    prop_assert_eq!(&answer["jsonrpc"], "2.0");
                    prop_assert!(answer["error"]["code"].is_i64() && answer.get("id").is_some());
                    rejected.push(permit);
                }
                Read::Nothing => {}
            }
            prop_assert!(open + rejected.len() <= 4 + freed, "too many open requests");
        }
    }

    #[test]
    fn no_line_exceeds_the_limit(bytes in proptest::collection::vec(messages(), 0..8)) {
        let input = bytes.join(&b"\n"[..]);
        let limits = ServerLimits { request_bytes: 64, requests_per_stream: 4, ..ServerLimits::default() };
        block_on(async {
            let mut lines = Lines::new(&input[..], Vec::<u8>::new(), &limits);
            let mut count = 0;
            while rmcp::transport::Transport::receive(&mut lines).await.is_some() {
                count += 1;
            }
            let most = input.split(|byte| *byte == b'\n').filter(|line| line.len() <= 64).count();
            assert!(count <= most, "{count} messages of {most} lines");
        });
    }

    #[test]
    fn an_event_stream_is_classified_by_its_first_message(bytes in messages()) {
        // Every prefix is checked; longer inputs add nothing.
        let bytes = &bytes[..bytes.len().min(400)];
        let whole = first_message(bytes);
        let mut classified = None;
        for end in 0..=bytes.len() {
            match first_message(&bytes[..end]) {
                // A prefix may end inside a character.
                First::NotYet => {}
                First::Answer(answer) => classified = classified.or(Some(Some(answer))),
                First::Other => classified = classified.or(Some(None)),
            }
        }
        match (classified, whole) {
            (Some(Some(early)), First::Answer(late)) => prop_assert_eq!(early, late),
            (Some(Some(_)), First::Other) => prop_assert!(false, "a response became something else"),
            _ => {}
        }
    }

    #[test]
    fn only_the_servers_own_hosts_are_admitted(
        host in "[a-z0-9.:@\\[\\]%-]{0,24}|(localhost|127\\.0\\.0\\.1|\\[::1\\])(:[0-9]{1,5})?[.@:a-z]{0,3}",
        origin in proptest::option::of("(https?://)?[a-z0-9.:@/]{0,20}|http://localhost(:[0-9]{1,5})?[/.a-z]{0,2}|null"),
    ) {
        let guard = Guard::default();
        let request = http::Request::get("/mcp").header(HOST, &host);
        let request = origin.iter().fold(request, |request, origin| request.header(ORIGIN, origin));
        let Ok(request) = request.body(()) else { return Ok(()) };
        let (head, ()) = request.into_parts();
        let admitted = guard.admit(&head, "127.0.0.1:8080".parse().unwrap(), false).is_ok();
        let own = |text: &str| {
            let Some((name, port)) = text.rsplit_once(':') else { return false };
            let name = name.trim_start_matches('[').trim_end_matches(']');
            port.parse() == Ok(8_080_u16) && (name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()))
        };
        let is_own_page = origin.as_deref().is_none_or(|origin| origin.strip_prefix("http://").is_some_and(own));
        prop_assert_eq!(admitted, own(&host) && is_own_page, "{} {:?}", host, origin);
    }

    #[test]
    fn only_the_exact_token_authenticates(value in proptest::collection::vec(any::<u8>(), 0..60), near in "Bearer toke[a-z]{0,2}[ ,]?") {
        let mut guard = Guard::default();
        guard.accept(Secret::new("token"), None);
        for bytes in [value, near.into_bytes()] {
            let Ok(header) = HeaderValue::from_bytes(&bytes) else { continue };
            let is_good = bytes.trim_ascii().eq_ignore_ascii_case(b"bearer token") && bytes.trim_ascii().ends_with(b" token");
            let mut headers = http::HeaderMap::new();
            headers.insert(AUTHORIZATION, header);
            prop_assert!(guard.authenticate(&headers).is_err() || is_good, "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_modified_token_is_rejected(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4), junk in "[A-Za-z0-9_.=-]{0,80}") {
        use ring::signature::{Ed25519KeyPair, KeyPair as _};
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] }).to_string();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), keys).unwrap();
        let server = ResourceServer::new("https://a.example/mcp", "i", file.path()).unwrap();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({ "iss": "i", "aud": "https://a.example/mcp", "sub": "ada", "exp": 32_000_000_000_u64 });
        let message = format!("{}.{}", encode(json!({ "alg": "EdDSA" })), encode(claims));
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()).as_ref()));
        prop_assert_eq!(server.subject(&token), Ok("ada".to_owned()));
        prop_assert!(server.subject(&junk).is_err());
        if let Some(other) = changed(&token, &changes) {
            prop_assert!(server.subject(&other).is_err(), "{}", other);
        }
    }

    #[test]
    fn an_unknown_request_state_is_rejected(junk in "[A-Za-z0-9_.=-]{0,200}") {
        let parking = Arc::new(Parking::new(4, std::time::Duration::from_mins(1)));
        let binding = Operation::new(OperationKind::Call, "x".to_owned(), None).binding(None);
        prop_assert!(parking.resume(&junk, BTreeMap::new(), Abilities::default(), &binding).is_err());
        prop_assert_eq!(parking.len(), 0);
    }

    #[test]
    fn websocket_frames_never_exceed_the_limit(frames in proptest::collection::vec((any::<u8>(), any::<u8>(), messages()), 0..6), junk in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = BytesMut::new();
        for (first, mask, payload) in &frames {
            // Mostly valid frames, with any opcode and flags.
            bytes.put_u8(*first);
            let length = payload.len().min(60_000) as u16;
            bytes.put_u8(if mask % 8 == 0 { 0x7e } else { 0xfe });
            bytes.put_u16(length);
            if mask % 8 != 0 {
                bytes.put_slice(&[0; 4]);
            }
            bytes.put_slice(&payload[..usize::from(length)]);
        }
        bytes.put_slice(&junk);
        block_on(async {
            let mut config = WebSocketConfig::default();
            config.max_message_size = Some(1_000);
            config.max_frame_size = Some(1_000);
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            let (read, mut write) = tokio::io::split(theirs);
            tokio::io::AsyncWriteExt::write_all(&mut write, &bytes).await.unwrap();
            drop((read, write));
            let mut stream = WebSocketStream::from_raw_socket(ours, Role::Server, Some(config)).await;
            let gate = RequestGate::new(4);
            while let Some(Ok(message)) = stream.next().await {
                assert!(message.len() <= 1_000, "{} bytes", message.len());
                gate.read(&message.into_data());
            }
        });
    }
}
