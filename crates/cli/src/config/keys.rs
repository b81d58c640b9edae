//! The table of settings: name, type, variable, default, and rule for untrusted files.

use serde_json::Value;
use toolpost_core::parse_duration;

use crate::parse::{PROMPT_CACHING, duration};

/// The type of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// Texts: an array in a file, separated by commas elsewhere.
    Texts,
    /// A path, relative to the directory of the file that sets it.
    Path,
    /// true or false.
    Flag,
    /// A whole number from 1.
    Count,
    /// A whole number from 0.
    Number,
    /// A number from 0 to 2.
    Temperature,
    /// A number from 0 to 1.
    Probability,
    /// A number above 0.
    Amount,
    /// An object: a table in a file, JSON elsewhere.
    Object,
    /// A duration such as `90s`.
    Duration,
    /// true, false, or a number from 1 to 256.
    PoolSize,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// The values that an untrusted project file may set: output formats, and tighter limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// Every value, as with output formats.
    Always,
    /// Only true.
    IfTrue,
    /// Only a value at most the current one; any value without one.
    IfSmaller,
    /// Only a sandbox level at least the current one; without one, the highest.
    IfStricter,
    /// Only entries of the current list.
    IfFewer,
    /// No value before the file is trusted.
    Never,
}

/// A setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// The dotted name.
    pub(crate) name: &'static str,
    /// The type.
    pub(crate) kind: Kind,
    /// The rule for an untrusted project file.
    pub(crate) untrusted: Untrusted,
    /// The default; empty for none.
    pub(crate) default: &'static str,
    /// The meaning of the setting.
    pub(crate) meaning: &'static str,
}

const fn key(
    name: &'static str,
    kind: Kind,
    untrusted: Untrusted,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, untrusted, default, meaning }
}

const LEVELS: &[&str] = &["minimal", "standard", "strict", "maximum"];
const CODE_PLACES: &[&str] = &["auto", "hosted", "local"];
const COMPACTIONS: &[&str] = &["summary", "provider", "auto", "off"];
const EFFORTS: &[&str] = &["minimal", "low", "medium", "high", "xhigh", "max"];

use Kind::{
    Amount, Choice, Count, Flag, Number, Object, Path, PoolSize, Probability, Temperature, Text, Texts,
};
use Untrusted::{Always, IfFewer, IfSmaller, IfStricter, IfTrue, Never};

