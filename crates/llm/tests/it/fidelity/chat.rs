//! Chat Completions of every recorded server.

use serde_json::{Map, Value, json};
use toolpost_llm::{Effort, OutputFormat, Part, Request, ToolChoice, ToolDefinition, Turn, Wire, messages};
use toolpost_testkit::recordings::{Answer, RecordedRequest};

use super::{Dialect, Unit};

pub(crate) struct Chat;

impl Dialect for Chat {
    fn wire(&self) -> Wire {
        Wire::ChatCompletions
    }

    fn provider(&self) -> &'static str {
        "openai-compatible"
    }

    fn has_request(&self, _: &str, request: &RecordedRequest) -> bool {
        let path = request.address.split(['?', '#']).next().unwrap_or_default();
        // One recorded test server never answers with a completion.
        path.ends_with("/chat/completions") && !path.contains("/bin/content-type/")
    }

    fn has_answer(&self, _: &str, answer: &Answer) -> bool {
        match answer {
            Answer::Body(text) => serde_json::from_str::<Value>(text)
                .is_ok_and(|body| body["object"] == "chat.completion" && body["choices"].is_array()),
            Answer::Stream(text) => text.contains("\"chat.completion.chunk\""),
        }
    }

    fn is_whole(&self, stream: &str) -> bool {
        // An error ends the stream, even before the end marker of an answer.
        chunks(stream).all(|chunk| chunk["error"].is_null())
            && (stream.contains("[DONE]")
                || chunks(stream).any(|chunk| chunk["choices"][0]["finish_reason"].is_string()))
    }

    fn oracle(&self, stream: &str) -> Value {
        naive_fold(stream)
    }

    fn essence(&self, body: &Value) -> Value {
        let choices = body["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_first = |choice: &&Value| choice["index"].as_u64().unwrap_or_default() == 0;
        let first = choices.iter().find(is_first).cloned().unwrap_or_default();
        essence(&body["id"], &first["message"], &first["finish_reason"], &body["usage"])
    }

    fn items(&self, essence: &Value) -> Vec<Value> {
        let message = &essence["message"];
        let says = |(name, value): (&String, &Value)| name != "role" && !is_silent(value);
        let is_there = message.as_object().is_some_and(|message| message.iter().any(says));
        is_there.then(|| message.clone()).into_iter().collect()
    }

    fn expected(&self, essence: &Value, changes: &mut Vec<String>) -> Vec<Value> {
        let mut items = self.items(essence);
        // Generated ids contain the last letters and digits of the answer's id.
        let id = essence["id"].as_str().unwrap_or_default();
        let end: Vec<char> = id.chars().rev().filter(char::is_ascii_alphanumeric).take(12).collect();
        let end: String = end.into_iter().rev().collect();
        for item in &mut items {
            for (number, call) in item["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
                if call["id"].as_str().unwrap_or_default().is_empty() && call["function"]["name"].is_string()
                {
                    changes.push("a call without an id gets a generated id for its result".into());
                    call["id"] = format!("call_{end}_{number}").into();
                }
            }
        }
        items
    }

    fn sent(&self, body: &Value) -> Vec<Value> {
        let messages = body["messages"].as_array().into_iter().flatten();
        messages.filter(|message| message["role"] == "assistant").cloned().collect()
    }

    /// Removes empty members.
    fn piece(&self, item: &Value) -> Value {
        let mut item = item.clone();
        if let Some(members) = item.as_object_mut() {
            members.retain(|_, value| !is_silent(value));
        }
        item
    }

    fn request_with(&self, items: Vec<Value>) -> Value {
        let said = |text: &str| json!({"role": "user", "content": text});
        let messages: Vec<Value> =
            std::iter::once(said("before")).chain(items).chain([said("behind")]).collect();
        json!({ "messages": messages })
    }

    fn noise(&self) -> Vec<String> {
        vec![
            json!({"object": "brand.new", "payload": {"x": [1.0, null]}}).to_string(),
            json!({"choices": [{"index": 1, "delta": {"content": "another answer"}}]}).to_string(),
        ]
    }

    fn units(&self, body: &Value) -> Option<Vec<Unit>> {
        body["messages"].as_array()?;
        let body = normal(body);
        let units = body["messages"]
            .as_array()?
            .iter()
            .map(|message| Unit { is_models: message["role"] == "assistant", value: message.clone() });
        Some(units.collect())
    }

    fn request(&self, body: &Value) -> Option<Request> {
        body["messages"].as_array()?;
        // Azure has the model in the address, not in the body.
        body["model"].as_str()?;
        Some(request_of(body))
    }

    fn normal(&self, body: &Value) -> Value {
        normal(body)
    }
}

