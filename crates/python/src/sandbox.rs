//! Sandboxes of Python: settings, runs of code and commands.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use toolpost::ToolError;
use toolpost::error::Suggestion;
use toolpost::runtimes::{Installed, Installer, Requirements};
use toolpost::sandbox::{
    Cancel, Egress, Error, HostPattern, Language, Level, Limits, Program, Source, Stdin, Workspace,
};

use crate::awaitable::Awaitable;
use crate::outcome::Outcome;
use crate::pool::{Pool, Prewarmed};
use crate::port::callback;
use crate::session::Session;
use crate::toolbox::duration;
use crate::{bridge, convert, errors, job, runtime};

/// A level of confinement, limits, files and environment. It runs code and commands, also several at once.
#[pyclass(frozen, subclass, module = "toolpost")]
pub(crate) struct Sandbox(Arc<Settings>);

/// The settings of a sandbox.
pub(crate) struct Settings {
    level: Option<Level>,
    sandbox: toolpost::Sandbox,
    packages: Option<Packages>,
    pool: Option<Arc<Prewarmed>>,
    /// The option with which no run starts from a pool.
    unpooled: Option<&'static str>,
    has_workdir: bool,
}

/// Packages of code, installed at the first use.
struct Packages {
    requirements: Requirements,
    installer: Installer,
    directory: PathBuf,
    installed: Mutex<Option<Installed>>,
}

impl Settings {
    /// The sandbox with its packages. Blocks.
    pub(crate) fn sandbox(
        &self,
        language: Option<Language>,
        cancel: &Cancel,
    ) -> Result<toolpost::Sandbox, Error> {
        let sandbox = match &self.pool {
            Some(pool) => self.sandbox.clone().backend(pool.pool()?),
            None => self.sandbox.clone(),
        };
        match &self.packages {
            Some(packages) if language == Some(Language::Python) => {
                Ok(sandbox.modules(packages.install(cancel)?))
            }
            _ => Ok(sandbox),
        }
    }

    /// The limits, with the time of one run or cell.
    pub(crate) fn limits(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Limits>> {
        let own = self.sandbox.own_limits();
        match timeout {
            None => Ok(own.cloned()),
            Some(timeout) => {
                let limits = own.cloned().unwrap_or_else(|| self.sandbox.limits_at(Level::Strict));
                Ok(Some(limits.with_wall(duration("timeout", timeout)?)))
            }
        }
    }
}

/// An egress that allows no host yet. `TOOLPOST_NO_NETWORK` restricts it to this machine.
fn egress(py: Python<'_>) -> PyResult<Egress> {
    let offline = bridge::tools(py)?.call_method0(intern!(py, "is_offline"))?.extract()?;
    Ok(Egress::new().no_network(offline))
}

impl Packages {
    fn new(sandbox: &toolpost::Sandbox, names: Vec<String>, py: Python<'_>) -> PyResult<Self> {
        let requirements = Requirements::python(names).map_err(|error| to_exception(py, error))?;
        let sources = bridge::tools(py)?.call_method0(intern!(py, "package_sources"))?;
        let source = |name: &str| -> PyResult<Option<String>> { sources.get_item(name)?.extract() };
        let host = sandbox.same_host().egress(egress(py)?);
        let mut installer = Installer::new(host).offline(source("offline")?.is_some());
        if let Some(index) = source("index")? {
            installer = installer.index(index);
        }
        if let Some(certificate) = source("certificate")? {
            installer = installer.certificate(certificate);
        }
        if let Some(directory) = source("find_links")? {
            installer = installer.find_links(directory);
        }
        let directory = source("directory")?.unwrap_or_default().into();
        Ok(Self { requirements, installer, directory, installed: Mutex::default() })
    }

    fn install(&self, cancel: &Cancel) -> Result<Installed, Error> {
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(installed) = &*installed {
            return Ok(installed.clone());
        }
        let fresh = self.installer.install(&self.requirements, &self.directory, cancel)?;
        Ok(installed.insert(fresh).clone())
    }
}

/// A program with its settings, ready to run.
struct Run {
    settings: Arc<Settings>,
    program: Program,
    files: Vec<(String, Source)>,
    arguments: Vec<OsString>,
    stdin: Stdin,
    limits: Option<Limits>,
    on_output: Option<Py<PyAny>>,
}

impl Run {
    fn arguments(self, arguments: Vec<OsString>) -> Self {
        Self { arguments, ..self }
    }

