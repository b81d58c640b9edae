//! Names and addresses under a namespace.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest as _, Sha256};
use toolpost_core::{
    BoxFuture, Call, Caller, Content, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError,
    ToolSource, ToolSpec, check_tool_name, hex,
};

use super::listing::{Index, LIST_TIMEOUT, Listing, in_time};
use super::{nearest, refused, shown};

/// The longest name: what every provider and protocol takes.
const MAX_NAME: usize = 64;
/// The longest namespace with its separator, so that names keep room.
const MAX_PREFIX: usize = 40;
/// How many digits of a digest stand for the rest of a name that is too long.
const DIGITS: usize = 12;

/// A source under a namespace: its tool `add` is `calc__add`, its prompt `greet` is `calc__greet`, and its resource
/// `notes://{id}` is `calc+notes://{id}`.
///
/// A name that would be longer than 64 bytes is cut, and ends in 12 digits of the SHA-256 of the whole; so it is the
/// same every time. Addresses in answers that are resources of the source are put under the namespace too.
pub struct Namespaced {
    source: Arc<dyn ToolSource>,
    listing: Listing,
    names: Names,
    /// With the generation of the source when they were read.
    resources: RwLock<Option<(u64, Resources)>>,
}

type Resources = Arc<[Arc<ResourceSpec>]>;

/// How names are put under the namespace.
#[derive(Clone, Debug)]
struct Names {
    namespace: Arc<str>,
    /// With the separator.
    prefix: Arc<str>,
    /// Of addresses: `+` may stand in the first part of one, `_` may not.
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

    fn address(&self, inner: &str) -> String {
        format!("{}{inner}", self.scheme)
    }

    /// The first part of an address has no case.
    fn inner_address<'a>(&self, uri: &'a str) -> Option<&'a str> {
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

    /// Puts a source under a namespace, with a separator of your own.
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
                "`{}` is no namespace: expected a letter, then letters, digits, `_` or `-`, at most {MAX_PREFIX} \
                 bytes with the separator",
                shown(&prefix)
            )));
        }
        let names = Names {
            namespace: namespace.into(),
            prefix: prefix.into(),
            // `.` may stand in no namespace, so that two never become one.
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

    /// What a tool or prompt of the source is called under the namespace.
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

    /// Two names that became one after all would lead to the wrong tool.
    fn checked(&self, index: &Index) -> Result<Vec<Arc<ToolSpec>>, ToolError> {
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

    /// The name that the source knows.
    async fn inner_name(&self, caller: &Caller, outer: &str) -> Result<String, ToolError> {
        if let Some(rest) = outer.strip_prefix(&*self.names.prefix) {
            // Only a name that was cut has the full length, and then only the list tells what it was.
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
            "there is no tool `{}` under the namespace `{}`",
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

    /// What an answer calls by its address can be read by that address here.
    async fn outward(&self, mut output: Output) -> Output {
        if output.content.iter().any(|content| matches!(content, Content::Resource { .. })) {
            let known = self.own_resources().await;
            for content in &mut output.content {
                if let Content::Resource { uri, .. } = content
                    && known.iter().any(|spec| spec.uri_pattern.matches(uri).is_some())
                {
                    *uri = self.names.address(uri);
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
    fn name(&self) -> &str {
        &self.names.namespace
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async { self.checked(&*self.listing.read().await?) })
    }

    fn generation(&self) -> u64 {
        self.source.generation()
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

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async {
            let specs = self.source.resources().await?;
            let outer = specs.iter().filter_map(|spec| {
                let mut outer = ResourceSpec::clone(spec);
                match self.names.address(spec.uri_pattern.as_str()).parse() {
                    Ok(pattern) => outer.uri_pattern = pattern,
                    Err(error) => {
                        tracing::warn!(source = self.source.name(), "a resource is left out: {error}");
                        return None;
                    }
                }
                Some(Arc::new(outer))
            });
            Ok(outer.collect())
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
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
            let Some(inner) = self.names.inner_address(&call.tool) else {
                return Err(ToolError::not_found(format!(
                    "`{}` has no resource `{}`: its addresses begin with `{}`",
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

    fn viewer(&self) -> Option<&Caller> {
        self.source.viewer()
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(Self::of(seen, self.names.clone())))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.source.status()
    }
}
