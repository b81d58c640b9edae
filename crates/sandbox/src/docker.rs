//! Runs programs in Docker containers: [`Docker`] is a [`Backend`], `image` makes what it runs in.
//!
//! ```no_run
//! use std::sync::Arc;
//! use toolpost_sandbox::docker::{Docker, DockerHost, Options};
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
//! The first process of each container is a static program of a few kilobytes, which a thin layer adds to the image. It
//! takes files, code and arguments over the container's own input stream, so that nothing of the host is mounted, nothing
//! listens, and the daemon may be on another machine. Containers wait ready (*spares*), one for each run: a run costs a
//! few messages instead of a `docker run`. Each container runs one program and is removed; therefore nothing leaks from
//! run to run, not memory, files, shared memory or processes.
//!
//! When the host program goes, however it goes, its connections close, the first process of each container sees the end
//! of its input and ends, and the kernel kills what is in the container. The stopped containers bear labels with the
//! owner's process and its start time; the next program that connects removes them.
//!
//! # What holds
//!
//! No network, a read-only root, no capabilities, no new privileges, an unprivileged user, our own seccomp profile (an
//! allowlist made from the same table as the process sandbox's), memory without swap, processes, processors, temporary
//! file systems of limited size. After each start the kernel's own words about it (`/proc/self/status`, mounts,
//! interfaces, control groups) are read inside; what must hold and does not ends in [`DockerError::NotConfined`].
//!
//! # Files of the host
//!
//! - A folder as workspace ([`Workspace::Host`]) is copied into the container before the run, and what is new, changed or
//!   gone is copied back after it. So the program never holds a file of the host, the limit of the workspace counts, and
//!   the daemon may be on another machine. What comes back belongs to the folder's owner; it is only written where
//!   nothing else changed it meanwhile, and never to a protected path ([`crate::protection`]). Links, special files
//!   and empty folders are not copied; the report lists what was left out.
//! - [`crate::Sandbox::read_only`] and [`Workspace::ReadOnlyHost`] are bound into the container, read-only, without what is
//!   mounted beneath them; that they cannot be written is read inside. The program is user 65534 there, so only what
//!   everybody may read is shown, and a daemon on another machine refuses it.
//!
//! # Compiled languages
//!
//! The compiler of the image builds the code in one container, and the program runs in another, which never had the
//! compiler's files. Without a compiler in the image the answer is [`Error::LanguageMissing`].
//!
//! # Live streams
//!
//! [`crate::Sandbox::start`] gives the streams of a program in a container as it does those of a process. A stream that
//! nobody reads holds up the program and no other stream; a reader that is dropped closes the program's end.
//!
//! # The way out
//!
//! A container has no network. With [`crate::Sandbox::egress`] its first process listens on the container's own loopback
//! address and carries each connection over the stream that it has with the host anyway, where the run's proxy holds the
//! allowlist. There is no bridge, no published port and no socket of the host in the container, the daemon may be on
//! another machine, and `127.0.0.1` in a request to the proxy is the host's.
//!
//! Packages ([`crate::Sandbox::requirements`]) and sessions are refused: they belong to the backend `process`.

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
pub mod image;
mod login;
mod run;
mod shown;
mod spare;
mod tar;
#[cfg(feature = "docker-tls")]
mod tls;
mod tunnel;

pub use error::DockerError;
pub use host::{Certificates, DockerHost};
pub use login::Login;

use crate::{
    ApplyMode, Backend, Error, Event, Level, LevelAvailability, Limits, LiveStreams, Outcome, Report,
    Request, Sandbox, Workspace,
};
use build::Compiled;
use container::{Kind, Prepared};
use engine::{Engine, Information};
use shown::Shown;
use spare::Keeper;
use tunnel::Tunnel;

use crate::Program;
use crate::platform::CopiedFolder;

/// The name of this backend.
const NAME: &str = "docker";
/// A runtime with a kernel of its own (gVisor), which the strongest level takes where the daemon has it.
const OWN_KERNEL: &str = "runsc";

