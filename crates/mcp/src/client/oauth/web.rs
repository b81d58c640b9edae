//! Requests to URLs from OAuth metadata: address rules, redirects and size limits.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ::http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use ::http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Request, Url};
use serde_json::Value;
use toolpost_core::{Hint, ToolError};
use toolpost_sandbox::address_rule;

use crate::client::http;
use crate::convert::inward::shortened;

/// The largest response, in bytes.
const MAX_BODY: usize = 256 << 10;
/// The most redirects of a document.
const MAX_REDIRECTS: usize = 3;
/// The timeout of one request, the response included.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most addresses of one name.
const MAX_ADDRESSES: usize = 64;

/// The addresses that may be connected to.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The literal address and port of the server's own URL, which its metadata may name although it is not public.
    own: Option<SocketAddr>,
    /// Hosts that the operator allows although their addresses are not public.
    hosts: Vec<String>,
    no_network: bool,
}

impl Rules {
    /// The rules for URLs from the metadata of a server.
    pub(super) fn of_server(server: &Url, hosts: &[String], no_network: bool) -> Self {
        // A name may resolve to another address later, so only a literal address is the server's own.
        let own = literal(bare(server)).zip(server.port_or_known_default());
        Self { own: own.map(SocketAddr::from), hosts: hosts.to_vec(), no_network }
    }

    /// Whether an address and port may be connected to.
    fn address(&self, host: &str, address: SocketAddr) -> Result<(), ToolError> {
        let (address, port) = (address.ip(), address.port());
        let Some(rule) = address_rule(address) else { return Ok(()) };
        let by_name = || self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host));
        let is_own = |own: SocketAddr| {
            let is_same = own.ip() == address || own.ip().is_loopback() && rule.name == "loopback";
            own.port() == port && is_same
        };
        let is_allowed = match rule.name {
            "loopback" | "private" | "shared" => self.own.is_some_and(is_own) || by_name(),
            _ => false,
        };
        if is_allowed {
            return Ok(());
        }
        let shown = if host.parse::<IpAddr>().is_ok() {
            format!("`{host}`")
        } else {
            format!("`{host}` is {address}, which")
        };
        let error =
            ToolError::permission(format!("the server names a blocked address: {shown} {}", rule.reason))
                .with("rule", rule.name);
        Err(match rule.name {
            "loopback" | "private" | "shared" => {
                error.suggest(Hint::AllowPrivateHost { host: host.to_owned() })
            }
            _ => error,
        })
    }

    /// Checks a URL without resolving its host name.
    pub(super) fn url(&self, what: &str, url: &Url) -> Result<(), ToolError> {
        let host = bare(url);
        let shown = shortened(url.as_str(), 200);
        if host.is_empty() || !url.username().is_empty() || url.password().is_some() {
            return Err(ToolError::permission(format!(
                "{what}: expected a URL without a user, found `{shown}`"
            )));
        }
        let is_here = http::is_loopback(host);
        match url.scheme() {
            "https" => {}
            // Loopback traffic stays on this host.
            "http" if is_here => {}
            _ => {
                return Err(ToolError::permission(format!(
                    "{what}: expected an `https://` URL, found `{shown}`"
                )));
            }
        }
        if self.no_network && !is_here {
            return Err(ToolError::permission(format!(
                "{what}: connections to `{host}` are blocked by TOOLPOST_NO_NETWORK"
            ))
            .with("rule", "no_network")
            .suggest("Unset TOOLPOST_NO_NETWORK to allow it."));
        }
        match literal(host) {
            Some(address) => self.address(host, SocketAddr::new(address, port(url))),
            None => Ok(()),
        }
    }
}

/// The address of a host that needs no name resolution.
fn literal(host: &str) -> Option<IpAddr> {
    let localhost = || host.eq_ignore_ascii_case("localhost").then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    host.parse().ok().or_else(localhost)
}

/// The port of a URL with a known scheme.
fn port(url: &Url) -> u16 {
    url.port_or_known_default().unwrap_or_default()
}

