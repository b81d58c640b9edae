//! The Anthropic Messages API.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolpost_llm::{
    AssistantTurn, CacheLifetime, Effort, HostedTool, Item, Media, MediaSource, ModelId, OutputFormat, Part,
    PromptCaching, RawJson, Request, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::recordings::{Answer, RecordedRequest};

use super::{Dialect, Unit};

pub(crate) struct Messages;

impl Dialect for Messages {
    fn wire(&self) -> Wire {
        Wire::Messages
    }

    fn provider(&self) -> &'static str {
        "anthropic"
    }

    fn has_request(&self, _: &str, request: &RecordedRequest) -> bool {
        let path = request.address.split('?').next().unwrap_or_default();
        // Other and older models of Bedrock have other bodies at the same address.
        let is_message = request.body.as_ref().is_some_and(|body| body["messages"].is_array());
        path.ends_with("/v1/messages")
            || is_message && path.contains("anthropic.") && path.ends_with("/invoke")
    }

    fn has_answer(&self, _: &str, answer: &Answer) -> bool {
        match answer {
            Answer::Body(text) => serde_json::from_str::<Value>(text)
                .is_ok_and(|body| body["type"] == "message" && body["content"].is_array()),
            Answer::Stream(text) => text.contains("\"message_start\""),
        }
    }

    fn is_whole(&self, stream: &str) -> bool {
        stream.contains("\"message_stop\"")
    }

    fn oracle(&self, stream: &str) -> Value {
        naive_fold(stream)
    }

    fn essence(&self, body: &Value) -> Value {
        body.clone()
    }

    fn items(&self, essence: &Value) -> Vec<Value> {
        essence["content"].as_array().cloned().unwrap_or_default()
    }

    fn expected(&self, essence: &Value, changes: &mut Vec<String>) -> Vec<Value> {
        let mut items = self.items(essence);
        let is_alone = items.len() == 1;
        items.retain(|item| {
            let is_blank = item["type"] == "text"
                && item["text"]
                    .as_str()
                    .is_some_and(|text| text.is_empty() || is_alone && text.trim().is_empty());
            if is_blank {
                changes.push("an empty text is omitted: the provider rejects it".into());
            }
            !is_blank
        });
        items
    }

    fn sent(&self, body: &Value) -> Vec<Value> {
        let messages = body["messages"].as_array().into_iter().flatten();
        let models = messages.filter(|message| message["role"] == "assistant");
        models.flat_map(|message| message["content"].as_array().cloned().unwrap_or_default()).collect()
    }

    fn request_with(&self, items: Vec<Value>) -> Value {
        json!({"messages": [
            {"role": "user", "content": "before"},
            {"role": "assistant", "content": items},
            {"role": "user", "content": "behind"},
        ]})
    }

    fn noise(&self) -> Vec<String> {
        vec![json!({"type": "brand_new_event", "index": 0, "payload": {"x": [1.0, null]}}).to_string()]
    }

    fn units(&self, body: &Value) -> Option<Vec<Unit>> {
        body["messages"].as_array()?;
        let mut body = normal(body);
        remove_marks(&mut body);
        let messages = body["messages"].as_array()?.iter();
        let units = messages.flat_map(|message| {
            let blocks = message["content"].as_array().into_iter().flatten();
            let is_models = message["role"] == "assistant";
            blocks.map(move |block| Unit { is_models, value: block.clone() })
        });
        Some(units.collect())
    }

    fn request(&self, body: &Value) -> Option<Request> {
        body["messages"].as_array()?;
        // Bedrock has the model in the address, not in the body.
        body["model"].as_str()?;
        Some(request_of(body))
    }

    fn normal(&self, body: &Value) -> Value {
        normal(body)
    }
}

/// Removes cache breakpoints, which move from request to request.
fn remove_marks(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(remove_marks),
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str).unwrap_or_default();
            if ["", "text", "tool_result", "document"].contains(&kind) {
                members.shift_remove("cache_control");
            }
            members.values_mut().for_each(remove_marks);
        }
        _ => {}
    }
}

/// A simple fold over plain JSON, the reference for Toolpost's fold.
fn naive_fold(text: &str) -> Value {
    let mut message = Value::Null;
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    // The last item of each provider index.
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    // A router appends the end marker of another wire.
    for event in data.filter(|data| *data != "[DONE]") {
        let event: Value = serde_json::from_str(event).expect("a recorded event is JSON");
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                message = event["message"].clone();
                blocks = message["content"].as_array().cloned().unwrap_or_default();
                inputs = vec![String::new(); blocks.len()];
                places.clear();
            }
            "content_block_start" => {
                places.insert(index, blocks.len());
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let place = places[&index];
                let (block, delta) = (&mut blocks[place], &event["delta"]);
                for (name, value) in delta.as_object().expect("a delta is an object") {
                    match (name.as_str(), value) {
                        ("type", _) => {}
                        ("partial_json", Value::String(part)) => inputs[place].push_str(part),
                        ("citation", value) => match &mut block["citations"] {
                            Value::Array(citations) => citations.push(value.clone()),
                            other => *other = json!([value]),
                        },
                        ("text" | "thinking", Value::String(part)) => {
                            let old = block[name].as_str().unwrap_or_default();
                            block[name] = format!("{old}{part}").into();
                        }
                        (name, value) => block[name] = value.clone(),
                    }
                }
            }
            "message_delta" => {
                for (name, value) in event.as_object().expect("an event is an object") {
                    match (name.as_str(), value) {
                        ("type", _) => {}
                        ("delta", Value::Object(members)) => {
                            members.iter().for_each(|(name, value)| message[name] = value.clone());
                        }
                        ("usage", Value::Object(counts)) => {
                            for (name, count) in counts {
                                if !count.is_null() || message["usage"].get(name).is_none() {
                                    message["usage"][name] = count.clone();
                                }
                            }
                        }
                        (name, value) => message[name] = value.clone(),
                    }
                }
            }
            "message_stop" => break,
            _ => {}
        }
    }
    for (block, input) in blocks.iter_mut().zip(inputs).filter(|(_, input)| !input.is_empty()) {
        let input = match serde_json::from_str::<Value>(&input) {
            Ok(input @ Value::Object(_)) => input,
            // The documented form of arguments that are not an object.
            _ => json!({"INVALID_JSON": input}),
        };
        block["input"] = input;
    }
    message["content"] = blocks.into();
    message
}

