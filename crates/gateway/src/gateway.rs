//! The gateway: upstreams behind one source, from settings.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolpost_core::{SourceStatus, ToolError, ToolSource, ToolSpec, did_you_mean, hex, parse_duration};

use crate::{
    Collisions, Connect, Filter, Filtered, ManifestStore, Member, MergeSettings, Merged, Namespace,
    PinStatus, PinStore, Pinned, Pins, ReconnectSettings, Reconnecting, Rename, Renamed, Renames,
    UnpinnedPolicy, shown,
};

/// The maximum number of upstreams.
const MAX_UPSTREAMS: usize = 256;

/// The settings of a gateway: the content of its file.
///
/// ```
/// use toolpost_gateway::GatewaySettings;
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
    /// The upstreams, in order. On a name collision the earlier one keeps the name.
    pub upstreams: Vec<UpstreamSettings>,
}

/// One upstream of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UpstreamSettings {
    /// The name, for errors and as the namespace.
    pub name: String,
    /// The target; the connector interprets it.
    pub target: String,
    /// Whether its names get its namespace, such as `calc__add`. Default: yes. Without it, only colliding
    /// names get it.
    #[serde(default = "yes")]
    pub namespace: bool,
    /// Patterns of allowed names, after renaming. Default: all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Patterns of denied names; they override `allow`.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Rules for certain callers.
    #[serde(default)]
    pub clients: Vec<ClientSettings>,
    /// Tools with new names or descriptions.
    #[serde(default)]
    pub rename: Vec<Rename>,
    /// Starts on first use. Default: no.
    #[serde(default)]
    pub lazy: bool,
    /// Whether an agent needs it. Default: yes. Without it, the agent begins even if this upstream is missing.
    #[serde(default = "yes")]
    pub required: bool,
    /// The timeout of a start with the first list, without the installation of packages, such as `1m`. Default:
    /// that of the connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<String>,
    /// Grants beyond the sandbox level; the connector interprets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<serde_json::Value>,
    /// The policy for tools without approval. Default: the first list is trusted.
    #[serde(default)]
    pub pin: Pinning,
}

fn yes() -> bool {
    true
}

/// Rules for callers whose identity matches a pattern: see [`Filter::client`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClientSettings {
    /// The pattern.
    pub identity: String,
    /// Allowed names, instead of the general ones.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Denied names, in addition to the general ones.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// Whether definitions are pinned: [`UnpinnedPolicy`], or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// Definitions are not pinned.
    Off,
    /// [`UnpinnedPolicy::Trust`].
    Trust,
    /// [`UnpinnedPolicy::TrustFirstList`].
    #[default]
    TrustFirstList,
    /// [`UnpinnedPolicy::Quarantine`].
    Quarantine,
}

impl GatewaySettings {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `INVALID_INPUT`, with the upstream and the setting.
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
                return Err(place(ToolError::invalid_input("two upstreams have this name")));
            }
            if upstream.target.trim().is_empty() {
                return Err(place(ToolError::invalid_input("`target` is empty")));
            }
            upstream.start_limit().map_err(place)?;
            upstream.filter().map_err(place)?;
            Renames::new(upstream.rename.clone()).map_err(place)?;
            Namespace::new(&upstream.name).map_err(place)?;
        }
        Ok(())
    }
}

impl UpstreamSettings {
    /// Creates an upstream with default settings.
    pub fn new(name: impl Into<String>, target: impl Into<String>) -> Self {
        let (name, target) = (name.into(), target.into());
        Self { name, target, namespace: true, required: true, ..Self::default() }
    }

    /// The parsed `start_timeout`.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the text is not a duration above zero.
    pub fn start_limit(&self) -> Result<Option<Duration>, ToolError> {
        let Some(text) = &self.start_timeout else { return Ok(None) };
        match parse_duration(text) {
            Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
            Ok(_) => {
                Err(ToolError::invalid_input("`start_timeout`: expected a duration above 0 s, found 0 s"))
            }
            Err(problem) => Err(ToolError::invalid_input(format!("`start_timeout`: {problem}"))),
        }
    }

    /// Whether a tool of this upstream can have this name. Without a namespace, any name is possible.
    pub fn may_have(&self, tool: &str) -> bool {
        !self.namespace || Namespace::new(&self.name).is_ok_and(|namespace| namespace.has(tool))
    }

    fn filter(&self) -> Result<Filter, ToolError> {
        let general = Filter::parse(&self.allow, &self.deny)?;
        self.clients
            .iter()
            .try_fold(general, |filter, client| filter.client(&client.identity, &client.allow, &client.deny))
    }

    /// The digest of the target, which identifies the manifest.
    fn digest(&self) -> String {
        hex(Sha256::digest(&self.target))
    }
}

/// Creates the connection of an upstream.
pub type Connector = Arc<dyn Fn(&UpstreamSettings) -> Arc<dyn Connect> + Send + Sync>;

/// Returns the command that approves a tool, from the names of the upstream and the tool.
pub type ApprovalCommand = Arc<dyn Fn(&str, &str) -> String + Send + Sync>;

