//! `Session`: an interpreter that runs cell after cell and can be forked with its files.

mod limits;
mod log;
mod saved;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::platform::{Calls, Handle, Interpreter};
use crate::sandbox::{check_file_name, check_program};
use crate::{Cancel, Error, Language, Outcome, Program, Report, Sandbox, SandboxEvent, Source};

pub use limits::{CellLimits, SessionLimits};
use log::{Entry, Log};
pub use saved::Difference;

/// Files with their sizes, and why the list is incomplete.
pub(crate) type Files = (Vec<(String, u64)>, Option<&'static str>);

/// Whether a reset keeps the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reset {
    /// Keeps the files of the workspace.
    KeepFiles,
    /// Empties the workspace.
    Fresh,
}

/// A persistent interpreter with its own workspace and sandbox, which runs cells one after another.
///
/// All cells share one namespace. Dropping the session kills everything in it and waits until it is dead. Its
/// forks keep running.
///
/// ```no_run
/// use toolpost_sandbox::{Cancel, CellLimits, Language, Sandbox, Session};
///
/// let session = Session::start(&Sandbox::new(), Language::Python)?;
/// let (limits, cancel) = (CellLimits::default(), Cancel::new());
/// session.run("x = 20", &limits, &cancel, &mut |_| {})?;
/// let forks = session.fork(2)?;
/// session.run("x = 0", &limits, &cancel, &mut |_| {})?;
/// for fork in &forks {
///     assert_eq!(fork.run("x + 22", &limits, &cancel, &mut |_| {})?.value, Some(42.into()));
/// }
/// # Ok::<(), toolpost_sandbox::Error>(())
/// ```
///
/// # Cells
///
/// The value of a cell is that of its last expression: JSON where possible, else its type and text. A pandas
/// data frame is its text plus columns, index and rows, at most 1,000. Top-level `await` works. Open
/// matplotlib figures become artifacts (`figure-CELL-NUMBER.png`) and are closed. A value with `_repr_png_`,
/// `_repr_svg_` or `_repr_html_` becomes one too (`value-CELL.png` and so on). An exception or `sys.exit`
/// ends the cell, not the session; the traceback names the cell.
///
/// A cell that reaches a limit is interrupted. If it does not stop within [`CellLimits::grace`], its
/// interpreter is killed. The verdict distinguishes the two cases. A session without its interpreter returns
/// [`Error::SessionEnded`].
///
/// In JavaScript an uncaught error, also one of a timer, ends the running cell. A `let` or `const` of one
/// cell cannot be declared again in another. A reset also empties `/tmp`. The egress log in an outcome covers
/// the session and its forks while the cell ran.
///
/// # Forks
///
/// A fork copies the page tables of its parent, and that takes most of its time. Large allocations (arrays,
/// `bytes`) get huge pages at once, small objects after some idle seconds; that costs up to one sixteenth
/// more memory. JavaScript sessions cannot be forked.
///
/// A fork starts with its own copy of the parent's memory, files and `/tmp`. `/tmp` stays shared if a host
/// path is mounted beneath it. Open files stay shared. Threads and background programs are not copied. Random
/// numbers differ. A session and all of its forks share one sandbox and its limits. They run the same code,
/// so they trust each other. A fork cannot signal or inspect its parent or its siblings.
#[derive(Debug)]
pub struct Session {
    inner: Arc<Inner>,
    language: Language,
    limits: SessionLimits,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<SessionState>,
    calls: Calls,
    is_running: AtomicBool,
    /// The interrupt handle. A running cell holds the lock of `state`, so the handle is separate.
    handle: Mutex<Option<Handle>>,
    /// When the last interrupt was sent.
    interrupted: Mutex<Option<Instant>>,
    bell: Bell,
}

/// Wakes the thread that freezes and ends an idle session.
#[derive(Debug, Default)]
struct Bell {
    is_over: Mutex<bool>,
    rung: Condvar,
}

#[derive(Debug)]
struct SessionState {
    interpreter: Option<Interpreter>,
    ended: Option<String>,
    cells: u32,
    log: Log,
    last_used: Instant,
    is_frozen: bool,
}

impl SessionState {
    fn gone() -> Error {
        Error::SessionEnded { reason: "its interpreter has ended".into() }
    }

