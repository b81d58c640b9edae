//! Pythons that are made ahead, from the second run of a host on.

use std::sync::{Arc, Mutex, PoisonError};

use toolpost_sandbox::{
    Cancel, Error, Event, Language, Level, Outcome, Pool, PoolBuilder, PoolMetrics, Program, Sandbox,
};

/// How many runs may go on in a pool at a time: more than a toolbox lets through. Those beyond it wait.
const MOST: usize = 256;
/// How long a run waits for a Python before it starts one of its own, which takes about as long.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);

/// Pythons that are made ahead for `run_code`: a run then starts in about a millisecond, and has loaded what it is to
/// load. See [`Pool`]. Clones share one pool, which ends with the last of them.
///
/// The first run of Python code is an ordinary one. When it has ended, the pool is made in the background; whatever
/// finds no Python ready starts one of its own. A host that cannot have a pool runs everything so, and
/// [`PoolMetrics::unavailable`] says why.
#[derive(Clone, Debug)]
pub struct CodePool {
    children: usize,
    preload: Vec<String>,
    pool: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
enum State {
    /// No Python has run yet.
    #[default]
    Unused,
    Begun(Arc<Pool>),
    /// It cannot be had with these settings.
    Refused(String),
}

impl Default for CodePool {
    fn default() -> Self {
        Self { children: Self::CHILDREN, preload: Vec::new(), pool: Arc::default() }
    }
}

impl CodePool {
    /// How many Pythons are kept ready if nobody says otherwise.
    pub const CHILDREN: usize = 2;

    /// A pool with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many Pythons are kept ready, from 1 to 256. Default [`CodePool::CHILDREN`].
    #[must_use]
    pub fn children(mut self, children: usize) -> Self {
        self.children = children;
        self
    }

    /// Sets the modules that each Python has loaded. Default none. See
    /// [`toolpost_sandbox::PoolBuilder::preload`] for those that cannot be.
    #[must_use]
    pub fn preload<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        self.preload = modules.into_iter().map(Into::into).collect();
        self
    }

    /// What the pool has done; none if no Python has run yet, or the settings of the code have no pool.
    pub fn metrics(&self) -> Option<PoolMetrics> {
        self.begun().map(|pool| pool.metrics())
    }

    /// Why there is none, if the settings of the code cannot have one.
    pub fn refused(&self) -> Option<String> {
        match &*self.pool.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Refused(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Looks at the options without starting anything.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for a number outside of 1 to 256, [`Error::InvalidName`] for a module that is no name.
    pub fn check(&self) -> Result<(), Error> {
        self.builder(&Sandbox::new()).check()
    }

    fn builder(&self, plain: &Sandbox) -> PoolBuilder {
        Pool::builder(plain)
            .language(Language::Python)
            .idle_workers(self.children)
            .preload(self.preload.iter().cloned())
            .host_directories(true)
            .max_concurrency(MOST)
            .queue(MOST)
            .worker_timeout(PATIENCE)
    }

    fn begun(&self) -> Option<Arc<Pool>> {
        match &*self.pool.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Begun(pool) => Some(Arc::clone(pool)),
            _ => None,
        }
    }

    /// Runs a program for a call. `plain` is what the operator's settings alone give.
    pub(super) fn run(
        &self,
        plain: impl FnOnce() -> Sandbox,
        sandbox: &Sandbox,
        program: &Program,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, Error> {
        if !matches!(program, Program::Code { language: Language::Python, .. }) {
            return sandbox.run(program, cancel, on_event);
        }
        if let Some(pool) = self.begun() {
            return sandbox.clone().backend(pool).run(program, cancel, on_event);
        }
        let outcome = sandbox.run(program, cancel, on_event)?;
        // Another level has no place in a pool for the folder that the code works in.
        if outcome.report.effective == Level::Strict {
            self.begin(&plain());
        }
        Ok(outcome)
    }

    fn begin(&self, plain: &Sandbox) {
        let mut state = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Unused) {
            return;
        }
        *state = match self.builder(plain).build() {
            Ok(pool) => State::Begun(Arc::new(pool)),
            Err(error) => State::Refused(error.to_string()),
        };
    }
}
