//! The ways to run code here: a level on a backend, each a row.

use std::sync::Arc;

use toolpost_sandbox::{
    Backend, CellLimits, Error, Event, Host, Language, Level, LevelAvailability, Limits, Outcome, Pool,
    Program, Request, Sandbox, Session,
};

use super::world::World;
use crate::support::{python, quick, run};

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

/// Makes the sandbox, or says what the machine lacks.
type Open = fn(&Host, Level) -> Result<Sandbox, String>;

/// The backends, each a row: name, and how a sandbox on it is made.
const BACKENDS: &[(&str, Open)] = &[
    ("process", process),
    ("pool", pool),
    ("session", session),
    #[cfg(feature = "docker")]
    ("docker", docker),
];

#[expect(clippy::unnecessary_wraps, reason = "every mode has this form")]
fn process(host: &Host, level: Level) -> Result<Sandbox, String> {
    Ok(Sandbox::new().level(level).host(host.clone()))
}

/// Spares that a zygote of Python made ahead, with the limits of the attacks.
fn pool(host: &Host, level: Level) -> Result<Sandbox, String> {
    if host.availability(level).is_none_or(|entry| !entry.available) {
        return Err(format!("level `{level}` is not available"));
    }
    let sandbox = Sandbox::new().level(level).host(host.clone()).limits(limits());
    let pool = Pool::builder(&sandbox)
        .language(Language::Python)
        .preload(["json", "ctypes", "socket"])
        .build()
        .map_err(|error| error.to_string())?;
    Ok(sandbox.backend(Arc::new(pool)))
}

/// Every run is the first cell of a session of its own.
fn session(host: &Host, level: Level) -> Result<Sandbox, String> {
    if host.availability(level).is_none_or(|entry| !entry.available) {
        return Err(format!("level `{level}` is not available"));
    }
    let backend = Sessions { host: host.clone(), level };
    Ok(Sandbox::new().level(level).backend(Arc::new(backend)))
}

/// Sessions as a backend, so that the same probes meet them.
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

    fn run(&self, request: &Request<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error> {
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
            return Err(Error::SessionRefused {
                action: "run",
                reason: "a session has cells".into(),
                hint: "give code",
            });
        };
        let session = Session::start(&sandbox, *language)?;
        session.run(source, &CellLimits::from(&request.limits(self.level)), request.cancel(), on_event)
    }
}

/// Containers of a daemon of the tests' own. Only asked for whole: the image takes minutes.
#[cfg(feature = "docker")]
fn docker(host: &Host, level: Level) -> Result<Sandbox, String> {
    use toolpost_sandbox::docker::image::Recipe;
    use toolpost_sandbox::docker::{Docker, Options};
    static DAEMON: std::sync::OnceLock<Result<Arc<crate::docker::daemon::Daemon>, String>> =
        std::sync::OnceLock::new();
    const IMAGE: &str = "toolpost/attacked:test";
    if !super::is_complete() {
        return Err("`cargo xtask attack` makes its image, which takes minutes".into());
    }
    #[expect(clippy::disallowed_methods, reason = "the suite tells its own child so")]
    let is_child = std::env::var_os("TOOLPOST_ATTACK_HOST").is_some();
    // A host that is poor by facts has the same name: the daemon has what it lacks.
    if format!("{host:?}") != format!("{:?}", Host::probe()) || is_child {
        return Err("the daemon is not part of the poor host".into());
    }
    let daemon = DAEMON.get_or_init(|| {
        let daemon = crate::docker::daemon::Daemon::start()?;
        let recipe = Recipe::named("python").map_err(|error| error.to_string())?;
        daemon
            .images()
            .build(&recipe, IMAGE, std::time::Duration::from_mins(10), &mut |_| {})
            .map_err(|error| format!("the image was not built: {error}"))?;
        Ok(Arc::new(daemon))
    });
    let daemon = daemon.as_ref().map_err(Clone::clone)?;
    let docker = Docker::connect(&daemon.host, Options::new(IMAGE)).map_err(|error| error.to_string())?;
    let entry = docker.availability(level);
    if !entry.available {
        return Err(entry.reason.unwrap_or_default());
    }
    Ok(Sandbox::new().level(level).backend(Arc::new(docker)))
}

/// Limits under which attacks on resources end soon. A single file may be larger than the workspace, which holds less in
/// blocks: so that attacks meet the limit of the workspace, and files of holes alone can be made.
fn limits() -> Limits {
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

    /// The mode on a host, or why it is not there.
    pub(crate) fn on<'a>(&'a self, host: &'a Host, world: &'a World) -> Result<Place<'a>, String> {
        let sandbox = (self.open)(host, self.level)?;
        let place = Place { mode: self, host, world, sandbox };
        match run(&place.sandbox(), &Program::code(Language::Python, "1")) {
            Ok(outcome) if self.backend == "pool" && outcome.report.backend != "pool" => {
                Err(outcome.report.notes.join("; "))
            }
            Ok(outcome) if outcome.value == Some(1.into()) => Ok(place),
            Ok(outcome) => {
                Err(format!("Python does not run: {:?} {}", outcome.verdict, outcome.stderr.text()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Place<'_> {
    /// A sandbox of this mode with the limits of the attacks.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.sandbox.clone().limits(limits())
    }

    /// A sandbox with other limits.
    pub(crate) fn limited(&self, change: impl FnOnce(Limits) -> Limits) -> Sandbox {
        self.sandbox.clone().limits(change(limits()))
    }

    /// Whether a run has namespaces of its own here.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.host.availability(Level::Strict).is_some_and(|entry| entry.available)
    }

    /// Runs code that begins with the prelude.
    pub(crate) fn attack(&self, code: &str) -> Outcome {
        python(&self.sandbox(), &format!("{}{code}", self.world.prelude()))
    }
}

/// What a run answered: the text of its value, else its verdict.
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

/// The answer of a run that may be refused.
pub(crate) fn result_of(result: &Result<Outcome, Error>) -> String {
    match result {
        Ok(outcome) => answer_of(outcome),
        Err(error) => error_of(error),
    }
}
