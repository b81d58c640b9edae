//! A session: an interpreter that stays and runs cell after cell, and can be forked with its files.

mod limits;
mod log;
mod saved;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::platform::{Calls, Handle, Interpreter};
use crate::sandbox::{check_file_name, check_program};
use crate::{Cancel, Error, Event, Language, Outcome, Program, Report, Sandbox, Source};

pub use limits::{CellLimits, SessionLimits};
use log::{Deed, Log};
pub use saved::Difference;

/// Files with their sizes, and why some were left out.
pub(crate) type Files = (Vec<(String, u64)>, Option<&'static str>);

/// What a reset leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reset {
    /// The files of the workspace.
    KeepFiles,
    /// Nothing.
    Fresh,
}

/// An interpreter that stays, with a workspace of its own, in a sandbox of its own. Cells run in it one after another,
/// in one namespace. Dropping it kills everything in it and waits until it is dead; its forks go on.
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
/// The value of a cell is that of its last expression: as JSON where it can be, a data frame of pandas as its columns,
/// index and rows (the first 1,000 at most) with its text, anything else as its type and text. `await` may stand outside
/// of functions. Open figures of matplotlib come back as artifacts (`figure-CELL-NUMBER.png`) and are closed; so does what
/// the value shows of itself by `_repr_png_`, `_repr_svg_` or `_repr_html_` (`value-CELL.png` and so on). An exception, or
/// a `sys.exit`, ends the cell and not the session; the traceback names the cell.
///
/// A cell that reaches a limit is interrupted, and if it does not obey within [`CellLimits::grace`], its interpreter is
/// killed: the verdict says which of the two came about. A session whose interpreter is gone answers with
/// [`Error::SessionEnded`].
///
/// In JavaScript an error that nobody catches ends the cell that runs, also one of a timer; `let` and `const` of a cell
/// cannot be declared again; a reset also empties `/tmp`. With a way out, the log in an outcome is that of the whole
/// family while the cell ran.
///
/// # Forks
///
/// Its time is that of copying the tables of its memory: large allocations (arrays, `bytes`) have large pages at once,
/// small objects after some seconds without a cell, in which up to a sixteenth is added to the memory. Sessions of
/// JavaScript cannot be forked.
///
/// A fork has the memory, the files and `/tmp` of its parent as they were, each of its own from then on; `/tmp` stays
/// shared where something of the host is shown beneath it. Open files stay shared, and threads and programs that a cell left behind are not copied. Random numbers differ. All members of a
/// family, a session and its forks and theirs, share one sandbox and its limits, and trust each other: they come from the
/// same code. A member cannot signal its parent or its siblings, nor look into them.
#[derive(Debug)]
pub struct Session {
    inner: Arc<Inner>,
    language: Language,
    limits: SessionLimits,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    calls: Calls,
    is_running: AtomicBool,
    /// Who is interrupted; beside the state, which a running cell holds.
    handle: Mutex<Option<Handle>>,
    bell: Bell,
}

/// Wakes the keeper.
#[derive(Debug, Default)]
struct Bell {
    is_over: Mutex<bool>,
    rung: Condvar,
}

#[derive(Debug)]
struct State {
    interpreter: Option<Interpreter>,
    ended: Option<String>,
    cells: u32,
    log: Log,
    last_used: Instant,
    is_frozen: bool,
}

impl State {
    fn gone() -> Error {
        Error::SessionEnded { reason: "its interpreter is gone".into() }
    }

    /// Finds out whether the interpreter is there.
    fn check(&mut self) -> Result<(), Error> {
        if self.ended.is_none() {
            self.ended = match &self.interpreter {
                Some(interpreter) => interpreter.ended(),
                None => Some("its interpreter is gone".into()),
            };
        }
        if let Some(reason) = self.ended.clone() {
            self.interpreter = None;
            return Err(Error::SessionEnded { reason });
        }
        Ok(())
    }

    /// The interpreter, ready to work.
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

