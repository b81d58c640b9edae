//! Search engines and their responses.

use std::collections::HashSet;

use reqwest::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::Value;
use toolpost::{Ctx, RetryAdvice, Secret, ToolError};

use super::SearchResult;
use crate::http::{HttpSettings, OutgoingRequest, Session};

/// Endpoint of Brave Search.
const BRAVE: &str = "https://api.search.brave.com/res/v1/web/search";
/// Maximum size of a response, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Maximum number of requested result pages.
const MAX_PAGES: usize = 3;
/// Maximum length of a title and of a snippet, in characters.
const MAX_TITLE: usize = 200;
const MAX_SNIPPET: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Searxng,
    Brave,
}

/// A search engine: its endpoint and its dialect.
#[derive(Clone, Debug)]
pub struct SearchEngine {
    name: String,
    endpoint: String,
    key: Option<Secret>,
    dialect: Dialect,
}

impl SearchEngine {
    /// A `SearXNG` server by its base URL, named `searxng`. Its settings must enable the format `json`.
    pub fn searxng(base_url: impl Into<String>) -> Self {
        let endpoint = format!("{}/search", base_url.into().trim_end_matches('/'));
        Self { name: "searxng".into(), endpoint, key: None, dialect: Dialect::Searxng }
    }

    /// Brave Search by its API key, named `brave`.
    pub fn brave(key: Secret) -> Self {
        Self { name: "brave".into(), endpoint: BRAVE.into(), key: Some(key), dialect: Dialect::Brave }
    }

    /// Sets the name that calls use.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets another endpoint with the same dialect.
    #[must_use]
    pub fn at(self, endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), ..self }
    }

    /// The engine's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a search. The endpoint is the operator's, so it may be non-public.
    pub(super) async fn search(
        &self,
        ctx: &Ctx,
        http: HttpSettings,
        query: &str,
        count: usize,
        safe: bool,
    ) -> Result<Vec<SearchResult>, ToolError> {
        let endpoint = Url::parse(&self.endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let (Some(endpoint), true) = (&endpoint, endpoint.as_ref().is_some_and(Url::has_host)) else {
            return Err(ToolError::precondition(format!(
                "the URL of the search engine `{}` is invalid; expected `https://HOST/…`",
                self.name
            )));
        };
        let host = endpoint.host_str().unwrap_or_default().to_owned();
        let mut settings = http;
        settings.allowed_hosts = vec![host];
        settings.max_body_bytes = MAX_ANSWER;
        let session = Session::new(&settings, true)?.counted(ctx);
        let mut found: Vec<SearchResult> = Vec::new();
        let mut known = HashSet::new();
        // Brave returns all results at once.
        let pages = if self.dialect == Dialect::Brave { 1 } else { MAX_PAGES };
        for page in 1..=pages {
            let request = self.request(endpoint, query, count, safe, page)?;
            let answer = self.ask(&session, request).await?;
            let before = found.len();
            for result in self.results(&answer)? {
                if found.len() < count && known.insert(result.url.clone()) {
                    found.push(result);
                }
            }
            if found.len() >= count || found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    fn request(
        &self,
        endpoint: &Url,
        query: &str,
        count: usize,
        safe: bool,
        page: usize,
    ) -> Result<OutgoingRequest, ToolError> {
        let mut url = endpoint.clone();
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        {
            let mut pairs = url.query_pairs_mut();
            pairs.append_pair("q", query);
            match self.dialect {
                Dialect::Searxng => {
                    pairs.append_pair("format", "json");
                    pairs.append_pair("safesearch", if safe { "2" } else { "0" });
                    pairs.append_pair("pageno", &page.to_string());
                }
                Dialect::Brave => {
                    pairs.append_pair("count", &count.to_string());
                    pairs.append_pair("safesearch", if safe { "strict" } else { "off" });
                    pairs.append_pair("text_decorations", "false");
                }
            }
        }
        if let Some(key) = &self.key {
            let mut value = HeaderValue::try_from(key.expose()).map_err(|_| {
                ToolError::precondition(format!(
                    "the API key of the search engine `{}` has invalid characters",
                    self.name
                ))
            })?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static("x-subscription-token"), value);
        }
        Ok(OutgoingRequest { method: Method::GET, url, headers, body: None })
    }

    async fn ask(&self, session: &Session<'_>, request: OutgoingRequest) -> Result<Value, ToolError> {
        // A redirect would leak the API key.
        let answer = session
            .exchange(request, false)
            .await
            .map_err(|error| error.with("engine", self.name.clone()))?;
        let status = answer.status;
        let failed =
            |what: &str| format!("the search engine `{}` {what} (status {})", self.name, status.as_u16());
        match status.as_u16() {
            200..=299 => {}
            401 | 403 => {
                return Err(ToolError::precondition(failed("rejects the request"))
                    .suggest("Check its API key; a SearXNG server must enable the format `json`."));
            }
            429 => {
                return Err(ToolError::overloaded(failed("got too many requests"))
                    .suggest("Retry later, or use another engine."));
            }
            500..=599 => return Err(ToolError::dependency(failed("is unavailable"))),
            _ => {
                return Err(ToolError::dependency(failed("rejects the request"))
                    .retry(RetryAdvice::Never)
                    .suggest("Check its URL."));
            }
        }
        if answer.truncated {
            return Err(ToolError::limit(failed("answered with more than 4 MiB")));
        }
        serde_json::from_slice(&answer.body).map_err(|_| {
            ToolError::dependency(failed("answered without JSON"))
                .retry(RetryAdvice::Never)
                .suggest("Check its URL; a SearXNG server must enable the format `json`.")
        })
    }

    fn results(&self, answer: &Value) -> Result<Vec<SearchResult>, ToolError> {
        let (place, snippet) = match self.dialect {
            Dialect::Searxng => ("/results", "content"),
            Dialect::Brave => ("/web/results", "description"),
        };
        let items = match answer.pointer(place) {
            Some(Value::Array(items)) => items.as_slice(),
            // Brave omits the list if nothing was found.
            None if self.dialect == Dialect::Brave && answer.is_object() => &[],
            _ => {
                let message = format!("the answer of the search engine `{}` has no `{place}`", self.name);
                return Err(ToolError::dependency(message).retry(RetryAdvice::Never));
            }
        };
        let text = |item: &Value, key: &str, limit: usize| {
            plain(item.get(key).and_then(Value::as_str).unwrap_or_default(), limit)
        };
        let result = |item: &Value| {
            let url = Url::parse(item.get("url")?.as_str()?).ok()?;
            matches!(url.scheme(), "http" | "https").then(|| SearchResult {
                title: text(item, "title", MAX_TITLE),
                url: url.into(),
                snippet: text(item, snippet, MAX_SNIPPET),
            })
        };
        Ok(items.iter().filter_map(result).collect())
    }
}

/// A text on one line, without control characters, truncated.
fn plain(text: &str, limit: usize) -> String {
    let words: Vec<&str> = text.split(|letter: char| letter.is_whitespace() || letter.is_control()).collect();
    let line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(limit).collect();
    if line.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}
