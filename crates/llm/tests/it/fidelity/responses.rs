//! The Responses API of OpenAI, compatible servers, and xAI.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolpost_llm::{
    AssistantTurn, Effort, HostedTool, Media, ModelId, OutputFormat, Part, RawJson, Request, Thinking,
    ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::recordings::{Answer, RecordedRequest};

use super::{Dialect, Unit};

pub(crate) struct Responses {
    pub(crate) is_xai: bool,
}

impl Responses {
    fn is_mine(&self, path: &str, address: &str, model: &str) -> bool {
        let is_xai = path.contains("/xai/") || address.contains("api.x.ai") || model.starts_with("grok");
        is_xai == self.is_xai
    }
}

impl Dialect for Responses {
    fn wire(&self) -> Wire {
        if self.is_xai { Wire::XaiResponses } else { Wire::Responses }
    }

    fn provider(&self) -> &'static str {
        if self.is_xai { "xai" } else { "openai" }
    }

    fn has_request(&self, path: &str, request: &RecordedRequest) -> bool {
        let bare = request.address.split('?').next().unwrap_or_default();
        // A background response is fetched by its id.
        let is_fetched = bare.rsplit_once("/responses/").is_some_and(|(_, id)| id.starts_with("resp"));
        let model = request.body.as_ref().and_then(|body| body["model"].as_str()).unwrap_or_default();
        (bare.ends_with("/responses") || is_fetched) && self.is_mine(path, &request.address, model)
    }

    fn has_answer(&self, path: &str, answer: &Answer) -> bool {
        let response = match answer {
            Answer::Body(text) => serde_json::from_str::<Value>(text).unwrap_or_default(),
            Answer::Stream(text) => {
                let whole = events(text).find(|event| event["response"]["object"] == "response");
                whole.map(|event| event["response"].clone()).unwrap_or_default()
            }
        };
        let model = response["model"].as_str().unwrap_or_default();
        response["object"] == "response" && self.is_mine(path, "", model)
    }

    fn is_whole(&self, stream: &str) -> bool {
        events(stream).any(|event| is_end(&event))
    }

    fn oracle(&self, stream: &str) -> Value {
        let end = events(stream).find(is_end).expect("a whole stream has an end");
        let mut response = end["response"].clone();
        // The delivered items are the answer: in the terminal event thinking is encrypted again, and some servers change
        // ids or omit items.
        let mut output = response["output"].as_array().cloned().unwrap_or_default();
        let done: Vec<Value> =
            events(stream).filter(|event| event["type"] == "response.output_item.done").collect();
        // The provider's positions, if they are distinct.
        let mut indexes: Vec<u64> =
            events(stream).filter_map(|event| event["output_index"].as_u64()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let place_of = |event: &Value| indexes.binary_search(&event["output_index"].as_u64()?).ok();
        let mut places: Vec<Option<usize>> = done.iter().map(place_of).collect();
        let mut known = places.clone();
        known.sort_unstable();
        known.dedup();
        if known.len() < places.len() || known.contains(&None) {
            places = (0..done.len()).map(Some).collect();
        }
        let mut delivered: Vec<(Option<usize>, Value)> =
            places.into_iter().zip(done.into_iter().map(|event| event["item"].clone())).collect();
        delivered.sort_by_key(|(place, _)| *place);
        for (place, item) in delivered {
            match place.and_then(|place| output.get_mut(place)) {
                Some(at_end) => *at_end = item,
                None => output.push(item),
            }
        }
        response["output"] = output.into();
        response
    }

    fn essence(&self, body: &Value) -> Value {
        body.clone()
    }

    fn adds_up(&self, stream: &str) -> bool {
        let mut texts: BTreeMap<u64, String> = BTreeMap::new();
        events(stream).all(|event| {
            let index = event["output_index"].as_u64().unwrap_or_default();
            let shown = texts.entry(index).or_default();
            match event["type"].as_str().unwrap_or_default() {
                "response.output_text.delta" => shown.push_str(event["delta"].as_str().unwrap_or_default()),
                "response.output_item.done" if event["item"]["type"] == "message" => {
                    let parts = event["item"]["content"].as_array().into_iter().flatten();
                    let whole: String = parts.filter_map(|part| part["text"].as_str()).collect();
                    return whole.starts_with(&std::mem::take(shown));
                }
                _ => {}
            }
            true
        })
    }

    fn items(&self, essence: &Value) -> Vec<Value> {
        essence["output"].as_array().cloned().unwrap_or_default()
    }

    fn expected(&self, essence: &Value, changes: &mut Vec<String>) -> Vec<Value> {
        let mut kept: Vec<Value> = Vec::new();
        let mut has_lost = false;
        for mut item in self.items(essence) {
            let has = |name: &str| match &item[name] {
                Value::Null => false,
                Value::Array(list) => !list.is_empty(),
                Value::String(text) => !text.is_empty(),
                _ => true,
            };
            if !self.is_xai && item["type"] == "reasoning" && !has("encrypted_content") && !has("content") {
                changes.push(
                    "thinking without encrypted content is omitted: the provider did not store it".into(),
                );
                has_lost = true;
                continue;
            }
            if has_lost && item.as_object_mut().is_some_and(|item| item.shift_remove("id").is_some()) {
                changes.push(
                    "an item after omitted thinking has no id: its id would reference the thinking".into(),
                );
            }
            kept.push(item);
        }
        kept
    }

    fn sent(&self, body: &Value) -> Vec<Value> {
        let input = body["input"].as_array().map(Vec::as_slice).unwrap_or_default();
        // All items except the user's first and last.
        input.get(1..input.len().saturating_sub(1)).unwrap_or_default().to_vec()
    }

    fn request_with(&self, items: Vec<Value>) -> Value {
        let said = |text: &str| json!({"type": "message", "role": "user", "content": text});
        let input: Vec<Value> =
            std::iter::once(said("before")).chain(items).chain([said("behind")]).collect();
        json!({ "input": input })
    }

    fn noise(&self) -> Vec<String> {
        [
            json!({"type": "brand_new_event", "output_index": 0, "payload": {"x": [1.0, null]}}),
            json!({"type": "response.hologram.delta", "output_index": "first", "delta": {"x": 1}, "item": 7}),
            json!({"type": "response.web_search_call.reconsidering", "output_index": 77, "item_id": 5}),
            json!({"type": "keepalive"}),
        ]
        .iter()
        .map(Value::to_string)
        .collect()
    }

    fn units(&self, body: &Value) -> Option<Vec<Unit>> {
        if !body["input"].is_string() && !body["input"].is_array() {
            return None;
        }
        let is_part = ["previous_response_id", "conversation"]
            .iter()
            .any(|name| body.get(*name).is_some_and(|value| !value.is_null()));
        if is_part || body.get("input").is_none() {
            return None;
        }
        let units = input(body).into_iter().map(|value| Unit { is_models: is_models(&value), value });
        // A recorded client sends an empty message before a call.
        let is_empty = |unit: &Unit| {
            unit.is_models && unit.value["content"] == json!([{"type": "output_text", "text": ""}])
        };
        Some(units.filter(|unit| !is_empty(unit)).map(plain_quotes).collect())
    }

    fn request(&self, body: &Value) -> Option<Request> {
        body.get("input")?;
        Some(self.request_of(body))
    }

    fn normal(&self, body: &Value) -> Value {
        let mut body = body.clone();
        body["input"] = input(&body).into();
        let members = body.as_object_mut().expect("a body is an object");
        if members.get("stream") == Some(&Value::Bool(false)) {
            members.shift_remove("stream");
        }
        // Absent equals null and an empty list of tools; 1 equals 1.0.
        members.retain(|name, value| !value.is_null() && (name != "tools" || *value != json!([])));
        for name in ["temperature", "top_p"] {
            if let Some(value) = members.get(name).and_then(Value::as_f64) {
                members.insert(name.into(), value.into());
            }
        }
        // xAI also accepts instructions as the first message.
        if self.is_xai
            && let Some(Value::String(text)) = members.shift_remove("instructions")
            && let Some(Value::Array(input)) = members.get_mut("input")
        {
            input.insert(0, item(json!({"type": "message", "role": "system", "content": text})));
        }
        for name in ["text", "tools"] {
            members.get_mut(name).into_iter().for_each(plain_schemas);
        }
        body
    }

    fn prepare(&self, request: &mut Request, body: &Value) {
        // Recorded clients store answers at the provider, which finds its thinking by id.
        let store = body.get("store").cloned().unwrap_or(Value::Bool(true));
        request.provider_options.insert("store".into(), store);
    }
}

