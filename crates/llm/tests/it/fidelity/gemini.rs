//! Gemini's `GenerateContent`.

use serde_json::{Map, Value, json};
use toolpost_llm::{
    AssistantTurn, Effort, Media, MediaSource, ModelId, OutputFormat, Part, PromptCaching, RawJson, Request,
    Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::recordings::{Answer, RecordedRequest};

use super::{Dialect, Unit};

pub(crate) struct GenerateContent;

impl Dialect for GenerateContent {
    fn wire(&self) -> Wire {
        Wire::GenerateContent
    }

    fn provider(&self) -> &'static str {
        "gemini"
    }

    fn has_request(&self, _: &str, request: &RecordedRequest) -> bool {
        let path = request.address.split('?').next().unwrap_or_default();
        path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent")
    }

    fn has_answer(&self, _: &str, answer: &Answer) -> bool {
        match answer {
            Answer::Body(text) => {
                serde_json::from_str::<Value>(text).is_ok_and(|body| body["candidates"].is_array())
            }
            Answer::Stream(text) => text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok())
                .any(|event| event["candidates"].is_array()),
        }
    }

    fn is_whole(&self, stream: &str) -> bool {
        stream.contains("\"finishReason\"")
    }

    fn oracle(&self, stream: &str) -> Value {
        naive_fold(stream)
    }

    fn essence(&self, body: &Value) -> Value {
        let candidate = first_of(body).cloned().unwrap_or_default();
        let parts = candidate["content"].get("parts").filter(|parts| parts.is_array());
        let parts = parts.cloned().unwrap_or_else(|| json!([]));
        essence(&parts, &candidate["finishReason"], body)
    }

    fn items(&self, essence: &Value) -> Vec<Value> {
        essence["parts"].as_array().cloned().unwrap_or_default()
    }

    fn expected(&self, essence: &Value, changes: &mut Vec<String>) -> Vec<Value> {
        let mut items = self.items(essence);
        items.retain(|part| {
            let is_signed = part["thoughtSignature"].as_str().is_some_and(|signature| !signature.is_empty());
            let is_empty = part["text"] == "" && !is_signed && part["thought"] != true;
            if is_empty {
                changes.push("an empty text is omitted: the provider rejects it".into());
            }
            !is_empty
        });
        items
    }

    fn sent(&self, body: &Value) -> Vec<Value> {
        let contents = body["contents"].as_array().into_iter().flatten();
        let models = contents.filter(|content| content["role"] == "model");
        models.flat_map(|content| content["parts"].as_array().cloned().unwrap_or_default()).collect()
    }

    fn request_with(&self, items: Vec<Value>) -> Value {
        json!({"contents": [
            {"role": "user", "parts": [{"text": "before"}]},
            {"role": "model", "parts": items},
            {"role": "user", "parts": [{"text": "behind"}]},
        ]})
    }

    fn noise(&self) -> Vec<String> {
        let empty = json!({"index": 0, "brandNew": 1, "content": {"role": "model"}});
        vec![
            json!({"type": "brand_new_event", "payload": {"x": [1.0, null]}}).to_string(),
            json!({"candidates": [empty, {"index": 7, "content": {"parts": [{"text": "another"}]}}]})
                .to_string(),
        ]
    }

    fn units(&self, body: &Value) -> Option<Vec<Unit>> {
        body["contents"].as_array()?;
        let body = self.normal(body);
        let contents = body["contents"].as_array()?.iter();
        let units = contents.flat_map(|content| {
            let is_models = content["role"] == "model";
            let parts = content["parts"].as_array().into_iter().flatten();
            parts.map(move |part| Unit { is_models, value: part.clone() })
        });
        Some(units.collect())
    }

    fn request(&self, body: &Value) -> Option<Request> {
        body["contents"].as_array()?;
        Some(request_of(&self.normal(body)))
    }

    fn normal(&self, body: &Value) -> Value {
        let mut body = body.clone();
        rename(&mut body);
        let members = body.as_object_mut().unwrap();
        members.retain(|_, value| !value.is_null());
        let mut contents: Vec<Value> = Vec::new();
        for content in members["contents"].as_array().unwrap() {
            let role = content["role"].as_str().unwrap_or("user");
            let mut parts = content["parts"].as_array().cloned().unwrap_or_default();
            // Recorded clients send empty texts beside others; Toolpost omits them.
            if role == "model" && parts.len() > 1 {
                parts.retain(|part| *part != json!({"text": ""}));
            }
            match contents.last_mut() {
                Some(last) if last["role"] == role => last["parts"].as_array_mut().unwrap().extend(parts),
                _ => contents.push(json!({"role": role, "parts": parts})),
            }
        }
        members.insert("contents".into(), contents.into());
        if let Some(system) = members.get_mut("systemInstruction") {
            system.as_object_mut().unwrap().shift_remove("role");
        }
        for name in ["generationConfig", "toolConfig"] {
            if members.get(name).is_some_and(|config| *config == json!({})) {
                members.shift_remove(name);
            }
        }
        body
    }
}

