//! Files that are part of an answer instead of the provider's storage.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::download::{CreateFile, PartialFile, SavedFile};
use crate::fields::Members;
use crate::{ErrorKind, Item, ItemView, ModelError};

/// File extensions by media type.
const EXTENSIONS: [(&str, &str); 20] = [
    ("application/json", "json"),
    ("application/pdf", "pdf"),
    ("audio/mpeg", "mp3"),
    ("audio/ogg", "ogg"),
    ("audio/wav", "wav"),
    ("audio/x-wav", "wav"),
    ("image/avif", "avif"),
    ("image/bmp", "bmp"),
    ("image/gif", "gif"),
    ("image/heic", "heic"),
    ("image/jpeg", "jpg"),
    ("image/png", "png"),
    ("image/svg+xml", "svg"),
    ("image/tiff", "tiff"),
    ("image/webp", "webp"),
    ("text/csv", "csv"),
    ("text/html", "html"),
    ("text/plain", "txt"),
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
];

/// A file that is part of an answer, such as an image from Gemini's code execution.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InlineFile {
    /// The provider's media type, such as `image/png`.
    pub media_type: String,
    /// The content in base64.
    pub data: String,
}

impl InlineFile {
    /// Writes the content into a file that the caller creates, with a name such as `image.png`.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if the content is not base64, [`ErrorKind::Configuration`] if writing fails.
    pub fn save(&self, create: &CreateFile<'_>) -> Result<SavedFile, ModelError> {
        let decoded = STANDARD.decode(&self.data).or_else(|_| URL_SAFE.decode(&self.data));
        let bytes = decoded.map_err(|error| {
            ModelError::new(ErrorKind::Protocol, format!("a file in the answer is not base64: {error}"))
        })?;
        let failed = |error: std::io::Error| {
            ModelError::new(ErrorKind::Configuration, format!("cannot write the file: {error}"))
        };
        let name = self.name();
        let (mut target, path) = create(&name).map_err(failed)?;
        let partial = PartialFile::new(path);
        target.write_all(&bytes).map_err(failed)?;
        Ok(SavedFile {
            id: name,
            name: None,
            path: partial.keep(),
            size: bytes.len() as u64,
            media_type: Some(self.media_type.clone()),
        })
    }

    /// The file name: `image.png`.
    fn name(&self) -> String {
        let kind = self.media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let medium =
            ["image", "audio", "video"].into_iter().find(|medium| kind.split('/').next() == Some(medium));
        let stem = medium.unwrap_or("file");
        let extension = EXTENSIONS.iter().find(|(known, _)| *known == kind).map_or("bin", |(_, word)| word);
        format!("{stem}.{extension}")
    }
}

/// The files that are part of an answer's items, in order: outputs of Gemini's code execution, and generated images of
/// the Responses API. Files from the model's thinking are skipped.
pub fn inline_files(items: &[Item]) -> Vec<InlineFile> {
    let inline = items.iter().filter_map(|item| {
        let members = || serde_json::from_str::<Members<'_>>(item.raw().get()).ok();
        match item.view() {
            // Gemini's inline data has no view.
            ItemView::Other { kind } if kind == "inlineData" => inline_data(&members()?),
            ItemView::ServerToolCall { name, .. } if name == "image_generation" => {
                generated_image(&members()?)
            }
            _ => None,
        }
    });
    inline.collect()
}

fn inline_data(part: &Members<'_>) -> Option<InlineFile> {
    if part.read::<bool>("thought") == Some(true) {
        return None;
    }
    let data: Members<'_> = part.read("inlineData")?;
    Some(InlineFile { media_type: data.read("mimeType").unwrap_or_default(), data: data.read("data")? })
}

/// The image of a generation call. The format defaults to PNG.
fn generated_image(call: &Members<'_>) -> Option<InlineFile> {
    let data = call.read::<String>("result").filter(|data| !data.is_empty())?;
    let format = call.read::<String>("output_format").unwrap_or_else(|| "png".to_owned());
    Some(InlineFile { media_type: format!("image/{format}"), data })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(part: &Value) -> Item {
        let kind = part.as_object().unwrap().keys().next().unwrap().clone();
        Item::new(ItemView::Other { kind }, part.into())
    }

    #[test]
    fn inline_files_are_saved_without_overwriting() {
        let picture = |data: &str| json!({"inlineData": {"mimeType": "image/png", "data": data}});
        let mut thought = picture("YQ==");
        thought["thought"] = true.into();
        let parts = [
            picture("YQ=="),
            json!({"hologram": {}}),
            thought,
            picture("_-8="),
            picture("no base64"),
            json!({"inlineData": 7}),
        ];
        let items: Vec<Item> = parts.iter().map(item).collect();
        let files = inline_files(&items);
        let directory = tempfile::tempdir().unwrap();
        let create = |name: &str| -> std::io::Result<_> {
            let place = directory.path().join("new");
            std::fs::create_dir_all(&place)?;
            let taken = place.read_dir()?.count();
            let path = place.join(if taken == 0 { name.to_owned() } else { format!("{taken}-{name}") });
            Ok((std::fs::File::create_new(&path)?, path))
        };
        let saved: Vec<_> = files.iter().map(|file| file.save(&create)).collect();
        let [Ok(first), Ok(second), Err(third)] = saved.as_slice() else { panic!("{saved:?}") };
        assert_eq!(first.path, directory.path().join("new/image.png"));
        assert_eq!(second.path, directory.path().join("new/1-image.png"));
        assert_eq!(std::fs::read(&first.path).unwrap(), b"a");
        assert_eq!(std::fs::read(&second.path).unwrap(), b"\xff\xef");
        assert_eq!((first.size, first.media_type.as_deref()), (1, Some("image/png")));
        assert_eq!(third.kind, ErrorKind::Protocol);
        assert_eq!(std::fs::read_dir(directory.path().join("new")).unwrap().count(), 2);
    }

    #[test]
    fn generated_images_are_files() {
        let call = |raw: &Value| {
            let (id, name) = ("ig_1".to_owned(), "image_generation".to_owned());
            Item::new(ItemView::ServerToolCall { id, name, input: None, output: None }, raw.into())
        };
        let items = [
            call(&json!({"type": "image_generation_call", "output_format": "webp", "result": "YQ=="})),
            call(&json!({"type": "image_generation_call", "result": "Yg=="})),
            call(&json!({"type": "image_generation_call", "result": null, "status": "failed"})),
            call(&json!({"type": "image_generation_call", "result": ""})),
        ];
        let files: Vec<_> = inline_files(&items).into_iter().map(|file| (file.name(), file.data)).collect();
        let named = |name: &str, data: &str| (name.to_owned(), data.to_owned());
        assert_eq!(files, [named("image.webp", "YQ=="), named("image.png", "Yg==")]);
    }

    #[test]
    fn the_name_depends_on_the_media_type_only() {
        for (media_type, expected) in [
            ("image/jpeg", "image.jpg"),
            ("IMAGE/PNG; charset=x", "image.png"),
            ("audio/wav", "audio.wav"),
            ("text/csv", "file.csv"),
            ("image/../../etc/passwd", "image.bin"),
            ("", "file.bin"),
        ] {
            let file = InlineFile { media_type: media_type.into(), data: String::new() };
            assert_eq!(file.name(), expected, "{media_type:?}");
        }
    }
}