    /// Starts a session. Level, limits, files, environment, workspace and directory are the sandbox's;
    /// [`Sandbox::stdin`] has no effect, and neither have those [`crate::Limits`] that [`CellLimits`] sets for each cell.
    /// [`Language::Python`] and [`Language::JavaScript`] can be had; another language is refused with
    /// [`Error::SessionRefused`].
    pub fn start_with(sandbox: &Sandbox, language: Language, limits: &SessionLimits) -> Result<Self, Error> {
        limits.check()?;
        sandbox.check_settings()?;
        let interpreter = Interpreter::start(sandbox, language, limits)?;
        Self::around(interpreter, language, limits, 0, Log::default())
    }

    fn around(
        interpreter: Interpreter,
        language: Language,
        limits: &SessionLimits,
        cells: u32,
        log: Log,
    ) -> Result<Self, Error> {
        let handle = Mutex::new(Some(interpreter.handle()));
        let state = Mutex::new(State {
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
            bell: Bell::default(),
        });
        if limits.idle.is_some() || limits.freeze_after.is_some() {
            let (watched, idle, freeze) = (Arc::downgrade(&inner), limits.idle, limits.freeze_after);
            std::thread::Builder::new()
                .name("session keeper".into())
                .stack_size(128 << 10)
                .spawn(move || keep(&watched, idle, freeze))
                .map_err(|source| Error::Setup { step: "start a thread", source })?;
        }
        Ok(Self { inner, language, limits: limits.clone() })
    }

    fn state(&self, action: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.look(action)?;
        state.last_used = Instant::now();
        Ok(state)
    }

