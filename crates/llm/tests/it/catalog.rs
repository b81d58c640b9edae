//! The catalog: data, prices and rejected features.

use serde_json::json;
use toolpost_core::Timestamp;
use toolpost_llm::{Effort, ErrorKind, Feature, ModelCatalog, ModelId, ModelInfo, Setting, TokenUsage};

fn id(text: &str) -> ModelId {
    let (provider, name) = text.split_once('/').unwrap();
    ModelId::new(provider, name)
}

fn info(text: &str) -> ModelInfo {
    ModelInfo::find(&id(text))
}

/// Midday of a day, such as `2026-11-21`.
fn at(day: &str) -> Timestamp {
    serde_json::from_value(json!(format!("{day}T12:00:00.000000Z"))).unwrap()
}

fn million_in_and_out() -> TokenUsage {
    TokenUsage { input: 1_000_000, output: 1_000_000, ..TokenUsage::default() }
}

fn usd(model: &str, usage: &TokenUsage, day: &str, service: Option<&str>) -> Option<f64> {
    Some((info(model).cost(usage, at(day), service)?.usd * 1e9).round() / 1e9)
}

/// The prices of the providers' pages.
#[test]
fn date_length_and_service_tier_set_the_price() {
    let both = million_in_and_out();
    let short = TokenUsage { input: 50_000, output: 1_000_000, ..TokenUsage::default() };
    let cached = TokenUsage { cache_read: 1_000_000, ..TokenUsage::default() };
    let five_minutes = TokenUsage { cache_write: 1_000_000, ..TokenUsage::default() };
    let hour = TokenUsage { cache_write: 1_000_000, cache_write_1h: 1_000_000, ..TokenUsage::default() };
    for (model, usage, day, service, expected) in [
        ("anthropic/claude-fable-5-2", &both, "2026-11-22", None, Some(48.0)),
        ("anthropic/claude-opus-5-5", &both, "2026-11-22", None, Some(24.0)),
        ("anthropic/claude-opus-5-5", &both, "2026-11-22", Some("standard"), Some(24.0)),
        ("anthropic/claude-opus-5-5", &both, "2026-11-22", Some("batch"), Some(12.0)),
        ("anthropic/claude-opus-5-5", &both, "2026-11-22", Some("fast"), Some(48.0)),
        ("anthropic/claude-opus-5-5", &both, "2026-11-22", Some("reserved"), None),
        ("anthropic/claude-opus-5-5", &cached, "2026-11-22", None, Some(0.2)),
        ("anthropic/claude-opus-5-5", &five_minutes, "2026-11-22", None, Some(5.0)),
        ("anthropic/claude-opus-5-5", &hour, "2026-11-22", None, Some(8.0)),
        ("anthropic/claude-sonnet-5-5", &both, "2026-11-22", None, Some(12.0)),
        ("anthropic/claude-sonnet-5-5-20260922", &both, "2026-11-22", None, Some(12.0)),
        ("anthropic/claude-haiku-5-5", &short, "2026-11-22", None, Some(0.505)),
        ("anthropic/claude-haiku-5-5", &both, "2026-11-22", None, Some(3.0)),
        ("anthropic/claude-haiku-4-5", &both, "2026-11-22", None, Some(6.0)),
        ("anthropic/claude-sonnet-4-6", &both, "2026-01-01", None, Some(28.5)),
        ("anthropic/claude-sonnet-4-6", &both, "2026-03-13", None, Some(18.0)),
        ("openai/gpt-6-astra", &short, "2026-11-22", None, Some(50.5)),
        ("openai/gpt-6.1-sol", &short, "2026-11-22", None, Some(10.1)),
        ("openai/gpt-5.6-sol", &short, "2026-07-01", None, Some(30.25)),
        ("openai/gpt-5.6-sol", &short, "2026-11-22", None, Some(20.2)),
        ("openai/gpt-5.6-sol", &short, "2026-11-22", Some("flex"), Some(10.1)),
        ("gemini/gemini-4-argon", &both, "2026-11-30", None, Some(12.0)),
        ("gemini/gemini-4-argon", &both, "2026-12-01", None, Some(24.0)),
        ("gemini/gemini-3.8-flash", &both, "2026-12-31", None, Some(4.5)),
        ("gemini/gemini-3.8-flash", &both, "2027-01-01", None, Some(9.0)),
        ("xai/grok-4.7", &short, "2026-11-22", None, Some(6.1)),
        ("xai/grok-4.7", &both, "2026-11-22", None, Some(16.0)),
        ("xai/grok-4.3", &short, "2026-11-22", None, Some(2.5625)),
        // An unknown price is not zero.
        ("openai/gpt-6.2-astra", &both, "2026-11-22", None, None),
        ("ollama/llama-x", &both, "2026-11-22", None, None),
    ] {
        assert_eq!(usd(model, usage, day, service), expected, "{model} {day} {service:?}");
    }
}

#[test]
fn hosted_tools_have_a_cost_or_are_unpriced() {
    let mut usage = TokenUsage { input: 1_000, ..TokenUsage::default() };
    usage.hosted = [("web_search_requests".into(), 3), ("web_fetch_requests".into(), 2)].into();
    usage.hosted.insert("moon_walks".into(), 1);
    let cost = info("anthropic/claude-opus-5-5").cost(&usage, at("2026-11-22"), None).unwrap();
    assert!((cost.usd - 0.034).abs() < 1e-12, "{cost:?}");
    assert_eq!(
        cost.hosted,
        [("web_fetch_requests".into(), 0.0), ("web_search_requests".into(), 0.03)].into()
    );
    assert_eq!(cost.unpriced, ["moon_walks"]);
    let mut sum = cost.clone();
    sum.add(&cost);
    assert!((sum.usd - 0.068).abs() < 1e-12 && sum.unpriced.len() == 1, "{sum:?}");
}

