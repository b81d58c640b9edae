//! The keys of description files, in TOML, YAML or JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use serde_saphyr::Spanned;

use crate::config::file::toml_entries;
use crate::failure::Failure;

/// One key of a description.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) value: Value,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// The keys of a description.
pub(crate) fn entries(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let wrong = |form: &str, error: &str| {
        Failure::usage(format!(
            "the description `{}` is invalid {form}: {}",
            path.display(),
            error.trim_end()
        ))
    };
    if is_toml {
        let entries = toml_entries(text).map_err(|error| wrong("TOML", &error))?;
        return Ok(entries.into_iter().map(|(name, value, line)| Entry { name, value, line }).collect());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: 100_000,
            max_aliases: 0,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    // YAML includes JSON.
    let read: BTreeMap<String, Spanned<Value>> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| wrong("YAML or JSON with names and values", &error.to_string()))?;
    let entry = |(name, found): (String, Spanned<Value>)| {
        let line = usize::try_from(found.referenced.line()).unwrap_or_default();
        Entry { name, value: found.value, line }
    };
    Ok(read.into_iter().map(entry).collect())
}

/// The kind of a description, if it parses and has one.
pub(crate) fn kind(path: &Path, text: &str) -> Option<String> {
    let entries = entries(path, text).ok()?;
    let kind = entries.into_iter().find(|entry| entry.name == "kind")?;
    kind.value.as_str().map(str::to_owned)
}
