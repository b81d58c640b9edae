//! Names and URIs under a namespace.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use toolpost_core::{
    Call, Content, Output, ResourceSpec, ToolError, ToolSource, ToolSpec, check_tool_name, hex,
};

use crate::definition::Kind;
use crate::layer::{Layered, Origin, SourceLayer};
use crate::listing::{LIST_TIMEOUT, listed};
use crate::{SourceManifest, nearest, shown};

/// The maximum length of a name, which all providers and protocols accept.
const MAX_NAME: usize = 64;
/// The maximum length of a namespace with its separator.
const MAX_PREFIX: usize = 40;
/// The separator between a namespace and a name.
const SEPARATOR: &str = "__";
/// The number of digest digits at the end of a shortened name.
const DIGITS: usize = 12;

/// The scheme of user interfaces, as in MCP Apps.
const UI_SCHEME: &str = "ui://";
/// The members of a tool's meta that name its user interface.
const INTERFACE_KEYS: [&str; 2] = ["resourceUri", "ui/resourceUri"];

/// A source under a namespace: its tool `add` becomes `calc__add`, its prompt `greet` becomes `calc__greet`,
/// and its resource `notes://{id}` becomes `calc+notes://{id}`. The user interface `ui://chart` becomes `ui://calc+chart`.
///
/// A name above 64 bytes is truncated, and ends in 12 digits of the SHA-256 of the full name. URIs in outputs
/// that are resources of the source get the namespace too.
pub type Namespaced = Layered<Namespace>;

/// A namespace for the names and URIs of a source.
#[derive(Debug)]
pub struct Namespace {
    name: Arc<str>,
    /// The namespace with the separator.
    prefix: String,
    /// The prefix of URIs. A URI scheme may contain `+` but not `_`.
    scheme: String,
    /// The resources of the source, with its generation at that time.
    resources: RwLock<Option<(u64, Resources)>>,
}

type Resources = Arc<[Arc<ResourceSpec>]>;

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name does not begin with a letter, has anything but letters, digits, `_` and `-`, or
    /// is longer than 38 bytes.
    pub fn new(name: &str) -> Result<Self, ToolError> {
        let prefix = format!("{name}{SEPARATOR}");
        if check_tool_name(name).is_err() || prefix.len() > MAX_PREFIX {
            return Err(ToolError::invalid_input(format!(
                "`{}` is not a valid namespace: expected a letter, then letters, digits, `_` or `-`, at most {} bytes",
                shown(name),
                MAX_PREFIX - SEPARATOR.len()
            )));
        }
        // A namespace cannot contain `.`, so two namespaces never get the same scheme.
        let scheme = format!("{}+", name.replace('_', "."));
        Ok(Self { name: name.into(), prefix, scheme, resources: RwLock::default() })
    }

    /// The name of a tool or prompt under the namespace.
    pub fn name_of(&self, inner: &str) -> String {
        let whole = format!("{}{inner}", self.prefix);
        if whole.len() <= MAX_NAME {
            return whole;
        }
        let end = whole.floor_char_boundary(MAX_NAME - DIGITS - 1);
        let digest = hex(Sha256::digest(&whole));
        format!("{}_{}", whole.get(..end).unwrap_or_default(), digest.get(..DIGITS).unwrap_or_default())
    }

    /// Whether a name is under this namespace.
    pub(crate) fn has(&self, outer: &str) -> bool {
        outer.starts_with(&self.prefix)
    }

    /// Clients recognize the resources of user interfaces by their scheme, which therefore stays.
    fn uri_of(&self, inner: &str) -> String {
        match inner.strip_prefix(UI_SCHEME) {
            Some(rest) => format!("{UI_SCHEME}{}{rest}", self.scheme),
            None => format!("{}{inner}", self.scheme),
        }
    }

    fn inner_uri(&self, uri: &str) -> Option<String> {
        if let Some(inner) = uri.strip_prefix(UI_SCHEME).and_then(|rest| self.without_scheme(rest)) {
            return Some(format!("{UI_SCHEME}{inner}"));
        }
        self.without_scheme(uri).map(str::to_owned)
    }

    /// A URI scheme is case-insensitive.
    fn without_scheme<'a>(&self, uri: &'a str) -> Option<&'a str> {
        let (scheme, rest) = uri.split_at_checked(self.scheme.len())?;
        scheme.eq_ignore_ascii_case(&self.scheme).then_some(rest)
    }

    /// Puts the URIs of a tool's user interface under the namespace.
    fn rename_interfaces(&self, meta: &mut Map<String, Value>) {
        for (key, value) in meta {
            match value {
                Value::String(uri)
                    if INTERFACE_KEYS.contains(&key.as_str()) && uri.starts_with(UI_SCHEME) =>
                {
                    *uri = self.uri_of(uri);
                }
                Value::Object(inner) => self.rename_interfaces(inner),
                _ => {}
            }
        }
    }

    /// Finds the name in the source whose form under the namespace is `outer`.
    fn inner<'a>(&self, outer: &str, mut names: impl Iterator<Item = &'a str>) -> Option<String> {
        names.find(|inner| self.name_of(inner) == outer).map(str::to_owned)
    }

    /// Puts a tool under the namespace.
    pub(crate) fn tool(&self, spec: &ToolSpec) -> ToolSpec {
        let mut outer = spec.clone();
        outer.name = self.name_of(&spec.name);
        for alias in &mut outer.aliases {
            alias.name = self.name_of(&alias.name);
        }
        self.rename_interfaces(&mut outer.meta);
        outer.meta.entry("original_name").or_insert_with(|| spec.name.as_str().into());
        outer
    }

    async fn resources(&self, source: &dyn ToolSource) -> Resources {
        let generation = source.generation();
        let known = self.resources.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((seen, resources)) = known
            && seen == generation
        {
            return resources;
        }
        let read = listed::<ResourceSpec>(source, LIST_TIMEOUT).await.unwrap_or_default();
        let resources: Resources = read.into();
        *self.resources.write().unwrap_or_else(PoisonError::into_inner) =
            Some((generation, Arc::clone(&resources)));
        resources
    }
}

