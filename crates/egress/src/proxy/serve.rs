//! Serves one connection of the program: detects its protocol and answers.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::host_pattern::{Host, Target};
use super::super::log::{EgressHint, EgressKind};
use super::forward;
use super::head::{Head, HeadError};
use super::hello::{self, Hello};
use super::relay::relay;
use super::shared::{Entry, Shared, Trouble};
use super::socks::{self, SocksRequest};
use super::upstream;
use super::wire::{Buffered, Wire};

/// The program's side of a connection.
pub(super) type Client = Buffered<Wire>;

/// A fatal TLS alert: access denied.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// The time and the number of bytes for which the proxy waits for a program that still sends to read its answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 << 10;

/// Serves a connection to its end.
pub(super) fn connection(shared: &Shared, stream: TcpStream) {
    let idle = Duration::from_millis(shared.egress.policy.limits.idle_timeout_ms);
    let Ok(wire) = Wire::new(stream, Arc::clone(&shared.stop), idle) else { return };
    let mut client = Buffered::new(wire);
    // A silent connection is closed without an answer.
    if !matches!(client.fill(), Ok(1..)) {
        return;
    }
    match client.held().first() {
        Some(5) => serve_socks(shared, &mut client),
        Some(first) if first.is_ascii_alphabetic() => serve_http(shared, &mut client, None),
        _ => {
            let mut entry = Entry::new(shared, EgressKind::Invalid, None);
            entry.trouble(Trouble::invalid("it is neither HTTP/1.1 nor SOCKS5"));
        }
    }
    linger(&mut client);
}

/// Lets the program read its answer although it may still send: an unread byte would reset the connection and
/// discard the answer.
fn linger(client: &mut Client) {
    client.inner.shutdown(Shutdown::Write);
    client.inner.until(Some(Instant::now() + LINGER));
    let mut left = LINGER_BYTES;
    let mut block = [0u8; 4096];
    while let Ok(size @ 1..) = client.inner.read(&mut block) {
        left = left.saturating_sub(size);
        if left == 0 {
            return;
        }
    }
}

/// The deadline of a head that begins now.
fn head_deadline(shared: &Shared) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_millis(shared.egress.policy.limits.head_timeout_ms))
}

/// Serves requests one after another. In a tunnel all must match its target.
fn serve_http(shared: &Shared, client: &mut Client, tunnel: Option<&Target>) {
    loop {
        // Between requests only the idle timeout counts.
        if client.held().is_empty() && !matches!(client.fill(), Ok(1..)) {
            return;
        }
        client.inner.until(head_deadline(shared));
        let head = Head::read(client);
        client.inner.until(None);
        let head = match head {
            Ok(head) => head,
            Err(HeadError::Closed { clean: true, .. }) => return,
            Err(error) => {
                let mut entry = Entry::new(shared, EgressKind::Invalid, None);
                let trouble = match error {
                    HeadError::Invalid(reason) => Trouble::invalid(reason),
                    HeadError::Closed { error, .. } if error.kind() == io::ErrorKind::TimedOut => {
                        Trouble::Refused {
                            status: 408,
                            rule: "head_timeout",
                            message: "reading the request head timed out".into(),
                            hint: None,
                        }
                    }
                    HeadError::Closed { .. } => Trouble::Gone,
                };
                refuse_http(client, &mut entry, trouble, true);
                return;
            }
        };
        if head.first[0] == "CONNECT" {
            match tunnel {
                None => serve_connect(shared, client, &head),
                Some(target) => {
                    let mut entry = Entry::new(shared, EgressKind::Connect, Some(target));
                    let trouble = Trouble::invalid("a tunnel in a tunnel");
                    refuse_http(client, &mut entry, trouble, true);
                }
            }
            return;
        }
        if !forward::serve(shared, client, &head, tunnel) {
            return;
        }
    }
}

fn serve_connect(shared: &Shared, client: &mut Client, head: &Head) {
    let mut entry = Entry::new(shared, EgressKind::Connect, Target::named_in(&head.first[1], None).as_ref());
    let asked = match (Target::parse(head.first[1].as_bytes(), None), head.first[2].as_str()) {
        (Err(reason), _) => Err(Trouble::invalid(&format!("the tunnel target: {reason}"))),
        (Ok(_), version) if version != "HTTP/1.1" && version != "HTTP/1.0" => {
            Err(Trouble::invalid("its version is not HTTP/1.1 or HTTP/1.0"))
        }
        (Ok(target), _) => {
            // Clients may omit the default port; anything else is another host.
            let hosts: Vec<&str> = head.values("host").collect();
            let is_same = match hosts.as_slice() {
                [] => true,
                [host] => Target::parse(host.as_bytes(), Some(target.port)).is_ok_and(|host| host == target),
                _ => false,
            };
            if !is_same {
                Err(Trouble::invalid("its Host header differs from the tunnel target"))
            } else if head.framing() != Ok(None) {
                Err(Trouble::invalid("a request for a tunnel has no body"))
            } else {
                Ok(target)
            }
        }
    };
    let opened = asked.and_then(|target| {
        entry.event.target = target.to_string();
        open(shared, &target, &mut entry).map(|wire| (target, wire))
    });
    match opened {
        Ok((target, wire)) => {
            entry.event.status = Some(200);
            if client.inner.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").is_ok() {
                serve_tunnel(shared, client, &target, wire, entry);
            }
        }
        Err(trouble) => refuse_http(client, &mut entry, trouble, true),
    }
}

