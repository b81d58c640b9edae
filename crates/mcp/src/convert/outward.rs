//! Converts tools, outputs, errors, resources and prompts to MCP types.

use std::borrow::Cow;
use std::sync::Arc;

use super::{ERROR, FORWARDED, STATUS};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{
    CallToolResult, ContentBlock, GetPromptResult, JsonObject, MetaObject, Prompt, PromptArgument,
    PromptMessage, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role, Tool,
    ToolAnnotations,
};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use toolpost_core::{
    Annotations, Artifact, ArtifactData, Content, ForwardedBlock, Output, PromptSpec, ResourceSpec, Schema,
    Status, ToolError, ToolSpec,
};

/// The `_meta` key of a result for artifacts, without their bytes.
pub(crate) const ARTIFACTS: &str = "toolpost/artifacts";
/// Media types that clients show as images.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// The most images of one result, and their total size in bytes.
const MAX_IMAGES: usize = 10;
const MAX_IMAGE_BYTES: usize = 4 << 20;
/// Older clients get a non-object result in this property.
pub(crate) const WRAPPED: &str = "result";

/// Converts a tool. For older clients, which support only objects as structured results, other schemas are
/// wrapped.
pub(crate) fn tool(spec: &ToolSpec, hints: Map<String, Value>, is_legacy: bool) -> Tool {
    let mut tool = Tool::new_with_raw(
        Cow::Owned(spec.name.clone()),
        Some(Cow::Owned(spec.description.clone())),
        object(spec.input_schema.as_value()),
    );
    tool.title.clone_from(&spec.title);
    tool.output_schema = spec.output_schema.as_ref().map(|schema| {
        let schema = schema.as_value();
        if is_legacy && !is_object_schema(schema) { Arc::new(wrapped_schema(schema)) } else { object(schema) }
    });
    let declared = spec.annotations;
    // A false hint would promise what no author has declared: without one, clients expect a destructive tool.
    tool.annotations = Some(ToolAnnotations::from_raw(
        spec.title.clone(),
        declared.read_only.then_some(true),
        declared.destructive.then_some(true),
        declared.idempotent.then_some(true),
        declared.open_world.then_some(true),
    ));
    if let Some(sent) = forwarded(&spec.meta) {
        tool.icons = member(sent, "icons");
        let hints = member::<ToolAnnotations>(sent, "annotations");
        tool.annotations = hints.filter(|hints| declared == declared_by(hints)).or(tool.annotations);
    }
    let mut fields = own_meta(&spec.meta);
    fields.extend(hints);
    tool.meta = meta(fields);
    tool
}

/// The annotations that the hints of a server declare.
fn declared_by(hints: &ToolAnnotations) -> Annotations {
    let read_only = hints.read_only_hint == Some(true);
    Annotations {
        read_only,
        destructive: hints.destructive_hint == Some(true) && !read_only,
        idempotent: hints.idempotent_hint == Some(true),
        open_world: hints.open_world_hint != Some(false),
    }
}

/// The members of a foreign definition for which its spec has no field.
fn forwarded(meta: &Map<String, Value>) -> Option<&Map<String, Value>> {
    meta.get(FORWARDED)?.as_object()
}

/// A forwarded member that rmcp can send.
fn member<T: DeserializeOwned>(sent: &Map<String, Value>, key: &str) -> Option<T> {
    T::deserialize(sent.get(key)?).ok()
}

