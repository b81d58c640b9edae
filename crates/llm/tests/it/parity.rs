//! What we would send equals what was sent: answers given back in the next request, and whole requests.
//!
//! `tests/data/parity.json` lists what may differ and why. A rule or an exception that is no longer needed fails the
//! test.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolpost_llm::{
    AssistantTurn, CacheLifetime, Effort, Item, Media, MediaSource, ModelId, OutputFormat, Part,
    PromptCaching, RawJson, Request, Response, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::recordings::{Answer, Interaction};

use crate::recorded::{fold, recordings};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    assistant_rules: Vec<Rule>,
    request_rules: Vec<Rule>,
    assistant_exceptions: Vec<Exception>,
    request_exceptions: Vec<Exception>,
}

/// A member that the recorded client leaves out or adds, wherever it stands in an object of a type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The `type` of the object; empty for the body itself.
    of: String,
    member: String,
    /// Only with this value.
    #[serde(default, deserialize_with = "even_null")]
    value: Option<Value>,
    #[expect(dead_code, reason = "for readers")]
    reason: String,
}

fn even_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// One message or request that may differ as it likes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// The file's path, and the exchange's number in it.
    place: String,
    #[expect(dead_code, reason = "for readers")]
    reason: String,
}

fn allowed() -> Allowed {
    serde_json::from_str(include_str!("../data/parity.json")).unwrap()
}

/// Removes what the rules name, and notes which rules were needed.
fn apply(rules: &[Rule], value: &mut Value, used: &mut HashSet<usize>) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| apply(rules, value, used)),
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.of == kind) {
                let matches = members
                    .get(&rule.member)
                    .is_some_and(|found| rule.value.as_ref().is_none_or(|expected| expected == found));
                if matches {
                    members.shift_remove(&rule.member);
                    used.insert(index);
                }
            }
            members.values_mut().for_each(|value| apply(rules, value, used));
        }
        _ => {}
    }
}

/// The forms that mean the same to the provider, brought to one.
fn normal(body: &Value) -> Value {
    let mut body = body.clone();
    if body.get("stream") == Some(&Value::Bool(false)) {
        body.as_object_mut().unwrap().shift_remove("stream");
    }
    if let Some(system) = body.get_mut("system") {
        *system = blocks(system);
    }
    let mut messages: Vec<Value> = Vec::new();
    for message in body["messages"].as_array().unwrap() {
        let mut content = blocks(&message["content"]);
        for block in content.as_array_mut().unwrap() {
            if block["type"] == "tool_result" {
                block["content"] = blocks(&block["content"]);
                if block["is_error"] == false {
                    block.as_object_mut().unwrap().shift_remove("is_error");
                }
            }
        }
        match messages.last_mut() {
            Some(last) if last["role"] == message["role"] => {
                last["content"].as_array_mut().unwrap().append(content.as_array_mut().unwrap());
            }
            _ => messages.push(json!({"role": message["role"], "content": content})),
        }
    }
    body["messages"] = messages.into();
    body
}

/// A text is a list of one text block.
fn blocks(content: &Value) -> Value {
    match content {
        Value::String(text) => json!([{"type": "text", "text": text}]),
        Value::Null => json!([]),
        other => other.clone(),
    }
}

fn differences(expected: &Value, found: &Value, at: &str, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                let none = json!("(absent)");
                differences(
                    a.get(name).unwrap_or(&none),
                    b.get(name).unwrap_or(&none),
                    &format!("{at}/{name}"),
                    lines,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{at}/{index}"), lines);
            }
        }
        _ if expected == found => {}
        _ => {
            let short = |value: &Value| value.to_string().chars().take(150).collect::<String>();
            lines.push(format!("  {at}: recorded {}, ours {}", short(expected), short(found)));
        }
    }
}

fn answer_of(interaction: &Interaction) -> Option<Response> {
    match &interaction.answer {
        _ if interaction.status >= 400 => None,
        Answer::Body(text) => {
            Some(Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, text).unwrap())
        }
        Answer::Stream(text) => Some(fold([text.as_bytes()]).unwrap().0),
    }
}

fn body_of(interaction: &Interaction) -> Option<Value> {
    interaction.request.as_ref()?.body.clone()
}

