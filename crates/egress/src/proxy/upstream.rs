//! Connections to servers: direct or through the operator's proxy, with or without TLS.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::super::host_pattern::Target;
use super::dial;
use super::head::{Head, HeadError};
use super::shared::{Route, Shared, Trouble};
use super::wire::{Buffered, Wire};

/// A connection for one request.
pub(super) enum Upstream {
    Plain(Wire),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Wire>>),
}

impl Read for Upstream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(wire) => wire.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Upstream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(wire) => wire.write(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(wire) => wire.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Connects to a checked address, or to the operator's proxy.
fn connect(shared: &Shared, target: &Target, route: &Route) -> Result<(Wire, Option<IpAddr>), Trouble> {
    let limits = &shared.egress.policy.limits;
    let addresses = match route {
        Route::Addresses(addresses) => addresses.as_slice(),
        Route::Upstream(proxy) => std::slice::from_ref(proxy),
    };
    let time = Duration::from_millis(limits.connect_timeout_ms);
    let failed = |error: &io::Error| Trouble::new(error, &format!("the connection to {target}"));
    let stream: TcpStream = dial::connect(addresses, time, &shared.stop).map_err(|error| failed(&error))?;
    let idle = Duration::from_millis(limits.idle_timeout_ms);
    let wire = Wire::new(stream, Arc::clone(&shared.stop), idle).map_err(|error| failed(&error))?;
    let address = wire.peer().ok().map(|address| address.ip());
    Ok((wire, address))
}

/// The authorization header for the operator's proxy.
fn authorization(shared: &Shared) -> String {
    shared
        .egress
        .upstream_authorization
        .as_ref()
        .map(|value| format!("Proxy-Authorization: {}\r\n", value.reveal()))
        .unwrap_or_default()
}

/// A connection that carries bytes to the target itself.
pub(super) fn tunnel(
    shared: &Shared,
    target: &Target,
    route: &Route,
) -> Result<(Wire, Option<IpAddr>), Trouble> {
    let (mut wire, address) = connect(shared, target, route)?;
    if let Route::Upstream(_) = route {
        let failed = |error: &io::Error| Trouble::new(error, "the connection to the upstream proxy");
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{}\r\n", authorization(shared));
        wire.write_all(request.as_bytes()).map_err(|error| failed(&error))?;
        let mut from = Buffered::new(wire);
        let head = Head::read(&mut from).map_err(|error| match error {
            HeadError::Closed { error, .. } => failed(&error),
            HeadError::Invalid(reason) => {
                Trouble::failed(502, format!("the upstream proxy's answer: {reason}"))
            }
        })?;
        if head.first[1] != "200" || !from.held().is_empty() {
            let status = crate::error::shorten(&head.first[1]);
            return Err(Trouble::failed(
                502,
                format!("the upstream proxy answered {target} with status {status}"),
            ));
        }
        wire = from.inner;
    }
    Ok((wire, address))
}

/// A connection for one plain HTTP request, and the prefix of its path.
pub(super) fn plain(
    shared: &Shared,
    target: &Target,
    route: &Route,
) -> Result<(Upstream, Option<IpAddr>, String, String), Trouble> {
    let (wire, address) = connect(shared, target, route)?;
    let (prefix, headers) = match route {
        Route::Addresses(_) => (String::new(), String::new()),
        Route::Upstream(_) => (format!("http://{}", target.authority(80)), authorization(shared)),
    };
    Ok((Upstream::Plain(wire), address, prefix, headers))
}

/// A connection with TLS for one HTTP request.
#[cfg(feature = "tls")]
pub(super) fn secure(
    shared: &Shared,
    target: &Target,
    route: &Route,
) -> Result<(Upstream, Option<IpAddr>), Trouble> {
    let (wire, address) = tunnel(shared, target, route)?;
    let stream = super::tls::start(shared, &target.host, wire)?;
    Ok((Upstream::Tls(Box::new(stream)), address))
}
