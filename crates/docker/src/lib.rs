//! Runs programs in Docker containers: [`Docker`] is a [`Backend`], `image` builds its images.
//!
//! ```no_run
//! use std::sync::Arc;
//! use toolpost_docker::{Docker, DockerHost, Options};
//! use toolpost_sandbox::{Cancel, Language, Program, Sandbox};
//!
//! let docker = Docker::connect(&DockerHost::default(), Options::new("toolpost/python"))?;
//! let outcome = Sandbox::new().backend(Arc::new(docker)).run(
//!     &Program::code(Language::Python, "6 * 7"),
//!     &Cancel::new(),
//!     &mut |_event| {},
//! )?;
//! assert_eq!(outcome.value, Some(42.into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! The first process of each container is a static program of a few kilobytes, which a thin layer adds to the
//! image. It receives files, code and arguments over the container's input stream. So nothing of the host is
//! mounted, nothing listens, and the daemon may be on another machine. Idle containers wait ready: a run
//! costs a few messages instead of a `docker run`. Each container runs one program and is then removed, so no
//! memory, file or process leaks from run to run.
//!
//! When the host program ends in any way, its connections close. The first process of each container then
//! reads the end of its input and exits, and the kernel kills everything in the container. Labels on the
//! stopped containers name the owner's process and its start time; the next program that connects removes
//! them.
//!
//! # Confinement
//!
//! A container has no network, a read-only root, no capabilities, no new privileges, an unprivileged user,
//! our seccomp profile (an allowlist from the same table as the process sandbox's), memory without swap, and
//! limits on processes, processors and temporary file systems. After each start the first process reads the
//! kernel's state (`/proc/self/status`, mounts, interfaces, cgroups). A missing protection ends in
//! [`DockerError::NotConfined`].
//!
//! # Host files
//!
//! - A host directory as workspace ([`Workspace::Host`]) is copied into the container before the run, and
//!   changes are copied back after it. So the program never has a host file open, the workspace limit holds,
//!   and the daemon may be on another machine. Written files belong to the directory's owner. Files that
//!   changed on the host meanwhile and protected paths ([`toolpost_sandbox::protection`]) are not written. Links,
//!   special files and empty directories are not copied; the report lists skipped files.
//! - [`toolpost_sandbox::Sandbox::read_only`] and [`Workspace::ReadOnlyHost`] are bind-mounted read-only, without
//!   submounts; the first process verifies it. The program is user 65534 inside, so the paths must be
//!   readable for everybody. A daemon on another machine rejects them.
//!
//! # Compiled languages
//!
//! The image's compiler builds the code in one container, and the program runs in another, which never had
//! the compiler's files. Without a compiler in the image the run fails with [`Error::LanguageMissing`].
//!
//! # Live streams
//!
//! [`toolpost_sandbox::Sandbox::start`] provides the streams of a program in a container as for a process. An unread
//! stream blocks the program but no other stream. Dropping a reader closes the program's end.
//!
//! # Egress
//!
//! A container has no network. With [`toolpost_sandbox::Sandbox::egress`] its first process listens on the container's
//! loopback address and forwards each connection over its stream to the host, where the run's proxy enforces
//! the allowlist. The container has no bridge, no published port and no host socket, and the daemon may be on
//! another machine. `127.0.0.1` in a request to the proxy is the host's.
//!
//! Modules ([`toolpost_sandbox::Sandbox::modules`]) and sessions are rejected: they need the backend `process`.

//! # Invariants
//!
//! - No `unsafe` code and no process of its own: `toolpost-sandbox` starts the programs that build images, and has the
//!   first process of containers.
//! - The crate reads no environment; the host program passes the values of `DOCKER_HOST` and its companions.
//! - Answers of the daemon and frames of a container are bounded in size and time.
//!
//! Deliberately absent: networks, volumes, other container engines' own APIs, and hosts other than Linux, where the
//! crate is empty.

#![cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