/// Normalizes schemas: the case and numbers of types, the order of `required`, `$schema`, and empty `properties`.
fn normal_schema(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    members.shift_remove("$schema");
    for (name, nothing) in [("properties", json!({})), ("required", json!([]))] {
        if members.get(name) == Some(&nothing) {
            members.shift_remove(name);
        }
    }
    for (name, value) in members.iter_mut() {
        match (name.as_str(), value) {
            ("type", Value::String(name)) => *name = name.to_ascii_lowercase(),
            ("type", kind @ Value::Number(_)) => {
                let number = kind.as_u64().unwrap_or_default() as usize;
                let names = ["string", "number", "integer", "boolean", "array", "object", "null"];
                *kind = names.get(number.wrapping_sub(1)).copied().into();
            }
            ("required", Value::Array(names)) => names.sort_by_key(Value::to_string),
            ("properties" | "$defs", Value::Object(schemas)) => schemas.values_mut().for_each(normal_schema),
            ("enum" | "default" | "example" | "const", _) => {}
            (_, Value::Array(schemas)) => schemas.iter_mut().for_each(normal_schema),
            (_, schema) => normal_schema(schema),
        }
    }
}

/// Normalizes snake case to camel case, both alphabets of base64, and absent to false, except in tools and schemas.
fn rename(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(rename),
        Value::Object(members) => {
            let mut renamed = Map::new();
            for (name, mut value) in std::mem::take(members) {
                let mut name = name.clone();
                while let Some(place) = name.find('_') {
                    let next = name[place + 1..].chars().next().unwrap_or_default().to_ascii_uppercase();
                    name.replace_range(place..(place + 2).min(name.len()), &next.to_string());
                }
                // The older member also holds a JSON Schema.
                if name == "parameters" {
                    name = "parametersJsonSchema".into();
                }
                if ["parametersJsonSchema", "responseJsonSchema"].contains(&name.as_str()) {
                    normal_schema(&mut value);
                }
                let is_foreign =
                    ["args", "response", "parametersJsonSchema", "responseJsonSchema", "responseSchema"];
                if !is_foreign.contains(&name.as_str()) {
                    rename(&mut value);
                }
                if let Value::String(text) = &mut value
                    && ["thoughtSignature", "data"].contains(&name.as_str())
                {
                    *text = text.replace('-', "+").replace('_', "/");
                }
                let is_silent = name == "thought" && value == false
                    || name == "description" && (value.is_null() || value == "");
                if !is_silent {
                    renamed.insert(name, value);
                }
            }
            *members = renamed;
        }
        _ => {}
    }
}

/// The compared part of an answer.
fn essence(parts: &Value, reason: &Value, answer: &Value) -> Value {
    json!({
        "parts": parts,
        "finishReason": reason,
        "usageMetadata": answer["usageMetadata"],
        "modelVersion": answer["modelVersion"],
        "responseId": answer["responseId"],
    })
}

/// The first candidate.
fn first_of(event: &Value) -> Option<&Value> {
    let mut candidates = event["candidates"].as_array()?.iter();
    candidates.find(|candidate| candidate["index"].as_u64().unwrap_or_default() == 0)
}

