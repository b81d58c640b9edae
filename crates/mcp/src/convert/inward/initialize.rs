//! Repairs the result of `initialize`.

use rmcp::model::{Implementation, ServerCapabilities};
use serde_json::{Map, Value, json};

use super::notes::Notes;
use super::{plain, shortened};

/// The version of a server that names none: the first one with `initialize`.
const FIRST_VERSION: &str = "2024-11-05";

/// The result of `initialize` in the form that rmcp reads. A part that is missing or invalid is replaced by an empty one.
///
/// # Errors
/// The result is not an object.
pub(crate) fn initialized(result: Value, notes: &mut Notes) -> Result<Value, String> {
    let Value::Object(mut fields) = result else {
        let found = shortened(&result.to_string(), 200);
        return Err(format!("the result of `initialize` is not an object: {found}"));
    };
    let version = match fields.shift_remove("protocolVersion") {
        Some(Value::String(version)) => version,
        other => {
            let found = other.map_or("nothing".to_owned(), |other| shortened(&other.to_string(), 80));
            notes.add(format!("`protocolVersion` is {found}; {FIRST_VERSION} is assumed"));
            FIRST_VERSION.to_owned()
        }
    };
    let capabilities = match fields.shift_remove("capabilities") {
        Some(Value::Object(capabilities)) => capabilities,
        None | Some(Value::Null) => {
            notes.add("`capabilities` is missing; tools are assumed");
            Map::from_iter([("tools".to_owned(), json!({}))])
        }
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str);
            names.map(|name| (name.to_owned(), json!({}))).collect()
        }
        Some(other) => {
            notes.add(format!("ignored `capabilities` {}", shortened(&other.to_string(), 200)));
            Map::new()
        }
    };
    let mut result = json!({
        "protocolVersion": version,
        "capabilities": self::capabilities(capabilities, notes),
        "serverInfo": server_info(fields.shift_remove("serverInfo"), notes),
    });
    match fields.shift_remove("instructions") {
        None | Some(Value::Null) => {}
        Some(instructions) => result["instructions"] = plain(&instructions).into(),
    }
    match fields.shift_remove("_meta") {
        Some(meta @ Value::Object(_)) => result["_meta"] = meta,
        None | Some(Value::Null) => {}
        Some(other) => notes.add(format!("ignored `_meta` {}", shortened(&other.to_string(), 200))),
    }
    Ok(result)
}

/// The capabilities that rmcp reads: `true` and an empty list are an empty object.
fn capabilities(found: Map<String, Value>, notes: &mut Notes) -> Map<String, Value> {
    let mut known = Map::new();
    for (name, value) in found {
        let mut value = match value {
            Value::Null | Value::Bool(false) => continue,
            Value::Object(fields) => fields,
            Value::Bool(true) => Map::new(),
            Value::Array(items) if items.is_empty() => Map::new(),
            other => {
                notes.add(format!("the capability `{name}` is {}", shortened(&other.to_string(), 80)));
                Map::new()
            }
        };
        let is_readable = |value: &Map<String, Value>| {
            serde_json::from_value::<ServerCapabilities>(json!({ name.as_str(): value })).is_ok()
        };
        if !is_readable(&value) {
            for flag in value.values_mut() {
                *flag = match &*flag {
                    Value::String(text) => matches!(text.as_str(), "true" | "yes").into(),
                    flag => (*flag == 1 || *flag == true).into(),
                };
            }
            notes.add(format!("the capability `{name}` has an invalid member"));
            if !is_readable(&value) {
                value.clear();
            }
        }
        known.insert(name, value.into());
    }
    known
}

/// The name and version of the server. Other members are dropped if one of them is invalid.
fn server_info(found: Option<Value>, notes: &mut Notes) -> Value {
    let mut fields = match found {
        Some(Value::Object(fields)) => fields,
        Some(Value::String(name)) => Map::from_iter([("name".to_owned(), name.into())]),
        _ => Map::new(),
    };
    for (key, missing) in [("name", "unknown"), ("version", "unknown")] {
        match fields.get(key) {
            Some(Value::String(_)) => {}
            None | Some(Value::Null) => {
                notes.add(format!("`serverInfo.{key}` is missing"));
                fields.insert(key.to_owned(), missing.into());
            }
            Some(other) => {
                let text = plain(other);
                fields.insert(key.to_owned(), text.into());
            }
        }
    }
    if serde_json::from_value::<Implementation>(json!(fields)).is_ok() {
        return fields.into();
    }
    fields.retain(|key, value| {
        let is_good = ["name", "version"].contains(&key.as_str())
            || serde_json::from_value::<Implementation>(
                json!({ "name": "a", "version": "1", key.as_str(): value }),
            )
            .is_ok();
        if !is_good {
            notes.add(format!("ignored `serverInfo.{key}` {}", shortened(&value.to_string(), 200)));
        }
        is_good
    });
    fields.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::InitializeResult;

    fn without(key: &str) -> Value {
        let mut whole = whole();
        whole.as_object_mut().unwrap().shift_remove(key);
        whole
    }

    fn whole() -> Value {
        json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
            "serverInfo": { "name": "s", "version": "1" } })
    }

    fn with(key: &str, value: Value) -> Value {
        let mut whole = whole();
        whole[key] = value;
        whole
    }

    #[test]
    fn a_server_with_a_deviating_initialize_result_is_connected() {
        let info = |more: Value| {
            let mut info = whole();
            info["serverInfo"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            info
        };
        for (result, noted) in [
            (whole(), ""),
            (without("serverInfo"), "serverInfo.name"),
            (with("serverInfo", json!({ "name": "s" })), "serverInfo.version"),
            (with("serverInfo", json!({ "name": "s", "version": 2 })), ""),
            (with("serverInfo", json!("s")), "serverInfo.version"),
            (without("capabilities"), "capabilities"),
            (with("capabilities", Value::Null), "capabilities"),
            (with("capabilities", json!(["tools"])), ""),
            (with("capabilities", json!({ "tools": true })), ""),
            (with("capabilities", json!({ "tools": [] })), ""),
            (with("capabilities", json!({ "tools": { "listChanged": "yes" }, "logging": [] })), "`tools`"),
            (with("capabilities", json!({ "tools": { "listChanged": 1 }, "resources": null })), "`tools`"),
            (with("capabilities", json!({ "tools": "all" })), "`tools`"),
            (without("protocolVersion"), "protocolVersion"),
            (with("protocolVersion", json!(20_250_618)), "protocolVersion"),
            (info(json!({ "icons": [{ "src": "x", "theme": "sepia" }] })), "icons"),
            (info(json!({ "icons": "x.png", "title": "S" })), "icons"),
            (info(json!({ "title": 5 })), "title"),
            (with("instructions", Value::Null), ""),
            (with("instructions", json!(["Call `a` first."])), ""),
            (with("_meta", json!([])), "_meta"),
        ] {
            let shown = result.to_string();
            let mut notes = Notes::default();
            let repaired = initialized(result, &mut notes).unwrap();
            let read: InitializeResult =
                serde_json::from_value(repaired).unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert!(read.capabilities.tools.is_some(), "{shown}");
            let notes = notes.text().unwrap_or_default();
            assert!(notes.contains(noted) && notes.is_empty() == noted.is_empty(), "{shown}: {notes}");
        }
        for result in [json!(null), json!("ok"), json!([])] {
            assert!(initialized(result, &mut Notes::default()).unwrap_err().contains("not an object"));
        }
    }
}
