//! Egress: what a program reaches through its proxy, and what the log contains.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use toolpost_sandbox::{Egress, HostPattern, Level, Resolve, Sandbox};

use crate::support::quick;

/// A resolver for the test's names. A name may have several answers, one per lookup.
#[derive(Debug, Default)]
pub(crate) struct Names {
    answers: BTreeMap<&'static str, Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    pub(crate) fn new(answers: &[(&'static str, &[&[&str]])]) -> Arc<Self> {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Arc::new(Self {
            answers: answers
                .iter()
                .map(|(name, times)| (*name, times.iter().map(|list| parse(list)).collect()))
                .collect(),
            asked: AtomicUsize::new(0),
        })
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let time = self.asked.fetch_add(1, Ordering::SeqCst);
        let times = self.answers.get(name).ok_or_else(|| std::io::Error::other("no such name"))?;
        Ok(times.get(time).or(times.last()).cloned().unwrap_or_default())
    }
}

/// A loopback server of the test: it answers each connection by a function of the request.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The heads of received requests.
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Answers every HTTP request on a connection by a function of its head.
    pub(crate) fn http(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::raw(move |mut stream, seen| {
            let mut bytes = Vec::new();
            let mut block = [0u8; 4096];
            while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut block) {
                    Ok(size @ 1..) => bytes.extend_from_slice(&block[..size]),
                    _ => return,
                }
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let length = text.lines().find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ")?.trim().parse::<usize>().ok()
            });
            let head = text.find("\r\n\r\n").unwrap() + 4;
            while bytes.len() < head + length.unwrap_or(0) {
                match stream.read(&mut block) {
                    Ok(size @ 1..) => bytes.extend_from_slice(&block[..size]),
                    _ => return,
                }
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // Before the answer, because the client may check at once.
            let answer = answer(&text);
            seen.lock().unwrap().push(text);
            let _ = stream.write_all(&answer);
        })
    }

    pub(crate) fn raw(serve: impl Fn(TcpStream, &Mutex<Vec<String>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (own, stopped, serve) = (Arc::clone(&seen), Arc::clone(&stop), Arc::new(serve));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                let (own, serve) = (Arc::clone(&own), Arc::clone(&serve));
                std::thread::spawn(move || serve(stream, &own));
            }
        });
        Self { address, seen, stop, thread: Some(thread) }
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A complete response with a text.
pub(crate) fn page(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
        .into_bytes()
}

pub(crate) fn pattern(text: &str) -> HostPattern {
    HostPattern::new(text).unwrap()
}

/// An allowlist with one name that resolves to a loopback server.
pub(crate) fn leads_to(server: &Server) -> Egress {
    Egress::new()
        .resolver(Names::new(&[("example.org", &[&["127.0.0.1"]]), ("other.example", &[&["127.0.0.1"]])]))
        .allow(pattern(&format!("example.org:{}", server.address.port())))
        .allow_address(server.address)
}

/// The levels at which this host supports egress.
pub(crate) fn sandboxes(test: &str) -> Vec<(Level, Sandbox)> {
    let host = toolpost_sandbox::Host::probe();
    if !host.availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP {test}: this host gives no network namespaces");
        return Vec::new();
    }
    [Level::Standard, Level::Strict, Level::Maximum]
        .map(|level| (level, Sandbox::new().level(level).limits(quick())))
        .into()
}
