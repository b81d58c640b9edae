//! Schemas that real providers took or refused: what they took is left alone, what they refused is not sent so.

use serde_json::Value;
use toolpost_llm::schema::{Lowered, SchemaTarget, StrictAllowance, lower};
use toolpost_testkit::recordings::{self, Interaction};

/// A recorded request with a body, and whether it was accepted.
struct Sent {
    place: String,
    address: String,
    body: Value,
    interaction: Interaction,
}

fn sent(test: &str) -> Option<Vec<Sent>> {
    let Some(folder) = recordings::folder() else {
        println!("SKIP {test}: the recordings are not beside the checkout");
        return None;
    };
    let words = ["/messages", "/responses", "enerateContent", "/chat/completions"];
    let all = recordings::all(&folder, &words).recordings;
    let of = |(path, interaction): (String, Interaction)| {
        let request = interaction.request.as_ref()?;
        Some(Sent { place: path, address: request.address.clone(), body: request.body.clone()?, interaction })
    };
    let each = all.into_iter().flat_map(|recording| {
        recording.interactions.into_iter().map(move |interaction| (recording.path.clone(), interaction))
    });
    Some(each.filter_map(of).collect())
}

fn list<'a>(body: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    body[name].as_array().into_iter().flatten()
}

/// The schema with the names of required properties in one order, which means nothing.
fn sorted(schema: &Value) -> Value {
    match schema {
        Value::Array(elements) => elements.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: serde_json::Map<String, Value> =
                members.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
            if let Some(Value::Array(names)) = members.get_mut("required") {
                names.sort_by_key(ToString::to_string);
            }
            Value::Object(members)
        }
        other => other.clone(),
    }
}

#[test]
fn what_openai_took_as_strict_is_left_alone() {
    let Some(sent) = sent("what_openai_took_as_strict_is_left_alone") else { return };
    let mut left_alone = 0;
    for Sent { place, address, body, interaction } in sent {
        let is_openai = address.contains("api.openai.com") || place.contains("cassettes/openai/");
        if !is_openai || interaction.status >= 400 {
            continue;
        }
        let tools = list(&body, "tools").map(|tool| tool.get("function").unwrap_or(tool));
        let tools = tools.filter(|tool| tool["strict"] == true).map(|tool| &tool["parameters"]);
        let formats = [&body["response_format"]["json_schema"], &body["text"]["format"]];
        let formats =
            formats.into_iter().filter(|format| format["strict"] == true).map(|format| &format["schema"]);
        for schema in tools.chain(formats).filter(|schema| schema.is_object()) {
            let Lowered { schema: mut lowered, lost, obstacle, .. } =
                lower(schema, SchemaTarget::OpenAiStrict);
            assert_eq!((obstacle, lost), (None, Vec::new()), "{place}: {schema}");
            if let Some(dialect) = schema.get("$schema") {
                lowered["$schema"] = dialect.clone();
            }
            assert_eq!(sorted(&lowered), sorted(schema), "{place}");
            left_alone += 1;
        }
    }
    println!("strict schemas that OpenAI took and that are left alone: {left_alone}");
    assert!(left_alone > 100 || !recordings::is_known(), "{left_alone}");
}

#[test]
fn what_anthropic_took_as_strict_is_sent_and_what_it_refused_is_not() {
    let Some(sent) = sent("what_anthropic_took_as_strict_is_sent_and_what_it_refused_is_not") else { return };
    let (mut taken, mut refused) = (0, 0);
    for Sent { place, address, body, interaction } in sent {
        if !address.ends_with("/v1/messages") || !list(&body, "tools").any(|tool| tool["strict"] == true) {
            continue;
        }
        let mut allowance = StrictAllowance::anthropic();
        let mut reasons = Vec::new();
        let mut is_object = true;
        for tool in list(&body, "tools").filter(|tool| tool["strict"] == true) {
            is_object &= tool["input_schema"].is_object();
            let lowered = lower(&tool["input_schema"], SchemaTarget::AnthropicStrict);
            reasons.extend(allowance.take_tool(&lowered).err());
            // What the provider does not check was not in what it took.
            if interaction.status < 400 {
                assert_eq!(lowered.lost, Vec::<String>::new(), "{place}: {}", tool["input_schema"]);
            }
        }
        let answer = format!("{:?}", interaction.answer);
        if interaction.status < 400 {
            assert_eq!(reasons, Vec::<String>::new(), "{place}");
            taken += 1;
        } else if ["strict", "union", "Circular", "input_schema", "'object' type"]
            .iter()
            .any(|word| answer.contains(word))
        {
            // A schema that is no object is made one.
            assert!(!reasons.is_empty() || !is_object, "{place}: {answer}");
            refused += 1;
        }
    }
    println!("requests with strict tools that Anthropic took: {taken}, refused: {refused}");
    assert!((taken > 40 && refused >= 5) || !recordings::is_known(), "{taken} {refused}");
}

#[test]
fn what_gemini_took_is_left_alone() {
    let Some(sent) = sent("what_gemini_took_is_left_alone") else { return };
    let (mut left_alone, mut told) = (0, 0);
    for Sent { place, address, body, interaction } in sent {
        if !address.contains("enerateContent") || interaction.status >= 400 {
            continue;
        }
        let declarations = list(&body, "tools").flat_map(|tool| list(tool, "functionDeclarations"));
        let tools = declarations.flat_map(|tool| {
            [
                (SchemaTarget::GeminiOpenApi, &tool["parameters"]),
                (SchemaTarget::GeminiJsonSchema, &tool["parametersJsonSchema"]),
                (SchemaTarget::GeminiJsonSchema, &tool["parameters_json_schema"]),
            ]
        });
        let config = &body["generationConfig"];
        let formats = [
            (SchemaTarget::GeminiOpenApi, &config["responseSchema"]),
            (SchemaTarget::GeminiJsonSchema, &config["responseJsonSchema"]),
        ];
        for (target, schema) in tools.chain(formats).filter(|(_, schema)| schema.is_object()) {
            let Lowered { lost, obstacle, .. } = lower(schema, target);
            assert_eq!(obstacle, None, "{place}: {schema}");
            if lost.is_empty() {
                left_alone += 1;
            } else {
                println!("{place}: {lost:?}");
                told += 1;
            }
        }
    }
    println!("schemas that Gemini took: {left_alone} lose nothing, {told} lose something");
    assert!((left_alone > 100 && told < 10) || !recordings::is_known(), "{left_alone} {told}");
}
