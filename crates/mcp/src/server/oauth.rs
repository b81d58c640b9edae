//! Validates JWT access tokens of an authorization server.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Uri;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Value, json};
use toolpost_core::ToolError;

use super::Client;

/// The longest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// The tolerated clock skew, in seconds.
const LEEWAY: u64 = 60;
/// The poll interval of a key file.
const KEY_FILE_POLL: Duration = Duration::from_secs(1);
/// The largest key file, in bytes.
const MAX_KEY_FILE: u64 = 1 << 20;

/// An OAuth 2.1 resource server (RFC 9728): accepts tokens of one authorization server.
///
/// A token must be a JWT signed with `RS256`, `ES256` or `EdDSA` by a known key. It must name the issuer and
/// this resource as its audience, be unexpired, and have every required scope. Other forms are rejected.
#[derive(Clone)]
pub struct ResourceServer {
    resource: String,
    issuer: String,
    metadata_url: String,
    keys: Arc<Keys>,
    scopes: Vec<String>,
}

/// The current keys.
struct Keys {
    known: RwLock<Arc<[Key]>>,
    file: Mutex<KeyFile>,
}

/// The file that the keys come from.
struct KeyFile {
    path: PathBuf,
    /// The version of the file that was read.
    stamp: Option<(SystemTime, u64)>,
    checked: Instant,
}

/// The version of a file: when it changed, and its size.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let known = path.metadata().ok()?;
    Some((known.modified().ok()?, known.len()))
}

impl Keys {
    /// The current keys, reloaded when the file has changed. An unreadable file changes nothing.
    fn current(&self) -> Arc<[Key]> {
        if let Ok(mut file) = self.file.try_lock()
            && file.checked.elapsed() >= KEY_FILE_POLL
        {
            file.checked = Instant::now();
            let now = stamp(&file.path);
            if now != file.stamp {
                file.stamp = now;
                match read_keys(&file.path) {
                    Ok(keys) => *self.known.write().unwrap_or_else(PoisonError::into_inner) = keys,
                    Err(error) => tracing::error!("reloading keys failed; using the previous keys: {error}"),
                }
            }
        }
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads a key file, with a size limit.
fn read_keys(path: &Path) -> Result<Arc<[Key]>, ToolError> {
    let failed = |error: std::io::Error| {
        ToolError::invalid_path(format!("cannot read the key file `{}`: {error}", path.display()))
    };
    let mut text = String::new();
    let mut file = std::fs::File::open(path).map_err(failed)?.take(MAX_KEY_FILE + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_KEY_FILE {
        return Err(ToolError::limit(format!("`{}` is larger than 1 MiB", path.display())));
    }
    parse_keys(&text)
        .map_err(|error| ToolError::invalid_input(format!("`{}`: {}", path.display(), error.message())))
}

/// The supported keys of a JWK set.
fn parse_keys(set: &str) -> Result<Arc<[Key]>, ToolError> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_str(set)
        .map_err(|error| ToolError::invalid_input(format!("invalid JWK set: {error}")))?;
    let keys: Arc<[Key]> =
        set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok()?.key()).collect();
    if keys.is_empty() {
        return Err(ToolError::invalid_input("the JWK set has no key for RS256, ES256 or EdDSA"));
    }
    Ok(keys)
}

#[derive(Clone)]
struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Material {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            Self::P256(point) => UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                .verify(message, signature)
                .is_ok(),
            Self::Ed25519(point) => {
                UnparsedPublicKey::new(&signature::ED25519, point).verify(message, signature).is_ok()
            }
        }
    }
}

/// A JWK; keys for other purposes are skipped.
#[derive(Deserialize)]
struct Jwk {
    kid: Option<String>,
    kty: String,
    crv: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    fn key(self) -> Option<Key> {
        let part = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Material::Rsa { n: part(self.n)?, e: part(self.e)? },
            ("EC", Some("P-256")) => Material::P256([vec![4], part(self.x)?, part(self.y)?].concat()),
            ("OKP", Some("Ed25519")) => Material::Ed25519(part(self.x)?),
            _ => return None,
        };
        let is_usable = self.purpose.is_none_or(|purpose| purpose == "sig")
            && self.alg.is_none_or(|algorithm| algorithm == material.algorithm());
        is_usable.then_some(Key { id: self.kid, material })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    sub: Option<String>,
    exp: f64,
    nbf: Option<f64>,
    scope: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// The token is invalid, expired, or for another issuer or resource.
    Invalid,
    /// The token lacks a required scope.
    Scope,
}