fn serve_socks(shared: &Shared, client: &mut Client) {
    client.inner.until(head_deadline(shared));
    let asked = socks::read(client);
    client.inner.until(None);
    let (target, mut entry) = match asked {
        Err(error) => {
            let mut entry = Entry::new(shared, EgressKind::Invalid, None);
            entry.trouble(Trouble::new(&error, "the request for a SOCKS connection"));
            return;
        }
        Ok(SocksRequest::Wrong(code, target, reason)) => {
            let mut entry = Entry::new(shared, EgressKind::Socks, target.as_ref());
            entry.trouble(Trouble::invalid(reason));
            // The program may be gone.
            let _ = client.inner.write_all(&socks::answer(code));
            return;
        }
        Ok(SocksRequest::Target(target)) => {
            let entry = Entry::new(shared, EgressKind::Socks, Some(&target));
            (target, entry)
        }
    };
    match open(shared, &target, &mut entry) {
        Ok(wire) => {
            if client.inner.write_all(&socks::answer(0)).is_ok() {
                serve_tunnel(shared, client, &target, wire, entry);
            }
        }
        Err(trouble) => {
            let trouble = entry.trouble(trouble);
            let _ = client.inner.write_all(&socks::answer(socks::code(&trouble)));
        }
    }
}

/// Checks a target and connects to it.
fn open(shared: &Shared, target: &Target, entry: &mut Entry<'_>) -> Result<Wire, Trouble> {
    shared.admit()?;
    let route = shared.route(target)?;
    let (wire, address) = upstream::tunnel(shared, target, &route)?;
    entry.event.address = address;
    Ok(wire)
}

/// The first bytes of a tunnel.
enum Opening {
    Tls,
    Http,
}

fn serve_tunnel(shared: &Shared, client: &mut Client, target: &Target, server: Wire, mut entry: Entry<'_>) {
    if !shared.is_raw(target) {
        client.inner.until(head_deadline(shared));
        let opening = opening(client, target);
        client.inner.until(None);
        match opening {
            Ok(Opening::Tls) => {}
            Ok(Opening::Http) => {
                // Each request gets its own connection.
                drop((server, entry));
                serve_http(shared, client, Some(target));
                return;
            }
            Err(trouble) => {
                entry.event.status = None;
                entry.trouble(trouble);
                if client.held().first() == Some(&22) {
                    // The program may be gone.
                    let _ = client.inner.write_all(&ALERT);
                }
                return;
            }
        }
    }
    if let Err(trouble) = relay(shared, &mut entry, client, &server) {
        entry.trouble(trouble);
    }
}

/// Inspects the first bytes that the program sends through a tunnel, without consuming them.
fn opening(client: &mut Client, target: &Target) -> Result<Opening, Trouble> {
    const METHODS: [&[u8]; 7] = [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"PATCH ", b"OPTIONS "];
    let plain = || {
        Trouble::refused(
            "plain_tunnel",
            format!("a tunnel to {target} must carry TLS for {}", target.host),
            Some(EgressHint::AllowRaw { target: target.to_string() }),
        )
    };
    loop {
        let held = client.held();
        let may_be_http = target.port != 443
            && METHODS.iter().any(|method| held.starts_with(method) || method.starts_with(held));
        if may_be_http && METHODS.iter().any(|method| held.starts_with(method)) {
            return Ok(Opening::Http);
        }
        if !may_be_http || held.first() == Some(&22) {
            match hello::read(held) {
                Ok(Hello::Unfinished) => {}
                Ok(Hello::Names(host)) if host == target.host => return Ok(Opening::Tls),
                Ok(Hello::NamesNone) if matches!(target.host, Host::Address(_)) => return Ok(Opening::Tls),
                Ok(found) => {
                    let found = match found {
                        Hello::Names(host) => format!("names {host}"),
                        _ => "names no server".into(),
                    };
                    let message = format!("the TLS hello in a tunnel to {target} {found}");
                    return Err(Trouble::refused("server_name_mismatch", message, None));
                }
                Err(_) if held.first() != Some(&22) => return Err(plain()),
                Err(reason) => {
                    let message = format!("a tunnel to {target} is denied: {reason}");
                    return Err(Trouble::refused("invalid_hello", message, None));
                }
            }
        }
        match client.fill() {
            Ok(0) if client.held().is_empty() => return Err(Trouble::Gone),
            Ok(0) => return Err(plain()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let message = format!("the tunnel to {target} timed out waiting for TLS");
                return Err(Trouble::refused("head_timeout", message, None));
            }
            Err(_) => return Err(Trouble::Gone),
        }
    }
}

/// Sends an error page for a person or a model, and logs it.
pub(super) fn refuse_http(client: &mut Client, entry: &mut Entry<'_>, trouble: Trouble, close: bool) {
    let trouble = entry.trouble(trouble);
    // The program may be gone.
    let _ = client.inner.write_all(&page(&trouble, close));
}

/// The complete response for an error.
pub(super) fn page(trouble: &Trouble, close: bool) -> Vec<u8> {
    let (status, rule, message, hint) = match trouble {
        Trouble::Refused { status, rule, message, hint } => (*status, *rule, message.as_str(), hint.as_ref()),
        Trouble::Failed { status, message } => (*status, "failed", message.as_str(), None),
        Trouble::Gone => return Vec::new(),
    };
    // Some clients show nothing but the first line.
    let word = if rule == "failed" { "Failed" } else { "Blocked" };
    let fix = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    let line: String = format!("{word}: {message}{fix}")
        .chars()
        .map(|letter| if matches!(letter, ' '..='~') { letter } else { '?' })
        .take(300)
        .collect();
    let mut body = format!("The sandbox's network proxy says: {message}.\nRule: {rule}\n");
    if let Some(hint) = hint {
        body = format!("{body}Fix: {hint}\n");
    }
    let connection = if close { "close" } else { "keep-alive" };
    format!(
        "HTTP/1.1 {status} {line}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Toolpost-Rule: {rule}\r\nConnection: {connection}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