/// The connector, the stores and the settings of a gateway.
#[derive(Clone)]
pub struct GatewayParts {
    /// Creates the connection of an upstream.
    pub connect: Connector,
    /// The store of pins.
    pub pins: Arc<dyn PinStore>,
    /// The store of manifests of lazy upstreams.
    pub manifests: Arc<dyn ManifestStore>,
    /// The command that approves a tool, for errors.
    pub approval: ApprovalCommand,
    /// The settings for reconnecting upstreams.
    pub reconnect: ReconnectSettings,
    /// The settings for merging. Colliding names always get their namespace.
    pub merge: MergeSettings,
}

impl fmt::Debug for GatewayParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayParts")
            .field("reconnect", &self.reconnect)
            .field("merge", &self.merge)
            .finish_non_exhaustive()
    }
}

/// Many upstreams behind one source. Its settings can change while calls run. Needs a tokio runtime.
pub struct Gateway {
    merged: Merged,
    parts: GatewayParts,
    upstreams: Mutex<Vec<Arc<Upstream>>>,
    reloading: tokio::sync::Mutex<()>,
}

/// An upstream without a known tool, after its first attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MissingUpstream {
    /// Its name.
    pub name: String,
    /// [`UpstreamSettings::required`].
    pub required: bool,
    /// The reason why it is missing.
    pub error: ToolError,
}

/// An upstream and its handles.
struct Upstream {
    settings: UpstreamSettings,
    connection: Arc<Reconnecting>,
    member: Member,
    pinned: Option<Pinned>,
}

