//! TLS from the proxy to a server.

use std::io;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::super::host_pattern::Host;
use super::shared::{Shared, Trouble};
use super::wire::Wire;

/// Trusts the system's certificate authorities and the operator's own.
fn config(shared: &Shared) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let extra = shared.egress.authorities.iter().map(|der| CertificateDer::from(der.clone()));
    let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(extra, Arc::clone(&provider))
        .map_err(|error| error.to_string())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        // rustls calls any verifier except its own dangerous; this is the platform's.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Performs the handshake with a server, which must prove to be this host.
pub(super) fn start(
    shared: &Shared,
    host: &Host,
    mut wire: Wire,
) -> Result<StreamOwned<ClientConnection, Wire>, Trouble> {
    let config = shared.tls.get_or_init(|| config(shared).map(Arc::new)).clone().map_err(|error| {
        Trouble::failed(502, format!("loading this machine's certificates failed: {error}"))
    })?;
    let name = match host {
        Host::Name(name) => ServerName::try_from(name.clone())
            .map_err(|_| Trouble::failed(502, format!("{name} is not a valid certificate name")))?,
        Host::Address(address) => ServerName::from(*address),
    };
    let failed = |error: &io::Error| Trouble::new(error, &format!("the TLS handshake with {host}"));
    let mut connection = ClientConnection::new(config, name)
        .map_err(|error| Trouble::failed(502, format!("TLS with {host} failed: {error}")))?;
    while connection.is_handshaking() {
        if let (0, 0) = connection.complete_io(&mut wire).map_err(|error| failed(&error))? {
            return Err(failed(&io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Ok(StreamOwned::new(connection, wire))
}
