//! TLS: the server shows the configured certificate and rejects plain HTTP.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Code, Secret};
use toolpost_mcp::server::Certificate;

use super::support::{raw, serve};

/// A self-signed certificate for `localhost` and its key, as PEM; `None` without `openssl`.
#[expect(clippy::disallowed_methods, reason = "openssl creates the certificates of the tests")]
fn certificate(test: &str) -> Option<(String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem";
    let words = words.split_ascii_whitespace();
    let created = std::process::Command::new("openssl").args(words).current_dir(directory.path()).output();
    if !created.is_ok_and(|created| created.status.success()) {
        println!("SKIP {test}: `openssl` is missing");
        return None;
    }
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    Some((read("cert.pem"), read("key.pem")))
}

#[tokio::test]
async fn a_certificate_enables_https() {
    let Some((chain, key)) = certificate("a_certificate_enables_https") else { return };
    let certificate = Certificate::from_pem(&chain, &Secret::new(key)).unwrap();
    assert_eq!(format!("{certificate:?}"), "Certificate { .. }");
    let running = serve(|builder| builder.tls(certificate)).await;
    let address = running.address();
    assert_eq!(running.connection_url(), format!("https://{address}/mcp"));
    assert_eq!(running.websocket_url(), format!("wss://{address}/ws"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let origin = format!("Origin: https://localhost:{}\r\n", address.port());
    let head = format!("GET /health HTTP/1.1\r\nHost: {address}\r\n{origin}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("OK"), "{response}");
    let plain = raw(address, format!("GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await;
    assert_ne!(plain.status, 200);
}

#[test]
fn an_invalid_certificate_is_rejected_without_showing_the_key() {
    let name = "an_invalid_certificate_is_rejected_without_showing_the_key";
    let (Some((chain, key)), Some((_, other))) = (certificate(name), certificate(name)) else { return };
    for (chain, key) in [
        ("", key.as_str()),
        ("nonsense", key.as_str()),
        (chain.as_str(), "nonsense"),
        (chain.as_str(), other.as_str()),
    ] {
        let error = Certificate::from_pem(chain, &Secret::new(key)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput);
        assert!(!error.to_string().contains("nonsense") && !error.to_string().contains("PRIVATE"), "{error}");
    }
}
