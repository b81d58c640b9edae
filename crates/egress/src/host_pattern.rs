//! Host names with one unambiguous form.
//!
//! The proxy's check and its connection must read a name alike. So a name has one form: lower-case ASCII, no
//! trailing dot, no escapes. Ambiguous names are rejected.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::shorten;

/// The longest DNS name in bytes.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// The ports of a pattern without a port: HTTP and HTTPS.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// The reason why a text is not a host, as the end of a sentence.
pub(crate) type Reason = &'static str;

/// A valid host: a name in its canonical form, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    /// Lower case, without a trailing dot, not numeric.
    Name(String),
    /// Never an IPv4 address in IPv6 form.
    Address(IpAddr),
}

impl Host {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Reason> {
        if text.is_empty() {
            return Err("it is empty");
        }
        if text.len() > MAX_NAME {
            return Err("it is longer than 253 bytes");
        }
        if text.iter().any(u8::is_ascii_control) {
            return Err("it has a control character");
        }
        if !text.is_ascii() {
            return Err("it has characters outside ASCII; write such a name in its `xn--` form");
        }
        if text.contains(&b'%') {
            return Err("it has a percent sign: a name has no escapes and an address no zone");
        }
        if text.contains(&b'@') {
            return Err("it has user information before `@`");
        }
        let text = std::str::from_utf8(text).map_err(|_| "it is not text")?;
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or("its bracket is not closed")?;
            let address: Ipv6Addr = inner.parse().map_err(|_| "it is not an IPv6 address")?;
            if is_ipv4_in_disguise(address) {
                return Err("it is an IPv4 address in IPv6 form; write the IPv4 address");
            }
            return Ok(Self::Address(address.into()));
        }
        let name = text.to_ascii_lowercase();
        if name.ends_with('.') {
            return Err("it ends in a dot");
        }
        for label in name.split('.') {
            if label.is_empty() {
                return Err("it has an empty part between dots");
            }
            if label.len() > MAX_LABEL {
                return Err("a part of it is longer than 63 bytes");
            }
            if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
                return Err("it has a character that no host name has");
            }
            if label.starts_with('-') || label.ends_with('-') {
                return Err("a part of it begins or ends with a hyphen");
            }
        }
        // A name that looks numeric must be a canonical address.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_number {
            let address: Ipv4Addr = name
                .parse()
                .map_err(|_| "it is a number; an address is four decimal numbers from 0 to 255")?;
            return Ok(Self::Address(address.into()));
        }
        Ok(Self::Name(name))
    }
}

