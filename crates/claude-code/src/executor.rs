//! Where the program runs: a process of this host, our sandbox, or a container.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toolpost_sandbox::{
    Backend, Egress, EgressLimits, HostPattern, Level, Limits as SandboxLimits, Program, Sandbox, Workspace,
};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind};
use super::settings::{Limits, PermissionMode};

/// A process lives as long as its session: each turn has its own limit of time.
const LIFETIME: Duration = Duration::from_hours(24 * 365);
/// Where the provider is when nothing else is said.
const PROVIDER: &str = "api.anthropic.com";
/// How long a connection may be silent: a model that thinks, or a tool that works, says nothing for minutes.
const SILENCE: Duration = Duration::from_hours(1);

/// Reads the credential and the list of tool servers from the first two lines of its input, gives them to the program
/// as descriptors 3 and 4, and becomes the program. So they are in no argument, no variable and no file. `$1` is the
/// home folder, or nothing for the folder for temporary files.
const START: &str = r#"IFS= read -r credential && IFS= read -r servers || exit 2
HOME=${1:-${TMPDIR:-/tmp}}; TMPDIR=$HOME; export HOME TMPDIR; shift
exec "$@" 3<<END_OF_CREDENTIAL 4<<END_OF_SERVERS
$credential
END_OF_CREDENTIAL
$servers
END_OF_SERVERS
"#;

/// Where the list of tool servers is for the program.
pub(super) const SERVERS_PATH: &str = "/dev/fd/4";
/// The descriptor of the credential.
pub(super) const CREDENTIAL_DESCRIPTOR: &str = "3";

/// Where Claude Code runs.
#[derive(Clone, Debug)]
pub struct Executor {
    program: PathBuf,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// A process with the rights of this one.
    Process,
    /// Our sandbox.
    Sandbox { level: Option<Level>, hosts: Vec<HostPattern> },
    /// A container of a backend.
    Container { backend: Arc<dyn Backend>, hosts: Vec<HostPattern> },
}

/// What is started.
pub(super) struct Start<'a> {
    /// The arguments of the program.
    pub(super) arguments: Vec<String>,
    /// Its variables.
    pub(super) variables: Vec<(String, String)>,
    /// The folder that it works in; none is a fresh one.
    pub(super) folder: Option<&'a Path>,
    /// Where it keeps what it keeps, where that is not in the sandbox.
    pub(super) home: Option<&'a Path>,
    /// Where the provider is.
    pub(super) base_url: Option<&'a str>,
    /// Whether no connection may leave this machine.
    pub(super) no_network: bool,
    /// Where tool servers are.
    pub(super) servers: Vec<Address>,
    pub(super) limits: &'a Limits,
}

/// A host and a port that the program needs to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// The host and port of a URL.
    pub(super) fn of(url: &str) -> Result<Self, ClaudeCodeError> {
        let refuse = |why: &str| {
            let shown: String = url.split('?').next().unwrap_or_default().chars().take(100).collect();
            Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Setting,
                format!("`{shown}` is no address of a server: {why}"),
            )
            .hint("write for example `https://host.example/path`"))
        };
        let Ok(uri) = url.parse::<http::Uri>() else { return refuse("it is no URL") };
        let usual = match uri.scheme_str() {
            Some("http" | "ws") => 80,
            Some("https" | "wss") => 443,
            _ => return refuse("expected `http` or `https`"),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return refuse("it has a user name or a password in it");
        }
        match uri.host() {
            Some(host) if !host.is_empty() => {
                Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(usual) })
            }
            _ => refuse("it names no host"),
        }
    }

    /// The address, if it names one and no host.
    pub(super) fn socket(&self) -> Option<SocketAddr> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = if host == "localhost" { [127, 0, 0, 1].into() } else { host.parse().ok()? };
        Some(SocketAddr::new(ip, self.port))
    }

    /// Adds it to an allowlist: an address as such, a host by its name and port.
    fn allowed(&self, egress: Egress) -> Result<Egress, ClaudeCodeError> {
        match self.socket() {
            Some(address) => Ok(egress.allow_address(address)),
            None => Ok(egress.allow(HostPattern::new(&format!("{}:{}", self.host, self.port))?)),
        }
    }
}

