//! The thread that maintains idle workers: starts zygotes and workers, replaces dead ones, ends old ones.

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
use super::super::supervise::{Cleaner, ProgramProcess};
use super::super::workspace::OpenedDirectory;
use super::base::Base;
use super::host_directory;
use super::worker::{PendingWorker, Progress, SEND, Worker, code_fits};
use super::zygote::{Hello, Load, Message, Zygote};
use crate::pool::{PoolCounts, PoolSettings};
use crate::{Cancel, Error, Outcome, Program, Sandbox, SandboxEvent, Workspace};

/// The pause after a failure, doubled after each further one.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// After this many failures in a row, requests no longer wait for a worker.
const MAX_FAILURES: u32 = 3;
/// The maximum number of modules skipped because they start threads.
const MAX_THREADED_MODULES: usize = 32;
/// The maximum number of workers that start at once.
const MAX_STARTING: usize = 4;
/// The pause before replacing a worker, so that its run is not slowed; skipped without other idle workers.
const REPLACEMENT_DELAY: Duration = Duration::from_millis(5);
/// The maximum number of sandboxes that are torn down after their run's answer; further ones before.
const MAX_ENDING: usize = 64;

/// The result of a request.
pub(crate) enum Dispatch {
    /// A worker ran it.
    Run(Box<Result<Outcome, Error>>),
    /// It must run cold, for this reason.
    Cold(String),
}

/// The pool's thread and shared state. Dropping it ends everything that it started.
#[derive(Debug)]
pub(crate) struct Manager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    settings: PoolSettings,
    base: Result<Base, String>,
    state: Mutex<ManagerState>,
    changed: Condvar,
    wake: Option<OwnedFd>,
    /// Wakes the thread some time after the last worker was taken.
    timer: Option<OwnedFd>,
}

#[derive(Debug)]
struct ManagerState {
    ready: VecDeque<Worker>,
    /// The start times of current runs.
    taken: VecDeque<Instant>,
    /// Answered runs whose first process is ending.
    ending: Vec<ProgramProcess>,
    stop: bool,
    asleep: bool,
    /// Requests waiting for a worker.
    waiting: usize,
    /// The reason why there are no workers.
    unavailable: Option<String>,
    last_used: Instant,
    counts: PoolCounts,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A full counter is readable too.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Wakes the thread after a pause.
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
    fn clean(&self, running: ProgramProcess) {
        running.child.kill();
        let mut state = self.lock();
        if state.ending.len() < MAX_ENDING {
            state.ending.push(running);
        } else {
            drop(state);
            drop(running);
        }
    }
}

impl Manager {
    /// Starts the thread and the first workers.
    pub(crate) fn start(settings: PoolSettings) -> Self {
        let base = Base::new(&settings).map_err(|error| error.to_string());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
        let unavailable = base.as_ref().err().cloned();
        let state = ManagerState {
            ready: VecDeque::new(),
            taken: VecDeque::new(),
            ending: Vec::new(),
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
            // The first process of a sandbox dies with the thread that started it; this one lives as long as
            // the pool.
            let spawned = std::thread::Builder::new()
                .name("toolpost-pool".into())
                .spawn(move || ManagerThread::new(&theirs).run());
            match spawned {
                Ok(handle) => thread = Some(handle),
                Err(error) => {
                    shared.lock().unavailable = Some(format!("the pool's thread did not start: {error}"));
                }
            }
        }
        Self { shared, thread }
    }