/// The settings. A row with the kind, a reader and a test each: see `tests/it/config.rs`.
pub(crate) const KEYS: &[Key] = &[
    key("model", Text, Never, "", "the model of `run`"),
    key("system_prompt", Text, Never, "", "instructions before the task of `run`"),
    key("temperature", Temperature, Never, "", "sampling temperature, 0 to 2"),
    key("effort", Choice(EFFORTS), Never, "", "reasoning effort"),
    key("top_p", Probability, Never, "", "top-p: probability mass to sample from"),
    key("top_k", Count, Never, "", "top-k: number of tokens to sample from"),
    key("seed", Number, Never, "", "sampling seed"),
    key("stop", Texts, Never, "", "stop sequences"),
    key("thinking", Text, Never, "", "thinking: `off`, `adaptive`, or a maximum of tokens"),
    key("parallel_tool_calls", Flag, Never, "", "whether one answer may have several tool calls"),
    key("prompt_caching", Choice(PROMPT_CACHING), Never, "", "the provider's prompt cache"),
    key("provider_options", Object, Never, "", "fields of the provider's request: a table or JSON"),
    key(
        "metadata",
        Object,
        Never,
        "",
        "request metadata for the provider, such as `user_id`: a table or JSON",
    ),
    key("betas", Texts, Never, "", "beta features of the provider, for its beta header"),
    key("tags", Object, Never, "", "metadata of usage events: a table or JSON"),
    key("models.file", Path, Never, "", "a YAML or JSON file that adds and changes models"),
    key("models.fallback", Texts, Never, "", "models for when the first is unavailable"),
    key("models.retries", Number, IfSmaller, "3", "maximum retries of a request"),
    key("models.retry_wait", Kind::Duration, Never, "1s", "the wait before the first retry"),
    key("models.connect_timeout", Kind::Duration, IfSmaller, "10s", "connection timeout of a provider"),
    key("models.first_byte_timeout", Kind::Duration, IfSmaller, "3m", "time limit of an answer's first byte"),
    key("models.event_timeout", Kind::Duration, IfSmaller, "1m", "maximum pause within an answer"),
    key("models.total_timeout", Kind::Duration, IfSmaller, "30m", "time limit of an answer"),
    key(
        "models.ca_file",
        Path,
        Never,
        "",
        "a file with root certificates for providers, besides the system's",
    ),
    key("models.requests_per_minute", Count, IfSmaller, "", "rate limit per provider, in requests"),
    key("models.tokens_per_minute", Count, IfSmaller, "", "rate limit per provider, in tokens"),
    key("models.concurrency", Count, IfSmaller, "", "maximum concurrent requests per provider"),
    key("tools", Texts, Never, "", "the tools of `run`: targets or names"),
    key("tool_choice", Text, Never, "", "`auto`, `none`, `any`, or the tool of the first call"),
    key("strict_tools", Flag, Never, "false", "strict tool schemas, where the provider has them"),
    key("approve", Texts, IfFewer, "", "tools that need no approval"),
    key("ask", Flag, IfTrue, "false", "approval prompts before each tool call"),
    key("level", Choice(LEVELS), IfStricter, "", "the sandbox level"),
    key("artifacts", Path, Never, "", "the artifact directory of `run`"),
    key("no_save", Flag, Never, "false", "store no conversations, runs and calls"),
    key("store", Path, Never, "", "the database of documents, runs and conversations"),
    key("max_iterations", Count, IfSmaller, "25", "maximum requests of a run to its model"),
    key("max_tool_calls", Count, IfSmaller, "", "maximum tool calls of a run"),
    key("max_tokens", Count, IfSmaller, "", "maximum tokens of a run, input and output"),
    key("max_output_tokens", Count, Never, "", "maximum tokens of an answer"),
    key("max_time", Kind::Duration, IfSmaller, "", "maximum duration of a run"),
    key("max_cost", Amount, IfSmaller, "", "maximum cost of a run in US dollars"),
    key("parallel_tools", Count, IfSmaller, "8", "maximum concurrent tool calls of a run"),
    key("tool_timeout", Kind::Duration, Never, "", "time limit of a tool call"),
    key("tool_output_chars", Count, Never, "", "maximum characters of a tool result for the model"),
    key(
        "repetition",
        Number,
        Never,
        "3",
        "repeated calls before a warning, twice that before the end; 0 for none",
    ),
    key("repairs", Number, IfSmaller, "2", "maximum repairs of an answer that does not fit its schema"),
    key("no_wrap_up", Flag, IfTrue, "false", "no summary when a run ends at a limit"),
    key(
        "compaction",
        Choice(COMPACTIONS),
        Never,
        "summary",
        "who compacts long conversations; `off` ends the run instead",
    ),
    key(
        "no_network",
        Flag,
        IfTrue,
        "false",
        "no connection leaves this machine; any value except `0` and `false`",
    ),
    key(
        "code.place",
        Choice(CODE_PLACES),
        Never,
        "auto",
        "where `code_execution` runs: at the provider (hosted) or here (local)",
    ),
    key("code.pool", PoolSize, Never, "true", "prewarmed Pythons of `run`: true (2), false, or a number"),
    key("code.preload", Texts, Never, "", "modules to preload in them; a profile stands for its modules"),
    key("code.profile", Text, Never, "", "the package profile of code in `run` and `call`, such as `data`"),
    key("http.allow_hosts", Texts, IfFewer, "", "private hosts that `http_request` and logins may reach"),
    key(
        "egress_policy",
        Path,
        Never,
        "",
        "a TOML or JSON file with the egress allowlist of `run_code` and `exec`",
    ),
    key("packages.index", Text, Never, "", "the Python package index; overrides PIP_INDEX_URL"),
    key("packages.registry", Text, Never, "", "the npm registry; overrides npm_config_registry"),
    key("packages.certificate", Path, Never, "", "a file with certificates of both; overrides PIP_CERT"),
    key("packages.find_links", Path, Never, "", "a directory with Python packages; overrides PIP_FIND_LINKS"),
    key("search.searxng", Text, Never, "", "the URL of a SearXNG server for `web_search`"),
    key("search.brave", Text, Never, "", "the URL of Brave Search; the key is BRAVE_API_KEY"),
    key("search.engine", Choice(&["searxng", "brave"]), Never, "", "the default engine of `web_search`"),
    key("format", Choice(&["text", "json", "jsonl"]), Always, "text", "output format"),
    key("color", Choice(&["auto", "always", "never"]), Always, "auto", "when to color output"),
    key("log", Text, Never, "", "log filter, such as `debug` or `toolpost::call=debug,warn`"),
    key("log_format", Choice(&["text", "json"]), Always, "text", "format of log lines"),
    key("log_file", Path, Never, "", "the log file; defaults to standard error"),
];

/// Former names of settings, with the present ones. Files and variables may have them, with a warning.
pub(crate) const FORMER: &[(&str, &str)] = &[("allow", "approve")];

/// The present name of a setting with a former name.
pub(crate) fn renamed(name: &str) -> Option<&'static str> {
    FORMER.iter().find(|(former, _)| *former == name).map(|(_, present)| *present)
}

/// The setting of a name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The environment variable of a setting.
pub(crate) fn variable(name: &str) -> String {
    format!("TOOLPOST_{}", name.replace('.', "_").to_uppercase())
}

