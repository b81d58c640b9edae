//! Converts content blocks part by part: a known part passes as it is, any other part becomes text with a note.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::ContentBlock;
use serde_json::{Map, Value, json};
use toolpost_core::{Artifact, Content, Forwarded, ForwardedBlock, Output};

use super::notes::Notes;
use super::shortened;

/// The longest media type, in characters.
const MAX_MEDIA_TYPE: usize = 2_000;
/// The media type of bytes of an unknown kind.
const BYTES: &str = "application/octet-stream";
/// The first digits of the base64 form of images, with their types.
const IMAGE_HEADS: [(&str, &str); 4] =
    [("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp")];

/// Collects the content of a result.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) output: Output,
    forwarded: Forwarded,
    /// The number of blocks, for the names in notes.
    count: usize,
}

impl Blocks {
    /// The output, with the members of the whole result that servers forward.
    pub(super) fn finish(mut self, members: Map<String, Value>, notes: &Notes) -> Output {
        notes.append_to(&mut self.output);
        self.forwarded.members = members;
        if self.forwarded != Forwarded::default() {
            self.output.forwarded = Some(Box::new(self.forwarded));
        }
        self.output
    }

    /// Adds content of any form: a list of blocks, one block, or a text.
    pub(super) fn add_all(&mut self, content: Value, notes: &mut Notes) {
        match content {
            Value::Null => {}
            Value::Array(blocks) => blocks.into_iter().for_each(|block| self.add(block, notes)),
            block => self.add(block, notes),
        }
    }

    /// Adds one block.
    pub(super) fn add(&mut self, block: Value, notes: &mut Notes) {
        self.count += 1;
        let place = format!("content block {}", self.count);
        for block in known_blocks(block, &place, notes) {
            self.add_known(block);
        }
    }

    /// Adds one item of read contents.
    pub(super) fn add_contents(&mut self, contents: Value, uri: &str, notes: &mut Notes) {
        self.count += 1;
        let place = format!("item {} of the contents", self.count);
        let mut resource = match contents {
            Value::Object(fields) => fields,
            Value::Null => return,
            Value::String(text) => Map::from_iter([("text".to_owned(), text.into())]),
            other => Map::from_iter([("text".to_owned(), other.to_string().into())]),
        };
        if !resource.get("uri").is_some_and(Value::is_string) {
            resource.insert("uri".to_owned(), uri.into());
        }
        for resource in resources(resource, &place, notes) {
            let block = json!({ "type": "resource", "resource": resource });
            self.add_known(block.as_object().cloned().unwrap_or_default());
        }
    }

    /// Adds a block that the types of rmcp accept.
    pub(super) fn add_known(&mut self, mut block: Map<String, Value>) {
        let position = self.output.content.len();
        let mut forwarded = ForwardedBlock { position, uri: None, data: None, members: Map::new() };
        let take = |fields: &mut Map<String, Value>, key: &str| match fields.shift_remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        // Without further members, the content alone is the block.
        let is_plain = |block: &Map<String, Value>| block.len() == 1;
        match kind.as_str() {
            "text" => {
                let text = take(&mut block, "text").unwrap_or_default();
                self.output.content.push(Content::Text { text });
            }
            "image" | "audio" => {
                let data = take(&mut block, "data").unwrap_or_default();
                let media_type = take(&mut block, "mimeType").unwrap_or_else(|| BYTES.to_owned());
                self.output.content.push(media(&kind, shortened(&media_type, MAX_MEDIA_TYPE), data));
            }
            "resource_link" => {
                let uri = take(&mut block, "uri").unwrap_or_default();
                let media_type = block.get("mimeType").and_then(Value::as_str).unwrap_or(BYTES).to_owned();
                self.output.content.push(Content::Resource { uri, media_type, text: None });
            }
            _ => {
                let Some(Value::Object(resource)) = block.get_mut("resource") else { return };
                let uri = take(resource, "uri").unwrap_or_default();
                let media_type = resource.get("mimeType").and_then(Value::as_str).map(str::to_owned);
                match (take(resource, "text"), take(resource, "blob")) {
                    (Some(text), _) => {
                        let media_type = media_type.unwrap_or_else(|| "text/plain".to_owned());
                        self.output.content.push(Content::Resource { uri, media_type, text: Some(text) });
                    }
                    (None, blob) => {
                        let media_type = media_type.unwrap_or_else(|| BYTES.to_owned());
                        let blob = blob.unwrap_or_default();
                        self.add_blob(&mut forwarded, uri, media_type, blob);
                    }
                }
            }
        }
        if kind == "resource" || !is_plain(&block) {
            forwarded.members = block;
            self.forwarded.blocks.push(forwarded);
        }
    }

