//! Pinned definitions: only approved ones are used.

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
use super::{Finding, Pin, PinStore, Severity, Specs, refused, shown};

/// How long a verified list is valid for calls by default.
const RECHECK: Duration = Duration::from_mins(1);

/// What happens to a definition without a pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnpinnedPolicy {
    /// It is pinned.
    Trust,
    /// It is pinned if this is the first list of its kind. Otherwise it is quarantined.
    #[default]
    TrustFirstList,
    /// It is quarantined.
    Quarantine,
}

/// The state of a definition against its pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum PinVerdict {
    /// Equal to the approved definition.
    Approved,
    /// Different from the approved definition.
    Changed {
        /// The digest of the approved definition.
        approved: String,
    },
    /// Never approved.
    New,
    /// Never approved, and suspicious.
    Suspicious {
        /// The finding, as a sentence.
        finding: String,
    },
}

impl PinVerdict {
    fn reason(&self) -> Option<String> {
        match self {
            Self::Approved => None,
            Self::Changed { .. } => Some("its definition has changed since its approval".to_owned()),
            Self::New => Some("it is new and not approved".to_owned()),
            Self::Suspicious { finding } => Some(format!("its definition is not approved: {finding}")),
        }
    }
}

/// A definition of a source and its state against its pin.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PinStatus {
    /// The key: the name of a tool, `prompt:` and the name of a prompt, or `resource:` and the URI pattern of
    /// a resource.
    pub name: String,
    /// The digest of the current definition, for [`Pinned::approve`].
    pub sha256: String,
    /// The state of the current definition.
    #[serde(flatten)]
    pub verdict: PinVerdict,
    /// The current definition.
    pub definition: Value,
    /// The approved definition, if stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_definition: Option<Value>,
    /// The findings in the current definition.
    pub findings: Vec<Finding>,
}

/// A source that lists and uses only approved definitions.
///
/// A quarantined definition stays listed by name, with the reason as its description. Its own text reaches no
/// model. A name with invisible characters is not listed. Using a quarantined definition fails with
/// `PERMISSION`; the error names the command that approves it.
///
/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct Pinned {
    source: Arc<dyn ToolSource>,
    shared: Arc<Shared>,
}

struct Shared {
    rules: Rules,
    tools: VerifiedList<ToolSpec>,
    prompts: VerifiedList<PromptSpec>,
    resources: VerifiedList<ResourceSpec>,
}

struct Rules {
    name: String,
    store: Arc<dyn PinStore>,
    unpinned: UnpinnedPolicy,
    refuse: Option<Severity>,
    recheck: Duration,
    approval: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

/// The verified list of one kind.
struct VerifiedList<D> {
    verified: RwLock<Option<Arc<Verified<D>>>>,
    verifying: tokio::sync::Mutex<()>,
}

impl<D> Default for VerifiedList<D> {
    fn default() -> Self {
        Self { verified: RwLock::new(None), verifying: tokio::sync::Mutex::default() }
    }
}

/// A list after the comparison with the pins.
struct Verified<D> {
    /// The generations of the source and of the pins.
    generations: (u64, u64),
    at: Instant,
    items: Vec<(Arc<D>, PinVerdict)>,
    /// The index of each name.
    positions: HashMap<String, usize>,
}

impl<D> Verified<D> {
    fn get(&self, name: &str) -> Option<&(Arc<D>, PinVerdict)> {
        self.items.get(*self.positions.get(name)?)
    }
}

/// A kind of definition with a verified list.
trait Pinnable: Definition {
    fn verified_list(shared: &Shared) -> &VerifiedList<Self>;
}

impl Pinnable for ToolSpec {
    fn verified_list(shared: &Shared) -> &VerifiedList<Self> {
        &shared.tools
    }
}

impl Pinnable for PromptSpec {
    fn verified_list(shared: &Shared) -> &VerifiedList<Self> {
        &shared.prompts
    }
}

impl Pinnable for ResourceSpec {
    fn verified_list(shared: &Shared) -> &VerifiedList<Self> {
        &shared.resources
    }
}

impl Pinned {
    /// Pins the definitions of a source, under its name. The first list of each kind is trusted, except for
    /// findings of [`Severity::High`].
    pub fn new(source: Arc<dyn ToolSource>, store: Arc<dyn PinStore>) -> Self {
        let name = source.name().to_owned();
        let command = name.clone();
        let rules = Rules {
            approval: Arc::new(move |what| {
                format!("Pinned::approve of the source `{command}` with the name `{what}`")
            }),
            name,
            store,
            unpinned: UnpinnedPolicy::default(),
            refuse: Some(Severity::High),
            recheck: RECHECK,
        };
        Self::of(source, rules)
    }

