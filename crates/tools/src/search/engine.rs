//! The engines, and what their answers look like.

use std::collections::HashSet;

use reqwest::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::Value;
use toolpost::{Ctx, RetryAdvice, Secret, ToolError};

use super::SearchResult;
use crate::http::{HttpSettings, Request, Session};

/// Where Brave answers.
const BRAVE: &str = "https://api.search.brave.com/res/v1/web/search";
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// How many pages of results are asked for.
const MAX_PAGES: usize = 3;
/// The longest title and snippet, in characters.
const MAX_TITLE: usize = 200;
const MAX_SNIPPET: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Searxng,
    Brave,
}

/// A search engine: where it answers and how it is spoken to.
#[derive(Clone, Debug)]
pub struct SearchEngine {
    name: String,
    endpoint: String,
    key: Option<Secret>,
    dialect: Dialect,
}

impl SearchEngine {
    /// A `SearXNG` server by its base URL, named `searxng`. Its settings must allow the format `json`.
    pub fn searxng(base_url: impl Into<String>) -> Self {
        let endpoint = format!("{}/search", base_url.into().trim_end_matches('/'));
        Self { name: "searxng".into(), endpoint, key: None, dialect: Dialect::Searxng }
    }

    /// Brave Search by its key, named `brave`.
    pub fn brave(key: Secret) -> Self {
        Self { name: "brave".into(), endpoint: BRAVE.into(), key: Some(key), dialect: Dialect::Brave }
    }

    /// The same under another name, by which calls ask for it.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same at another address: a server that speaks the same dialect.
    #[must_use]
    pub fn at(self, endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Searches. The address is the operator's own, and may be one of the inside.
    pub(super) async fn search(
        &self,
        ctx: &Ctx,
        http: HttpSettings,
        query: &str,
        wanted: usize,
        safe: bool,
    ) -> Result<Vec<SearchResult>, ToolError> {
        let endpoint = Url::parse(&self.endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let (Some(endpoint), true) = (&endpoint, endpoint.as_ref().is_some_and(Url::has_host)) else {
            return Err(ToolError::precondition(format!(
                "the address of the search engine `{}` in `SearchSettings` is none: expected `https://HOST/…`",
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
        // Brave gives all that are wanted at once.
        let pages = if self.dialect == Dialect::Brave { 1 } else { MAX_PAGES };
        for page in 1..=pages {
            let request = self.request(endpoint, query, wanted, safe, page)?;
            let answer = self.ask(&session, request).await?;
            let before = found.len();
            for result in self.results(&answer)? {
                if found.len() < wanted && known.insert(result.url.clone()) {
                    found.push(result);
                }
            }
            if found.len() >= wanted || found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    fn request(
        &self,
        endpoint: &Url,
        query: &str,
        wanted: usize,
        safe: bool,
        page: usize,
    ) -> Result<Request, ToolError> {
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
                    pairs.append_pair("count", &wanted.to_string());
                    pairs.append_pair("safesearch", if safe { "strict" } else { "off" });
                    pairs.append_pair("text_decorations", "false");
                }
            }
        }
        if let Some(key) = &self.key {
            let mut value = HeaderValue::try_from(key.expose()).map_err(|_| {
                ToolError::precondition(format!(
                    "the key of the search engine `{}` cannot be sent",
                    self.name
                ))
            })?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static("x-subscription-token"), value);
        }
        Ok(Request { method: Method::GET, url, headers, body: None })
    }

    async fn ask(&self, session: &Session<'_>, request: Request) -> Result<Value, ToolError> {
        // A redirect would carry the key elsewhere.
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
                return Err(ToolError::precondition(failed("refuses the request")).suggest(
                    "Check its key in `SearchSettings`; a SearXNG server must allow the format `json`.",
                ));
            }
            429 => {
                return Err(ToolError::overloaded(failed("has had too many requests"))
                    .suggest("Try again later, or ask another engine."));
            }
            500..=599 => return Err(ToolError::dependency(failed("does not work at the moment"))),
            _ => {
                return Err(ToolError::dependency(failed("does not understand the request"))
                    .retry(RetryAdvice::Never)
                    .suggest("Check its address in `SearchSettings`."));
            }
        }
        if answer.truncated {
            return Err(ToolError::limit(failed("answers with more than 4 MiB")));
        }
        serde_json::from_slice(&answer.body).map_err(|_| {
            ToolError::dependency(failed("does not answer in JSON")).retry(RetryAdvice::Never).suggest(
                "Check its address in `SearchSettings`; a SearXNG server must allow the format `json`.",
            )
        })
    }

    fn results(&self, answer: &Value) -> Result<Vec<SearchResult>, ToolError> {
        let (place, snippet) = match self.dialect {
            Dialect::Searxng => ("/results", "content"),
            Dialect::Brave => ("/web/results", "description"),
        };
        let items = match answer.pointer(place) {
            Some(Value::Array(items)) => items.as_slice(),
            // Brave leaves the list out when nothing was found.
            None if self.dialect == Dialect::Brave && answer.is_object() => &[],
            _ => {
                let message = format!("the search engine `{}` answers without `{place}`", self.name);
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

/// A text of an engine on one line, without control characters, and cut.
fn plain(text: &str, limit: usize) -> String {
    let words: Vec<&str> = text.split(|letter: char| letter.is_whitespace() || letter.is_control()).collect();
    let line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(limit).collect();
    if line.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}
