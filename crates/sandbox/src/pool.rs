//! Sandboxes that are made ahead: a run then costs what its code costs, and little more.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::host::LevelAvailability;
use crate::level::shorten;
use crate::platform::pool::{Keeper, Taken};
use crate::{
    Backend, Cancel, Error, Event, Language, Level, Limits, Outcome, Processes, Program, Request, Sandbox,
    Workspace,
};

/// Durations from which the quantiles of the latency are taken: the last ones.
const MEASURED: usize = 1024;
/// Variables that an interpreter, or a library of arithmetic, reads when it starts: a spare has done so already.
const READ_AT_START: [&str; 8] = ["PYTHON", "LC_", "LANG", "OPENBLAS_", "OMP_", "MKL_", "NUMEXPR_", "TZ"];
const MOST_MODULES: usize = 256;

/// What a keeper works by.
#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    pub(crate) sandbox: Sandbox,
    pub(crate) language: Option<Language>,
    pub(crate) children: usize,
    pub(crate) most: usize,
    pub(crate) preload: Vec<String>,
    pub(crate) warm_up: Option<String>,
    pub(crate) rotate_after: u64,
    pub(crate) rotate_every: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) ready_within: Duration,
    pub(crate) load_within: Duration,
    pub(crate) host_folders: bool,
}

/// What a keeper has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolCounts {
    pub(crate) forked: u64,
    pub(crate) died: u64,
    pub(crate) rotated: u64,
    pub(crate) restarted: u64,
    pub(crate) preloaded: Vec<String>,
    pub(crate) missing: Vec<(String, String)>,
}

/// How a pool is made. Start with [`Pool::builder`], end with [`PoolBuilder::build`].
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    settings: PoolSettings,
    queue: usize,
    wait: Duration,
    spare_within: Option<Duration>,
}

impl PoolBuilder {
    /// Sets the language whose code the pool runs. Default none: it runs programs by their arguments.
    #[must_use]
    pub fn language(mut self, language: Language) -> Self {
        self.settings.language = Some(language);
        self
    }

    /// Sets the modules that Python loads before it is copied, for example those of a
    /// profile ([`crate::Profile::modules`]). Default none. What is not
    /// installed, cannot be loaded, or starts threads when it is loaded (a copy would miss them) is left out and named in
    /// [`PoolMetrics::missing`].
    #[must_use]
    pub fn preload<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        self.settings.preload = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Sets Python code that each child runs while it waits, in a namespace of its own, so that the pages that it
    /// touches are the child's own already. Default none. What it prints is lost; files that it makes stay. A child whose
    /// warm-up fails is not used.
    #[must_use]
    pub fn warm_up(mut self, code: impl Into<String>) -> Self {
        self.settings.warm_up = Some(code.into());
        self
    }

    /// Sets whether a folder of the host can be the workspace of a run in a spare ([`Workspace::Host`], at level
    /// `strict`). Default no: such requests run cold. Each spare is then locked by Landlock when it has its workspace and
    /// before it gets its code; a warm-up runs before.
    #[must_use]
    pub fn host_folders(mut self, host_folders: bool) -> Self {
        self.settings.host_folders = host_folders;
        self
    }

    /// Sets how many spares are kept ready. Default 2.
    #[must_use]
    pub fn children(mut self, children: usize) -> Self {
        self.settings.children = children;
        self
    }

    /// Sets how many runs go on at one time, cold ones included. Default twice the number of processors.
    #[must_use]
    pub fn most(mut self, most: usize) -> Self {
        self.settings.most = most;
        self
    }

