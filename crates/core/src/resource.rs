//! What can be read by its address, and prompts that can be rendered by their name.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::spec::digest_of;
use crate::{SpecError, Tool, ToolSpec};

/// The longest address that is matched, and the longest pattern, in bytes.
const MAX_URI: usize = 8 << 10;
/// The most parameters of one pattern.
const MAX_PARAMETERS: usize = 32;

/// A piece of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// This very text.
    Literal(String),
    /// One or more characters other than `/`, under this name.
    Parameter(String),
}

/// The addresses of a resource: `file:///{name}` stands for each address in which `{name}` is one or more characters
/// other than `/`. All else is literal, and the whole address must fit. A parameter takes as much as it can.
///
/// ```
/// # use toolpost_core::UriPattern;
/// let pattern: UriPattern = "notes://{user}/{page}.md".parse().unwrap();
/// let found = pattern.matches("notes://ada/a.b.md").unwrap();
/// assert_eq!((found["user"].as_str(), found["page"].as_str()), (Some("ada"), Some("a.b")));
/// assert_eq!(pattern.matches("notes://ada/deep/page.md"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UriPattern {
    text: String,
    pieces: Vec<Piece>,
}

impl UriPattern {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of its parameters, in their order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Parameter(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// The values of the parameters, as arguments by name, if the address fits. Addresses above 8 KiB never fit.
    pub fn matches(&self, uri: &str) -> Option<Map<String, Value>> {
        const NONE: usize = usize::MAX;
        if uri.len() > MAX_URI {
            return None;
        }
        // From the last piece back: where a piece that begins at a place ends, at the furthest, if the rest fits too.
        // No pattern takes longer than its length times that of the address.
        let places = uri.len() + 1;
        let mut fits: Vec<bool> = (0..places).map(|place| place == uri.len()).collect();
        let mut ends: Vec<Vec<usize>> = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.iter().rev() {
            let mut end = vec![NONE; places];
            match piece {
                Piece::Literal(text) => {
                    for (place, slot) in end.iter_mut().enumerate() {
                        let after = place + text.len();
                        if fits.get(after) == Some(&true)
                            && uri
                                .as_bytes()
                                .get(place..)
                                .is_some_and(|rest| rest.starts_with(text.as_bytes()))
                        {
                            *slot = after;
                        }
                    }
                }
                Piece::Parameter(_) => {
                    let mut furthest = NONE;
                    for (place, byte) in uri.bytes().enumerate().rev() {
                        if byte == b'/' {
                            furthest = NONE;
                            continue;
                        }
                        if furthest == NONE
                            && fits.get(place + 1) == Some(&true)
                            && uri.is_char_boundary(place + 1)
                        {
                            furthest = place + 1;
                        }
                        if uri.is_char_boundary(place)
                            && let Some(slot) = end.get_mut(place)
                        {
                            *slot = furthest;
                        }
                    }
                }
            }
            fits = end.iter().map(|end| *end != NONE).collect();
            ends.push(end);
        }
        let mut place = 0;
        let mut found = Map::new();
        for (piece, ends) in self.pieces.iter().zip(ends.iter().rev()) {
            let end = ends.get(place).copied().filter(|end| *end != NONE)?;
            if let Piece::Parameter(name) = piece {
                found.insert(name.clone(), uri.get(place..end)?.into());
            }
            place = end;
        }
        (place == uri.len()).then_some(found)
    }
}

impl std::str::FromStr for UriPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| Err(format!("`{}` is no pattern of addresses: {reason}", shown(text)));
        if text.is_empty() || text.len() > MAX_URI {
            return wrong("expected 1 to 8192 bytes");
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (literal, parameter) = rest.split_at(open);
            // A brace around anything but a name is literal, as in the original grammar.
            let name = parameter.get(1..).and_then(|inside| inside.split_once('}')).map(|(name, _)| name);
            let Some(name) = name.filter(|name| is_name(name)) else {
                let (all, after) = rest.split_at(open + 1);
                push_literal(&mut pieces, all);
                rest = after;
                continue;
            };
            if names.contains(&name) {
                return wrong(&format!("the parameter `{name}` occurs twice"));
            }
            if names.len() == MAX_PARAMETERS {
                return wrong("expected at most 32 parameters");
            }
            names.push(name);
            push_literal(&mut pieces, literal);
            pieces.push(Piece::Parameter(name.to_owned()));
            rest = parameter.get(name.len() + 2..).unwrap_or_default();
        }
        push_literal(&mut pieces, rest);
        Ok(Self { text: text.to_owned(), pieces })
    }
}

