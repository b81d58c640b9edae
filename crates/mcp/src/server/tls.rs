//! TLS for the HTTP server: rustls with ring.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use toolpost_core::{Secret, ToolError};

/// A TLS certificate chain with its private key.
#[derive(Clone)]
pub struct Certificate(pub(super) Arc<ServerConfig>);

impl Certificate {
    /// Parses a PEM certificate chain, leaf first, and its PEM key.
    ///
    /// # Errors
    /// `INVALID_INPUT` if either is invalid or they do not belong together.
    pub fn from_pem(chain: &str, key: &Secret) -> Result<Self, ToolError> {
        let wrong = |what: &str, error: &dyn fmt::Display| {
            ToolError::invalid_input(format!("invalid TLS {what}: {error}"))
        };
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong("certificate", &error))?;
        if chain.is_empty() {
            return Err(wrong("certificate", &"the text has no PEM block"));
        }
        // Errors never quote the key.
        let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
            .map_err(|_| wrong("key", &"the text has no PEM block"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ToolError::internal(format!("cannot configure TLS: {error}")))?
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
