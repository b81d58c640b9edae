//! The tools that a toolbox holds, by name.

use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use toolpost_core::{SpecError, Tool, ToolSource, ToolSpec};

use crate::path::queue::{Gate, Pace};
use crate::usage::Counters;

/// Where a tool's calls go.
pub(crate) enum Target {
    /// To code of this process.
    Local(Arc<dyn Tool>),
    /// To a source, which owns schema, retries and per-tool limits.
    Source(Arc<dyn ToolSource>),
}

/// One tool, with everything that outlives its calls.
pub(crate) struct Entry {
    pub(crate) name: Arc<str>,
    pub(crate) source_name: Arc<str>,
    pub(crate) spec: Arc<ToolSpec>,
    pub(crate) target: Target,
    /// How many calls of it run at once.
    pub(crate) gate: Option<Gate>,
    /// How often it may be called.
    pub(crate) pace: Option<Pace>,
    pub(crate) counters: Counters,
}

impl Entry {
    pub(crate) fn new(spec: Arc<ToolSpec>, target: Target, source_name: Arc<str>) -> Self {
        // The limits of a foreign tool are kept where it lives.
        let local = matches!(target, Target::Local(_));
        Self {
            name: spec.name.as_str().into(),
            source_name,
            gate: spec.policy.concurrency.filter(|_| local).map(|limit| Gate::new(limit as usize)),
            pace: spec.policy.rate.filter(|_| local).map(Pace::new),
            spec,
            target,
            counters: Counters::default(),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.target, Target::Local(_))
    }
}

/// A source and the state of its list when it was last read.
struct Listed {
    source: Arc<dyn ToolSource>,
    seen: AtomicU64,
}

/// The tools by name, in the order of their coming; and the sources that some of them come from.
#[derive(Default)]
pub(crate) struct Registry {
    entries: HashMap<Arc<str>, Arc<Entry>>,
    order: Vec<Arc<str>>,
    sources: Vec<Listed>,
}

impl Registry {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.get(name).cloned()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(AsRef::as_ref)
    }

    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.order.iter().filter_map(|name| self.entries.get(name))
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Result<(), SpecError> {
        entry.spec.check()?;
        match self.entries.entry(Arc::clone(&entry.name)) {
            hash_map::Entry::Occupied(other) => Err(SpecError {
                tool: entry.spec.name.clone(),
                message: format!(
                    "there is one of this name already, from `{}`; rename one of them",
                    other.get().source_name
                ),
            }),
            hash_map::Entry::Vacant(place) => {
                self.order.push(Arc::clone(&entry.name));
                place.insert(Arc::new(entry));
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.order.retain(|known| &**known != name);
        self.entries.remove(name).is_some()
    }

    /// Takes the tools of a source in. All or none: a name that is taken already leaves everything as it was.
    ///
    /// Tools that it had before and still has, unchanged, keep their place and their counters.
    pub(crate) fn take_list(
        &mut self,
        source: &Arc<dyn ToolSource>,
        generation: u64,
        specs: Vec<Arc<ToolSpec>>,
    ) -> Result<(), SpecError> {
        let source_name: Arc<str> = source.name().into();
        let from_here = |entry: &Entry| match &entry.target {
            Target::Source(known) => Arc::ptr_eq(known, source),
            Target::Local(_) => false,
        };
        for spec in &specs {
            spec.check()?;
            if let Some(other) = self.entries.get(spec.name.as_str()).filter(|entry| !from_here(entry)) {
                let message =
                    format!("`{source_name}` and `{}` both have one; rename one of them", other.source_name);
                return Err(SpecError { tool: spec.name.clone(), message });
            }
        }
        let gone: Vec<Arc<str>> = self
            .in_order()
            .filter(|entry| from_here(entry))
            .filter(|entry| !specs.iter().any(|spec| Arc::ptr_eq(spec, &entry.spec)))
            .map(|entry| Arc::clone(&entry.name))
            .collect();
        for name in gone {
            self.entries.remove(&name);
            if !specs.iter().any(|spec| *spec.name == *name) {
                self.order.retain(|known| *known != name);
            }
        }
        for spec in specs {
            if self.entries.contains_key(spec.name.as_str()) {
                continue;
            }
            let entry = Entry::new(spec, Target::Source(Arc::clone(source)), Arc::clone(&source_name));
            if !self.order.contains(&entry.name) {
                self.order.push(Arc::clone(&entry.name));
            }
            self.entries.insert(Arc::clone(&entry.name), Arc::new(entry));
        }
        match self.sources.iter().find(|listed| Arc::ptr_eq(&listed.source, source)) {
            Some(listed) => listed.seen.store(generation, Ordering::Relaxed),
            None => {
                self.sources.push(Listed { source: Arc::clone(source), seen: AtomicU64::new(generation) });
            }
        }
        Ok(())
    }

    /// The sources whose list has changed since it was read.
    pub(crate) fn stale_sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources
            .iter()
            .filter(|listed| listed.source.generation() != listed.seen.load(Ordering::Relaxed))
            .map(|listed| Arc::clone(&listed.source))
            .collect()
    }

    pub(crate) fn source_generations(&self) -> u64 {
        self.sources.iter().map(|listed| listed.source.generation()).fold(0, u64::wrapping_add)
    }
}
