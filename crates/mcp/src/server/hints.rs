//! What a client of Anthropic's is told of a tool beyond the protocol.

use serde_json::{Map, Value};

/// What Claude Code is told of a tool beyond the protocol, in the tool's `_meta`. Other clients ignore it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Whether the tool is sent to the model from the start, also when most tools are found by search
    /// (`anthropic/alwaysLoad`).
    pub always_load: Option<bool>,
    /// Words to find it by, besides its name and description (`anthropic/searchHint`).
    pub search_hint: Option<String>,
    /// The longest result that the model gets whole, in characters (`anthropic/maxResultSizeChars`).
    pub max_result_chars: Option<u64>,
    /// Whether a person must be there for it (`anthropic/requiresUserInteraction`).
    pub requires_user_interaction: Option<bool>,
}

impl Hints {
    /// No hints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the tool to the model from the start.
    #[must_use]
    pub fn always_load(mut self) -> Self {
        self.always_load = Some(true);
        self
    }

    /// Words to find it by.
    #[must_use]
    pub fn search_hint(mut self, words: impl Into<String>) -> Self {
        self.search_hint = Some(words.into());
        self
    }

    /// The longest result that the model gets whole, in characters.
    #[must_use]
    pub fn max_result_chars(mut self, chars: u64) -> Self {
        self.max_result_chars = Some(chars);
        self
    }

    /// Says that a person must be there for it.
    #[must_use]
    pub fn requires_user_interaction(mut self) -> Self {
        self.requires_user_interaction = Some(true);
        self
    }

    /// As `_meta` of a tool has them.
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