/// The host of a URL, without brackets.
fn bare(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// The resolved and checked addresses; no others are connected to.
#[derive(Default)]
struct Checked(Mutex<HashMap<String, Vec<SocketAddr>>>);

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name.as_str()).cloned();
        Box::pin(async move {
            let addresses = known.ok_or("the name was not checked before the connection")?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A complete response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The body, if it is JSON.
    pub(super) json: Option<Value>,
}

/// An HTTP client for URLs from metadata.
pub(super) struct Web {
    rules: Rules,
    checked: Arc<Checked>,
    /// Built on first use, since loading certificates is slow and most servers need none.
    client: OnceLock<reqwest::Client>,
}

impl Web {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, checked: Arc::default(), client: OnceLock::new() }
    }

    fn client(&self) -> Result<&reqwest::Client, ToolError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = http::build(http::builder(TIMEOUT)?.dns_resolver(Arc::clone(&self.checked)))?;
        Ok(self.client.get_or_init(|| client))
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Checks a URL and the addresses that its host resolves to.
    async fn check(&self, what: &str, url: &Url) -> Result<(), ToolError> {
        self.rules.url(what, url)?;
        let host = bare(url);
        if host.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((host, port(url)))).await;
        let found: Vec<SocketAddr> = match found {
            Ok(Ok(found)) => found.take(MAX_ADDRESSES).collect(),
            Ok(Err(error)) => {
                return Err(ToolError::dependency(format!("{what}: cannot resolve `{host}`: {error}")));
            }
            Err(_) => return Err(ToolError::timeout(format!("{what}: resolving `{host}` timed out"))),
        };
        // One blocked address blocks the host.
        found.iter().try_for_each(|address| self.rules.address(host, *address))?;
        self.checked.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned(), found);
        Ok(())
    }

    /// Fetches a JSON document; `None` if there is none.
    pub(super) async fn document(&self, what: &str, url: Url) -> Result<Option<Value>, ToolError> {
        let mut url = url;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(Method::GET, url.clone());
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
            let reply = self.send(what, request).await?;
            if !reply.status.is_redirection() {
                return Ok(reply.json.filter(|_| reply.status.is_success()));
            }
            let location = reply.headers.get(LOCATION).and_then(|location| location.to_str().ok());
            url = location.and_then(|location| url.join(location).ok()).ok_or_else(|| {
                let shown = shortened(url.as_str(), 200);
                ToolError::dependency(format!("{what}: the redirect of `{shown}` has no valid target"))
            })?;
        }
        Err(ToolError::limit(format!("{what}: more than {MAX_REDIRECTS} redirects")))
    }

    /// Posts a form. Redirects are errors.
    pub(super) async fn form(
        &self,
        what: &str,
        url: &Url,
        headers: HeaderMap,
        fields: &[(&str, &str)],
    ) -> Result<Reply, ToolError> {
        let body = form(fields);
        self.post(what, url, headers, "application/x-www-form-urlencoded", body).await
    }

    /// Posts JSON. Redirects are errors.
    pub(super) async fn json(&self, what: &str, url: &Url, value: &Value) -> Result<Reply, ToolError> {
        self.post(what, url, HeaderMap::new(), "application/json", value.to_string()).await
    }

    async fn post(
        &self,
        what: &str,
        url: &Url,
        headers: HeaderMap,
        kind: &'static str,
        body: String,
    ) -> Result<Reply, ToolError> {
        let mut request = Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(body.into());
        let reply = self.send(what, request).await?;
        if reply.status.is_redirection() {
            return Err(ToolError::permission(format!("{what} answered with a redirect")));
        }
        Ok(reply)
    }

    async fn send(&self, what: &str, request: Request) -> Result<Reply, ToolError> {
        self.check(what, request.url()).await?;
        let client = self.client()?;
        let work = async {
            let failed = |error: &reqwest::Error| {
                ToolError::dependency(format!("cannot connect to {what}: {}", http::cause(error)))
            };
            let mut response = client.execute(request).await.map_err(|error| failed(&error))?;
            let (status, headers) = (response.status(), response.headers().clone());
            let mut body = Vec::new();
            while let Some(piece) = response.chunk().await.map_err(|error| failed(&error))? {
                if body.len() + piece.len() > MAX_BODY {
                    return Err(ToolError::limit(format!("{what}: the response is larger than 256 KiB")));
                }
                body.extend_from_slice(&piece);
            }
            Ok(Reply { status, headers, json: serde_json::from_slice(&body).ok() })
        };
        tokio::time::timeout(TIMEOUT, work)
            .await
            .unwrap_or_else(|_| Err(ToolError::timeout(format!("{what} did not answer within 20 s"))))
    }
}

