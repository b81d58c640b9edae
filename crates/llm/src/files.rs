//! Files in a provider's storage: uploads, and outputs of hosted code execution.

mod api;
mod client;
mod download;
mod inline;

use std::io::Write;

use bytes::Bytes;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use toolpost_core::Timestamp;

use self::api::{FileApi, FilePage};
use self::client::{FileClient, Payload};
use crate::{
    ErrorKind, FileRef, HttpClient, Item, ItemView, Media, ModelError, ModelId, Part, Provider,
    ProviderAccess, RawJson,
};

pub use self::download::{CreateFile, SavedFile};
pub use self::inline::{InlineFile, inline_files};

/// The default limit of a download, in bytes.
const DEFAULT_MAX_DOWNLOAD: u64 = 512 * 1024 * 1024;

/// Maximum number of pages that [`ProviderFiles::list`] requests: a provider may always return another one.
const MAX_PAGES: usize = 1_000;

/// The files of one account at a provider.
///
/// Names and sizes from the provider are untrusted: a download stays in its directory and overwrites nothing.
#[derive(Debug)]
pub struct ProviderFiles {
    client: FileClient,
    api: FileApi,
    max_download: u64,
}

/// A file in a provider's storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredFile {
    /// The provider's id, which requests use.
    pub id: String,
    /// The provider's name for the file. Untrusted: do not use it as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The size in bytes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The media type, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The creation time, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// The expiry time, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The address that requests use instead of the id (Gemini).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Whether the file can be downloaded, if known. Uploaded files often cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downloadable: Option<bool>,
    /// The provider's JSON.
    pub raw: RawJson,
}

/// A file to upload.
#[derive(Clone, Debug)]
pub struct FileUpload {
    name: String,
    media_type: String,
    bytes: Bytes,
}

impl FileUpload {
    /// A file with a name, a media type such as `text/csv`, and its content.
    pub fn new(name: impl Into<String>, media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { name: name.into(), media_type: media_type.into(), bytes: bytes.into() }
    }
}