fn push_literal(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Literal(before)) => before.push_str(text),
        _ => pieces.push(Piece::Literal(text.to_owned())),
    }
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The beginning of a text that may be long.
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

/// What can be read by its address: a file, a record, a page. Pure data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceSpec {
    /// Its addresses.
    pub uri_pattern: UriPattern,
    /// What it is, in one sentence.
    #[serde(default)]
    pub summary: String,
    /// The media types that it may have, such as `text/plain`.
    #[serde(default)]
    pub mime_types: Vec<String>,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Facts for others, such as where it comes from.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
}

impl ResourceSpec {
    /// A resource of these addresses.
    pub fn new(uri_pattern: UriPattern, summary: impl Into<String>) -> Self {
        Self {
            uri_pattern,
            summary: summary.into(),
            mime_types: Vec::new(),
            tags: Vec::new(),
            meta: Map::new(),
        }
    }

    /// The SHA-256 of everything that a caller relies on, in hexadecimal digits; the order of keys does not count.
    pub fn digest(&self) -> String {
        digest_of(self)
    }
}

/// A parameter of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptArgument {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub description: String,
    /// Whether it may be left out.
    #[serde(default)]
    pub optional: bool,
}

/// A prompt that can be rendered by its name. Pure data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PromptSpec {
    /// Its name.
    pub name: String,
    /// What it is for, in one sentence.
    #[serde(default)]
    pub summary: String,
    /// Its parameters. Their values are given as an object.
    #[serde(default)]
    pub arguments: Vec<PromptArgument>,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Facts for others, such as where it comes from.
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

    /// The SHA-256 of everything that a caller relies on, in hexadecimal digits; the order of keys does not count.
    pub fn digest(&self) -> String {
        digest_of(self)
    }
}

/// A tool that reads: what `#[resource]` makes of a function. Its arguments are the parameters of the pattern.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a resource",
    label = "expected a resource",
    note = "put `#[toolpost::resource(\"scheme://{{name}}\")]` on the function"
)]
pub trait Resource: Tool {
    /// What is known before it is read. Asked once, at registration.
    ///
    /// # Errors
    /// The pattern is none, or does not name the arguments that the tool needs.
    fn resource_spec(&self) -> Result<ResourceSpec, SpecError>;
}

/// A tool that writes a prompt: what `#[prompt]` makes of a function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a prompt",
    label = "expected a prompt",
    note = "put `#[toolpost::prompt]` on the function"
)]
pub trait Prompt: Tool {
    /// What is known before it is rendered. Asked once, at registration. Default: as the spec of the tool says it.
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

/// The spec of a resource whose tool is described by `spec`.
pub(crate) fn resource_spec(
    spec: &ToolSpec,
    pattern: &str,
    mime_types: &[&str],
) -> Result<ResourceSpec, SpecError> {
    let wrong = |message: String| SpecError { tool: spec.name.clone(), message };
    let pattern: UriPattern = pattern.parse().map_err(wrong)?;
    for name in spec.input_schema.required() {
        if !pattern.parameters().any(|parameter| parameter == name) {
            return Err(wrong(format!(
                "its addresses `{pattern}` have no part `{{{name}}}`, and it needs one"
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
    fn addresses_fit_as_the_regex_of_the_original_does() {
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
