//! Containers that wait for a program: each runs one and is removed, so nothing can leak from run to run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::attest::Facts;
use super::channel::{Channel, Waited};
use super::container::{self, Kind};
use super::engine::Engine;
use super::error::DockerError;

/// Kinds of containers for which spares are kept; the one that was used longest ago gives way.
const KINDS: usize = 4;

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
    /// Last used last.
    kinds: Vec<(Kind, VecDeque<Ready>)>,
    /// What the keeper shall do, in this order.
    to_remove: Vec<String>,
    to_make: VecDeque<Kind>,
    /// What is being done at this moment, and not on a list any more.
    working: usize,
    closed: bool,
    /// Why the last spare could not be made.
    failure: Option<String>,
}

/// Keeps spares, and removes what was used, in a thread of its own.
#[derive(Debug)]
pub(super) struct Keeper {
    engine: Engine,
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

/// Makes a container and waits until its first process is there.
pub(super) fn make(engine: &Engine, kind: &Kind, image: &str) -> Result<Ready, DockerError> {
    let name = container::name(&kind.prefix);
    let id = engine.create(&name, image, &kind.settings())?;
    let result = (|| {
        let (connection, first) = engine.attach(&id)?;
        let mut channel = Channel::new(connection, &first)?;
        engine.start(&id)?;
        let mut facts = Facts::default();
        let until = Instant::now().checked_add(engine.patience());
        loop {
            match channel.wait(until, &[], false)? {
                Waited::Frame(frame) if frame.kind == b'a' => facts.add(&frame),
                Waited::Frame(frame) if frame.kind == b'R' => break,
                Waited::Frame(_) => {
                    return Err(DockerError::protocol("start a container", "its first process is not ours"));
                }
                Waited::Nothing => {
                    return Err(DockerError::Hangs {
                        host: engine.host().to_string(),
                        action: format!("wait for the first process of `{name}`"),
                        limit: engine.patience(),
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
            // The first error is the one that matters.
            let _ = engine.remove(&id);
            Err(error)
        }
    }
}

/// What the daemon says about a container that ended although nobody asked it to.
pub(super) fn why_gone(engine: &Engine, id: &str, name: &str) -> DockerError {
    let reason = match engine.state(id) {
        Ok(None) => "somebody removed it".to_owned(),
        Ok(Some(state)) if !state.error.is_empty() => state.error,
        Ok(Some(state)) => format!("it is `{}` with status {}", state.status, state.exit_code),
        Err(error) => return error,
    };
    DockerError::ContainerGone { container: name.to_owned(), reason }
}

impl Keeper {
    pub(super) fn start(engine: Engine) -> Result<Arc<Self>, DockerError> {
        let keeper = Arc::new(Self { engine, shelf: Mutex::new(Shelf::default()), changed: Condvar::new() });
        let theirs = Arc::clone(&keeper);
        std::thread::Builder::new()
            .name("docker-keeper".into())
            .spawn(move || theirs.work())
            .map_err(|source| DockerError::File { action: "start", path: "thread".into(), source })?;
        Ok(keeper)
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
                // A spare is made before what was used is removed, but not while something waits to be removed for long.
                if let Some(kind) = state.to_make.pop_front() {
                    break (None, Some(kind));
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.working += 1;
            drop(state);
            let mut made = None;
            let mut failure = None;
            if let Some(id) = old {
                // A daemon that does not answer keeps it; the next start of a program removes it.
                let _ = self.engine.remove(&id);
            }
            if let Some(kind) = wanted {
                match self::make(&self.engine, &kind, &kind.image) {
                    Ok(ready) => made = Some((kind, ready)),
                    Err(error) => failure = Some(error.to_string()),
                }
            }
            let mut state = self.shelf();
            state.working -= 1;
            if failure.is_some() {
                state.failure = failure;
                // Who waits for others hears of it; new ones come with the next run.
                state.to_make.clear();
            }
            if let Some((kind, ready)) = made {
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

    /// Takes a spare if there is one.
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

    /// Asks for so many spares of a kind that there are as many as wanted.
    pub(super) fn want(&self, kind: &Kind, wanted: usize) {
        let mut state = self.shelf();
        let there = state.place(kind.clone()).len();
        let coming = state.to_make.iter().filter(|other| *other == kind).count();
        for _ in there + coming..wanted {
            state.to_make.push_back(kind.clone());
        }
        self.changed.notify_all();
    }

    /// Waits until there are as many spares as wanted; gives how many there are when the time is over, and why.
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

    /// Removes a container, later.
    pub(super) fn discard(&self, id: String) {
        self.shelf().to_remove.push(id);
        self.changed.notify_all();
    }

    /// How many spares wait.
    pub(super) fn count(&self) -> usize {
        self.shelf().kinds.iter().map(|(_, ready)| ready.len()).sum()
    }

    /// Removes every container and ends the thread. Waits for it, but not longer than the daemon may take.
    pub(super) fn close(&self) {
        let mut state = self.shelf();
        state.closed = true;
        state.to_make.clear();
        let kinds = std::mem::take(&mut state.kinds);
        state.to_remove.extend(kinds.into_iter().flat_map(|(_, ready)| ready).map(|ready| ready.id));
        self.changed.notify_all();
        let until = Instant::now() + self.engine.patience();
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
    /// The spares of a kind, which was used now.
    fn place(&mut self, kind: Kind) -> &mut VecDeque<Ready> {
        let found = self.kinds.iter().position(|(other, _)| *other == kind);
        let entry = match found {
            Some(place) => self.kinds.remove(place),
            None => (kind, VecDeque::new()),
        };
        if self.kinds.len() >= KINDS {
            let (_, ready) = self.kinds.remove(0);
            self.to_remove.extend(ready.into_iter().map(|ready| ready.id));
        }
        self.kinds.push(entry);
        let last = self.kinds.len() - 1;
        &mut self.kinds[last].1
    }
}
