//! The registered tools of a toolbox, by name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::{SpecError, Timeout, Tool, ToolSource, ToolSpec};

use crate::builder::ToolboxSettings;
use crate::path::pace::Pace;
use crate::usage::Counters;

/// The maximum timeout of one attempt that a source's tool can declare.
const MAX_FOREIGN_TIMEOUT: Duration = Duration::from_hours(1);
/// The maximum number of retries that a source's tool can declare.
const MAX_FOREIGN_RETRIES: u32 = 10;
/// The maximum delay between retries that a source's tool can declare.
const MAX_FOREIGN_DELAY: Duration = Duration::from_mins(1);
/// The delay before a failed list is read again.
const BACK_OFF: Duration = Duration::from_secs(5);

/// The target of a tool's calls.
pub(crate) enum Target {
    /// Code of this process.
    Local(Arc<dyn Tool>),
    /// A source, which checks the schema, retries, and enforces per-tool limits.
    Source(Arc<dyn ToolSource>),
}

/// A registered tool, with the state that outlives its calls.
pub(crate) struct Entry {
    /// Unique, so that cached results never belong to another tool of the same name.
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) source_name: Arc<str>,
    pub(crate) spec: Arc<ToolSpec>,
    pub(crate) target: Target,
    /// The maximum number of its running calls.
    pub(crate) limit: Option<usize>,
    /// The rate limit.
    pub(crate) pace: Option<Pace>,
    pub(crate) counters: Counters,
}

impl Entry {
    pub(crate) fn local(tool: Arc<dyn Tool>, source_name: Arc<str>) -> Self {
        let spec = tool.spec();
        Self {
            limit: spec.policy.concurrency.map(|limit| limit as usize),
            pace: spec.policy.rate.map(Pace::new),
            ..Self::new(spec, Target::Local(tool), source_name)
        }
    }

    /// A tool of a source. The source enforces its limits; its declared timeouts and retries are bounded here.
    fn foreign(
        spec: &ToolSpec,
        source: Arc<dyn ToolSource>,
        source_name: Arc<str>,
        settings: &ToolboxSettings,
    ) -> Self {
        let mut spec = spec.clone();
        let policy = &mut spec.policy;
        policy.timeout = policy.timeout.map(|timeout| match timeout {
            Timeout::After(limit) => Timeout::After(limit.min(MAX_FOREIGN_TIMEOUT)),
            Timeout::Never => Timeout::After(MAX_FOREIGN_TIMEOUT),
        });
        if let Some(retry) = &mut policy.retry {
            retry.attempts = retry.attempts.min(MAX_FOREIGN_RETRIES);
            retry.initial = retry.initial.min(MAX_FOREIGN_DELAY);
            retry.maximum = retry.maximum.min(MAX_FOREIGN_DELAY);
        }
        policy.output_limit = policy.output_limit.map(|limit| limit.min(settings.output_limit));
        Self::new(Arc::new(spec), Target::Source(source), source_name)
    }

    fn new(spec: Arc<ToolSpec>, target: Target, source_name: Arc<str>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: spec.name.as_str().into(),
            source_name,
            limit: None,
            pace: None,
            spec,
            target,
            counters: Counters::default(),
        }
    }

    /// The texts in the arguments that the tool declares secret. A source masks its own records.
    pub(crate) fn secrets(&self, arguments: &Value) -> Vec<String> {
        match &self.target {
            Target::Local(tool) => tool.secrets(arguments),
            Target::Source(_) => Vec::new(),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.target, Target::Local(_))
    }
}

/// A source and the state of its last list.
struct Listed {
    source: Arc<dyn ToolSource>,
    seen: AtomicU64,
    /// No read of the list begins before this time, after a failed one.
    blocked_until: Mutex<Option<Instant>>,
}

/// The tools by name, in the order of registration, and the sources.
#[derive(Default)]
pub(crate) struct Registry {
    entries: HashMap<Arc<str>, Arc<Entry>>,
    /// From an alias to the name of its tool.
    aliases: HashMap<Arc<str>, Arc<str>>,
    order: Vec<Arc<str>>,
    sources: Vec<Listed>,
}

