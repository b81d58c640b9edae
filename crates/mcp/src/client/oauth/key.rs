//! The key that a token is bound to (`DPoP`, RFC 9449), and hashes.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use toolpost_core::{Secret, ToolError, random_hex};

fn failed(what: &str) -> ToolError {
    ToolError::internal(format!("this host could not {what}"))
}

/// The SHA-256 of a text as base64url.
pub(super) fn sha256(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()))
}

/// Seconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A P-256 key pair that signs `DPoP` proofs.
pub(super) struct ProofKey {
    pair: EcdsaKeyPair,
    /// The public key as a JWK.
    jwk: Value,
    /// The key pair as PKCS #8 in base64, for the token store.
    pub(super) stored: Secret,
}

impl fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProofKey")
    }
}

impl ProofKey {
    pub(super) fn generate() -> Result<Self, ToolError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| failed("generate a key"))?;
        Self::load(&Secret::new(STANDARD.encode(document.as_ref()))).ok_or_else(|| failed("generate a key"))
    }

    /// Loads a key from the form that the token store has.
    pub(super) fn load(stored: &Secret) -> Option<Self> {
        let document = STANDARD.decode(stored.expose()).ok()?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &document, &SystemRandom::new())
                .ok()?;
        // An uncompressed point: one byte for the form, then both coordinates.
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
        let jwk = json!({ "crv": "P-256", "kty": "EC", "x": encode(x), "y": encode(y) });
        Some(Self { pair, jwk, stored: stored.clone() })
    }

    /// The thumbprint of the public key (RFC 7638). The JWK has its fields in alphabetical order.
    pub(super) fn thumbprint(&self) -> String {
        sha256(&self.jwk.to_string())
    }

    /// A proof for one request.
    pub(super) fn prove(
        &self,
        method: &str,
        url: &Url,
        token: Option<&Secret>,
        nonce: Option<&str>,
    ) -> Result<String, ToolError> {
        let mut target = url.clone();
        target.set_query(None);
        target.set_fragment(None);
        let mut claims =
            json!({ "jti": random_hex(32)?, "htm": method, "htu": target.as_str(), "iat": now() });
        if let Some(token) = token {
            claims["ath"] = sha256(token.expose()).into();
        }
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        let header = json!({ "typ": "dpop+jwt", "jwk": self.jwk, "alg": "ES256" });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&header), encode(&claims));
        let signature =
            self.pair.sign(&SystemRandom::new(), message.as_bytes()).map_err(|_| failed("sign a proof"))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
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
    fn a_proof_names_its_request_and_verifies_with_its_own_key() {
        let proof = ProofKey::generate().unwrap();
        let url = Url::parse("https://a.example/mcp?x=1#y").unwrap();
        let token = Secret::new("abc");
        let made = proof.prove("POST", &url, Some(&token), Some("n")).unwrap();
        let (header, claims) = (part(&made, 0), part(&made, 1));
        assert_eq!((&header["typ"], &header["alg"]), (&json!("dpop+jwt"), &json!("ES256")));
        assert_eq!(
            (&claims["htm"], &claims["htu"], &claims["ath"], &claims["nonce"]),
            (&json!("POST"), &json!("https://a.example/mcp"), &json!(sha256("abc")), &json!("n"))
        );
        let decode = |name: &str| URL_SAFE_NO_PAD.decode(header["jwk"][name].as_str().unwrap()).unwrap();
        let point = [vec![4], decode("x"), decode("y")].concat();
        let (message, signature) = made.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(message.as_bytes(), &signature)
            .unwrap();
        // Each proof is unique, and the stored key loads again.
        assert_ne!(made, proof.prove("POST", &url, Some(&token), Some("n")).unwrap());
        assert_eq!(ProofKey::load(&proof.stored).unwrap().thumbprint(), proof.thumbprint());
        assert!(ProofKey::load(&Secret::new("hunter2")).is_none());
    }
}
