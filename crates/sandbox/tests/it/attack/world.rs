//! The targets of attacks: files, sockets and a process of the host.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::sync::Mutex;

use std::sync::{Arc, Weak};

use crate::daemon::Daemon;
use crate::support::open_directory;

/// The image of the attacked containers.
pub(crate) const ATTACKED: &str = "toolpost/attacked:test";

/// The address of the parent's daemon.
pub(crate) const DAEMON: &str = "TOOLPOST_ATTACK_DAEMON";

/// The targets of attacks, alive as long as this value.
#[derive(Debug)]
pub(crate) struct World {
    directory: tempfile::TempDir,
    sentinel: Mutex<std::process::Child>,
    sentinel_id: u32,
    port: u16,
    _listener: UnixListener,
    _datagrams: UnixDatagram,
    _abstract: UnixListener,
    _tcp: std::net::TcpListener,
    _leaked: rustix::fd::OwnedFd,
    daemon: std::sync::OnceLock<Result<Arc<Daemon>, String>>,
}

/// The helpers of every probe.
pub(crate) const PRELUDE: &str = "\
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return 'allowed' if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(function):
    try:
        function()
        return 'allowed'
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def bare():
    try:
        return 'CapEff:\\t0000000000000000\\n' in open('/proc/self/status').read()
    except OSError:
        return True
def first(*results):
    return next((result for result in results if result == 'allowed'), results[0])
";

impl World {
    pub(crate) fn new() -> Self {
        let directory = open_directory();
        std::fs::write(directory.path().join("secret"), "canary").unwrap();
        let name = directory.path().display().to_string();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // A descriptor that a careless host leaves inheritable.
        let leaked = rustix::io::dup(std::fs::File::open(directory.path().join("secret")).unwrap()).unwrap();
        rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the process that attacks are aimed at")]
        let mut command = std::process::Command::new("cat");
        // It ends with its input, which ends with this process in any case.
        command.stdin(std::process::Stdio::piped()).env("CANARY", "secret").env_remove("CARGO");
        if super::lines::user() == 0 {
            // The code's user id. A limited host may lack it.
            command.uid(1_900_000_000).gid(1_900_000_000);
        }
        let sentinel = command.spawn().or_else(|_| command.uid(0).gid(0).spawn()).unwrap();
        Self {
            sentinel_id: sentinel.id(),
            sentinel: Mutex::new(sentinel),
            port: tcp.local_addr().unwrap().port(),
            _listener: UnixListener::bind(directory.path().join("socket")).unwrap(),
            _datagrams: UnixDatagram::bind(directory.path().join("datagrams")).unwrap(),
            _abstract: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
            _tcp: tcp,
            _leaked: leaked,
            daemon: std::sync::OnceLock::new(),
            directory,
        }
    }

    /// The host directory, with a file `secret`, sockets `socket` and `datagrams`.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The beginning of every probe. `HOST` is the directory, `PID` a process of the host with the same identity as the
    /// code, `PORT` a listening TCP socket, `NAMES` the host's own variables; `\0HOST` is an abstract socket.
    pub(crate) fn prelude(&self) -> String {
        let own = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "PWD", "SHLVL", "_"];
        let names: Vec<String> = std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| !own.contains(&name.as_str()))
            .collect();
        format!(
            "{PRELUDE}HOST = {:?}\nPID = {}\nPORT = {}\nNAMES = {}\n",
            self.directory.path().display().to_string(),
            self.sentinel_id,
            self.port,
            serde_json::to_string(&names).unwrap()
        )
    }

    /// The socket of a daemon with the image [`ATTACKED`], started by the first call, or why there is none. A
    /// helper process uses its parent's.
    pub(crate) fn docker_socket(&self) -> Result<std::path::PathBuf, String> {
        use toolpost_docker::DockerHost;
        #[expect(clippy::disallowed_methods, reason = "the parent test says where it is")]
        if let Some(socket) = std::env::var_os(DAEMON) {
            return Ok(socket.into());
        }
        match &self.daemon().as_ref().map_err(Clone::clone)?.host {
            DockerHost::Unix(socket) => Ok(socket.clone()),
            other => Err(format!("the daemon of the tests has a unix socket, not {other:?}")),
        }
    }

    fn daemon(&self) -> &Result<Arc<Daemon>, String> {
        use toolpost_docker::image::Recipe;
        // Concurrent tests share it: the image takes minutes.
        static SHARED: Mutex<Weak<Daemon>> = Mutex::new(Weak::new());
        self.daemon.get_or_init(|| {
            let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(daemon) = shared.upgrade() {
                return Ok(daemon);
            }
            let daemon = Daemon::start()?;
            let recipe = Recipe::named("python").map_err(|error| error.to_string())?;
            daemon
                .images()
                .build(&recipe, ATTACKED, std::time::Duration::from_mins(20), &mut |_| {})
                .map_err(|error| format!("the image was not built: {error}"))?;
            let daemon = Arc::new(daemon);
            *shared = Arc::downgrade(&daemon);
            Ok(daemon)
        })
    }

    /// The containers of the daemon, if it was started.
    pub(crate) fn containers(&self) -> Vec<String> {
        let daemon = self.daemon.get().and_then(|daemon| daemon.as_ref().ok());
        daemon.map(|daemon| daemon.containers()).unwrap_or_default()
    }

    /// Whether the host process is still alive.
    pub(crate) fn is_unharmed(&self) -> bool {
        self.sentinel.lock().unwrap().try_wait().unwrap().is_none()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let mut sentinel = self.sentinel.lock().unwrap();
        let _ = sentinel.kill();
        let _ = sentinel.wait();
    }
}
