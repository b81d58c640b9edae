//! Where the program runs: a process of this host, the sandbox, or a container.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toolpost_sandbox::{
    Backend, Egress, EgressLimits, HostPattern, Level, Limits as SandboxLimits, Program, Sandbox, Workspace,
};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind};
use super::settings::{Limits, PermissionMode};

/// Lifetime of a process. Each turn has its own time limit.
const LIFETIME: Duration = Duration::from_hours(24 * 365);
/// The default host of the provider.
const PROVIDER: &str = "api.anthropic.com";
/// Idle timeout of a connection: a thinking model or a running tool is silent for minutes.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// Reads the credential and the list of tool servers from standard input, and passes them as descriptors 3 and 4.
///
/// So they are in no argument, variable or file. `$1` is the home directory; if empty, the temporary directory.
const START: &str = r#"IFS= read -r credential && IFS= read -r servers || exit 2
HOME=${1:-${TMPDIR:-/tmp}}; TMPDIR=$HOME; export HOME TMPDIR; shift
exec "$@" 3<<END_OF_CREDENTIAL 4<<END_OF_SERVERS
$credential
END_OF_CREDENTIAL
$servers
END_OF_SERVERS
"#;

/// Processes and threads of Claude Code.
const MAX_PROCESSES: u32 = 1024;
/// The path of the list of tool servers.
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
    /// The sandbox.
    Sandbox(Option<Level>),
    /// A container of a backend.
    Container(Arc<dyn Backend>),
}

/// The parameters of a start.
pub(super) struct Start<'a> {
    /// The arguments of the program.
    pub(super) arguments: Vec<String>,
    /// Its variables.
    pub(super) variables: Vec<(String, String)>,
    /// The working directory; `None` for a new one.
    pub(super) directory: Option<&'a Path>,
    /// The home directory, outside the sandbox.
    pub(super) home: Option<&'a Path>,
    /// The URL of the provider.
    pub(super) base_url: Option<&'a str>,
    /// Whether connections that leave this machine are blocked.
    pub(super) no_network: bool,
    /// The addresses of the tool servers.
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
    pub(super) fn parse(url: &str) -> Result<Self, ClaudeCodeError> {
        let reject = |problem: &str| {
            let shown: String = url.split('?').next().unwrap_or_default().chars().take(100).collect();
            let error = Kind::Setting.error(format!("invalid server address `{shown}`: {problem}"));
            Err(error.hint("write for example `https://host.example/path`"))
        };
        let Ok(uri) = url.parse::<http::Uri>() else { return reject("not a URL") };
        let default_port = match uri.scheme_str() {
            Some("http" | "ws") => 80,
            Some("https" | "wss") => 443,
            _ => return reject("expected `http` or `https`"),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return reject("a URL must not have a user name or password");
        }
        match uri.host() {
            Some(host) if !host.is_empty() => {
                Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(default_port) })
            }
            _ => reject("the host is missing"),
        }
    }

    /// The socket address, if the host is an IP address or `localhost`.
    pub(super) fn socket(&self) -> Option<SocketAddr> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = if host == "localhost" { [127, 0, 0, 1].into() } else { host.parse().ok()? };
        Some(SocketAddr::new(ip, self.port))
    }

    /// Adds the address to an allowlist.
    fn allow_in(&self, egress: Egress) -> Result<Egress, ClaudeCodeError> {
        match self.socket() {
            Some(address) => Ok(egress.allow_address(address)),
            None => Ok(egress.allow(HostPattern::new(&format!("{}:{}", self.host, self.port))?)),
        }
    }
}

