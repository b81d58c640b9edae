//! The settings as typed values, filled once from the table of [`keys`](super::keys).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use toolpost_core::parse_duration;
use toolpost_llm::CodeExecutionMode;
use toolpost_sandbox::Level;
use toolpost_tools::CodePool;

use super::Origin;
use crate::failure::Failure;

/// The settings of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) model: Option<String>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) temperature: Option<f64>,
    pub(crate) effort: Option<String>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
    pub(crate) thinking: Option<String>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) prompt_caching: Option<String>,
    pub(crate) provider_options: Map<String, Value>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) betas: Vec<String>,
    pub(crate) tags: Map<String, Value>,
    pub(crate) models: ModelSettings,
    pub(crate) tools: Vec<String>,
    pub(crate) tool_choice: Option<String>,
    pub(crate) strict_tools: bool,
    pub(crate) approve: Vec<String>,
    pub(crate) ask: bool,
    pub(crate) level: Option<Level>,
    pub(crate) artifacts: Option<PathBuf>,
    pub(crate) no_save: bool,
    pub(crate) store: Option<PathBuf>,
    pub(crate) max_iterations: Option<u32>,
    pub(crate) max_tool_calls: Option<u32>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) max_cost: Option<f64>,
    pub(crate) parallel_tools: Option<usize>,
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) tool_output_chars: Option<usize>,
    pub(crate) repetition: Option<u32>,
    pub(crate) repairs: Option<u32>,
    pub(crate) no_wrap_up: bool,
    pub(crate) compaction: Option<String>,
    pub(crate) no_network: bool,
    pub(crate) code_place: Option<CodeExecutionMode>,
    /// The number of prewarmed Pythons; `None` for none.
    pub(crate) code_pool: Option<usize>,
    pub(crate) code_preload: Vec<String>,
    pub(crate) code_profile: Option<String>,
    pub(crate) http_allow_hosts: Vec<String>,
    pub(crate) egress_policy: Option<PathBuf>,
    pub(crate) packages: PackageSettings,
    pub(crate) search_searxng: Option<String>,
    pub(crate) search_brave: Option<String>,
    pub(crate) search_engine: Option<String>,
    pub(crate) format: Option<String>,
    pub(crate) color: Option<String>,
    pub(crate) log: Option<String>,
    pub(crate) log_format: Option<String>,
    pub(crate) log_file: Option<PathBuf>,
}

/// The settings `models.…`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelSettings {
    pub(crate) file: Option<PathBuf>,
    pub(crate) fallback: Vec<String>,
    pub(crate) retries: Option<u32>,
    pub(crate) retry_wait: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) first_byte_timeout: Option<Duration>,
    pub(crate) event_timeout: Option<Duration>,
    pub(crate) total_timeout: Option<Duration>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) requests_per_minute: Option<u32>,
    pub(crate) tokens_per_minute: Option<u64>,
    pub(crate) concurrency: Option<usize>,
}

/// The settings `packages.…`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackageSettings {
    pub(crate) index: Option<String>,
    pub(crate) registry: Option<String>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) find_links: Option<PathBuf>,
}

impl Settings {
    /// Fills the settings from values that were checked against the table.
    ///
    /// # Errors
    /// A number is too large.
    pub(super) fn from_values(values: &BTreeMap<&'static str, (Value, Origin)>) -> Result<Self, Failure> {
        let values = Values(values);
        Ok(Self {
            model: values.text("model"),
            system_prompt: values.text("system_prompt"),
            temperature: values.fraction("temperature"),
            effort: values.text("effort"),
            top_p: values.fraction("top_p"),
            top_k: values.number("top_k")?,
            seed: values.number("seed")?,
            stop: values.texts("stop"),
            thinking: values.text("thinking"),
            parallel_tool_calls: values.get("parallel_tool_calls").and_then(Value::as_bool),
            prompt_caching: values.text("prompt_caching"),
            provider_options: values.object("provider_options"),
            metadata: values.object("metadata"),
            betas: values.texts("betas"),
            tags: values.object("tags"),
            models: ModelSettings {
                file: values.path("models.file"),
                fallback: values.texts("models.fallback"),
                retries: values.number("models.retries")?,
                retry_wait: values.duration("models.retry_wait"),
                connect_timeout: values.duration("models.connect_timeout"),
                first_byte_timeout: values.duration("models.first_byte_timeout"),
                event_timeout: values.duration("models.event_timeout"),
                total_timeout: values.duration("models.total_timeout"),
                ca_file: values.path("models.ca_file"),
                requests_per_minute: values.number("models.requests_per_minute")?,
                tokens_per_minute: values.number("models.tokens_per_minute")?,
                concurrency: values.number("models.concurrency")?,
            },
            tools: values.texts("tools"),
            tool_choice: values.text("tool_choice"),
            strict_tools: values.flag("strict_tools"),
            approve: values.texts("approve"),
            ask: values.flag("ask"),
            level: values.choice("level"),
            artifacts: values.path("artifacts"),
            no_save: values.flag("no_save"),
            store: values.path("store"),
            max_iterations: values.number("max_iterations")?,
            max_tool_calls: values.number("max_tool_calls")?,
            max_tokens: values.number("max_tokens")?,
            max_output_tokens: values.number("max_output_tokens")?,
            max_time: values.duration("max_time"),
            max_cost: values.fraction("max_cost"),
            parallel_tools: values.number("parallel_tools")?,
            tool_timeout: values.duration("tool_timeout"),
            tool_output_chars: values.number("tool_output_chars")?,
            repetition: values.number("repetition")?,
            repairs: values.number("repairs")?,
            no_wrap_up: values.flag("no_wrap_up"),
            compaction: values.text("compaction"),
            no_network: values.flag("no_network"),
            code_place: values.choice("code.place"),
            code_pool: match values.get("code.pool") {
                Some(Value::Bool(false)) => None,
                Some(Value::Number(_)) => values.number("code.pool")?,
                _ => Some(CodePool::DEFAULT_CHILDREN),
            },
            code_preload: values.texts("code.preload"),
            code_profile: values.text("code.profile"),
            http_allow_hosts: values.texts("http.allow_hosts"),
            egress_policy: values.path("egress_policy"),
            packages: PackageSettings {
                index: values.text("packages.index"),
                registry: values.text("packages.registry"),
                certificate: values.path("packages.certificate"),
                find_links: values.path("packages.find_links"),
            },
            search_searxng: values.text("search.searxng"),
            search_brave: values.text("search.brave"),
            search_engine: values.text("search.engine"),
            format: values.text("format"),
            color: values.text("color"),
            log: values.text("log"),
            log_format: values.text("log_format"),
            log_file: values.path("log_file"),
        })
    }
}

/// Checked values by name.
struct Values<'a>(&'a BTreeMap<&'static str, (Value, Origin)>);

impl Values<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).map(|(value, _)| value)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name)?.as_str().map(str::to_owned)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let items = self.get(name).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn object(&self, name: &str) -> Map<String, Value> {
        self.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Bool(true))
    }

    fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some((value, origin)) = self.0.get(name) else { return Ok(None) };
        let Some(number) = value.as_u64() else { return Ok(None) };
        T::try_from(number)
            .map(Some)
            .map_err(|_| Failure::usage(format!("the setting `{name}` ({origin}): {number} is too large")))
    }

    fn fraction(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        parse_duration(self.get(name)?.as_str()?).ok()
    }

    fn choice<T: FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.as_str()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;

    #[test]
    fn every_setting_is_filled() {
        for key in KEYS {
            assert!(include_str!("settings.rs").contains(&format!("(\"{}\")", key.name)), "{}", key.name);
        }
    }
}
