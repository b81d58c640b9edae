//! Pinned definitions: only approved ones are used.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use toolpost_core::{
    Call, HiddenDefinition, PromptSpec, ResourceSpec, SourceState, SourceStatus, ToolError, ToolSource,
    ToolSpec, UriPattern,
};

use crate::definition::{Definition, Kind};
use crate::inspect::{hides, inspect_one};
use crate::layer::{Layered, Origin, SourceLayer};
use crate::listing::{LIST_TIMEOUT, listed};
use crate::{Finding, Pin, PinStore, Severity, SourceManifest, Specs, shown};

/// The time that calls use a verified list. A list of another generation is verified again at once.
const RECHECK: Duration = Duration::from_mins(1);

/// The policy for a definition without a pin.
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
    /// The digest of the current definition, for `Pinned::approve`.
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
pub type Pinned = Layered<Pins>;

/// The pins of a source, and the policy for definitions without a pin.
///
/// A definition with a finding of [`Severity::High`] is never trusted without approval.
pub struct Pins {
    name: String,
    store: Arc<dyn PinStore>,
    unpinned: UnpinnedPolicy,
    approval: Arc<dyn Fn(&str) -> String + Send + Sync>,
    tools: VerifiedList,
    prompts: VerifiedList,
    resources: VerifiedList,
}

/// The verified list of one kind.
#[derive(Default)]
struct VerifiedList {
    verified: RwLock<Option<Arc<Verified>>>,
    /// Held while a call verifies the list, so that concurrent calls verify it once.
    verifying: tokio::sync::Mutex<()>,
}

/// A list after the comparison with the pins.
struct Verified {
    /// The generations of the source and of the pins.
    generations: (u64, u64),
    at: Instant,
    items: Vec<Item>,
    /// The index of each name and alias.
    positions: HashMap<String, usize>,
}

/// A verified definition.
struct Item {
    name: String,
    key: String,
    digest: String,
    pattern: Option<UriPattern>,
    verdict: PinVerdict,
}

impl Verified {
    /// The definition with this name or alias, or the first whose pattern matches this URI.
    fn get(&self, kind: Kind, name: &str) -> Option<&Item> {
        if kind == Kind::Resource {
            let matches = |pattern: &UriPattern| pattern.matches(name).is_some();
            return self.items.iter().find(|item| item.pattern.as_ref().is_some_and(matches));
        }
        self.items.get(*self.positions.get(name)?)
    }
}

impl Pins {
    /// Pins definitions under the name of their source. The first list of each kind is trusted.
    pub fn new(name: impl Into<String>, store: Arc<dyn PinStore>) -> Self {
        let name = name.into();
        let source = name.clone();
        Self {
            approval: Arc::new(move |what| {
                format!("Pinned::approve of the source `{source}` with the name `{what}`")
            }),
            name,
            store,
            unpinned: UnpinnedPolicy::default(),
            tools: VerifiedList::default(),
            prompts: VerifiedList::default(),
            resources: VerifiedList::default(),
        }
    }

    /// Sets what happens to definitions without a pin. Default: [`UnpinnedPolicy::TrustFirstList`].
    #[must_use]
    pub fn unpinned(mut self, unpinned: UnpinnedPolicy) -> Self {
        self.unpinned = unpinned;
        self
    }

    /// Sets the command that approves a definition, for errors.
    #[must_use]
    pub fn approval_command(mut self, command: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.approval = Arc::new(command);
        self
    }

    fn list(&self, kind: Kind) -> &VerifiedList {
        match kind {
            Kind::Tool => &self.tools,
            Kind::Prompt => &self.prompts,
            Kind::Resource => &self.resources,
        }
    }

