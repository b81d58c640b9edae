//! The HTTP client: who may be connected to, how long anything may take, what a failure means.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::Instant;

use crate::http::certificates::Certificates;
use crate::{ErrorKind, ModelError, NetworkStage, RetryPolicy, Secret, TimeoutStage};

/// How this crate uses the network. Proxies and the prohibition of outward connections are the caller's word, not the
/// environment's.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Whether a connection to anything but this machine is an error (`TOOLPOST_NO_NETWORK`). Default: no.
    pub no_network: bool,
    /// A proxy for every connection, such as `http://user:password@host:3128`. Default: none.
    pub proxy: Option<Secret>,
    /// Hosts that the proxy is not for, separated by commas, as `NO_PROXY` has them: `example.com` stands for it and every
    /// name that ends in `.example.com`, `*` for every host. Default: none.
    pub no_proxy: String,
    /// Files with certificates, as PEM, that are trusted besides the system's. Default: none.
    pub ca_files: Vec<PathBuf>,
    /// The time to make a connection. Default: 10 s.
    pub connect_timeout: Duration,
    /// The time from sending a request to the first byte of its answer; of a stream, to its first event.
    /// Default: 180 s.
    pub first_byte_timeout: Duration,
    /// The time between two events of a stream, or two pieces of a body. Default: 60 s.
    pub event_timeout: Duration,
    /// The time for a whole answer, with every attempt and wait. Default: 30 min.
    pub total_timeout: Duration,
    /// The longest answer in bytes. Default: 64 MiB.
    pub max_answer_bytes: usize,
    /// When to try again.
    pub retry: RetryPolicy,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            no_network: false,
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

/// A client with its pool of connections. Cheap to clone; models of one process share one.
///
/// Certificates are checked against the system's own, `SSL_CERT_FILE` and `SSL_CERT_DIR` included where the system
/// knows them.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: reqwest::Client,
    /// The client for hosts that the proxy is not for.
    direct: Option<reqwest::Client>,
    options: Arc<HttpOptions>,
    certificates: Arc<Certificates>,
    /// The host that connections are really made to, if it is a proxy's.
    proxy_host: Option<String>,
}

impl HttpClient {
    /// A client. An error if the proxy's address or the certificates of a file cannot be used. The system's own
    /// certificates are read for the first address with `https:`, whose request fails if they cannot be used.
    pub fn new(options: HttpOptions) -> Result<Self, ModelError> {
        let wrong = |message: String| ModelError::new(ErrorKind::Configuration, message);
        let certificates = Arc::new(Certificates::of_files(&options.ca_files)?);
        let tls = certificates.tls()?;
        let builder = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .connect_timeout(options.connect_timeout)
                // A provider does not redirect; who does would be given the key.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("toolpost/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Arc::new(SystemResolver))
        };
        let build = |builder: reqwest::ClientBuilder| {
            builder
                .build()
                .map_err(|error| wrong(format!("the HTTP client cannot be made: {}", chain(&error))))
        };
        let (mut with_proxy, mut direct) = (builder(), None);
        let mut proxy_host = None;
        if let Some(address) = &options.proxy {
            // The address may have a password in it: the error does not repeat it.
            let bad = || wrong("the proxy's address cannot be used. Expected `http://HOST:PORT`".to_owned());
            let url = Url::parse(address.expose()).map_err(|_| bad())?;
            proxy_host = Some(url.host_str().ok_or_else(bad)?.to_owned());
            with_proxy = with_proxy.proxy(reqwest::Proxy::all(url).map_err(|_| bad())?);
            if !options.no_proxy.trim().is_empty() {
                direct = Some(build(builder())?);
            }
        }
        let client = build(with_proxy)?;
        Ok(Self { client, direct, options: Arc::new(options), certificates, proxy_host })
    }

    /// The options that the client was made with.
    pub fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// The client for an address: through the proxy, or past it.
    pub(crate) fn inner(&self, url: &Url) -> &reqwest::Client {
        self.past_the_proxy(url).unwrap_or(&self.client)
    }

    fn past_the_proxy(&self, url: &Url) -> Option<&reqwest::Client> {
        let host = url.host_str()?;
        self.direct.as_ref().filter(|_| is_listed(host, &self.options.no_proxy))
    }

    /// Whether a connection for this address may and can be made. `caller` is named in the error.
    pub(crate) fn permit(&self, url: &Url, caller: &impl fmt::Display) -> Result<(), ModelError> {
        let proxy = self.proxy_host.as_deref().filter(|_| self.past_the_proxy(url).is_none());
        let host = proxy.or_else(|| url.host_str()).unwrap_or_default();
        if !self.options.no_network || is_this_machine(host) {
            return if url.scheme() == "https" { self.certificates.check() } else { Ok(()) };
        }
        let message = format!("{caller} wanted to connect to `{host}`");
        Err(ModelError::new(ErrorKind::NetworkForbidden, message))
    }
}

