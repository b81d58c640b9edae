//! Names and URIs under a namespace.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest as _, Sha256};
use toolpost_core::{
    BoxFuture, Call, Caller, Content, Output, PromptSpec, Reply, ResourceSpec, ToolError, ToolSource,
    ToolSpec, check_tool_name, hex,
};

use super::listing::{Index, LIST_TIMEOUT, Listing, in_time};
use super::{Specs, nearest, refused, shown};

/// The maximum length of a name, which all providers and protocols accept.
const MAX_NAME: usize = 64;
/// The maximum length of a namespace with its separator.
const MAX_PREFIX: usize = 40;
/// The number of digest digits at the end of a shortened name.
const DIGITS: usize = 12;

/// A source under a namespace: its tool `add` becomes `calc__add`, its prompt `greet` becomes `calc__greet`,
/// and its resource `notes://{id}` becomes `calc+notes://{id}`.
///
/// A name above 64 bytes is cut, and ends in 12 digits of the SHA-256 of the full name. URIs in outputs that
/// are resources of the source get the namespace too.
pub struct Namespaced {
    source: Arc<dyn ToolSource>,
    listing: Listing,
    names: Names,
    /// With the generation of the source at that time.
    resources: RwLock<Option<(u64, Resources)>>,
}

type Resources = Arc<[Arc<ResourceSpec>]>;

/// The mapping between names of the source and names under the namespace.
#[derive(Clone, Debug)]
struct Names {
    namespace: Arc<str>,
    /// The namespace with the separator.
    prefix: Arc<str>,
    /// The prefix of URIs. A URI scheme may contain `+` but not `_`.
    scheme: Arc<str>,
}

impl Names {
    fn outer(&self, name: &str) -> String {
        let whole = format!("{}{name}", self.prefix);
        if whole.len() <= MAX_NAME {
            return whole;
        }
        let kept = whole.floor_char_boundary(MAX_NAME - DIGITS - 1);
        let digest = hex(Sha256::digest(&whole));
        format!("{}_{}", whole.get(..kept).unwrap_or_default(), digest.get(..DIGITS).unwrap_or_default())
    }

    fn uri(&self, inner: &str) -> String {
        format!("{}{inner}", self.scheme)
    }

    /// A URI scheme is case-insensitive.
    fn inner_uri<'a>(&self, uri: &'a str) -> Option<&'a str> {
        let (scheme, rest) = uri.split_at_checked(self.scheme.len())?;
        scheme.eq_ignore_ascii_case(&self.scheme).then_some(rest)
    }
}

impl Namespaced {
    /// Puts a source under a namespace, with the separator `__`.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the namespace does not begin with a letter, has anything but letters, digits, `_` and `-`, or
    /// is longer than 38 bytes.
    pub fn new(source: Arc<dyn ToolSource>, namespace: &str) -> Result<Self, ToolError> {
        Self::with_separator(source, namespace, "__")
    }

    /// Puts a source under a namespace, with a custom separator.
    ///
    /// # Errors
    /// `INVALID_INPUT` as for [`new`](Self::new), if the separator has other characters than those of names, or if both
    /// together are longer than 40 bytes.
    pub fn with_separator(
        source: Arc<dyn ToolSource>,
        namespace: &str,
        separator: &str,
    ) -> Result<Self, ToolError> {
        let prefix = format!("{namespace}{separator}");
        if check_tool_name(namespace).is_err()
            || check_tool_name(&prefix).is_err()
            || prefix.len() > MAX_PREFIX
        {
            return Err(ToolError::invalid_input(format!(
                "`{}` is no valid namespace: expected a letter, then letters, digits, `_` or `-`, at most {MAX_PREFIX} \
                 bytes with the separator",
                shown(&prefix)
            )));
        }
        let names = Names {
            namespace: namespace.into(),
            prefix: prefix.into(),
            // A namespace cannot contain `.`, so two namespaces never get the same scheme.
            scheme: format!("{}+", namespace.replace('_', ".")).into(),
        };
        Ok(Self::of(source, names))
    }

    fn of(source: Arc<dyn ToolSource>, names: Names) -> Self {
        Self { listing: Listing::new(Arc::clone(&source)), source, names, resources: RwLock::default() }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.names.namespace
    }

    /// The name of a tool or prompt under the namespace.
    pub fn name_of(&self, inner: &str) -> String {
        self.names.outer(inner)
    }

    fn outer_spec(&self, spec: &ToolSpec) -> Arc<ToolSpec> {
        let mut outer = spec.clone();
        outer.name = self.names.outer(&spec.name);
        for alias in &mut outer.aliases {
            alias.name = self.names.outer(&alias.name);
        }
        outer.meta.entry("original_name").or_insert_with(|| spec.name.as_str().into());
        Arc::new(outer)
    }

    /// The definitions under the namespace, unless two get the same name.
    fn checked(&self, index: &Index) -> Specs<ToolSpec> {
        let mut seen = std::collections::HashMap::with_capacity(index.specs.len());
        let mut specs = Vec::with_capacity(index.specs.len());
        for spec in &index.specs {
            let outer = self.outer_spec(spec);
            if let Some(other) = seen.insert(outer.name.clone(), &spec.name) {
                return Err(ToolError::conflict(format!(
                    "`{other}` and `{}` of `{}` are both `{}` under the namespace `{}`",
                    spec.name,
                    self.source.name(),
                    outer.name,
                    self.names.namespace
                ))
                .suggest("Rename one of them."));
            }
            specs.push(outer);
        }
        Ok(specs)
    }

