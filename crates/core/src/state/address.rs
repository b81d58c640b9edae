//! Addresses of document parts, and their templates.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pointer::{check_pointer, escape_pointer};
use crate::{Args, Call, Schema, ToolError};

/// Maximum length of a document id, in bytes.
const MAX_ID: usize = 256;

/// Checks a document id: 1 to 256 bytes without control characters.
///
/// # Errors
/// `INVALID_INPUT`.
pub fn check_document_id(id: &str) -> Result<(), ToolError> {
    if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
        return Err(ToolError::invalid_input(format!(
            "a document id has 1 to {MAX_ID} bytes and no control characters; this one has {} bytes",
            id.len()
        )));
    }
    Ok(())
}

/// A part of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateAddress {
    /// The document's id.
    pub document: String,
    /// JSON pointer of the part; empty for the whole document.
    pub pointer: String,
}

/// The template of a `#[state]` parameter: a document and a part of it.
///
/// Both templates are split at `/`, and parts in braces are filled in. `{owner}` is the owner of the call's scope, else
/// the caller's identity; callers without an identity share one owner. `{scope}` is the run or conversation. Any other
/// name is an argument. An argument stays within its part and cannot imitate an owner or a scope: those start with `@`
/// and `+`, which arguments escape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSpec {
    /// Document id, such as `counters/{owner}`.
    pub id: String,
    /// JSON pointer of the part, such as `/by_name/{name}`; empty for the whole document.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Whether the tool may change the part. A part that is only read must be unchanged at commit.
    #[serde(default)]
    pub writes: bool,
    /// Whether the document must exist, for documents that a server names.
    #[serde(default)]
    pub existing: bool,
}

/// A part of a template.
enum Part<'a> {
    Literal(&'a str),
    Owner,
    Scope,
    Argument(&'a str),
}

impl<'a> Part<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some("owner") => Ok(Self::Owner),
            Some("scope") => Ok(Self::Scope),
            Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(Self::Argument(name)),
            None if !text.contains(['{', '}']) => Ok(Self::Literal(text)),
            _ => Err(format!("`{text}`: braces must enclose a whole part between `/`, such as `{{owner}}`")),
        }
    }
}

fn id_parts(template: &str) -> Result<Vec<Part<'_>>, String> {
    let parts = template.split('/').map(|text| match Part::read(text)? {
        Part::Literal("") => Err("a part between `/` is empty".to_owned()),
        Part::Literal(text) if text.starts_with(['@', '+']) => Err(format!(
            "`{text}`: `@` and `+` are reserved for owners and scopes; write `{{owner}}` or `{{scope}}`"
        )),
        Part::Literal(text) if text.contains(char::is_control) => Err("it has control characters".to_owned()),
        part => Ok(part),
    });
    parts.collect()
}

fn path_parts(template: &str) -> Result<Vec<Part<'_>>, String> {
    check_pointer(template)?;
    let parts = template.split('/').skip(1).map(|text| match Part::read(text)? {
        Part::Owner | Part::Scope => Err(format!("`{text}` belongs in a document id, not in a path")),
        part => Ok(part),
    });
    parts.collect()
}

/// Escapes a text as one part of a document id, so that it cannot end the part or imitate another kind.
fn escaped(text: &str) -> Cow<'_, str> {
    if text.is_empty() {
        return "%".into();
    }
    let plain = |c: char| !matches!(c, '/' | '%') && !c.is_control();
    let harmless = !text.starts_with(['@', '+']);
    if harmless && text.chars().all(plain) {
        return text.into();
    }
    let mut part = String::with_capacity(text.len() + 8);
    for (place, c) in text.char_indices() {
        if plain(c) && (place > 0 || harmless) {
            part.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(part, "%{byte:02X}");
            }
        }
    }
    part.into()
}

fn owner_part(call: &Call) -> String {
    let owner = call.scope.as_ref().map(crate::Scope::owner).or(call.caller.identity.as_deref());
    match owner.filter(|owner| !owner.is_empty()) {
        Some(owner) => format!("@{}", escaped(owner)),
        None => "@".to_owned(),
    }
}

fn scope_part(call: &Call) -> Result<String, ToolError> {
    let scope = call.scope.as_ref().ok_or_else(|| {
        ToolError::precondition("the document belongs to a scope, but this call has none")
            .suggest("Make the call in a run or a conversation.")
    })?;
    Ok(format!("+{}", scope.id()))
}

