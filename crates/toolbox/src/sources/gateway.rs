//! Upstreams behind one source, as settings say.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolpost_core::{SourceStatus, ToolError, ToolSource, did_you_mean, hex};

use super::{
    Collisions, Connect, Filter, Filtered, Joined, JoinedSettings, Lazy, ManifestStore, Member, PinStore,
    Pinned, Rename, Renamed, Revived, RevivedSettings, Standing, Unpinned, shown,
};

/// The most upstreams of one gateway.
const MAX_UPSTREAMS: usize = 256;

/// What a gateway consists of: what stands in its file.
///
/// ```
/// use toolpost_toolbox::sources::GatewaySettings;
///
/// let settings: GatewaySettings = serde_json::from_value(serde_json::json!({
///     "upstreams": [{
///         "name": "calc",
///         "target": "./calculator",
///         "deny": ["power"],
///         "clients": [{ "identity": "guest*", "allow": ["add"] }],
///         "rename": [{ "tool": "add", "name": "plus" }],
///         "lazy": true,
///     }],
/// })).unwrap();
/// settings.check().unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GatewaySettings {
    /// The upstreams, in their order: where two have one name, the earlier keeps it.
    pub upstreams: Vec<UpstreamSettings>,
}

/// One upstream of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UpstreamSettings {
    /// What it is called, in errors and as its namespace.
    pub name: String,
    /// Where its tools are; the connecting code gives it its meaning.
    pub target: String,
    /// Whether its names stand under its namespace, such as `calc__add`. Default: yes. Without, a name that an earlier
    /// upstream has goes under it all the same.
    #[serde(default = "yes")]
    pub namespace: bool,
    /// Patterns of what is open, by the names that the upstream and `rename` give. Default: everything.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Patterns of what is closed, whatever is allowed.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Rules for some callers.
    #[serde(default)]
    pub clients: Vec<ClientSettings>,
    /// Tools with other names and words.
    #[serde(default)]
    pub rename: Vec<Rename>,
    /// Whether it starts on its first use. Default: no.
    #[serde(default)]
    pub lazy: bool,
    /// What the target gets beyond its sandbox level; the connecting code gives it its meaning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<serde_json::Value>,
    /// What becomes of tools that nobody has approved. Default: those of the first list are trusted.
    #[serde(default)]
    pub pin: Pinning,
}

fn yes() -> bool {
    true
}

/// Rules for the callers whose identity fits a pattern: see [`Filter::client`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClientSettings {
    /// The pattern.
    pub identity: String,
    /// What is open to them, in the place of the general rules.
    #[serde(default)]
    pub allow: Vec<String>,
    /// What is closed to them, on top of the general rules.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// Whether definitions are pinned: [`Unpinned`], or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// They may change.
    Off,
    /// [`Unpinned::Trust`].
    Trust,
    /// [`Unpinned::TrustFirstList`].
    #[default]
    TrustFirstList,
    /// [`Unpinned::Quarantine`].
    Quarantine,
}

impl GatewaySettings {
    /// Checks everything that can be checked without an upstream.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the upstream and the setting at fault.
    pub fn check(&self) -> Result<(), ToolError> {
        if self.upstreams.len() > MAX_UPSTREAMS {
            return Err(ToolError::invalid_input(format!(
                "there are {} upstreams; expected at most {MAX_UPSTREAMS}",
                self.upstreams.len()
            )));
        }
        let mut names = std::collections::HashSet::new();
        for upstream in &self.upstreams {
            let place = |error: ToolError| {
                ToolError::invalid_input(format!(
                    "the upstream `{}`: {}",
                    shown(&upstream.name),
                    error.message()
                ))
            };
            if !names.insert(upstream.name.to_lowercase()) {
                return Err(place(ToolError::invalid_input("there are two of this name")));
            }
            if upstream.target.trim().is_empty() {
                return Err(place(ToolError::invalid_input("`target` is empty: say where its tools are")));
            }
            upstream.filter().map_err(place)?;
            let nothing: Arc<dyn ToolSource> = Arc::new(Nothing);
            Renamed::new(Arc::clone(&nothing), upstream.rename.clone()).map_err(place)?;
            Member::new(&upstream.name, nothing).map_err(place)?;
        }
        Ok(())
    }
}

