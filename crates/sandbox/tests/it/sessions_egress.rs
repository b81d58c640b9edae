//! Sessions with egress.

use serde_json::json;
use toolpost_sandbox::{Language, Layer, Session};

use crate::egress::{Server, leads_to, page, sandboxes};
use crate::sessions::run;

#[test]
fn a_cell_reaches_allowed_hosts_and_its_outcome_has_its_log() {
    let server = Server::http(|_| page("from outside"));
    let port = server.address.port();
    for (level, sandbox) in sandboxes("a_cell_reaches_what_is_allowed") {
        let session = Session::start(&sandbox.egress(leads_to(&server)), Language::Python).unwrap();
        let outcome = run(&session, "import urllib.request, urllib.error\n1");
        assert_eq!(outcome.report.egress.as_ref().map(|log| log.requests), Some(0), "{level}");
        let good = format!("urllib.request.urlopen('http://example.org:{port}/').read().decode()");
        let outcome = run(&session, &good);
        assert_eq!(outcome.value, Some(json!("from outside")), "{level} {}", outcome.stderr.text());
        assert!(outcome.report.has(Layer::Egress) && outcome.report.has(Layer::NetworkNamespace));
        let log = outcome.report.egress.unwrap();
        assert_eq!((log.requests, log.refused, log.events.len()), (1, 0, 1), "{level} {log:?}");
        assert_eq!(log.events[0].target, format!("example.org:{port}"));
        let bad = format!(
            "try: urllib.request.urlopen('http://other.example:{port}/')\nexcept urllib.error.HTTPError as error: code = error.code\ncode"
        );
        let outcome = run(&session, &bad);
        assert_eq!(outcome.value, Some(json!(403)), "{level} {}", outcome.stderr.text());
        let log = outcome.report.egress.unwrap();
        assert_eq!((log.requests, log.refused, log.events.len()), (1, 1, 1), "{level} {log:?}");
        let option = format!("allow the host `other.example:{port}`");
        assert_eq!(log.events[0].refused.as_ref().unwrap().option.as_deref(), Some(option.as_str()));
        assert!(outcome.report.notes.iter().any(|note| note.contains(&option)), "{:?}", outcome.report.notes);
        // Nothing else is reachable.
        let direct = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)");
        assert!(run(&session, &direct).stderr.text().contains("Error"), "{level}");
        // A fork has the same egress.
        if let Ok(forks) = session.fork(1) {
            let outcome = run(&forks[0], &good);
            assert_eq!(outcome.value, Some(json!("from outside")), "{level} {}", outcome.stderr.text());
            assert_eq!(outcome.report.egress.unwrap().requests, 1);
        }
    }
}
