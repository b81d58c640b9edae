//! Programs in a sandbox with egress.

use serde_json::json;
use toolpost_sandbox::{Egress, Error, Language, Layer, Level, Program, Sandbox};

use crate::egress::{Server, leads_to, page, pattern, sandboxes};
use crate::support::{bash, python, quick, run};

#[test]
fn an_allowed_name_is_reached_and_another_is_denied_with_its_option() {
    let server = Server::http(|_| page("from outside"));
    let port = server.address.port();
    for (level, sandbox) in sandboxes("an_allowed_name_is_reached") {
        let sandbox = sandbox.egress(leads_to(&server));
        let code = format!(
            "import urllib.request, urllib.error\n\
             good = urllib.request.urlopen('http://example.org:{port}/path?query').read().decode()\n\
             try:\n    urllib.request.urlopen('http://other.example:{port}/')\n\
             except urllib.error.HTTPError as error:\n    bad = [error.code, error.reason, error.read().decode()]\n\
             [good, bad]"
        );
        let outcome = python(&sandbox, &code);
        let value = outcome.value.clone().unwrap_or_else(|| panic!("{level} {}", outcome.stderr.text()));
        assert_eq!(value[0], json!("from outside"), "{level}");
        assert_eq!(value[1][0], json!(403));
        let option = format!("allow the host `other.example:{port}`");
        assert!(value[1][1].as_str().unwrap().contains(&option), "{value}");
        assert!(value[1][2].as_str().unwrap().contains("Rule: host_not_allowed"), "{value}");
        assert!(value[1][2].as_str().unwrap().contains(&option), "{value}");

        assert!(outcome.report.has(Layer::Egress) && outcome.report.has(Layer::NetworkNamespace));
        let log = outcome.report.egress.as_ref().unwrap();
        assert_eq!((log.requests, log.refused, log.events.len()), (2, 1, 2), "{log:?}");
        assert!(log.bytes_up > 50 && log.bytes_down > 50, "{log:?}");
        // An exchange is logged at its end, and the two use separate connections.
        let event = |name: &str| {
            let target = format!("{name}:{port}");
            log.events.iter().find(|event| event.target == target).unwrap_or_else(|| panic!("{log:?}"))
        };
        assert_eq!(event("example.org").address, Some(server.address.ip()));
        let refused = event("other.example").refused.as_ref().unwrap();
        assert_eq!(refused.option.as_deref(), Some(option.as_str()));
        assert!(outcome.report.notes.iter().any(|note| note.contains(&option)), "{:?}", outcome.report.notes);
    }
    assert!(
        server.seen().iter().all(|head| head.starts_with("GET /path?query HTTP/1.1\r\nHost: example.org:"))
    );
    assert_eq!(server.seen().len(), sandboxes("").len());
}

#[test]
fn every_other_network_path_is_blocked() {
    let server = Server::http(|_| page("host loopback"));
    let port = server.address.port();
    let code = format!(
        "import socket, errno, os\n\
         def attempt(action):\n\
         \x20   try:\n        return repr(action())\n\
         \x20   except OSError as error:\n        return errno.errorcode.get(error.errno, str(error))\n\
         def connect(address, family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=0):\n\
         \x20   with socket.socket(family, kind, protocol) as client:\n\
         \x20       client.settimeout(2)\n        client.connect(address)\n        return 'connected'\n\
         def listen():\n\
         \x20   with socket.socket() as server:\n        server.bind(('127.0.0.1', 0))\n        return 'bound'\n\
         [\n\
         attempt(lambda: connect(('127.0.0.1', 3128))),\n\
         attempt(lambda: connect(('127.0.0.1', {port}))),\n\
         attempt(lambda: connect(('1.1.1.1', 443))),\n\
         attempt(lambda: connect(('1.1.1.1', 3128))),\n\
         attempt(lambda: connect(('169.254.169.254', 80))),\n\
         attempt(lambda: connect(('::1', 3128), socket.AF_INET6)),\n\
         attempt(lambda: connect(('127.0.0.1', 53), socket.AF_INET, socket.SOCK_DGRAM)),\n\
         attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),\n\
         attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)),\n\
         attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)),\n\
         attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)),\n\
         attempt(lambda: socket.socket(16, socket.SOCK_RAW, 0)),\n\
         attempt(lambda: socket.socket(17, socket.SOCK_RAW, 0)),\n\
         attempt(lambda: socket.socket(40, socket.SOCK_STREAM, 0)),\n\
         attempt(lambda: socket.getaddrinfo('example.org', 80)).startswith('ga') or 'no name',\n\
         attempt(listen)]"
    );
    for (level, sandbox) in sandboxes("every_other_network_path_is_blocked") {
        let outcome = python(&sandbox.egress(leads_to(&server)), &code);
        let value = outcome.value.clone().unwrap_or_else(|| panic!("{level} {}", outcome.stderr.text()));
        let found: Vec<&str> =
            value.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap_or("?")).collect();
        // Without Landlock for TCP the kernel has no route from there.
        let closed = ["EACCES", "ENETUNREACH", "ECONNREFUSED"];
        assert_eq!(found[0], "'connected'", "{level} {found:?}");
        for (index, answer) in found.iter().enumerate().take(5).skip(1) {
            assert!(closed.contains(answer), "{level} {index} {found:?}");
        }
        assert_eq!(found[5..14], ["EACCES"; 9], "{level}");
        assert_eq!(found[14], "no name", "{level}");
        if outcome.report.has(Layer::LandlockTcp) {
            assert_eq!(found[15], "EACCES", "{level}");
        }
        assert_eq!(outcome.report.egress.unwrap().requests, 0);
    }
    assert_eq!(server.seen(), Vec::<String>::new());
}

