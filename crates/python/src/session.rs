//! Sessions of Python: interpreters that keep their state between runs.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use toolpost::sandbox::{self, Cancel, CellLimits, Error, Language, Reset, Source};

use crate::awaitable::Awaitable;
use crate::outcome::Outcome;
use crate::port::callback;
use crate::sandbox::{Settings, to_exception, uploads};
use crate::{convert, job, runtime};

/// An interpreter in its own sandbox. Runs share its variables and files, and it can be forked with them.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Session(Arc<Shared>);

struct Shared {
    settings: Arc<Settings>,
    language: Language,
    state: Mutex<SessionStage>,
    /// The cancellation of the running cell.
    running: Mutex<Option<Cancel>>,
    /// The process that the session belongs to.
    process: u32,
}

enum SessionStage {
    New,
    Live(Arc<sandbox::Session>),
    Closed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(settings: Arc<Settings>, language: Language) -> Self {
        Self::in_state(settings, language, SessionStage::New)
    }

    fn in_state(settings: Arc<Settings>, language: Language, state: SessionStage) -> Self {
        Self(Arc::new(Shared {
            settings,
            language,
            state: Mutex::new(state),
            running: Mutex::default(),
            process: std::process::id(),
        }))
    }

    /// The live session, without waiting for its start.
    fn live(&self, py: Python<'_>) -> Option<Arc<sandbox::Session>> {
        py.detach(|| match &*lock(&self.0.state) {
            SessionStage::Live(session) => Some(Arc::clone(session)),
            SessionStage::New | SessionStage::Closed => None,
        })
    }

    fn cell(
        &self,
        code: String,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Cell> {
        let limits = self.0.settings.limits(timeout)?;
        Ok(Cell {
            shared: Arc::clone(&self.0),
            code,
            files: uploads(files)?,
            limits: limits.as_ref().map_or_else(CellLimits::default, CellLimits::from),
            on_output: callback("on_output", on_output)?,
        })
    }
}

impl Shared {
    /// The session, started if it is new. Blocks.
    fn start(&self, cancel: &Cancel) -> Result<Arc<sandbox::Session>, Error> {
        let ended = |reason: &str| Error::SessionEnded { reason: reason.to_owned() };
        if self.process != std::process::id() {
            return Err(ended("it belongs to the parent process"));
        }
        let mut state = lock(&self.state);
        match &*state {
            SessionStage::Live(session) => Ok(Arc::clone(session)),
            SessionStage::Closed => Err(ended("it was closed")),
            SessionStage::New => {
                let sandbox = self.settings.sandbox(Some(self.language), cancel)?;
                let session = Arc::new(sandbox::Session::start(&sandbox, self.language)?);
                *state = SessionStage::Live(Arc::clone(&session));
                Ok(session)
            }
        }
    }

    fn close(&self) {
        if let Some(cancel) = &*lock(&self.running) {
            cancel.cancel();
        }
        let state = std::mem::replace(&mut *lock(&self.state), SessionStage::Closed);
        if let SessionStage::Live(session) = state
            && self.process == std::process::id()
        {
            session.end();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let SessionStage::Live(session) = std::mem::replace(state, SessionStage::Closed) else { return };
        if self.process != std::process::id() {
            // The parent process ends it.
            std::mem::forget(session);
        } else if let Ok(handle) = runtime::handle() {
            // The end of the interpreter takes a moment.
            handle.spawn_blocking(|| drop(session));
        }
    }
}

struct Cell {
    shared: Arc<Shared>,
    code: String,
    files: Vec<(String, Source)>,
    limits: CellLimits,
    on_output: Option<Py<PyAny>>,
}

impl Cell {
    async fn outcome(self) -> PyResult<Outcome> {
        let Self { shared, code, files, limits, on_output } = self;
        finish(job::run(on_output, move |cancel, on_event| {
            let session = shared.start(cancel)?;
            for (name, source) in &files {
                session.upload(name, source)?;
            }
            // A second cell at once is rejected at once; the first one remains.
            let other = lock(&shared.running).replace(cancel.clone());
            let outcome = session.run(&code, &limits, cancel, on_event);
            *lock(&shared.running) = other;
            Outcome::new(outcome?)
        }))
        .await
    }
}

async fn finish<T>(ended: impl Future<Output = PyResult<Result<T, Error>>>) -> PyResult<T> {
    ended.await?.map_err(|error| Python::attach(|py| to_exception(py, error)))
}

/// Blocking work with a session.
fn work<T: Send + 'static>(
    session: &Session,
    work: impl FnOnce(&Arc<Shared>, &Cancel) -> Result<T, Error> + Send + 'static,
) -> impl Future<Output = PyResult<T>> + Send + 'static {
    let shared = Arc::clone(&session.0);
    finish(job::run(None, move |cancel, _| work(&shared, cancel)))
}

fn start(session: &Session) -> impl Future<Output = PyResult<()>> + Send + 'static {
    work(session, |shared, cancel| shared.start(cancel).map(drop))
}

