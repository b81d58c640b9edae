//! TLS: the certificate that was set is the one that is shown, and plain requests get nothing.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Code, Secret};
use toolpost_mcp::server::Certificate;

use super::support::{builder, raw};

/// A certificate for `localhost` that vouches for itself, and its key, as PEM; `None` where there is no `openssl`.
#[expect(clippy::disallowed_methods, reason = "makes the certificates of the test")]
fn made(test: &str) -> Option<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem";
    let words = words.split_ascii_whitespace();
    let made = std::process::Command::new("openssl").args(words).current_dir(folder.path()).output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("SKIP {test}: no `openssl` that makes certificates");
        return None;
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    Some((read("cert.pem"), read("key.pem")))
}

#[tokio::test]
async fn a_certificate_makes_it_https() {
    let Some((chain, key)) = made("a_certificate_makes_it_https") else { return };
    let certificate = Certificate::from_pem(&chain, &Secret::new(key)).unwrap();
    assert_eq!(format!("{certificate:?}"), "Certificate { .. }");
    let server = builder().tls(certificate).build().unwrap();
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
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
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("OK"), "{answer}");
    let plain = raw(address, format!("GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await;
    assert_ne!(plain.status, 200);
}

#[test]
fn what_is_no_certificate_is_refused_and_the_key_is_not_shown() {
    let name = "what_is_no_certificate_is_refused_and_the_key_is_not_shown";
    let (Some((chain, key)), Some((_, other))) = (made(name), made(name)) else { return };
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
