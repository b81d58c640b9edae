//! A daemon over TCP with mutual TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toolpost_docker::{Docker, DockerError, DockerHost, Options};
use toolpost_sandbox::{Cancel, Language, Program, Sandbox, Source, Stdin, Verdict};

use super::daemon::{Daemon, IMAGE};

fn openssl(directory: &Path, arguments: &str) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "makes the certificates of the test")]
    let output = std::process::Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(directory)
        .output()
        .map_err(|error| format!("`openssl`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Certificates of an authority, a loopback server, and a client, in the form of `DOCKER_CERT_PATH`.
fn certificates(directory: &Path) -> Result<(), String> {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        directory,
        &format!("req -x509 {key} -keyout ca-key.pem -out ca.pem -days 2 -subj /CN=authority"),
    )?;
    for (name, extensions) in [
        ("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n"),
        ("client", "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n"),
    ] {
        std::fs::write(directory.join(format!("{name}.ext")), extensions).unwrap();
        openssl(
            directory,
            &format!("req -new {key} -keyout {name}-key.pem -out {name}.csr -subj /CN={name}"),
        )?;
        openssl(
            directory,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"
            ),
        )?;
    }
    std::fs::copy(directory.join("client.pem"), directory.join("cert.pem")).unwrap();
    std::fs::copy(directory.join("client-key.pem"), directory.join("key.pem")).unwrap();
    Ok(())
}

#[test]
fn a_daemon_behind_tls_rejects_unknown_clients() {
    let name = "a_daemon_behind_tls_rejects_unknown_clients";
    let directory = tempfile::tempdir().unwrap();
    let place = |file: &str| directory.path().join(file).display().to_string();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp://127.0.0.1:{port}");
    let daemon = certificates(directory.path()).and_then(|()| {
        Daemon::start_with(&[
            "--tlsverify".into(),
            format!("--tlscacert={}", place("ca.pem")),
            format!("--tlscert={}", place("server.pem")),
            format!("--tlskey={}", place("server-key.pem")),
            format!("--host={address}"),
        ])
    });
    let _daemon = match daemon {
        Ok(daemon) => daemon,
        Err(reason) => {
            println!("SKIP {name}: {reason}");
            return;
        }
    };
    let host = DockerHost::from_variables(Some(&address), Some("1"), Some(directory.path())).unwrap();
    let options = || Options::new(IMAGE).idle_containers(0).answer_timeout(Duration::from_secs(20));
    let docker = Docker::connect(&host, options()).unwrap();
    // Much data in both directions, which an encrypted connection may buffer.
    let outcome = Sandbox::new()
        .backend(Arc::new(docker))
        .file("data", Source::Bytes(vec![b'd'; 3_000_000]))
        .stdin(Stdin::Bytes(vec![b'i'; 300_000]))
        .run(
            &Program::code(Language::Sh, "cat > copy; wc -c < data; cat data; exit 5"),
            &Cancel::new(),
            &mut |_| {},
        )
        .unwrap();
    assert_eq!(outcome.verdict, Verdict::Exit { code: 5 });
    assert!(outcome.stdout.text().starts_with("3000000\n"));
    assert_eq!(
        outcome.stdout.dropped + outcome.stdout.head.len() as u64 + outcome.stdout.tail.len() as u64,
        3_000_008
    );
    assert_eq!(outcome.artifacts[0].read().unwrap(), vec![b'i'; 300_000]);

    // Without TLS, and with certificates of another authority.
    let error = Docker::connect(&address.parse().unwrap(), options()).unwrap_err();
    assert!(
        matches!(
            error,
            DockerError::Unreachable { .. } | DockerError::Rejected { .. } | DockerError::Protocol { .. }
        ),
        "{error}"
    );
    let other = tempfile::tempdir().unwrap();
    certificates(other.path()).unwrap();
    let stranger = DockerHost::from_variables(Some(&address), Some("1"), Some(other.path())).unwrap();
    let error = Docker::connect(&stranger, options()).unwrap_err();
    assert!(matches!(error, DockerError::Unreachable { .. }), "{error}");
    // The certificate is for an address only.
    let named = address.replace("127.0.0.1", "localhost");
    let host = DockerHost::from_variables(Some(&named), Some("1"), Some(directory.path())).unwrap();
    let error = Docker::connect(&host, options()).unwrap_err();
    assert!(matches!(error, DockerError::Unreachable { .. }), "{error}");
}
