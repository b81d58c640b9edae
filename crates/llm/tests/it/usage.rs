//! Usage and cost on every wire: missing counts make the cost unknown.

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use toolpost_core::Timestamp;
use toolpost_llm::{
    Cost, Model as _, ModelEvent, ModelId, ModelInfo, Provider, Request, Response, TokenUsage, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support;

/// For each wire: a provider, a model with a price, and the members of the input and output counts.
const WIRES: [(Wire, &str, &str, &str, &str); 5] = [
    (Wire::Messages, "anthropic", "claude-sonnet-5-5", "input_tokens", "output_tokens"),
    (Wire::GenerateContent, "gemini", "gemini-3.8-flash", "promptTokenCount", "candidatesTokenCount"),
    (Wire::Responses, "openai", "gpt-6.1-sol", "input_tokens", "output_tokens"),
    (Wire::XaiResponses, "xai", "grok-4.7", "input_tokens", "output_tokens"),
    (Wire::ChatCompletions, "openai-compatible", "some-model", "prompt_tokens", "completion_tokens"),
];

/// An answer with this usage.
fn body(wire: Wire, usage: Option<&Value>) -> Value {
    let (mut body, name) = match wire {
        Wire::Messages => (json!({"type": "message", "content": [{"type": "text", "text": "hi"}]}), "usage"),
        Wire::GenerateContent => (
            json!({"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}),
            "usageMetadata",
        ),
        Wire::ChatCompletions => (
            json!({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}),
            "usage",
        ),
        _ => (
            json!({"object": "response", "status": "completed", "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}]}),
            "usage",
        ),
    };
    if let Some(usage) = usage {
        body[name] = usage.clone();
    }
    body
}

fn usage_of(wire: Wire, model: &ModelId, usage: Option<&Value>) -> TokenUsage {
    wire.read_body(model, 200, &body(wire, usage).to_string()).unwrap().usage
}

fn noon() -> Timestamp {
    serde_json::from_value(json!("2026-11-22T12:00:00.000000Z")).unwrap()
}

#[test]
fn missing_counts_make_the_cost_unknown() {
    for (wire, provider, name, input, output) in WIRES {
        let model = ModelId::new(provider, name);
        let info = ModelInfo::find(&model);
        let cost = |usage: &TokenUsage| info.cost(usage, noon(), None);
        let good = usage_of(wire, &model, Some(&json!({input: 10, output: 5})));
        assert_eq!((good.input, good.output, good.incomplete), (10, 5, false), "{wire:?}");
        assert_eq!(cost(&good).is_some(), wire != Wire::ChatCompletions, "{wire:?}");
        let mut rows = vec![
            (None, "no usage"),
            (Some(json!(null)), "null"),
            (Some(json!("many")), "a text"),
            (Some(json!([])), "a list"),
            (Some(json!({})), "nothing in it"),
            (Some(json!({output: 5})), "no input"),
            (Some(json!({input: 10, output: "5"})), "a text as the output"),
        ];
        // One wire omits zero counts.
        if wire != Wire::GenerateContent {
            rows.push((Some(json!({input: 10})), "no output"));
        }
        for odd in [json!(-5), json!(2.5), json!("7"), json!([1])] {
            rows.push((Some(json!({input: 10, output: odd})), "an odd output"));
            rows.push((Some(json!({input: odd, output: 5})), "an odd input"));
            rows.push((Some(parts_of(wire, input, output, &odd)), "an odd part"));
        }
        for (usage, what) in &rows {
            let read = usage_of(wire, &model, usage.as_ref());
            assert!(read.incomplete, "{wire:?}: {what}: {usage:?}");
            assert_eq!(cost(&read), None, "{wire:?}: {what}: {usage:?}");
        }
    }
}

/// A usage record with an invalid part of the input.
fn parts_of(wire: Wire, input: &str, output: &str, odd: &Value) -> Value {
    match wire {
        Wire::Messages => json!({input: 10, output: 5, "cache_read_input_tokens": odd}),
        Wire::GenerateContent => json!({input: 10, output: 5, "thoughtsTokenCount": odd}),
        Wire::ChatCompletions => {
            json!({input: 10, output: 5, "prompt_tokens_details": {"cached_tokens": odd}})
        }
        _ => json!({input: 10, output: 5, "input_tokens_details": {"cached_tokens": odd}}),
    }
}

#[test]
fn parts_may_be_absent_or_null() {
    let model = ModelId::new("x", "y");
    for (wire, usage) in [
        (
            Wire::Messages,
            json!({"input_tokens": 1, "output_tokens": 2, "cache_creation": null,
            "server_tool_use": {"web_search_requests": null}, "cache_read_input_tokens": null}),
        ),
        (Wire::GenerateContent, json!({"promptTokenCount": 1})),
        (Wire::Responses, json!({"input_tokens": 1, "output_tokens": 2, "input_tokens_details": null})),
        (
            Wire::ChatCompletions,
            json!({"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": null}),
        ),
    ] {
        assert!(!usage_of(wire, &model, Some(&usage)).incomplete, "{wire:?}");
    }
    let cached = json!({"object": "response", "output": [], "usage": {"input_tokens": 10, "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 7}}});
    let usage = Wire::Responses.read_body(&model, 200, &cached.to_string()).unwrap().usage;
    assert_eq!((usage.input, usage.cache_read, usage.output), (3, 7, 5));
    let text = serde_json::to_string(&TokenUsage { incomplete: true, ..TokenUsage::default() }).unwrap();
    assert!(serde_json::from_str::<TokenUsage>(&text).unwrap().incomplete);
}

#[tokio::test]
async fn missing_token_counts_have_a_notice() {
    for (wire, provider, name, input, output) in WIRES {
        for (usage, notices) in [(json!({input: 1, output: 1}), 0), (json!({input: -1, output: 1}), 1)] {
            let reply = Reply::json(200, body(wire, Some(&usage)).to_string());
            let server = LoopbackProvider::start(vec![reply.clone(), reply]).unwrap();
            let provider = Provider::find(provider).unwrap();
            let model = support::hosted(provider, name, server.base_url(), "k", support::options(0));
            let whole = model.respond(&Request::new("hi")).await.unwrap();
            let count = |response: &Response| {
                response
                    .notices
                    .iter()
                    .filter(|notice| notice.contains("cost of the answer is unknown"))
                    .count()
            };
            assert_eq!(count(&whole), notices, "{wire:?}: {:?}", whole.notices);
            let events: Vec<_> = model.stream(&Request::new("hi")).collect().await;
            let told = events.iter().filter(|event| {
                matches!(event, Ok(ModelEvent::Notice(text)) if text.contains("cost of the answer is unknown"))
            });
            assert_eq!(told.count(), notices, "{wire:?}: {events:?}");
            let Some(Ok(ModelEvent::Done(done))) = events.last() else { panic!("{events:?}") };
            assert_eq!(count(done), notices, "{wire:?}");
        }
    }
}

/// An answer of a wire with a service tier.
fn served(wire: Wire, model: &ModelId, level: &Value) -> Response {
    let usage = json!({"input_tokens": 1_000_000, "output_tokens": 0});
    let mut body = body(wire, Some(&usage));
    for (name, value) in level.as_object().unwrap() {
        match name.strip_prefix("usage.") {
            Some(name) => body["usage"][name] = value.clone(),
            None => body[name] = value.clone(),
        }
    }
    wire.read_body(model, 200, &body.to_string()).unwrap()
}

#[test]
fn the_reported_service_tier_sets_the_cost() {
    let (gpt, opus) = (ModelId::new("openai", "gpt-5.5"), ModelId::new("anthropic", "claude-opus-5-5"));
    let dollars = |cost: Option<Cost>| cost.map(|cost| (cost.usd * 1e6).round() as u64);
    for (wire, model, level, service) in [
        (Wire::Responses, &gpt, json!({}), None),
        (Wire::Responses, &gpt, json!({"service_tier": "default"}), None),
        (Wire::Responses, &gpt, json!({"service_tier": "priority"}), Some("priority")),
        (Wire::Responses, &gpt, json!({"service_tier": "flex"}), Some("flex")),
        (Wire::Messages, &opus, json!({"usage.service_tier": "standard", "usage.speed": "standard"}), None),
        (Wire::Messages, &opus, json!({"usage.service_tier": "batch"}), Some("batch")),
        (Wire::Messages, &opus, json!({"usage.speed": "fast"}), Some("fast")),
        (
            Wire::Messages,
            &opus,
            json!({"usage.service_tier": "standard", "usage.speed": "fast"}),
            Some("fast"),
        ),
    ] {
        let info = ModelInfo::find(model);
        let response = served(wire, model, &level);
        let expected = info.cost(&response.usage, noon(), service);
        assert!(expected.is_some(), "{model} {service:?} has a price");
        assert_eq!(dollars(info.cost_of(&response, noon())), dollars(expected), "{model} {level}");
        let standard = info.cost(&response.usage, noon(), None);
        let differs = dollars(info.cost_of(&response, noon())) != dollars(standard);
        assert_eq!(differs, service.is_some(), "{model} {level}: the levels cost different amounts");
    }
    // A service tier without a known price.
    let odd = served(Wire::Responses, &gpt, &json!({"service_tier": "platinum"}));
    assert_eq!(ModelInfo::find(&gpt).cost_of(&odd, noon()), None);
}
