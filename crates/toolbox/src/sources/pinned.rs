//! Definitions that stay as they were approved.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, ToolError, ToolSource, ToolSpec,
};

use super::inspect::inspect_one;
use super::listing::{LIST_TIMEOUT, tools_of};
use super::{Finding, Severity, refused, shown};

/// How long a list that was verified counts for calls, unless it is said otherwise.
const RECHECK: Duration = Duration::from_mins(1);
/// The largest definition that is kept beside its digest, in bytes of JSON.
const MAX_DEFINITION: usize = 64 << 10;

/// A definition that was approved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The SHA-256 of the canonical definition: [`ToolSpec::digest`].
    pub sha256: String,
    /// The definition, so that a change can be shown; left out above 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

impl Pin {
    /// The pin of a definition.
    pub fn of(spec: &ToolSpec) -> Self {
        let definition = serde_json::to_value(spec).ok();
        Self {
            sha256: spec.digest(),
            definition: definition.filter(|value| value.to_string().len() <= MAX_DEFINITION),
        }
    }
}

/// Where pins are kept, by source and tool. Asked on every list and every call, so it must answer from memory or a small
/// file.
pub trait PinStore: Send + Sync {
    /// The pins of a source, by tool.
    ///
    /// # Errors
    /// They cannot be read: then nothing of the source is shown or run.
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError>;

    /// Adds pins of a source or takes their place; those of other tools and sources stay.
    ///
    /// # Errors
    /// They cannot be kept.
    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError>;

    /// Changes whenever the pins of any source may have changed, also by another process.
    fn generation(&self) -> u64;
}

/// Pins in memory, for as long as the process lives.
#[derive(Debug, Default)]
pub struct MemoryPins {
    pins: Mutex<HashMap<String, BTreeMap<String, Pin>>>,
    generation: AtomicU64,
}

impl PinStore for MemoryPins {
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(pins.get(source).cloned().unwrap_or_default())
    }

    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError> {
        let mut known = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(source.to_owned()).or_default().extend(pins.clone());
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}

/// What becomes of a tool that has no pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unpinned {
    /// It is pinned as it is.
    Trust,
    /// It is pinned if its source has no pins at all; one that appears later is quarantined.
    #[default]
    TrustFirstList,
    /// It is quarantined.
    Quarantine,
}

/// How a definition stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// As it was approved.
    Approved,
    /// Otherwise than it was approved.
    Changed {
        /// The digest that was approved.
        approved: String,
    },
    /// Never approved.
    New,
    /// Never approved, and something is wrong with it.
    Suspicious {
        /// What is, as a sentence.
        finding: String,
    },
}

impl Verdict {
    fn reason(&self) -> Option<String> {
        match self {
            Self::Approved => None,
            Self::Changed { .. } => Some("its definition has changed since it was approved".to_owned()),
            Self::New => Some("it is new and was not approved".to_owned()),
            Self::Suspicious { finding } => Some(format!("its definition was not approved: {finding}")),
        }
    }
}

/// A tool and how its definition stands.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Standing {
    /// Its name.
    pub tool: String,
    /// The digest of its definition as it is now; what [`Pinned::approve`] takes.
    pub sha256: String,
    /// How it stands.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The definition as it is now.
    pub definition: Arc<ToolSpec>,
    /// The definition that was approved, if it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_definition: Option<Value>,
    /// What is wrong with the definition as it is now.
    pub findings: Vec<Finding>,
}

/// A source whose tools are listed and run only with the definitions that were approved.
///
/// The name of a quarantined tool stays listed, with the reason in the place of its description; its own words are shown
/// to no model. Calls of it are refused with `PERMISSION`, which names the command that approves it. Prompts and
/// resources are passed on as they are.
///
/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Pinned {
    source: Arc<dyn ToolSource>,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    store: Arc<dyn PinStore>,
    unpinned: Unpinned,
    refuse: Option<Severity>,
    recheck: Duration,
    approval: Box<dyn Fn(&str) -> String + Send + Sync>,
    verified: RwLock<Option<Arc<Verified>>>,
    verifying: tokio::sync::Mutex<()>,
}

/// A list that was held against the pins.
struct Verified {
    /// Of the source and of the pins.
    generations: (u64, u64),
    at: Instant,
    tools: Vec<(Arc<ToolSpec>, Verdict)>,
    places: HashMap<String, usize>,
}

impl Pinned {
    /// Pins the definitions of a source, under its name. The first list is trusted, but for tools with a finding of
    /// [`Severity::High`].
    pub fn new(source: Arc<dyn ToolSource>, store: Arc<dyn PinStore>) -> Self {
        let name = source.name().to_owned();
        let command = name.clone();
        Self {
            source,
            shared: Arc::new(Shared {
                approval: Box::new(move |tool| {
                    format!("Pinned::approve of the source `{command}` with the tool `{tool}`")
                }),
                name,
                store,
                unpinned: Unpinned::default(),
                refuse: Some(Severity::High),
                recheck: RECHECK,
                verified: RwLock::default(),
                verifying: tokio::sync::Mutex::default(),
            }),
        }
    }

