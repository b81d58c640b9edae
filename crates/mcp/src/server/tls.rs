//! TLS for what is served over HTTP: rustls with ring.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use toolpost_core::{Secret, ToolError};

/// What a server proves who it is with: a certificate, those that vouch for it, and the key.
#[derive(Clone)]
pub struct Certificate(pub(super) Arc<ServerConfig>);

impl Certificate {
    /// Reads a chain of certificates, the server's own first, and its key, both as PEM.
    ///
    /// # Errors
    /// `INVALID_INPUT` if one of them is none, or the key belongs to another certificate.
    pub fn from_pem(chain: &str, key: &Secret) -> Result<Self, ToolError> {
        let wrong = |what: &str, error: &dyn fmt::Display| {
            ToolError::invalid_input(format!("the {what} for TLS cannot be used: {error}"))
        };
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong("certificate", &error))?;
        if chain.is_empty() {
            return Err(wrong("certificate", &"the text holds none as PEM"));
        }
        // What is wrong with a key is said without any of it.
        let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
            .map_err(|_| wrong("key", &"the text holds none as PEM"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ToolError::internal(format!("TLS cannot be set up: {error}")))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| wrong("certificate and key", &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}