impl Registry {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.owner(name).cloned()
    }

    /// The tool with this name or alias.
    fn owner(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.get(name).or_else(|| self.entries.get(self.aliases.get(name)?))
    }

    fn insert_aliases(&mut self, entry: &Entry) {
        for alias in &entry.spec.aliases {
            self.aliases.insert(alias.name.as_str().into(), Arc::clone(&entry.name));
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(AsRef::as_ref)
    }

    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.order.iter().filter_map(|name| self.entries.get(name))
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Result<(), SpecError> {
        entry.spec.check()?;
        for name in all_names(&entry.spec) {
            let Some(other) = self.owner(name) else { continue };
            let message = if name == &*other.name && name == &*entry.name {
                format!("another tool from `{}` has this name; rename one of them", other.source_name)
            } else {
                format!(
                    "`{name}` is a name or an alias of `{}` from `{}`; rename one of them",
                    other.name, other.source_name
                )
            };
            return Err(SpecError { tool: entry.spec.name.clone(), message });
        }
        self.insert_aliases(&entry);
        self.order.push(Arc::clone(&entry.name));
        self.entries.insert(Arc::clone(&entry.name), Arc::new(entry));
        Ok(())
    }

    /// Adds an unlisted entry under a key that no tool can have as its name.
    pub(crate) fn insert_hidden(&mut self, key: Arc<str>, mut entry: Entry) -> Result<(), SpecError> {
        entry.spec.check()?;
        entry.name = Arc::clone(&key);
        if self.entries.contains_key(&key) {
            let message = format!("another definition has the key `{key}`; rename one of them");
            return Err(SpecError { tool: entry.spec.name.clone(), message });
        }
        self.entries.insert(key, Arc::new(entry));
        Ok(())
    }

    /// The sources, in the order of registration.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources.iter().map(|listed| Arc::clone(&listed.source)).collect()
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.order.retain(|known| &**known != name);
        self.aliases.retain(|_, tool| &**tool != name);
        self.entries.remove(name).is_some()
    }

    /// Replaces the tools of a source. On an error, nothing changes.
    ///
    /// Unchanged tools keep their counters. The tools of a source stand together, in its order and before those of
    /// later sources, so that the list does not depend on the time at which each arrived.
    pub(crate) fn replace_list(
        &mut self,
        source: &Arc<dyn ToolSource>,
        generation: u64,
        specs: &[Arc<ToolSpec>],
        settings: &ToolboxSettings,
    ) -> Result<(), SpecError> {
        let source_name: Arc<str> = source.name().into();
        let is_own = |entry: &Entry| match &entry.target {
            Target::Source(known) => Arc::ptr_eq(known, source),
            Target::Local(_) => false,
        };
        let mut names = HashSet::new();
        for spec in specs {
            spec.check()?;
            for name in all_names(spec) {
                let wrong = |message| Err(SpecError { tool: name.to_owned(), message });
                if !names.insert(name) {
                    return wrong(format!("`{source_name}` has two tools with this name"));
                }
                if let Some(other) = self.owner(name).filter(|entry| !is_own(entry)) {
                    let other = &other.source_name;
                    return wrong(format!(
                        "`{source_name}` and `{other}` both have a tool with this name; rename one of them"
                    ));
                }
            }
        }
        let mut known: HashMap<Arc<str>, Arc<Entry>> = HashMap::new();
        self.entries.retain(|name, entry| {
            let own = is_own(entry);
            if own {
                known.insert(Arc::clone(name), Arc::clone(entry));
            }
            !own
        });
        let first = self.order.iter().position(|name| known.contains_key(name));
        self.order.retain(|name| !known.contains_key(name));
        self.aliases.retain(|_, tool| !known.contains_key(tool));
        let start = first.unwrap_or_else(|| self.start_of_later(source));
        self.order.splice(start..start, specs.iter().map(|spec| spec.name.as_str().into()));
        for spec in specs {
            let fresh = Entry::foreign(spec, Arc::clone(source), Arc::clone(&source_name), settings);
            let same = known.remove(&fresh.name).filter(|old| same_spec(&old.spec, &fresh.spec));
            let entry = same.unwrap_or_else(|| Arc::new(fresh));
            self.insert_aliases(&entry);
            self.entries.insert(Arc::clone(&entry.name), entry);
        }
        match self.sources.iter().find(|listed| Arc::ptr_eq(&listed.source, source)) {
            Some(listed) => listed.seen.store(generation, Ordering::Relaxed),
            None => self.sources.push(Listed {
                source: Arc::clone(source),
                seen: AtomicU64::new(generation),
                blocked_until: Mutex::default(),
            }),
        }
        Ok(())
    }

    /// The position of the first tool of a source that was added after this one.
    fn start_of_later(&self, source: &Arc<dyn ToolSource>) -> usize {
        let later = self.sources.iter().skip_while(|listed| !Arc::ptr_eq(&listed.source, source)).skip(1);
        let later: Vec<_> = later.map(|listed| &listed.source).collect();
        let is_later = |entry: &Arc<Entry>| match &entry.target {
            Target::Source(known) => later.iter().any(|source| Arc::ptr_eq(source, known)),
            Target::Local(_) => false,
        };
        self.in_order().position(is_later).unwrap_or(self.order.len())
    }

    /// Adds a source whose list was never read, so that its list counts as changed.
    pub(crate) fn add_unread(&mut self, source: Arc<dyn ToolSource>) {
        let seen = AtomicU64::new(source.generation().wrapping_sub(1));
        self.sources.push(Listed { source, seen, blocked_until: Mutex::default() });
    }

    /// The sources whose list has changed, without those that have just failed.
    pub(crate) fn stale_sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources
            .iter()
            .filter(|listed| listed.source.generation() != listed.seen.load(Ordering::Relaxed))
            .filter(|listed| {
                let until = *listed.blocked_until.lock().unwrap_or_else(PoisonError::into_inner);
                until.is_none_or(|until| until <= Instant::now())
            })
            .map(|listed| Arc::clone(&listed.source))
            .collect()
    }

    /// Delays the next read of a source's list.
    pub(crate) fn back_off(&self, source: &Arc<dyn ToolSource>) {
        for listed in self.sources.iter().filter(|listed| Arc::ptr_eq(&listed.source, source)) {
            *listed.blocked_until.lock().unwrap_or_else(PoisonError::into_inner) =
                Instant::now().checked_add(BACK_OFF);
        }
    }

    pub(crate) fn source_generations(&self) -> u64 {
        self.sources.iter().map(|listed| listed.source.generation()).fold(0, u64::wrapping_add)
    }
}

/// A tool's name and its aliases.
fn all_names(spec: &ToolSpec) -> impl Iterator<Item = &str> {
    std::iter::once(&spec.name).chain(spec.aliases.iter().map(|alias| &alias.name)).map(String::as_str)
}

/// Whether two specs are equal.
fn same_spec(one: &Arc<ToolSpec>, other: &Arc<ToolSpec>) -> bool {
    Arc::ptr_eq(one, other) || serde_json::to_value(one).ok() == serde_json::to_value(other).ok()
}
