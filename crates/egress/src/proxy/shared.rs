//! The state that all connections of a proxy share: rules, counts and log.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::Egress;
use super::super::address::{self, AddressRule};
use super::super::host_pattern::{Host, HostPattern, Target};
use super::super::log::{EgressEvent, EgressHint, EgressKind, EgressLog, EgressRefusal};
use super::vault::Vault;
use super::wire::Stop;

/// The maximum number of logged events.
const MAX_EVENTS: usize = 1000;

/// The reason why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A rule denies it.
    Refused { status: u16, rule: &'static str, message: String, hint: Option<EgressHint> },
    /// Another failure.
    Failed { status: u16, message: String },
    /// The run has ended, or the program is gone: no answer is read.
    Gone,
}

impl Trouble {
    pub(super) fn refused(rule: &'static str, message: impl Into<String>, hint: Option<EgressHint>) -> Self {
        Self::Refused { status: 403, rule, message: message.into(), hint }
    }

    pub(super) fn invalid(reason: &str) -> Self {
        let message = format!("the request is invalid: {reason}");
        Self::Refused { status: 400, rule: "invalid_request", message, hint: None }
    }

    pub(super) fn failed(status: u16, message: impl Into<String>) -> Self {
        Self::Failed { status, message: message.into() }
    }

    /// Converts an I/O error of an action.
    pub(super) fn new(error: &std::io::Error, what: &str) -> Self {
        match error.kind() {
            std::io::ErrorKind::ConnectionAborted => Self::Gone,
            std::io::ErrorKind::TimedOut => Self::failed(504, format!("{what} timed out")),
            _ => Self::failed(502, format!("{what} failed: {error}")),
        }
    }
}

/// A token bucket. Taking more than it has makes later takers wait.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    fn new(per_second: f64) -> Self {
        Self { per_second, state: Mutex::new((per_second, Instant::now())) }
    }

    /// Takes an amount and returns the time to wait.
    fn take(&self, amount: f64) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let gained = now.duration_since(state.1).as_secs_f64() * self.per_second;
        state.0 = (state.0 + gained).min(self.per_second) - amount;
        state.1 = now;
        if state.0 >= 0.0 {
            return Duration::ZERO;
        }
        // An hour exceeds any useful wait, and keeps the conversion from failing.
        Duration::from_secs_f64((-state.0 / self.per_second).min(3600.0))
    }
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) egress: Egress,
    pub(super) vault: Vault,
    pub(super) stop: Arc<Stop>,
    pub(super) started: Instant,
    #[cfg(feature = "tls")]
    pub(super) tls: std::sync::OnceLock<Result<Arc<rustls::ClientConfig>, String>>,
    /// The maximum of bytes in both directions together, in addition to [`crate::EgressLimits`].
    pub(super) bytes: u64,
    pub(super) connections: AtomicU64,
    /// The number of connections in progress.
    pub(super) active: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    request_rate: Option<Bucket>,
    byte_rate: Option<Bucket>,
    log: Mutex<EgressLog>,
}

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
}

/// Where to connect for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// Checked addresses.
    Addresses(Vec<SocketAddr>),
    /// The operator's proxy, which resolves the name.
    Upstream(SocketAddr),
}

impl Shared {
    pub(super) fn new(egress: Egress, vault: Vault, stop: Arc<Stop>, bytes: Option<u64>) -> Self {
        let limits = &egress.policy.limits;
        Self {
            request_rate: limits.requests_per_second.map(|rate| Bucket::new(rate.into())),
            byte_rate: limits.bytes_per_second.map(|rate| Bucket::new(rate as f64)),
            egress,
            vault,
            stop,
            started: Instant::now(),
            #[cfg(feature = "tls")]
            tls: std::sync::OnceLock::new(),
            bytes: bytes.unwrap_or(u64::MAX),
            connections: AtomicU64::new(0),
            active: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            log: Mutex::new(EgressLog::default()),
        }
    }