    fn of(source: Arc<dyn ToolSource>, rules: Rules) -> Self {
        let shared = Shared {
            rules,
            tools: VerifiedList::default(),
            prompts: VerifiedList::default(),
            resources: VerifiedList::default(),
        };
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

    /// Stores the pins under this name instead of the source's.
    #[must_use]
    pub fn store_as(self, name: impl Into<String>) -> Self {
        self.change(|rules| rules.name = name.into())
    }

    /// Sets what happens to definitions without a pin. Default: [`UnpinnedPolicy::TrustFirstList`].
    #[must_use]
    pub fn unpinned(self, unpinned: UnpinnedPolicy) -> Self {
        self.change(|rules| rules.unpinned = unpinned)
    }

    /// Sets the severity from which a finding prevents automatic trust; `None` for never. Default: high.
    #[must_use]
    pub fn refuse(self, severity: Option<Severity>) -> Self {
        self.change(|rules| rules.refuse = severity)
    }

    /// Sets how long a verified list is valid for calls. Default: 60 s. A changed list is read again at once.
    #[must_use]
    pub fn recheck(self, after: Duration) -> Self {
        self.change(|rules| rules.recheck = after)
    }

    /// Sets the command that approves a definition, for errors.
    #[must_use]
    pub fn approval_command(self, command: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.approval = Arc::new(command))
    }

    /// The states of all definitions: tools, then prompts, then resources, each in the order of the list.
    ///
    /// # Errors
    /// The source cannot be listed, or the pins cannot be read.
    pub async fn statuses(&self) -> Result<Vec<PinStatus>, ToolError> {
        let mut statuses = self.statuses_of::<ToolSpec>().await?;
        statuses.extend(self.statuses_of::<PromptSpec>().await?);
        statuses.extend(self.statuses_of::<ResourceSpec>().await?);
        Ok(statuses)
    }

    async fn statuses_of<D: Pinnable>(&self) -> Result<Vec<PinStatus>, ToolError> {
        let verified = self.verify::<D>().await?;
        let rules = &self.shared.rules;
        let pins = rules.store.load(&rules.name)?;
        let standing = |(spec, verdict): &(Arc<D>, PinVerdict)| PinStatus {
            name: spec.key(),
            sha256: spec.digest(),
            verdict: verdict.clone(),
            approved_definition: pins.get(&spec.key()).and_then(|pin| pin.definition.clone()),
            findings: inspect_one(&rules.name, &**spec),
            definition: serde_json::to_value(spec).unwrap_or_default(),
        };
        Ok(verified.items.iter().map(standing).collect())
    }

    /// The quarantined definitions of the last list, with reasons and remedies.
    fn quarantined(&self) -> Vec<HiddenDefinition> {
        let mut all = self.quarantined_of::<ToolSpec>();
        all.extend(self.quarantined_of::<PromptSpec>());
        all.extend(self.quarantined_of::<ResourceSpec>());
        all
    }

    fn quarantined_of<D: Pinnable>(&self) -> Vec<HiddenDefinition> {
        let verified =
            D::verified_list(&self.shared).verified.read().unwrap_or_else(PoisonError::into_inner).clone();
        let items = verified.iter().flat_map(|verified| &verified.items);
        let withheld = items.filter_map(|(spec, verdict)| {
            let remedy = (self.shared.rules.approval)(&shown(&spec.key()));
            Some(HiddenDefinition::new(shown(&spec.key()), verdict.reason()?).remedy(remedy))
        });
        withheld.collect()
    }

