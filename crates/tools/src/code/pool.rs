//! A pool of prewarmed Python processes, used from the second run on.

use std::sync::{Arc, Mutex, PoisonError};

use toolpost_sandbox::{
    Cancel, Error, Language, Level, Outcome, Pool, PoolBuilder, PoolMetrics, Program, Sandbox, SandboxEvent,
};

/// Maximum number of concurrent runs in a pool, above the toolbox's own limit. Further runs wait.
const MAX_RUNS: usize = 256;
/// The time that a run waits for a prewarmed process before it starts its own, which takes about as long.
const MAX_WAIT: std::time::Duration = std::time::Duration::from_millis(20);

/// Prewarmed Python processes for `run_code`, in which a run starts within about a millisecond. See [`Pool`].
///
/// Clones share one pool, which ends with the last of them. The first run of Python code is an ordinary one; the pool
/// then starts in the background. A run without an idle process starts its own. On a host without pool support every
/// run does so, and [`PoolMetrics::unavailable`] has the reason.
#[derive(Clone, Debug)]
pub struct CodePool {
    children: usize,
    preload: Vec<String>,
    pool: Arc<Mutex<CodePoolStage>>,
}

#[derive(Debug, Default)]
enum CodePoolStage {
    /// No Python code has run yet.
    #[default]
    Unused,
    Running(Arc<Pool>),
    /// The settings do not support a pool.
    Unavailable(String),
}

impl Default for CodePool {
    fn default() -> Self {
        Self { children: Self::DEFAULT_CHILDREN, preload: Vec::new(), pool: Arc::default() }
    }
}

impl CodePool {
    /// Default number of idle processes.
    pub const DEFAULT_CHILDREN: usize = 2;

    /// Creates a pool with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of idle processes, from 1 to 256. Default: [`CodePool::DEFAULT_CHILDREN`].
    #[must_use]
    pub fn children(mut self, children: usize) -> Self {
        self.children = children;
        self
    }

    /// Sets the preloaded modules. Default: none. [`toolpost_sandbox::PoolBuilder::preload`] lists unsupported ones.
    #[must_use]
    pub fn preload<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        self.preload = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Metrics of the pool; `None` before the first run of Python code, or if the settings do not support a pool.
    pub fn metrics(&self) -> Option<PoolMetrics> {
        self.running().map(|pool| pool.metrics())
    }

    /// The reason why the settings do not support a pool.
    pub fn unavailable(&self) -> Option<String> {
        match &*self.pool.lock().unwrap_or_else(PoisonError::into_inner) {
            CodePoolStage::Unavailable(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Checks the options without starting a process.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for a number outside of 1 to 256, [`Error::InvalidName`] for an invalid module name.
    pub fn check(&self) -> Result<(), Error> {
        self.builder(&Sandbox::new()).check()
    }

    fn builder(&self, plain: &Sandbox) -> PoolBuilder {
        Pool::builder(plain)
            .language(Language::Python)
            .idle_workers(self.children)
            .preload(self.preload.iter().cloned())
            .host_directories(true)
            .max_concurrency(MAX_RUNS)
            .queue(MAX_RUNS)
            .worker_timeout(MAX_WAIT)
    }

    fn running(&self) -> Option<Arc<Pool>> {
        match &*self.pool.lock().unwrap_or_else(PoisonError::into_inner) {
            CodePoolStage::Running(pool) => Some(Arc::clone(pool)),
            _ => None,
        }
    }

    /// Runs a program. `plain` is the sandbox with the operator's settings only.
    pub(super) fn run(
        &self,
        plain: impl FnOnce() -> Sandbox,
        sandbox: &Sandbox,
        program: &Program,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        if !matches!(program, Program::Code { language: Language::Python, .. }) {
            return sandbox.run(program, cancel, on_event);
        }
        if let Some(pool) = self.running() {
            return sandbox.clone().backend(pool).run(program, cancel, on_event);
        }
        let outcome = sandbox.run(program, cancel, on_event)?;
        // At other levels a pool cannot mount the working directory.
        if outcome.report.effective == Level::Strict {
            self.start(&plain());
        }
        Ok(outcome)
    }

    fn start(&self, plain: &Sandbox) {
        let mut state = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, CodePoolStage::Unused) {
            return;
        }
        *state = match self.builder(plain).build() {
            Ok(pool) => CodePoolStage::Running(Arc::new(pool)),
            Err(error) => CodePoolStage::Unavailable(error.to_string()),
        };
    }
}