impl Key {
    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        variable(self.name)
    }

    /// Checks the type of a value.
    ///
    /// # Errors
    /// The expected value.
    pub(crate) fn check(&self, value: Value) -> Result<Value, String> {
        let good = match (self.kind, &value) {
            (Kind::Text | Kind::Path, Value::String(_))
            | (Kind::Flag | Kind::PoolSize, Value::Bool(_))
            | (Kind::Object, Value::Object(_)) => true,
            (Kind::Texts, Value::Array(items)) => items.iter().all(Value::is_string),
            (Kind::Count, Value::Number(number)) => number.as_u64().is_some_and(|number| number >= 1),
            (Kind::Number, Value::Number(number)) => number.is_u64(),
            (Kind::Probability, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (0.0..=1.0).contains(&number))
            }
            (Kind::Amount, Value::Number(number)) => number.as_f64().is_some_and(|number| number > 0.0),
            (Kind::PoolSize, Value::Number(number)) => {
                number.as_u64().is_some_and(|number| (1..=256).contains(&number))
            }
            (Kind::Temperature, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (0.0..=2.0).contains(&number))
            }
            (Kind::Duration, Value::String(text)) => duration(text).is_ok(),
            (Kind::Choice(words), Value::String(text)) => words.contains(&text.as_str()),
            _ => false,
        };
        if good { Ok(value) } else { Err(format!("expected {}, found {value}", self.expected())) }
    }

    /// Parses a value of the command line or the environment.
    ///
    /// # Errors
    /// The expected value.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        let value = match self.kind {
            Kind::Texts => text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect(),
            Kind::Flag
            | Kind::Count
            | Kind::Number
            | Kind::PoolSize
            | Kind::Temperature
            | Kind::Probability
            | Kind::Amount
            | Kind::Object => serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into()),
            _ => text.into(),
        };
        self.check(value)
    }

    fn expected(&self) -> String {
        match self.kind {
            Kind::Text => "a string".into(),
            Kind::Texts => "a list of strings".into(),
            Kind::Path => "a path".into(),
            Kind::Flag => "true or false".into(),
            Kind::Count => "an integer ≥ 1".into(),
            Kind::PoolSize => "true, false or an integer from 1 to 256".into(),
            Kind::Number => "an integer ≥ 0".into(),
            Kind::Temperature => "a number from 0 to 2".into(),
            Kind::Probability => "a number from 0 to 1".into(),
            Kind::Amount => "a number above 0".into(),
            Kind::Object => "a table or a JSON object".into(),
            Kind::Duration => "a duration above 0, such as \"90s\" or \"5m\"".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// Whether an untrusted file may replace the current value with this one.
    pub(crate) fn allows_untrusted(&self, value: &Value, current: Option<&Value>) -> bool {
        let amount = |value: &Value| match self.kind {
            Kind::Duration => Some(parse_duration(value.as_str()?).ok()?.as_secs_f64()),
            _ => value.as_f64(),
        };
        let rank = |value: &Value| LEVELS.iter().position(|level| value == level);
        match self.untrusted {
            Untrusted::Always => true,
            Untrusted::IfTrue => *value == Value::Bool(true),
            Untrusted::IfSmaller => current.is_none_or(|current| amount(value) <= amount(current)),
            Untrusted::IfStricter => match current {
                Some(current) => rank(value) >= rank(current),
                None => rank(value) == Some(LEVELS.len() - 1),
            },
            Untrusted::IfFewer => {
                let known = current.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                value.as_array().is_some_and(|values| values.iter().all(|value| known.contains(value)))
            }
            Untrusted::Never => false,
        }
    }
}

#[cfg(test)]
mod untrusted;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_rejects_other_values() {
        let cases = [
            ("model", json!("x"), json!(1)),
            ("tools", json!(["a"]), json!([1])),
            ("ask", json!(true), json!("true")),
            ("max_tokens", json!(1), json!(0)),
            ("code.pool", json!(false), json!(0)),
            ("code.pool", json!(256), json!(257)),
            ("temperature", json!(2), json!(2.1)),
            ("top_p", json!(1), json!(1.1)),
            ("max_cost", json!(0.5), json!(0)),
            ("seed", json!(0), json!(-1)),
            ("provider_options", json!({"a": 1}), json!([1])),
            ("max_time", json!("90s"), json!("0s")),
            ("level", json!("strict"), json!("stric")),
            ("store", json!("a.db"), json!([])),
        ];
        for (name, good, bad) in cases {
            let key = find(name).unwrap();
            assert_eq!(key.check(good.clone()), Ok(good));
            assert!(key.check(bad).unwrap_err().starts_with("expected "), "{name}");
        }
        assert_eq!(find("tools").unwrap().parse("a, b,"), Ok(json!(["a", "b"])));
        assert_eq!(find("max_tokens").unwrap().parse("7"), Ok(json!(7)));
    }

    #[test]
    fn names_are_distinct_and_defaults_parse() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..index].iter().all(|other| other.name != key.name));
            assert!(key.default.is_empty() || key.parse(key.default).is_ok(), "{}", key.name);
        }
    }
}
