//! Resources with URIs, and prompts.

use std::fmt;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::spec::digest_of;
use crate::{SpecError, Tool, ToolSpec};

/// Maximum length of a URI and of a pattern, in bytes.
const MAX_URI: usize = 8 << 10;
/// Maximum number of parameters in a pattern.
const MAX_PARAMETERS: usize = 32;

/// A URI pattern, such as `file:///{name}`, in which `{name}` matches one or more characters other than `/`.
///
/// All other text is literal, and the whole URI must match. A placeholder matches greedily.
///
/// ```
/// # use toolpost_core::UriPattern;
/// let pattern: UriPattern = "notes://{user}/{page}.md".parse().unwrap();
/// let found = pattern.matches("notes://ada/a.b.md").unwrap();
/// assert_eq!((found["user"].as_str(), found["page"].as_str()), (Some("ada"), Some("a.b")));
/// assert_eq!(pattern.matches("notes://ada/deep/page.md"), None);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UriPattern {
    text: String,
    names: Vec<String>,
    regex: Regex,
}

impl PartialEq for UriPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for UriPattern {}

impl UriPattern {
    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parameter names, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The values of the parameters, if the URI matches. URIs above 8 KiB never match.
    pub fn matches(&self, uri: &str) -> Option<Map<String, Value>> {
        if uri.len() > MAX_URI {
            return None;
        }
        let found = self.regex.captures(uri)?;
        self.names.iter().map(|name| Some((name.clone(), found.name(name)?.as_str().into()))).collect()
    }
}

impl std::str::FromStr for UriPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |reason: &str| Err(format!("`{}` is not a URI pattern: {reason}", shown(text)));
        if text.is_empty() || text.len() > MAX_URI {
            return invalid("expected 1 to 8192 bytes");
        }
        let mut regex = "^".to_owned();
        let mut names: Vec<String> = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (literal, parameter) = rest.split_at(open);
            // A brace that does not enclose a name is literal, as in the original grammar.
            let name = parameter.get(1..).and_then(|inside| inside.split_once('}')).map(|(name, _)| name);
            let Some(name) = name.filter(|name| is_name(name)) else {
                let (all, after) = rest.split_at(open + 1);
                regex.push_str(&regex::escape(all));
                rest = after;
                continue;
            };
            if names.iter().any(|known| known == name) {
                return invalid(&format!("the parameter `{name}` occurs twice"));
            }
            if names.len() == MAX_PARAMETERS {
                return invalid("expected at most 32 parameters");
            }
            names.push(name.to_owned());
            regex += &regex::escape(literal);
            regex.extend(["(?<", name, ">[^/]+)"]);
            rest = parameter.get(name.len() + 2..).unwrap_or_default();
        }
        regex += &regex::escape(rest);
        regex.push('$');
        let Ok(regex) = Regex::new(&regex) else { return invalid("expected a shorter pattern") };
        Ok(Self { text: text.to_owned(), names, regex })
    }
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The start of a text, for messages.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

impl TryFrom<String> for UriPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<UriPattern> for String {
    fn from(pattern: UriPattern) -> Self {
        pattern.text
    }
}

impl fmt::Display for UriPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The definition of a resource: a file, a record or a page with a URI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceSpec {
    /// Pattern of its URIs.
    pub uri_pattern: UriPattern,
    /// Name for users; defaults to the path of the pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// One sentence about the resource.
    #[serde(default)]
    pub summary: String,
    /// Its possible media types, such as `text/plain`.
    #[serde(default)]
    pub mime_types: Vec<String>,
    /// Search tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Metadata, such as its origin.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
}

impl ResourceSpec {
    /// A resource with these URIs.
    pub fn new(uri_pattern: UriPattern, summary: impl Into<String>) -> Self {
        Self {
            uri_pattern,
            name: None,
            summary: summary.into(),
            mime_types: Vec::new(),
            tags: Vec::new(),
            meta: Map::new(),
        }
    }

    /// SHA-256 of the definition in hexadecimal digits, independent of the order of keys.
    pub fn digest(&self) -> String {
        digest_of(self)
    }
}

/// A parameter of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptArgument {
    /// Parameter name.
    pub name: String,
    /// Description.
    #[serde(default)]
    pub description: String,
    /// Whether the parameter is optional.
    #[serde(default)]
    pub optional: bool,
}

/// The definition of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PromptSpec {
    /// Prompt name.
    pub name: String,
    /// One sentence about the prompt.
    #[serde(default)]
    pub summary: String,
    /// Its parameters.
    #[serde(default)]
    pub arguments: Vec<PromptArgument>,
    /// Search tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Metadata, such as its origin.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
}

impl PromptSpec {
    /// A prompt without parameters.
    pub fn new(name: impl Into<String>, summary: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            summary: summary.into(),
            arguments: Vec::new(),
            tags: Vec::new(),
            meta: Map::new(),
        }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn argument(
        mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        optional: bool,
    ) -> Self {
        self.arguments.push(PromptArgument { name: name.into(), description: description.into(), optional });
        self
    }

