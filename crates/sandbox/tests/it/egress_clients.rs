//! Common clients inside a sandbox.

use serde_json::json;
use toolpost_sandbox::{Egress, Error, Language, Limits, Outcome, Program, Sandbox};

use crate::egress::{Server, leads_to, page, sandboxes};
use crate::support::{python, quick, run};

/// Runs a program that may be missing.
fn command(sandbox: &Sandbox, arguments: &[&str]) -> Option<Outcome> {
    match run(sandbox, &Program::argv(arguments)) {
        Err(Error::ProgramNotFound { .. }) => {
            println!("SKIP {}: not installed", arguments[0]);
            None
        }
        other => Some(other.unwrap()),
    }
}

#[test]
fn curl_reaches_allowed_hosts_and_shows_why_others_are_denied() {
    let server = Server::http(|request| page(&format!("to {}", request.lines().next().unwrap())));
    let here = format!("example.org:{}", server.address.port());
    for (level, sandbox) in sandboxes("curl_reaches_what_is_allowed") {
        let sandbox = sandbox.egress(leads_to(&server));
        let url = format!("http://{here}/path");
        let curl = ["curl", "-sS", "--max-time", "10"];
        let rows: [(&[&str], &str); 5] = [
            (&[&url], "to GET /path HTTP/1.1"),
            (&["--proxytunnel", &url], "to GET /path HTTP/1.1"),
            (&["-x", "socks5h://127.0.0.1:3128", &url], "to GET /path HTTP/1.1"),
            (&["-d", "@/etc/passwd", "-H", "Expect: 100-continue", &url], "to POST /path HTTP/1.1"),
            (&["-H", "Transfer-Encoding: chunked", "-d", "data", &url], "to POST /path HTTP/1.1"),
        ];
        for (arguments, expected) in rows {
            let Some(outcome) = command(&sandbox, &[&curl[..], arguments].concat()) else { return };
            assert_eq!(outcome.stdout.text(), expected, "{level} {arguments:?} {}", outcome.stderr.text());
        }
        // Two requests on one connection, then a denied one.
        let outcome = command(&sandbox, &["curl", "-sS", &url, &url]).unwrap();
        assert_eq!(outcome.stdout.text(), "to GET /path HTTP/1.1".repeat(2), "{level}");
        let log = outcome.report.egress.unwrap();
        assert_eq!((log.connections, log.requests), (1, 2), "{level} {log:?}");
        let outcome = command(&sandbox, &["curl", "-sS", "http://evil.example/"]).unwrap();
        assert!(outcome.stdout.text().contains("allow the host `evil.example`\n"), "{level} {outcome:?}");
        let outcome = command(&sandbox, &["curl", "-sSv", "https://evil.example/"]).unwrap();
        assert_eq!(outcome.exit_code, Some(56), "{level} {}", outcome.stderr.text());
        assert!(
            outcome.stderr.text().contains("(allow the host `evil.example`)"),
            "{}",
            outcome.stderr.text()
        );
        // Without the proxy nothing is reachable, not even a name.
        let outcome = command(&sandbox, &["curl", "-sS", "--noproxy", "*", &url]).unwrap();
        assert_eq!(outcome.exit_code, Some(6), "{level} {}", outcome.stderr.text());
    }
}