mod attest;
mod build;
mod channel;
mod connection;
mod container;
mod engine;
mod error;
mod host;
mod http;
mod idle;
pub mod image;
mod login;
mod run;
mod shown;
mod tar;
#[cfg(feature = "tls")]
mod tls;
mod tunnel;

pub use error::DockerError;
pub use host::{Certificates, DockerHost};
pub use login::RegistryLogin;

use build::Compiled;
use container::{Kind, Prepared};
use engine::{Engine, Information};
use idle::IdleContainers;
use shown::Shown;
use toolpost_egress::shorten;
use toolpost_sandbox::container::{CopiedDirectory, check_variable};
use toolpost_sandbox::{
    ApplyMode, Backend, BackendRequest, Cancel, Error, Level, LevelAvailability, LiveStreams, Outcome,
    Program, Report, Sandbox, SandboxEvent, Workspace,
};
use tunnel::Tunnel;

/// The name of this backend.
const NAME: &str = "docker";
/// A runtime with its own kernel (gVisor), which level `maximum` uses if the daemon has it.
const OWN_KERNEL: &str = "runsc";

/// The time limit of a pull.
const PULL_TIMEOUT: Duration = Duration::from_mins(10);

/// When to pull an image from its registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pull {
    /// Never: a missing image is an error. The default, because anyone may own a name in a public registry.
    #[default]
    Never,
    /// If the daemon lacks it.
    Missing,
    /// Once per [`Docker`], for the newest version.
    Always,
}

impl std::str::FromStr for Pull {
    type Err = DockerError;

    fn from_str(name: &str) -> Result<Self, DockerError> {
        match name {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            "always" => Ok(Self::Always),
            _ => Err(DockerError::Unsupported {
                what: format!("pull policy `{}`", shorten(name)),
                reason: "expected `never`, `missing` or `always`".into(),
            }),
        }
    }
}

/// The settings of containers. Start with [`Options::new`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The image, as for `docker run`.
    pub image: String,
    /// The runtime, for example `runsc`. Defaults to the daemon's.
    pub runtime: Option<String>,
    /// When to pull the image. Default [`Pull::Never`].
    pub pull: Pull,
    /// The registry login for pulls, which end after 10 minutes. Default none.
    pub login: Option<RegistryLogin>,
    /// The number of idle containers after a run, for the next runs with the same limits. Default 1.
    ///
    /// With 0 each run creates a container, which takes about half a second.
    pub idle_containers: usize,
    /// The time limit of one daemon answer. Default 30 s.
    pub answer_timeout: Duration,
    /// The prefix of container names; `-` and eight hexadecimal digits follow. Default `toolpost`.
    ///
    /// At most 40 letters, digits, `_`, `.` and `-`, beginning with a letter or digit.
    pub name_prefix: String,
    /// Whether programs start in the image's working directory instead of the workspace. Default no.
    pub start_in_image_directory: bool,
}

impl Options {
    /// Creates options for an image, with defaults for the rest.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            runtime: None,
            pull: Pull::default(),
            login: None,
            idle_containers: 1,
            answer_timeout: Duration::from_secs(30),
            name_prefix: container::PREFIX.to_owned(),
            start_in_image_directory: false,
        }
    }

    /// Sets [`Options::name_prefix`].
    #[must_use]
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets [`Options::start_in_image_directory`].
    #[must_use]
    pub fn start_in_image_directory(mut self, on: bool) -> Self {
        self.start_in_image_directory = on;
        self
    }

    /// Sets [`Options::runtime`].
    #[must_use]
    pub fn runtime(mut self, runtime: impl Into<String>) -> Self {
        self.runtime = Some(runtime.into());
        self
    }

    /// Sets [`Options::pull`].
    #[must_use]
    pub fn pull(mut self, pull: Pull) -> Self {
        self.pull = pull;
        self
    }

    /// Sets [`Options::login`].
    #[must_use]
    pub fn login(mut self, login: RegistryLogin) -> Self {
        self.login = Some(login);
        self
    }

    /// Sets [`Options::idle_containers`]; at most 64.
    #[must_use]
    pub fn idle_containers(mut self, idle_containers: usize) -> Self {
        self.idle_containers = idle_containers.min(64);
        self
    }

    /// Sets [`Options::answer_timeout`].
    #[must_use]
    pub fn answer_timeout(mut self, answer_timeout: Duration) -> Self {
        self.answer_timeout = answer_timeout;
        self
    }
}