fn without_marks(value: &Value) -> Value {
    let mut value = normal(value);
    let rule =
        |of: &str| Rule { of: of.into(), member: "cache_control".into(), value: None, reason: String::new() };
    let rules: Vec<Rule> = ["", "text", "tool_result", "document"].map(rule).into();
    apply(&rules, &mut value, &mut HashSet::new());
    value
}

#[test]
fn an_answer_goes_back_as_it_came() {
    let Some(recordings) = recordings("an_answer_goes_back_as_it_came") else { return };
    let allowed = allowed();
    let (mut equal, mut verbatim, mut wrong) = (0, 0, Vec::new());
    let (mut used_rules, mut used_exceptions) = (HashSet::new(), HashSet::new());
    for recording in &recordings {
        for (number, interaction) in recording.interactions.iter().enumerate() {
            let (Some(body), Some(response)) = (body_of(interaction), answer_of(interaction)) else {
                continue;
            };
            let sent = without_marks(&body)["messages"].as_array().unwrap().clone();
            // The recorded client's next request of the same conversation, if there is one.
            let next = recording.interactions[number + 1..].iter().filter_map(body_of).find_map(|body| {
                let messages = without_marks(&body)["messages"].as_array().unwrap().clone();
                let goes_on = messages.len() > sent.len() && messages[..sent.len()] == sent[..];
                goes_on.then(|| messages[sent.len()].clone())
            });
            let Some(recorded) = next.filter(|message| message["role"] == "assistant") else { continue };
            let mut request = Request::new("before");
            request.turns.push(Turn::Assistant(response.to_turn()));
            request.turns.push(Turn::user("behind"));
            let ours = Wire::Messages
                .write_body(&ModelId::new("anthropic", "claude-x"), &request, false)
                .unwrap()
                .to_value()
                .unwrap();
            let ours =
                ours["messages"].as_array().unwrap().iter().find(|message| message["role"] == "assistant");
            let (mut ours, mut recorded) = (ours.cloned().unwrap_or_default(), recorded);
            verbatim += usize::from(ours == recorded);
            apply(&allowed.assistant_rules, &mut ours, &mut used_rules);
            apply(&allowed.assistant_rules, &mut recorded, &mut used_rules);
            let place = format!("{}#{}", recording.path, number + 1);
            if ours == recorded {
                equal += 1;
            } else if allowed.assistant_exceptions.iter().any(|exception| exception.place == place) {
                used_exceptions.insert(place);
            } else {
                let mut lines = vec![place];
                differences(&recorded, &ours, "", &mut lines);
                wrong.push(lines.join("\n"));
            }
        }
    }
    let all = equal + wrong.len() + used_exceptions.len();
    println!(
        "assistant turns equal {equal}/{all} (of them {verbatim} without any rule), exceptions {}, rules {}",
        used_exceptions.len(),
        used_rules.len()
    );
    assert!(wrong.is_empty(), "{} assistant turns differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(used_rules.len(), allowed.assistant_rules.len(), "a rule is no longer needed: {used_rules:?}");
    for exception in &allowed.assistant_exceptions {
        assert!(used_exceptions.contains(&exception.place), "no longer needed: {}", exception.place);
    }
    assert!(all > 90, "{all}");
}

/// The request of our types that means what a recorded body means. What has no type of its own goes into the
/// provider's options.
fn request_of(body: &Value) -> Request {
    let mut request = Request::default();
    request.settings.prompt_caching = PromptCaching::Off;
    for (name, value) in body.as_object().unwrap() {
        let settings = &mut request.settings;
        match name.as_str() {
            "model" | "stream" => {}
            "max_tokens" => settings.max_output_tokens = Some(value.as_u64().unwrap() as u32),
            "temperature" => settings.temperature = value.as_f64(),
            "top_p" => settings.top_p = value.as_f64(),
            "top_k" => settings.top_k = value.as_u64().map(|number| number as u32),
            "stop_sequences" => settings.stop = serde_json::from_value(value.clone()).unwrap(),
            "system" => match blocks(value).as_array().unwrap().as_slice() {
                [block] if block.as_object().unwrap().len() == 2 => {
                    request.system = block["text"].as_str().map(str::to_owned);
                }
                _ => {
                    request.provider_options.insert(name.clone(), value.clone());
                }
            },
            "cache_control" => {
                settings.prompt_caching = match value["ttl"].as_str() {
                    None => PromptCaching::Automatic,
                    Some("5m") => PromptCaching::AutomaticFor(CacheLifetime::FiveMinutes),
                    Some("1h") => PromptCaching::AutomaticFor(CacheLifetime::OneHour),
                    Some(other) => panic!("a new lifetime: {other}"),
                };
            }
            "thinking" => {
                settings.thinking = Some(match value["type"].as_str().unwrap() {
                    "enabled" => Thinking::Budget(value["budget_tokens"].as_u64().unwrap() as u32),
                    "adaptive" => Thinking::Adaptive,
                    "disabled" => Thinking::Off,
                    other => panic!("a new form of thinking: {other}"),
                });
                if let Some(display) = value.get("display") {
                    request.provider_options.insert(name.clone(), json!({"display": display}));
                }
            }
            "output_config" => {
                for (part, value) in value.as_object().unwrap() {
                    match part.as_str() {
                        "effort" => {
                            settings.effort = Some(serde_json::from_value::<Effort>(value.clone()).unwrap());
                        }
                        "format" => settings.output = Some(OutputFormat::schema(&value["schema"])),
                        _ => {
                            let config =
                                request.provider_options.entry(name.clone()).or_insert_with(|| json!({}));
                            config[part] = value.clone();
                        }
                    }
                }
            }
            "tool_choice" => {
                request.tool_choice = Some(match value["type"].as_str().unwrap() {
                    "auto" => ToolChoice::Auto,
                    "any" => ToolChoice::Any,
                    "none" => ToolChoice::None,
                    "tool" => ToolChoice::Tool(value["name"].as_str().unwrap().into()),
                    other => panic!("a new choice: {other}"),
                });
                request.settings.parallel_tool_calls =
                    value.get("disable_parallel_tool_use").map(|serial| !serial.as_bool().unwrap());
            }
            "tools" => tools_of(value.as_array().unwrap(), &mut request),
            "messages" => request.turns = value.as_array().unwrap().iter().flat_map(turns_of).collect(),
            "metadata" => request.metadata.clone_from(value.as_object().unwrap()),
            _ => {
                request.provider_options.insert(name.clone(), value.clone());
            }
        }
    }
    request
}

/// Functions become definitions as long as no hosted tool stands before them.
fn tools_of(tools: &[Value], request: &mut Request) {
    let is_hosted = |tool: &Value| tool.get("type").is_some_and(|kind| kind != "custom");
    let first = tools.iter().position(is_hosted).unwrap_or(tools.len());
    let (functions, hosted) = tools.split_at(first);
    let definition = |tool: &Value| {
        let mut options: Map<String, Value> = tool.as_object().unwrap().clone();
        let name = options.shift_remove("name").unwrap();
        let description = options.shift_remove("description").unwrap_or_default();
        let schema = options.shift_remove("input_schema").unwrap();
        let mut definition =
            ToolDefinition::new(name.as_str().unwrap(), description.as_str().unwrap_or_default(), &schema);
        definition.provider_options = options;
        definition
    };
    request.tools = functions.iter().map(definition).collect();
    if !hosted.is_empty() {
        request.provider_options.insert("tools".into(), hosted.to_vec().into());
    }
}

fn turns_of(message: &Value) -> Vec<Turn> {
    let content = blocks(&message["content"]);
    let content = content.as_array().unwrap();
    match message["role"].as_str().unwrap() {
        "assistant" => {
            let body = json!({"type": "message", "content": content}).to_string();
            let items: Vec<Item> =
                Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, &body).unwrap().items;
            vec![Turn::Assistant(AssistantTurn {
                origin: toolpost_llm::ModelId::new("anthropic", "claude-x"),
                items,
            })]
        }
        "system" => vec![Turn::System(content.iter().map(part_of).collect())],
        _ => {
            let mut turns: Vec<Turn> = Vec::new();
            for block in content {
                match (
                    block["type"] == "tool_result" && block.get("cache_control").is_none(),
                    turns.last_mut(),
                ) {
                    (true, Some(Turn::ToolResults(results))) => results.push(result_of(block)),
                    (true, _) => turns.push(Turn::ToolResults(vec![result_of(block)])),
                    (false, Some(Turn::User(parts))) => parts.push(part_of(block)),
                    (false, _) => turns.push(Turn::User(vec![part_of(block)])),
                }
            }
            turns
        }
    }
}