    fn change(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = match Arc::try_unwrap(self.shared) {
            Ok(shared) => shared,
            Err(shared) => Shared {
                name: shared.name.clone(),
                store: Arc::clone(&shared.store),
                unpinned: shared.unpinned,
                refuse: shared.refuse,
                recheck: shared.recheck,
                approval: Box::new({
                    let shared = Arc::clone(&shared);
                    move |tool| (shared.approval)(tool)
                }),
                verified: RwLock::default(),
                verifying: tokio::sync::Mutex::default(),
            },
        };
        change(&mut shared);
        Self { source: self.source, shared: Arc::new(shared) }
    }

    /// Keeps the pins under another name than the source's.
    #[must_use]
    pub fn kept_as(self, name: impl Into<String>) -> Self {
        self.change(|shared| shared.name = name.into())
    }

    /// Says what becomes of tools that have no pin. Default: [`Unpinned::TrustFirstList`].
    #[must_use]
    pub fn unpinned(self, unpinned: Unpinned) -> Self {
        self.change(|shared| shared.unpinned = unpinned)
    }

    /// Says from which severity on a finding keeps a tool from being trusted unseen; `None` is never. Default: high.
    #[must_use]
    pub fn refuse(self, severity: Option<Severity>) -> Self {
        self.change(|shared| shared.refuse = severity)
    }

    /// Says how long a list that was verified counts for calls. Default: 60 s. A source that says that its list has
    /// changed is read again at once.
    #[must_use]
    pub fn recheck(self, after: Duration) -> Self {
        self.change(|shared| shared.recheck = after)
    }

    /// Says by which command a person approves a tool, for errors.
    #[must_use]
    pub fn approved_by(self, command: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.approval = Box::new(command))
    }

    /// How the definitions stand, in the order of the list.
    ///
    /// # Errors
    /// The source cannot be listed, or the pins cannot be read.
    pub async fn standings(&self) -> Result<Vec<Standing>, ToolError> {
        let verified = self.verify().await?;
        let pins = self.shared.store.load(&self.shared.name)?;
        let standing = |(spec, verdict): &(Arc<ToolSpec>, Verdict)| Standing {
            tool: spec.name.clone(),
            sha256: spec.digest(),
            verdict: verdict.clone(),
            approved_definition: pins.get(&spec.name).and_then(|pin| pin.definition.clone()),
            findings: inspect_one(&self.shared.name, spec),
            definition: Arc::clone(spec),
        };
        Ok(verified.tools.iter().map(standing).collect())
    }

    /// The tools that were in quarantine when the list was last verified. Asks nobody.
    pub fn quarantined(&self) -> Vec<String> {
        let verified = self.shared.verified.read().unwrap_or_else(PoisonError::into_inner).clone();
        let tools = verified.iter().flat_map(|verified| &verified.tools);
        tools.filter(|(_, verdict)| verdict.reason().is_some()).map(|(spec, _)| spec.name.clone()).collect()
    }

    /// Approves the definition that a tool has now. The digest is the one that was looked at: if it has changed since,
    /// nothing is approved.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such tool, `CONFLICT` if its definition has another digest, and those of
    /// [`standings`](Self::standings).
    pub async fn approve(&self, tool: &str, sha256: &str) -> Result<(), ToolError> {
        let verified = self.verify().await?;
        let Some((spec, _)) = verified.get(tool) else {
            return Err(ToolError::not_found(format!(
                "`{}` has no tool `{}`",
                self.shared.name,
                shown(tool)
            )));
        };
        let pin = Pin::of(spec);
        if pin.sha256 != sha256 {
            return Err(ToolError::conflict(format!(
                "the definition of `{tool}` has the digest {}, not {}",
                pin.sha256,
                shown(sha256)
            ))
            .suggest("It has changed since it was looked at: look again."));
        }
        self.shared.store.put(&self.shared.name, &BTreeMap::from([(tool.to_owned(), pin)]))
    }

    fn generations(&self) -> (u64, u64) {
        (self.source.generation(), self.shared.store.generation())
    }

    /// Reads the list and holds it against the pins.
    async fn verify(&self) -> Result<Arc<Verified>, ToolError> {
        let shared = &*self.shared;
        let mut generations = self.generations();
        let specs = tools_of(&*self.source, LIST_TIMEOUT).await?;
        let pins = shared.store.load(&shared.name)?;
        let mut fresh = BTreeMap::new();
        let mut tools = Vec::with_capacity(specs.len());
        for spec in specs {
            let digest = spec.digest();
            let verdict = match pins.get(&spec.name) {
                Some(pin) if pin.sha256 == digest => Verdict::Approved,
                Some(pin) => Verdict::Changed { approved: pin.sha256.clone() },
                None => shared.judge(&spec, pins.is_empty()),
            };
            if verdict == Verdict::Approved && !pins.contains_key(&spec.name) {
                fresh.insert(spec.name.clone(), Pin::of(&spec));
            }
            tools.push((spec, verdict));
        }
        if !fresh.is_empty() {
            shared.store.put(&shared.name, &fresh)?;
            // What was put here is no change that has yet to be read.
            generations.1 = shared.store.generation();
        }
        let places = tools.iter().enumerate().map(|(place, (spec, _))| (spec.name.clone(), place)).collect();
        let verified = Arc::new(Verified { generations, at: Instant::now(), tools, places });
        *shared.verified.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&verified));
        Ok(verified)
    }

    fn known(&self) -> Option<Arc<Verified>> {
        let known = self.shared.verified.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let fresh = known.at.elapsed() < self.shared.recheck && known.generations == self.generations();
        fresh.then_some(known)
    }

    /// The list as it was verified last, if that still counts.
    async fn verified(&self) -> Result<Arc<Verified>, ToolError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _one_at_a_time = self.shared.verifying.lock().await;
        match self.known() {
            Some(known) => Ok(known),
            None => self.verify().await,
        }
    }

    async fn permit(&self, tool: &str) -> Result<(), ToolError> {
        let verified = self.verified().await?;
        let Some((spec, verdict)) = verified.by_any_name(tool) else {
            return Err(ToolError::not_found(format!("there is no tool `{}`", shown(tool))));
        };
        let Some(reason) = verdict.reason() else { return Ok(()) };
        Err(ToolError::permission(format!("the tool `{}` is quarantined: {reason}", spec.name))
            .suggest(format!("Look at it; then approve it: {}", (self.shared.approval)(&spec.name)))
            .with("sha256", spec.digest()))
    }

    /// What is listed in the place of a tool in quarantine: its name, and no word of its own.
    fn unavailable(&self, spec: &ToolSpec, reason: &str) -> Arc<ToolSpec> {
        let text = format!(
            "Unavailable: {reason}. A person must look at it first: {}",
            (self.shared.approval)(&spec.name)
        );
        let mut listed = ToolSpec::new(spec.name.clone(), text).input(json!({ "type": "object" }));
        listed.meta.insert("unavailable".to_owned(), reason.into());
        listed.meta.insert("sha256".to_owned(), spec.digest().into());
        Arc::new(listed)
    }
}

