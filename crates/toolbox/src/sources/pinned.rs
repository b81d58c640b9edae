//! Definitions that stay as they were approved.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use toolpost_core::{
    BoxFuture, Call, Caller, HiddenDefinition, Output, PromptSpec, Reply, ResourceSpec, SourceState,
    SourceStatus, ToolError, ToolSource, ToolSpec,
};

use super::definition::{Definition, Kind};
use super::inspect::{hides, inspect_one};
use super::listing::{LIST_TIMEOUT, listed};
use super::{Finding, Pin, PinStore, Severity, refused, shown};

/// How long a list that was verified counts for calls, unless it is said otherwise.
const RECHECK: Duration = Duration::from_mins(1);

/// What becomes of a definition that has no pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unpinned {
    /// It is pinned as it is.
    Trust,
    /// It is pinned if nothing of its kind was ever listed; one that appears later is quarantined.
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

/// Something that a source has, and how its definition stands.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Standing {
    /// Its name: that of a tool, `prompt:` and that of a prompt, `resource:` and the addresses of a resource.
    pub name: String,
    /// The digest of its definition as it is now; what [`Pinned::approve`] takes.
    pub sha256: String,
    /// How it stands.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The definition as it is now.
    pub definition: Value,
    /// The definition that was approved, if it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_definition: Option<Value>,
    /// What is wrong with the definition as it is now.
    pub findings: Vec<Finding>,
}

/// A source whose tools, prompts and resources are listed and used only with the definitions that were approved.
///
/// The name of what is quarantined stays listed, with the reason in the place of its description; its own words are shown
/// to no model. A name that has characters which nobody sees is not listed. Uses are refused with `PERMISSION`, which
/// names the command that approves it.
///
/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Pinned {
    source: Arc<dyn ToolSource>,
    shared: Arc<Shared>,
}

struct Shared {
    rules: Rules,
    tools: Desk<ToolSpec>,
    prompts: Desk<PromptSpec>,
    resources: Desk<ResourceSpec>,
}

struct Rules {
    name: String,
    store: Arc<dyn PinStore>,
    unpinned: Unpinned,
    refuse: Option<Severity>,
    recheck: Duration,
    approval: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

/// Where definitions of a kind are verified.
struct Desk<D> {
    verified: RwLock<Option<Arc<Verified<D>>>>,
    verifying: tokio::sync::Mutex<()>,
}

impl<D> Default for Desk<D> {
    fn default() -> Self {
        Self { verified: RwLock::new(None), verifying: tokio::sync::Mutex::default() }
    }
}

/// A list that was held against the pins.
struct Verified<D> {
    /// Of the source and of the pins.
    generations: (u64, u64),
    at: Instant,
    items: Vec<(Arc<D>, Verdict)>,
    /// By name.
    places: HashMap<String, usize>,
}

impl<D> Verified<D> {
    fn get(&self, name: &str) -> Option<&(Arc<D>, Verdict)> {
        self.items.get(*self.places.get(name)?)
    }
}

/// A kind of definition that has a desk.
trait Kept: Definition {
    fn desk(shared: &Shared) -> &Desk<Self>;
}

impl Kept for ToolSpec {
    fn desk(shared: &Shared) -> &Desk<Self> {
        &shared.tools
    }
}

impl Kept for PromptSpec {
    fn desk(shared: &Shared) -> &Desk<Self> {
        &shared.prompts
    }
}

impl Kept for ResourceSpec {
    fn desk(shared: &Shared) -> &Desk<Self> {
        &shared.resources
    }
}

impl Pinned {
    /// Pins the definitions of a source, under its name. The first list of each kind is trusted, but for what has a
    /// finding of [`Severity::High`].
    pub fn new(source: Arc<dyn ToolSource>, store: Arc<dyn PinStore>) -> Self {
        let name = source.name().to_owned();
        let command = name.clone();
        let rules = Rules {
            approval: Arc::new(move |what| {
                format!("Pinned::approve of the source `{command}` with the name `{what}`")
            }),
            name,
            store,
            unpinned: Unpinned::default(),
            refuse: Some(Severity::High),
            recheck: RECHECK,
        };
        Self::of(source, rules)
    }