    /// Sets how many requests may wait for their turn; one more gets [`Error::Overloaded`] at once. Default 64.
    #[must_use]
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how long a request waits for its turn before it gets [`Error::Overloaded`], and within the same time for a
    /// spare before it runs cold. Default 10 s.
    #[must_use]
    pub fn wait_limit(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long a request whose turn it is waits for a spare before it runs cold; zero is not at all. Default: what
    /// [`PoolBuilder::wait_limit`] leaves.
    #[must_use]
    pub fn spare_within(mut self, time: Duration) -> Self {
        self.spare_within = Some(time);
        self
    }

    /// Sets after how many children a zygote is replaced: they share its address layout and hash secrets. Default 1,000.
    #[must_use]
    pub fn rotate_after(mut self, runs: u64) -> Self {
        self.settings.rotate_after = runs;
        self
    }

    /// Sets after which time a zygote is replaced. Default 30 min.
    #[must_use]
    pub fn rotate_every(mut self, time: Duration) -> Self {
        self.settings.rotate_every = time;
        self
    }

    /// Sets after which time without a request zygote and spares are let go, until the next request. None keeps them.
    /// Default 10 min.
    #[must_use]
    pub fn idle_shutdown(mut self, time: Option<Duration>) -> Self {
        self.settings.idle = time;
        self
    }

    /// Sets how long a spare may take to become ready, its warm-up included; then it is killed and replaced.
    /// Default 10 s.
    #[must_use]
    pub fn ready_within(mut self, time: Duration) -> Self {
        self.settings.ready_within = time;
        self
    }

    /// Sets how long a zygote may take to load its modules; then it is killed, and another is tried later. Default 60 s.
    #[must_use]
    pub fn load_within(mut self, time: Duration) -> Self {
        self.settings.load_within = time;
        self
    }

    /// Starts the pool, which makes its first spares at once. A host that cannot have one gives a pool all the same: it
    /// runs everything cold, and [`PoolMetrics::unavailable`] and the reports say why.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for a number or time of zero, [`Error::InvalidName`] for a module that is no name or an
    /// option of Python for another language, and what [`Sandbox::check_settings`] refuses.
    pub fn build(self) -> Result<Pool, Error> {
        self.check()?;
        let Self { settings, queue, wait, spare_within } = self;
        let gate = Gate { most: settings.most, queue, state: Mutex::default(), changed: Condvar::new() };
        let keeper = Keeper::start(settings.clone());
        Ok(Pool { keeper, settings, wait, spare_within, gate, record: Mutex::default() })
    }

    /// Looks at the options without starting anything.
    ///
    /// # Errors
    /// Those of [`PoolBuilder::build`].
    pub fn check(&self) -> Result<(), Error> {
        let settings = &self.settings;
        settings.sandbox.check_settings()?;
        let times = [
            ("rotate_every", settings.rotate_every),
            ("idle_shutdown", settings.idle.unwrap_or(Duration::MAX)),
            ("ready_within", settings.ready_within),
            ("load_within", settings.load_within),
        ];
        let numbers = [
            ("children", settings.children as u64),
            ("most", settings.most as u64),
            ("rotate_after", settings.rotate_after),
        ];
        let zero = numbers.into_iter().find(|(_, number)| *number == 0).map(|(name, _)| name);
        let zero = zero.or_else(|| times.into_iter().find(|(_, time)| time.is_zero()).map(|(name, _)| name));
        if let Some(name) = zero {
            return Err(Error::InvalidLimit { name, value: "0".into(), expected: "at least 1".into() });
        }
        if settings.children > 256 {
            let value = settings.children.to_string();
            return Err(Error::InvalidLimit { name: "children", value, expected: "at most 256".into() });
        }
        let refuse = |what: &'static str, name: &str, reason: &str| {
            Err(Error::InvalidName { what, name: shorten(name), reason: reason.into() })
        };
        if settings.language != Some(Language::Python) {
            if let Some(name) = settings.preload.first() {
                return refuse("module", name, "only a pool of Python loads modules");
            }
            if settings.warm_up.is_some() {
                return refuse("option", "warm_up", "only a pool of Python warms its children up");
            }
            if settings.host_folders {
                return refuse(
                    "option",
                    "host_folders",
                    "only a pool of Python attaches folders of the host",
                );
            }
        }
        if settings.preload.len() > MOST_MODULES {
            return refuse("option", "preload", "it has more than 256 modules");
        }
        for name in &settings.preload {
            let is_part = |part: &str| {
                !part.is_empty()
                    && !part.starts_with(|letter: char| letter.is_ascii_digit())
                    && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
            };
            if name.len() > 256 || !name.split('.').all(is_part) {
                return refuse("module", name, "a module's name has letters, digits, underscores and dots");
            }
        }
        if settings.warm_up.as_ref().is_some_and(|code| code.contains('\0')) {
            return refuse("option", "warm_up", "it has a NUL byte");
        }
        Ok(())
    }
}