#[test]
fn code_execution_is_billed_by_time_with_a_minimum() {
    let price = info("anthropic/claude-opus-5-5").code_execution_price.unwrap();
    let cost = |minutes: u64| price.cost(std::time::Duration::from_mins(minutes));
    assert!((cost(0) - 0.05 * 5.0 / 60.0).abs() < 1e-12 && (cost(120) - 0.1).abs() < 1e-12);
    assert!(price.files_start_billing && price.free_hours_per_month > 1_000.0);
    assert!(price.free_with.iter().any(|version| version == "web_search_20260209"));
}

#[test]
fn catalog_data_matches_the_providers() {
    let opus = info("anthropic/claude-opus-5-5-latest");
    assert_eq!(opus.id.name, "claude-opus-5-5-latest");
    assert_eq!(opus.catalog_id, Some(id("anthropic/claude-opus-5-5")));
    assert_eq!((opus.context_window, opus.max_output_tokens), (Some(1_000_000), Some(128_000)));
    assert_eq!(
        opus.hosted_versions["code_execution"].last().map(String::as_str),
        Some("code_execution_20260521")
    );
    assert_eq!(opus.has(Feature::ForcedToolChoice), Some(false));
    assert!(
        opus.unsupported_settings.contains(&Setting::Temperature)
            && opus.unsupported_settings.contains(&Setting::ThinkingOff)
    );
    let haiku = info("anthropic/claude-haiku-4-5-20251001");
    assert_eq!(haiku.efforts, Some(vec![]));
    assert!(!haiku.unsupported_settings.contains(&Setting::Temperature));
    assert_eq!(
        haiku.hosted_versions["code_execution"].last().map(String::as_str),
        Some("code_execution_20260521")
    );
    let sonnet = info("anthropic/claude-sonnet-4-20250514");
    assert!(sonnet.is_retired(at("2026-06-15")) && !sonnet.is_retired(at("2026-06-14")));
    assert_eq!(info("openai/gpt-5.1").thinks_by_default, Some(false));
    let unknown = info("openai/gpt-6.2-astra");
    assert_eq!((unknown.catalog_id.clone(), unknown.context_window), (None, None));
    assert_eq!(unknown.has(Feature::Tools), None);
    let near = ModelCatalog::built_in().did_you_mean(&id("anthropic/claude-opus-5-6")).unwrap();
    assert!(near.contains("`claude-opus-5-5`"), "{near}");
}

#[test]
fn user_rows_change_members_and_add_models() {
    let catalog = ModelCatalog::built_in()
        .with_file(
            "models.yaml",
            "models:
- id: anthropic/claude-opus-5-5
  features: {images: false}
  prices: [{input: 1, output: 2}]
- id: ollama/mine
  aliases: [my-own]
  context_window: 8192
  prices: [{input: 0, output: 0}]
",
        )
        .unwrap();
    let opus = catalog.find(&id("anthropic/claude-opus-5-5"));
    assert_eq!(opus.has(Feature::Images), Some(false));
    assert_eq!(opus.has(Feature::Tools), Some(true), "what the row does not name stays");
    assert_eq!(opus.context_window, Some(1_000_000));
    let cost = opus.cost(&million_in_and_out(), at("2026-11-22"), None).unwrap();
    assert!((cost.usd - 3.0).abs() < 1e-12);
    let mine = catalog.find(&id("ollama/my-own"));
    assert_eq!(mine.context_window, Some(8_192));
    assert_eq!(mine.cost(&million_in_and_out(), at("2026-11-22"), None).unwrap().usd.to_bits(), 0);
    let json = json!({"models": [{"id": "xai/x", "efforts": ["low"]}]}).to_string();
    let found = catalog.with_file("m.json", &json).unwrap().find(&id("xai/x"));
    assert_eq!(found.efforts, Some(vec![Effort::Low]));
}

#[test]
fn the_error_of_an_invalid_row_names_the_member() {
    for (text, expected) in [
        ("[]", "expected `models:`"),
        ("models: [{}]", "expected an `id`"),
        ("models: [{id: x}]", "expected PROVIDER/NAME"),
        ("models: [{id: a/b, colour: red}]", "unknown field `colour`"),
        ("models: [{id: a/b, features: {wings: true}}]", "unknown variant `wings`"),
        ("models: [{id: a/b, retires: soon}]", "the form 2026-11-21"),
        ("models: [{id: a/b, prices: [{input: 1, output: 1, cache_reed: 1}]}]", "Did you mean `cache_read`?"),
        ("models: [{id: a/b, prices: [{input: -1, output: 1}]}]", "expected an amount from 0, found -1"),
        ("models: [{id: a/b, prices: [{input: 1}]}]", "missing field `output`"),
        (
            "models: [{id: a/b, prices: [{input: 1, output: 1, tiers: [{input_tokens: 1, input: .nan, output: 1}]}]}]",
            "non-finite",
        ),
    ] {
        let error = ModelCatalog::built_in().with_file("m.yaml", text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Configuration, "{text}");
        assert!(
            error.message.starts_with("`m.yaml`: ") && error.message.contains(expected),
            "{text}: {error}"
        );
    }
}
