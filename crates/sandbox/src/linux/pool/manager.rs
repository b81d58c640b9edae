//! The thread that keeps workers ready: it starts zygotes and children, replaces those that die, and lets old ones go.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::super::attend::attend;
use super::super::supervise::{Cleaner, Running};
use super::base::Base;
use super::host_directory;
use super::worker::{Making, Progress, Worker, code_fits};
use super::zygote::{Hello, Load, Word, Zygote};
use crate::pool::{PoolCounts, PoolSettings};
use crate::{Cancel, Error, Event, Outcome, Program, Sandbox, Workspace};

/// After a failure the next attempt waits this long, and twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// After so many failures in a row runs no longer wait for a worker.
const PATIENCE: u32 = 3;
/// At most so many modules are left out because they start threads.
const MOST_THREADED: usize = 32;
/// Spares that are made at the same time.
const AT_ONCE: usize = 4;
/// A run is not disturbed for so long by the making of what replaces its worker, unless no other is ready.
const QUIET: Duration = Duration::from_millis(5);
/// So many runs are taken apart after their answer; one more is taken apart before.
const MOST_LEFT: usize = 64;

/// What a request gets.
pub(crate) enum Taken {
    /// It was run by a worker.
    Run(Box<Result<Outcome, Error>>),
    /// It runs cold, and why.
    Cold(String),
}

/// The manager's thread. Dropped, it ends with all that it made.
#[derive(Debug)]
pub(crate) struct Manager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    settings: PoolSettings,
    base: Result<Base, String>,
    state: Mutex<State>,
    changed: Condvar,
    wake: Option<OwnedFd>,
    /// Wakes the thread a moment after the last worker was taken.
    timer: Option<OwnedFd>,
}

#[derive(Debug)]
struct State {
    ready: VecDeque<Worker>,
    /// When the workers were taken whose runs go on.
    taken: VecDeque<Instant>,
    /// Runs that have their answer, and whose first process is on its way out.
    left: Vec<Running>,
    stop: bool,
    asleep: bool,
    /// Requests that wait for a worker.
    waiting: usize,
    /// Why no worker can be had.
    unavailable: Option<String>,
    last_used: Instant,
    counts: PoolCounts,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A counter that is full is readable all the same.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Wakes the thread later.
    fn wake_after(&self, pause: Duration) {
        let Some(timer) = &self.timer else { return self.wake() };
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: none, it_value: value };
        if timerfd_settime(timer, TimerfdTimerFlags::empty(), &setting).is_err() {
            self.wake();
        }
    }
}

impl Cleaner for Shared {
    fn clean(&self, running: Running) {
        running.child.kill();
        let mut state = self.lock();
        if state.left.len() < MOST_LEFT {
            state.left.push(running);
        } else {
            drop(state);
            drop(running);
        }
    }
}

impl Manager {
    /// Starts the thread, which makes the first workers at once.
    pub(crate) fn start(settings: PoolSettings) -> Self {
        let base = Base::new(&settings).map_err(|error| error.to_string());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
        let unavailable = base.as_ref().err().cloned();
        let state = State {
            ready: VecDeque::new(),
            taken: VecDeque::new(),
            left: Vec::new(),
            stop: false,
            asleep: false,
            waiting: 0,
            unavailable,
            last_used: Instant::now(),
            counts: PoolCounts::default(),
        };
        let shared = Arc::new(Shared {
            settings,
            base,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake,
            timer,
        });
        let mut thread = None;
        if shared.base.is_ok() {
            let theirs = Arc::clone(&shared);
            // The first process of a sandbox dies with the thread that made it: this one lives as long as the pool.
            let spawned = std::thread::Builder::new()
                .name("toolpost-pool".into())
                .spawn(move || Workshop::new(&theirs).keep());
            match spawned {
                Ok(handle) => thread = Some(handle),
                Err(error) => {
                    shared.lock().unavailable = Some(format!("the pool's thread did not start: {error}"));
                }
            }
        }
        Self { shared, thread }
    }