/// The image's entry point with arguments, and its variables, without those that [`toolpost_sandbox::Sandbox::env`]
/// rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The variables of the image.
    pub variables: Vec<(String, String)>,
}

/// A daemon and an image: runs programs in containers. Clones share idle containers; the last one removes
/// them.
#[derive(Clone)]
pub struct Docker {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    information: Information,
    options: Options,
    idle: Arc<IdleContainers>,
    prepared: Mutex<HashMap<String, Prepared>>,
}

impl fmt::Debug for Docker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Docker")
            .field("host", self.inner.engine.host())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.idle.close();
    }
}

impl Docker {
    /// Connects to the daemon and removes containers of dead programs. The first run checks the image.
    pub fn connect(host: &DockerHost, options: Options) -> Result<Self, DockerError> {
        check_prefix(&options.name_prefix)?;
        let engine = Engine::connect(host, options.answer_timeout)?;
        let information = engine.information()?;
        if let Some(runtime) = &options.runtime
            && !information.runtimes.contains(runtime)
        {
            return Err(DockerError::RuntimeMissing {
                runtime: shorten(runtime),
                known: information.runtimes.join(", "),
            });
        }
        container::remove_leftovers(&engine)?;
        let idle = IdleContainers::start(engine.clone())?;
        let prepared = Mutex::new(HashMap::new());
        Ok(Self { inner: Arc::new(Inner { engine, information, options, idle, prepared }) })
    }

    /// Creates idle containers for a sandbox's limits and waits for them. Returns their number, at the latest
    /// when the daemon's time limit for each is over.
    pub fn prewarm(&self, sandbox: &Sandbox, idle_containers: usize) -> Result<usize, Error> {
        let idle_containers = idle_containers.min(64);
        let (program, cancel) = (Program::argv(["true"]), Cancel::new());
        let request = BackendRequest::new(sandbox, &program, &cancel);
        let kind = self.kind(&request)?;
        let idle = &self.inner.idle;
        idle.want(&kind, idle_containers);
        let limit = self
            .inner
            .options
            .answer_timeout
            .saturating_mul(u32::try_from(idle_containers).unwrap_or(u32::MAX));
        match idle.wait(&kind, idle_containers, limit) {
            (_, Some(reason)) => Err(DockerError::protocol("create idle containers", reason).into()),
            (there, None) => Ok(there),
        }
    }

    /// The image's entry point, with other arguments or its own. Pulls the image if allowed.
    pub fn entry(&self, arguments: &[String]) -> Result<Entry, DockerError> {
        let image = self.prepared()?;
        let arguments = if arguments.is_empty() { &image.arguments } else { arguments };
        let argv: Vec<String> = image.entry.iter().chain(arguments).cloned().collect();
        if argv.is_empty() {
            return Err(DockerError::ImageUnusable {
                image: shorten(self.image_name()),
                reason: "it has no entry point; name a program after the image".into(),
            });
        }
        let can_be_set = |name: &str| check_variable(name).is_ok();
        let variables = image.variables.into_iter().filter(|(name, _)| can_be_set(name)).collect();
        Ok(Entry { argv, variables })
    }