/// The meta entries for clients: those with a prefix, as MCP requires, and those that a foreign server sent without one.
/// All other entries are of Toolpost.
fn own_meta(meta: &Map<String, Value>) -> JsonObject {
    let sent = forwarded(meta).and_then(|sent| sent.get("_meta")?.as_object());
    let prefixed = meta.iter().filter(|(key, _)| key.contains('/'));
    prefixed.chain(sent.into_iter().flatten()).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn meta(fields: JsonObject) -> Option<MetaObject> {
    (!fields.is_empty()).then_some(MetaObject(fields))
}

fn object(schema: &Value) -> Arc<JsonObject> {
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

fn is_object_schema(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("object")
}

/// Wraps a schema in an object schema; definitions stay at the root for `$ref`.
fn wrapped_schema(schema: &Value) -> JsonObject {
    let mut inner = schema.clone();
    let mut outer = Map::new();
    if let Some(fields) = inner.as_object_mut() {
        for key in ["$schema", "$defs", "definitions"] {
            outer.extend(fields.shift_remove(key).map(|value| (key.to_owned(), value)));
        }
    }
    outer.insert("type".to_owned(), "object".into());
    outer.insert("properties".to_owned(), json!({ WRAPPED: inner }));
    outer.insert("required".to_owned(), json!([WRAPPED]));
    outer
}

/// Converts an output of a tool with this output schema.
pub(crate) fn result(output: Output, schema: Option<&Schema>, is_legacy: bool) -> CallToolResult {
    let mut content: Vec<ContentBlock> = if output.content.is_empty() {
        match &output.structured {
            Some(_) => vec![ContentBlock::text(output.to_text())],
            None => Vec::new(),
        }
    } else {
        blocks(&output).collect()
    };
    // The bytes of forwarded blocks are artifacts too.
    let sent = forwarded_bytes(&output);
    let artifacts = output.artifacts.get(sent..).unwrap_or_default();
    content.extend(images(artifacts));
    let mut meta = forwarded_meta(&output);
    if output.status() != Status::Success {
        meta.insert(STATUS.to_owned(), "partial".into());
    }
    if !artifacts.is_empty() {
        let artifacts: Vec<Artifact> = artifacts.iter().cloned().map(Artifact::without_data).collect();
        meta.insert(ARTIFACTS.to_owned(), json!(artifacts));
    }
    let mut result = CallToolResult::success(content);
    let is_wrapped = is_legacy && schema.is_some_and(|schema| !is_object_schema(schema.as_value()));
    result.structured_content = match output.structured {
        value if is_wrapped => Some(json!({ WRAPPED: value })),
        Some(value) if is_legacy && !value.is_object() => Some(json!({ WRAPPED: value })),
        // A client that checks the schema takes an absent value for a defect.
        None if schema.is_some() => Some(Value::Null),
        value => value,
    };
    result.meta = self::meta(meta);
    result
}

/// The images among the artifacts, up to the limits.
fn images(artifacts: &[Artifact]) -> impl Iterator<Item = ContentBlock> {
    let mut left = MAX_IMAGE_BYTES;
    let fitting = artifacts.iter().filter_map(move |artifact| {
        let ArtifactData::Bytes(bytes) = &artifact.data else { return None };
        if !IMAGE_TYPES.contains(&artifact.media_type.as_str()) {
            return None;
        }
        left = left.checked_sub(bytes.len())?;
        Some(ContentBlock::image(BASE64_STANDARD.encode(bytes), &artifact.media_type))
    });
    fitting.take(MAX_IMAGES)
}

/// Converts an error: a text for the model, all fields for programs. A failed result of a foreign server keeps its blocks.
pub(crate) fn failure(error: &ToolError, is_legacy: bool) -> CallToolResult {
    let mut result = match error.failed_output() {
        Some(sent) => self::result(sent.clone(), None, is_legacy),
        None => CallToolResult::success(vec![ContentBlock::text(error.to_string())]),
    };
    result.is_error = Some(true);
    result.meta.get_or_insert_with(|| MetaObject(Map::new())).0.insert(ERROR.to_owned(), json!(error));
    result
}

/// The `_meta` of a foreign result.
fn forwarded_meta(output: &Output) -> Map<String, Value> {
    let meta = output.forwarded.as_ref().and_then(|sent| sent.members.get("_meta")?.as_object());
    meta.cloned().unwrap_or_default()
}

/// The number of artifacts whose bytes a forwarded block has. They come first.
fn forwarded_bytes(output: &Output) -> usize {
    let blocks = output.forwarded.iter().flat_map(|sent| &sent.blocks);
    blocks.filter(|block| block.data.is_some()).count()
}

/// The content blocks of an output, each with the members that a foreign server sent.
fn blocks(output: &Output) -> impl Iterator<Item = ContentBlock> {
    output.content.iter().enumerate().filter_map(|(position, content)| {
        forwarded_block(output, position, content).or_else(|| block(content))
    })
}

/// A block as a foreign server sent it, with the current text and URI.
fn forwarded_block(output: &Output, position: usize, content: &Content) -> Option<ContentBlock> {
    let sent = output.forwarded.as_ref()?;
    let sent = sent.blocks.iter().find(|block| block.position == position)?;
    serde_json::from_value(Value::Object(whole_block(sent, content)?)).ok()
}

/// The members of a foreign block with its payload. `None` if the content is of another kind by now.
fn whole_block(sent: &ForwardedBlock, content: &Content) -> Option<Map<String, Value>> {
    let mut fields = sent.members.clone();
    let insert = |fields: &mut Map<String, Value>, key: &str, value: &str| {
        fields.insert(key.to_owned(), value.into());
    };
    let kind = fields.get("type")?.as_str()?.to_owned();
    match (kind.as_str(), content) {
        ("text", Content::Text { text }) => insert(&mut fields, "text", text),
        ("image", Content::Image { media_type, data }) | ("audio", Content::Audio { media_type, data }) => {
            insert(&mut fields, "data", data);
            insert(&mut fields, "mimeType", media_type);
        }
        ("resource_link", Content::Resource { uri, text: None, .. }) => insert(&mut fields, "uri", uri),
        ("resource", content) => {
            let resource = fields.get_mut("resource")?.as_object_mut()?;
            let (uri, key, payload) = match content {
                Content::Resource { uri, text: Some(text), .. } => (uri, "text", text),
                Content::Resource { uri, text: None, .. } => (uri, "blob", sent.data.as_ref()?),
                Content::Image { data, .. } | Content::Audio { data, .. } => {
                    (sent.uri.as_ref()?, "blob", data)
                }
                _ => return None,
            };
            insert(resource, "uri", uri);
            insert(resource, key, payload);
        }
        _ => return None,
    }
    Some(fields)
}

/// Converts one piece of content.
fn block(content: &Content) -> Option<ContentBlock> {
    Some(match content {
        Content::Text { text } => ContentBlock::text(text),
        Content::Image { media_type, data } => ContentBlock::image(data, media_type),
        Content::Audio { media_type, data } => ContentBlock::audio(data, media_type),
        Content::Resource { uri, media_type, text: Some(text) } => {
            ContentBlock::resource(ResourceContents::text(text, uri).with_mime_type(media_type))
        }
        Content::Resource { uri, media_type, text: None } => {
            let name = uri.rsplit('/').find(|part| !part.is_empty()).unwrap_or(uri);
            ContentBlock::ResourceLink(Resource::new(uri, name).with_mime_type(media_type))
        }
        Content::Json { value } => ContentBlock::text(value.to_string()),
        _ => return None,
    })
}

/// Converts a resource with a fixed URI.
pub(crate) fn resource(spec: &ResourceSpec) -> Resource {
    let uri = spec.uri_pattern.as_str();
    let mut resource = Resource::new(uri, resource_name(spec));
    resource.description = description(spec);
    resource.mime_type = spec.mime_types.first().cloned();
    resource.meta = meta(own_meta(&spec.meta));
    if let Some(sent) = forwarded(&spec.meta) {
        resource.title = member(sent, "title");
        resource.size = member(sent, "size");
        resource.icons = member(sent, "icons");
        resource.annotations = member(sent, "annotations");
    }
    resource
}

/// The description of a resource. The summary of one without a description is its title or its name.
fn description(spec: &ResourceSpec) -> Option<String> {
    let sent = forwarded(&spec.meta);
    let title = sent.and_then(|sent| sent.get("title")?.as_str());
    let is_invented = spec.name.as_ref() == Some(&spec.summary) || title == Some(spec.summary.as_str());
    let is_sent = sent.is_some_and(|sent| sent.contains_key("description"));
    (is_sent || !is_invented).then(|| spec.summary.clone())
}

/// Whether a resource is listed as a template: its URI has parameters, or a foreign server listed it so.
pub(crate) fn is_template(spec: &ResourceSpec) -> bool {
    let sent = forwarded(&spec.meta).and_then(|sent| sent.get("uriTemplate")?.as_bool());
    sent.unwrap_or_else(|| spec.uri_pattern.parameters().next().is_some())
}

/// Converts a resource with a URI pattern.
pub(crate) fn template(spec: &ResourceSpec) -> ResourceTemplate {
    let pattern = spec.uri_pattern.as_str();
    let mut template = ResourceTemplate::new(pattern, resource_name(spec));
    template.description = description(spec);
    template.mime_type = spec.mime_types.first().cloned();
    template.meta = meta(own_meta(&spec.meta));
    if let Some(sent) = forwarded(&spec.meta) {
        template.title = member(sent, "title");
        template.icons = member(sent, "icons");
        template.annotations = member(sent, "annotations");
    }
    template
}

fn resource_name(spec: &ResourceSpec) -> &str {
    let uri = spec.uri_pattern.as_str();
    spec.name.as_deref().unwrap_or_else(|| uri.split_once("://").map_or(uri, |(_, path)| path))
}

/// Converts the output of a resource.
pub(crate) fn contents(uri: &str, output: &Output, spec: Option<&ResourceSpec>) -> ReadResourceResult {
    let declared = spec.and_then(|spec| spec.mime_types.first()).map(String::as_str);
    let text = |text: &str, fallback: &str| {
        ResourceContents::text(text, uri).with_mime_type(declared.unwrap_or(fallback))
    };
    let mut contents: Vec<ResourceContents> = output
        .content
        .iter()
        .enumerate()
        .filter_map(|(position, content)| {
            if let Some(ContentBlock::Resource(sent)) = forwarded_block(output, position, content) {
                return Some(sent.resource);
            }
            Some(match content {
                Content::Text { text: found } => text(found, "text/plain"),
                Content::Image { media_type, data } | Content::Audio { media_type, data } => {
                    ResourceContents::blob(data, uri).with_mime_type(media_type)
                }
                Content::Resource { uri, media_type, text: Some(found) } => {
                    ResourceContents::text(found, uri).with_mime_type(media_type)
                }
                Content::Json { value } => text(&value.to_string(), "application/json"),
                _ => return None,
            })
        })
        .collect();
    if contents.is_empty() {
        match &output.structured {
            None => {}
            // Bytes are base64 in JSON.
            Some(Value::String(found)) if declared.is_some_and(is_binary) => {
                contents
                    .push(ResourceContents::blob(found, uri).with_mime_type(declared.unwrap_or_default()));
            }
            Some(Value::String(found)) => contents.push(text(found, "text/plain")),
            Some(value) => contents.push(text(&value.to_string(), "application/json")),
        }
    }
    let mut result = ReadResourceResult::new(contents);
    result.meta = meta(forwarded_meta(output));
    result
}

/// Whether a media type has no text form.
fn is_binary(media_type: &str) -> bool {
    let kinds = [
        "image/",
        "audio/",
        "video/",
        "font/",
        "application/octet-stream",
        "application/pdf",
        "application/zip",
    ];
    kinds.iter().any(|kind| media_type.starts_with(kind)) && !media_type.starts_with("image/svg")
}

/// Converts a prompt.
pub(crate) fn prompt(spec: &PromptSpec) -> Prompt {
    let sent = forwarded(&spec.meta);
    let titles = sent.and_then(|sent| sent.get("argumentTitles")?.as_object());
    let arguments = spec.arguments.iter().map(|argument| {
        let mut known = PromptArgument::new(&argument.name).with_required(!argument.optional);
        let title = titles.and_then(|titles| titles.get(&argument.name)?.as_str());
        known.title = title.map(str::to_owned);
        let description = Some(&argument.description).filter(|text| !text.is_empty());
        // The description of an argument without one is its title.
        known.description = description.filter(|text| title != Some(text.as_str())).cloned();
        known
    });
    let arguments: Vec<PromptArgument> = arguments.collect();
    let mut prompt =
        Prompt::new(&spec.name, Some(&spec.summary), (!arguments.is_empty()).then_some(arguments));
    prompt.meta = meta(own_meta(&spec.meta));
    if let Some(sent) = sent {
        prompt.title = member(sent, "title");
        prompt.icons = member(sent, "icons");
        let is_invented = !sent.contains_key("description") && prompt.title.as_ref() == Some(&spec.summary);
        prompt.description = prompt.description.filter(|text| !is_invented && !text.is_empty());
    }
    prompt
}

/// Converts a rendered prompt. A structured value may be a list of messages `[{ role, content }]` or have one
/// in `messages`; anything else is user text.
pub(crate) fn messages(output: &Output, summary: &str) -> GetPromptResult {
    let listed = output
        .structured
        .as_ref()
        .and_then(|value| value.as_array().or_else(|| value.get("messages")?.as_array()))
        .and_then(|items| items.iter().map(message).collect::<Option<Vec<_>>>());
    let messages = listed.unwrap_or_else(|| {
        if output.content.is_empty() {
            return vec![PromptMessage::new_text(Role::User, output.to_text())];
        }
        blocks(output).map(|content| PromptMessage::new(Role::User, content)).collect()
    });
    let mut result = GetPromptResult::new(messages);
    let sent = output.structured.as_ref().and_then(|value| value.get("description")?.as_str());
    result.description = sent.or(Some(summary).filter(|text| !text.is_empty())).map(str::to_owned);
    result.meta = meta(forwarded_meta(output));
    result
}

fn message(item: &Value) -> Option<PromptMessage> {
    let role = match item.get("role")?.as_str()? {
        "assistant" => Role::Assistant,
        "user" => Role::User,
        _ => return None,
    };
    let content = item.get("content")?;
    if let Some(text) = content.as_str() {
        return Some(PromptMessage::new_text(role, text));
    }
    let ours = || Content::deserialize(content).ok().as_ref().and_then(block);
    let content = ContentBlock::deserialize(content).ok().or_else(ours)?;
    Some(PromptMessage::new(role, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolpost_core::ParameterType;

    #[test]
    fn a_resource_has_a_name_and_bytes() {
        let mut spec = ResourceSpec::new("logo://{kind}".parse().unwrap(), "A logo.");
        assert_eq!(template(&spec).name, "{kind}");
        spec.name = Some("logo".to_owned());
        assert_eq!(template(&spec).name, "logo");
        let read = |media_type: &str| {
            let mut spec = spec.clone();
            spec.mime_types = vec![media_type.to_owned()];
            let contents = contents("logo://a", &Output::json(json!("UE5H")), Some(&spec));
            serde_json::to_value(contents).unwrap()["contents"][0].clone()
        };
        let blob = json!({ "uri": "logo://a", "mimeType": "image/png", "blob": "UE5H" });
        assert_eq!(read("image/png"), blob);
        assert_eq!(read("image/svg+xml")["text"], "UE5H");
    }

    #[test]
    fn older_clients_get_objects() {
        let spec = ToolSpec::new("count", "Count.")
            .parameter("of", ParameterType::String, "What.")
            .output(json!({ "type": "array", "items": { "$ref": "#/$defs/Item" }, "$defs": { "Item": { "type": "integer" } } }));
        let legacy = serde_json::to_value(tool(&spec, Map::new(), true)).unwrap();
        assert_eq!(
            legacy["outputSchema"],
            json!({
                "$defs": { "Item": { "type": "integer" } },
                "type": "object",
                "properties": { "result": { "type": "array", "items": { "$ref": "#/$defs/Item" } } },
                "required": ["result"]
            })
        );
        let modern = serde_json::to_value(tool(&spec, Map::new(), false)).unwrap();
        assert_eq!(modern["outputSchema"], *spec.output_schema.as_ref().unwrap().as_value());
        let output = || Output::json(json!([1, 2]));
        assert_eq!(result(output(), None, true).structured_content, Some(json!({ "result": [1, 2] })));
        assert_eq!(result(output(), None, false).structured_content, Some(json!([1, 2])));
        assert_eq!(
            result(Output::json(json!({ "a": 1 })), None, true).structured_content,
            Some(json!({ "a": 1 }))
        );
        // The schema decides, so that the value matches it: an object of a union is wrapped, and so is null.
        let union = Schema::new(json!({ "anyOf": [{ "type": "object" }, { "type": "null" }] }));
        let legacy = |value| result(Output::json(value), Some(&union), true).structured_content;
        assert_eq!(legacy(json!({ "a": 1 })), Some(json!({ "result": { "a": 1 } })));
        assert_eq!(legacy(Value::Null), Some(json!({ "result": null })));
        assert_eq!(
            result(Output::json(Value::Null), Some(&union), false).structured_content,
            Some(Value::Null)
        );
    }

    #[test]
    fn undeclared_hints_are_absent() {
        let mut spec = ToolSpec::new("send", "Send.");
        let hints = |spec: &ToolSpec| json!(tool(spec, Map::new(), false).annotations);
        assert_eq!(hints(&spec), json!({}));
        spec.annotations.idempotent = true;
        assert_eq!(hints(&spec), json!({ "idempotentHint": true }));
    }

    #[test]
    fn only_prefixed_meta_is_sent() {
        let mut spec = ToolSpec::new("a", "A.");
        spec.meta = Map::from_iter([
            ("origin".to_owned(), json!("/of/ada/secret-place")),
            ("anthropic/searchHint".to_owned(), json!("mine")),
        ]);
        let hints = Map::from_iter([("anthropic/alwaysLoad".to_owned(), json!(true))]);
        let sent = serde_json::to_value(tool(&spec, hints, false)).unwrap();
        assert_eq!(sent["_meta"], json!({ "anthropic/searchHint": "mine", "anthropic/alwaysLoad": true }));
    }

    #[test]
    fn a_structured_prompt_becomes_messages() {
        let items = json!([
            { "role": "user", "content": "Look." },
            { "role": "assistant", "content": { "type": "image", "media_type": "image/png", "data": "AA==" } },
            { "role": "user", "content": { "type": "text", "text": "Well?" } },
        ]);
        let result = serde_json::to_value(messages(&Output::json(items), "Ask.")).unwrap();
        assert_eq!(
            result["messages"],
            json!([
                { "role": "user", "content": { "type": "text", "text": "Look." } },
                { "role": "assistant", "content": { "type": "image", "mimeType": "image/png", "data": "AA==" } },
                { "role": "user", "content": { "type": "text", "text": "Well?" } },
            ])
        );
        let other = messages(&Output::json(json!({ "role": "user" })), "");
        assert_eq!(other.messages.len(), 1);
        assert_eq!(other.description, None);
    }

    #[test]
    fn pictures_are_image_content_as_far_as_they_fit() {
        let image = |name: &str, size: usize| Artifact::from_bytes(name, "image/png", vec![0; size]);
        let mut output = Output::text("done").with_artifact(image("figure-1.png", 3));
        let sent = serde_json::to_value(result(output.clone(), None, false)).unwrap();
        assert_eq!(
            sent["content"],
            json!([
                { "type": "text", "text": "done" },
                { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            ])
        );
        assert_eq!(sent["_meta"][ARTIFACTS][0]["name"], "figure-1.png");
        output = output.with_artifact(image("huge.png", MAX_IMAGE_BYTES));
        output = (0..20).fold(output, |output, _| output.with_artifact(image("small.png", 3)));
        let sent = serde_json::to_value(result(output, None, false)).unwrap();
        assert_eq!(sent["content"].as_array().unwrap().len(), 1 + MAX_IMAGES);
    }

    #[test]
    fn artifacts_are_listed_without_their_bytes() {
        let output =
            Output::text("done").with_artifact(Artifact::from_bytes("a.txt", "text/plain", *b"bytes"));
        let sent = serde_json::to_string(&result(output, None, false)).unwrap();
        assert!(
            sent.contains(r#""toolpost/artifacts":[{"name":"a.txt","media_type":"text/plain","size":5}]"#),
            "{sent}"
        );
    }
}