    fn log(&self) -> std::sync::MutexGuard<'_, EgressLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reached(&self, limit: &str) {
        let mut log = self.log();
        if !log.limits_reached.iter().any(|own| own == limit) {
            log.limits_reached.push(limit.to_owned());
        }
    }

    /// Counts a request and waits for the rate limit.
    pub(super) fn admit(&self) -> Result<(), Trouble> {
        let most = self.egress.policy.limits.requests;
        if self.requests.fetch_add(1, Ordering::Relaxed) >= most {
            self.reached("requests");
            let message = format!("the run has reached its limit of {most} requests");
            return Err(Trouble::Refused {
                status: 429,
                rule: "limit_requests",
                message,
                hint: Some(EgressHint::RaiseLimit { limit: "requests".into() }),
            });
        }
        self.pause(self.request_rate.as_ref().map(|rate| rate.take(1.0)))
    }

    fn pause(&self, time: Option<Duration>) -> Result<(), Trouble> {
        match time.filter(|time| !time.is_zero()) {
            Some(time) => self.stop.sleep(time).map_err(|_| Trouble::Gone),
            None => Ok(()),
        }
    }

    /// Counts bytes before they are forwarded; beyond a limit none are.
    pub(super) fn spend(&self, way: Way, bytes: usize) -> Result<(), Trouble> {
        let bytes = bytes as u64;
        let limits = &self.egress.policy.limits;
        let (count, most, name) = match way {
            Way::Up => (&self.up, limits.bytes_up, "bytes_up"),
            Way::Down => (&self.down, limits.bytes_down, "bytes_down"),
        };
        let sum = count.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let both = self.up.load(Ordering::Relaxed).saturating_add(self.down.load(Ordering::Relaxed));
        let over = if sum > most {
            Some((name, most))
        } else if both > self.bytes {
            Some(("network_bytes", self.bytes))
        } else {
            None
        };
        if let Some((name, most)) = over {
            self.reached(name);
            return Err(Trouble::Refused {
                status: 403,
                rule: "limit_bytes",
                message: format!("the run has reached its limit of {most} bytes"),
                hint: Some(EgressHint::RaiseLimit { limit: name.into() }),
            });
        }
        self.pause(self.byte_rate.as_ref().map(|rate| rate.take(bytes as f64)))
    }

    /// Whether the rules allow a host, without its addresses.
    pub(super) fn allow(&self, target: &Target) -> Result<(), Trouble> {
        let policy = &self.egress.policy;
        let has = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(target));
        if has(&policy.deny) {
            let message = format!("{target} is denied");
            return Err(Trouble::refused("host_denied", message, None));
        }
        let is_own_address = match target.host {
            Host::Address(address) => policy.addresses.contains(&SocketAddr::new(address, target.port)),
            Host::Name(_) => false,
        };
        if is_own_address || has(&policy.allow) || has(&policy.raw) {
            return Ok(());
        }
        let hint = match target.host {
            Host::Address(address)
                if address::address_rule(address).is_some() || address::is_own(address) =>
            {
                EgressHint::AllowAddress { address: target.to_string() }
            }
            _ => EgressHint::AllowHost { host: HostPattern::text_for(target) },
        };
        let message = format!("{target} is not on the egress allowlist");
        Err(Trouble::refused("host_not_allowed", message, Some(hint)))
    }

    pub(super) fn is_raw(&self, target: &Target) -> bool {
        self.egress.policy.raw.iter().any(|pattern| pattern.matches(target))
    }

    /// Resolves and checks the addresses of a target: the only place where a name is resolved.
    pub(super) fn route(&self, target: &Target) -> Result<Route, Trouble> {
        self.allow(target)?;
        if let Host::Address(address) = target.host {
            self.check_address(target, address)?;
        }
        if let Some(upstream) = self.egress.policy.upstream {
            self.check_machine(upstream.ip())?;
            return Ok(Route::Upstream(upstream));
        }
        let found = match &target.host {
            Host::Address(address) => return Ok(Route::Addresses(vec![(*address, target.port).into()])),
            Host::Name(name) => {
                let time = Duration::from_millis(self.egress.policy.limits.connect_timeout_ms);
                super::dial::resolve(&self.egress.resolver, name, time, &self.stop)
                    .map_err(|error| Trouble::new(&error, &format!("resolving {name}")))?
            }
        };
        let mut addresses = Vec::new();
        for address in found {
            let address = address.to_canonical();
            // One blocked address among good ones suggests an attack, so it blocks all.
            self.check_address(target, address)?;
            let address = SocketAddr::new(address, target.port);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(Trouble::failed(502, format!("{} has no address", target.host)));
        }
        Ok(Route::Addresses(addresses))
    }

    fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), Trouble> {
        let at = SocketAddr::new(address, target.port);
        let is_stand_in =
            self.egress.stand_ins && matches!(target.host, Host::Name(_)) && address::is_stand_in(address);
        if !is_stand_in && !self.egress.policy.addresses.contains(&at) {
            let rule =
                address::address_rule(address).or_else(|| address::is_own(address).then_some(address::OWN));
            if let Some(AddressRule { reason: meaning, .. }) = rule {
                let leads = match target.host {
                    Host::Name(_) => format!("{} resolves to {address}, which {meaning}", target.host),
                    Host::Address(_) => format!("{address} {meaning}"),
                };
                let hint = EgressHint::AllowAddress { address: at.to_string() };
                return Err(Trouble::refused("address_refused", leads, Some(hint)));
            }
        }
        self.check_machine(address)
    }

    fn check_machine(&self, address: IpAddr) -> Result<(), Trouble> {
        if self.egress.no_network && !address.is_loopback() {
            let message = format!("{address} is another machine, and the network is disabled");
            return Err(Trouble::refused("no_network", message, Some(EgressHint::AllowNetwork)));
        }
        Ok(())
    }

    /// Logs an event and calls the sink.
    pub(super) fn record(&self, event: EgressEvent) {
        if event.refused.is_some() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(sink) = &self.egress.sink {
            // A panic of the caller's function must not end the connection's thread.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sink(&event)));
        }
        let mut log = self.log();
        if log.events.len() < MAX_EVENTS {
            log.events.push(event);
        } else {
            log.events_left_out += 1;
        }
    }

    pub(super) fn connection_refused(&self) {
        let most = self.egress.policy.limits.connections;
        self.reached("connections");
        let mut entry = Entry::new(self, EgressKind::Invalid, None);
        entry.trouble(Trouble::Refused {
            status: 429,
            rule: "limit_connections",
            message: format!("the run has reached its limit of {most} connections"),
            hint: Some(EgressHint::RaiseLimit { limit: "connections".into() }),
        });
    }

    /// The log so far.
    pub(super) fn summary(&self) -> EgressLog {
        let mut log = self.log().clone();
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (log.connections, log.requests, log.refused) =
            (get(&self.connections), get(&self.requests), get(&self.refused));
        (log.bytes_up, log.bytes_down) = (get(&self.up), get(&self.down));
        log
    }
}