/// The text of an argument, or its default.
fn argument(name: &str, args: &Args, schema: &Schema) -> Result<String, ToolError> {
    let default = || schema.as_value().get("properties")?.get(name)?.get("default");
    match args.get(name).or_else(default) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Bool(flag)) => Ok(flag.to_string()),
        Some(Value::Number(number)) if !number.is_f64() => Ok(number.to_string()),
        Some(Value::Null) | None => {
            Err(ToolError::missing_param(format!("argument `{name}` is missing; it selects the document")))
        }
        Some(_) => Err(ToolError::invalid_input(format!(
            "argument `{name}` selects the document, so it must be a string or an integer"
        ))),
    }
    .map_err(|error| error.with("pointer", format!("/{}", escape_pointer(name))))
}

/// The document id of a template without arguments.
pub(crate) fn resolve_id(template: &str, call: &Call) -> Result<String, ToolError> {
    let parts = id_parts(template)
        .map_err(|why| ToolError::invalid_input(format!("`{template}` is not a document id: {why}")))?;
    build_id(&parts, call, |name| {
        Err(ToolError::invalid_input(format!(
            "`{template}` is not a document id: `{{{name}}}` is neither `{{owner}}` nor `{{scope}}`"
        )))
    })
}

fn build_id(
    parts: &[Part<'_>],
    call: &Call,
    argument: impl Fn(&str) -> Result<String, ToolError>,
) -> Result<String, ToolError> {
    let texts = parts.iter().map(|part| {
        Ok(match part {
            Part::Literal(text) => (*text).to_owned(),
            Part::Owner => owner_part(call),
            Part::Scope => scope_part(call)?,
            Part::Argument(name) => escaped(&argument(name)?).into_owned(),
        })
    });
    let id = texts.collect::<Result<Vec<_>, ToolError>>()?.join("/");
    check_document_id(&id)?;
    Ok(id)
}

impl StateSpec {
    /// Names of the arguments in the templates.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        let named = |text| match Part::read(text) {
            Ok(Part::Argument(name)) => Some(name),
            _ => None,
        };
        self.id.split('/').chain(self.path.split('/')).filter_map(named)
    }

    /// Validates both templates.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), String> {
        let of =
            |what: &str, template: &str, why: String| format!("the {what} `{template}` of a state: {why}");
        id_parts(&self.id).map_err(|why| of("id", &self.id, why))?;
        path_parts(&self.path).map_err(|why| of("path", &self.path, why))?;
        Ok(())
    }

    /// The address for a call.
    ///
    /// # Errors
    /// `MISSING_PARAM` and `INVALID_INPUT` for an unusable argument, `PRECONDITION` if the template needs a scope and the
    /// call has none.
    pub fn resolve(&self, call: &Call, schema: &Schema) -> Result<StateAddress, ToolError> {
        let args = Args::new(std::sync::Arc::clone(&call.arguments));
        let of_argument = |name: &str| argument(name, &args, schema);
        let internal = ToolError::internal;
        let document = build_id(&id_parts(&self.id).map_err(internal)?, call, of_argument)?;
        let mut pointer = String::new();
        for part in path_parts(&self.path).map_err(internal)? {
            pointer.push('/');
            match part {
                Part::Literal(text) => pointer.push_str(text),
                Part::Argument(name) => pointer.push_str(&escape_pointer(&of_argument(name)?)),
                Part::Owner | Part::Scope => {}
            }
        }
        Ok(StateAddress { document, pointer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Code, Scope};
    use proptest::prelude::*;
    use serde_json::json;

    fn spec(id: &str, path: &str) -> StateSpec {
        StateSpec { id: id.into(), path: path.into(), writes: true, existing: false }
    }

    fn schema() -> Schema {
        Schema::new(json!({"type": "object", "properties": {"name": {}, "page": {"default": 1}}}))
    }

    fn resolve(id: &str, path: &str, call: &Call) -> Result<(String, String), ToolError> {
        spec(id, path).resolve(call, &schema()).map(|address| (address.document, address.pointer))
    }

    #[test]
    fn templates_are_filled_from_the_call() {
        let alice = Caller::new("cli").with_identity("alice");
        let call = |arguments| Call::new("t", arguments).with_caller(alice.clone());
        let scope = Scope::new("bob/b");
        let in_scope = call(json!({"name": "a/b"})).with_scope(scope.clone());
        for (id, path, call, expected) in [
            ("counters", "", call(json!({})), ("counters".to_owned(), "")),
            (
                "counters/{owner}",
                "/by_name/{name}",
                call(json!({"name": "a/b~"})),
                ("counters/@alice".into(), "/by_name/a~1b~0"),
            ),
            ("counters/{owner}", "", Call::new("t", json!({})), ("counters/@".into(), "")),
            ("counters/{owner}", "", in_scope.clone(), ("counters/@bob%2Fb".into(), "")),
            ("{scope}/x", "", in_scope.clone(), (format!("+{}/x", scope.id()), "")),
            ("notes/{name}", "", in_scope, ("notes/a%2Fb".into(), "")),
            ("notes/{name}", "/{page}", call(json!({"name": 7})), ("notes/7".into(), "/1")),
            ("notes/{name}", "", call(json!({"name": ""})), ("notes/%".into(), "")),
            ("notes/{name}", "", call(json!({"name": "@bob"})), ("notes/%40bob".into(), "")),
            ("notes/{name}", "", call(json!({"name": "+é%\n"})), ("notes/%2Bé%25%0A".into(), "")),
        ] {
            assert_eq!(resolve(id, path, &call).unwrap(), (expected.0, expected.1.to_owned()), "{id} {path}");
        }
    }

    #[test]
    fn unusable_arguments_are_reported_by_name() {
        let call = |arguments| Call::new("t", arguments);
        for (id, call, code, pointer) in [
            ("a/{name}", call(json!({})), Code::MissingParam, Some("/name")),
            ("a/{name}", call(json!({"name": null})), Code::MissingParam, Some("/name")),
            ("a/{name}", call(json!({"name": [1]})), Code::InvalidInput, Some("/name")),
            ("a/{name}", call(json!({"name": 1.5})), Code::InvalidInput, Some("/name")),
            ("a/{name}", call(json!({"name": "x".repeat(300)})), Code::InvalidInput, None),
            ("a/{scope}", call(json!({})), Code::Precondition, None),
        ] {
            let error = resolve(id, "", &call).unwrap_err();
            let found = error.context().get("pointer").and_then(Value::as_str);
            assert_eq!((error.code(), found), (code, pointer), "{id}");
        }
    }

    #[test]
    fn templates_are_checked() {
        for (id, path) in [("a", ""), ("a/{owner}/{x}", "/b/{y}/c~1d"), ("{scope}", "/")] {
            assert_eq!(spec(id, path).check(), Ok(()));
        }
        for (id, path, expected) in [
            ("", "", "empty"),
            ("a//b", "", "empty"),
            ("a/@bob", "", "reserved for owners"),
            ("+x", "", "reserved for owners"),
            ("a{owner}", "", "braces"),
            ("{}", "", "braces"),
            ("a/{x", "", "braces"),
            ("a\n", "", "control"),
            ("a", "b", "start with `/`"),
            ("a", "/~", "`~0`"),
            ("a", "/{owner}", "in a document id"),
        ] {
            let error = spec(id, path).check().unwrap_err();
            assert!(error.contains(expected), "{id} {path}: {error}");
        }
    }

    proptest! {
        /// Documents of two callers differ when their owners or their arguments do.
        #[test]
        fn no_argument_reaches_another_owners_document(
            owners in ("[a/@+%{}é-]{0,4}", "[a/@+%{}é-]{0,4}"), names in ("[a/@+%{}é\n-]{0,5}", "[a/@+%{}é\n-]{0,5}"),
        ) {
            let call = |owner: &str, name: &str| {
                Call::new("t", json!({"name": name})).with_caller(Caller::new("x").with_identity(owner))
            };
            let (one, other) = (call(&owners.0, &names.0), call(&owners.1, &names.1));
            let templates = ["{owner}/{name}", "{name}/{owner}", "{name}/x", "{name}", "{name}/{name}", "{owner}"];
            for first in templates {
                let mine = resolve(first, "", &one).unwrap().0;
                prop_assert_eq!(mine.split('/').count(), first.split('/').count());
                for second in templates {
                    let theirs = resolve(second, "", &other).unwrap().0;
                    if first == second {
                        let same = (!first.contains("owner") || owners.0 == owners.1)
                            && (!first.contains("name") || names.0 == names.1);
                        prop_assert_eq!(mine == theirs, same);
                    } else if first.contains("owner") != second.contains("owner") {
                        prop_assert_ne!(&mine, &theirs);
                    }
                }
            }
        }
    }
}
