//! Secrets that stay on the host.

use std::time::Duration;

use serde_json::json;
use toolpost_sandbox::{Egress, EgressLimits, EgressPolicy, Error, Placeholder, Program};

use crate::egress::{Server, leads_to, pattern, sandboxes};
use crate::egress_attacks::{ask, start};
use crate::support::{python, run};

const SECRET: &str = "s3cr3t-value+1";

/// Echoes the request in headers and body.
fn mirror() -> Server {
    Server::http(|request| {
        let (head, _) = request.split_once("\r\n\r\n").unwrap();
        let authorization =
            head.lines().find_map(|line| line.strip_prefix("Authorization: ")).unwrap_or("none");
        format!(
            "HTTP/1.1 200 OK\r\nX-Mirror: {authorization}\r\nContent-Length: {}\r\n\r\n{request}",
            request.len()
        )
        .into_bytes()
    })
}

#[test]
fn row_35_the_program_uses_a_secret_that_it_never_sees() {
    let server = mirror();
    let other = mirror();
    let (here, there) = (server.address.port(), other.address.port());
    for (level, sandbox) in sandboxes("row_35_the_program_uses_a_secret") {
        let placeholder = Placeholder::new("API_TOKEN", SECRET)
            .host(pattern(&format!("example.org:{here}")))
            .plain_http(true);
        let egress = leads_to(&server)
            .allow(pattern(&format!("other.example:{there}")))
            .allow_address(other.address)
            .secret(placeholder);
        let code = format!(
            "import base64, os, urllib.request\n\
             token = os.environ['API_TOKEN']\n\
             def ask(url, headers, data=None):\n\
             \x20   response = urllib.request.urlopen(urllib.request.Request(url, headers=headers, data=data))\n\
             \x20   return response.headers['X-Mirror'] + response.read().decode()\n\
             basic = 'Basic ' + base64.b64encode(('user:' + token).encode()).decode()\n\
             good = 'http://example.org:{here}/'\n\
             texts = [ask(good, {{'Authorization': 'Bearer ' + token}}), ask(good, {{'Authorization': basic}}),\n\
             \x20   ask(good + '?' + token, {{'User-Agent': token}}, token.encode()),\n\
             \x20   ask('http://other.example:{there}/', {{'Authorization': 'Bearer ' + token}})]\n\
             [token, texts]"
        );
        let outcome = python(&sandbox.egress(egress), &code);
        let value = outcome.value.clone().unwrap_or_else(|| panic!("{level} {}", outcome.stderr.text()));
        let token = value[0].as_str().unwrap();
        assert!(token.starts_with("placeholder-") && token.len() == 44, "{token}");
        let everything = format!("{value} {:?} {:?}", outcome.report, outcome.stdout);
        assert!(!everything.contains(SECRET), "{level} {everything}");
        // The response shows the placeholder instead of the secret.
        assert!(value[1][0].as_str().unwrap().starts_with(&format!("Bearer {token}")), "{level} {value}");
        let log = outcome.report.egress.unwrap();
        let used: Vec<usize> = log.events.iter().map(|event| event.secrets.len()).collect();
        assert_eq!(used, [1, 1, 0, 0], "{level} {log:?}");
        assert_eq!(log.events[0].secrets, ["API_TOKEN"]);
        let seen = server.seen();
        let seen: Vec<&String> = seen.iter().rev().take(3).collect();
        assert!(seen[2].contains(&format!("Authorization: Bearer {SECRET}\r\n")), "{seen:?}");
        // `user:` and the secret.
        assert!(seen[1].contains("Authorization: Basic dXNlcjpzM2NyM3QtdmFsdWUrMQ==\r\n"), "{seen:?}");
        assert!(
            !seen[0].contains(SECRET) && seen[0].contains(&format!("GET /?{token}").replace("GET", "POST"))
        );
        assert!(!other.seen().last().unwrap().contains(SECRET));
    }
}

