//! Pools of Python: sandboxes that start before their code is known.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use toolpost::ToolError;
use toolpost::sandbox::{self, PoolBuilder};

use crate::awaitable::Awaitable;
use crate::call_forms::{awaited, waited};
use crate::sandbox::{Sandbox, to_exception};
use crate::{convert, job, runtime};

/// A sandbox whose runs start in prewarmed interpreters, in milliseconds.
///
/// Each run still has an interpreter of its own. A run that does not match the pool starts cold.
#[pyclass(frozen, extends = Sandbox, module = "toolpost")]
pub(crate) struct Pool(Arc<Prewarmed>);

/// The pool of this process.
pub(crate) struct Prewarmed {
    builder: PoolBuilder,
    state: Mutex<PoolStage>,
}

enum PoolStage {
    Live {
        pool: Arc<sandbox::Pool>,
        /// The process that the pool belongs to.
        process: u32,
    },
    Closed,
}

impl PoolStage {
    /// The pool, for its destructor. After a fork the parent process ends it.
    fn take(&mut self) -> Option<Arc<sandbox::Pool>> {
        let Self::Live { pool, process } = std::mem::replace(self, Self::Closed) else { return None };
        if process == process::id() {
            return Some(pool);
        }
        std::mem::forget(pool);
        None
    }
}

impl Prewarmed {
    pub(crate) fn start(builder: PoolBuilder) -> Result<Arc<Self>, sandbox::Error> {
        let pool = Arc::new(builder.clone().build()?);
        let state = Mutex::new(PoolStage::Live { pool, process: process::id() });
        Ok(Arc::new(Self { builder, state }))
    }

    /// The pool. A child process after `fork` starts its own.
    pub(crate) fn pool(&self) -> Result<Arc<sandbox::Pool>, sandbox::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*state, PoolStage::Live { process, .. } if *process != process::id()) {
            state.take();
            let pool = Arc::new(self.builder.clone().build()?);
            *state = PoolStage::Live { pool, process: process::id() };
        }
        match &*state {
            PoolStage::Live { pool, .. } => Ok(Arc::clone(pool)),
            PoolStage::Closed => {
                Err(sandbox::Error::SessionEnded { reason: "the pool was closed".to_owned() })
            }
        }
    }

    fn close(&self) -> Option<Arc<sandbox::Pool>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Prewarmed {
    fn drop(&mut self) {
        // The end of the workers takes a moment.
        if let (Some(pool), Ok(handle)) = (self.close(), runtime::handle()) {
            handle.spawn_blocking(|| drop(pool));
        }
    }
}

impl Pool {
    pub(crate) fn new(py: Python<'_>, sandbox: Sandbox, pool: Arc<Prewarmed>) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(sandbox).add_subclass(Self(pool)))
    }

    fn ending(&self) -> impl Future<Output = Result<(), ToolError>> + Send + 'static {
        let pool = Arc::clone(&self.0);
        async move { Ok(job::run(None, move |_, _| drop(pool.close())).await?) }
    }
}

#[pymethods]
impl Pool {
    /// The counters: `served` and `cold` runs, `ready` workers, latencies in seconds, `missing` modules and so on.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // After a fork the pool starts first.
        let metrics = py.detach(|| self.0.pool().map(|pool| pool.metrics()));
        let metrics = metrics.map_err(|error| to_exception(py, error))?;
        let mut fields = serde_json::to_value(&metrics).unwrap_or_default();
        let latencies = [
            ("latency_p50", metrics.latency_p50),
            ("latency_p90", metrics.latency_p90),
            ("latency_p99", metrics.latency_p99),
        ];
        for (name, latency) in latencies {
            fields[name] = Duration::as_secs_f64(&latency).into();
        }
        convert::to_python(py, &fields)
    }

    /// Ends the idle interpreters; runs end first.
    fn close(&self) -> Awaitable {
        awaited(self.ending()).named("Pool.close")
    }

    /// Ends the idle interpreters; runs end first.
    fn close_sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waited(py, self.ending())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.close_sync(py)
    }

    fn __aenter__(slf: Py<Self>) -> Awaitable {
        Awaitable::of_tool(async { Ok(slf.into_any()) })
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> Awaitable {
        self.close()
    }
}
