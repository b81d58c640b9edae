//! Filters of tools, prompts and resources, per caller.

use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use toolpost_core::{Call, Caller, ResourceSpec, ToolError, ToolSource};

use crate::definition::Kind;
use crate::layer::{Layered, Origin, SourceLayer};
use crate::listing::{LIST_TIMEOUT, listed, retain_aliases};
use crate::{Glob, SourceManifest, nearest, shown};

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
    fn permits_tool(&self, caller: &Caller, name: &str) -> Result<(), ToolError> {
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
        self.decide(&self.rules_of(caller), kind, name)
    }

    /// The rules for callers that match a caller.
    fn rules_of(&self, caller: &Caller) -> Vec<&Rules> {
        let Some(identity) = caller.identity.as_deref() else { return Vec::new() };
        self.clients.iter().filter(|(glob, _)| glob.matches(identity)).map(|(_, rules)| rules).collect()
    }

    fn check_denied(&self, own: &[&Rules], kind: Kind, name: &str) -> Result<(), ToolError> {
        let mut denies = self.general.deny.iter().chain(own.iter().flat_map(|rules| &rules.deny));
        let Some(rule) = denies.find(|rule| rule.covers(kind, name)) else { return Ok(()) };
        Err(ToolError::permission(format!(
            "the {} `{}` is denied by the rule deny = \"{}\"",
            kind.noun(),
            shown(name),
            rule.text
        ))
        .suggest("Remove the pattern from `deny` to allow it."))
    }

    fn decide(&self, own: &[&Rules], kind: Kind, name: &str) -> Result<(), ToolError> {
        self.check_denied(own, kind, name)?;
        let mut allow: Vec<&Rule> = own.iter().flat_map(|rules| &rules.allow).collect();
        if allow.is_empty() {
            allow.extend(&self.general.allow);
        }
        if allow.is_empty() || allow.iter().any(|rule| rule.covers(kind, name)) {
            return Ok(());
        }
        Err(ToolError::permission(format!(
            "the {} `{}` matches no pattern of `allow` for this caller",
            kind.noun(),
            shown(name)
        ))
        .suggest("Add a pattern to `allow` for it."))
    }
}

/// A source with a filter. A closed definition is not listed, run or read.
pub type Filtered = Layered<Filter>;

impl Layered<Filter> {
    /// Filters a source.
    pub fn new(source: Arc<dyn ToolSource>, filter: Filter) -> Self {
        Self::over(source, filter)
    }

    /// Checks a call. An alias does not open a tool whose name is denied.
    async fn permit_call(&self, call: &Call) -> Result<(), ToolError> {
        let filter = &self.layer;
        filter.permits_tool(&call.caller, &call.tool)?;
        if filter.is_empty() {
            return Ok(());
        }
        // If the list cannot be read again, the last one decides. Unknown tools are then denied.
        let index = match self.tools.current().await {
            Ok(index) => index,
            Err(error) => self.tools.last().filter(|index| index.get(&call.tool).is_some()).ok_or(error)?,
        };
        if let Some(spec) = index.get(&call.tool) {
            return filter.permits_tool(&call.caller, &spec.name);
        }
        // The error of the source could reveal closed names.
        let open = index.names().filter(|name| filter.permits_tool(&call.caller, name).is_ok());
        let hint = nearest(self, &call.caller, &call.tool, open).await;
        Err(ToolError::not_found(format!("unknown tool `{}`", shown(&call.tool))).suggest_maybe(hint))
    }

    /// Checks a URI: it or a matching pattern must be allowed, and neither may be denied.
    async fn permit_uri(&self, caller: &Caller, uri: &str) -> Result<(), ToolError> {
        let filter = &self.layer;
        if filter.is_empty() {
            return Ok(());
        }
        let own = filter.rules_of(caller);
        for text in [Some(uri.to_owned()), decoded(uri)].into_iter().flatten() {
            filter.check_denied(&own, Kind::Resource, &text)?;
        }
        let specs = listed::<ResourceSpec>(&*self.source, LIST_TIMEOUT).await?;
        let patterns = specs.iter().map(|spec| &spec.uri_pattern);
        let mut is_open = false;
        for pattern in patterns.filter(|pattern| pattern.matches(uri).is_some()) {
            filter.check_denied(&own, Kind::Resource, pattern.as_str())?;
            is_open |= filter.decide(&own, Kind::Resource, pattern.as_str()).is_ok();
        }
        if is_open { Ok(()) } else { filter.decide(&own, Kind::Resource, uri) }
    }
}

impl SourceLayer for Filter {
    fn has_views(&self) -> bool {
        !self.clients.is_empty()
    }

    fn map(&self, origin: &Origin<'_>, mut manifest: SourceManifest) -> Result<SourceManifest, ToolError> {
        let shows = |kind, name: &str| self.permits(origin.viewer, kind, name).is_ok();
        manifest.tools.retain(|spec| shows(Kind::Tool, &spec.name));
        for spec in &mut manifest.tools {
            retain_aliases(spec, |alias| shows(Kind::Tool, alias));
        }
        manifest.resources.retain(|spec| shows(Kind::Resource, spec.uri_pattern.as_str()));
        manifest.prompts.retain(|spec| shows(Kind::Prompt, &spec.name));
        Ok(manifest)
    }

    async fn resolve(layered: &Layered<Self>, kind: Kind, call: &Call) -> Result<Option<String>, ToolError> {
        match kind {
            Kind::Tool => layered.permit_call(call).await?,
            Kind::Resource => layered.permit_uri(&call.caller, &call.tool).await?,
            Kind::Prompt => layered.layer.permits(Some(&call.caller), kind, &call.tool)?,
        }
        Ok(None)
    }
}

/// The percent-decoded text, if it differs and is UTF-8.
fn decoded(uri: &str) -> Option<String> {
    let decoded = percent_decode_str(uri).decode_utf8().ok()?;
    (decoded != uri).then(|| decoded.into_owned())
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
