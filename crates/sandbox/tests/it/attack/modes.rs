//! The ways to run code here: a level on a backend, each a row.

use std::sync::Arc;

use toolpost_sandbox::{
    Backend, BackendRequest, CellLimits, Error, Host, Language, Level, LevelAvailability, Limits, Outcome,
    Pool, Program, Sandbox, SandboxEvent, Session,
};

use super::world::World;
use crate::support::{quick, run};

/// A level on a backend.
#[derive(Debug)]
pub(crate) struct Mode {
    pub(crate) level: Level,
    pub(crate) backend: &'static str,
    open: Open,
}

/// A mode on a host, with the targets of attacks.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) mode: &'a Mode,
    pub(crate) host: &'a Host,
    pub(crate) world: &'a World,
    sandbox: Sandbox,
}

/// The reason why a mode is unavailable.
#[derive(Debug)]
pub(crate) enum Absence {
    /// The level is unavailable, with the reason: row 70 requires it.
    Refused(String),
    /// Missing on this machine or in this test run.
    NotHere(String),
    /// It should be available.
    Broken(String),
}

impl Absence {
    /// Converts an error: only an unavailable level is a refusal.
    fn of(error: &Error) -> Self {
        match error {
            Error::LevelUnavailable { .. } => Self::Refused(error.to_string()),
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// Creates the sandbox with limits, or returns what is missing.
type Open = fn(&Host, Level, Limits, &World) -> Result<Sandbox, Absence>;

/// The backends, each a row: name and constructor.
const BACKENDS: &[(&str, Open)] =
    &[("process", process), ("pool", pool), ("session", session), ("docker", docker)];

#[expect(clippy::unnecessary_wraps, reason = "every mode has this form")]
fn process(host: &Host, level: Level, limits: Limits, _: &World) -> Result<Sandbox, Absence> {
    Ok(Sandbox::new().level(level).host(host.clone()).limits(limits))
}

/// The error of an unavailable level.
fn refused(host: &Host, level: Level) -> Option<Absence> {
    let entry = host.availability(level)?;
    (!entry.available).then(|| Absence::Refused(entry.reason.clone().unwrap_or_default()))
}

/// Idle workers forked by a Python zygote.
fn pool(host: &Host, level: Level, limits: Limits, _: &World) -> Result<Sandbox, Absence> {
    if let Some(absence) = refused(host, level) {
        return Err(absence);
    }
    if !matches!(level, Level::Standard | Level::Strict) {
        return Err(Absence::NotHere("a pool supports the levels `standard` and `strict`".into()));
    }
    if host.availability(Level::Strict).is_some_and(|entry| !entry.available) {
        return Err(Absence::NotHere("a pool needs namespaces".into()));
    }
    if !host.capabilities.iter().any(|entry| entry.name == "pidfd_open" && entry.available) {
        return Err(Absence::NotHere("a pool needs pidfds".into()));
    }
    let sandbox = Sandbox::new().level(level).host(host.clone()).limits(limits);
    let pool = Pool::builder(&sandbox)
        .language(Language::Python)
        .preload(["json", "ctypes", "socket"])
        // At level strict: workers that lock last. At level standard they lock at their start.
        .host_directories(true)
        .build()
        .map_err(|error| Absence::of(&error))?;
    Ok(sandbox.backend(Arc::new(pool)))
}

/// Every run is the first cell of its own session.
fn session(host: &Host, level: Level, limits: Limits, _: &World) -> Result<Sandbox, Absence> {
    if let Some(absence) = refused(host, level) {
        return Err(absence);
    }
    if !host.capabilities.iter().any(|entry| entry.name == "pidfd_open" && entry.available) {
        return Err(Absence::NotHere("a session needs descriptors of processes".into()));
    }
    let backend = Sessions { host: host.clone(), level };
    Ok(Sandbox::new().level(level).limits(limits).backend(Arc::new(backend)))
}

/// Sessions as a backend, for the same probes.
#[derive(Debug)]
struct Sessions {
    host: Host,
    level: Level,
}

impl Backend for Sessions {
    fn name(&self) -> &'static str {
        "session"
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        self.host.availability(level).unwrap().clone()
    }

    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        let mut sandbox = Sandbox::new()
            .level(self.level)
            .host(self.host.clone())
            .limits(request.limits(self.level))
            .workspace(request.workspace().clone());
        for (name, source) in request.files() {
            sandbox = sandbox.file(name.clone(), source.clone());
        }
        for (name, value) in request.environment() {
            sandbox = sandbox.env(name.clone(), value.clone());
        }
        let Program::Code { language, source, .. } = request.program() else {
            return Err(Error::SessionRejected {
                action: "run",
                reason: "a session has cells".into(),
                hint: "give code",
            });
        };
        let session = Session::start(&sandbox, *language)?;
        session.run(source, &CellLimits::from(&request.limits(self.level)), request.cancel(), on_event)
    }
}

/// Containers of a test daemon. Only in the complete table: the image takes minutes.
fn docker(host: &Host, level: Level, limits: Limits, world: &World) -> Result<Sandbox, Absence> {
    use toolpost_docker::{Docker, DockerHost, Options};
    if !super::is_complete() {
        return Err(Absence::NotHere("`cargo xtask attack` makes its image, which takes minutes".into()));
    }
    #[expect(clippy::disallowed_methods, reason = "the suite tells its own child so")]
    let is_child = std::env::var_os("TOOLPOST_ATTACK_HOST").is_some();
    // A host limited by facts has the same name, but the daemon has the missing features.
    if format!("{host:?}") != format!("{:?}", Host::probe()) || is_child {
        return Err(Absence::NotHere("the daemon is not part of the poor host".into()));
    }
    let socket = world.docker_socket().map_err(Absence::NotHere)?;
    let docker = Docker::connect(&DockerHost::Unix(socket), Options::new(super::world::ATTACKED))
        .map_err(|error| Absence::Broken(error.to_string()))?;
    let entry = docker.availability(level);
    if !entry.available {
        return Err(Absence::Refused(entry.reason.unwrap_or_default()));
    }
    Ok(Sandbox::new().level(level).limits(limits).backend(Arc::new(docker)))
}

/// Limits under which resource attacks end soon. A single file may exceed the workspace, so that attacks
/// reach the workspace limit, and sparse files can be created.
pub(crate) fn limits() -> Limits {
    quick()
        .with_processes(30)
        .with_memory(96 << 20)
        .with_workspace_bytes(8 << 20)
        .with_workspace_inodes(2000)
        .with_file_size(1 << 30)
}

impl Mode {
    /// Every level on every backend.
    pub(crate) fn all() -> Vec<Self> {
        BACKENDS
            .iter()
            .flat_map(|(backend, open)| Level::ALL.map(|level| Self { level, backend, open: *open }))
            .collect()
    }

