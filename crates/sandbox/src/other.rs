//! The platform of hosts without Linux: no level is available.
//!
//! `--cfg toolpost_simulate_other_host` builds it on Linux.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::{Capability, LevelAvailability};
use crate::{Error, Host, Level, Outcome, Program, Sandbox, SandboxArtifact, SandboxEvent};

const REASON: &str = "the process sandbox needs Linux";
const FIX: &str = "run on Linux, or in a Linux virtual machine or container";

/// Unused: no artifact is stored.
#[derive(Debug, Clone)]
pub(crate) struct Store;

/// The granted paths: without Linux nothing else is shown.
pub(crate) fn shown(sandbox: &Sandbox) -> Result<Vec<PathBuf>, Error> {
    Ok(sandbox.read_only.clone())
}

#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// As on Linux, without a cache.
pub(crate) mod remember {
    pub(crate) fn host(_: &std::path::Path) -> crate::Host {
        crate::Host::probe().clone()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Facts;

impl Facts {
    pub(crate) fn probe() -> Self {
        Self
    }

    pub(crate) fn system(&self) -> String {
        std::env::consts::OS.to_owned()
    }

    pub(crate) fn capabilities(&self) -> Vec<Capability> {
        vec![Capability { name: "linux", available: false, reason: REASON.into(), fix: Some(FIX) }]
    }

    pub(crate) fn availability(&self, level: Level) -> LevelAvailability {
        LevelAvailability::unavailable(level, REASON, FIX)
    }

    pub(crate) fn without_namespaces(&self) -> Self {
        self.clone()
    }

    pub(crate) fn with_landlock(&self, _abi: u32) -> Self {
        self.clone()
    }

    pub(crate) fn without_overlays(&self) -> Self {
        self.clone()
    }

    pub(crate) fn without_process_files(&self) -> Self {
        self.clone()
    }

    pub(crate) fn without_cgroups(&self) -> Self {
        self.clone()
    }
}

/// A directory of cached programs; unsupported on this host.
#[derive(Debug, Clone)]
pub enum BuildCache {}

impl BuildCache {
    /// The default size of a cache: 1 GiB.
    pub const DEFAULT_BYTES: u64 = 1 << 30;

    /// Returns an error: this host cannot build.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        Err(unsupported("use build cache", &directory.into()))
    }

    /// Has no effect.
    #[must_use]
    pub fn max_bytes(self, _bytes: u64) -> Self {
        self
    }
}

/// Builds nothing; the run then returns the error.
pub(crate) fn build(
    _sandbox: &Sandbox,
    _program: &Program,
    _cancel: &crate::Cancel,
) -> Result<Option<crate::Build>, Error> {
    Ok(None)
}

/// Finds no installer.
pub(crate) fn find_installer(
    language: crate::Language,
    sandbox: &Sandbox,
) -> Result<(crate::Ready, String), Error> {
    find_language(language, sandbox).map(|found| {
        let ready = crate::Ready {
            path: found.path,
            needs: Vec::new(),
            arguments: Vec::new(),
            payload: None,
            language: None,
        };
        (ready, String::new())
    })
}

/// The user of sandboxed programs, if this process is root; `None` if they run as the user of this process.
pub fn program_user() -> Option<u32> {
    None
}

/// Marks nothing: programs cannot run.
#[derive(Debug)]
pub struct OwnDirectory(());

impl OwnDirectory {
    /// Marks nothing.
    ///
    /// # Errors
    /// None.
    pub fn mark(_path: &Path) -> std::io::Result<Self> {
        Ok(Self(()))
    }
}

/// Returns an error: this host cannot install.
pub fn private_directory(action: &'static str, directory: &Path) -> Result<PathBuf, Error> {
    Err(unsupported(action, directory))
}

/// Always empty.
pub(crate) fn held_layers(_layers: Option<&Path>) -> Vec<HeldLayer> {
    Vec::new()
}

/// Always empty.
pub(crate) fn unproven_layers(_layers: Option<&Path>) -> Vec<String> {
    Vec::new()
}

/// Always an error.
pub(crate) fn held_layer(id: &str, _layers: Option<&Path>) -> Result<HeldLayer, Error> {
    Err(Error::HeldRun { id: id.to_owned(), reason: REASON.into(), hint: None })
}

/// Unsupported on this host.
#[derive(Debug)]
pub(crate) enum StagedLayer {}

impl StagedLayer {
    pub(crate) fn create(directory: &Path, _sandbox: &Sandbox) -> Result<Self, Error> {
        Err(Error::Workspace { path: directory.to_owned(), reason: REASON.into() })
    }