/// Whether an image is fetched from its registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pull {
    /// Never: an image that is not there is an error. The default, because a name may come from anybody.
    #[default]
    Never,
    /// If the daemon does not have it.
    Missing,
    /// Once for each [`Docker`], to have the newest.
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
                what: format!("pull policy `{}`", crate::level::shorten(name)),
                reason: "expected `never`, `missing` or `always`".into(),
            }),
        }
    }
}

/// How containers are made. Start with [`Options::new`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The image, as `docker run` names it.
    pub image: String,
    /// The runtime, for example `runsc`. Default none: the daemon's own default.
    pub runtime: Option<String>,
    /// Whether the image is fetched. Default [`Pull::Never`].
    pub pull: Pull,
    /// Who fetches it, where its registry wants a login. Default nobody.
    pub login: Option<Login>,
    /// How long fetching an image may take. Default 10 minutes.
    pub pull_within: Duration,
    /// How many containers wait ready after a run, for the next ones of the same limits. Default 1; 0 makes a container
    /// for each run, which takes about half a second.
    pub spares: usize,
    /// How long the daemon may take for one answer. Default 30 s.
    pub patience: Duration,
    /// How the names of containers begin; `-` and eight hexadecimal digits follow. Default `toolpost`. Letters, digits,
    /// `_`, `.` and `-`, at most 40, a letter or digit first.
    pub name_prefix: String,
    /// Whether programs start in the folder that the image names, instead of the workspace. Default no.
    pub in_image_folder: bool,
}

impl Options {
    /// An image, with the defaults for the rest.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            runtime: None,
            pull: Pull::default(),
            login: None,
            pull_within: Duration::from_mins(10),
            spares: 1,
            patience: Duration::from_secs(30),
            name_prefix: container::PREFIX.to_owned(),
            in_image_folder: false,
        }
    }

    /// Sets [`Options::name_prefix`].
    #[must_use]
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets [`Options::in_image_folder`].
    #[must_use]
    pub fn in_image_folder(mut self, on: bool) -> Self {
        self.in_image_folder = on;
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
    pub fn login(mut self, login: Login) -> Self {
        self.login = Some(login);
        self
    }

    /// Sets [`Options::spares`]; at most 64.
    #[must_use]
    pub fn spares(mut self, spares: usize) -> Self {
        self.spares = spares.min(64);
        self
    }

    /// Sets [`Options::patience`].
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// What an image starts by itself: its entry point with arguments, and its own variables, without those that
/// [`crate::Sandbox::env`] refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The variables that the image sets.
    pub variables: Vec<(String, String)>,
}

/// A daemon and an image: runs programs in containers. Clones share the spares; the last one removes them.
#[derive(Clone)]
pub struct Docker {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    information: Information,
    options: Options,
    keeper: Arc<Keeper>,
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
        self.keeper.close();
    }
}

impl Docker {
    /// Finds the daemon and removes what programs left that ended without doing so. The image is looked for with the
    /// first run.
    pub fn connect(host: &DockerHost, options: Options) -> Result<Self, DockerError> {
        check_prefix(&options.name_prefix)?;
        let engine = Engine::connect(host, options.patience)?;
        let information = engine.information()?;
        if let Some(runtime) = &options.runtime
            && !information.runtimes.contains(runtime)
        {
            return Err(DockerError::RuntimeMissing {
                runtime: crate::level::shorten(runtime),
                known: information.runtimes.join(", "),
            });
        }
        container::remove_leftovers(&engine)?;
        let keeper = Keeper::start(engine.clone())?;
        let prepared = Mutex::new(HashMap::new());
        Ok(Self { inner: Arc::new(Inner { engine, information, options, keeper, prepared }) })
    }

