//! Requests to the file API of a provider.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write;

use bytes::Bytes;
use memchr::memmem;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

use super::api::FileApi;
use crate::http::attempts::{Attempts, Failure, Rejection, text_header};
use crate::http::client::endpoint;
use crate::http::exchange::MAX_ERROR_BODY;
use crate::http::retry::Advice;
use crate::{
    ErrorKind, HttpClient, ModelError, ModelId, Provider, ProviderAccess, RawJson, Secret, TimeoutStage,
};

/// Maximum length of a JSON answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// The size of a chunk of a resumable upload, in bytes.
const UPLOAD_CHUNK: usize = 8 * 1024 * 1024;

/// The body of a request.
pub(super) enum Payload {
    None,
    Body { content_type: String, bytes: Bytes },
}

impl Payload {
    pub(super) fn json(text: String) -> Self {
        Self::Body { content_type: "application/json".to_owned(), bytes: text.into() }
    }
}

/// A client of one provider's file API.
#[derive(Debug)]
pub(super) struct FileClient {
    client: HttpClient,
    provider: &'static Provider,
    /// The base URL without a trailing slash and version.
    base: String,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    /// The name in errors: `anthropic/files`.
    name: ModelId,
}

impl FileClient {
    pub(super) fn new(
        provider: &'static Provider,
        access: ProviderAccess,
        client: HttpClient,
        api: FileApi,
    ) -> Result<Self, ModelError> {
        let name = ModelId::new(provider.name, "files");
        let base =
            provider.resolve_base_url(access.base_url.as_deref()).map_err(|error| error.with_model(&name))?;
        let key = provider.resolve_key(access.key).map_err(|error| error.with_model(&name))?;
        let invalid = |what: &str| {
            let message = format!("{what} has characters that are invalid in an HTTP header");
            ModelError::new(ErrorKind::Configuration, message).with_model(&name)
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &key {
            let (header, value) = provider.key.header(key);
            let mut value = HeaderValue::from_str(&value).map_err(|_| invalid("the API key"))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(header), value);
        }
        if api == FileApi::Anthropic {
            let version = HeaderValue::from_static(crate::wires::anthropic::VERSION);
            headers.insert(HeaderName::from_static("anthropic-version"), version);
        }
        if let Some(header) = provider.beta_header.filter(|_| !access.betas.is_empty()) {
            let value = HeaderValue::from_str(&access.betas.join(",")).map_err(|_| invalid("a beta"))?;
            headers.insert(HeaderName::from_static(header), value);
        }
        let secrets = client.options().proxy.iter().chain(&key).cloned().collect();
        Ok(Self { client, provider, base, headers, secrets, name })
    }

    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> ModelError {
        ModelError::new(kind, message).with_model(&self.name)
    }

    fn url(&self, path: &str) -> Result<Url, ModelError> {
        endpoint(&format!("{}{path}", self.base)).map_err(|error| error.with_model(&self.name))
    }

    fn attempts(&self) -> Attempts {
        Attempts::new(&self.client, &self.name, &self.secrets)
    }

    /// Sends a request and returns the JSON answer.
    pub(super) async fn json(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        payload: Payload,
    ) -> Result<RawJson, ModelError> {
        let url = self.url(path)?;
        let mut attempts = self.attempts();
        loop {
            let result = match self.open(&method, &url, headers, &payload, true, &attempts).await {
                Ok(mut response) => self.read_json(&mut response, &attempts).await,
                Err(failure) => Err(failure),
            };
            match result {
                Ok(json) => return Ok(json),
                Err(failure) => attempts.retry(failure).await?,
            }
        }
    }

    /// Sends a request and returns a header of the answer.
    pub(super) async fn answer_header(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        payload: Payload,
        name: &'static str,
    ) -> Result<String, ModelError> {
        let url = self.url(path)?;
        let mut attempts = self.attempts();
        loop {
            match self.open(&method, &url, headers, &payload, true, &attempts).await {
                Ok(response) => {
                    return text_header(response.headers(), name).map(str::to_owned).ok_or_else(|| {
                        self.error(ErrorKind::Protocol, format!("the answer has no header `{name}`"))
                    });
                }
                Err(failure) => attempts.retry(failure).await?,
            }
        }
    }

    /// Uploads bytes in chunks, without the API key, to an address that the provider returned.
    pub(super) async fn upload_chunks(
        &self,
        address: &str,
        bytes: &Bytes,
        media_type: &str,
    ) -> Result<RawJson, ModelError> {
        let url = endpoint(address).map_err(|error| error.with_model(&self.name))?;
        // A user's file goes to the provider only, whatever the answer says.
        if url.origin() != self.url("/")?.origin() {
            let message = format!(
                "the provider redirects the upload to another host: `{}`",
                super::download::excerpt(url.host_str().unwrap_or_default())
            );
            return Err(self.error(ErrorKind::Protocol, message));
        }
        let mut start = 0;
        loop {
            let end = bytes.len().min(start + UPLOAD_CHUNK);
            let is_last = end == bytes.len();
            let offset = start.to_string();
            let headers = [
                ("x-goog-upload-command", if is_last { "upload, finalize" } else { "upload" }),
                ("x-goog-upload-offset", offset.as_str()),
            ];
            let payload =
                Payload::Body { content_type: media_type.to_owned(), bytes: bytes.slice(start..end) };
            let mut attempts = self.attempts();
            loop {
                let result = match self.open(&Method::POST, &url, &headers, &payload, false, &attempts).await
                {
                    Ok(mut response) if is_last => self.read_json(&mut response, &attempts).await.map(Some),
                    Ok(_) => Ok(None),
                    Err(failure) => Err(failure),
                };
                match result {
                    Ok(Some(json)) => return Ok(json),
                    Ok(None) => break,
                    Err(failure) => attempts.retry(failure).await?,
                }
            }
            start = end;
        }
    }

