//! Tokens of an authorization server, over HTTP.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use toolpost_mcp::server::ResourceServer;

use super::support::{modern, post_with, request, serve};

const RESOURCE: &str = "https://tools.example/mcp";
const ISSUER: &str = "https://login.example";

fn token(pair: &Ed25519KeyPair, algorithm: &str, scope: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({ "iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": now + 600, "scope": scope });
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode(&json!({ "alg": algorithm })), encode(&claims));
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()).as_ref()))
}

#[tokio::test]
async fn a_token_of_the_issuer_is_required_and_the_challenge_names_the_metadata() {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] }).to_string();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.json");
    std::fs::write(&file, keys).unwrap();
    let rules = ResourceServer::new(RESOURCE, ISSUER, &file).unwrap().scope("tools");
    let running = serve(|builder| builder.oauth(rules)).await;
    let address = running.address();
    let call = async |authorization: Option<String>| {
        let message = modern(1, "tools/list", json!({}), json!({}));
        let headers: Vec<_> = authorization.iter().map(|value| ("Authorization", value.as_str())).collect();
        post_with(address, &message, &headers).await
    };
    let rejected = call(None).await;
    let challenge = rejected.header("www-authenticate").unwrap().to_owned();
    assert_eq!(rejected.status, 401);
    assert!(
        challenge.contains("https://tools.example/.well-known/oauth-protected-resource/mcp"),
        "{challenge}"
    );
    for (algorithm, scope, expected) in
        [("EdDSA", "tools", 200), ("EdDSA", "other", 403), ("none", "tools", 401), ("HS256", "tools", 401)]
    {
        let answer = call(Some(format!("Bearer {}", token(&pair, algorithm, scope)))).await;
        assert_eq!(answer.status, expected, "{algorithm} {scope}");
    }
    assert_eq!(call(Some("Bearer nonsense".to_owned())).await.status, 401);
    let metadata = request(address, "GET", "/.well-known/oauth-protected-resource/mcp", &[], "").await;
    assert_eq!(metadata.message()["authorization_servers"], json!([ISSUER]));
    let open = serve(|builder| builder).await;
    let none = request(open.address(), "GET", "/.well-known/oauth-protected-resource", &[], "").await;
    assert_eq!(none.status, 404);
}