    /// Checks that the interpreter is alive.
    fn check(&mut self) -> Result<(), Error> {
        if self.ended.is_none() {
            self.ended = match &self.interpreter {
                Some(interpreter) => interpreter.ended(),
                None => Some("its interpreter has ended".into()),
            };
        }
        if let Some(reason) = self.ended.clone() {
            self.interpreter = None;
            return Err(Error::SessionEnded { reason });
        }
        Ok(())
    }

    /// Returns the interpreter, thawed.
    fn interpreter(&mut self) -> Result<&mut Interpreter, Error> {
        self.check()?;
        self.last_used = Instant::now();
        match &mut self.interpreter {
            Some(interpreter) => {
                if std::mem::take(&mut self.is_frozen) {
                    interpreter.thaw();
                }
                Ok(interpreter)
            }
            None => Err(Self::gone()),
        }
    }

    fn end(&mut self, reason: String) {
        self.interpreter = None;
        self.ended.get_or_insert(reason);
    }
}

impl Session {
    /// Starts a session with the default [`SessionLimits`].
    pub fn start(sandbox: &Sandbox, language: Language) -> Result<Self, Error> {
        Self::start_with(sandbox, language, &SessionLimits::default())
    }

    /// Starts a session with the sandbox's level, limits, files, environment, workspace and directory.
    ///
    /// [`Sandbox::stdin`] has no effect, and neither has a [`crate::Limits`] field that [`CellLimits`] sets
    /// per cell. Only [`Language::Python`] and [`Language::JavaScript`] have sessions; others return
    /// [`Error::SessionRejected`].
    pub fn start_with(sandbox: &Sandbox, language: Language, limits: &SessionLimits) -> Result<Self, Error> {
        limits.check()?;
        sandbox.check_settings()?;
        let interpreter = Interpreter::start(sandbox, language, limits)?;
        Self::from_interpreter(interpreter, language, limits, 0, Log::default())
    }

    fn from_interpreter(
        interpreter: Interpreter,
        language: Language,
        limits: &SessionLimits,
        cells: u32,
        log: Log,
    ) -> Result<Self, Error> {
        let handle = Mutex::new(Some(interpreter.handle()));
        let state = Mutex::new(SessionState {
            interpreter: Some(interpreter),
            ended: None,
            cells,
            log,
            last_used: Instant::now(),
            is_frozen: false,
        });
        let inner = Arc::new(Inner {
            state,
            calls: Calls::default(),
            is_running: AtomicBool::new(false),
            handle,
            interrupted: Mutex::new(None),
            bell: Bell::default(),
        });
        if limits.idle.is_some() || limits.freeze_after.is_some() {
            let (watched, idle, freeze) = (Arc::downgrade(&inner), limits.idle, limits.freeze_after);
            std::thread::Builder::new()
                .name("session idle".into())
                .stack_size(128 << 10)
                .spawn(move || watch_idle(&watched, idle, freeze))
                .map_err(|source| Error::Setup { step: "start a thread", source })?;
        }
        Ok(Self { inner, language, limits: limits.clone() })
    }

    fn state(&self, action: &'static str) -> Result<MutexGuard<'_, SessionState>, Error> {
        let mut state = self.peek(action)?;
        state.last_used = Instant::now();
        Ok(state)
    }

    /// Locks the state without marking the session as used.
    fn peek(&self, action: &'static str) -> Result<MutexGuard<'_, SessionState>, Error> {
        match self.inner.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::WouldBlock) if self.inner.is_running.load(Ordering::SeqCst) => {
                Err(Error::SessionRejected {
                    action,
                    reason: "a cell is running".into(),
                    hint: "wait for it or interrupt it",
                })
            }
            // The idle thread or a reader holds the lock for a moment.
            Err(TryLockError::WouldBlock) => {
                Ok(self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut state = poisoned.into_inner();
                state.end("the caller's callback panicked in a cell".into());
                Ok(state)
            }
        }
    }

    /// The language.
    pub fn language(&self) -> Language {
        self.language
    }

    /// The number of cells that ran, including those before the fork.
    pub fn cells(&self) -> u32 {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner).cells
    }

