//! Every reader of what a stranger sends to this client, with good texts that are changed by chance. The chance is that
//! of a fixed seed, so that what fails once fails again; `ROUNDS` may be raised for a long run.

use reqwest::Url;
use serde_json::{Value, json};

use super::challenge::Challenge;
use super::key::Key;
use super::metadata::{Issuer, Resource};
use crate::client::message::{Line, read};

const ROUNDS: u64 = 4_000;
/// Pieces that mean something to one of the readers.
const PIECES: [&str; 16] = [
    "\"",
    "\\",
    ",",
    "=",
    " ",
    "{",
    "}",
    "[",
    "]",
    ":",
    "null",
    "\u{0}",
    "é",
    "-----BEGIN PRIVATE KEY-----\n",
    "1e999",
    "//",
];

/// Numbers by chance (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// A text with some of its bytes changed, taken out, or doubled, and pieces put in.
    fn changed(&mut self, text: &str) -> Vec<u8> {
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
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ seed.len() as u64);
    holds(seed.as_bytes());
    for _ in 0..ROUNDS {
        holds(&chance.changed(seed));
    }
}

#[test]
fn a_challenge_has_only_scopes_that_can_be_asked_for() {
    let seed = r#"Basic realm="x", Bearer error="insufficient_scope", scope="a b", resource_metadata="https://a.example/x""#;
    check(seed, |bytes| {
        let challenge = Challenge::read(&String::from_utf8_lossy(bytes), true);
        assert!(challenge.scopes.iter().all(|scope| !scope.is_empty() && !scope.contains(' ')));
    });
}

#[test]
fn a_document_is_of_who_was_asked_or_none() {
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
fn a_message_is_one_or_an_error_for_its_request_or_nothing() {
    for seed in [
        r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":[1,2]}}}"#,
        r#"{"jsonrpc":"2.0","id":8,"method":"elicitation/create","params":{"message":"Which?","requestedSchema":{"type":"object","properties":{}}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.5}}"#,
        r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"no","data":{"a":[null]}}}"#,
    ] {
        check(seed, |bytes| {
            read(&Line::Whole(bytes.to_vec()));
            read(&Line::TooLong(bytes.to_vec()));
        });
    }
}

#[test]
fn a_key_is_one_or_an_error() {
    let seed = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PRIVATE KEY-----\n";
    check(seed, |bytes| {
        if let Err(error) = Key::read(&toolpost_core::Secret::new(String::from_utf8_lossy(bytes))) {
            assert!(error.message().starts_with("the private key: "));
        }
    });
}
