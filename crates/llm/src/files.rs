//! Files that a provider keeps for an account: uploaded for its models, or made by the code that it runs.

mod dialect;
mod inline;
mod save;
mod send;

use std::io::Write;

use bytes::Bytes;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use self::dialect::Dialect;
use self::send::{Payload, Sender};
use crate::{
    ErrorKind, FileRef, HttpClient, Item, ItemView, Media, ModelError, ModelId, Part, Provider,
    ProviderAccess, RawJson,
};

pub use self::inline::{InlineFile, inline_files};
pub use self::save::{CreateFile, SavedFile};

/// The largest file that is downloaded unless the caller says otherwise, in bytes.
const LARGEST_DOWNLOAD: u64 = 512 * 1024 * 1024;

/// The most pages that [`ProviderFiles::list_all`] asks for: a provider that always has one more must not keep it.
const MOST_PAGES: usize = 1_000;

/// The files of one account with a provider.
///
/// Names and sizes that come from the provider are hostile until proven otherwise: a downloaded file never leaves the
/// folder that it was meant for and overwrites nothing.
#[derive(Debug)]
pub struct ProviderFiles {
    sender: Sender,
    dialect: Dialect,
    largest: u64,
}

/// A file that a provider keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredFile {
    /// The provider's id, by which requests name the file.
    pub id: String,
    /// The name, as the provider has it. It can be anything: do not use it as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The size in bytes, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The media type, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// When it was made, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// When it goes away, if it does and the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The address by which requests name the file, where that is not the id (Gemini).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Whether it can be downloaded, if the provider says so. Uploaded files often cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downloadable: Option<bool>,
    /// The provider's own record.
    pub raw: RawJson,
}

/// Some of an account's files.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilePage {
    /// The files, in the provider's order.
    pub files: Vec<StoredFile>,
    /// What to give to [`ProviderFiles::list`] for the next ones; `None` at the end.
    pub next: Option<String>,
}

/// A file on its way to a provider.
#[derive(Clone, Debug)]
pub struct FileUpload {
    name: String,
    media_type: String,
    bytes: Bytes,
    purpose: Option<String>,
}

impl FileUpload {
    /// A file of a name, a media type such as `text/csv`, and its content.
    pub fn new(name: impl Into<String>, media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { name: name.into(), media_type: media_type.into(), bytes: bytes.into(), purpose: None }
    }

    /// What the file is for, where the provider wants to know (OpenAI, xAI). Default: `user_data` with OpenAI,
    /// `assistants` with xAI. Without effect elsewhere.
    #[must_use]
    pub fn purpose(mut self, purpose: impl Into<String>) -> Self {
        self.purpose = Some(purpose.into());
        self
    }
}

