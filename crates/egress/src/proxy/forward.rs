//! Plain HTTP requests: parsed, checked, and forwarded on a new connection.

use std::io::{self, Read as _, Write as _};

use super::super::host_pattern::{Host, Target};
use super::super::log::EgressKind;
use super::body::{Body, write_end, write_part};
use super::head::{Framing, Head, HeadError, is_token};
use super::serve::{Client, page};
use super::shared::{Entry, Shared, Trouble, Way};
use super::upstream::{self, Upstream};
use super::vault::{Filter, Filtered, Plain};
use super::wire::Buffered;

/// The maximum number of interim responses (status 1xx).
const MAX_INTERIM: usize = 8;
const MAX_METHOD: usize = 32;
const BLOCK: usize = 16 << 10;

/// A request with one unambiguous meaning.
#[derive(Debug, PartialEq, Eq)]
struct ProxiedRequest {
    method: String,
    target: Target,
    path: String,
    framing: Framing,
    is_http_10: bool,
    /// Whether the program waits for `100 Continue` before it sends the body.
    expects: bool,
    keeps_alive: bool,
}

fn read(head: &Head, tunnel: Option<&Target>) -> Result<ProxiedRequest, String> {
    let [method, place, version] = &head.first;
    if !is_token(method) || method.len() > MAX_METHOD {
        return Err("its method is not a token".into());
    }
    if ["CONNECT", "TRACE", "PRI"].iter().any(|refused| method.eq_ignore_ascii_case(refused)) {
        return Err(format!("the method {method} is not served"));
    }
    let is_http_10 = match version.as_str() {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        _ => return Err("its version is not HTTP/1.1 or HTTP/1.0".into()),
    };
    if let Some(wrong) =
        place.bytes().find(|byte| !(0x21..=0x7e).contains(byte) || matches!(byte, b'#' | b'\\'))
    {
        return Err(format!("its address has the character `{}`", wrong.escape_ascii()));
    }
    let (target, path) = match tunnel {
        Some(target) => {
            if !place.starts_with('/') {
                return Err("a request in a tunnel begins with a path".into());
            }
            (target.clone(), place.clone())
        }
        None => {
            let scheme = place.split(':').next().unwrap_or_default();
            let rest = place.get(scheme.len()..).and_then(|rest| rest.strip_prefix("://"));
            let Some(rest) = rest else {
                return Err("it has no whole address; this is a proxy, ask for `http://host/path`".into());
            };
            if scheme.eq_ignore_ascii_case("https") {
                return Err("an `https` address needs a tunnel by CONNECT".into());
            }
            if !scheme.eq_ignore_ascii_case("http") {
                return Err("its scheme is not `http`".into());
            }
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let target = Target::parse(authority.as_bytes(), Some(80))
                .map_err(|reason| format!("the host in its address: {reason}"))?;
            (target, if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
        }
    };
    let hosts: Vec<&str> = head.values("host").collect();
    match hosts.as_slice() {
        [] if is_http_10 => {}
        [] => return Err("it has no Host header".into()),
        [host] => {
            let usual = if tunnel.is_some() { target.port } else { 80 };
            let host = Target::parse(host.as_bytes(), Some(usual))
                .map_err(|reason| format!("its Host header: {reason}"))?;
            if host != target {
                return Err("its Host header is not the host of its address".into());
            }
        }
        _ => return Err("it has more than one Host header".into()),
    }
    let framing = head.framing()?.unwrap_or(Framing::None);
    if is_http_10 && framing == Framing::Chunked {
        return Err("HTTP/1.0 has no chunked bodies".into());
    }
    let closes = head.lists("connection", "close") || head.lists("proxy-connection", "close");
    Ok(ProxiedRequest {
        method: method.clone(),
        target,
        path,
        framing,
        is_http_10,
        expects: head.lists("expect", "100-continue"),
        keeps_alive: !is_http_10 && !closes,
    })
}

/// Serves one request. Returns whether the connection stays open.
pub(super) fn serve(shared: &Shared, client: &mut Client, head: &Head, tunnel: Option<&Target>) -> bool {
    let target = tunnel.cloned().or_else(|| Target::named_in(&head.first[1], Some(80)));
    let mut entry = Entry::new(shared, EgressKind::Http, target.as_ref());
    let request = match read(head, tunnel) {
        Ok(request) => request,
        Err(reason) => {
            super::serve::refuse_http(client, &mut entry, Trouble::invalid(&reason), true);
            return false;
        }
    };
    entry.event.target = request.target.to_string();
    entry.event.method = Some(request.method.clone());
    let mut exchange =
        Exchange { shared, client, head, request, entry, has_answered: false, body_is_read: false };
    match exchange.run() {
        Ok(keeps) => keeps,
        Err(trouble) => {
            let keeps = exchange.request.keeps_alive
                && (exchange.request.framing == Framing::None || exchange.body_is_read)
                && !matches!(trouble, Trouble::Gone);
            let trouble = exchange.entry.trouble(trouble);
            if exchange.has_answered {
                // After half a response only closing the connection can report the failure.
                return false;
            }
            exchange.client.inner.write_all(&page(&trouble, !keeps)).is_ok() && keeps
        }
    }
}

struct Exchange<'a> {
    shared: &'a Shared,
    client: &'a mut Client,
    head: &'a Head,
    request: ProxiedRequest,
    entry: Entry<'a>,
    /// Whether a part of the response was sent to the program.
    has_answered: bool,
    body_is_read: bool,
}

