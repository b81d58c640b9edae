//! The model catalog: sizes, features, supported settings, prices.

mod adapt;
mod date;
mod file;
mod price;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use crate::{Effort, ModelId};

pub(crate) use self::adapt::{adapt, check, unsupported};
pub use self::date::Date;
pub use self::file::ModelCatalog;
pub(crate) use self::price::CODE_TOOLS;
pub use self::price::{Cost, PricePeriod, PriceTier, Rates, ServicePeriod, SessionPrice};

/// A feature of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Feature {
    /// Tool calls.
    Tools,
    /// Parallel tool calls.
    ParallelTools,
    /// A tool choice that forces a call.
    ForcedToolChoice,
    /// The provider's search over deferred tools.
    ToolSearch,
    /// Summaries of long conversations by the provider.
    Compaction,
    /// Removal of old tool results from long conversations by the provider.
    ToolResultClearing,
    /// Image input.
    Images,
    /// Document input, such as PDF files.
    Documents,
    /// Answers that match a JSON Schema.
    StructuredOutput,
    /// Thinking before the answer.
    Reasoning,
    /// A prompt cache with lower prices.
    PromptCaching,
    /// System messages within a conversation.
    MidConversationSystem,
    /// Hosted web search.
    WebSearch,
    /// Hosted fetching of web pages.
    WebFetch,
    /// Hosted file search.
    FileSearch,
    /// Hosted code execution.
    CodeExecution,
    /// Computer use: screen, mouse and keyboard.
    ComputerUse,
}

impl Feature {
    /// Every feature.
    pub const ALL: &[Self] = &[
        Self::Tools,
        Self::ParallelTools,
        Self::ForcedToolChoice,
        Self::ToolSearch,
        Self::Compaction,
        Self::ToolResultClearing,
        Self::Images,
        Self::Documents,
        Self::StructuredOutput,
        Self::Reasoning,
        Self::PromptCaching,
        Self::MidConversationSystem,
        Self::WebSearch,
        Self::WebFetch,
        Self::FileSearch,
        Self::CodeExecution,
        Self::ComputerUse,
    ];

    /// The name in files and options, such as `tool_search`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::ParallelTools => "parallel_tools",
            Self::ForcedToolChoice => "forced_tool_choice",
            Self::ToolSearch => "tool_search",
            Self::Compaction => "compaction",
            Self::ToolResultClearing => "tool_result_clearing",
            Self::Images => "images",
            Self::Documents => "documents",
            Self::StructuredOutput => "structured_output",
            Self::Reasoning => "reasoning",
            Self::PromptCaching => "prompt_caching",
            Self::MidConversationSystem => "mid_conversation_system",
            Self::WebSearch => "web_search",
            Self::WebFetch => "web_fetch",
            Self::FileSearch => "file_search",
            Self::CodeExecution => "code_execution",
            Self::ComputerUse => "computer_use",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A setting that a model may not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Setting {
    /// [`ModelSettings::temperature`](crate::ModelSettings::temperature)
    Temperature,
    /// [`ModelSettings::top_p`](crate::ModelSettings::top_p)
    TopP,
    /// [`ModelSettings::top_k`](crate::ModelSettings::top_k)
    TopK,
    /// [`ModelSettings::stop`](crate::ModelSettings::stop)
    Stop,
    /// [`ModelSettings::seed`](crate::ModelSettings::seed)
    Seed,
    /// [`Thinking::Off`](crate::Thinking::Off)
    ThinkingOff,
    /// [`Thinking::Adaptive`](crate::Thinking::Adaptive)
    AdaptiveThinking,
    /// [`Thinking::Budget`](crate::Thinking::Budget)
    ThinkingBudget,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::TopK => "top_k",
            Self::Stop => "stop",
            Self::Seed => "seed",
            Self::ThinkingOff => "thinking off",
            Self::AdaptiveThinking => "adaptive thinking",
            Self::ThinkingBudget => "a thinking budget",
        })
    }
}

/// The catalog's data about a model. Anything unknown is allowed and left to the provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The requested model.
    pub id: ModelId,
    /// The id in the catalog, without a date or `-latest`; `None` if the model is unknown.
    pub catalog_id: Option<ModelId>,
    /// Other names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The limit of input and output tokens together.
    pub context_window: Option<u64>,
    /// The limit of input tokens, if it is lower than the context window.
    pub max_input_tokens: Option<u64>,
    /// The limit of output tokens.
    pub max_output_tokens: Option<u64>,
    /// The retirement date.
    pub retires: Option<Date>,
    /// Supported (true) and unsupported (false) features. A missing feature is unknown.
    pub features: BTreeMap<Feature, bool>,
    /// The supported versions of hosted tools, oldest first, by the name of the [`HostedTool`](crate::HostedTool).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted_versions: BTreeMap<String, Vec<String>>,
    /// The supported effort levels; empty if there are none, `None` if unknown.
    pub efforts: Option<Vec<Effort>>,
    /// Unsupported settings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported_settings: Vec<Setting>,
    /// Settings that are supported only while thinking is off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported_while_thinking: Vec<Setting>,
    /// Whether the model thinks by default.
    pub thinks_by_default: Option<bool>,
    /// The prices by start date, oldest first.
    pub prices: Vec<PricePeriod>,
    /// The prices of other service tiers, such as `batch` or `priority`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, Vec<ServicePeriod>>,
    /// The provider's price of code execution.
    pub code_execution_price: Option<SessionPrice>,
    /// The provider's price per use of a hosted tool in US dollars, unless the model has its own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted_tool_prices: BTreeMap<String, f64>,
}