/// The compared part of an answer.
fn essence(id: &Value, message: &Value, reason: &Value, usage: &Value) -> Value {
    json!({"id": id, "message": message, "finish_reason": reason, "usage": usage})
}

/// Whether a member is empty.
fn is_silent(value: &Value) -> bool {
    value.is_null() || *value == "" || *value == json!([]) || *value == json!({})
}

fn chunks(stream: &str) -> impl Iterator<Item = Value> {
    stream
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter(|data| data.trim() != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("a recorded event is JSON"))
}

/// A simple fold over plain JSON, the reference for Toolpost's fold.
fn naive_fold(stream: &str) -> Value {
    let mut message = json!({"role": "assistant"});
    let mut calls: Vec<(Option<u64>, Value)> = Vec::new();
    let (mut id, mut reason, mut usage) = (Value::Null, Value::Null, Value::Null);
    for chunk in chunks(stream) {
        if is_silent(&id) {
            id = chunk["id"].clone();
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        // The first choice is the answer.
        let Some(choices) = chunk["choices"].as_array() else { continue };
        let Some(first) = choices.iter().find(|choice| choice["index"].as_u64().unwrap_or_default() == 0)
        else {
            continue;
        };
        if first["finish_reason"].is_string() {
            reason = first["finish_reason"].clone();
        }
        let Some(delta) = first["delta"].as_object() else { continue };
        for (name, value) in delta {
            if name == "tool_calls" {
                for part in value.as_array().into_iter().flatten() {
                    let place = call_of(&calls, part).unwrap_or_else(|| {
                        calls.push((part["index"].as_u64(), json!({"function": {"arguments": ""}})));
                        calls.len() - 1
                    });
                    grow(&mut calls[place].1, part);
                }
            } else {
                grow(&mut message, &json!({name: value}));
            }
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into_iter().map(|(_, call)| call).collect();
    }
    essence(&id, &message, &reason, &usage)
}

/// The call that a fragment extends: the latest with its index and no other id, else the one with its id, else the last
/// one if the fragment has no name.
fn call_of(calls: &[(Option<u64>, Value)], part: &Value) -> Option<usize> {
    let id_of = |value: &Value| value["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    let id = id_of(part);
    let place = match (part["index"].as_u64(), &id) {
        (Some(index), _) => calls.iter().rposition(|(known, _)| *known == Some(index)),
        (None, Some(_)) => calls.iter().rposition(|(_, call)| id_of(call) == id),
        (None, None) if part["function"]["name"].as_str().is_some_and(|name| !name.is_empty()) => None,
        (None, None) => calls.len().checked_sub(1),
    };
    place.filter(|place| {
        let known = id_of(&calls[*place].1);
        known.is_none() || id.is_none() || known == id
    })
}

/// Appends texts and lists, merges objects, and ignores `null`.
fn grow(ours: &mut Value, delta: &Value) {
    for (name, value) in delta.as_object().expect("a delta is an object") {
        if ["index", "role", "channel"].contains(&name.as_str()) {
            continue;
        }
        match (ours.get_mut(name), value) {
            (None, value) => ours[name] = value.clone(),
            (Some(_), Value::Null) => {}
            (Some(Value::String(_)), Value::String(new)) if name == "id" && new.is_empty() => {}
            // A name is complete, and some servers repeat it.
            (Some(Value::String(old)), Value::String(new)) if name == "name" && old == new => {}
            (Some(Value::String(old)), Value::String(new)) if name != "id" && name != "type" => {
                old.push_str(new);
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                for part in new {
                    grow_list(old, part);
                }
            }
            // A content list stays a list.
            (Some(Value::Array(old)), Value::String(text)) if name == "content" => {
                if !text.is_empty() {
                    grow_list(old, &json!({"type": "text", "text": text}));
                }
            }
            (Some(old @ Value::Object(_)), new @ Value::Object(_)) => grow(old, new),
            (Some(old), new) => *old = new.clone(),
        }
    }
}

/// A part extends the last one if both have one index, or if both are text or thinking only.
fn grow_list(parts: &mut Vec<Value>, part: &Value) {
    let only = |value: &Value, names: &[&str]| {
        value.as_object().is_some_and(|members| members.keys().all(|name| names.contains(&name.as_str())))
    };
    let Some(last) = parts.last_mut().filter(|last| last["type"] == part["type"]) else {
        return parts.push(part.clone());
    };
    if only(last, &["type", "text"]) && only(part, &["type", "text"]) && part["type"] == "text" {
        let text = [last["text"].as_str().unwrap(), part["text"].as_str().unwrap()].concat();
        last["text"] = text.into();
    } else if part["type"] == "thinking"
        && only(last, &["type", "thinking", "closed"])
        && only(part, &["type", "thinking", "closed"])
    {
        let thoughts = part["thinking"].as_array().expect("a list of texts").clone();
        let ours = last["thinking"].as_array_mut().expect("a list of texts");
        for thought in &thoughts {
            grow_list(ours, thought);
        }
        if let Some(closed) = part.get("closed") {
            last["closed"] = closed.clone();
        }
    } else if part["index"].is_u64() && part["index"] == last["index"] {
        for (name, value) in part.as_object().expect("a part is an object") {
            match (last[name].as_str(), value.as_str()) {
                (Some(old), Some(new)) if ["text", "summary", "data"].contains(&name.as_str()) => {
                    last[name] = [old, new].concat().into();
                }
                _ if value.is_null() && last.get(name).is_some() => {}
                _ => last[name] = value.clone(),
            }
        }
    } else {
        parts.push(part.clone());
    }
}

/// Normalizes equivalent forms.
fn normal(body: &Value) -> Value {
    let mut body = body.clone();
    let members = body.as_object_mut().expect("a body is an object");
    // Null and an empty list of tools equal absent.
    members.retain(|name, value| !value.is_null() && (name != "tools" || *value != json!([])));
    // A tool choice needs tools.
    if !members.contains_key("tools") {
        members.shift_remove("tool_choice");
    }
    if members.get("stream") == Some(&Value::Bool(false)) {
        members.shift_remove("stream");
    }
    // Toolpost always requests the usage of a stream.
    members.shift_remove("stream_options");
    if let Some(limit) = members.shift_remove("max_completion_tokens") {
        members.insert("max_tokens".to_owned(), limit);
    }
    if let Some(Value::String(stop)) = members.get("stop").cloned() {
        members.insert("stop".to_owned(), json!([stop]));
    }
    for name in ["temperature", "top_p"] {
        if let Some(value) = members.get(name).and_then(Value::as_f64) {
            members.insert(name.to_owned(), json!(value));
        }
    }
    for message in body["messages"].as_array_mut().expect("a list of messages") {
        let message = message.as_object_mut().expect("a message is an object");
        if message.get("role") == Some(&json!("developer")) {
            message.insert("role".to_owned(), json!("system"));
        }
        let texts = message.get("content").and_then(Value::as_array).and_then(|parts| {
            let texts =
                parts.iter().map(|part| (part["type"] == "text").then(|| part["text"].as_str()).flatten());
            texts.collect::<Option<Vec<&str>>>().map(|texts| texts.join("\n"))
        });
        if let Some(text) = texts {
            message.insert("content".to_owned(), text.into());
        }
        // A client may send a refusal back as text.
        if !message.get("content").is_some_and(|content| content.is_string() && content != "")
            && let Some(refusal) = message.shift_remove("refusal")
        {
            message.insert("content".to_owned(), refusal);
        }
        // Empty members.
        message.retain(|_, value| !value.is_null() && value != "" && value != &json!([]));
    }
    // Empty messages.
    let messages = body["messages"].as_array_mut().expect("a list of messages");
    messages.retain(|message| message.as_object().is_some_and(|members| members.len() > 1));
    // Empty descriptions and `$schema`.
    for tool in body.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut)
            && function.get("description") == Some(&json!(""))
        {
            function.shift_remove("description");
        }
    }
    if let Some(schema) =
        body.pointer_mut("/response_format/json_schema/schema").and_then(Value::as_object_mut)
    {
        schema.shift_remove("$schema");
    }
    sort_required(&mut body);
    body
}

/// Sorts `required`.
fn sort_required(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(sort_required),
        Value::Object(members) => {
            if let Some(Value::Array(names)) = members.get_mut("required") {
                names.sort_by_key(ToString::to_string);
            }
            members.values_mut().for_each(sort_required);
        }
        _ => {}
    }
}

