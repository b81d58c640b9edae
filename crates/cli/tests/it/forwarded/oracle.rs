//! Compares what a server sends with what arrives behind a gateway, up to the names of the namespace.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::generated::Server;

/// The names and URIs behind the gateway, by those of the server.
#[derive(Clone, Debug)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    /// Reads the names from the lists behind the gateway, which have the order of the server.
    pub(super) fn of(server: &Server, listed: &[Value]) -> Self {
        let mut names = HashMap::new();
        let lists = [
            (&server.tools, "tools", "name"),
            (&server.resources, "resources", "uri"),
            (&server.templates, "resourceTemplates", "uriTemplate"),
            (&server.prompts, "prompts", "name"),
        ];
        for ((items, list, key), through) in lists.into_iter().zip(listed) {
            let through = through[list].as_array().cloned().unwrap_or_default();
            assert_eq!(items.len(), through.len(), "the list `{list}` has other items: {through:?}");
            for (item, through) in items.iter().zip(&through) {
                let (direct, outer) = (item[key].as_str().unwrap(), through[key].as_str().unwrap());
                let last = direct.rsplit('/').next().unwrap_or(direct);
                assert!(outer.ends_with(last), "`{direct}` became `{outer}`");
                assert_eq!(
                    direct.starts_with("ui://"),
                    outer.starts_with("ui://"),
                    "`{direct}` became `{outer}`"
                );
                names.insert(direct.to_owned(), outer.to_owned());
            }
        }
        Self(names)
    }

    fn outer(&self, direct: &str) -> String {
        self.0.get(direct).cloned().unwrap_or_else(|| direct.to_owned())
    }

    /// A request to the server as one to the gateway.
    pub(super) fn request(&self, direct: &Value) -> Value {
        let mut request = direct.clone();
        for key in ["name", "uri"] {
            if let Some(name) = direct[key].as_str() {
                request[key] = self.outer(name).into();
            }
        }
        request
    }
}

/// Members that a gateway may add, with their value; `None` allows any value.
fn may_add(place: &str, value: &Value, direct_parent: &Value, through_parent: &Value) -> bool {
    let key = place.rsplit('/').next().unwrap_or_default();
    match key {
        // The members of the protocol version of the client.
        "resultType" | "ttlMs" | "cacheScope" => place.matches('/').count() == 1,
        "isError" => *value == false,
        // The default of the hint, and a copy of the title.
        "openWorldHint" => *value == true,
        "title" => {
            place.ends_with("annotations/title")
                || through_parent.pointer("/annotations/title") == Some(value)
        }
        "annotations" => {
            let added = |(key, value): (&String, &Value)| match key.as_str() {
                "openWorldHint" => *value == true,
                "title" => Some(value) == through_parent.get("title"),
                _ => false,
            };
            value.as_object().is_some_and(|hints| hints.iter().all(added))
        }
        // The summary of a prompt stands for a missing description.
        "description" => {
            direct_parent.get("messages").is_some() || direct_parent.get("name").is_some() && *value == ""
        }
        "_meta" => value.as_object().is_some_and(|meta| meta.keys().all(|key| is_own(key))),
        key => is_own(key),
    }
}

/// Whether a member of a meta is of the gateway. A pointer has `~1` for `/`.
fn is_own(key: &str) -> bool {
    ["toolpost", "anthropic", "io.modelcontextprotocol"]
        .iter()
        .any(|own| key.starts_with(&format!("{own}/")) || key.starts_with(&format!("{own}~1")))
}

/// The places where `through` has lost or changed a part of `direct`.
pub(super) fn differences(direct: &Value, through: &Value, names: &Names) -> Vec<String> {
    let mut found = Vec::new();
    compare("", direct, through, names, &mut found);
    found
}

fn compare(place: &str, direct: &Value, through: &Value, names: &Names, found: &mut Vec<String>) {
    match (direct, through) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                let place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
                match b.get(key) {
                    Some(other) => compare(&place, value, other, names, found),
                    // Defaults of the protocol.
                    None if key == "required" && *value == false => {}
                    None if ["readOnlyHint", "idempotentHint"].contains(&key.as_str()) && *value == false => {
                    }
                    None if key == "openWorldHint" && *value == true => {}
                    None if key == "annotations" && is_default(value, direct) => {}
                    None => found.push(format!("{place} is lost: {value}")),
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                let place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
                if !may_add(&place, value, direct, through) {
                    found.push(format!("{place} is invented: {value}"));
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{place}/{index}"), a, b, names, found);
            }
        }
        (Value::String(a), Value::String(b)) if *b == *a || *b == names.outer(a) && is_name(place) => {}
        // Numbers are equal by value.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        (a, b) if a == b => {}
        (a, b) => found.push(format!("{place} is changed: {a} to {b}")),
    }
}

fn is_default(hints: &Value, tool: &Value) -> bool {
    hints.as_object().into_iter().flatten().all(|(key, value)| match key.as_str() {
        "readOnlyHint" | "idempotentHint" => *value == false,
        "openWorldHint" => *value == true,
        "title" => Some(value) == tool.get("title"),
        _ => false,
    })
}

/// Whether a member holds a name or a URI.
fn is_name(place: &str) -> bool {
    let key = place.rsplit('/').next().unwrap_or_default();
    ["name", "uri", "uriTemplate", "resourceUri"].contains(&key)
}

/// The pointers of all members and elements.
pub(super) fn members(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(value, "", &mut found);
    found
}

fn collect(value: &Value, place: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    for (key, value) in inner {
        let place = format!("{place}/{key}");
        collect(value, &place, found);
        found.push(place);
    }
}

/// Whether the gateway added a member, or one around it.
pub(super) fn is_added(direct: &Value, through: &Value, place: &str, names: &Names) -> bool {
    let is_missing = direct.pointer(place).is_none();
    let is_default = || differences(direct, &without(through, place), names).is_empty();
    is_missing
        || (["required", "readOnlyHint", "idempotentHint", "openWorldHint"]
            .iter()
            .any(|key| place.ends_with(key))
            && is_default())
}

/// A value without the member or element at a place.
pub(super) fn without(value: &Value, place: &str) -> Value {
    let mut value = value.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&key.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
        _ => {}
    }
    value
}

/// A value with another member or element at a place.
pub(super) fn changed(value: &Value, place: &str) -> Value {
    let mut value = value.clone();
    if let Some(member) = value.pointer_mut(place) {
        *member = json!({ "changed": true });
    }
    value
}
