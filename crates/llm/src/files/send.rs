//! Requests about files: attempts, waits and limits as for answers of models.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write;
use std::time::SystemTime;

use bytes::Bytes;
use memchr::memmem;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use tokio::time::{Instant, sleep, timeout_at};

use super::dialect::Dialect;
use crate::http::client::{endpoint, failure_of, is_refused_here, later};
use crate::http::retry::{Advice, advice_of, retry_after};
use crate::{
    Attempt, ErrorKind, HttpClient, ModelError, ModelId, NetworkStage, Provider, ProviderAccess, RawJson,
    Secret, TimeoutStage,
};

/// The longest answer that is no file's content, in bytes.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;

/// The longest body of an unsuccessful answer that is read, in bytes.
const LONGEST_ERROR: usize = 64 * 1024;

/// How much is sent at once where an upload can come in pieces, in bytes.
const PIECE: usize = 8 * 1024 * 1024;

/// What a request carries.
pub(super) enum Payload {
    None,
    Body { content_type: String, bytes: Bytes },
}

impl Payload {
    pub(super) fn json(text: String) -> Self {
        Self::Body { content_type: "application/json".to_owned(), bytes: text.into() }
    }
}

/// Sends requests about files to one provider.
#[derive(Debug)]
pub(super) struct Sender {
    client: HttpClient,
    provider: &'static Provider,
    /// The base URL without a final slash or version.
    base: String,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    /// Who is named in errors: `anthropic/files`.
    name: ModelId,
}

impl Sender {
    pub(super) fn new(
        provider: &'static Provider,
        access: ProviderAccess,
        client: HttpClient,
        dialect: Dialect,
    ) -> Result<Self, ModelError> {
        let name = ModelId::new(provider.name, "files");
        let refused = |kind: ErrorKind, message: String| ModelError::new(kind, message).with_model(&name);
        let base = provider.base(access.base_url.as_deref()).map_err(|error| error.with_model(&name))?;
        let key = provider.usable(access.key).map_err(|error| error.with_model(&name))?;
        let unusable = |what: &str| {
            refused(ErrorKind::Configuration, format!("{what} has characters that no HTTP header can carry"))
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &key {
            let (header, value) = provider.key.header(key);
            let mut value = HeaderValue::from_str(&value).map_err(|_| unusable("the key"))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(header), value);
        }
        if dialect == Dialect::Anthropic {
            let version = HeaderValue::from_static(crate::wires::anthropic::VERSION);
            headers.insert(HeaderName::from_static("anthropic-version"), version);
        }
        if let Some(header) = provider.beta_header.filter(|_| !access.betas.is_empty()) {
            let value =
                HeaderValue::from_str(&access.betas.join(",")).map_err(|_| unusable("a beta's name"))?;
            headers.insert(HeaderName::from_static(header), value);
        }
        let secrets = client.options().proxy.iter().chain(&key).cloned().collect();
        Ok(Self { client, provider, base, headers, secrets, name })
    }

    pub(super) fn error(&self, kind: ErrorKind, message: String) -> ModelError {
        ModelError::new(kind, message).with_model(&self.name)
    }

    fn url(&self, path: &str) -> Result<Url, ModelError> {
        endpoint(&format!("{}{path}", self.base)).map_err(|error| error.with_model(&self.name))
    }

    /// The JSON that a request is answered with.
    pub(super) async fn json(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        payload: Payload,
    ) -> Result<RawJson, ModelError> {
        let url = self.url(path)?;
        let mut attempts = Attempts::new(self);
        loop {
            let result = match self.open(&method, &url, headers, &payload, true, &attempts).await {
                Ok(mut response) => self.read_json(&mut response, &attempts).await,
                Err(failure) => Err(failure),
            };
            match result {
                Ok(json) => return Ok(json),
                Err(failure) => attempts.after(failure).await?,
            }
        }
    }

    /// The value of a header that a request is answered with.
    pub(super) async fn header_of(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        payload: Payload,
        wanted: &'static str,
    ) -> Result<String, ModelError> {
        let url = self.url(path)?;
        let mut attempts = Attempts::new(self);
        loop {
            match self.open(&method, &url, headers, &payload, true, &attempts).await {
                Ok(response) => {
                    let value = response.headers().get(wanted).and_then(|value| value.to_str().ok());
                    return value.map(str::to_owned).ok_or_else(|| {
                        self.error(ErrorKind::Protocol, format!("the answer has no header `{wanted}`"))
                    });
                }
                Err(failure) => attempts.after(failure).await?,
            }
        }
    }