fn result_of(block: &Value) -> ToolResult {
    ToolResult {
        call_id: block["tool_use_id"].as_str().unwrap().into(),
        name: String::new(),
        content: blocks(&block["content"]).as_array().unwrap().iter().map(part_of).collect(),
        structured: None,
        is_error: block["is_error"] == true,
    }
}

fn part_of(block: &Value) -> Part {
    let media = || {
        let source = &block["source"];
        let text = |name: &str| source[name].as_str().unwrap_or_default().to_owned();
        let media_source = match source["type"].as_str().unwrap() {
            "base64" => MediaSource::Base64(text("data").into()),
            "text" => MediaSource::Text(text("data").into()),
            "url" => MediaSource::Url(text("url")),
            "file" => MediaSource::FileId(text("file_id")),
            other => panic!("a new source: {other}"),
        };
        Media {
            media_type: text("media_type"),
            source: media_source,
            title: block["title"].as_str().map(str::to_owned),
        }
    };
    let members: Vec<&str> =
        block.as_object().unwrap().keys().map(String::as_str).filter(|name| *name != "type").collect();
    match (block["type"].as_str().unwrap(), members.as_slice()) {
        ("text", ["text"]) => Part::text(block["text"].as_str().unwrap()),
        ("image", ["source"]) => Part::Image(media()),
        ("document", ["source"] | ["source", "title"]) => Part::Document(media()),
        ("container_upload", ["file_id"]) => {
            Part::ContainerFile { file_id: block["file_id"].as_str().unwrap().into() }
        }
        _ => Part::Raw(RawJson::from(block)),
    }
}