/// Sandboxes that are made ahead and run one program each: a [`Backend`] whose runs are as confined as cold ones, with
/// the same verdicts, limits, files and events, and start in about a millisecond.
///
/// - **Python**: an interpreter that has loaded [`PoolBuilder::preload`] (a zygote) lives in a sandbox of its own. For
///   each run it makes a copy of itself in fresh namespaces, which carries out the steps of a cold run and then waits for
///   its code. No two runs share a copy; nothing goes from one run to another but what the zygote loaded.
/// - **JavaScript**: the interpreter is started ahead and waits for the end of its code.
/// - **Every other language, and arguments**: a locked sandbox waits and is told which program to become.
///
/// With [`PoolBuilder::host_folders`] a folder of the host as workspace is attached to the spare that gets the program,
/// protected as in a cold run. What a warm-up left in the spare's own workspace is not there then.
///
/// A request that does not fit (another level, other limits of the kernel, a folder of the host that is only read,
/// another language, other things to show) runs cold, by [`Processes`], and its report's notes say why. The same goes
/// for a host that cannot have the pool. What differs from a cold run of Python: arithmetic has one thread, and the hash secrets and
/// the address layout are those of the zygote until it is replaced.
///
/// When a run returns, everything that its program started is dead. What the sandbox itself was made of (its first
/// process, which is killed, its namespaces and its control groups) may go a moment later, at most 64 runs at a time;
/// dropping the pool waits for all of it.
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
    spare_within: Option<Duration>,
    gate: Gate,
    record: Mutex<Record>,
    keeper: Keeper,
}

#[derive(Debug, Default)]
struct Record {
    served: u64,
    cold: u64,
    overloaded: u64,
    latencies: VecDeque<Duration>,
}

impl Pool {
    /// How the note begins in the report of a run that no spare served; the reason follows.
    pub const COLD: &'static str = "it ran cold, not in a spare of the pool";

    /// A pool for runs with these settings, with the defaults of every option.
    pub fn builder(sandbox: &Sandbox) -> PoolBuilder {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut sandbox = sandbox.clone();
        // A pool that is its own backend would never end.
        sandbox.backend = None;
        PoolBuilder {
            settings: PoolSettings {
                sandbox,
                language: None,
                children: 2,
                most: processors * 2,
                preload: Vec::new(),
                warm_up: None,
                rotate_after: 1000,
                rotate_every: Duration::from_mins(30),
                idle: Some(Duration::from_mins(10)),
                ready_within: Duration::from_secs(10),
                load_within: Duration::from_mins(1),
                host_folders: false,
            },
            queue: 64,
            wait: Duration::from_secs(10),
            spare_within: None,
        }
    }

    /// What the pool has done so far, and what it is doing.
    pub fn metrics(&self) -> PoolMetrics {
        let (counts, ready, unavailable) = self.keeper.counts();
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
            latency: quantile(50).unwrap_or_default(),
            latency_90: quantile(90).unwrap_or_default(),
            latency_99: quantile(99).unwrap_or_default(),
            preloaded: counts.preloaded,
            missing: counts.missing,
            unavailable,
        }
    }

    /// Why a request cannot be served by a spare.
    fn misfit(&self, sandbox: &Sandbox, program: &Program) -> Option<String> {
        let own = &self.settings.sandbox;
        match (program, self.settings.language) {
            (Program::Code { language, .. }, Some(own)) if *language == own => {}
            (Program::Argv(_), None) => {}
            (_, Some(own)) => return Some(format!("the pool runs code in {own}")),
            (_, None) => return Some("the pool runs programs by their arguments".into()),
        }
        if sandbox.level != own.level || sandbox.allow_degraded != own.allow_degraded {
            return Some("another level was asked for than the pool has".into());
        }
        if sandbox.egress.is_some() {
            return Some("the run is to have a way out".into());
        }
        if matches!(sandbox.workspace, Workspace::ReadOnlyHost(_)) {
            return Some("the workspace is a folder of the host that is only read".into());
        }
        if matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_))
            && !self.settings.host_folders
        {
            return Some(
                "the workspace is a folder of the host, which spares get with `PoolBuilder::host_folders`"
                    .into(),
            );
        }
        let level = own.level.unwrap_or(Level::Strict);
        if in_kernel(sandbox.limits_at(level), &own.limits_at(level)) != own.limits_at(level) {
            return Some("other limits were asked for than the pool's spares have".into());
        }
        let has_grants =
            |sandbox: &Sandbox| !sandbox.read_write.is_empty() || !sandbox.raw_variables.is_empty();
        if has_grants(sandbox) || has_grants(own) {
            return Some("the run has grants of its own".into());
        }
        if sandbox.read_only != own.read_only || sandbox.search_path != own.search_path {
            return Some("other files are to be shown than the pool's spares show".into());
        }
        if !sandbox.arguments.is_empty() && self.settings.language.is_some() {
            return Some("the code has arguments, which the pool's spares do not get".into());
        }
        if !sandbox.packages.is_empty() || !own.packages.is_empty() {
            return Some("packages were installed for the run, which the pool's spares do not have".into());
        }
        if sandbox.host.is_some() != own.host.is_some() {
            return Some("other facts about the host were given".into());
        }
        let is_begun = self.settings.language == Some(Language::JavaScript);
        if is_begun && sandbox.directory != own.directory {
            return Some("the interpreter was started in another folder".into());
        }
        let read = |sandbox: &Sandbox| {
            let mut names = sandbox.environment.to_vec();
            let is_python = self.settings.language == Some(Language::Python);
            names.retain(|(name, _)| {
                is_begun || (is_python && READ_AT_START.iter().any(|prefix| name.starts_with(prefix)))
            });
            names
        };
        if read(sandbox) != read(own) {
            return Some("the interpreter was started with other variables".into());
        }
        None
    }

    fn cold(
        &self,
        request: &Request<'_>,
        reason: &str,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, Error> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).cold += 1;
        let mut outcome = Processes.run(request, on_event)?;
        outcome.report.notes.push(format!("{}: {reason}", Self::COLD));
        Ok(outcome)
    }
}

