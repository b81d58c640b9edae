//! The tools that a toolbox holds, by name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::{SpecError, Timeout, Tool, ToolSource, ToolSpec};

use crate::builder::Settings;
use crate::path::pace::Pace;
use crate::usage::Counters;

/// How long one attempt of a foreign tool may take at most, whatever it says.
const MAX_FOREIGN_TIMEOUT: Duration = Duration::from_hours(1);
/// How many further attempts a foreign tool may be given time for, whatever it says.
const MAX_FOREIGN_RETRIES: u32 = 10;
/// How long the waits between them may be, whatever it says.
const MAX_FOREIGN_DELAY: Duration = Duration::from_mins(1);
/// How long a source whose list could not be read is left alone.
const BACK_OFF: Duration = Duration::from_secs(5);

/// Where a tool's calls go.
pub(crate) enum Target {
    /// To code of this process.
    Local(Arc<dyn Tool>),
    /// To a source, which owns schema, retries and per-tool limits.
    Source(Arc<dyn ToolSource>),
}

/// One tool, with everything that outlives its calls.
pub(crate) struct Entry {
    /// Never used twice, so that what is kept of one tool is never taken for another of its name.
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) source_name: Arc<str>,
    pub(crate) spec: Arc<ToolSpec>,
    pub(crate) target: Target,
    /// How many calls of it run at once.
    pub(crate) limit: Option<usize>,
    /// How often it may be called.
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

    /// A tool of a source. Its limits are kept where it lives, and what it says of itself is believed within bounds.
    fn foreign(
        spec: &ToolSpec,
        source: Arc<dyn ToolSource>,
        source_name: Arc<str>,
        settings: &Settings,
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

    /// Texts within the arguments that the tool itself calls secret. A source sees to its own records.
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

/// A source and the state of its list when it was last read.
struct Listed {
    source: Arc<dyn ToolSource>,
    seen: AtomicU64,
    /// Until when it is left alone, after its list could not be read.
    left_alone: Mutex<Option<Instant>>,
}

/// The tools by name, in the order of their coming; and the sources that some of them come from.
#[derive(Default)]
pub(crate) struct Registry {
    entries: HashMap<Arc<str>, Arc<Entry>>,
    /// Other names, and those of the tools that have them.
    aliases: HashMap<Arc<str>, Arc<str>>,
    order: Vec<Arc<str>>,
    sources: Vec<Listed>,
}

impl Registry {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.owner(name).cloned()
    }

    /// The tool that has this name or alias.
    fn owner(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.get(name).or_else(|| self.entries.get(self.aliases.get(name)?))
    }

    fn take_aliases(&mut self, entry: &Entry) {
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
                format!("there is one of this name already, from `{}`; rename one of them", other.source_name)
            } else {
                format!(
                    "`{name}` is a name or an alias of `{}` from `{}` already; rename one of them",
                    other.name, other.source_name
                )
            };
            return Err(SpecError { tool: entry.spec.name.clone(), message });
        }
        self.take_aliases(&entry);
        self.order.push(Arc::clone(&entry.name));
        self.entries.insert(Arc::clone(&entry.name), Arc::new(entry));
        Ok(())
    }

    /// Adds an entry that no list shows, under a key that is no name of a tool.
    pub(crate) fn insert_hidden(&mut self, key: Arc<str>, mut entry: Entry) -> Result<(), SpecError> {
        entry.spec.check()?;
        entry.name = Arc::clone(&key);
        if self.entries.contains_key(&key) {
            let message = format!("there is a `{key}` already; rename one of them");
            return Err(SpecError { tool: entry.spec.name.clone(), message });
        }
        self.entries.insert(key, Arc::new(entry));
        Ok(())
    }

    /// The sources, in the order of their coming.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources.iter().map(|listed| Arc::clone(&listed.source)).collect()
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.order.retain(|known| &**known != name);
        self.aliases.retain(|_, tool| &**tool != name);
        self.entries.remove(name).is_some()
    }

    /// Takes the tools of a source in. All or none: a name that is taken already leaves everything as it was.
    ///
    /// Tools that it had before and still has, unchanged, keep their place and their counters.
    pub(crate) fn take_list(
        &mut self,
        source: &Arc<dyn ToolSource>,
        generation: u64,
        specs: &[Arc<ToolSpec>],
        settings: &Settings,
    ) -> Result<(), SpecError> {
        let source_name: Arc<str> = source.name().into();
        let from_here = |entry: &Entry| match &entry.target {
            Target::Source(known) => Arc::ptr_eq(known, source),
            Target::Local(_) => false,
        };
        let mut names = HashSet::new();
        for spec in specs {
            spec.check()?;
            for name in all_names(spec) {
                let wrong = |message| Err(SpecError { tool: name.to_owned(), message });
                if !names.insert(name) {
                    return wrong(format!("`{source_name}` has two of this name"));
                }
                if let Some(other) = self.owner(name).filter(|entry| !from_here(entry)) {
                    let other = &other.source_name;
                    return wrong(format!("`{source_name}` and `{other}` both have one; rename one of them"));
                }
            }
        }
        let names: HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let mut known: HashMap<Arc<str>, Arc<Entry>> = HashMap::new();
        self.entries.retain(|name, entry| {
            let ours = from_here(entry);
            if ours {
                known.insert(Arc::clone(name), Arc::clone(entry));
            }
            !ours
        });
        self.order.retain(|name| !known.contains_key(name) || names.contains(&**name));
        self.aliases.retain(|_, tool| !known.contains_key(tool));
        let in_order: HashSet<Arc<str>> = self.order.iter().cloned().collect();
        for spec in specs {
            let fresh = Entry::foreign(spec, Arc::clone(source), Arc::clone(&source_name), settings);
            let same = known.remove(&fresh.name).filter(|old| same_spec(&old.spec, &fresh.spec));
            let entry = same.unwrap_or_else(|| Arc::new(fresh));
            if !in_order.contains(&entry.name) {
                self.order.push(Arc::clone(&entry.name));
            }
            self.take_aliases(&entry);
            self.entries.insert(Arc::clone(&entry.name), entry);
        }
        match self.sources.iter().find(|listed| Arc::ptr_eq(&listed.source, source)) {
            Some(listed) => listed.seen.store(generation, Ordering::Relaxed),
            None => self.sources.push(Listed {
                source: Arc::clone(source),
                seen: AtomicU64::new(generation),
                left_alone: Mutex::default(),
            }),
        }
        Ok(())
    }

    /// The sources whose list has changed since it was read, but for those that are left alone.
    pub(crate) fn stale_sources(&self) -> Vec<Arc<dyn ToolSource>> {
        self.sources
            .iter()
            .filter(|listed| listed.source.generation() != listed.seen.load(Ordering::Relaxed))
            .filter(|listed| {
                let until = *listed.left_alone.lock().unwrap_or_else(PoisonError::into_inner);
                until.is_none_or(|until| until <= Instant::now())
            })
            .map(|listed| Arc::clone(&listed.source))
            .collect()
    }

    /// Leaves a source alone for a while.
    pub(crate) fn back_off(&self, source: &Arc<dyn ToolSource>) {
        for listed in self.sources.iter().filter(|listed| Arc::ptr_eq(&listed.source, source)) {
            *listed.left_alone.lock().unwrap_or_else(PoisonError::into_inner) =
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

/// Whether two specs say the same.
fn same_spec(one: &Arc<ToolSpec>, other: &Arc<ToolSpec>) -> bool {
    Arc::ptr_eq(one, other) || serde_json::to_value(one).ok() == serde_json::to_value(other).ok()
}
