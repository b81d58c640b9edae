//! Checks and limits of outputs.

use serde_json::Value;
use toolpost_core::{Code, Content, Output, OutputFiles, ToolError, WholeText};

use super::size::json_size;
use crate::builder::ToolboxSettings;
use crate::registry::Entry;

/// The minimum size of a shortened piece of content, in bytes.
const MIN_PIECE: usize = 128;

/// Checks an output and shortens the text for the model, unless a program uses it (`is_data`). The whole text is stored
/// in `files`. Returns the size of the text for the model, in bytes.
pub(super) fn output(
    entry: &Entry,
    settings: &ToolboxSettings,
    output: &mut Output,
    is_data: bool,
    files: Option<&OutputFiles>,
) -> Result<usize, ToolError> {
    if let (Some(schema), true) = (&entry.spec.output_schema, entry.is_local()) {
        // A partial result may be incomplete.
        if output.partial.is_none() {
            let value = output.structured.as_ref().unwrap_or(&Value::Null);
            schema.check(value).map_err(|error| {
                if output.structured.is_none() {
                    let message = format!("`{}` declares a structured result and returned none", entry.name);
                    return ToolError::internal(message);
                }
                let message = error.message();
                let what = if error.code() == Code::Internal {
                    "has an invalid schema"
                } else {
                    "does not match its schema"
                };
                ToolError::internal(format!("the result of `{}` {what}: {message}", entry.name))
            })?;
        }
    }
    if output.artifacts.len() > settings.artifacts {
        return Err(ToolError::limit(format!("a call may return at most {} artifacts", settings.artifacts))
            .suggest("Put them in one archive."));
    }
    for artifact in &output.artifacts {
        check_artifact_name(&artifact.name)?;
    }
    let whole = output.whole.take();
    if is_data {
        return Ok(text_size(output));
    }
    let limit = entry.spec.policy.output_limit.unwrap_or(settings.output_limit);
    omit_media(output, settings.media_limit);
    let is_part = whole.is_some() || text_size(output) > limit;
    let stored = files.filter(|_| is_part).map(|files| store(output, whole, files));
    let Some(note) = stored else { return Ok(shorten(output, limit)) };
    shorten(output, limit.saturating_sub(note.len()));
    output.content.push(Content::text(note));
    Ok(text_size(output))
}

/// Stores the whole text of an output. Returns a note on its file, or on what prevents it.
fn store(output: &Output, whole: Option<Box<WholeText>>, files: &OutputFiles) -> String {
    let whole = whole.unwrap_or_else(|| {
        let text = output.to_text().into_owned();
        Box::new(WholeText { size: text.len() as u64, text })
    });
    let stored = whole.text.len() as u64;
    let part = if stored < whole.size { format!("the first {stored} bytes of ") } else { String::new() };
    match files.store(&whole.text) {
        Ok(path) => format!(
            "[{part}the whole output of {} bytes: `{}`, for file tools and code]",
            whole.size,
            path.display()
        ),
        Err(error) => format!("[the whole output of {} bytes was not stored: {error}]", whole.size),
    }
}

/// Checks the name of an artifact: a relative path without `..`.
pub(super) fn check_artifact_name(name: &str) -> Result<(), ToolError> {
    let plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if plain && name.len() <= 1024 && !name.contains(['\0', '\\']) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ToolError::invalid_path(
        "an artifact's name must be a relative path without `..`, of at most 1,024 bytes",
    )
    .with("name", name.chars().take(80).collect::<String>()))
}

/// Shortens an error to the output limit.
pub(super) fn error(error: ToolError, limit: usize) -> ToolError {
    error.map_text(|text| head_and_tail(text, limit), limit)
}

/// Replaces images and audio beyond a limit with a note.
fn omit_media(output: &mut Output, limit: usize) {
    let mut left = limit;
    for content in &mut output.content {
        let (media_type, size) = match content {
            Content::Image { media_type, data } | Content::Audio { media_type, data } => {
                (media_type, data.len())
            }
            _ => continue,
        };
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => {
                *content = Content::text(format!("[{media_type} of {size} bytes in base64 omitted]"));
            }
        }
    }
}

/// The size of the text for the model, in bytes.
pub(super) fn text_size(output: &Output) -> usize {
    if output.content.is_empty() {
        return match &output.structured {
            None => 0,
            Some(serde_json::Value::String(text)) => text.len(),
            Some(value) => json_size(value, usize::MAX).unwrap_or(0),
        };
    }
    output.content.iter().map(content_size).sum()
}