    /// Approves a current definition, by its name in [`PinStatus`]. The digest must be the one that was
    /// reviewed; if the definition has changed since, nothing is approved.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown name, `CONFLICT` for another digest, and those of
    /// [`statuses`](Self::statuses).
    pub async fn approve(&self, name: &str, sha256: &str) -> Result<(), ToolError> {
        match Kind::split(name) {
            (Some(Kind::Prompt), name) => self.approve_of::<PromptSpec>(name, sha256).await,
            (Some(Kind::Resource), name) => self.approve_of::<ResourceSpec>(name, sha256).await,
            (Some(Kind::Tool) | None, name) => self.approve_of::<ToolSpec>(name, sha256).await,
        }
    }

    async fn approve_of<D: Pinnable>(&self, name: &str, sha256: &str) -> Result<(), ToolError> {
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
            .suggest("It has changed since the review: review it again."));
        }
        rules.store.put(&rules.name, &BTreeMap::from([(spec.key(), pin)]))
    }

    fn generations(&self) -> (u64, u64) {
        (self.source.generation(), self.shared.rules.store.generation())
    }

    /// Reads the list and compares it with the pins.
    async fn verify<D: Pinnable>(&self) -> Result<Arc<Verified<D>>, ToolError> {
        let rules = &self.shared.rules;
        let mut generations = self.generations();
        let specs = listed::<D>(&*self.source, LIST_TIMEOUT).await?;
        let pins = rules.store.load(&rules.name)?;
        let is_first = !pins.keys().any(|key| D::KIND.has(key));
        let mut fresh = BTreeMap::new();
        // Later definitions are new even after an empty list, except for tools.
        if is_first && (D::KIND != Kind::Tool || !specs.is_empty()) {
            fresh.insert(D::KIND.prefix().to_owned(), Pin::of_first_list());
        }
        let mut items = Vec::with_capacity(specs.len());
        for spec in specs {
            let key = spec.key();
            let digest = spec.digest();
            let verdict = match pins.get(&key) {
                Some(pin) if pin.sha256 == digest => PinVerdict::Approved,
                Some(pin) => PinVerdict::Changed { approved: pin.sha256.clone() },
                None => rules.judge(&*spec, is_first),
            };
            if verdict == PinVerdict::Approved && !pins.contains_key(&key) {
                fresh.insert(key, Pin::of(&*spec));
            }
            items.push((spec, verdict));
        }
        if !fresh.is_empty() {
            rules.store.put(&rules.name, &fresh)?;
            // The own change of the pins needs no second read.
            generations.1 = rules.store.generation();
        }
        let positions = items
            .iter()
            .enumerate()
            .map(|(position, (spec, _))| (spec.name().to_owned(), position))
            .collect();
        let verified = Arc::new(Verified { generations, at: Instant::now(), items, positions });
        let verified_list = D::verified_list(&self.shared);
        *verified_list.verified.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&verified));
        Ok(verified)
    }

    fn known<D: Pinnable>(&self) -> Option<Arc<Verified<D>>> {
        let verified_list = D::verified_list(&self.shared);
        let known = verified_list.verified.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let fresh = known.at.elapsed() < self.shared.rules.recheck && known.generations == self.generations();
        fresh.then_some(known)
    }

    /// The last verified list, if valid; otherwise a new one.
    async fn verified<D: Pinnable>(&self) -> Result<Arc<Verified<D>>, ToolError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _guard = D::verified_list(&self.shared).verifying.lock().await;
        match self.known() {
            Some(known) => Ok(known),
            None => self.verify().await,
        }
    }

    /// The list for callers.
    async fn show<D: Pinnable>(&self) -> Specs<D> {
        let verified = self.verify::<D>().await?;
        let shown = verified.items.iter().filter_map(|(spec, verdict)| match verdict.reason() {
            None => Some(Arc::clone(spec)),
            // A name is text too.
            Some(_) if hides(spec.name()) => None,
            Some(reason) => {
                let text = format!(
                    "Unavailable: {reason}. A person must review it first: {}",
                    (self.shared.rules.approval)(&spec.key())
                );
                let facts = [("unavailable", reason), ("sha256", spec.digest())];
                let meta = facts.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
                Some(Arc::new(spec.replaced(text, meta)))
            }
        });
        Ok(shown.collect())
    }

    /// Checks that a definition exists and is approved.
    fn require_approved<D: Pinnable>(
        &self,
        name: &str,
        found: Option<&(Arc<D>, PinVerdict)>,
    ) -> Result<(), ToolError> {
        let noun = D::KIND.noun();
        let Some((spec, verdict)) = found else {
            return Err(ToolError::not_found(format!("unknown {noun} `{}`", shown(name))));
        };
        let Some(reason) = verdict.reason() else { return Ok(()) };
        let own = shown(spec.name());
        Err(ToolError::permission(format!("the {noun} `{own}` is quarantined: {reason}"))
            .suggest(format!(
                "Review it, then approve it: {}",
                (self.shared.rules.approval)(&shown(&spec.key()))
            ))
            .with("sha256", spec.digest()))
    }

    async fn permit(&self, tool: &str) -> Result<(), ToolError> {
        let verified = self.verified::<ToolSpec>().await?;
        let by_alias =
            || verified.items.iter().find(|(spec, _)| spec.aliases.iter().any(|alias| alias.name == tool));
        self.require_approved(tool, verified.get(tool).or_else(by_alias))
    }

    /// The first matching resource decides.
    async fn permit_uri(&self, uri: &str) -> Result<(), ToolError> {
        let verified = self.verified::<ResourceSpec>().await?;
        let fits = |(spec, _): &&(Arc<ResourceSpec>, PinVerdict)| spec.uri_pattern.matches(uri).is_some();
        self.require_approved(uri, verified.items.iter().find(fits))
    }

    async fn permit_prompt(&self, name: &str) -> Result<(), ToolError> {
        let verified = self.verified::<PromptSpec>().await?;
        self.require_approved(name, verified.get(name))
    }
}

