//! `http_request`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use encoding_rs::Encoding;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Map, Value};
use toolpost::{
    Args, BoxFuture, Ctx, Output, Tool, ToolError, ToolSpec, Truncation, data, tool, without_begun_character,
};

use super::secrets;
use super::session::{Answer, take_credentials};
use super::{HttpSettings, OutgoingRequest, Session, without_credentials};
use crate::WithText;
use crate::files::shown;

/// Maximum size of the returned headers, in bytes.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Headers of the connection, which callers cannot set.
const OWN_HEADERS: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "expect",
];

/// The response of a server.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct HttpResponse {
    /// Status, such as 200 or 404.
    pub status: u16,
    /// Whether the status is from 200 to 299.
    pub ok: bool,
    /// URL of the response, without credentials.
    pub url: String,
    /// Headers with lower-case names; values with the same name are joined by `, `.
    pub headers: BTreeMap<String, String>,
    /// Body as text or base64.
    pub body: String,
    /// Encoding of the body: `text` or `base64`.
    pub body_encoding: String,
    /// Number of returned body bytes.
    pub bytes: u64,
    /// Whether the body is truncated.
    pub truncated: bool,
    /// URLs of the redirects, without credentials.
    pub redirects: Vec<String>,
    /// Duration in milliseconds.
    pub elapsed_ms: u64,
}

mod plain {
    use super::{
        BTreeMap, Ctx, Duration, HttpResponse, HttpSettings, Instant, Map, Session, ToolError, Value,
        WithText, describe, request, tool,
    };

    /// Make an HTTP request.
    ///
    /// A status such as 404 is a result, not an error: check `status`. Only public addresses are reachable, redirects
    /// included. Long bodies are truncated; binary bodies are base64.
    #[tool(
        summary = "HTTP request",
        tags("http", "web", "url", "download", "fetch", "api", "rest"),
        timeout_s = 360,
        examples(r#"{"url": "https://api.example.com/items", "params": {"page": 2}}"#),
        policy(category = "communication", group = "web", destructive, open_world)
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a parameter of the tool")]
    pub(super) async fn http_request(
        /// The URL, for example "https://api.example.com/items".
        #[arg(format = "url", max_len = 8192)]
        url: String,
        /// The request method.
        #[arg(default = "GET", enum("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))]
        method: String,
        /// Request headers, for example {"Accept": "application/json"}.
        #[arg(max_len = 64)]
        headers: Option<BTreeMap<String, String>>,
        /// Query parameters: strings, numbers, booleans, or arrays of those.
        #[arg(max_len = 256)]
        params: Option<Map<String, Value>>,
        /// The request body.
        data: Option<String>,
        /// The request body as JSON; sets the content type.
        json_data: Option<Value>,
        /// Timeout in seconds, redirects and body included.
        #[arg(default = 30.0, min = 0.001)]
        timeout: f64,
        /// Whether to follow redirects.
        #[arg(default = true)]
        follow_redirects: bool,
        /// Whether to verify the server's certificate. Only an operator can allow false.
        #[arg(default = true)]
        verify_ssl: bool,
        ctx: &Ctx,
    ) -> Result<WithText<HttpResponse>, ToolError> {
        let settings = ctx.inject::<HttpSettings>().map(|settings| (*settings).clone()).unwrap_or_default();
        let max = settings.max_timeout.as_secs_f64();
        let allowed =
            Duration::try_from_secs_f64(timeout).ok().filter(|timeout| *timeout <= settings.max_timeout);
        let allowed = allowed.ok_or_else(|| {
            ToolError::invalid_input(format!("`timeout`: expected at most {max} seconds, found {timeout}"))
                .with("pointer", "/timeout")
                .suggest("Use a shorter timeout.")
        })?;
        let request = request(
            &url,
            &method,
            headers.unwrap_or_default(),
            &params.unwrap_or_default(),
            data,
            json_data,
        )?;
        let session = Session::new(&settings, verify_ssl)?.counted(ctx);
        let begun = Instant::now();
        let answer = tokio::time::timeout(allowed, session.exchange(request, follow_redirects)).await;
        let answer = answer.map_err(|_| {
            ToolError::timeout(format!("the request timed out after {timeout} seconds"))
                .suggest("Raise `timeout`, or request less.")
        })??;
        Ok(describe(&answer, begun.elapsed()))
    }
}

/// `http_request` with the secrets of its arguments.
#[derive(Debug)]
struct HttpRequest<T>(T);

impl<T: Tool> Tool for HttpRequest<T> {
    fn spec(&self) -> Arc<ToolSpec> {
        self.0.spec()
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.0.call(args, ctx)
    }

