//! Restate servers on loopback ports, with directories of their own.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// The program of the server. Prints why a test is skipped if it is missing.
pub(crate) fn binary(test: &str) -> Option<PathBuf> {
    const PACKAGES: &str = "../../.dev/restate/node_modules/@restatedev";
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PACKAGES);
    let path = path.join(format!("restate-server-linux-{arch}/bin/restate-server"));
    if !path.exists() {
        println!("SKIP {test}: the Restate server is not installed; `cargo xtask test` installs it");
        return None;
    }
    Some(path)
}

/// Ports that are free now.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// One server.
pub(crate) struct Node {
    child: Child,
    pub(crate) ingress: String,
    pub(crate) admin: String,
}

impl Node {
    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn is_healthy(&self) -> bool {
        let client = http_client();
        for address in [format!("{}/health", self.admin), format!("{}/restate/health", self.ingress)] {
            match client.get(address).timeout(Duration::from_secs(2)).send().await {
                Ok(answer) if answer.status().is_success() => {}
                _ => return false,
            }
        }
        true
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Some servers that are one cluster.
pub(crate) struct Servers {
    pub(crate) nodes: Vec<Node>,
    /// Removed after the servers have ended.
    _directory: TempDir,
}

impl Servers {
    /// Starts servers that store everything on `replication` of them, and waits until they are ready.
    pub(crate) async fn start(binary: &Path, count: usize, replication: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let ports = free_ports(count * 3);
        let [fabric, ingress, admin] = [0, 1, 2].map(|kind| &ports[kind * count..(kind + 1) * count]);
        let addresses: Vec<String> =
            fabric.iter().map(|port| format!("\"http://127.0.0.1:{port}/\"")).collect();
        let mut nodes = Vec::new();
        for node in 0..count {
            let own = directory.path().join(format!("node{node}"));
            std::fs::create_dir(&own).unwrap();
            let mut config = String::new();
            writeln!(
                config,
                "cluster-name = \"test\"
node-name = \"node{node}\"
base-dir = \"{}\"
bind-ip = \"127.0.0.1\"
bind-port = {}
listen-mode = \"tcp\"
advertised-address = \"http://127.0.0.1:{}/\"
auto-provision = {}
default-num-partitions = 4
default-replication = {replication}
disable-telemetry = true
metadata-update-interval = \"1s\"
rocksdb-total-memory-size = \"192.0 MiB\"
shutdown-timeout = \"1s\"
log-filter = \"warn\"
[metadata-client]
addresses = [{}]
[ingress]
bind-port = {}
[admin]
bind-port = {}
disable-web-ui = true",
                own.display(),
                fabric[node],
                fabric[node],
                node == 0,
                addresses.join(", "),
                ingress[node],
                admin[node],
            )
            .unwrap();
            let file = own.join("restate.toml");
            std::fs::write(&file, config).unwrap();
            let log = std::fs::File::create(own.join("log")).unwrap();
            #[expect(clippy::disallowed_methods, reason = "the server of the test")]
            let mut command = Command::new(binary);
            let child = command
                .args(["--no-logo", "--config-file"])
                .arg(&file)
                .env_clear()
                .current_dir(&own)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            let [ingress, admin] =
                [ingress[node], admin[node]].map(|port| format!("http://127.0.0.1:{port}"));
            nodes.push(Node { child, ingress, admin });
        }
        let servers = Self { nodes, _directory: directory };
        let ready = async {
            for node in &servers.nodes {
                while !node.is_healthy().await {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), ready).await.expect("the servers start");
        servers
    }

    pub(crate) fn first(&self) -> &Node {
        &self.nodes[0]
    }
}

/// A client for plain HTTP.
fn http_client() -> reqwest::Client {
    let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap()
}
