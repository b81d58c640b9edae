//! Real TLS: through a tunnel, and by the proxy for a program that must not see a secret.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use toolpost_sandbox::{Egress, Placeholder, Source};

use crate::egress::{Names, pattern, sandboxes};
use crate::egress_attacks::{ask, start};
use crate::support::python;

const SECRET: &str = "s3cr3t-value+1";

/// A certificate authority and its certificate for `example.org`; none without `openssl`.
#[expect(clippy::disallowed_methods, reason = "the certificates of a test are made by a program of the host")]
fn certificates(directory: &Path) -> Option<()> {
    let run = |arguments: &str| {
        let done = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output().ok()?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(())
    };
    std::fs::write(directory.join("names"), "subjectAltName=DNS:example.org").unwrap();
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    run(&format!("req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"))?;
    run(&format!("req {curve} -keyout server.key -out server.csr -subj /CN=example.org"))?;
    run(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    )
}

/// A TLS server that echoes one request per connection.
fn serve(directory: &Path) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let own = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut request = vec![0; 8192];
            // A client that does not trust the server disconnects.
            let Ok(size) = stream.read(&mut request) else { continue };
            let text = String::from_utf8_lossy(&request[..size]).into_owned();
            let head = format!(
                "HTTP/1.1 200 OK\r\nStrict-Transport-Security: max-age=1\r\nLocation: https://example.org:{}/next\r\nContent-Length: {}\r\n\r\n",
                address.port(),
                text.len()
            );
            own.lock().unwrap().push(text.clone());
            let _ = stream.write_all(format!("{head}{text}").as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (address, seen)
}

#[test]
fn tls_is_tunneled_unchanged_or_spoken_by_the_proxy_for_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    if certificates(directory.path()).is_none() {
        println!("SKIP tls_goes_through_a_tunnel: there is no `openssl` to make certificates with");
        return;
    }
    let (address, seen) = serve(directory.path());
    let authority = CertificateDer::from_pem_file(directory.path().join("ca.pem")).unwrap().to_vec();
    let here = format!("example.org:{}", address.port());
    let egress = || {
        Egress::new()
            .resolver(Names::new(&[("example.org", &[&["127.0.0.1"]]), ("alias.example", &[&["127.0.0.1"]])]))
            .allow(pattern(&here))
            .allow(pattern("alias.example:*"))
            .allow_address(address)
    };
    let secret = |host: &str| Placeholder::new("API_TOKEN", SECRET).host(pattern(host));

    // The proxy speaks TLS for the program, to a server with a valid certificate.
    let proxy = start(&egress().secret(secret(&here)).authority(authority.clone()));
    let token = proxy.variables().last().unwrap().1.clone();
    let get = |host: &str| {
        format!(
            "GET http://{host}/a HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )
    };
    let text = String::from_utf8(ask(proxy.address(), get(&here).as_bytes())).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains(&format!("Authorization: Bearer {token}\r\n")) && !text.contains(SECRET), "{text}");
    // A redirect to `https` would make the program speak TLS itself, without its secret.
    assert!(text.contains(&format!("Location: http://{here}/next\r\n")), "{text}");
    assert!(!text.contains("Strict-Transport"), "{text}");
    let head = seen.lock().unwrap().pop().unwrap();
    assert!(head.starts_with(&format!("GET /a HTTP/1.1\r\nHost: {here}\r\n")), "{head}");
    assert!(head.contains(&format!("Authorization: Bearer {SECRET}\r\n")), "{head}");
    assert_eq!(proxy.finish().events[0].secrets, ["API_TOKEN"]);

    // A server with an invalid certificate: unknown authority, or another name.
    let untrusted = start(&egress().secret(secret(&here)));
    let alias = format!("alias.example:{}", address.port());
    let misnamed = start(&egress().secret(secret(&alias)).authority(authority));
    for (proxy, host) in [(untrusted, &here), (misnamed, &alias)] {
        let answer = ask(proxy.address(), get(host).as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 502 Failed: the TLS handshake"), "{}", answer.escape_ascii());
    }
    assert!(seen.lock().unwrap().is_empty());

    // A program's own TLS goes through a tunnel, with its placeholder unchanged.
    for (level, sandbox) in sandboxes("tls_goes_through_a_tunnel") {
        let code = format!(
            "import os, ssl, urllib.request\n\
             trust = ssl.create_default_context(cafile='ca.pem')\n\
             request = urllib.request.Request('https://{here}/b', headers={{'Authorization': os.environ['API_TOKEN']}})\n\
             urllib.request.urlopen(request, context=trust).read().decode()"
        );
        let certificate = std::fs::read(directory.path().join("ca.pem")).unwrap();
        let sandbox =
            sandbox.file("ca.pem", Source::Bytes(certificate)).egress(egress().secret(secret(&here)));
        let outcome = python(&sandbox, &code);
        let text = outcome.value.unwrap_or_else(|| panic!("{level} {}", outcome.stderr.text()));
        assert!(text.as_str().unwrap().starts_with("GET /b HTTP/1.1\r\n"), "{level} {text}");
        assert!(text.as_str().unwrap().contains("Authorization: placeholder-"), "{level} {text}");
    }
}
