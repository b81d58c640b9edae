//! Filters of tools, prompts and resources, per caller.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec, did_you_mean,
};

use super::definition::Kind;
use super::listing::{LIST_TIMEOUT, Listing, in_time};
use super::{Glob, Specs, nearest, refused, shown};

/// A pattern for one kind of definition, or for all kinds.
#[derive(Clone, Debug)]
struct Rule {
    kind: Option<Kind>,
    glob: Glob,
    /// The pattern as written.
    text: String,
}

impl Rule {
    fn covers(&self, kind: Kind, name: &str) -> bool {
        self.kind.is_none_or(|own| own == kind) && self.glob.matches(name)
    }
}

impl FromStr for Rule {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, ToolError> {
        let (kind, pattern) = Kind::split(text);
        Ok(Self { kind, glob: pattern.parse()?, text: text.to_owned() })
    }
}

/// Patterns that allow, and patterns that deny.
#[derive(Clone, Debug, Default)]
struct Rules {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

impl Rules {
    fn parse<A: AsRef<str>, D: AsRef<str>>(
        allow: impl IntoIterator<Item = A>,
        deny: impl IntoIterator<Item = D>,
    ) -> Result<Self, ToolError> {
        Ok(Self {
            allow: allow.into_iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>()?,
            deny: deny.into_iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>()?,
        })
    }
}

/// Which tools, prompts and resources each caller may use.
///
/// A pattern is a [`Glob`] over the names of tools and prompts and the URIs of resources. A pattern that
/// begins with `tool:`, `prompt:` or `resource:` matches only that kind. A match of `deny` always closes.
/// Otherwise a match of `allow` opens, and so does a filter without any `allow`. Callers with a certain
/// identity may have their own rules: their `deny` is added, and their `allow`, if any, replaces the general
/// one.
///
/// URIs are compared as written and percent-decoded. To protect resources, list what is allowed, not what is
/// denied.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    general: Rules,
    clients: Vec<(Glob, Rules)>,
}

impl Filter {
    /// Creates a filter for all callers.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern is invalid.
    pub fn parse<A: AsRef<str>, D: AsRef<str>>(
        allow: impl IntoIterator<Item = A>,
        deny: impl IntoIterator<Item = D>,
    ) -> Result<Self, ToolError> {
        Ok(Self { general: Rules::parse(allow, deny)?, clients: Vec::new() })
    }

    /// Adds rules for callers whose identity matches a pattern. A caller without identity matches none.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern is invalid.
    pub fn client<A: AsRef<str>, D: AsRef<str>>(
        mut self,
        identity: &str,
        allow: impl IntoIterator<Item = A>,
        deny: impl IntoIterator<Item = D>,
    ) -> Result<Self, ToolError> {
        self.clients.push((identity.parse()?, Rules::parse(allow, deny)?));
        Ok(self)
    }

    /// Whether the filter permits everything.
    pub fn is_empty(&self) -> bool {
        self.general.allow.is_empty() && self.general.deny.is_empty() && self.clients.is_empty()
    }

    /// Checks whether a caller may use a tool.
    ///
    /// # Errors
    /// `PERMISSION`, with the rule that denies it.
    pub fn permits_tool(&self, caller: &Caller, name: &str) -> Result<(), ToolError> {
        self.permits(Some(caller), Kind::Tool, name)
    }

    /// Checks whether a caller may use a definition; without a caller, whether any caller may.
    fn permits(&self, caller: Option<&Caller>, kind: Kind, name: &str) -> Result<(), ToolError> {
        let Some(caller) = caller else {
            // Some caller may use it: by the general rules, or by those of a client.
            let general = self.decide(&[], kind, name);
            let one = |(_, rules): &(Glob, Rules)| self.decide(&[rules], kind, name).is_ok();
            return if self.clients.iter().any(one) { Ok(()) } else { general };
        };
        let identity = caller.identity.as_deref();
        let own: Vec<&Rules> = self
            .clients
            .iter()
            .filter(|(glob, _)| identity.is_some_and(|identity| glob.matches(identity)))
            .map(|(_, rules)| rules)
            .collect();
        self.decide(&own, kind, name)
    }

