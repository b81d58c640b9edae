//! Hints for Claude Code in the `_meta` of a tool.

use serde_json::{Map, Value};

/// Hints for Claude Code in the `_meta` of a tool. Other clients ignore them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Whether the tool is always in context, even with tool search (`anthropic/alwaysLoad`).
    pub always_load: bool,
    /// Extra search words (`anthropic/searchHint`).
    pub search_hint: Option<String>,
}

impl Hints {
    /// No hints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the tool always in context.
    #[must_use]
    pub fn always_load(mut self) -> Self {
        self.always_load = true;
        self
    }

    /// Sets extra search words.
    #[must_use]
    pub fn search_hint(mut self, words: impl Into<String>) -> Self {
        self.search_hint = Some(words.into());
        self
    }

    /// The `_meta` entries.
    pub(crate) fn to_meta(&self) -> Map<String, Value> {
        let mut meta = Map::new();
        if self.always_load {
            meta.insert("anthropic/alwaysLoad".to_owned(), true.into());
        }
        if let Some(words) = &self.search_hint {
            meta.insert("anthropic/searchHint".to_owned(), words.as_str().into());
        }
        meta
    }
}
