//! `Pool`: idle sandboxes that wait for code, so that a run starts in about a millisecond.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::host::LevelAvailability;
use crate::level::shorten;
use crate::platform::pool::{Dispatch, Manager};
use crate::{
    Backend, BackendRequest, Cancel, Error, Language, Level, Limits, Outcome, Processes, Program, Sandbox,
    SandboxEvent, Workspace,
};

/// The number of latencies in the sample for the quantiles.
const LATENCY_SAMPLES: usize = 1024;
/// Variables that an interpreter or numeric library reads at its start, before the idle worker gets its code.
const START_VARIABLES: [&str; 8] = ["PYTHON", "LC_", "LANG", "OPENBLAS_", "OMP_", "MKL_", "NUMEXPR_", "TZ"];
const MAX_MODULES: usize = 256;

/// The settings of a pool manager.
#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    pub(crate) sandbox: Sandbox,
    pub(crate) language: Option<Language>,
    pub(crate) idle_workers: usize,
    pub(crate) max_concurrency: usize,
    pub(crate) preload: Vec<String>,
    pub(crate) warm_up: Option<String>,
    pub(crate) rotate_after: u64,
    pub(crate) rotate_interval: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) ready_timeout: Duration,
    pub(crate) load_timeout: Duration,
    pub(crate) host_directories: bool,
}

/// The counters of a pool manager.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolCounts {
    pub(crate) forked: u64,
    pub(crate) died: u64,
    pub(crate) rotated: u64,
    pub(crate) restarted: u64,
    pub(crate) preloaded: Vec<String>,
    pub(crate) missing: Vec<(String, String)>,
}

/// The settings of a pool. Start with [`Pool::builder`], end with [`PoolBuilder::build`].
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    settings: PoolSettings,
    queue: usize,
    wait: Duration,
    worker_timeout: Option<Duration>,
}

impl PoolBuilder {
    /// Sets the language of the pool's code. Default none: it runs programs by their arguments.
    #[must_use]
    pub fn language(mut self, language: Language) -> Self {
        self.settings.language = Some(language);
        self
    }

    /// Sets the modules that the Python zygote loads before it forks. Default none.
    ///
    /// A module is skipped and listed in
    /// [`PoolMetrics::missing`] if it is not installed, fails to load, or starts threads, which a fork would
    /// lose.
    #[must_use]
    pub fn preload<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        self.settings.preload = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Sets Python code that each worker runs while it is idle. Default none.
    ///
    /// It runs in its own namespace and makes the worker's memory pages private before a request needs them.
    /// Its output is lost; its files stay. A worker whose warm-up fails is discarded.
    #[must_use]
    pub fn warm_up(mut self, code: impl Into<String>) -> Self {
        self.settings.warm_up = Some(code.into());
        self
    }

    /// Allows a host directory as workspace in a pooled run ([`Workspace::Host`], at level `strict`). Default
    /// no: such runs start cold.
    ///
    /// Each worker applies Landlock after it has its workspace and before it gets its code. A warm-up runs
    /// before that.
    #[must_use]
    pub fn host_directories(mut self, host_directories: bool) -> Self {
        self.settings.host_directories = host_directories;
        self
    }

    /// Sets the number of idle workers. Default 2.
    #[must_use]
    pub fn idle_workers(mut self, idle_workers: usize) -> Self {
        self.settings.idle_workers = idle_workers;
        self
    }

    /// Sets the maximum number of concurrent runs, cold ones included. Default: twice the processors.
    #[must_use]
    pub fn max_concurrency(mut self, max_concurrency: usize) -> Self {
        self.settings.max_concurrency = max_concurrency;
        self
    }

