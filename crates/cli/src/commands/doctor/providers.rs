//! Checks of providers: keys, URLs, and local servers.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;
use toolpost_llm::{PROVIDERS, Provider};

use crate::env;

/// The time limit of a local server's answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum read size of its answer.
const MAX_ANSWER: usize = 512;

/// A provider with its URL and key.
#[derive(Debug, Serialize)]
pub(super) struct ProviderStatus {
    pub(super) name: &'static str,
    pub(super) key_variable: &'static str,
    pub(super) has_key: bool,
    pub(super) needs_key: bool,
    pub(super) base_url_variable: &'static str,
    /// Its URL without user name and password.
    pub(super) base_url: Option<String>,
    /// Whether the URL is from a variable.
    pub(super) is_changed: bool,
    /// The result of the request to a local server.
    pub(super) answers: Option<Result<String, String>>,
}

/// Checks all providers. Only local servers get a request, concurrently, with a time limit.
pub(super) fn statuses() -> Vec<ProviderStatus> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = PROVIDERS.iter().map(|provider| scope.spawn(|| status(provider))).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn status(provider: &'static Provider) -> ProviderStatus {
    let variable = first_set(provider.base_url_variables);
    // A host alone is shown as the requested URL.
    let own = env::get(variable).map(|own| {
        if own.contains("://") { own } else { provider.resolve_base_url(Some(&own)).unwrap_or(own) }
    });
    let is_changed = own.is_some();
    let url = own.or_else(|| provider.base_url.map(str::to_owned));
    let answers = url.as_deref().and_then(here).map(|(address, host)| ask(address, &host));
    ProviderStatus {
        name: provider.name,
        key_variable: first_set(provider.key_variables),
        has_key: crate::model::key(provider).is_some(),
        needs_key: provider.needs_key,
        base_url_variable: variable,
        base_url: url.as_deref().map(without_credentials),
        is_changed,
        answers,
    }
}

/// The first variable that is set, else the first.
fn first_set(names: &'static [&'static str]) -> &'static str {
    let set = names.iter().find(|name| env::get(name).is_some());
    set.or(names.first()).copied().unwrap_or_default()
}

/// The URL without credentials and query, which may be secret.
fn without_credentials(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
}

/// The socket address and host name of a local server with plain HTTP.
fn here(url: &str) -> Option<(SocketAddr, String)> {
    let without = without_credentials(url);
    let host = without.strip_prefix("http://")?.split('/').next()?.to_owned();
    let port = host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let (name, port) = port.unwrap_or((host.as_str(), 80));
    // No name lookup.
    let address = match name {
        "localhost" => IpAddr::from(Ipv4Addr::LOCALHOST),
        name => name.trim_matches(['[', ']']).parse().ok()?,
    };
    address.is_loopback().then(|| (SocketAddr::new(address, port), host.clone()))
}

/// Whether a server answers a request of its API with any status.
fn ask(address: SocketAddr, host: &str) -> Result<String, String> {
    let begun = Instant::now();
    let wrong = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => {
            "no answer within a second".to_owned()
        }
        _ => error.to_string(),
    };
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(wrong)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(wrong)?;
    let request = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(wrong)?;
    let mut line = Vec::new();
    while line.len() < MAX_ANSWER && !line.contains(&b'\n') {
        let left = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        let Some(left) = left else { return Err("no answer within a second".to_owned()) };
        stream.set_read_timeout(Some(left)).map_err(wrong)?;
        let mut bytes = [0; 64];
        match stream.read(&mut bytes).map_err(wrong)? {
            0 => break,
            read => line.extend_from_slice(bytes.get(..read).unwrap_or_default()),
        }
    }
    let text = String::from_utf8_lossy(&line).into_owned();
    let status = text.lines().next().and_then(|line| line.strip_prefix("HTTP/1.")?.split(' ').nth(1));
    match status {
        Some("200") => Ok("answers".to_owned()),
        Some(status) => Ok(format!("answers with status {}", crate::style::one_line(status, 16))),
        None => Err("the server there does not speak HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_printed_without_secrets() {
        for (url, shown) in [
            ("https://api.example/v1", "https://api.example/v1"),
            ("https://me:secret@api.example/v1?key=secret", "https://api.example/v1"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }

    #[test]
    fn only_local_servers_get_a_request() {
        for (url, is_here) in [
            ("http://127.0.0.1:11434", true),
            ("http://127.0.0.1", true),
            ("http://localhost:8000/v1", true),
            ("http://[::1]:8000", true),
            ("https://127.0.0.1:8000", false),
            ("http://10.0.0.1:80", false),
            ("http://127.0.0.1.example:80", false),
            ("http://", false),
        ] {
            assert_eq!(here(url).is_some(), is_here, "{url}");
        }
    }
}
