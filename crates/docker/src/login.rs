//! Registry logins for image pulls.

use std::fmt;
use toolpost_egress::shorten;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE};
use serde_json::{Value, json};

use super::error::DockerError;

/// The key of Docker Hub in Docker's configuration.
const OWN_REGISTRY: &str = "https://index.docker.io/v1/";

/// A user name and password for an image's registry.
///
/// The daemon sends them only to that registry. They appear in no error, log or debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    name: String,
    password: String,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RegistryLogin").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RegistryLogin {
    /// Creates a login.
    pub fn new(name: impl Into<String>, password: impl Into<String>) -> Self {
        Self { name: name.into(), password: password.into() }
    }

    /// Reads the login for an image's registry from Docker's `config.json`, as `docker login` writes it.
    ///
    /// None if it has none. Credential helpers (`credsStore`, `credHelpers`) are not started.
    ///
    /// # Errors
    /// [`DockerError::Unsupported`] if the content has another format.
    pub fn from_config(content: &str, image: &str) -> Result<Option<Self>, DockerError> {
        let unusable = |reason: &str| DockerError::Unsupported {
            what: format!("the login for `{}`", shorten(image)),
            reason: format!("{reason}; run `docker login` to rewrite `config.json`"),
        };
        let config: Value =
            serde_json::from_str(content).map_err(|_| unusable("`config.json` is not JSON"))?;
        let registry = registry(image);
        let entry = &config["auths"][registry];
        let Some(encoded) = entry["auth"].as_str() else { return Ok(None) };
        let decoded = decode(encoded).and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or_else(|| unusable("its `auth` is not base64 of text"))?;
        let (name, password) =
            decoded.split_once(':').ok_or_else(|| unusable("its `auth` has no password"))?;
        Ok(Some(Self::new(name, password.trim_end_matches('\0'))))
    }

    /// The authentication header for the daemon.
    pub(super) fn header(&self, image: &str) -> String {
        let text =
            json!({ "username": self.name, "password": self.password, "serveraddress": registry(image) });
        format!("X-Registry-Auth: {}\r\n", URL_SAFE.encode(text.to_string()))
    }
}

/// The registry of an image name: the part before the first `/`, if it looks like a host.
pub(super) fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => OWN_REGISTRY,
    }
}

/// Either base64 alphabet, with or without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    const FORGIVING: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = text.replace('-', "+").replace('_', "/");
    GeneralPurpose::new(&STANDARD, FORGIVING).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_either_alphabet_is_decoded() {
        for text in ["+//+", "-__-"] {
            assert_eq!(decode(text).unwrap(), [251, 255, 254]);
        }
        assert_eq!(
            (decode("dQ"), decode("dQ=="), decode("a b")),
            (Some(b"u".into()), Some(b"u".into()), None)
        );
    }

    #[test]
    fn a_login_is_found_by_registry_and_never_printed() {
        let content = r#"{"auths": {"localhost:5000": {"auth": "dXNlcjpwYXNz"}, "https://index.docker.io/v1/": {"auth": "bWU6eA=="}, "bad.example": {"auth": "!"}}}"#;
        let find = |image: &str| RegistryLogin::from_config(content, image);
        assert_eq!(find("localhost:5000/a/b:1").unwrap(), Some(RegistryLogin::new("user", "pass")));
        assert_eq!(find("python:3.11-slim").unwrap(), Some(RegistryLogin::new("me", "x")));
        assert_eq!(find("library/python").unwrap(), Some(RegistryLogin::new("me", "x")));
        assert_eq!(find("ghcr.io/a/b").unwrap(), None);
        assert!(find("bad.example/a").is_err() && RegistryLogin::from_config("[", "a").is_err());
        assert!(!format!("{:?}", RegistryLogin::new("user", "secret-word")).contains("secret-word"));
    }
}