/// The forwarding of a request.
struct Carriage {
    upstream: Upstream,
    prefix: String,
    headers: String,
    /// Whether the proxy speaks TLS for the program.
    is_upgraded: bool,
    is_bound: bool,
}

impl Exchange<'_> {
    fn run(&mut self) -> Result<bool, Trouble> {
        self.shared.admit()?;
        let Carriage { mut upstream, prefix, headers, is_upgraded, is_bound } = self.carriage()?;
        let (text, filter) = self.request_head(&prefix, &headers, is_upgraded, is_bound);
        self.entry.spend(Way::Up, text.len())?;
        let lost = |error: &io::Error| Trouble::new(error, "sending the request");
        let mut sent = upstream.write_all(text.as_bytes()).and_then(|()| upstream.flush());
        if sent.is_ok() {
            match self.send_body(&mut upstream)? {
                Ok(()) => {}
                Err(error) => sent = Err(error),
            }
        }
        if let Err(error) = &sent
            && matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::TimedOut)
        {
            return Err(lost(error));
        }
        // A server that stopped reading may have sent its reason.
        let mut server = Buffered::new(upstream);
        let response = self.response_head(&mut server).map_err(|trouble| match (&sent, trouble) {
            (Err(error), Trouble::Failed { .. }) => lost(error),
            (_, trouble) => trouble,
        })?;
        let keeps = self.answer(&response, &mut server, &filter, is_upgraded)?;
        Ok(keeps && sent.is_ok())
    }

    /// Checks the target and connects to it, with TLS if a secret needs it.
    fn carriage(&mut self) -> Result<Carriage, Trouble> {
        let target = self.request.target.clone();
        let binding = self.shared.vault.binding(&target);
        if binding == Some(Plain::Refused) {
            return self.secure_carriage(&target);
        }
        let route = self.shared.route(&target)?;
        let (upstream, address, prefix, headers) = upstream::plain(self.shared, &target, &route)?;
        self.entry.event.address = address;
        Ok(Carriage { upstream, prefix, headers, is_upgraded: false, is_bound: binding.is_some() })
    }

    #[cfg(feature = "tls")]
    fn secure_carriage(&mut self, target: &Target) -> Result<Carriage, Trouble> {
        self.shared.allow(target)?;
        let port = if target.port == 80 { 443 } else { target.port };
        let secure = Target { host: target.host.clone(), port };
        let route = self.shared.route(&secure)?;
        let (upstream, address) = upstream::secure(self.shared, &secure, &route)?;
        self.entry.event.address = address;
        Ok(Carriage {
            upstream,
            prefix: String::new(),
            headers: String::new(),
            is_upgraded: true,
            is_bound: true,
        })
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "the other one needs it")]
    fn secure_carriage(&mut self, target: &Target) -> Result<Carriage, Trouble> {
        let message = format!("a secret is bound to {}, which may only be sent with TLS", target.host);
        Err(Trouble::refused("secret_needs_tls", message, Some(crate::EgressHint::SecureSecret)))
    }

    /// The request head for the server, and the filter that removes its secrets from the response.
    fn request_head(
        &mut self,
        prefix: &str,
        own: &str,
        is_upgraded: bool,
        is_bound: bool,
    ) -> (String, Filter) {
        let ProxiedRequest { method, target, path, framing, .. } = &self.request;
        let authority = target.authority(if is_upgraded && target.port == 443 { 443 } else { 80 });
        let mut text = format!("{method} {prefix}{path} HTTP/1.1\r\nHost: {authority}\r\n{own}");
        let mut filled = Vec::new();
        for (name, value) in self.head.end_to_end() {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            if is("host")
                || is("expect")
                || (is_bound && (is("accept-encoding") || is("range") || is("if-range")))
            {
                continue;
            }
            let mut value = value.clone();
            let names = self.shared.vault.fill(target, name, &mut value);
            if !names.is_empty() {
                filled.push(value.clone());
                for name in names {
                    if !self.entry.event.secrets.contains(&name) {
                        self.entry.event.secrets.push(name);
                    }
                }
            }
            append(&mut text, format_args!("{name}: {value}\r\n"));
        }
        if is_bound {
            // So that the response can be searched, uncompressed.
            text.push_str("Accept-Encoding: identity\r\n");
        }
        match framing {
            Framing::Length(length) => append(&mut text, format_args!("Content-Length: {length}\r\n")),
            Framing::Chunked => text.push_str("Transfer-Encoding: chunked\r\n"),
            _ if self.head.values("content-length").next().is_some() => {
                text.push_str("Content-Length: 0\r\n");
            }
            _ => {}
        }
        text.push_str("Connection: close\r\n\r\n");
        let filter = self.shared.vault.filter(target, &filled);
        (text, filter)
    }

    /// Sends the body. The outer error ends the exchange; the inner one is the server's.
    fn send_body(&mut self, upstream: &mut Upstream) -> Result<io::Result<()>, Trouble> {
        let chunked = self.request.framing == Framing::Chunked;
        if self.request.framing == Framing::None {
            self.body_is_read = true;
            return Ok(Ok(()));
        }
        if self.request.expects {
            let word = self.client.inner.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            word.map_err(|_| Trouble::Gone)?;
        }
        let mut body = Body::new(self.client, self.request.framing);
        let mut block = [0u8; BLOCK];
        loop {
            let size = body.read(&mut block).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => Trouble::invalid(&error.to_string()),
                io::ErrorKind::TimedOut => Trouble::Refused {
                    status: 408,
                    rule: "idle_timeout",
                    message: "reading the request body timed out".into(),
                    hint: None,
                },
                _ => Trouble::Gone,
            })?;
            let part = block.get(..size).unwrap_or_default();
            if part.is_empty() {
                self.body_is_read = true;
                return Ok(write_end(upstream, chunked));
            }
            self.entry.spend(Way::Up, part.len())?;
            if let Err(error) = write_part(upstream, part, chunked) {
                return Ok(Err(error));
            }
        }
    }

    /// Reads the head of the final response, skipping interim ones.
    fn response_head(&mut self, server: &mut Buffered<Upstream>) -> Result<Head, Trouble> {
        for _ in 0..MAX_INTERIM {
            let head = Head::read(server).map_err(|error| match error {
                HeadError::Closed { error, .. } => Trouble::new(&error, "waiting for the response"),
                HeadError::Invalid(reason) => {
                    Trouble::failed(502, format!("the response is rejected: {reason}"))
                }
            })?;
            let size: usize = head.first.iter().map(|part| part.len() + 1).sum::<usize>()
                + head.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
            self.entry.spend(Way::Down, size)?;
            match status(&head) {
                Some(101) | None => {
                    return Err(Trouble::failed(
                        502,
                        "the response is not an HTTP/1.1 response to this request",
                    ));
                }
                Some(100..=199) => {}
                Some(_) => return Ok(head),
            }
        }
        Err(Trouble::failed(502, "the server sent only interim responses"))
    }

    /// Forwards the response. Returns whether the connection stays open.
    fn answer(
        &mut self,
        head: &Head,
        server: &mut Buffered<Upstream>,
        filter: &Filter,
        is_upgraded: bool,
    ) -> Result<bool, Trouble> {
        let status = status(head).unwrap_or(502);
        let refuse = |reason: &str| Trouble::failed(502, format!("the response is rejected: {reason}"));
        let declared = head.framing().map_err(refuse)?;
        let has_no_body = self.request.method == "HEAD" || status == 204 || status == 304;
        let framing = if has_no_body { Framing::None } else { declared.unwrap_or(Framing::UntilClose) };
        let is_encoded =
            head.values("content-encoding").any(|coding| !coding.eq_ignore_ascii_case("identity"));
        if !filter.is_empty() && is_encoded && framing != Framing::None {
            return Err(refuse("it is compressed, so that the secret could not be found in it"));
        }
        // A length that may change is omitted.
        let outgoing = match framing {
            Framing::Length(length) if filter.is_empty() => Framing::Length(length),
            Framing::None => Framing::None,
            _ if self.request.is_http_10 => Framing::UntilClose,
            _ => Framing::Chunked,
        };
        let keeps = self.request.keeps_alive && outgoing != Framing::UntilClose;
        let mut text = filter.status_line(status, &head.first[2]) + "\r\n";
        for (name, value) in head.end_to_end() {
            if is_upgraded && name.eq_ignore_ascii_case("strict-transport-security") {
                continue;
            }
            let Some((name, mut value)) = filter.header(name, value) else { continue };
            if is_upgraded && name.eq_ignore_ascii_case("location") {
                value = self.downgraded(value);
            }
            append(&mut text, format_args!("{name}: {value}\r\n"));
        }
        match outgoing {
            Framing::Length(length) => append(&mut text, format_args!("Content-Length: {length}\r\n")),
            Framing::Chunked => text.push_str("Transfer-Encoding: chunked\r\n"),
            // For a HEAD request the headers about the body stay, unless the filter would change the body.
            Framing::None if self.request.method == "HEAD" => {
                if let (Some(Framing::Length(length)), true) = (declared, filter.is_empty()) {
                    append(&mut text, format_args!("Content-Length: {length}\r\n"));
                }
            }
            Framing::None if status != 204 && status != 304 => text.push_str("Content-Length: 0\r\n"),
            _ => {}
        }
        text.push_str(if keeps { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" });
        self.entry.event.status = Some(status);
        self.has_answered = true;
        self.client.inner.write_all(text.as_bytes()).map_err(|_| Trouble::Gone)?;
        let (entry, client) = (&mut self.entry, &mut self.client.inner);
        let mut body = Filtered::new(Body::new(server, framing), filter);
        let mut block = [0u8; BLOCK];
        loop {
            let size =
                body.read(&mut block).map_err(|error| Trouble::new(&error, "receiving the response"))?;
            let part = block.get(..size).unwrap_or_default();
            if part.is_empty() {
                write_end(client, outgoing == Framing::Chunked).map_err(|_| Trouble::Gone)?;
                return Ok(keeps);
            }
            entry.spend(Way::Down, part.len())?;
            write_part(client, part, outgoing == Framing::Chunked).map_err(|_| Trouble::Gone)?;
        }
    }

    /// Rewrites a redirect from `https` to `http` on the same host, so that the program's next request gets
    /// its secret.
    fn downgraded(&self, value: String) -> String {
        let target = &self.request.target;
        let own: &Host = &target.host;
        let Some(rest) = value.strip_prefix("https://") else { return value };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        match Target::parse(authority.as_bytes(), Some(443)) {
            Ok(other) if other.host == *own => {
                let port = if other.port == 443 && target.port == 80 { 80 } else { other.port };
                let same = Target { host: other.host, port };
                format!("http://{}{path}", same.authority(80))
            }
            _ => value,
        }
    }
}

/// Writing to a string cannot fail.
fn append(text: &mut String, more: std::fmt::Arguments<'_>) {
    let _ = std::fmt::Write::write_fmt(text, more);
}

fn status(head: &Head) -> Option<u16> {
    let [version, status, _] = &head.first;
    let is_known = version == "HTTP/1.1" || version == "HTTP/1.0";
    let is_number = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
    status.parse().ok().filter(|status| is_known && is_number && (100..=599).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<ProxiedRequest, String> {
        let head = Head::read(&mut Buffered::new(text.as_bytes())).map_err(|error| format!("{error:?}"))?;
        read(&head, None)
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        let good = ask("GET http://Example.org/a?b=c HTTP/1.1\r\nHost: example.ORG:80\r\n\r\n").unwrap();
        assert_eq!((good.target.to_string().as_str(), good.path.as_str()), ("example.org:80", "/a?b=c"));
        assert!(good.keeps_alive && good.framing == Framing::None);
        let good = ask("GET HTTP://example.org?x HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!((good.path.as_str(), good.keeps_alive), ("/?x", false));
        let rows = [
            ("GET http://example.org/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "not the host"),
            ("GET http://example.org/ HTTP/1.1\r\nHost: example.org:81\r\n\r\n", "not the host"),
            (
                "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\nHost: example.org\r\n\r\n",
                "more than one",
            ),
            (
                "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\nhOST: evil.example\r\n\r\n",
                "more than one",
            ),
            ("GET http://example.org/ HTTP/1.1\r\n\r\n", "no Host"),
            ("GET http://example.org/ HTTP/1.1\r\nHost: example.org, evil.example\r\n\r\n", "Host header"),
            (
                "GET http://example.org@evil.example/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
                "user information",
            ),
            ("GET http://evil.example\\@example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "character"),
            ("GET http://example.org#@evil.example/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "character"),
            ("GET http://example.org\t/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "character"),
            ("GET http://exämple.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "character"),
            ("GET http://ex%61mple.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "percent"),
            ("GET http:///evil.example/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "empty"),
            ("GET http:/example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "whole address"),
            ("GET http:example.org HTTP/1.1\r\nHost: example.org\r\n\r\n", "whole address"),
            ("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "whole address"),
            ("GET //example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "whole address"),
            ("GET example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "whole address"),
            ("GET https://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "CONNECT"),
            ("GET file:///etc/passwd HTTP/1.1\r\nHost: example.org\r\n\r\n", "scheme"),
            ("GET gopher://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "scheme"),
            ("GET http://example.org:80:443/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "port"),
            ("GET http://example.org:/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "port"),
            ("GET http://example.org./ HTTP/1.1\r\nHost: example.org.\r\n\r\n", "dot"),
            ("GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", "number"),
            ("GET http://[::ffff:127.0.0.1]/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]\r\n\r\n", "IPv6 form"),
            ("GET  http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "version"),
            ("GET http://example.org/ HTTP/2\r\nHost: example.org\r\n\r\n", "version"),
            ("GET http://example.org/ HTTP/1.1 \r\nHost: example.org\r\n\r\n", "version"),
            ("GET http://example.org/ x HTTP/1.1\r\nHost: example.org\r\n\r\n", "version"),
            ("G(T http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "method"),
            ("TRACE http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", "TRACE"),
            ("PRI * HTTP/2.0\r\nHost: a\r\n\r\n", "PRI"),
            (
                "POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "both",
            ),
            (
                "POST http://example.org/ HTTP/1.0\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\n\r\n",
                "1.0",
            ),
        ];
        for (text, expected) in rows {
            let found = ask(text);
            assert!(found.as_ref().is_err_and(|reason| reason.contains(expected)), "{text}\n{found:?}");
        }
    }

    #[test]
    fn a_request_in_a_tunnel_must_match_its_target() {
        let target = Target::parse(b"example.org:8080", None).unwrap();
        let ask = |text: &str| {
            read(&Head::read(&mut Buffered::new(text.as_bytes())).unwrap(), Some(&target))
                .map(|request| request.path)
        };
        assert_eq!(ask("GET /a HTTP/1.1\r\nHost: example.org:8080\r\n\r\n").unwrap(), "/a");
        assert_eq!(ask("GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap(), "/a");
        for wrong in [
            "GET /a HTTP/1.1\r\nHost: evil.example:8080\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: example.org:80\r\n\r\n",
            "GET http://evil.example/ HTTP/1.1\r\nHost: example.org:8080\r\n\r\n",
            "GET http://example.org:8080/ HTTP/1.1\r\nHost: example.org:8080\r\n\r\n",
        ] {
            assert!(ask(wrong).is_err(), "{wrong}");
        }
    }
}