    /// The number of idle containers.
    pub fn idle_containers(&self) -> usize {
        self.inner.idle.count()
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    fn image_name(&self) -> &str {
        &self.inner.options.image
    }

    /// Discards a used container.
    fn used(&self, id: String) {
        self.inner.idle.discard(id);
    }

    /// The image with our first process, pulled and built by the first run.
    fn prepared(&self) -> Result<Prepared, DockerError> {
        let name = &self.inner.options.image;
        let mut known = self.inner.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = known.get(name) {
            return Ok(prepared.clone());
        }
        let engine = self.engine();
        let mut base = engine.image(name)?;
        let fetch = match self.inner.options.pull {
            Pull::Never => false,
            Pull::Missing => base.is_none(),
            Pull::Always => true,
        };
        if fetch {
            engine.pull(name, self.inner.options.login.as_ref(), PULL_TIMEOUT)?;
            base = engine.image(name)?;
        }
        let base = base.ok_or_else(|| DockerError::ImageMissing { image: shorten(name) })?;
        let prepared = container::prepare(engine, name, &base)?;
        known.insert(name.clone(), prepared.clone());
        Ok(prepared)
    }

    /// The kind of container that a request needs.
    fn kind(&self, request: &BackendRequest<'_>) -> Result<Kind, Error> {
        let level = request.level().unwrap_or(Level::Strict);
        let shown = request.shown()?;
        Shown::check_hidden(request, &shown)?;
        let shown = Shown::all(&shown, request.workspace(), self.engine().host())?;
        let is_strongest = level == Level::Maximum;
        let runtime = self.inner.options.runtime.clone().or_else(|| {
            (is_strongest && self.inner.information.runtimes.iter().any(|name| name == OWN_KERNEL))
                .then(|| OWN_KERNEL.to_owned())
        });
        // A container provides everything of `strict`, also for lower levels.
        let level = if is_strongest { level } else { Level::Strict };
        let prefix = &self.inner.options.name_prefix;
        let limits = request.limits(request.level().unwrap_or(Level::Strict));
        let mut kind = Kind::new(prefix, self.prepared()?.id, runtime, level, &limits, shown);
        kind.has_egress = request.egress().is_some();
        Ok(kind)
    }
}

impl Backend for Docker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        let information = &self.inner.information;
        if level == Level::Unconfined {
            let reason = "a container always confines";
            return LevelAvailability::unavailable(level, reason, "use the backend `process`");
        }
        if !information.security.iter().any(|option| option.contains("name=seccomp")) {
            let reason = "the daemon has no seccomp";
            return LevelAvailability::unavailable(level, reason, "use a daemon and a kernel with seccomp");
        }
        LevelAvailability::available(level)
    }

    fn serves_egress(&self) -> bool {
        true
    }

    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        let mut is_built = false;
        let outcome = self.with_container(request, |run| {
            is_built = true;
            run.finish(on_event)
        })?;
        if !is_built {
            // The compiler's messages.
            on_event(SandboxEvent::Stderr(&outcome.stderr.bytes()));
        }
        Ok(outcome)
    }

    fn start(&self, request: &BackendRequest<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        self.with_container(request, |run| run.live(streams))
    }
}