    /// Runs a program in a worker, if one is ready before `until`.
    pub(crate) fn run(
        &self,
        sandbox: &Sandbox,
        program: &Program,
        cancel: &Cancel,
        until: Instant,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Dispatch {
        let base = match &self.shared.base {
            Ok(base) => base,
            Err(reason) => return Dispatch::Cold(reason.clone()),
        };
        let ready = match base.ready(sandbox, program) {
            Ok(Some(ready)) => ready,
            Ok(None) => return Dispatch::Cold("the pool does not show all files of the program".into()),
            Err(error) => return Dispatch::Run(Box::new(Err(error))),
        };
        if matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_)) && !base.attaches {
            let reason = "at level `standard` workers cannot attach host directories";
            return Dispatch::Cold(reason.into());
        }
        if let Workspace::Host(path) = &sandbox.workspace
            && let Err(reason) = OpenedDirectory::check_layer(path, sandbox)
        {
            return Dispatch::Cold(reason);
        }
        if let Program::Code { source, .. } = program
            && base.begins()
            && !code_fits(source)
        {
            return Dispatch::Cold("the code is too large for a prewarmed interpreter".into());
        }
        // A worker that dies at this moment is replaced.
        for _ in 0..3 {
            let since = Instant::now();
            let worker = match self.take(cancel, until) {
                Ok(worker) => worker,
                Err(reason) => return Dispatch::Cold(reason),
            };
            let cleaner: Arc<dyn Cleaner> = Arc::<Shared>::clone(&self.shared);
            let result = match worker.begin(base, sandbox, &ready, cleaner) {
                Ok(started) => Some(attend(started, sandbox, since, cancel, on_event)),
                Err(Error::Setup { step, .. }) if step == SEND => None,
                Err(Error::Setup { step, source }) if step == host_directory::STEP => {
                    self.ended(false);
                    return Dispatch::Cold(format!(
                        "this host cannot attach a directory to a worker: {source}"
                    ));
                }
                Err(error) => Some(Err(error)),
            };
            self.ended(result.is_none());
            if let Some(result) = result {
                return Dispatch::Run(Box::new(result));
            }
        }
        Dispatch::Cold("three workers died when they got the program".into())
    }

    /// Takes a worker, or returns why there is none.
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
            (Ok(_), false) => self.shared.wake_after(REPLACEMENT_DELAY),
            (Err(_), _) => {}
        }
        taken
    }

    /// Counts a run as answered: its replacement and teardown may start.
    fn ended(&self, has_died: bool) {
        let mut state = self.shared.lock();
        // The oldest run: long runs must not delay replacements.
        state.taken.pop_front();
        state.counts.died += u64::from(has_died);
        drop(state);
        self.shared.wake();
    }

    fn wait_for_one<'a>(
        &'a self,
        mut state: MutexGuard<'a, ManagerState>,
        cancel: &Cancel,
        until: Instant,
    ) -> (MutexGuard<'a, ManagerState>, Result<Worker, String>) {
        loop {
            while let Some(worker) = state.ready.pop_front() {
                if !worker.is_lost() {
                    return (state, Ok(worker));
                }
                state.counts.died += 1;
                // No other thread waits for its end.
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
                return (state, Err("waiting for a worker timed out".into()));
            }
            if cancel.is_cancelled() {
                return (state, Err("the run was cancelled before a worker was ready".into()));
            }
            let pause = (until - now).min(Duration::from_millis(25));
            state = self.shared.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The counters and the number of idle workers.
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
        let (ready, left) = (std::mem::take(&mut state.ready), std::mem::take(&mut state.ending));
        drop(state);
        drop((ready, left));
    }
}

/// The state of the thread.
struct ManagerThread<'a> {
    shared: &'a Shared,
    making: Vec<PendingWorker>,
    /// Runs whose first process is ending.
    ending: Vec<ProgramProcess>,
    zygote: Option<Arc<Zygote>>,
    /// The zygote that is still loading.
    next: Option<Arc<Zygote>>,
    complaint: Vec<u8>,
    load: Load,
    hello: Hello,
    skipped_modules: Vec<(String, String)>,
    number: u64,
    failures: u32,
    not_before: Instant,
}