impl ResourceServer {
    /// Creates a resource server. `resource` is the audience of tokens, such as `https://tools.example/mcp`;
    /// `issuer` must match exactly; `keys` is a file with a JWK set. A changed file is reloaded within a
    /// second; while it cannot be read, the previous keys stay.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the resource is not a URL or the file has no supported key; `INVALID_PATH` if it
    /// cannot be read; `LIMIT` if it is larger than 1 MiB.
    pub fn new(
        resource: impl Into<String>,
        issuer: impl Into<String>,
        keys: impl Into<PathBuf>,
    ) -> Result<Self, ToolError> {
        let (resource, path) = (resource.into(), keys.into());
        let metadata_url = metadata_url(&resource).ok_or_else(|| {
            ToolError::invalid_input(format!(
                "the resource `{resource}` is not a URL such as https://tools.example/mcp"
            ))
        })?;
        // Taken before reading, so a change in between is detected.
        let stamp = stamp(&path);
        let known = RwLock::new(read_keys(&path)?);
        let keys = Keys { known, file: Mutex::new(KeyFile { path, stamp, checked: Instant::now() }) };
        Ok(Self { resource, issuer: issuer.into(), metadata_url, keys: Arc::new(keys), scopes: Vec::new() })
    }

    /// Requires a scope. Call again to require several.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// The resource metadata (RFC 9728).
    pub(super) fn metadata(&self) -> Value {
        json!({
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": self.scopes,
            "bearer_methods_supported": ["header"],
        })
    }

    /// The `WWW-Authenticate` challenge for a rejected request.
    pub(super) fn challenge(&self, error: Option<TokenError>) -> String {
        let metadata = format!("resource_metadata=\"{}\"", self.metadata_url);
        match error {
            None => format!("Bearer {metadata}"),
            Some(TokenError::Invalid) => format!("Bearer error=\"invalid_token\", {metadata}"),
            Some(TokenError::Scope) => {
                format!(
                    "Bearer error=\"insufficient_scope\", scope=\"{}\", {metadata}",
                    self.scopes.join(" ")
                )
            }
        }
    }

    /// The client of a valid token.
    pub(super) fn client(&self, token: &str) -> Result<Client, TokenError> {
        Ok(self.client_of(&self.subject(token)?))
    }

    /// The client of a subject.
    pub(super) fn client_of(&self, subject: &str) -> Client {
        Client::of_subject(&self.issuer, subject)
    }

    /// The subject of a valid token.
    pub(super) fn subject(&self, token: &str) -> Result<String, TokenError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |time| time.as_secs());
        self.subject_at(token, now)
    }

    fn subject_at(&self, token: &str, now: u64) -> Result<String, TokenError> {
        let claims = self.claims(token).ok_or(TokenError::Invalid)?;
        let is_for_us = match &claims.aud {
            Audience::One(one) => *one == self.resource,
            Audience::Many(many) => many.contains(&self.resource),
        };
        let (now, leeway) = (now as f64, LEEWAY as f64);
        let is_current = claims.exp > now - leeway && claims.nbf.is_none_or(|from| from <= now + leeway);
        if claims.iss != self.issuer || !is_for_us || !is_current {
            return Err(TokenError::Invalid);
        }
        let granted: Vec<&str> =
            claims.scope.as_deref().unwrap_or_default().split_ascii_whitespace().collect();
        if !self.scopes.iter().all(|scope| granted.contains(&scope.as_str())) {
            return Err(TokenError::Scope);
        }
        // Without a subject clients could not be distinguished.
        claims.sub.filter(|subject| !subject.is_empty()).ok_or(TokenError::Invalid)
    }

    /// The claims of a token with a valid signature.
    fn claims(&self, token: &str) -> Option<Claims> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        let signature = decode(signature)?;
        let keys = self.keys.current();
        // The key determines the algorithm; the header must agree.
        let is_signed = header.crit.is_none()
            && keys
                .iter()
                .filter(|key| key.material.algorithm() == header.alg)
                .filter(|key| header.kid.is_none() || key.id.is_none() || key.id == header.kid)
                .any(|key| key.material.verify(message.as_bytes(), &signature));
        if !is_signed {
            return None;
        }
        serde_json::from_slice(&decode(payload)?).ok()
    }
}

/// The metadata URL of a resource: its path after the well-known path.
fn metadata_url(resource: &str) -> Option<String> {
    let uri: Uri = resource.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let path = uri.path().trim_end_matches('/');
    Some(format!("{scheme}://{authority}/.well-known/oauth-protected-resource{path}"))
}