/// An event in progress. Dropping it logs it.
pub(super) struct Entry<'a> {
    shared: &'a Shared,
    since: Instant,
    pub(super) event: EgressEvent,
}

impl<'a> Entry<'a> {
    /// An event of a request. A request without a valid host has no target, so that nothing else of it is logged.
    pub(super) fn new(shared: &'a Shared, kind: EgressKind, target: Option<&Target>) -> Self {
        let event = EgressEvent {
            at_ms: millis(shared.started.elapsed()),
            duration_ms: 0,
            kind,
            target: target.map_or_else(|| "-".to_owned(), Target::to_string),
            method: None,
            address: None,
            status: None,
            bytes_up: 0,
            bytes_down: 0,
            secrets: Vec::new(),
            refused: None,
            failure: None,
        };
        Self { shared, since: Instant::now(), event }
    }

    /// Records a failure, unless an earlier one is recorded. Returns it without secrets, for the program.
    pub(super) fn trouble(&mut self, mut trouble: Trouble) -> Trouble {
        // Texts of errors may come from a server, such as the names of a certificate.
        if let Trouble::Refused { message, .. } | Trouble::Failed { message, .. } = &mut trouble {
            *message = self.shared.vault.without_secrets(message);
        }
        if self.event.refused.is_some() || self.event.failure.is_some() {
            return trouble;
        }
        match &trouble {
            Trouble::Refused { status, rule, message, hint } => {
                self.event.status.get_or_insert(*status);
                self.event.refused = Some(EgressRefusal {
                    rule: (*rule).to_owned(),
                    message: message.clone(),
                    option: hint.as_ref().map(ToString::to_string),
                    hint: hint.clone(),
                });
            }
            Trouble::Failed { status, message } => {
                self.event.status.get_or_insert(*status);
                self.event.failure = Some(message.clone());
            }
            Trouble::Gone => {
                self.event.failure = Some("the connection or the run ended early".into());
            }
        }
        trouble
    }

    /// Counts bytes for this event and for the run.
    pub(super) fn spend(&mut self, way: Way, bytes: usize) -> Result<(), Trouble> {
        match way {
            Way::Up => self.event.bytes_up += bytes as u64,
            Way::Down => self.event.bytes_down += bytes as u64,
        }
        self.shared.spend(way, bytes)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.event.duration_ms = millis(self.since.elapsed());
        self.shared.record(self.event.clone());
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resolver with one answer for every name.
    #[derive(Debug)]
    struct One(IpAddr);

    impl crate::Resolve for One {
        fn resolve(&self, _name: &str) -> std::io::Result<Vec<IpAddr>> {
            Ok(vec![self.0])
        }
    }

    #[test]
    fn a_stand_in_is_asked_under_its_name_and_only_where_that_was_said() {
        let routed = |stand_ins: bool, leads_to: &str, asked: &str| {
            let mut egress = Egress::new()
                .allow(HostPattern::new("pypi.org").unwrap())
                .allow(HostPattern::new("203.0.113.80").unwrap())
                .resolver(Arc::new(One(leads_to.parse().unwrap())));
            egress.stand_ins = stand_ins;
            let shared =
                Shared::new(egress, Vault::new(&[], None).unwrap(), Arc::new(Stop::new().unwrap()), None);
            shared.route(&Target::parse(asked.as_bytes(), Some(443)).unwrap()).is_ok()
        };
        assert!(routed(true, "203.0.113.80", "pypi.org"));
        assert!(!routed(false, "203.0.113.80", "pypi.org"));
        assert!(!routed(true, "203.0.113.80", "203.0.113.80"), "not as an address");
        assert!(!routed(true, "10.0.0.1", "pypi.org") && !routed(true, "169.254.169.254", "pypi.org"));
        assert!(!routed(true, "203.0.113.80", "example.org"), "the list of hosts holds");
    }

    #[test]
    fn an_empty_bucket_makes_takers_wait() {
        let bucket = Bucket::new(10.0);
        assert_eq!(bucket.take(10.0), Duration::ZERO);
        let wait = bucket.take(5.0).as_secs_f64();
        assert!((0.4..=0.5).contains(&wait), "{wait}");
        assert!(bucket.take(1e12) <= Duration::from_hours(1));
    }
}