    /// Adds the bytes of a resource: media are content, other bytes an artifact.
    fn add_blob(&mut self, forwarded: &mut ForwardedBlock, uri: String, media_type: String, blob: String) {
        let kind = media_type.split('/').next().unwrap_or_default();
        if kind == "image" || kind == "audio" {
            self.output.content.push(media(kind, shortened(&media_type, MAX_MEDIA_TYPE), blob));
            forwarded.uri = Some(uri);
            return;
        }
        if let Ok(bytes) = BASE64_STANDARD.decode(&blob) {
            let name = file_name(&uri, self.output.artifacts.len());
            self.output.artifacts.push(Artifact::from_bytes(name, media_type.clone(), bytes));
        }
        forwarded.data = Some(blob);
        self.output.content.push(Content::Resource { uri, media_type, text: None });
    }
}

fn media(kind: &str, media_type: String, data: String) -> Content {
    if kind == "image" { Content::Image { media_type, data } } else { Content::Audio { media_type, data } }
}

/// A file name for a URI: its last path segment, sanitized.
fn file_name(uri: &str, index: usize) -> String {
    let last = uri.rsplit(['/', ':', '\\']).next().unwrap_or_default();
    let plain: String = last
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_'))
        .take(100)
        .collect();
    let plain = plain.trim_start_matches('.');
    if plain.is_empty() { format!("resource-{}", index + 1) } else { format!("{}-{plain}", index + 1) }
}

/// The block in a form that the types of rmcp accept: none if it holds nothing, two if it holds a text and bytes.
pub(super) fn known_blocks(block: Value, place: &str, notes: &mut Notes) -> Vec<Map<String, Value>> {
    let block = match block {
        Value::Null => return Vec::new(),
        Value::Object(fields) if is_known(&fields) => return vec![fields],
        Value::Object(fields) => fields,
        other => return vec![text_block(&plain(&other))],
    };
    let original = block.clone();
    let Some(repaired) = repaired(block, place, notes) else { return vec![text_block(&shown(&original))] };
    if repaired.iter().all(is_known) {
        return repaired;
    }
    notes.add(format!("{place} is invalid and shown as JSON"));
    vec![text_block(&shown(&original))]
}

fn text_block(text: &str) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), "text".into()), ("text".to_owned(), text.into())])
}

/// Whether a block is of a known kind and loses no bytes when rmcp reads it.
fn is_known(block: &Map<String, Value>) -> bool {
    if let Some(resource) = block.get("resource").filter(|_| block.get("type") == Some(&json!("resource")))
        && !is_one_resource(resource)
    {
        return false;
    }
    serde_json::from_value::<ContentBlock>(Value::Object(without_payload(block))).is_ok()
}

/// A copy of a block in which each payload is empty.
fn without_payload(block: &Map<String, Value>) -> Map<String, Value> {
    let copy = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("text" | "data" | "blob", Value::String(_)) => Value::String(String::new()),
            ("resource", Value::Object(resource)) => Value::Object(without_payload(resource)),
            (_, value) => value.clone(),
        };
        (key.clone(), value)
    };
    block.iter().map(copy).collect()
}

/// Whether a resource has a text or valid bytes, not both.
fn is_one_resource(resource: &Value) -> bool {
    match (resource.get("text"), resource.get("blob")) {
        (Some(Value::String(_)), None) => true,
        (None, Some(Value::String(blob))) => BASE64_STANDARD.decode(blob).is_ok(),
        _ => false,
    }
}

/// A block that cannot be used, as text: its own text if it has one, else its JSON.
fn shown(block: &Map<String, Value>) -> String {
    let only_text = block.keys().all(|key| ["type", "text"].contains(&key.as_str()));
    match block.get("text").and_then(Value::as_str).filter(|_| only_text) {
        Some(text) => text.to_owned(),
        None => json!(block).to_string(),
    }
}

