//! Secrets that the program never sees.

use std::fmt;

use super::HostPattern;
use crate::Error;
use crate::error::shorten;

/// A value that no log, error or debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(value: String) -> Self {
        Self(value)
    }

    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Is a valid header value, without line ends.
    pub(crate) fn is_header_value(&self) -> bool {
        (1..=MAX_LENGTH).contains(&self.0.len()) && self.0.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

const MAX_LENGTH: usize = 8192;
/// A shorter value could occur by chance in a response.
const MIN_LENGTH: usize = 8;

/// The default headers for secrets.
const DEFAULT_HEADERS: [&str; 2] = ["authorization", "x-api-key"];

/// Headers that the proxy itself writes, or that determine routing and framing.
const REJECTED_HEADERS: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "range",
    "accept-encoding",
    "proxy-authorization",
];

/// A secret that stays with the host program. The program gets a random placeholder.
///
/// The placeholder is in a variable and differs per run. The proxy replaces it by the secret in requests to
/// the secret's hosts.
///
/// - It is replaced in the named headers (default `authorization` and `x-api-key`), also inside the base64 of
///   `Basic`. Never in a path, a query, a body, or a request to another host.
/// - The proxy cannot change TLS. So the program requests `http://` and the proxy speaks TLS to the host: a
///   plain request to a bound host goes to the same port with TLS, or to 443 instead of 80 (feature
///   `egress-tls`). Without that feature such a request is denied, unless [`Placeholder::plain_http`] allows
///   sending the secret without TLS.
/// - In the responses the proxy replaces the secret by the placeholder: in the reason, the names and values of
///   headers, and bodies; verbatim, in JSON text, percent-encoded, as base64 and hexadecimal. It drops trailers and
///   chunk extensions, and rejects a response in another encoding than requested. A server can still return the
///   secret in another form, so bind secrets only to hosts that do not.
#[derive(Debug, Clone)]
pub struct Placeholder {
    pub(crate) variable: String,
    pub(crate) secret: Secret,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) headers: Vec<String>,
    pub(crate) plain_http: bool,
    /// Hosts that may receive it without TLS.
    pub(crate) plain_hosts: Vec<HostPattern>,
}

impl Placeholder {
    /// The variable of the placeholder.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// Creates a placeholder in this variable for this secret. Bind it to a host with [`Placeholder::host`].
    pub fn new(variable: impl Into<String>, secret: impl Into<String>) -> Self {
        Self {
            variable: variable.into(),
            secret: Secret::new(secret.into()),
            hosts: Vec::new(),
            headers: Vec::new(),
            plain_http: false,
            plain_hosts: Vec::new(),
        }
    }

    /// Binds the secret to hosts. They must be allowed separately.
    #[must_use]
    pub fn host(mut self, pattern: HostPattern) -> Self {
        self.hosts.push(pattern);
        self
    }

    /// Sets a header in which it is inserted, instead of the defaults.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.headers.push(name.into().to_ascii_lowercase());
        self
    }

    /// Allows sending the secret without TLS, for example to a package index on this machine. Default no.
    #[must_use]
    pub fn plain_http(mut self, plain: bool) -> Self {
        self.plain_http = plain;
        self
    }

    /// Allows sending the secret to hosts without TLS, for example to a loopback server. They must be bound
    /// too.
    #[must_use]
    pub fn plain_host(mut self, pattern: HostPattern) -> Self {
        self.plain_hosts.push(pattern);
        self
    }

    /// Is bound to any host.
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Is inserted in this header (lower case).
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub(crate) fn has_header(&self, name: &str) -> bool {
        if self.headers.is_empty() {
            DEFAULT_HEADERS.contains(&name)
        } else {
            self.headers.iter().any(|own| own == name)
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| {
            Err(Error::InvalidName { what: "secret", name: shorten(&self.variable), reason })
        };
        if !self.secret.is_header_value() || self.secret.0.len() < MIN_LENGTH {
            return refuse(format!(
                "its value must be printable ASCII of {MIN_LENGTH} to {MAX_LENGTH} characters"
            ));
        }
        if self.hosts.is_empty() {
            return refuse("it is not bound to a host".into());
        }
        for header in &self.headers {
            let is_token = !header.is_empty()
                && header.len() <= 128
                && header
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
            if !is_token || REJECTED_HEADERS.contains(&header.as_str()) {
                return refuse(format!("the header `{}` cannot carry a secret", shorten(header)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let placeholder = Placeholder::new("API_TOKEN", "very-secret-value");
        assert!(!format!("{placeholder:?}").contains("very-secret"), "{placeholder:?}");
    }

    #[test]
    fn invalid_secrets_are_rejected() {
        let host = || HostPattern::new("api.example.org").unwrap();
        let bound = |value: &str| Placeholder::new("API_TOKEN", value).host(host());
        bound("long-enough").check().unwrap();
        bound("long-enough").header("X-Token").check().unwrap();
        for wrong in [
            bound("short"),
            bound("with\r\nEvil: header"),
            bound("with\0byte"),
            bound(&"x".repeat(9000)),
            Placeholder::new("API_TOKEN", "long-enough"),
            bound("long-enough").header("Host"),
            bound("long-enough").header("Content-Length"),
            bound("long-enough").header("a b"),
            bound("long-enough").header(""),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