    /// The state, without a use of the session.
    fn look(&self, action: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        match self.inner.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::WouldBlock) if self.inner.is_running.load(Ordering::SeqCst) => {
                Err(Error::SessionRefused {
                    action,
                    reason: "a cell is running".into(),
                    hint: "wait for its end, or interrupt it",
                })
            }
            // The keeper, or another thread that only asks: soon over.
            Err(TryLockError::WouldBlock) => {
                Ok(self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut state = poisoned.into_inner();
                state.end("a function of the caller panicked while a cell ran".into());
                Ok(state)
            }
        }
    }

    /// The language.
    pub fn language(&self) -> Language {
        self.language
    }

    /// How many cells were run, those before the fork included.
    pub fn cells(&self) -> u32 {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner).cells
    }

    /// How long its interpreter took to be there: for a fork the time from the request to the fork's greeting, without
    /// the copy of its files.
    pub fn fork_time(&self) -> Option<Duration> {
        Some(self.inner.state.try_lock().ok()?.interpreter.as_ref()?.fork_time())
    }

    /// What confines the session. The same is in each outcome.
    /// Asking does not use the session: it may go on to idle, and stays frozen.
    pub fn report(&self) -> Result<Report, Error> {
        let mut state = self.look("a report")?;
        state.check()?;
        state.interpreter.as_ref().map(Interpreter::report).ok_or_else(State::gone)
    }

    /// Why no cell can be run any more, if none can. Asking does not use the session.
    pub fn ended(&self) -> Option<String> {
        let state = self.inner.state.try_lock().ok()?;
        state.ended.clone().or_else(|| state.interpreter.as_ref()?.ended())
    }

    /// Runs a cell to its end and gives back what it did: its own output, value, artifacts and changes. Blocks.
    /// [`Session::interrupt`] stops it from another thread; so does [`Cancel`], which kills the interpreter if the cell
    /// does not obey, and stays cancelled.
    pub fn run(
        &self,
        code: &str,
        limits: &CellLimits,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, Error> {
        limits.check()?;
        check_program(&Program::code(self.language, code), 0)?;
        let mut state = self.state("to run a cell")?;
        let number = state.cells + 1;
        if number > self.limits.cells {
            return Err(Error::SessionRefused {
                action: "to run a cell",
                reason: format!("it has run its {} cells", self.limits.cells),
                hint: "start a new session, or raise the limit `cells`",
            });
        }
        let interpreter = state.interpreter()?;
        self.inner.calls.interrupt.store(false, Ordering::SeqCst);
        self.inner.is_running.store(true, Ordering::SeqCst);
        let running = Running(&self.inner.is_running);
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

    /// Interrupts the cell that runs, as `Ctrl+C` would; the session lives on. Gives whether one ran. A cell that catches
    /// the interrupt goes on until its limit. May be called from any thread.
    pub fn interrupt(&self) -> bool {
        if !self.inner.is_running.load(Ordering::SeqCst) {
            return false;
        }
        self.inner.calls.interrupt.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.inner.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
        true
    }

    /// Puts a fresh interpreter in the place of this one, in the same sandbox, and kills what this one started. Also a
    /// session that a cell has killed gets no second life by it: it has ended.
    pub fn reset(&self, reset: Reset) -> Result<(), Error> {
        let mut state = self.state("a reset")?;
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
        state.log.push(Deed::Reset { fresh });
        Ok(())
    }

    /// Forks the interpreter, with its memory and its files, into `count` sessions that go on independently. On a host, or
    /// with settings, where that cannot be, [`Error::SessionRefused`] says why.
    pub fn fork(&self, count: usize) -> Result<Vec<Self>, Error> {
        let most = self.limits.forks as usize;
        if count == 0 || count > most {
            return Err(Error::SessionRefused {
                action: "fork",
                reason: format!("{count} forks were asked for, expected 1 to {most}"),
                hint: "ask for fewer, or raise the limit `forks`",
            });
        }
        let mut state = self.state("fork")?;
        let (cells, log) = (state.cells, state.log.clone());
        let forks = state.interpreter()?.fork(count)?;
        forks
            .into_iter()
            .map(|interpreter| Self::around(interpreter, self.language, &self.limits, cells, log.clone()))
            .collect()
    }

    /// Stops everything in the session until it is used again. A session that idles is frozen by itself
    /// ([`SessionLimits::freeze_after`]).
    pub fn freeze(&self) -> Result<(), Error> {
        let mut state = self.state("to freeze")?;
        state.interpreter()?.freeze();
        state.is_frozen = true;
        Ok(())
    }

    /// Whether nothing in the session runs until it is used again.
    pub fn is_frozen(&self) -> bool {
        self.inner.state.try_lock().is_ok_and(|state| state.is_frozen)
    }

    /// Puts a file into the workspace. The name is a relative path without `..`. A file or link that has the name is
    /// replaced, a folder is an error, and no symbolic link is followed. It is no change of the next cell. A program that
    /// has the old file open keeps the old content.
    pub fn upload(&self, name: &str, source: &Source) -> Result<(), Error> {
        check_file_name(name)?;
        let content = content(source)?;
        let mut state = self.state("upload")?;
        state.interpreter()?.upload(name, &Source::Bytes(content.to_vec()))?;
        state.log.push(Deed::Upload { name: name.to_owned(), content });
        Ok(())
    }

    /// The regular files of the workspace and their sizes, in order; at most 20,000.
    pub fn files(&self) -> Result<Vec<(String, u64)>, Error> {
        Ok(self.state("a listing")?.interpreter()?.files()?.0)
    }

    /// The content of a file of the workspace, of at most `most` bytes. A link is not followed.
    pub fn download(&self, name: &str, most: u64) -> Result<Vec<u8>, Error> {
        self.state("download")?.interpreter()?.download(name, most)
    }
}

impl Session {
    /// Ends the session now, as dropping it does: everything in it is dead and its control groups are removed when this
    /// returns. Waits for a cell that runs. Ending it again does nothing.
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

/// Says that a cell runs as long as it lives, also when a function of the caller panics.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The content of an upload, which the log keeps.
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

/// Freezes and ends a session that idles.
fn keep(watched: &Weak<Inner>, idle: Option<Duration>, freeze: Option<Duration>) {
    /// A session that is busy, or frozen, is looked at again after this time.
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
        // Who holds the state uses the session.
        let Ok(mut state) = inner.state.try_lock() else { continue };
        let passed = state.last_used.elapsed();
        if idle.is_some_and(|idle| passed >= idle) {
            let limit = idle.unwrap_or_default().as_millis();
            state.end(format!("it was idle for the limit `idle`, {limit} ms"));
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