    fn secrets(&self, arguments: &Value) -> Vec<String> {
        secrets::of_arguments(arguments)
    }
}

/// The tool `http_request`: requests to public addresses and those of [`HttpSettings`].
pub fn http_request() -> impl Tool {
    HttpRequest(plain::http_request())
}

fn request(
    address: &str,
    method: &str,
    headers: BTreeMap<String, String>,
    params: &Map<String, Value>,
    data: Option<String>,
    json_data: Option<Value>,
) -> Result<OutgoingRequest, ToolError> {
    let invalid =
        |pointer: String, message: String| ToolError::invalid_input(message).with("pointer", pointer);
    let mut url = Url::parse(address)
        .ok()
        .filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty())
        })
        .ok_or_else(|| {
            invalid("/url".into(), "`url` is not a URL; expected `http://HOST/…` or `https://HOST/…`".into())
                .suggest("Write the whole URL, with its scheme.")
        })?;
    if !params.is_empty() {
        let mut query = url.query_pairs_mut();
        for (name, value) in params {
            let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for item in items {
                let text = match item {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) => item.to_string(),
                    _ => {
                        return Err(invalid(
                            format!("/params/{}", name.replace('~', "~0").replace('/', "~1")),
                            format!(
                                "the parameter `{}` is {}; expected a string, a number, a boolean, or an array of those",
                                shown(name),
                                if item.is_null() { "null" } else { "nested" },
                            ),
                        ));
                    }
                };
                query.append_pair(name, &text);
            }
        }
    }
    let mut sent = HeaderMap::new();
    if let Some((name, value)) = take_credentials(&mut url) {
        sent.insert(name, value);
    }
    for (name, value) in headers {
        let pointer = format!("/headers/{}", name.replace('~', "~0").replace('/', "~1"));
        let known = HeaderName::try_from(&name)
            .map_err(|_| invalid(pointer.clone(), format!("`{}` is not a header name", shown(&name))))?;
        if OWN_HEADERS.contains(&known.as_str()) || known.as_str().starts_with("proxy-") {
            let message = format!("the header `{known}` belongs to the connection and cannot be set");
            return Err(invalid(pointer, message).suggest("Omit it: the connection sets it as needed."));
        }
        let mut value = HeaderValue::try_from(value.trim().as_bytes())
            // The value may be secret, so the error does not quote it.
            .map_err(|_| invalid(pointer, format!("the value of `{known}` has a control character")))?;
        value.set_sensitive(secrets::is_secret_parameter(known.as_str()));
        sent.insert(known, value);
    }
    let body = match (data, json_data) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                "/json_data".into(),
                "both `data` and `json_data` are given; expected one".into(),
            )
            .suggest("Omit one of them."));
        }
        (Some(data), None) => Some(data.into_bytes()),
        (None, Some(value)) => {
            sent.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(value.to_string().into_bytes())
        }
        (None, None) => None,
    };
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| invalid("/method".into(), format!("`{}` is not a method", shown(method))))?;
    Ok(OutgoingRequest { method, url, headers: sent, body })
}

/// The body as text, if it is text.
fn text_of(answer: &Answer) -> Option<String> {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    let charset = kind.split(';').find_map(|part| part.trim().strip_prefix("charset="));
    let named =
        charset.and_then(|name| Encoding::for_label_no_replacement(name.trim_matches('"').as_bytes()));
    if let Some(encoding) = named {
        return Some(decoded(encoding, answer));
    }
    let is_text = ["text/", "application/json", "application/xml", "application/javascript"]
        .iter()
        .any(|begin| kind.starts_with(begin))
        || kind.split(';').next().is_some_and(|kind| kind.ends_with("+json") || kind.ends_with("+xml"));
    // A truncated body may end inside a character.
    let body = if answer.truncated { without_begun_character(&answer.body) } else { &answer.body };
    if is_text {
        return Some(String::from_utf8_lossy(body).into_owned());
    }
    std::str::from_utf8(body).ok().filter(|text| !text.contains('\0')).map(ToOwned::to_owned)
}

/// The body in an encoding. A truncated one may end inside a character.
fn decoded(encoding: &'static Encoding, answer: &Answer) -> String {
    if !answer.truncated {
        return encoding.decode(&answer.body).0.into_owned();
    }
    let mut decoder = encoding.new_decoder();
    let room = decoder.max_utf8_buffer_length(answer.body.len()).unwrap_or_default();
    let mut text = String::with_capacity(room);
    let (_, _, _) = decoder.decode_to_string(&answer.body, &mut text, false);
    text
}

fn describe(answer: &Answer, elapsed: Duration) -> WithText<HttpResponse> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    let mut room = MAX_HEADER_BYTES;
    for (name, value) in &answer.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        let Some(left) = room.checked_sub(name.as_str().len() + value.len()) else { break };
        room = left;
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|known| {
                known.push_str(", ");
                known.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    let (body, body_encoding) = match text_of(answer) {
        Some(text) => (text, "text"),
        None => (base64::engine::general_purpose::STANDARD.encode(&answer.body), "base64"),
    };
    let status = answer.status;
    let mut text = format!("HTTP {}", status.as_u16());
    // Writing to a string cannot fail.
    let _ = write!(text, " {}", status.canonical_reason().unwrap_or_default());
    if !answer.redirects.is_empty() {
        let _ = write!(text, "\nredirected to {}", without_credentials(&answer.url));
    }
    if let Some(kind) = headers.get("content-type") {
        let _ = write!(text, "\ncontent-type: {kind}");
    }
    if body_encoding == "base64" && !body.is_empty() {
        text.push_str("\n[binary: the body is base64]");
    }
    if answer.truncated {
        let _ = write!(text, "\n[truncated to the first {} bytes of the body]", answer.body.len());
    }
    let _ = write!(text, "\n\n{body}");
    let value = HttpResponse {
        status: status.as_u16(),
        ok: status.is_success(),
        url: without_credentials(&answer.url),
        headers,
        body,
        body_encoding: body_encoding.to_owned(),
        bytes: answer.body.len() as u64,
        truncated: answer.truncated,
        redirects: answer.redirects.iter().map(without_credentials).collect(),
        elapsed_ms: elapsed.as_millis() as u64,
    };
    let size = answer.body.len() as u64;
    let part = answer.truncated.then(|| Truncation::bytes("/body", None, size));
    WithText { truncated: part.into_iter().collect(), ..WithText::new(value, text) }
}