impl Shared {
    fn judge(&self, spec: &Arc<ToolSpec>, first_list: bool) -> Verdict {
        let trusted = match self.unpinned {
            Unpinned::Trust => true,
            Unpinned::TrustFirstList => first_list,
            Unpinned::Quarantine => false,
        };
        let findings = inspect_one(&self.name, spec);
        let worst = findings.iter().max_by_key(|finding| finding.severity);
        match worst.filter(|worst| self.refuse.is_some_and(|refused| worst.severity >= refused)) {
            Some(finding) => Verdict::Suspicious { finding: finding.to_string() },
            None if trusted => Verdict::Approved,
            None => Verdict::New,
        }
    }
}

impl Verified {
    fn get(&self, tool: &str) -> Option<&(Arc<ToolSpec>, Verdict)> {
        self.tools.get(*self.places.get(tool)?)
    }

    fn by_any_name(&self, name: &str) -> Option<&(Arc<ToolSpec>, Verdict)> {
        self.get(name).or_else(|| {
            self.tools.iter().find(|(spec, _)| spec.aliases.iter().any(|alias| alias.name == name))
        })
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("source", &self.source.name())
            .field("name", &self.shared.name)
            .field("unpinned", &self.shared.unpinned)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Pinned {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let verified = self.verify().await?;
            let listed = |(spec, verdict): &(Arc<ToolSpec>, Verdict)| match verdict.reason() {
                None => Arc::clone(spec),
                Some(reason) => self.unavailable(spec, &reason),
            };
            Ok(verified.tools.iter().map(listed).collect())
        })
    }

    fn generation(&self) -> u64 {
        let (source, pins) = self.generations();
        source.wrapping_add(pins)
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.permit(&call.tool).await {
                Ok(()) => self.source.call(call).await,
                Err(error) => refused(&call, self.name(), error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.source.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.source.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.source.read(call)
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.source.render(call)
    }

    /// What one caller sees is held against the same pins, and pins nothing by itself.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(View { pinned: self.clone(), seen }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }
}

/// A pinned source as one caller may see it.
struct View {
    pinned: Pinned,
    seen: Arc<dyn ToolSource>,
}

impl ToolSource for View {
    fn name(&self) -> &str {
        self.pinned.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let seen = tools_of(&*self.seen, LIST_TIMEOUT).await?;
            let names: std::collections::HashSet<&str> = seen.iter().map(|spec| spec.name.as_str()).collect();
            let mut specs = self.pinned.list().await?;
            specs.retain(|spec| names.contains(spec.name.as_str()));
            Ok(specs)
        })
    }

    fn generation(&self) -> u64 {
        self.pinned.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.pinned.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.seen.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.seen.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.seen.read(call)
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.seen.render(call)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.pinned.health()
    }
}