    /// The time that the interpreter took to start.
    ///
    /// For a fork, the time from the request to its greeting, without the copy of its files.
    pub fn fork_time(&self) -> Option<Duration> {
        Some(self.inner.state.try_lock().ok()?.interpreter.as_ref()?.fork_time())
    }

    /// Returns which layers confine the session, as in each outcome.
    ///
    /// Does not count as use: an idle session stays idle, a frozen one frozen.
    pub fn report(&self) -> Result<Report, Error> {
        let mut state = self.peek("reporting")?;
        state.check()?;
        state.interpreter.as_ref().map(Interpreter::report).ok_or_else(SessionState::gone)
    }

    /// Returns why the session ended, if it has. Does not count as use.
    pub fn ended(&self) -> Option<String> {
        let state = self.inner.state.try_lock().ok()?;
        state.ended.clone().or_else(|| state.interpreter.as_ref()?.ended())
    }

    /// Runs a cell to its end and returns its output, value, artifacts and changes. Blocks.
    ///
    /// [`Session::interrupt`] stops it from another thread. [`Cancel`] does too, kills the interpreter if the
    /// cell does not stop, and stays cancelled.
    pub fn run(
        &self,
        code: &str,
        limits: &CellLimits,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        limits.check()?;
        check_program(&Program::code(self.language, code), 0)?;
        let mut state = self.state("running a cell")?;
        let number = state.cells + 1;
        if number > self.limits.cells {
            return Err(Error::SessionRejected {
                action: "running a cell",
                reason: format!("it ran {} cells, its limit", self.limits.cells),
                hint: "start a new session, or raise the limit `cells`",
            });
        }
        let interpreter = state.interpreter()?;
        self.inner.calls.interrupt.store(false, Ordering::SeqCst);
        self.inner.is_running.store(true, Ordering::SeqCst);
        let running = CellMark(&self.inner.is_running);
        let (outcome, gone) = interpreter.run(number, code, limits, &self.inner.calls, cancel, on_event);
        drop(running);
        state.cells = number;
        state.last_used = Instant::now();
        state.log.cell(code, limits, &outcome);
        if let Some(reason) = gone {
            state.end(reason);
        }
        Ok(outcome)
    }

    /// Interrupts the running cell as `Ctrl+C` would, from any thread. Returns whether a cell ran.
    ///
    /// The session stays alive. A cell that catches the interrupt continues until its limit. Interrupts are at least
    /// 10 ms apart: a call that comes earlier waits.
    pub fn interrupt(&self) -> bool {
        /// A cell may set Python's own handler. Two interrupts at once could then end its interpreter: the second comes
        /// before the lines that end the cell have set ours again.
        const GAP: Duration = Duration::from_millis(10);
        if !self.inner.is_running.load(Ordering::SeqCst) {
            return false;
        }
        let mut last = self.inner.interrupted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rest) = last.and_then(|last| GAP.checked_sub(last.elapsed())) {
            std::thread::sleep(rest);
        }
        *last = Some(Instant::now());
        if !self.inner.is_running.load(Ordering::SeqCst) {
            return false;
        }
        self.inner.calls.interrupt.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.inner.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
        true
    }

    /// Replaces the interpreter in the same sandbox and kills everything that it started.
    ///
    /// It does not revive an ended session.
    pub fn reset(&self, reset: Reset) -> Result<(), Error> {
        let mut state = self.state("resetting")?;
        let fresh = reset == Reset::Fresh;
        let interpreter = state.interpreter()?;
        if let Err(error) = interpreter.reset(fresh) {
            state.end(format!("its reset failed: {error}"));
            return Err(error);
        }
        let handle = interpreter.handle();
        *self.inner.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        if fresh {
            state.log.clear();
        }
        state.log.push(Entry::Reset { fresh });
        Ok(())
    }

    /// Forks the interpreter with its memory and files into `count` independent sessions.
    ///
    /// If the host or the settings do not support it, [`Error::SessionRejected`] names the reason.
    pub fn fork(&self, count: usize) -> Result<Vec<Self>, Error> {
        let most = self.limits.forks as usize;
        if count == 0 || count > most {
            return Err(Error::SessionRejected {
                action: "forking",
                reason: format!("{count} forks requested, expected 1 to {most}"),
                hint: "request fewer, or raise the limit `forks`",
            });
        }
        let mut state = self.state("forking")?;
        let (cells, log) = (state.cells, state.log.clone());
        let forks = state.interpreter()?.fork(count)?;
        forks
            .into_iter()
            .map(|interpreter| {
                Self::from_interpreter(interpreter, self.language, &self.limits, cells, log.clone())
            })
            .collect()
    }

    /// Freezes everything in the session until its next use.
    ///
    /// Idle sessions freeze automatically ([`SessionLimits::freeze_after`]).
    pub fn freeze(&self) -> Result<(), Error> {
        let mut state = self.state("freezing")?;
        state.interpreter()?.freeze();
        state.is_frozen = true;
        Ok(())
    }

    /// Whether the session is frozen.
    pub fn is_frozen(&self) -> bool {
        self.inner.state.try_lock().is_ok_and(|state| state.is_frozen)
    }

    /// Puts a file into the workspace. The name is a relative path without `..`.
    ///
    /// It replaces a file or link of that name; a directory is an error. Symbolic links are not followed. The
    /// next cell does not report the upload as a change. A program with the old file open keeps the old
    /// content.
    pub fn upload(&self, name: &str, source: &Source) -> Result<(), Error> {
        check_file_name(name)?;
        let content = content(source)?;
        let mut state = self.state("uploading")?;
        state.interpreter()?.upload(name, &Source::Bytes(content.to_vec()))?;
        state.log.push(Entry::Upload { name: name.to_owned(), content });
        Ok(())
    }

    /// Lists the regular files of the workspace with their sizes, sorted; at most 20,000.
    pub fn files(&self) -> Result<Vec<(String, u64)>, Error> {
        Ok(self.state("a listing")?.interpreter()?.files()?.0)
    }

    /// Reads a workspace file of at most `max_bytes` bytes. Links are not followed.
    pub fn download(&self, name: &str, most: u64) -> Result<Vec<u8>, Error> {
        self.state("download")?.interpreter()?.download(name, most)
    }
}