/// The block with repaired members: none if it holds nothing. `None` if its kind is unknown.
fn repaired(
    mut block: Map<String, Value>,
    place: &str,
    notes: &mut Notes,
) -> Option<Vec<Map<String, Value>>> {
    let Some(kind) = kind_of(&block) else {
        match block.get("type") {
            Some(kind) if !kind.is_null() => {
                let kind = shortened(&plain(kind), 80);
                notes.add(format!("{place} has the unknown type `{kind}` and is shown as text"));
            }
            _ => notes.add(format!("{place} has no type and is shown as JSON")),
        }
        return None;
    };
    block.insert("type".to_owned(), kind.into());
    repair_details(&mut block, place, notes);
    match kind {
        "text" => match block.shift_remove("text") {
            None | Some(Value::Null) => {
                if block.len() > 1 {
                    let rest = shortened(&json!(block).to_string(), 200);
                    notes.add(format!("{place} has no text: {rest}"));
                }
                return Some(Vec::new());
            }
            Some(text) => drop(block.insert("text".to_owned(), plain(&text).into())),
        },
        "image" | "audio" => return Some(repaired_media(block, kind, place, notes).into_iter().collect()),
        "resource_link" => repair_link(&mut block, place, notes),
        _ => {
            let resource = match block.shift_remove("resource") {
                Some(Value::Object(resource)) => resource,
                Some(Value::String(uri)) => Map::from_iter([("uri".to_owned(), uri.into())]),
                // The members of the resource may stand in the block.
                _ => {
                    let keys = ["uri", "mimeType", "text", "blob"];
                    let own =
                        keys.iter().filter_map(|key| Some(((*key).to_owned(), block.shift_remove(*key)?)));
                    own.collect()
                }
            };
            let wrapped = |resource| {
                let mut block = block.clone();
                block.insert("resource".to_owned(), resource);
                block
            };
            return Some(resources(resource, place, notes).into_iter().map(wrapped).collect());
        }
    }
    Some(vec![block])
}

/// The kind of a block, from its type in any spelling or from its members.
fn kind_of(block: &Map<String, Value>) -> Option<&'static str> {
    let has = |key: &str| block.get(key).is_some_and(|value| !value.is_null());
    let Some(Value::String(kind)) = block.get("type").filter(|kind| !kind.is_null()) else {
        let media = block.get("mimeType").and_then(Value::as_str).unwrap_or_default();
        return match block.get("type") {
            Some(kind) if !kind.is_null() => None,
            _ if has("resource") => Some("resource"),
            _ if has("data") => Some(if media.starts_with("audio/") { "audio" } else { "image" }),
            _ if has("text") => Some("text"),
            _ if has("uri") => Some("resource_link"),
            _ => None,
        };
    };
    let plain: String =
        kind.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    Some(match plain.as_str() {
        "text" => "text",
        "image" => "image",
        "audio" => "audio",
        "resource" | "embeddedresource" => "resource",
        "resourcelink" => "resource_link",
        _ => return None,
    })
}

/// An image or audio block with data and a media type; `None` if it has no data.
fn repaired_media(
    mut block: Map<String, Value>,
    kind: &str,
    place: &str,
    notes: &mut Notes,
) -> Option<Map<String, Value>> {
    let data = match block.shift_remove("data") {
        Some(Value::String(data)) => data,
        None | Some(Value::Null) => {
            let rest = shortened(&json!(block).to_string(), 200);
            notes.add(format!("{place} is of the type `{kind}` and has no data: {rest}"));
            return None;
        }
        Some(other) => {
            notes.add(format!("{place} has data that is not a text and is shown as JSON"));
            return Some(text_block(&json!({ "type": kind, "data": other }).to_string()));
        }
    };
    let url = data.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (url_type, data) = match url {
        Some((media_type, data)) => (Some(media_type.to_owned()), data.to_owned()),
        None => (None, data),
    };
    let mut given = None;
    for key in ["mimeType", "mime_type", "mediaType", "media_type"] {
        given = given.or(block.shift_remove(key).and_then(|name| name.as_str().map(str::to_owned)));
    }
    let head =
        IMAGE_HEADS.iter().find(|(head, _)| data.starts_with(head)).map(|(_, kind)| (*kind).to_owned());
    let media_type = given.or(url_type).or(head).unwrap_or_else(|| {
        notes.add(format!("{place} is of the type `{kind}` and has no `mimeType`"));
        BYTES.to_owned()
    });
    block.insert("data".to_owned(), data.into());
    block.insert("mimeType".to_owned(), media_type.into());
    Some(block)
}

/// Repairs the members of a link.
fn repair_link(link: &mut Map<String, Value>, place: &str, notes: &mut Notes) {
    let Some(uri) = link.get("uri").and_then(Value::as_str).map(str::to_owned) else { return };
    let name = match link.get("name") {
        None | Some(Value::Null) => {
            link.get("title").and_then(Value::as_str).unwrap_or_else(|| last_part(&uri)).to_owned()
        }
        Some(name) => plain(name),
    };
    link.insert("name".to_owned(), name.into());
    repair_listed(link, place, notes);
}

/// The last part of a URI, as a name.
pub(super) fn last_part(uri: &str) -> &str {
    uri.rsplit('/').find(|part| !part.is_empty()).unwrap_or(uri)
}