    fn of(source: Arc<dyn ToolSource>, rules: Rules) -> Self {
        let shared =
            Shared { rules, tools: Desk::default(), prompts: Desk::default(), resources: Desk::default() };
        Self { source, shared: Arc::new(shared) }
    }

    fn change(self, change: impl FnOnce(&mut Rules)) -> Self {
        let old = &self.shared.rules;
        let mut rules = Rules {
            name: old.name.clone(),
            store: Arc::clone(&old.store),
            approval: Arc::clone(&old.approval),
            ..*old
        };
        change(&mut rules);
        Self::of(self.source, rules)
    }

    /// Keeps the pins under another name than the source's.
    #[must_use]
    pub fn kept_as(self, name: impl Into<String>) -> Self {
        self.change(|rules| rules.name = name.into())
    }

    /// Says what becomes of definitions that have no pin. Default: [`Unpinned::TrustFirstList`].
    #[must_use]
    pub fn unpinned(self, unpinned: Unpinned) -> Self {
        self.change(|rules| rules.unpinned = unpinned)
    }

    /// Says from which severity on a finding keeps a definition from being trusted unseen; `None` is never. Default: high.
    #[must_use]
    pub fn refuse(self, severity: Option<Severity>) -> Self {
        self.change(|rules| rules.refuse = severity)
    }

    /// Says how long a list that was verified counts for calls. Default: 60 s. A source that says that its list has
    /// changed is read again at once.
    #[must_use]
    pub fn recheck(self, after: Duration) -> Self {
        self.change(|rules| rules.recheck = after)
    }

    /// Says by which command a person approves something, for errors.
    #[must_use]
    pub fn approved_by(self, command: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.approval = Arc::new(command))
    }

    /// How the definitions stand: tools, then prompts, then resources, each in the order of the list.
    ///
    /// # Errors
    /// The source cannot be listed, or the pins cannot be read.
    pub async fn standings(&self) -> Result<Vec<Standing>, ToolError> {
        let mut standings = self.standings_of::<ToolSpec>().await?;
        standings.extend(self.standings_of::<PromptSpec>().await?);
        standings.extend(self.standings_of::<ResourceSpec>().await?);
        Ok(standings)
    }

    async fn standings_of<D: Kept>(&self) -> Result<Vec<Standing>, ToolError> {
        let verified = self.verify::<D>().await?;
        let rules = &self.shared.rules;
        let pins = rules.store.load(&rules.name)?;
        let standing = |(spec, verdict): &(Arc<D>, Verdict)| Standing {
            name: spec.key(),
            sha256: spec.digest(),
            verdict: verdict.clone(),
            approved_definition: pins.get(&spec.key()).and_then(|pin| pin.definition.clone()),
            findings: inspect_one(&rules.name, &**spec),
            definition: serde_json::to_value(spec).unwrap_or_default(),
        };
        Ok(verified.items.iter().map(standing).collect())
    }

    /// What was in quarantine when it was last listed, with the reason and how it is approved. Asks nobody.
    fn quarantined(&self) -> Vec<HiddenDefinition> {
        let mut all = self.quarantined_of::<ToolSpec>();
        all.extend(self.quarantined_of::<PromptSpec>());
        all.extend(self.quarantined_of::<ResourceSpec>());
        all
    }

    fn quarantined_of<D: Kept>(&self) -> Vec<HiddenDefinition> {
        let verified = D::desk(&self.shared).verified.read().unwrap_or_else(PoisonError::into_inner).clone();
        let items = verified.iter().flat_map(|verified| &verified.items);
        let withheld = items.filter_map(|(spec, verdict)| {
            let remedy = (self.shared.rules.approval)(&shown(&spec.key()));
            Some(HiddenDefinition::new(shown(&spec.key()), verdict.reason()?).remedy(remedy))
        });
        withheld.collect()
    }

    /// Approves the definition that something has now, by its name in [`Standing`]. The digest is the one that was looked
    /// at: if it has changed since, nothing is approved.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is nothing of this name, `CONFLICT` if its definition has another digest, and those of
    /// [`standings`](Self::standings).
    pub async fn approve(&self, name: &str, sha256: &str) -> Result<(), ToolError> {
        match Kind::split(name) {
            (Some(Kind::Prompt), name) => self.approve_of::<PromptSpec>(name, sha256).await,
            (Some(Kind::Resource), name) => self.approve_of::<ResourceSpec>(name, sha256).await,
            (Some(Kind::Tool) | None, name) => self.approve_of::<ToolSpec>(name, sha256).await,
        }
    }

