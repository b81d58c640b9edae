//! Every setting, in one table: what it is called, what it takes, and what an untrusted project file may set.

use serde_json::Value;
use toolpost_core::parse_duration;

use crate::args::{CACHING, duration};

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// Texts: an array in a file, separated by commas elsewhere.
    Texts,
    /// A path; one of a file is relative to the folder of that file.
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
    /// true, false, or how many from 1 to 256.
    Spares,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// What an untrusted project file may set: how output looks, and what is tighter than the value in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// Every value: it changes how output looks.
    Acts,
    /// Only true, which forbids something.
    IfTrue,
    /// Only a value below the one in force. Without one there is no limit, and each value is below.
    IfSmaller,
    /// Only a sandbox level above the one in force; without one, the highest.
    IfStricter,
    /// Only entries of the list in force.
    IfFewer,
    /// Nothing: it could start, allow, hide, spend or send something.
    Waits,
}

/// A setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its name, dotted as in the file.
    pub(crate) name: &'static str,
    /// What it takes.
    pub(crate) kind: Kind,
    /// The variable of the environment that sets it.
    pub(crate) variable: &'static str,
    /// What an untrusted project file may set.
    pub(crate) untrusted: Untrusted,
    /// Its value when nobody sets it; empty if there is none.
    pub(crate) default: &'static str,
    /// What it is for.
    pub(crate) meaning: &'static str,
}

const fn key(
    name: &'static str,
    kind: Kind,
    variable: &'static str,
    untrusted: Untrusted,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, variable, untrusted, default, meaning }
}

const LEVELS: &[&str] = &["minimal", "standard", "strict", "maximum"];
const PLACES: &[&str] = &["auto", "hosted", "local"];
const COMPACTIONS: &[&str] = &["summary", "provider", "auto", "off"];
const EFFORTS: &[&str] = &["minimal", "low", "medium", "high", "xhigh", "max"];

use Kind::{
    Amount, Choice, Count, Flag, Number, Object, Path, Probability, Spares, Temperature, Text, Texts,
};
use Untrusted::{Acts, IfFewer, IfSmaller, IfStricter, IfTrue, Waits};