    /// Sends bytes in pieces to an address that the provider has given out, without the key.
    pub(super) async fn send_bytes(
        &self,
        address: &str,
        bytes: &Bytes,
        media_type: &str,
    ) -> Result<RawJson, ModelError> {
        let url = endpoint(address).map_err(|error| error.with_model(&self.name))?;
        // What the provider says decides where a user's file goes: nowhere but to the provider itself.
        if url.origin() != self.url("/")?.origin() {
            let message = format!(
                "the provider wants the file sent to another host: `{}`",
                super::save::shown(url.host_str().unwrap_or_default())
            );
            return Err(self.error(ErrorKind::Protocol, message));
        }
        let mut start = 0;
        loop {
            let end = bytes.len().min(start + PIECE);
            let is_last = end == bytes.len();
            let offset = start.to_string();
            let headers = [
                ("x-goog-upload-command", if is_last { "upload, finalize" } else { "upload" }),
                ("x-goog-upload-offset", offset.as_str()),
            ];
            let payload =
                Payload::Body { content_type: media_type.to_owned(), bytes: bytes.slice(start..end) };
            let mut attempts = Attempts::new(self);
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
                    Err(failure) => attempts.after(failure).await?,
                }
            }
            start = end;
        }
    }

    /// Writes what a request is answered with, up to a limit, and says how many bytes that are.
    pub(super) async fn download(
        &self,
        path: &str,
        to: &mut (dyn Write + Send),
        largest: u64,
    ) -> Result<u64, ModelError> {
        let url = self.url(path)?;
        let mut attempts = Attempts::new(self);
        loop {
            let mut written = 0_u64;
            let result = match self.open(&Method::GET, &url, &[], &Payload::None, true, &attempts).await {
                Ok(mut response) => self.copy(&mut response, to, largest, &mut written, &attempts).await,
                Err(failure) => Err(failure),
            };
            match result {
                Ok(()) => return Ok(written),
                Err(mut failure) => {
                    // What is written already would stand there twice.
                    if written > 0 {
                        failure.advice = Advice::GiveUp;
                    }
                    attempts.after(failure).await?;
                }
            }
        }
    }

    async fn copy(
        &self,
        response: &mut reqwest::Response,
        to: &mut (dyn Write + Send),
        largest: u64,
        written: &mut u64,
        attempts: &Attempts<'_>,
    ) -> Result<(), Failure> {
        let too_large = |found: u64| {
            let message = format!("the file has at least {found} bytes: expected at most {largest}");
            Failure::last(self.error(ErrorKind::Protocol, message))
        };
        if let Some(length) = response.content_length().filter(|length| *length > largest) {
            return Err(too_large(length));
        }
        while let Some(piece) = self.piece(response, attempts).await? {
            let size = *written + piece.len() as u64;
            if size > largest {
                return Err(too_large(size));
            }
            to.write_all(&piece).map_err(|error| {
                Failure::last(
                    self.error(ErrorKind::Configuration, format!("the file cannot be written: {error}")),
                )
            })?;
            *written = size;
        }
        Ok(())
    }

    async fn piece(
        &self,
        response: &mut reqwest::Response,
        attempts: &Attempts<'_>,
    ) -> Result<Option<Bytes>, Failure> {
        let until = later(Instant::now(), self.client.options().event_timeout).min(attempts.deadline);
        timeout_at(until, response.chunk())
            .await
            .map_err(|_| attempts.too_late(until, TimeoutStage::BetweenEvents))?
            .map_err(|error| Failure::passing(failure_of(error)))
    }

    async fn read_text(
        &self,
        response: &mut reqwest::Response,
        limit: usize,
        attempts: &Attempts<'_>,
    ) -> Result<String, Failure> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece(response, attempts).await? {
            if bytes.len() + piece.len() > limit {
                let message = format!("the answer is longer than {limit} bytes");
                return Err(Failure::last(self.error(ErrorKind::Protocol, message)));
            }
            bytes.extend_from_slice(&piece);
        }
        String::from_utf8(bytes)
            .map_err(|_| Failure::last(self.error(ErrorKind::Protocol, "the answer is not UTF-8".to_owned())))
    }

    async fn read_json(
        &self,
        response: &mut reqwest::Response,
        attempts: &Attempts<'_>,
    ) -> Result<RawJson, Failure> {
        let text = self.read_text(response, LONGEST_ANSWER, attempts).await?;
        // A deleted file may be answered with nothing at all.
        let text = if text.trim().is_empty() { "{}".to_owned() } else { text };
        RawJson::parse(text).map_err(|error| {
            Failure::last(self.error(ErrorKind::Protocol, format!("the answer is not JSON: {error}")))
        })
    }

    /// Sends a request and waits for the head of a successful answer.
    async fn open(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(&'static str, &str)],
        payload: &Payload,
        with_key: bool,
        attempts: &Attempts<'_>,
    ) -> Result<reqwest::Response, Failure> {
        self.client.permit(url, &self.name).map_err(Failure::last)?;
        let mut request = reqwest::Request::new(method.clone(), url.clone());
        if with_key {
            *request.headers_mut() = self.headers.clone();
        }
        let unusable = |name: &str| {
            let message = format!("`{name}` has characters that no HTTP header can carry");
            Failure::last(self.error(ErrorKind::InvalidRequest, message))
        };
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| unusable(name))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        // A large upload takes its time until the answer begins.
        let mut until = later(Instant::now(), self.client.options().first_byte_timeout);
        if let Payload::Body { content_type, bytes } = payload {
            let value = HeaderValue::from_str(content_type).map_err(|_| unusable("the media type"))?;
            request.headers_mut().insert(CONTENT_TYPE, value);
            *request.body_mut() = Some(bytes.clone().into());
            until = attempts.deadline;
        }
        let until = until.min(attempts.deadline);
        let mut response = timeout_at(until, self.client.inner(request.url()).execute(request))
            .await
            .map_err(|_| attempts.too_late(until, TimeoutStage::FirstByte))?
            .map_err(|error| {
                let is_refused = is_refused_here(&error, url);
                let error = failure_of(error);
                match error.kind {
                    ErrorKind::Network(NetworkStage::Tls) => Failure::last(error),
                    _ if is_refused => Failure::last(error),
                    _ => Failure::passing(error),
                }
            })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let now = SystemTime::now();
        let advice = advice_of(status, response.headers(), now);
        if response.status().is_redirection() {
            let message = "the answer redirects, which is not followed with a key".to_owned();
            return Err(Failure::last(self.error(ErrorKind::Protocol, message).with_status(status)));
        }
        let wait = retry_after(response.headers(), now);
        let text = self.read_text(&mut response, LONGEST_ERROR, attempts).await.unwrap_or_default();
        let mut error = match self.provider.wire.read_body(&self.name, status, &text) {
            Err(error) => error,
            Ok(_) => self.error(ErrorKind::Protocol, "a failure that reads as an answer".to_owned()),
        };
        if let ErrorKind::RateLimited { retry_after } = &mut error.kind {
            *retry_after = wait;
        }
        Err(Failure { error, advice })
    }
}

