//! `http_request` over TLS, with certificates that `openssl` makes for the test.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use toolpost_core::Code;
use toolpost_tools::HttpSettings;

use crate::support::{Bench, skip};

#[expect(clippy::disallowed_methods, reason = "the certificates of a test are made by a program of the host")]
/// An authority and a certificate of `localhost` from it; `None` where there is no `openssl`.
fn certificates(directory: &Path) -> Option<()> {
    let run = |arguments: &str| {
        let done = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output().ok()?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(())
    };
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost").unwrap();
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    run(&format!("req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"))?;
    run(&format!("req {curve} -keyout server.key -out server.csr -subj /CN=localhost"))?;
    run(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    )
}

/// A server that gives each connection one answer.
fn serve(directory: &Path) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(directory.join("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(directory.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream);
            // A client that does not trust the server goes away.
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok() {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nsafe");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

#[tokio::test]
async fn a_certificate_is_checked_unless_the_operator_and_the_call_agree() {
    let directory = tempfile::tempdir().unwrap();
    if certificates(directory.path()).is_none() {
        skip("there is no `openssl` to make certificates with");
        return;
    }
    let port = serve(directory.path());
    let named = format!("https://localhost:{port}/");
    let other_name = format!("https://other.example:{port}/");
    let mut settings = HttpSettings::default();
    settings.addresses.insert("localhost".into(), vec!["127.0.0.1".parse().unwrap()]);
    settings.addresses.insert("other.example".into(), vec!["127.0.0.1".parse().unwrap()]);
    settings.allowed_hosts = vec!["localhost".into(), "other.example".into()];
    let authority = CertificateDer::from_pem_file(directory.path().join("ca.pem")).unwrap().to_vec();
    for (trusted, permitted, url, verify, expected) in [
        (false, false, &named, true, Err(Code::Dependency)),
        (true, false, &named, true, Ok(())),
        (true, false, &other_name, true, Err(Code::Dependency)),
        (false, false, &named, false, Err(Code::Permission)),
        (false, true, &named, false, Ok(())),
        (false, true, &named, true, Err(Code::Dependency)),
    ] {
        let mut settings = settings.clone();
        settings.extra_authorities = if trusted { vec![authority.clone()] } else { Vec::new() };
        settings.allow_unverified_tls = permitted;
        let bench = Bench::with(|builder| builder.provide(settings));
        let result =
            bench.run("http_request", json!({ "url": url, "verify_ssl": verify, "timeout": 10 })).await;
        let found = result.as_ref().map(|_| ()).map_err(toolpost_core::ToolError::code);
        assert_eq!(
            found, expected,
            "trusted {trusted}, permitted {permitted}, {url}, verify {verify}: {result:?}"
        );
    }
}