impl Executor {
    /// A process of this host with the permissions of this process.
    ///
    /// It has a clean environment, limits, and dies with all its children; nothing else confines it. A name without a
    /// slash is resolved in the system search path.
    pub fn process(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), place: Place::Process }
    }

    /// The sandbox, without user files or other processes. It requires network namespaces.
    ///
    /// Of the network it reaches the provider and the connected tool servers only. `program` is a file of the host.
    pub fn sandbox(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), place: Place::Sandbox(None) }
    }

    /// A container of a backend such as `toolpost_docker::Docker`. `program` is a file in the image.
    ///
    /// The container has no network: a tunnel over its standard streams reaches the provider and the tool servers, with
    /// the addresses of this host. If Claude Code has own tools, the working directory is copied into the container, and
    /// back at the end of the session. Connected tools use the directory itself.
    pub fn container(program: impl Into<PathBuf>, backend: Arc<dyn Backend>) -> Self {
        Self { program: program.into(), place: Place::Container(backend) }
    }

    /// Sets the level of the sandbox. Defaults to the strictest level of this host. No effect on other executors.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        if let Place::Sandbox(own) = &mut self.place {
            *own = Some(level);
        }
        self
    }

    /// The name: `process`, `sandbox` or `container`.
    pub fn name(&self) -> &'static str {
        match self.place {
            Place::Process => "process",
            Place::Sandbox(_) => "sandbox",
            Place::Container(_) => "container",
        }
    }

    /// Whether the program has a copy of its working directory.
    pub(super) fn copies_directory(&self) -> bool {
        matches!(self.place, Place::Container(_))
    }

    pub(super) fn confines(&self) -> bool {
        !matches!(self.place, Place::Process)
    }

    pub(super) fn check(&self, mode: PermissionMode) -> Result<(), ClaudeCodeError> {
        if self.program.as_os_str().is_empty() {
            return Err(Kind::Setting.error("the path of Claude Code is empty"));
        }
        if mode == PermissionMode::Bypass && !self.confines() {
            let error = Kind::Setting.error("a plain process cannot bypass permissions");
            return Err(error.hint("use the sandbox or a container as executor, or allow tools by name"));
        }
        if let Place::Sandbox(Some(level @ (Level::Minimal | Level::Unconfined))) = self.place {
            let error = Kind::Setting.error(format!("the sandbox level `{level}` has no egress allowlist"));
            return Err(error.hint("use `standard` or above, or a plain process"));
        }
        Ok(())
    }

    /// The sandbox, and the program to start in it.
    pub(super) fn prepare(&self, start: Start<'_>) -> Result<(Sandbox, Program), ClaudeCodeError> {
        let provider = start.base_url.map(Address::parse).transpose()?;
        let is_local =
            provider.as_ref().and_then(Address::socket).is_some_and(|address| address.ip().is_loopback());
        if start.no_network && !is_local {
            return Err(
                Kind::Sandbox.error("the network is blocked, and the provider is not on this machine")
            );
        }
        let limits = start.limits;
        // A container gets no more descriptors than these.
        let descriptors = if self.copies_directory() { 4096 } else { 8192 };
        let mut allowed = SandboxLimits::default()
            .with_wall(LIFETIME)
            .with_memory(limits.memory)
            .with_processes(MAX_PROCESSES)
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
            Place::Container(backend) => {
                Sandbox::new().egress(egress(&start, provider.as_ref())?).backend(Arc::clone(backend))
            }
            Place::Sandbox(level) => {
                let egress = egress(&start, provider.as_ref())?;
                let sandbox = Sandbox::new().egress(egress).read_only(&self.program);
                match level {
                    Some(level) => sandbox.level(*level),
                    None => sandbox,
                }
            }
        };
        sandbox = sandbox.limits(allowed);
        if let Some(directory) = start.directory {
            sandbox = sandbox.workspace(Workspace::Host(directory.to_owned()));
        }
        for (name, value) in &start.variables {
            sandbox = sandbox.env(name, value);
        }
        let home = start.home.map(|home| home.as_os_str().to_owned()).unwrap_or_default();
        let words = ["/bin/sh".into(), "-c".into(), START.into(), "claude-code".into(), home]
            .into_iter()
            .chain([self.program.clone().into_os_string()])
            .chain(start.arguments.into_iter().map(OsString::from));
        Ok((sandbox, Program::operator_argv(words.collect::<Vec<OsString>>())))
    }

    /// Resolves the path of the program.
    pub(super) fn resolve(&self) -> Result<Self, ClaudeCodeError> {
        // The path of an image is checked at the start.
        if self.copies_directory() {
            return Ok(self.clone());
        }
        let candidates = if self.program.components().count() > 1 {
            vec![self.program.clone()]
        } else {
            let directories = toolpost_sandbox::SYSTEM_SEARCH_PATH.split(':');
            directories.map(|directory| Path::new(directory).join(&self.program)).collect()
        };
        let found = candidates.iter().filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file());
        match found {
            Some(program) => Ok(Self { program, place: self.place.clone() }),
            None => Err(Kind::Program.error(format!("Claude Code not found: `{}`", self.program.display())).hint("install it with `npm install @anthropic-ai/claude-code`, which takes 2.1.197 on Node.js 18 and 20")),
        }
    }
}

/// The egress allowlist: the provider and the tool servers.
fn egress(start: &Start<'_>, provider: Option<&Address>) -> Result<Egress, ClaudeCodeError> {
    let mut egress = Egress::new().no_network(start.no_network).limits(
        EgressLimits::default()
            .with_connections_at_once(256)
            .with_connections(1 << 20)
            .with_requests(1 << 20)
            .with_bytes_up(1 << 40)
            .with_bytes_down(1 << 40)
            .with_idle_timeout(IDLE_TIMEOUT),
    );
    egress = match provider {
        Some(provider) => provider.allow_in(egress)?,
        None => egress.allow(HostPattern::new(PROVIDER)?),
    };
    for server in &start.servers {
        egress = server.allow_in(egress)?;
    }
    Ok(egress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_from_urls() {
        let address = |url: &str| Address::parse(url).map(|address| (address.host, address.port)).unwrap();
        assert_eq!(address("https://api.example"), ("api.example".into(), 443));
        assert_eq!(address("http://127.0.0.1:8080/mcp?x=http://evil:1/"), ("127.0.0.1".into(), 8080));
        assert_eq!(address("http://[::1]:9/"), ("[::1]".into(), 9));
        assert_eq!(address("http://localhost.example/"), ("localhost.example".into(), 80));
        for bad in ["", "host", "ftp://x/", "http://", "http://user:pass@host/", "//x"] {
            assert_eq!(Address::parse(bad).unwrap_err().kind(), Kind::Setting, "{bad}");
        }
        let socket = |url: &str| Address::parse(url).unwrap().socket().map(|address| address.to_string());
        assert_eq!(socket("http://[::1]:9/"), Some("[::1]:9".into()));
        assert_eq!(socket("http://localhost:9/"), Some("127.0.0.1:9".into()));
        assert_eq!(socket("http://localhost.example:9/"), None);
    }

    #[test]
    fn bypass_needs_confinement() {
        let process = Executor::process("claude");
        process.check(PermissionMode::Manual).unwrap();
        assert_eq!(process.check(PermissionMode::Bypass).unwrap_err().kind(), Kind::Setting);
        let sandbox = Executor::sandbox("claude");
        sandbox.check(PermissionMode::Bypass).unwrap();
        let minimal = sandbox.level(Level::Minimal);
        assert_eq!(minimal.check(PermissionMode::Manual).unwrap_err().kind(), Kind::Setting);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = Executor::process("/nowhere/claude").resolve().unwrap_err();
        assert_eq!(error.kind(), Kind::Program);
        assert!(error.message().contains("/nowhere/claude"), "{error}");
        assert!(Executor::process("sh").resolve().is_ok());
    }
}
