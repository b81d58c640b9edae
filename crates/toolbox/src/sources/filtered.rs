//! What is shown and run, and for whom.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec, did_you_mean,
};

use super::definition::Kind;
use super::listing::{LIST_TIMEOUT, Listing, in_time};
use super::{Glob, nearest, refused, shown};

/// A pattern, and what it is about: everything, if there is no kind.
#[derive(Clone, Debug)]
struct Rule {
    kind: Option<Kind>,
    glob: Glob,
    /// As it was written.
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

/// Patterns that let through, and patterns that do not.
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

/// Which tools, prompts and resources are open, and to whom.
///
/// A pattern is a [`Glob`] of names of tools and prompts and of addresses of resources; one that begins with `tool:`,
/// `prompt:` or `resource:` is about these alone. What a `deny` covers is closed, whatever else is said. Else it is open
/// if an `allow` covers it, or if there is no `allow` at all. Callers of a certain identity may have rules of their own:
/// their `deny` comes on top, and their `allow`, if they have one, stands in the place of the general one.
///
/// Addresses are compared as they are and with their `%41` read; where it matters which resources are open, say what is
/// allowed and not what is denied.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    general: Rules,
    clients: Vec<(Glob, Rules)>,
}

impl Filter {
    /// Rules for everybody.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern is none.
    pub fn parse<A: AsRef<str>, D: AsRef<str>>(
        allow: impl IntoIterator<Item = A>,
        deny: impl IntoIterator<Item = D>,
    ) -> Result<Self, ToolError> {
        Ok(Self { general: Rules::parse(allow, deny)?, clients: Vec::new() })
    }

    /// Adds rules for the callers whose identity fits a pattern. A caller without identity fits none.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern is none.
    pub fn client<A: AsRef<str>, D: AsRef<str>>(
        mut self,
        identity: &str,
        allow: impl IntoIterator<Item = A>,
        deny: impl IntoIterator<Item = D>,
    ) -> Result<Self, ToolError> {
        self.clients.push((identity.parse()?, Rules::parse(allow, deny)?));
        Ok(self)
    }

    /// Whether it lets everything through to everybody.
    pub fn is_empty(&self) -> bool {
        self.general.allow.is_empty() && self.general.deny.is_empty() && self.clients.is_empty()
    }

    /// Whether a tool is open to a caller.
    ///
    /// # Errors
    /// `PERMISSION` with the rule that closes it.
    pub fn permits_tool(&self, caller: &Caller, name: &str) -> Result<(), ToolError> {
        self.permits(Some(caller), Kind::Tool, name)
    }

    /// Whether something is open to a caller, or to anybody.
    fn permits(&self, caller: Option<&Caller>, kind: Kind, name: &str) -> Result<(), ToolError> {
        let Some(caller) = caller else {
            // What anybody may see: what the general rules let through, or those of a client.
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
                "the {noun} `{}` is closed by the rule deny = \"{}\"",
                shown(name),
                rule.text
            ))
            .suggest("Take the pattern out of `deny` to open it."));
        }
        let mut allow: Vec<&Rule> = own.iter().flat_map(|rules| &rules.allow).collect();
        if allow.is_empty() {
            allow.extend(&self.general.allow);
        }
        if allow.is_empty() || allow.iter().any(|rule| rule.covers(kind, name)) {
            return Ok(());
        }
        Err(ToolError::permission(format!(
            "the {noun} `{}` is not open to this caller: no pattern of `allow` covers it",
            shown(name)
        ))
        .suggest("Add a pattern to `allow` to open it."))
    }
}

/// A source of which only a part is open, to everybody or by caller: what is closed is neither listed nor run nor read.
pub struct Filtered {
    source: Arc<dyn ToolSource>,
    listing: Arc<Listing>,
    filter: Arc<Filter>,
    /// For whom it lists and reads; `None` is for anybody.
    viewer: Option<Caller>,
}

impl Filtered {
    /// Opens a part of a source.
    pub fn new(source: Arc<dyn ToolSource>, filter: Filter) -> Self {
        let listing = Arc::new(Listing::new(Arc::clone(&source)));
        Self { source, listing, filter: Arc::new(filter), viewer: None }
    }

    fn shows(&self, kind: Kind, name: &str) -> bool {
        self.filter.permits(self.viewer.as_ref(), kind, name).is_ok()
    }

    /// Whether a call may be made. An alias opens no tool that is closed by its name, and none that is closed itself.
    async fn permit(&self, call: &Call) -> Result<(), ToolError> {
        self.filter.permits_tool(&call.caller, &call.tool)?;
        if self.filter.is_empty() {
            return Ok(());
        }
        // A list that cannot be read again must not take away what is known; what is not known is refused.
        let index = match self.listing.current().await {
            Ok(index) => index,
            Err(error) => self.listing.last().filter(|index| index.get(&call.tool).is_some()).ok_or(error)?,
        };
        match index.get(&call.tool) {
            Some(spec) if spec.name != call.tool => self.filter.permits_tool(&call.caller, &spec.name),
            Some(_) => Ok(()),
            // The source would tell of names that are closed here.
            None => {
                let open = index.names().filter(|name| self.filter.permits_tool(&call.caller, name).is_ok());
                // What the source itself closes to the caller is nobody's to tell either.
                let hint = match self.source.seen_by(&call.caller) {
                    None => did_you_mean(&call.tool, open),
                    Some(_) => nearest(self, &call.caller, &call.tool, open).await,
                };
                Err(ToolError::not_found(format!("there is no tool `{}`", shown(&call.tool)))
                    .suggest_maybe(hint))
            }
        }
    }

    /// Whether an address may be read: it or the pattern that it fits must be open, and neither may be closed.
    async fn permit_address(&self, caller: &Caller, uri: &str) -> Result<(), ToolError> {
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
        let fitting = in_time(&*self.source, LIST_TIMEOUT, self.source.resources()).await?;
        let mut patterns =
            fitting.iter().map(|spec| &spec.uri_pattern).filter(|pattern| pattern.matches(uri).is_some());
        if let Some(error) = patterns.clone().find_map(|pattern| denied(pattern.as_str())) {
            return Err(error);
        }
        if patterns.any(|pattern| decide(pattern.as_str()).is_ok()) {
            return Ok(());
        }
        decide(uri)
    }
}

/// The text with each `%41` read as its character, if that changes it and is text.
fn decoded(uri: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(uri.len());
    let mut rest = uri.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = if byte == b'%' { after.get(..2) } else { None };
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(value.unwrap_or(byte));
        rest = if value.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8(bytes).ok().filter(|text| text != uri)
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
    fn name(&self) -> &str {
        self.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
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

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.permit(&call).await {
                Ok(()) => self.source.call(call).await,
                Err(error) => refused(&call, self.name(), error),
            }
        })
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async {
            let mut specs = self.source.resources().await?;
            specs.retain(|spec| self.shows(Kind::Resource, spec.uri_pattern.as_str()));
            Ok(specs)
        })
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
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
            self.permit_address(&call.caller, &call.tool).await?;
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

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    /// For a caller, without what may be closed to it.
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
    fn escaped_addresses_are_read() {
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