#[test]
fn a_request_can_be_built_as_it_was_sent() {
    let Some(recordings) = recordings("a_request_can_be_built_as_it_was_sent") else { return };
    let allowed = allowed();
    let (mut equal, mut typed, mut wrong) = (0, 0, Vec::new());
    let (mut used_rules, mut used_exceptions) = (HashSet::new(), HashSet::new());
    for recording in &recordings {
        for (number, interaction) in recording.interactions.iter().enumerate() {
            let Some(body) = body_of(interaction) else { continue };
            let stream = body["stream"] == true;
            let request = request_of(&body);
            let saved: Request = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
            assert_eq!(saved, request, "{}: saving changes the request", recording.path);
            let is_raw = |part: &Part| matches!(part, Part::Raw(_));
            let has_raw = request.turns.iter().any(|turn| match turn {
                Turn::User(parts) | Turn::System(parts) => parts.iter().any(is_raw),
                Turn::ToolResults(results) => results.iter().any(|result| result.content.iter().any(is_raw)),
                _ => false,
            });
            typed += usize::from(!has_raw && request.provider_options.is_empty());
            let model = body["model"].as_str().unwrap();
            let ours = Wire::Messages
                .write_body(&ModelId::new("anthropic", model), &request, stream)
                .unwrap()
                .to_value()
                .unwrap();
            let (mut ours, mut recorded) = (normal(&ours), normal(&body));
            apply(&allowed.request_rules, &mut ours, &mut used_rules);
            apply(&allowed.request_rules, &mut recorded, &mut used_rules);
            let place = format!("{}#{}", recording.path, number + 1);
            if ours == recorded {
                equal += 1;
            } else if allowed.request_exceptions.iter().any(|exception| exception.place == place) {
                used_exceptions.insert(place);
            } else {
                let mut lines = vec![place];
                differences(&recorded, &ours, "", &mut lines);
                wrong.push(lines.join("\n"));
            }
        }
    }
    let all = equal + wrong.len() + used_exceptions.len();
    println!(
        "requests equal {equal}/{all} (of them {typed} without provider options or raw parts), exceptions {}, rules {}",
        used_exceptions.len(),
        used_rules.len()
    );
    assert!(wrong.is_empty(), "{} requests differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(used_rules.len(), allowed.request_rules.len(), "a rule is no longer needed: {used_rules:?}");
    for exception in &allowed.request_exceptions {
        assert!(used_exceptions.contains(&exception.place), "no longer needed: {}", exception.place);
    }
    assert!(all > 400, "{all}");
}
