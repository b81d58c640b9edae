//! The address of the Docker daemon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::DockerError;
use toolpost_egress::shorten;

/// The address of a Docker daemon, as in `DOCKER_HOST`.
///
/// This crate reads no environment; pass the variables to [`DockerHost::from_variables`].
///
/// Access to a daemon means root on its machine. Plain `tcp://` has neither encryption nor authentication:
/// use it on loopback only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DockerHost {
    /// A Unix socket: `unix:///var/run/docker.sock`.
    Unix(PathBuf),
    /// A host and port without TLS: `tcp://127.0.0.1:2375`.
    Tcp {
        /// The name or address.
        host: String,
        /// The port, default 2375.
        port: u16,
    },
    /// A host and port with mutual TLS. Without the feature `tls` connections fail.
    Tls {
        /// The host name or address, which the daemon's certificate must contain.
        host: String,
        /// The port, default 2376.
        port: u16,
        /// The certificates for both sides.
        certificates: Certificates,
    },
}

/// PEM certificates, as in `docker`'s certificate directory. Debug output hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The authority that signed the daemon's certificate (`ca.pem`).
    pub authority: Vec<u8>,
    /// The client's certificate (`cert.pem`).
    pub certificate: Vec<u8>,
    /// The client's private key (`key.pem`).
    pub key: Vec<u8>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` from a directory.
    pub fn read(directory: &Path) -> Result<Self, DockerError> {
        let file = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|source| DockerError::File {
                action: "read certificate",
                path: path.display().to_string(),
                source,
            })
        };
        Ok(Self { authority: file("ca.pem")?, certificate: file("cert.pem")?, key: file("key.pem")? })
    }
}

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

impl Default for DockerHost {
    fn default() -> Self {
        Self::Unix(DEFAULT_SOCKET.into())
    }
}

impl DockerHost {
    /// Resolves `DOCKER_HOST`, `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH`.
    ///
    /// Without a host, the default socket. With a non-empty `DOCKER_TLS_VERIFY`, TLS for a TCP address, which
    /// needs the certificate directory.
    pub fn from_variables(
        host: Option<&str>,
        verify: Option<&str>,
        certificates: Option<&Path>,
    ) -> Result<Self, DockerError> {
        let host = host.filter(|text| !text.is_empty()).map_or_else(|| Ok(Self::default()), str::parse)?;
        let wants_tls = verify.is_some_and(|text| !text.is_empty());
        match (host, wants_tls) {
            (Self::Tcp { host, port }, true) => {
                let directory = certificates.ok_or_else(|| DockerError::Address {
                    address: shorten(&format!("tcp://{host}:{port}")),
                    reason:
                        "`DOCKER_TLS_VERIFY` is set and `DOCKER_CERT_PATH` is not; set it to the directory with \
                             `ca.pem`, `cert.pem` and `key.pem`"
                            .into(),
                })?;
                // The parser used the default port without TLS.
                let port = if port == 2375 { 2376 } else { port };
                Ok(Self::Tls { host, port, certificates: Certificates::read(directory)? })
            }
            (host, _) => Ok(host),
        }
    }

    /// Whether the daemon is on this machine, judged by the address.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl fmt::Display for DockerHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } if host.contains(':') => {
                write!(formatter, "tcp://[{host}]:{port}")
            }
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => {
                write!(formatter, "tcp://{host}:{port}")
            }
        }
    }
}

impl FromStr for DockerHost {
    type Err = DockerError;

    fn from_str(text: &str) -> Result<Self, DockerError> {
        let refuse = |reason: &str| DockerError::Address { address: shorten(text), reason: reason.into() };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| refuse("expected `unix:///path/of/socket` or `tcp://host:port`"))?;
        match scheme {
            "unix" if rest.starts_with('/') && !rest.contains('\0') => Ok(Self::Unix(rest.into())),
            "unix" if rest.is_empty() => Ok(Self::default()),
            "unix" => Err(refuse("the path of a socket must be absolute: `unix:///path/of/socket`")),
            "tcp" | "http" => {
                let rest = rest.strip_suffix('/').unwrap_or(rest);
                let (host, port) = match rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
                    Some((address, port)) => (address, port.strip_prefix(':')),
                    None => match rest.split_once(':') {
                        Some((host, port)) => (host, Some(port)),
                        None => (rest, None),
                    },
                };
                let fits = |letter: char| letter.is_ascii_alphanumeric() || ".-_:".contains(letter);
                if host.is_empty() || !host.chars().all(fits) {
                    return Err(refuse("expected a host name or address: `tcp://host:port`"));
                }
                let port = match port.filter(|port| !port.is_empty()) {
                    None => 2375,
                    Some(port) => port
                        .parse()
                        .ok()
                        .filter(|port| *port > 0)
                        .ok_or_else(|| refuse("expected a port from 1 to 65,535"))?,
                };
                Ok(Self::Tcp { host: host.to_owned(), port })
            }
            "ssh" | "npipe" | "fd" => {
                Err(refuse("unsupported scheme; forward the socket and use `unix://` or `tcp://`"))
            }
            _ => Err(refuse("expected `unix:///path/of/socket` or `tcp://host:port`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_like_docker_host() {
        let tcp = |host: &str, port| DockerHost::Tcp { host: host.into(), port };
        for (text, expected) in [
            ("unix:///run/d.sock", DockerHost::Unix("/run/d.sock".into())),
            ("unix://", DockerHost::default()),
            ("tcp://127.0.0.1:2375", tcp("127.0.0.1", 2375)),
            ("tcp://build.example", tcp("build.example", 2375)),
            ("tcp://[::1]:99", tcp("::1", 99)),
            ("http://a:1/", tcp("a", 1)),
        ] {
            let host: DockerHost = text.parse().unwrap();
            assert_eq!(host, expected, "{text}");
            assert_eq!(host.to_string().parse::<DockerHost>().unwrap(), host, "{text}");
        }
        for text in [
            "",
            "/run/d.sock",
            "unix://relative",
            "tcp://",
            "tcp://a:0",
            "tcp://a:x",
            "tcp://a b:1",
            "ssh://u@h",
            "tcp://u:p@h:1",
            "tcp://a:1/x\r\nHost: b",
            "\u{1b}://x",
        ] {
            let error = text.parse::<DockerHost>().unwrap_err().to_string();
            assert!(
                error.contains("expected") || error.contains("must") || error.contains("scheme"),
                "{error}"
            );
            assert!(!error.contains('\u{1b}') && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn tls_needs_its_certificates_and_hides_the_key() {
        let unix = DockerHost::from_variables(None, Some("1"), None).unwrap();
        assert_eq!(unix, DockerHost::default());
        let error = DockerHost::from_variables(Some("tcp://h"), Some("1"), None).unwrap_err().to_string();
        assert!(error.contains("DOCKER_CERT_PATH"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let error =
            DockerHost::from_variables(Some("tcp://h"), Some("1"), Some(directory.path())).unwrap_err();
        assert!(error.to_string().contains("ca.pem"), "{error}");
        for name in ["ca.pem", "cert.pem", "key.pem"] {
            std::fs::write(directory.path().join(name), "canary").unwrap();
        }
        let host = DockerHost::from_variables(Some("tcp://h"), Some("1"), Some(directory.path())).unwrap();
        assert!(matches!(&host, DockerHost::Tls { port: 2376, .. }), "{host:?}");
        assert!(!format!("{host:?}").contains("canary"));
        let plain = DockerHost::from_variables(Some("tcp://h"), Some(""), Some(directory.path())).unwrap();
        assert_eq!(plain, DockerHost::Tcp { host: "h".into(), port: 2375 });
    }
}
