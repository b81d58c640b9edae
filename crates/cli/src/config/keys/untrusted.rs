//! The values that an untrusted project file may set: one row per setting.

use serde_json::{Value, json};

use super::{KEYS, find};

/// A setting, its current value (null for none), allowed values, ignored values.
type Row = (&'static str, Value, &'static [&'static str], &'static [&'static str]);

/// A setting that an untrusted file never sets.
fn never(name: &'static str, values: &'static [&'static str]) -> Row {
    (name, Value::Null, &[], values)
}

fn rows() -> Vec<Row> {
    vec![
        never("model", &["anthropic/x", "script:x.yaml"]),
        never("system_prompt", &["Obey."]),
        never("temperature", &["0"]),
        never("effort", &["minimal"]),
        never("top_p", &["0"]),
        never("top_k", &["1"]),
        never("seed", &["1"]),
        never("stop", &["END"]),
        never("thinking", &["off"]),
        never("parallel_tool_calls", &["false"]),
        never("prompt_caching", &["off"]),
        never("provider_options", &["{}"]),
        never("metadata", &["{}"]),
        never("betas", &["x"]),
        never("tags", &["{}"]),
        never("models.file", &["models.yaml"]),
        never("models.fallback", &["anthropic/x"]),
        ("models.retries", json!(3), &["0", "3"], &["4"]),
        never("models.retry_wait", &["1ms", "1h"]),
        ("models.connect_timeout", json!("10s"), &["5s"], &["11s"]),
        ("models.first_byte_timeout", json!("3m"), &["1m"], &["4m"]),
        ("models.event_timeout", json!("1m"), &["1s"], &["2m"]),
        ("models.total_timeout", json!("30m"), &["29m"], &["31m"]),
        never("models.ca_file", &["ca.pem"]),
        ("models.requests_per_minute", json!(9), &["1", "9"], &["10"]),
        ("models.tokens_per_minute", json!(9), &["1"], &["10"]),
        ("models.concurrency", json!(9), &["1"], &["10"]),
        never("tools", &["calculate", ""]),
        never("tool_choice", &["none"]),
        never("strict_tools", &["true", "false"]),
        ("approve", json!(["a", "b"]), &["a", "b,a", ""], &["c", "a,c"]),
        ("ask", json!(false), &["true"], &["false"]),
        ("level", json!("strict"), &["strict", "maximum"], &["standard", "minimal"]),
        never("artifacts", &["out"]),
        never("no_save", &["true", "false"]),
        never("store", &["mine.db"]),
        ("max_iterations", json!(25), &["1", "25"], &["26"]),
        ("max_tool_calls", json!(9), &["9"], &["10"]),
        ("max_tokens", json!(9), &["1"], &["10"]),
        never("max_output_tokens", &["1"]),
        ("max_time", json!("90s"), &["1m"], &["2m"]),
        ("max_cost", json!(0.5), &["0.4"], &["0.6"]),
        ("parallel_tools", json!(8), &["1"], &["9"]),
        never("tool_timeout", &["1s"]),
        never("tool_output_chars", &["1"]),
        never("repetition", &["0", "1"]),
        ("repairs", json!(2), &["0"], &["3"]),
        ("no_wrap_up", json!(false), &["true"], &["false"]),
        never("compaction", &["off"]),
        ("no_network", json!(false), &["true"], &["false"]),
        never("code.place", &["hosted", "local"]),
        never("code.pool", &["false", "256"]),
        never("code.preload", &["x"]),
        never("code.profile", &["data"]),
        ("http.allow_hosts", json!(["a.example"]), &["a.example", ""], &["b.example"]),
        never("egress_policy", &["way.toml"]),
        never("packages.index", &["https://a.example"]),
        never("packages.registry", &["https://a.example"]),
        never("packages.certificate", &["ca.pem"]),
        never("packages.find_links", &["packages"]),
        never("search.searxng", &["https://a.example"]),
        never("search.brave", &["https://a.example"]),
        never("search.engine", &["brave"]),
        ("format", json!("text"), &["json", "jsonl"], &[]),
        ("color", json!("auto"), &["never"], &[]),
        never("log", &["off", "debug"]),
        ("log_format", json!("text"), &["json"], &[]),
        never("log_file", &["a.log"]),
    ]
}

#[test]
fn an_untrusted_file_only_tightens() {
    let rows = rows();
    for key in KEYS {
        assert_eq!(rows.iter().filter(|row| row.0 == key.name).count(), 1, "one row for `{}`", key.name);
    }
    assert_eq!(rows.len(), KEYS.len());
    for (name, current, acting, ignored) in rows {
        let key = find(name).unwrap();
        let acts = |text: &str| {
            let value = key.parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            key.allows_untrusted(&value, Some(&current).filter(|current| !current.is_null()))
        };
        for value in acting {
            assert!(acts(value), "{name}: {value} acts");
        }
        for value in ignored {
            assert!(!acts(value), "{name}: {value} is ignored");
        }
    }
}

#[test]
fn without_a_current_value_only_limits_tighten() {
    for (name, text, acts) in [
        ("max_tokens", "1000000", true),
        ("max_cost", "5", true),
        ("models.concurrency", "7", true),
        ("level", "maximum", true),
        ("level", "strict", false),
        ("approve", "calculate", false),
        ("approve", "", true),
        ("http.allow_hosts", "localhost", false),
    ] {
        let key = find(name).unwrap();
        assert_eq!(key.allows_untrusted(&key.parse(text).unwrap(), None), acts, "{name}: {text}");
    }
}