    pub(crate) fn path(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn host_directory(&self) -> PathBuf {
        match *self {}
    }

    pub(crate) fn not_copied(&self) -> impl Iterator<Item = &Path> {
        std::iter::empty()
    }

    pub(crate) fn notes(&self) -> &[String] {
        match *self {}
    }

    pub(crate) fn end(self) -> Result<crate::Applied, Error> {
        match self {}
    }
}

/// Unsupported on this host.
#[derive(Debug)]
pub(crate) enum RunMark {}

impl RunMark {
    pub(crate) fn create(_layers: Option<&Path>) -> Result<Self, Error> {
        Err(Error::Setup { step: "mark the run", source: std::io::Error::other(REASON) })
    }

    pub(crate) fn id(&self) -> &str {
        match *self {}
    }

    pub(crate) fn set(&self) -> std::io::Result<()> {
        match *self {}
    }

    pub(crate) fn writing(&self, _directory: &Path, _file: &Path) -> Option<OldVersion> {
        match *self {}
    }
}

/// Unsupported on this host.
#[derive(Debug)]
pub(crate) enum OldVersion {}

impl OldVersion {
    pub(crate) fn keep(self) -> bool {
        match self {}
    }
}

/// The entries that undo restored.
#[derive(Debug, Default)]
pub(crate) struct Restored;

/// Unsupported on this host.
#[derive(Debug)]
pub(crate) enum HeldLayer {}

impl HeldLayer {
    pub(crate) fn id(&self) -> &str {
        match *self {}
    }

    pub(crate) fn host_directory(&self) -> PathBuf {
        match *self {}
    }

    pub(crate) fn started(&self) -> std::time::SystemTime {
        match *self {}
    }

    pub(crate) fn is_waiting(&self) -> bool {
        match *self {}
    }

    pub(crate) fn can_undo(&self) -> bool {
        match *self {}
    }

    pub(crate) fn changes(&self) -> crate::Changes {
        match *self {}
    }

    pub(crate) fn content(&self, _path: &Path, _limit: u64) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn review(&self, _allowed: &[PathBuf]) -> Result<crate::Review, Error> {
        match *self {}
    }

    pub(crate) fn apply(self, _allowed: &[PathBuf]) -> Result<crate::Applied, Error> {
        match self {}
    }

    pub(crate) fn discard(self) {
        match self {}
    }

    pub(crate) fn run(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn undo(self, _restored: &mut Restored) -> Result<crate::Applied, Error> {
        match self {}
    }
}

/// Unsupported on this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveDirectory;

impl LiveDirectory {
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signature on Linux")]
    pub(crate) fn apply(&self) -> Result<Option<crate::Applied>, Error> {
        Ok(None)
    }

    #[expect(clippy::unused_self, reason = "the signature on Linux")]
    pub(crate) fn refresh(&self) {}
}

/// Always an error.
pub(crate) fn find_language(
    language: crate::Language,
    _sandbox: &Sandbox,
) -> Result<crate::FoundLanguage, Error> {
    Err(Error::LanguageMissing {
        language,
        program: language.programs().collect::<Vec<_>>().join(", "),
        searched: std::env::consts::OS.to_owned(),
        hint: FIX,
    })
}

/// Runs everything cold.
pub(crate) mod pool {
    use std::time::Instant;

    use crate::pool::{PoolCounts, PoolSettings};
    use crate::{Cancel, Error, Outcome, Program, Sandbox, SandboxEvent};

    pub(crate) enum Dispatch {
        #[expect(dead_code, reason = "only Linux constructs it")]
        Run(Box<Result<Outcome, Error>>),
        Cold(String),
    }

    #[derive(Debug)]
    pub(crate) struct Manager;

    impl Manager {
        pub(crate) fn start(_settings: PoolSettings) -> Self {
            Self
        }