    /// SHA-256 of the definition in hexadecimal digits, independent of the order of keys.
    pub fn digest(&self) -> String {
        digest_of(self)
    }
}

/// A tool that reads a resource, as `#[resource]` creates it. Its arguments are the pattern's parameters.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a resource",
    label = "expected a resource",
    note = "put `#[toolpost::resource(\"scheme://{{name}}\")]` on the function"
)]
pub trait Resource: Tool {
    /// The definition, requested once at registration.
    ///
    /// # Errors
    /// The URI pattern is invalid, or its placeholders differ from the tool's required parameters.
    fn resource_spec(&self) -> Result<ResourceSpec, SpecError>;
}

/// A tool that renders a prompt, as `#[prompt]` creates it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a prompt",
    label = "expected a prompt",
    note = "put `#[toolpost::prompt]` on the function"
)]
pub trait Prompt: Tool {
    /// The definition, requested once at registration. Default: derived from the tool's spec.
    fn prompt_spec(&self) -> PromptSpec {
        let spec = self.spec();
        let mut prompt = PromptSpec::new(spec.name.clone(), spec.summary());
        prompt.tags.clone_from(&spec.tags);
        let schema = spec.input_schema.as_value();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let description = property.get("description").and_then(Value::as_str).unwrap_or_default();
            let is_required = spec.input_schema.required().any(|required| required == name);
            prompt = prompt.argument(name, description, !is_required);
        }
        prompt
    }
}

/// Describes a resource that a tool reads.
pub(crate) fn resource_spec(
    spec: &ToolSpec,
    pattern: &str,
    mime_types: &[&str],
) -> Result<ResourceSpec, SpecError> {
    let invalid = |message: String| SpecError { tool: spec.name.clone(), message };
    let pattern: UriPattern = pattern.parse().map_err(invalid)?;
    for name in spec.input_schema.required() {
        if !pattern.parameters().any(|parameter| parameter == name) {
            return Err(invalid(format!(
                "its pattern `{pattern}` lacks the required parameter `{{{name}}}`"
            )));
        }
    }
    let mut resource = ResourceSpec::new(pattern, spec.summary());
    resource.mime_types = mime_types.iter().map(|name| (*name).to_owned()).collect();
    resource.tags.clone_from(&spec.tags);
    Ok(resource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn uris_match_as_with_the_original_regex() {
        for (pattern, uri, expected) in [
            ("notes://all", "notes://all", Some(json!({}))),
            ("notes://all", "notes://all/", None),
            ("notes://all", "notes://al", None),
            ("n://{id}", "n://1", Some(json!({"id": "1"}))),
            ("n://{id}", "n://", None),
            ("n://{id}", "n://a/b", None),
            ("n://{id}/", "n://a/", Some(json!({"id": "a"}))),
            ("{a}-{b}", "x-y-z", Some(json!({"a": "x-y", "b": "z"}))),
            ("{a}{b}", "xyz", Some(json!({"a": "xy", "b": "z"}))),
            ("{a}{b}", "é", None),
            ("{a}{b}", "éü", Some(json!({"a": "é", "b": "ü"}))),
            ("{a}.md", "a\n.md", Some(json!({"a": "a\n"}))),
            ("a.c", "abc", None),
            ("{}/{1a}/{", "{}/{1a}/{", Some(json!({}))),
            ("{a b}{c}", "{a b}z", Some(json!({"c": "z"}))),
        ] {
            let found = pattern.parse::<UriPattern>().unwrap().matches(uri).map(Value::Object);
            assert_eq!(found, expected, "{pattern} {uri}");
        }
    }

    #[test]
    fn hostile_patterns_and_addresses_cost_little() {
        let pattern: UriPattern = (0..MAX_PARAMETERS)
            .map(|index| format!("{{p{index}}}a"))
            .collect::<Vec<_>>()
            .concat()
            .parse()
            .unwrap();
        assert_eq!(
            pattern.matches(&"a".repeat(MAX_URI - 1).replacen('a', "b", 1)).map(|found| found.len()),
            Some(32)
        );
        assert_eq!(pattern.matches(&format!("{}b", "a".repeat(MAX_URI - 1))), None);
        assert_eq!(pattern.matches(&"a".repeat(MAX_URI + 1)), None);
        let many = (0..=MAX_PARAMETERS).map(|index| format!("{{p{index}}}")).collect::<Vec<_>>().concat();
        for (bad, why) in [("", "1 to 8192"), ("{a}{a}", "twice"), (many.as_str(), "at most 32")] {
            assert!(bad.parse::<UriPattern>().unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn a_pattern_is_a_string_in_json() {
        let value = json!({"uri_pattern": "n://{id}", "summary": "A note.", "mime_types": ["text/plain"]});
        let spec: ResourceSpec = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(spec.uri_pattern.parameters().collect::<Vec<_>>(), ["id"]);
        assert_eq!(serde_json::to_value(&spec).unwrap(), value);
        assert!(serde_json::from_value::<ResourceSpec>(json!({"uri_pattern": "{a}{a}"})).is_err());
    }
}
