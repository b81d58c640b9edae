//! An egress allowlist: which hosts a program may reach, and how much. A proxy per run enforces it.
//!
//! ```
//! use toolpost_egress::{Egress, HostPattern};
//!
//! let egress = Egress::new().allow(HostPattern::new("pypi.org")?).allow(HostPattern::new("*.pythonhosted.org")?);
//! # Ok::<(), toolpost_egress::Error>(())
//! ```
//!
//! # Invariants
//!
//! - Each name is parsed once and resolved once, and the connection goes to an address that passed the rules.
//! - Private, loopback, link-local, metadata, multicast and reserved addresses are blocked unless the operator allows
//!   one by [`Egress::allow_address`].
//! - Placeholders become secrets only in requests to the hosts of that secret.
//! - Connections, threads, bytes, headers and times are bounded by [`EgressLimits`].
//! - Deliberately absent: processes, namespaces and sandbox levels. The crate serves a listening socket that its caller
//!   made.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod error;
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the proxy uses all of it, which other hosts do not have")
)]
mod host_pattern;
mod limits;
mod log;
mod policy;
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
mod proxy;
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the proxy uses all of it, which other hosts do not have")
)]
mod secret;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use address::{AddressRule, address_rule};
pub use error::{Error, shorten};
pub use host_pattern::HostPattern;
pub use limits::EgressLimits;
pub use log::{EgressEvent, EgressHint, EgressKind, EgressLog, EgressRefusal};
pub use policy::{EgressPolicy, SecretPolicy};
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub use proxy::{EgressProxy, PreparedProxy};
pub use secret::Placeholder;

/// Resolves names. Defaults to the system's resolver; [`Egress::resolver`] replaces it.
pub trait Resolve: fmt::Debug + Send + Sync {
    /// Returns all addresses of a name. The name is valid, lower case, without a trailing dot.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver: `/etc/hosts`, DNS and other configured sources.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        use std::net::ToSocketAddrs as _;
        Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

/// Called with each request and denial, on a thread of the proxy.
type Sink = Arc<dyn Fn(&EgressEvent) + Send + Sync>;

/// An allowlist of hosts for a program, enforced by a proxy of the run.
///
/// ```
/// use toolpost_egress::{Egress, HostPattern};
///
/// let egress = Egress::new()
///     .allow(HostPattern::new("pypi.org")?)
///     .allow(HostPattern::new("*.pythonhosted.org")?);
/// # Ok::<(), toolpost_egress::Error>(())
/// ```
///
/// The program finds the proxy in `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and their lower-case forms. The
/// proxy speaks HTTP/1.1 (with keep-alive), `CONNECT` and SOCKS5 (with names) on one port of `127.0.0.1`
/// inside. The program can connect to nothing else, and only the proxy resolves names.
///
/// - The proxy parses and resolves a name once. It checks every address and connects to a checked one. It
///   blocks private, loopback, link-local, metadata, multicast, reserved and this machine's own addresses,
///   unless the operator allows one by [`Egress::allow_address`].
/// - A tunnel begins with a TLS hello that names the requested host. The proxy cannot see inside TLS, so a
///   program can reach other customers of a shared host.
/// - A denied HTTP request gets status 403; its text names the rule and the option that allows it.
#[derive(Clone)]
pub struct Egress {
    pub(crate) policy: EgressPolicy,
    pub(crate) secrets: Vec<Placeholder>,
    pub(crate) no_network: bool,
    /// Whether names may resolve to documentation and benchmark addresses, as behind some gateways.
    pub(crate) stand_ins: bool,
    pub(crate) upstream_authorization: Option<secret::Secret>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) sink: Option<Sink>,
    #[cfg(feature = "tls")]
    pub(crate) authorities: Vec<Vec<u8>>,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            policy: EgressPolicy::default(),
            secrets: Vec::new(),
            no_network: false,
            stand_ins: false,
            upstream_authorization: None,
            resolver: Arc::new(SystemResolver),
            sink: None,
            #[cfg(feature = "tls")]
            authorities: Vec::new(),
        }
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Egress")
            .field("policy", &self.policy)
            .field("secrets", &self.secrets)
            .field("no_network", &self.no_network)
            .field("stand_ins", &self.stand_ins)
            .finish_non_exhaustive()
    }
}

