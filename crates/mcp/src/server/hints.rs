//! Hints for Claude Code in the `_meta` of a tool.

use serde_json::{Map, Value};

/// Hints for Claude Code in the `_meta` of a tool. Other clients ignore them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Whether the tool is always in context, even with tool search (`anthropic/alwaysLoad`).
    pub always_load: Option<bool>,
    /// Extra search words (`anthropic/searchHint`).
    pub search_hint: Option<String>,
    /// The longest untruncated result, in characters (`anthropic/maxResultSizeChars`).
    pub max_result_chars: Option<u64>,
    /// Whether the tool requires user interaction (`anthropic/requiresUserInteraction`).
    pub requires_user_interaction: Option<bool>,
}

impl Hints {
    /// No hints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the tool always in context.
    #[must_use]
    pub fn always_load(mut self) -> Self {
        self.always_load = Some(true);
        self
    }

    /// Sets extra search words.
    #[must_use]
    pub fn search_hint(mut self, words: impl Into<String>) -> Self {
        self.search_hint = Some(words.into());
        self
    }

    /// Sets the longest untruncated result, in characters.
    #[must_use]
    pub fn max_result_chars(mut self, chars: u64) -> Self {
        self.max_result_chars = Some(chars);
        self
    }

    /// Marks the tool as requiring user interaction.
    #[must_use]
    pub fn requires_user_interaction(mut self) -> Self {
        self.requires_user_interaction = Some(true);
        self
    }

    /// The `_meta` entries.
    pub(crate) fn to_meta(&self) -> Map<String, Value> {
        [
            ("anthropic/alwaysLoad", self.always_load.map(Value::from)),
            ("anthropic/searchHint", self.search_hint.clone().map(Value::from)),
            ("anthropic/maxResultSizeChars", self.max_result_chars.map(Value::from)),
            ("anthropic/requiresUserInteraction", self.requires_user_interaction.map(Value::from)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
    }
}