    /// Makes spares for the limits of a sandbox and waits for them. Gives how many there are after the time that the
    /// daemon may take for each.
    pub fn warm(&self, sandbox: &Sandbox, spares: usize) -> Result<usize, Error> {
        let spares = spares.min(64);
        let level = sandbox.level.unwrap_or(Level::Strict);
        let shown = Shown::all(&sandbox.read_only, &sandbox.workspace, self.engine().host())?;
        let mut kind = self.kind(level, &sandbox.limits_at(level), shown)?;
        kind.way_out = sandbox.egress.is_some();
        let keeper = &self.inner.keeper;
        keeper.want(&kind, spares);
        let limit = self.inner.options.patience.saturating_mul(u32::try_from(spares).unwrap_or(u32::MAX));
        match keeper.wait(&kind, spares, limit) {
            (_, Some(reason)) => Err(DockerError::protocol("make containers ahead", reason).into()),
            (there, None) => Ok(there),
        }
    }

    /// What the image starts by itself, with other arguments or with its own. The image is fetched for it if it may be.
    pub fn entry(&self, arguments: &[String]) -> Result<Entry, DockerError> {
        let image = self.prepared()?;
        let arguments = if arguments.is_empty() { &image.arguments } else { arguments };
        let argv: Vec<String> = image.entry.iter().chain(arguments).cloned().collect();
        if argv.is_empty() {
            return Err(DockerError::ImageUnusable {
                image: crate::level::shorten(self.image_name()),
                reason: "it names no program to start; name one after the image".into(),
            });
        }
        let can_be_set = |name: &str| crate::sandbox::check_variable(name).is_ok();
        let variables = image.variables.into_iter().filter(|(name, _)| can_be_set(name)).collect();
        Ok(Entry { argv, variables })
    }

    /// How many containers wait ready.
    pub fn spares(&self) -> usize {
        self.inner.keeper.count()
    }

    /// The version of the daemon, for a person.
    pub fn server_version(&self) -> &str {
        &self.inner.information.server
    }

    /// The runtimes that the daemon has.
    pub fn runtimes(&self) -> &[String] {
        &self.inner.information.runtimes
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    fn image_name(&self) -> &str {
        &self.inner.options.image
    }

    /// A container that ran its program.
    fn used(&self, id: String) {
        self.inner.keeper.discard(id);
    }

    /// The image with our first process; fetched and made with the first run.
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
            engine.pull(name, self.inner.options.login.as_ref(), self.inner.options.pull_within)?;
            base = engine.image(name)?;
        }
        let base = base.ok_or_else(|| DockerError::ImageMissing { image: crate::level::shorten(name) })?;
        let prepared = container::prepare(engine, name, &base)?;
        known.insert(name.clone(), prepared.clone());
        Ok(prepared)
    }

    fn kind(&self, level: Level, limits: &Limits, shown: Vec<Shown>) -> Result<Kind, Error> {
        let is_strongest = level == Level::Maximum;
        let runtime = self.inner.options.runtime.clone().or_else(|| {
            (is_strongest && self.inner.information.runtimes.iter().any(|name| name == OWN_KERNEL))
                .then(|| OWN_KERNEL.to_owned())
        });
        // A container gives everything that `strict` asks for, also where less was asked for.
        let level = if is_strongest { level } else { Level::Strict };
        let prefix = &self.inner.options.name_prefix;
        Ok(Kind::new(prefix, self.prepared()?.id, runtime, level, limits, shown))
    }
}

impl Backend for Docker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        let information = &self.inner.information;
        let (reason, fix) = if level == Level::Unconfined {
            (Some("a container always confines".to_owned()), Some("use the backend `process`".to_owned()))
        } else if !information.security.iter().any(|option| option.contains("name=seccomp")) {
            (
                Some("the daemon has no seccomp".to_owned()),
                Some("use a daemon and a kernel with seccomp".to_owned()),
            )
        } else {
            (None, None)
        };
        LevelAvailability { level, available: reason.is_none(), reason, fix }
    }

    fn serves_egress(&self) -> bool {
        true
    }

    fn run(&self, request: &Request<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error> {
        let mut is_built = false;
        let outcome = self.with_container(request, |run| {
            is_built = true;
            run.finish(on_event)
        })?;
        if !is_built {
            // The messages of the compiler.
            on_event(Event::Stderr(&outcome.stderr.bytes()));
        }
        Ok(outcome)
    }

    fn start(&self, request: &Request<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        self.with_container(request, |run| run.live(streams))
    }
}