impl Docker {
    /// Takes a container for a request and uses it. It is removed with the run, however that ends.
    fn with_container(
        &self,
        request: &BackendRequest<'_>,
        work: impl FnOnce(run::Run<'_>) -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let started = Instant::now();
        let wanted = request.level();
        let level = wanted.unwrap_or(Level::Strict);
        let LevelAvailability { available, reason, fix, .. } = self.availability(level);
        if !available {
            let (reason, fix) = (reason.unwrap_or_default(), fix.unwrap_or_default());
            return Err(Error::LevelUnavailable { level, reason, fix });
        }
        reject_packages(request)?;
        let limits = request.limits(level);
        let kind = self.kind(request)?;
        if request.apply_mode() != ApplyMode::Now || !request.allowed_protected().is_empty() {
            return Err(DockerError::Unsupported {
                what: "a review of changes".into(),
                reason: "a container returns a copy at its end; use the backend `process`".into(),
            }
            .into());
        }
        let directory = match request.workspace() {
            Workspace::Host(path) => Some(CopiedDirectory::open(path, |path| request.directory_rules(path))?),
            Workspace::LiveHost(_) => {
                return Err(DockerError::Unsupported {
                    what: "a live working directory".into(),
                    reason: "a container uses a copy; use the backend `process`".into(),
                }
                .into());
            }
            _ => None,
        };
        let built = match request.program() {
            Program::Code { language, .. } if language.is_compiled() && kind.shows_workspace() => {
                return Err(DockerError::Unsupported {
                    what: format!("{language} code with a read-only workspace"),
                    reason: "the built program needs a writable workspace; use `Workspace::Host`".into(),
                }
                .into());
            }
            Program::Code { language, source } if language.is_compiled() => {
                match build::compile(self, request, *language, source)? {
                    Compiled::Built(built) => Some(built),
                    Compiled::Failed(outcome) => return Ok(*outcome),
                }
            }
            _ => None,
        };
        let image = self.prepared()?;
        let idle = &self.inner.idle;
        let mut report = Report::new(NAME, wanted, level);
        if let Some(built) = &built {
            report.notes.extend(built.notes.iter().cloned());
        }
        for shown in &kind.shown {
            report.notes.push(format!("the host's `{}` is shown, read-only, to user 65534", shown.target()));
        }
        let ready = match idle.take(&kind) {
            Some(ready) => ready,
            None => {
                report.notes.push("no idle container: this run created one".into());
                idle::create(self.engine(), &kind, self.image_name())?
            }
        };
        idle.want(&kind, self.inner.options.idle_containers);
        // From here the container belongs to this run and is removed with it.
        let guard = Guard { docker: self, id: Some(ready.id.clone()) };
        let information = &self.inner.information;
        let runtime = kind.runtime.as_deref().unwrap_or(&information.default_runtime);
        ready.facts.fill(&kind, self.engine().host().is_local(), &mut report)?;
        report.notes.push(format!(
            "Docker {} with the runtime `{runtime}`, cgroup version {}",
            information.server, information.cgroup_version
        ));
        if level == Level::Maximum && runtime != OWN_KERNEL {
            report.notes.push(format!(
                "no second kernel: the runtime `{runtime}` shares the machine's; use the runtime `runsc`"
            ));
        }
        let tunnel = request
            .egress()
            .map(|egress| Tunnel::new(&egress.capped(limits.connections, limits.requests), &limits))
            .transpose()?;
        let outcome = work(run::Run {
            docker: self,
            request,
            ready,
            limits,
            report,
            image,
            started,
            directory,
            built,
            tunnel,
        });
        if outcome.is_ok() {
            guard.done();
        }
        outcome
    }
}

/// Hexadecimal digits of a hash.
fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Checks a name prefix, which becomes part of a URL.
fn check_prefix(prefix: &str) -> Result<(), DockerError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if prefix.len() <= 40
        && prefix.bytes().all(fits)
        && prefix.starts_with(|first: char| first.is_ascii_alphanumeric())
    {
        return Ok(());
    }
    Err(DockerError::Unsupported {
        what: format!("the container name prefix `{}`", shorten(prefix)),
        reason: "it has at most 40 letters, digits and `_.-`, and begins with a letter or digit".into(),
    })
}

/// Removes the container of a failed or panicked run.
struct Guard<'a> {
    docker: &'a Docker,
    id: Option<String>,
}

impl Guard<'_> {
    fn done(mut self) {
        self.id = None;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.docker.used(id);
        }
    }
}

/// Rejects installed packages, which are for this host's interpreters.
fn reject_packages(request: &BackendRequest<'_>) -> Result<(), Error> {
    let Some(packages) = request.modules().first() else { return Ok(()) };
    Err(DockerError::Unsupported {
        what: format!("packages in `{}`", shorten(&packages.search().display().to_string())),
        reason: "they are for this host's interpreters; use an image with them, or the backend `process`"
            .into(),
    }
    .into())
}
