//! Encodes parts of turns as the content of messages.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::wires::codec::Notices;
use crate::{Media, MediaSource, Part, ToolResult};

/// The reason why the wire does not support a part, if it does not.
pub(super) fn obstacle(part: &Part) -> Option<String> {
    let what = match part {
        Part::Text(_) | Part::Raw(_) => return None,
        Part::ContainerFile { file_id } => {
            return Some(format!(
                "the Chat Completions wire has no containers: send the file `{file_id}` as a document"
            ));
        }
        Part::Image(media) => match media.source {
            MediaSource::Base64(_) | MediaSource::Url(_) => return None,
            MediaSource::Text(_) => "images of plain text",
            MediaSource::FileId(_) => "images by file id",
        },
        Part::Document(media) => match media.source {
            MediaSource::Base64(_) | MediaSource::Text(_) | MediaSource::FileId(_) => return None,
            MediaSource::Url(_) => "documents by URL",
        },
    };
    Some(format!("the Chat Completions wire does not support {what}: send the bytes"))
}

/// The content of a message: a text if possible, else a list.
pub(super) fn content_of(parts: &[Part]) -> Result<Option<Box<RawValue>>, serde_json::Error> {
    let parts: Vec<&Part> =
        parts.iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty())).collect();
    match parts.as_slice() {
        [] => Ok(None),
        [Part::Text(text)] => to_raw_value(text).map(Some),
        parts => {
            let parts = parts.iter().map(|part| encode_part(part)).collect::<Result<Vec<_>, _>>()?;
            to_raw_value(&parts).map(Some)
        }
    }
}

fn encode_part(part: &Part) -> Result<Box<RawValue>, serde_json::Error> {
    match part {
        Part::Text(text) => to_raw_value(&json!({"type": "text", "text": text})),
        Part::Image(media) => {
            to_raw_value(&json!({"type": "image_url", "image_url": {"url": address_of(media)}}))
        }
        Part::Document(media) => to_raw_value(&document(media)),
        // `obstacle` rejects container files.
        Part::ContainerFile { file_id } => {
            to_raw_value(&json!({"type": "file", "file": {"file_id": file_id}}))
        }
        Part::Raw(raw) => RawValue::from_string(raw.get().to_owned()),
    }
}

fn address_of(media: &Media) -> String {
    match &media.source {
        MediaSource::Base64(data) => format!("data:{};base64,{data}", media.media_type),
        MediaSource::Text(text) => text.to_string(),
        MediaSource::Url(url) => url.clone(),
        MediaSource::FileId(id) => id.clone(),
    }
}

fn document(media: &Media) -> Value {
    match &media.source {
        MediaSource::FileId(id) => json!({"type": "file", "file": {"file_id": id}}),
        MediaSource::Text(text) => {
            let text = match &media.title {
                Some(title) => format!("{title}\n\n{text}"),
                None => text.to_string(),
            };
            json!({"type": "text", "text": text})
        }
        MediaSource::Base64(_) | MediaSource::Url(_) => {
            let ending = media.media_type.rsplit(['/', '+', '.']).next().unwrap_or("bin");
            let name = media.title.clone().unwrap_or_else(|| format!("document.{ending}"));
            json!({"type": "file", "file": {"filename": name, "file_data": address_of(media)}})
        }
    }
}

/// The content of a tool result, which is text only on this wire.
///
/// Images and documents go into `attachments`, for a user message after the results.
pub(super) fn result_of(
    result: &ToolResult,
    attachments: &mut Vec<Part>,
    notices: &mut Notices,
) -> Result<Box<RawValue>, serde_json::Error> {
    let mut parts: Vec<Part> = Vec::new();
    for part in &result.content {
        match part {
            Part::Document(Media { source: MediaSource::Text(_), .. }) | Part::Text(_) | Part::Raw(_) => {
                parts.push(part.clone());
            }
            Part::Image(media) | Part::Document(media) if obstacle(part).is_none() => {
                parts.push(Part::text(format!("({}: in the next message)", media.media_type)));
                attachments
                    .push(Part::text(format!("From the tool `{}`, call `{}`:", result.name, result.call_id)));
                attachments.push(part.clone());
            }
            Part::Image(_) | Part::Document(_) | Part::ContainerFile { .. } => {
                let what = obstacle(part).unwrap_or_default();
                notices.add(format!("a part of the result of `{}` was not sent: {what}", result.name));
                parts.push(Part::text("(a part was omitted)"));
            }
        }
    }
    if result.is_error {
        mark_as_error(&mut parts);
    }
    // Texts are joined, because not every server accepts a list here.
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        let texts: Vec<&str> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        return to_raw_value(&texts.join("\n"));
    }
    match content_of(&parts)? {
        Some(content) => Ok(content),
        None => to_raw_value(""),
    }
}

/// Marks a failed call in the text, because the wire has no error flag.
fn mark_as_error(parts: &mut Vec<Part>) {
    let is_marked = parts.iter().any(|part| match part {
        Part::Text(text) => text.chars().take(60).collect::<String>().to_lowercase().contains("error"),
        _ => false,
    });
    if !is_marked {
        match parts.first_mut() {
            Some(Part::Text(text)) => text.insert_str(0, "Error: "),
            _ => parts.insert(0, Part::text("Error")),
        }
    }
}