fn events(stream: &str) -> impl Iterator<Item = Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data).ok())
}

fn is_end(event: &Value) -> bool {
    ["response.completed", "response.incomplete"].iter().any(|kind| event["type"] == *kind)
}

/// The items of a request.
fn items(body: &Value) -> Vec<Value> {
    match &body["input"] {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => items.clone(),
        other => panic!("an input of a new form: {other}"),
    }
}

/// The normalized items of a request.
fn input(body: &Value) -> Vec<Value> {
    items(body).into_iter().map(item).collect()
}

fn item(mut item: Value) -> Value {
    if item.get("type").is_none() && item.get("role").is_some() {
        item["type"] = "message".into();
    }
    if item["type"] != "message" {
        return item;
    }
    if item["role"] == "developer" {
        item["role"] = "system".into();
    }
    let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
    if let Value::String(text) = &item["content"] {
        item["content"] = json!([{"type": kind, "text": text}]);
    }
    item
}

/// Sorts `required` and removes `$schema`.
fn plain_schemas(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(plain_schemas),
        Value::Object(members) => {
            members.shift_remove("$schema");
            if let Some(Value::Array(names)) = members.get_mut("required") {
                names.sort_by_key(Value::to_string);
            }
            members.values_mut().for_each(plain_schemas);
        }
        _ => {}
    }
}