/// Whether the address is IPv4-mapped, or in the obsolete compatible form.
fn is_ipv4_in_disguise(address: Ipv6Addr) -> bool {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] => true,
        [0, 0, 0, 0, 0, 0, high, low] => (high, low) > (0, 1),
        _ => false,
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(formatter, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Target {
    /// Parses `host` or `host:port`. The port is required without a default.
    pub(crate) fn parse(text: &[u8], default: Option<u16>) -> Result<Self, Reason> {
        let end_of_host = match text.first() {
            Some(b'[') => text.iter().position(|byte| *byte == b']').map_or(text.len(), |end| end + 1),
            _ => text.iter().position(|byte| *byte == b':').unwrap_or(text.len()),
        };
        let (host, rest) = text.split_at(end_of_host);
        let host = Host::parse(host)?;
        let port = match rest.strip_prefix(b":") {
            Some(digits) => parse_port(digits)?,
            None if rest.is_empty() => default.ok_or("it has no port")?,
            None => return Err("something other than a port follows its bracket"),
        };
        Ok(Self { host, port })
    }

    /// The host and port in the address of a rejected request, for the log: without user, password, path and query.
    ///
    /// `None` if they are invalid.
    pub(crate) fn named_in(address: &str, default: Option<u16>) -> Option<Self> {
        // Only the address of a tunnel, which has no default port, has no scheme.
        let (scheme, rest) = address.split_once("://").or(default.is_none().then_some(("", address)))?;
        let default = if scheme.eq_ignore_ascii_case("https") { Some(443) } else { default };
        let authority = rest.split(['/', '?', '#', '\\']).next()?;
        let host = authority.rsplit('@').next()?;
        Self::parse(host.as_bytes(), default).ok()
    }

    /// The value of the `Host` header for a scheme with this default port.
    pub(crate) fn authority(&self, usual: u16) -> String {
        if self.port == usual { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

fn parse_port(digits: &[u8]) -> Result<u16, Reason> {
    const WRONG: Reason = "its port is not a number from 1 to 65535";
    if !(1..=5).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) || digits[0] == b'0' {
        return Err(WRONG);
    }
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(WRONG)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Exactly(Host),
    /// Every name below this one, excluding it.
    Below(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Usual,
    One(u16),
    Any,
}

/// A pattern for hosts and ports.
///
/// | text | means |
/// |---|---|
/// | `example.org` | this name, ports 80 and 443 |
/// | `*.example.org` | every name below it, and not `example.org` itself; ports 80 and 443 |
/// | `example.org:8080` | this name and this port |
/// | `example.org:*` | this name and every port |
/// | `93.184.216.34`, `[2606:2800::1]:443` | a public address; others need [`crate::Egress::allow_address`] |
///
/// A name is ASCII: write other scripts in `xn--` form. A star stands for whole labels, only at the start,
/// and needs at least two labels after it: `*` and `*.org` are rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HostPattern {
    subject: Subject,
    ports: Ports,
}

impl HostPattern {
    /// Parses a pattern. [`Error::InvalidName`] names the problem.
    pub fn new(text: &str) -> Result<Self, Error> {
        text.parse()
    }

    pub(crate) fn matches(&self, target: &Target) -> bool {
        let port = match self.ports {
            Ports::Usual => DEFAULT_PORTS.contains(&target.port),
            Ports::One(port) => port == target.port,
            Ports::Any => true,
        };
        port && self.matches_host(&target.host)
    }

    pub(crate) fn matches_host(&self, host: &Host) -> bool {
        match (&self.subject, host) {
            (Subject::Exactly(own), host) => own == host,
            (Subject::Below(suffix), Host::Name(name)) => {
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
            }
            (Subject::Below(_), Host::Address(_)) => false,
        }
    }

    /// The pattern that allows exactly this target, as an operator writes it.
    pub(crate) fn text_for(target: &Target) -> String {
        if DEFAULT_PORTS.contains(&target.port) { target.host.to_string() } else { target.to_string() }
    }
}

impl FromStr for HostPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let reject = |reason: &str| Error::InvalidName {
            what: "host",
            name: shorten(text),
            reason: format!("{reason}; write `example.org`, `*.example.org` or `example.org:8080`"),
        };
        if text.contains("://") || text.contains('/') {
            return Err(reject("it is a URL and not a host"));
        }
        let (host, ports) = match text.strip_suffix(":*") {
            Some(host) => (host, Ports::Any),
            None => {
                let end = text.rfind(']').unwrap_or_default();
                match text.get(end..).and_then(|rest| rest.rfind(':')) {
                    Some(colon) => {
                        let (host, port) = text.split_at(end + colon);
                        (
                            host,
                            Ports::One(
                                parse_port(port.get(1..).unwrap_or_default().as_bytes()).map_err(&reject)?,
                            ),
                        )
                    }
                    None => (text, Ports::Usual),
                }
            }
        };
        let subject = match host.strip_prefix("*.") {
            Some(suffix) => match Host::parse(suffix.as_bytes()).map_err(&reject)? {
                Host::Name(name) if name.contains('.') => Subject::Below(name),
                Host::Name(_) => return Err(reject("a star needs at least two parts behind it")),
                Host::Address(_) => return Err(reject("a star stands for names, not for addresses")),
            },
            None if host.contains('*') => return Err(reject("`*` is only allowed as a leading `*.`")),
            None => Subject::Exactly(Host::parse(host.as_bytes()).map_err(&reject)?),
        };
        Ok(Self { subject, ports })
    }
}

impl TryFrom<String> for HostPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Exactly(host) => write!(formatter, "{host}")?,
            Subject::Below(suffix) => write!(formatter, "*.{suffix}")?,
        }
        match self.ports {
            Ports::Usual => Ok(()),
            Ports::One(port) => write!(formatter, ":{port}"),
            Ports::Any => formatter.write_str(":*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::parse(text.as_bytes(), None).unwrap()
    }

    #[test]
    fn a_host_has_one_form_and_others_are_rejected() {
        let name = |text: &str| Ok(Host::Name(text.to_owned()));
        let address = |text: &str| Ok(Host::Address(text.parse().unwrap()));
        let rows: &[(&[u8], Result<Host, &str>)] = &[
            (b"example.org", name("example.org")),
            (b"EXAMPLE.Org", name("example.org")),
            (b"a-b_c.example.org", name("a-b_c.example.org")),
            (b"xn--bcher-kva.example", name("xn--bcher-kva.example")),
            (b"localhost", name("localhost")),
            (b"1.2.3.4", address("1.2.3.4")),
            (b"[2606:2800::1]", address("2606:2800::1")),
            (b"[::1]", address("::1")),
            (b"", Err("empty")),
            (b"example.org\0", Err("control")),
            (b"example.org\0.evil.example", Err("control")),
            (b"exa\rmple.org", Err("control")),
            (b"exa\tmple.org", Err("control")),
            ("bücher.example".as_bytes(), Err("ASCII")),
            ("ｅxample.org".as_bytes(), Err("ASCII")),
            ("example。org".as_bytes(), Err("ASCII")),
            (b"ex%61mple.org", Err("percent")),
            (b"[fe80::1%25eth0]", Err("percent")),
            (b"example.org@evil.example", Err("user information")),
            (b"[::ffff:127.0.0.1]", Err("IPv6 form")),
            (b"[::ffff:7f00:1]", Err("IPv6 form")),
            (b"[::127.0.0.1]", Err("IPv6 form")),
            (b"[::1", Err("not closed")),
            (b"[::1]x", Err("not closed")),
            (b"[v1.x]", Err("not an IPv6")),
            (b"::1", Err("no host name has")),
            (b"example.org.", Err("dot")),
            (b".", Err("dot")),
            (b"example..org", Err("empty part")),
            (b".example.org", Err("empty part")),
            (b"-example.org", Err("hyphen")),
            (b"example-.org", Err("hyphen")),
            (b"exam ple.org", Err("no host name has")),
            (b"example.org/", Err("no host name has")),
            (b"example.org\\evil", Err("no host name has")),
            (b"example.org#evil", Err("no host name has")),
            (b"example.org?x", Err("no host name has")),
            (b"*.example.org", Err("no host name has")),
            (b"2130706433", Err("number")),
            (b"0x7f000001", Err("number")),
            (b"0x7f.1", Err("number")),
            (b"127.1", Err("number")),
            (b"0177.0.0.1", Err("number")),
            (b"127.0.0.01", Err("number")),
            (b"256.0.0.1", Err("number")),
            (b"1.2.3.4.5", Err("number")),
            (b"example.0x", Err("number")),
            (b"1.2.3.0x4", Err("number")),
        ];
        for (text, expected) in rows {
            let found = Host::parse(text);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => {
                    assert!(found.contains(expected), "{}: {found}", text.escape_ascii());
                }
                _ => panic!("{}: {found:?}, expected {expected:?}", text.escape_ascii()),
            }
        }
        assert!(Host::parse(&[b'a'; 254]).is_err() && Host::parse(&[b'a'; 64]).is_err());
    }

    #[test]
    fn a_port_is_a_plain_number() {
        assert_eq!(target("example.org:8080").port, 8080);
        assert_eq!(target("[::1]:1").to_string(), "[::1]:1");
        for text in [
            "example.org:",
            "example.org:0",
            "example.org:080",
            "example.org:65536",
            "example.org:+80",
            "a:80:443",
            "a:8 0",
            "[::1]80",
            "a",
        ] {
            assert!(Target::parse(text.as_bytes(), None).is_err(), "{text}");
        }
        assert_eq!(Target::parse(b"a", Some(80)).unwrap().authority(80), "a");
    }

    #[test]
    fn a_rejected_address_has_at_most_a_host_and_a_port() {
        let named = |address: &str| Target::named_in(address, Some(80)).map(|target| target.to_string());
        for (address, expected) in [
            ("http://user:pw@Example.org:81/p?q#f", Some("example.org:81")),
            ("https://a@b@example.org?q", Some("example.org:443")),
            ("user@example.org", None),
            ("http://example.org\\@evil.example/", Some("example.org:80")),
            ("/path", None),
            ("http://user:pw@/", None),
            ("user:pw", None),
            ("*", None),
        ] {
            assert_eq!(named(address).as_deref(), expected, "{address}");
        }
        let tunnel = Target::named_in("user:pw@example.org:443", None).map(|target| target.to_string());
        assert_eq!(tunnel.as_deref(), Some("example.org:443"));
    }

    #[test]
    fn a_pattern_matches_only_its_hosts() {
        let rows = [
            ("example.org", "example.org:443", true),
            ("example.org", "example.org:80", true),
            ("EXAMPLE.org", "example.org:80", true),
            ("example.org", "example.org:8080", false),
            ("example.org", "sub.example.org:443", false),
            ("example.org", "example.org.evil.example:443", false),
            ("example.org", "notexample.org:443", false),
            ("*.example.org", "sub.example.org:443", true),
            ("*.example.org", "a.b.example.org:443", true),
            ("*.example.org", "example.org:443", false),
            ("*.example.org", "notexample.org:443", false),
            ("*.example.org:8443", "a.example.org:8443", true),
            ("*.example.org:8443", "a.example.org:443", false),
            ("example.org:22", "example.org:22", true),
            ("example.org:22", "example.org:443", false),
            ("example.org:*", "example.org:9", true),
            ("1.2.3.4", "1.2.3.4:80", true),
            ("[2606:2800::1]:443", "[2606:2800::1]:443", true),
            ("[2606:2800::1]:443", "[2606:2800::1]:80", false),
        ];
        for (pattern, host, expected) in rows {
            let parsed: HostPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(&target(host)), expected, "{pattern} {host}");
            assert_eq!(parsed.to_string().parse::<HostPattern>().unwrap(), parsed);
        }
    }

    #[test]
    fn too_broad_or_empty_patterns_are_rejected() {
        for text in [
            "",
            "*",
            "*.org",
            "*example.org",
            "a.*.org",
            "*.*.example.org",
            "https://example.org",
            "example.org/path",
            "*.1.2.3.4",
            "example.org:0",
            "example.org:x",
            "example.org.",
            "bücher.example",
            "user@example.org",
            "127.1",
            "[::ffff:1.2.3.4]",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