/// The limits of a request with those of the pool in the places that only the host's side looks at.
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

    fn run(&self, request: &Request<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error> {
        let since = Instant::now();
        // A wait that no clock can hold is one without an end.
        let until = since.checked_add(self.wait).unwrap_or(since + Duration::from_hours(24 * 365));
        let (sandbox, program, cancel) = (request.sandbox, request.program(), request.cancel());
        let _turn = match self.gate.enter(cancel, until) {
            Ok(turn) => turn,
            Err(error) => {
                self.record.lock().unwrap_or_else(PoisonError::into_inner).overloaded += 1;
                return Err(error);
            }
        };
        if let Some(reason) = self.misfit(sandbox, program) {
            return self.cold(request, &reason, on_event);
        }
        let until = self
            .spare_within
            .and_then(|within| Instant::now().checked_add(within))
            .map_or(until, |sooner| sooner.min(until));
        match self.keeper.run(sandbox, program, cancel, until, on_event) {
            Taken::Run(result) => {
                let outcome = (*result)?;
                let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
                record.served += 1;
                if record.latencies.len() >= MEASURED {
                    record.latencies.pop_front();
                }
                record.latencies.push_back(since.elapsed());
                Ok(outcome)
            }
            Taken::Cold(reason) => self.cold(request, &reason, on_event),
        }
    }
}