/// The settings. A row with the kind, a reader and a test each: see `tests/it/config.rs`.
pub(crate) const KEYS: &[Key] = &[
    key("model", Text, "TOOLPOST_MODEL", Waits, "", "the model of `run`"),
    key("system_prompt", Text, "TOOLPOST_SYSTEM_PROMPT", Waits, "", "instructions before the task of `run`"),
    key("temperature", Temperature, "TOOLPOST_TEMPERATURE", Waits, "", "how far the model's words may stray"),
    key("effort", Choice(EFFORTS), "TOOLPOST_EFFORT", Waits, "", "how hard the model thinks"),
    key("top_p", Probability, "TOOLPOST_TOP_P", Waits, "", "the share of probable tokens to sample from"),
    key("top_k", Count, "TOOLPOST_TOP_K", Waits, "", "the number of probable tokens to sample from"),
    key("seed", Number, "TOOLPOST_SEED", Waits, "", "the seed of sampling"),
    key("stop", Texts, "TOOLPOST_STOP", Waits, "", "texts that end an answer"),
    key(
        "thinking",
        Text,
        "TOOLPOST_THINKING",
        Waits,
        "",
        "`off`, `adaptive`, or the most tokens of thinking",
    ),
    key(
        "parallel_tool_calls",
        Flag,
        "TOOLPOST_PARALLEL_TOOL_CALLS",
        Waits,
        "",
        "whether the model may call several tools at once",
    ),
    key(
        "prompt_caching",
        Choice(CACHING),
        "TOOLPOST_PROMPT_CACHING",
        Waits,
        "",
        "what the provider keeps of a prompt",
    ),
    key(
        "provider_options",
        Object,
        "TOOLPOST_PROVIDER_OPTIONS",
        Waits,
        "",
        "fields of the provider's own request: a table, or JSON",
    ),
    key(
        "metadata",
        Object,
        "TOOLPOST_METADATA",
        Waits,
        "",
        "what the provider may know about a request, such as `user_id`: a table, or JSON",
    ),
    key(
        "betas",
        Texts,
        "TOOLPOST_BETAS",
        Waits,
        "",
        "features of the provider that are not yet general, for its beta header",
    ),
    key("tags", Object, "TOOLPOST_TAGS", Waits, "", "what every event of usage carries: a table, or JSON"),
    key(
        "models.file",
        Path,
        "TOOLPOST_MODELS_FILE",
        Waits,
        "",
        "a file that adds and changes models: YAML or JSON",
    ),
    key(
        "models.fallback",
        Texts,
        "TOOLPOST_MODELS_FALLBACK",
        Waits,
        "",
        "models for when the first cannot be had",
    ),
    key(
        "models.retries",
        Number,
        "TOOLPOST_MODELS_RETRIES",
        IfSmaller,
        "3",
        "how often a request is tried again",
    ),
    key(
        "models.retry_wait",
        Kind::Duration,
        "TOOLPOST_MODELS_RETRY_WAIT",
        Waits,
        "1s",
        "the first wait before that",
    ),
    key(
        "models.connect_timeout",
        Kind::Duration,
        "TOOLPOST_MODELS_CONNECT_TIMEOUT",
        IfSmaller,
        "10s",
        "how long making a connection to a provider takes",
    ),
    key(
        "models.first_byte_timeout",
        Kind::Duration,
        "TOOLPOST_MODELS_FIRST_BYTE_TIMEOUT",
        IfSmaller,
        "3m",
        "how long an answer takes to begin",
    ),
    key(
        "models.event_timeout",
        Kind::Duration,
        "TOOLPOST_MODELS_EVENT_TIMEOUT",
        IfSmaller,
        "1m",
        "how long an answer may be silent",
    ),
    key(
        "models.total_timeout",
        Kind::Duration,
        "TOOLPOST_MODELS_TOTAL_TIMEOUT",
        IfSmaller,
        "30m",
        "how long an answer takes in all",
    ),
    key(
        "models.ca_file",
        Path,
        "TOOLPOST_MODELS_CA_FILE",
        Waits,
        "",
        "a file with certificates that providers are trusted by, besides the system's",
    ),
    key(
        "models.requests_per_minute",
        Count,
        "TOOLPOST_MODELS_REQUESTS_PER_MINUTE",
        IfSmaller,
        "",
        "how often a provider is asked in a minute",
    ),
    key(
        "models.tokens_per_minute",
        Count,
        "TOOLPOST_MODELS_TOKENS_PER_MINUTE",
        IfSmaller,
        "",
        "how many tokens a provider is given and asked for in a minute",
    ),
    key(
        "models.concurrency",
        Count,
        "TOOLPOST_MODELS_CONCURRENCY",
        IfSmaller,
        "",
        "how many requests a provider gets at once",
    ),
    key("tools", Texts, "TOOLPOST_TOOLS", Waits, "", "the tools of `run`: targets or names"),
    key(
        "tool_choice",
        Text,
        "TOOLPOST_TOOL_CHOICE",
        Waits,
        "",
        "`auto`, `none`, or what a run must call first: `any`, or the name of a tool",
    ),
    key(
        "strict_tools",
        Flag,
        "TOOLPOST_STRICT_TOOLS",
        Waits,
        "false",
        "whether the provider keeps the arguments of tools to their schemas, where it can",
    ),
    key("allow", Texts, "TOOLPOST_ALLOW", IfFewer, "", "tools that need no approval"),
    key("ask", Flag, "TOOLPOST_ASK", IfTrue, "false", "ask before each call of every tool"),
    key("level", Choice(LEVELS), "TOOLPOST_LEVEL", IfStricter, "", "the sandbox level"),
    key("artifacts", Path, "TOOLPOST_ARTIFACTS", Waits, "", "where `run` puts files that were made"),
    key("no_save", Flag, "TOOLPOST_NO_SAVE", Waits, "false", "store no conversations, runs and calls"),
    key("store", Path, "TOOLPOST_STORE", Waits, "", "the file that keeps the state of tools"),
    key(
        "max_iterations",
        Count,
        "TOOLPOST_MAX_ITERATIONS",
        IfSmaller,
        "25",
        "how often a run asks its model",
    ),
    key("max_tool_calls", Count, "TOOLPOST_MAX_TOOL_CALLS", IfSmaller, "", "how many tools a run calls"),
    key("max_tokens", Count, "TOOLPOST_MAX_TOKENS", IfSmaller, "", "how many tokens a run reads and writes"),
    key("max_output_tokens", Count, "TOOLPOST_MAX_OUTPUT_TOKENS", Waits, "", "the longest answer of a model"),
    key("max_time", Kind::Duration, "TOOLPOST_MAX_TIME", IfSmaller, "", "how long a run takes"),
    key("max_cost", Amount, "TOOLPOST_MAX_COST", IfSmaller, "", "how many US dollars a run costs"),
    key(
        "parallel_tools",
        Count,
        "TOOLPOST_PARALLEL_TOOLS",
        IfSmaller,
        "8",
        "how many tools of a run work at once",
    ),
    key(
        "tool_timeout",
        Kind::Duration,
        "TOOLPOST_TOOL_TIMEOUT",
        Waits,
        "",
        "how long one call of a tool takes",
    ),
    key(
        "tool_output_chars",
        Count,
        "TOOLPOST_TOOL_OUTPUT_CHARS",
        Waits,
        "",
        "how many characters of a call's text the model reads",
    ),
    key(
        "repetition",
        Number,
        "TOOLPOST_REPETITION",
        Waits,
        "3",
        "how often a run repeats itself before its model is told; 0 for endlessly",
    ),
    key(
        "repairs",
        Number,
        "TOOLPOST_REPAIRS",
        IfSmaller,
        "2",
        "how often a model is told that its answer does not fit its schema",
    ),
    key(
        "no_wrap_up",
        Flag,
        "TOOLPOST_NO_WRAP_UP",
        IfTrue,
        "false",
        "a run ends at a limit without summing up",
    ),
    key(
        "compaction",
        Choice(COMPACTIONS),
        "TOOLPOST_COMPACTION",
        Waits,
        "summary",
        "who makes a conversation shorter that comes near to what its model takes",
    ),
    key(
        "no_compaction",
        Flag,
        "TOOLPOST_NO_COMPACTION",
        Waits,
        "false",
        "a conversation that outgrows its model ends, instead of being summed up",
    ),
    key(
        "no_network",
        Flag,
        "TOOLPOST_NO_NETWORK",
        IfTrue,
        "false",
        "no connection leaves this machine; any text but `0` and `false` means it",
    ),
    key(
        "code.place",
        Choice(PLACES),
        "TOOLPOST_CODE_PLACE",
        Waits,
        "auto",
        "where the code of `code_execution` runs: with the provider (hosted) or here (local)",
    ),
    key(
        "code.pool",
        Spares,
        "TOOLPOST_CODE_POOL",
        Waits,
        "true",
        "whether `run` keeps Pythons ready for code, and how many (true is 2)",
    ),
    key(
        "code.preload",
        Texts,
        "TOOLPOST_CODE_PRELOAD",
        Waits,
        "",
        "modules that these Pythons have loaded; `data` stands for those of the profile",
    ),
    key(
        "code.profile",
        Text,
        "TOOLPOST_CODE_PROFILE",
        Waits,
        "",
        "the packages of code in `run` and `call`, such as `data`: see `toolpost help image`",
    ),
    key(
        "http.allow_hosts",
        Texts,
        "TOOLPOST_HTTP_ALLOW_HOSTS",
        IfFewer,
        "",
        "hosts that `http_request` may ask, and logins may go to, although they are not public",
    ),
    key(
        "egress_policy",
        Path,
        "TOOLPOST_EGRESS_POLICY",
        Waits,
        "",
        "a file with the hosts that `run_code` and `exec` may reach: TOML or JSON",
    ),
    key(
        "packages.index",
        Text,
        "TOOLPOST_PACKAGES_INDEX",
        Waits,
        "",
        "where Python packages are from; counts more than PIP_INDEX_URL",
    ),
    key(
        "packages.registry",
        Text,
        "TOOLPOST_PACKAGES_REGISTRY",
        Waits,
        "",
        "where npm packages are from; counts more than npm_config_registry",
    ),
    key(
        "packages.certificate",
        Path,
        "TOOLPOST_PACKAGES_CERTIFICATE",
        Waits,
        "",
        "a file with the certificates of both; counts more than PIP_CERT",
    ),
    key(
        "packages.find_links",
        Path,
        "TOOLPOST_PACKAGES_FIND_LINKS",
        Waits,
        "",
        "a folder with Python packages; counts more than PIP_FIND_LINKS",
    ),
    key(
        "search.searxng",
        Text,
        "TOOLPOST_SEARCH_SEARXNG",
        Waits,
        "",
        "the address of a SearXNG server for `web_search`",
    ),
    key(
        "search.brave",
        Text,
        "TOOLPOST_SEARCH_BRAVE",
        Waits,
        "",
        "the address of Brave Search, instead of its own; its key is BRAVE_API_KEY",
    ),
    key(
        "search.engine",
        Choice(&["searxng", "brave"]),
        "TOOLPOST_SEARCH_ENGINE",
        Waits,
        "",
        "which engine is asked when a call names none",
    ),
    key(
        "format",
        Choice(&["text", "json", "jsonl"]),
        "TOOLPOST_FORMAT",
        Acts,
        "text",
        "how a result is printed",
    ),
    key(
        "color",
        Choice(&["auto", "always", "never"]),
        "TOOLPOST_COLOR",
        Acts,
        "auto",
        "whether output is coloured",
    ),
    key(
        "log",
        Text,
        "TOOLPOST_LOG",
        Waits,
        "",
        "what is logged, such as `debug` or `toolpost::call=debug,warn`",
    ),
    key(
        "log_format",
        Choice(&["text", "json"]),
        "TOOLPOST_LOG_FORMAT",
        Acts,
        "text",
        "how log lines are written",
    ),
    key("log_file", Path, "TOOLPOST_LOG_FILE", Waits, "", "where the log goes, instead of standard error"),
];

