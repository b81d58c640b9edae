//! Every parser of untrusted input of this client, fed with randomly mutated inputs. The seed is fixed, so a
//! failure is reproducible; raise `ROUNDS` for a long run.

use reqwest::Url;
use serde_json::{Value, json};

use super::challenge::Challenge;
use super::metadata::{Issuer, Resource};
use crate::client::message::{Line, read};
use crate::client::response::Pending;

const ROUNDS: u64 = 4_000;
/// Tokens that one of the parsers treats specially.
const PIECES: [&str; 15] =
    ["\"", "\\", ",", "=", " ", "{", "}", "[", "]", ":", "null", "\u{0}", "é", "1e999", "//"];

/// A pseudo-random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// A mutation of a text: bytes changed, removed or duplicated, and tokens inserted.
    fn mutate(&mut self, text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=self.below(6) {
            let (at, other) = (self.below(bytes.len()), self.below(bytes.len()));
            let (from, to) = (at.min(other), at.max(other));
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(from..to)),
                2 => drop(bytes.splice(at..at, PIECES[self.below(PIECES.len())].bytes())),
                3 => bytes.extend_from_within(from..to),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = self.below(256) as u8;
                    }
                }
            }
        }
        bytes
    }
}

fn check(seed: &str, holds: impl Fn(&[u8])) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed.len() as u64);
    holds(seed.as_bytes());
    for _ in 0..ROUNDS {
        holds(&random.mutate(seed));
    }
}

#[test]
fn a_challenge_has_only_valid_scopes() {
    let seed = r#"Basic realm="x", Bearer error="insufficient_scope", scope="a b", resource_metadata="https://a.example/x""#;
    check(seed, |bytes| {
        let challenge = Challenge::read(&String::from_utf8_lossy(bytes), true);
        assert!(challenge.scopes.iter().all(|scope| !scope.is_empty() && !scope.contains(' ')));
    });
}

#[test]
fn metadata_names_the_requested_server_or_is_rejected() {
    let (server, issuer) = (Url::parse("https://a.example/mcp").unwrap(), "https://login.example");
    let resource = json!({ "resource": "https://a.example/mcp", "authorization_servers": [issuer], "scopes_supported": ["a"] });
    check(&resource.to_string(), |bytes| {
        let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
        if let Ok(read) = Resource::read(document, &server) {
            let url = Url::parse(&read.resource).unwrap();
            assert_eq!(url.origin(), server.origin());
            assert!(
                read.scopes_supported.unwrap_or_default().iter().all(|scope| !scope.contains([' ', '"']))
            );
        }
    });
    let document = json!({ "issuer": issuer, "token_endpoint": "https://login.example/token",
        "code_challenge_methods_supported": ["S256"], "scopes_supported": ["a"] });
    check(&document.to_string(), |bytes| {
        let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
        if let Ok(read) = Issuer::read(document, issuer) {
            assert_eq!(read.issuer, issuer);
        }
    });
}

#[test]
fn a_message_parses_or_becomes_an_error_or_is_dropped() {
    for seed in [
        r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":[1,2]}}}"#,
        r#"{"jsonrpc":"2.0","id":8,"method":"elicitation/create","params":{"message":"Which?","requestedSchema":{"type":"object","properties":{}}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.5}}"#,
        r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"no","data":{"a":[null]}}}"#,
    ] {
        check(seed, |bytes| {
            read(&Line::Whole(bytes.to_vec()), &Pending::default());
            read(&Line::TooLong(bytes.to_vec()), &Pending::default());
        });
    }
}
