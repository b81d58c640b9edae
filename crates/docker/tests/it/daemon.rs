//! A Docker daemon for the tests with its own directories and socket, without network; the last test removes
//! it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use toolpost_docker::image::{Images, Recipe};
use toolpost_docker::{Docker, DockerHost, Options};

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Child,
    directory: tempfile::TempDir,
    pub(crate) host: DockerHost,
    has_own_kernel: bool,
}

static DAEMON: Mutex<Weak<Daemon>> = Mutex::new(Weak::new());

/// The image of the tests.
pub(crate) const IMAGE: &str = "toolpost/busybox:test";

fn find(name: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

impl Daemon {
    /// The daemon, with the image [`IMAGE`]; none, with a message, if it is unavailable.
    pub(crate) fn get(test: &str) -> Option<Arc<Self>> {
        let mut shared = DAEMON.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(daemon) = shared.upgrade() {
            return Some(daemon);
        }
        match Self::start() {
            Ok(daemon) => {
                let daemon = Arc::new(daemon);
                *shared = Arc::downgrade(&daemon);
                Some(daemon)
            }
            Err(reason) => {
                println!("SKIP {test}: {reason}");
                None
            }
        }
    }

    /// Starts a separate daemon.
    pub(crate) fn start() -> Result<Self, String> {
        Self::start_with(&[])
    }

    /// A variant with more options.
    pub(crate) fn start_with(options: &[String]) -> Result<Self, String> {
        let program = find("dockerd").ok_or("there is no `dockerd`; install the package `docker.io`")?;
        if !rustix::process::geteuid().is_root() {
            return Err("a daemon of its own needs root".into());
        }
        let busybox = Recipe::named("busybox").map_err(|error| error.to_string())?;
        let directory = tempfile::Builder::new().prefix("toolpost-docker-").tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        let log = std::fs::File::create(place("log")).unwrap();
        let runtime = find("runsc");
        if let Some(runtime) = &runtime {
            let settings = format!(
                r#"{{"runtimes": {{"runsc": {{"path": "{}", "runtimeArgs": ["--platform=ptrace", "--network=none", "--ignore-cgroups"]}}}}}}"#,
                runtime.display()
            );
            std::fs::write(place("daemon.json"), settings).unwrap();
        } else {
            std::fs::write(place("daemon.json"), "{}").unwrap();
        }
        let socket = place("docker.sock");
        #[expect(clippy::disallowed_methods, reason = "the daemon is the test's counterpart")]
        let process = Command::new(program)
            .arg("--config-file")
            .arg(place("daemon.json"))
            .arg("--data-root")
            .arg(place("data"))
            .arg("--exec-root")
            .arg(place("exec"))
            .arg("--pidfile")
            .arg(place("pid"))
            .arg("--host")
            .arg(format!("unix://{}", socket.display()))
            .args(["--iptables=false", "--bridge=none"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .map_err(|error| error.to_string())?;
        let host = DockerHost::Unix(socket);
        let mut daemon = Self { process, directory, host, has_own_kernel: runtime.is_some() };
        let started = Instant::now();
        let images = loop {
            match Images::connect(&daemon.host, Duration::from_secs(30)) {
                Ok(images) => break images,
                Err(error) if started.elapsed() > Duration::from_secs(40) => {
                    return Err(format!("the daemon did not start: {error}; {}", daemon.last_lines()));
                }
                Err(_) if daemon.process.try_wait().unwrap().is_some() => {
                    return Err(format!("the daemon ended: {}", daemon.last_lines()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        images
            .build(&busybox, IMAGE, Duration::from_mins(1), &mut |_| {})
            .map_err(|error| format!("the image was not built: {error}"))?;
        Ok(daemon)
    }

    fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        text.lines().rev().take(3).collect::<Vec<_>>().join(" | ")
    }

    /// Has the runtime `runsc`.
    pub(crate) fn has_own_kernel(&self) -> bool {
        self.has_own_kernel
    }

    pub(crate) fn options() -> Options {
        Options::new(IMAGE).idle_containers(0).answer_timeout(Duration::from_mins(1))
    }

    pub(crate) fn docker(&self) -> Docker {
        Docker::connect(&self.host, Self::options()).unwrap()
    }

    pub(crate) fn images(&self) -> Images {
        Images::connect(&self.host, Duration::from_mins(1)).unwrap()
    }

    /// Sends an HTTP/1.0 request to the daemon and returns the body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> String {
        self.request_with(method, path, "", body)
    }

    /// A variant with more headers, each with its line end.
    pub(crate) fn request_with(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        use std::io::{Read as _, Write as _};
        let DockerHost::Unix(socket) = &self.host else { panic!("a unix socket") };
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        write!(
            stream,
            "{method} /v1.41{path} HTTP/1.0\r\nHost: d\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    /// The names of all containers, running or not.
    pub(crate) fn containers(&self) -> Vec<String> {
        let list: serde_json::Value =
            serde_json::from_str(&self.request("GET", "/containers/json?all=1", "")).unwrap();
        list.as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["Names"][0].as_str().unwrap_or_default().trim_start_matches('/').to_owned())
            .collect()
    }

    /// Kills the daemon's process.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops or continues the daemon's process; stopped, it accepts connections and answers nothing.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let started = Instant::now();
        while self.process.try_wait().is_ok_and(|status| status.is_none()) {
            if started.elapsed() > Duration::from_secs(20) {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let prefix = self.directory.path().display().to_string();
        // A killed daemon leaves helpers, which name its directory; killing them ends the containers.
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid =
                entry.file_name().to_string_lossy().parse().ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid.filter(|_| String::from_utf8_lossy(&line).contains(&prefix)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // Leftover mounts would keep its directory.
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in table.lines().rev() {
            if let Some(place) = line.split(' ').nth(1).filter(|place| place.starts_with(&prefix)) {
                let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
            }
        }
        // Ending helpers may still write there.
        for _ in 0..100 {
            if std::fs::remove_dir_all(self.directory.path()).is_ok() || !self.directory.path().exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
