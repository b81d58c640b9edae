//! A minimal HTTP client for `--sample-via`: one POST without TLS.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use toolpost_core::ToolError;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(10);
/// Maximum size of a body, in bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Maximum size of a head, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// The destination of sampling requests: `http://host[:port]/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
    path: String,
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown: String = text.chars().take(200).collect();
        if text.starts_with("https://") {
            return Err(format!(
                "`{shown}`: this program has no TLS; use a http:// URL on this machine, or `stdin`"
            ));
        }
        let invalid = || format!("`{shown}` is neither `stdin` nor a URL such as http://127.0.0.1:8080/");
        let rest = text.strip_prefix("http://").ok_or_else(invalid)?;
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        // Reject bytes that could end the head of the request.
        if authority.contains('@') || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(invalid());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| invalid())?),
            _ => (authority, 80),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() { Err(invalid()) } else { Ok(Self { host: host.to_owned(), port, path }) }
    }
}

impl Address {
    /// Posts JSON and returns the body of the answer. Blocks the thread.
    pub(super) fn post(&self, body: &[u8], offline: bool) -> Result<Vec<u8>, ToolError> {
        let failed = |what: &str| {
            ToolError::dependency(format!("sampling via {}:{} failed: {what}", self.host, self.port))
        };
        let end = Instant::now() + ANSWER_TIMEOUT;
        let mut stream = self.connect(offline)?;
        stream.set_write_timeout(Some(CONNECT_TIMEOUT)).map_err(|error| failed(&error.to_string()))?;
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Type: application/json\r\nAccept: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.path,
            self.port,
            body.len()
        );
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body))
            .map_err(|error| failed(&error.to_string()))?;
        let mut answer = Vec::new();
        let mut piece = [0; 16 * 1024];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ToolError::timeout(format!(
                    "sampling via {}:{} timed out after 10 min",
                    self.host, self.port
                )));
            }
            stream.set_read_timeout(Some(left)).map_err(|error| failed(&error.to_string()))?;
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => answer.extend_from_slice(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error.to_string())),
            }
            if answer.len() > MAX_BODY + MAX_HEAD {
                return Err(failed("the answer is larger than 16 MiB"));
            }
            // A server may keep the connection open despite `Connection: close`.
            if let Some(body) = complete(&answer) {
                return body.map_err(|reason| failed(&reason));
            }
        }
        finish(&answer).map_err(|reason| failed(&reason))
    }

    fn connect(&self, offline: bool) -> Result<TcpStream, ToolError> {
        let failed = |reason: String| {
            ToolError::dependency(format!(
                "cannot connect to {}:{} (`--sample-via`): {reason}",
                self.host, self.port
            ))
        };
        let is_here =
            self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if offline && !is_here {
            return Err(ToolError::permission(format!(
                "TOOLPOST_NO_NETWORK blocks the connection to `{}` (`--sample-via`)",
                self.host
            ))
            .suggest("Unset TOOLPOST_NO_NETWORK, or use `--sample-via stdin`."));
        }
        let mut last = "the name has no address".to_owned();
        let addresses =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        for address in addresses.take(8) {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error.to_string(),
            }
        }
        Err(failed(last))
    }
}

/// Splits an answer into head and body.
fn parts(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).take(MAX_HEAD).position(|window| window == b"\r\n\r\n")?;
    let (head, rest) = answer.split_at(end);
    Some((std::str::from_utf8(head).ok()?, rest.get(4..)?))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn check_status(head: &str) -> Result<(), String> {
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status.len() == 3 && status.starts_with('2') {
        return Ok(());
    }
    Err(format!("expected status 200, found `{}`", head.lines().next().unwrap_or_default()))
}

/// The body, if its own length shows that it is complete.
fn complete(answer: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let (head, rest) = parts(answer)?;
    if let Err(reason) = check_status(head) {
        return Some(Err(reason));
    }
    if header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return dechunk(rest).map(Ok);
    }
    let length: usize = header(head, "content-length")?.parse().ok()?;
    rest.get(..length).map(|body| Ok(body.to_vec()))
}

/// The body of an answer after the end of its connection.
fn finish(answer: &[u8]) -> Result<Vec<u8>, String> {
    let (head, rest) = parts(answer).ok_or("the answer is not HTTP")?;
    check_status(head)?;
    if header(head, "content-length").is_some() || header(head, "transfer-encoding").is_some() {
        return Err("the answer is incomplete".to_owned());
    }
    Ok(rest.to_vec())
}

/// Joins the chunks of a body, if the last one is present.
fn dechunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        rest = rest.get(end + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let address = |text: &str| text.parse::<Address>();
        let plain =
            |host: &str, port, path: &str| Ok(Address { host: host.to_owned(), port, path: path.to_owned() });
        assert_eq!(address("http://127.0.0.1:8080/x?y#z"), plain("127.0.0.1", 8080, "/x?y"));
        assert_eq!(address("http://localhost"), plain("localhost", 80, "/"));
        assert_eq!(address("http://[::1]:9/"), plain("::1", 9, "/"));
        assert_eq!(address("http://[::1]"), plain("::1", 80, "/"));
        assert!(address("https://example.org/").unwrap_err().contains("no TLS"));
        for bad in ["", "stdout", "http://", "http://a:b/", "http://u@h/", "http://h/\r\nX: y", "ftp://h/"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers() {
        let body = |text: &str| {
            complete(text.as_bytes()).map(|body| body.map(|body| String::from_utf8(body).unwrap()))
        };
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Some(Ok("hi".to_owned())));
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi"), None);
        assert_eq!(body("HTTP/1.1 200 OK\r\n"), None);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x\r\ni\r\n0\r\n\r\n";
        assert_eq!(body(chunked), Some(Ok("hi".to_owned())));
        assert_eq!(body(chunked.split_at(chunked.len() - 7).0), None);
        assert!(body("HTTP/1.1 302 Found\r\n\r\n").unwrap().is_err());
        assert!(body("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n").is_none());
        assert_eq!(finish(b"HTTP/1.0 200 OK\r\n\r\nhi"), Ok(b"hi".to_vec()));
        assert!(finish(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi").is_err());
        assert!(finish(b"garbage").is_err());
    }
}
