//! `#[state(…)]` on a parameter: the document that the parameter is a part of.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Error, LitStr, Result, Type};

use crate::attributes::{metas, text};

/// The parsed `#[state(…)]`.
pub(crate) struct State {
    id: LitStr,
    path: Option<LitStr>,
    existing: bool,
    /// Whether the tool may change the part.
    pub(crate) writes: bool,
    /// The index among the tool's state parameters.
    pub(crate) index: usize,
}

/// A name in braces and its template.
pub(crate) struct Placeholder<'a> {
    pub(crate) name: String,
    pub(crate) template: &'a LitStr,
}

impl State {
    /// Parses the attribute, and returns the type behind the reference.
    pub(crate) fn take(attribute: &Attribute, kind: &Type) -> Result<(Self, Type)> {
        let Type::Reference(reference) = kind else {
            let message = "a state parameter is a reference: write `&mut T` to change it, or `&T` to read it";
            return Err(Error::new_spanned(kind, message));
        };
        let (mut id, mut path, mut existing) = (None, None, false);
        for meta in metas(attribute.meta.require_list()?.tokens.clone())? {
            match meta.path().get_ident().map(ToString::to_string).unwrap_or_default().as_str() {
                "id" => id = Some(text(&meta)?),
                "path" => path = Some(text(&meta)?),
                "existing" => {
                    meta.require_path_only()?;
                    existing = true;
                }
                _ => {
                    let message = "unknown key: expected `id`, `path` or `existing`";
                    return Err(Error::new_spanned(meta.path(), message));
                }
            }
        }
        let id = id.ok_or_else(|| {
            let message = "a state parameter needs a document id: write `id = \"counters/{owner}\"`";
            Error::new_spanned(attribute, message)
        })?;
        check_id(&id)?;
        path.iter().try_for_each(check_path)?;
        let writes = reference.mutability.is_some();
        Ok((Self { id, path, existing, writes, index: 0 }, (*reference.elem).clone()))
    }

    /// The names in braces.
    pub(crate) fn placeholders(&self) -> Vec<Placeholder<'_>> {
        let mut names = Vec::new();
        for template in std::iter::once(&self.id).chain(&self.path) {
            let written = template.value();
            names.extend(
                written.split('/').filter_map(name).map(|name| Placeholder { name: name.into(), template }),
            );
        }
        names
    }

    /// The expression of its `StateSpec`.
    pub(crate) fn spec(&self) -> TokenStream {
        let Self { id, writes, existing, .. } = self;
        let path = self.path.as_ref().map_or_else(String::new, LitStr::value);
        quote!(::toolpost::__private::StateSpec {
            id: #id.into(),
            path: #path.into(),
            writes: #writes,
            existing: #existing,
        })
    }
}

/// The name of a segment in braces.
fn name(part: &str) -> Option<&str> {
    part.strip_prefix('{')?.strip_suffix('}')
}

fn check_braces(template: &LitStr, part: &str) -> Result<()> {
    let inner = name(part).unwrap_or(part);
    if inner.contains(['{', '}']) || name(part) == Some("") {
        let message = format!("`{part}` is not a segment: put braces around all of it, such as `{{owner}}`");
        return Err(Error::new(template.span(), message));
    }
    Ok(())
}

fn check_id(template: &LitStr) -> Result<()> {
    for part in template.value().split('/') {
        check_braces(template, part)?;
        let message = if part.is_empty() {
            "a segment is empty: write a document id such as `counters/{owner}`"
        } else if part.starts_with(['@', '+']) {
            "`@` and `+` are reserved for owners and scopes: write `{owner}` or `{scope}`"
        } else if part.contains(char::is_control) {
            "a document id has a control character: remove it"
        } else {
            continue;
        };
        return Err(Error::new(template.span(), message));
    }
    Ok(())
}

fn check_path(template: &LitStr) -> Result<()> {
    let written = template.value();
    let wrong = |message: &str| Err(Error::new(template.span(), message));
    if !written.is_empty() && !written.starts_with('/') {
        return wrong("a path is a JSON pointer: begin it with `/`, such as `/by_name/{name}`");
    }
    if written.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return wrong("invalid escape in a JSON pointer: write `~` as `~0`, and `/` in a name as `~1`");
    }
    for part in written.split('/').skip(1) {
        check_braces(template, part)?;
        if matches!(name(part), Some("owner" | "scope")) {
            return wrong("`{owner}` and `{scope}` select a document: move them to `id`");
        }
    }
    Ok(())
}