/// A simple fold over plain JSON, the reference for Toolpost's fold.
fn naive_fold(text: &str) -> Value {
    let mut parts: Vec<Value> = Vec::new();
    let mut growing = false;
    let (mut answer, mut reason) = (json!({}), Value::Null);
    for event in text.lines().filter_map(|line| line.strip_prefix("data:")) {
        let event: Value = serde_json::from_str(event).expect("a recorded event is JSON");
        for name in ["usageMetadata", "modelVersion", "responseId"] {
            if let Some(value) = event.get(name).filter(|value| !value.is_null()) {
                answer[name] = value.clone();
            }
        }
        let Some(first) = first_of(&event) else { continue };
        if let Some(word) = first.get("finishReason").filter(|word| !word.is_null()) {
            reason = word.clone();
        }
        for part in first["content"]["parts"].as_array().cloned().unwrap_or_default() {
            let call = &part["functionCall"];
            if growing && call.is_object() && call.get("name").is_none() {
                growing = call["willContinue"] == true;
                let open = parts.last_mut().unwrap();
                for piece in call["partialArgs"].as_array().into_iter().flatten() {
                    naive_argument(&mut open["functionCall"]["args"], piece);
                }
                continue;
            }
            growing = call["willContinue"] == true;
            if growing {
                let mut part = part.clone();
                let call = part["functionCall"].as_object_mut().unwrap();
                call.shift_remove("willContinue");
                call.insert("args".into(), json!({}));
                parts.push(part);
                continue;
            }
            let is_plain = |part: &Value| {
                part.get("text").is_some()
                    && part
                        .as_object()
                        .unwrap()
                        .keys()
                        .all(|name| ["text", "thought"].contains(&name.as_str()))
            };
            match parts.last_mut() {
                Some(last)
                    if is_plain(last) && is_plain(&part) && last.get("thought") == part.get("thought") =>
                {
                    let joined =
                        format!("{}{}", last["text"].as_str().unwrap(), part["text"].as_str().unwrap());
                    last["text"] = joined.into();
                }
                _ => parts.push(part),
            }
        }
    }
    essence(&parts.into(), &reason, &answer)
}

fn naive_argument(arguments: &mut Value, piece: &Value) {
    let path =
        piece["jsonPath"].as_str().unwrap().trim_start_matches("$.").replace(']', "").replace('[', ".");
    let mut place = arguments;
    for step in path.split('.') {
        place = match step.parse::<usize>() {
            Ok(index) => {
                if place.is_null() {
                    *place = json!([]);
                }
                let list = place.as_array_mut().unwrap();
                while list.len() <= index {
                    list.push(Value::Null);
                }
                &mut list[index]
            }
            Err(_) => &mut place[step],
        };
    }
    match (&piece["stringValue"], piece.get("numberValue")) {
        (Value::String(more), _) => *place = format!("{}{more}", place.as_str().unwrap_or_default()).into(),
        (_, Some(number)) => *place = number.clone(),
        _ => panic!("a new kind of piece: {piece}"),
    }
}

/// Rebuilds a recorded body with Toolpost's types. Members without a type become provider options.
fn request_of(body: &Value) -> Request {
    let mut request = Request::default();
    request.settings.prompt_caching = PromptCaching::Off;
    for (name, value) in body.as_object().unwrap() {
        let is_known = match name.as_str() {
            "contents" => {
                request.turns = value.as_array().unwrap().iter().flat_map(turns_of).collect();
                true
            }
            "systemInstruction" => match value["parts"].as_array().map(Vec::as_slice).unwrap_or_default() {
                [part] if part.as_object().unwrap().len() == 1 && part["text"].is_string() => {
                    request.system = part["text"].as_str().map(str::to_owned);
                    true
                }
                _ => false,
            },
            "tools" if value.is_array() => tools_of(value.as_array().unwrap(), &mut request),
            "toolConfig" => choice_of(value, &mut request),
            "generationConfig" => {
                settings_of(value, &mut request);
                true
            }
            _ => false,
        };
        if !is_known {
            request.provider_options.insert(name.clone(), value.clone());
        }
    }
    request
}

/// Whether all tools are functions, which become definitions.
fn tools_of(tools: &[Value], request: &mut Request) -> bool {
    let [only] = tools else { return false };
    if only.as_object().unwrap().len() != 1 {
        return false;
    }
    let Some(functions) = only["functionDeclarations"].as_array() else { return false };
    let definition = |function: &Value| {
        let mut options = function.as_object().unwrap().clone();
        let name = options.shift_remove("name").unwrap();
        let description = options.shift_remove("description").unwrap_or_default();
        let schema = options.shift_remove("parametersJsonSchema");
        let schema = schema.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        let mut definition =
            ToolDefinition::new(name.as_str().unwrap(), description.as_str().unwrap_or_default(), &schema);
        definition.provider_options = options;
        definition
    };
    request.tools = functions.iter().map(definition).collect();
    true
}

fn choice_of(config: &Value, request: &mut Request) -> bool {
    let calling = &config["functionCallingConfig"];
    if config.as_object().unwrap().len() != 1 {
        return false;
    }
    request.tool_choice =
        match (calling["mode"].as_str(), calling["allowedFunctionNames"].as_array().map(Vec::as_slice)) {
            (Some("AUTO"), None) => Some(ToolChoice::Auto),
            (Some("NONE"), None) => Some(ToolChoice::None),
            (Some("ANY"), None) => Some(ToolChoice::Any),
            (Some("ANY"), Some([Value::String(name)])) => Some(ToolChoice::Tool(name.clone())),
            _ => return false,
        };
    true
}