impl Executor {
    /// A process of this host with the rights of this one. Its environment is clean, its limits hold, and everything
    /// that it starts dies with it; nothing else confines it. A name without a slash is looked up in the system's search
    /// path.
    pub fn process(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), place: Place::Process }
    }

    /// Our sandbox: no file of a user, no other process, and of the network the provider and the connected tool servers
    /// alone. It needs network namespaces. `program` is the file, which is shown inside.
    pub fn sandbox(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), place: Place::Sandbox { level: None, hosts: Vec::new() } }
    }

    /// A container, made by a backend such as `toolpost_docker::Docker`, whose options say which image, which
    /// daemon, whether the image is fetched, and how containers are called. `program` is the file in the image.
    ///
    /// The container has no network. The provider and the connected tool servers are reached over the stream that the
    /// container has anyway, as in the sandbox, and their addresses are those of this host: `127.0.0.1` in them is this
    /// machine. The working folder is copied into the container, and back when the session has ended, if Claude Code has
    /// tools of its own; connected tools work in the folder itself.
    pub fn container(program: impl Into<PathBuf>, backend: Arc<dyn Backend>) -> Self {
        Self { program: program.into(), place: Place::Container { backend, hosts: Vec::new() } }
    }

    /// The level of the sandbox. Default: the best that this host can give. Without effect for anything else.
    #[must_use]
    pub fn level(mut self, wanted: Level) -> Self {
        if let Place::Sandbox { level, .. } = &mut self.place {
            *level = Some(wanted);
        }
        self
    }

    /// Allows one more host, for tools of Claude Code's own that use the network. Without effect for a plain process,
    /// which has the host's network.
    #[must_use]
    pub fn allow_host(mut self, pattern: HostPattern) -> Self {
        if let Place::Sandbox { hosts, .. } | Place::Container { hosts, .. } = &mut self.place {
            hosts.push(pattern);
        }
        self
    }

    /// Its name: `process`, `sandbox` or `container`.
    pub fn name(&self) -> &'static str {
        match self.place {
            Place::Process => "process",
            Place::Sandbox { .. } => "sandbox",
            Place::Container { .. } => "container",
        }
    }

    /// Whether the program is given a copy of the folder that it works in.
    pub(super) fn copies_folder(&self) -> bool {
        matches!(self.place, Place::Container { .. })
    }

    pub(super) fn confines(&self) -> bool {
        !matches!(self.place, Place::Process)
    }

    pub(super) fn check(&self, mode: PermissionMode) -> Result<(), ClaudeCodeError> {
        if self.program.as_os_str().is_empty() {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Setting,
                "the program of Claude Code has no name",
            ));
        }
        if mode == PermissionMode::Bypass && !self.confines() {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Setting,
                "permissions are not bypassed in a plain process, which nothing confines",
            )
            .hint("use the sandbox or a container as executor, or allow tools by name"));
        }
        if let Place::Sandbox { level: Some(level @ (Level::Minimal | Level::Unconfined)), .. } = self.place {
            let message = format!("level `{level}` of the sandbox holds no allowlist of hosts");
            return Err(ClaudeCodeError::new(ClaudeCodeErrorKind::Setting, message)
                .hint("use `standard` or above, or a plain process"));
        }
        Ok(())
    }

    /// The sandbox and the program in it.
    pub(super) fn prepare(&self, start: Start<'_>) -> Result<(Sandbox, Program), ClaudeCodeError> {
        let provider = start.base_url.map(Address::of).transpose()?;
        let is_here =
            provider.as_ref().and_then(Address::socket).is_some_and(|address| address.ip().is_loopback());
        if start.no_network && !is_here {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Sandbox,
                "no connection may leave this machine, and the provider is not on it",
            ));
        }
        let limits = start.limits;
        // More descriptors than these a container does not get.
        let descriptors = if self.copies_folder() { 4096 } else { 8192 };
        let mut allowed = SandboxLimits::default()
            .with_wall(LIFETIME)
            .with_memory(limits.memory)
            .with_processes(limits.processes)
            .with_descriptors(descriptors)
            .with_file_size(1 << 40)
            .with_workspace_bytes(2 << 30)
            .with_workspace_inodes(1 << 20)
            .with_connections(1 << 20)
            .with_requests(1 << 20)
            .with_network_bytes(1 << 40);
        if let Some(cpus) = limits.cpus {
            allowed = allowed.with_cpu_quota(cpus);
        }
        let mut sandbox = match &self.place {
            Place::Process => Sandbox::unconfined(),
            Place::Container { backend, hosts } => {
                let egress = way_out(&start, provider.as_ref(), hosts)?;
                Sandbox::new().egress(egress).backend(Arc::clone(backend))
            }
            Place::Sandbox { level, hosts } => {
                let egress = way_out(&start, provider.as_ref(), hosts)?;
                let sandbox = Sandbox::new().egress(egress).read_only(&self.program);
                match level {
                    Some(level) => sandbox.level(*level),
                    None => sandbox,
                }
            }
        };
        sandbox = sandbox.limits(allowed);
        if let Some(folder) = start.folder {
            sandbox = sandbox.workspace(Workspace::Host(folder.to_owned()));
        }
        for (name, value) in &start.variables {
            sandbox = sandbox.env(name, value);
        }
        let home = start.home.map(|home| home.as_os_str().to_owned()).unwrap_or_default();
        let words = ["/bin/sh".into(), "-c".into(), START.into(), "claude-code".into(), home]
            .into_iter()
            .chain([self.program.clone().into_os_string()])
            .chain(start.arguments.into_iter().map(OsString::from));
        Ok((sandbox, Program::argv(words.collect::<Vec<OsString>>())))
    }

    /// Finds the program, so that a wrong path is an error of its own and the sandbox can show the file.
    pub(super) fn found(&self) -> Result<Self, ClaudeCodeError> {
        // In an image only its own start tells.
        if self.copies_folder() {
            return Ok(self.clone());
        }
        let candidates = if self.program.components().count() > 1 {
            vec![self.program.clone()]
        } else {
            let folders = toolpost_sandbox::SYSTEM_SEARCH_PATH.split(':');
            folders.map(|folder| Path::new(folder).join(&self.program)).collect()
        };
        let found = candidates.iter().filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file());
        match found {
            Some(program) => Ok(Self { program, place: self.place.clone() }),
            None => Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Program,
                format!("the program of Claude Code, `{}`, is not there", self.program.display()),
            )
            .hint("install it with `npm install @anthropic-ai/claude-code`, which takes 2.1.197 on Node.js 18 and 20")),
        }
    }
}