    /// The mode on a host, or why it is unavailable.
    pub(crate) fn on<'a>(&'a self, host: &'a Host, world: &'a World) -> Result<Place<'a>, Absence> {
        self.limited(host, world, limits())
    }

    /// A variant with other limits, which are fixed for a pool.
    pub(crate) fn limited<'a>(
        &'a self,
        host: &'a Host,
        world: &'a World,
        limits: Limits,
    ) -> Result<Place<'a>, Absence> {
        let sandbox = (self.open)(host, self.level, limits, world)?;
        match run(&sandbox, &Program::code(Language::Python, "1")) {
            Ok(outcome) if self.backend == "pool" && outcome.report.backend != "pool" => {
                Err(Absence::Broken(outcome.report.notes.join("; ")))
            }
            Ok(outcome) if outcome.value == Some(1.into()) => Ok(Place { mode: self, host, world, sandbox }),
            Ok(outcome) => {
                let said = outcome.stderr.text();
                Err(Absence::Broken(format!("Python does not run: {:?} {said}", outcome.verdict)))
            }
            Err(error) => Err(Absence::of(&error)),
        }
    }
}

impl Place<'_> {
    /// A sandbox of this mode with its limits.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.sandbox.clone()
    }

    /// A sandbox with other limits.
    pub(crate) fn limited(&self, change: impl FnOnce(Limits) -> Limits) -> Sandbox {
        self.sandbox.clone().limits(change(limits()))
    }

    /// Whether a run has its own kernel.
    pub(crate) fn has_own_kernel(&self) -> bool {
        self.mode.backend == "docker" && self.mode.level == Level::Maximum
    }

    /// Whether a run has its own namespaces here.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.host.availability(Level::Strict).is_some_and(|entry| entry.available)
    }

    /// Runs code after the prelude; the run must not be an error.
    pub(crate) fn attack(&self, code: &str) -> Outcome {
        self.try_attack(code).unwrap()
    }

    /// A variant where the run may be an error.
    pub(crate) fn try_attack(&self, code: &str) -> Result<Outcome, Error> {
        let code = format!("{}{code}", self.world.prelude());
        run(&self.sandbox(), &Program::code(Language::Python, code))
    }
}

/// The answer of a run: the text of its value, else its verdict.
pub(crate) fn answer_of(outcome: &Outcome) -> String {
    match outcome.value.as_ref().and_then(serde_json::Value::as_str) {
        Some(text) => text.to_owned(),
        None => verdict_of(outcome),
    }
}

/// `verdict:KIND`.
pub(crate) fn verdict_of(outcome: &Outcome) -> String {
    let json = serde_json::to_value(&outcome.verdict).unwrap();
    format!("verdict:{}", json["kind"].as_str().unwrap_or_default())
}

/// `error:KIND`.
pub(crate) fn error_of(error: &Error) -> String {
    let text = format!("{error:?}");
    format!("error:{}", text.split([' ', '{', '(']).next().unwrap_or_default())
}

/// The answer of a run that may be an error.
pub(crate) fn result_of(result: &Result<Outcome, Error>) -> String {
    match result {
        Ok(outcome) => answer_of(outcome),
        Err(error) => error_of(error),
    }
}
