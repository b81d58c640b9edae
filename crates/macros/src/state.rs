//! `#[state(…)]` on a parameter of a tool: which document it is a part of.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Error, LitStr, Result, Type};

use crate::attributes::{metas, text};

/// What `#[state(…)]` says of a parameter.
pub(crate) struct State {
    id: LitStr,
    path: Option<LitStr>,
    existing: bool,
    /// Whether it is changed.
    pub(crate) writes: bool,
    /// Which of the tool's state parameters it is, from 0.
    pub(crate) index: usize,
}

/// A name in braces, and where it is written.
pub(crate) struct Placeholder<'a> {
    pub(crate) name: String,
    pub(crate) template: &'a LitStr,
}

impl State {
    /// Reads the attribute, and the type behind the reference.
    pub(crate) fn take(attribute: &Attribute, kind: &Type) -> Result<(Self, Type)> {
        let Type::Reference(reference) = kind else {
            let message =
                "state is borrowed from its document: write `&mut T` to change it, or `&T` to read it";
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
                    let message = "unknown option: expected one of id, path, existing";
                    return Err(Error::new_spanned(meta.path(), message));
                }
            }
        }
        let id = id.ok_or_else(|| {
            let message = "state needs the name of a document, such as `id = \"counters/{owner}\"`";
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

    /// The expression of what the spec says of it.
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

/// The name in a part that stands in braces.
fn name(part: &str) -> Option<&str> {
    part.strip_prefix('{')?.strip_suffix('}')
}

fn check_braces(template: &LitStr, part: &str) -> Result<()> {
    let inner = name(part).unwrap_or(part);
    if inner.contains(['{', '}']) || name(part) == Some("") {
        let message = format!("`{part}`: braces stand around a whole part between `/`, such as `{{owner}}`");
        return Err(Error::new(template.span(), message));
    }
    Ok(())
}

fn check_id(template: &LitStr) -> Result<()> {
    for part in template.value().split('/') {
        check_braces(template, part)?;
        let message = if part.is_empty() {
            "a part between `/` is empty: the name of a document is like `counters/{owner}`"
        } else if part.starts_with(['@', '+']) {
            "`@` and `+` begin the parts of owners and scopes: write `{owner}` or `{scope}`"
        } else if part.contains(char::is_control) {
            "the name of a document has no control characters"
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
        return wrong("a path is a JSON pointer: it begins with `/`, such as `/by_name/{name}`");
    }
    if written.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return wrong("in a JSON pointer `~` is written `~0`, and `/` in a name `~1`");
    }
    for part in written.split('/').skip(1) {
        check_braces(template, part)?;
        if matches!(name(part), Some("owner" | "scope")) {
            return wrong(
                "`{owner}` and `{scope}` stand in the `id`: each owner and each scope has its own document",
            );
        }
    }
    Ok(())
}