    /// Sets the maximum number of queued requests. Default 64.
    ///
    /// One more gets [`Error::Overloaded`] at once.
    #[must_use]
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how long a request waits in the queue before [`Error::Overloaded`]. Default 10 s.
    ///
    /// This time also bounds its wait for an idle worker; after that it runs cold.
    #[must_use]
    pub fn queue_timeout(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long a request waits for an idle worker before it runs cold. Zero disables the wait.
    ///
    /// Default: the rest of [`PoolBuilder::queue_timeout`].
    #[must_use]
    pub fn worker_timeout(mut self, time: Duration) -> Self {
        self.worker_timeout = Some(time);
        self
    }

    /// Sets the number of forks before a zygote is replaced. Default 1,000.
    ///
    /// Forks share the zygote's address layout and hash secrets.
    #[must_use]
    pub fn rotate_after(mut self, runs: u64) -> Self {
        self.settings.rotate_after = runs;
        self
    }

    /// Sets the age at which a zygote is replaced. Default 30 min.
    #[must_use]
    pub fn rotate_interval(mut self, time: Duration) -> Self {
        self.settings.rotate_interval = time;
        self
    }

    /// Sets the time without requests after which zygote and idle workers end. Default 10 min; none keeps
    /// them.
    ///
    /// The next request starts them again.
    #[must_use]
    pub fn idle_shutdown(mut self, time: Option<Duration>) -> Self {
        self.settings.idle = time;
        self
    }

    /// Sets how long a worker may take to become ready, with its warm-up. Default 10 s.
    ///
    /// A slower worker is killed and replaced.
    #[must_use]
    pub fn ready_timeout(mut self, time: Duration) -> Self {
        self.settings.ready_timeout = time;
        self
    }

    /// Sets how long a zygote may take to load its modules. Default 60 s.
    ///
    /// A slower zygote is killed, and the pool retries later.
    #[must_use]
    pub fn load_timeout(mut self, time: Duration) -> Self {
        self.settings.load_timeout = time;
        self
    }

    /// Starts the pool and its first idle workers.
    ///
    /// On a host without support, the pool runs everything cold; [`PoolMetrics::unavailable`] and the reports
    /// name the reason.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for a number or time of zero, [`Error::InvalidName`] for an invalid module or
    /// a Python option with another language, and the errors of [`Sandbox::check_settings`].
    pub fn build(self) -> Result<Pool, Error> {
        self.check()?;
        let Self { settings, queue, wait, worker_timeout } = self;
        let gate = Gate {
            max_concurrency: settings.max_concurrency,
            queue,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let manager = Manager::start(settings.clone());
        Ok(Pool { manager, settings, wait, worker_timeout, gate, record: Mutex::default() })
    }

    /// Checks the settings without starting anything.
    ///
    /// # Errors
    /// Errors of [`PoolBuilder::build`].
    pub fn check(&self) -> Result<(), Error> {
        let settings = &self.settings;
        settings.sandbox.check_settings()?;
        let times = [
            ("rotate_interval", settings.rotate_interval),
            ("idle_shutdown", settings.idle.unwrap_or(Duration::MAX)),
            ("ready_timeout", settings.ready_timeout),
            ("load_timeout", settings.load_timeout),
        ];
        let numbers = [
            ("idle_workers", settings.idle_workers as u64),
            ("max_concurrency", settings.max_concurrency as u64),
            ("rotate_after", settings.rotate_after),
        ];
        let zero = numbers.into_iter().find(|(_, number)| *number == 0).map(|(name, _)| name);
        let zero = zero.or_else(|| times.into_iter().find(|(_, time)| time.is_zero()).map(|(name, _)| name));
        if let Some(name) = zero {
            return Err(Error::InvalidLimit { name, value: "0".into(), expected: "at least 1".into() });
        }
        if settings.idle_workers > 256 {
            let value = settings.idle_workers.to_string();
            return Err(Error::InvalidLimit { name: "idle_workers", value, expected: "at most 256".into() });
        }
        let reject = |what: &'static str, name: &str, reason: &str| {
            Err(Error::InvalidName { what, name: shorten(name), reason: reason.into() })
        };
        if settings.language != Some(Language::Python) {
            if let Some(name) = settings.preload.first() {
                return reject("module", name, "only a Python pool loads modules");
            }
            if settings.warm_up.is_some() {
                return reject("option", "warm_up", "only a Python pool runs a warm-up");
            }
            if settings.host_directories {
                return reject("option", "host_directories", "only a Python pool attaches host directories");
            }
        }
        if settings.preload.len() > MAX_MODULES {
            return reject("option", "preload", "it has more than 256 modules");
        }
        for name in &settings.preload {
            let is_part = |part: &str| {
                !part.is_empty()
                    && !part.starts_with(|letter: char| letter.is_ascii_digit())
                    && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
            };
            if name.len() > 256 || !name.split('.').all(is_part) {
                return reject("module", name, "a module's name has letters, digits, underscores and dots");
            }
        }
        if settings.warm_up.as_ref().is_some_and(|code| code.contains('\0')) {
            return reject("option", "warm_up", "it has a NUL byte");
        }
        Ok(())
    }
}

/// A [`Backend`] that runs each program in an idle sandbox, in about a millisecond.
///
/// Runs are as confined as cold ones, with the same verdicts, limits, files and events.
///
/// - **Python**: a zygote, an interpreter with the modules of [`PoolBuilder::preload`], runs in its own
///   sandbox. For each run it forks into fresh namespaces; the fork performs the steps of a cold run and
///   waits for its code. No two runs share a fork. Runs share only what the zygote loaded.
/// - **JavaScript**: a prewarmed interpreter waits for its code.
/// - **Other languages and programs**: a locked sandbox waits for the program to execute.
///
/// With [`PoolBuilder::host_directories`], the worker of a run attaches the host directory, protected as in a
/// cold run. Files that a warm-up left in the worker's own workspace are not visible then.
///
/// A request that does not match the pool runs cold with [`Processes`], and the report's notes name the
/// reason: another level, language, kernel limit or mount, or a read-only host directory. On a host without
/// support every request runs cold. Pooled Python differs from cold Python in two ways: arithmetic uses one
/// thread, and hash secrets and address layout are those of the zygote.
///
/// When a run returns, everything that its program started is dead. The sandbox's own first process,
/// namespaces and cgroups may need a moment longer, for at most 64 runs at a time. Dropping the pool waits
/// for them.
///
/// ```no_run
/// use std::sync::Arc;
/// use toolpost_sandbox::{Cancel, Language, Pool, Program, Sandbox};
///
/// let sandbox = Sandbox::new();
/// let pool = Pool::builder(&sandbox).language(Language::Python).preload(["json"]).build()?;
/// let outcome = sandbox.backend(Arc::new(pool)).run(
///     &Program::code(Language::Python, "6 * 7"),
///     &Cancel::new(),
///     &mut |_event| {},
/// )?;
/// assert_eq!(outcome.value, Some(42.into()));
/// # Ok::<(), toolpost_sandbox::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    settings: PoolSettings,
    wait: Duration,
    worker_timeout: Option<Duration>,
    gate: Gate,
    record: Mutex<Record>,
    manager: Manager,
}