    async fn outcome(self) -> PyResult<Outcome> {
        let Self { settings, program, files, arguments, stdin, limits, on_output } = self;
        let ended = job::run(on_output, move |cancel, on_event| {
            let language = match &program {
                Program::Code { language, .. } => Some(*language),
                _ => None,
            };
            let mut sandbox = settings.sandbox(language, cancel)?.arguments(arguments).stdin(stdin);
            if let Some(limits) = limits {
                sandbox = sandbox.limits(limits);
            }
            for (name, source) in files {
                sandbox = sandbox.file(name, source);
            }
            Outcome::new(sandbox.run(&program, cancel, on_event)?)
        });
        match ended.await? {
            Ok(outcome) => Ok(outcome),
            Err(error) => Python::attach(|py| Err(to_exception(py, error))),
        }
    }
}

impl Sandbox {
    fn prepare(
        &self,
        program: Program,
        stdin: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Run> {
        let stdin = match stdin.map(|stdin| content("stdin", stdin)).transpose()? {
            None => Stdin::Empty,
            Some(Source::Bytes(bytes)) => Stdin::Bytes(bytes),
            Some(Source::Path(path)) => Stdin::File(path),
        };
        Ok(Run {
            settings: Arc::clone(&self.0),
            program,
            files: uploads(files)?,
            arguments: Vec::new(),
            stdin,
            limits: self.0.limits(timeout)?,
            on_output: callback("on_output", on_output)?,
        })
    }
}

fn awaitable(run: Run) -> Awaitable {
    Awaitable::of_tool(async move {
        let outcome = run.outcome().await?;
        Python::attach(|py| outcome.into_py_any(py))
    })
}

#[pymethods]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
impl Sandbox {
    /// A sandbox at a level: "minimal", "standard", "strict" or "maximum"; default: the best of this host.
    #[new]
    #[pyo3(signature = (
        level = None, *, timeout = None, memory = None, cpu = None, pids = None, max_output = None,
        allow_hosts = Vec::new(), env = BTreeMap::new(), requirements = Vec::new(), venv = None, workdir = None,
        live = false, read_only = Vec::new(), read_write = Vec::new(), allow_degraded = false,
    ))]
    fn new(
        py: Python<'_>,
        level: Option<&str>,
        timeout: Option<&Bound<'_, PyAny>>,
        memory: Option<u64>,
        cpu: Option<f32>,
        pids: Option<u32>,
        max_output: Option<usize>,
        allow_hosts: Vec<String>,
        env: BTreeMap<String, OsString>,
        requirements: Vec<String>,
        venv: Option<PathBuf>,
        workdir: Option<PathBuf>,
        live: bool,
        read_only: Vec<PathBuf>,
        read_write: Vec<PathBuf>,
        allow_degraded: bool,
    ) -> PyResult<Self> {
        let invalid = |error| to_exception(py, error);
        let level = level.map(str::parse::<Level>).transpose().map_err(invalid)?;
        let mut limits = Limits::for_level(level.unwrap_or(Level::Strict));
        let is_limited =
            [timeout.is_some(), memory.is_some(), cpu.is_some(), pids.is_some(), max_output.is_some()];
        if let Some(timeout) = timeout {
            limits.wall = duration("timeout", timeout)?;
        }
        limits.memory = memory.unwrap_or(limits.memory);
        limits.cpu_quota = cpu.or(limits.cpu_quota);
        limits.processes = pids.unwrap_or(limits.processes);
        limits.stdout = max_output.unwrap_or(limits.stdout);
        limits.stderr = max_output.unwrap_or(limits.stderr);

        let mut sandbox = toolpost::Sandbox::new().allow_degraded(allow_degraded);
        let home: PathBuf = py.import("os.path")?.call_method1("expanduser", ("~",))?.extract()?;
        sandbox = sandbox.home(home);
        if let Some(level) = level {
            sandbox = sandbox.level(level);
        }
        if is_limited.contains(&true) {
            sandbox = sandbox.limits(limits);
        }
        let unpooled = [
            ("`level` \"minimal\"", level == Some(Level::Minimal)),
            ("`level` \"maximum\"", level == Some(Level::Maximum)),
            ("`allow_hosts`", !allow_hosts.is_empty()),
            ("`requirements`", !requirements.is_empty()),
            ("`read_write`", !read_write.is_empty()),
        ];
        let unpooled = unpooled.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name);
        if !allow_hosts.is_empty() {
            let mut egress = egress(py)?;
            for host in allow_hosts {
                egress = egress.allow(HostPattern::new(&host).map_err(Error::from).map_err(invalid)?);
            }
            sandbox = sandbox.egress(egress);
        }
        if let Some(directory) = venv {
            let directory = absolute("venv", &directory)?;
            if !directory.join("bin/python3").exists() {
                let found = directory.display();
                return Err(PyValueError::new_err(format!(
                    "`venv` names `{found}`, which has no `bin/python3`; name a virtual environment, such as `sys.prefix`"
                )));
            }
            sandbox = sandbox.search_first(directory.join("bin"));
        }
        let has_workdir = workdir.is_some();
        if let Some(directory) = workdir {
            let directory = absolute("workdir", &directory)?;
            let workspace = if live { Workspace::LiveHost(directory) } else { Workspace::Host(directory) };
            sandbox = sandbox.workspace(workspace);
        } else if live {
            return Err(PyValueError::new_err("`live` needs `workdir`; name the directory to write to"));
        }
        for path in read_only {
            sandbox = sandbox.read_only(absolute("read_only", &path)?);
        }
        for path in read_write {
            sandbox = sandbox.read_write(absolute("read_write", &path)?);
        }
        sandbox = env.into_iter().fold(sandbox, |sandbox, (name, value)| sandbox.env(name, value));
        sandbox.check_settings().map_err(invalid)?;
        let packages =
            if requirements.is_empty() { None } else { Some(Packages::new(&sandbox, requirements, py)?) };
        Ok(Self(Arc::new(Settings { level, sandbox, packages, pool: None, unpooled, has_workdir })))
    }

    /// Runs code, and awaits its outcome. A program that fails is an outcome, no exception.
    #[pyo3(signature = (
        code, language = "python", *, stdin = None, files = None, args = Vec::new(), timeout = None, on_output = None,
    ))]
    fn run(
        &self,
        code: String,
        language: &str,
        stdin: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyDict>>,
        args: Vec<OsString>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Awaitable> {
        let program = Program::code(self::language(language)?, code);
        let run = self.prepare(program, stdin, files, timeout, on_output)?.arguments(args);
        Ok(awaitable(run).named("Sandbox.run"))
    }

    /// Runs code, and waits for its outcome.
    #[pyo3(signature = (
        code, language = "python", *, stdin = None, files = None, args = Vec::new(), timeout = None, on_output = None,
    ))]
    fn run_sync(
        &self,
        py: Python<'_>,
        code: String,
        language: &str,
        stdin: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyDict>>,
        args: Vec<OsString>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Outcome> {
        let program = Program::code(self::language(language)?, code);
        let run = self.prepare(program, stdin, files, timeout, on_output)?.arguments(args);
        runtime::wait(py, run.outcome())?
    }

    /// Runs a program with its arguments, without a shell, and awaits its outcome.
    #[pyo3(signature = (command, *, stdin = None, files = None, timeout = None, on_output = None))]
    fn exec(
        &self,
        command: Vec<OsString>,
        stdin: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Awaitable> {
        let run = self.prepare(Program::argv(command), stdin, files, timeout, on_output)?;
        Ok(awaitable(run).named("Sandbox.exec"))
    }

    /// Runs a program with its arguments, without a shell, and waits for its outcome.
    #[pyo3(signature = (command, *, stdin = None, files = None, timeout = None, on_output = None))]
    fn exec_sync(
        &self,
        py: Python<'_>,
        command: Vec<OsString>,
        stdin: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Outcome> {
        let run = self.prepare(Program::argv(command), stdin, files, timeout, on_output)?;
        runtime::wait(py, run.outcome())?
    }

    /// An interpreter that keeps its state between runs: "python" or "javascript". It starts at its first use.
    #[pyo3(signature = (language = "python"))]
    fn session(&self, language: &str) -> PyResult<Session> {
        Ok(Session::new(Arc::clone(&self.0), self::language(language)?))
    }

    /// This sandbox with prewarmed interpreters of a language. They start immediately; use it in a `with` block.
    #[pyo3(signature = (
        language = "python", *, preload = Vec::new(), warm_up = None, idle_workers = None, max_concurrency = None,
        queue = None, queue_timeout = None, idle_shutdown = None,
    ))]
    fn pool(
        &self,
        py: Python<'_>,
        language: &str,
        preload: Vec<String>,
        warm_up: Option<String>,
        idle_workers: Option<usize>,
        max_concurrency: Option<usize>,
        queue: Option<usize>,
        queue_timeout: Option<&Bound<'_, PyAny>>,
        idle_shutdown: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Pool>> {
        let own = &self.0;
        if let Some(option) = own.unpooled {
            let message = format!("no run with {option} starts from a pool; use the sandbox itself");
            return Err(PyValueError::new_err(message));
        }
        let language = self::language(language)?;
        let mut builder = toolpost::sandbox::Pool::builder(&own.sandbox)
            .language(language)
            .preload(preload)
            .host_directories(own.has_workdir && language == Language::Python);
        if let Some(code) = warm_up {
            builder = builder.warm_up(code);
        }
        if let Some(workers) = idle_workers {
            builder = builder.idle_workers(workers);
        }
        if let Some(runs) = max_concurrency {
            builder = builder.max_concurrency(runs);
        }
        if let Some(requests) = queue {
            builder = builder.queue(requests);
        }
        if let Some(seconds) = queue_timeout {
            builder = builder.queue_timeout(duration("queue_timeout", seconds)?);
        }
        if let Some(seconds) = idle_shutdown {
            builder = builder.idle_shutdown(Some(duration("idle_shutdown", seconds)?));
        }
        let pool = Prewarmed::start(builder).map_err(|error| to_exception(py, error))?;
        let settings = Settings {
            level: own.level,
            sandbox: own.sandbox.clone(),
            packages: None,
            pool: Some(Arc::clone(&pool)),
            unpooled: None,
            has_workdir: own.has_workdir,
        };
        Pool::new(py, Self(Arc::new(settings)), pool)
    }

    fn __repr__(&self) -> String {
        let limits = self.0.sandbox.limits_at(Level::Strict);
        let level = self.0.level.map_or("best", Level::name);
        let class = if self.0.pool.is_some() { "Pool" } else { "Sandbox" };
        format!("{class}(level={level:?}, timeout={}, memory={})", limits.wall.as_secs_f64(), limits.memory)
    }
}