    /// Runs a program in a worker, as soon as there is one before `until`.
    pub(crate) fn run(
        &self,
        sandbox: &Sandbox,
        program: &Program,
        cancel: &Cancel,
        until: Instant,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Taken {
        let base = match &self.shared.base {
            Ok(base) => base,
            Err(reason) => return Taken::Cold(reason.clone()),
        };
        let ready = match base.ready(sandbox, program) {
            Ok(Some(ready)) => ready,
            Ok(None) => return Taken::Cold("the pool does not show all that the program needs".into()),
            Err(error) => return Taken::Run(Box::new(Err(error))),
        };
        if matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_)) && !base.attaches {
            let reason =
                "at level `standard` a folder of the host stands at its own path, which workers do not have";
            return Taken::Cold(reason.into());
        }
        if let Program::Code { source, .. } = program
            && base.begins()
            && !code_fits(source)
        {
            return Taken::Cold("the code is larger than an interpreter that was started ahead takes".into());
        }
        // One that dies at the very moment in which it is told is replaced.
        for _ in 0..3 {
            let since = Instant::now();
            let worker = match self.take(cancel, until) {
                Ok(worker) => worker,
                Err(reason) => return Taken::Cold(reason),
            };
            let cleaner: Arc<dyn Cleaner> = Arc::<Shared>::clone(&self.shared);
            let result = match worker.begin(base, sandbox, &ready, cleaner) {
                Ok(started) => Some(attend(started, sandbox, since, cancel, on_event)),
                Err(Error::Setup { step, .. }) if step.starts_with("tell worker") => None,
                Err(Error::Setup { step, source }) if step == host_directory::STEP => {
                    self.ended(false);
                    return Taken::Cold(format!("this host cannot attach a folder to a worker: {source}"));
                }
                Err(error) => Some(Err(error)),
            };
            self.ended(result.is_none());
            if let Some(result) = result {
                return Taken::Run(Box::new(result));
            }
        }
        Taken::Cold("three workers died when they were told what to run".into())
    }

    /// A worker, or why there is none.
    fn take(&self, cancel: &Cancel, until: Instant) -> Result<Worker, String> {
        let mut state = self.shared.lock();
        state.waiting += 1;
        if state.asleep {
            state.asleep = false;
            self.shared.wake();
        }
        let (mut state, taken) = self.wait_for_one(state, cancel, until);
        state.waiting -= 1;
        let now = Instant::now();
        state.last_used = now;
        let is_last = state.ready.is_empty();
        if taken.is_ok() {
            state.taken.push_back(now);
        }
        drop(state);
        match (&taken, is_last) {
            (Ok(_), true) => self.shared.wake(),
            (Ok(_), false) => self.shared.wake_after(QUIET),
            (Err(_), _) => {}
        }
        taken
    }

    /// A run has its answer: what replaces its worker can be made, and what is left of it taken apart.
    fn ended(&self, has_died: bool) {
        let mut state = self.shared.lock();
        // The first one: those that go on for long no longer hold anything back.
        state.taken.pop_front();
        state.counts.died += u64::from(has_died);
        drop(state);
        self.shared.wake();
    }

    fn wait_for_one<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        cancel: &Cancel,
        until: Instant,
    ) -> (MutexGuard<'a, State>, Result<Worker, String>) {
        loop {
            while let Some(worker) = state.ready.pop_front() {
                if !worker.is_lost() {
                    return (state, Ok(worker));
                }
                state.counts.died += 1;
                // Its end is waited for, which nobody else has to.
                drop(state);
                drop(worker);
                state = self.shared.lock();
            }
            if let Some(reason) = &state.unavailable {
                let reason = reason.clone();
                return (state, Err(reason));
            }
            let now = Instant::now();
            if now >= until {
                return (state, Err("no worker was ready in time".into()));
            }
            if cancel.is_cancelled() {
                return (state, Err("it was cancelled before a worker was ready".into()));
            }
            let most = (until - now).min(Duration::from_millis(25));
            state = self.shared.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What has been counted, and how many are ready.
    pub(crate) fn counts(&self) -> (PoolCounts, usize, Option<String>) {
        let state = self.shared.lock();
        (state.counts.clone(), state.ready.len(), state.unavailable.clone())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        let (ready, left) = (std::mem::take(&mut state.ready), std::mem::take(&mut state.left));
        drop(state);
        drop((ready, left));
    }
}

/// What the thread works on.
struct Workshop<'a> {
    shared: &'a Shared,
    making: Vec<Making>,
    /// Runs whose first process is on its way out.
    left: Vec<Running>,
    zygote: Option<Arc<Zygote>>,
    /// The one that has not loaded yet.
    next: Option<Arc<Zygote>>,
    complaint: Vec<u8>,
    load: Load,
    hello: Hello,
    left_out: Vec<(String, String)>,
    number: u64,
    failures: u32,
    not_before: Instant,
}