impl UpstreamSettings {
    /// An upstream with nothing said but its name and its target.
    pub fn new(name: impl Into<String>, target: impl Into<String>) -> Self {
        Self { name: name.into(), target: target.into(), namespace: true, ..Self::default() }
    }

    fn filter(&self) -> Result<Filter, ToolError> {
        let general = Filter::parse(&self.allow, &self.deny)?;
        self.clients
            .iter()
            .try_fold(general, |filter, client| filter.client(&client.identity, &client.allow, &client.deny))
    }

    /// What it is started with: another one has another manifest.
    fn digest(&self) -> String {
        hex(Sha256::digest(&self.target))
    }
}

/// A source without anything, for checks.
struct Nothing;

impl ToolSource for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn list(&self) -> toolpost_core::BoxFuture<'_, Result<Vec<Arc<toolpost_core::ToolSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn generation(&self) -> u64 {
        0
    }

    fn call(&self, call: toolpost_core::Call) -> toolpost_core::BoxFuture<'_, toolpost_core::Reply> {
        Box::pin(async move { super::refused(&call, "nothing", ToolError::not_found("there is nothing")) })
    }
}

/// How an upstream comes to be.
pub type Connector = Arc<dyn Fn(&UpstreamSettings) -> Arc<dyn Connect> + Send + Sync>;

/// By which command a person approves a tool: of an upstream, and its name there.
pub type ApprovalCommand = Arc<dyn Fn(&str, &str) -> String + Send + Sync>;

/// How upstreams are connected, and where what is known of them is kept.
#[derive(Clone)]
pub struct GatewayParts {
    /// How an upstream comes to be.
    pub connect: Connector,
    /// Where pins are kept.
    pub pins: Arc<dyn PinStore>,
    /// Where manifests of lazy upstreams are kept.
    pub manifests: Arc<dyn ManifestStore>,
    /// By which command a person approves a tool of an upstream, for errors.
    pub approval: ApprovalCommand,
    /// How upstreams are revived.
    pub revival: RevivedSettings,
    /// How long the list waits for an upstream, and the like. Names that are taken go under their namespace, whatever
    /// this says.
    pub joined: JoinedSettings,
}

impl fmt::Debug for GatewayParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayParts")
            .field("revival", &self.revival)
            .field("joined", &self.joined)
            .finish_non_exhaustive()
    }
}

/// Many upstreams behind one source, as settings say; the settings can change while calls run. Needs a tokio runtime.
pub struct Gateway {
    joined: Joined,
    parts: GatewayParts,
    upstreams: Mutex<Vec<Arc<Upstream>>>,
    reloading: tokio::sync::Mutex<()>,
}

/// An upstream and the handles to it.
struct Upstream {
    settings: UpstreamSettings,
    member: Member,
    pinned: Option<Pinned>,
}

impl Upstream {
    fn new(settings: &UpstreamSettings, parts: &GatewayParts) -> Result<Self, ToolError> {
        let name = settings.name.as_str();
        let (connect, revival) = ((parts.connect)(settings), parts.revival.clone());
        let start = {
            let name = name.to_owned();
            move || {
                let connect = Arc::clone(&connect);
                let connect = move || {
                    let connect = Arc::clone(&connect);
                    async move { connect.connect().await }
                };
                Arc::new(Revived::start(name.as_str(), connect, revival.clone()))
            }
        };
        let mut source: Arc<dyn ToolSource> = if settings.lazy {
            let patience = parts.revival.connect_timeout;
            let start = move || {
                let revived = start();
                async move {
                    // One that fails is started again by the next who needs it, and nobody waits for it meanwhile.
                    revived.attempted(patience).await?;
                    Ok(revived as Arc<dyn ToolSource>)
                }
            };
            Arc::new(Lazy::new(name, settings.digest(), Arc::clone(&parts.manifests), start))
        } else {
            start()
        };
        let unpinned = match settings.pin {
            Pinning::Off => None,
            Pinning::Trust => Some(Unpinned::Trust),
            Pinning::TrustFirstList => Some(Unpinned::TrustFirstList),
            Pinning::Quarantine => Some(Unpinned::Quarantine),
        };
        let pinned = unpinned.map(|unpinned| {
            let (approval, name) = (Arc::clone(&parts.approval), name.to_owned());
            Pinned::new(Arc::clone(&source), Arc::clone(&parts.pins))
                .kept_as(name.clone())
                .unpinned(unpinned)
                .approved_by(move |tool| approval(&name, tool))
        });
        if let Some(pinned) = &pinned {
            source = Arc::new(pinned.clone());
        }
        if !settings.rename.is_empty() {
            source = Arc::new(Renamed::new(source, settings.rename.clone())?);
        }
        let filter = settings.filter()?;
        if !filter.is_empty() {
            source = Arc::new(Filtered::new(source, filter));
        }
        let member =
            if settings.namespace { Member::namespaced(name, source)? } else { Member::new(name, source)? };
        Ok(Self { settings: settings.clone(), member, pinned })
    }
}

