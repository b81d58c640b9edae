//! A model's answer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AssistantTurn, Item, ItemView, ModelId, RawJson};

/// The stop reason of an answer, serialized in snake case. An unknown reason keeps the provider's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The answer is complete.
    EndTurn,
    /// The answer has tool calls that need results.
    ToolUse,
    /// The answer reached the limit of output tokens.
    MaxTokens,
    /// The answer reached a stop sequence.
    StopSequence,
    /// The provider paused a long turn. Send the answer back unchanged to resume.
    Pause,
    /// The model refused to answer.
    Refusal,
    /// The context window is full.
    ContextWindow,
    /// The provider's name of another reason; empty if there is none.
    #[serde(untagged)]
    Other(String),
}

impl StopReason {
    /// The name of the reason.
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::Pause => "pause",
            Self::Refusal => "refusal",
            Self::ContextWindow => "context_window",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for StopReason {
    fn from(name: &str) -> Self {
        let known = [
            Self::EndTurn,
            Self::ToolUse,
            Self::MaxTokens,
            Self::StopSequence,
            Self::Pause,
            Self::Refusal,
            Self::ContextWindow,
        ];
        known
            .into_iter()
            .find(|reason| reason.as_str() == name)
            .unwrap_or_else(|| Self::Other(name.to_owned()))
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The token usage of one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Uncached input tokens.
    pub input: u64,
    /// Output tokens, including reasoning.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
    /// The part of `cache_write` with a lifetime of one hour, which costs more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_1h: u64,
    /// The part of `output` that is reasoning, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// The uses of hosted tools, by the provider's name of the count, such as `web_search_requests`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted: BTreeMap<String, u64>,
    /// Whether a required count was missing or invalid. The counts are then too low, and the cost is unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub incomplete: bool,
    /// The provider's JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawJson>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl TokenUsage {
    /// All input tokens, cached or not.
    pub fn total_input(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// Input and output together.
    pub fn total(&self) -> u64 {
        self.total_input().saturating_add(self.output)
    }
}

/// A model's complete answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The provider's id of the answer.
    pub id: String,
    /// The provider's name of the model that answered; `script` for a scripted model.
    pub model: String,
    /// The requested model, whose wire the items use.
    pub origin: ModelId,
    /// The items in order.
    pub items: Vec<Item>,
    /// The stop reason.
    pub stop: StopReason,
    /// Details of the stop reason: the stop sequence, or the explanation of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_detail: Option<String>,
    /// The token usage.
    pub usage: TokenUsage,
    /// State for later requests to the same provider: see [`AssistantTurn::provider_state`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_state: Map<String, Value>,
    /// Notices for the user, such as settings that were not sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// The complete body of the provider. A stream is folded into the equivalent body.
    pub raw: RawJson,
}

impl Response {
    /// The text of the answer: all text items, concatenated.
    pub fn text(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item.view() {
            ItemView::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The tool calls that need a result from the caller, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| matches!(item.view(), ItemView::ToolCall { .. }))
    }

    /// The turn to append to the next request.
    pub fn to_turn(&self) -> AssistantTurn {
        AssistantTurn {
            origin: self.origin.clone(),
            items: self.items.clone(),
            provider_state: self.provider_state.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_stop_reasons_keep_their_name() {
        for word in ["end_turn", "pause", "context_window", "compaction", ""] {
            let reason = StopReason::from(word);
            let text = serde_json::to_string(&reason).unwrap();
            assert_eq!(text, format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<StopReason>(&text).unwrap(), reason);
        }
        assert_eq!(StopReason::from("tool_use"), StopReason::ToolUse);
        assert_eq!(StopReason::from("new"), StopReason::Other("new".into()));
    }

    #[test]
    fn totals_do_not_overflow() {
        let usage = TokenUsage { input: u64::MAX, output: 1, cache_read: 2, ..TokenUsage::default() };
        assert_eq!(usage.total(), u64::MAX);
    }
}
