//! The runtime behind all calls, and waits of threads.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::driver::Driver;
use crate::{exit, inbox};

/// The interval at which a waiting thread runs the interpreter's signal handlers.
const SIGNALS: Duration = Duration::from_millis(20);

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The runtime, started at the first use.
///
/// # Errors
/// `RuntimeError` if the system denies threads.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let started =
        Builder::new_multi_thread().worker_threads(2).thread_name("toolpost").enable_all().build().map_err(
            |error| PyRuntimeError::new_err(format!("cannot start the threads of Toolpost: {error}")),
        )?;
    Ok(runtime.insert(started).handle().clone())
}

/// The runtime, if it has been started.
pub(crate) fn started() -> Option<Handle> {
    let runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    runtime.as_ref().map(|runtime| runtime.handle().clone())
}

/// Remembers the first interpreter.
///
/// # Errors
/// `ImportError` in any other interpreter of the process.
pub(crate) fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    static FIRST: OnceLock<usize> = OnceLock::new();
    // Each interpreter has its own module.
    let own = py.import("builtins")?.as_ptr() as usize;
    if *FIRST.get_or_init(|| own) == own {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "toolpost runs in the main interpreter only, not in subinterpreters; use threads or processes",
    ))
}

/// Forgets the runtime of the parent process, whose threads do not exist in this one.
#[pyfunction]
pub(crate) fn reset_after_fork() {
    exit::reset_after_fork();
    inbox::reset_after_fork();
    // A thread of the parent may have held the lock at the fork; then the parent's runtime was just starting.
    if let Ok(mut runtime) = RUNTIME.try_lock() {
        // Its destructor would wait for threads that do not exist.
        std::mem::forget(runtime.take());
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the call of one tool ends, without the interpreter. Signals interrupt the wait.
///
/// # Errors
/// An exception that a tool or a signal handler raised to end the call: `KeyboardInterrupt`, `SystemExit`.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    wait_in(false, py, future)
}

/// A variant for a run that calls several tools at once.
pub(crate) fn wait_for_run<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    wait_in(true, py, future)
}

fn wait_in<T: Send>(
    is_parallel: bool,
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
) -> PyResult<T> {
    let handle = handle()?;
    let _blocking = inbox::block_this_thread();
    let driver = Driver::of_thread(is_parallel);
    py.detach(|| {
        let _entered = handle.enter();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            let polled = driver.poll(|| future.as_mut().poll(&mut context));
            if let Some(error) = driver.take_fatal() {
                return Err(error);
            }
            if let Poll::Ready(value) = polled {
                return Ok(value);
            }
            std::thread::park_timeout(SIGNALS);
            exit::stop_if_exiting();
            check_signals()?;
        }
    })
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over lifetimes")]
fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}