impl<'a> ManagerThread<'a> {
    fn new(shared: &'a Shared) -> Self {
        let settings = &shared.settings;
        Self {
            shared,
            making: Vec::new(),
            ending: Vec::new(),
            zygote: None,
            next: None,
            complaint: Vec::new(),
            load: Load { modules: settings.preload.clone(), warm_up: settings.warm_up.clone() },
            hello: Hello::default(),
            skipped_modules: Vec::new(),
            number: 0,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    fn run(mut self) {
        let Ok(base) = &self.shared.base else { return };
        loop {
            let Some(wanted) = self.missing_workers() else { return };
            self.make(base, wanted);
            self.wait();
            self.receive_messages();
            self.collect(base);
            self.ending.retain(|running| !is_readable(running.child.pidfd.as_fd()));
        }
    }

    /// Returns the number of missing workers; none if the pool ends. Dead idle workers are removed.
    fn missing_workers(&mut self) -> Option<usize> {
        let settings = &self.shared.settings;
        let mut state = self.shared.lock();
        if state.stop {
            return None;
        }
        let before = state.ready.len();
        state.ready.retain(|worker| !is_readable(worker.pidfd()));
        let died = before - state.ready.len();
        state.counts.died += died as u64;
        self.ending.append(&mut state.ending);
        if let Some(idle) = settings.idle
            && !state.asleep
            && state.waiting == 0
            // A pool that is still starting is not idle.
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
        state.taken.retain(|taken| taken.elapsed() < REPLACEMENT_DELAY);
        let later = if state.ready.is_empty() { 0 } else { state.taken.len() };
        Some(settings.idle_workers.saturating_sub(state.ready.len() + self.making.len() + later))
    }

    fn make(&mut self, base: &Base, wanted: usize) {
        if Instant::now() < self.not_before || self.shared.lock().asleep {
            return;
        }
        if base.forks() {
            self.rotate_zygote(base);
        }
        for _ in 0..wanted.min(MAX_STARTING.saturating_sub(self.making.len())) {
            self.number += 1;
            let made = match &self.zygote {
                Some(zygote) if base.forks() => PendingWorker::of_zygote(base, zygote, self.number),
                None if base.forks() => return,
                _ => PendingWorker::waiting(base, self.number),
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

    /// Starts a zygote if there is none, or if it is due for rotation.
    fn rotate_zygote(&mut self, base: &Base) {
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

    /// Waits for the next event.
    fn wait(&self) {
        let state = self.shared.lock();
        // A worker that dies while idle is noticed at the next check, or by the run that takes it.
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
        self.making.iter().flat_map(PendingWorker::descriptors).for_each(&mut add);
        for pidfd in &pidfds {
            add(pidfd.as_fd());
        }
        for running in &self.ending {
            add(running.child.pidfd.as_fd());
        }
        let now = Instant::now();
        let mut timeout = Duration::from_secs(1);
        if has_work && self.not_before > now {
            timeout = timeout.min(self.not_before - now);
        }
        for making in &self.making {
            timeout = timeout
                .min((making.since + self.shared.settings.ready_timeout).saturating_duration_since(now));
        }
        let timeout = timeout.max(Duration::from_millis(1));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let _ = poll(&mut waiting, Some(&timeout));
        for wake in self.shared.wake.iter().chain(&self.shared.timer) {
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
    }

    /// Receives the messages of the zygotes.
    fn receive_messages(&mut self) {
        if let Some(next) = self.next.clone() {
            next.read_errors(&mut self.complaint);
            match next.receive_message() {
                Message::Hello(hello) => self.loaded(next, hello),
                Message::None if next.born.elapsed() < self.shared.settings.load_timeout => {}
                Message::None => {
                    self.next = None;
                    self.failed("loading the zygote timed out");
                }
                _ => {
                    next.read_errors(&mut self.complaint);
                    self.next = None;
                    let text = String::from_utf8_lossy(&self.complaint).into_owned();
                    let last =
                        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
                    self.failed(&format!("the zygote ended before it had loaded: {last}"));
                }
            }
        }
        while let Some(zygote) = self.zygote.clone() {
            zygote.read_errors(&mut self.complaint);
            match zygote.receive_message() {
                Message::Forked(number, pidfd) => {
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
                Message::ForkFailed(number, error) => {
                    self.making.retain(|making| making.number != number);
                    let error = io::Error::from_raw_os_error(error);
                    self.died(&format!("start child in namespaces: {error}"));
                }
                Message::None if !is_readable(zygote.control()) => break,
                _ => {
                    // Its forks stay alive: their sandbox ends with the last of them.
                    self.zygote = None;
                    self.making.clear();
                    self.shared.lock().counts.restarted += 1;
                    self.failed("the zygote ended");
                }
            }
        }
    }

    /// Replaces the old zygote by the one that has loaded.
    fn loaded(&mut self, zygote: Arc<Zygote>, hello: Hello) {
        self.next = None;
        if let Some(name) = hello.threaded.first()
            && self.skipped_modules.len() < MAX_THREADED_MODULES
        {
            self.load.modules.retain(|module| module != name);
            self.skipped_modules.push((name.clone(), "it starts threads on import".into()));
            return;
        }
        let old = self.zygote.replace(zygote);
        self.hello = hello;
        let mut state = self.shared.lock();
        state.counts.preloaded.clone_from(&self.hello.loaded);
        state.counts.missing = self.hello.missing.iter().chain(&self.skipped_modules).cloned().collect();
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

    /// Receives the messages of starting workers.
    fn collect(&mut self, base: &Base) {
        let within = self.shared.settings.ready_timeout;
        let mut at = 0;
        while let Some(making) = self.making.get_mut(at) {
            let progress = match making.progress() {
                Progress::Pending if making.since.elapsed() >= within => {
                    Progress::Dead(format!("its start timed out after {within:?}"))
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

    /// Records a failure and delays the next attempt.
    fn failed(&mut self, reason: &str) {
        let pause = MIN_PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_PAUSE);
        self.not_before = Instant::now() + pause;
        self.failures = self.failures.saturating_add(1);
        if self.failures >= MAX_FAILURES {
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
