//! Instances of blocks, and the states of their steps.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::ToolError;

use super::wait::Channel;
use crate::names::{Known, Variable};
use crate::plan::types::Block;

/// An instance of a block. A key is never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    index: usize,
    generation: u32,
}

/// A step of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) scope: Key,
    pub(super) step: usize,
}

/// The owner of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Run,
    /// A group, a sub-flow, or an iteration of a loop.
    Group(Place),
    Item {
        place: Place,
        index: usize,
    },
    Handler(Place),
    Undo,
}

/// The state of a step.
#[derive(Debug)]
pub(super) enum State {
    /// It waits for other steps, or for its turn.
    Pending,
    /// It has begun, and what it does is not known yet.
    Begun,
    /// A driver works on it.
    Working {
        attempt: u32,
    },
    Waiting {
        channel: Channel,
        is_approval: bool,
    },
    Inside(Key),
    Map(Box<MapState>),
    /// It failed, and its handler runs.
    Handling {
        scope: Key,
    },
    Ended,
}

/// A map: its items, which its outputs replace.
#[derive(Debug)]
pub(super) struct MapState {
    pub(super) items: Vec<Value>,
    pub(super) next: usize,
    pub(super) running: BTreeSet<Key>,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    pub(super) error: Option<ToolError>,
    pub(super) is_stopping: bool,
    /// Reached its time limit.
    pub(super) is_late: bool,
}

impl MapState {
    pub(super) fn new(items: Vec<Value>) -> Self {
        let running = BTreeSet::new();
        Self {
            items,
            next: 0,
            running,
            succeeded: 0,
            failed: 0,
            error: None,
            is_stopping: false,
            is_late: false,
        }
    }
}

/// The reason why a scope starts no more steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its failure policy has decided.
    Own,
    /// The enclosing block ends.
    Outside,
}

/// The compensation of a step.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) block: Arc<Block>,
    pub(super) known: Arc<Known>,
    /// The output of the step, and in a pipeline the one before.
    pub(super) variables: Vec<Variable>,
    pub(super) path: Arc<str>,
}

/// An instance of a block.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) known: Arc<Known>,
    pub(super) owner: Owner,
    path: Arc<str>,
    pub(super) states: Vec<State>,
    /// The number of needed steps that have not ended, by step.
    pub(super) missing: Vec<u32>,
    /// Whether a needed step failed, by step.
    pub(super) blocked: Vec<bool>,
    pub(super) ready: VecDeque<usize>,
    /// Steps that have begun and not ended.
    pub(super) active: usize,
    /// Steps that have not ended.
    pub(super) open: usize,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    /// The first step that succeeded.
    pub(super) first: Option<usize>,
    /// The error of the first step that failed.
    pub(super) error: Option<ToolError>,
    pub(super) stopping: Option<Stop>,
    /// Reached its time limit.
    pub(super) is_late: bool,
}

impl Scope {
    pub(super) fn new(known: Arc<Known>, owner: Owner, path: Arc<str>) -> Self {
        let steps = &known.block.steps;
        let missing: Vec<u32> = steps.iter().map(|step| step.needs.len() as u32).collect();
        let ready = missing.iter().enumerate().filter(|(_, missing)| **missing == 0).map(|(step, _)| step);
        Self {
            ready: ready.collect(),
            states: steps.iter().map(|_| State::Pending).collect(),
            blocked: vec![false; steps.len()],
            open: steps.len(),
            missing,
            active: 0,
            succeeded: 0,
            failed: 0,
            first: None,
            error: None,
            stopping: None,
            is_late: false,
            known,
            owner,
            path,
        }
    }

    /// The path of a step.
    pub(super) fn path_of(&self, id: &Arc<str>) -> Arc<str> {
        if self.path.is_empty() { Arc::clone(id) } else { format!("{}.{id}", self.path).into() }
    }

    pub(super) fn make_ready(&mut self, step: usize) {
        self.ready.push_back(step);
    }
}

/// All open instances.
#[derive(Debug, Default)]
pub(super) struct Instances {
    slots: Vec<(u32, Option<Scope>)>,
    free: Vec<usize>,
}

impl Instances {
    pub(super) fn add(&mut self, scope: Scope) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let mut generation = 0;
        if let Some((own, slot)) = self.slots.get_mut(index) {
            generation = *own;
            *slot = Some(scope);
        }
        Key { index, generation }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Scope> {
        self.slots.get(key.index).filter(|(own, _)| *own == key.generation)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Scope> {
        self.slots.get_mut(key.index).filter(|(own, _)| *own == key.generation)?.1.as_mut()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Scope> {
        let (generation, slot) = self.slots.get_mut(key.index).filter(|(own, _)| *own == key.generation)?;
        let scope = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(key.index);
        Some(scope)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.slots.iter().filter_map(|(_, slot)| slot.as_ref())
    }

    /// The instance of the plan's own block: the first one.
    pub(super) fn root(&self) -> Option<Key> {
        let (generation, slot) = self.slots.first()?;
        slot.as_ref().filter(|scope| matches!(scope.owner, Owner::Run))?;
        Some(Key { index: 0, generation: *generation })
    }
}