    /// The name in the source.
    async fn inner_name(&self, caller: &Caller, outer: &str) -> Result<String, ToolError> {
        if let Some(rest) = outer.strip_prefix(&*self.names.prefix) {
            // Only a shortened name has the full length, and only the list has its original.
            if outer.len() < MAX_NAME {
                return Ok(rest.to_owned());
            }
            let index = self.listing.current().await?;
            let aliases = index.specs.iter().flat_map(|spec| &spec.aliases).map(|alias| &alias.name);
            let names = index.names().chain(aliases.map(String::as_str));
            let kept = outer.get(..MAX_NAME - DIGITS - 1).unwrap_or_default();
            let begins = kept.strip_prefix(&*self.names.prefix).unwrap_or_default();
            if let Some(name) =
                names.filter(|name| name.starts_with(begins)).find(|name| self.names.outer(name) == outer)
            {
                return Ok(name.to_owned());
            }
        }
        let known = self.listing.last();
        let names: Vec<String> =
            known.iter().flat_map(|index| index.names()).map(|name| self.names.outer(name)).collect();
        Err(ToolError::not_found(format!(
            "unknown tool `{}` in the namespace `{}`",
            shown(outer),
            self.names.namespace
        ))
        .suggest_maybe(nearest(self, caller, outer, names.iter().map(String::as_str)).await))
    }

    async fn own_resources(&self) -> Resources {
        let generation = self.source.generation();
        let known = self.resources.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((seen, resources)) = known
            && seen == generation
        {
            return resources;
        }
        let read = in_time(&*self.source, LIST_TIMEOUT, self.source.resources()).await.unwrap_or_default();
        let resources: Resources = read.into();
        *self.resources.write().unwrap_or_else(PoisonError::into_inner) =
            Some((generation, Arc::clone(&resources)));
        resources
    }

    /// Puts the URIs of the source's resources in an output under the namespace.
    async fn outward(&self, mut output: Output) -> Output {
        if output.content.iter().any(|content| matches!(content, Content::Resource { .. })) {
            let known = self.own_resources().await;
            for content in &mut output.content {
                if let Content::Resource { uri, .. } = content
                    && known.iter().any(|spec| spec.uri_pattern.matches(uri).is_some())
                {
                    *uri = self.names.uri(uri);
                }
            }
        }
        output
    }
}

impl fmt::Debug for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaced")
            .field("source", &self.source.name())
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Namespaced {
    forward!(self => self.source; generation, viewer, health, status);

    fn name(&self) -> &str {
        &self.names.namespace
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async { self.checked(&*self.listing.read().await?) })
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.inner_name(&call.caller, &call.tool).await {
                Ok(inner) => call.tool = inner,
                Err(error) => return refused(&call, &self.names.namespace, error),
            }
            let mut reply = self.source.call(call).await;
            if let Ok(output) = reply.result {
                reply.result = Ok(self.outward(output).await);
            }
            reply
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(async {
            let specs = self.source.resources().await?;
            let outer = specs.iter().filter_map(|spec| {
                let mut outer = ResourceSpec::clone(spec);
                match self.names.uri(spec.uri_pattern.as_str()).parse() {
                    Ok(pattern) => outer.uri_pattern = pattern,
                    Err(error) => {
                        tracing::warn!(source = self.source.name(), "a resource is omitted: {error}");
                        return None;
                    }
                }
                Some(Arc::new(outer))
            });
            Ok(outer.collect())
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(async {
            let specs = self.source.prompts().await?;
            let outer = specs.iter().map(|spec| {
                let mut outer = PromptSpec::clone(spec);
                outer.name = self.names.outer(&spec.name);
                Arc::new(outer)
            });
            Ok(outer.collect())
        })
    }

    fn read(&self, mut call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let Some(inner) = self.names.inner_uri(&call.tool) else {
                return Err(ToolError::not_found(format!(
                    "`{}` has no resource `{}`: its URIs begin with `{}`",
                    self.names.namespace,
                    shown(&call.tool),
                    self.names.scheme
                )));
            };
            call.tool = inner.to_owned();
            Ok(self.outward(self.source.read(call).await?).await)
        })
    }

    fn render(&self, mut call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            let name = call.tool.as_str();
            let inner = match name.strip_prefix(&*self.names.prefix) {
                Some(inner) if self.names.outer(inner) == name => Some(inner.to_owned()),
                Some(_) => {
                    let prompts = in_time(&*self.source, LIST_TIMEOUT, self.source.prompts()).await?;
                    let mut names = prompts.iter().map(|spec| &spec.name);
                    names.find(|inner| self.names.outer(inner) == name).cloned()
                }
                None => None,
            };
            call.tool = inner.ok_or_else(|| {
                ToolError::not_found(format!("`{}` has no prompt `{}`", self.names.namespace, shown(name)))
            })?;
            Ok(self.outward(self.source.render(call).await?).await)
        })
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(Self::of(seen, self.names.clone())))
    }
}
