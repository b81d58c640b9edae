//! Admits requests by `Host`, `Origin` and token.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toolpost_core::{Secret, ToolError};

use super::oauth::TokenError;
use super::{Client, Principal, ResourceServer};

/// A rejected request: the status, message and challenge of the response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// The `WWW-Authenticate` header.
    pub(super) challenge: Option<String>,
}

impl Rejection {
    fn forbidden(message: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, message: message.into(), challenge: None }
    }
}

/// A bearer token and its client.
pub(super) struct Token {
    secret: Secret,
    client: Arc<Client>,
}

/// The admission rules of a server.
#[derive(Default)]
pub(super) struct Guard {
    tokens: Vec<Token>,
    pub(super) oauth: Option<ResourceServer>,
    pub(super) hosts: Vec<String>,
    pub(super) origins: Vec<String>,
    pub(super) beyond_loopback: bool,
}

impl Guard {
    /// Accepts a token of a client, or of another client for each position.
    pub(super) fn accept(&mut self, secret: Secret, client: Option<Client>) {
        let client = client.unwrap_or_else(|| Client::of_token(self.tokens.len() + 1, &secret));
        self.tokens.push(Token { secret, client: Arc::new(client) });
    }

    /// # Errors
    /// A token is empty or of two clients, or a host or origin is invalid.
    pub(super) fn check(&self) -> Result<(), ToolError> {
        if self.tokens.iter().any(|token| token.secret.expose().is_empty()) {
            return Err(ToolError::invalid_input("the bearer token is empty"));
        }
        for (place, token) in self.tokens.iter().enumerate() {
            let is_same = |other: &&Token| other.secret.expose() == token.secret.expose();
            if let Some(other) = self.tokens[..place].iter().find(is_same) {
                let (one, two) = (&other.client.name, &token.client.name);
                return Err(ToolError::invalid_input(format!("`{one}` and `{two}` have the same token")));
            }
        }
        if let Some(host) = self.hosts.iter().find(|host| host.parse::<Authority>().is_err()) {
            return Err(ToolError::invalid_input(format!(
                "`{host}` is not a valid host, such as `example.org:8080`"
            )));
        }
        match self.origins.iter().find(|origin| parse_origin(origin).is_none()) {
            Some(origin) => Err(ToolError::invalid_input(format!(
                "`{origin}` is not a valid origin, such as `https://app.example`"
            ))),
            None => Ok(()),
        }
    }

    fn authenticates(&self) -> bool {
        !self.tokens.is_empty() || self.oauth.is_some()
    }

    /// Whether the server may listen on an address.
    ///
    /// # Errors
    /// `PERMISSION` for an address beyond loopback without authentication or opt-in.
    pub(super) fn may_listen(&self, address: SocketAddr) -> Result<(), ToolError> {
        if address.ip().is_loopback() || (self.authenticates() && self.beyond_loopback) {
            return Ok(());
        }
        let missing = match (self.authenticates(), self.beyond_loopback) {
            (false, false) => "Set a token and allow listening beyond loopback.",
            (false, true) => "Set a token.",
            (true, _) => "Allow listening beyond loopback.",
        };
        Err(ToolError::permission(format!("`{address}` is reachable from other hosts")).suggest(missing))
    }

