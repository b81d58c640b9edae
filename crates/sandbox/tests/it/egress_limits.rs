//! Limits of the proxy: totals, rates, floods, and leftovers of a run.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_sandbox::{
    Cancel, Egress, EgressKind, EgressLimits, Language, Limits, Program, Reached, Verdict,
};

use crate::egress::{Server, leads_to, page, pattern, sandboxes};
use crate::egress_attacks::{ask, connect, start};
use crate::support::{python, quick};

fn request(server: &Server) -> String {
    let here = format!("example.org:{}", server.address.port());
    format!("GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n")
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads(name: &str) -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    names
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim_end() == name)
        })
        .count()
}

#[test]
fn each_limit_is_enforced_and_named() {
    let server = Server::http(|_| page(&"x".repeat(100_000)));
    let limits = EgressLimits::default;
    let rows = [
        (limits().with_requests(2), "requests", "limit_requests", 2),
        (limits().with_connections(2), "connections", "limit_connections", 2),
        (limits().with_bytes_up(300), "bytes_up", "limit_bytes", 2),
        (limits().with_bytes_down(250_000), "bytes_down", "limit_bytes", 2),
    ];
    for (limits, name, rule, whole) in rows {
        let proxy = start(&leads_to(&server).limits(limits));
        let text =
            request(&server).replace("\r\n\r\n", &format!("\r\nX-Padding: {}\r\n\r\n", "p".repeat(60)));
        let answers: Vec<Vec<u8>> = (0..4).map(|_| ask(proxy.address(), text.as_bytes())).collect();
        let whole_ones =
            answers.iter().filter(|answer| answer.ends_with(&[b'x'; 1000]) && answer.len() > 100_000);
        assert_eq!(whole_ones.count(), whole, "{name}");
        let log = proxy.finish();
        assert_eq!(log.limits_reached, [name], "{log:?}");
        let refusals: Vec<_> = log.events.iter().filter_map(|event| event.refused.as_ref()).collect();
        assert!(!refusals.is_empty() && refusals.iter().all(|refused| refused.rule == rule), "{log:?}");
        assert!(refusals.iter().all(|refused| refused.option.is_some()), "{log:?}");
    }
}

#[test]
fn rates_make_requests_and_bytes_wait() {
    let server = Server::http(|_| page(&"x".repeat(60_000)));
    let timed = |limits: EgressLimits| {
        let proxy = start(&leads_to(&server).limits(limits));
        let since = Instant::now();
        for _ in 0..4 {
            assert!(ask(proxy.address(), request(&server).as_bytes()).ends_with(b"xxxx"));
        }
        since.elapsed()
    };
    let free = timed(EgressLimits::default());
    // Two at once, and the other two half a second later each.
    let requests = timed(EgressLimits::default().with_requests_per_second(2));
    assert!(requests >= Duration::from_millis(950) && free < requests, "{free:?} {requests:?}");
    // 240 kB, of which 100 arrive at once.
    let bytes = timed(EgressLimits::default().with_bytes_per_second(100_000));
    assert!(bytes >= Duration::from_millis(1200) && bytes < Duration::from_secs(10), "{bytes:?}");
}

#[test]
fn connections_beyond_the_limit_are_queued() {
    let server = Server::http(|_| page("good"));
    let limits =
        EgressLimits::default().with_connections_at_once(2).with_idle_timeout(Duration::from_secs(20));
    let proxy = start(&leads_to(&server).limits(limits));
    let idle = [connect(proxy.address()), connect(proxy.address())];
    let mut third = connect(proxy.address());
    third.write_all(request(&server).as_bytes()).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0u8; 1];
    assert!(third.read(&mut byte).is_err(), "it is served although two are");
    drop(idle);
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(third.read(&mut byte).unwrap(), 1);
}

