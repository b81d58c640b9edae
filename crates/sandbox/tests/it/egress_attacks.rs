//! Hostile bytes against the proxy: attack rows 34 and 35, and further tricks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolpost_sandbox::{Egress, EgressLimits, EgressLog, EgressProxy};

use crate::egress::{Names, Server, leads_to, page, pattern};

pub(crate) fn start(egress: &Egress) -> EgressProxy {
    EgressProxy::start(egress, TcpListener::bind("127.0.0.1:0").unwrap()).unwrap()
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Sends bytes and returns everything until the other side closes.
pub(crate) fn ask(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // The connection may close before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A TLS hello for a server, in one record.
pub(crate) fn hello(name: &[u8]) -> Vec<u8> {
    let block = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let list = if name.is_empty() { Vec::new() } else { block(&[&[0u8][..], &block(name)].concat()) };
    let extension = if name.is_empty() { Vec::new() } else { [&[0, 0][..], &block(&list)].concat() };
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend(block(&extension));
    let message = [&[1, 0][..], &block(&body)].concat();
    [&[22, 3, 1][..], &block(&message)].concat()
}

/// The rule of the only denial, or a word for another result.
fn verdict(log: &EgressLog) -> String {
    match log.events.as_slice() {
        [] => "silence".into(),
        [event] => match (&event.refused, &event.failure) {
            (Some(refused), _) => refused.rule.clone(),
            (None, Some(failure)) => format!("failed: {failure}"),
            (None, None) => "served".into(),
        },
        more => format!("{} events", more.len()),
    }
}

#[test]
fn row_34_no_trick_with_a_name_or_request_bypasses_the_allowlist() {
    // The protected server: it stands for the host's own services.
    let inner = Server::http(|_| page("inner"));
    let good = Server::http(|_| page("good"));
    let (port, hidden) = (good.address.port(), inner.address.port());
    let egress = || {
        Egress::new()
            .resolver(Names::new(&[
                ("example.org", &[&["127.0.0.1"]]),
                ("alias.example", &[&["127.0.0.1"]]),
                ("mixed.example", &[&["93.184.216.34", "127.0.0.1"]]),
                ("mapped.example", &[&["::ffff:127.0.0.1"]]),
                ("nat64.example", &[&["64:ff9b::7f00:1"]]),
                ("private.example", &[&["10.0.0.1"]]),
                ("carrier.example", &[&["100.64.0.1"]]),
                ("metadata.example", &[&["169.254.169.254"]]),
                ("multicast.example", &[&["224.0.0.1"]]),
                ("zero.example", &[&["0.0.0.0"]]),
                ("nothing.example", &[&[]]),
            ]))
            .allow(pattern(&format!("example.org:{port}")))
            .allow(pattern("*.example.org:*"))
            .allow(pattern("localhost:*"))
            .allow(pattern("127.0.0.1:80"))
            .allow(pattern("[::1]:80"))
            .allow_address(good.address)
    };
    let with_names = || {
        [
            "alias",
            "mixed",
            "mapped",
            "nat64",
            "private",
            "carrier",
            "metadata",
            "multicast",
            "zero",
            "nothing",
        ]
        .iter()
        .fold(egress(), |egress, name| egress.allow(pattern(&format!("{name}.example:*"))))
    };
    let get = |url: &str, host: &str| format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    let same = |host: &str| get(&format!("http://{host}/"), host);
    let tunnel = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
    let socks = |name: &[u8], port: u16| {
        [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name, &port.to_be_bytes()].concat()
    };
    let here = format!("example.org:{port}");
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("the good request", same(&here), "served"),
        ("the good tunnel", [tunnel(&here), get("/", &here)].concat(), "2 events"),
        // Names that two readers parse differently.
        ("NUL in SOCKS name", socks(format!("evil.example\0.{here}").as_bytes(), port), "invalid_request"),
        ("NUL in SOCKS name, allowed first", socks(b"x.example.org\0.evil.example", port), "invalid_request"),
        ("NUL in URL", get(&format!("http://evil.example\0.{here}/"), &here), "invalid_request"),
        ("NUL in CONNECT", tunnel(&format!("evil.example\0.{here}")), "invalid_request"),
        ("line end in SOCKS name", socks(b"x.example.org\r\nX: y", port), "invalid_request"),
        ("space in SOCKS name", socks(b"x.example.org evil.example", port), "invalid_request"),
        ("trailing dot", same(&format!("example.org.:{port}")), "invalid_request"),
        ("user information", get(&format!("http://{here}@evil.example/"), "evil.example"), "invalid_request"),
        ("user information, reverse", get(&format!("http://evil.example@{here}/"), &here), "invalid_request"),
        ("user information in CONNECT", tunnel(&format!("evil.example@{here}")), "invalid_request"),
        ("backslash", get(&format!("http://evil.example\\@{here}/"), &here), "invalid_request"),
        ("fragment", get(&format!("http://evil.example#@{here}/"), &here), "invalid_request"),
        ("percent", get(&format!("http://x%2eexample.org:{port}/"), &here), "invalid_request"),
        ("look-alike", same(&format!("еxample.org:{port}")), "invalid_request"),
        ("full-width dot", same(&format!("example。org:{port}")), "invalid_request"),
        ("suffix", same(&format!("example.org.evil.example:{port}")), "host_not_allowed"),
        ("prefix", same(&format!("evilexample.org:{port}")), "host_not_allowed"),
        ("upper case is the same name", same(&format!("EXAMPLE.ORG:{port}")), "served"),
        // Addresses in every form.
        ("decimal", same(&format!("2130706433:{port}")), "invalid_request"),
        ("hexadecimal", same(&format!("0x7f000001:{port}")), "invalid_request"),
        ("octal", same(&format!("0177.0.0.1:{port}")), "invalid_request"),
        ("short", same(&format!("127.1:{port}")), "invalid_request"),
        ("IPv6-mapped IPv4", same(&format!("[::ffff:127.0.0.1]:{port}")), "invalid_request"),
        ("IPv6-compatible IPv4", same(&format!("[::127.0.0.1]:{port}")), "invalid_request"),
        ("zone", same("[fe80::1%25lo]"), "invalid_request"),
        ("allowed loopback pattern is not an allowed address", same("127.0.0.1"), "address_refused"),
        ("allowed IPv6 loopback", same("[::1]"), "address_refused"),
        ("loopback by its other name", same(&format!("127.0.0.2:{hidden}")), "host_not_allowed"),
        ("loopback port that is not allowed", same(&format!("127.0.0.1:{hidden}")), "host_not_allowed"),
        ("metadata", same("169.254.169.254"), "host_not_allowed"),
        ("metadata tunnel", tunnel("169.254.169.254:80"), "host_not_allowed"),
        ("metadata by SOCKS address", [&[5, 1, 0, 5, 1, 0, 1][..], &[169, 254, 169, 254, 0, 80]].concat(), "host_not_allowed"),
        // Names that resolve to internal addresses.
        ("name to loopback (CNAME, rebinding)", same(&format!("alias.example:{hidden}")), "address_refused"),
        ("name to loopback by tunnel", tunnel(&format!("alias.example:{hidden}")), "address_refused"),
        ("name to loopback by SOCKS", socks(b"alias.example", hidden), "address_refused"),
        ("one bad address among good ones", same("mixed.example"), "address_refused"),
        ("name to a mapped address", same(&format!("mapped.example:{hidden}")), "address_refused"),
        ("name to a translated address", same(&format!("nat64.example:{hidden}")), "address_refused"),
        ("name to a private address", same("private.example"), "address_refused"),
        ("name to a carrier's address", same("carrier.example"), "address_refused"),
        ("name to metadata", same("metadata.example"), "address_refused"),
        ("name to multicast", same("multicast.example"), "address_refused"),
        ("name to zero", same(&format!("zero.example:{hidden}")), "address_refused"),
        ("name without address", same("nothing.example"), "failed: nothing.example has no address"),
        // Contradictory requests.
        ("Host is another", get(&format!("http://{here}/"), "evil.example"), "invalid_request"),
        ("Host has another port", get(&format!("http://{here}/"), "example.org"), "invalid_request"),
        (
            "two Hosts",
            format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nHost: evil.example\r\n\r\n").into_bytes(),
            "invalid_request",
        ),
        (
            "Host is not what CONNECT says",
            format!("CONNECT {here} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n").into_bytes(),
            "invalid_request",
        ),
        ("request in a tunnel for another", [tunnel(&here), get("/", "evil.example")].concat(), "2 events"),
        (
            "length and chunks",
            format!("POST http://{here}/ HTTP/1.1\r\nHost: {here}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .into_bytes(),
            "invalid_request",
        ),
        (
            "two lengths",
            format!("POST http://{here}/ HTTP/1.1\r\nHost: {here}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde")
                .into_bytes(),
            "invalid_request",
        ),
        (
            "bare line feed hides a header",
            format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n").into_bytes(),
            "invalid_request",
        ),
        ("origin form", get("/", &here), "invalid_request"),
        ("path that begins with a host", get("//evil.example/", &here), "invalid_request"),
        ("https without a tunnel", get(&format!("https://{here}/"), &here), "invalid_request"),
        ("file", get("file:///etc/passwd", &here), "invalid_request"),
        ("TRACE", format!("TRACE http://{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n").into_bytes(), "invalid_request"),
        ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), "invalid_request"),
        ("TLS to the proxy", hello(b"example.org"), "invalid_request"),
        ("SOCKS4", vec![4, 1, 0, 80, 127, 0, 0, 1, 0], "invalid_request"),
        ("SOCKS bind", [&[5, 1, 0, 5, 2, 0, 1][..], &[127, 0, 0, 1, 0, 80]].concat(), "invalid_request"),
        ("SOCKS UDP", [&[5, 1, 0, 5, 3, 0, 1][..], &[127, 0, 0, 1, 0, 80]].concat(), "invalid_request"),
        ("nothing", Vec::new(), "silence"),
        ("noise", vec![0xff; 5000], "invalid_request"),
    ];
    let mut wrong = Vec::new();
    for (name, bytes, expected) in rows {
        let proxy = start(&with_names());
        let answer = ask(proxy.address(), &bytes);
        let log = proxy.finish();
        let found = verdict(&log);
        if found != expected {
            wrong.push(format!("{name}: {found}, expected {expected}\n{}\n{log:?}", answer.escape_ascii()));
        }
        if log.refused > 0 {
            assert!(!answer.windows(4).any(|part| part == b"good"), "{name}: {}", answer.escape_ascii());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(inner.seen(), Vec::<String>::new(), "nothing inside was reached");
    assert!(good.seen().iter().all(|head| head.starts_with(&format!("GET / HTTP/1.1\r\nHost: {here}\r\n"))));
    // Both good requests, the one in a tunnel, and the one in upper case.
    assert_eq!(good.seen().len(), 3);
}

#[test]
fn a_denied_request_is_logged_without_user_password_path_and_query() {
    let server = Server::http(|_| page("good"));
    let port = server.address.port();
    let places = [
        "http://user:CANARY@example.org:{port}/CANARY?token=CANARY",
        "http://CANARY@example.org:{port}/CANARY",
        "http://a@CANARY@example.org:{port}/CANARY",
        "http://other.example/CANARY?CANARY",
        "http://other.example?CANARY=CANARY",
        "http://other.example/#CANARY",
        "http://other.example\\CANARY@example.org/",
        "https://user:CANARY@other.example/CANARY",
        "ftp://user:CANARY@other.example/CANARY",
        "CANARY-scheme://other.example/",
        "/CANARY?next=x://other.example",
        "CANARY:CANARY",
        "user:CANARY@example.org:443",
        "//user:CANARY@other.example/CANARY",
        "*CANARY",
        "http://other.example/\u{e9}CANARY",
        "CANARY CANARY",
        "http://[CANARY]/",
    ];
    let mut requests: Vec<Vec<u8>> = Vec::new();
    for place in places.map(|place| place.replace("{port}", &port.to_string())) {
        for method in ["GET", "POST", "CONNECT", "TRACE", "CANARY", "C@NARYCANARY"] {
            for host in ["x", "user:CANARY@example.org", "CANARY/CANARY", ""] {
                requests.push(
                    format!("{method} {place} HTTP/1.1\r\nHost: {host}\r\nAuthorization: CANARY\r\nX-CANARY: CANARY\r\n\r\nCANARY")
                        .into_bytes(),
                );
            }
        }
    }
    let socks = |name: &[u8]| [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name, &[0, 80]].concat();
    requests.extend([&b"user:CANARY@example.org"[..], b"CANARY/CANARY", b"CANARY?x"].map(socks));
    requests.extend([b"CANARY\r\n\r\n".to_vec(), b"\x04CANARY".to_vec(), b"GET CANARY".to_vec()]);
    for bytes in requests {
        let proxy = start(&leads_to(&server));
        let answer = ask(proxy.address(), &bytes);
        let log = proxy.finish();
        let shown = format!("{} {:?}", serde_json::to_string(&log).unwrap(), log.notes());
        assert!(!shown.to_lowercase().contains("canary"), "{}\n{shown}", bytes.escape_ascii());
        let status = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        assert!(!status.windows(6).any(|part| part == b"CANARY"), "{}", status.escape_ascii());
    }
    let proxy = start(&leads_to(&server));
    ask(proxy.address(), b"GET http://user:CANARY@Other.example:8080/CANARY HTTP/1.1\r\nHost: x\r\n\r\n");
    let [event] = &proxy.finish().events[..] else { panic!("one event") };
    assert_eq!((event.target.as_str(), event.method.as_deref()), ("other.example:8080", None));
    assert_eq!(event.refused.as_ref().unwrap().rule, "invalid_request");
    assert_eq!(server.seen(), Vec::<String>::new());
}

#[test]
fn a_name_is_resolved_once_and_the_checked_address_is_connected() {
    let good = Server::http(|_| page("good"));
    // From the second lookup on the name resolves elsewhere: resolving twice would connect there.
    let names = Names::new(&[("example.org", &[&["127.0.0.1"], &["127.0.0.2"]])]);
    let here = format!("example.org:{}", good.address.port());
    let egress = Egress::new()
        .resolver(Arc::clone(&names) as Arc<dyn toolpost_sandbox::Resolve>)
        .allow(pattern(&here))
        .allow_address(good.address);
    let proxy = start(&egress);
    let request = format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n");
    assert!(String::from_utf8_lossy(&ask(proxy.address(), request.as_bytes())).ends_with("good"));
    assert_eq!(names.asked(), 1);
    let second = ask(proxy.address(), request.as_bytes());
    assert!(second.starts_with(b"HTTP/1.1 403 "), "{}", second.escape_ascii());
    assert_eq!(names.asked(), 2);
    // A denied host is not resolved.
    ask(proxy.address(), b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(names.asked(), 2);
}

#[test]
fn a_redirection_is_a_new_request_under_the_same_rules() {
    let inner = Server::http(|_| page("inner"));
    let hidden = inner.address.port();
    let good = Server::http(move |_| {
        format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{hidden}/\r\nContent-Length: 0\r\n\r\n")
            .into_bytes()
    });
    let proxy = start(&leads_to(&good));
    let here = format!("example.org:{}", good.address.port());
    let answer =
        ask(proxy.address(), format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n").as_bytes());
    let text = String::from_utf8_lossy(&answer);
    let url = text.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().to_owned();
    let host = format!("127.0.0.1:{hidden}");
    let answer = ask(proxy.address(), format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", answer.escape_ascii());
    assert_eq!(inner.seen(), Vec::<String>::new());
}

#[test]
fn a_deny_rule_wins_and_no_network_allows_only_this_machine() {
    let good = Server::http(|_| page("good"));
    let here = format!("example.org:{}", good.address.port());
    let request = format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n");
    let proxy = start(&leads_to(&good).deny(pattern("example.org:*")));
    ask(proxy.address(), request.as_bytes());
    assert_eq!(verdict(&proxy.finish()), "host_denied");
    let far = |egress: Egress| egress.allow(pattern("93.184.216.34")).no_network(true);
    let proxy = start(&far(leads_to(&good)));
    ask(proxy.address(), b"GET http://93.184.216.34/ HTTP/1.1\r\nHost: 93.184.216.34\r\n\r\n");
    assert_eq!(verdict(&proxy.finish()), "no_network");
    let proxy = start(&far(leads_to(&good)));
    ask(proxy.address(), request.as_bytes());
    assert_eq!(verdict(&proxy.finish()), "served");
}

/// Opens a tunnel and sends bytes through it. Returns what the server saw and the answer.
fn through(
    egress: &Egress,
    server: &Server,
    target: &str,
    bytes: &[u8],
) -> (Vec<String>, Vec<u8>, EgressLog) {
    let proxy = start(egress);
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    let mut stream = connect(proxy.address());
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0u8; 39];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head, *b"HTTP/1.1 200 Connection established\r\n\r\n");
    // In two parts, as a slow client would.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    stream.write_all(first).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let _ = stream.write_all(second);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let log = proxy.finish();
    (server.seen(), answer, log)
}

/// A server that records everything as text, and answers with one word.
fn listener() -> Server {
    Server::raw(|mut stream, seen| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = stream.write_all(b"word");
        if !bytes.is_empty() {
            seen.lock().unwrap().push(bytes.escape_ascii().to_string());
        }
    })
}

#[test]
fn a_tunnel_carries_tls_for_its_host_and_nothing_else() {
    let ssh = b"SSH-2.0-x\r\n".to_vec();
    let rows: [(&str, Vec<u8>, Result<(), &str>); 7] = [
        ("its own name", hello(b"example.org"), Ok(())),
        ("its own name in upper case", hello(b"EXAMPLE.org"), Ok(())),
        ("another name", hello(b"evil.example"), Err("server_name_mismatch")),
        ("no name", hello(b""), Err("server_name_mismatch")),
        ("a name with NUL", hello(b"example.org\0.evil.example"), Err("invalid_hello")),
        ("another protocol", ssh.clone(), Err("plain_tunnel")),
        ("half a hello", hello(b"example.org")[..20].to_vec(), Err("plain_tunnel")),
    ];
    for (name, bytes, expected) in rows {
        let server = listener();
        let target = format!("example.org:{}", server.address.port());
        let (seen, answer, log) = through(&leads_to(&server), &server, &target, &bytes);
        match expected {
            Ok(()) => {
                assert_eq!(seen, [bytes.escape_ascii().to_string()], "{name} {log:?}");
                assert_eq!(answer, b"word", "{name}");
                assert_eq!((log.bytes_up, log.bytes_down), (bytes.len() as u64, 4), "{name}");
                assert_eq!(verdict(&log), "served", "{name}");
            }
            Err(rule) => {
                assert_eq!(seen, Vec::<String>::new(), "{name}");
                assert_eq!(verdict(&log), rule, "{name} {log:?}");
                let alert = [21, 3, 3, 0, 2, 2, 49];
                assert_eq!(answer, if bytes[0] == 22 { &alert[..] } else { &[] }, "{name}");
            }
        }
    }
    // Raw tunnels are not inspected.
    let server = listener();
    let target = format!("example.org:{}", server.address.port());
    let (seen, answer, _) = through(&leads_to(&server).allow_raw(pattern(&target)), &server, &target, &ssh);
    assert_eq!((seen, answer), (vec![ssh.escape_ascii().to_string()], b"word".to_vec()));
    // A target that is an address has no name in its hello.
    let server = listener();
    let target = server.address.to_string();
    let (seen, _, log) = through(&leads_to(&server), &server, &target, &hello(b""));
    assert_eq!((seen.len(), verdict(&log)), (1, "served".into()));
}

#[test]
fn socks_follows_the_same_rules() {
    let server = Server::http(|_| page("good"));
    let port = server.address.port();
    let proxy = start(&leads_to(&server));
    let mut stream = connect(proxy.address());
    let name = b"example.org";
    stream.write_all(&[5, 2, 0, 2]).unwrap();
    let mut method = [0u8; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    let request = [&[5, 1, 0, 3, name.len() as u8][..], name, &port.to_be_bytes()].concat();
    stream.write_all(&request).unwrap();
    let mut answer = [0u8; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [5, 0]);
    // Two requests on one connection.
    let head = format!("GET /a HTTP/1.1\r\nHost: example.org:{port}\r\n\r\n");
    for _ in 0..2 {
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"good") {
            let mut byte = [0u8; 1];
            stream.read_exact(&mut byte).unwrap();
            text.extend(byte);
        }
        assert!(text.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", text.escape_ascii());
    }
    drop(stream);
    let log = proxy.finish();
    assert_eq!((log.connections, log.requests, log.events.len()), (1, 3, 3), "{log:?}");
    assert_eq!(server.seen().len(), 2);
    // A denial has its own code.
    let proxy = start(&leads_to(&server));
    let refused = ask(proxy.address(), &[&[5, 1, 0, 5, 1, 0, 3, 12][..], b"evil.example", &[0, 80]].concat());
    assert_eq!(refused, [5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn bodies_of_both_framings_arrive_whole_and_a_connection_is_kept() {
    let server = Server::raw(|mut stream, seen| {
        let mut bytes = Vec::new();
        let mut block = [0u8; 4096];
        // Detects the end of a chunked body itself: nothing else is sent here.
        while !(bytes.ends_with(b"0\r\n\r\n") || bytes.ends_with(b"end.")) {
            match stream.read(&mut block) {
                Ok(size @ 1..) => bytes.extend_from_slice(&block[..size]),
                _ => return,
            }
        }
        seen.lock().unwrap().push(String::from_utf8(bytes).unwrap());
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n");
    });
    let here = format!("example.org:{}", server.address.port());
    let proxy = start(&leads_to(&server));
    let head = format!("POST http://{here}/p HTTP/1.1\r\nHost: {here}\r\nProxy-Connection: keep-alive\r\n");
    let both = [
        format!("{head}Content-Length: 9\r\n\r\nbody end."),
        format!(
            "{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nbody\r\n1\r\n!\r\n0\r\n\r\n"
        ),
    ]
    .concat();
    let answer = String::from_utf8(ask(proxy.address(), both.as_bytes())).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    assert_eq!(answer.matches("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").count(), 2, "{answer}");
    let seen = server.seen();
    assert!(seen[0].ends_with("Content-Length: 9\r\nConnection: close\r\n\r\nbody end."), "{seen:?}");
    assert!(
        seen[1].contains("Transfer-Encoding: chunked\r\n")
            && seen[1].ends_with("body\r\n1\r\n!\r\n0\r\n\r\n")
    );
    assert!(!seen.iter().any(|head| head.contains("Proxy-Connection")), "{seen:?}");
    assert_eq!(proxy.finish().requests, 2);
}

#[test]
fn slow_half_open_and_silent_connections_time_out() {
    let server = listener();
    let silent = Server::raw(|mut stream, _| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
    });
    let short = Duration::from_millis(300);
    let limits = EgressLimits::default().with_head_timeout(short).with_idle_timeout(short);
    let here = format!("example.org:{}", server.address.port());
    let quiet = format!("example.org:{}", silent.address.port());
    let egress = leads_to(&server).allow(pattern(&quiet)).allow_address(silent.address).limits(limits);
    let rows: [(&str, Vec<Vec<u8>>, &str); 6] = [
        ("a head that never ends", vec![b"GET http://a/ HT".to_vec()], "head_timeout"),
        (
            "one byte after the other",
            b"GET http://example.org/ HTTP/1.1\r\n".map(|byte| vec![byte]).to_vec(),
            "head_timeout",
        ),
        ("half a greeting", vec![vec![5, 1]], "failed: the request for a SOCKS connection timed out"),
        (
            "a body that never comes",
            vec![
                format!("POST http://{here}/ HTTP/1.1\r\nHost: {here}\r\nContent-Length: 5\r\n\r\nab")
                    .into_bytes(),
            ],
            "idle_timeout",
        ),
        (
            "a tunnel in which nothing is said",
            vec![format!("CONNECT {here} HTTP/1.1\r\nHost: {here}\r\n\r\n").into_bytes()],
            "head_timeout",
        ),
        (
            "a server that never answers",
            vec![format!("GET http://{quiet}/ HTTP/1.1\r\nHost: {quiet}\r\n\r\n").into_bytes()],
            "failed: waiting for the response timed out",
        ),
    ];
    for (name, parts, expected) in rows {
        let proxy = start(&egress);
        let mut stream = connect(proxy.address());
        let since = Instant::now();
        for part in &parts {
            if stream.write_all(part).is_err() {
                break;
            }
            if parts.len() > 1 {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        // It stays open: the proxy cannot know that the peer is gone.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let took = since.elapsed();
        assert!(took >= short && took < Duration::from_secs(5), "{name} {took:?}");
        assert_eq!(verdict(&proxy.finish()), expected, "{name}");
    }
}

#[test]
fn a_tunnel_carries_megabytes_both_ways_and_half_closed_ends() {
    // Echoes its input once it is complete, then sends a word and closes.
    let server = Server::raw(|mut stream, _| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = stream.write_all(&bytes);
        let _ = stream.write_all(b"end");
    });
    let target = format!("example.org:{}", server.address.port());
    let data: Vec<u8> = (0..2u32 << 20).map(|number| (number % 251) as u8).collect();
    let (_, answer, log) = through(&leads_to(&server).allow_raw(pattern(&target)), &server, &target, &data);
    assert_eq!(answer.len(), data.len() + 3);
    assert!(answer.starts_with(&data) && answer.ends_with(b"end"));
    assert_eq!((log.bytes_up, log.bytes_down), (data.len() as u64, data.len() as u64 + 3));
    // A server that closes its half early; the program's bytes still arrive.
    let server = Server::raw(|mut stream, seen| {
        let _ = stream.write_all(b"220 hello\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        seen.lock().unwrap().push(bytes.len().to_string());
    });
    let target = format!("example.org:{}", server.address.port());
    let (_, answer, log) = through(&leads_to(&server).allow_raw(pattern(&target)), &server, &target, &data);
    assert_eq!(answer, b"220 hello\r\n");
    crate::support::eventually("everything arrives", || server.seen() == [data.len().to_string()]);
    assert_eq!((log.bytes_up, verdict(&log)), (data.len() as u64, "served".into()));
}