/// Normalizes equivalent forms.
fn normal(body: &Value) -> Value {
    let mut body = body.clone();
    if body.get("stream") == Some(&Value::Bool(false)) {
        body.as_object_mut().unwrap().shift_remove("stream");
    }
    if let Some(system) = body.get_mut("system") {
        *system = blocks(system);
    }
    // Empty instructions equal none, and 1 equals 1.0.
    if body.get("system").is_some_and(|system| *system == json!([{"type": "text", "text": ""}])) {
        body.as_object_mut().unwrap().shift_remove("system");
    }
    for name in ["temperature", "top_p"] {
        if let Some(value) = body.get(name).and_then(Value::as_f64) {
            body[name] = value.into();
        }
    }
    if let Some(schema) = body.pointer_mut("/output_config/format/schema") {
        normal_schema(schema);
    }
    // The order of tools is irrelevant, and null equals absent. Toolpost sends the newest version of a web tool that the
    // model supports; the recorded clients sent older ones.
    if let Some(tools) = body.get_mut("tools").and_then(Value::as_array_mut) {
        tools.sort_by_key(|tool| !is_hosted(tool));
        for tool in tools.iter_mut().filter(|tool| is_hosted(tool)) {
            tool.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let kind = tool["type"].as_str().unwrap().to_owned();
            for name in ["web_search", "web_fetch"] {
                if kind.starts_with(name) {
                    tool["type"] = name.into();
                }
            }
        }
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

/// Removes `$schema` and sorts `required`.
fn normal_schema(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    members.shift_remove("$schema");
    for (name, value) in members.iter_mut() {
        match (name.as_str(), value) {
            ("required", Value::Array(names)) => names.sort_by_key(Value::to_string),
            (_, Value::Array(schemas)) => schemas.iter_mut().for_each(normal_schema),
            (_, schema) => normal_schema(schema),
        }
    }
}

/// Converts a text into a list of one text block.
fn blocks(content: &Value) -> Value {
    match content {
        Value::String(text) => json!([{"type": "text", "text": text}]),
        Value::Null => json!([]),
        other => other.clone(),
    }
}

/// Rebuilds a recorded body with Toolpost's types. Members without a type become provider options.
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
            "thinking" if value["type"].is_null() => {
                request.provider_options.insert(name.clone(), value.clone());
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

/// Whether the provider runs a tool.
fn is_hosted(tool: &Value) -> bool {
    tool.get("type").is_some_and(|kind| kind != "custom")
}

/// Converts functions into definitions, and hosted tools into typed ones if the type has all their members.
fn tools_of(tools: &[Value], request: &mut Request) {
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
    request.tools = tools.iter().filter(|tool| !is_hosted(tool)).map(definition).collect();
    request.hosted_tools = tools.iter().filter(|tool| is_hosted(tool)).map(hosted_of).collect();
}

fn hosted_of(tool: &Value) -> HostedTool {
    let kind = tool["type"].as_str().unwrap();
    let known = ["type", "name", "max_uses", "allowed_domains", "blocked_domains"];
    let is_plain = tool
        .as_object()
        .unwrap()
        .iter()
        .all(|(name, value)| known.contains(&name.as_str()) || value.is_null());
    let max_uses = tool["max_uses"].as_u64().map(|number| number as u32);
    let domains = |name: &str| {
        serde_json::from_value::<Option<Vec<String>>>(tool[name].clone()).unwrap().unwrap_or_default()
    };
    let (allowed_domains, blocked_domains) = (|| domains("allowed_domains"), || domains("blocked_domains"));
    if is_plain && kind.starts_with("code_execution_") {
        return HostedTool::CodeExecution { version: Some(kind.to_owned()), file_ids: Vec::new() };
    }
    if is_plain && kind.starts_with("web_search_") {
        return HostedTool::WebSearch {
            max_uses,
            allowed_domains: allowed_domains(),
            blocked_domains: blocked_domains(),
        };
    }
    if is_plain && kind.starts_with("web_fetch_") {
        return HostedTool::WebFetch {
            max_uses,
            allowed_domains: allowed_domains(),
            blocked_domains: blocked_domains(),
        };
    }
    HostedTool::Raw(tool.into())
}

fn turns_of(message: &Value) -> Vec<Turn> {
    let content = blocks(&message["content"]);
    let content = content.as_array().unwrap();
    match message["role"].as_str().unwrap() {
        "assistant" => {
            let body = json!({"type": "message", "content": content}).to_string();
            let items: Vec<Item> =
                Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, &body).unwrap().items;
            vec![Turn::Assistant(AssistantTurn::new(ModelId::new("anthropic", "claude-x"), items))]
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
