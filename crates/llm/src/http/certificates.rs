//! Verifies certificates against the system's roots and additional files.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;

use crate::{ErrorKind, ModelError, regular_file};

/// The largest certificate file in bytes, about fifty times a system's bundle.
const MAX_FILE: usize = 16 << 20;

/// The system's root certificates and those of files. The system's roots are read on first use, because reading is slow.
#[derive(Debug)]
pub(crate) struct Certificates {
    extra: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Result<Verifier, rustls::Error>>,
}

impl Certificates {
    /// Reads the additional certificates from PEM files.
    pub(crate) fn load(files: &[PathBuf]) -> Result<Self, ModelError> {
        let mut extra = Vec::new();
        for file in files {
            let wrong = |what: String| {
                let message = format!("invalid certificate file `{}`: {what}", file.display());
                ModelError::new(ErrorKind::Configuration, message)
            };
            let text = regular_file::read(file, MAX_FILE).map_err(|error| wrong(error.to_string()))?;
            let before = extra.len();
            for certificate in CertificateDer::pem_slice_iter(&text) {
                extra.push(certificate.map_err(|error| wrong(error.to_string()))?);
            }
            if extra.len() == before {
                return Err(wrong("expected PEM with at least one certificate, found none".to_owned()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Self { extra, provider, verifier: OnceLock::new() })
    }

    /// A TLS configuration that uses these certificates.
    pub(crate) fn tls(self: &Arc<Self>) -> Result<ClientConfig, ModelError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                ModelError::new(ErrorKind::Configuration, format!("cannot configure TLS: {error}"))
            })?;
        let verifier = Arc::clone(self) as Arc<dyn ServerCertVerifier>;
        Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    /// Checks that the certificates are valid.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        self.verifier().map(drop).map_err(|error| {
            let message = format!("cannot read the system's certificates: {error}");
            ModelError::new(ErrorKind::Configuration, message)
        })
    }

    fn verifier(&self) -> Result<&Verifier, rustls::Error> {
        let read = || Verifier::new_with_extra_roots(self.extra.clone(), Arc::clone(&self.provider));
        self.verifier.get_or_init(read).as_ref().map_err(Clone::clone)
    }
}

impl ServerCertVerifier for Certificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier()?.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()?.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()?.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
