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

    /// Whether it can stand in a header: no line end can be smuggled in.
    pub(crate) fn is_header_value(&self) -> bool {
        (1..=LONGEST).contains(&self.0.len()) && self.0.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

const LONGEST: usize = 8192;
/// A shorter value could not be told from other text of a response.
const SHORTEST: usize = 8;

/// The headers in which secrets travel unless others are named.
const USUAL_HEADERS: [&str; 2] = ["authorization", "x-api-key"];

/// Headers that the proxy itself writes, or that decide where a request goes and how it is framed.
const REFUSED_HEADERS: [&str; 12] = [
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

/// A secret that stays with the host program. The program inside finds a placeholder in a variable, random for each
/// run, and the proxy puts the secret in its place in requests to the hosts that the secret is bound to.
///
/// - It is replaced in the headers that are named (default `authorization` and `x-api-key`), also inside the base64
///   of `Basic`. Never in a path, a query or a body, and never on the way to another host.
/// - What is in TLS cannot be changed. So the program asks for `http://` and the proxy itself speaks TLS to the host:
///   every plain request to a bound host goes to the same port with TLS, or to 443 in place of 80 (feature
///   `egress-tls`). Without that feature such a request is refused, unless [`Placeholder::plain_http`] allows
///   to send the secret without TLS.
/// - In responses to such requests the secret is replaced by the placeholder again: in headers and bodies, as such, as
///   base64 and percent-encoded. A response in another encoding than asked for is refused. A server that gives the
///   secret back in some other form cannot be stopped; bind secrets only to hosts that do not.
#[derive(Debug, Clone)]
pub struct Placeholder {
    pub(crate) variable: String,
    pub(crate) secret: Secret,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) headers: Vec<String>,
    pub(crate) plain_http: bool,
    /// Hosts to which it may be sent without TLS.
    pub(crate) plain_hosts: Vec<HostPattern>,
}

impl Placeholder {
    /// The variable that holds the placeholder.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// A placeholder in this variable for this secret. It must be bound to a host by [`Placeholder::host`].
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

    /// Binds the secret to hosts. They must be allowed besides.
    #[must_use]
    pub fn host(mut self, pattern: HostPattern) -> Self {
        self.hosts.push(pattern);
        self
    }

    /// Names a header in which it is replaced, in place of the usual two.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.headers.push(name.into().to_ascii_lowercase());
        self
    }

    /// Whether the secret may be sent without TLS, for example to a package index on this machine. Default no.
    #[must_use]
    pub fn plain_http(mut self, plain: bool) -> Self {
        self.plain_http = plain;
        self
    }

    /// Lets the secret be sent to hosts without TLS, for example to a server on this machine's loopback. They must be bound
    /// besides.
    #[must_use]
    pub fn plain_host(mut self, pattern: HostPattern) -> Self {
        self.plain_hosts.push(pattern);
        self
    }

    /// Whether it is bound to any host.
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether it is replaced in this header, whose name is in lower case.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub(crate) fn has_header(&self, name: &str) -> bool {
        if self.headers.is_empty() {
            USUAL_HEADERS.contains(&name)
        } else {
            self.headers.iter().any(|own| own == name)
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| {
            Err(Error::InvalidName { what: "secret", name: shorten(&self.variable), reason })
        };
        if !self.secret.is_header_value() || self.secret.0.len() < SHORTEST {
            return refuse(format!(
                "its value must be printable ASCII of {SHORTEST} to {LONGEST} characters"
            ));
        }
        if self.hosts.is_empty() {
            return refuse("it is bound to no host".into());
        }
        for header in &self.headers {
            let is_token = !header.is_empty()
                && header.len() <= 128
                && header
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
            if !is_token || REFUSED_HEADERS.contains(&header.as_str()) {
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
    fn a_secret_is_shown_nowhere() {
        let placeholder = Placeholder::new("API_TOKEN", "very-secret-value");
        assert!(!format!("{placeholder:?}").contains("very-secret"), "{placeholder:?}");
    }

    #[test]
    fn secrets_that_cannot_be_kept_are_refused() {
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