#[derive(Debug, Default)]
struct Record {
    served: u64,
    cold: u64,
    overloaded: u64,
    latencies: VecDeque<Duration>,
}

impl Pool {
    /// Configures a pool for runs with the settings of `sandbox`.
    pub fn builder(sandbox: &Sandbox) -> PoolBuilder {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut sandbox = sandbox.clone();
        // A pool as its own backend would recurse forever.
        sandbox.backend = None;
        PoolBuilder {
            settings: PoolSettings {
                sandbox,
                language: None,
                idle_workers: 2,
                max_concurrency: processors * 2,
                preload: Vec::new(),
                warm_up: None,
                rotate_after: 1000,
                rotate_interval: Duration::from_mins(30),
                idle: Some(Duration::from_mins(10)),
                ready_timeout: Duration::from_secs(10),
                load_timeout: Duration::from_mins(1),
                host_directories: false,
            },
            queue: 64,
            wait: Duration::from_secs(10),
            worker_timeout: None,
        }
    }

    /// Returns the counters and the current state.
    pub fn metrics(&self) -> PoolMetrics {
        let (counts, ready, unavailable) = self.manager.counts();
        let (running, waiting) = self.gate.now();
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latencies: Vec<Duration> = record.latencies.iter().copied().collect();
        latencies.sort_unstable();
        let quantile = |part: usize| latencies.get(latencies.len().saturating_sub(1) * part / 100).copied();
        PoolMetrics {
            served: record.served,
            cold: record.cold,
            overloaded: record.overloaded,
            running,
            waiting,
            ready,
            forked: counts.forked,
            died: counts.died,
            rotated: counts.rotated,
            restarted: counts.restarted,
            latency_p50: quantile(50).unwrap_or_default(),
            latency_p90: quantile(90).unwrap_or_default(),
            latency_p99: quantile(99).unwrap_or_default(),
            preloaded: counts.preloaded,
            missing: counts.missing,
            unavailable,
        }
    }