impl Session {
    /// Ends the session: everything in it is dead and its cgroups are removed.
    ///
    /// Waits for a running cell. Ending twice has no effect.
    pub fn end(&self) {
        *self.inner.bell.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.bell.rung.notify_all();
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end("the host program ended it".into());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Marks a cell as running until it is dropped, also when the caller's callback panics.
struct CellMark<'a>(&'a AtomicBool);

impl Drop for CellMark<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Reads the content of an upload for the log.
fn content(source: &Source) -> Result<Arc<[u8]>, Error> {
    match source {
        Source::Bytes(bytes) => Ok(bytes.as_slice().into()),
        Source::Path(path) => {
            let fail = |source| Error::File { action: "read upload", path: path.clone(), source };
            let file = crate::platform::open_regular(path).map_err(fail)?;
            let size = file.metadata().map_err(fail)?.len();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(file, size), &mut content).map_err(fail)?;
            Ok(content.into())
        }
    }
}

/// Freezes and ends an idle session.
fn watch_idle(watched: &Weak<Inner>, idle: Option<Duration>, freeze: Option<Duration>) {
    /// Interval between checks of a busy or frozen session.
    const LOOK: Duration = Duration::from_millis(500);
    let shortest = [idle, freeze].into_iter().flatten().min().unwrap_or(LOOK);
    let mut pause = shortest;
    loop {
        let Some(inner) = watched.upgrade() else { return };
        let is_over = inner.bell.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_over, _) = inner
            .bell
            .rung
            .wait_timeout_while(is_over, pause, |is_over| !*is_over)
            .unwrap_or_else(PoisonError::into_inner);
        if *is_over {
            return;
        }
        drop(is_over);
        pause = LOOK.min(shortest);
        // A locked state means that the session is in use.
        let Ok(mut state) = inner.state.try_lock() else { continue };
        let passed = state.last_used.elapsed();
        if idle.is_some_and(|idle| passed >= idle) {
            let limit = idle.unwrap_or_default().as_millis();
            state.end(format!("it was idle for {limit} ms, the limit `idle`"));
            return;
        }
        if freeze.is_some_and(|freeze| passed >= freeze)
            && !state.is_frozen
            && let Some(interpreter) = &mut state.interpreter
        {
            interpreter.freeze();
            state.is_frozen = true;
        }
    }
}