/// Replaces typographic quotes by plain ones, as the recorded requests do.
fn plain_quotes(mut unit: Unit) -> Unit {
    let content = unit.value.get_mut("content").and_then(Value::as_array_mut);
    for part in content.into_iter().flatten() {
        if let Some(Value::String(text)) = part.get_mut("text") {
            *text = text.replace(['\u{2018}', '\u{2019}'], "'").replace(['\u{201c}', '\u{201d}'], "\"");
        }
    }
    unit
}

fn is_models(item: &Value) -> bool {
    match item["type"].as_str().unwrap_or_default() {
        "message" => item["role"] == "assistant",
        "function_call_output" | "custom_tool_call_output" | "additional_tools" => false,
        "tool_search_output" => item["execution"] != "client",
        _ => true,
    }
}

impl Responses {
    fn model(&self) -> ModelId {
        ModelId::new(self.provider(), "model-x")
    }

    /// Rebuilds a recorded body with Toolpost's types. Members without a type become provider options.
    fn request_of(&self, body: &Value) -> Request {
        let mut request = Request::default();
        // The provider must store thinking without encrypted content.
        let is_thinking =
            |item: &Value| item["type"] == "reasoning" && item.get("encrypted_content").is_none();
        if body.get("store").is_some() || input(body).iter().any(is_thinking) {
            self.prepare(&mut request, body);
        }
        for (name, value) in body.as_object().unwrap().iter().filter(|(_, value)| !value.is_null()) {
            let settings = &mut request.settings;
            match name.as_str() {
                "model" | "stream" | "store" => {}
                "max_output_tokens" => settings.max_output_tokens = Some(value.as_u64().unwrap() as u32),
                "temperature" => settings.temperature = value.as_f64(),
                "top_p" => settings.top_p = value.as_f64(),
                "parallel_tool_calls" => settings.parallel_tool_calls = value.as_bool(),
                "instructions" => request.system = value.as_str().map(str::to_owned),
                "reasoning" => reasoning_of(value, &mut request),
                "text" => text_of(value, &mut request),
                "tool_choice" => match choice_of(value) {
                    Some(choice) => request.tool_choice = Some(choice),
                    None => {
                        request.provider_options.insert(name.clone(), value.clone());
                    }
                },
                "tools" => tools_of(value.as_array().unwrap(), &mut request),
                "input" => request.turns = items(body).iter().map(|item| self.turn_of(item)).collect(),
                _ => {
                    request.provider_options.insert(name.clone(), value.clone());
                }
            }
        }
        // xAI's instructions are its first message.
        if self.is_xai
            && let Some(Turn::System(parts)) = request.turns.first()
            && let [Part::Text(text)] = parts.as_slice()
        {
            request.system = Some(text.clone());
            request.turns.remove(0);
        }
        request
    }