/// Rebuilds a recorded body with Toolpost's types. Members without a type become provider options.
fn request_of(body: &Value) -> Request {
    let mut request = Request::default();
    for (name, value) in body.as_object().unwrap().iter().filter(|(_, value)| !value.is_null()) {
        let settings = &mut request.settings;
        match name.as_str() {
            "model" | "stream" | "stream_options" => {}
            "messages" => conversation(value.as_array().unwrap(), &mut request),
            "max_tokens" | "max_completion_tokens" => {
                settings.max_output_tokens = value.as_u64().map(|number| number as u32);
            }
            "temperature" if value.is_number() => settings.temperature = value.as_f64(),
            "top_p" if value.is_number() => settings.top_p = value.as_f64(),
            "seed" if value.is_u64() => settings.seed = value.as_u64(),
            "stop" => {
                settings.stop = match value {
                    Value::String(text) => vec![text.clone()],
                    other => serde_json::from_value(other.clone()).unwrap(),
                };
            }
            "reasoning_effort" => match serde_json::from_value::<Effort>(value.clone()) {
                Ok(effort) => settings.effort = Some(effort),
                Err(_) => {
                    request.provider_options.insert(name.clone(), value.clone());
                }
            },
            "parallel_tool_calls" => settings.parallel_tool_calls = value.as_bool(),
            "tool_choice" => {
                let name = value["function"]["name"].as_str().unwrap_or_default();
                request.tool_choice = match value.as_str() {
                    Some("auto") => Some(ToolChoice::Auto),
                    Some("required") => Some(ToolChoice::Any),
                    Some("none") => Some(ToolChoice::None),
                    None if *value == json!({"type": "function", "function": {"name": name}}) => {
                        Some(ToolChoice::Tool(name.into()))
                    }
                    _ => {
                        request.provider_options.insert("tool_choice".into(), value.clone());
                        None
                    }
                };
            }
            "response_format" => {
                let format = &value["json_schema"];
                match value["type"].as_str() {
                    Some("json_object") => settings.output = Some(OutputFormat::Json),
                    Some("json_schema")
                        if format["strict"] == true && format.as_object().unwrap().len() == 3 =>
                    {
                        settings.output = Some(OutputFormat::Schema {
                            name: format["name"].as_str().unwrap().to_owned(),
                            schema: (&format["schema"]).into(),
                        });
                    }
                    _ => {
                        request.provider_options.insert(name.clone(), value.clone());
                    }
                }
            }
            "tools" => {
                let tools = value.as_array().unwrap();
                match tools.iter().map(definition).collect::<Option<Vec<_>>>() {
                    Some(definitions) => request.tools = definitions.into(),
                    None => {
                        request.provider_options.insert(name.clone(), value.clone());
                    }
                }
            }
            _ => {
                request.provider_options.insert(name.clone(), value.clone());
            }
        }
    }
    request
}