/// A place of a response, and the response with a text there.
type ResponsePart = (&'static str, fn(&str) -> String);

/// The places of a response in which a server can return a secret.
const RESPONSE_PARTS: [ResponsePart; 22] = [
    ("reason", |text| format!("HTTP/1.1 401 bad {text}\r\nContent-Length: 0\r\n\r\n")),
    ("reason alone", |text| format!("HTTP/1.1 401 {text}\r\nContent-Length: 0\r\n\r\n")),
    ("reason of HTTP/1.0", |text| format!("HTTP/1.0 401 {text}\r\n\r\n")),
    ("status", |text| format!("HTTP/1.1 {text} OK\r\nContent-Length: 0\r\n\r\n")),
    ("version", |text| format!("{text} 200 OK\r\nContent-Length: 0\r\n\r\n")),
    ("interim response", |text| {
        format!(
            "HTTP/1.1 103 {text}\r\n{text}: v\r\nLink: {text}\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        )
    }),
    ("header name", |text| format!("HTTP/1.1 200 OK\r\n{text}: v\r\nContent-Length: 0\r\n\r\n")),
    ("header name in lower case", |text| {
        format!("HTTP/1.1 200 OK\r\n{}: v\r\nContent-Length: 0\r\n\r\n", text.to_lowercase())
    }),
    ("header name in upper case", |text| {
        format!("HTTP/1.1 200 OK\r\nX-{}-Y: v\r\nContent-Length: 0\r\n\r\n", text.to_uppercase())
    }),
    ("header name and value", |text| {
        let (name, value) = text.split_at(text.len() / 2);
        format!("HTTP/1.1 200 OK\r\n{name}:{value}\r\n{text}\r\nContent-Length: 0\r\n\r\n")
    }),
    ("header line", |text| format!("HTTP/1.1 200 OK\r\n{text}\r\nContent-Length: 0\r\n\r\n")),
    ("folded header", |text| format!("HTTP/1.1 200 OK\r\nA: b\r\n {text}\r\nContent-Length: 0\r\n\r\n")),
    ("header value", |text| format!("HTTP/1.1 200 OK\r\nX: a {text}\r\nContent-Length: 0\r\n\r\n")),
    ("cookie", |text| {
        format!("HTTP/1.1 200 OK\r\nSet-Cookie: a={text}; Path=/\r\nContent-Length: 0\r\n\r\n")
    }),
    ("redirect", |text| {
        format!("HTTP/1.1 302 Found\r\nLocation: http://{text}/?{text}\r\nContent-Length: 0\r\n\r\n")
    }),
    ("hop-by-hop header", |text| {
        format!("HTTP/1.1 200 OK\r\nConnection: close, {text}\r\n{text}: v\r\nContent-Length: 0\r\n\r\n")
    }),
    ("length", |text| format!("HTTP/1.1 200 OK\r\nContent-Length: {text}\r\n\r\n")),
    ("entity tag without a body", |text| format!("HTTP/1.1 304 Not Modified\r\nETag: \"{text}\"\r\n\r\n")),
    ("body with a length", |text| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n<{text}>", text.len() + 2)
    }),
    ("body until the end", |text| format!("HTTP/1.1 200 OK\r\n\r\n<{text}>")),
    ("chunks", |text| {
        let chunks = text.chars().flat_map(|one| ["1\r\n".to_owned(), one.into(), "\r\n".to_owned()]);
        let chunks: String = chunks.collect();
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    }),
    ("chunk extension and trailer", |text| {
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: {text}\r\n\r\n1;{text}=\"{text}\"\r\nx\r\n0;{text}\r\n{text}: {text}\r\n\r\n"
        )
    }),
];

