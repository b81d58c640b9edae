//! TLS for loopback servers, with certificates that `openssl` makes for the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority that nobody knows, and a certificate from it.
#[derive(Clone, Debug)]
pub struct TestAuthority {
    directory: PathBuf,
}

impl TestAuthority {
    /// Makes an authority, and a certificate for a host's name, in an empty directory. `None` where there is no `openssl`.
    pub fn make(directory: &Path, host: &str) -> Option<Self> {
        std::fs::write(directory.join("names"), format!("subjectAltName=DNS:{host}")).ok()?;
        let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for arguments in [
            format!("req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"),
            format!("req {curve} -keyout server.key -out server.csr -subj /CN={host}"),
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem"
                .to_owned(),
        ] {
            #[expect(clippy::disallowed_methods, reason = "certificates of tests are made by a program of the host")]
            let made = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output();
            made.ok().filter(|made| made.status.success())?;
        }
        Some(Self { directory: directory.to_owned() })
    }

    /// The file with the authority's own certificate, as PEM.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// The TLS settings of a server.
    pub fn server(&self) -> std::io::Result<Arc<ServerConfig>> {
        let wrong = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
        let chain = CertificateDer::from_pem_file(self.directory.join("server.pem"))
            .map_err(|error| wrong(&error))?;
        let key =
            PrivateKeyDer::from_pem_file(self.directory.join("server.key")).map_err(|error| wrong(&error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .map_err(|error| wrong(&error))?;
        Ok(Arc::new(config))
    }
}