/// Fields as `application/x-www-form-urlencoded`.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    // A form has the encoding of a URL query.
    let mut url = Url::parse("form:x").ok();
    if let Some(url) = &mut url {
        url.query_pairs_mut().extend_pairs(fields);
    }
    url.as_ref().and_then(Url::query).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(server: &str, hosts: &[&str]) -> Rules {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        Rules::of_server(&Url::parse(server).unwrap(), &hosts, false)
    }

    #[test]
    fn private_addresses_are_blocked_but_for_the_servers_own_port() {
        let server = "https://mcp.example/mcp";
        for (server, url, rule) in [
            (server, "https://login.example/x", None),
            (server, "https://1.1.1.1/x", None),
            (server, "https://127.0.0.1/x", Some("loopback")),
            (server, "https://127.1/x", Some("loopback")),
            (server, "https://0x7f.0.0.1/x", Some("loopback")),
            (server, "https://2130706433/x", Some("loopback")),
            (server, "https://[::1]/x", Some("loopback")),
            (server, "https://[::ffff:127.0.0.1]/x", Some("loopback")),
            (server, "https://169.254.169.254/latest", Some("metadata")),
            (server, "https://[::ffff:169.254.169.254]/latest", Some("metadata")),
            (server, "https://[::ffff:a9fe:a9fe]/latest", Some("metadata")),
            (server, "https://[64:ff9b::a9fe:a9fe]/latest", Some("metadata")),
            (server, "https://10.0.0.1/x", Some("private")),
            (server, "https://[fd00::1]/x", Some("private")),
            (server, "https://0.0.0.0/x", Some("unspecified")),
            (server, "http://login.example/x", Some("")),
            (server, "file:///etc/passwd", Some("")),
            (server, "https://me:word@login.example/", Some("")),
            // A name that resolves to loopback allows nothing.
            ("https://localhost.example/mcp", "https://127.0.0.1/x", Some("loopback")),
            ("https://mcp.example/mcp", "http://localhost:80/x", Some("loopback")),
            // A server with such an address may name its own port alone.
            ("http://127.0.0.1:80/mcp", "http://127.0.0.1/x", None),
            ("http://127.0.0.1:81/mcp", "http://localhost:81/x", None),
            ("http://localhost:81/mcp", "http://[::1]:81/x", None),
            ("http://127.0.0.1:80/mcp", "http://127.0.0.1:81/x", Some("loopback")),
            ("http://127.0.0.1:80/mcp", "https://127.0.0.1/x", Some("loopback")),
            ("http://localhost:80/mcp", "http://[::1]:81/x", Some("loopback")),
            ("http://127.0.0.1:80/mcp", "http://localhost:631/x", Some("loopback")),
            ("http://127.0.0.1:80/mcp", "https://10.0.0.1/x", Some("private")),
            ("http://127.0.0.1:80/mcp", "https://169.254.169.254/x", Some("metadata")),
            ("https://10.0.0.1/mcp", "https://10.0.0.1:443/x", None),
            ("https://10.0.0.1/mcp", "https://10.0.0.1:8443/x", Some("private")),
            ("https://10.0.0.1/mcp", "https://10.0.0.2/x", Some("private")),
            ("https://100.64.0.1/mcp", "https://100.64.0.2/x", Some("shared")),
            ("https://10.0.0.1/mcp", "http://10.0.0.2/x", Some("")),
            ("https://10.0.0.1/mcp", "https://127.0.0.1/x", Some("loopback")),
        ] {
            let checked = rules(server, &[]).url("it", &Url::parse(url).unwrap());
            let found = checked.err().map(|error| {
                error.context().get("rule").and_then(Value::as_str).unwrap_or_default().to_owned()
            });
            assert_eq!(found.as_deref(), rule, "{server} {url}");
        }
    }

    #[test]
    fn an_allowed_host_may_be_private_but_no_metadata_service() {
        let rules = rules("https://mcp.example/mcp", &["login.corp"]);
        for (host, address, is_allowed) in [
            ("login.corp", "10.0.0.1:443", true),
            ("LOGIN.corp", "127.0.0.1:8443", true),
            ("login.corp", "169.254.169.254:80", false),
            ("other.corp", "10.0.0.1:443", false),
        ] {
            assert_eq!(rules.address(host, address.parse().unwrap()).is_ok(), is_allowed, "{host} {address}");
        }
    }

    #[tokio::test]
    async fn a_name_is_checked_by_its_addresses() {
        let web = Web::new(rules("https://mcp.example/mcp", &[]));
        // A name that resolves to loopback.
        let error = web.document("it", Url::parse("https://localhost:1/x").unwrap()).await.unwrap_err();
        assert_eq!(error.context().get("rule"), Some(&Value::from("loopback")), "{error}");
        // An unchecked name is not resolved.
        let error = web.client().unwrap().get("https://localhost:1/x").send().await.unwrap_err();
        assert!(http::cause(&error).contains("was not checked"), "{error:?}");
    }

    #[test]
    fn forms_are_encoded() {
        assert_eq!(form(&[("a", "b c&d"), ("e", "é+")]), "a=b+c%26d&e=%C3%A9%2B");
        assert_eq!(form(&[]), "");
    }
}