    fn decide(&self, own: &[&Rules], kind: Kind, name: &str) -> Result<(), ToolError> {
        let noun = kind.noun();
        let denies = self.general.deny.iter().chain(own.iter().flat_map(|rules| &rules.deny));
        if let Some(rule) = denies.into_iter().find(|rule| rule.covers(kind, name)) {
            return Err(ToolError::permission(format!(
                "the {noun} `{}` is denied by the rule deny = \"{}\"",
                shown(name),
                rule.text
            ))
            .suggest("Remove the pattern from `deny` to allow it."));
        }
        let mut allow: Vec<&Rule> = own.iter().flat_map(|rules| &rules.allow).collect();
        if allow.is_empty() {
            allow.extend(&self.general.allow);
        }
        if allow.is_empty() || allow.iter().any(|rule| rule.covers(kind, name)) {
            return Ok(());
        }
        Err(ToolError::permission(format!(
            "the {noun} `{}` matches no pattern of `allow` for this caller",
            shown(name)
        ))
        .suggest("Add a pattern to `allow` for it."))
    }
}

/// A source with a filter. A closed definition is not listed, run or read.
pub struct Filtered {
    source: Arc<dyn ToolSource>,
    listing: Arc<Listing>,
    filter: Arc<Filter>,
    /// The caller that the list is for; `None` for any caller.
    viewer: Option<Caller>,
}

impl Filtered {
    /// Filters a source.
    pub fn new(source: Arc<dyn ToolSource>, filter: Filter) -> Self {
        let listing = Arc::new(Listing::new(Arc::clone(&source)));
        Self { source, listing, filter: Arc::new(filter), viewer: None }
    }

    fn shows(&self, kind: Kind, name: &str) -> bool {
        self.filter.permits(self.viewer.as_ref(), kind, name).is_ok()
    }

    /// Checks a call. An alias does not open a tool whose name is denied.
    async fn permit(&self, call: &Call) -> Result<(), ToolError> {
        self.filter.permits_tool(&call.caller, &call.tool)?;
        if self.filter.is_empty() {
            return Ok(());
        }
        // If the list cannot be read again, the last one decides. Unknown tools are then refused.
        let index = match self.listing.current().await {
            Ok(index) => index,
            Err(error) => self.listing.last().filter(|index| index.get(&call.tool).is_some()).ok_or(error)?,
        };
        match index.get(&call.tool) {
            Some(spec) if spec.name != call.tool => self.filter.permits_tool(&call.caller, &spec.name),
            Some(_) => Ok(()),
            // The error of the source could reveal closed names.
            None => {
                let open = index.names().filter(|name| self.filter.permits_tool(&call.caller, name).is_ok());
                // The suggestion must not reveal tools that the source hides from this caller.
                let hint = match self.source.seen_by(&call.caller) {
                    None => did_you_mean(&call.tool, open),
                    Some(_) => nearest(self, &call.caller, &call.tool, open).await,
                };
                Err(ToolError::not_found(format!("unknown tool `{}`", shown(&call.tool))).suggest_maybe(hint))
            }
        }
    }