impl Gateway {
    /// Connects the upstreams. One that cannot be reached is no error: it is tried again, and its tools come when it
    /// does.
    ///
    /// # Errors
    /// Those of [`GatewaySettings::check`].
    pub async fn open(
        name: impl Into<Arc<str>>,
        settings: &GatewaySettings,
        mut parts: GatewayParts,
    ) -> Result<Self, ToolError> {
        parts.joined.collisions = Collisions::Namespace;
        let gateway = Self {
            joined: Joined::open(name, Vec::new(), parts.joined.clone()).await?,
            parts,
            upstreams: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
        };
        gateway.reload(settings).await?;
        Ok(gateway)
    }

    /// The source: what a toolbox or a server takes.
    pub fn source(&self) -> Arc<dyn ToolSource> {
        Arc::new(self.joined.clone())
    }

    /// Takes other settings in. Upstreams whose settings stay keep their connection, and calls that run end where they
    /// began. Says which upstreams have come, changed or gone, by name.
    ///
    /// # Errors
    /// Those of [`GatewaySettings::check`]; then everything is as it was.
    pub async fn reload(&self, settings: &GatewaySettings) -> Result<Vec<String>, ToolError> {
        settings.check()?;
        let _one_at_a_time = self.reloading.lock().await;
        let old = self.upstreams();
        let mut changed: Vec<String> = Vec::new();
        let mut next = Vec::with_capacity(settings.upstreams.len());
        for wanted in &settings.upstreams {
            match old.iter().find(|known| known.settings == *wanted) {
                Some(known) => next.push(Arc::clone(known)),
                None => {
                    changed.push(wanted.name.clone());
                    next.push(Arc::new(Upstream::new(wanted, &self.parts)?));
                }
            }
        }
        let stays = |name: &String| settings.upstreams.iter().any(|wanted| wanted.name == *name);
        changed.extend(old.iter().map(|known| known.settings.name.clone()).filter(|name| !stays(name)));
        self.joined.replace(next.iter().map(|upstream| upstream.member.clone()).collect()).await?;
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(changed)
    }

    /// How the upstreams are, in their order.
    pub fn status(&self) -> Vec<SourceStatus> {
        self.joined.status()
    }

    /// How the definitions of an upstream's tools stand, by the names that it gives them.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such upstream, `PRECONDITION` if its definitions are not pinned, and those of
    /// [`Pinned::standings`].
    pub async fn standings(&self, upstream: &str) -> Result<Vec<Standing>, ToolError> {
        self.pinned(upstream)?.standings().await
    }

    /// Approves the definition that a tool of an upstream has now.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such upstream, `PRECONDITION` if its definitions are not pinned, and those of
    /// [`Pinned::approve`].
    pub async fn approve(&self, upstream: &str, tool: &str, sha256: &str) -> Result<(), ToolError> {
        self.pinned(upstream)?.approve(tool, sha256).await
    }

    fn pinned(&self, name: &str) -> Result<Pinned, ToolError> {
        let upstreams = self.upstreams();
        let Some(upstream) = upstreams.iter().find(|upstream| upstream.settings.name == name) else {
            let names = upstreams.iter().map(|upstream| upstream.settings.name.as_str());
            return Err(ToolError::not_found(format!("there is no upstream `{}`", shown(name)))
                .suggest_maybe(did_you_mean(name, names)));
        };
        upstream.pinned.clone().ok_or_else(|| {
            ToolError::precondition(format!("the definitions of the upstream `{name}` are not pinned"))
                .suggest("Take `pin = \"off\"` out of its settings.")
        })
    }

    fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("joined", &self.joined).finish_non_exhaustive()
    }
}