impl Rules {
    fn judge(&self, definition: &impl Definition, first_list: bool) -> PinVerdict {
        let trusted = match self.unpinned {
            UnpinnedPolicy::Trust => true,
            UnpinnedPolicy::TrustFirstList => first_list,
            UnpinnedPolicy::Quarantine => false,
        };
        let findings = inspect_one(&self.name, definition);
        let worst = findings.iter().max_by_key(|finding| finding.severity);
        match worst.filter(|worst| self.refuse.is_some_and(|refused| worst.severity >= refused)) {
            Some(finding) => PinVerdict::Suspicious { finding: finding.to_string() },
            None if trusted => PinVerdict::Approved,
            None => PinVerdict::New,
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
    forward!(self => self.source; name, health);

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
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

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.show())
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.show())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.permit_uri(&call.tool).await?;
            self.source.read(call).await
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.permit_prompt(&call.tool).await?;
            self.source.render(call).await
        })
    }

    /// A caller's view uses the same pins, and adds none.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(View { pinned: self.clone(), seen }))
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

/// A pinned source for one caller.
struct View {
    pinned: Pinned,
    seen: Arc<dyn ToolSource>,
}

impl View {
    async fn show<D: Pinnable>(&self) -> Specs<D> {
        let seen = listed::<D>(&*self.seen, LIST_TIMEOUT).await?;
        let names: HashSet<&str> = seen.iter().map(|spec| spec.name()).collect();
        let mut specs = self.pinned.show::<D>().await?;
        specs.retain(|spec| names.contains(spec.name()));
        Ok(specs)
    }
}

impl ToolSource for View {
    forward!(self => self.pinned; name, generation, call, health);

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(self.show())
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(self.show())
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(self.show())
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.pinned.permit_uri(&call.tool).await?;
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

    fn status(&self) -> Vec<SourceStatus> {
        self.pinned.status().into_iter().map(SourceStatus::brief).collect()
    }
}