/// Repairs the members that resources, templates and links have beside their names.
pub(super) fn repair_listed(fields: &mut Map<String, Value>, place: &str, notes: &mut Notes) {
    for key in ["title", "description", "mimeType"] {
        match fields.get(key) {
            None | Some(Value::String(_)) => {}
            Some(Value::Null) => drop(fields.shift_remove(key)),
            Some(other) => {
                let text = plain(other);
                fields.insert(key.to_owned(), text.into());
            }
        }
    }
    let size = match fields.get("size") {
        None => None,
        Some(Value::Number(size)) => {
            Some(crate::convert::whole(size).and_then(|size| u64::try_from(size).ok()))
        }
        Some(Value::String(size)) => Some(size.trim().parse().ok()),
        Some(_) => Some(None),
    };
    match size {
        None => {}
        Some(Some(size)) => drop(fields.insert("size".to_owned(), size.into())),
        Some(None) => dropped(fields, "size", place, notes),
    }
    let is_icons = |icons: &Value| serde_json::from_value::<Vec<rmcp::model::Icon>>(icons.clone()).is_ok();
    if fields.get("icons").is_some_and(|icons| !is_icons(icons)) {
        dropped(fields, "icons", place, notes);
    }
}

/// Removes a member that cannot be used, with a note unless it is empty.
fn dropped(fields: &mut Map<String, Value>, key: &str, place: &str, notes: &mut Notes) {
    let Some(value) = fields.shift_remove(key) else { return };
    if !(value.is_null() || value == json!([]) || value == json!({}) || value == json!("")) {
        notes.add(format!("{place}: dropped the invalid `{key}` {}", shortened(&value.to_string(), 200)));
    }
}

/// Repairs `_meta` and `annotations`.
pub(super) fn repair_details(fields: &mut Map<String, Value>, place: &str, notes: &mut Notes) {
    if fields.get("_meta").is_some_and(|meta| !meta.is_object()) {
        dropped(fields, "_meta", place, notes);
    }
    let annotations = match fields.get_mut("annotations") {
        None => return,
        Some(Value::Object(annotations)) => annotations,
        Some(_) => return dropped(fields, "annotations", place, notes),
    };
    if let Some(audience) = annotations.shift_remove("audience") {
        let roles = match audience {
            Value::Array(roles) => roles,
            Value::Null => Vec::new(),
            role => vec![role],
        };
        let (known, unknown): (Vec<_>, Vec<_>) =
            roles.into_iter().partition(|role| *role == "user" || *role == "assistant");
        if !unknown.is_empty() {
            let unknown = shortened(&json!(unknown).to_string(), 200);
            notes.add(format!("{place}: dropped the unknown roles {unknown} of `audience`"));
        }
        if !known.is_empty() {
            annotations.insert("audience".to_owned(), known.into());
        }
    }
    if let Some(Value::String(text)) = annotations.get("priority")
        && let Some(priority) = text.trim().parse::<f64>().ok().filter(|priority| priority.is_finite())
    {
        annotations.insert("priority".to_owned(), priority.into());
    }
    if annotations.get("priority").is_some_and(|priority| !priority.is_number()) {
        dropped(annotations, "priority", place, notes);
    }
    if annotations.get("lastModified").is_some_and(|time| !time.is_string()) {
        dropped(annotations, "lastModified", place, notes);
    }
    if annotations.is_empty() {
        fields.shift_remove("annotations");
    }
}

/// The resources in one: text and bytes are two.
fn resources(mut resource: Map<String, Value>, place: &str, notes: &mut Notes) -> Vec<Value> {
    repair_details(&mut resource, place, notes);
    resource.retain(|_, value| !value.is_null());
    if !resource.get("uri").is_some_and(Value::is_string) {
        notes.add(format!("{place}: the resource has no `uri`"));
        resource.insert("uri".to_owned(), "".into());
    }
    match resource.get("mimeType") {
        None | Some(Value::String(_)) => {}
        Some(other) => {
            let text = plain(other);
            resource.insert("mimeType".to_owned(), text.into());
        }
    }
    let (text, blob) = (resource.shift_remove("text"), resource.shift_remove("blob"));
    let mut found = Vec::new();
    let mut push = |key: &str, value: Value| {
        let mut whole = resource.clone();
        whole.insert(key.to_owned(), value);
        found.push(Value::Object(whole));
    };
    match &blob {
        None => {}
        Some(Value::String(blob)) if BASE64_STANDARD.decode(blob).is_ok() => {
            push("blob", blob.as_str().into());
        }
        Some(blob) => {
            notes.add(format!("{place}: the bytes are not base64 and are shown as text"));
            push("text", plain(blob).into());
        }
    }
    match text {
        None if blob.is_some() => {}
        None => {
            notes.add(format!("{place}: the resource has neither text nor bytes"));
            push("text", "".into());
        }
        Some(text) => push("text", plain(&text).into()),
    }
    // The text first: without support for several resources, a caller reads the first one.
    found.reverse();
    found
}

/// A value as text: a text as it is, anything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