impl Layered<Namespace> {
    /// Puts a source under a namespace.
    ///
    /// # Errors
    /// Errors of [`Namespace::new`].
    pub fn new(source: Arc<dyn ToolSource>, namespace: &str) -> Result<Self, ToolError> {
        Ok(Self::over(source, Namespace::new(namespace)?))
    }

    /// The name of a tool in the source.
    async fn inner_tool(&self, call: &Call) -> Result<String, ToolError> {
        let (layer, outer) = (&self.layer, call.tool.as_str());
        if let Some(rest) = outer.strip_prefix(&*layer.prefix) {
            // Only a shortened name has the full length, and only the list has its original.
            if outer.len() < MAX_NAME {
                return Ok(rest.to_owned());
            }
            let index = self.tools.current().await?;
            let aliases = index.specs.iter().flat_map(|spec| &spec.aliases).map(|alias| &*alias.name);
            let begin = rest.get(..MAX_NAME - DIGITS - 1 - layer.prefix.len()).unwrap_or_default();
            let names = index.names().chain(aliases).filter(|name| name.starts_with(begin));
            if let Some(inner) = layer.inner(outer, names) {
                return Ok(inner);
            }
        }
        let known = self.tools.last();
        let names: Vec<String> =
            known.iter().flat_map(|index| index.names()).map(|name| layer.name_of(name)).collect();
        let error = format!("unknown tool `{}` in the namespace `{}`", shown(outer), layer.name);
        let hint = nearest(self, &call.caller, outer, names.iter().map(String::as_str)).await;
        Err(ToolError::not_found(error).suggest_maybe(hint))
    }
}

impl SourceLayer for Namespace {
    fn name<'a>(&'a self, _: &'a str) -> &'a str {
        &self.name
    }

    fn map(&self, origin: &Origin<'_>, mut manifest: SourceManifest) -> Result<SourceManifest, ToolError> {
        let mut seen = HashMap::with_capacity(manifest.tools.len());
        for spec in &mut manifest.tools {
            let outer = self.tool(spec);
            if let Some(other) = seen.insert(outer.name.clone(), spec.name.clone()) {
                return Err(ToolError::conflict(format!(
                    "`{other}` and `{}` of `{}` are both `{}` under the namespace `{}`",
                    spec.name, origin.source, outer.name, self.name
                ))
                .suggest("Rename one of them."));
            }
            *spec = Arc::new(outer);
        }
        for spec in &mut manifest.prompts {
            let name = self.name_of(&spec.name);
            Arc::make_mut(spec).name = name;
        }
        manifest.resources.retain_mut(|spec| match self.uri_of(spec.uri_pattern.as_str()).parse() {
            Ok(pattern) => {
                Arc::make_mut(spec).uri_pattern = pattern;
                true
            }
            Err(error) => {
                tracing::warn!(source = origin.source, "a resource is omitted: {error}");
                false
            }
        });
        Ok(manifest)
    }

    async fn resolve(layered: &Layered<Self>, kind: Kind, call: &Call) -> Result<Option<String>, ToolError> {
        let (layer, name) = (&layered.layer, call.tool.as_str());
        let missing = |noun, hint: &str| {
            let error = format!("`{}` has no {noun} `{}`{hint}", layer.name, shown(name));
            ToolError::not_found(error)
        };
        match kind {
            Kind::Tool => layered.inner_tool(call).await.map(Some),
            Kind::Resource => match layer.inner_uri(name) {
                Some(inner) => Ok(Some(inner)),
                None => Err(missing("resource", &format!(": its URIs begin with `{}`", layer.scheme))),
            },
            Kind::Prompt => match name.strip_prefix(&*layer.prefix) {
                Some(inner) if layer.name_of(inner) == name => Ok(Some(inner.to_owned())),
                Some(_) => {
                    let prompts = listed::<toolpost_core::PromptSpec>(&*layered.source, LIST_TIMEOUT).await?;
                    let inner = layer.inner(name, prompts.iter().map(|spec| &*spec.name));
                    inner.map(Some).ok_or_else(|| missing("prompt", ""))
                }
                None => Err(missing("prompt", "")),
            },
        }
    }

    /// Puts the URIs of the source's resources in an output under the namespace.
    async fn finish(layered: &Layered<Self>, mut output: Output) -> Output {
        let content = output.content.iter_mut().filter_map(|content| match content {
            Content::Resource { uri, .. } => Some(uri),
            _ => None,
        });
        let blocks = output.forwarded.iter_mut().flat_map(|sent| &mut sent.blocks);
        let mut uris: Vec<&mut String> =
            content.chain(blocks.filter_map(|block| block.uri.as_mut())).collect();
        if !uris.is_empty() {
            let known = layered.layer.resources(&*layered.whole).await;
            uris.retain(|uri| known.iter().any(|spec| spec.uri_pattern.matches(uri).is_some()));
            for uri in uris {
                *uri = layered.layer.uri_of(uri);
            }
        }
        output
    }
}
