//! The HTTP client: allowed hosts, timeouts, proxies, error classification.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::Instant;

use crate::http::certificates::Certificates;
use crate::{ErrorKind, ModelError, NetworkStage, RetryPolicy, Secret, TimeoutStage};

/// Everything that is percent-encoded in a query value: all but the unreserved characters of RFC 3986.
pub(crate) const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Options of the HTTP client. The caller sets proxies and network access; the environment is not read.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Whether connections to other hosts are forbidden (`TOOLPOST_NO_NETWORK`). Default: no.
    pub no_network: bool,
    /// A check before each request whether these connections are forbidden now, besides `no_network`. Default: none.
    pub is_offline: Option<fn() -> bool>,
    /// A proxy for every connection, such as `http://user:password@host:3128`. Default: none.
    pub proxy: Option<Secret>,
    /// Hosts that bypass the proxy, separated by commas, in the format of `NO_PROXY`. Default: none.
    ///
    /// `example.com` includes its subdomains, and `*` matches every host.
    pub no_proxy: String,
    /// PEM files with certificates to trust in addition to the system's. Default: none.
    pub ca_files: Vec<PathBuf>,
    /// The timeout for connecting. Default: 10 s.
    pub connect_timeout: Duration,
    /// The timeout from a request to the first byte of its answer, or the first event of a stream. Default: 180 s.
    pub first_byte_timeout: Duration,
    /// The timeout between two events of a stream or two chunks of a body. Default: 60 s.
    pub event_timeout: Duration,
    /// The timeout for an answer, including all attempts and waits. Default: 30 min.
    pub total_timeout: Duration,
    /// The limit of an answer in bytes. Default: 64 MiB.
    pub max_answer_bytes: usize,
    /// When to retry.
    pub retry: RetryPolicy,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            no_network: false,
            is_offline: None,
            proxy: None,
            no_proxy: String::new(),
            ca_files: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_mins(3),
            event_timeout: Duration::from_mins(1),
            total_timeout: Duration::from_mins(30),
            max_answer_bytes: 64 * 1024 * 1024,
            retry: RetryPolicy::default(),
        }
    }
}

/// An HTTP client with a connection pool. Cheap to clone; the models of a process share one.
///
/// Certificates are verified against the system's roots, including `SSL_CERT_FILE` and `SSL_CERT_DIR` where supported.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: reqwest::Client,
    /// The client for hosts that bypass the proxy.
    direct: Option<reqwest::Client>,
    options: Arc<HttpOptions>,
    certificates: Arc<Certificates>,
    /// The host of the proxy, if there is one.
    proxy_host: Option<String>,
}

impl HttpClient {
    /// Creates a client.
    ///
    /// The system's certificates are read for the first `https:` request, which fails if they are invalid.
    ///
    /// # Errors
    /// The proxy's address or a certificate file is invalid.
    pub fn new(options: HttpOptions) -> Result<Self, ModelError> {
        let wrong = |message: String| ModelError::new(ErrorKind::Configuration, message);
        let certificates = Arc::new(Certificates::load(&options.ca_files)?);
        let tls = certificates.tls()?;
        let builder = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .connect_timeout(options.connect_timeout)
                // A redirect would receive the API key.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("toolpost/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Arc::new(SystemResolver))
        };
        let build = |builder: reqwest::ClientBuilder| {
            builder
                .build()
                .map_err(|error| wrong(format!("cannot create the HTTP client: {}", error_chain(&error))))
        };
        let (mut with_proxy, mut direct) = (builder(), None);
        let mut proxy_host = None;
        if let Some(address) = &options.proxy {
            // The address may contain a password, so the error does not repeat it.
            let invalid = || wrong("invalid proxy address: expected `http://HOST:PORT`".to_owned());
            let url = Url::parse(address.expose()).map_err(|_| invalid())?;
            proxy_host = Some(url.host_str().ok_or_else(invalid)?.to_owned());
            with_proxy = with_proxy.proxy(reqwest::Proxy::all(url).map_err(|_| invalid())?);
            if !options.no_proxy.trim().is_empty() {
                direct = Some(build(builder())?);
            }
        }
        let client = build(with_proxy)?;
        Ok(Self { client, direct, options: Arc::new(options), certificates, proxy_host })
    }

    /// The options of the client.
    pub fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// The client for an address: with or without the proxy.
    pub(crate) fn inner(&self, url: &Url) -> &reqwest::Client {
        self.bypass(url).unwrap_or(&self.client)
    }

    fn bypass(&self, url: &Url) -> Option<&reqwest::Client> {
        let host = url.host_str()?;
        self.direct.as_ref().filter(|_| is_listed(host, &self.options.no_proxy))
    }

    /// Checks that a connection to this address is allowed. The error names `caller`.
    pub(crate) fn permit(&self, url: &Url, caller: &impl fmt::Display) -> Result<(), ModelError> {
        let proxy = self.proxy_host.as_deref().filter(|_| self.bypass(url).is_none());
        let host = proxy.or_else(|| url.host_str()).unwrap_or_default();
        let forbidden = self.options.no_network || self.options.is_offline.is_some_and(|check| check());
        if !forbidden || is_loopback(host) {
            return if url.scheme() == "https" { self.certificates.check() } else { Ok(()) };
        }
        let message = format!("{caller} may not connect to `{host}`");
        Err(ModelError::new(ErrorKind::NetworkForbidden, message))
    }
}