    fn last(&self, kind: Kind) -> Option<Arc<Verified>> {
        self.list(kind).verified.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Compares a list with the pins. The list of a view adds no pins.
    fn verify<D: Definition>(
        &self,
        origin: &Origin<'_>,
        specs: &[Arc<D>],
    ) -> Result<Arc<Verified>, ToolError> {
        let mut generations = (origin.generation, self.store.generation());
        let pins = self.store.load(&self.name)?;
        let is_first = !pins.keys().any(|key| D::KIND.has(key));
        let mut fresh = BTreeMap::new();
        // Later definitions are new even after an empty list, except for tools.
        if is_first && (D::KIND != Kind::Tool || !specs.is_empty()) {
            fresh.insert(D::KIND.prefix().to_owned(), Pin::of_first_list());
        }
        let mut items = Vec::with_capacity(specs.len());
        let mut positions = HashMap::with_capacity(specs.len());
        for (position, spec) in specs.iter().enumerate() {
            let (key, digest) = (spec.key(), spec.digest());
            let verdict = match pins.get(&key) {
                Some(pin) if pin.sha256 == digest => PinVerdict::Approved,
                Some(pin) => PinVerdict::Changed { approved: pin.sha256.clone() },
                None => self.judge(&**spec, is_first),
            };
            if verdict == PinVerdict::Approved && !pins.contains_key(&key) {
                fresh.insert(key.clone(), Pin::from_definition(&**spec));
            }
            positions.insert(spec.name().to_owned(), position);
            let (name, pattern) = (spec.name().to_owned(), spec.pattern().cloned());
            items.push(Item { name, key, digest, pattern, verdict });
        }
        for (position, spec) in specs.iter().enumerate() {
            for alias in spec.aliases() {
                positions.entry(alias.name.clone()).or_insert(position);
            }
        }
        if origin.viewer.is_none() && !fresh.is_empty() {
            self.store.put(&self.name, &fresh)?;
            // The own change of the pins needs no second read.
            generations.1 = self.store.generation();
        }
        let verified = Arc::new(Verified { generations, at: Instant::now(), items, positions });
        if origin.viewer.is_none() {
            let mut last = self.list(D::KIND).verified.write().unwrap_or_else(PoisonError::into_inner);
            *last = Some(Arc::clone(&verified));
        }
        Ok(verified)
    }

    fn judge(&self, definition: &impl Definition, is_first: bool) -> PinVerdict {
        let is_trusted = match self.unpinned {
            UnpinnedPolicy::Trust => true,
            UnpinnedPolicy::TrustFirstList => is_first,
            UnpinnedPolicy::Quarantine => false,
        };
        let findings = inspect_one(&self.name, definition);
        let worst = findings.iter().max_by_key(|finding| finding.severity);
        match worst.filter(|worst| worst.severity >= Severity::High) {
            Some(finding) => PinVerdict::Suspicious { finding: finding.to_string() },
            None if is_trusted => PinVerdict::Approved,
            None => PinVerdict::New,
        }
    }

    /// The definitions for callers.
    fn show<D: Definition>(&self, origin: &Origin<'_>, specs: Vec<Arc<D>>) -> Specs<D> {
        let verified = self.verify(origin, &specs)?;
        let shown = specs.into_iter().zip(&verified.items).filter_map(|(spec, item)| {
            let Some(reason) = item.verdict.reason() else { return Some(spec) };
            // A name is text too.
            if hides(spec.name()) {
                return None;
            }
            let command = (self.approval)(&item.key);
            let text = format!("Unavailable: {reason}. A person must review it first: {command}");
            let facts = [("unavailable", reason), ("sha256", item.digest.clone())];
            let meta = facts.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            Some(Arc::new(spec.replaced(text, meta)))
        });
        Ok(shown.collect())
    }

    /// Checks that a definition exists and is approved.
    fn require_approved(&self, kind: Kind, name: &str, item: Option<&Item>) -> Result<(), ToolError> {
        let noun = kind.noun();
        let Some(item) = item else {
            return Err(ToolError::not_found(format!("unknown {noun} `{}`", shown(name))));
        };
        let Some(reason) = item.verdict.reason() else { return Ok(()) };
        let command = (self.approval)(&shown(&item.key));
        Err(ToolError::permission(format!("the {noun} `{}` is quarantined: {reason}", shown(&item.name)))
            .suggest(format!("Review it, then approve it: {command}"))
            .with("sha256", item.digest.clone()))
    }
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins")
            .field("name", &self.name)
            .field("unpinned", &self.unpinned)
            .finish_non_exhaustive()
    }
}

