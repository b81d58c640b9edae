//! Blocking work as a future: a dropped one cancels the work, and its output reaches Python in the awaiting thread.

use std::sync::{Mutex, mpsc as channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use toolpost::sandbox::{Cancel, SandboxEvent};

use crate::driver::Driver;
use crate::{bridge, exit, runtime};

/// The number of pieces of output that wait for the callback. A slow callback slows the program down.
const MAX_PIECES: usize = 16;
/// The time that a thread waits for the end of work that it cancelled.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// Receives the output of work.
pub(crate) type OnEvent<'a> = &'a mut dyn FnMut(SandboxEvent<'_>);

/// Work on a thread of the pool.
struct Job<T: Send + 'static> {
    cancel: Cancel,
    output: mpsc::Receiver<Piece>,
    /// Absent after the end.
    thread: Option<JoinHandle<T>>,
    /// Disconnected after the end.
    alive: Mutex<channel::Receiver<()>>,
}

struct Piece {
    is_error: bool,
    bytes: Vec<u8>,
}

/// Runs blocking work, and calls `on_output(stream, text)` for its output.
///
/// # Errors
/// The exception of the callback, which cancels the work.
pub(crate) async fn run<T: Send + 'static>(
    on_output: Option<Py<PyAny>>,
    work: impl FnOnce(&Cancel, OnEvent<'_>) -> T + Send + 'static,
) -> PyResult<T> {
    let mut job = Job::start(on_output.is_some(), work);
    let mut streams = [Decoder::default(), Decoder::default()];
    let mut raised = None;
    while let Some(Piece { is_error, bytes }) = job.output.recv().await {
        let text = streams[usize::from(is_error)].push(&bytes);
        if let Some(callback) = &on_output
            && raised.is_none()
            && let Err(error) = show(callback, is_error, &text)
        {
            job.cancel.cancel();
            raised = Some(error);
        }
        // Other tasks of the event loop run between two pieces.
        yield_now().await;
    }
    let ended = job.end().await?;
    for (is_error, stream) in [false, true].into_iter().zip(streams) {
        if let (Some(callback), None) = (&on_output, &raised) {
            raised = show(callback, is_error, &String::from_utf8_lossy(&stream.0)).err();
        }
    }
    raised.map_or(Ok(ended), Err)
}

fn show(callback: &Py<PyAny>, is_error: bool, text: &str) -> PyResult<()> {
    if text.is_empty() {
        return Ok(());
    }
    let stream = if is_error { "stderr" } else { "stdout" };
    notify(callback, |py| (stream, text).into_pyobject(py))
}

/// Calls a function with an event.
///
/// # Errors
/// The exception of the function.
pub(crate) fn notify(
    callback: &Py<PyAny>,
    event: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>>,
) -> PyResult<()> {
    let _inside = exit::enter();
    // At its exit the interpreter runs no function.
    exit::attach(|py| callback.call1(py, event(py)?).map(drop)).unwrap_or(Ok(()))
}

impl<T: Send + 'static> Job<T> {
    fn start(is_shown: bool, work: impl FnOnce(&Cancel, OnEvent<'_>) -> T + Send + 'static) -> Self {
        let (pieces, output) = mpsc::channel(MAX_PIECES);
        let pieces = is_shown.then_some(pieces);
        let (living, alive) = channel::channel();
        let cancel = Cancel::new();
        let own = cancel.clone();
        let thread = spawn_blocking(move || {
            let _living = living;
            work(&own, &mut |event| {
                let (is_error, bytes) = match event {
                    SandboxEvent::Stdout(bytes) => (false, bytes),
                    SandboxEvent::Stderr(bytes) => (true, bytes),
                    _ => return,
                };
                if let Some(pieces) = &pieces {
                    // Without a receiver the work is cancelled.
                    let _ = pieces.blocking_send(Piece { is_error, bytes: bytes.to_vec() });
                }
            })
        });
        Self { cancel, output, thread: Some(thread), alive: alive.into() }
    }

    async fn end(&mut self) -> PyResult<T> {
        let Some(thread) = &mut self.thread else {
            return Err(PyRuntimeError::new_err("the work has ended"));
        };
        let ended = thread.await;
        self.thread = None;
        ended.map_err(|error| PyRuntimeError::new_err(format!("the sandbox failed: {error}")))
    }
}

impl<T: Send + 'static> Drop for Job<T> {
    /// Cancels the work. The task or the thread that waited for it waits for its end.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.cancel.cancel();
        self.output.close();
        if Driver::current().is_some_and(|driver| leave(&driver, thread)) {
            return;
        }
        if let Ok(alive) = self.alive.get_mut() {
            // Nothing is sent: the wait ends with the thread.
            let _ = alive.recv_timeout(MAX_WAIT);
        }
    }
}

/// Lets the awaiting task of a cancelled call wait for a thread. Returns whether there is such a task.
fn leave<T: Send + 'static>(driver: &Driver, thread: JoinHandle<T>) -> bool {
    let (Some(event_loop), Ok(handle)) = (driver.mode().event_loop(), runtime::handle()) else {
        return false;
    };
    let attached = exit::attach(|py| {
        let event_loop = event_loop.clone_ref(py);
        let future = event_loop.call_method0(py, intern!(py, "create_future"))?;
        let ended = future.clone_ref(py);
        handle.spawn(async move {
            // The result is of no use.
            let _ = thread.await;
            exit::attach(|py| {
                let resolve = bridge::helpers(py)?.getattr(intern!(py, "resolve"))?;
                event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (resolve, ended))
            });
        });
        driver.add_task(future);
        PyResult::Ok(())
    });
    attached.is_some_and(|result| result.is_ok())
}

/// Decodes a stream whose pieces may split characters: the bytes of an incomplete one.
#[derive(Default)]
struct Decoder(Vec<u8>);

impl Decoder {
    fn push(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let incomplete = self.0.utf8_chunks().last().map_or(0, |chunk| {
            let invalid = chunk.invalid();
            let is_incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_incomplete { invalid.len() } else { 0 }
        });
        let rest = self.0.split_off(self.0.len() - incomplete);
        String::from_utf8_lossy(&std::mem::replace(&mut self.0, rest)).into_owned()
    }
}
