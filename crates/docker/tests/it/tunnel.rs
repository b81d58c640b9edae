//! Egress from a container without network.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use toolpost_docker::Docker;
use toolpost_sandbox::{Cancel, Egress, EgressLimits, Layer, Limits, Outcome, Program, Sandbox, Source};

use super::daemon::Daemon;
use crate::egress::{Server, page};

fn run(docker: &Docker, egress: Option<Egress>, script: &str) -> Outcome {
    let limits = Limits::default().with_wall(Duration::from_mins(1)).with_workspace_bytes(64 << 20);
    let mut sandbox = Sandbox::new().backend(Arc::new(docker.clone())).limits(limits);
    if let Some(egress) = egress {
        sandbox = sandbox.egress(egress);
    }
    let sandbox = sandbox.file("big", Source::Bytes(vec![b'u'; 3 << 20]));
    sandbox.run(&Program::argv(["sh", "-c", script]), &Cancel::new(), &mut |_| {}).unwrap()
}

#[test]
fn a_container_without_network_reaches_only_allowed_hosts() {
    let name = "a_container_without_network_reaches_only_allowed_hosts";
    let Some(daemon) = Daemon::get(name) else { return };
    let server = Server::http(|_| page("from the host"));
    let other = Server::http(|_| page("forbidden"));
    let (good, bad) = (server.address, other.address);
    let script = format!(
        "wget -q -O - http://{good}/path; echo; wget -O - http://{bad}/ 2>&1 | grep -c 403;
         (unset http_proxy; wget -T 2 -O - http://{good}/ 2>&1 | grep -c from); tail -n +3 /proc/net/dev | grep -vc lo:"
    );
    let mut runtimes = vec![None];
    if daemon.has_own_kernel() {
        runtimes.push(Some("runsc"));
    } else {
        println!("SKIP {name}: there is no `runsc`; install the package `runsc`");
    }
    for runtime in runtimes {
        let mut options = Daemon::options();
        options.runtime = runtime.map(str::to_owned);
        let docker = Docker::connect(&daemon.host, options).unwrap();
        let outcome = run(&docker, Some(Egress::new().allow_address(good)), &script);
        assert_eq!(
            outcome.stdout.text(),
            "from the host\n1\n0\n0\n",
            "{runtime:?} {}",
            outcome.stderr.text()
        );
        assert!(outcome.report.has(Layer::Egress) && outcome.report.has(Layer::NetworkNamespace));
        let log = outcome.report.egress.as_ref().unwrap();
        assert_eq!((log.requests, log.refused), (2, 1), "{log:?}");
        // Without egress nothing is reachable, not even the container's own proxy.
        let closed = run(&docker, None, &format!("wget -T 2 -O - http://{good}/ 2>&1; echo $http_proxy"));
        assert!(!closed.stdout.text().contains("from the host"), "{}", closed.stdout.text());
        assert!(closed.report.egress.is_none());
    }
    assert!(other.seen().is_empty());
}

#[test]
fn many_connections_carry_much_data_within_limits() {
    let Some(daemon) = Daemon::get("many_connections_carry_much_data_within_limits") else {
        return;
    };
    let docker = daemon.docker();
    // Reads an upload completely, then answers with as much, slowly at first.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut block = [0u8; 1 << 14];
                let end = loop {
                    let size = stream.read(&mut block).unwrap();
                    head.extend_from_slice(&block[..size]);
                    if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                        break end + 4;
                    }
                };
                let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
                let length =
                    text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                let mut got = head.len() - end;
                std::thread::sleep(Duration::from_millis(300));
                while got < length.unwrap_or(0) {
                    got += stream.read(&mut block).unwrap();
                }
                let body = vec![b'd'; 3 << 20];
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(&body);
            });
        }
    });
    let egress = || {
        let limits = EgressLimits::default()
            .with_connections_at_once(4)
            .with_bytes_up(1 << 30)
            .with_bytes_down(1 << 30);
        Egress::new().allow_address(address).limits(limits)
    };
    // More than the proxy accepts at once: the others are queued.
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O out$i --post-file=big http://{address}/ & done; wait
         cat out* | wc -c; cat out* | tr -d d | wc -c"
    );
    let outcome = run(&docker, Some(egress()), &script);
    assert_eq!(outcome.stdout.text(), format!("{}\n0\n", 10 * (3 << 20)), "{}", outcome.stderr.text());
    let log = outcome.report.egress.as_ref().unwrap();
    assert!(log.bytes_up >= 30 << 20 && log.bytes_down >= 30 << 20 && log.requests == 10, "{log:?}");
    // A program that ends in the middle closes its connections.
    let outcome =
        run(&docker, Some(egress()), &format!("wget -q -O - http://{address}/ | head -c 10; kill -9 -1"));
    assert!(outcome.stdout.text().starts_with("dddddddddd"), "{outcome:?}");
}