impl Layered<Pins> {
    /// Pins the definitions of a source.
    pub fn new(source: Arc<dyn ToolSource>, pins: Pins) -> Self {
        Self::over(source, pins)
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

    async fn statuses_of<D: Definition>(&self) -> Result<Vec<PinStatus>, ToolError> {
        let (specs, verified) = self.verify::<D>().await?;
        let pins = self.layer.store.load(&self.layer.name)?;
        let status = |(spec, item): (&Arc<D>, &Item)| PinStatus {
            name: item.key.clone(),
            sha256: item.digest.clone(),
            verdict: item.verdict.clone(),
            approved_definition: pins.get(&item.key).and_then(|pin| pin.definition.clone()),
            findings: inspect_one(&self.layer.name, &**spec),
            definition: serde_json::to_value(spec).unwrap_or_default(),
        };
        Ok(specs.iter().zip(&verified.items).map(status).collect())
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

    async fn approve_of<D: Definition>(&self, name: &str, sha256: &str) -> Result<(), ToolError> {
        let (pins, noun) = (&self.layer, D::KIND.noun());
        let (specs, _) = self.verify::<D>().await?;
        let Some(spec) = specs.iter().find(|spec| spec.name() == name) else {
            return Err(ToolError::not_found(format!("`{}` has no {noun} `{}`", pins.name, shown(name))));
        };
        let pin = Pin::from_definition(&**spec);
        if pin.sha256 != sha256 {
            return Err(ToolError::conflict(format!(
                "the definition of the {noun} `{}` has the digest {}, not {}",
                shown(name),
                pin.sha256,
                shown(sha256)
            ))
            .suggest("It has changed since the review: review it again."));
        }
        pins.store.put(&pins.name, &BTreeMap::from([(spec.key(), pin)]))
    }

    /// Reads the list of the whole source and compares it with the pins.
    async fn verify<D: Definition>(&self) -> Result<(Vec<Arc<D>>, Arc<Verified>), ToolError> {
        let generation = self.whole.generation();
        let specs = listed::<D>(&*self.whole, LIST_TIMEOUT).await?;
        let origin = Origin { kind: D::KIND, source: self.whole.name(), generation, viewer: None };
        let verified = self.layer.verify(&origin, &specs)?;
        Ok((specs, verified))
    }

    /// The last verified list, if it is current.
    fn known(&self, kind: Kind) -> Option<Arc<Verified>> {
        let generations = (self.whole.generation(), self.layer.store.generation());
        let is_current =
            |known: &Arc<Verified>| known.at.elapsed() < RECHECK && known.generations == generations;
        self.layer.last(kind).filter(is_current)
    }

    /// The last verified list if it is current; otherwise a new one.
    async fn verified(&self, kind: Kind) -> Result<Arc<Verified>, ToolError> {
        if let Some(known) = self.known(kind) {
            return Ok(known);
        }
        let _guard = self.layer.list(kind).verifying.lock().await;
        if let Some(known) = self.known(kind) {
            return Ok(known);
        }
        Ok(match kind {
            Kind::Tool => self.verify::<ToolSpec>().await?.1,
            Kind::Prompt => self.verify::<PromptSpec>().await?.1,
            Kind::Resource => self.verify::<ResourceSpec>().await?.1,
        })
    }
}

impl SourceLayer for Pins {
    fn generation(&self) -> u64 {
        self.store.generation()
    }

    /// Verifies the whole source first, so that the first list is pinned even if only views are listed.
    async fn prepare(layered: &Layered<Self>, kind: Kind) -> Result<(), ToolError> {
        layered.verified(kind).await.map(drop)
    }

    fn map(&self, origin: &Origin<'_>, manifest: SourceManifest) -> Result<SourceManifest, ToolError> {
        Ok(match origin.kind {
            Kind::Tool => ToolSpec::into_manifest(self.show(origin, manifest.tools)?),
            Kind::Prompt => PromptSpec::into_manifest(self.show(origin, manifest.prompts)?),
            Kind::Resource => ResourceSpec::into_manifest(self.show(origin, manifest.resources)?),
        })
    }

    async fn resolve(layered: &Layered<Self>, kind: Kind, call: &Call) -> Result<Option<String>, ToolError> {
        let verified = layered.verified(kind).await?;
        layered.layer.require_approved(kind, &call.tool, verified.get(kind, &call.tool))?;
        Ok(None)
    }

    /// Adds the quarantined definitions of the last lists, with reasons and remedies.
    fn status(&self, mut status: Vec<SourceStatus>) -> Vec<SourceStatus> {
        if status.is_empty() {
            status.push(SourceStatus::new(self.name.as_str(), SourceState::Ready));
        }
        let lists = [Kind::Tool, Kind::Prompt, Kind::Resource].into_iter().filter_map(|kind| self.last(kind));
        let hidden = |item: &Item| {
            let key = shown(&item.key);
            let remedy = (self.approval)(&key);
            Some(HiddenDefinition::new(key, item.verdict.reason()?).remedy(remedy))
        };
        if let Some(whole) = status.last_mut() {
            whole.quarantined =
                lists.flat_map(|list| list.items.iter().filter_map(hidden).collect::<Vec<_>>()).collect();
        }
        status
    }
}