/// The instant so long after another one. A time that is too long to be told, as one that stands for no limit at all, is
/// about a century.
pub(crate) fn later(instant: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);
    instant.checked_add(time).unwrap_or_else(|| instant + CENTURY)
}

/// Checks an address. Its host and scheme must be usable, and it must not have a password in it.
pub(crate) fn endpoint(address: &str) -> Result<Url, ModelError> {
    let wrong = |found: String| {
        let message = format!("the base URL: expected `https://HOST`, found {found}");
        ModelError::new(ErrorKind::Configuration, message)
    };
    let url = Url::parse(address).map_err(|error| wrong(format!("no address ({error})")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("one with a user or a password in it".to_owned()));
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong(format!("`{}:`", url.scheme())));
    }
    Ok(url)
}

/// Whether a list such as `localhost,.example.com` has a host.
fn is_listed(host: &str, list: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    list.split(',').map(|entry| entry.trim().trim_start_matches('.').to_ascii_lowercase()).any(|entry| {
        let is_below = host.strip_suffix(&entry).is_some_and(|start| start.ends_with('.'));
        entry == "*" || (!entry.is_empty() && (host == entry || is_below))
    })
}

/// The host of an address without encryption that is neither this machine nor one of a private network: whoever is on the
/// way reads all that is sent there.
pub(crate) fn unencrypted_host(url: &Url) -> Option<&str> {
    let host = url.host_str().filter(|_| url.scheme() == "http")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_near = is_this_machine(host)
        || match bare.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.is_private() || address.is_link_local(),
            Ok(IpAddr::V6(address)) => address.is_unique_local() || address.is_unicast_link_local(),
            // A name that only a private network gives.
            Err(_) => bare.rsplit_once('.').is_none_or(|(_, last)| ["local", "internal"].contains(&last)),
        };
    (!is_near).then_some(host)
}

/// A host that needs no name service and leaves no machine.
fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// The system's name resolution, with an error that can be told from others.
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

/// What a failure of the client means.
pub(crate) fn failure_of(error: reqwest::Error) -> ModelError {
    let asked = error.url().map(|url| url.origin().ascii_serialization());
    let error = error.without_url();
    let text = chain(&error);
    // A server that hangs up in the midst of a handshake is an I/O error, told apart by its words alone.
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
    ModelError::new(kind, asked.map_or(text.clone(), |asked| format!("`{asked}`: {text}")))
}

/// Whether no process of this machine listens where a request went: the same attempt fails again.
pub(crate) fn is_refused_here(error: &reqwest::Error, url: &Url) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    let mut is_refused = false;
    while let Some(error) = next {
        is_refused |= error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        next = error.source();
    }
    is_refused && url.host_str().is_some_and(is_this_machine)
}

/// Whether an error of a type stands anywhere in the chain, also inside an I/O error.
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

/// An error with its causes; a cause that only repeats the one before is left out.
fn chain(error: &dyn Error) -> String {
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
    fn only_this_machine_is_this_machine() {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["10.0.0.1", "169.254.169.254", "[::ffff:1.2.3.4]", "localhost.example.com", "example.com", ""]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn only_far_hosts_need_encryption() {
        for (address, far) in [
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
            assert_eq!(unencrypted_host(&Url::parse(address).unwrap()), far, "{address}");
        }
    }

    #[test]
    fn an_address_is_checked_before_it_is_used() {
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
    fn a_wrong_proxy_is_refused_without_its_password() {
        let options = HttpOptions { proxy: Some(Secret::new("://u:hunter2@h")), ..HttpOptions::default() };
        let error = HttpClient::new(options).unwrap_err().to_string();
        assert!(error.contains("proxy") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn the_proxy_is_not_for_every_host() {
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
    fn certificates_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for file in [empty, folder.path().join("absent.pem"), "/dev/zero".into()] {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let error =
                HttpClient::new(HttpOptions { ca_files: vec![file], ..HttpOptions::default() }).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Configuration);
            assert!(error.message.contains(&name), "{error}");
        }
    }

    #[test]
    fn the_prohibition_counts_for_the_proxy_too() {
        let options = HttpOptions {
            no_network: true,
            proxy: Some(Secret::new("http://proxy.example:3128")),
            ..HttpOptions::default()
        };
        let client = HttpClient::new(options).unwrap();
        let url = Url::parse("http://127.0.0.1:9/").unwrap();
        let error = client.permit(&url, &"anthropic/claude-x").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NetworkForbidden);
        assert_eq!(error.message, "anthropic/claude-x wanted to connect to `proxy.example`");
    }
}