/// A thousand connections of a program: one after another, or all at once.
#[test]
fn a_thousand_connections_are_served_and_silent_ones_do_not_delay_the_end() {
    let server = Server::http(|_| page("good"));
    let limits = EgressLimits::default().with_idle_timeout(Duration::from_secs(30));
    let proxy = start(&leads_to(&server).limits(limits));
    let address = proxy.address();
    let text = request(&server);
    let answered = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let answer = ask(address, text.as_bytes());
                    *answered.lock().unwrap() += usize::from(answer.ends_with(b"good"));
                }
            });
        }
    });
    assert_eq!(*answered.lock().unwrap(), 1000);
    // Many silent connections at the end of the run: some are served, the others are queued.
    let silent: Vec<TcpStream> = (0..150).map(|_| connect(address)).collect();
    let since = Instant::now();
    let log = proxy.finish();
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert_eq!((log.requests, log.refused, log.events.len(), log.events_left_out), (1000, 0, 1000, 0));
    drop((silent, server));
}

#[test]
fn the_limits_of_a_run_hold_too_and_are_reported() {
    let server = Server::http(|_| page(&"x".repeat(5000)));
    let url = format!("http://example.org:{}/", server.address.port());
    let code = format!(
        "import urllib.request\nresults = []\nfor _ in range(4):\n\
         \x20   try:\n        results.append(len(urllib.request.urlopen('{url}', timeout=5).read()))\n\
         \x20   except Exception as error:\n        results.append(getattr(error, 'code', 'cut'))\nresults"
    );
    let rows: [(Limits, Reached, serde_json::Value); 3] = [
        (quick().with_requests(2), Reached::Requests, json!([5000, 5000, 429, 429])),
        (quick().with_connections(2), Reached::Connections, json!([5000, 5000, 429, 429])),
        (quick().with_network_bytes(12_000), Reached::NetworkBytes, json!([5000, 5000, "cut", 403])),
    ];
    for (level, sandbox) in sandboxes("the_limits_of_a_run_hold_besides") {
        for (limits, reached, expected) in rows.clone() {
            let outcome = python(&sandbox.clone().limits(limits).egress(leads_to(&server)), &code);
            assert_eq!(outcome.value, Some(expected), "{level} {reached:?} {}", outcome.stderr.text());
            assert_eq!(outcome.report.reached, [reached], "{level}");
            assert!(!outcome.report.notes.is_empty());
        }
    }
}

#[test]
fn a_cancelled_run_ends_its_connections_at_once() {
    let silent = Server::raw(|mut stream, _| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
    });
    let url = format!("http://example.org:{}/", silent.address.port());
    for (level, sandbox) in sandboxes("a_cancelled_run_ends_its_connections_at_once") {
        let code = format!(
            "import threading, urllib.request\n\
             def ask():\n    urllib.request.urlopen('{url}').read()\n\
             for _ in range(10): threading.Thread(target=ask).start()"
        );
        let cancel = Cancel::new();
        let other = cancel.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(800));
            other.cancel();
        });
        let since = Instant::now();
        let program = Program::code(Language::Python, code);
        let outcome = sandbox.egress(leads_to(&silent)).run(&program, &cancel, &mut |_| {}).unwrap();
        assert_eq!(outcome.verdict, Verdict::Cancelled, "{level}");
        assert!(since.elapsed() < Duration::from_secs(6), "{level} {:?}", since.elapsed());
        thread.join().unwrap();
        let log = outcome.report.egress.unwrap();
        assert!(log.events.iter().all(|event| event.failure.is_some()), "{level} {log:?}");
    }
}

/// No step of the run waits for a hung resolver.
#[test]
fn a_resolver_that_hangs_or_panics_costs_one_request_and_its_time() {
    #[derive(Debug)]
    struct Hangs;
    impl toolpost_sandbox::Resolve for Hangs {
        fn resolve(&self, name: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
            assert!(name != "panic.example", "as the test wants it");
            std::thread::sleep(Duration::from_secs(2));
            Ok(Vec::new())
        }
    }
    // A panic prints its backtrace first, which takes some 300 ms in a debug build.
    let limits = EgressLimits::default().with_connect_timeout(Duration::from_millis(800));
    let egress = Egress::new()
        .resolver(Arc::new(Hangs))
        .allow(pattern("slow.example"))
        .allow(pattern("panic.example"))
        .limits(limits);
    let proxy = start(&egress);
    let since = Instant::now();
    for (name, status) in [("slow.example", "504"), ("panic.example", "502")] {
        let answer =
            ask(proxy.address(), format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes());
        assert!(
            answer.starts_with(format!("HTTP/1.1 {status} Failed: ").as_bytes()),
            "{}",
            answer.escape_ascii()
        );
    }
    let log = proxy.finish();
    assert!(since.elapsed() < Duration::from_millis(1900), "{:?}", since.elapsed());
    assert_eq!((log.refused, log.events.len()), (0, 2));
}

