//! A model's answer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{AssistantTurn, Item, ItemView, ModelId, RawJson};

/// Why the model stopped. Written as the snake-case name; a reason that is not listed keeps the provider's word.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The answer is complete.
    EndTurn,
    /// The model waits for the results of tool calls.
    ToolUse,
    /// The limit of output tokens was reached.
    MaxTokens,
    /// One of the request's stop sequences came.
    StopSequence,
    /// The provider paused a long turn: send the answer back as it is to let it go on.
    Pause,
    /// The model refused to answer.
    Refusal,
    /// The context window is full.
    ContextWindow,
    /// Another reason, in the provider's word; empty if none was given.
    Other(String),
}

impl StopReason {
    /// The reason's name.
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

impl Serialize for StopReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for StopReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

/// The tokens of one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were neither read from nor written to a cache.
    pub input: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
    /// The part of `cache_write` that is kept for an hour and costs more, where the provider has the choice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_1h: u64,
    /// The part of `output` that was reasoning, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// How often tools that the provider runs were used, by the provider's word, such as `web_search_requests`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted: BTreeMap<String, u64>,
    /// Whether the provider left a count out that must be there, or wrote one that is not a whole number from 0: the
    /// counts here are then too low, and what the answer costs is not known.
    #[serde(default, skip_serializing_if = "is_false")]
    pub incomplete: bool,
    /// The provider's own record.
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

impl Usage {
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
    /// The model that answered, in the provider's words: `script` for a scripted one.
    pub model: String,
    /// The model that was asked: whose wire the items are of.
    pub origin: ModelId,
    /// What the model said, in its order.
    pub items: Vec<Item>,
    /// Why it stopped.
    pub stop: StopReason,
    /// More about the stop: the stop sequence that came, the explanation of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_detail: Option<String>,
    /// The tokens used.
    pub usage: Usage,
    /// What later requests of this conversation carry on from the answer, such as the container that hosted code ran
    /// in. It travels in the turn: see [`AssistantTurn::carry`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub carry: Map<String, Value>,
    /// What the caller's user should know, such as settings that were not sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// The whole answer as the provider's body has it; of a stream, as its body would have been.
    pub raw: RawJson,
}

impl Response {
    /// The text of the answer: every text item, joined.
    pub fn text(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item.view() {
            ItemView::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The tool calls that wait for a result from the caller, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| matches!(item.view(), ItemView::ToolCall { .. }))
    }

    /// The turn to append to the next request.
    pub fn to_turn(&self) -> AssistantTurn {
        AssistantTurn { origin: self.origin.clone(), items: self.items.clone(), carry: self.carry.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_reasons_keep_the_word_of_the_provider() {
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
        let usage = Usage { input: u64::MAX, output: 1, cache_read: 2, ..Usage::default() };
        assert_eq!(usage.total(), u64::MAX);
    }
}