#[test]
fn pip_installs_from_an_index_on_the_hosts_loopback() {
    // A wheel, created by Python itself.
    let wheel = {
        let code = "import zipfile, base64, io\n\
                    data = io.BytesIO()\n\
                    with zipfile.ZipFile(data, 'w') as wheel:\n\
                    \x20   wheel.writestr('tinypackage.py', 'answer = 42\\n')\n\
                    \x20   wheel.writestr('tinypackage-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tinypackage\\nVersion: 1.0\\n')\n\
                    \x20   wheel.writestr('tinypackage-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
                    \x20   wheel.writestr('tinypackage-1.0.dist-info/RECORD', '')\n\
                    open('wheel', 'wb').write(data.getvalue())";
        let outcome = python(&Sandbox::new().limits(quick()), code);
        outcome.artifacts[0].read().unwrap()
    };
    let name = "tinypackage-1.0-py3-none-any.whl";
    let server = Server::http(move |request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        match path {
            "/simple/tinypackage/" => {
                let text =
                    format!("<!DOCTYPE html><html><body><a href=\"/files/{name}\">{name}</a></body></html>");
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{text}",
                    text.len()
                )
                .into_bytes()
            }
            _ if path.starts_with("/files/") => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/zip\r\nContent-Length: {}\r\n\r\n",
                    wheel.len()
                );
                [head.as_bytes(), &wheel].concat()
            }
            _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        }
    });
    let Some((level, sandbox)) = sandboxes("pip_installs_from_an_index").into_iter().nth(1) else { return };
    let limits = Limits::for_level(level).with_wall(std::time::Duration::from_mins(1));
    let sandbox = sandbox.limits(limits).egress(Egress::new().allow_address(server.address));
    let code = format!(
        "import runpy, sys, subprocess\n\
         done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-cache-dir', '--disable-pip-version-check',\n\
         \x20   '--index-url', 'http://{}/simple', '--target', 'lib', 'tinypackage'], capture_output=True, text=True)\n\
         sys.path.insert(0, 'lib')\n\
         try:\n    import tinypackage; found = tinypackage.answer\n\
         except ImportError: found = done.stdout + done.stderr\n\
         found",
        server.address
    );
    let outcome = python(&sandbox, &code);
    if outcome
        .value
        .as_ref()
        .and_then(|value| value.as_str())
        .is_some_and(|text| text.contains("No module named pip"))
    {
        println!("SKIP pip_installs_from_an_index: this Python has no pip");
        return;
    }
    assert_eq!(outcome.value, Some(json!(42)), "{} {:?}", outcome.stderr.text(), outcome.report.egress);
    let log = outcome.report.egress.unwrap();
    assert!(log.requests >= 2 && log.refused == 0, "{log:?}");
}

#[test]
fn node_fetch_and_npm_use_the_proxy() {
    let server = Server::http(|_| {
        let text = json!({"name": "tiny", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": {"name": "tiny", "version": "1.2.3"}}})
            .to_string();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
        .into_bytes()
    });
    let Some((level, sandbox)) = sandboxes("nodes_own_client_and_npm").into_iter().nth(1) else { return };
    let limits = Limits::for_level(level).with_wall(std::time::Duration::from_mins(1)).with_memory(2 << 30);
    let sandbox = sandbox.limits(limits).egress(leads_to(&server));
    let url = format!("http://example.org:{}/", server.address.port());
    let code = format!(
        "const [major, minor] = process.versions.node.split('.').map(Number);\n\
         const knows = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);\n\
         const found = knows ? await (await fetch('{url}tiny')).json() : 'too old';\n\
         console.log('::result', JSON.stringify(found));"
    );
    match run(&sandbox, &Program::code(Language::JavaScript, code)) {
        Err(Error::LanguageMissing { .. }) => {
            println!("SKIP nodes_own_client: node is not installed");
            return;
        }
        Ok(outcome) if outcome.value == Some(json!("too old")) => {
            println!("SKIP nodes_own_client: this Node does not look at the variables of a proxy");
        }
        outcome => {
            let outcome = outcome.unwrap();
            assert!(outcome.value.as_ref().is_some_and(|value| value["name"] == "tiny"), "{outcome:?}");
        }
    }
    let Some(outcome) = command(&sandbox, &["npm", "view", "tiny", "version", "--registry", &url]) else {
        return;
    };
    assert_eq!(
        outcome.stdout.text().trim(),
        "1.2.3",
        "{} {:?}",
        outcome.stderr.text(),
        outcome.report.egress
    );
}