        pub(crate) fn run(
            &self,
            _sandbox: &Sandbox,
            _program: &Program,
            _cancel: &Cancel,
            _until: Instant,
            _on_event: &mut dyn FnMut(SandboxEvent<'_>),
        ) -> Dispatch {
            Dispatch::Cold(super::REASON.into())
        }

        pub(crate) fn counts(&self) -> (PoolCounts, usize, Option<String>) {
            (PoolCounts::default(), 0, Some(super::REASON.into()))
        }
    }
}

/// Unused on this host.
#[expect(dead_code, reason = "only Linux reads it")]
pub(crate) enum Output<'a> {
    Captured(&'a mut dyn FnMut(SandboxEvent<'_>)),
    Live(&'a std::sync::mpsc::SyncSender<crate::running::Pipes>),
}

pub(crate) fn run(
    sandbox: &Sandbox,
    _program: &Program,
    _cancel: &crate::Cancel,
    _output: Output<'_>,
) -> Result<Outcome, Error> {
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    let level = sandbox.level.unwrap_or(Level::Strict);
    let reason =
        host.availability(level).and_then(|entry| entry.reason.clone()).unwrap_or_else(|| REASON.into());
    Err(Error::LevelUnavailable { level, reason, fix: FIX.into() })
}

pub(crate) fn read_artifact(artifact: &SandboxArtifact, _store: &Store) -> Result<Vec<u8>, Error> {
    Err(unsupported("read artifact", Path::new(&artifact.path)))
}

/// Unsupported on this host.
#[derive(Debug)]
pub(crate) enum Interpreter {}

/// Unsupported on this host.
#[derive(Debug, Clone)]
pub(crate) struct Handle;

impl Handle {
    #[expect(clippy::unused_self, reason = "the signature on Linux")]
    pub(crate) fn interrupt(&self) {}
}

/// Requests to a cell from other threads.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) interrupt: AtomicBool,
}

impl Interpreter {
    pub(crate) fn start(
        sandbox: &Sandbox,
        _language: crate::Language,
        _limits: &crate::SessionLimits,
    ) -> Result<Self, Error> {
        let level = sandbox.level.unwrap_or(Level::Strict);
        Err(Error::LevelUnavailable { level, reason: REASON.into(), fix: FIX.into() })
    }

    pub(crate) fn handle(&self) -> Handle {
        match *self {}
    }

    pub(crate) fn run(
        &mut self,
        _number: u32,
        _code: &str,
        _limits: &crate::CellLimits,
        _calls: &Calls,
        _cancel: &crate::Cancel,
        _on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> (Outcome, Option<String>) {
        match *self {}
    }

    pub(crate) fn reset(&mut self, _fresh: bool) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn fork(&mut self, _count: usize) -> Result<Vec<Self>, Error> {
        match *self {}
    }

    pub(crate) fn freeze(&mut self) {
        match *self {}
    }

    pub(crate) fn thaw(&mut self) {
        match *self {}
    }

    pub(crate) fn ended(&self) -> Option<String> {
        match *self {}
    }

    pub(crate) fn upload(&mut self, _name: &str, _source: &crate::Source) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn files(&self) -> Result<crate::session::Files, Error> {
        match *self {}
    }

    pub(crate) fn download(&self, _name: &str, _most: u64) -> Result<Vec<u8>, Error> {
        match *self {}
    }

    pub(crate) fn remove(&mut self, _name: &str) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn report(&self) -> crate::Report {
        match *self {}
    }

    pub(crate) fn fork_time(&self) -> std::time::Duration {
        match *self {}
    }
}

/// Opens a host file named by the operator.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("it is not a regular file")) }
}

fn unsupported(action: &'static str, path: &Path) -> Error {
    Error::File { action, path: path.to_owned(), source: std::io::ErrorKind::Unsupported.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_unavailable_with_reason_and_fix() {
        for entry in &Host::probe().levels {
            assert!(!entry.available && entry.reason.is_some() && entry.fix.is_some(), "{entry:?}");
        }
        assert_eq!(Host::probe().best(), None);
        let error =
            Sandbox::new().run(&Program::argv(["true"]), &crate::Cancel::new(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::LevelUnavailable { .. }), "{error}");
    }
}

pub(crate) fn detached(program: &Path) -> Result<std::process::Command, Error> {
    let source = std::io::Error::new(std::io::ErrorKind::Unsupported, REASON);
    Err(Error::ProgramNotStarted { program: program.display().to_string(), source })
}