    /// Checks the `Host` and `Origin` of a request.
    pub(super) fn admit(&self, head: &Parts, local: SocketAddr, is_tls: bool) -> Result<(), Rejection> {
        let mut hosts = head.headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            let message = "expected exactly one Host header".to_owned();
            return Err(Rejection { status: StatusCode::BAD_REQUEST, message, challenge: None });
        };
        let named = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        let named = named.filter(|named| head.uri.authority().is_none_or(|also| also == named));
        if !named.is_some_and(|named| self.is_own(&named, local, is_tls)) {
            return Err(Rejection::forbidden("this Host is not allowed"));
        }
        for origin in head.headers.get_all(ORIGIN) {
            let known = origin.to_str().ok().and_then(parse_origin).is_some_and(|(scheme, authority)| {
                let own_scheme = if is_tls { "https" } else { "http" };
                (scheme == own_scheme && self.is_own(&authority, local, is_tls))
                    || self
                        .origins
                        .iter()
                        .filter_map(|origin| parse_origin(origin))
                        .any(|(allowed, at)| allowed == scheme && at == authority)
            });
            if !known {
                return Err(Rejection::forbidden("this Origin is not allowed"));
            }
        }
        Ok(())
    }

    /// Whether an authority is this server's: loopback or the local address with the port, or a configured
    /// host.
    fn is_own(&self, named: &Authority, local: SocketAddr, is_tls: bool) -> bool {
        if named.as_str().contains('@') {
            return false;
        }
        let port = match (named.as_str().rsplit_once(':'), named.port_u16()) {
            (_, Some(port)) => port,
            // An invalid port.
            (Some((_, rest)), None) if !rest.contains(']') => return false,
            _ if is_tls => 443,
            _ => 80,
        };
        let host = named.host().trim_start_matches('[').trim_end_matches(']');
        let is_local = host.eq_ignore_ascii_case("localhost") && local.ip().is_loopback()
            || host.parse().is_ok_and(|ip: std::net::IpAddr| {
                ip == local.ip() || ip.is_loopback() && local.ip().is_loopback()
            });
        (is_local && port == local.port())
            || self.hosts.iter().filter_map(|known| known.parse::<Authority>().ok()).any(|known| {
                known.host().eq_ignore_ascii_case(named.host())
                    && known.port_u16().is_none_or(|known| known == port)
            })
    }

    /// Authenticates a request.
    pub(super) fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Rejection> {
        if !self.authenticates() {
            return Ok(Principal(None));
        }
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = match (given.next(), given.next()) {
            (Some(value), None) => value.to_str().ok().and_then(|value| {
                let (scheme, token) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
            }),
            _ => None,
        };
        // All tokens are compared in constant time.
        let digest = |token: &str| Sha256::digest(token.as_bytes());
        let mut found = None;
        for known in &self.tokens {
            let same = digest(known.secret.expose()).ct_eq(&digest(token.unwrap_or_default()));
            if bool::from(same) && token.is_some() {
                found = Some(known);
            }
        }
        if let Some(known) = found {
            return Ok(Principal(Some(Arc::clone(&known.client))));
        }
        let (error, challenge) = match &self.oauth {
            Some(rules) => match token.map(|token| rules.client(token)) {
                Some(Ok(client)) => return Ok(Principal(Some(Arc::new(client)))),
                Some(Err(error)) => (Some(error), rules.challenge(Some(error))),
                None => (None, rules.challenge(None)),
            },
            None if token.is_some() => (None, "Bearer error=\"invalid_token\", realm=\"mcp\"".to_owned()),
            None => (None, "Bearer realm=\"mcp\"".to_owned()),
        };
        let (status, message) = match error {
            Some(TokenError::Scope) => (StatusCode::FORBIDDEN, "the token lacks a required scope"),
            _ => (StatusCode::UNAUTHORIZED, "a valid bearer token is required"),
        };
        Err(Rejection { status, message: message.to_owned(), challenge: Some(challenge) })
    }
}

impl Guard {
    /// The client of an earlier server with this key and name, if it would still be accepted.
    pub(super) fn principal(&self, key: Option<&str>, name: Option<&str>) -> Option<Principal> {
        let Some(key) = key else { return (!self.authenticates()).then(Principal::default) };
        let known = self.tokens.iter().find(|token| token.client.key == key);
        let of_token = known.map(|token| Arc::clone(&token.client));
        let of_subject = || {
            let client = self.oauth.as_ref()?.client_of(Client::subject(name?)?);
            (client.key == key).then(|| Arc::new(client))
        };
        of_token.or_else(of_subject).map(|client| Principal(Some(client)))
    }
}