impl ProviderFiles {
    /// The files of the account with this access. Sends nothing.
    ///
    /// # Errors
    /// The provider has no file storage, or its address or API key is missing or invalid.
    pub fn new(
        provider: &'static Provider,
        access: ProviderAccess,
        client: HttpClient,
    ) -> Result<Self, ModelError> {
        let Some(api) = FileApi::for_provider(provider.name) else {
            let message =
                format!("`{}` has no file storage. Use one of: {}", provider.name, FileApi::NAMES.join(", "));
            let model = ModelId::new(provider.name, "files");
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&model));
        };
        let client = FileClient::new(provider, access, client, api)?;
        Ok(Self { client, api, max_download: DEFAULT_MAX_DOWNLOAD })
    }

    /// Sets the limit of a download in bytes. Default: 512 MiB.
    #[must_use]
    pub fn with_max_download_bytes(mut self, bytes: u64) -> Self {
        self.max_download = bytes;
        self
    }

    /// The limit of an upload in bytes.
    ///
    /// At most the provider's limit, and less if a file of that size does not fit into memory.
    pub fn max_upload_bytes(&self) -> u64 {
        self.api.max_upload_bytes()
    }

    /// Uploads a file. A file that exceeds [`ProviderFiles::max_upload_bytes`] is an error, and nothing is sent.
    pub async fn upload(&self, file: FileUpload) -> Result<StoredFile, ModelError> {
        let limit = self.max_upload_bytes();
        if file.bytes.len() as u64 > limit {
            return Err(self.invalid(format!(
                "the file `{}` has {} bytes; the provider accepts at most {limit}",
                download::excerpt(&file.name),
                file.bytes.len()
            )));
        }
        let answer = match self.api {
            FileApi::Gemini => self.upload_resumable(&file).await?,
            _ => {
                let fields: Vec<(&str, &str)> =
                    self.api.purpose().map(|purpose| ("purpose", purpose)).into_iter().collect();
                let payload = client::multipart(&fields, &file.name, &file.media_type, &file.bytes);
                self.client.json(Method::POST, self.api.files_path(), &[], payload).await?
            }
        };
        self.api.read_file(&answer).ok_or_else(|| self.unexpected("the uploaded file", &answer))
    }

    /// Uploads to Gemini: requests an upload address, then sends the bytes.
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
            .client
            .answer_header(Method::POST, api::GEMINI_UPLOAD, &headers, payload, "x-goog-upload-url")
            .await?;
        self.client.upload_chunks(&address, &file.bytes, &file.media_type).await
    }

    /// The part of a user's turn that passes an uploaded file to hosted code execution.
    pub fn to_part(&self, file: &StoredFile) -> Part {
        match self.api {
            // Gemini's code execution reads the documents of the conversation.
            FileApi::Gemini => {
                let media_type = file.media_type.as_deref().unwrap_or("application/octet-stream");
                Part::Document(Media::from_file_id(media_type, &file.id))
            }
            _ => Part::ContainerFile { file_id: file.id.clone() },
        }
    }

    async fn list_page(&self, next: Option<&str>) -> Result<FilePage, ModelError> {
        let answer = self.client.json(Method::GET, &self.api.list_path(next), &[], Payload::None).await?;
        self.api.read_page(&answer).ok_or_else(|| self.unexpected("a list of files", &answer))
    }

    /// Lists the files, at most `limit`.
    pub async fn list(&self, limit: usize) -> Result<Vec<StoredFile>, ModelError> {
        let mut files = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let page = self.list_page(next.as_deref()).await?;
            let is_empty = page.files.is_empty();
            files.extend(page.files);
            // A repeated page token would never end.
            if files.len() >= limit || page.next.is_none() || page.next == next || is_empty {
                break;
            }
            next = page.next;
        }
        files.truncate(limit);
        Ok(files)
    }

    /// Reads a file's metadata.
    pub async fn get(&self, id: &str) -> Result<StoredFile, ModelError> {
        self.find(&FileRef { id: id.to_owned(), ..FileRef::default() }).await
    }

    async fn find(&self, file: &FileRef) -> Result<StoredFile, ModelError> {
        let path = self.path(file, "")?;
        let answer = self.client.json(Method::GET, &path, &[], Payload::None).await?;
        self.api.read_file(&answer).ok_or_else(|| self.unexpected("a file", &answer))
    }

    /// Writes a file's content and returns its size in bytes.
    ///
    /// A file that exceeds the limit is an error; the bytes before it are written.
    pub async fn download(&self, file: &FileRef, to: &mut (dyn Write + Send)) -> Result<u64, ModelError> {
        let path = self.path(file, self.api.content_suffix())?;
        self.client.download(&path, to, self.max_download).await
    }

    /// Deletes a file.
    pub async fn delete(&self, id: &str) -> Result<(), ModelError> {
        let path = self.path(&FileRef { id: id.to_owned(), ..FileRef::default() }, "")?;
        self.client.json(Method::DELETE, &path, &[], Payload::None).await.map(|_| ())
    }

    /// Downloads a file into a new file of the caller.
    ///
    /// The name is the provider's, reduced to a portable file name.
    pub async fn save(&self, file: &FileRef, create: &CreateFile<'_>) -> Result<SavedFile, ModelError> {
        let (name, media_type) = match &file.name {
            Some(name) => (Some(name.clone()), None),
            None => {
                let stored = self.find(file).await?;
                (stored.name, stored.media_type)
            }
        };
        let failed = |error: std::io::Error| {
            self.client.error(ErrorKind::Configuration, format!("cannot create the file: {error}"))
        };
        let (mut target, saved_as) =
            create(&download::safe_file_name(name.as_deref().unwrap_or(&file.id))).map_err(failed)?;
        let partial = download::PartialFile::new(saved_as);
        let size = self.download(file, &mut target).await?;
        Ok(SavedFile { id: file.id.clone(), name, path: partial.keep(), size, media_type })
    }

    fn path(&self, file: &FileRef, rest: &str) -> Result<String, ModelError> {
        let id = file.id.strip_prefix("files/").filter(|_| self.api == FileApi::Gemini).unwrap_or(&file.id);
        for (what, id) in [("a file", Some(id)), ("a container", file.container.as_deref())] {
            if let Some(id) = id
                && !is_id(id)
            {
                return Err(self.invalid(format!(
                    "invalid id of {what}: expected letters, digits, `_`, `-` and `.`, found `{}`",
                    download::excerpt(id)
                )));
            }
        }
        Ok(match file.container.as_deref().filter(|_| self.api.has_containers()) {
            Some(container) => format!("/v1/containers/{container}/files/{id}{rest}"),
            None => format!("{}/{id}{rest}", self.api.files_path()),
        })
    }

    fn invalid(&self, message: String) -> ModelError {
        self.client.error(ErrorKind::InvalidRequest, message)
    }

    fn unexpected(&self, what: &str, found: &RawJson) -> ModelError {
        let found: String = found.get().chars().take(200).collect();
        self.client.error(ErrorKind::Protocol, format!("expected {what}, found {found}"))
    }
}

/// Whether an id can be used in a path without escaping.
fn is_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=200).contains(&id.len()) && id.bytes().all(is_allowed) && !id.bytes().all(|byte| byte == b'.')
}

/// The output files of hosted tools in an answer, each once and in order.
///
/// These are the files of hosted tool results and the container files that texts cite.
pub fn output_files(items: &[Item]) -> Vec<FileRef> {
    let mut files: Vec<FileRef> = Vec::new();
    let mut add = |file: &FileRef| {
        // A citation often knows more about a file than the result.
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