    fn turn_of(&self, recorded: &Value) -> Turn {
        let item = item(recorded.clone());
        match (item["type"].as_str().unwrap_or_default(), item["role"].as_str()) {
            ("message", Some("user")) => Turn::User(parts_of(&item["content"])),
            ("message", Some("system")) => Turn::System(parts_of(&item["content"])),
            ("function_call_output", _) => Turn::ToolResults(vec![ToolResult {
                call_id: item["call_id"].as_str().unwrap().into(),
                name: String::new(),
                content: match &item["output"] {
                    Value::String(text) => vec![Part::text(text)],
                    list => parts_of(list),
                },
                structured: None,
                is_error: false,
            }]),
            _ => {
                let body = json!({"object": "response", "output": [recorded]}).to_string();
                let items = self.wire().read_body(&self.model(), 200, &body).unwrap().items;
                Turn::Assistant(AssistantTurn { origin: self.model(), items, provider_state: Map::new() })
            }
        }
    }
}

fn reasoning_of(value: &Value, request: &mut Request) {
    let mut rest = Map::new();
    for (name, value) in value.as_object().unwrap() {
        match (name.as_str(), value.as_str()) {
            ("effort", Some("none")) => request.settings.thinking = Some(Thinking::Off),
            ("effort", Some(_)) => {
                request.settings.effort = Some(serde_json::from_value::<Effort>(value.clone()).unwrap());
            }
            ("summary", Some("auto")) => request.settings.thinking = Some(Thinking::Adaptive),
            _ => {
                rest.insert(name.clone(), value.clone());
            }
        }
    }
    if !rest.is_empty() {
        request.provider_options.insert("reasoning".into(), rest.into());
    }
}

fn text_of(value: &Value, request: &mut Request) {
    let mut rest = value.as_object().unwrap().clone();
    match value["format"]["type"].as_str() {
        Some("json_object") => {
            request.settings.output = Some(OutputFormat::Json);
            rest.shift_remove("format");
        }
        Some("json_schema") => {
            let format = rest["format"].as_object_mut().unwrap();
            format.shift_remove("type");
            let name = format.shift_remove("name").unwrap().as_str().unwrap().to_owned();
            let schema = RawJson::from(&format.shift_remove("schema").unwrap());
            if format.get("strict") == Some(&Value::Bool(true)) {
                format.shift_remove("strict");
            }
            if format.is_empty() {
                rest.shift_remove("format");
            }
            request.settings.output = Some(OutputFormat::Schema { name, schema });
        }
        _ => {}
    }
    if !rest.is_empty() {
        request.provider_options.insert("text".into(), rest.into());
    }
}

fn choice_of(value: &Value) -> Option<ToolChoice> {
    Some(match (value.as_str(), value["type"].as_str()) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("required"), _) => ToolChoice::Any,
        (Some("none"), _) => ToolChoice::None,
        (None, Some("function")) => ToolChoice::Tool(value["name"].as_str().unwrap().into()),
        _ => return None,
    })
}

/// Hosted tools before the functions become typed; hosted tools after them become provider options.
fn tools_of(tools: &[Value], request: &mut Request) {
    let is_function = |tool: &&Value| tool["type"] == "function";
    let first = tools.iter().position(|tool| is_function(&tool)).unwrap_or(tools.len());
    let (hosted, rest) = tools.split_at(first);
    let (functions, behind) = rest.split_at(rest.iter().take_while(is_function).count());
    request.hosted_tools = hosted.iter().map(hosted_of).collect();
    request.tools = functions.iter().map(definition_of).collect();
    // Deferred tools imply the tool search.
    let has_deferred = request.tools.iter().any(|tool| tool.deferred);
    let is_search = |tool: &&Value| has_deferred && **tool == json!({"type": "tool_search"});
    let behind: Vec<Value> = behind.iter().filter(|tool| !is_search(tool)).cloned().collect();
    if !behind.is_empty() {
        request.provider_options.insert("tools".into(), behind.into());
    }
}