/// The absolute path of an argument.
fn absolute(argument: &str, path: &Path) -> PyResult<PathBuf> {
    path.canonicalize().map_err(|error| {
        io::Error::new(error.kind(), format!("`{argument}` names `{}`: {error}", path.display())).into()
    })
}

fn language(name: &str) -> PyResult<Language> {
    name.parse().map_err(|error: Error| PyValueError::new_err(error.to_string()))
}

/// The files of a run by name.
pub(crate) fn uploads(files: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, Source)>> {
    let file = |(name, file): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let source = content(&format!("files[{name:?}]"), &file)?;
        Ok((name, source))
    };
    files.map_or_else(|| Ok(Vec::new()), |files| files.iter().map(file).collect())
}

/// Bytes, a text, or the path of a file.
fn content(argument: &str, content: &Bound<'_, PyAny>) -> PyResult<Source> {
    if let Ok(text) = content.cast::<PyString>() {
        return Ok(Source::Bytes(text.to_str()?.into()));
    }
    if let Ok(bytes) = content.cast::<PyBytes>() {
        return Ok(Source::Bytes(bytes.as_bytes().into()));
    }
    if let Ok(path) = content.extract() {
        return Ok(Source::Path(path));
    }
    let found = convert::type_name(content);
    Err(PyTypeError::new_err(format!("`{argument}` must be a str, bytes or a Path; found `{found}`")))
}