fn fork(session: &Session, count: usize) -> impl Future<Output = PyResult<Vec<Session>>> + Send + 'static {
    work(session, move |shared, cancel| {
        let forks = shared.start(cancel)?.fork(count)?;
        let session = |fork| {
            Session::in_state(
                Arc::clone(&shared.settings),
                shared.language,
                SessionStage::Live(Arc::new(fork)),
            )
        };
        Ok(forks.into_iter().map(session).collect())
    })
}

fn reset(session: &Session, keep_files: bool) -> impl Future<Output = PyResult<()>> + Send + 'static {
    let reset = if keep_files { Reset::KeepFiles } else { Reset::Fresh };
    work(session, move |shared, cancel| shared.start(cancel)?.reset(reset))
}

fn close(session: &Session) -> impl Future<Output = PyResult<()>> + Send + 'static {
    work(session, |shared, _| {
        shared.close();
        Ok(())
    })
}

fn awaitable<T: for<'py> IntoPyObject<'py> + Send>(
    future: impl Future<Output = PyResult<T>> + Send + 'static,
) -> Awaitable {
    Awaitable::of_tool(async move {
        let value = future.await?;
        Python::attach(|py| value.into_py_any(py))
    })
}

/// Work whose result is None.
fn nothing(future: impl Future<Output = PyResult<()>> + Send + 'static) -> Awaitable {
    Awaitable::of_tool(async move {
        future.await?;
        Ok(convert::none())
    })
}

#[pymethods]
impl Session {
    /// Runs code with the state of the earlier runs, and awaits its outcome.
    #[pyo3(signature = (code, *, files = None, timeout = None, on_output = None))]
    fn run(
        &self,
        code: String,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Awaitable> {
        Ok(awaitable(self.cell(code, files, timeout, on_output)?.outcome()).named("Session.run"))
    }

    /// Runs code with the state of the earlier runs, and waits for its outcome.
    #[pyo3(signature = (code, *, files = None, timeout = None, on_output = None))]
    fn run_sync(
        &self,
        py: Python<'_>,
        code: String,
        files: Option<&Bound<'_, PyDict>>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_output: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Outcome> {
        runtime::wait(py, self.cell(code, files, timeout, on_output)?.outcome())?
    }

    /// Copies the interpreter with its variables and files into `count` independent sessions.
    #[pyo3(signature = (count = 1))]
    fn fork(&self, count: usize) -> Awaitable {
        awaitable(fork(self, count)).named("Session.fork")
    }

    /// Copies the interpreter with its variables and files into `count` independent sessions.
    #[pyo3(signature = (count = 1))]
    fn fork_sync(&self, py: Python<'_>, count: usize) -> PyResult<Vec<Self>> {
        runtime::wait(py, fork(self, count))?
    }

    /// Replaces the interpreter; its variables are gone, and its files unless `keep_files`.
    #[pyo3(signature = (*, keep_files = false))]
    fn reset(&self, keep_files: bool) -> Awaitable {
        nothing(reset(self, keep_files)).named("Session.reset")
    }

    /// Replaces the interpreter; its variables are gone, and its files unless `keep_files`.
    #[pyo3(signature = (*, keep_files = false))]
    fn reset_sync(&self, py: Python<'_>, keep_files: bool) -> PyResult<()> {
        runtime::wait(py, reset(self, keep_files))?
    }

    /// Interrupts the running code, as Ctrl-C would. Returns whether code was running.
    fn interrupt(&self, py: Python<'_>) -> bool {
        self.live(py).is_some_and(|session| py.detach(|| session.interrupt()))
    }

    /// Ends the interpreter and all that it started. Running code is cancelled.
    fn close(&self) -> Awaitable {
        nothing(close(self)).named("Session.close")
    }

    /// Ends the interpreter and all that it started. Running code is cancelled.
    fn close_sync(&self, py: Python<'_>) -> PyResult<()> {
        runtime::wait(py, close(self))?
    }

    /// The language.
    #[getter]
    fn language(&self) -> &'static str {
        self.0.language.name()
    }

    /// The number of runs of the interpreter, those before a fork included.
    #[getter]
    fn cells(&self, py: Python<'_>) -> u32 {
        self.live(py).map_or(0, |session| py.detach(|| session.cells()))
    }

    /// The reason why the session has ended; None if it is alive or has not started.
    #[getter]
    fn ended(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| match &*lock(&self.0.state) {
            SessionStage::New => None,
            SessionStage::Live(session) => session.ended(),
            SessionStage::Closed => Some("it was closed".to_owned()),
        })
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        runtime::wait(slf.py(), start(&slf))??;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close_sync(py)
    }

    fn __aenter__(slf: Py<Self>) -> Awaitable {
        let started = start(slf.get());
        awaitable(async move { started.await.map(|()| slf) })
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> Awaitable {
        self.close()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.ended(py).map_or_else(String::new, |reason| format!(", ended: {reason}"));
        format!("Session({}{state})", self.0.language.name())
    }
}