fn conversation(list: &[Value], request: &mut Request) {
    let mut rest = list;
    if let [first, others @ ..] = list
        && first["role"] == "system"
        && first["content"].is_string()
    {
        request.system = first["content"].as_str().map(str::to_owned);
        rest = others;
    }
    // Further leading instructions become messages.
    while let [first, others @ ..] = rest
        && ["system", "developer"].iter().any(|role| first["role"] == *role)
    {
        let read = messages::import(&json!([first])).unwrap();
        request.turns.extend(read.system.map(|text| Turn::System(vec![Part::text(text)])));
        request.turns.extend(read.turns);
        rest = others;
    }
    request.turns.extend(messages::import(&Value::from(rest)).unwrap().turns);
    // Some servers accept images in tool results, as parts of their own format.
    let mut recorded = rest.iter().filter(|message| message["role"] == "tool");
    let results = request.turns.iter_mut().filter_map(|turn| match turn {
        Turn::ToolResults(results) => Some(results),
        _ => None,
    });
    for result in results.flatten() {
        let content = recorded.next().and_then(|message| message["content"].as_array());
        for (part, raw) in result.content.iter_mut().zip(content.into_iter().flatten()) {
            if !matches!(part, Part::Text(_)) {
                *part = Part::Raw(raw.into());
            }
        }
    }
}

fn definition(tool: &Value) -> Option<ToolDefinition> {
    if tool.as_object()?.len() != 2 {
        return None;
    }
    let mut function: Map<String, Value> = tool.get("function")?.as_object()?.clone();
    let name = function.shift_remove("name")?;
    let description = function.shift_remove("description").unwrap_or_default();
    let schema = function.shift_remove("parameters")?;
    let mut definition =
        ToolDefinition::new(name.as_str()?, description.as_str().unwrap_or_default(), &schema);
    if function.get("strict") == Some(&Value::Bool(true)) {
        function.shift_remove("strict");
        definition.strict = true;
    }
    definition.provider_options = function;
    Some(definition)
}