impl ModelInfo {
    /// Finds a model in the built-in catalog.
    pub fn find(id: &ModelId) -> Self {
        ModelCatalog::built_in().find(id)
    }

    /// A model without catalog data.
    pub fn unknown(id: &ModelId) -> Self {
        Self {
            id: id.clone(),
            catalog_id: None,
            aliases: Vec::new(),
            context_window: None,
            max_input_tokens: None,
            max_output_tokens: None,
            retires: None,
            features: BTreeMap::new(),
            hosted_versions: BTreeMap::new(),
            efforts: None,
            unsupported_settings: Vec::new(),
            unsupported_while_thinking: Vec::new(),
            thinks_by_default: None,
            prices: Vec::new(),
            services: BTreeMap::new(),
            code_execution_price: None,
            hosted_tool_prices: BTreeMap::new(),
        }
    }

    /// A free model without other catalog data, such as a scripted one.
    pub(crate) fn free(id: &ModelId) -> Self {
        let rates =
            Rates { input: 0.0, output: 0.0, cache_read: None, cache_write: None, cache_write_1h: None };
        let period = PricePeriod { from: None, rates, tiers: Vec::new(), hosted_tools: BTreeMap::new() };
        Self { prices: vec![period], ..Self::unknown(id) }
    }

    /// Whether the model supports a feature; `None` if unknown.
    pub fn has(&self, feature: Feature) -> Option<bool> {
        self.features.get(&feature).copied()
    }

    /// Whether the model is retired at this time.
    pub fn is_retired(&self, at: Timestamp) -> bool {
        self.retires.is_some_and(|day| day <= Date::from(at))
    }

    /// The notice of a retired model.
    pub(crate) fn retirement(&self, at: Timestamp) -> Option<String> {
        let day = self.retires.filter(|day| *day <= Date::from(at))?;
        Some(format!("`{}` was retired on {day}: the provider may reject the request", self.id))
    }
}

/// The built-in catalog, indexed on first use.
static BUILT_IN: LazyLock<Arc<ModelCatalog>> = LazyLock::new(|| Arc::new(ModelCatalog::read_built_in()));

/// A model's name without its date or version suffix: `-20250929`, `-2026-04-23`, `-0309`, `-001`, `-latest`,
/// `@20250929`. `None` if it has none.
fn without_date(name: &str) -> Option<Cow<'_, str>> {
    if let Some((start, _)) = name.split_once('@') {
        return Some(start.into());
    }
    if let Some(start) = name.strip_suffix("-latest") {
        return Some(start.into());
    }
    let (start, end) = name.rsplit_once('-')?;
    if end.is_empty() || !end.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match end.len() {
        8 => Some(start.into()),
        3 if end.starts_with("00") => Some(start.into()),
        4 if is_month_and_day(end) => Some(start.into()),
        2 => {
            let at = name.len().checked_sub(11)?;
            let date = name.get(at..)?.strip_prefix('-')?;
            date.parse::<Date>().is_ok().then(|| name[..at].into())
        }
        _ => None,
    }
}

fn is_month_and_day(digits: &str) -> bool {
    let number = |range: std::ops::Range<usize>| digits.get(range).and_then(|text| text.parse::<u8>().ok());
    number(0..2).is_some_and(|month| (1..=12).contains(&month))
        && number(2..4).is_some_and(|day| (1..=31).contains(&day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_suffix_is_removed() {
        for (name, without) in [
            ("claude-sonnet-4-5-20250929", Some("claude-sonnet-4-5")),
            ("gpt-5.5-2026-04-23", Some("gpt-5.5")),
            ("gemini-2.0-flash-001", Some("gemini-2.0-flash")),
            ("grok-4.20-0309", Some("grok-4.20")),
            ("gpt-5.2-chat-latest", Some("gpt-5.2-chat")),
            ("claude-haiku-5-5@20261001", Some("claude-haiku-5-5")),
            ("claude-opus-4-6", None),
            ("gpt-5.4-mini", None),
            ("gemini-2.5-computer-use-preview-10-2025", None),
            ("model-9999", None),
            ("2026-04-23", None),
            ("-", None),
            ("", None),
            ("ü-01-02", None),
        ] {
            assert_eq!(without_date(name).as_deref(), without, "{name}");
        }
    }

    #[test]
    fn feature_names_match_their_serialization() {
        for feature in Feature::ALL {
            assert_eq!(serde_json::to_value(feature).unwrap(), feature.as_str());
        }
    }
}
