//! The operator's settings for requests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The operator's settings for `http_request`, injected by type:
/// `Toolbox::builder().provide(HttpSettings::default())`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Whether to block connections to other machines (`TOOLPOST_NO_NETWORK`). Default: no.
    pub no_network: bool,
    /// Hosts that may be requested despite non-public addresses, as in URLs and optionally with a port: `localhost:8080`,
    /// `intranet.example`, `10.1.2.3` or `[::1]:80`. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Fixed addresses of host names, checked like resolved ones. Default: none.
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Maximum size of a body; the rest is truncated. Default: 1 MiB.
    pub max_body_bytes: usize,
    /// Maximum number of redirects, then `LIMIT`. Default: 10.
    pub max_redirects: usize,
    /// Maximum `timeout` of a call. Default: 5 min.
    pub max_timeout: Duration,
    /// Whether a call may disable certificate verification with `verify_ssl`. Default: no.
    pub allow_unverified_tls: bool,
    /// Additional trusted authorities, as DER certificates. Default: none.
    pub extra_authorities: Vec<Vec<u8>>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            no_network: false,
            allowed_hosts: Vec::new(),
            addresses: BTreeMap::new(),
            max_body_bytes: 1 << 20,
            max_redirects: 10,
            max_timeout: Duration::from_mins(5),
            allow_unverified_tls: false,
            extra_authorities: Vec::new(),
        }
    }
}

/// Compares hosts as in URLs, with and without a port.
fn same_host(allowed: &str, host: &str, port: u16) -> bool {
    let plain = |text: &str| text.trim().trim_end_matches('.').to_ascii_lowercase();
    let (allowed, host) = (plain(allowed), plain(host));
    allowed == host || allowed == format!("{host}:{port}")
}

impl HttpSettings {
    /// Whether a host is allowed regardless of its addresses.
    pub(super) fn allows(&self, host: &str, port: u16) -> bool {
        self.allowed_hosts.iter().any(|allowed| same_host(allowed, host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_by_its_full_name() {
        let settings = HttpSettings {
            allowed_hosts: vec!["Intranet.example".into(), "10.1.2.3:8080".into(), "[::1]".into()],
            ..HttpSettings::default()
        };
        for (host, port) in
            [("intranet.example", 80), ("intranet.example.", 443), ("10.1.2.3", 8080), ("[::1]", 80)]
        {
            assert!(settings.allows(host, port), "{host}");
        }
        for (host, port) in [
            ("sub.intranet.example", 80),
            ("intranet.example.evil.example", 80),
            ("10.1.2.3", 80),
            ("10.1.2.30", 8080),
            ("::1", 80),
        ] {
            assert!(!settings.allows(host, port), "{host}");
        }
    }
}