    /// Returns why a request must run cold, if it must.
    fn cold_reason(&self, sandbox: &Sandbox, program: &Program) -> Option<String> {
        let own = &self.settings.sandbox;
        match (program, self.settings.language) {
            (Program::Code { language, .. }, Some(own)) if *language == own => {}
            (Program::Argv(_), None) => {}
            (_, Some(own)) => return Some(format!("the pool runs code in {own}")),
            (_, None) => return Some("the pool runs programs by their arguments".into()),
        }
        if sandbox.level != own.level || sandbox.allow_degraded != own.allow_degraded {
            return Some("the run needs another level than the pool has".into());
        }
        if sandbox.egress.is_some() {
            return Some("the run has an egress allowlist".into());
        }
        if matches!(sandbox.workspace, Workspace::ReadOnlyHost(_)) {
            return Some("the workspace is a read-only host directory".into());
        }
        if matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_))
            && !self.settings.host_directories
        {
            return Some("the workspace is a host directory; enable `PoolBuilder::host_directories`".into());
        }
        let level = own.level.unwrap_or(Level::Strict);
        if in_kernel(sandbox.limits_at(level), &own.limits_at(level)) != own.limits_at(level) {
            return Some("the run has other limits than the pool".into());
        }
        let has_grants =
            |sandbox: &Sandbox| !sandbox.read_write.is_empty() || !sandbox.raw_variables.is_empty();
        if has_grants(sandbox) || has_grants(own) {
            return Some("the run has grants".into());
        }
        if sandbox.read_only != own.read_only
            || sandbox.needs != own.needs
            || sandbox.search_path != own.search_path
            || sandbox.home != own.home
        {
            return Some("the run shows other files than the pool".into());
        }
        if !sandbox.arguments.is_empty() && self.settings.language.is_some() {
            return Some("the code has arguments".into());
        }
        if !sandbox.modules.is_empty() || !own.modules.is_empty() {
            return Some("the run has installed packages".into());
        }
        if sandbox.host.is_some() != own.host.is_some() {
            return Some("the run has other host facts".into());
        }
        let is_begun = self.settings.language == Some(Language::JavaScript);
        if is_begun && sandbox.directory != own.directory {
            return Some("the run starts in another directory".into());
        }
        let read = |sandbox: &Sandbox| {
            let mut names = sandbox.environment.to_vec();
            let is_python = self.settings.language == Some(Language::Python);
            names.retain(|(name, _)| {
                is_begun || (is_python && START_VARIABLES.iter().any(|prefix| name.starts_with(prefix)))
            });
            names
        };
        if read(sandbox) != read(own) {
            return Some("the run has other start-up variables".into());
        }
        None
    }

    fn cold(
        &self,
        request: &BackendRequest<'_>,
        reason: &str,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).cold += 1;
        let mut outcome = Processes.run(request, on_event)?;
        outcome.report.start_cold(reason);
        Ok(outcome)
    }
}

/// The limits of a request, with the pool's values for those that only the host enforces.
fn in_kernel(mut limits: Limits, own: &Limits) -> Limits {
    limits.wall = own.wall;
    limits.idle = own.idle;
    limits.stdout = own.stdout;
    limits.stderr = own.stderr;
    limits.output_total = own.output_total;
    limits.value_bytes = own.value_bytes;
    limits.artifacts = own.artifacts;
    limits.artifact_bytes = own.artifact_bytes;
    limits
}

