//! Keys of ours: what a client proves itself with, and what a token is bound to (`DPoP`, RFC 9449).

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use toolpost_core::{Secret, ToolError};

/// How long an assertion about a client holds, in seconds.
const ASSERTION: u64 = 300;
/// The largest key, in bytes of its text.
const MAX_KEY: usize = 32 << 10;

/// A key that signs.
pub(super) enum Key {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.algorithm())
    }
}

fn failed(what: &str) -> ToolError {
    ToolError::internal(format!("this machine could not {what}"))
}

/// Bytes that nobody can guess, as text.
pub(super) fn random() -> Result<String, ToolError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| failed("make random bytes"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The SHA-256 of a text, as text.
pub(super) fn hashed(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()))
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Key {
    /// A key in the form PKCS #8, as PEM.
    pub(super) fn read(pem: &Secret) -> Result<Self, ToolError> {
        let wrong = |why: &str| {
            ToolError::invalid_input(format!("the private key: {why}"))
                .suggest("Make it of the right form with `openssl pkcs8 -topk8 -nocrypt`.")
        };
        let text = pem.expose();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let (mut body, mut first, mut last) = (String::new(), None, None);
        for line in lines {
            if line.starts_with("-----") {
                last = Some(line);
                first.get_or_insert(line);
            } else {
                body.push_str(line);
            }
        }
        let is_key =
            first == Some("-----BEGIN PRIVATE KEY-----") && last == Some("-----END PRIVATE KEY-----");
        if !is_key || text.len() > MAX_KEY {
            return Err(wrong("expected PEM with `BEGIN PRIVATE KEY` (PKCS #8)"));
        }
        let document = STANDARD.decode(body).map_err(|_| wrong("its text is no Base64"))?;
        Self::of_document(&document)
            .ok_or_else(|| wrong("expected one of P-256, Ed25519 or RSA (2,048 bits or more)"))
    }

    fn of_document(document: &[u8]) -> Option<Self> {
        let curve =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document, &SystemRandom::new())
                .map(Self::P256);
        curve
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(document).map(Self::Ed25519))
            .or_else(|_| RsaKeyPair::from_pkcs8(document).map(Self::Rsa))
            .ok()
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
    }

    /// A signed token (JWS) of a header and claims.
    fn signed(&self, mut header: Value, claims: &Value) -> Result<String, ToolError> {
        header["alg"] = self.algorithm().into();
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&header), encode(claims));
        let (random, bytes) = (SystemRandom::new(), message.as_bytes());
        let signature = match self {
            Self::P256(pair) => pair.sign(&random, bytes).map_err(|_| failed("sign"))?.as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature).map_err(|_| failed("sign"))?;
                signature
            }
        };
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Says that it is this client that asks this authorization server (RFC 7523, `private_key_jwt`).
    pub(super) fn assertion(&self, client: &str, issuer: &str) -> Result<Secret, ToolError> {
        let now = now();
        let claims = json!({
            "iss": client, "sub": client, "aud": issuer, "jti": random()?, "iat": now, "exp": now + ASSERTION,
        });
        self.signed(json!({ "typ": "JWT" }), &claims).map(Secret::new)
    }
}

/// A key that tokens are bound to.
pub(super) struct Proof {
    key: Key,
    /// Its public half, as a JWK.
    public: Value,
    /// The whole of it, to be kept.
    pub(super) kept: Secret,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

impl Proof {
    pub(super) fn new() -> Result<Self, ToolError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| failed("make a key"))?;
        Self::kept(&Secret::new(STANDARD.encode(document.as_ref()))).ok_or_else(|| failed("make a key"))
    }

    /// One that was kept.
    pub(super) fn kept(kept: &Secret) -> Option<Self> {
        let key = Key::of_document(&STANDARD.decode(kept.expose()).ok()?)?;
        let Key::P256(pair) = &key else { return None };
        // The point: a byte for its form, and its two coordinates.
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
        let public = json!({ "crv": "P-256", "kty": "EC", "x": encode(x), "y": encode(y) });
        Some(Self { key, public, kept: kept.clone() })
    }

    /// The name of the key (RFC 7638): the fields of its public half in the order of their names.
    pub(super) fn thumbprint(&self) -> String {
        hashed(&self.public.to_string())
    }

    /// Proves for one request that it comes from whoever has the key.
    pub(super) fn of_request(
        &self,
        method: &str,
        url: &Url,
        token: Option<&Secret>,
        nonce: Option<&str>,
    ) -> Result<String, ToolError> {
        let mut place = url.clone();
        place.set_query(None);
        place.set_fragment(None);
        let mut claims = json!({ "jti": random()?, "htm": method, "htu": place.as_str(), "iat": now() });
        if let Some(token) = token {
            claims["ath"] = hashed(token.expose()).into();
        }
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        self.key.signed(json!({ "typ": "dpop+jwt", "jwk": self.public }), &claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    fn part(token: &str, index: usize) -> Value {
        let text = token.split('.').nth(index).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
    }

    #[test]
    fn a_proof_names_its_request_and_is_signed_by_the_key_in_it() {
        let proof = Proof::new().unwrap();
        let url = Url::parse("https://a.example/mcp?x=1#y").unwrap();
        let token = Secret::new("abc");
        let made = proof.of_request("POST", &url, Some(&token), Some("n")).unwrap();
        let (header, claims) = (part(&made, 0), part(&made, 1));
        assert_eq!((&header["typ"], &header["alg"]), (&json!("dpop+jwt"), &json!("ES256")));
        assert_eq!(
            (&claims["htm"], &claims["htu"], &claims["ath"], &claims["nonce"]),
            (&json!("POST"), &json!("https://a.example/mcp"), &json!(hashed("abc")), &json!("n"))
        );
        let decode = |name: &str| URL_SAFE_NO_PAD.decode(header["jwk"][name].as_str().unwrap()).unwrap();
        let point = [vec![4], decode("x"), decode("y")].concat();
        let (message, signature) = made.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(message.as_bytes(), &signature)
            .unwrap();
        // Each is another one, and the key comes back as it was.
        assert_ne!(made, proof.of_request("POST", &url, Some(&token), Some("n")).unwrap());
        assert_eq!(Proof::kept(&proof.kept).unwrap().thumbprint(), proof.thumbprint());
    }

    #[test]
    fn keys_are_read_and_wrong_ones_are_refused_without_being_shown() {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pem = |kind: &str, body: &str| {
            Secret::new(format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"))
        };
        let body = STANDARD.encode(document.as_ref());
        let key = Key::read(&pem("PRIVATE KEY", &body)).unwrap();
        let assertion = key.assertion("me", "https://a.example").unwrap();
        let claims = part(assertion.expose(), 1);
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["aud"]),
            (&json!("me"), &json!("me"), &json!("https://a.example"))
        );
        for wrong in [
            pem("EC PRIVATE KEY", &body),
            pem("PRIVATE KEY", "hunter2hunter2"),
            pem("PRIVATE KEY", "!"),
            Secret::new("hunter2"),
        ] {
            let error = Key::read(&wrong).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