/// An error of the sandbox as an exception: `ValueError` for an invalid argument, else `toolpost.ToolError`.
pub(crate) fn to_exception(py: Python<'_>, error: Error) -> PyErr {
    let message = error.to_string();
    let converted = match &error {
        Error::UnknownLevel { .. }
        | Error::UnknownLanguage { .. }
        | Error::InvalidLimit { .. }
        | Error::InvalidName { .. }
        | Error::PlaceholderWithoutHost { .. }
        | Error::TooLarge { .. } => return PyValueError::new_err(message),
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } | Error::CopyTooLarge { .. } => {
            ToolError::permission(message)
        }
        Error::ProgramNotFound { .. } => ToolError::not_found(message),
        Error::LanguageMissing { .. }
        | Error::NotExecutable { .. }
        | Error::ProgramNotStarted { .. }
        | Error::SessionEnded { .. }
        | Error::SessionRejected { .. }
        | Error::Workspace { .. } => ToolError::precondition(message),
        Error::Overloaded { .. } => ToolError::overloaded(message),
        _ => ToolError::dependency(message),
    };
    let converted = match &error {
        // Its message has the fix.
        Error::LanguageMissing { .. } => converted,
        _ => converted.suggest_maybe(error.hint().as_ref().map(Suggestion::new)),
    };
    errors::to_python(py, &converted.caused_by(error))
}