fn hosted_of(tool: &Value) -> HostedTool {
    let strings =
        |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap_or_default() };
    let typed = match tool["type"].as_str().unwrap_or_default() {
        "web_search" => Some(HostedTool::WebSearch {
            max_uses: None,
            allowed_domains: strings(&tool["filters"]["allowed_domains"]),
            blocked_domains: Vec::new(),
        }),
        "file_search" => Some(HostedTool::FileSearch {
            stores: strings(&tool["vector_store_ids"]),
            max_results: tool["max_num_results"].as_u64().map(|most| most as u32),
        }),
        "code_interpreter" if tool["container"]["type"] == "auto" => Some(HostedTool::CodeExecution {
            version: None,
            file_ids: strings(&tool["container"]["file_ids"]),
        }),
        _ => None,
    };
    // Raw JSON for the rest.
    typed.filter(|typed| written(typed) == *tool).unwrap_or_else(|| HostedTool::Raw(tool.into()))
}

fn written(tool: &HostedTool) -> Value {
    let mut request = Request::new("x");
    request.hosted_tools = vec![tool.clone()];
    let body = Wire::Responses.write_body(&ModelId::new("openai", "model-x"), &request, false);
    super::value(&body.expect("a hosted tool can be written"))["tools"][0].clone()
}

fn definition_of(tool: &Value) -> ToolDefinition {
    let mut options: Map<String, Value> = tool.as_object().unwrap().clone();
    options.shift_remove("type");
    let name = options.shift_remove("name").unwrap();
    let description = options.get("description").and_then(Value::as_str).map(str::to_owned);
    if description.is_some() {
        options.shift_remove("description");
    }
    let schema = options.shift_remove("parameters").unwrap();
    let mut definition =
        ToolDefinition::new(name.as_str().unwrap(), description.unwrap_or_default(), &schema);
    definition.strict = options.shift_remove("strict") == Some(Value::Bool(true));
    definition.deferred = options.shift_remove("defer_loading") == Some(Value::Bool(true));
    definition.provider_options = options;
    definition
}

fn parts_of(content: &Value) -> Vec<Part> {
    content.as_array().unwrap().iter().map(part_of).collect()
}

fn part_of(part: &Value) -> Part {
    let text = |name: &str| part[name].as_str().map(str::to_owned);
    let members = part.as_object().unwrap();
    let only =
        |names: &[&str]| members.len() == names.len() && names.iter().all(|name| members.contains_key(*name));
    let data = |text: &str| {
        let (kind, data) = text.strip_prefix("data:")?.split_once(";base64,")?;
        let source = toolpost_llm::MediaSource::Base64(data.into());
        Some(Media { media_type: kind.to_owned(), source, title: None })
    };
    let typed = match part["type"].as_str().unwrap() {
        "input_text" if only(&["type", "text"]) => text("text").map(Part::Text),
        "input_image" if only(&["type", "detail", "image_url"]) && part["detail"] == "auto" => {
            text("image_url")
                .map(|url| Part::Image(data(&url).unwrap_or_else(|| Media::from_url("image/png", url))))
        }
        "input_image" if only(&["type", "detail", "file_id"]) && part["detail"] == "auto" => {
            text("file_id").map(|id| Part::Image(Media::from_file_id("image/png", id)))
        }
        "input_file" if only(&["type", "file_url"]) => {
            text("file_url").map(|url| Part::Document(Media::from_url("application/pdf", url)))
        }
        "input_file" if only(&["type", "file_id"]) => {
            text("file_id").map(|id| Part::Document(Media::from_file_id("application/pdf", id)))
        }
        "input_file" if only(&["type", "file_data", "filename"]) => {
            let media = text("file_data").and_then(|text| data(&text));
            media.map(|media| Part::Document(Media { title: text("filename"), ..media }))
        }
        _ => None,
    };
    typed.unwrap_or_else(|| Part::Raw(RawJson::from(part)))
}