/// The instant after a time. A time that overflows counts as a century.
pub(crate) fn later(instant: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);
    instant.checked_add(time).unwrap_or_else(|| instant + CENTURY)
}

/// Parses the address of an endpoint: HTTP or HTTPS, with a host and without credentials.
pub(crate) fn endpoint(address: &str) -> Result<Url, ModelError> {
    let wrong = |found: String| {
        let message = format!("invalid base URL: expected `https://HOST`, found {found}");
        ModelError::new(ErrorKind::Configuration, message)
    };
    let url = Url::parse(address).map_err(|error| wrong(format!("an invalid URL ({error})")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a URL with a user or a password".to_owned()));
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong(format!("`{}:`", url.scheme())));
    }
    Ok(url)
}

/// Whether a list such as `localhost,.example.com` contains a host.
fn is_listed(host: &str, list: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    list.split(',').map(|entry| entry.trim().trim_start_matches('.').to_ascii_lowercase()).any(|entry| {
        let is_subdomain = host.strip_suffix(&entry).is_some_and(|start| start.ends_with('.'));
        entry == "*" || (!entry.is_empty() && (host == entry || is_subdomain))
    })
}

/// The host of an unencrypted address outside this machine and private networks.
pub(crate) fn unencrypted_host(url: &Url) -> Option<&str> {
    let host = url.host_str().filter(|_| url.scheme() == "http")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_private = is_loopback(host)
        || match bare.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.is_private() || address.is_link_local(),
            Ok(IpAddr::V6(address)) => address.is_unique_local() || address.is_unicast_link_local(),
            // A name that only a private network resolves.
            Err(_) => bare.rsplit_once('.').is_none_or(|(_, last)| ["local", "internal"].contains(&last)),
        };
    (!is_private).then_some(host)
}

/// Whether a host is a loopback address or `localhost`.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// The system's resolver, with a distinct error type.
struct SystemResolver;

#[derive(Debug)]
struct ResolveError(std::io::Error);

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for ResolveError {}

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(ResolveError)?;
            let addresses: Vec<SocketAddr> = found.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Classifies an error of the client.
pub(crate) fn classify_error(error: reqwest::Error) -> ModelError {
    let origin = error.url().map(|url| url.origin().ascii_serialization());
    let error = error.without_url();
    let text = error_chain(&error);
    // A connection that closes during the handshake is an I/O error; only its text mentions TLS.
    let kind = if caused_by::<ResolveError>(&error) {
        ErrorKind::Network(NetworkStage::Dns)
    } else if caused_by::<rustls::Error>(&error) || text.contains("tls handshake") {
        ErrorKind::Network(NetworkStage::Tls)
    } else if error.is_timeout() {
        ErrorKind::Timeout(TimeoutStage::Connect)
    } else if error.is_connect() {
        ErrorKind::Network(NetworkStage::Connect)
    } else {
        ErrorKind::Network(NetworkStage::Transfer)
    };
    ModelError::new(kind, origin.map_or(text.clone(), |origin| format!("`{origin}`: {text}")))
}