impl Upstream {
    fn new(settings: &UpstreamSettings, parts: &GatewayParts) -> Result<Self, ToolError> {
        let name = settings.name.as_str();
        let (connect, mut reconnect) = ((parts.connect)(settings), parts.reconnect.clone());
        if let Some(limit) = settings.start_limit()? {
            reconnect.connect_timeout = limit;
        }
        let connect = move || {
            let connect = Arc::clone(&connect);
            async move { connect.connect().await }
        };
        let connection = if settings.lazy {
            let manifests = Arc::clone(&parts.manifests);
            Reconnecting::lazy(name, settings.digest(), manifests, connect, reconnect)
        } else {
            Reconnecting::start(name, connect, reconnect)
        };
        let connection = Arc::new(connection);
        let mut source: Arc<dyn ToolSource> = Arc::clone(&connection) as Arc<dyn ToolSource>;
        let unpinned = match settings.pin {
            Pinning::Off => None,
            Pinning::Trust => Some(UnpinnedPolicy::Trust),
            Pinning::TrustFirstList => Some(UnpinnedPolicy::TrustFirstList),
            Pinning::Quarantine => Some(UnpinnedPolicy::Quarantine),
        };
        let pinned = unpinned.map(|unpinned| {
            let (approval, upstream) = (Arc::clone(&parts.approval), name.to_owned());
            let pins = Pins::new(name, Arc::clone(&parts.pins))
                .unpinned(unpinned)
                .approval_command(move |tool| approval(&upstream, tool));
            Pinned::new(Arc::clone(&source), pins)
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
        Ok(Self { settings: settings.clone(), connection, member, pinned })
    }

    /// Waits for the first attempt and the first list.
    async fn settled(&self) -> Result<Vec<Arc<ToolSpec>>, MissingUpstream> {
        let listed = match self.connection.settled().await {
            Ok(()) => self.member.source().list().await,
            Err(error) => Err(error),
        };
        let UpstreamSettings { name, required, .. } = &self.settings;
        listed.map_err(|error| MissingUpstream { name: name.clone(), required: *required, error })
    }
}

impl Gateway {
    /// Begins to connect the upstreams, and returns at once: [`settled`](Self::settled) waits for them. An
    /// unreachable one is not an error: the gateway retries it, and adds its tools later.
    ///
    /// # Errors
    /// Errors of [`GatewaySettings::check`].
    pub async fn open(
        name: impl Into<Arc<str>>,
        settings: &GatewaySettings,
        mut parts: GatewayParts,
    ) -> Result<Self, ToolError> {
        parts.merge.collisions = Collisions::Namespace;
        settings.check()?;
        let create = |upstream| Upstream::new(upstream, &parts).map(Arc::new);
        let upstreams: Vec<Arc<Upstream>> =
            settings.upstreams.iter().map(create).collect::<Result<_, _>>()?;
        let members = upstreams.iter().map(|upstream| upstream.member.clone()).collect();
        Ok(Self {
            merged: Merged::of_starting(name, members, parts.merge.clone()).await?,
            parts,
            upstreams: Mutex::new(upstreams),
            reloading: tokio::sync::Mutex::default(),
        })
    }

    /// Waits until each upstream has its tools or has failed once, and returns those without tools. Starts lazy
    /// upstreams without a manifest.
    pub async fn settled(&self) -> Vec<MissingUpstream> {
        self.settled_each(&|_| ()).await
    }

    /// [`settled`](Self::settled), with a report of each missing upstream as soon as it has failed.
    pub async fn settled_each(&self, report: &(dyn Fn(&MissingUpstream) + Sync)) -> Vec<MissingUpstream> {
        let upstreams = self.upstreams();
        let settle = upstreams.iter().map(async |upstream| upstream.settled().await.inspect_err(report));
        join_all(settle).await.into_iter().filter_map(Result::err).collect()
    }

    /// Waits until an upstream lists this tool, and drops the upstreams that have not settled by then. If none lists
    /// it, returns the missing upstreams that [may have](UpstreamSettings::may_have) it.
    ///
    /// # Errors
    /// Errors of [`Merged::replace`].
    pub async fn settled_for(&self, tool: &str) -> Result<Vec<MissingUpstream>, ToolError> {
        let upstreams = self.upstreams();
        let numbered = upstreams.iter().enumerate();
        let mut running: FuturesUnordered<_> =
            numbered.map(|(place, upstream)| async move { (place, upstream.settled().await) }).collect();
        let (mut places, mut missing) = (Vec::new(), Vec::new());
        while let Some((place, settled)) = running.next().await {
            let Some(upstream) = upstreams.get(place) else { continue };
            match settled {
                Ok(specs) => {
                    places.push(place);
                    if !specs.iter().any(|spec| upstream.member.has(spec, tool)) {
                        continue;
                    }
                    places.sort_unstable();
                    let ready: Vec<Arc<Upstream>> =
                        places.iter().filter_map(|place| upstreams.get(*place)).map(Arc::clone).collect();
                    let members = ready.iter().map(|upstream| upstream.member.clone()).collect();
                    self.merged.replace(members).await?;
                    *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = ready;
                    return Ok(Vec::new());
                }
                Err(error) if upstream.settings.may_have(tool) => missing.push((place, error)),
                Err(_) => {}
            }
        }
        missing.sort_unstable_by_key(|(place, _)| *place);
        Ok(missing.into_iter().map(|(_, missing)| missing).collect())
    }

    /// The gateway as a source, for a toolbox or a server.
    pub fn source(&self) -> Arc<dyn ToolSource> {
        Arc::new(self.merged.clone())
    }

    /// Applies new settings and returns the names of new, changed and removed upstreams. Unchanged upstreams
    /// keep their connection, and running calls continue.
    ///
    /// # Errors
    /// Errors of [`GatewaySettings::check`]; then nothing changes.
    pub async fn reload(&self, settings: &GatewaySettings) -> Result<Vec<String>, ToolError> {
        settings.check()?;
        let _guard = self.reloading.lock().await;
        let old = self.upstreams();
        let mut changed: Vec<String> = Vec::new();
        let mut next = Vec::with_capacity(settings.upstreams.len());
        for upstream in &settings.upstreams {
            match old.iter().find(|known| known.settings == *upstream) {
                Some(known) => next.push(Arc::clone(known)),
                None => {
                    changed.push(upstream.name.clone());
                    next.push(Arc::new(Upstream::new(upstream, &self.parts)?));
                }
            }
        }
        let stays = |name: &String| settings.upstreams.iter().any(|upstream| upstream.name == *name);
        changed.extend(old.iter().map(|known| known.settings.name.clone()).filter(|name| !stays(name)));
        self.merged.replace(next.iter().map(|upstream| upstream.member.clone()).collect()).await?;
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(changed)
    }

    /// The status of the upstreams, in order.
    pub fn status(&self) -> Vec<SourceStatus> {
        self.merged.status()
    }

    /// The states of an upstream's definitions, by their names in the upstream.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown upstream, `PRECONDITION` if its definitions are not pinned, and those of
    /// [`Pinned::statuses`].
    pub async fn pin_statuses(&self, upstream: &str) -> Result<Vec<PinStatus>, ToolError> {
        self.pinned(upstream)?.statuses().await
    }

    /// Approves the current definition of an upstream's tool.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown upstream, `PRECONDITION` if its definitions are not pinned, and those of
    /// [`Pinned::approve`].
    pub async fn approve(&self, upstream: &str, tool: &str, sha256: &str) -> Result<(), ToolError> {
        self.pinned(upstream)?.approve(tool, sha256).await
    }

    fn pinned(&self, name: &str) -> Result<Pinned, ToolError> {
        let upstreams = self.upstreams();
        let Some(upstream) = upstreams.iter().find(|upstream| upstream.settings.name == name) else {
            let names = upstreams.iter().map(|upstream| upstream.settings.name.as_str());
            return Err(ToolError::not_found(format!("unknown upstream `{}`", shown(name)))
                .suggest_maybe(did_you_mean(name, names)));
        };
        upstream.pinned.clone().ok_or_else(|| {
            ToolError::precondition(format!("the definitions of the upstream `{name}` are not pinned"))
                .suggest("Remove `pin = \"off\"` from its settings.")
        })
    }

    fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("merged", &self.merged).finish_non_exhaustive()
    }
}