/// Lets so many in at one time.
#[derive(Debug)]
struct Gate {
    most: usize,
    queue: usize,
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

struct Turn<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, (usize, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are inside, and how many wait.
    fn now(&self) -> (usize, usize) {
        *self.lock()
    }

    fn enter(&self, cancel: &Cancel, until: Instant) -> Result<Turn<'_>, Error> {
        let mut state = self.lock();
        if state.0 >= self.most {
            let overloaded = |(running, waiting): (usize, usize), reason: &str| Error::Overloaded {
                running,
                waiting,
                reason: reason.into(),
            };
            if state.1 >= self.queue {
                return Err(overloaded(*state, "the queue is full"));
            }
            state.1 += 1;
            while state.0 >= self.most {
                let now = Instant::now();
                if now >= until {
                    state.1 -= 1;
                    return Err(overloaded(*state, "its turn did not come in time"));
                }
                // Who was cancelled is let in, to end at once.
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

/// What a pool has done so far, and what it is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// Runs in a spare.
    pub served: u64,
    /// Runs that were cold, each with a reason in its report.
    pub cold: u64,
    /// Requests that were refused with [`Error::Overloaded`].
    pub overloaded: u64,
    /// Runs that go on.
    pub running: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Spares that are ready.
    pub ready: usize,
    /// Spares that were begun.
    pub forked: u64,
    /// Spares that died, or were not ready in time, before they were used.
    pub died: u64,
    /// Zygotes that were replaced because of their age.
    pub rotated: u64,
    /// Zygotes that ended by themselves.
    pub restarted: u64,
    /// The median time from request to outcome of the last 1,024 runs in a spare.
    pub latency: Duration,
    /// The time that nine of ten of them took at most.
    pub latency_90: Duration,
    /// The time that 99 of 100 of them took at most.
    pub latency_99: Duration,
    /// The modules that were loaded.
    pub preloaded: Vec<String>,
    /// The modules that were not, and why.
    pub missing: Vec<(String, String)>,
    /// Why no spare can be had at the moment; runs are cold meanwhile.
    pub unavailable: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(sandbox: &Sandbox) -> Pool {
        Pool::builder(sandbox).language(Language::Python).idle_shutdown(None).build().unwrap()
    }

    #[test]
    fn what_a_spare_cannot_have_is_named() {
        let sandbox = Sandbox::new().level(Level::Strict);
        let pool = pool(&sandbox);
        let python = Program::code(Language::Python, "1");
        let misfit = |sandbox: Sandbox| pool.misfit(&sandbox, &python).unwrap_or_default();
        let limits = Limits::default;
        assert_eq!(misfit(sandbox.clone()), "");
        assert_eq!(misfit(sandbox.clone().limits(limits().with_wall(Duration::from_secs(1)))), "");
        assert_eq!(misfit(sandbox.clone().env("TOKEN", "x").directory("d")), "");
        assert!(misfit(sandbox.clone().limits(limits().with_memory(1 << 28))).contains("limits"));
        assert!(misfit(sandbox.clone().limits(limits().with_cpu(Duration::from_secs(1)))).contains("limits"));
        assert!(misfit(sandbox.clone().level(Level::Standard)).contains("level"));
        assert!(misfit(sandbox.clone().allow_degraded(true)).contains("level"));
        let within = sandbox.clone().workspace(Workspace::Host("/x".into()));
        assert!(misfit(within.clone()).contains("host_folders"));
        let attaching =
            Pool::builder(&sandbox).language(Language::Python).host_folders(true).build().unwrap();
        assert_eq!(attaching.misfit(&within, &python), None);
        assert!(
            misfit(sandbox.clone().workspace(Workspace::ReadOnlyHost("/x".into()))).contains("workspace")
        );
        assert!(misfit(sandbox.clone().read_only("/opt")).contains("shown"));
        assert!(misfit(sandbox.clone().search_path("/opt/bin")).contains("shown"));
        assert!(misfit(sandbox.clone().env("PYTHONHASHSEED", "0")).contains("variables"));
        assert!(misfit(sandbox.clone().host(crate::Host::probe().clone())).contains("facts"));
        let other = pool.misfit(&sandbox, &Program::code(Language::Bash, "1")).unwrap();
        assert!(other.contains("python"), "{other}");
        assert!(pool.misfit(&sandbox, &Program::argv(["true"])).is_some());
    }

    #[test]
    #[expect(clippy::large_stack_arrays, reason = "a row for each option")]
    fn options_that_mean_nothing_are_refused() {
        let builder = || Pool::builder(&Sandbox::new()).language(Language::Python);
        let zero = Duration::ZERO;
        for (name, builder) in [
            ("children", builder().children(0)),
            ("children", builder().children(257)),
            ("most", builder().most(0)),
            ("rotate_after", builder().rotate_after(0)),
            ("rotate_every", builder().rotate_every(zero)),
            ("idle_shutdown", builder().idle_shutdown(Some(zero))),
            ("ready_within", builder().ready_within(zero)),
            ("load_within", builder().load_within(zero)),
            ("os; import x", builder().preload(["os; import x"])),
            ("warm_up", builder().warm_up("a\0")),
            ("json", builder().language(Language::Bash).preload(["json"])),
            ("warm_up", builder().language(Language::Bash).warm_up("1")),
            ("host_folders", builder().language(Language::Bash).host_folders(true)),
        ] {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn a_gate_lets_so_many_in_and_so_many_wait() {
        let gate = Gate { most: 1, queue: 1, state: Mutex::default(), changed: Condvar::new() };
        let (cancel, later) = (Cancel::new(), Instant::now() + Duration::from_secs(20));
        let first = gate.enter(&cancel, later).unwrap();
        let late = gate.enter(&cancel, Instant::now()).err().unwrap().to_string();
        assert!(late.contains("in time"), "{late}");
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
