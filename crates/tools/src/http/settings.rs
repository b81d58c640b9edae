//! What the operator allows requests to do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// What the operator allows `http_request` to do, given by type: `Toolbox::builder().provide(HttpSettings::default())`.
/// Without it the defaults hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Whether a connection to anything but this machine is refused (`TOOLPOST_NO_NETWORK`). Default: no.
    pub no_network: bool,
    /// Hosts that may be asked although their addresses are not public: names or addresses as they stand in URLs, with
    /// or without a port, such as `localhost:8080`, `intranet.example`, `10.1.2.3` or `[::1]:80`. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Addresses of names, which then are not looked up. They are checked like all others. Default: none.
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
    /// How many bytes of a body are kept; the rest is cut off, and the result says so. Default: 1 MiB.
    pub max_body_bytes: usize,
    /// How many redirects are followed; then `LIMIT`. Default: 10.
    pub max_redirects: usize,
    /// The longest `timeout` that a call may ask for. Default: 5 min.
    pub longest_timeout: Duration,
    /// Whether a call may switch the check of certificates off with `verify_ssl`. Default: no.
    pub allow_unverified_tls: bool,
    /// Certificates of authorities that are trusted besides those of this machine, in DER. Default: none.
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
            longest_timeout: Duration::from_mins(5),
            allow_unverified_tls: false,
            extra_authorities: Vec::new(),
        }
    }
}

/// A host as it stands in a URL, with and without its port.
fn same_host(allowed: &str, host: &str, port: u16) -> bool {
    let plain = |text: &str| text.trim().trim_end_matches('.').to_ascii_lowercase();
    let (allowed, host) = (plain(allowed), plain(host));
    allowed == host || allowed == format!("{host}:{port}")
}

impl HttpSettings {
    /// Whether a host may be asked whatever its addresses are.
    pub(super) fn allows(&self, host: &str, port: u16) -> bool {
        self.allowed_hosts.iter().any(|allowed| same_host(allowed, host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_by_its_whole_name() {
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
