//! The certificates that servers are known by.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;

use crate::{ErrorKind, ModelError, regular_file};

/// The largest file of certificates, in bytes: fifty times what a system trusts.
const LARGEST: usize = 16 << 20;

/// The system's certificates and those of files. The system's are hundreds of files in places: they are read when they
/// are first needed, since many a process speaks to this machine only.
#[derive(Debug)]
pub(crate) struct Certificates {
    of_files: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Result<Verifier, rustls::Error>>,
}

impl Certificates {
    /// With the certificates of these files, as PEM, besides the system's.
    pub(crate) fn of_files(files: &[PathBuf]) -> Result<Self, ModelError> {
        let mut of_files = Vec::new();
        for file in files {
            let wrong = |what: String| {
                let message = format!("the certificates `{}`: {what}", file.display());
                ModelError::new(ErrorKind::Configuration, message)
            };
            let text = regular_file::read(file, LARGEST).map_err(|error| wrong(error.to_string()))?;
            let before = of_files.len();
            for certificate in CertificateDer::pem_slice_iter(&text) {
                of_files.push(certificate.map_err(|error| wrong(error.to_string()))?);
            }
            if of_files.len() == before {
                return Err(wrong("expected PEM with at least one certificate, found none".to_owned()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Self { of_files, provider, verifier: OnceLock::new() })
    }

    /// Encryption with them.
    pub(crate) fn tls(self: &Arc<Self>) -> Result<ClientConfig, ModelError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                ModelError::new(ErrorKind::Configuration, format!("encryption cannot be set up: {error}"))
            })?;
        let verifier = Arc::clone(self) as Arc<dyn ServerCertVerifier>;
        Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    /// Whether they can be used.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        self.verifier().map(drop).map_err(|error| {
            let message = format!("this machine's certificates cannot be used: {error}");
            ModelError::new(ErrorKind::Configuration, message)
        })
    }

    fn verifier(&self) -> Result<&Verifier, rustls::Error> {
        let read = || Verifier::new_with_extra_roots(self.of_files.clone(), Arc::clone(&self.provider));
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
