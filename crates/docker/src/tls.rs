//! Mutual TLS with rustls and ring.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::host::Certificates;

/// An encrypted connection.
#[derive(Debug)]
pub(super) struct Encrypted(StreamOwned<ClientConnection, TcpStream>);

fn unusable(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {error}"))
}

impl Encrypted {
    pub(super) fn new(stream: TcpStream, host: &str, certificates: &Certificates) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&certificates.authority) {
            let certificate = certificate.map_err(|error| unusable("ca.pem", error))?;
            roots.add(certificate).map_err(|error| unusable("ca.pem", error))?;
        }
        let chain = CertificateDer::pem_slice_iter(&certificates.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable("cert.pem", error))?;
        let key =
            PrivateKeyDer::from_pem_slice(&certificates.key).map_err(|error| unusable("key.pem", error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("TLS", error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unusable("cert.pem and key.pem", error))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unusable("host name", error))?;
        let connection =
            ClientConnection::new(Arc::new(config), name).map_err(|error| unusable("TLS", error))?;
        Ok(Self(StreamOwned::new(connection, stream)))
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.0.sock
    }
}

impl Read for Encrypted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer) {
            // The daemon may close without a TLS close message after its answer.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            other => other,
        }
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
