//! Schemas that providers accepted or rejected: accepted ones stay unchanged, rejected ones are not sent as strict.

use serde_json::Value;
use toolpost_llm::schema::{Lowered, SchemaTarget, StrictBudget, lower};
use toolpost_testkit::recordings::{self, Interaction};

/// A recorded request with its body and answer.
struct Recorded {
    place: String,
    address: String,
    body: Value,
    interaction: Interaction,
}

fn requests(test: &str) -> Option<Vec<Recorded>> {
    let Some(directory) = recordings::directory() else {
        println!("SKIP {test}: the recordings are missing");
        return None;
    };
    let words = ["/messages", "/responses", "enerateContent", "/chat/completions"];
    let all = recordings::all(&directory, &words).recordings;
    let recorded = |(path, interaction): (String, Interaction)| {
        let request = interaction.request.as_ref()?;
        Some(Recorded {
            place: path,
            address: request.address.clone(),
            body: request.body.clone()?,
            interaction,
        })
    };
    let each = all.into_iter().flat_map(|recording| {
        recording.interactions.into_iter().map(move |interaction| (recording.path.clone(), interaction))
    });
    Some(each.filter_map(recorded).collect())
}

fn list<'a>(body: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    body[name].as_array().into_iter().flatten()
}

/// The schema with sorted names of required properties.
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
fn strict_schemas_that_openai_accepted_stay_unchanged() {
    let Some(requests) = requests("strict_schemas_that_openai_accepted_stay_unchanged") else { return };
    let mut unchanged = 0;
    for Recorded { place, address, body, interaction } in requests {
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
            let Lowered { schema: mut lowered, unchecked, unsupported, .. } =
                lower(schema, SchemaTarget::OpenAiStrict);
            assert_eq!((unsupported, unchecked), (None, Vec::new()), "{place}: {schema}");
            if let Some(dialect) = schema.get("$schema") {
                lowered["$schema"] = dialect.clone();
            }
            assert_eq!(sorted(&lowered), sorted(schema), "{place}");
            unchanged += 1;
        }
    }
    println!("strict schemas that OpenAI accepted and that stay unchanged: {unchanged}");
    assert!(unchanged > 100 || !recordings::is_known(), "{unchanged}");
}

#[test]
fn schemas_that_anthropic_rejected_are_not_sent_as_strict() {
    let Some(requests) = requests("schemas_that_anthropic_rejected_are_not_sent_as_strict") else { return };
    let (mut accepted, mut rejected) = (0, 0);
    for Recorded { place, address, body, interaction } in requests {
        if !address.ends_with("/v1/messages") || !list(&body, "tools").any(|tool| tool["strict"] == true) {
            continue;
        }
        let mut budget = StrictBudget::anthropic();
        let mut reasons = Vec::new();
        let mut is_object = true;
        for tool in list(&body, "tools").filter(|tool| tool["strict"] == true) {
            is_object &= tool["input_schema"].is_object();
            let lowered = lower(&tool["input_schema"], SchemaTarget::AnthropicStrict);
            reasons.extend(budget.reserve_tool(&lowered).err());
            // Accepted schemas have no unchecked keywords.
            if interaction.status < 400 {
                assert_eq!(lowered.unchecked, Vec::<String>::new(), "{place}: {}", tool["input_schema"]);
            }
        }
        let answer = format!("{:?}", interaction.answer);
        if interaction.status < 400 {
            assert_eq!(reasons, Vec::<String>::new(), "{place}");
            accepted += 1;
        } else if ["strict", "union", "Circular", "input_schema", "'object' type"]
            .iter()
            .any(|word| answer.contains(word))
        {
            // A schema that is not an object is wrapped into one.
            assert!(!reasons.is_empty() || !is_object, "{place}: {answer}");
            rejected += 1;
        }
    }
    println!("requests with strict tools that Anthropic accepted: {accepted}, rejected: {rejected}");
    assert!((accepted > 40 && rejected >= 5) || !recordings::is_known(), "{accepted} {rejected}");
}

#[test]
fn schemas_that_gemini_accepted_stay_unchanged() {
    let Some(requests) = requests("schemas_that_gemini_accepted_stay_unchanged") else { return };
    let (mut unchanged, mut changed) = (0, 0);
    for Recorded { place, address, body, interaction } in requests {
        if !address.contains("enerateContent") || interaction.status >= 400 {
            continue;
        }
        let declarations = list(&body, "tools").flat_map(|tool| list(tool, "functionDeclarations"));
        let tools = declarations.flat_map(|tool| {
            ["parameters", "parametersJsonSchema", "parameters_json_schema"].map(|name| &tool[name])
        });
        let config = &body["generationConfig"];
        let formats = [&config["responseSchema"], &config["responseJsonSchema"]];
        for schema in tools.chain(formats).filter(|schema| schema.is_object()) {
            let Lowered { unchecked, unsupported, .. } = lower(schema, SchemaTarget::Gemini);
            assert_eq!(unsupported, None, "{place}: {schema}");
            if unchecked.is_empty() {
                unchanged += 1;
            } else {
                println!("{place}: {unchecked:?}");
                changed += 1;
            }
        }
    }
    println!("schemas that Gemini accepted: {unchanged} are checked whole, {changed} are not");
    assert!((unchanged > 100 && changed < 10) || !recordings::is_known(), "{unchanged} {changed}");
}
