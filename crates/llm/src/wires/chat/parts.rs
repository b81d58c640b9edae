//! Parts of turns, as the content of messages.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::wires::codec::Notices;
use crate::{Media, MediaSource, Part, ToolResult};

/// Why a part cannot be sent on this wire.
pub(super) fn obstacle(part: &Part) -> Option<String> {
    let what = match part {
        Part::Text(_) | Part::Raw(_) => return None,
        Part::ContainerFile { file_id } => {
            return Some(format!(
                "the container file `{file_id}`: the Chat Completions wire has no containers; send the file as a document"
            ));
        }
        Part::Image(media) => match media.source {
            MediaSource::Base64(_) | MediaSource::Url(_) => return None,
            MediaSource::Text(_) => "an image of plain text",
            MediaSource::FileId(_) => "an image by its file id",
        },
        Part::Document(media) => match media.source {
            MediaSource::Base64(_) | MediaSource::Text(_) | MediaSource::FileId(_) => return None,
            MediaSource::Url(_) => "a document by its address",
        },
    };
    Some(format!("{what}: the Chat Completions wire cannot carry it; send the bytes"))
}

/// The content of a message: a text where that will do, else a list.
pub(super) fn content_of(parts: &[Part]) -> Result<Option<Box<RawValue>>, serde_json::Error> {
    let said: Vec<&Part> =
        parts.iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty())).collect();
    match said.as_slice() {
        [] => Ok(None),
        [Part::Text(text)] => to_raw_value(text).map(Some),
        said => {
            let parts = said.iter().map(|part| written(part)).collect::<Result<Vec<_>, _>>()?;
            to_raw_value(&parts).map(Some)
        }
    }
}

fn written(part: &Part) -> Result<Box<RawValue>, serde_json::Error> {
    match part {
        Part::Text(text) => to_raw_value(&json!({"type": "text", "text": text})),
        Part::Image(media) => {
            to_raw_value(&json!({"type": "image_url", "image_url": {"url": address_of(media)}}))
        }
        Part::Document(media) => to_raw_value(&document(media)),
        // Refused before anything is written.
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

/// The content of a tool's result. The wire takes texts alone there: pictures and documents go into `carried`, for a
/// user's message behind the results.
pub(super) fn result_of(
    result: &ToolResult,
    carried: &mut Vec<Part>,
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
                carried
                    .push(Part::text(format!("From the tool `{}`, call `{}`:", result.name, result.call_id)));
                carried.push(part.clone());
            }
            Part::Image(_) | Part::Document(_) | Part::ContainerFile { .. } => {
                let what = obstacle(part).unwrap_or_default();
                notices.add(format!("a part of the result of `{}` was not sent: {what}", result.name));
                parts.push(Part::text("(a part was left out)"));
            }
        }
    }
    if result.is_error {
        mark_as_error(&mut parts);
    }
    // Several texts are one: not every server takes a list here.
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

/// The wire has no mark for a failed call, so the text says it, unless it does already.
fn mark_as_error(parts: &mut Vec<Part>) {
    let says_so = parts.iter().any(|part| match part {
        Part::Text(text) => text.chars().take(60).collect::<String>().to_lowercase().contains("error"),
        _ => false,
    });
    if !says_so {
        match parts.first_mut() {
            Some(Part::Text(text)) => text.insert_str(0, "Error: "),
            _ => parts.insert(0, Part::text("Error")),
        }
    }
}