impl Docker {
    /// Gets a container for a request, and has it used. It goes with the run however that ends.
    fn with_container(
        &self,
        request: &Request<'_>,
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
        refuse_packages(request)?;
        let limits = request.limits(level);
        let shown = Shown::all(request.read_only(), request.workspace(), self.engine().host())?;
        let mut kind = self.kind(level, &limits, shown)?;
        kind.way_out = request.egress().is_some();
        if request.sandbox.apply != ApplyMode::Now || !request.sandbox.allowed.is_empty() {
            return Err(DockerError::Unsupported {
                what: "a review of changes (`--review`, `--discard`, `--allow-protected`)".into(),
                reason: "a container hands back a copy at its end; use the backend `process`".into(),
            }
            .into());
        }
        let folder = match request.workspace() {
            Workspace::Host(path) => Some(CopiedFolder::open(path)?),
            Workspace::LiveHost(_) => {
                return Err(DockerError::Unsupported {
                    what: "a live working directory (`--live`)".into(),
                    reason: "a container is given a copy of it; leave out `--live`".into(),
                }
                .into());
            }
            _ => None,
        };
        let built = match request.program() {
            Program::Code { language, .. } if language.is_compiled() && kind.shows_workspace() => {
                return Err(DockerError::Unsupported {
                    what: format!("code in {language} beside a workspace that is only read"),
                    reason: "the program needs a place of the container's own; use `Workspace::Host`".into(),
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
        let keeper = &self.inner.keeper;
        let mut report = Report::new(NAME, wanted, level);
        if let Some(built) = &built {
            report.notes.extend(built.notes.iter().cloned());
        }
        for shown in &kind.shown {
            report.notes.push(format!("the host's `{}` is shown, read-only, to user 65534", shown.target()));
        }
        let ready = match keeper.take(&kind) {
            Some(ready) => ready,
            None => {
                report.notes.push("no container was waiting: one was made for this run".into());
                spare::make(self.engine(), &kind, self.image_name())?
            }
        };
        keeper.want(&kind, self.inner.options.spares);
        // A container from now on belongs to this run, and goes with it however it ends.
        let guard = Guard { docker: self, id: Some(ready.id.clone()) };
        let information = &self.inner.information;
        let runtime = kind.runtime.as_deref().unwrap_or(&information.default_runtime);
        ready.facts.fill(&kind, self.engine().host().is_local(), &mut report)?;
        report.notes.push(format!(
            "Docker {} with the runtime `{runtime}`, control groups of version {}",
            information.server, information.cgroup_version
        ));
        if level == Level::Maximum && runtime != OWN_KERNEL {
            report.notes.push(format!(
                "no second kernel: the runtime `{runtime}` shares that of the machine; `--runtime runsc` has one"
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
            folder,
            built,
            tunnel,
        });
        if outcome.is_ok() {
            guard.done();
        }
        outcome
    }
}

/// A prefix of names goes to the daemon in an address.
fn check_prefix(prefix: &str) -> Result<(), DockerError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if prefix.len() <= 40
        && prefix.bytes().all(fits)
        && prefix.starts_with(|first: char| first.is_ascii_alphanumeric())
    {
        return Ok(());
    }
    Err(DockerError::Unsupported {
        what: format!("the prefix `{}` of names of containers", crate::level::shorten(prefix)),
        reason: "it has at most 40 letters, digits and `_.-`, and begins with a letter or digit".into(),
    })
}

/// Removes a container of a run that failed or panicked.
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

/// Packages were installed for the interpreters of this host.
fn refuse_packages(request: &Request<'_>) -> Result<(), Error> {
    let Some(packages) = request.packages().first() else { return Ok(()) };
    Err(DockerError::Unsupported {
        what: format!("packages in `{}`", crate::level::shorten(&packages.modules().display().to_string())),
        reason: "they are for the interpreters of this host; name an image that has them (`--image`, `--profile`), \
                 or use the backend `process`"
            .into(),
    }
    .into())
}
