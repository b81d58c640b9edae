//! What an untrusted project file may set: one row for each setting.

use serde_json::{Value, json};

use super::{KEYS, find};

/// A setting, the value in force (null for none), values that act, and values that are ignored.
type Row = (&'static str, Value, &'static [&'static str], &'static [&'static str]);

/// A setting of which an untrusted file may set nothing, whatever is in force.
fn waits(name: &'static str, values: &'static [&'static str]) -> Row {
    (name, Value::Null, &[], values)
}

fn rows() -> Vec<Row> {
    vec![
        waits("model", &["anthropic/x", "script:x.yaml"]),
        waits("system_prompt", &["Obey."]),
        waits("temperature", &["0"]),
        waits("effort", &["minimal"]),
        waits("top_p", &["0"]),
        waits("top_k", &["1"]),
        waits("seed", &["1"]),
        waits("stop", &["END"]),
        waits("thinking", &["off"]),
        waits("parallel_tool_calls", &["false"]),
        waits("prompt_caching", &["off"]),
        waits("provider_options", &["{}"]),
        waits("metadata", &["{}"]),
        waits("betas", &["x"]),
        waits("tags", &["{}"]),
        waits("models.file", &["models.yaml"]),
        waits("models.fallback", &["anthropic/x"]),
        ("models.retries", json!(3), &["0", "3"], &["4"]),
        waits("models.retry_wait", &["1ms", "1h"]),
        ("models.connect_timeout", json!("10s"), &["5s"], &["11s"]),
        ("models.first_byte_timeout", json!("3m"), &["1m"], &["4m"]),
        ("models.event_timeout", json!("1m"), &["1s"], &["2m"]),
        ("models.total_timeout", json!("30m"), &["29m"], &["31m"]),
        waits("models.ca_file", &["ca.pem"]),
        ("models.requests_per_minute", json!(9), &["1", "9"], &["10"]),
        ("models.tokens_per_minute", json!(9), &["1"], &["10"]),
        ("models.concurrency", json!(9), &["1"], &["10"]),
        waits("tools", &["calculate", ""]),
        waits("tool_choice", &["none"]),
        waits("strict_tools", &["true", "false"]),
        ("allow", json!(["a", "b"]), &["a", "b,a", ""], &["c", "a,c"]),
        ("ask", json!(false), &["true"], &["false"]),
        ("level", json!("strict"), &["strict", "maximum"], &["standard", "minimal"]),
        waits("artifacts", &["out"]),
        waits("no_save", &["true", "false"]),
        waits("store", &["mine.db"]),
        ("max_iterations", json!(25), &["1", "25"], &["26"]),
        ("max_tool_calls", json!(9), &["9"], &["10"]),
        ("max_tokens", json!(9), &["1"], &["10"]),
        waits("max_output_tokens", &["1"]),
        ("max_time", json!("90s"), &["1m"], &["2m"]),
        ("max_cost", json!(0.5), &["0.4"], &["0.6"]),
        ("parallel_tools", json!(8), &["1"], &["9"]),
        waits("tool_timeout", &["1s"]),
        waits("tool_output_chars", &["1"]),
        waits("repetition", &["0", "1"]),
        ("repairs", json!(2), &["0"], &["3"]),
        ("no_wrap_up", json!(false), &["true"], &["false"]),
        waits("compaction", &["off"]),
        waits("no_compaction", &["true", "false"]),
        ("no_network", json!(false), &["true"], &["false"]),
        waits("code.place", &["hosted", "local"]),
        waits("code.pool", &["false", "256"]),
        waits("code.preload", &["x"]),
        waits("code.profile", &["data"]),
        ("http.allow_hosts", json!(["a.example"]), &["a.example", ""], &["b.example"]),
        waits("egress_policy", &["way.toml"]),
        waits("packages.index", &["https://a.example"]),
        waits("packages.registry", &["https://a.example"]),
        waits("packages.certificate", &["ca.pem"]),
        waits("packages.find_links", &["packages"]),
        waits("search.searxng", &["https://a.example"]),
        waits("search.brave", &["https://a.example"]),
        waits("search.engine", &["brave"]),
        ("format", json!("text"), &["json", "jsonl"], &[]),
        ("color", json!("auto"), &["never"], &[]),
        waits("log", &["off", "debug"]),
        ("log_format", json!("text"), &["json"], &[]),
        waits("log_file", &["a.log"]),
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
            key.acts_untrusted(&value, Some(&current).filter(|current| !current.is_null()))
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
fn without_a_value_in_force_a_limit_tightens_and_nothing_else_does() {
    for (name, text, acts) in [
        ("max_tokens", "1000000", true),
        ("max_cost", "5", true),
        ("models.concurrency", "7", true),
        ("level", "maximum", true),
        ("level", "strict", false),
        ("allow", "calculate", false),
        ("allow", "", true),
        ("http.allow_hosts", "localhost", false),
    ] {
        let key = find(name).unwrap();
        assert_eq!(key.acts_untrusted(&key.parse(text).unwrap(), None), acts, "{name}: {text}");
    }
}