#[test]
fn at_most_16_lookups_run_and_waiting_ones_follow() {
    #[derive(Debug, Default)]
    struct Counts {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    impl toolpost_sandbox::Resolve for Counts {
        fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
            self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            self.now.fetch_sub(1, Ordering::SeqCst);
            Ok(Vec::new())
        }
    }
    let counts = Arc::new(Counts::default());
    let own: Arc<dyn toolpost_sandbox::Resolve> = Arc::<Counts>::clone(&counts);
    let proxy = start(&Egress::new().resolver(own).allow(pattern("*.names.example")));
    std::thread::scope(|scope| {
        for number in 0..48 {
            let address = proxy.address();
            scope.spawn(move || {
                let name = format!("n{number}.names.example");
                let answer =
                    ask(address, format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes());
                assert!(answer.starts_with(b"HTTP/1.1 502 Failed: "), "{}", answer.escape_ascii());
            });
        }
    });
    let most = counts.most.load(Ordering::SeqCst);
    assert!((2..=16).contains(&most), "{most} at one time");
}

#[test]
fn an_unresponsive_address_costs_the_connect_timeout() {
    // The queue of a socket without accepts is full after a few; further connections time out.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    let waiting: Vec<_> = (0..400)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok())
        .collect();
    if waiting.len() == 400 {
        println!("SKIP an_address_where_nobody_answers: the queue of this host is longer");
        return;
    }
    let limits = EgressLimits::default().with_connect_timeout(Duration::from_millis(300));
    let proxy = start(&Egress::new().allow_address(address).limits(limits));
    let since = Instant::now();
    let answer =
        ask(proxy.address(), format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 504 Failed: "), "{}", answer.escape_ascii());
    assert!((300..3000).contains(&since.elapsed().as_millis()), "{:?}", since.elapsed());
    let closed: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = start(&Egress::new().allow_address(closed));
    let answer =
        ask(proxy.address(), format!("CONNECT {closed} HTTP/1.1\r\nHost: {closed}\r\n\r\n").as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 502 Failed: "), "{}", answer.escape_ascii());
}

#[test]
fn every_event_is_reported_during_the_run() {
    let server = Server::http(|_| page("good"));
    let told = Arc::new(Mutex::new(Vec::<(EgressKind, Option<u16>)>::new()));
    let own = Arc::clone(&told);
    let egress = leads_to(&server).on_event(move |event| {
        own.lock().unwrap().push((event.kind, event.status));
        assert!(event.refused.is_none(), "a panic of the caller's harms nobody");
    });
    let proxy = start(&egress);
    ask(proxy.address(), request(&server).as_bytes());
    ask(proxy.address(), b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n");
    ask(proxy.address(), request(&server).as_bytes());
    let expected =
        vec![(EgressKind::Http, Some(200)), (EgressKind::Connect, Some(403)), (EgressKind::Http, Some(200))];
    assert_eq!(*told.lock().unwrap(), expected);
    assert_eq!(proxy.finish().refused, 1);
}

#[test]
fn an_upstream_proxy_gets_every_connection() {
    let upstream = Server::raw(|mut stream, seen| {
        let mut bytes = Vec::new();
        let mut block = [0u8; 4096];
        while !bytes.ends_with(b"\r\n\r\n") {
            match stream.read(&mut block) {
                Ok(size @ 1..) => bytes.extend_from_slice(&block[..size]),
                _ => return,
            }
        }
        let head = String::from_utf8(bytes).unwrap();
        let is_tunnel = head.starts_with("CONNECT ");
        seen.lock().unwrap().push(head);
        if is_tunnel {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            let _ = stream.write_all(b"tunnelled");
        } else {
            let _ = stream.write_all(&page("forwarded"));
        }
    });
    // Only the upstream proxy knows the name.
    let egress = || {
        Egress::new()
            .allow(pattern("far.example"))
            .upstream(upstream.address)
            .upstream_authorization("Basic b3BlcmF0b3I6cHc=")
    };
    let proxy = start(&egress());
    let answer = ask(proxy.address(), b"GET http://far.example/a HTTP/1.1\r\nHost: far.example\r\n\r\n");
    assert!(answer.ends_with(b"forwarded"), "{}", answer.escape_ascii());
    let hello = crate::egress_attacks::hello(b"far.example");
    let tunnel = [&b"CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n"[..], &hello].concat();
    let answer = ask(proxy.address(), &tunnel);
    assert!(answer.ends_with(b"tunnelled"), "{}", answer.escape_ascii());
    let answer = ask(proxy.address(), b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", answer.escape_ascii());
    // Addresses are still checked here.
    let proxy = start(&egress().allow(pattern("10.0.0.1")));
    let answer = ask(proxy.address(), b"GET http://10.0.0.1/ HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", answer.escape_ascii());
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[0].starts_with(
        "GET http://far.example/a HTTP/1.1\r\nHost: far.example\r\nProxy-Authorization: Basic "
    ));
    assert!(
        seen[1].starts_with(
            "CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\nProxy-Authorization: "
        )
    );
}

/// Runs whose egress is used, left open, denied, full of queued connections, or cut off.
fn many_runs() {
    let server = Server::http(|_| page("good"));
    let silent = Server::raw(|mut stream, _| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
    });
    let quiet = format!("example.org:{}", silent.address.port());
    let ask = |host: &str| format!("printf 'GET http://{host}/ HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n' >&3");
    let open = "exec 3<>/dev/tcp/127.0.0.1/3128";
    let here = format!("example.org:{}", server.address.port());
    let scripts = [
        format!("{open}; {}; head -c 12 <&3", ask(&here)),
        format!("{open}; {}", ask(&quiet)),
        format!("{open}; {}; head -c 12 <&3", ask("evil.example")),
        "for number in {10..90}; do eval \"exec $number<>/dev/tcp/127.0.0.1/3128\"; done; sleep 0.2"
            .to_owned(),
        format!("{open}; {}; sleep 60", ask(&quiet)),
    ];
    let egress = leads_to(&server).allow(pattern(&quiet)).allow_address(silent.address);
    let (_, sandbox) = sandboxes("many_runs").remove(1);
    let one = |number: usize| {
        let script = &scripts[number % scripts.len()];
        let mut limits = quick();
        if script.ends_with("sleep 60") {
            limits = limits.with_wall(Duration::from_millis(150));
        }
        let sandbox = sandbox.clone().limits(limits).egress(egress.clone());
        let outcome = crate::support::bash(&sandbox, script);
        let log = outcome.report.egress.unwrap();
        match number % scripts.len() {
            0 => assert_eq!((outcome.stdout.text().as_str(), log.refused), ("HTTP/1.1 200", 0)),
            2 => assert_eq!((outcome.stdout.text().as_str(), log.refused), ("HTTP/1.1 403", 1)),
            3 => assert!(outcome.verdict.is_ok() && log.connections >= 1, "{:?} {log:?}", outcome.stderr),
            4 => assert!(matches!(outcome.verdict, Verdict::Timeout { .. })),
            _ => assert!(outcome.verdict.is_ok() && log.connections <= 1),
        }
    };
    let count = || (descriptors(), std::fs::read_dir("/proc/self/task").unwrap().count());
    (0..scripts.len()).for_each(one);
    let settle = || {
        // The test's servers see the end of their connections a moment later.
        std::thread::sleep(Duration::from_millis(300));
        count()
    };
    let before = settle();
    (0..100).for_each(one);
    let after = settle();
    assert_eq!(before, after, "descriptors and threads");
    assert_eq!(threads("toolpost-egress") + threads("toolpost-resolve"), 0);
}

/// In a separate process, so that no other test holds anything meanwhile.
#[test]
fn runs_with_egress_leave_nothing_behind() {
    if sandboxes("runs_with_egress_leave_nothing_behind").is_empty() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the test program itself, alone")]
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "egress_limits::helper_many_runs", "--nocapture", "--test-threads", "1"])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn helper_many_runs() {
    // For runs_with_egress_leave_nothing_behind.
    if crate::support::is_helper() {
        many_runs();
    }
}