impl Backend for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        Processes.availability(level)
    }

    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        let since = Instant::now();
        // A wait beyond the clock's range counts as unlimited.
        let until = since.checked_add(self.wait).unwrap_or(since + Duration::from_hours(24 * 365));
        let (sandbox, program, cancel) = (request.sandbox, request.program(), request.cancel());
        let _turn = match self.gate.enter(cancel, until) {
            Ok(turn) => turn,
            Err(error) => {
                self.record.lock().unwrap_or_else(PoisonError::into_inner).overloaded += 1;
                return Err(error);
            }
        };
        if let Some(reason) = self.cold_reason(sandbox, program) {
            return self.cold(request, &reason, on_event);
        }
        let until = self
            .worker_timeout
            .and_then(|within| Instant::now().checked_add(within))
            .map_or(until, |sooner| sooner.min(until));
        match self.manager.run(sandbox, program, cancel, until, on_event) {
            Dispatch::Run(result) => {
                let outcome = (*result)?;
                let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
                record.served += 1;
                if record.latencies.len() >= LATENCY_SAMPLES {
                    record.latencies.pop_front();
                }
                record.latencies.push_back(since.elapsed());
                Ok(outcome)
            }
            Dispatch::Cold(reason) => self.cold(request, &reason, on_event),
        }
    }
}

/// Bounds the number of concurrent runs.
#[derive(Debug)]
struct Gate {
    max_concurrency: usize,
    queue: usize,
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

struct Turn<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, (usize, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the numbers of running and waiting requests.
    fn now(&self) -> (usize, usize) {
        *self.lock()
    }

    fn enter(&self, cancel: &Cancel, until: Instant) -> Result<Turn<'_>, Error> {
        let mut state = self.lock();
        if state.0 >= self.max_concurrency {
            let overloaded = |(running, waiting): (usize, usize), reason: &str| Error::Overloaded {
                running,
                waiting,
                reason: reason.into(),
            };
            if state.1 >= self.queue {
                return Err(overloaded(*state, "the queue is full"));
            }
            state.1 += 1;
            while state.0 >= self.max_concurrency {
                let now = Instant::now();
                if now >= until {
                    state.1 -= 1;
                    return Err(overloaded(*state, "the queue wait timed out"));
                }
                // A cancelled request enters and ends at once.
                if cancel.is_cancelled() {
                    break;
                }
                let most = (until - now).min(Duration::from_millis(25));
                state = self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.1 -= 1;
        }
        state.0 += 1;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().0 -= 1;
        self.0.changed.notify_one();
    }
}

/// The counters and current state of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// Runs in an idle worker.
    pub served: u64,
    /// Cold runs, each with a reason in its report.
    pub cold: u64,
    /// Requests rejected with [`Error::Overloaded`].
    pub overloaded: u64,
    /// Current runs.
    pub running: usize,
    /// Queued requests.
    pub waiting: usize,
    /// Idle workers that are ready.
    pub ready: usize,
    /// Workers that were started.
    pub forked: u64,
    /// Workers that died or timed out before their run.
    pub died: u64,
    /// Zygotes replaced because of age.
    pub rotated: u64,
    /// Zygotes that ended unexpectedly.
    pub restarted: u64,
    /// The median time from request to outcome, of the last 1,024 pooled runs.
    pub latency_p50: Duration,
    /// The 90th percentile of the same times.
    pub latency_p90: Duration,
    /// The 99th percentile of the same times.
    pub latency_p99: Duration,
    /// The modules that the zygote loaded.
    pub preloaded: Vec<String>,
    /// The modules that it could not load, with reasons.
    pub missing: Vec<(String, String)>,
    /// The reason why there are no idle workers now; runs are cold meanwhile.
    pub unavailable: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(sandbox: &Sandbox) -> Pool {
        Pool::builder(sandbox).language(Language::Python).idle_shutdown(None).build().unwrap()
    }