impl fmt::Debug for ResourceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceServer")
            .field("resource", &self.resource)
            .field("issuer", &self.issuer)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};

    const RESOURCE: &str = "https://tools.example/mcp";
    const ISSUER: &str = "https://login.example";
    const NOW: u64 = 1_800_000_000;

    fn encode(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn signer() -> (Ed25519KeyPair, Value) {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        (pair, json!({ "kty": "OKP", "crv": "Ed25519", "kid": "one", "use": "sig", "x": x }))
    }

    fn token(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }

    fn resource_server(resource: &str, keys: &Value) -> Result<ResourceServer, ToolError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), keys.to_string()).unwrap();
        ResourceServer::new(resource, ISSUER, file.path())
    }

    fn with(key: &str, value: Value) -> Value {
        let mut claims =
            json!({ "iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": NOW + 600, "scope": "tools other" });
        claims[key] = value;
        claims
    }

    #[test]
    fn only_a_valid_token_is_accepted() {
        let (pair, key) = signer();
        let (other_signer, _) = signer();
        let keys = json!({ "keys": [{ "kty": "oct", "k": "AAAA" }, key] });
        let server = resource_server(RESOURCE, &keys).unwrap().scope("tools");
        let header = json!({ "alg": "EdDSA", "kid": "one" });
        let good = with("jti", json!("1"));
        let check = |header: &Value, claims: &Value| server.subject_at(&token(&pair, header, claims), NOW);
        assert_eq!(check(&header, &good), Ok("ada".to_owned()));
        assert_eq!(check(&header, &with("aud", json!(["x", RESOURCE]))), Ok("ada".to_owned()));
        assert_eq!(check(&header, &with("exp", json!(NOW - 30))), Ok("ada".to_owned()), "clocks differ");
        for (what, claims) in [
            ("another issuer", with("iss", json!("https://login.example.evil.com"))),
            ("another audience", with("aud", json!("https://other.example/mcp"))),
            ("expired", with("exp", json!(NOW - 61))),
            ("no expiry", with("exp", json!(null))),
            ("not yet valid", with("nbf", json!(NOW + 61))),
            ("no subject", with("sub", json!(""))),
        ] {
            assert_eq!(check(&header, &claims), Err(TokenError::Invalid), "{what}");
        }
        assert_eq!(check(&header, &with("scope", json!("toolsy"))), Err(TokenError::Scope));
        for header in [
            json!({ "alg": "none" }),
            json!({ "alg": "HS256", "kid": "one" }),
            json!({ "alg": "ES256", "kid": "one" }),
            json!({ "alg": "EdDSA", "kid": "two" }),
            json!({ "alg": "EdDSA", "kid": "one", "crit": ["b64"] }),
        ] {
            assert_eq!(check(&header, &good), Err(TokenError::Invalid), "{header}");
        }
        assert_eq!(server.subject_at(&token(&other_signer, &header, &good), NOW), Err(TokenError::Invalid));
        let whole = token(&pair, &header, &good);
        let unsigned = format!("{}.", whole.rsplit_once('.').unwrap().0);
        let long = "x".repeat(MAX_TOKEN + 1);
        for bad in ["", ".", "..", "a.b.c", unsigned.as_str(), long.as_str()] {
            assert_eq!(server.subject_at(bad, NOW), Err(TokenError::Invalid), "{}", bad.len());
        }
        let other = encode(&with("sub", json!("eve")));
        let parts: Vec<&str> = whole.split('.').collect();
        let changed = format!("{}.{other}.{}", parts[0], parts[2]);
        assert_eq!(server.subject_at(&changed, NOW), Err(TokenError::Invalid));
    }

    #[test]
    fn p256_keys_are_supported() {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..65]));
        let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": x, "y": y }] });
        let server = resource_server(RESOURCE, &keys).unwrap();
        let message = format!("{}.{}", encode(&json!({ "alg": "ES256" })), encode(&with("jti", json!(1))));
        let signature = pair.sign(&random, message.as_bytes()).unwrap();
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()));
        assert_eq!(server.subject_at(&token, NOW), Ok("ada".to_owned()));
    }

    #[test]
    fn a_challenge_points_to_the_metadata() {
        let (_, key) = signer();
        let keys = json!({ "keys": [key] });
        let server = resource_server(RESOURCE, &keys).unwrap().scope("tools");
        let metadata = "resource_metadata=\"https://tools.example/.well-known/oauth-protected-resource/mcp\"";
        assert_eq!(server.challenge(None), format!("Bearer {metadata}"));
        assert_eq!(
            server.challenge(Some(TokenError::Invalid)),
            format!("Bearer error=\"invalid_token\", {metadata}")
        );
        assert_eq!(
            server.challenge(Some(TokenError::Scope)),
            format!("Bearer error=\"insufficient_scope\", scope=\"tools\", {metadata}")
        );
        assert_eq!(server.metadata()["authorization_servers"], json!([ISSUER]));
        for (resource, keys) in
            [("nonsense", &keys), (RESOURCE, &json!({})), (RESOURCE, &json!({ "keys": [] }))]
        {
            assert!(resource_server(resource, keys).is_err(), "{resource} {keys}");
        }
    }
}