impl Egress {
    /// Allows nothing; every request is denied and logged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an allowlist from its data. `secret` returns the value of each variable in
    /// [`EgressPolicy::secrets`].
    ///
    /// [`Error::InvalidName`] if it returns none.
    pub fn from_policy(
        mut policy: EgressPolicy,
        secret: &mut dyn FnMut(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut secrets = Vec::new();
        for wanted in std::mem::take(&mut policy.secrets) {
            let value = secret(&wanted.variable).ok_or_else(|| Error::InvalidName {
                what: "secret",
                name: crate::error::shorten(&wanted.variable),
                reason: "no value was found for it; set it where the host program runs".into(),
            })?;
            secrets.push(wanted.placeholder(value));
        }
        let egress = Self { policy, secrets, ..Self::default() };
        egress.check()?;
        Ok(egress)
    }

    /// Allows hosts. Can be called repeatedly.
    #[must_use]
    pub fn allow(mut self, pattern: HostPattern) -> Self {
        self.policy.allow.push(pattern);
        self
    }

    /// Replaces the allowlist by these hosts, and drops raw tunnels.
    #[must_use]
    pub fn only(mut self, hosts: Vec<HostPattern>) -> Self {
        self.policy.raw.clear();
        self.policy.allow = hosts;
        self
    }

    /// Lets a name lead to an address of documentation and benchmark ranges, as behind a gateway that replaces DNS.
    #[must_use]
    pub fn allow_stand_ins(mut self) -> Self {
        self.stand_ins = true;
        self
    }

    /// The placeholders of the secrets.
    pub fn placeholders(&self) -> &[Placeholder] {
        &self.secrets
    }

    /// Denies hosts, even if another rule allows them.
    #[must_use]
    pub fn deny(mut self, pattern: HostPattern) -> Self {
        self.policy.deny.push(pattern);
        self
    }

    /// Allows hosts, with tunnels that carry something other than TLS, for example SSH. Their content is not
    /// inspected.
    #[must_use]
    pub fn allow_raw(mut self, pattern: HostPattern) -> Self {
        self.policy.raw.push(pattern);
        self
    }

    /// Allows an address and port that the address rules block, for example a package index on this machine's
    /// loopback.
    ///
    /// The program can request the address itself; a name that resolves to it must be allowed separately.
    #[must_use]
    pub fn allow_address(mut self, address: SocketAddr) -> Self {
        self.policy.addresses.push(address);
        self
    }

    /// Gives the program a placeholder instead of a secret; see [`Placeholder`].
    #[must_use]
    pub fn secret(mut self, placeholder: Placeholder) -> Self {
        self.secrets.push(placeholder);
        self
    }

    /// Sets the limits. The run's limits apply too; the lower one counts.
    #[must_use]
    pub fn limits(mut self, limits: EgressLimits) -> Self {
        self.policy.limits = limits;
        self
    }

    /// Connects through the operator's HTTP proxy, with `CONNECT` for tunnels.
    ///
    /// That proxy resolves names, so the address rules hold only for requests with an address.
    #[must_use]
    pub fn upstream(mut self, proxy: SocketAddr) -> Self {
        self.policy.upstream = Some(proxy);
        self
    }

    /// Sets the value of `Proxy-Authorization` for [`Egress::upstream`], for example `Basic …`.
    #[must_use]
    pub fn upstream_authorization(mut self, value: impl Into<String>) -> Self {
        self.upstream_authorization = Some(secret::Secret::new(value.into()));
        self
    }

    /// Blocks all connections except to this machine, whatever is allowed. Default no.
    #[must_use]
    pub fn no_network(mut self, no_network: bool) -> Self {
        self.no_network = no_network;
        self
    }

    /// Replaces the system's resolver.
    ///
    /// It runs on a separate thread with a timeout of [`EgressLimits::connect_timeout_ms`]. A slower one
    /// keeps its thread, of which a process has at most 16.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Calls a function with each complete event, on a thread of the proxy. [`EgressLog::events`] has the
    /// events too.
    #[must_use]
    pub fn on_event(mut self, sink: impl Fn(&EgressEvent) + Send + Sync + 'static) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// Trusts another certificate authority, in DER form, where the proxy itself speaks TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn authority(mut self, der: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(der.into());
        self
    }

    /// The names of the program's additional variables.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        PROXY_VARIABLES
            .into_iter()
            .chain(NO_PROXY_VARIABLES)
            .chain([NODE_VARIABLE])
            .chain(self.secrets.iter().map(|placeholder| placeholder.variable.as_str()))
    }

    /// This allowlist with at most this many connections and requests.
    #[must_use]
    pub fn capped(&self, connections: Option<u32>, requests: Option<u32>) -> Self {
        let mut capped = self.clone();
        let own = &mut capped.policy.limits;
        own.connections = connections.map_or(own.connections, |cap| own.connections.min(cap.into()));
        own.requests = requests.map_or(own.requests, |cap| own.requests.min(cap.into()));
        capped
    }

    /// Rejects invalid limits and secrets.
    pub fn check(&self) -> Result<(), Error> {
        self.policy.limits.check()?;
        for (index, placeholder) in self.secrets.iter().enumerate() {
            placeholder.check()?;
            let is_taken =
                self.secrets.iter().take(index).any(|other| other.variable == placeholder.variable);
            let is_own = PROXY_VARIABLES.into_iter().chain(NO_PROXY_VARIABLES).chain([NODE_VARIABLE]);
            if is_taken || is_own.into_iter().any(|own| own == placeholder.variable) {
                return Err(Error::InvalidName {
                    what: "secret",
                    name: crate::error::shorten(&placeholder.variable),
                    reason: "another value already has this variable".into(),
                });
            }
        }
        match &self.upstream_authorization {
            Some(value) if !value.is_header_value() => Err(Error::InvalidName {
                what: "header",
                name: "proxy-authorization".into(),
                reason: "its value must be printable ASCII of 1 to 8,192 characters".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// Variables set to the proxy's address inside.
pub(crate) const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// Variables set to nothing inside: no host bypasses the proxy.
pub(crate) const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// Node's `fetch` honors the variables above only with this one.
pub(crate) const NODE_VARIABLE: &str = "NODE_USE_ENV_PROXY";
/// The proxy's port inside, where every port is free.
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub const PORT: u16 = 3128;