/// The scheme and authority of an origin.
fn parse_origin(origin: &str) -> Option<(String, Authority)> {
    let uri: Uri = origin.parse().ok()?;
    let parts = uri.into_parts();
    let (scheme, authority) = (parts.scheme?, parts.authority?);
    let bare = origin.len() == scheme.as_str().len() + "://".len() + authority.as_str().len();
    bare.then(|| (scheme.as_str().to_ascii_lowercase(), authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guard with tokens of clients by name or position.
    fn with_tokens(tokens: &[(Option<&str>, &str)]) -> Guard {
        let mut guard = Guard::default();
        for (name, token) in tokens {
            guard.accept(Secret::new(token), name.map(|name| Client::named(name).unwrap()));
        }
        guard
    }

    fn check(guard: &Guard, host: &str, origin: Option<&str>) -> u16 {
        let mut request = http::Request::get("/mcp").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let local = "127.0.0.1:8080".parse().unwrap();
        guard.admit(&head, local, false).map_or_else(|rejection| rejection.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_own_hosts_and_origins_are_admitted() {
        let guard = Guard {
            hosts: vec!["tools.example".into(), "other.example:9000".into()],
            origins: vec!["https://app.example".into()],
            ..Guard::default()
        };
        for (host, origin, expected) in [
            ("127.0.0.1:8080", None, 200),
            ("localhost:8080", None, 200),
            ("LOCALHOST:8080", None, 200),
            ("[::1]:8080", None, 200),
            ("127.0.0.1:8081", None, 403),
            ("127.0.0.1", None, 403),
            ("localhost:", None, 403),
            ("evil.com", None, 403),
            ("evil.com:8080", None, 403),
            ("localhost.evil.com:8080", None, 403),
            ("127.0.0.1.evil.com:8080", None, 403),
            ("user@127.0.0.1:8080", None, 403),
            ("0.0.0.0:8080", None, 403),
            ("", None, 403),
            ("tools.example", None, 200),
            ("tools.example:1", None, 200),
            ("other.example:9000", None, 200),
            ("other.example:9001", None, 403),
            ("localhost:8080", Some("http://localhost:8080"), 200),
            ("localhost:8080", Some("http://127.0.0.1:8080"), 200),
            ("localhost:8080", Some("https://localhost:8080"), 403),
            ("localhost:8080", Some("http://localhost:3000"), 403),
            ("localhost:8080", Some("http://localhost"), 403),
            ("localhost:8080", Some("http://evil.com"), 403),
            ("localhost:8080", Some("http://localhost:8080.evil.com"), 403),
            ("localhost:8080", Some("http://localhost:8080/x"), 403),
            ("localhost:8080", Some("null"), 403),
            ("localhost:8080", Some(""), 403),
            ("localhost:8080", Some("file://"), 403),
            ("localhost:8080", Some("https://app.example"), 200),
            ("localhost:8080", Some("https://app.example:444"), 403),
            ("localhost:8080", Some("http://app.example"), 403),
        ] {
            assert_eq!(check(&guard, host, origin), expected, "{host} {origin:?}");
        }
    }

    #[test]
    fn a_request_needs_exactly_one_host() {
        let guard = Guard::default();
        let local = "127.0.0.1:8080".parse().unwrap();
        let (none, ()) = http::Request::get("/mcp").body(()).unwrap().into_parts();
        assert_eq!(guard.admit(&none, local, false).unwrap_err().status, 400);
        let two = http::Request::get("/mcp").header(HOST, "localhost:8080").header(HOST, "evil.com");
        let (two, ()) = two.body(()).unwrap().into_parts();
        assert_eq!(guard.admit(&two, local, false).unwrap_err().status, 400);
        let other = http::Request::get("http://evil.com/mcp").header(HOST, "localhost:8080");
        let (other, ()) = other.body(()).unwrap().into_parts();
        assert_eq!(guard.admit(&other, local, false).unwrap_err().status, 403);
    }

    #[test]
    fn a_task_of_an_earlier_server_belongs_to_its_credential() {
        let before = with_tokens(&[(None, "first"), (None, "second"), (Some("laptop"), "third")]);
        let after = with_tokens(&[(None, "second"), (Some("laptop"), "fourth")]);
        let named = |text: &str| {
            let token = before.tokens.iter().find(|token| token.secret.expose() == text).unwrap();
            let client = &token.client;
            after
                .principal(Some(&client.key), Some(&client.name))
                .and_then(|found| found.name().map(str::to_owned))
        };
        assert_eq!(named("first"), None, "its token is gone, and its position has another");
        assert_eq!(named("second").as_deref(), Some("token-1"));
        assert_eq!(named("third").as_deref(), Some("laptop"), "a name outlives its token");
        assert_eq!(after.principal(None, None), None);
        assert_eq!(after.principal(Some("oauth-0"), Some("oauth:ada")), None);
        assert_eq!(Guard::default().principal(None, None), Some(Principal(None)));
    }

    #[test]
    fn a_token_has_one_client() {
        for (tokens, is_valid) in [
            (&[(None, "a"), (None, "b"), (Some("x"), "c"), (Some("x"), "d")][..], true),
            (&[(None, "a"), (None, "a")], false),
            (&[(Some("x"), "a"), (Some("y"), "a")], false),
            (&[(Some("x"), "a"), (None, "a")], false),
            (&[(None, "")], false),
        ] {
            assert_eq!(with_tokens(tokens).check().is_ok(), is_valid, "{tokens:?}");
        }
    }

    #[test]
    fn tokens_identify_their_clients() {
        let guard = with_tokens(&[(None, "first"), (None, "second"), (Some("laptop"), "third")]);
        let check = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, value.parse().unwrap());
            }
            guard.authenticate(&headers)
        };
        for (header, name) in
            [("Bearer first", "token-1"), ("bearer second", "token-2"), ("Bearer third", "laptop")]
        {
            assert_eq!(check(Some(header)).unwrap().name(), Some(name));
        }
        for bad in [
            None,
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer firs"),
            Some("Bearer First"),
            Some("Basic first"),
        ] {
            let rejection = check(bad).unwrap_err();
            assert_eq!(rejection.status, 401, "{bad:?}");
            assert!(rejection.challenge.unwrap().starts_with("Bearer"), "{bad:?}");
        }
    }

    #[test]
    fn remote_hosts_are_served_only_with_a_token_and_opt_in() {
        let anywhere = "0.0.0.0:0".parse().unwrap();
        let guard = |tokens: &[&str], beyond_loopback| {
            let tokens: Vec<_> = tokens.iter().map(|token| (None, *token)).collect();
            Guard { beyond_loopback, ..with_tokens(&tokens) }
        };
        assert!(guard(&["t"], true).may_listen(anywhere).is_ok());
        assert!(guard(&[], false).may_listen("[::1]:0".parse().unwrap()).is_ok());
        for (tokens, beyond) in [(&[] as &[&str], false), (&[], true), (&["t"], false)] {
            let error = guard(tokens, beyond).may_listen(anywhere).unwrap_err();
            assert_eq!(error.code(), toolpost_core::Code::Permission);
        }
    }
}