impl ProviderFiles {
    /// The files of the account that `access` opens. An error if the provider keeps no files, or if its address or the
    /// key is missing or cannot be used. Nothing is sent.
    pub fn new(
        provider: &'static Provider,
        access: ProviderAccess,
        client: HttpClient,
    ) -> Result<Self, ModelError> {
        let Some(dialect) = Dialect::of(provider.name) else {
            let message = format!(
                "`{}` keeps no files. Providers that do: {}",
                provider.name,
                Dialect::NAMES.join(", ")
            );
            let model = ModelId::new(provider.name, "files");
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&model));
        };
        let sender = Sender::new(provider, access, client, dialect)?;
        Ok(Self { sender, dialect, largest: LARGEST_DOWNLOAD })
    }

    /// The same, with another size for the largest file that is downloaded. Default: 512 MiB.
    #[must_use]
    pub fn with_largest_download(mut self, bytes: u64) -> Self {
        self.largest = bytes;
        self
    }

    /// The largest file that is uploaded, in bytes: what the provider takes, or less where a file of that size is too
    /// much to be kept in memory.
    pub fn largest_upload(&self) -> u64 {
        self.dialect.largest_upload()
    }

    /// Uploads a file. An error before anything is sent if it is larger than the provider takes.
    pub async fn upload(&self, file: FileUpload) -> Result<StoredFile, ModelError> {
        let limit = self.largest_upload();
        if file.bytes.len() as u64 > limit {
            return Err(self.invalid(format!(
                "the file `{}` has {} bytes; the provider takes at most {limit}",
                save::shown(&file.name),
                file.bytes.len()
            )));
        }
        let answer = match self.dialect {
            Dialect::Gemini => self.upload_resumable(&file).await?,
            _ => {
                let purpose = file.purpose.as_deref().or(self.dialect.purpose());
                let fields: Vec<(&str, &str)> = purpose
                    .filter(|_| self.dialect.purpose().is_some())
                    .map(|purpose| ("purpose", purpose))
                    .into_iter()
                    .collect();
                let payload = send::multipart(&fields, &file.name, &file.media_type, &file.bytes);
                self.sender.json(Method::POST, self.dialect.files(), &[], payload).await?
            }
        };
        self.dialect.stored(&answer).ok_or_else(|| self.unreadable("the uploaded file", &answer))
    }

    /// Gemini's way: an address for the upload, then the bytes.
    async fn upload_resumable(&self, file: &FileUpload) -> Result<RawJson, ModelError> {
        let size = file.bytes.len().to_string();
        let start = serde_json::json!({"file": {"display_name": file.name}}).to_string();
        let headers = [
            ("x-goog-upload-protocol", "resumable"),
            ("x-goog-upload-command", "start"),
            ("x-goog-upload-header-content-length", size.as_str()),
            ("x-goog-upload-header-content-type", file.media_type.as_str()),
        ];
        let payload = Payload::json(start);
        let address = self
            .sender
            .header_of(Method::POST, dialect::GEMINI_UPLOAD, &headers, payload, "x-goog-upload-url")
            .await?;
        self.sender.send_bytes(&address, &file.bytes, &file.media_type).await
    }

    /// The part of a user's turn that gives an uploaded file to the code that the provider runs.
    pub fn part(&self, file: &StoredFile) -> Part {
        match self.dialect {
            // Its code reads what stands in the conversation.
            Dialect::Gemini => {
                let media_type = file.media_type.as_deref().unwrap_or("application/octet-stream");
                Part::Document(Media::from_file_id(media_type, &file.id))
            }
            _ => Part::ContainerFile { file_id: file.id.clone() },
        }
    }

    /// Some of the files. `next` is what the page before gave, `None` for the first page.
    pub async fn list(&self, next: Option<&str>) -> Result<FilePage, ModelError> {
        let answer = self.sender.json(Method::GET, &self.dialect.list(next), &[], Payload::None).await?;
        self.dialect.page(&answer).ok_or_else(|| self.unreadable("a list of files", &answer))
    }

    /// The files, page by page, up to `most`.
    pub async fn list_all(&self, most: usize) -> Result<Vec<StoredFile>, ModelError> {
        let mut files = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let page = self.list(next.as_deref()).await?;
            let is_empty = page.files.is_empty();
            files.extend(page.files);
            // The same mark again would never end.
            if files.len() >= most || page.next.is_none() || page.next == next || is_empty {
                break;
            }
            next = page.next;
        }
        files.truncate(most);
        Ok(files)
    }

    /// What the provider knows of a file.
    pub async fn get(&self, id: &str) -> Result<StoredFile, ModelError> {
        self.find(&FileRef { id: id.to_owned(), ..FileRef::default() }).await
    }

    async fn find(&self, file: &FileRef) -> Result<StoredFile, ModelError> {
        let path = self.path(file, "")?;
        let answer = self.sender.json(Method::GET, &path, &[], Payload::None).await?;
        self.dialect.stored(&answer).ok_or_else(|| self.unreadable("a file", &answer))
    }

    /// Writes a file's content, piece by piece, and says how many bytes it has. An error if it is larger than allowed;
    /// what has come until then is written.
    pub async fn download(&self, file: &FileRef, to: &mut (dyn Write + Send)) -> Result<u64, ModelError> {
        let path = self.path(file, self.dialect.content())?;
        self.sender.download(&path, to, self.largest).await
    }

    /// Deletes a file.
    pub async fn delete(&self, id: &str) -> Result<(), ModelError> {
        let path = self.path(&FileRef { id: id.to_owned(), ..FileRef::default() }, "")?;
        self.sender.json(Method::DELETE, &path, &[], Payload::None).await.map(|_| ())
    }

    /// Downloads a file into a new file of the caller.
    ///
    /// Its name is the provider's, as far as every host takes that.
    pub async fn save(&self, file: &FileRef, create: &CreateFile<'_>) -> Result<SavedFile, ModelError> {
        let (name, media_type) = match &file.name {
            Some(name) => (Some(name.clone()), None),
            None => {
                let stored = self.find(file).await?;
                (stored.name, stored.media_type)
            }
        };
        let broken = |error: std::io::Error| {
            self.sender.error(ErrorKind::Configuration, format!("the download: {error}"))
        };
        let (mut target, saved_as) =
            create(&save::file_name(name.as_deref().unwrap_or(&file.id))).map_err(broken)?;
        let unfinished = save::Unfinished::new(saved_as);
        let size = self.download(file, &mut target).await?;
        Ok(SavedFile { id: file.id.clone(), name, path: unfinished.keep(), size, media_type })
    }

    /// Downloads every file that the code of an answer has made; see [`output_files`].
    pub async fn save_outputs(
        &self,
        items: &[Item],
        create: &CreateFile<'_>,
    ) -> Vec<(FileRef, Result<SavedFile, ModelError>)> {
        let mut saved = Vec::new();
        for file in output_files(items) {
            let result = self.save(&file, create).await;
            saved.push((file, result));
        }
        saved
    }

    fn path(&self, file: &FileRef, rest: &str) -> Result<String, ModelError> {
        let id =
            file.id.strip_prefix("files/").filter(|_| self.dialect == Dialect::Gemini).unwrap_or(&file.id);
        for (what, id) in [("a file", Some(id)), ("a container", file.container.as_deref())] {
            if let Some(id) = id
                && !is_id(id)
            {
                return Err(self.invalid(format!(
                    "the id of {what}: expected letters, digits, `_`, `-` and `.`, found `{}`",
                    save::shown(id)
                )));
            }
        }
        Ok(match file.container.as_deref().filter(|_| self.dialect.has_containers()) {
            Some(container) => format!("/v1/containers/{container}/files/{id}{rest}"),
            None => format!("{}/{id}{rest}", self.dialect.files()),
        })
    }

    fn invalid(&self, message: String) -> ModelError {
        self.sender.error(ErrorKind::InvalidRequest, message)
    }

    fn unreadable(&self, what: &str, found: &RawJson) -> ModelError {
        let found: String = found.get().chars().take(200).collect();
        self.sender.error(ErrorKind::Protocol, format!("expected {what}, found {found}"))
    }
}

/// An id can stand in a path as it is.
fn is_id(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=200).contains(&id.len()) && id.bytes().all(fits) && !id.bytes().all(|byte| byte == b'.')
}

/// The files that the provider's code has made according to an answer's items, each once and in order: those of hosted
/// tools' results, and those in a container that a text names.
pub fn output_files(items: &[Item]) -> Vec<FileRef> {
    let mut files: Vec<FileRef> = Vec::new();
    let mut add = |file: &FileRef| {
        // The text that names a file often knows more of it than the result.
        match files.iter_mut().find(|known| known.id == file.id) {
            Some(known) => {
                known.name = known.name.take().or_else(|| file.name.clone());
                known.container = known.container.take().or_else(|| file.container.clone());
            }
            None => files.push(file.clone()),
        }
    };
    for item in items {
        match item.view() {
            ItemView::ServerToolResult { output, .. }
            | ItemView::ServerToolCall { output: Some(output), .. } => {
                output.files.iter().for_each(&mut add);
            }
            ItemView::Text { citations, .. } => {
                let files = citations.iter().filter_map(|citation| citation.file.as_ref());
                files.filter(|file| file.container.is_some()).for_each(&mut add);
            }
            _ => {}
        }
    }
    files
}