fn settings_of(config: &Value, request: &mut Request) {
    let mut rest = Map::new();
    let settings = &mut request.settings;
    let is_json = config["responseMimeType"] == "application/json";
    for (name, value) in config.as_object().unwrap() {
        match name.as_str() {
            "maxOutputTokens" => settings.max_output_tokens = Some(value.as_u64().unwrap() as u32),
            "temperature" => settings.temperature = value.as_f64(),
            "topP" => settings.top_p = value.as_f64(),
            "topK" if value.is_u64() => settings.top_k = value.as_u64().map(|number| number as u32),
            "stopSequences" => settings.stop = serde_json::from_value(value.clone()).unwrap(),
            "seed" => settings.seed = value.as_u64(),
            "responseMimeType" if is_json && config.get("responseJsonSchema").is_none() => {
                settings.output = Some(OutputFormat::Json);
            }
            "responseMimeType" if is_json => {}
            "responseJsonSchema" if is_json => settings.output = Some(OutputFormat::schema(value)),
            "thinkingConfig" => {
                let thinking = |name: &str| value.get(name).and_then(Value::as_u64);
                match (
                    thinking("thinkingBudget"),
                    value["thinkingLevel"].as_str(),
                    value["includeThoughts"].as_bool(),
                ) {
                    (Some(0), None, None) => settings.thinking = Some(Thinking::Off),
                    (Some(budget), None, Some(true)) => {
                        settings.thinking = Some(Thinking::Budget(budget as u32));
                    }
                    (None, Some(level @ ("low" | "medium" | "high")), None) => {
                        settings.effort = serde_json::from_value::<Effort>(level.into()).ok();
                    }
                    _ => {
                        rest.insert(name.clone(), value.clone());
                    }
                }
            }
            _ => {
                rest.insert(name.clone(), value.clone());
            }
        }
    }
    if !rest.is_empty() {
        request.provider_options.insert("generationConfig".into(), rest.into());
    }
}

fn turns_of(content: &Value) -> Vec<Turn> {
    let parts = content["parts"].as_array().unwrap();
    if content["role"] == "model" {
        let body = json!({"candidates": [{"content": content}]}).to_string();
        let origin = ModelId::new("gemini", "model-x");
        let items = Wire::GenerateContent.read_body(&origin, 200, &body).unwrap().items;
        return vec![Turn::Assistant(AssistantTurn::new(origin, items))];
    }
    let mut turns: Vec<Turn> = Vec::new();
    for part in parts {
        match (result_of(part), turns.last_mut()) {
            (Some(result), Some(Turn::ToolResults(results))) => results.push(result),
            (Some(result), _) => turns.push(Turn::ToolResults(vec![result])),
            (None, Some(Turn::User(parts))) => parts.push(part_of(part)),
            (None, _) => turns.push(Turn::User(vec![part_of(part)])),
        }
    }
    turns
}

/// A result that Toolpost's types can express: a text under the documented names.
fn result_of(part: &Value) -> Option<ToolResult> {
    let response = part["functionResponse"].as_object()?;
    let members = response["response"].as_object().filter(|members| members.len() == 1)?;
    let (name, text) = members.iter().next()?;
    if !["output", "error"].contains(&name.as_str()) || response.contains_key("parts") {
        return None;
    }
    Some(ToolResult {
        call_id: response.get("id").and_then(Value::as_str).unwrap_or_default().into(),
        name: response["name"].as_str()?.into(),
        content: vec![Part::text(text.as_str()?)],
        structured: None,
        is_error: name == "error",
    })
}

fn part_of(part: &Value) -> Part {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let members: Vec<&str> = part.as_object().unwrap().keys().map(String::as_str).collect();
    match members.as_slice() {
        ["text"] if !part["text"].as_str().unwrap().trim().is_empty() => Part::text(text(part, "text")),
        ["inlineData"] => {
            let data = &part["inlineData"];
            let source = MediaSource::Base64(text(data, "data").into());
            Part::Image(Media { media_type: text(data, "mimeType"), source, title: None })
        }
        ["fileData"] => {
            let file = &part["fileData"];
            Part::Document(Media::from_url(text(file, "mimeType"), text(file, "fileUri")))
        }
        _ => Part::Raw(RawJson::from(part)),
    }
}
