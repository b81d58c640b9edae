//! Random input for the egress parsers: HTTP, CONNECT, SOCKS5, TLS hellos. Only the allowed server is ever
//! reached, and the proxy keeps serving.

use toolpost_sandbox::EgressProxy;

use super::fuzz::{Random, for_a_while};
use crate::egress::{Server, leads_to, page};
use crate::egress_attacks::{ask, hello, start};

const METHODS: &[&str] = &["GET", "POST", "CONNECT", "get", "PRI", "", "G\0T", "GET GET", "\u{e9}"];
const NAMES: &[&str] = &[
    "example.org",
    "other.example",
    "127.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0x7f.1",
    "2130706433",
    "localhost",
    "example.org.",
    "example.org@127.0.0.1",
    "127.0.0.1#example.org",
    "example.org%00",
    "EXAMPLE.ORG",
    "",
    "..",
    "169.254.169.254",
];
const TARGETS: &[&str] =
    &["http://{}/", "{}", "https://{}/", "/", "*", "http://{}", "http:///{}", "//{}/", "http://a@{}/"];
const VERSIONS: &[&str] = &["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1 ", "", "http/1.1", "HTTP/0.9"];
const HEADERS: &[&str] = &[
    "Host: {}",
    "Content-Length: 5",
    "Content-Length: 0",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 5, 5",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding : chunked",
    "transfer-encoding:\tchunked",
    "Connection: keep-alive",
    "Connection: close, x",
    "Proxy-Connection: keep-alive",
    "Upgrade: h2c",
    "Expect: 100-continue",
    " folded",
    "no colon",
    ": empty",
    "X: \u{0}",
    "X: \r",
    "Proxy-Authorization: Basic eDp5",
];
const ENDS: &[&str] = &["\r\n", "\n", "\r", "\r\n\r\n", "\n\n", ""];
const BODIES: &[&str] = &[
    "",
    "hello",
    "5\r\nhello\r\n0\r\n\r\n",
    "ffffffffffffffffff\r\n",
    "0\r\n\r\nGET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
    "5;x=\"\r\n\"\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "-1\r\n",
    "\0\0\0\0",
];

/// A request of hostile pieces for one of two ports.
fn http(random: &mut Random, ports: [u16; 2]) -> Vec<u8> {
    let place = |random: &mut Random| {
        let port = ports[random.below(2)];
        let name = random.pick(NAMES);
        match random.below(5) {
            0 => name.to_owned(),
            1 => format!("{name}:{port}{port}"),
            _ => format!("{name}:{port}"),
        }
    };
    let mut text = format!(
        "{} {} {}{}",
        random.pick(METHODS),
        random.pick(TARGETS).replace("{}", &place(random)),
        random.pick(VERSIONS),
        random.pick(&ENDS[..2])
    );
    for _ in 0..random.below(5) {
        text.push_str(&random.pick(HEADERS).replace("{}", &place(random)));
        text.push_str(random.pick(&ENDS[..3]));
    }
    text.push_str(random.pick(ENDS));
    text.push_str(random.pick(BODIES));
    text.into_bytes()
}

/// A SOCKS5 greeting and request with random errors.
fn socks(random: &mut Random, ports: [u16; 2]) -> Vec<u8> {
    let name = random.pick(NAMES);
    let mut bytes = vec![5, 1, 0, 5, [1, 1, 1, 2, 3, 255][random.below(6)], 0];
    match random.below(4) {
        0 => bytes.extend([1, 127, 0, 0, 1]),
        1 => bytes.extend([&[4][..], &std::net::Ipv6Addr::LOCALHOST.octets()].concat()),
        _ => {
            let length = if random.below(6) == 0 { random.next() as u8 } else { name.len() as u8 };
            bytes.extend([3, length]);
            bytes.extend(name.as_bytes());
        }
    }
    bytes.extend(ports[random.below(2)].to_be_bytes());
    bytes
}

fn input(random: &mut Random, ports: [u16; 2]) -> Vec<u8> {
    let mut bytes = match random.below(6) {
        0 => socks(random, ports),
        1 => [socks(random, ports), http(random, ports)].concat(),
        2 => {
            let tunnel = format!("CONNECT example.org:{} HTTP/1.1\r\n\r\n", ports[0]);
            [tunnel.into_bytes(), hello(random.pick(NAMES).as_bytes())].concat()
        }
        3 => [http(random, ports), http(random, ports)].concat(),
        _ => http(random, ports),
    };
    // Some bytes are changed or removed.
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len().max(1));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = random.next() as u8;
        }
    }
    if random.below(5) == 0 {
        bytes.truncate(random.below(bytes.len().max(1)));
    }
    bytes
}

/// The proxy's answer to an allowed request.
fn serves(proxy: &EgressProxy, port: u16) -> bool {
    let request = format!(
        "GET http://example.org:{port}/ HTTP/1.1\r\nHost: example.org:{port}\r\nConnection: close\r\n\r\n"
    );
    String::from_utf8_lossy(&ask(proxy.address(), request.as_bytes())).ends_with("allowed")
}

#[test]
fn for_any_input_the_proxy_reaches_only_the_allowed_server() {
    let inner = Server::http(|_| page("hidden"));
    let allowed = Server::http(|_| page("allowed"));
    let ports = [allowed.address.port(), inner.address.port()];
    let egress = leads_to(&allowed);
    let mut proxy = start(&egress);
    let mut count = 0;
    for_a_while("egress", |random| {
        let bytes = input(random, ports);
        let answer = ask(proxy.address(), &bytes);
        let shown = || String::from_utf8_lossy(&bytes).escape_debug().to_string();
        assert!(!answer.windows(6).any(|text| text == b"hidden"), "{}", shown());
        assert!(inner.seen().is_empty(), "the hidden server heard: {}", shown());
        count += 1;
        if count % 50 == 0 {
            assert!(serves(&proxy, ports[0]), "it serves no more after {}", shown());
            // The limits of one run are not under test.
            proxy = start(&egress);
        }
    });
    assert!(serves(&proxy, ports[0]));
}