fn content_size(content: &Content) -> usize {
    match content {
        Content::Text { text } | Content::Resource { text: Some(text), .. } => text.len(),
        Content::Json { value } => json_size(value, usize::MAX).unwrap_or(0),
        Content::Resource { uri, .. } => uri.len(),
        _ => 0,
    }
}

/// Shortens the text for the model to a limit in bytes and returns its size. Head and tail stay, with a note
/// between them. The structured value, the payload and the artifacts stay whole.
fn shorten(output: &mut Output, limit: usize) -> usize {
    let size = text_size(output);
    if size <= limit {
        return size;
    }
    if output.content.is_empty() {
        output.content = vec![Content::text(head_and_tail(&output.to_text(), limit))];
        return text_size(output);
    }
    // Too many pieces for a note in each: they become one text.
    if output.content.len() * MIN_PIECE > limit {
        let text = head_and_tail(&output.to_text(), limit);
        output.content.retain(|content| matches!(content, Content::Image { .. } | Content::Audio { .. }));
        output.content.insert(0, Content::text(text));
        if let Some(forwarded) = &mut output.forwarded {
            // The blocks are at other positions.
            forwarded.blocks.clear();
        }
        return text_size(output);
    }
    // Each piece gets an equal share; the rest of short pieces goes to the longer ones.
    let mut left = limit;
    let mut pieces = output.content.len();
    let mut order: Vec<usize> = (0..pieces).collect();
    order.sort_by_key(|index| output.content.get(*index).map_or(0, content_size));
    for index in order {
        let Some(content) = output.content.get_mut(index) else { continue };
        let share = left / pieces;
        pieces = pieces.saturating_sub(1).max(1);
        match content {
            Content::Text { text } | Content::Resource { text: Some(text), .. } if text.len() > share => {
                *text = head_and_tail(text, share);
            }
            Content::Json { value } if json_size(value, share).is_none() => {
                *content = Content::text(head_and_tail(&value.to_string(), share));
            }
            _ => {}
        }
        left = left.saturating_sub(content_size(content));
    }
    text_size(output)
}

/// The head and the tail of a text, with a note of the missing size between them.
fn head_and_tail(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let note = |missing: usize| format!("\n[… {missing} of {} bytes omitted …]\n", text.len());
    let room = limit.saturating_sub(note(text.len()).len());
    let head = text.floor_char_boundary(room * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - room / 3);
    let (start, end) = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
    format!("{start}{}{end}", note(tail - head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn truncation_leaves_head_and_tail_with_a_note() {
        let text = format!("begin {} end", "é".repeat(50_000));
        let short = head_and_tail(&text, 1000);
        assert!(short.len() <= 1000 && short.starts_with("begin") && short.ends_with("end"), "{short}");
        assert!(short.contains("bytes omitted"));
        assert_eq!(head_and_tail("short", 1000), "short");
    }

    #[test]
    fn the_structured_value_stays_whole() {
        let value = json!(vec![7; 10_000]);
        let mut output = Output::json(value.clone());
        shorten(&mut output, 500);
        assert!(text_size(&output) <= 500);
        assert_eq!(output.structured, Some(value));
    }

    #[test]
    fn a_note_names_the_file_its_part_and_what_prevents_it() {
        struct Store(usize);
        impl toolpost_core::OutputStore for Store {
            fn directory(&self) -> &std::path::Path {
                "/outputs".as_ref()
            }
            fn store(&self, text: &str) -> std::io::Result<std::path::PathBuf> {
                if text.len() > self.0 {
                    Err(std::io::ErrorKind::StorageFull.into())
                } else {
                    Ok("/outputs/1".into())
                }
            }
        }
        let files = OutputFiles::new(Store(9));
        let whole = |text: &str, size| Some(Box::new(WholeText { text: text.to_owned(), size }));
        let note = store(&Output::text("part"), whole("beginning", 1 << 30), &files);
        let expected = "[the first 9 bytes of the whole output of 1073741824 bytes: `/outputs/1`, for file tools and code]";
        assert_eq!(note, expected);
        let note = store(&Output::text("all"), None, &files);
        assert!(note.starts_with("[the whole output of 3 bytes: `"), "{note}");
        let note = store(&Output::text("more than all"), None, &files);
        assert_eq!(note, "[the whole output of 13 bytes was not stored: no storage space]");
    }

    #[test]
    fn only_long_pieces_are_truncated() {
        let mut output = Output::text("short").with_content(Content::text("x".repeat(10_000)));
        shorten(&mut output, 1000);
        assert_eq!(output.content[0], Content::text("short"));
        assert!(text_size(&output) <= 1000 && text_size(&output) > 800);
    }
}