/// A failed attempt, and whether another may succeed.
struct Failure {
    error: ModelError,
    advice: Advice,
}

impl Failure {
    fn last(error: ModelError) -> Self {
        Self { error, advice: Advice::GiveUp }
    }

    fn passing(error: ModelError) -> Self {
        Self { error, advice: Advice::Retry { after: None } }
    }
}

/// The attempts of one request so far.
struct Attempts<'a> {
    sender: &'a Sender,
    failed: Vec<Attempt>,
    began: Instant,
    deadline: Instant,
}

impl<'a> Attempts<'a> {
    fn new(sender: &'a Sender) -> Self {
        let now = Instant::now();
        Self {
            sender,
            failed: Vec::new(),
            began: now,
            deadline: later(now, sender.client.options().total_timeout),
        }
    }

    fn too_late(&self, until: Instant, stage: TimeoutStage) -> Failure {
        let options = self.sender.client.options();
        if until >= self.deadline {
            let message = format!("the limit is {:?}", options.total_timeout);
            return Failure::last(self.sender.error(ErrorKind::Timeout(TimeoutStage::Total), message));
        }
        let limit =
            if stage == TimeoutStage::FirstByte { options.first_byte_timeout } else { options.event_timeout };
        Failure::passing(self.sender.error(ErrorKind::Timeout(stage), format!("the limit is {limit:?}")))
    }

    /// Waits until the next attempt; the error if there is to be none.
    async fn after(&mut self, failure: Failure) -> Result<(), ModelError> {
        let Failure { mut error, advice } = failure;
        for secret in &self.sender.secrets {
            error.message = secret.scrub(&error.message);
        }
        let number = self.failed.len() as u32 + 1;
        let wait = self.sender.client.options().retry.wait(number, &advice);
        let wait = wait.filter(|wait| later(Instant::now(), *wait) < self.deadline);
        self.failed.push(Attempt {
            number,
            reason: error.message.clone(),
            status: error.details.status,
            took: self.began.elapsed(),
            waited: wait.unwrap_or_default(),
        });
        let Some(wait) = wait else {
            error.details.model = Some(self.sender.name.clone());
            error.details.attempts = std::mem::take(&mut self.failed);
            return Err(error);
        };
        sleep(wait).await;
        self.began = Instant::now();
        Ok(())
    }
}

/// A form of fields and one file.
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

/// A line that no file has by chance.
fn boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("toolpost-{:016x}{:016x}", random(), random())
}