    async fn approve_of<D: Kept>(&self, name: &str, sha256: &str) -> Result<(), ToolError> {
        let rules = &self.shared.rules;
        let verified = self.verify::<D>().await?;
        let noun = D::KIND.noun();
        let Some((spec, _)) = verified.get(name) else {
            return Err(ToolError::not_found(format!("`{}` has no {noun} `{}`", rules.name, shown(name))));
        };
        let pin = Pin::of(&**spec);
        if pin.sha256 != sha256 {
            return Err(ToolError::conflict(format!(
                "the definition of the {noun} `{}` has the digest {}, not {}",
                shown(name),
                pin.sha256,
                shown(sha256)
            ))
            .suggest("It has changed since it was looked at: look again."));
        }
        rules.store.put(&rules.name, &BTreeMap::from([(spec.key(), pin)]))
    }

    fn generations(&self) -> (u64, u64) {
        (self.source.generation(), self.shared.rules.store.generation())
    }

    /// Reads the list and holds it against the pins.
    async fn verify<D: Kept>(&self) -> Result<Arc<Verified<D>>, ToolError> {
        let rules = &self.shared.rules;
        let mut generations = self.generations();
        let specs = listed::<D>(&*self.source, LIST_TIMEOUT).await?;
        let pins = rules.store.load(&rules.name)?;
        let is_first = !pins.keys().any(|key| D::KIND.has(key));
        let mut fresh = BTreeMap::new();
        // What comes later is new, also if now there is nothing. A source that has no tool yet has promised nothing.
        if is_first && (D::KIND != Kind::Tool || !specs.is_empty()) {
            fresh.insert(D::KIND.prefix().to_owned(), Pin::of_first_list());
        }
        let mut items = Vec::with_capacity(specs.len());
        for spec in specs {
            let key = spec.key();
            let digest = spec.digest();
            let verdict = match pins.get(&key) {
                Some(pin) if pin.sha256 == digest => Verdict::Approved,
                Some(pin) => Verdict::Changed { approved: pin.sha256.clone() },
                None => rules.judge(&*spec, is_first),
            };
            if verdict == Verdict::Approved && !pins.contains_key(&key) {
                fresh.insert(key, Pin::of(&*spec));
            }
            items.push((spec, verdict));
        }
        if !fresh.is_empty() {
            rules.store.put(&rules.name, &fresh)?;
            // What was put here is no change that has yet to be read.
            generations.1 = rules.store.generation();
        }
        let places =
            items.iter().enumerate().map(|(place, (spec, _))| (spec.name().to_owned(), place)).collect();
        let verified = Arc::new(Verified { generations, at: Instant::now(), items, places });
        let desk = D::desk(&self.shared);
        *desk.verified.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&verified));
        Ok(verified)
    }

    fn known<D: Kept>(&self) -> Option<Arc<Verified<D>>> {
        let desk = D::desk(&self.shared);
        let known = desk.verified.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let fresh = known.at.elapsed() < self.shared.rules.recheck && known.generations == self.generations();
        fresh.then_some(known)
    }

    /// The list as it was verified last, if that still counts.
    async fn verified<D: Kept>(&self) -> Result<Arc<Verified<D>>, ToolError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _one_at_a_time = D::desk(&self.shared).verifying.lock().await;
        match self.known() {
            Some(known) => Ok(known),
            None => self.verify().await,
        }
    }

    /// The list as it may be shown.
    async fn show<D: Kept>(&self) -> Result<Vec<Arc<D>>, ToolError> {
        let verified = self.verify::<D>().await?;
        let shown = verified.items.iter().filter_map(|(spec, verdict)| match verdict.reason() {
            None => Some(Arc::clone(spec)),
            // A name is words of its own too.
            Some(_) if hides(spec.name()) => None,
            Some(reason) => {
                let text = format!(
                    "Unavailable: {reason}. A person must look at it first: {}",
                    (self.shared.rules.approval)(&spec.key())
                );
                let facts = [("unavailable", reason), ("sha256", spec.digest())];
                let meta = facts.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
                Some(Arc::new(spec.without_words(text, meta)))
            }
        });
        Ok(shown.collect())
    }

    /// Whether something may be used: it is there, and approved.
    fn judged<D: Kept>(&self, name: &str, found: Option<&(Arc<D>, Verdict)>) -> Result<(), ToolError> {
        let noun = D::KIND.noun();
        let Some((spec, verdict)) = found else {
            return Err(ToolError::not_found(format!("there is no {noun} `{}`", shown(name))));
        };
        let Some(reason) = verdict.reason() else { return Ok(()) };
        let own = shown(spec.name());
        Err(ToolError::permission(format!("the {noun} `{own}` is quarantined: {reason}"))
            .suggest(format!(
                "Look at it; then approve it: {}",
                (self.shared.rules.approval)(&shown(&spec.key()))
            ))
            .with("sha256", spec.digest()))
    }

    async fn permit(&self, tool: &str) -> Result<(), ToolError> {
        let verified = self.verified::<ToolSpec>().await?;
        let by_alias =
            || verified.items.iter().find(|(spec, _)| spec.aliases.iter().any(|alias| alias.name == tool));
        self.judged(tool, verified.get(tool).or_else(by_alias))
    }

    /// The first resource that an address fits counts, as everywhere.
    async fn permit_address(&self, uri: &str) -> Result<(), ToolError> {
        let verified = self.verified::<ResourceSpec>().await?;
        let fits = |(spec, _): &&(Arc<ResourceSpec>, Verdict)| spec.uri_pattern.matches(uri).is_some();
        self.judged(uri, verified.items.iter().find(fits))
    }

    async fn permit_prompt(&self, name: &str) -> Result<(), ToolError> {
        let verified = self.verified::<PromptSpec>().await?;
        self.judged(name, verified.get(name))
    }
}