    /// Writes the body of an answer, and returns its size in bytes.
    pub(super) async fn download(
        &self,
        path: &str,
        to: &mut (dyn Write + Send),
        max_bytes: u64,
    ) -> Result<u64, ModelError> {
        let url = self.url(path)?;
        let mut attempts = self.attempts();
        loop {
            let mut written = 0_u64;
            let result = match self.open(&Method::GET, &url, &[], &Payload::None, true, &attempts).await {
                Ok(mut response) => self.copy(&mut response, to, max_bytes, &mut written, &attempts).await,
                Err(failure) => Err(failure),
            };
            match result {
                Ok(()) => return Ok(written),
                Err(mut failure) => {
                    // Another attempt would write the same bytes again.
                    if written > 0 {
                        failure.advice = Advice::GiveUp;
                    }
                    attempts.retry(failure).await?;
                }
            }
        }
    }

    async fn copy(
        &self,
        response: &mut reqwest::Response,
        to: &mut (dyn Write + Send),
        max_bytes: u64,
        written: &mut u64,
        attempts: &Attempts,
    ) -> Result<(), Failure> {
        let too_large = |found: u64| {
            Failure::protocol(format!("the file has at least {found} bytes; the limit is {max_bytes}"))
        };
        if let Some(length) = response.content_length().filter(|length| *length > max_bytes) {
            return Err(too_large(length));
        }
        let stage = TimeoutStage::BetweenEvents;
        while let Some(chunk) = attempts.chunk(response, attempts.event_deadline(), stage).await? {
            let size = *written + chunk.len() as u64;
            if size > max_bytes {
                return Err(too_large(size));
            }
            to.write_all(&chunk).map_err(|error| {
                Failure::permanent(
                    self.error(ErrorKind::Configuration, format!("cannot write the file: {error}")),
                )
            })?;
            *written = size;
        }
        Ok(())
    }

    async fn read_text(
        &self,
        response: &mut reqwest::Response,
        limit: usize,
        attempts: &Attempts,
    ) -> Result<String, Failure> {
        let stage = TimeoutStage::BetweenEvents;
        attempts.read_text(response, limit, attempts.event_deadline(), stage).await
    }

    async fn read_json(
        &self,
        response: &mut reqwest::Response,
        attempts: &Attempts,
    ) -> Result<RawJson, Failure> {
        let text = self.read_text(response, MAX_ANSWER, attempts).await?;
        // The answer to a deletion may be empty.
        let text = if text.trim().is_empty() { "{}".to_owned() } else { text };
        RawJson::parse(text).map_err(|error| Failure::protocol(format!("the answer is not JSON: {error}")))
    }

    /// Sends a request and waits for the head of a successful answer.
    async fn open(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(&'static str, &str)],
        payload: &Payload,
        with_key: bool,
        attempts: &Attempts,
    ) -> Result<reqwest::Response, Failure> {
        let mut request = reqwest::Request::new(method.clone(), url.clone());
        if with_key {
            *request.headers_mut() = self.headers.clone();
        }
        let invalid = |name: &str| {
            let message = format!("{name} has characters that are invalid in an HTTP header");
            Failure::permanent(self.error(ErrorKind::InvalidRequest, message))
        };
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| invalid(&format!("`{name}`")))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        let mut until = attempts.first_byte_deadline();
        if let Payload::Body { content_type, bytes } = payload {
            let value = HeaderValue::from_str(content_type).map_err(|_| invalid("the media type"))?;
            request.headers_mut().insert(CONTENT_TYPE, value);
            *request.body_mut() = Some(bytes.clone().into());
            // The answer begins only after a large upload.
            until = attempts.deadline();
        }
        let mut response = attempts.send(request, until).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let Rejection { status, advice, retry_after: wait } = Rejection::from_response(&response)?;
        let text = self.read_text(&mut response, MAX_ERROR_BODY, attempts).await.unwrap_or_default();
        let mut error = match self.provider.wire.read_body(&self.name, status, &text) {
            Err(error) => error,
            Ok(_) => self.error(ErrorKind::Protocol, "the error has the form of an answer"),
        };
        if let ErrorKind::RateLimited { retry_after } = &mut error.kind {
            *retry_after = wait;
        }
        Err(Failure { error, advice })
    }
}

/// A multipart form of fields and one file.
pub(super) fn multipart(fields: &[(&str, &str)], name: &str, media_type: &str, content: &Bytes) -> Payload {
    let mut boundary = boundary();
    while memmem::find(content, boundary.as_bytes()).is_some() {
        boundary = self::boundary();
    }
    let mut bytes = Vec::with_capacity(content.len() + 1024);
    for (field, value) in fields {
        let part =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n");
        bytes.extend_from_slice(part.as_bytes());
    }
    let name = name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
    let media_type = media_type.replace(['\r', '\n'], "");
    let head = format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         content-type: {media_type}\r\n\r\n"
    );
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(content);
    bytes.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    Payload::Body { content_type: format!("multipart/form-data; boundary={boundary}"), bytes: bytes.into() }
}

/// A random boundary.
fn boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("toolpost-{:016x}{:016x}", random(), random())
}