#[test]
fn without_an_allowlist_nothing_changes() {
    for (level, sandbox) in sandboxes("without_an_allowlist_nothing_changes") {
        let code = "import os, socket\n\
                    try:\n    socket.socket(); found = 'socket'\nexcept OSError as error:\n    found = error.errno\n\
                    [found, sorted(name for name in os.environ if 'proxy' in name.lower())]";
        let outcome = python(&sandbox, code);
        assert_eq!(outcome.value, Some(json!([13, []])), "{level}");
        assert_eq!(outcome.report.egress, None);
        assert!(!outcome.report.has(Layer::Egress));
    }
}

#[test]
fn the_variables_point_to_the_proxy_and_callers_cannot_set_them() {
    for (level, sandbox) in sandboxes("the_variables_lead_to_the_proxy") {
        let outcome = bash(
            &sandbox.clone().egress(Egress::new()),
            "echo \"$HTTP_PROXY $HTTPS_PROXY $ALL_PROXY $http_proxy $https_proxy $all_proxy [$NO_PROXY$no_proxy] ${NO_PROXY+set}\"",
        );
        let proxy = "http://127.0.0.1:3128";
        let expected = format!("{} [] set\n", [proxy; 6].join(" "));
        assert_eq!(outcome.stdout.text(), expected, "{level}");
        let error =
            run(&sandbox.env("HTTPS_PROXY", "http://evil").egress(Egress::new()), &Program::argv(["true"]));
        assert!(matches!(&error, Err(Error::InvalidName { name, .. }) if name == "HTTPS_PROXY"), "{error:?}");
    }
}

#[test]
fn a_level_or_host_without_egress_support_fails_with_the_reason() {
    let egress = || Egress::new().allow(pattern("example.org"));
    for (sandbox, expected) in [
        (Sandbox::unconfined(), "level `unconfined`"),
        (Sandbox::new().level(Level::Minimal), "level `minimal`"),
        (
            Sandbox::new()
                .level(Level::Standard)
                .host(toolpost_sandbox::Host::probe().without_namespaces())
                .allow_degraded(true),
            "network namespace",
        ),
    ] {
        let error = run(&sandbox.limits(quick()).egress(egress()), &Program::argv(["true"])).unwrap_err();
        assert!(matches!(error, Error::EgressUnavailable { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_live_program_has_egress_too() {
    let server = Server::http(|_| page("live"));
    let url = format!("http://example.org:{}/", server.address.port());
    for (level, sandbox) in sandboxes("a_live_program_has_egress_too") {
        let code = format!("import urllib.request\nprint(urllib.request.urlopen('{url}').read().decode())");
        let program = Program::code(Language::Python, code);
        let mut running = sandbox.egress(leads_to(&server)).start(&program).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut running.take_output().unwrap().0, &mut text).unwrap();
        let outcome = running.wait().unwrap();
        assert_eq!(text, "live\n", "{level} {outcome:?}");
        assert_eq!(outcome.report.egress.unwrap().requests, 1);
    }
}