/// The provider, the tool servers, and what else is allowed.
fn way_out(
    start: &Start<'_>,
    provider: Option<&Address>,
    hosts: &[HostPattern],
) -> Result<Egress, ClaudeCodeError> {
    let mut egress = Egress::new().no_network(start.no_network).limits(
        EgressLimits::default()
            .with_connections_at_once(256)
            .with_connections(1 << 20)
            .with_requests(1 << 20)
            .with_bytes_up(1 << 40)
            .with_bytes_down(1 << 40)
            .with_idle_timeout(SILENCE),
    );
    egress = match provider {
        Some(provider) => provider.allowed(egress)?,
        None => egress.allow(HostPattern::new(PROVIDER)?),
    };
    for server in &start.servers {
        egress = server.allowed(egress)?;
    }
    Ok(hosts.iter().cloned().fold(egress, Egress::allow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_urls() {
        let address = |url: &str| Address::of(url).map(|address| (address.host, address.port)).unwrap();
        assert_eq!(address("https://api.example"), ("api.example".into(), 443));
        assert_eq!(address("http://127.0.0.1:8080/mcp?x=http://evil:1/"), ("127.0.0.1".into(), 8080));
        assert_eq!(address("http://[::1]:9/"), ("[::1]".into(), 9));
        assert_eq!(address("http://localhost.example/"), ("localhost.example".into(), 80));
        for bad in ["", "host", "ftp://x/", "http://", "http://user:pass@host/", "//x"] {
            assert_eq!(Address::of(bad).unwrap_err().kind(), ClaudeCodeErrorKind::Setting, "{bad}");
        }
        let socket = |url: &str| Address::of(url).unwrap().socket().map(|address| address.to_string());
        assert_eq!(socket("http://[::1]:9/"), Some("[::1]:9".into()));
        assert_eq!(socket("http://localhost:9/"), Some("127.0.0.1:9".into()));
        assert_eq!(socket("http://localhost.example:9/"), None);
    }

    #[test]
    fn bypass_needs_something_that_confines() {
        let process = Executor::process("claude");
        process.check(PermissionMode::Manual).unwrap();
        assert_eq!(process.check(PermissionMode::Bypass).unwrap_err().kind(), ClaudeCodeErrorKind::Setting);
        let sandbox = Executor::sandbox("claude");
        sandbox.check(PermissionMode::Bypass).unwrap();
        let minimal = sandbox.level(Level::Minimal);
        assert_eq!(minimal.check(PermissionMode::Manual).unwrap_err().kind(), ClaudeCodeErrorKind::Setting);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_of_its_own() {
        let error = Executor::process("/nowhere/claude").found().unwrap_err();
        assert_eq!(error.kind(), ClaudeCodeErrorKind::Program);
        assert!(error.message().contains("/nowhere/claude"), "{error}");
        assert!(Executor::process("sh").found().is_ok());
    }
}
