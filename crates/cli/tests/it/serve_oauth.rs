//! `serve` with OAuth tokens of an independent library.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::serve::free;
use crate::support::{TestEnv, eventually, repository};

/// Writes a JWK set with three kinds of keys, and prints good tokens and one per fault.
const MAKER: &str = r#"
import base64, json, sys, time
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

directory, issuer, audience = sys.argv[1:4]
keys = {
    "RS256": (rsa.generate_private_key(public_exponent=65537, key_size=2048), RSAAlgorithm),
    "ES256": (ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}
stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)

def public(name):
    key, algorithm = keys[name]
    return dict(json.loads(algorithm.to_jwk(key.public_key())), kid=name, use="sig", alg=name)

def write(name, names):
    with open(f"{directory}/{name}", "w") as file:
        json.dump({"keys": [public(each) for each in names]}, file)

write("keys.json", keys)
write("fewer.json", ["ES256"])
now = int(time.time())
good = {"iss": issuer, "aud": audience, "sub": "ada", "exp": now + 600, "nbf": now - 5, "scope": "tools more"}

def made(name="RS256", key=None, headers=None, **changes):
    claims = {each: value for each, value in dict(good, **changes).items() if value is not None}
    return jwt.encode(claims, key or keys[name][0], algorithm=name, headers={"kid": name, **(headers or {})})

def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

def with_secret(secret):
    import hashlib, hmac
    message = part({"alg": "HS256", "typ": "JWT", "kid": "RS256"}) + "." + part(good)
    signature = hmac.new(secret, message.encode(), hashlib.sha256).digest()
    return message + "." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

public_key = keys["RS256"][0].public_key()
pem = public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
der = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
whole = made()
print(json.dumps([
    ["RS256", made("RS256"), 200],
    ["ES256", made("ES256"), 200],
    ["EdDSA", made("EdDSA"), 200],
    ["several audiences", made(aud=["https://other.example", audience]), 200],
    ["no algorithm", jwt.encode(good, None, algorithm="none"), 401],
    ["no algorithm, in capitals", part({"alg": "NONE"}) + "." + part(good) + ".", 401],
    ["the public key as a secret", with_secret(pem), 401],
    ["the same without the last line end", with_secret(pem.strip()), 401],
    ["the same as bytes", with_secret(der), 401],
    ["a stranger's key", made(key=stranger), 401],
    ["another key's name", made("ES256", headers={"kid": "RS256"}), 401],
    ["ended", made(exp=now - 3600), 401],
    ["without an end", made(exp=None), 401],
    ["not yet", made(nbf=now + 3600), 401],
    ["another audience", made(aud="https://other.example/mcp"), 401],
    ["no audience", made(aud=None), 401],
    ["another issuer", made(iss="https://login.example.evil.com"), 401],
    ["no subject", made(sub=None), 401],
    ["no scope", made(scope=None), 403],
    ["another scope", made(scope="toolsy more"), 403],
    ["a changed claim", whole.split(".")[0] + "." + part(dict(good, sub="eve")) + "." + whole.split(".")[2], 401],
    ["a cut signature", whole[:-8], 401],
]))
"#;

/// The answer to a status request, and its head.
fn status(address: SocketAddr, token: Option<&str>) -> (u16, String) {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// Makes keys and tokens: the kind of each token, the token, and the expected status.
fn make(env: &TestEnv, python: &Path, resource: &str) -> Vec<(String, String, u16)> {
    let script = env.write("maker.py", MAKER);
    #[expect(clippy::disallowed_methods, reason = "an independent library makes the tokens")]
    let made = std::process::Command::new(python)
        .arg(script)
        .arg(env.path(""))
        .args(["https://login.example", resource])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    serde_json::from_slice(&made.stdout).unwrap()
}

#[test]
pub(crate) fn only_tokens_of_the_issuer_are_accepted() {
    let python = repository(".dev").join("fastmcp-env/bin/python3");
    if !python.is_file() {
        println!("SKIP only_tokens_of_the_issuer_are_accepted: `cargo xtask test` installs fastmcp");
        return;
    }
    let env = TestEnv::new();
    let address = free();
    let resource = format!("http://{address}/mcp");
    let tokens = make(&env, &python, &resource);
    let address_text = address.to_string();
    let words = |issuer: &'static str| {
        let mut words = vec!["serve", "builtin:calculate", "--http", &address_text, "--oauth-issuer", issuer];
        words.extend(["--oauth-keys", "keys.json", "--oauth-resource", &resource, "--oauth-scope", "tools"]);
        words
    };
    let running = env.start_with_errors_in("serve.log", words("https://login.example"));
    eventually("it answers", || TcpStream::connect(address).is_ok());
    for (what, token, expected) in &tokens {
        let (found, answer) = status(address, Some(token));
        assert_eq!(found, *expected, "{what}: {answer}");
        if found != 200 {
            let place = "/.well-known/oauth-protected-resource/mcp";
            assert!(answer.contains(&format!("resource_metadata=\"http://{address}{place}\"")), "{answer}");
            let error = if found == 403 { "insufficient_scope" } else { "invalid_token" };
            assert!(answer.contains(error), "{what}: {answer}");
        }
    }
    assert_eq!(status(address, None).0, 401);
    let mut stream = TcpStream::connect(address).unwrap();
    let place = "/.well-known/oauth-protected-resource/mcp";
    write!(stream, "GET {place} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let metadata: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(metadata["resource"], resource);
    assert_eq!(metadata["authorization_servers"][0], "https://login.example");
    assert_eq!(metadata["scopes_supported"][0], "tools");
    // The issuer revoked two of its keys.
    let token = |name: &str| tokens.iter().find(|(what, ..)| what == name).unwrap().1.clone();
    std::fs::rename(env.path("fewer.json"), env.path("keys.json")).unwrap();
    eventually("the keys of before are forgotten", || status(address, Some(&token("RS256"))).0 == 401);
    // An invalid file changes nothing. A request makes the server look at it.
    env.write("keys.json", "nonsense");
    eventually("the server rejects the file", || {
        assert_eq!(status(address, Some(&token("ES256"))).0, 200);
        env.read("serve.log").contains("reloading keys failed")
    });
    assert_eq!(status(address, Some(&token("ES256"))).0, 200);
    assert_eq!(status(address, Some(&token("EdDSA"))).0, 401);
    running.signal(Signal::TERM);
    let finished = running.finish().exit(0);
    let log = env.read("serve.log");
    assert!(
        ![&finished.to_string(), &log].iter().any(|text| text.contains(&token("ES256"))),
        "{finished}\n{log}"
    );
    env.run(words("https://login.example")).exit(1);
    std::fs::remove_file(env.path("keys.json")).unwrap();
    env.run(words("https://login.example")).exit(1);
    env.run(["serve", "--http", "127.0.0.1:0", "--oauth-issuer", "https://login.example"]).exit(2);
    env.run(["serve", "--http", "127.0.0.1:0", "--oauth-scope", "tools"]).exit(2);
}