/// The forms in which a server can return a secret, as the proxy promises to recognize them.
fn returned_forms(secret: &str) -> Vec<String> {
    use std::fmt::Write as _;
    let code = |prefix: &str, upper: bool| {
        secret.bytes().fold(String::new(), |mut text, byte| {
            let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            let _ = match (prefix, upper) {
                ("%", _) if plain => write!(text, "{}", char::from(byte)),
                (_, true) => write!(text, "{prefix}{byte:02X}"),
                (_, false) => write!(text, "{prefix}{byte:02x}"),
            };
            text
        })
    };
    let json = serde_json::Value::from(secret).to_string();
    let inner = json.trim_matches('"').to_owned();
    let mut forms = vec![secret.to_owned(), inner.replace('/', "\\/"), inner];
    forms.extend([code("%", true), code("%", false), code("", true), code("", false)]);
    forms.sort();
    forms.dedup();
    forms
}

#[test]
fn no_place_of_a_response_returns_a_secret_to_the_program() {
    for secret in ["s3cr3t-value+1", "5ecr3tCanaryValue", "user:s3cr3t/value", "0123456789"] {
        for form in returned_forms(secret) {
            for (place, response) in RESPONSE_PARTS {
                let text = response(&form);
                let server = Server::http(move |_| text.clone().into_bytes());
                let here = format!("example.org:{}", server.address.port());
                let placeholder = Placeholder::new("API_TOKEN", secret).host(pattern(&here)).plain_http(true);
                let proxy = start(&leads_to(&server).secret(placeholder));
                let token = proxy.variables().last().unwrap().1.clone();
                let head =
                    format!("Host: {here}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
                let socks =
                    [&[5, 1, 0, 5, 1, 0, 3, 11][..], b"example.org", &server.address.port().to_be_bytes()];
                let requests = [
                    format!("GET http://{here}/ HTTP/1.1\r\n{head}").into_bytes(),
                    format!("HEAD http://{here}/ HTTP/1.0\r\n{head}").into_bytes(),
                    format!("CONNECT {here} HTTP/1.1\r\nHost: {here}\r\n\r\nGET / HTTP/1.1\r\n{head}")
                        .into_bytes(),
                    [&socks.concat()[..], format!("GET / HTTP/1.1\r\n{head}").as_bytes()].concat(),
                ];
                for request in requests {
                    let answer = ask(proxy.address(), &request);
                    let shown = String::from_utf8_lossy(&answer).to_lowercase();
                    let whole = format!("{place}, {form:?} of {secret:?}: {}", answer.escape_ascii());
                    assert!(!shown.contains(&form.to_lowercase()), "{whole}");
                    assert!(!shown.replace(": ", ":").contains(&form.to_lowercase()), "{whole}");
                    assert!(shown.contains("http/1.1 "), "{whole}");
                }
                let log = proxy.finish();
                assert_eq!(
                    log.events.iter().filter(|event| event.secrets == ["API_TOKEN"]).count(),
                    4,
                    "{place} {log:?}"
                );
                let log = format!("{log:?} {:?}", log.notes()).to_lowercase();
                assert!(!log.contains(&form.to_lowercase()), "{place} {log}");
            }
        }
    }
}

#[test]
fn a_secret_is_sent_without_tls_only_where_allowed() {
    let server = mirror();
    let here = format!("example.org:{}", server.address.port());
    let placeholder = Placeholder::new("API_TOKEN", SECRET).host(pattern(&here));
    let limits = EgressLimits::default().with_idle_timeout(Duration::from_millis(500));
    let proxy = start(&leads_to(&server).secret(placeholder).limits(limits));
    let token = proxy.variables().iter().find(|(name, _)| name == "API_TOKEN").unwrap().1.clone();
    let request =
        format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let answer = ask(proxy.address(), request.as_bytes());
    let text = String::from_utf8_lossy(&answer).into_owned();
    if cfg!(feature = "egress-tls") {
        // The server does not speak TLS.
        assert!(text.starts_with("HTTP/1.1 504 Failed: the TLS handshake"), "{text}");
    } else {
        assert!(text.starts_with("HTTP/1.1 403 Blocked: "), "{text}");
        assert!(text.contains("Rule: secret_needs_tls") && text.contains("plain_http"), "{text}");
    }
    assert!(!server.seen().iter().any(|head| head.contains(SECRET) || head.contains(&token)));
}

#[test]
fn only_the_named_headers_carry_a_secret_and_compressed_answers_are_rejected() {
    let server = mirror();
    let here = format!("example.org:{}", server.address.port());
    let bound = || Placeholder::new("API_TOKEN", SECRET).host(pattern(&here)).plain_http(true);
    let proxy = start(&leads_to(&server).secret(bound().header("X-Own")));
    let token = proxy.variables().last().unwrap().1.clone();
    let request = format!(
        "GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nAuthorization: {token}\r\nx-own: key={token}\r\n\
         Accept-Encoding: gzip\r\nRange: bytes=0-5\r\nConnection: close\r\n\r\n"
    );
    ask(proxy.address(), request.as_bytes());
    let seen = server.seen().pop().unwrap();
    assert!(seen.contains(&format!("x-own: key={SECRET}\r\n")), "{seen}");
    assert!(seen.contains(&format!("Authorization: {token}\r\n")), "{seen}");
    assert!(seen.contains("Accept-Encoding: identity\r\n") && !seen.contains("gzip"), "{seen}");
    assert!(!seen.contains("Range"), "a secret could be read piece by piece: {seen}");

    let packed = Server::http(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nzzzz".to_vec()
    });
    let here = format!("example.org:{}", packed.address.port());
    let placeholder = Placeholder::new("API_TOKEN", SECRET).host(pattern(&here)).plain_http(true);
    let proxy = start(&leads_to(&packed).secret(placeholder));
    let answer =
        ask(proxy.address(), format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 502 Failed: the response is rejected: it is compressed"));
}

#[test]
fn secrets_are_rejected_where_they_could_leak() {
    for (_, sandbox) in sandboxes("secrets_are_rejected_where_they_could_leak") {
        let host = || pattern("example.org");
        for (name, value) in [
            ("LD_PRELOAD", SECRET),
            ("1A", SECRET),
            ("HTTP_PROXY", SECRET),
            ("TOKEN", "a\r\nX: y and more"),
            ("TOKEN", "short"),
        ] {
            let egress = Egress::new().secret(Placeholder::new(name, value).host(host()));
            let error = run(&sandbox.clone().egress(egress), &Program::argv(["true"])).unwrap_err();
            assert!(
                matches!(error, Error::InvalidName { .. }) && !error.to_string().contains(value),
                "{error}"
            );
        }
        let egress = Egress::new().secret(Placeholder::new("TOKEN", SECRET).host(host()));
        let error = run(&sandbox.env("TOKEN", "own").egress(egress), &Program::argv(["true"])).unwrap_err();
        assert!(error.to_string().contains("TOKEN"), "{error}");
    }
}

#[test]
fn a_policy_file_equals_the_builder() {
    let server = mirror();
    let port = server.address.port();
    let policy: EgressPolicy = serde_json::from_value(json!({
        "allow": [format!("example.org:{port}")],
        "addresses": [server.address],
        "secrets": [{"variable": "API_TOKEN", "hosts": [format!("example.org:{port}")], "plain_http": true}],
        "limits": {"requests": 1},
    }))
    .unwrap();
    let egress = Egress::from_policy(policy, &mut |_| Some(SECRET.to_owned()))
        .unwrap()
        .resolver(crate::egress::Names::new(&[("example.org", &[&["127.0.0.1"]])]));
    let proxy = start(&egress);
    let token = proxy.variables().last().unwrap().1.clone();
    let request = format!(
        "GET http://example.org:{port}/ HTTP/1.1\r\nHost: example.org:{port}\r\nX-Api-Key: {token}\r\n\r\n"
    );
    assert!(ask(proxy.address(), request.as_bytes()).starts_with(b"HTTP/1.1 200 OK"));
    assert!(ask(proxy.address(), request.as_bytes()).starts_with(b"HTTP/1.1 429 "));
    assert!(server.seen()[0].contains(&format!("X-Api-Key: {SECRET}\r\n")));
}
