//! What is known of models: sizes, features, settings that they refuse, prices.

mod date;
mod file;
mod fit;
mod price;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use crate::{Effort, ModelId};

pub use self::date::Date;
pub use self::file::Catalog;
pub(crate) use self::fit::{check, fit, unsupported};
pub use self::price::{Cost, PricePeriod, Rates, ServicePeriod, SessionPrice, Tier};

/// Something that a model can do or cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Feature {
    /// Calls the caller's tools.
    Tools,
    /// Calls several tools at once.
    ParallelTools,
    /// Can be made to call a tool.
    ForcedToolChoice,
    /// Finds tools that are not shown to it, by the provider's own search.
    ToolSearch,
    /// The provider sums up what was said when a conversation gets long.
    Compaction,
    /// The provider leaves old results of tools out when a conversation gets long.
    ToolResultClearing,
    /// Sees pictures.
    Images,
    /// Reads documents such as PDF files.
    Documents,
    /// Keeps its answer to a JSON Schema.
    StructuredOutput,
    /// Thinks before it answers.
    Reasoning,
    /// Reads the beginning of a prompt from a cache, for less.
    PromptCaching,
    /// Takes instructions in the midst of a conversation.
    MidConversationSystem,
    /// The provider searches the web for it.
    WebSearch,
    /// The provider reads pages for it.
    WebFetch,
    /// The provider searches files for it.
    FileSearch,
    /// The provider runs code for it.
    CodeExecution,
    /// Uses a screen, a mouse and a keyboard.
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

    /// The feature's name in files and options, such as `tool_search`.
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

/// A setting that a model may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Setting {
    /// [`Settings::temperature`](crate::Settings::temperature)
    Temperature,
    /// [`Settings::top_p`](crate::Settings::top_p)
    TopP,
    /// [`Settings::top_k`](crate::Settings::top_k)
    TopK,
    /// [`Settings::stop`](crate::Settings::stop)
    Stop,
    /// [`Settings::seed`](crate::Settings::seed)
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

/// What is known of a model. What is not known is allowed: the provider then has the word.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The model, as it was asked for.
    pub id: ModelId,
    /// The name under which the catalog has it, without a date or `-latest`; `None` if it does not have it.
    pub known_as: Option<ModelId>,
    /// Other names of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The most tokens of input and output together.
    pub context_window: Option<u64>,
    /// The most tokens of input, where that is less.
    pub max_input_tokens: Option<u64>,
    /// The most tokens of one answer.
    pub max_output_tokens: Option<u64>,
    /// The day on which the provider ends or has ended it.
    pub retires: Option<Date>,
    /// What it can do (true) and cannot (false). What is missing is not known.
    pub features: BTreeMap<Feature, bool>,
    /// The versions of hosted tools that it takes, oldest first, by the name of [`HostedTool`](crate::HostedTool).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosted_versions: BTreeMap<String, Vec<String>>,
    /// The levels of effort that it takes; empty if none, `None` if that is not known.
    pub efforts: Option<Vec<Effort>>,
    /// Settings that it refuses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_taken: Vec<Setting>,
    /// Settings that it refuses unless its thinking is off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_taken_while_thinking: Vec<Setting>,
    /// Whether it thinks when no setting says so.
    pub thinks_by_default: Option<bool>,
    /// What it costs, by the day from which that holds, oldest first.
    pub prices: Vec<PricePeriod>,
    /// What it costs at another service level, such as `batch` or `priority`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, Vec<ServicePeriod>>,
    /// What the provider takes for running code.
    pub code_execution_price: Option<SessionPrice>,
    /// What one use of a hosted tool costs in US dollars at this provider, where the model's prices do not say.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub uses: BTreeMap<String, f64>,
}

impl ModelInfo {
    /// What the built-in catalog knows of a model.
    pub fn find(id: &ModelId) -> Self {
        Catalog::built_in().find(id)
    }

    /// A model of which nothing is known.
    pub fn unknown(id: &ModelId) -> Self {
        Self {
            id: id.clone(),
            known_as: None,
            aliases: Vec::new(),
            context_window: None,
            max_input_tokens: None,
            max_output_tokens: None,
            retires: None,
            features: BTreeMap::new(),
            hosted_versions: BTreeMap::new(),
            efforts: None,
            not_taken: Vec::new(),
            not_taken_while_thinking: Vec::new(),
            thinks_by_default: None,
            prices: Vec::new(),
            services: BTreeMap::new(),
            code_execution_price: None,
            uses: BTreeMap::new(),
        }
    }

    /// A model that costs nothing, such as a scripted one, and of which nothing else is known.
    pub(crate) fn free(id: &ModelId) -> Self {
        let rates =
            Rates { input: 0.0, output: 0.0, cache_read: None, cache_write: None, cache_write_1h: None };
        let period = PricePeriod { from: None, rates, above: Vec::new(), uses: BTreeMap::new() };
        Self { prices: vec![period], ..Self::unknown(id) }
    }

    /// Whether the model can do something; `None` if that is not known.
    pub fn has(&self, feature: Feature) -> Option<bool> {
        self.features.get(&feature).copied()
    }

    /// The newest version of a hosted tool that it takes, such as of `code_execution`; `None` if none is known.
    pub fn newest_version(&self, tool: &str) -> Option<&str> {
        self.hosted_versions.get(tool)?.last().map(String::as_str)
    }

    /// Whether the provider has ended the model by this time.
    pub fn is_retired(&self, at: Timestamp) -> bool {
        self.retires.is_some_and(|day| day <= Date::of(at))
    }

    /// A notice that the provider has ended the model, if it has.
    pub(crate) fn retirement(&self, at: Timestamp) -> Option<String> {
        let day = self.retires.filter(|day| *day <= Date::of(at))?;
        Some(format!("`{}` was retired on {day}: the provider may reject the request", self.id))
    }
}

/// The built-in catalog. It is read when the first model is looked for, in well under a millisecond.
static BUILT_IN: LazyLock<Arc<Catalog>> = LazyLock::new(|| Arc::new(Catalog::read_built_in()));

/// A model's name without what says no more than when it was made: `-20250929`, `-2026-04-23`, `-0309`, `-001`,
/// `-latest`, `@20250929`. `None` if there is nothing of the kind.
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
    fn a_name_is_found_without_its_date() {
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
    fn features_have_one_name_everywhere() {
        for feature in Feature::ALL {
            assert_eq!(serde_json::to_value(feature).unwrap(), feature.as_str());
        }
    }
}