    #[test]
    fn a_cold_run_names_its_reason() {
        let sandbox = Sandbox::new().level(Level::Strict);
        let pool = pool(&sandbox);
        let python = Program::code(Language::Python, "1");
        let cold_reason = |sandbox: Sandbox| pool.cold_reason(&sandbox, &python).unwrap_or_default();
        let limits = Limits::default;
        assert_eq!(cold_reason(sandbox.clone()), "");
        assert_eq!(cold_reason(sandbox.clone().limits(limits().with_wall(Duration::from_secs(1)))), "");
        assert_eq!(cold_reason(sandbox.clone().env("TOKEN", "x").directory("d")), "");
        assert!(cold_reason(sandbox.clone().limits(limits().with_memory(1 << 28))).contains("limits"));
        assert!(
            cold_reason(sandbox.clone().limits(limits().with_cpu(Duration::from_secs(1)))).contains("limits")
        );
        assert!(cold_reason(sandbox.clone().level(Level::Standard)).contains("level"));
        assert!(cold_reason(sandbox.clone().allow_degraded(true)).contains("level"));
        let within = sandbox.clone().workspace(Workspace::Host("/x".into()));
        assert!(cold_reason(within.clone()).contains("host_directories"));
        let attaching =
            Pool::builder(&sandbox).language(Language::Python).host_directories(true).build().unwrap();
        assert_eq!(attaching.cold_reason(&within, &python), None);
        assert!(
            cold_reason(sandbox.clone().workspace(Workspace::ReadOnlyHost("/x".into())))
                .contains("workspace")
        );
        assert!(cold_reason(sandbox.clone().read_only("/opt")).contains("shows"));
        assert!(cold_reason(sandbox.clone().search_path("/opt/bin")).contains("shows"));
        assert!(cold_reason(sandbox.clone().env("PYTHONHASHSEED", "0")).contains("variables"));
        assert!(cold_reason(sandbox.clone().host(crate::Host::probe().clone())).contains("facts"));
        let other = pool.cold_reason(&sandbox, &Program::code(Language::Bash, "1")).unwrap();
        assert!(other.contains("python"), "{other}");
        assert!(pool.cold_reason(&sandbox, &Program::argv(["true"])).is_some());
    }

    #[test]
    #[expect(clippy::large_stack_arrays, reason = "a row for each option")]
    fn invalid_options_are_rejected() {
        let builder = || Pool::builder(&Sandbox::new()).language(Language::Python);
        let zero = Duration::ZERO;
        for (name, builder) in [
            ("idle_workers", builder().idle_workers(0)),
            ("idle_workers", builder().idle_workers(257)),
            ("max_concurrency", builder().max_concurrency(0)),
            ("rotate_after", builder().rotate_after(0)),
            ("rotate_interval", builder().rotate_interval(zero)),
            ("idle_shutdown", builder().idle_shutdown(Some(zero))),
            ("ready_timeout", builder().ready_timeout(zero)),
            ("load_timeout", builder().load_timeout(zero)),
            ("os; import x", builder().preload(["os; import x"])),
            ("warm_up", builder().warm_up("a\0")),
            ("json", builder().language(Language::Bash).preload(["json"])),
            ("warm_up", builder().language(Language::Bash).warm_up("1")),
            ("host_directories", builder().language(Language::Bash).host_directories(true)),
        ] {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn a_gate_bounds_running_and_waiting_requests() {
        let gate = Gate { max_concurrency: 1, queue: 1, state: Mutex::default(), changed: Condvar::new() };
        let (cancel, later) = (Cancel::new(), Instant::now() + Duration::from_secs(20));
        let first = gate.enter(&cancel, later).unwrap();
        let late = gate.enter(&cancel, Instant::now()).err().unwrap().to_string();
        assert!(late.contains("timed out"), "{late}");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| gate.enter(&cancel, later).map(drop));
            while gate.now().1 == 0 {
                std::thread::yield_now();
            }
            let third = gate.enter(&cancel, later).err().unwrap().to_string();
            assert!(third.contains("queue is full"), "{third}");
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert_eq!(gate.now(), (0, 0));
    }
}
