//! Image pulls from a test registry on loopback.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolpost_docker::image::Recipe;
use toolpost_docker::{Docker, DockerError, Options, Pull, RegistryLogin};
use toolpost_sandbox::{Cancel, Error, Program, Sandbox};

use super::daemon::Daemon;

const PROGRAM: &str = "/usr/bin/docker-registry";
/// The hash of `right-password`, by bcrypt with the fewest rounds.
const USERS: &str = "user:$2b$04$klI6bnP9VXt/W4jrWvR89OTxbuFls2Kbc/KPKatStFWYDfYnkiBAi\n";
/// `{"username": "user", "password": "right-password"}` in base64.
const RIGHT: &str =
    "X-Registry-Auth: eyJ1c2VybmFtZSI6ICJ1c2VyIiwgInBhc3N3b3JkIjogInJpZ2h0LXBhc3N3b3JkIn0=\r\n";

struct Registry {
    process: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Registry {
    /// A registry in its own directory, optionally with logins. None, with a message, without the program.
    fn start(test: &str, with_logins: bool) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            println!("SKIP {test}: there is no `{PROGRAM}`; install the package `docker-registry`");
            return None;
        }
        for _ in 0..5 {
            let directory = tempfile::Builder::new().prefix("toolpost-registry-").tempdir().unwrap();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let address = format!("127.0.0.1:{port}");
            let place = |name: &str| directory.path().join(name).display().to_string();
            std::fs::write(place("users"), USERS).unwrap();
            let logins = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}", place("users"));
            let config = format!(
                "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n{}\n",
                place("data"),
                if with_logins { &logins } else { "" }
            );
            std::fs::write(place("config.yml"), config).unwrap();
            #[expect(clippy::disallowed_methods, reason = "the registry is the test's counterpart")]
            let process = Command::new(PROGRAM)
                .args(["serve", &place("config.yml")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut registry = Self { process, address, _directory: directory };
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(30) {
                if registry.process.try_wait().unwrap().is_some() {
                    // Another program took the port meanwhile.
                    break;
                }
                if std::net::TcpStream::connect(&registry.address).is_ok() {
                    return Some(registry);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("the registry does not start");
    }

    /// Creates an image with this text in `/version`, and pushes it as `busybox:latest`. Returns its digest;
    /// the daemon does not keep the image.
    fn push(&self, daemon: &Daemon, version: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bin")).unwrap();
        std::fs::copy("/bin/busybox", root.path().join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", root.path().join("bin/cat")).unwrap();
        std::fs::write(root.path().join("version"), version).unwrap();
        let name = self.image();
        let recipe = Recipe::Directory { path: root.path().into() };
        daemon.images().build(&recipe, &name, Duration::from_mins(1), &mut |_| {}).unwrap();
        let (repository, _) = name.rsplit_once(':').unwrap();
        let said = daemon.request_with("POST", &format!("/images/{repository}/push?tag=latest"), RIGHT, "");
        let digest = said.split("\"Digest\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let digest = digest.unwrap_or_else(|| panic!("{said}")).to_owned();
        daemon.images().remove(&name).unwrap();
        digest
    }

    fn image(&self) -> String {
        format!("{}/test/busybox:latest", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The version of the image, as a program in a container reads it.
fn version(daemon: &Daemon, options: Options) -> Result<String, Error> {
    let docker =
        Docker::connect(&daemon.host, options.idle_containers(0).answer_timeout(Duration::from_mins(1)))?;
    let program = Program::argv(["cat", "/version"]);
    let outcome = Sandbox::new().backend(Arc::new(docker)).run(&program, &Cancel::new(), &mut |_| {})?;
    Ok(outcome.stdout.text())
}

#[test]
fn each_pull_policy_is_followed() {
    let name = "each_pull_policy_is_followed";
    let Some(daemon) = Daemon::get(name) else { return };
    let Some(registry) = Registry::start(name, false) else { return };
    let first = registry.push(&daemon, "one");
    let image = registry.image();
    let with = |pull: Pull| version(&daemon, Options::new(&image).pull(pull));
    let error = with(Pull::Never).unwrap_err();
    assert!(matches!(DockerError::from_sandbox(&error), Some(DockerError::ImageMissing { .. })), "{error}");
    assert_eq!(with(Pull::Missing).unwrap(), "one");
    assert_eq!(with(Pull::Never).unwrap(), "one", "it is there now");
    let second = registry.push(&daemon, "two");
    assert_ne!(first, second);
    assert_eq!(with(Pull::Missing).unwrap(), "two", "the push took the old one away");
    // The daemon's image of that name is not the newest: the first again, without the registry.
    let (repository, _) = image.rsplit_once(':').unwrap();
    let pinned = format!("{repository}@{first}");
    assert_eq!(version(&daemon, Options::new(&pinned).pull(Pull::Missing)).unwrap(), "one", "by its digest");
    daemon.request("POST", &format!("/images/{pinned}/tag?repo={repository}&tag=latest"), "");
    assert_eq!(with(Pull::Missing).unwrap(), "one");
    assert_eq!(with(Pull::Always).unwrap(), "two");
    let wrong = format!("{repository}@sha256:{}", "0".repeat(64));
    let error = version(&daemon, Options::new(&wrong).pull(Pull::Missing)).unwrap_err();
    assert!(matches!(DockerError::from_sandbox(&error), Some(DockerError::NotPulled { .. })), "{error}");
    // Without the registry only pulls fail.
    drop(registry);
    assert_eq!(with(Pull::Missing).unwrap(), "two");
    let error = with(Pull::Always).unwrap_err();
    assert!(matches!(DockerError::from_sandbox(&error), Some(DockerError::NotPulled { .. })), "{error}");
}

#[test]
fn a_registry_gets_its_login_and_a_wrong_one_is_a_separate_error() {
    let name = "a_registry_that_wants_a_login_gets_it";
    let Some(daemon) = Daemon::get(name) else { return };
    let Some(registry) = Registry::start(name, true) else { return };
    registry.push(&daemon, "closed");
    let options = || Options::new(registry.image()).pull(Pull::Missing);
    for options in [options(), options().login(RegistryLogin::new("user", "wrong-password"))] {
        let error = version(&daemon, options).unwrap_err();
        let Some(DockerError::LoginRejected { registry: at, .. }) = DockerError::from_sandbox(&error) else {
            panic!("{error}")
        };
        assert_eq!(*at, registry.address);
        assert!(!error.to_string().contains("wrong-password"), "{error}");
    }
    assert_eq!(
        version(&daemon, options().login(RegistryLogin::new("user", "right-password"))).unwrap(),
        "closed"
    );
}