/// The setting of a name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// A value of a file, if it is of the kind.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn check(&self, value: Value) -> Result<Value, String> {
        let good = match (self.kind, &value) {
            (Kind::Text | Kind::Path, Value::String(_))
            | (Kind::Flag | Kind::Spares, Value::Bool(_))
            | (Kind::Object, Value::Object(_)) => true,
            (Kind::Texts, Value::Array(items)) => items.iter().all(Value::is_string),
            (Kind::Count, Value::Number(number)) => number.as_u64().is_some_and(|number| number >= 1),
            (Kind::Number, Value::Number(number)) => number.is_u64(),
            (Kind::Probability, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (0.0..=1.0).contains(&number))
            }
            (Kind::Amount, Value::Number(number)) => number.as_f64().is_some_and(|number| number > 0.0),
            (Kind::Spares, Value::Number(number)) => {
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

    /// A value of the command line or the environment.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        let value = match self.kind {
            Kind::Texts => text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect(),
            Kind::Flag
            | Kind::Count
            | Kind::Number
            | Kind::Spares
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
            Kind::Text => "a text".into(),
            Kind::Texts => "a list of texts".into(),
            Kind::Path => "a path".into(),
            Kind::Flag => "true or false".into(),
            Kind::Count => "a whole number from 1".into(),
            Kind::Spares => "true, false or a whole number from 1 to 256".into(),
            Kind::Number => "a whole number from 0".into(),
            Kind::Temperature => "a number from 0 to 2".into(),
            Kind::Probability => "a number from 0 to 1".into(),
            Kind::Amount => "a number above 0".into(),
            Kind::Object => "a table, or an object of JSON".into(),
            Kind::Duration => "a duration above 0, such as \"90s\" or \"5m\"".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// Whether an untrusted file may set this value, where another one may be in force.
    pub(crate) fn acts_untrusted(&self, value: &Value, current: Option<&Value>) -> bool {
        let amount = |value: &Value| match self.kind {
            Kind::Duration => Some(parse_duration(value.as_str()?).ok()?.as_secs_f64()),
            _ => value.as_f64(),
        };
        let rank = |value: &Value| LEVELS.iter().position(|level| value == level);
        match self.untrusted {
            Untrusted::Acts => true,
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
            Untrusted::Waits => false,
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
    fn every_kind_takes_what_it_says_and_nothing_else() {
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
    fn names_and_variables_are_distinct_and_fit_each_other() {
        for (index, key) in KEYS.iter().enumerate() {
            assert_eq!(key.variable, format!("TOOLPOST_{}", key.name.replace('.', "_").to_uppercase()));
            assert!(KEYS[..index].iter().all(|other| other.name != key.name));
            assert!(key.default.is_empty() || key.parse(key.default).is_ok(), "{}", key.name);
        }
    }
}
