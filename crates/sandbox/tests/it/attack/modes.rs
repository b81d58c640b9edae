//! The ways to run code here: a level on a backend, each a row.

use toolpost_sandbox::{Error, Host, Language, Level, Limits, Outcome, Program, Sandbox};

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
const BACKENDS: &[(&str, Open)] = &[("process", process)];

fn process(host: &Host, level: Level) -> Result<Sandbox, String> {
    Ok(Sandbox::new().level(level).host(host.clone()))
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
        self.sandbox.clone().limits(self.limits())
    }

    /// Limits under which attacks on resources end soon.
    #[expect(clippy::unused_self, reason = "a level may come to need others")]
    pub(crate) fn limits(&self) -> Limits {
        quick()
            .with_processes(30)
            .with_memory(96 << 20)
            .with_workspace_bytes(8 << 20)
            .with_workspace_inodes(2000)
            .with_file_size(1 << 30)
    }

    /// A sandbox with other limits.
    pub(crate) fn limited(&self, change: impl FnOnce(Limits) -> Limits) -> Sandbox {
        self.sandbox.clone().limits(change(self.limits()))
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