impl<'a> Workshop<'a> {
    fn new(shared: &'a Shared) -> Self {
        let settings = &shared.settings;
        Self {
            shared,
            making: Vec::new(),
            left: Vec::new(),
            zygote: None,
            next: None,
            complaint: Vec::new(),
            load: Load { modules: settings.preload.clone(), warm_up: settings.warm_up.clone() },
            hello: Hello::default(),
            left_out: Vec::new(),
            number: 0,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    fn keep(mut self) {
        let Ok(base) = &self.shared.base else { return };
        loop {
            let Some(wanted) = self.wanted() else { return };
            self.make(base, wanted);
            self.wait();
            self.hear();
            self.collect(base);
            self.left.retain(|running| !is_readable(running.child.pidfd.as_fd()));
        }
    }

    /// How many workers are missing; none if the pool ends. Those that died while they waited are let go.
    fn wanted(&mut self) -> Option<usize> {
        let settings = &self.shared.settings;
        let mut state = self.shared.lock();
        if state.stop {
            return None;
        }
        let before = state.ready.len();
        state.ready.retain(|worker| !is_readable(worker.pidfd()));
        let died = before - state.ready.len();
        state.counts.died += died as u64;
        self.left.append(&mut state.left);
        if let Some(idle) = settings.idle
            && !state.asleep
            && state.waiting == 0
            // While it gets ready it is not idle.
            && (state.ready.len() >= settings.idle_workers || state.unavailable.is_some())
            && state.last_used.elapsed() >= idle
        {
            state.asleep = true;
        }
        if state.asleep {
            let gone: Vec<Worker> = state.ready.drain(..).collect();
            drop(state);
            drop(gone);
            self.making.clear();
            (self.zygote, self.next) = (None, None);
            return Some(0);
        }
        state.taken.retain(|taken| taken.elapsed() < QUIET);
        let later = if state.ready.is_empty() { 0 } else { state.taken.len() };
        Some(settings.idle_workers.saturating_sub(state.ready.len() + self.making.len() + later))
    }

    fn make(&mut self, base: &Base, wanted: usize) {
        if Instant::now() < self.not_before || self.shared.lock().asleep {
            return;
        }
        if base.forks() {
            self.renew(base);
        }
        for _ in 0..wanted.min(AT_ONCE.saturating_sub(self.making.len())) {
            self.number += 1;
            let made = match &self.zygote {
                Some(zygote) if base.forks() => Making::of_zygote(base, zygote, self.number),
                None if base.forks() => return,
                _ => Making::waiting(base, self.number),
            };
            match made {
                Ok(making) => {
                    self.shared.lock().counts.forked += 1;
                    self.making.push(making);
                }
                Err(error) => return self.failed(&error.to_string()),
            }
        }
    }

    /// Starts a zygote where there is none, or where it is time for another.
    fn renew(&mut self, base: &Base) {
        let settings = &self.shared.settings;
        let is_old = self.zygote.as_ref().is_some_and(|zygote| {
            zygote.forked.load(Ordering::Relaxed) >= settings.rotate_after
                || zygote.born.elapsed() >= settings.rotate_interval
        });
        if self.next.is_some() || (self.zygote.is_some() && !is_old) {
            return;
        }
        self.complaint.clear();
        match Zygote::start(base, &self.load, settings.idle_workers + settings.max_concurrency) {
            Ok(zygote) => self.next = Some(zygote),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// Waits for something to happen.
    fn wait(&self) {
        let state = self.shared.lock();
        // A worker that dies while it waits is noticed at the next look, or by the run that takes it.
        let pidfds: Vec<OwnedFd> = state
            .ready
            .iter()
            .filter_map(|worker| rustix::io::fcntl_dupfd_cloexec(worker.pidfd(), 16).ok())
            .collect();
        let has_work =
            state.ready.len() + self.making.len() < self.shared.settings.idle_workers && !state.asleep;
        drop(state);
        let mut waiting: Vec<PollFd<'_>> = Vec::new();
        let mut add = |descriptor| waiting.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        self.shared.wake.iter().chain(&self.shared.timer).for_each(|wake| add(wake.as_fd()));
        for zygote in self.zygote.iter().chain(&self.next) {
            add(zygote.channel());
            add(zygote.control());
            add(zygote.errors());
        }
        self.making.iter().flat_map(Making::descriptors).for_each(&mut add);
        for pidfd in &pidfds {
            add(pidfd.as_fd());
        }
        for running in &self.left {
            add(running.child.pidfd.as_fd());
        }
        let now = Instant::now();
        let mut most = Duration::from_secs(1);
        if has_work && self.not_before > now {
            most = most.min(self.not_before - now);
        }
        for making in &self.making {
            most =
                most.min((making.since + self.shared.settings.ready_timeout).saturating_duration_since(now));
        }
        let most = most.max(Duration::from_millis(1));
        let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut waiting, Some(&timeout));
        for wake in self.shared.wake.iter().chain(&self.shared.timer) {
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
    }

    /// Takes in what the zygotes say.
    fn hear(&mut self) {
        if let Some(next) = self.next.clone() {
            next.complaint(&mut self.complaint);
            match next.hear() {
                Word::Hello(hello) => self.loaded(next, hello),
                Word::None if next.born.elapsed() < self.shared.settings.load_timeout => {}
                Word::None => {
                    self.next = None;
                    self.failed("the zygote did not load in time");
                }
                _ => {
                    next.complaint(&mut self.complaint);
                    self.next = None;
                    let text = String::from_utf8_lossy(&self.complaint).into_owned();
                    let last =
                        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
                    self.failed(&format!("the zygote ended before it had loaded: {last}"));
                }
            }
        }
        while let Some(zygote) = self.zygote.clone() {
            zygote.complaint(&mut self.complaint);
            match zygote.hear() {
                Word::Made(number, pidfd) => {
                    let Some(at) = self.making.iter().position(|making| making.number == number) else {
                        continue;
                    };
                    if let Some(making) = self.making.get_mut(at)
                        && let Err(reason) = making.made(pidfd)
                    {
                        self.making.swap_remove(at);
                        self.died(&reason);
                    }
                }
                Word::Refused(number, error) => {
                    self.making.retain(|making| making.number != number);
                    let error = io::Error::from_raw_os_error(error);
                    self.died(&format!("start child in namespaces: {error}"));
                }
                Word::None if !is_readable(zygote.control()) => break,
                _ => {
                    // Children that it has made live on: their sandbox ends with the last of them.
                    self.zygote = None;
                    self.making.clear();
                    self.shared.lock().counts.restarted += 1;
                    self.failed("the zygote ended");
                }
            }
        }
    }

    /// A zygote has loaded: it takes the place of the one before.
    fn loaded(&mut self, zygote: Arc<Zygote>, hello: Hello) {
        self.next = None;
        if let Some(name) = hello.threaded.first()
            && self.left_out.len() < MOST_THREADED
        {
            self.load.modules.retain(|module| module != name);
            self.left_out.push((name.clone(), "it starts threads when it is loaded".into()));
            return;
        }
        let old = self.zygote.replace(zygote);
        self.hello = hello;
        let mut state = self.shared.lock();
        state.counts.preloaded.clone_from(&self.hello.loaded);
        state.counts.missing = self.hello.missing.iter().chain(&self.left_out).cloned().collect();
        let mut gone = VecDeque::new();
        if let Some(old) = old {
            state.counts.rotated += 1;
            (gone, state.ready) =
                std::mem::take(&mut state.ready).into_iter().partition(|worker| worker.is_of(&old));
        }
        drop(state);
        drop(gone);
        self.making.clear();
    }

    /// Takes in what the workers say that are being made.
    fn collect(&mut self, base: &Base) {
        let within = self.shared.settings.ready_timeout;
        let mut at = 0;
        while let Some(making) = self.making.get_mut(at) {
            let progress = match making.progress() {
                Progress::Pending if making.since.elapsed() >= within => {
                    Progress::Dead(format!("it was not ready within {within:?}"))
                }
                progress => progress,
            };
            match progress {
                Progress::Pending => at += 1,
                Progress::Dead(reason) => {
                    self.making.swap_remove(at);
                    self.died(&reason);
                }
                Progress::Ready => {
                    let making = self.making.swap_remove(at);
                    match making.finish(base, self.load.warm_up.is_some()) {
                        Ok(worker) => {
                            self.failures = 0;
                            let mut state = self.shared.lock();
                            state.unavailable = None;
                            state.last_used = Instant::now();
                            state.ready.push_back(worker);
                            drop(state);
                            self.shared.changed.notify_all();
                        }
                        Err(error) => self.died(&error.to_string()),
                    }
                }
            }
        }
    }

    fn died(&mut self, reason: &str) {
        self.shared.lock().counts.died += 1;
        self.failed(&format!("a worker died: {reason}"));
    }

    /// Something failed: the next attempt waits.
    fn failed(&mut self, reason: &str) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.not_before = Instant::now() + pause;
        self.failures = self.failures.saturating_add(1);
        if self.failures >= PATIENCE {
            self.shared.lock().unavailable = Some(reason.to_owned());
            self.shared.changed.notify_all();
        }
    }
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut waiting, Some(&now)).is_ok_and(|count| count > 0)
}