/// Whether this host refused the connection because no process listens: a retry fails too.
pub(crate) fn is_refused_by_this_host(error: &reqwest::Error, url: &Url) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    let mut is_refused = false;
    while let Some(error) = next {
        is_refused |= error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        next = error.source();
    }
    is_refused && url.host_str().is_some_and(is_loopback)
}

/// Whether an error of a type is in the chain, also inside an I/O error.
fn caused_by<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<E>() {
            return true;
        }
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if inner.is_some_and(|inner| caused_by::<E>(inner)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// An error with its causes. A cause that repeats the previous text is skipped.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["10.0.0.1", "169.254.169.254", "[::ffff:1.2.3.4]", "localhost.example.com", "example.com", ""]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn only_public_hosts_need_encryption() {
        for (address, host) in [
            ("http://api.example.com/v1", Some("api.example.com")),
            ("http://93.184.216.34", Some("93.184.216.34")),
            ("http://[2001:db8::1]:80", Some("[2001:db8::1]")),
            ("https://api.example.com/v1", None),
            ("http://localhost:1", None),
            ("http://127.0.0.1:1", None),
            ("http://192.168.1.2", None),
            ("http://[fd00::1]", None),
            ("http://ollama:11434", None),
            ("http://box.local", None),
        ] {
            assert_eq!(unencrypted_host(&Url::parse(address).unwrap()), host, "{address}");
        }
    }

    #[test]
    fn an_endpoint_is_validated() {
        for wrong in ["api.example.com", "ftp://a/b", "https://user:pass@a/b", "https://"] {
            let error = endpoint(wrong).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Configuration);
            assert!(
                error.message.contains("expected `https://HOST`") && !error.message.contains("pass@"),
                "{error}"
            );
        }
        assert!(endpoint("http://127.0.0.1:1/v1/messages").is_ok());
    }

    #[test]
    fn an_invalid_proxy_is_rejected_without_its_password() {
        let options = HttpOptions { proxy: Some(Secret::new("://u:hunter2@h")), ..HttpOptions::default() };
        let error = HttpClient::new(options).unwrap_err().to_string();
        assert!(error.contains("proxy") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn listed_hosts_bypass_the_proxy() {
        for (host, list, listed) in [
            ("api.example.com", "example.com", true),
            ("example.com", ".example.com", true),
            ("API.example.com", "localhost, EXAMPLE.com", true),
            ("notexample.com", "example.com", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("[::1]", "::1", true),
            ("anything", "*", true),
            ("example.com", "", false),
            ("example.com", " , ", false),
        ] {
            assert_eq!(is_listed(host, list), listed, "{host} {list}");
        }
        let options = HttpOptions {
            no_network: true,
            proxy: Some(Secret::new("http://127.0.0.1:3128")),
            no_proxy: "api.example.com".to_owned(),
            ..HttpOptions::default()
        };
        let client = HttpClient::new(options).unwrap();
        let permit = |address: &str| client.permit(&Url::parse(address).unwrap(), &"m");
        assert!(permit("https://other.example/").is_ok(), "the proxy is on this machine");
        assert_eq!(permit("https://api.example.com/").unwrap_err().kind, ErrorKind::NetworkForbidden);
    }

    #[test]
    fn the_error_names_an_invalid_certificate_file() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for file in [empty, directory.path().join("absent.pem"), "/dev/zero".into()] {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let error =
                HttpClient::new(HttpOptions { ca_files: vec![file], ..HttpOptions::default() }).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Configuration);
            assert!(error.message.contains(&name), "{error}");
        }
    }

    #[test]
    fn a_forbidden_network_forbids_the_proxy() {
        let options = HttpOptions {
            no_network: true,
            proxy: Some(Secret::new("http://proxy.example:3128")),
            ..HttpOptions::default()
        };
        let client = HttpClient::new(options).unwrap();
        let url = Url::parse("http://127.0.0.1:9/").unwrap();
        let error = client.permit(&url, &"anthropic/claude-x").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NetworkForbidden);
        assert_eq!(error.message, "anthropic/claude-x may not connect to `proxy.example`");
    }
}
