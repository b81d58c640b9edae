//! Idle containers: each runs one program and is removed, so nothing leaks from run to run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::attest::Facts;
use super::channel::{Channel, Waited};
use super::container::{self, Kind};
use super::engine::Engine;
use super::error::DockerError;

/// The number of kinds with idle containers; the least recently used one is dropped.
const MAX_KINDS: usize = 4;

/// A container whose first process waits.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) channel: Channel,
    pub(super) facts: Facts,
}

#[derive(Debug, Default)]
struct Shelf {
    /// Ordered by last use.
    kinds: Vec<(Kind, VecDeque<Ready>)>,
    /// The work of the thread, in this order.
    to_remove: Vec<String>,
    to_make: VecDeque<Kind>,
    /// Work in progress, no longer in a queue.
    working: usize,
    closed: bool,
    /// The reason why the last container could not be created.
    failure: Option<String>,
}

/// Creates idle containers and removes used ones, in a thread.
#[derive(Debug)]
pub(super) struct IdleContainers {
    engine: Engine,
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

/// Creates a container and waits for its first process.
pub(super) fn create(engine: &Engine, kind: &Kind, image: &str) -> Result<Ready, DockerError> {
    let name = container::name(&kind.prefix);
    let id = engine.create(&name, image, &kind.settings())?;
    let result = (|| {
        let (connection, first) = engine.attach(&id)?;
        let mut channel = Channel::new(connection, &first)?;
        engine.start(&id)?;
        let mut facts = Facts::default();
        let until = Instant::now().checked_add(engine.answer_timeout());
        loop {
            match channel.wait(until, &[], false)? {
                Waited::Frame(frame) if frame.kind == b'a' => facts.add(&frame),
                Waited::Frame(frame) if frame.kind == b'R' => break,
                Waited::Frame(_) => {
                    return Err(DockerError::protocol("start a container", "its first process is unknown"));
                }
                Waited::Nothing => {
                    return Err(DockerError::Timeout {
                        host: engine.host().to_string(),
                        action: format!("wait for the first process of `{name}`"),
                        limit: engine.answer_timeout(),
                    });
                }
                Waited::End => return Err(why_gone(engine, &id, &name)),
            }
        }
        Ok((channel, facts))
    })();
    match result {
        Ok((channel, facts)) => Ok(Ready { id, name, channel, facts }),
        Err(error) => {
            // Report the first error.
            let _ = engine.remove(&id);
            Err(error)
        }
    }
}

/// The error for a container that ended unexpectedly.
pub(super) fn why_gone(engine: &Engine, id: &str, name: &str) -> DockerError {
    let reason = match engine.state(id) {
        Ok(None) => "another program removed it".to_owned(),
        Ok(Some(state)) if !state.error.is_empty() => state.error,
        Ok(Some(state)) => format!("it is `{}` with status {}", state.status, state.exit_code),
        Err(error) => return error,
    };
    DockerError::ContainerGone { container: name.to_owned(), reason }
}

impl IdleContainers {
    pub(super) fn start(engine: Engine) -> Result<Arc<Self>, DockerError> {
        let containers =
            Arc::new(Self { engine, shelf: Mutex::new(Shelf::default()), changed: Condvar::new() });
        let theirs = Arc::clone(&containers);
        std::thread::Builder::new()
            .name("docker idle".into())
            .spawn(move || theirs.work())
            .map_err(|source| DockerError::File { action: "start", path: "thread".into(), source })?;
        Ok(containers)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.shelf();
            let (old, wanted) = loop {
                if let Some(id) = state.to_remove.pop() {
                    break (Some(id), None);
                }
                if state.closed {
                    return;
                }
                // An idle container is created before used ones are removed, unless removals are delayed too
                // long.
                if let Some(kind) = state.to_make.pop_front() {
                    break (None, Some(kind));
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.working += 1;
            drop(state);
            let mut created = None;
            let mut failure = None;
            if let Some(id) = old {
                // An unresponsive daemon keeps it; the next program start removes it.
                let _ = self.engine.remove(&id);
            }
            if let Some(kind) = wanted {
                match self::create(&self.engine, &kind, &kind.image) {
                    Ok(ready) => created = Some((kind, ready)),
                    Err(error) => failure = Some(error.to_string()),
                }
            }
            let mut state = self.shelf();
            state.working -= 1;
            if failure.is_some() {
                state.failure = failure;
                // Waiting callers get the error; the next run requests new ones.
                state.to_make.clear();
            }
            if let Some((kind, ready)) = created {
                if state.closed {
                    state.to_remove.push(ready.id);
                } else {
                    state.failure = None;
                    state.place(kind).push_back(ready);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Takes an idle container, if there is one.
    pub(super) fn take(&self, kind: &Kind) -> Option<Ready> {
        let mut state = self.shelf();
        loop {
            let mut ready = state.place(kind.clone()).pop_front()?;
            if ready.channel.is_open() {
                return Some(ready);
            }
            state.to_remove.push(ready.id);
            self.changed.notify_all();
        }
    }

    /// Requests containers of a kind up to the wanted number.
    pub(super) fn want(&self, kind: &Kind, wanted: usize) {
        let mut state = self.shelf();
        let there = state.place(kind.clone()).len();
        let coming = state.to_make.iter().filter(|other| *other == kind).count();
        for _ in there + coming..wanted {
            state.to_make.push_back(kind.clone());
        }
        self.changed.notify_all();
    }

    /// Waits for the wanted number of containers. After the time limit, returns how many there are, and why.
    pub(super) fn wait(&self, kind: &Kind, wanted: usize, limit: Duration) -> (usize, Option<String>) {
        let until = Instant::now() + limit;
        let mut state = self.shelf();
        loop {
            let there = state.place(kind.clone()).len();
            let left = until.saturating_duration_since(Instant::now());
            if there >= wanted || left.is_zero() || state.failure.is_some() {
                return (there, state.failure.take());
            }
            let result = self.changed.wait_timeout(state, left);
            state = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Removes a container later.
    pub(super) fn discard(&self, id: String) {
        self.shelf().to_remove.push(id);
        self.changed.notify_all();
    }

    /// The number of idle containers.
    pub(super) fn count(&self) -> usize {
        self.shelf().kinds.iter().map(|(_, ready)| ready.len()).sum()
    }

    /// Removes every container and ends the thread, within the daemon's time limit.
    pub(super) fn close(&self) {
        let mut state = self.shelf();
        state.closed = true;
        state.to_make.clear();
        let kinds = std::mem::take(&mut state.kinds);
        state.to_remove.extend(kinds.into_iter().flat_map(|(_, ready)| ready).map(|ready| ready.id));
        self.changed.notify_all();
        let until = Instant::now() + self.engine.answer_timeout();
        while !state.to_remove.is_empty() || state.working > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let result = self.changed.wait_timeout(state, left);
            state = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shelf {
    /// The idle containers of a kind, marked as just used.
    fn place(&mut self, kind: Kind) -> &mut VecDeque<Ready> {
        let found = self.kinds.iter().position(|(other, _)| *other == kind);
        let entry = match found {
            Some(place) => self.kinds.remove(place),
            None => (kind, VecDeque::new()),
        };
        if self.kinds.len() >= MAX_KINDS {
            let (_, ready) = self.kinds.remove(0);
            self.to_remove.extend(ready.into_iter().map(|ready| ready.id));
        }
        self.kinds.push(entry);
        let last = self.kinds.len() - 1;
        &mut self.kinds[last].1
    }
}