impl Rules {
    fn judge(&self, definition: &impl Definition, first_list: bool) -> Verdict {
        let trusted = match self.unpinned {
            Unpinned::Trust => true,
            Unpinned::TrustFirstList => first_list,
            Unpinned::Quarantine => false,
        };
        let findings = inspect_one(&self.name, definition);
        let worst = findings.iter().max_by_key(|finding| finding.severity);
        match worst.filter(|worst| self.refuse.is_some_and(|refused| worst.severity >= refused)) {
            Some(finding) => Verdict::Suspicious { finding: finding.to_string() },
            None if trusted => Verdict::Approved,
            None => Verdict::New,
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("source", &self.source.name())
            .field("name", &self.shared.rules.name)
            .field("unpinned", &self.shared.rules.unpinned)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Pinned {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(self.show())
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
        Box::pin(self.show())
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(self.show())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.permit_address(&call.tool).await?;
            self.source.read(call).await
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.permit_prompt(&call.tool).await?;
            self.source.render(call).await
        })
    }

    /// What one caller sees is held against the same pins, and pins nothing by itself.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(View { pinned: self.clone(), seen }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        let mut status = self.source.status();
        if status.is_empty() {
            status.push(SourceStatus::new(&*self.shared.rules.name, SourceState::Ready));
        }
        if let Some(whole) = status.last_mut() {
            whole.quarantined = self.quarantined();
        }
        status
    }
}

/// A pinned source as one caller may see it.
struct View {
    pinned: Pinned,
    seen: Arc<dyn ToolSource>,
}

impl View {
    async fn show<D: Kept>(&self) -> Result<Vec<Arc<D>>, ToolError> {
        let seen = listed::<D>(&*self.seen, LIST_TIMEOUT).await?;
        let names: HashSet<&str> = seen.iter().map(|spec| spec.name()).collect();
        let mut specs = self.pinned.show::<D>().await?;
        specs.retain(|spec| names.contains(spec.name()));
        Ok(specs)
    }
}

impl ToolSource for View {
    fn name(&self) -> &str {
        self.pinned.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(self.show())
    }

    fn generation(&self) -> u64 {
        self.pinned.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.pinned.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(self.show())
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(self.show())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.pinned.permit_address(&call.tool).await?;
            self.seen.read(call).await
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.pinned.permit_prompt(&call.tool).await?;
            self.seen.render(call).await
        })
    }

    fn viewer(&self) -> Option<&Caller> {
        self.seen.viewer()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.pinned.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.pinned.status().into_iter().map(SourceStatus::brief).collect()
    }
}