    /// Checks a URI: it or a matching pattern must be allowed, and neither may be denied.
    async fn permit_uri(&self, caller: &Caller, uri: &str) -> Result<(), ToolError> {
        let viewer = Some(caller);
        let decide = |name: &str| self.filter.permits(viewer, Kind::Resource, name);
        let denied = |name: &str| -> Option<ToolError> {
            let only_denies = Filter {
                general: Rules { allow: Vec::new(), deny: self.filter.general.deny.clone() },
                clients: self
                    .filter
                    .clients
                    .iter()
                    .map(|(glob, rules)| {
                        (glob.clone(), Rules { allow: Vec::new(), deny: rules.deny.clone() })
                    })
                    .collect(),
            };
            only_denies.permits(viewer, Kind::Resource, name).err()
        };
        if self.filter.is_empty() {
            return Ok(());
        }
        for text in [Some(uri.to_owned()), decoded(uri)].into_iter().flatten() {
            if let Some(error) = denied(&text) {
                return Err(error);
            }
        }
        let listed = in_time(&*self.source, LIST_TIMEOUT, self.source.resources()).await?;
        let mut patterns =
            listed.iter().map(|spec| &spec.uri_pattern).filter(|pattern| pattern.matches(uri).is_some());
        if let Some(error) = patterns.clone().find_map(|pattern| denied(pattern.as_str())) {
            return Err(error);
        }
        if patterns.any(|pattern| decide(pattern.as_str()).is_ok()) {
            return Ok(());
        }
        decide(uri)
    }
}

/// The percent-decoded text, if it differs and is UTF-8.
fn decoded(uri: &str) -> Option<String> {
    let decoded = percent_decode_str(uri).decode_utf8().ok()?;
    (decoded != uri).then(|| decoded.into_owned())
}

impl fmt::Debug for Filtered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filtered")
            .field("source", &self.source.name())
            .field("filter", &self.filter)
            .field("viewer", &self.viewer)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Filtered {
    forward!(self => self.source; name, generation, health);

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let index = self.listing.read().await?;
            let mut specs = Vec::with_capacity(index.specs.len());
            for spec in index.specs.iter().filter(|spec| self.shows(Kind::Tool, &spec.name)) {
                // An alias that is closed is not told of either.
                if spec.aliases.iter().all(|alias| self.shows(Kind::Tool, &alias.name)) {
                    specs.push(Arc::clone(spec));
                } else {
                    let mut fewer = ToolSpec::clone(spec);
                    fewer.aliases.retain(|alias| self.shows(Kind::Tool, &alias.name));
                    specs.push(Arc::new(fewer));
                }
            }
            Ok(specs)
        })
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.permit(&call).await {
                Ok(()) => self.source.call(call).await,
                Err(error) => refused(&call, self.name(), error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Specs<ResourceSpec>> {
        Box::pin(async {
            let mut specs = self.source.resources().await?;
            specs.retain(|spec| self.shows(Kind::Resource, spec.uri_pattern.as_str()));
            Ok(specs)
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Specs<PromptSpec>> {
        Box::pin(async {
            let mut specs = self.source.prompts().await?;
            specs.retain(|spec| self.shows(Kind::Prompt, &spec.name));
            Ok(specs)
        })
    }

    fn viewer(&self) -> Option<&Caller> {
        self.viewer.as_ref()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.permit_uri(&call.caller, &call.tool).await?;
            self.source.read(call).await
        })
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            self.filter.permits(Some(&call.caller), Kind::Prompt, &call.tool)?;
            self.source.render(call).await
        })
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let inner = self.source.seen_by(caller);
        if inner.is_none() && self.filter.clients.is_empty() {
            return None;
        }
        let (source, listing) = match inner {
            Some(source) => (Arc::clone(&source), Arc::new(Listing::new(source))),
            None => (Arc::clone(&self.source), Arc::clone(&self.listing)),
        };
        Some(Arc::new(Self {
            source,
            listing,
            filter: Arc::clone(&self.filter),
            viewer: Some(caller.clone()),
        }))
    }

    /// For a caller, without details that may be closed to it.
    fn status(&self) -> Vec<SourceStatus> {
        let status = self.source.status();
        match self.viewer {
            Some(_) => status.into_iter().map(SourceStatus::brief).collect(),
            None => status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_percent_decoded() {
        for (uri, expected) in [
            ("notes://a", None),
            ("notes://%73ecret", Some("notes://secret")),
            ("a%2", None),
            ("a%zz%41", Some("a%zzA")),
            ("%ff", None),
            ("%+1", None),
        ] {
            assert_eq!(decoded(uri).as_deref(), expected, "{uri}");
        }
    }
}
